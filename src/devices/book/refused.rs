//! Which devices cannot have a model, why, and when that is tried again. Pure.

use super::super::{lease::doubled, refusal::Again};
use std::time::{Duration, Instant};

/// The first pause before a model that had too little room is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How often in a row a failing model is tried again: for about five minutes. During each try, requests wait for the device.
const AGAIN_MAX: u32 = 6;

/// A model under which a device has failed so often in a row, hold after hold, is left out there: each failure takes the device from all
/// others for a while.
const FAULTS_MAX: u32 = 3;

/// The refusals of one model.
#[derive(Debug, Default)]
pub(super) struct Refused {
    holds: Vec<One>,
    /// Whatever hold that was.
    faults: Vec<Faults>,
}

/// How often in a row a device has failed while it loaded the model, and with what the last time.
#[derive(Debug)]
struct Faults {
    index: usize,
    count: u32,
    why: String,
}

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
        let (tries, failures) = self.on(index, hold).map_or((0, 0), |one| (one.tries, one.failures));
        self.holds.retain(|one| one.index != index);
        let (failures, goes_on) = match again {
            Again::Always => (0, true),
            Again::AFewTimes => (failures.saturating_add(1), failures < AGAIN_MAX),
            Again::Never => (failures, false),
        };
        let again = goes_on.then(|| now + doubled(PAUSE, tries, PAUSE_MAX));
        self.holds.push(One { index, hold, why, tries: tries.saturating_add(1), failures, again });
    }

    /// Records that a device has failed while it loaded the model.
    pub(super) fn fault(&mut self, index: usize, why: String) {
        let count = self.faults.iter().find(|faults| faults.index == index).map_or(0, |faults| faults.count);
        self.forgive(index);
        self.faults.push(Faults { index, count: count.saturating_add(1), why });
    }

    /// Faults of a device before now no longer count.
    pub(super) fn forgive(&mut self, index: usize) {
        self.faults.retain(|faults| faults.index != index);
    }

    /// The device has the model now.
    pub(super) fn forget(&mut self, index: usize) {
        self.holds.retain(|one| one.index != index);
        self.forgive(index);
    }

    /// Why a hold on a device cannot have it.
    pub(super) fn why(&self, index: usize, hold: u64) -> Option<&str> {
        let why = self.on(index, hold).map(|one| one.why.as_str());
        why.or_else(|| self.too_often(index).map(|faults| faults.why.as_str()))
    }

    /// Like [`Refused::why`], only if it is tried again.
    pub(super) fn why_for_now(&self, index: usize, hold: u64) -> Option<&str> {
        let one = self.on(index, hold).filter(|_| self.too_often(index).is_none())?;
        one.again.map(|_| one.why.as_str())
    }

    /// Whether it must not be tried there now.
    pub(super) fn bars(&self, index: usize, hold: u64, now: Instant) -> bool {
        let waits = |one: &One| one.again.is_none_or(|again| now < again);
        self.too_often(index).is_some() || self.on(index, hold).is_some_and(waits)
    }

    fn on(&self, index: usize, hold: u64) -> Option<&One> {
        self.holds.iter().find(|one| (one.index, one.hold) == (index, hold))
    }

    fn too_often(&self, index: usize) -> Option<&Faults> {
        self.faults.iter().find(|faults| faults.index == index && faults.count >= FAULTS_MAX)
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

    #[test]
    fn a_model_under_which_a_device_fails_is_left_out_there_whatever_the_hold() {
        let (mut refused, now) = (Refused::default(), Instant::now());
        let fault = |refused: &mut Refused, hold| {
            refused.note(1, hold, "this time".into(), Again::AFewTimes, now);
            refused.fault(1, "code 700".into());
            [hold, hold + 1].map(|hold| refused.bars(1, hold, now))
        };
        let times = [1, 2, 3].map(|hold| fault(&mut refused, hold));
        assert_eq!(times, [[true, false], [true, false], [true, true]], "a few holds try it");
        assert_eq!(
            [2, 3, 9].map(|hold| refused.why(1, hold)),
            [Some("code 700"), Some("this time"), Some("code 700")]
        );
        assert!(!refused.bars(2, 1, now) && refused.why_for_now(1, 3).is_none());
        refused.forgive(1);
        assert!(!refused.bars(1, 4, now), "somebody has seen to the device");
        fault(&mut refused, 4);
        refused.forget(1);
        assert_eq!([5, 6].map(|hold| fault(&mut refused, hold)[1]), [false; 2], "it was there in between");
    }
}
