//! The order of jobs within a lane. Pure.
//!
//! **Order.** By level, then deadline (jobs without one come last), then arrival. A job starts at the level of its priority and climbs
//! one level for every [`AGE_STEP`] since it arrived. Level 0 is the top for a job with a deadline, which ends its wait. A job without
//! one climbs one level further, so it cannot wait for ever behind jobs with deadlines. A job that has run out of patience, and is not
//! refused for it, stands behind the others of its level. Jobs that come back from a failed batch stand ahead of all that never ran.

use super::{
    JobKey,
    patience::{OnTimeout, Patience},
};
use std::time::{Duration, Instant};

/// A waiting job climbs one priority level each time this passes. Long compared with the waits of a healthy queue, so that priorities
/// hold; short compared with the time after which a caller thinks it is forgotten.
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
    /// After this the answer is worthless.
    pub deadline: Option<Instant>,
    /// When the request arrived.
    pub arrived: Instant,
    /// How long it waits to be started.
    pub patience: Option<Patience>,
}

impl Urgency {
    /// The highest level that age can bring it to.
    fn top(&self) -> i16 {
        if self.deadline.is_some() { 0 } else { LEVEL_OVERDUE }
    }

    /// Its level at a time, if it has never run.
    pub(super) fn level(&self, now: Instant) -> i16 {
        let waited = now.saturating_duration_since(self.arrived).as_nanos();
        let steps = (waited / AGE_STEP.as_nanos()).min(256) as i16;
        (i16::from(self.priority) - steps).max(self.top())
    }

    /// When it ends without having run: at its deadline, or when it is refused for having waited too long.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        let refused = self.patience.filter(|patience| patience.then == OnTimeout::Refuse);
        self.deadline.into_iter().chain(refused.map(|patience| patience.until)).min()
    }

    /// When it moves behind the others of its level.
    fn is_delayed_at(&self) -> Option<Instant> {
        self.patience.filter(|patience| patience.then == OnTimeout::Delay).map(|patience| patience.until)
    }

    /// When its place changes next, if `rank` is its place now.
    pub(super) fn moves_at(&self, rank: &Rank) -> Option<Instant> {
        let delayed = self.is_delayed_at().filter(|_| !rank.delayed);
        self.climbs_at(rank.level).into_iter().chain(delayed).min()
    }

    /// Its place at a time, if it has never run.
    pub(super) fn moved(&self, now: Instant, job: JobKey) -> Rank {
        let delayed = self.is_delayed_at().is_some_and(|at| at <= now);
        Rank { delayed, ..self.rank(self.level(now), job) }
    }

    /// When it leaves this level for the next.
    fn climbs_at(&self, level: i16) -> Option<Instant> {
        let steps = i16::from(self.priority) - level + 1;
        (level > self.top()).then(|| self.arrived + AGE_STEP * steps.unsigned_abs().into())
    }

    /// Its place at a level.
    pub(super) fn rank(&self, level: i16, job: JobKey) -> Rank {
        Rank {
            level,
            delayed: false,
            due: self.deadline.map_or(Due::Never, Due::At),
            arrived: self.arrived,
            job,
        }
    }
}

/// A job's place in the order; smaller runs first. The fields compare from the top down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub(super) level: i16,
    pub(super) delayed: bool,
    due: Due,
    arrived: Instant,
    pub(super) job: JobKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    Never,
}
