//! Which networks are recorded as CUDA graphs with `cuda_graph = "auto"`: those for which a replay is known to do the same as a run.

use crate::engine::onnx::{
    OnGpu, Placement, gpu::CudaGraph, operators::unrecordable, outline::Outline, session::Session,
};
use std::path::Path;

/// Why nothing is recorded with this version of ONNX Runtime, if it is too old.
///
/// # Errors
/// The same reason, if the model has `cuda_graph = "always"`.
pub(super) fn too_old(replays: Result<(), String>, asked: &OnGpu) -> Result<Option<String>, String> {
    match (replays, asked.cuda_graph) {
        (Err(why), CudaGraph::Always) => Err(why),
        (Err(why), CudaGraph::Auto) if asked.records() => Ok(Some(why)),
        _ => Ok(None),
    }
}

/// Why recording a network is not even tried, by the operators in its file.
pub(super) fn unlisted(path: &Path) -> Option<String> {
    let Some(Outline { operators, .. }) = Outline::of(path) else {
        return Some("its operators are not found in its file".to_owned());
    };
    let others = unrecordable(&operators);
    (!others.is_empty())
        .then(|| format!("it has operators that are not known to be fit for that: {}", others.join(", ")))
}

/// Why a network that draws random numbers is not recorded.
pub(super) fn drawing(placement: &Placement) -> Option<String> {
    placement.drawing().map(|node| format!("{node} draws numbers, of which a replay gives the same again"))
}

/// What else speaks against recording, known once a network is loaded: batches that cannot be recorded, or that always come with new
/// extents, would be run beside the graphs for ever.
pub(super) fn speaks_against(session: &Session) -> Result<Option<String>, String> {
    let signature = session.signature();
    let on_cpu = signature.inputs.iter().zip(session.inputs_on_gpu()?).find(|(_, on_gpu)| !on_gpu);
    Ok(if let Some(why) = drawing(&session.placement()?) {
        Some(why)
    } else if let Some(input) = signature.chosen_input() {
        Some(format!("callers choose extents of input {:?}, and each would be recorded anew", input.name))
    } else if let Some((input, _)) = on_cpu {
        Some(format!("the CPU reads input {:?}", input.name))
    } else if !session.outputs().all_known() {
        Some("the shape of an output is known only after a run, or the CPU gives it".to_owned())
    } else {
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_onnx_runtime_that_is_too_old_is_refused_where_graphs_are_insisted_on_and_else_records_none() {
        let told = |replays: Result<(), &str>, cuda_graph| {
            too_old(replays.map_err(str::to_owned), &OnGpu { cuda_graph, ..OnGpu::default() })
        };
        let why = || "it is 1.26".to_owned();
        assert_eq!(told(Err("it is 1.26"), CudaGraph::Always), Err(why()));
        assert_eq!(told(Err("it is 1.26"), CudaGraph::Auto), Ok(Some(why())));
        assert_eq!(told(Err("it is 1.26"), CudaGraph::Never), Ok(None));
        assert_eq!(told(Ok(()), CudaGraph::Always), Ok(None));
    }

    #[test]
    fn a_network_is_tried_where_all_of_its_operators_are_known_to_be_fit() {
        let folder = tempfile::tempdir().unwrap();
        let told = |nodes: &[[&str; 3]]| {
            let path = folder.path().join("model.onnx");
            std::fs::write(&path, crate::engine::onnx::ending::testing::model(nodes)).unwrap();
            unlisted(&path)
        };
        let fit =
            [["Conv", "x", "a"], ["Relu", "a", "b"], ["GlobalAveragePool", "b", "c"], ["Gemm", "c", "y"]];
        assert_eq!(told(&fit), None);
        let others = [["Conv", "x", "a"], ["NonZero", "a", "b"], ["GatherND", "b", "y"]];
        let why = "it has operators that are not known to be fit for that: GatherND, NonZero";
        assert_eq!(told(&others).as_deref(), Some(why));
        assert!(unlisted(Path::new("/nowhere/model.onnx")).is_some(), "nothing is known of it");
    }
}
