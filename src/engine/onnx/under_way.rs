//! The run that a session on the CPU is about, for whoever ends it: its operators run to their end, but not those after them, nor a
//! loop's next round.

use crate::engine::{EngineError, Interrupt};
use ort::session::RunOptions;
use parking_lot::Mutex;
use std::sync::Arc;

/// The run that is under way, if one is.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<Option<Arc<RunOptions>>>);

/// A run that may be ended as long as this is there.
pub(super) struct Run<'a> {
    under_way: &'a UnderWay,
    /// Of its own: nothing that ends it ends the next one.
    options: Arc<RunOptions>,
}

impl UnderWay {
    /// What a run is begun with.
    ///
    /// # Errors
    /// ONNX Runtime's words, where it has no memory for the options.
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
