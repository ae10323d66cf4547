//! What becomes of a batch that failed. Its jobs go back to the head of their lane, to run alone, in smaller batches, or on another
//! device. They are answered with the cause when that has not helped.

use super::{Aftermath, Book, Kind, Receipt};
use crate::{
    batch::{
        Batch, JobKey, Part,
        ceiling::{self, Ceiling},
        entry::Failure,
        lanes::Back,
        roster::Avoid,
    },
    error::InferError,
};
use std::{sync::Arc, time::Instant};

impl Book {
    /// The engine refused the batch, or its outputs were unusable. A job that was alone in the batch is answered with this error; the
    /// others run alone once.
    pub(super) fn run_alone(&mut self, batch: &Batch, error: &InferError, now: Instant) -> Aftermath {
        let first = batch.parts.first().map(|part| part.job);
        if batch.parts.iter().all(|part| Some(part.job) == first) {
            self.fail_all(batch, error, now);
            return Aftermath::default();
        }
        let mut aftermath = Aftermath::default();
        for (part, new) in each_job(batch) {
            if let Some(entry) = self.jobs.get_mut(&part.job).filter(|entry| !entry.over) {
                entry.alone = true;
                aftermath.again += usize::from(new);
            }
            self.put_back(part, now);
        }
        aftermath
    }

    /// The device's memory is too small for the batch: the jobs run in smaller ones, and the device gets no larger ones for a while.
    /// Where no smaller batch is possible, the device has failed the jobs.
    ///
    /// The retries end: a batch is no larger than the ceiling when it starts, so each one that fails lowers the ceiling, or was in flight
    /// when it was lowered. How often a job was in a failed batch is no measure: a long job has many batches in flight at once.
    pub(super) fn halve(&mut self, batch: &Batch, receipt: &Receipt, error: &str, now: Instant) -> Aftermath {
        let Some(model) = self.models.get_mut(&batch.model) else {
            return Aftermath::default();
        };
        let pads = model.rules.padding.pads(self.roster.is_cpu(receipt.device));
        let Some(items) = ceiling::halved(&model.rules, pads, batch.size) else {
            let text = format!("too little memory for a batch of {}: {error}", batch.items);
            return self.run_elsewhere(batch, receipt, &text, true, now);
        };
        let place = (receipt.device, Kind::of(batch.setting.as_ref()));
        let before = model.ceilings.get(&place).copied();
        let after = Ceiling::lowered(before, items, now);
        model.ceilings.insert(place, after);
        let ceiling = (before != Some(after)).then_some(after.items());
        let mut aftermath = Aftermath { ceiling, ..Aftermath::default() };
        for (part, new) in each_job(batch) {
            if self.jobs.get(&part.job).is_none_or(|entry| entry.over) {
                continue;
            }
            if !self.ended_late(part.job, error, now) {
                aftermath.again += usize::from(new);
                self.put_back(part, now);
            }
        }
        aftermath
    }

    /// The device failed: jobs with time left go back to the head of the lane, and avoid the device where another one serves the model.
    /// That happens once, and a second time if two GPUs have failed the job and there is a CPU: one fault may have taken both GPUs, but
    /// not the CPU.
    ///
    /// A job that the CPU has no memory for even with nothing beside it is too large: trying again later would not help.
    pub(super) fn run_elsewhere(
        &mut self,
        batch: &Batch,
        receipt: &Receipt,
        error: &str,
        memory: bool,
        now: Instant,
    ) -> Aftermath {
        let (device, until) = (receipt.device, self.roster.last_batch());
        let text: Arc<str> = format!("{}: {error}", self.roster.name(device)).into();
        let is_cpu = self.roster.is_cpu(device);
        let cpu_is_left =
            !is_cpu && self.roster.serving(batch.model).iter().any(|other| self.roster.is_cpu(*other));
        let outsized = memory && is_cpu && !self.running.values().any(|(_, other)| other.device == device);
        let mut aftermath = Aftermath::default();
        for (part, new) in each_job(batch) {
            let Some(entry) = self.jobs.get_mut(&part.job).filter(|entry| !entry.over) else {
                continue;
            };
            // Two parts of one job in one batch are one failure, and so are batches that were in flight at the same time.
            let same = |before: &Failure| before.avoid.is(device, is_cpu) && receipt.batch <= before.until;
            let mut ends = None;
            if new && !entry.failure.as_ref().is_some_and(same) {
                let failure = match &entry.failure {
                    None => {
                        Failure { device, avoid: Avoid::One(device), text: Arc::clone(&text), memory, until }
                    }
                    Some(before) => {
                        let text: Arc<str> = format!("{}, and then {text}", before.text).into();
                        let by_gpu = matches!(before.avoid, Avoid::One(first) if !self.roster.is_cpu(first));
                        let goes_on = cpu_is_left && by_gpu;
                        ends = (!goes_on).then(|| Arc::clone(&text));
                        Failure { device, avoid: Avoid::Gpus, text, memory, until }
                    }
                };
                entry.failure = Some(failure);
            }
            if let Some(text) = ends {
                let error = if outsized { InferError::Outsized } else { InferError::Device };
                self.end(part.job, Some(Err(error(text.to_string()))), now);
            } else if !self.ended_late(part.job, error, now) {
                aftermath.again += usize::from(new);
                self.put_back(part, now);
            }
        }
        aftermath
    }

    /// Answers a job of a failed batch if its deadline has passed.
    fn ended_late(&mut self, job: JobKey, error: &str, now: Instant) -> bool {
        let entry = self.jobs.get(&job).filter(|entry| !entry.over);
        let late = entry.is_some_and(|entry| entry.job.deadline.is_some_and(|deadline| deadline <= now));
        if late {
            let error = format!("the deadline passed when a device failed: {error}");
            self.end(job, Some(Err(InferError::Late(error))), now);
        }
        late
    }

    fn put_back(&mut self, part: &Part, now: Instant) {
        let Some(entry) = self.jobs.get_mut(&part.job).filter(|entry| !entry.over) else {
            return;
        };
        let key = entry.job.model;
        let model = self.models.get_mut(&key).expect("a model outlives its jobs");
        let back = Back {
            job: part.job,
            urgency: entry.urgency(),
            rows: part.rows.clone(),
            of: entry.job.items,
            alone: entry.alone,
            avoid: entry.failure.as_ref().map(|failure| failure.avoid),
        };
        model.lanes.put_back(&entry.shape, back, now);
        self.shares.set_waiting(key, true);
    }

    pub(super) fn fail_all(&mut self, batch: &Batch, error: &InferError, now: Instant) {
        for part in &batch.parts {
            self.end(part.job, Some(Err(error.clone())), now);
        }
    }
}

/// The parts of a batch, and whether each is the first of its job.
fn each_job(batch: &Batch) -> impl Iterator<Item = (&Part, bool)> {
    let before = [None].into_iter().chain(batch.parts.iter().map(|part| Some(part.job)));
    batch.parts.iter().zip(before).map(|(part, before)| (part, before != Some(part.job)))
}
