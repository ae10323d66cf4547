//! Batches: formed for a worker, and taken back done or failed.

use super::{Aftermath, Book, Kind, Model, Pick, Recalled, Receipt, Stage, WorkerKey, serving::Pool};
use crate::{
    batch::{
        Batch, Fallback, ModelKey, Part, Ran, RunResult, ceiling,
        lanes::{Admits, ItemShape, Piece},
        largest, padded,
        policy::{self, Next, Rival, Takes},
        rates::Costs,
        roster::DeviceKey,
        rows::{self, Mark},
        steady::Steady,
        urgency::Rank,
    },
    engine::{EngineError, Tensor},
    error::InferError,
};
use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

/// A device whose batches in flight take longer than this gets no more yet. It is enough time to put the next batch together and copy it.
/// A batch that is taken sooner runs before anything that arrives meanwhile, however urgent.
const AHEAD_MAX: Duration = Duration::from_millis(50);

/// What a worker does with a model.
pub(super) enum Choice {
    Run(Cut),
    /// Ask again then, if there is a time. `company`: the reason is that its jobs wait for company.
    Wait {
        until: Option<Instant>,
        company: bool,
    },
}

/// A batch to be formed: so many items of a lane, in a batch of this size.
pub(super) struct Cut {
    pub(super) shape: Arc<ItemShape>,
    pub(super) items: usize,
    pub(super) size: usize,
}

impl Model {
    /// Batch sizes of a kind that a device may be given.
    pub(super) fn sizes(&self, place: (DeviceKey, Kind)) -> Cow<'_, [usize]> {
        let mut sizes = ceiling::within(&self.rules.sizes, self.ceilings.get(&place));
        if let (Some(tried), Kind::Items) = (self.tried.get(&place.0), place.1) {
            sizes.to_mut().retain(|size| size <= tried);
        }
        sizes
    }

    /// The size that a device keeps to once a batch of so many items starts there.
    fn keep(&self, device: DeviceKey, sizes: &[usize], items: usize, now: Instant) -> Steady {
        Steady::begin(self.kept.get(&device).copied(), sizes, items, now)
    }

    /// Records a good batch of a kind on a device; returns the ceiling there, if it has changed.
    fn worked(&mut self, place: (DeviceKey, Kind), now: Instant) -> Option<usize> {
        let ceiling = self.ceilings.get_mut(&place)?;
        let (before, after) = (ceiling.items(), ceiling.worked(&self.rules, now));
        *ceiling = after;
        if after.is_over(&self.rules, now) {
            self.ceilings.remove(&place);
        }
        (after.items() != before).then_some(after.items())
    }
}

impl Book {
    /// Forms the next batch for a worker from the waiting work of the models that it serves.
    pub fn pick(&mut self, worker: WorkerKey, serves: &[ModelKey], now: Instant) -> Pick {
        self.serves(worker, serves, now);
        let Some(device) = self.roster.device_of(worker) else {
            return Pick::Closed;
        };
        if let Some(wait) = self.roster.due_in(worker, now).checked_sub(AHEAD_MAX)
            && !wait.is_zero()
            && self.shares.waiting().next().is_some()
        {
            return Pick::SleepUntil(now + wait);
        }
        let mut until: Option<Instant> = None;
        // The model whose turn it is, if its jobs wait for company.
        let mut first: Option<(ModelKey, Instant)> = None;
        let open = self.open_to(worker, device);
        for key in self.shares.order(device, &open, |key| self.roster.may_serve(worker, key)) {
            self.expire(key, now);
            match self.choose(worker, device, key, true, now) {
                Choice::Run(cut) => {
                    // Waiting for company is for when a device is idle. Behind a long batch of another model, the window would have
                    // passed.
                    let end = now + self.takes(device, key, &cut);
                    let mut next = (key, cut);
                    if let Some((first, _)) = first.filter(|(_, until)| end > *until)
                        && let Choice::Run(cut) = self.choose(worker, device, first, false, now)
                    {
                        next = (first, cut);
                    }
                    let (key, cut) = next;
                    let (batch, receipt) = self.form(worker, device, key, cut, now);
                    return Pick::Run(batch, receipt);
                }
                Choice::Wait { until: at, company } => {
                    first = first.or(at.filter(|_| company).map(|at| (key, at)));
                    until = until.into_iter().chain(at).min();
                }
            }
        }
        let idle = || {
            let running: usize = self.models.values().map(Model::running).sum();
            let waits = self.shares.waiting().any(|key| self.roster.may_serve(worker, key));
            running == self.roster.running(worker) && !waits
        };
        match until {
            _ if self.stage == Stage::Aborted => Pick::Closed,
            Some(until) => Pick::SleepUntil(until),
            // Batches of other workers may fail and come back, and so may work that is left to those workers.
            None if self.is_closed() && idle() => {
                // So may its own batches: it asks again when they have ended, and serves its models until then.
                if self.roster.running(worker) == 0 {
                    self.note_serves(worker, &[]);
                    self.strand(now);
                }
                Pick::Closed
            }
            None => Pick::Sleep,
        }
    }

