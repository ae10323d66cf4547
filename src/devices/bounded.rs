//! A run at load that can be ended, where the engine allows it: otherwise a network with an endless loop would block the server.

use super::meanwhile::meanwhile;
use crate::engine::{Engine, EngineError};
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A run of one batch that takes longer is ended: no request waits so long for an answer.
pub(super) const RUN_MAX: Duration = Duration::from_secs(600);

/// How often to check whether to end it.
const LOOK: Duration = Duration::from_millis(100);

/// Lets an engine run something, for at most `run_max`, and until `ending` says that the result is no longer needed.
///
/// # Errors
/// Those of `run`; [`EngineError::Device`] where it was ended.
pub(super) fn bounded<R>(
    engine: &mut dyn Engine,
    run_max: Duration,
    ending: &(dyn Fn() -> bool + Sync),
    run: impl FnOnce(&mut dyn Engine) -> Result<R, EngineError>,
) -> Result<R, EngineError> {
    let Some(interrupt) = engine.interrupt() else {
        return run(engine);
    };
    let (begun, ended) = (Instant::now(), OnceLock::new());
    let look = || {
        let why = match begun.elapsed() >= run_max {
            _ if ending() => "the server is ending".to_owned(),
            true => format!("it takes longer than {} s", run_max.as_secs()),
            false => return,
        };
        if interrupt.interrupt(&|| true) {
            ended.get_or_init(|| why);
        }
    };
    let ran = meanwhile(LOOK, look, || run(engine));
    ended.into_inner().map_or(ran, |why| Err(EngineError::Device(why)))
}

#[cfg(test)]
pub(super) mod testing {
    #![allow(clippy::unwrap_used)] // a test may panic

    use crate::engine::{Engine, EngineError, Flight, Interrupt, Setting, Signature, Tensor};
    use parking_lot::{Condvar, Mutex};
    use std::sync::{Arc, mpsc};

    /// An engine whose batches end when they are told to, and not before.
    pub(crate) struct Endless {
        pub(crate) signature: Signature,
        pub(crate) told: Arc<Told>,
        /// Is sent a message for each batch that starts.
        pub(crate) begun: mpsc::Sender<()>,
    }

    /// Whether the running batch has been told to end; `None` where none runs.
    #[derive(Default)]
    pub(crate) struct Told(Mutex<Option<bool>>, Condvar);

    impl Told {
        /// Whether a batch runs that has not been told to end.
        pub(crate) fn goes_on(&self) -> bool {
            *self.0.lock() == Some(false)
        }
    }

    impl Interrupt for Told {
        fn interrupt(&self, unwanted: &dyn Fn() -> bool) -> bool {
            let mut told = self.0.lock();
            if *told != Some(false) || !unwanted() {
                return false;
            }
            *told = Some(true);
            self.1.notify_all();
            true
        }
    }

    impl Engine for Endless {
        fn signature(&self) -> &Signature {
            &self.signature
        }

        fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            let mut told = self.told.0.lock();
            *told = Some(false);
            self.begun.send(()).unwrap();
            self.told.1.wait_while(&mut told, |told| *told == Some(false));
            *told = None;
            Err(EngineError::Input("told to end".into()))
        }

        fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
            Some(Arc::clone(&self.told) as Arc<dyn Interrupt>)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::{
        testing::{Endless, Told},
        *,
    };
    use crate::{
        engine::Flight,
        tasks::testing::{floats, signature},
    };
    use std::sync::{Arc, mpsc};

    #[test]
    fn a_run_without_end_is_ended_when_the_server_is_or_after_the_longest_that_one_may_take() {
        let (begun, began) = mpsc::channel();
        let mut engine =
            Endless { signature: signature(&[("y", &[2])]), told: Arc::new(Told::default()), begun };
        let mut run = |run_max, ending: bool| {
            let run = |engine: &mut dyn Engine| {
                engine.start(vec![floats(&[1], &[1.0])], None).and_then(Flight::land)
            };
            let ran = bounded(&mut engine, run_max, &|| ending, run).map(|_| ());
            began.recv().unwrap();
            ran
        };
        let (never, at_once) = (Duration::from_secs(1_000_000), Duration::ZERO);
        assert_eq!(run(never, true), Err(EngineError::Device("the server is ending".into())));
        assert_eq!(run(at_once, false), Err(EngineError::Device("it takes longer than 0 s".into())));
    }
}
