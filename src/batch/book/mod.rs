//! The bookkeeping of the queue: which jobs exist, which of their rows wait, run or are done, and the bounds on them. Pure: `queue` puts
//! a lock and the callers' channels around it, `sim` drives it on a virtual clock.
//!
//! A job enters with [`Book::push`]. Its rows wait in a lane, leave it in the parts of one or more batches ([`Book::pick`]) and come back
//! done or failed ([`Book::finish`]). Rows of a worker that does not return them are taken back ([`Book::recall`]). Exactly one [`Done`]
//! comes out for each job that is not cancelled. The job's share of the bounds is released with it, or with its last running part if that
//! ends later: until then its memory is in use.
//!
//! - `admit`: which jobs are let in. `run`: batches, formed and taken back. `inline`: batches for which no worker is woken.
//! - `again`: what becomes of a batch that failed.
//! - `serving`: which device may run which jobs, which should, and what becomes of a model that no device serves.
//! - `words`: the types of its arguments and results.

mod admit;
mod again;
mod inline;
mod run;
mod serving;
#[cfg(test)]
mod tests;
mod words;

pub use super::roster::WorkerKey;
use super::{
    Batch, Job, JobKey, ModelKey, Rules,
    ceiling::Ceiling,
    entry::{Entry, Pieces},
    lanes::Lanes,
    rates::{Costs, Pace, Throughput},
    roster::{DeviceKey, Roster},
    shares::Shares,
    steady::Steady,
};
use crate::error::InferError;
pub use admit::check_tensors;
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use words::Kind;
pub use words::{Aftermath, Done, Load, ModelLoad, Pick, QueueLimits, Recalled, Receipt, Settled};

/// Longer than any sensible wait for company; keeps sums of instants in range.
const WAIT_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Model {
    name: Arc<str>,
    rules: Rules,
    lanes: Lanes,
    pace: Pace,
    /// What batches of each kind cost on each device.
    costs: HashMap<(DeviceKey, Kind), Costs>,
    /// Limits for devices that had too little memory for the largest batch.
    ceilings: HashMap<(DeviceKey, Kind), Ceiling>,
    /// The largest batch, in items, that a device was tried with, where that is not the largest of the rules.
    tried: HashMap<DeviceKey, usize>,
    /// Workers whose batches keep one size for a while, since changing it is expensive for them.
    steady: HashSet<WorkerKey>,
    /// The sizes that their devices keep to.
    kept: HashMap<DeviceKey, Steady>,
    /// Names of devices that run it only while no other serves it.
    standby: Vec<Arc<str>>,
    /// Devices that serve it now or served it before.
    homes: Vec<DeviceKey>,
    /// Its batches on each device that has run any.
    running: HashMap<DeviceKey, Running>,
    /// Items that wait or run.
    items: usize,
    retired: bool,
}

/// Batches of a model on a device.
#[derive(Debug, Default)]
struct Running {
    now: usize,
    /// The most at once, ever.
    peak: usize,
}

impl Model {
    /// Batches that run now.
    fn running(&self) -> usize {
        self.running.values().map(|running| running.now).sum()
    }
}

/// How far the end of the server has come. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Open,
    /// Nothing waits for company.
    Hurried,
    /// And no job is accepted.
    Closed,
    /// And no worker gets any.
    Aborted,
}

/// All jobs, models and workers.
#[derive(Debug)]
pub struct Book {
    limits: QueueLimits,
    models: HashMap<ModelKey, Model>,
    jobs: HashMap<JobKey, Entry>,
    /// Batches that workers have and have not handed back, by number.
    running: BTreeMap<u64, (Arc<Batch>, Receipt)>,
    roster: Roster,
    shares: Shares,
    throughput: Throughput,
    settled: Settled,
    next_key: u64,
    items: usize,
    bytes: usize,
    stage: Stage,
}

impl Book {
    /// An empty book.
    pub fn new(limits: QueueLimits) -> Book {
        Book {
            limits,
            models: HashMap::new(),
            jobs: HashMap::new(),
            running: BTreeMap::new(),
            roster: Roster::default(),
            shares: Shares::default(),
            throughput: Throughput::default(),
            settled: Settled::default(),
            next_key: 0,
            items: 0,
            bytes: 0,
            stage: Stage::Open,
        }
    }

