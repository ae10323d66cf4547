//! One accepted job from push to answer, and the outputs that it has so far. Pure.

use super::{
    Answer, Fallback, Job, JobKey, Part, Ran, Timing,
    lanes::ItemShape,
    roster::{Avoid, DeviceKey},
    rows::{self, Mark},
    urgency::Urgency,
};
use crate::{engine::Tensor, error::InferError};
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

/// A job in the book.
#[derive(Debug)]
pub struct Entry {
    /// As it was pushed. Inputs are kept until the answer, in case a batch fails.
    pub job: Job,
    /// Its lane.
    pub shape: Arc<ItemShape>,
    /// Bytes of all inputs.
    pub bytes: usize,
    /// Parts that are running.
    pub running: usize,
    /// It is answered or cancelled. It stays until its last running part ends.
    pub over: bool,
    /// Came back from a device that failed.
    pub failure: Option<Failure>,
    /// Was in a batch that the engine refused: shares no batch from then on.
    pub alone: bool,
    pushed: Instant,
    taken: bool,
    /// For each input, where the last part ended.
    marks: Vec<Mark>,
    done: Pieces,
}

/// How a device failed a job.
#[derive(Debug)]
pub struct Failure {
    /// The device that failed it last.
    pub device: DeviceKey,
    /// The devices that the job avoids since.
    pub avoid: Avoid,
    /// Names of devices and what they said.
    pub text: Arc<str>,
    /// The device had too little memory.
    pub memory: bool,
    /// The number of the last batch that had started by then: failures of batches up to it are the same failure.
    pub until: u64,
}

impl Entry {
    /// A job that was just accepted.
    pub fn new(job: Job, shape: Arc<ItemShape>, bytes: usize, pushed: Instant) -> Entry {
        Entry {
            job,
            shape,
            bytes,
            running: 0,
            over: false,
            failure: None,
            alone: false,
            pushed,
            taken: false,
            marks: Vec::new(),
            done: Pieces::default(),
        }
    }

    /// Its urgency when it comes back to the queue: it has started before, so only its deadline ends its wait.
    pub fn urgency(&self) -> Urgency {
        let Job { priority, deadline, arrived, .. } = self.job;
        Urgency { priority, deadline, arrived, patience: None }
    }

    /// How long it has waited for a device: until its first part was taken, or until now.
    pub fn waited(&self, now: Instant) -> Duration {
        if self.taken { self.done.timing.queue } else { now.saturating_duration_since(self.pushed) }
    }

    /// These rows as part of a batch. If they are all rows of a job, the part has its inputs unchanged, so that a model without a batch
    /// axis gets them whole.
    pub fn part(&mut self, key: JobKey, range: Range<usize>, now: Instant) -> Part {
        if !self.taken {
            self.taken = true;
            self.done.timing.queue = now.saturating_duration_since(self.pushed);
        }
        self.running += 1;
        let inputs = if range.len() == self.job.items {
            self.job.inputs.clone()
        } else {
            self.marks.resize(self.job.inputs.len(), Mark::default());
            let inputs = self.job.inputs.iter().zip(&mut self.marks);
            inputs.map(|(input, mark)| rows::cut(input, range.clone(), mark)).collect()
        };
        Part { job: key, rows: range, inputs }
    }

    /// Keeps the outputs of some rows, which a device ran in a batch of so many items; returns all outputs with the last of them.
    pub fn collect(
        &mut self,
        range: Range<usize>,
        outputs: Vec<Tensor>,
        ran: &Ran,
        (device, fallback, batch_items): (&Arc<str>, Option<Fallback>, usize),
    ) -> Option<Pieces> {
        let done = &mut self.done;
        // Only the first batch counts: the others mostly wait behind it, which is not time in the queue.
        if done.items == 0 {
            done.timing.queue += ran.waited;
            done.timing.behind = ran.waited;
        }
        done.items += range.len();
        done.outputs.push((range.start, outputs));
        done.device = Some(Arc::clone(device));
        done.fallback = fallback.or(done.fallback);
        done.batch_items = done.batch_items.max(batch_items);
        done.timing.stage += ran.stage;
        done.timing.compute += ran.compute;
        (done.items >= self.job.items).then(|| std::mem::take(done))
    }
}

/// The outputs of a job, as they came from its batches.
#[derive(Debug, Default)]
pub struct Pieces {
    items: usize,
    /// By first row.
    outputs: Vec<(usize, Vec<Tensor>)>,
    device: Option<Arc<str>>,
    fallback: Option<Fallback>,
    batch_items: usize,
    timing: Timing,
}

impl Pieces {
    /// Puts the outputs together in the order of the job's rows. Copies only what came from several batches; meant to
    /// be called without a lock.
    ///
    /// # Errors
    /// [`InferError::Internal`] if outputs of different batches do not fit together.
    pub fn join(mut self) -> Result<Answer, InferError> {
        self.outputs.sort_by_key(|(start, _)| *start);
        let outputs = if self.outputs.len() == 1 {
            self.outputs.remove(0).1
        } else {
            let count = self.outputs.iter().map(|(_, outputs)| outputs.len()).min();
            (0..count.unwrap_or(0))
                .map(|i| {
                    let parts: Vec<&Tensor> = self.outputs.iter().map(|(_, o)| &o[i]).collect();
                    rows::join(&parts)
                })
                .collect::<Result<_, _>>()
                .map_err(|error| {
                    InferError::Internal(format!("the model's outputs of several batches: {error}"))
                })?
        };
        Ok(Answer {
            outputs,
            device: self.device.unwrap_or_else(|| "".into()),
            fallback: self.fallback,
            batch_items: self.batch_items,
            timing: self.timing,
        })
    }
}
