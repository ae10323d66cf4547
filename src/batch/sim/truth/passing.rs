//! Who passes a long job.

use super::{Row, TrueJob, Truth, job::Rank};
use crate::batch::{Batch, JobKey};
use std::{sync::Arc, time::Instant};

impl TrueJob {
    /// Whether it may run before a more urgent job of its lane, in a batch of so many rows.
    fn may_pass(&self, ahead: &TrueJob, batch: usize) -> bool {
        let waiting = |job: &TrueJob| job.rows.iter().filter(|row| **row == Row::Waiting).count();
        let (own, left, alone) = (waiting(self), waiting(ahead), self.alone || ahead.alone);
        !alone && ahead.led && self.priority <= ahead.priority && left > batch && 2 * own <= left
    }

    /// Whether it waits behind a more urgent job all the same: its deadline is later, and the other is not on its way to be done in three
    /// quarters of its time.
    fn would_press(&self, ahead: &TrueJob, now: Instant) -> bool {
        let Some(due) = ahead.deadline else { return false };
        let done = ahead.rows.iter().filter(|row| **row != Row::Waiting).count() as u128;
        let (time, spent) = (due - ahead.arrived, now - ahead.arrived);
        let in_time = done * time.as_nanos() * 3 >= ahead.rows.len() as u128 * spent.as_nanos() * 4;
        done > 0 && !in_time && self.deadline.is_none_or(|own| own > due)
    }
}

impl Truth {
    /// Checks the order of a batch's parts. Returns the most urgent job of its lane, and the place of the last part; none if all of them
    /// pass that job.
    pub(super) fn in_order(
        &mut self,
        batch: &Batch,
        device: &Arc<str>,
        now: Instant,
    ) -> (JobKey, Option<Rank>) {
        let mut jobs: Vec<JobKey> = batch.parts.iter().map(|part| part.job).collect();
        jobs.dedup();
        let lead = self.lead(device, jobs[0], now);
        let (kept_back, passing) = self.passing(device, lead, batch.items, now);
        let passed = passing.len().min(jobs.len());
        assert_eq!(jobs[..passed], passing[..passed], "who passes {lead:?}");
        let order: Vec<_> = jobs[passed..].iter().map(|job| self.job(*job).rank(now)).collect();
        assert!(order.is_sorted(), "parts are in the order of urgency");
        self.job_mut(lead).led = passed == 0;
        self.tally.passed += usize::from(passed > 0);
        self.tally.kept_back += usize::from(kept_back);
        (lead, order.last().copied())
    }

    /// The most urgent job of a lane that a device may have.
    fn lead(&self, device: &Arc<str>, of_lane: JobKey, now: Instant) -> JobKey {
        let waiting = self.jobs.iter().filter(|job| job.waits(now) && self.may_have(device, job));
        let in_lane = waiting.filter(|job| job.same_lane(self.job(of_lane)));
        in_lane.min_by_key(|job| job.rank(now)).expect("a lane from which a batch was made").key
    }

    /// Those that come first in the next batch though `lead` is more urgent, in their order, and whether others do not for the deadline of
    /// `lead`.
    fn passing(&self, device: &Arc<str>, lead: JobKey, batch: usize, now: Instant) -> (bool, Vec<JobKey>) {
        let lead = self.job(lead);
        let waiting = self.jobs.iter().filter(|job| job.waits(now) && self.may_have(device, job));
        let mut passing: Vec<_> =
            waiting.filter(|job| job.same_lane(lead) && job.may_pass(lead, batch)).collect();
        let all = passing.len();
        passing.retain(|job| !job.would_press(lead, now));
        passing.sort_by_key(|job| job.rank(now));
        (passing.len() < all, passing.into_iter().map(|job| job.key).collect())
    }
}
