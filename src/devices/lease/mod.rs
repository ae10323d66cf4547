//! When to take a GPU that others use too. Pure, except for the two modules below: observations and the time come in, decisions come out;
//! no clock, no lock, no NVML.
//!
//! A GPU is *contended* when other processes compute on it **and** either too little memory is free or more than 90 % of its time is
//! used. Too little means less than 1.5 times what our models need, or less than their need and the headroom of loading. A server that
//! waits takes the GPU when it is not contended. One loop handles the three ways to fail: no memory is free; a context or an allocation
//! failed although the GPU looked free (another process was faster); memory ran out in the middle of a run. After each failure it is
//! polled again after a growing pause, and taken only once it has been calm for a growing time, so that two polite processes do not hand
//! it back and forth.
//!
//! - [`memory`]: what models need, as measured before.
//! - [`turns`]: whose turn it is, among several servers on one machine.

pub mod memory;
pub mod turns;

use std::{
    fmt,
    time::{Duration, Instant},
};

/// The free memory that is needed beside others, as a multiple of what the models need.
const MEMORY_FACTOR: f64 = 1.5;
/// Utilisation, %, above which a GPU that others compute on is left to them.
const UTILIZATION_MAX: u32 = 90;
/// How long it must be calm after contention or a failure before it is taken.
const CALM: Duration = Duration::from_secs(2);
/// The longest that this grows to, after many failures.
const CALM_MAX: Duration = Duration::from_secs(60);
/// The first pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest that this grows to.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Once it was held for so long, earlier failures are forgotten.
const SETTLED: Duration = Duration::from_secs(60);

/// What a look at a GPU shows of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Whether other processes compute on it.
    pub others: bool,
    /// Free bytes; `None` if unknown.
    pub free: Option<u64>,
    /// Share of its time in use, %; `None` if unknown.
    pub utilization: Option<u32>,
}

/// Why a GPU is left to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contention {
    /// Others compute on it, and too little memory is free.
    Memory {
        /// Free bytes.
        free: u64,
        /// Bytes that must be free.
        needed: u64,
    },
    /// Others compute on it, and use this much of its time, %.
    Utilization(u32),
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contention::Memory { free, needed } => write!(
                f,
                "other processes compute on it, and {} MiB are free of the {} MiB that must be",
                free >> 20,
                needed >> 20
            ),
            Contention::Utilization(percent) => write!(
                f,
                "other processes compute on it, and {percent} % of its time is in use, more than {UTILIZATION_MAX} %"
            ),
        }
    }
}

/// The bytes that must be free to take a GPU beside others, for models that need `required` bytes and are loaded only if they leave
/// `headroom` free: 1.5 times `required`, and at least the sum of both.
pub fn needed(required: u64, headroom: u64) -> u64 {
    ((required as f64 * MEMORY_FACTOR) as u64).max(required.saturating_add(headroom))
}

/// Why a GPU is left to others, if it is; `needed` bytes of it must be free.
pub fn contended(seen: &Occupancy, needed: u64) -> Option<Contention> {
    match seen {
        Occupancy { others: false, .. } => None,
        Occupancy { free: Some(free), .. } if *free < needed => {
            Some(Contention::Memory { free: *free, needed })
        }
        Occupancy { utilization: Some(percent), .. } if *percent > UTILIZATION_MAX => {
            Some(Contention::Utilization(*percent))
        }
        Occupancy { .. } => None,
    }
}

/// What to do about a GPU that we do not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Take it now.
    Take,
    /// Others use it.
    Contended(Contention),
    /// Others used it until a moment ago, or taking it failed: it has to stay calm until this time.
    Calming(Instant),
    /// Taking it failed: it is not looked at until this time.
    Pausing(Instant),
}

/// Our claim to one GPU.
#[derive(Debug, Clone)]
pub struct Lease {
    held_since: Option<Instant>,
    waiting_since: Instant,
    /// Since when it has been calm again.
    calm_since: Option<Instant>,
    /// It was contended, or taking it failed, since it was last held.
    troubled: bool,
    not_before: Option<Instant>,
    failures: u32,
}

impl Lease {
    /// A claim to a GPU that is not ours yet.
    pub fn new(now: Instant) -> Lease {
        Lease {
            held_since: None,
            waiting_since: now,
            calm_since: None,
            troubled: false,
            not_before: None,
            failures: 0,
        }
    }

    /// What to do about a GPU that is not held. `seen`: the last look, `None` if nothing is known of others; `needed`: bytes that must be
    /// free.
    pub fn look(&mut self, now: Instant, seen: Option<&Occupancy>, needed: u64) -> Step {
        if let Some(until) = self.not_before.filter(|until| now < *until) {
            return Step::Pausing(until);
        }
        if let Some(contention) = seen.and_then(|seen| contended(seen, needed)) {
            self.troubled = true;
            self.calm_since = None;
            return Step::Contended(contention);
        }
        if !self.troubled {
            return Step::Take;
        }
        let since = *self.calm_since.get_or_insert(now);
        let until = since + self.calm();
        if now < until { Step::Calming(until) } else { Step::Take }
    }

