//! Which node of a model runs where. ONNX Runtime silently moves every node that a provider has no kernel for to the CPU. On a
//! GPU, such a model waits for copies in the middle of a run.
#![allow(unsafe_code)]

use ort::{AsPointer, session::Session, sys};
use std::{
    ffi::{CStr, c_char},
    fmt, ptr,
};

/// The option that has a session record where its nodes run.
pub(super) const RECORD: (&str, &str) = ("session.record_ep_graph_assignment_info", "1");

/// ONNX Runtime's name for the CPU.
const CPU: &str = "CPUExecutionProvider";
/// Prefixes of operators that draw random numbers. ONNX Runtime removes a dropout unless it draws some.
const DRAW: [&str; 5] = ["RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"];

/// Most nodes that a message names.
const NAMED_MAX: usize = 5;

/// The nodes of a session by provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// A provider's name as ONNX Runtime has it, and its nodes: operator and name.
    providers: Vec<(String, Vec<String>)>,
}

impl Placement {
    /// The placement of a session that was created with [`RECORD`].
    pub(super) fn of(session: &Session) -> Result<Placement, String> {
        let api = ort::api();
        let mut subgraphs = ptr::null();
        let mut count = 0;
        // SAFETY: the session is alive; what it returns belongs to it.
        let status = unsafe {
            (api.Session_GetEpGraphAssignmentInfo)(session.ptr(), &raw mut subgraphs, &raw mut count)
        };
        checked(status)?;
        let mut placement = Placement::default();
        for index in 0..count {
            let (mut name, mut nodes, mut node_count) = (ptr::null(), ptr::null(), 0);
            // SAFETY: there are `count` of them, and they live as long as the session.
            let subgraph = unsafe { *subgraphs.add(index) };
            // SAFETY: as above, as are the name and the nodes of one.
            checked(unsafe { (api.EpAssignedSubgraph_GetEpName)(subgraph, &raw mut name) })?;
            // SAFETY: as above.
            checked(unsafe {
                (api.EpAssignedSubgraph_GetNodes)(subgraph, &raw mut nodes, &raw mut node_count)
            })?;
            let list = placement.nodes_of(&text(name));
            for index in 0..node_count {
                let (mut operator, mut name) = (ptr::null(), ptr::null());
                // SAFETY: as above.
                let node = unsafe { *nodes.add(index) };
                // SAFETY: as above.
                checked(unsafe { (api.EpAssignedNode_GetOperatorType)(node, &raw mut operator) })?;
                // SAFETY: as above.
                checked(unsafe { (api.EpAssignedNode_GetName)(node, &raw mut name) })?;
                list.push(format!("{} {:?}", text(operator), text(name)));
            }
        }
        Ok(placement)
    }

    fn nodes_of(&mut self, provider: &str) -> &mut Vec<String> {
        let known = self.providers.iter().position(|(name, _)| name == provider);
        let index = known.unwrap_or_else(|| {
            self.providers.push((provider.to_owned(), Vec::new()));
            self.providers.len() - 1
        });
        &mut self.providers[index].1
    }

    /// Nodes on the CPU.
    pub fn on_cpu(&self) -> &[String] {
        self.providers.iter().find(|(name, _)| name == CPU).map_or(&[], |(_, nodes)| nodes)
    }

    /// A node that draws random numbers, if there is one. They differ between runs, but a replay would repeat them.
    pub fn drawing(&self) -> Option<&str> {
        let mut nodes = self.providers.iter().flat_map(|(_, nodes)| nodes);
        let draws = |node: &&String| DRAW.iter().any(|operator| node.starts_with(operator));
        nodes.find(draws).map(String::as_str)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.providers.iter().map(|(_, nodes)| nodes.len()).sum()
    }

    /// Checks that no node runs on the CPU.
    ///
    /// # Errors
    /// The nodes that are on the CPU, or that the placement is unknown.
    pub fn check_no_cpu(&self) -> Result<(), String> {
        let on_cpu = self.on_cpu();
        if self.nodes() == 0 {
            return Err("ONNX Runtime does not say where the nodes of the model run".to_owned());
        }
        if on_cpu.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} of {} nodes would run on the CPU ({}), which placement.fallback forbids: export the model without them, or \
             allow it",
            on_cpu.len(),
            self.nodes(),
            some_of(on_cpu)
        ))
    }
}

/// Such as `57 nodes on CUDA, 2 on CPU (Shape "shape", Gather "gather")`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.providers.is_empty() {
            return f.write_str("unknown");
        }
        for (index, (name, nodes)) in self.providers.iter().enumerate() {
            let (between, unit) = if index == 0 { ("", " nodes") } else { (", ", "") };
            let short = name.strip_suffix("ExecutionProvider").unwrap_or(name);
            write!(f, "{between}{}{unit} on {short}", nodes.len())?;
            if name == CPU && self.providers.len() > 1 {
                write!(f, " ({})", some_of(nodes))?;
            }
        }
        Ok(())
    }
}

fn some_of(nodes: &[String]) -> String {
    let named = nodes.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if nodes.len() > NAMED_MAX { format!("{named}, ...") } else { named }
}

/// A text from ONNX Runtime; empty if there is none.
fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: texts from ONNX Runtime end with a zero byte, and live as long as the session.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The result of a call to the C API.
pub(in crate::engine) fn checked(status: sys::OrtStatusPtr) -> Result<(), String> {
    if status.0.is_null() {
        return Ok(());
    }
    let api = ort::api();
    // SAFETY: the status is an error, whose message lives until it is released.
    let message = text(unsafe { (api.GetErrorMessage)(status.0) });
    // SAFETY: the status is not used any more.
    unsafe { (api.ReleaseStatus)(status.0) };
    Err(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(providers: &[(&str, usize)]) -> Placement {
        let nodes = |count: usize| (0..count).map(|index| format!("Op \"{index}\"")).collect();
        Placement {
            providers: providers.iter().map(|(name, count)| ((*name).into(), nodes(*count))).collect(),
        }
    }

    #[test]
    fn a_model_with_nodes_on_the_cpu_is_refused_with_their_names() {
        let mixed = placement(&[("CUDAExecutionProvider", 57), (CPU, 6)]);
        assert_eq!(
            mixed.check_no_cpu().unwrap_err(),
            "6 of 63 nodes would run on the CPU (Op \"0\", Op \"1\", Op \"2\", Op \"3\", Op \"4\", ...), which \
             placement.fallback forbids: export the model without them, or allow it"
        );
        assert_eq!(placement(&[("CUDAExecutionProvider", 57)]).check_no_cpu(), Ok(()));
        assert!(Placement::default().check_no_cpu().is_err(), "what is not known is not trusted");
    }

    #[test]
    fn a_node_that_draws_numbers_is_found() {
        let of = |nodes: &[&str]| Placement {
            providers: vec![("CUDA".into(), nodes.iter().map(|node| (*node).to_owned()).collect())],
        };
        let drawing = of(&["Conv \"a\"", "RandomNormalLike \"b\""]);
        assert_eq!(drawing.drawing(), Some("RandomNormalLike \"b\""));
        assert_eq!(of(&["Conv \"RandomNormal\""]).drawing(), None, "by its operator");
    }

    #[test]
    fn a_placement_reads_as_one_line() {
        let mixed = placement(&[("CUDAExecutionProvider", 57), (CPU, 2)]);
        assert_eq!(mixed.to_string(), "57 nodes on CUDA, 2 on CPU (Op \"0\", Op \"1\")");
        assert_eq!(placement(&[(CPU, 2)]).to_string(), "2 nodes on CPU");
    }
}
