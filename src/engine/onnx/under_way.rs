//! Interrupting the run of a session on the CPU. Operators that are running finish; later ones, and the next iteration of a loop,
//! do not start.
#![allow(unsafe_code)]

use crate::engine::{EngineError, Interrupt};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions};
use parking_lot::Mutex;
use std::sync::Arc;

/// The runs of a session, of which there is one at a time.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    /// Those of all runs, until one is interrupted.
    options: Option<Arc<Options>>,
    /// Whether there is a run now.
    now: bool,
}

/// Options that say which outputs are computed.
struct Options(RunOptions<HasSelectedOutputs>);

// SAFETY: ort withholds this for the sake of outputs that are allocated beforehand. These options have none, and nothing changes them
// but `terminate`, which is made to be called by another thread.
unsafe impl Sync for Options {}

/// A run that can be interrupted as long as this exists.
pub(super) struct Run<'a> {
    under_way: &'a UnderWay,
    options: Arc<Options>,
}

impl UnderWay {
    /// Makes options anew, for other outputs, with the next run.
    pub(super) fn forget(&self) {
        self.0.lock().options = None;
    }

    /// Begins a run. The session's runs do not compute the outputs of these names.
    ///
    /// # Errors
    /// ONNX Runtime's message, if it has no memory for options.
    pub(super) fn begin(&self, left_out: &[String]) -> Result<Run<'_>, EngineError> {
        let mut runs = self.0.lock();
        if runs.options.is_none() {
            let options =
                RunOptions::new().map_err(|error| EngineError::Device(error.message().to_owned()))?;
            let outputs = left_out.iter().fold(OutputSelector::default(), OutputSelector::without);
            runs.options = Some(Arc::new(Options(options.with_outputs(outputs))));
        }
        runs.now = true;
        let options = Arc::clone(runs.options.as_ref().expect("made above"));
        Ok(Run { under_way: self, options })
    }
}

impl Run<'_> {
    pub(super) fn options(&self) -> &RunOptions<HasSelectedOutputs> {
        &self.options.0
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.under_way.0.lock().now = false;
    }
}

impl Interrupt for UnderWay {
    fn interrupt(&self, unwanted: &dyn Fn() -> bool) -> bool {
        let mut runs = self.0.lock();
        if !runs.now || !unwanted() {
            return false;
        }
        // Taken, so that the next run is not ended by them as well.
        runs.now = false;
        runs.options.take().is_some_and(|options| options.0.terminate().is_ok())
    }
}
