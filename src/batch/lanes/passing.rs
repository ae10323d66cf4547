//! Short jobs behind a long one. A job of more rows than a batch would hold up all behind it until its last batch. So in every second batch
//! it lets jobs pass that are at most half as long as what is left of it, if they are of its priority or a more urgent one. Jobs of similar
//! length do not pass each other: both would be done later. Nor does anybody pass a job in its last batch.

use super::{Admits, Lane, Waiting};
use crate::batch::{JobKey, urgency::Rank};

impl Waiting {
    /// Whether it is so long, where a batch has `batch` rows, that a job of `items` rows may pass it.
    pub(super) fn lets_pass(&self, batch: usize, priority: u8, items: usize) -> bool {
        let left = self.items();
        priority <= self.urgency.priority && left > batch && 2 * items <= left && !self.alone
    }
}

impl Lane {
    /// The jobs that the most urgent one lets pass in the next batch, of `items` rows.
    pub(super) fn passing(&mut self, items: usize, admits: Admits<'_>) -> Vec<JobKey> {
        let Some((first, head)) = self.admitted(admits).next().filter(|(_, head)| head.let_pass) else {
            return Vec::new();
        };
        let first = first.job;
        let passes = |(rank, waiting): &(&Rank, &Waiting)| {
            !rank.delayed
                && !waiting.alone
                && head.lets_pass(items, waiting.urgency.priority, waiting.items())
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
