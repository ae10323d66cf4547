//! How many jobs of a model may wait, and for how long, by priority, and what becomes of one that has waited too long: a model's own
//! bounds, in addition to those of the whole queue. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What becomes of a job that has run out of patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// It is answered with an error, and not run.
    #[default]
    Refuse,
    /// It stands behind all jobs of its level that have not run out of patience.
    Delay,
}

/// How long a job may wait to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// From acceptance into the queue.
    pub max: Duration,
    /// What becomes of it afterwards.
    pub then: OnTimeout,
}

impl Wait {
    /// The patience of a job that came in at `pushed`.
    pub(super) fn from(self, pushed: Instant) -> Patience {
        Patience { until: pushed + self.max, then: self.then }
    }
}

/// The patience of one job: until when it may wait to be started. A job of which any part has run has none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// When it ends.
    pub until: Instant,
    /// What becomes of the job then.
    pub then: OnTimeout,
}

/// How the jobs of one priority may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Jobs that may wait at once; `None`: as many as the queue takes.
    pub jobs_max: Option<usize>,
    /// How long one may wait to be started, at most an hour; `None`: as long as its deadline allows.
    pub wait_max: Option<Duration>,
    /// What becomes of one that has waited for so long.
    pub then: OnTimeout,
    /// Whether a request may ask for a shorter wait.
    pub may_shorten: bool,
}

/// No bounds but those of the queue.
impl Default for QueuePolicy {
    fn default() -> QueuePolicy {
        QueuePolicy { jobs_max: None, wait_max: None, then: OnTimeout::Refuse, may_shorten: true }
    }
}

impl QueuePolicy {
    /// How long a job whose request asks for at most `wish` may wait.
    pub fn wait(&self, wish: Option<Duration>) -> Option<Wait> {
        let wish = wish.filter(|_| self.may_shorten);
        let max = self.wait_max.into_iter().chain(wish).min()?;
        Some(Wait { max, then: self.then })
    }
}

/// The policies of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueuePolicies {
    /// For priorities without a policy of their own.
    pub default: QueuePolicy,
    /// By priority.
    pub of_priority: BTreeMap<u8, QueuePolicy>,
}

impl QueuePolicies {
    /// The policy of a priority.
    pub fn of(&self, priority: u8) -> &QueuePolicy {
        self.of_priority.get(&priority).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_shorter_of_policy_and_wish_holds_where_a_wish_is_heard() {
        let check = |policy: Option<u32>, may_shorten: bool, wish: Option<u32>, expected: Option<u32>| {
            let wait_max = policy.map(|ms| MS * ms);
            let policy =
                QueuePolicy { wait_max, may_shorten, then: OnTimeout::Delay, ..QueuePolicy::default() };
            let wait = policy.wait(wish.map(|ms| MS * ms));
            assert_eq!(wait, expected.map(|ms| Wait { max: MS * ms, then: OnTimeout::Delay }));
        };
        check(None, true, None, None);
        check(Some(9), true, None, Some(9));
        check(Some(9), true, Some(4), Some(4));
        check(Some(9), true, Some(20), Some(9));
        check(None, true, Some(4), Some(4));
        check(Some(9), false, Some(4), Some(9));
        check(None, false, Some(4), None);
    }

    #[test]
    fn a_priority_without_a_policy_has_the_common_one() {
        let own = QueuePolicy { jobs_max: Some(3), ..QueuePolicy::default() };
        let policies = QueuePolicies { of_priority: [(2, own)].into(), ..QueuePolicies::default() };
        assert_eq!((policies.of(2), policies.of(1)), (&own, &QueuePolicy::default()));
    }
}
