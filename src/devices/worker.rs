//! One worker: an OS thread that owns its engines, takes a batch when it may start one, puts it together and starts it.
//!
//! The worker decides nothing: `batch::policy` says what to run. Engines arrive through a mailbox, ready to serve. Batches in flight are
//! waited for by [`landing`](super::landing), while this thread starts the next one.
//!
//! - `seat`: a model's engine on this worker, with which a thread that pushes a job may run a short batch on the worker's behalf.

mod seat;
#[cfg(test)]
mod tests;

use super::{
    Lent,
    health::{self, Health, Over},
    landing::Landing,
};
use crate::{
    batch::{
        self, ModelKey, Queue, Recalled, Running, Taken, WorkerKey,
        queue::{Absence, Inline},
    },
    engine::{Engine, EngineError, Flight, Interrupt},
    error::panic_words,
    telemetry::metrics::Metrics,
};
use parking_lot::Mutex;
use seat::{REST_AFTER, Seat};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, SendError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The least time after which a device that failed is tried again.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// How often a caller that waits for a worker checks whether its device hangs.
const LOOK: Duration = Duration::from_millis(50);

/// A batch that nobody waits for is ended if it runs longer than this: shorter ones mostly have little left.
const UNWANTED_AFTER: Duration = Duration::from_secs(1);

/// The error of calls to a thread that is gone.
const ENDED: &str = "the device's thread has ended";

/// Messages to a worker, read between two batches.
enum Mail {
    /// A model, and the engine to serve it with from now on.
    Serve(Lent, Box<dyn Engine + Send>),
    /// Take no more work for a model, or take it again; its engine stays.
    Pause(ModelKey, bool),
    /// The device has all models that it will have for now. The sender is told when the queue knows it.
    Complete(mpsc::Sender<()>),
    /// Run this on the worker's thread.
    Do(Box<dyn FnOnce() + Send>),
}

/// What a worker is given.
pub(super) struct Post {
    /// The thread's name.
    pub(super) name: String,
    /// The device, and whether it still works.
    pub(super) health: Health,
    /// Where work comes from.
    pub(super) queue: Arc<Queue>,
    /// Where it reports measurements.
    pub(super) metrics: Arc<Metrics>,
}

/// A running worker thread.
pub(super) struct Worker {
    mail: mpsc::Sender<Mail>,
    queue: Arc<Queue>,
    health: Health,
    place: WorkerKey,
    interrupts: Interrupts,
    thread: JoinHandle<()>,
}

/// What ends a running batch, by model.
type Interrupts = Arc<Mutex<HashMap<ModelKey, Interruptible>>>;

struct Interruptible {
    model: Arc<str>,
    interrupt: Arc<dyn Interrupt>,
    /// Whether the running batch was told to end.
    told: Arc<AtomicBool>,
}