    /// Accepts jobs for a model from now on. A model that is known already keeps its rules.
    pub fn register(&mut self, key: ModelKey, name: &str, rules: Rules) {
        if self.models.contains_key(&key) {
            return;
        }
        let mut rules = rules;
        rules.wait_max = rules.wait_max.min(WAIT_MAX);
        rules.sizes.retain(|&size| size > 0);
        rules.sizes.sort_unstable();
        rules.sizes.dedup();
        if rules.whole || rules.sizes.is_empty() {
            rules.sizes = vec![1];
        }
        self.shares.add(key, rules.weight);
        self.models.insert(
            key,
            Model {
                name: name.into(),
                rules,
                lanes: Lanes::default(),
                pace: Pace::default(),
                costs: HashMap::new(),
                ceilings: HashMap::new(),
                tried: HashMap::new(),
                steady: HashSet::new(),
                kept: HashMap::new(),
                standby: Vec::new(),
                homes: Vec::new(),
                running: HashMap::new(),
                items: 0,
                retired: false,
            },
        );
    }

    /// Accepts no more jobs for a model. What waits still runs, if a worker serves it; then the model is forgotten.
    pub fn retire(&mut self, key: ModelKey, now: Instant) {
        if let Some(model) = self.models.get_mut(&key) {
            model.retired = true;
        }
        self.strand(now);
        self.forget(key);
    }

    /// Whether the model is known: registered, and not yet both retired and empty.
    pub fn knows(&self, key: ModelKey) -> bool {
        self.models.contains_key(&key)
    }

    /// Says that a device runs a model only while no other serves it.
    pub fn stand_by(&mut self, key: ModelKey, device: &Arc<str>) {
        if let Some(model) = self.models.get_mut(&key) {
            model.standby.push(Arc::clone(device));
        }
    }

    /// Records the time of a batch of items that was run outside the queue.
    pub fn measured(&mut self, key: ModelKey, device: &Arc<str>, items: usize, took: Duration, now: Instant) {
        let device = self.roster.device(device);
        if let Some(model) = self.models.get_mut(&key) {
            let costs = model.costs.entry((device, Kind::Items)).or_default();
            costs.record(items, took.as_secs_f64(), now);
        }
    }

    /// Says that a device was tried with batches of at most so many items, and gets no larger ones; `None`: no such limit.
    pub fn tried(&mut self, key: ModelKey, device: &Arc<str>, items: Option<usize>) {
        let device = self.roster.device(device);
        if let Some(model) = self.models.get_mut(&key) {
            match items {
                Some(items) => model.tried.insert(device, items),
                None => model.tried.remove(&device),
            };
        }
    }

    /// Says whether a worker's batches of a model keep one size for a while. The default is that they do not.
    pub fn keep_size(&mut self, worker: WorkerKey, key: ModelKey, keeps: bool) {
        let Some(device) = self.roster.device_of(worker) else { return };
        if let Some(model) = self.models.get_mut(&key) {
            model.kept.remove(&device);
            match keeps {
                true => model.steady.insert(worker),
                false => model.steady.remove(&worker),
            };
        }
    }

    /// Adds a worker on a device.
    pub fn attach(&mut self, device: &Arc<str>) -> WorkerKey {
        let key = WorkerKey(self.new_key());
        self.roster.attach(key, device);
        key
    }

    /// Removes a worker. Its batches can still finish.
    pub fn detach(&mut self, worker: WorkerKey, now: Instant) {
        self.forget_worker(worker);
        self.strand(now);
    }

    /// No work is planned for this worker any more.
    fn forget_worker(&mut self, worker: WorkerKey) {
        self.roster.detach(worker);
        for model in self.models.values_mut() {
            model.steady.remove(&worker);
        }
    }

    fn reach(&mut self, stage: Stage) {
        self.stage = self.stage.max(stage);
    }

    /// From now on nothing waits for company.
    pub fn hurry(&mut self) {
        self.reach(Stage::Hurried);
    }

    /// Accepts no more jobs; those that are in still run.
    pub fn close(&mut self, now: Instant) {
        self.reach(Stage::Closed);
        self.strand(now);
    }

