//! Whether a device works: what its workers know of it, and what follows from observations of it.
//!
//! A device is taken, serves and is given back or lost, again and again. Each such period is a *hold*. [`Health`] is the state that all
//! workers of a hold share. Once the hold is over, workers leave, and the device's keeper recovers their unfinished work.
//!
//! - [`states`]: how evidence changes a device's state; [`xid`]: what Xid errors mean for it.

pub mod states;
pub mod xid;

use crate::{batch::Queue, engine::EngineError};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Why a hold on a device is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Over {
    /// Its keeper gave it back.
    Left,
    /// The device failed, or is taken for broken.
    Failed(String),
}

/// What all workers of one hold on a device share about it.
#[derive(Clone)]
pub(super) struct Health {
    /// The device's name.
    pub(super) device: Arc<str>,
    /// False if an engine's fault says nothing about the device.
    fallible: bool,
    over: Arc<OnceLock<Over>>,
    flights: Arc<Mutex<Flights>>,
    /// When a batch last succeeded there, or the hold began.
    worked: Arc<Mutex<Instant>>,
    /// Models have gone from there, whose memory may not have been returned to the driver.
    freed: Arc<AtomicBool>,
    /// A call that takes longer has hung.
    stuck_after: Option<Duration>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Flights {
    next: u64,
    began: BTreeMap<u64, Instant>,
    /// When it was last checked whether the device hangs.
    asked: Option<Instant>,
}

/// Whether a device hangs is checked about every 100 ms. If more than this passes between two checks, the process or the thread that
/// checks was suspended; the excess does not count as time that a call has taken.
const UNASKED_MAX: Duration = Duration::from_secs(2);

impl Health {
    /// The health of a device that works. `fallible`: an engine's fault may be the device's. `stuck_after`: a call that takes longer has
    /// hung.
    pub(super) fn new(
        device: Arc<str>,
        queue: Arc<Queue>,
        fallible: bool,
        stuck_after: Option<Duration>,
    ) -> Health {
        let (over, flights, freed) = (Arc::default(), Arc::default(), Arc::default());
        let worked = Arc::new(Mutex::new(Instant::now()));
        Health { device, fallible, over, flights, worked, freed, stuck_after, queue }
    }

    /// Whether the hold is over, so that its workers must leave.
    pub(super) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Why it is over, once it is.
    pub(super) fn over(&self) -> Option<&Over> {
        self.over.get()
    }

    /// Whether the device has failed, or a call of it hangs.
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        matches!(self.over(), Some(Over::Failed(_))) || self.stuck_for(now).is_some()
    }

    /// Ends the hold; the first caller's reason counts.
    pub(super) fn end(&self, why: Over) {
        if self.over.set(why).is_ok() {
            // Its workers must leave, so none may be left asleep.
            self.queue.wake();
        }
    }

    /// Takes in the error of a batch: an error of the device ends the hold.
    pub(super) fn note(&self, error: &EngineError) {
        if let (EngineError::Device(reason), true) = (error, self.fallible) {
            self.end(Over::Failed(reason.clone()));
        }
    }

    /// A batch has succeeded there.
    pub(super) fn worked(&self, now: Instant) {
        *self.worked.lock() = now;
    }

    /// When one last did, or when the hold began.
    pub(super) fn worked_at(&self) -> Instant {
        *self.worked.lock()
    }

    /// Models have gone from there.
    pub(super) fn freed(&self) {
        self.freed.store(true, Ordering::Relaxed);
    }

    /// Whether models have gone since the last call.
    pub(super) fn take_freed(&self) -> bool {
        self.freed.swap(false, Ordering::Relaxed)
    }

    /// Marks the device as busy until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        let mut flights = self.flights.lock();
        let key = flights.next;
        flights.next += 1;
        flights.began.insert(key, Instant::now());
        Busy { key, flights: Arc::clone(&self.flights) }
    }

    /// How long the oldest unfinished call of the device has taken.
    pub(super) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let began = self.flights.lock().began.values().min().copied();
        began.map(|began| now.saturating_duration_since(began))
    }

    /// Like [`Health::busy_for`], if that is so long that the call must have hung.
    pub(super) fn stuck_for(&self, now: Instant) -> Option<Duration> {
        let limit = self.stuck_after?;
        self.flights.lock().asked(now);
        self.busy_for(now).filter(|busy| *busy >= limit)
    }
}

impl Flights {
    /// Discounts time for which the process was suspended.
    fn asked(&mut self, now: Instant) {
        let unasked = self.asked.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        self.asked = self.asked.max(Some(now));
        let still = unasked.saturating_sub(UNASKED_MAX);
        if !still.is_zero() {
            self.began.values_mut().for_each(|began| *began = (*began + still).min(now));
        }
    }
}

/// Says that a call has not returned.
pub(super) fn hangs(time: Duration) -> String {
    format!("a call has not come back for {} s", time.as_secs())
}

/// A guard for a call that the device is busy with.
pub(super) struct Busy {
    key: u64,
    flights: Arc<Mutex<Flights>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.flights.lock().began.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::QueueLimits;

    fn health(fallible: bool) -> Health {
        let queue = Queue::new(QueueLimits { items_max: 1, bytes_max: 1 });
        Health::new("GPU-1".into(), queue, fallible, Some(Duration::from_secs(20)))
    }

    #[test]
    fn only_an_error_of_the_device_ends_a_hold_and_the_first_says_why() {
        let gpu = health(true);
        gpu.note(&EngineError::OutOfMemory("full".into()));
        gpu.note(&EngineError::Input("wrong".into()));
        assert!(!gpu.is_over());
        gpu.clone().note(&EngineError::Device("it broke".into()));
        gpu.end(Over::Left);
        assert_eq!(gpu.over(), Some(&Over::Failed("it broke".into())));
        let cpu = health(false);
        cpu.note(&EngineError::Device("an engine broke".into()));
        assert!(!cpu.is_over(), "an engine on the CPU is not the CPU");
    }

    #[test]
    fn a_device_is_busy_since_the_oldest_thing_that_it_was_given() {
        let (health, s) = (health(true), Duration::from_secs);
        let before = Instant::now();
        assert_eq!(health.busy_for(before), None);
        let first = health.busy();
        let between = Instant::now();
        let second = health.busy();
        assert!(health.busy_for(between + s(10)) >= Some(s(10)));
        assert!(health.busy_for(before + s(10)) <= Some(s(10)));
        assert_eq!(health.stuck_for(before + s(19)), None);
        assert!(health.stuck_for(between + s(20)) >= Some(s(20)));
        drop(first);
        assert!(health.busy_for(between + s(10)) <= Some(s(10)), "the second is younger");
        drop(second);
        assert_eq!(health.busy_for(between + s(10)), None);
    }

    #[test]
    fn a_process_that_stood_still_takes_no_device_for_stuck() {
        let (health, s) = (health(true), Duration::from_secs);
        let _call = health.busy();
        let began = Instant::now();
        let stuck = |seconds: u64| health.stuck_for(began + s(seconds)).is_some();
        assert!(!stuck(1));
        assert!(!stuck(3600), "it was stopped for an hour");
        // One second before the suspension and two seconds of it count.
        let later = (3601..3617).map(stuck).collect::<Vec<_>>();
        assert_eq!(later, vec![false; 16]);
        assert!(stuck(3618), "it hangs since");
    }
}
