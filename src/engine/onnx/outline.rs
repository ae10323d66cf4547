//! What a model's file says of its network, found in one walk through the file without loading it: weights are skipped.

use super::{
    axes,
    constant::{self, Number, TENSOR_BYTES_MAX},
    metadata,
    operators::Operators,
    skeleton::{self, Message},
};
use std::{
    collections::HashMap,
    io::{Read, Seek},
    path::Path,
    rc::Rc,
};

/// What a model's file says of its network.
#[derive(Default)]
pub(crate) struct Outline {
    /// All operators, including those in branches, loops and functions.
    pub(crate) operators: Operators,
    /// What the exporter wrote about the model, by key.
    pub(crate) metadata: HashMap<String, metadata::Value>,
    /// The nodes of the outermost graph, by each output.
    nodes: HashMap<String, Rc<Node>>,
    /// Its tensors of one number.
    constants: HashMap<String, Number>,
    /// The names of the axes of its inputs.
    axes: HashMap<String, Vec<String>>,
}

/// The parts of a node that are needed to follow it.
#[derive(Default)]
pub(super) struct Node {
    pub(super) operator: String,
    domain: String,
    /// An input that is left out has no name, but its place.
    pub(super) inputs: Vec<String>,
    outputs: Vec<String>,
    /// A tensor among its attributes.
    value: Option<Number>,
}

impl Outline {
    /// That of this file. `None` for a file that cannot be read: loading it reports why.
    pub(crate) fn of(path: &Path) -> Option<Outline> {
        let (file, bytes) = skeleton::open(path).ok()?;
        read(file, bytes).ok()
    }

    /// That of a file of these bytes.
    #[cfg(test)]
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Outline> {
        read(std::io::Cursor::new(bytes), bytes.len() as u64).ok()
    }

    /// The node of the outermost graph that gives this.
    pub(super) fn node(&self, output: &str) -> Option<&Node> {
        self.nodes.get(output).map(|node| &**node)
    }

    /// The nodes that an output comes from, the last first: each gives the first input of the one before.
    pub(super) fn behind(&self, output: &str) -> impl Iterator<Item = &Node> {
        let before = |node: &&Node| self.node(node.inputs.first()?);
        // Each node at most once: a damaged file may contain cycles.
        std::iter::successors(self.node(output), before).take(self.nodes.len())
    }

    /// The tensor of this name, if it is a constant of one number.
    pub(super) fn constant(&self, name: &str) -> Option<&Number> {
        self.constants.get(name)
    }

    /// The index of an input's axis that is named for its channels.
    pub(crate) fn channel_axis(&self, input: &str) -> Option<usize> {
        axes::of_channels(self.axes.get(input)?)
    }

    /// The names of an input's axes, empty for those that have none; none if the file names no axes of it.
    pub(crate) fn axis_names(&self, input: &str) -> &[String] {
        self.axes.get(input).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, node: Node) {
        // `com.microsoft` is the domain of the operators that ONNX Runtime's quantizer adds.
        if !matches!(&*node.domain, "" | "ai.onnx" | "com.microsoft") {
            return;
        }
        if let ("Constant", Some(value), Some(name)) = (&*node.operator, &node.value, node.outputs.first()) {
            self.constants.insert(name.clone(), value.clone());
        }
        let node = Rc::new(node);
        let named = node.outputs.iter().filter(|output| !output.is_empty());
        self.nodes.extend(named.map(|output| (output.clone(), Rc::clone(&node))));
    }
}

