//! Short batches that the thread that pushes a job runs itself, without waking a sleeping worker's thread or being woken by it.

use super::{Queue, Running, State};
use crate::batch::{
    Batch, ModelKey,
    book::{Receipt, WorkerKey},
};
use foldhash::HashMap;
use parking_lot::MutexGuard;
use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Instant,
};

/// A worker's model, with which other threads may run a short batch while the worker sleeps.
pub trait Inline: Send + Sync {
    /// Runs the batch on this thread, and finishes it.
    fn run(&self, batch: Running);
}

/// The models that workers have lent, and the batches that run on the workers' behalf.
#[derive(Default)]
pub(super) struct All {
    lent: HashMap<(WorkerKey, ModelKey), Arc<dyn Inline>>,
    running: Vec<Receipt>,
}

impl Debug for All {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lent.keys()).finish()
    }
}

impl All {
    pub(super) fn set(
        &mut self,
        worker: WorkerKey,
        model: ModelKey,
        inline: Option<Arc<dyn Inline>>,
    ) -> Option<Arc<dyn Inline>> {
        match inline {
            Some(inline) => self.lent.insert((worker, model), inline),
            None => self.lent.remove(&(worker, model)),
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerKey) {
        self.lent.retain(|(of, _), _| *of != worker);
    }

    /// A batch has ended, on whichever thread.
    pub(super) fn ended(&mut self, receipt: &Receipt) {
        self.running.retain(|running| running != receipt);
    }

    /// Those of these workers for which no batch runs inline.
    pub(super) fn without(&self, workers: &[WorkerKey]) -> Vec<WorkerKey> {
        let runs = |worker: &WorkerKey| self.running.iter().any(|running| running.worker() == *worker);
        workers.iter().filter(|worker| !runs(worker)).copied().collect()
    }
}

/// A batch that is to be run inline.
pub(super) struct Taken {
    batch: Arc<Batch>,
    receipt: Receipt,
    inline: Arc<dyn Inline>,
}

impl State {
    /// The waiting work of a model as an inline batch, if the worker that would be woken for it has lent the model and need not be woken.
    pub(super) fn take_inline(&mut self, model: ModelKey, now: Instant) -> Option<Taken> {
        if self.inline.lent.is_empty() || self.parked.is_empty() || !self.book.may_inline(model, now) {
            return None;
        }
        let worker = self.parked[self.book.best_of(&self.parked, model, now)?];
        let inline = Arc::clone(self.inline.lent.get(&(worker, model))?);
        let (batch, receipt) = self.book.inline(worker, model, now)?;
        self.inline.running.push(receipt);
        Some(Taken { batch, receipt, inline })
    }
}

impl Queue {
    pub(super) fn run_inline(self: &Arc<Queue>, state: MutexGuard<'_, State>, taken: Taken) {
        let Taken { batch, receipt, inline } = taken;
        let device = Arc::clone(state.book.device(&receipt));
        self.leave(state, Some(batch.model));
        inline.run(Running { batch, receipt: Some(receipt), device, queue: Arc::clone(self) });
    }
}