    /// It has become ours.
    pub fn taken(&mut self, now: Instant) {
        self.held_since = Some(now);
        self.troubled = false;
        self.calm_since = None;
        self.not_before = None;
    }

    /// It could not be taken, or was lost for want of memory. `scatter`, from 0 to 1, varies the pause from process to process.
    pub fn failed(&mut self, now: Instant, scatter: f64) {
        self.settle(now);
        self.wait(now);
        self.troubled = true;
        let pause = doubled(PAUSE, self.failures, PAUSE_MAX).mul_f64(0.75 + 0.5 * scatter.clamp(0.0, 1.0));
        self.not_before = Some(now + pause);
        self.failures = self.failures.saturating_add(1);
    }

    /// It was given back, or another reason keeps it from being held.
    pub fn given_back(&mut self, now: Instant) {
        self.settle(now);
        self.wait(now);
    }

    fn wait(&mut self, now: Instant) {
        if self.held_since.take().is_some() {
            self.waiting_since = now;
        }
        self.calm_since = None;
    }

    fn settle(&mut self, now: Instant) {
        if self.held_since.is_some_and(|since| now.saturating_duration_since(since) >= SETTLED) {
            self.failures = 0;
        }
    }

    /// The wait starts now: time before does not count.
    pub fn restart(&mut self, now: Instant) {
        self.waiting_since = now;
    }

    /// Whether it is ours.
    pub fn is_held(&self) -> bool {
        self.held_since.is_some()
    }

    /// How long it has been waited for; zero while it is held.
    pub fn waited(&self, now: Instant) -> Duration {
        match self.held_since {
            Some(_) => Duration::ZERO,
            None => now.saturating_duration_since(self.waiting_since),
        }
    }

    /// When it should be taken, if nobody contends for it. For a GPU that is not held.
    pub fn due(&self, now: Instant) -> Instant {
        let pause = self.not_before.map_or(now, |until| until.max(now));
        match self.troubled {
            true => pause.max(self.calm_since.unwrap_or(pause) + self.calm()),
            false => pause,
        }
    }

    /// How long it has to be calm.
    fn calm(&self) -> Duration {
        doubled(CALM, self.failures.saturating_sub(1), CALM_MAX)
    }
}