fn read(file: impl Read + Seek, bytes: u64) -> Result<Outline, String> {
    let mut outline = Outline::default();
    // Whether the walk is in the model's own graph, and in none of its functions.
    let mut in_graph = false;
    // Nodes that have begun, with their ends. Fields may come in any order, so a node is known at its end.
    let mut begun: Vec<(u64, Node)> = Vec::new();
    let end = |begun: &mut Vec<(u64, Node)>, at: u64, in_graph: bool, outline: &mut Outline| {
        while let Some((_, node)) = begun.pop_if(|(end, _)| *end < at) {
            if in_graph && begun.is_empty() {
                outline.add(node);
            }
        }
    };
    skeleton::walk(file, bytes, |fields, field, bytes| {
        end(&mut begun, fields.at(), in_graph, &mut outline);
        let is_outermost = in_graph && begun.is_empty();
        match field {
            (Message::Model, 14) => outline.metadata.extend(metadata::read(fields, bytes)?),
            (Message::Model, number) => {
                in_graph = number == 7;
                return Ok(false);
            }
            (Message::Graph, 5) if is_outermost && bytes <= TENSOR_BYTES_MAX => {
                outline.constants.extend([constant::read(fields, bytes)?]);
            }
            (Message::Graph, 11) if is_outermost => outline.axes.extend([axes::read(fields, bytes)?]),
            (Message::Graph, 1) | (Message::Function, 7) => {
                begun.push((fields.at() + bytes, Node::default()));
                return Ok(false);
            }
            (Message::Node, number @ (1 | 2 | 4 | 7)) => {
                let name = fields.name_or_none(bytes)?;
                let (_, node) = begun.last_mut().expect("its node has begun");
                match number {
                    1 => node.inputs.push(name),
                    2 => node.outputs.push(name),
                    4 => {
                        outline.operators.insert(name.clone());
                        node.operator = name;
                    }
                    _ => node.domain = name,
                }
            }
            (Message::Attribute, 5) if bytes <= TENSOR_BYTES_MAX => {
                let (_, value) = constant::read(fields, bytes)?;
                // A function's attributes are in no node.
                if let Some((_, node)) = begun.last_mut() {
                    node.value = Some(value);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    end(&mut begun, u64::MAX, in_graph, &mut outline);
    Ok(outline)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ending::testing::model, external::testing::field},
        *,
    };
    use proptest::prelude::*;
    use std::io::Cursor;

    fn outline(bytes: &[u8]) -> Result<Outline, String> {
        read(Cursor::new(bytes), bytes.len() as u64)
    }

    #[test]
    fn a_file_that_cannot_be_read_has_none() {
        assert!(outline(b"<html>").is_err() && Outline::of(Path::new("/nowhere/model.onnx")).is_none());
    }

    #[test]
    fn nodes_of_branches_and_functions_give_no_outputs_of_the_model() {
        let node = |operator: &str, output: &str, more: &[u8]| {
            [field(4, operator.as_bytes()), field(2, output.as_bytes()), more.to_vec()].concat()
        };
        let branch = field(5, &field(6, &field(1, &node("Softmax", "y", &[]))));
        let graph = field(7, &field(1, &node("If", "x", &branch)));
        let function = field(25, &field(7, &node("Sigmoid", "y", &[])));
        for bytes in [[&graph[..], &function].concat(), [&function[..], &graph].concat()] {
            let outline = outline(&bytes).unwrap();
            assert_eq!(outline.node("x").map(|node| &*node.operator), Some("If"));
            assert!(outline.node("y").is_none());
            assert_eq!(outline.operators, ["If", "Sigmoid", "Softmax"].map(str::to_owned).into());
        }
        assert_eq!(outline(&model(&[["Relu", "x", "y"]])).unwrap().behind("y").count(), 1);
    }

    #[test]
    fn a_name_that_is_too_long_or_no_text_hides_nothing_else() {
        for name in [vec![b'n'; 9000], vec![0xff]] {
            let node = |operator: &str, input: &[u8], output: &[u8]| {
                field(1, &[field(4, operator.as_bytes()), field(1, input), field(2, output)].concat())
            };
            let entry = field(14, &[field(1, &name), field(2, b"told")].concat());
            let graph = [node("Relu", b"x", &name), node("Softmax", b"", b"y"), node("Add", &name, b"z")];
            let outline = outline(&[field(7, &graph.concat()), entry].concat()).unwrap();
            assert_eq!(outline.ending("y"), Some(crate::engine::onnx::ending::FinalActivation::Softmax));
            assert_eq!(outline.operators, ["Add", "Relu", "Softmax"].map(str::to_owned).into());
            assert_eq!(
                (outline.behind("y").count(), outline.behind("z").count()),
                (1, 1),
                "what has no name gives nothing"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(outline) = outline(&bytes) {
                let _ = (outline.ending("y"), outline.chosen_by("y"), outline.quantized("y", true));
            }
        }
    }
}
