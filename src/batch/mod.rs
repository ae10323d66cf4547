//! Jobs and batches. A *job* is a caller's request in the queue; an *item* is one row of it along the batch axis; a
//! *batch* is what a device runs, made of parts of one or more jobs of one lane.
//!
//! - [`lanes`]: what waits, by model and item shape, most urgent first; `urgency` is their order. Pure.
//! - [`policy`]: decides from what waits, the time and the limits whether to `Run`, `SleepUntil` or `Sleep`. Pure.
//! - `shares`: which model is next, by a fair share of device time. Pure.
//! - `roster`: the workers and devices that are present, and the devices that are away. Pure.
//! - `ceiling`: how large a batch may be on a device that had too little memory for a larger one. Pure.
//! - `steady`: the batch size that a device keeps to where changing the size is expensive. Pure.
//! - `rates`: measured speed: what a batch costs, when to retry, which deadlines are hopeless. Pure.
//! - [`patience`]: how many jobs of a model may wait, and for how long. Pure.
//! - `book`: the jobs from push to answer: bounds, splitting, retries, which device runs what, when a caller is answered. Pure. `entry`
//!   is one job in it, `rows` cuts and joins tensors.
//! - [`queue`]: the lock around the book, the threads that wait for work, the callers that wait for answers, and short batches that
//!   callers run themselves.
//! - `sim`: the real book, lanes and policy on a virtual clock, through thousands of seeds.

pub mod book;
pub mod ceiling;
pub mod entry;
pub mod lanes;
pub mod patience;
pub mod policy;
pub mod queue;
pub mod rates;
pub mod roster;
pub mod rows;
pub mod shares;
#[cfg(test)]
pub(crate) mod sim;
pub mod steady;
pub mod urgency;

use crate::{
    engine::{EngineError, Setting, Tensor},
    words::named,
};
use policy::Takes;
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

pub use book::{Aftermath, Recalled, WorkerKey};
pub use patience::{OnTimeout, QueuePolicies, QueuePolicy, Wait};
pub use queue::{Load, ModelLoad, Queue, QueueLimits, Running, Taken, Ticket, Worker};

/// One loaded version of one model. Keys are never used again, so a stale one finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelKey(pub u64);

/// One accepted job; unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(pub u64);

/// How a model's items may be batched.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Sizes that batches may be padded to, ascending; the last is the largest batch. `[1]` for a model that does not batch.
    pub sizes: Vec<usize>,
    /// Where batches are padded. Costs are recorded by size in any case.
    pub padding: Padding,
    /// The model has no batch axis: a job is one item, and its tensors go in and come out as they are, never cut.
    /// Otherwise the first axis of every input and output counts items, which is checked.
    pub whole: bool,
    /// How long a batch that is not full may wait for company (more jobs) while a device is idle; at most an hour. Zero: never.
    pub wait_max: Duration,
    /// Share of device time against other models when all have work; 1.0 is the default.
    pub weight: f64,
    /// How many of its jobs may wait, and for how long.
    pub queue: QueuePolicies,
}

impl Rules {
    /// Items of the largest batch.
    pub fn largest(&self) -> usize {
        largest(&self.sizes)
    }

    /// Batches of these sizes, padded everywhere, that wait for nobody; all else is the default.
    #[cfg(test)]
    pub(crate) fn plain(sizes: &[usize]) -> Rules {
        Rules {
            sizes: sizes.to_vec(),
            padding: Padding::Everywhere,
            whole: false,
            wait_max: Duration::ZERO,
            weight: 1.0,
            queue: QueuePolicies::default(),
        }
    }
}

/// The largest batch of these sizes, ascending.
fn largest(sizes: &[usize]) -> usize {
    sizes.last().copied().unwrap_or(1).max(1)
}

/// The smallest size that holds so many items; the largest if none does.
fn padded(sizes: &[usize], items: usize) -> usize {
    let size = sizes.iter().copied().find(|&size| size >= items);
    size.unwrap_or_else(|| largest(sizes))
}

/// Where batches are filled up to one of a model's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Nowhere: the engine runs items one by one.
    Never,
    /// On GPUs only, which search for kernels, reserve memory and record graphs for each new batch size. A CPU runs batches unpadded:
    /// there, a row of padding costs as much as a row that was asked for.
    OnGpus,
    /// On every device: the sizes were chosen in the configuration.
    Everywhere,
}

impl Padding {
    /// Whether batches of a device are padded.
    fn pads(self, is_cpu: bool) -> bool {
        match self {
            Padding::Never => false,
            Padding::OnGpus => !is_cpu,
            Padding::Everywhere => true,
        }
    }

