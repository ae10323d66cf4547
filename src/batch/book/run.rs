//! Batches: formed for a worker, and taken back done or failed.

use super::{Book, Pick, Receipt, WorkerKey};
use crate::{
    batch::{
        Batch, JobKey, ModelKey, Part, Ran, RunResult,
        lanes::{ItemShape, Piece},
        policy::{self, Next},
        rows,
        urgency::Rank,
    },
    engine::{EngineError, Tensor},
    error::InferError,
};
use std::{sync::Arc, time::Instant};

impl Book {
    /// Forms the next batch for a worker out of what waits for the models it serves.
    pub fn pick(&mut self, worker: WorkerKey, serves: &[ModelKey], now: Instant) -> Pick {
        if let Some(known) = self.workers.get_mut(&worker)
            && known.serves.as_deref() != Some(serves)
        {
            known.serves = Some(serves.to_vec());
            self.strand(now);
        }
        let mut until: Option<Instant> = None;
        for key in self.shares.order(serves) {
            self.expire(key, now);
            let Some(model) = self.models.get(&key) else {
                continue;
            };
            let hurry = self.hurried || self.closed || model.retired;
            let largest = policy::largest(&model.rules.sizes);
            let mut best: Option<(Rank, &Arc<ItemShape>, usize, usize)> = None;
            for (shape, lane) in model.lanes.iter() {
                let Some(rank) = lane.head() else {
                    continue;
                };
                if best.is_some_and(|(best, ..)| best < rank) {
                    continue;
                }
                let front = lane.front(largest).map(|mut front| {
                    front.shut |= hurry;
                    front
                });
                match policy::decide(&model.rules, front.as_ref(), &model.costs, now) {
                    Next::Run { items, size } => best = Some((rank, shape, items, size)),
                    Next::SleepUntil(at) => until = Some(until.map_or(at, |until| until.min(at))),
                    Next::Sleep => {}
                }
            }
            if let Some((_, shape, items, size)) = best {
                let shape = Arc::clone(shape);
                return self.form(worker, key, &shape, items, size, now);
            }
        }
        let others = self.models.values().map(|model| model.running).sum::<usize>()
            - self.workers.get(&worker).map_or(0, |worker| worker.running);
        match until {
            _ if self.aborted => Pick::Closed,
            Some(until) => Pick::SleepUntil(until),
            // What others run may fail and come back.
            None if self.closed && others == 0 => Pick::Closed,
            None => Pick::Sleep,
        }
    }

