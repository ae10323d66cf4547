//! The worker's side: its place in the queue, and a batch that cannot be lost.

use super::{Inline, Queue, State};
use crate::{
    batch::{
        Aftermath, Batch, ModelKey, RunResult,
        book::{Pick, Receipt, WorkerKey},
    },
    engine::EngineError,
};
use parking_lot::{Condvar, MutexGuard};
use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
};

/// What a worker got.
#[derive(Debug)]
pub enum Taken {
    /// Run this.
    Batch(Running),
    /// Look at your own messages, and ask again.
    Woken,
    /// Nothing came within the worker's patience.
    Idle,
    /// There will be no more work, except for batches of this worker that may fail and come back. A worker without any may end.
    Closed,
}

/// A worker's place in the queue; dropping it detaches the worker.
#[derive(Debug)]
pub struct Worker {
    pub(super) key: WorkerKey,
    pub(super) bell: Arc<Condvar>,
    pub(super) device: Arc<str>,
    pub(super) queue: Arc<Queue>,
}

impl Worker {
    /// [`Queue::recall`] takes this key.
    pub fn key(&self) -> WorkerKey {
        self.key
    }

    /// Says that these are all models that its device will serve for now: jobs that wait for the device to return with others are
    /// answered.
    pub fn returned(&self, serves: &[ModelKey]) {
        let mut state = self.queue.state.lock();
        state.book.returned(self.key, serves, Instant::now());
        self.queue.leave(state, None);
    }

    /// Says which models it serves from now on, before it asks for their work.
    pub fn serves(&self, serves: &[ModelKey]) {
        let mut state = self.queue.state.lock();
        state.book.serves(self.key, serves, Instant::now());
        self.queue.leave(state, None);
    }

    /// Says whether its batches of a model keep one size for a while, since changing the size is expensive for its engine.
    pub fn keep_size(&self, model: ModelKey, keeps: bool) {
        self.queue.state.lock().book.keep_size(self.key, model, keeps);
    }

    /// Lends a model: a thread that pushes a job runs it by `inline`, where the batch is short and this worker sleeps. `None` ends that.
    pub fn lend(&self, model: ModelKey, inline: Option<Arc<dyn Inline>>) {
        // The one that was lent before is dropped without the lock.
        let _before = self.queue.state.lock().inline.set(self.key, model, inline);
    }

    /// Waits for a batch of one of the models that the worker serves, for at most `patience` where that is given. To be called from a
    /// thread that may block.
    pub fn take(&self, serves: &[ModelKey], patience: Option<Duration>) -> Taken {
        let end = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            let mut state = self.queue.state.lock();
            if state.woken.remove(&self.key) {
                // Another worker may have to take the work that this one was woken for.
                self.queue.leave(state, None);
                return Taken::Woken;
            }
            let now = Instant::now();
            let until = match state.book.pick(self.key, serves, now) {
                Pick::Run(batch, receipt) => {
                    self.queue.leave(state, None);
                    let (device, queue) = (Arc::clone(&self.device), Arc::clone(&self.queue));
                    return Taken::Batch(Running { batch, receipt: Some(receipt), device, queue });
                }
                Pick::Closed => {
                    self.queue.leave(state, None);
                    return Taken::Closed;
                }
                Pick::SleepUntil(until) => Some(until),
                Pick::Sleep => None,
            };
            if end.is_some_and(|end| end <= now) {
                self.queue.leave(state, None);
                return Taken::Idle;
            }
            let until = until.into_iter().chain(end).min();
            if state.book.is_settled() {
                self.sleep(state, until.map(|until| until.saturating_duration_since(now)));
            } else {
                // Late jobs are answered before this worker sleeps, and others are woken for models that it no longer serves.
                self.queue.leave(state, None);
            }
        }
    }

    /// A batch, if there is one now.
    #[cfg(test)]
    pub(crate) fn try_take(&self, serves: &[ModelKey]) -> Option<Running> {
        match self.take(serves, Some(Duration::ZERO)) {
            Taken::Batch(running) => Some(running),
            Taken::Woken | Taken::Idle | Taken::Closed => None,
        }
    }

    fn sleep(&self, mut state: MutexGuard<'_, State>, limit: Option<Duration>) {
        state.parked.push(self.key);
        match limit {
            None => self.bell.wait(&mut state),
            Some(limit) => drop(self.bell.wait_for(&mut state, limit)),
        }
        state.parked.retain(|parked| *parked != self.key);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.bells.remove(&self.key);
        state.woken.remove(&self.key);
        state.inline.forget(self.key);
        state.book.detach(self.key, Instant::now());
        self.queue.leave(state, None);
    }
}

/// A batch in a worker's hands. Dropping it unfinished (a panic, an early return) counts as a failure of the device, so that its jobs run
/// elsewhere or are answered.
#[derive(Debug)]
#[must_use = "dropping a batch fails it"]
pub struct Running {
    pub(super) batch: Arc<Batch>,
    /// Until it is finished.
    pub(super) receipt: Option<Receipt>,
    pub(super) device: Arc<str>,
    pub(super) queue: Arc<Queue>,
}

impl Running {
    /// Hands the batch back: answers the jobs that are complete, and lets those that failed run again where the kind of error allows it.
    /// Returns what else came of it; `None` where it was [recalled](Queue::recall), and its jobs went to others.
    pub fn finish(self, result: RunResult) -> Option<Aftermath> {
        self.finish_counted(result, || ())
    }

    /// Like [`Running::finish`]; `counted` is called before the answers are sent, unless the batch was recalled.
    pub fn finish_counted(mut self, result: RunResult, counted: impl FnOnce()) -> Option<Aftermath> {
        self.queue.finish(&self.batch, &self.receipt.take()?, result, counted)
    }
}

impl Deref for Running {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            let error = format!("the worker on {} stopped in the middle of it", self.device);
            let result = Err(EngineError::Device(error));
            self.queue.finish(&self.batch, &receipt, result, || ());
        }
    }
}
