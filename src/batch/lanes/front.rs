//! The front of a lane.

use super::Waiting;
use crate::batch::urgency::{LEVEL_AGAIN, Rank};
use std::time::Instant;

/// What the next batch of a lane would be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Front {
    /// Rows, at most the number asked for.
    pub items: usize,
    /// How many jobs they belong to.
    pub jobs: usize,
    /// The earliest arrival among them.
    pub oldest: Instant,
    /// The earliest acceptance among them.
    pub pushed: Instant,
    /// The most urgent of them came back from a batch that failed.
    pub again: bool,
    /// The earliest deadline among them.
    pub deadline: Option<Instant>,
    /// When the first of them runs out of patience.
    pub patience: Option<Instant>,
    /// No other job may join, however long one waits.
    pub shut: bool,
}

impl Front {
    /// A front of the most urgent job alone.
    pub(super) fn of(rank: &Rank, first: &Waiting) -> Front {
        let urgency = &first.urgency;
        Front {
            items: first.items(),
            jobs: 1,
            oldest: urgency.arrived,
            pushed: first.pushed,
            again: rank.level == LEVEL_AGAIN,
            deadline: urgency.deadline,
            patience: urgency.patience.map(|patience| patience.until),
            shut: first.alone,
        }
    }

    /// Adds the next job.
    pub(super) fn join(&mut self, next: &Waiting) {
        let urgency = &next.urgency;
        let patience = urgency.patience.map(|patience| patience.until);
        self.items += next.items();
        self.jobs += 1;
        self.oldest = self.oldest.min(urgency.arrived);
        self.pushed = self.pushed.min(next.pushed);
        self.deadline = self.deadline.into_iter().chain(urgency.deadline).min();
        self.patience = self.patience.into_iter().chain(patience).min();
    }
}
