//! The worker's side: a place at the queue, and a batch that cannot be lost.

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
    /// Look at your own mail, and come back.
    Woken,
    /// Nothing came for as long as the worker had patience.
    Idle,
    /// There will be no more work but what comes back of batches that the worker has begun: without any, go home.
    Closed,
}

/// A worker's place at the queue; dropping it says that the worker is gone.
#[derive(Debug)]
pub struct Worker {
    pub(super) key: WorkerKey,
    pub(super) bell: Arc<Condvar>,
    pub(super) device: Arc<str>,
    pub(super) queue: Arc<Queue>,
}

impl Worker {
    /// What [`Queue::recall`] knows it by.
    pub fn key(&self) -> WorkerKey {
        self.key
    }

    /// Says that this is all that its device will serve for now: jobs that wait for it to come back with anything else are
    /// answered.
    pub fn returned(&self, serves: &[ModelKey]) {
        let mut state = self.queue.state.lock();
        state.book.returned(self.key, serves, Instant::now());
        self.queue.leave(state, None);
    }

    /// Says what it serves from now on, before it asks for any of that.
    pub fn serves(&self, serves: &[ModelKey]) {
        let mut state = self.queue.state.lock();
        state.book.serves(self.key, serves, Instant::now());
        self.queue.leave(state, None);
    }

    /// Says whether it is given one size of a model's batches for a while, since a change of it is dear to its engine.
    pub fn keep_size(&self, model: ModelKey, keeps: bool) {
        self.queue.state.lock().book.keep_size(self.key, model, keeps);
    }

    /// Has whoever pushes a job of a model run it by this, where that is short and this worker sleeps; `None`: no more.
    pub fn lend(&self, model: ModelKey, inline: Option<Arc<dyn Inline>>) {
        // What was lent before is dropped without the lock.
        let _before = self.queue.state.lock().inline.set(self.key, model, inline);
    }

    /// Waits for a batch of one of the models it serves. To be called from a thread that may block.
    pub fn take(&self, serves: &[ModelKey]) -> Taken {
        self.take_within(serves, None)
    }

    /// Like [`Worker::take`], for at most `patience` where that is given.
    pub fn take_within(&self, serves: &[ModelKey], patience: Option<Duration>) -> Taken {
        let end = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            let mut state = self.queue.state.lock();
            if state.woken.remove(&self.key) {
                // Somebody else may have to do what this worker was rung for.
                self.queue.leave(state, None);
                return Taken::Woken;
            }
            let now = Instant::now();
            let until = match state.book.pick(self.key, serves, now) {
                Pick::Run(batch, receipt) => {
                    self.queue.leave(state, None);
                    return Taken::Batch(self.running(batch, receipt));
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
                // Late jobs are answered before anybody sleeps, and others woken for what this worker serves no more.
                self.queue.leave(state, None);
            }
        }
    }

    /// A batch, if there is one now: for a worker that stages the next batch while one runs.
    pub fn try_take(&self, serves: &[ModelKey]) -> Option<Running> {
        let mut state = self.queue.state.lock();
        let pick = state.book.pick(self.key, serves, Instant::now());
        self.queue.leave(state, None);
        match pick {
            Pick::Run(batch, receipt) => Some(self.running(batch, receipt)),
            Pick::SleepUntil(_) | Pick::Sleep | Pick::Closed => None,
        }
    }

    fn running(&self, batch: Arc<Batch>, receipt: Receipt) -> Running {
        let (device, queue) = (Arc::clone(&self.device), Arc::clone(&self.queue));
        Running { batch, receipt: Some(receipt), device, queue }
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

/// A batch in a worker's hands. Dropping it unfinished (a panic, an early return) counts as a failure of the device, so
/// that its jobs are run elsewhere or answered.
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
    /// Hands the batch back: answers the jobs that are complete, and lets those that failed run again where the kind of
    /// error allows it. Says what else came of it; none where it was [recalled](Queue::recall), and others have its jobs.
    pub fn finish(self, result: RunResult) -> Option<Aftermath> {
        self.finish_counted(result, || ())
    }

    /// The same; `counted` is called before the answers are sent, unless the batch was recalled.
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
