//! The lock around the book. Callers wait for answers, worker threads for work.
//!
//! Callers [`push`](Queue::push) and await their [`Ticket`]; dropping it removes the job. Worker threads [`attach`](Queue::attach) and
//! [`take`](Worker::take). Each worker sleeps on a bell (condition variable) of its own, so that a push wakes exactly one worker that
//! serves the model; that one wakes others if work is left. Answers are put together and sent, and their memory is given back, after the
//! lock is released.

mod inline;
#[cfg(test)]
mod tests;
mod ticket;
mod worker;

pub use super::{
    book::{Load, ModelLoad, QueueLimits, Recalled},
    roster::Absence,
};
pub use inline::Inline;
pub use ticket::Ticket;
pub use worker::{Running, Taken, Worker};

use super::{
    Aftermath, Answer, Batch, Job, JobKey, ModelKey, Rules, RunResult,
    book::{Book, Receipt, WorkerKey, check_tensors},
    entry::Pieces,
    patience::OnTimeout,
};
use crate::{engine::Tensor, error::InferError, telemetry::metrics::ModelMetrics};
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use ticket::Patience;
use tokio::sync::{Notify, oneshot};

/// How long somebody who waits for room sleeps if no job leaves the queue: the room may also be that of a model, or of a deadline.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

type Reply = Result<Answer, InferError>;

/// All jobs of the process, between the callers that push them and the workers that take them.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    /// Wakes those who wait for room.
    room: Notify,
}

#[derive(Debug)]
struct State {
    book: Book,
    replies: HashMap<JobKey, oneshot::Sender<Reply>>,
    /// One per attached worker.
    bells: HashMap<WorkerKey, Arc<Condvar>>,
    /// Workers whose [`Worker::take`] must return, so that they look at their own messages.
    woken: HashSet<WorkerKey>,
    /// Workers that sleep and have not been woken.
    parked: Vec<WorkerKey>,
    /// Workers' models that are lent for inline runs, and the batches that run so.
    inline: inline::All,
    /// Where the waits of jobs that end without an answer are counted.
    metrics: HashMap<ModelKey, Arc<ModelMetrics>>,
}

impl State {
    /// Picks the sleeping worker that should have the waiting work of the model. A worker on whose behalf a batch runs inline is passed
    /// over: it has its turn afterwards.
    fn ring_for(&mut self, model: ModelKey) -> Option<Arc<Condvar>> {
        let free = self.inline.without(&self.parked);
        let worker = free[self.book.best_of(&free, model, Instant::now())?];
        self.parked.retain(|parked| *parked != worker);
        self.bells.get(&worker).cloned()
    }

    /// Picks one sleeping worker for each model with waiting work: a worker that was woken for it may have taken other work.
    fn ring_for_each(&mut self) -> Vec<Arc<Condvar>> {
        if self.parked.is_empty() {
            return Vec::new();
        }
        let models = self.book.waiting_models();
        models.into_iter().filter_map(|model| self.ring_for(model)).collect()
    }

    /// Picks all sleeping workers.
    fn ring_all(&mut self) -> Vec<Arc<Condvar>> {
        let parked = self.parked.drain(..);
        parked.filter_map(|worker| self.bells.get(&worker).cloned()).collect()
    }
}

impl Queue {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Arc<Queue> {
        let state = State {
            book: Book::new(limits),
            replies: HashMap::new(),
            bells: HashMap::new(),
            woken: HashSet::new(),
            parked: Vec::new(),
            inline: inline::All::default(),
            metrics: HashMap::new(),
        };
        Arc::new(Queue { state: Mutex::new(state), room: Notify::new() })
    }

    /// Accepts jobs for a model from now on. `name` is for messages. A model that is known already keeps its rules.
    pub fn register(&self, model: ModelKey, name: &str, rules: Rules) {
        self.state.lock().book.register(model, name, rules);
    }

    /// Counts from now on how long jobs of a registered model have waited that end without an answer. Those with one know it themselves.
    pub fn count_waits(&self, model: ModelKey, metrics: Arc<ModelMetrics>) {
        let mut state = self.state.lock();
        if state.book.knows(model) {
            state.metrics.insert(model, metrics);
        }
    }

    /// Says that a device runs a model only while no other device serves it.
    pub fn stand_by(&self, model: ModelKey, device: &Arc<str>) {
        self.state.lock().book.stand_by(model, device);
    }

    /// Records how long a batch of a model took on a device outside the queue, such as in its trial there. Devices that have run no
    /// batches yet are compared by this.
    pub fn measured(&self, model: ModelKey, device: &Arc<str>, items: usize, took: Duration) {
        self.state.lock().book.measured(model, device, items, took, Instant::now());
    }

    /// Says that a device was tried with batches of a model of at most so many items, and gets no larger ones; `None`: no such limit.
    pub fn tried(&self, model: ModelKey, device: &Arc<str>, items: Option<usize>) {
        self.state.lock().book.tried(model, device, items);
    }

