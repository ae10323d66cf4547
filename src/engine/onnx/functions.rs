//! How many nodes a model has once its functions are written out. ONNX Runtime writes each call out before it does anything else, and
//! functions that call others twice, and so on, make any number of nodes out of a few bytes.

use super::skeleton::{self, Message};
use crate::words::clipped;
use std::{
    collections::HashMap,
    io::{Read, Seek},
    path::Path,
};

/// Nodes that calls of functions may be written out to. Networks have some thousands. ONNX Runtime loads 8,192 in 2 s, and takes more
/// than twice as long for twice as many; it did not end in minutes with 131,072.
const NODES_MAX: u64 = 1 << 16;

/// What a node calls and a function is called by: domain, name, and overload.
type Name = [String; 3];

/// How often the nodes of a function, or of the model's own graph, name what; also those of graphs in them.
type Calls = HashMap<Name, u64>;

/// Checks how many nodes a model's functions are written out to.
///
/// # Errors
/// If they are too many, a function calls itself, or the file cannot be read.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let (file, bytes) = skeleton::open(path)?;
    check_file(file, bytes)
}

fn check_file(file: impl Read + Seek, bytes: u64) -> Result<(), String> {
    let (graph, functions) = read(file, bytes)?;
    if functions.is_empty() {
        return Ok(());
    }
    let nodes = nodes(&graph, &functions)?;
    if nodes > NODES_MAX {
        let least = if nodes == u64::MAX { "at least " } else { "" };
        return Err(format!(
            "its functions, written out where they are called, have {least}{nodes} nodes, more than the limit of {NODES_MAX}"
        ));
    }
    Ok(())
}

/// The nodes that a graph is written out to. What a function is written out to is counted once.
fn nodes(graph: &Calls, functions: &HashMap<Name, Calls>) -> Result<u64, String> {
    // `None` while a function's own calls are counted.
    let mut counted: HashMap<&Name, Option<u64>> = HashMap::new();
    // Bodies that are being counted, each called by the one before: in a list, so that no depth of calls takes a stack.
    let mut begun = vec![(None, graph, graph.keys())];
    loop {
        let (name, calls, left) = begun.last_mut().expect("the graph's own is returned from");
        let called = left.find_map(|name| functions.get_key_value(name));
        let Some((called, body)) = called else {
            let of_one = |name| counted.get(name).copied().flatten().unwrap_or(1).max(1);
            let nodes = calls.iter().map(|(name, times)| of_one(name).saturating_mul(*times));
            let nodes = nodes.fold(0, u64::saturating_add);
            let Some(name) = *name else { return Ok(nodes) };
            counted.insert(name, Some(nodes));
            begun.pop();
            continue;
        };
        match counted.get(called) {
            Some(Some(_)) => {}
            Some(None) => return Err(format!("its function {:?} calls itself", clipped(&called[1]))),
            None => {
                counted.insert(called, None);
                begun.push((Some(called), body, body.keys()));
            }
        }
    }
}

/// What the model's graph and its functions call.
fn read(file: impl Read + Seek, bytes: u64) -> Result<(Calls, HashMap<Name, Calls>), String> {
    // The graph comes first in this list, wherever it is in the file.
    let mut bodies = vec![(Name::default(), Calls::new())];
    let mut current = 0;
    // Nodes that have begun: where each ends, and what it calls. Fields may come in any order, so a node is known at its end.
    let mut begun: Vec<(u64, Name)> = Vec::new();
    let end = |begun: &mut Vec<(u64, Name)>, at: u64, calls: &mut Calls| {
        while let Some((_, name)) = begun.pop_if(|(end, _)| *end < at) {
            *calls.entry(name).or_default() += 1;
        }
    };
    skeleton::walk(file, bytes, |fields, field, bytes| {
        end(&mut begun, fields.at(), &mut bodies[current].1);
        let name = match field {
            (Message::Model, 7) => {
                current = 0;
                return Ok(false);
            }
            (Message::Model, 25) => {
                current = bodies.len();
                bodies.push((Name::default(), Calls::new()));
                return Ok(false);
            }
            (Message::Graph, 1) | (Message::Function, 7) => {
                begun.push((fields.at() + bytes, Name::default()));
                return Ok(false);
            }
            (Message::Function, 10) => &mut bodies[current].0[0],
            (Message::Function, 1) => &mut bodies[current].0[1],
            (Message::Function, 13) => &mut bodies[current].0[2],
            (Message::Node, 4 | 7 | 8) => {
                let part = match field.1 {
                    7 => 0,
                    4 => 1,
                    _ => 2,
                };
                &mut begun.last_mut().expect("its node has begun").1[part]
            }
            _ => return Ok(false),
        };
        *name = fields.name(bytes)?;
        // The standard's own domain has two names.
        if name == "ai.onnx" {
            name.clear();
        }
        Ok(true)
    })?;
    end(&mut begun, u64::MAX, &mut bodies[current].1);
    let mut bodies = bodies.into_iter();
    let (_, graph) = bodies.next().unwrap_or_default();
    let mut functions: HashMap<Name, Calls> = HashMap::new();
    for (name, calls) in bodies {
        let known = functions.entry(name).or_default();
        // Of two of one name, either may be called.
        for (name, times) in calls {
            *known.entry(name).or_default() += times;
        }
    }
    Ok((graph, functions))
}