    /// How long a batch should take on a device.
    fn takes(&self, device: DeviceKey, key: ModelKey, cut: &Cut) -> Duration {
        let place = (device, Kind::of(cut.shape.setting()));
        let costs = self.models.get(&key).and_then(|model| model.costs.get(&place));
        let seconds = costs.unwrap_or(&Costs::default()).estimate(cut.size);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// The lane of a model that a worker should run now. `company`: whether jobs may wait for more.
    pub(super) fn choose(
        &self,
        worker: WorkerKey,
        device: DeviceKey,
        key: ModelKey,
        company: bool,
        now: Instant,
    ) -> Choice {
        let Some(model) = self.models.get(&key) else {
            return Choice::Wait { until: None, company: false };
        };
        let hurry = self.stage > Stage::Open || model.retired;
        let pool = Pool::of(&self.roster, key, &model.standby);
        let admits: Admits<'_> = &|avoid| pool.admits(device, avoid);
        let keeps = model.steady.contains(&worker);
        // Where one size is kept to, no smaller size is filled first to save padding.
        let takes = if keeps { Takes::All } else { model.rules.padding.takes(self.roster.is_cpu(device)) };
        let unmeasured = Costs::default();
        let ready_in = self.roster.busy_for(worker, now);
        let mut until: Option<(Instant, bool)> = None;
        let mut best: Option<(Rank, &Arc<ItemShape>, usize, usize)> = None;
        for (shape, lane) in model.lanes.iter() {
            let Some(rank) = lane.head(admits) else {
                continue;
            };
            if best.is_some_and(|(best, ..)| best < rank) {
                continue;
            }
            let kind = Kind::of(shape.setting());
            let costs = model.costs.get(&(device, kind)).unwrap_or(&unmeasured);
            let sizes = model.sizes((device, kind));
            let Some(mut front) = lane.front(largest(&sizes), admits) else {
                continue;
            };
            front.shut |= hurry || !company;
            let mut next = policy::decide(&model.rules, &sizes, takes, &front, costs, now);
            let for_company = matches!(next, Next::SleepUntil(_));
            if let Next::Run { items, size } = next
                && !front.again
                && !hurry
                && let Some(rival) = self.rival(device, key, pool, (kind, size), now)
            {
                let own = |size: usize| ready_in + costs.at_best(size);
                next = policy::help(&sizes, items, &front, Rival { own: &own, rival }, now);
            }
            if let Next::Run { items, size } = &mut next
                && keeps
            {
                *size = model.keep(device, &sizes, *items, now).size();
            }
            match next {
                Next::Run { items, size } => best = Some((rank, shape, items, size)),
                Next::SleepUntil(at) => {
                    let at = (at, for_company);
                    until = Some(until.map_or(at, |until| until.min(at)));
                }
            }
        }
        match best {
            Some((_, shape, items, size)) => Choice::Run(Cut { shape: Arc::clone(shape), items, size }),
            None => Choice::Wait {
                until: until.map(|(at, _)| at),
                company: until.is_some_and(|(_, company)| company),
            },
        }
    }

    pub(super) fn form(
        &mut self,
        worker: WorkerKey,
        device: DeviceKey,
        key: ModelKey,
        Cut { shape, items, size }: Cut,
        now: Instant,
    ) -> (Arc<Batch>, Receipt) {
        let model = self.models.get_mut(&key).expect("picked from the map");
        let pool = Pool::of(&self.roster, key, &model.standby);
        let standby = pool.stands_by(device);
        let pieces = model.lanes.take(&shape, items, &|avoid| pool.admits(device, avoid), now);
        let waiting = !model.lanes.is_empty();
        let place = (device, Kind::of(shape.setting()));
        let running = model.running.entry(device).or_default();
        running.now += 1;
        running.peak = running.peak.max(running.now);
        if model.steady.contains(&worker) {
            let kept = model.keep(device, &model.sizes(place), items, now);
            model.kept.insert(device, kept);
        }
        let costs = model.costs.entry(place).or_default();
        if waiting {
            costs.choose(items);
        }
        let estimate = costs.estimate(size);
        // Charged by the time on the fastest of its devices: using slower devices as well must not use up a model's share of that one.
        let fastest = pool.devices().iter().filter_map(|other| model.costs.get(&(*other, place.1)));
        let least = fastest.map(|costs| costs.estimate(size)).fold(estimate, f64::min);
        let worth = if estimate > 0.0 { least / estimate } else { 1.0 };
        self.shares.charge(key, worth * estimate);
        self.shares.set_waiting(key, waiting);
        let jobs = &mut self.jobs;
        // The outputs of a job in several batches are joined, so all of them must have one form.
        let reduces = |piece: &Piece| {
            let job = jobs.get(&piece.job).map(|entry| &entry.job);
            job.is_some_and(|job| job.reduced && job.items == piece.rows.len())
        };
        let reduced = pieces.iter().all(reduces);
        let part = |piece: Piece| {
            let entry = jobs.get_mut(&piece.job).expect("lanes hold live jobs");
            entry.part(piece.job, piece.rows, now)
        };
        let parts: Vec<_> = pieces.into_iter().map(part).collect();
        let items = parts.iter().map(|part| part.rows.len()).sum();
        let batch = Arc::new(Batch {
            model: key,
            setting: shape.setting().cloned(),
            items,
            reduced,
            parts,
            size: if model.rules.padding.pads(self.roster.is_cpu(device)) { size } else { items },
            taken: now,
        });
        let number = self.roster.begin(worker, estimate, now);
        let receipt = Receipt { worker, device, batch: number, estimate, worth, standby };
        self.running.insert(number, (Arc::clone(&batch), receipt));
        (batch, receipt)
    }

    /// Whether a worker has batches, and nobody waits for an answer from any of them any more.
    pub fn runs_unwanted(&self, worker: WorkerKey) -> bool {
        let mut batches = self.running.values().filter(|(_, receipt)| receipt.worker == worker).peekable();
        let unwanted = |part: &Part| self.jobs.get(&part.job).is_none_or(|entry| entry.over);
        batches.peek().is_some() && batches.all(|(batch, _)| batch.parts.iter().all(unwanted))
    }

    /// Takes a batch back, done or failed. `None`, without effect, where it was recalled meanwhile.
    pub fn finish(
        &mut self,
        batch: &Batch,
        receipt: &Receipt,
        result: RunResult,
        now: Instant,
    ) -> Option<Aftermath> {
        // The worker that finishes it also holds the batch, so its memory is not released here.
        self.running.remove(&receipt.batch)?;
        let took = match &result {
            // A GPU runs one batch while the next is put together; a CPU does one after the other.
            Ok(ran) if self.roster.is_cpu(receipt.device) => ran.stage + ran.compute,
            Ok(ran) => ran.compute,
            Err(_) => now.saturating_duration_since(batch.taken),
        };
        Some(self.take_back(batch, receipt, result, took.as_secs_f64(), now))
    }

    /// Takes back what a worker has and does not return, as if its device had failed, and plans no more work for that worker. Results
    /// that it returns later are dropped. Until then it keeps the memory of those batches, outside the bounds.
    pub fn recall(&mut self, worker: WorkerKey, error: &str, now: Instant) -> Vec<Recalled> {
        // Done first, so that the returned work goes to others.
        self.forget_worker(worker);
        let of_worker = |_: &u64, (_, receipt): &mut (Arc<Batch>, Receipt)| receipt.worker == worker;
        let batches: Vec<_> = self.running.extract_if(.., of_worker).collect();
        let recalled = batches.into_iter().map(|(_, (batch, receipt))| {
            let model = self.models.get(&batch.model).map(|model| Arc::clone(&model.name));
            // A model is not charged for the time that a device hung.
            let (failed, seconds) = (Err(EngineError::Device(error.into())), receipt.estimate);
            let aftermath = self.take_back(&batch, &receipt, failed, seconds, now);
            Recalled { model: model.unwrap_or_default(), items: batch.items, aftermath }
        });
        let recalled = recalled.collect();
        self.strand(now);
        recalled
    }

    fn take_back(
        &mut self,
        batch: &Batch,
        receipt: &Receipt,
        result: RunResult,
        seconds: f64,
        now: Instant,
    ) -> Aftermath {
        let (estimate, measured) = (receipt.worth * receipt.estimate, receipt.worth * seconds);
        self.shares.correct(receipt.device, batch.model, estimate, measured);
        self.roster.end(receipt.worker, receipt.batch, now);
        let (mut whole, mut ceiling) = (false, None);
        if let Some(model) = self.models.get_mut(&batch.model) {
            model.running.entry(receipt.device).or_default().now -= 1;
            whole = model.rules.whole;
            if result.is_ok() {
                let size = padded(&model.rules.sizes, batch.size);
                let place = (receipt.device, Kind::of(batch.setting.as_ref()));
                let takes = model.rules.padding.takes(self.roster.is_cpu(receipt.device));
                // Sizes are compared by the time of a full batch.
                let full = if takes == Takes::WhatPays { size as f64 / batch.size as f64 } else { 1.0 };
                model.costs.entry(place).or_default().record(size, full * seconds, now);
                ceiling = model.worked(place, now);
            }
        }
        for part in &batch.parts {
            if let Some(entry) = self.jobs.get_mut(&part.job) {
                entry.running -= 1;
            }
        }
        let aftermath = match result {
            Ok(ran) => {
                let aftermath = match usable(&ran.outputs, batch.size, whole) {
                    Ok(()) => {
                        self.distribute(batch, receipt, &ran, whole, now);
                        Aftermath::default()
                    }
                    // Which rows belong to whom cannot be known.
                    Err(error) => self.run_alone(batch, &InferError::Internal(error), now),
                };
                Aftermath { ceiling, ..aftermath }
            }
            Err(EngineError::Input(error)) => self.run_alone(batch, &InferError::Input(error), now),
            Err(EngineError::OutOfMemory(error)) => self.halve(batch, receipt, &error, now),
            // A second chance and no third, as after a fault, which it is not: the device goes on.
            Err(EngineError::Passing(error)) => self.run_elsewhere(batch, receipt, &error, false, now),
            Err(EngineError::Device(error)) => {
                self.roster.note_fault(receipt.device, &error);
                self.run_elsewhere(batch, receipt, &error, false, now)
            }
        };
        for part in &batch.parts {
            self.release(part.job, now);
        }
        self.strand(now);
        self.forget(batch.model);
        aftermath
    }

    fn distribute(&mut self, batch: &Batch, receipt: &Receipt, ran: &Ran, whole: bool, now: Instant) {
        let bytes = |part: &Part| -> usize { part.inputs.iter().map(|i| i.data.len()).sum() };
        self.throughput.record(batch.items, batch.parts.iter().map(bytes).sum(), now);
        let device = Arc::clone(self.roster.name(receipt.device));
        let (mut start, mut marks) = (0, vec![Mark::default(); ran.outputs.len()]);
        for part in &batch.parts {
            let end = start + part.rows.len();
            let live = self.jobs.get_mut(&part.job).filter(|entry| !entry.over);
            if let Some(entry) = live {
                let cut = |(output, mark): (&Tensor, &mut Mark)| {
                    if whole || (start == 0 && output.shape[0] == end) {
                        output.clone()
                    } else {
                        rows::cut(output, start..end, mark)
                    }
                };
                let outputs = ran.outputs.iter().zip(&mut marks).map(cut).collect();
                let failure = entry.failure.as_ref().filter(|failure| failure.device != receipt.device);
                let fallback = match failure {
                    Some(failure) if failure.memory => Some(Fallback::OutOfMemory),
                    Some(_) => Some(Fallback::DeviceFailed),
                    None => receipt.standby.then_some(Fallback::DeviceAway),
                };
                let by = (&device, fallback, batch.items);
                if let Some(pieces) = entry.collect(part.rows.clone(), outputs, ran, by) {
                    self.end(part.job, Some(Ok(pieces)), now);
                }
            }
            start = end;
        }
    }
}

/// Outputs of a batch have a row for each of its items, padding included.
fn usable(outputs: &[Tensor], size: usize, whole: bool) -> Result<(), String> {
    if whole {
        return Ok(());
    }
    for (i, output) in outputs.iter().enumerate() {
        if output.shape.first() != Some(&size) {
            return Err(format!(
                "output {i} of the model has shape {:?} for a batch of {size} items: its first axis does not count items, which \
                 [batch] axis = \"none\" says in its model.toml",
                output.shape
            ));
        }
        rows::check_rows(output, size).and_then(|()| rows::check(output))?;
    }
    Ok(())
}