    /// Says why a device's workers are about to leave, or have left, and when it should be back where that is known. Jobs that only it
    /// can run wait for it if they have the time, and are refused with the reason if not. This holds for each model until the device
    /// serves it again, for all models until it has [returned](Worker::returned), or until something else is said; saying the same again
    /// changes nothing. A device of which nothing is said is not expected back.
    pub fn expect(&self, device: &Arc<str>, absence: Absence) {
        let mut state = self.state.lock();
        if state.book.expect(device, absence, Instant::now()) {
            self.leave(state, None);
        }
    }

    /// Like [`Queue::expect`], for callers that know less than others: it holds only if nothing was said since the device last served.
    pub fn suppose(&self, device: &Arc<str>, absence: Absence) {
        let mut state = self.state.lock();
        if state.book.suppose(device, absence, Instant::now()) {
            self.leave(state, None);
        }
    }

    /// Accepts no more jobs for a model; what waits still runs. When the last of it has ended, or if no worker serves the model, it is
    /// forgotten, and all workers get [`Taken::Woken`].
    pub fn retire(&self, model: ModelKey) {
        let mut state = self.state.lock();
        state.book.retire(model, Instant::now());
        self.leave(state, None);
    }

    /// Whether jobs of this model can still come or come back: registered, and not both retired and empty. A worker may
    /// unload the model when not.
    pub fn knows(&self, model: ModelKey) -> bool {
        self.state.lock().book.knows(model)
    }

    /// Whether any of these models has work, waiting or running.
    pub fn has_work(&self, models: &[ModelKey]) -> bool {
        let state = self.state.lock();
        models.iter().any(|model| state.book.items(*model) > 0)
    }

    /// Accepts a job; the ticket is its answer to come.
    ///
    /// # Errors
    /// [`InferError::Draining`] once closed, [`InferError::ModelUnavailable`] once the model is retired,
    /// [`InferError::TooLarge`] for what could never fit, [`InferError::Full`] for what does not fit now,
    /// [`InferError::Unserved`] where the model's devices are away and not expected back in time, [`InferError::Late`]
    /// for a deadline that has passed or clearly cannot be met by the measured rate, [`InferError::Internal`] for
    /// tensors that are not what they say.
    pub fn push(self: &Arc<Queue>, job: Job) -> Result<Ticket, InferError> {
        check_tensors(&job)?;
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let (model, wait) = (job.model, job.wait);
        let pushed = Instant::now();
        let job = match state.book.push(job, pushed) {
            Ok(job) => job,
            Err(error) => {
                // Jobs that have expired meanwhile are answered now, and the memory of this one is released outside the lock.
                self.leave(state, None);
                return Err(error);
            }
        };
        state.replies.insert(job, sender);
        match state.take_inline(model, pushed) {
            Some(inline) => self.run_inline(state, inline),
            None => self.leave(state, Some(model)),
        }
        let refused = wait.filter(|wait| wait.then == OnTimeout::Refuse);
        let patience = refused.map(|wait| Patience { model, until: pushed + wait.max, timer: None });
        Ok(Ticket { job, pushed, patience, reply: receiver, queue: Some(Arc::clone(self)) })
    }

    /// Waits after [`InferError::Full`] until a push may succeed. It may fail all the same, since others may have been first.
    pub async fn room(&self) {
        let _ = tokio::time::timeout(ROOM_PAUSE, self.room.notified()).await;
    }

    /// Whether a job of this model would be accepted, if it could wait without limit.
    ///
    /// # Errors
    /// [`InferError::Unserved`] where the model's devices are away and not expected back.
    pub fn check_served(&self, model: ModelKey) -> Result<(), InferError> {
        self.state.lock().book.in_sight(model, None, Instant::now())
    }

    /// Adds a worker: one thread that runs batches on `device`.
    pub fn attach(self: &Arc<Queue>, device: &Arc<str>) -> Worker {
        let mut state = self.state.lock();
        let key = state.book.attach(device);
        let bell = Arc::new(Condvar::new());
        state.bells.insert(key, Arc::clone(&bell));
        Worker { key, bell, device: Arc::clone(device), queue: Arc::clone(self) }
    }

    /// Makes the current or next [`Worker::take`] of one worker return [`Taken::Woken`].
    pub fn wake_one(&self, worker: WorkerKey) {
        let mut state = self.state.lock();
        let Some(bell) = state.bells.get(&worker).cloned() else { return };
        state.woken.insert(worker);
        state.parked.retain(|parked| *parked != worker);
        drop(state);
        bell.notify_one();
    }

    /// Makes the current or next [`Worker::take`] of every worker return [`Taken::Woken`].
    pub fn wake(&self) {
        let mut state = self.state.lock();
        let State { bells, woken, .. } = &mut *state;
        woken.extend(bells.keys());
        let bells = state.ring_all();
        ring(state, &bells);
    }

