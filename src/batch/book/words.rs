//! The types of the book's arguments and results: bounds, what a worker is given, what came of it, and the present load.

use super::Pieces;
use crate::{
    batch::{
        Batch, JobKey, ModelKey,
        roster::{DeviceKey, WorkerKey},
    },
    engine::{Setting, Tensor},
    error::InferError,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Bounds over everything that waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Items (option `queue_items_max`).
    pub items_max: usize,
    /// Bytes of inputs (option `queue_bytes_max`).
    pub bytes_max: usize,
}

/// What the items of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Items,
    /// Whole frames, each of which is as much work as thousands of the ROIs that the same model is sent.
    Frames,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Items, Kind::Frames];

    pub(super) fn of(setting: Option<&Setting>) -> Kind {
        if setting.is_some_and(|setting| setting.finder().is_some()) { Kind::Frames } else { Kind::Items }
    }
}

/// What a worker does next.
#[derive(Debug)]
pub enum Pick {
    /// Run this, and hand it to [`Book::finish`](super::Book::finish).
    Run(Arc<Batch>, Receipt),
    /// Ask again then, or when more arrives.
    SleepUntil(Instant),
    /// Ask again when more arrives.
    Sleep,
    /// There will be no more work, except for batches of this worker that may fail and come back to it.
    Closed,
}

/// Which worker runs a batch, and what was charged for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Receipt {
    pub(super) worker: WorkerKey,
    pub(super) device: DeviceKey,
    /// Its number in the roster.
    pub(super) batch: u64,
    pub(super) estimate: f64,
    /// What a second of this device is worth to the model: 1 on the fastest device that serves it.
    pub(super) worth: f64,
    /// The device only stands by for the model.
    pub(super) standby: bool,
}

impl Receipt {
    /// Whose batch it is.
    pub fn worker(&self) -> WorkerKey {
        self.worker
    }
}

/// What became of a batch apart from its answers: for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aftermath {
    /// Jobs that are run again.
    pub again: usize,
    /// The largest batch of the model, in rows, that the device gets from now on, where that has changed.
    pub ceiling: Option<usize>,
}

/// A batch that was taken back from its worker.
#[derive(Debug)]
pub struct Recalled {
    /// Its model's name.
    pub model: Arc<str>,
    /// Its items.
    pub items: usize,
    /// What became of it.
    pub aftermath: Aftermath,
}

/// The end of a job.
#[derive(Debug)]
pub struct Done {
    /// Whose.
    pub job: JobKey,
    /// Its outputs, or why there are none.
    pub result: Result<Pieces, InferError>,
}

/// The effects of calls, to be dealt with outside the lock.
#[derive(Debug, Default)]
pub struct Settled {
    /// Jobs to answer.
    pub done: Vec<Done>,
    /// Memory to give back.
    pub inputs: Vec<Vec<Tensor>>,
    /// Jobs that no longer count against the bounds.
    pub freed: usize,
    /// Retired models that are empty now: workers may unload them.
    pub forgotten: Vec<ModelKey>,
    /// A worker serves other models than before: others may take the work that it leaves.
    pub moved: bool,
    /// How long jobs that end without an answer have waited for a device.
    pub waits: Vec<(ModelKey, Duration)>,
}

/// The present load, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// Items that wait or run.
    pub items: usize,
    /// Bytes of inputs that wait or run.
    pub bytes: usize,
    /// Jobs with rows waiting.
    pub waiting: usize,
    /// Batches that run.
    pub running: usize,
    /// How long ago the oldest waiting job arrived.
    pub oldest: Option<Duration>,
    /// By model, in the order of registration, which is that of their keys.
    pub models: Vec<ModelLoad>,
}

impl Load {
    /// The load of one model; `None` for one that is not registered.
    pub fn of(&self, key: ModelKey) -> Option<&ModelLoad> {
        let at = self.models.binary_search_by_key(&key, |load| load.key).ok()?;
        self.models.get(at)
    }
}

/// What waits and runs of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelLoad {
    /// Which.
    pub key: ModelKey,
    /// Its name; other versions of the model have it as well.
    pub name: Arc<str>,
    /// Items that wait or run.
    pub items: usize,
    /// Jobs with rows waiting.
    pub waiting: usize,
}