impl Worker {
    /// Starts the thread. It ends when the queue is closed and empty, or the device is gone.
    pub(super) fn start(post: Post) -> std::io::Result<Worker> {
        let Post { name, health, queue, metrics } = post;
        let (mail, mailbox) = mpsc::channel();
        let landing = Landing::new(&name, health.clone());
        let place = queue.attach(&health.device);
        let key = place.key();
        let work = Work {
            health: health.clone(),
            place,
            metrics,
            queue: Arc::clone(&queue),
            mailbox,
            served: Vec::new(),
            seats: HashMap::new(),
            interrupts: Interrupts::default(),
            landing,
            rested: false,
        };
        let interrupts = Arc::clone(&work.interrupts);
        let end = health.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // The keeper must learn that nobody works there any more.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.run())) {
                end.end(Over::Failed(format!("a worker's thread panicked: {}", panic_words(&panic))));
            }
        })?;
        Ok(Worker { mail, queue, health, place: key, interrupts, thread })
    }

    /// Has the worker serve a model from now on. Returns the engine if the worker is gone: the queue is closed by then, or the device is
    /// lost.
    pub(super) fn serve(
        &self,
        model: Lent,
        engine: Box<dyn Engine + Send>,
    ) -> Option<Box<dyn Engine + Send>> {
        match self.mail.send(Mail::Serve(model, engine)) {
            Err(SendError(Mail::Serve(_, engine))) => Some(engine),
            _ => {
                self.queue.wake_one(self.place);
                None
            }
        }
    }

    /// Has the worker stop, or resume, taking work for a model.
    pub(super) fn pause(&self, model: ModelKey, paused: bool) {
        // A worker that is gone takes none.
        let _ = self.mail.send(Mail::Pause(model, paused));
        self.queue.wake_one(self.place);
    }

    /// Takes back the batches that it has started and does not return: other workers run their jobs. The memory that the device reads and
    /// writes for them stays with the thread until it returns, if ever; until then it is not reused.
    pub(super) fn recall(&self, reason: &str) -> Vec<Recalled> {
        self.queue.recall(self.place, reason)
    }

    /// Says, between two batches, that the device has all models that it will have for now: no request waits for others any longer. On
    /// return, the queue has been told, or the device is gone or hangs.
    pub(super) fn complete(&self) {
        let (told, reply) = mpsc::channel();
        let sent = self.mail.send(Mail::Complete(told));
        self.queue.wake_one(self.place);
        if sent.is_ok() {
            let _ = self.wait(&reply);
        }
    }

    /// Runs something on the worker's thread, between two batches, and waits for it unless the device hangs. Parts of it that may hang
    /// must mark themselves ([`Health::busy`]).
    ///
    /// # Errors
    /// If it panics, the thread has ended, or the device hangs.
    pub(super) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, String> {
        self.wait(&self.post(work)?)?
    }

    /// Like [`Worker::call`], for one call of the device. It counts as hung when it takes too long itself, however long it had to wait
    /// for earlier work.
    ///
    /// # Errors
    /// As [`Worker::call`].
    pub(super) fn call_device<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, String> {
        self.call(as_busy(&self.health, work))
    }

    fn post<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<mpsc::Receiver<Result<R, String>>, String> {
        let (done, reply) = mpsc::channel();
        let work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            // The caller is waiting.
            let _ = done.send(result.map_err(|panic| format!("it panicked: {}", panic_words(&panic))));
        });
        let sent = self.mail.send(Mail::Do(work));
        self.queue.wake_one(self.place);
        sent.map(|()| reply).map_err(|_| ENDED.to_owned())
    }

    fn wait<R>(&self, reply: &mpsc::Receiver<R>) -> Result<R, String> {
        loop {
            match reply.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(ENDED.to_owned()),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.end_unwanted(Instant::now());
                    if let Some(time) = self.health.stuck_for(Instant::now()) {
                        return Err(health::hangs(time));
                    }
                }
            }
        }
    }

    /// Ends a long batch that nobody waits for any more, where the engine can, so that the work behind it has its turn.
    pub(super) fn end_unwanted(&self, now: Instant) {
        let Some(time) = self.health.busy_for(now).filter(|time| *time >= UNWANTED_AFTER) else {
            return;
        };
        for Interruptible { model, interrupt, told } in self.interrupts.lock().values() {
            let unwanted = || {
                let unwanted = self.queue.runs_unwanted(self.place);
                // Set before the batch can end by the interrupt.
                told.fetch_or(unwanted, Ordering::Relaxed);
                unwanted
            };
            if interrupt.interrupt(&unwanted) {
                let (model, device, seconds) = (&**model, &*self.health.device, time.as_secs());
                tracing::warn!(
                    model,
                    device,
                    seconds,
                    "a batch that nobody waits for any more is told to end"
                );
            }
        }
    }

    /// Whether the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread to end.
    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("a worker thread panicked outside of an engine");
        }
    }
}

/// Work during which, from its start on, the device counts as busy.
fn as_busy<R, W: FnOnce() -> R>(health: &Health, work: W) -> impl FnOnce() -> R + use<R, W> {
    let health = health.clone();
    move || {
        let _busy = health.busy();
        work()
    }
}

struct Work {
    health: Health,
    place: batch::Worker,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    mailbox: mpsc::Receiver<Mail>,
    served: Vec<ModelKey>,
    /// Dropped before the engines: batches in flight land before these go.
    landing: Landing,
    seats: HashMap<ModelKey, Arc<Seat>>,
    /// The interrupts of the seats' engines, for other threads.
    interrupts: Interrupts,
    /// Memory was released, and no work has come since.
    rested: bool,
}

