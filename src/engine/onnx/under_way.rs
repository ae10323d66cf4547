//! Interrupting the run of a session on the CPU. Operators that are running finish; later ones, and the next iteration of a loop,
//! do not start.
#![allow(unsafe_code)]

use crate::engine::{EngineError, Interrupt};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions};
use parking_lot::Mutex;
use std::sync::Arc;

/// The current run, if there is one.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<Option<Arc<Options>>>);

/// Options that say which outputs are computed.
struct Options(RunOptions<HasSelectedOutputs>);

// SAFETY: ort withholds this for the sake of outputs that are allocated beforehand. These options have none, and nothing changes them
// but `terminate`, which is made to be called by another thread.
unsafe impl Sync for Options {}

/// A run that can be interrupted as long as this exists.
pub(super) struct Run<'a> {
    under_way: &'a UnderWay,
    /// Options for this run only, so that interrupting it does not end the next one.
    options: Arc<Options>,
}

impl UnderWay {
    /// Begins a run that does not compute the outputs of these names, and creates its options.
    ///
    /// # Errors
    /// ONNX Runtime's message, if it has no memory for the options.
    pub(super) fn begin(&self, left_out: &[String]) -> Result<Run<'_>, EngineError> {
        let options = RunOptions::new().map_err(|error| EngineError::Device(error.message().to_owned()))?;
        let outputs = left_out.iter().fold(OutputSelector::default(), OutputSelector::without);
        let run = Run { under_way: self, options: Arc::new(Options(options.with_outputs(outputs))) };
        *self.0.lock() = Some(Arc::clone(&run.options));
        Ok(run)
    }
}

impl Run<'_> {
    pub(super) fn options(&self) -> &RunOptions<HasSelectedOutputs> {
        &self.options.0
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        *self.under_way.0.lock() = None;
    }
}

impl Interrupt for UnderWay {
    fn interrupt(&self, unwanted: &dyn Fn() -> bool) -> bool {
        let mut run = self.0.lock();
        if run.is_none() || !unwanted() {
            return false;
        }
        run.take().is_some_and(|run| run.0.terminate().is_ok())
    }
}