#[cfg(test)]
mod tests {
    use super::{super::external::testing::field, *};
    use std::io::Cursor;

    fn node(operator: &str, domain: &str) -> Vec<u8> {
        [field(4, operator.as_bytes()), field(7, domain.as_bytes())].concat()
    }

    fn function(name: &str, nodes: &[Vec<u8>]) -> Vec<u8> {
        let nodes = nodes.iter().flat_map(|node| field(7, node));
        // The name behind the nodes: fields may come in any order.
        field(25, &[nodes.collect(), field(10, b"f"), field(1, name.as_bytes())].concat())
    }

    fn graph(nodes: &[Vec<u8>]) -> Vec<u8> {
        field(7, &nodes.iter().flat_map(|node| field(1, node)).collect::<Vec<_>>())
    }

    fn checked(parts: &[Vec<u8>]) -> Result<(), String> {
        let model = parts.concat();
        check_file(Cursor::new(&model), model.len() as u64)
    }

    /// Functions that each call the next twice; the last has one node.
    fn doubling(levels: usize) -> Vec<Vec<u8>> {
        let calls = |level: usize| match level + 1 == levels {
            true => vec![node("Relu", "")],
            false => vec![node(&format!("E{}", level + 1), "f"); 2],
        };
        (0..levels).map(|level| function(&format!("E{level}"), &calls(level))).collect()
    }

    #[test]
    fn calls_are_counted_as_often_as_they_are_written_out() {
        let of = |levels| checked(&[doubling(levels), vec![graph(&[node("E0", "f")])]].concat());
        assert_eq!(of(1), Ok(()));
        assert_eq!(of(17), Ok(()));
        let told = of(18).unwrap_err();
        assert!(told.contains("have 131072 nodes, more than the limit of 65536"), "{told}");
        let told = of(5000).unwrap_err();
        assert!(told.contains("have at least 18446744073709551615 nodes"), "{told}");
        // A function that nobody calls costs nothing, nor does the operator of another domain.
        assert_eq!(
            checked(&[doubling(18), vec![graph(&[node("Relu", ""), node("E0", "")])]].concat()),
            Ok(())
        );
    }

    #[test]
    fn calls_are_found_in_graphs_of_nodes_whatever_the_order_of_fields() {
        let branch = field(1, &node("E0", "f"));
        let of_if = [field(5, &field(6, &branch)), node("If", "")].concat();
        let told = checked(&[vec![graph(&[of_if])], doubling(18)].concat()).unwrap_err();
        assert!(told.contains("have 131073 nodes"), "{told}");
    }

    #[test]
    fn a_function_that_calls_itself_is_refused() {
        let call = vec![graph(&[node("A", "f")])];
        for functions in [
            vec![function("A", &[node("A", "f")])],
            vec![function("A", &[node("B", "f")]), function("B", &[node("A", "f")])],
        ] {
            let told = checked(&[functions, call.clone()].concat()).unwrap_err();
            assert_eq!(told, "its function \"A\" calls itself");
        }
    }

    #[test]
    fn a_graph_without_functions_may_have_as_many_nodes_as_its_file_has() {
        assert_eq!(checked(&[graph(&vec![node("Relu", ""); 100_000])]), Ok(()));
    }
}
