//! Keepers look after devices, one thread for each. A keeper observes its device, decides by [`lease`](super::lease) and
//! [`health`](super::health), and carries out the effects: takes the device (its context, every model that should be on it, a forward
//! pass with a known answer), gives it back (workers, engines, buffers, and last the context), and tries again later.
//!
//! - [`senses`]: what is observed from outside.
//! - [`gpu`]: the keeper of a GPU; [`cpu`]: that of the CPU, which stands in for GPUs that are away.
//! - [`activity`]: whether anybody needs a GPU. [`away`]: since when there has been no GPU at all.

mod activity;
mod away;
mod cpu;
mod gpu;
mod senses;

use super::{Devices, device::Hold, health::hangs};
use crate::{error::panic_words, telemetry::metrics::Metrics};
use away::{Away, Standing};
use parking_lot::{Condvar, Mutex};
use senses::Senses;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The pause between two turns of a keeper.
const TICK: Duration = Duration::from_millis(100);

/// The pause after a turn that panicked.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(5);

/// How long the start waits until it is known of each GPU whether it can be had.
const DECIDED: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    /// It is known which models there are.
    begun: bool,
    ended: bool,
    /// Keepers that have not looked yet.
    undecided: usize,
    away: Away,
}

/// The keepers of all devices.
#[derive(Default)]
pub(super) struct Keepers {
    state: Mutex<State>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Keepers {
    /// Starts a thread for each device.
    pub(super) fn start(&self, devices: &Arc<Devices>) -> std::io::Result<()> {
        let gpus = || devices.devices.iter().filter_map(|device| device.gpu.as_ref());
        let nvml = devices.sharing.nvml.as_deref();
        let senses = gpus().next().is_some().then(|| Arc::new(Senses::start(nvml, gpus())));
        for (index, device) in devices.devices.iter().enumerate() {
            let theirs = Arc::clone(devices);
            let thread = std::thread::Builder::new();
            let thread = match (&device.gpu, &senses) {
                (Some(gpu), Some(senses)) => {
                    let name = format!("ocelli-keep{}", gpu.ordinal);
                    let keeper = gpu::Keeper::new(theirs, index, gpu.clone(), Arc::clone(senses));
                    self.state.lock().undecided += 1;
                    thread.name(name).spawn(move || keeper.run())
                }
                _ => thread.name("ocelli-keep-cpu".into()).spawn(move || cpu::keep(&theirs, index)),
            };
            self.threads.lock().push(thread?);
        }
        Ok(())
    }

    /// It is known which models there are: GPUs that they need may be taken.
    pub(super) fn begin(&self) {
        self.state.lock().begun = true;
        self.changed.notify_all();
    }

    /// Waits for [`Keepers::begin`].
    fn wait_to_begin(&self) {
        self.changed.wait_while(&mut self.state.lock(), |state| !state.begun && !state.ended);
    }

    /// Waits until each GPU was taken, or is known not to be free.
    pub(super) fn decided(&self) {
        let waits = |state: &mut State| state.undecided > 0 && !state.ended;
        self.changed.wait_while_for(&mut self.state.lock(), waits, DECIDED);
    }

    /// One more keeper has decided.
    fn decide(&self) {
        self.state.lock().undecided -= 1;
        self.changed.notify_all();
    }

    /// Records a GPU's standing; returns how long none has been there while some are waited for.
    fn away(&self, index: usize, standing: Standing, now: Instant) -> Option<Duration> {
        self.state.lock().away.note(index, standing, now)
    }

    /// Whether the server is ending.
    pub(super) fn have_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits for the next turn; false when the server ends.
    fn pause(&self) -> bool {
        self.pause_for(TICK)
    }

    fn pause_for(&self, time: Duration) -> bool {
        self.changed.wait_while_for(&mut self.state.lock(), |state| !state.ended, time).timed_out()
    }

    /// Ends all keepers.
    pub(super) fn join(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("the thread that keeps a device panicked");
            }
        }
    }
}

/// Runs a keeper's turn. A panic is logged, and does not end its thread: nobody else looks after the device.
///
/// # Errors
/// The panic's message.
fn survive(device: &str, turn: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(turn)).map_err(|panic| {
        let reason = format!("the thread that keeps it panicked: {}", panic_words(&panic));
        tracing::error!(device, reason, "a device's keeper is at fault; it goes on in a moment");
        reason
    })
}

/// Holds that are over, until their workers have left and nobody else holds them: then the context is closed.
#[derive(Default)]
struct EndingHolds(Vec<Arc<Hold>>);

impl EndingHolds {
    fn push(&mut self, hold: Arc<Hold>) {
        self.0.push(hold);
    }

    /// Gives work that hangs there to other devices.
    fn recall(&self, now: Instant, metrics: &Metrics) {
        for hold in &self.0 {
            if let Some(time) = hold.health.stuck_for(now) {
                hold.recall(&hangs(time), metrics);
            }
        }
    }

    /// Ends batches there that nobody waits for.
    fn end_unwanted(&self, now: Instant) {
        self.0.iter().for_each(|hold| hold.end_unwanted(now));
    }

    /// Whether a call hangs there. A call in a process of its own ends with the process.
    fn hangs(&self, now: Instant) -> bool {
        self.0.iter().any(|hold| hold.health.stuck_for(now).is_some())
    }

    /// Whether all are gone.
    fn is_done(&mut self) -> bool {
        for hold in std::mem::take(&mut self.0) {
            if !hold.has_ended() {
                self.0.push(hold);
                continue;
            }
            match Arc::try_unwrap(hold) {
                Ok(hold) => hold.join(),
                Err(hold) => self.0.push(hold),
            }
        }
        self.0.is_empty()
    }

    /// Waits for them, at most this long; true when all are gone.
    fn settle(&mut self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !self.is_done() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_whose_turn_panics_says_why_and_has_another() {
        let told = survive("GPU-1", || panic!("no such sample"));
        assert_eq!(told, Err("the thread that keeps it panicked: no such sample".to_owned()));
        assert_eq!(survive("GPU-1", || ()), Ok(()));
    }
}