    fn form(
        &mut self,
        worker: WorkerKey,
        key: ModelKey,
        shape: &Arc<ItemShape>,
        items: usize,
        size: usize,
        now: Instant,
    ) -> Pick {
        let model = self.models.get_mut(&key).expect("picked from the map");
        let pieces = model.lanes.take(shape, items);
        let waiting = !model.lanes.is_empty();
        model.running += 1;
        model.running_peak = model.running_peak.max(model.running);
        let estimate = model.costs.estimate(size);
        self.shares.charge(key, estimate);
        self.shares.set_waiting(key, waiting);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.running += 1;
        }
        let jobs = &mut self.jobs;
        let part = |piece: Piece| {
            let entry = jobs.get_mut(&piece.job).expect("lanes hold live jobs");
            entry.part(piece.job, piece.rows, now)
        };
        let parts: Vec<_> = pieces.into_iter().map(part).collect();
        let items = parts.iter().map(|part| part.rows.len()).sum();
        let batch = Batch {
            model: key,
            setting: shape.setting().cloned(),
            items,
            parts,
            size: if model.rules.padded { size } else { items },
            taken: now,
        };
        Pick::Run(batch, Receipt { worker, estimate })
    }

    /// Takes a batch back, done or failed.
    pub fn finish(
        &mut self,
        batch: &Batch,
        receipt: &Receipt,
        device: &Arc<str>,
        result: RunResult,
        now: Instant,
    ) {
        let seconds = match &result {
            Ok(ran) => ran.compute,
            Err(_) => now.saturating_duration_since(batch.taken),
        }
        .as_secs_f64();
        self.shares.correct(batch.model, receipt.estimate, seconds);
        if let Some(worker) = self.workers.get_mut(&receipt.worker) {
            worker.running -= 1;
        }
        let mut whole = false;
        if let Some(model) = self.models.get_mut(&batch.model) {
            model.running -= 1;
            whole = model.rules.whole;
            if result.is_ok() {
                model.costs.record(policy::padded(&model.rules.sizes, batch.items), seconds);
            }
        }
        for part in &batch.parts {
            if let Some(entry) = self.jobs.get_mut(&part.job) {
                entry.running -= 1;
            }
        }
        match result {
            Ok(ran) => match usable(&ran.outputs, batch.items, whole) {
                Ok(()) => self.distribute(batch, &ran, whole, device, now),
                Err(error) => self.fail_all(batch, &InferError::Internal(error), now),
            },
            Err(EngineError::Input(error)) => self.run_alone(batch, error, now),
            Err(EngineError::Device(error) | EngineError::OutOfMemory(error)) => {
                self.run_again(batch, &error, now);
            }
        }
        for part in &batch.parts {
            self.release(part.job, now);
        }
        self.strand(now);
        self.forget(batch.model);
    }

    fn distribute(&mut self, batch: &Batch, ran: &Ran, whole: bool, device: &Arc<str>, now: Instant) {
        let bytes = |part: &Part| -> usize { part.inputs.iter().map(|i| i.data.len()).sum() };
        self.throughput.record(batch.items, batch.parts.iter().map(bytes).sum(), now);
        let mut start = 0;
        for part in &batch.parts {
            let end = start + part.rows.len();
            let live = self.jobs.get_mut(&part.job).filter(|entry| !entry.over);
            if let Some(entry) = live {
                let cut = |output: &Tensor| {
                    if whole || (start == 0 && output.shape[0] == end) {
                        output.clone()
                    } else {
                        rows::cut(output, start, end)
                    }
                };
                let outputs = ran.outputs.iter().map(cut).collect();
                let times = (ran.stage, ran.compute);
                let rows = part.rows.clone();
                if let Some(pieces) = entry.collect(rows, outputs, device, batch.items, times) {
                    self.end(part.job, Some(Ok(pieces)), now);
                }
            }
            start = end;
        }
    }

    /// The engine refused the batch: whoever was alone in it is at fault, the others run alone once.
    fn run_alone(&mut self, batch: &Batch, error: String, now: Instant) {
        let first = batch.parts.first().map(|part| part.job);
        if batch.parts.iter().all(|part| Some(part.job) == first) {
            return self.fail_all(batch, &InferError::Input(error), now);
        }
        for part in &batch.parts {
            self.put_back(part, true);
        }
    }

    /// The device failed, or had too little memory: whoever has time left goes back to the head of the lane, once.
    fn run_again(&mut self, batch: &Batch, error: &str, now: Instant) {
        let mut before: Option<JobKey> = None;
        for part in &batch.parts {
            let Some(entry) = self.jobs.get_mut(&part.job).filter(|entry| !entry.over) else {
                continue;
            };
            // Two parts of one job in one batch are one failure.
            let again = before != Some(part.job) && std::mem::replace(&mut entry.failed, true);
            before = Some(part.job);
            let late = entry.job.deadline.is_some_and(|deadline| deadline <= now);
            if again {
                self.end(part.job, Some(Err(InferError::Device(error.into()))), now);
            } else if late {
                let error = format!("the deadline passed when a device failed: {error}");
                self.end(part.job, Some(Err(InferError::Late(error))), now);
            } else {
                self.put_back(part, false);
            }
        }
    }

    fn put_back(&mut self, part: &Part, alone: bool) {
        let Some(entry) = self.jobs.get_mut(&part.job).filter(|entry| !entry.over) else {
            return;
        };
        entry.alone |= alone;
        let key = entry.job.model;
        let model = self.models.get_mut(&key).expect("a model outlives its jobs");
        let (urgency, rows) = (entry.urgency(), part.rows.clone());
        model.lanes.put_back(&entry.shape, part.job, urgency, rows, entry.alone);
        self.shares.set_waiting(key, true);
    }

    fn fail_all(&mut self, batch: &Batch, error: &InferError, now: Instant) {
        for part in &batch.parts {
            self.end(part.job, Some(Err(error.clone())), now);
        }
    }
}

/// Outputs of a batch have a row for each of its items.
fn usable(outputs: &[Tensor], items: usize, whole: bool) -> Result<(), String> {
    if whole {
        return Ok(());
    }
    for (i, output) in outputs.iter().enumerate() {
        let rows = output.shape.first().copied();
        if rows.is_none_or(|rows| rows < items) {
            return Err(format!(
                "output {i} of the model has shape {:?} for a batch of {items} items: its first axis does not count items",
                output.shape
            ));
        }
        rows::check(output, rows)?;
    }
    Ok(())
}
