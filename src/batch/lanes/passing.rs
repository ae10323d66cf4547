//! Short jobs behind a long one. A job of more rows than a batch would hold up all behind it until its last batch. So in every second batch
//! it lets jobs pass that are at most half as long as what is left of it, if they are of its priority or a more urgent one. Jobs of similar
//! length do not pass each other: both would be done later. Nor does anybody pass a job in its last batch, or one that it would make late.

use super::{Admits, Lane, Waiting};
use crate::batch::{
    JobKey,
    urgency::{Rank, Urgency},
};
use std::time::Instant;

impl Waiting {
    /// Whether it is so long, where a batch has `batch` rows, that a job of `items` rows and this urgency may pass it.
    pub(super) fn lets_pass(&self, batch: usize, urgency: &Urgency, items: usize, now: Instant) -> bool {
        let left = self.items();
        let is_longer = left > batch && 2 * items <= left;
        let later =
            urgency.deadline.is_none_or(|theirs| self.urgency.deadline.is_some_and(|own| own < theirs));
        urgency.priority <= self.urgency.priority
            && is_longer
            && !self.alone
            && !(later && self.is_pressed(left, now))
    }

    /// Whether it has begun, and is not on its way to be done in three quarters of its time. The last batch that passes it adds a third to
    /// these at most, since it has three batches or more.
    fn is_pressed(&self, left: usize, now: Instant) -> bool {
        let (Some(deadline), done) = (self.urgency.deadline, self.of - left) else { return false };
        let since = |end: Instant| end.saturating_duration_since(self.urgency.arrived).as_nanos();
        done > 0 && 3 * since(deadline) * (done as u128) < 4 * since(now) * (self.of as u128)
    }
}

impl Lane {
    /// The jobs that the most urgent one lets pass in the next batch, of `items` rows.
    pub(super) fn passing(&mut self, items: usize, admits: Admits<'_>, now: Instant) -> Vec<JobKey> {
        let Some((first, head)) = self.admitted(admits).next().filter(|(_, head)| head.let_pass) else {
            return Vec::new();
        };
        let first = first.job;
        let passes = |(rank, waiting): &(&Rank, &Waiting)| {
            !rank.delayed && !waiting.alone && head.lets_pass(items, &waiting.urgency, waiting.items(), now)
        };
        let mut room = items;
        let fill = |(rank, waiting): (&Rank, &Waiting)| {
            let job = (room > 0).then_some(rank.job);
            room = room.saturating_sub(waiting.items());
            job
        };
        let jobs: Vec<_> = self.admitted(admits).skip(1).filter(passes).map_while(fill).collect();
        if let (false, Some(head)) = (jobs.is_empty(), self.jobs.get_mut(&first)) {
            head.let_pass = false;
        }
        jobs
    }
}