    /// How much of what waits a batch of a device takes.
    fn takes(self, is_cpu: bool) -> Takes {
        match self {
            Padding::Never => Takes::All,
            Padding::OnGpus if is_cpu => Takes::WhatPays,
            Padding::OnGpus | Padding::Everywhere => Takes::WithoutWaste,
        }
    }
}

/// A caller's request, decoded and ready to run.
#[derive(Debug)]
pub struct Job {
    /// The model that it is for.
    pub model: ModelKey,
    /// In the order of the model's inputs. `shape[0]` is `items` in each for a model that batches; a model that does
    /// not batch has `items == 1` and takes the tensors whole.
    pub inputs: Vec<Tensor>,
    /// What else it asks of the engine; only jobs that ask the same are run together.
    pub setting: Option<Setting>,
    /// Rows along the batch axis, at least 1.
    pub items: usize,
    /// Only what the model's task needs for its answer is wanted, so outputs may arrive reduced
    /// ([`Ends::reduction`](crate::engine::Ends::reduction)).
    pub reduced: bool,
    /// 0 is the most urgent.
    pub priority: u8,
    /// After this the answer is worthless.
    pub deadline: Option<Instant>,
    /// How long it may wait to be started; `None`: until its deadline.
    pub wait: Option<Wait>,
    /// When the request, including its body, had arrived.
    pub arrived: Instant,
}

#[cfg(test)]
impl Job {
    /// A job with default options: nothing but the outputs for these tensors, without a deadline.
    pub(crate) fn plain(model: ModelKey, inputs: Vec<Tensor>, items: usize, arrived: Instant) -> Job {
        Job {
            model,
            inputs,
            setting: None,
            items,
            reduced: false,
            priority: 0,
            deadline: None,
            wait: None,
            arrived,
        }
    }
}

/// The successful result of a job.
#[derive(Debug)]
pub struct Answer {
    /// In the order of the model's outputs, all items in the order they were sent.
    pub outputs: Vec<Tensor>,
    /// The device that ran it (the last one, if several did).
    pub device: Arc<str>,
    /// Why this device ran it, where it is not one that the model is meant for.
    pub fallback: Option<Fallback>,
    /// Items in the batch that it ran in (the largest, if several).
    pub batch_items: usize,
    /// Where the time went.
    pub timing: Timing,
}

named! {
    /// Why a job ran elsewhere than on the devices that its model is meant for, or than on the one that had it first.
    Fallback {
        /// None of the devices that the model is meant for serves it now.
        DeviceAway = "device_away",
        /// The device that had it first failed.
        DeviceFailed = "device_failed",
        /// The device that had it first has too little memory for even the smallest batch.
        OutOfMemory = "out_of_memory",
    }
}

/// Where a job's time went. For a job split over batches, `queue` and `behind` are those of the first, and the others are sums.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// From push until it is taken, plus the time behind batches that the device had started before.
    pub queue: Duration,
    /// The part of `queue` after it was taken.
    pub behind: Duration,
    /// Putting the batch together.
    pub stage: Duration,
    /// Running the engine.
    pub compute: Duration,
}

/// What a worker runs: at most the largest size of the model's rules.
#[derive(Debug)]
pub struct Batch {
    /// The model to run.
    pub model: ModelKey,
    /// The setting that all of its jobs share.
    pub setting: Option<Setting>,
    /// All rows of each of its jobs are in it, and each job accepts reduced outputs, so the engine may reduce them.
    pub reduced: bool,
    /// In the order of their rows in the batch.
    pub parts: Vec<Part>,
    /// Sum of the rows of all parts.
    pub items: usize,
    /// The size to pad to: `items` or more, and just `items` where nothing is padded.
    pub size: usize,
    /// When it was taken from the queue.
    pub taken: Instant,
}

/// Consecutive rows of one job.
#[derive(Debug)]
pub struct Part {
    /// Whose rows.
    pub job: JobKey,
    /// Which rows of the job.
    pub rows: Range<usize>,
    /// Those rows of each of the job's inputs.
    pub inputs: Vec<Tensor>,
}

/// What running a batch gave: outputs with at least `items` rows (padding rows are ignored), and how long it took.
#[derive(Debug)]
pub struct Ran {
    /// In the order of the model's outputs.
    pub outputs: Vec<Tensor>,
    /// Putting the batch together.
    pub stage: Duration,
    /// After that, the wait until the engine reached it, behind batches already in flight.
    pub waited: Duration,
    /// Running the engine.
    pub compute: Duration,
}

/// The result of a batch, handed to [`Running::finish`].
pub type RunResult = Result<Ran, EngineError>;
