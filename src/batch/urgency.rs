//! Who goes first within a lane. Pure.
//!
//! **Order.** By level, then deadline (none comes last), then arrival. A job starts at the level of its priority and
//! climbs one level for every [`AGE_STEP`] since it arrived. Level 0 is the top for a job with a deadline, which ends
//! its wait; one without climbs one level further, so it cannot wait for ever behind others that have one. Jobs that come
//! back from a failed batch stand ahead of all that never ran.

use super::JobKey;
use std::time::{Duration, Instant};

/// A waiting job climbs one priority level for each of these. Long against the waits of a healthy queue, so that
/// priorities hold; short against what a caller takes for forgotten.
pub const AGE_STEP: Duration = Duration::from_secs(5);

/// The level of jobs that come back from a failed batch.
pub(super) const LEVEL_AGAIN: i16 = -2;
/// The highest level that a job without a deadline climbs to.
const LEVEL_OVERDUE: i16 = -1;

/// What decides when a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Urgency {
    /// 0 is the most urgent.
    pub priority: u8,
    /// When the answer is worth nothing any more.
    pub deadline: Option<Instant>,
    /// When the request reached us.
    pub arrived: Instant,
}

impl Urgency {
    /// The highest level that age can bring it to.
    fn top(&self) -> i16 {
        if self.deadline.is_some() { 0 } else { LEVEL_OVERDUE }
    }

    /// Its level at a time, if it never ran.
    pub(super) fn level(&self, now: Instant) -> i16 {
        let waited = now.saturating_duration_since(self.arrived).as_nanos();
        let steps = (waited / AGE_STEP.as_nanos()).min(256) as i16;
        (i16::from(self.priority) - steps).max(self.top())
    }

    /// When it leaves this level for the next.
    pub(super) fn climbs_at(&self, level: i16) -> Option<Instant> {
        let steps = i16::from(self.priority) - level + 1;
        (level > self.top()).then(|| self.arrived + AGE_STEP * steps.unsigned_abs().into())
    }

    /// Its place at a level.
    pub(super) fn rank(&self, level: i16, job: JobKey) -> Rank {
        Rank { level, due: self.deadline.map_or(Due::Never, Due::At), arrived: self.arrived, job }
    }
}

/// A job's place in the order; smaller runs first. The fields compare from the top down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub(super) level: i16,
    due: Due,
    arrived: Instant,
    pub(super) job: JobKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    Never,
}