impl Work {
    fn run(mut self) {
        loop {
            self.read();
            if let Some(over) = self.health.over() {
                // Before this worker's place in the queue is given up: jobs must know whether to wait. The keeper knows more, and has
                // said it, or will soon.
                let (reason, after) = match over {
                    Over::Left => ("it was given back", Duration::ZERO),
                    Over::Failed(reason) => (reason.as_str(), BACK_AFTER),
                };
                let absence = Absence { reason: reason.into(), back: Some(Instant::now() + after) };
                self.queue.suppose(&self.health.device, absence);
                return;
            }
            match self.place.take(&self.served, self.patience()) {
                Taken::Batch(batch) => self.serve(batch),
                Taken::Woken => {
                    // Read first: a model that has just arrived may be retired already, which is not announced again.
                    self.read();
                    self.unload();
                }
                Taken::Idle => self.rest(Instant::now()),
                // Batches in flight may have failed, and their jobs come back.
                Taken::Closed if self.landing.settle() => {}
                Taken::Closed => return,
            }
        }
    }

    /// Handles the messages in the mailbox.
    fn read(&mut self) {
        while let Ok(mail) = self.mailbox.try_recv() {
            match mail {
                Mail::Serve(model, engine) => self.accept(model, engine),
                Mail::Pause(model, paused) => self.pause(model, paused),
                Mail::Complete(told) => self.complete(&told),
                Mail::Do(work) => work(),
            }
        }
    }

    /// Drops models that are retired and have nothing left to run.
    fn unload(&mut self) {
        let Work { queue, place, served, seats, interrupts, health, .. } = self;
        // Freeing memory on the device makes calls that may hang, too.
        let _busy = health.busy();
        let gone: Vec<ModelKey> = seats.keys().copied().filter(|key| !queue.knows(*key)).collect();
        for key in gone {
            served.retain(|served| *served != key);
            interrupts.lock().remove(&key);
            place.lend(key, None);
            seats.remove(&key);
            // Its memory is in the device's pool now; models that are busy keep the pool.
            health.freed();
        }
    }

    fn accept(&mut self, model: Lent, engine: Box<dyn Engine + Send>) {
        // Memory that a device copies from is allocated by its driver, in calls that may hang.
        let _busy = self.health.busy();
        let metrics = self.metrics.model(&model.name).device(&self.health.device);
        let key = model.key;
        let (name, interrupt) = (Arc::clone(&model.name), engine.interrupt());
        let seat = Arc::new(Seat::new(model, engine, self.health.clone(), metrics));
        if let Some(interrupt) = interrupt {
            let ending = Interruptible { model: name, interrupt, told: Arc::clone(&seat.told) };
            self.interrupts.lock().insert(key, ending);
        }
        seat.tell(&self.place);
        self.rested = false;
        self.served.push(key);
        self.place.serves(&self.served);
        self.lend(&seat);
        self.seats.insert(key, seat);
    }

    /// Lets threads that push a job run short batches of a model here while this thread sleeps, if the engine allows it.
    fn lend(&self, seat: &Arc<Seat>) {
        if seat.is_lent {
            self.place.lend(seat.key, Some(Arc::clone(seat) as Arc<dyn Inline>));
        }
    }

    fn pause(&mut self, model: ModelKey, paused: bool) {
        self.served.retain(|key| *key != model);
        self.place.lend(model, None);
        if let Some(seat) = self.seats.get(&model).filter(|_| !paused) {
            self.served.push(model);
            self.lend(seat);
        }
    }

    fn complete(&self, told: &mpsc::Sender<()>) {
        // If the device is over by now, its keeper says when it comes back.
        if !self.health.is_over() {
            self.place.returned(&self.served);
        }
        // The caller waits for it.
        let _ = told.send(());
    }

    /// How long to wait for work before memory is released; for ever where there is none to release. Buffers for putting batches together
    /// are host memory, so this holds for the CPU as well.
    fn patience(&self) -> Option<Duration> {
        (!self.seats.is_empty() && !self.rested).then_some(REST_AFTER)
    }

    fn rest(&mut self, now: Instant) {
        self.landing.settle();
        let _busy = self.health.busy();
        self.rested = self.seats.values().filter(|seat| !seat.rest(now)).count() == 0;
    }

    fn serve(&mut self, batch: Running) {
        self.rested = false;
        let Some(seat) = self.seats.get(&batch.model) else {
            let error = EngineError::Device("the worker has no engine for the model".into());
            batch.finish(Err(error));
            return;
        };
        let (out, flight) = seat.begin(batch);
        seat.tell(&self.place);
        match flight {
            Ok(Flight::Airborne(flight)) => self.landing.send(out, flight),
            Ok(Flight::Landed(outputs)) => out.land(Ok(outputs), &self.health),
            Err(error) => out.land(Err(error), &self.health),
        }
    }
}
