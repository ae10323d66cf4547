//! Which devices cannot have a model, why, and when that is tried again. Pure.

use super::super::{lease::doubled, refusal::Again};
use std::time::{Duration, Instant};

/// The first pause before a model that had too little room is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How often in a row a failing model is tried again: for about five minutes. During each try, requests wait for the device.
const AGAIN_MAX: u32 = 6;

/// The refusals of one model.
#[derive(Debug, Default)]
pub(super) struct Refused(Vec<One>);

#[derive(Debug)]
struct One {
    index: usize,
    hold: u64,
    why: String,
    /// Refusals of any kind; determines the pause.
    tries: u32,
    /// The latest of these that were tried again by [`Again::AFewTimes`].
    failures: u32,
    /// When it is tried again, if ever.
    again: Option<Instant>,
}

impl Refused {
    /// Records that a hold on a device cannot have the model.
    pub(super) fn note(&mut self, index: usize, hold: u64, why: String, again: Again, now: Instant) {
        let before = self.0.iter().find(|one| (one.index, one.hold) == (index, hold));
        let (tries, failures) = before.map_or((0, 0), |one| (one.tries, one.failures));
        self.forget(index);
        let (failures, goes_on) = match again {
            Again::Always => (0, true),
            Again::AFewTimes => (failures.saturating_add(1), failures < AGAIN_MAX),
            Again::Never => (failures, false),
        };
        let again = goes_on.then(|| now + doubled(PAUSE, tries, PAUSE_MAX));
        self.0.push(One { index, hold, why, tries: tries.saturating_add(1), failures, again });
    }

    /// The device has the model now, or its refusals no longer matter.
    pub(super) fn forget(&mut self, index: usize) {
        self.0.retain(|one| one.index != index);
    }

    /// Why a hold on a device cannot have it.
    pub(super) fn why(&self, index: usize, hold: u64) -> Option<&str> {
        self.0.iter().find(|one| (one.index, one.hold) == (index, hold)).map(|one| one.why.as_str())
    }

    /// Like [`Refused::why`], only if it is tried again.
    pub(super) fn why_for_now(&self, index: usize, hold: u64) -> Option<&str> {
        let one = self.0.iter().find(|one| (one.index, one.hold) == (index, hold))?;
        one.again.map(|_| one.why.as_str())
    }

    /// Whether it must not be tried there now.
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
            refused.note(1, 7, "it is full".into(), Again::Always, now);
            assert!(refused.bars(1, 7, now + s(pause) - Duration::from_millis(1)), "{pause}");
            now += s(pause);
            assert!(!refused.bars(1, 7, now), "{pause}");
            assert_eq!(refused.why(1, 7), Some("it is full"), "and the reason stands until then");
        }
        refused.note(1, 7, "it is too large".into(), Again::Never, now);
        assert!(refused.bars(1, 7, now + s(1_000_000)));
        assert!(!refused.bars(2, 7, now), "another device is another matter");
        assert!(!refused.bars(1, 8, now), "and so is another hold");
        refused.note(1, 8, "it is full".into(), Again::Always, now);
        assert!(!refused.bars(1, 8, now + s(5)), "whose first pause is the first");
        refused.forget(1);
        assert_eq!(refused.why(1, 8), None);
    }

    #[test]
    fn what_failed_on_a_hold_is_tried_a_few_times_more_and_anew_once_something_else_was_in_the_way() {
        let (mut refused, mut now, s) = (Refused::default(), Instant::now(), Duration::from_secs);
        let mut fail = |refused: &mut Refused, pause: Option<u64>| {
            refused.note(1, 7, "it has no such operator".into(), Again::AFewTimes, now);
            assert!(refused.bars(1, 7, now + s(pause.unwrap_or(1_000_000)) - s(1)), "{pause:?}");
            now += s(pause.unwrap_or_default());
            assert_eq!(refused.bars(1, 7, now), pause.is_none(), "{pause:?}");
        };
        for pause in [5, 10, 20, 40, 80, 160] {
            fail(&mut refused, Some(pause));
        }
        fail(&mut refused, None);
        let (mut refused, now) = (Refused::default(), Instant::now());
        for again in
            [Again::AFewTimes; AGAIN_MAX as usize].into_iter().chain([Again::Always, Again::AFewTimes])
        {
            refused.note(1, 7, "it is full, or it failed".into(), again, now);
        }
        assert!(!refused.bars(1, 7, now + PAUSE_MAX));
    }
}
