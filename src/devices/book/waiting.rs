//! Models that no device serves yet: their devices are away, or have no room for them now.

use super::{
    super::{
        parts::Sharing,
        place::Placed,
        refusal::{Again, Refusal},
    },
    Book, State,
    refused::Refused,
};
use crate::models::{Found, Source};
use std::time::Instant;

/// Why no device serves a model now, and where it may be served later.
pub(in crate::devices) struct Away {
    /// In words.
    pub(in crate::devices) reason: String,
    /// Where it is placed.
    pub(in crate::devices) placed: Placed,
    /// Holds that could not have it: the index of the device, the number of the hold, the reason, and whether that may pass.
    pub(in crate::devices) refused: Vec<(usize, u64, Refusal, bool)>,
    /// A device failed while it was loaded there.
    pub(in crate::devices) failed: bool,
}

/// A waiting model.
pub(super) struct Waiting {
    found: Found,
    placed: Placed,
    refused: Refused,
    /// How often in a row a device failed while loading it.
    faults: u32,
}

impl Waiting {
    fn is(&self, found: &Found) -> bool {
        (&self.found.name, &self.found.version) == (&found.name, &found.version)
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.found.name
    }

    /// Whether a device should have it.
    pub(super) fn is_for(&self, index: usize) -> bool {
        self.placed.has(index)
    }

    /// Why a hold on a device cannot have it.
    pub(super) fn why(&self, index: usize, hold: u64) -> Option<&str> {
        self.refused.why(index, hold)
    }
}

impl State {
    /// The sources of the models that wait for a device.
    pub(super) fn waiting_for(&self, index: usize) -> impl Iterator<Item = &Source> {
        let there = self.waiting.iter().filter(move |waiting| waiting.is_for(index));
        there.filter_map(|waiting| waiting.found.source.as_ref().ok())
    }
}

impl Book {
    /// Lets a model wait: it is loaded when a device of its own is back, or has room. Returns how often in a row a device has failed
    /// while loading it.
    pub(in crate::devices) fn wait_for_device(&self, found: &Found, away: Away, now: Instant) -> u32 {
        let mut state = self.state.lock();
        let at = state.waiting.iter().position(|waiting| waiting.is(found));
        let (mut refused, before) = match at.map(|at| state.waiting.swap_remove(at)) {
            Some(waiting) => (waiting.refused, waiting.faults),
            None => (Refused::default(), 0),
        };
        let faults = match away.failed {
            true => before + 1,
            // It has not been tried.
            false if away.refused.is_empty() => before,
            false => 0,
        };
        for (index, hold, why, for_now) in away.refused {
            let again = if for_now { Again::Always } else { Again::Never };
            refused.note(index, hold, why.to_string(), again, now);
        }
        state.waiting.push(Waiting { found: found.clone(), placed: away.placed, refused, faults });
        faults
    }

    /// The waiting models to try now on a hold on a device, except those that had no room there a moment ago.
    pub(in crate::devices) fn who_waits(
        &self,
        index: usize,
        hold: u64,
        sharing: &Sharing,
        now: Instant,
    ) -> Vec<Found> {
        let state = self.state.lock();
        let due = |waiting: &&Waiting| {
            state.wanted(index, &waiting.placed, None, sharing) && !waiting.refused.bars(index, hold, now)
        };
        state.waiting.iter().filter(due).map(|waiting| waiting.found.clone()).collect()
    }

    /// Why a hold on a device has no room for a model that waits for it.
    pub(in crate::devices) fn no_room_for_waiting(&self, index: usize, hold: u64) -> Option<Refusal> {
        let state = self.state.lock();
        let mut short = state.waiting.iter().filter_map(|waiting| waiting.refused.why_for_now(index, hold));
        short.next().map(|why| Refusal::Memory(why.to_owned()))
    }

    /// A model no longer waits.
    pub(in crate::devices) fn stop_waiting_for(&self, found: &Found) {
        self.state.lock().waiting.retain(|waiting| !waiting.is(found));
    }

