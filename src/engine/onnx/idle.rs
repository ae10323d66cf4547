//! Releasing the memory of an idle model on the CPU.
//!
//! ONNX Runtime allocates memory for intermediate tensors in steps, and keeps it: after one large batch, a model that is rarely
//! used, and then for single items, would hold the memory of the largest batch for ever. ONNX Runtime releases memory only at the end
//! of a run that asks for it. So an idle model is run once, with zeros of the smallest shapes that it has had.

use super::{failure, session::Session, value};
use crate::engine::{DataType, EngineError, Tensor, TensorView};
use ort::session::RunOptions;

/// The inputs that a session has had.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    smallest: Vec<(DataType, Vec<usize>)>,
    smallest_bytes: usize,
    /// Whether larger ones have come since memory was last released.
    grown: bool,
}

impl Inputs {
    /// Records the inputs of a batch that ran.
    pub(super) fn note<'a>(&mut self, inputs: impl Iterator<Item = &'a TensorView<'a>> + Clone) {
        let bytes = inputs.clone().map(|view| view.data.len()).sum();
        self.grown |= !self.smallest.is_empty() && bytes != self.smallest_bytes;
        if self.smallest.is_empty() || bytes < self.smallest_bytes {
            self.smallest = inputs.map(|view| (view.datatype, view.shape.clone())).collect();
            self.smallest_bytes = bytes;
        }
    }

    /// Has the session release what the smallest batch does not need, if larger ones have come since the last release.
    ///
    /// # Errors
    /// Those of the run; the memory is then kept.
    pub(super) fn shrink(&mut self, session: &mut Session) -> Result<(), EngineError> {
        if !std::mem::take(&mut self.grown) {
            return Ok(());
        }
        let zeros: Vec<Tensor> =
            self.smallest.iter().map(|(datatype, shape)| Tensor::zeros(*datatype, shape)).collect();
        let views: Vec<TensorView<'_>> = zeros.iter().map(Tensor::view).collect();
        let values: Vec<_> = views.iter().map(|view| value::lend("", view)).collect::<Result<_, _>>()?;
        let options = RunOptions::new().and_then(|mut options| {
            options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
            Ok(options)
        });
        let options = options.map_err(|error| EngineError::Device(error.message().to_owned()))?;
        let ran = session.inner().run_with_options(values.as_slice(), &options);
        ran.map(drop).map_err(|error| failure::of_run(&error))
    }
}