/// A time doubled so many times, up to a bound.
pub(super) fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn seen(others: bool, free_gib: u64, utilization: u32) -> Occupancy {
        Occupancy { others, free: Some(free_gib * GIB), utilization: Some(utilization) }
    }

    #[test]
    fn a_gpu_is_contended_by_others_who_leave_too_little_memory_or_time() {
        let memory = |free: u64| Some(Contention::Memory { free: free * GIB, needed: 6 * GIB });
        for (looked, expected) in [
            (seen(false, 0, 100), None),
            (seen(true, 6, 90), None),
            (seen(true, 5, 0), memory(5)),
            (seen(true, 80, 91), Some(Contention::Utilization(91))),
            (seen(true, 5, 100), memory(5)),
            (Occupancy { others: true, free: None, utilization: None }, None),
        ] {
            assert_eq!(contended(&looked, needed(4 * GIB, GIB)), expected, "{looked:?}");
        }
    }

    #[test]
    fn what_loading_leaves_free_must_be_free_as_well() {
        assert_eq!(needed(4 * GIB, 0), 6 * GIB);
        assert_eq!(needed(4 * GIB, 2 * GIB), 6 * GIB);
        assert_eq!(needed(4 * GIB, 3 * GIB), 7 * GIB);
        assert_eq!(needed(u64::MAX, GIB), u64::MAX);
    }

    #[test]
    fn a_free_gpu_is_taken_at_once_and_one_that_was_contended_when_it_has_been_calm() {
        let t0 = Instant::now();
        let mut lease = Lease::new(t0);
        assert_eq!(lease.clone().look(t0, Some(&seen(true, 80, 50)), GIB), Step::Take);
        assert_eq!(
            lease.clone().look(t0, None, GIB),
            Step::Take,
            "without NVML there is nothing to wait for"
        );
        assert!(matches!(lease.look(t0, Some(&seen(true, 0, 50)), GIB), Step::Contended(_)));
        let free = seen(true, 80, 50);
        assert_eq!(lease.look(t0 + ms(500), Some(&free), GIB), Step::Calming(t0 + ms(2500)));
        assert_eq!(lease.look(t0 + ms(2499), Some(&free), GIB), Step::Calming(t0 + ms(2500)));
        assert_eq!(lease.look(t0 + ms(2500), Some(&free), GIB), Step::Take);
        assert_eq!(lease.waited(t0 + ms(2500)), ms(2500));
    }

    #[test]
    fn noise_around_the_limit_of_utilization_is_waited_out() {
        let t0 = Instant::now();
        let mut lease = Lease::new(t0);
        lease.look(t0, Some(&seen(true, 80, 95)), GIB);
        for tick in 1..200_u32 {
            let utilization = if tick % 4 == 0 { 92 } else { 89 };
            let step = lease.look(t0 + ms(500) * tick, Some(&seen(true, 80, utilization)), GIB);
            assert_ne!(step, Step::Take, "tick {tick}");
        }
        // The last contention was at tick 196; four ticks are two seconds.
        assert!(matches!(lease.look(t0 + ms(500) * 200, Some(&seen(true, 80, 60)), GIB), Step::Calming(_)));
        assert_eq!(lease.look(t0 + ms(500) * 201, Some(&seen(true, 80, 60)), GIB), Step::Take);
    }

    #[test]
    fn pauses_and_calm_grow_with_failures_and_a_long_hold_forgets_them() {
        let t0 = Instant::now();
        let mut lease = Lease::new(t0);
        let mut now = t0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            lease.failed(now, 0.5);
            let Step::Pausing(until) = lease.look(now, None, 0) else { panic!("it does not pause") };
            pauses.push((until - now).as_millis());
            now = until;
            assert!(matches!(lease.look(now, None, 0), Step::Calming(_)));
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(lease.look(now, None, 0), Step::Calming(now + CALM_MAX));
        assert_eq!(lease.waited(now), now - t0, "one wait, whatever failed in it");
        lease.taken(now);
        assert_eq!(lease.waited(now + SETTLED), Duration::ZERO);
        lease.failed(now + SETTLED, 0.5);
        assert_eq!(lease.look(now + SETTLED, None, 0), Step::Pausing(now + SETTLED + PAUSE));
    }

    #[test]
    fn what_is_due_is_taken_then_and_stays_due_at_the_same_time_until_it_is() {
        let t0 = Instant::now();
        let mut lease = Lease::new(t0);
        assert_eq!((lease.due(t0), lease.look(t0, None, 0)), (t0, Step::Take));
        lease.failed(t0, 0.5);
        let due = lease.due(t0);
        assert_eq!(due, t0 + PAUSE + CALM);
        for at in [0, 499, 500, 501, 2499] {
            assert_ne!(lease.look(t0 + ms(at), None, 0), Step::Take, "{at}");
            assert_eq!(lease.due(t0 + ms(at)), due, "{at}");
        }
        assert_eq!(lease.look(due, None, 0), Step::Take);
        lease.look(due, Some(&seen(true, 0, 0)), GIB);
        assert_eq!(lease.due(due), due + CALM, "others have come: it has to be calm anew");
    }

    /// Two processes want one GPU that has room for one, for ten minutes of looks. Returns who holds it at the end, and how often it was
    /// taken. `seed` decides who is first in a tick, who loses when both took it, and the scatter of each failure.
    fn two_for_one_gpu(seed: u64) -> ([bool; 2], u32) {
        let mut random = Random::new(seed);
        let t0 = Instant::now();
        let mut leases = [Lease::new(t0), Lease::new(t0)];
        let mut holds = [false; 2];
        let mut changes = 0;
        for tick in 0..1200_u32 {
            let now = t0 + ms(500) * tick;
            let order = if random.bits() & 1 == 0 { [0, 1] } else { [1, 0] };
            // Both decide by a look at the same moment, as with old samples.
            let looks = order.map(|me| seen(holds[1 - me], if holds[1 - me] { 1 } else { 10 }, 0));
            for (me, look) in order.into_iter().zip(looks) {
                if !holds[me] && leases[me].look(now, Some(&look), needed(4 * GIB, 0)) == Step::Take {
                    holds[me] = true;
                    changes += 1;
                    leases[me].taken(now);
                }
            }
            if holds == [true, true] {
                // There is no room for both: memory runs out for the second, or for both.
                let losers = if random.bits() & 1 == 0 { &order[..] } else { &order[1..] };
                for &me in losers {
                    holds[me] = false;
                    leases[me].failed(now, random.unit());
                }
            }
        }
        (holds, changes)
    }

    proptest! {
        /// They never both hold it for long, one gets it, and it does not change hands more often than the pauses allow.
        #[test]
        fn two_polite_processes_do_not_trade_a_gpu(seed in any::<u64>()) {
            let (holds, changes) = two_for_one_gpu(seed);
            prop_assert!(holds.iter().filter(|held| **held).count() == 1, "{holds:?} (seed {seed})");
            prop_assert!(changes < 40, "{changes} times in ten minutes (seed {seed})");
        }
    }
}
