//! Interrupting the run of a session on the CPU. Operators that are running finish; later ones, and the next iteration of a loop,
//! do not start.

use crate::engine::{EngineError, Interrupt};
use ort::session::RunOptions;
use parking_lot::Mutex;
use std::sync::Arc;

/// The current run, if there is one.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<Option<Arc<RunOptions>>>);

/// A run that can be interrupted as long as this exists.
pub(super) struct Run<'a> {
    under_way: &'a UnderWay,
    /// Options for this run only, so that interrupting it does not end the next one.
    options: Arc<RunOptions>,
}

impl UnderWay {
    /// Begins a run, and creates its options.
    ///
    /// # Errors
    /// ONNX Runtime's message, if it has no memory for the options.
    pub(super) fn begin(&self) -> Result<Run<'_>, EngineError> {
        let options = RunOptions::new().map_err(|error| EngineError::Device(error.message().to_owned()))?;
        let run = Run { under_way: self, options: Arc::new(options) };
        *self.0.lock() = Some(Arc::clone(&run.options));
        Ok(run)
    }
}

impl Run<'_> {
    pub(super) fn options(&self) -> &RunOptions {
        &self.options
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
        run.take().is_some_and(|run| run.terminate().is_ok())
    }
}