    /// Ends the wait of all versions of a model except those for which `but` holds.
    pub(in crate::devices) fn stop_waiting(&self, name: &str, but: &dyn Fn(&str) -> bool) {
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| waiting.name() != name || but(&waiting.found.version));
        state.let_go_of(name);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        batch::{Queue, QueueLimits},
        models::testing::source,
    };
    use std::time::Duration;

    const S: Duration = Duration::from_secs(1);

    fn found(name: &str) -> Found {
        let source = Source { bytes: 1 << 30, ..source(name, "1", "engine = \"gauss-mle\"\n") };
        Found { name: name.into(), version: "1".into(), source: Ok(source), only_named: false }
    }

    /// A model placed on the second of three devices.
    fn away(refused: Vec<(usize, u64, Refusal, bool)>, failed: bool) -> Away {
        let placed = Placed { on: vec![1], stands_in: None, instead: false, notes: Vec::new() };
        Away { reason: "it is not there".into(), placed, refused, failed }
    }

    fn no_room(hold: u64) -> Vec<(usize, u64, Refusal, bool)> {
        vec![(1, hold, Refusal::Memory("it is full".into()), true)]
    }

    #[test]
    fn what_waits_for_a_device_counts_there_and_nowhere_else() {
        let (book, queue) = (Book::default(), Queue::new(QueueLimits { items_max: 1, bytes_max: 1 }));
        let required = |index| book.required(index, "H100", 80 << 30);
        let nothing = required(1);
        book.wait_for_device(&found("m"), away(Vec::new(), false), Instant::now());
        assert_eq!([0, 1, 2].map(|index| book.needs(index)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|index| book.activity(index, &queue).0), [false, true, false]);
        assert_eq!([0, 1, 2].map(required), [nothing, nothing + (3 << 30), nothing]);
        let measured = super::super::memory::name(found("m").source.as_ref().unwrap());
        book.learned.lock().model("H100", &measured, 7 << 30, u64::MAX);
        assert_eq!([0, 1].map(|index| book.least(index, "H100")), [None, Some(7 << 30)]);
        book.stop_waiting("m", &|_| false);
        assert!(!book.needs(1));
    }

    #[test]
    fn what_had_no_room_on_a_hold_is_tried_there_ever_more_rarely_and_on_another_at_once() {
        let (book, sharing, mut now) = (Book::default(), Sharing::default(), Instant::now());
        let due = |index, hold, now| book.who_waits(index, hold, &sharing, now).len();
        book.wait_for_device(&found("m"), away(Vec::new(), false), now);
        assert_eq!([due(0, 1, now), due(1, 1, now)], [0, 1]);
        assert!(book.no_room_for_waiting(1, 1).is_none());
        for pause in [5, 10, 20] {
            book.wait_for_device(&found("m"), away(no_room(1), false), now);
            now += S * pause;
            assert_eq!([due(1, 1, now - S), due(1, 1, now), due(1, 2, now - S)], [0, 1, 1], "{pause}");
        }
        let Some(Refusal::Memory(why)) = book.no_room_for_waiting(1, 1) else { panic!("it has no room") };
        assert_eq!(why, "it is full");
        assert!(book.no_room_for_waiting(1, 2).is_none(), "another hold is another matter");
        book.stop_waiting_for(&found("m"));
        assert_eq!(due(1, 2, now), 0);
    }

    #[test]
    fn faults_of_devices_under_a_model_are_counted_until_something_else_keeps_it_off() {
        let (book, now) = (Book::default(), Instant::now());
        let wait = |(refused, failed)| book.wait_for_device(&found("m"), away(refused, failed), now);
        let [fault, full, not_there] = [(no_room(1), true), (no_room(1), false), (Vec::new(), false)];
        let waits = [fault.clone(), not_there, fault.clone(), full, fault];
        assert_eq!(waits.map(wait), [1, 1, 2, 0, 1]);
    }
}
