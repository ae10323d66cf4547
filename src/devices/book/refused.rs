//! Which devices cannot have a model, why, and when that is tried again. Pure.

use super::super::lease::doubled;
use std::time::{Duration, Instant};

/// The first pause before a model is tried again that had too little room,
const PAUSE: Duration = Duration::from_secs(5);
/// and the longest.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// The refusals of one model.
#[derive(Debug, Default)]
pub(super) struct Refused(Vec<One>);

#[derive(Debug)]
struct One {
    index: usize,
    hold: u64,
    why: String,
    tries: u32,
    /// Never, where it will be no different as long as the device is held.
    again: Option<Instant>,
}

impl Refused {
    /// A hold on a device cannot have it. `for_now`: there may be room another time.
    pub(super) fn note(&mut self, index: usize, hold: u64, why: String, for_now: bool, now: Instant) {
        let before = self.0.iter().find(|one| (one.index, one.hold) == (index, hold));
        let tries = before.map_or(0, |one| one.tries);
        self.forget(index);
        let again = for_now.then(|| now + doubled(PAUSE, tries, PAUSE_MAX));
        self.0.push(One { index, hold, why, tries: tries.saturating_add(1), again });
    }

    /// A device has it, or what it could not have is no matter any more.
    pub(super) fn forget(&mut self, index: usize) {
        self.0.retain(|one| one.index != index);
    }

    /// Why a hold on a device cannot have it.
    pub(super) fn why(&self, index: usize, hold: u64) -> Option<&str> {
        self.0.iter().find(|one| (one.index, one.hold) == (index, hold)).map(|one| one.why.as_str())
    }

    /// The same, where it may pass.
    pub(super) fn why_for_now(&self, index: usize, hold: u64) -> Option<&str> {
        let one = self.0.iter().find(|one| (one.index, one.hold) == (index, hold))?;
        one.again.map(|_| one.why.as_str())
    }

    /// Whether it is not to be tried there now.
    pub(super) fn bars(&self, index: usize, hold: u64, now: Instant) -> bool {
        let mut here = self.0.iter().filter(|one| (one.index, one.hold) == (index, hold));
        here.any(|one| one.again.is_none_or(|again| now < again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_no_room_is_tried_again_ever_more_rarely_and_what_cannot_be_there_is_not() {
        let (mut refused, mut now, s) = (Refused::default(), Instant::now(), Duration::from_secs);
        assert!(!refused.bars(1, 7, now));
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            refused.note(1, 7, "it is full".into(), true, now);
            assert!(refused.bars(1, 7, now + s(pause) - Duration::from_millis(1)), "{pause}");
            now += s(pause);
            assert!(!refused.bars(1, 7, now), "{pause}");
            assert_eq!(refused.why(1, 7), Some("it is full"), "and the reason stands until then");
        }
        refused.note(1, 7, "it is too large".into(), false, now);
        assert!(refused.bars(1, 7, now + s(1_000_000)));
        assert!(!refused.bars(2, 7, now), "another device is another matter");
        assert!(!refused.bars(1, 8, now), "and so is another hold");
        refused.note(1, 8, "it is full".into(), true, now);
        assert!(!refused.bars(1, 8, now + s(5)), "whose first pause is the first");
        refused.forget(1);
        assert_eq!(refused.why(1, 8), None);
    }
}