    /// From now on no job waits for company: the server is ending, so no more will come.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        state.book.hurry();
        let bells = state.ring_all();
        ring(state, &bells);
    }

    /// Accepts no more jobs. Those that are in still run, without waiting for company; jobs that no worker serves are answered with an
    /// error. Workers get [`Taken::Closed`] when nothing is left for them.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.book.close(Instant::now());
        self.leave(state, None);
    }

    /// Closes, and answers every job that waits or runs with `error`; returns how many. For when a drain takes too long.
    pub fn abort(&self, error: &InferError) -> usize {
        let mut state = self.state.lock();
        let count = state.book.abort(error, Instant::now());
        self.leave(state, None);
        count
    }

    /// Whether a GPU serves a model now; where no device does yet, whether there is a GPU at all.
    pub fn is_on_gpu(&self, model: ModelKey) -> bool {
        self.state.lock().book.is_on_gpu(model)
    }

    /// The present load.
    pub fn load(&self) -> Load {
        self.state.lock().book.load(Instant::now())
    }

    /// Answers the jobs of a model whose time was over while they waited.
    fn expire(&self, model: ModelKey) {
        let mut state = self.state.lock();
        state.book.expire(model, Instant::now());
        self.leave(state, None);
    }

    fn cancel(&self, job: JobKey) {
        let mut state = self.state.lock();
        let reply = state.replies.remove(&job);
        state.book.cancel(job, Instant::now());
        self.leave(state, None);
        drop(reply);
    }

    /// Whether a worker has batches, and nobody waits for an answer from any of them any more: all jobs are answered or cancelled.
    pub fn runs_unwanted(&self, worker: WorkerKey) -> bool {
        self.state.lock().book.runs_unwanted(worker)
    }

    /// Takes back what a worker has and does not return, because it hangs: the jobs run elsewhere or are answered, and the worker gets
    /// nothing more. Results that it returns later are dropped.
    pub fn recall(&self, worker: WorkerKey, error: &str) -> Vec<Recalled> {
        let mut state = self.state.lock();
        let recalled = state.book.recall(worker, error, Instant::now());
        self.leave(state, None);
        recalled
    }

    /// `counted` is called before the answers are sent, so that a caller with an answer finds it in the metrics.
    fn finish(
        &self,
        batch: &Batch,
        receipt: &Receipt,
        result: RunResult,
        counted: impl FnOnce(),
    ) -> Option<Aftermath> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let aftermath = state.book.finish(batch, receipt, result, now);
        state.inline.ended(receipt);
        let answers = self.release(state, None);
        if aftermath.is_some() {
            counted();
        }
        answers.send();
        aftermath
    }

    /// Releases the lock, then sends the answers and wakes the workers that the calls under it call for. `changed` is the only model that
    /// gained work, if that is known.
    fn leave(&self, state: MutexGuard<'_, State>, changed: Option<ModelKey>) {
        self.release(state, changed).send();
    }

    /// Like [`Queue::leave`], but returns the answers, for the caller to send.
    fn release(&self, mut state: MutexGuard<'_, State>, changed: Option<ModelKey>) -> Answers {
        let settled = state.book.settle();
        if !settled.forgotten.is_empty() {
            let State { bells, woken, .. } = &mut *state;
            woken.extend(bells.keys());
        }
        let answers: Vec<(oneshot::Sender<Reply>, Result<Pieces, InferError>)> = settled
            .done
            .into_iter()
            .filter_map(|done| Some((state.replies.remove(&done.job)?, done.result)))
            .collect();
        let waits = settled.waits.iter();
        let waits =
            waits.filter_map(|(model, wait)| Some((Arc::clone(state.metrics.get(model)?), *wait))).collect();
        for model in &settled.forgotten {
            state.metrics.remove(model);
        }
        let bells = match changed {
            _ if state.book.is_closed() || !settled.forgotten.is_empty() => state.ring_all(),
            Some(model) => state.ring_for(model).into_iter().collect(),
            None => state.ring_for_each(),
        };
        ring(state, &bells);
        // One waiter for each job that has left, the longest waiting first: if all were woken, most would find no room.
        (0..settled.freed).for_each(|_| self.room.notify_one());
        Answers { answers, waits, _inputs: settled.inputs }
    }
}

/// Releases the lock, then wakes the workers that were picked under it.
fn ring(state: MutexGuard<'_, State>, bells: &[Arc<Condvar>]) {
    drop(state);
    bells.iter().for_each(|bell| _ = bell.notify_one());
}

/// Answers to send and memory to release, both without the lock.
#[must_use = "callers wait for it"]
struct Answers {
    answers: Vec<(oneshot::Sender<Reply>, Result<Pieces, InferError>)>,
    /// Of those who get none.
    waits: Vec<(Arc<ModelMetrics>, Duration)>,
    _inputs: Vec<Vec<Tensor>>,
}

impl Answers {
    fn send(self) {
        for (metrics, wait) in self.waits {
            metrics.unanswered_queue_seconds.observe(wait.as_secs_f64());
        }
        for (sender, result) in self.answers {
            // A caller that dropped its ticket meanwhile does not want the answer.
            let _ = sender.send(result.and_then(Pieces::join));
        }
    }
}