    /// Whether [`Book::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.stage >= Stage::Closed
    }

    /// Closes, and answers every job that waits or runs with `error`; returns how many. Workers get [`Pick::Closed`].
    pub fn abort(&mut self, error: &InferError, now: Instant) -> usize {
        self.reach(Stage::Aborted);
        let keys: Vec<JobKey> = self.jobs.keys().copied().collect();
        let mut count = 0;
        for key in keys {
            if !self.jobs[&key].over {
                count += 1;
                self.end(key, Some(Err(error.clone())), now);
            }
        }
        count
    }

    /// The caller of this job has gone. Rows that wait are dropped at once; results of rows that run are dropped when they end.
    pub fn cancel(&mut self, job: JobKey, now: Instant) {
        self.end(job, None, now);
    }

    /// Answers the waiting jobs of a model whose time is over.
    pub fn expire(&mut self, key: ModelKey, now: Instant) {
        let Some(model) = self.models.get_mut(&key) else {
            return;
        };
        for job in model.lanes.refresh(now) {
            let Some(Entry { job: Job { arrived, deadline, wait, .. }, .. }) = self.jobs.get(&job) else {
                continue;
            };
            let waited = now.saturating_duration_since(*arrived).as_millis();
            let mut error = match wait {
                Some(wait) if deadline.is_none_or(|deadline| now < deadline) => format!(
                    "the request waited for {} ms, which is as long as its model's queue lets it",
                    wait.max.as_millis()
                ),
                _ => format!("the deadline passed in the queue, after {waited} ms"),
            };
            if let Some(absence) = self.unserved(key) {
                error += &format!(": no device served the model: {}", absence.reason);
            }
            self.end(job, Some(Err(InferError::Late(error))), now);
        }
    }

    /// Ends a job, once: answers it (if anybody waits), removes its waiting rows from their lane, and releases its bounds if none of its
    /// rows run.
    fn end(&mut self, key: JobKey, result: Option<Result<Pieces, InferError>>, now: Instant) {
        let Some(entry) = self.jobs.get_mut(&key).filter(|entry| !entry.over) else {
            return;
        };
        entry.over = true;
        if !matches!(result, Some(Ok(_))) {
            self.settled.waits.push((entry.job.model, entry.waited(now)));
        }
        let (model_key, shape) = (entry.job.model, Arc::clone(&entry.shape));
        if let Some(result) = result {
            self.settled.done.push(Done { job: key, result });
        }
        if let Some(model) = self.models.get_mut(&model_key) {
            model.lanes.remove(&shape, key);
            let waiting = !model.lanes.is_empty();
            self.shares.set_waiting(model_key, waiting);
        }
        self.release(key, now);
    }

    /// Releases the bounds of a job that is over, once none of its rows run.
    fn release(&mut self, key: JobKey, now: Instant) {
        if self.jobs.get(&key).is_none_or(|entry| !entry.over || entry.running > 0) {
            return;
        }
        let entry = self.jobs.remove(&key).expect("looked up above");
        self.items -= entry.job.items;
        self.bytes -= entry.bytes;
        if let Some(model) = self.models.get_mut(&entry.job.model) {
            model.items -= entry.job.items;
        }
        self.forget(entry.job.model);
        self.settled.inputs.push(entry.job.inputs);
        self.settled.freed += 1;
        self.throughput.busy(!self.jobs.is_empty(), now);
    }

    fn forget(&mut self, key: ModelKey) {
        let empty = |m: &Model| m.retired && m.items == 0 && m.running() == 0;
        if self.models.get(&key).is_some_and(empty) {
            self.models.remove(&key);
            self.shares.remove(key);
            self.settled.forgotten.push(key);
        }
    }

    /// The effects of all calls since the last [`Book::settle`].
    pub fn settle(&mut self) -> Settled {
        std::mem::take(&mut self.settled)
    }

    /// Whether the calls since the last [`Book::settle`] had no effects.
    pub fn is_settled(&self) -> bool {
        let Settled { done, inputs, freed, forgotten, moved, waits } = &self.settled;
        let none = done.is_empty() && inputs.is_empty() && forgotten.is_empty() && waits.is_empty();
        none && *freed == 0 && !moved
    }

    /// Models with waiting work.
    pub fn waiting_models(&self) -> Vec<ModelKey> {
        self.shares.waiting().collect()
    }

    /// Whether a GPU serves a model now; where no device does yet, whether there is a GPU at all.
    pub fn is_on_gpu(&self, model: ModelKey) -> bool {
        let on_gpu = |devices: &[DeviceKey]| devices.iter().any(|device| !self.roster.is_cpu(*device));
        match self.roster.serving(model) {
            [] => on_gpu(&self.roster.present()),
            serving => on_gpu(serving),
        }
    }

    /// What waits and runs.
    pub fn load(&self, now: Instant) -> Load {
        let models = self.models.values();
        let oldest = models.clone().filter_map(|model| model.lanes.oldest()).min();
        let load = |(key, m): (&ModelKey, &Model)| ModelLoad {
            key: *key,
            name: Arc::clone(&m.name),
            items: m.items,
            waiting: m.lanes.len(),
        };
        let mut by_model: Vec<_> = self.models.iter().map(load).collect();
        by_model.sort_unstable_by_key(|load| load.key);
        Load {
            items: self.items,
            bytes: self.bytes,
            waiting: models.clone().map(|model| model.lanes.len()).sum(),
            running: models.map(Model::running).sum(),
            oldest: oldest.map(|oldest| now.saturating_duration_since(oldest)),
            models: by_model,
        }
    }

    /// Items of a model that wait or run.
    pub fn items(&self, model: ModelKey) -> usize {
        self.models.get(&model).map_or(0, |model| model.items)
    }

    fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }
}
