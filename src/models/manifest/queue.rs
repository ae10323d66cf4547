//! `[queue]`: how many requests of a model may wait, for how long, and what happens to those that have waited for too long.

use super::PRIORITY_MAX;
use crate::{
    batch::{OnTimeout, QueuePolicies, QueuePolicy},
    models::strict::Table,
};
use std::time::Duration;

/// Waiting requests of one priority, at most.
const REQUESTS_MAX: usize = 1_000_000;
/// The longest time that a request may be allowed to wait.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(3600);

/// How requests of a model wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Number of priority levels, at least 1.
    pub priorities: u8,
    /// Bounds on number and time.
    pub policies: QueuePolicies,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { priorities: PRIORITY_MAX + 1, policies: QueuePolicies::default() }
    }
}

pub(super) fn read(table: &Table<'_, '_>) -> Waiting {
    let priorities = table.integer("priorities", 1..=u8::MAX).unwrap_or(PRIORITY_MAX + 1);
    let default = policy(table, QueuePolicy::default());
    let mut policies = QueuePolicies { default, ..QueuePolicies::default() };
    for (name, own) in table.table("priority").tables() {
        // Each level has one spelling: of `1` and `01`, one would silently win.
        let named = |priority: &u8| *priority < priorities && priority.to_string() == name;
        match name.parse().ok().filter(named) {
            Some(priority) => {
                policies.of_priority.insert(priority, policy(&own, default));
                own.finish();
            }
            None => own.mistake(format_args!(
                "queue.priority.{name} is none of the model's priorities, which go from 0 to {}",
                priorities - 1
            )),
        }
    }
    table.finish();
    Waiting { priorities, policies }
}

/// The policy in a table; what the table leaves out is taken from `otherwise`.
fn policy(table: &Table<'_, '_>, otherwise: QueuePolicy) -> QueuePolicy {
    let wait_ms = table.number("wait_ms_max", 0.001..=WAIT_MAX.as_secs_f64() * 1000.0);
    QueuePolicy {
        jobs_max: table.integer("requests_max", 1..=REQUESTS_MAX).or(otherwise.jobs_max),
        wait_max: wait_ms.map(|ms| Duration::from_secs_f64(ms / 1000.0)).or(otherwise.wait_max),
        then: table
            .choice("late", &[("refuse", OnTimeout::Refuse), ("delay", OnTimeout::Delay)])
            .unwrap_or(otherwise.then),
        may_shorten: table.flag("shorten").unwrap_or(otherwise.may_shorten),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Manifest;

    #[test]
    fn a_priority_of_its_own_changes_what_the_table_says_for_all() {
        let text = "priority = 2\n[queue]\npriorities = 3\nrequests_max = 100\nwait_ms_max = 0.5\nlate = \"delay\"\n\
                    [queue.priority.0]\nrequests_max = 10\nshorten = false\n";
        let waiting = Manifest::parse(text).unwrap().queue;
        let all = QueuePolicy {
            jobs_max: Some(100),
            wait_max: Some(Duration::from_micros(500)),
            then: OnTimeout::Delay,
            may_shorten: true,
        };
        let first = QueuePolicy { jobs_max: Some(10), may_shorten: false, ..all };
        let policies = QueuePolicies { default: all, of_priority: [(0, first)].into() };
        assert_eq!(waiting, Waiting { priorities: 3, policies });
        assert_eq!(Manifest::parse("").unwrap().queue, Waiting::default());
        // The usual priority does not exist in a model with one level.
        assert_eq!(Manifest::parse("[queue]\npriorities = 1").unwrap().priority, 0);
    }

    #[test]
    fn mistakes_have_their_line_and_what_is_allowed() {
        let text = "priority = 3\n[queue]\npriorities = 3\nlate = \"later\"\nrequests_max = 0\n[queue.priority.3]\n\
                    [queue.priority.1]\nwait = 1\n";
        assert_eq!(
            Manifest::parse(text).unwrap_err().0,
            [
                "line 1: priority is 3, allowed: whole numbers from 0 to 2",
                "line 4: queue.late is \"later\", allowed: refuse, delay",
                "line 5: queue.requests_max is 0, allowed: whole numbers from 1 to 1000000",
                "line 6: queue.priority.3 is none of the model's priorities, which go from 0 to 2",
                "line 8: unknown key \"queue.priority.1.wait\"",
            ]
        );
    }

    #[test]
    fn a_priority_has_one_name() {
        let text = "[queue.priority.1]\nrequests_max = 1\n[queue.priority.01]\nrequests_max = 2\n[queue.priority.\"+1\"]\nrequests_max = 3\n";
        let told = Manifest::parse(text).unwrap_err().0;
        let expected = [(3, "01"), (5, "+1")].map(|(line, name)| {
            format!("line {line}: queue.priority.{name} is none of the model's priorities, which go from 0 to {PRIORITY_MAX}")
        });
        assert_eq!(told, expected);
    }
}
