//! One worker: an OS thread that owns its engines, pulls a batch when it may begin one, puts it together and begins it.
//!
//! The worker decides nothing: `batch::policy` says what to run. Engines arrive through a mailbox, ready to serve. What an
//! engine has begun and not ended is waited for by [`landing`](super::landing), while this thread begins the next.

use super::{
    health::{self, Health, Over},
    landing::{Landing, Outbound},
};
use crate::{
    batch::{self, ModelKey, Queue, Recalled, Running, Taken, WorkerKey, queue::Absence},
    engine::{DataType, Engine, EngineError, Flight, Habits, Interrupt, Tensor, staging::Assembler},
    error::panic_words,
    models::Model,
    telemetry::metrics::{DeviceMetrics, Metrics},
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// After how long a device that failed is tried again, at the least.
const BACK_AFTER: Duration = Duration::from_secs(1);

/// How long a device is idle before its engines let go of memory that they can get again.
const REST_AFTER: Duration = Duration::from_secs(30);

/// How often whoever waits for a worker looks whether its device hangs.
const LOOK: Duration = Duration::from_millis(50);

/// A batch of which nobody waits for anything any more is ended if it takes longer than this: what it has left is mostly less.
const UNWANTED_AFTER: Duration = Duration::from_secs(1);

/// What is said to whoever asks a thread that is gone.
const ENDED: &str = "the device's thread has ended";

/// A model as devices hold it: they share one `Arc` of it, so its count shows what requests hold even if a device hangs
/// ([`Devices::let_go`](super::Devices::let_go)).
pub(super) type Lent = Arc<Arc<Model>>;

/// What comes by mail: between two batches.
enum Mail {
    /// A model, and the engine to serve it with from now on.
    Serve(Lent, Box<dyn Engine + Send>),
    /// Takes no more work for a model, or takes it again; its engine stays.
    Pause(ModelKey, bool),
    /// The device has all models that it will have for now.
    Complete(mpsc::Sender<()>),
    /// Something to be done on this thread.
    Do(Box<dyn FnOnce() + Send>),
}

/// What a worker is to be.
pub(super) struct Post {
    /// The thread's name.
    pub(super) name: String,
    /// The device, and whether it still works.
    pub(super) health: Health,
    /// Where work comes from.
    pub(super) queue: Arc<Queue>,
    /// Where numbers go.
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

/// What ends a batch of each model, with its name.
type Interrupts = Arc<Mutex<HashMap<ModelKey, (Arc<str>, Arc<dyn Interrupt>)>>>;

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
            engines: HashMap::new(),
            interrupts: Interrupts::default(),
            landing,
            rested: false,
        };
        let interrupts = Arc::clone(&work.interrupts);
        let end = health.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // Whoever keeps the device is to know that nobody works there any more.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.run())) {
                end.end(Over::Failed(format!("a worker's thread panicked: {}", panic_words(&panic))));
            }
        })?;
        Ok(Worker { mail, queue, health, place: key, interrupts, thread })
    }

    /// Has the worker serve a model from now on.
    pub(super) fn serve(&self, model: Lent, engine: Box<dyn Engine + Send>) {
        // A worker that is gone has nothing to serve; the queue is closed by then, or the device is lost.
        let _ = self.mail.send(Mail::Serve(model, engine));
        self.queue.wake();
    }

    /// Has the worker take no more work for a model, or take it again.
    pub(super) fn pause(&self, model: ModelKey, paused: bool) {
        // A worker that is gone takes none.
        let _ = self.mail.send(Mail::Pause(model, paused));
        self.queue.wake();
    }

    /// Takes back the batches that it has begun and does not return: others run their jobs. What the device reads and writes
    /// for them stays with the thread, which gives it back when it does return, if ever; until then none of it is used again.
    pub(super) fn recall(&self, reason: &str) -> Vec<Recalled> {
        self.queue.recall(self.place, reason)
    }

    /// Says, between two batches, that the device has all models that it will have for now: nobody waits any longer for those
    /// that it has not. When this returns, that is said, or the device is gone or hangs.
    pub(super) fn complete(&self) {
        let (told, reply) = mpsc::channel();
        let sent = self.mail.send(Mail::Complete(told));
        self.queue.wake();
        if sent.is_ok() {
            let _ = self.wait(&reply);
        }
    }

    /// Does something on the worker's thread, between two batches, and waits for it as long as the device does not hang. What of
    /// it may hang says so itself ([`Health::busy`]).
    ///
    /// # Errors
    /// If it panics, the thread has ended, or the device hangs.
    pub(super) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, String> {
        self.wait(&self.post(work)?)?
    }

    /// The same, for one call of the device. That hangs when it takes too long itself, however long it had to wait for what
    /// came before it.
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
            // Whoever asked is waiting.
            let _ = done.send(result.map_err(|panic| format!("it panicked: {}", panic_words(&panic))));
        });
        let sent = self.mail.send(Mail::Do(work));
        self.queue.wake();
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

    /// Ends a long batch of which nobody waits for anything any more, where the engine can: what waits behind it may have its turn.
    pub(super) fn end_unwanted(&self, now: Instant) {
        let Some(time) = self.health.busy_for(now).filter(|time| *time >= UNWANTED_AFTER) else {
            return;
        };
        let unwanted = || self.queue.runs_unwanted(self.place);
        for (model, interrupt) in self.interrupts.lock().values() {
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

/// Something that the device is about from when it begins.
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
    /// Before the engines: what is on its way lands before they go.
    landing: Landing,
    engines: HashMap<ModelKey, Loaded>,
    /// Theirs, for others.
    interrupts: Interrupts,
    /// Memory was let go, and nothing came since.
    rested: bool,
}

struct Loaded {
    model: Lent,
    engine: Box<dyn Engine + Send>,
    assembler: Assembler,
    metrics: Arc<DeviceMetrics>,
    /// How the engine takes batches, as it was told last.
    habits: Option<Habits>,
}

impl Work {
    fn run(mut self) {
        loop {
            self.read();
            if let Some(over) = self.health.over() {
                // Before this place at the queue is given up: jobs are to know whether to wait. Whoever keeps the device knows
                // more, and has said it, or says it soon.
                let (reason, after) = match over {
                    Over::Left => ("it was given back", Duration::ZERO),
                    Over::Failed(reason) => (reason.as_str(), BACK_AFTER),
                };
                let absence = Absence { reason: reason.into(), back: Some(Instant::now() + after) };
                self.queue.suppose(&self.health.device, absence);
                return;
            }
            match self.place.take_within(&self.served, self.patience()) {
                Taken::Batch(batch) => self.serve(batch),
                Taken::Woken => {
                    // First: what has come meanwhile may be retired already, which nobody says again.
                    self.read();
                    self.unload();
                }
                Taken::Idle => self.rest(),
                // What was on its way may have failed, and be back.
                Taken::Closed if self.landing.settle() => {}
                Taken::Closed => return,
            }
        }
    }

    /// Does what has come by mail.
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

    /// Lets go of the models that are retired and have nothing left to run.
    fn unload(&mut self) {
        let Work { queue, served, engines, interrupts, health, .. } = self;
        // What is on the device goes by calls that may hang, too.
        let _busy = health.busy();
        served.retain(|key| queue.knows(*key));
        interrupts.lock().retain(|key, _| queue.knows(*key));
        engines.retain(|key, _| queue.knows(*key));
    }

    fn accept(&mut self, model: Lent, engine: Box<dyn Engine + Send>) {
        // Memory that a device copies from is its driver's to give.
        let _busy = self.health.busy();
        let assembler = Assembler::for_inputs(engine.memory(), model.signature.inputs.len());
        if let Some(slabs) = model.staging(DataType::Uint8) {
            // Images that do not lie side by side are gathered, on a device as many batches as there may be at once.
            assembler.ready(slabs.slab_bytes(), engine.depth());
        }
        let metrics = self.metrics.model(&model.name).device(&self.health.device);
        let key = model.key;
        if let Some(interrupt) = engine.interrupt() {
            self.interrupts.lock().insert(key, (Arc::clone(&model.name), interrupt));
        }
        let mut loaded = Loaded { model, engine, assembler, metrics, habits: None };
        loaded.tell(&self.place);
        self.served.push(key);
        self.engines.insert(key, loaded);
        self.place.serves(&self.served);
    }

    fn pause(&mut self, model: ModelKey, paused: bool) {
        self.served.retain(|key| *key != model);
        if !paused && self.engines.contains_key(&model) {
            self.served.push(model);
        }
    }

    fn complete(&self, told: &mpsc::Sender<()>) {
        // Of a device that is over by now, whoever keeps it says when it comes back.
        if !self.health.is_over() {
            self.place.returned(&self.served);
        }
        // Whoever asked waits for it.
        let _ = told.send(());
    }

    /// How long to wait for work before memory is let go; for ever where there is none to let go. What batches were put together in
    /// is the host's, also where the device is the CPU.
    fn patience(&self) -> Option<Duration> {
        (!self.engines.is_empty() && !self.rested).then_some(REST_AFTER)
    }

    fn rest(&mut self) {
        self.landing.settle();
        let _busy = self.health.busy();
        for loaded in self.engines.values_mut() {
            loaded.engine.rest();
            loaded.assembler.clear();
            loaded.model.rest();
        }
        self.rested = true;
    }

    fn serve(&mut self, batch: Running) {
        self.rested = false;
        let Some(loaded) = self.engines.get_mut(&batch.model) else {
            let error = EngineError::Device("the worker has no engine for the model".into());
            batch.finish(Err(error));
            return;
        };
        let started = Instant::now();
        // Memory that a device copies from is its driver's to give.
        let busy = self.health.busy();
        let inputs = loaded.assemble(&batch);
        let (stage, begun) = (started.elapsed(), Instant::now());
        let begin = || match batch.reduced {
            true => loaded.engine.start_reduced(inputs),
            false => loaded.engine.start(inputs, batch.setting.as_ref()),
        };
        let flight = catch_unwind(AssertUnwindSafe(begin)).unwrap_or_else(|panic| {
            Err(EngineError::Device(format!("the engine panicked: {}", panic_words(&panic))))
        });
        drop(busy);
        loaded.tell(&self.place);
        let (model, metrics) = (Arc::clone(&loaded.model), Arc::clone(&loaded.metrics));
        let out = Outbound { batch, model, stage, begun, metrics };
        match flight {
            Ok(Flight::Airborne(flight)) => self.landing.send(out, flight),
            Ok(Flight::Landed(outputs)) => out.finish(Ok(outputs), begun, &self.health),
            Err(error) => out.finish(Err(error), begun, &self.health),
        }
    }
}

impl Loaded {
    /// Tells the queue and the metrics how the engine takes batches, where that has changed: what a batch has shown is known before the
    /// next one is formed, or one later where the engine is in another process, which says it with what the batch gives.
    fn tell(&mut self, place: &batch::Worker) {
        let habits = self.engine.habits();
        let before = self.habits.replace(habits);
        if before.map(|before| before.plans_anew) != Some(habits.plans_anew) {
            place.keep_size(self.model.key, habits.plans_anew);
        }
        let counted = before.map_or(0, |before| before.unrecorded);
        self.metrics.unrecorded.inc_by(habits.unrecorded.saturating_sub(counted));
    }

    /// The inputs of a batch, each in one piece.
    fn assemble(&self, batch: &batch::Batch) -> Vec<Tensor> {
        let whole = self.model.rules.whole;
        // Only the first input of a model can be images, or frames; there are models without any.
        let first = batch.parts.first().and_then(|part| part.inputs.first());
        let mut staging = first.and_then(|input| self.model.staging(input.datatype));
        let inputs = 0..self.model.signature.inputs.len();
        inputs
            .map(|index| {
                let parts: Vec<_> = batch.parts.iter().map(|part| &part.inputs[index]).collect();
                self.assembler.assemble(&parts, batch.size, whole, staging.take())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::{
        super::bounded::testing::{Endless, Told},
        *,
    };
    use crate::{
        batch::{Job, QueueLimits},
        engine::{
            Setting, Signature, TensorSpec,
            staging::{Memory, testing::Refusing},
        },
        models::testing::source,
        tasks::testing::{floats, signature, spec},
    };
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An engine that always says the same, which breaks where batches are put together if it has no memory for them.
    struct Constant {
        signature: Signature,
        memory: Option<Memory>,
    }

    impl Engine for Constant {
        fn signature(&self) -> &Signature {
            &self.signature
        }

        fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            Ok(Flight::Landed(vec![floats(&[2], &[1.0, 2.0])]))
        }

        fn memory(&self) -> Memory {
            self.memory.clone().expect("no memory for anybody")
        }
    }

    /// An engine that tells at each batch how it takes them from then on, and how large that batch was.
    struct Turning {
        signature: Signature,
        turns: Vec<Habits>,
        sizes: mpsc::Sender<usize>,
    }

    impl Engine for Turning {
        fn signature(&self) -> &Signature {
            &self.signature
        }

        fn start(&mut self, mut inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            self.turns.remove(0);
            self.sizes.send(inputs[0].shape[0]).unwrap();
            inputs.truncate(1);
            Ok(Flight::Landed(inputs))
        }

        fn habits(&self) -> Habits {
            self.turns[0]
        }
    }

    #[test]
    fn how_an_engine_takes_batches_is_known_before_the_next_one_whenever_it_changes() {
        let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
        let health = Health::new("gpu-0".into(), Arc::clone(&queue), false, None);
        let signature =
            Signature { inputs: vec![spec("x", DataType::Fp32, &[-1, 2])], ..signature(&[("y", &[-1, 2])]) };
        let (source, time) = (source("m", "1", ""), Duration::from_secs(60));
        let model = Model::resolve(ModelKey(1), &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(model.key, "m", model.rules.clone());
        let metrics = Arc::new(Metrics::new(&[], "0", "none"));
        metrics.add_model("m");
        let post =
            Post { name: "test".into(), health, queue: Arc::clone(&queue), metrics: Arc::clone(&metrics) };
        let worker = Worker::start(post).unwrap();
        let (sizes, ran) = mpsc::channel();
        let habits = |plans_anew, unrecorded| Habits { plans_anew, unrecorded };
        let turns = vec![
            habits(false, 1),
            habits(false, 1),
            habits(true, 3),
            habits(true, 3),
            habits(false, 3),
            habits(false, 3),
            habits(false, 3),
        ];
        worker.serve(Arc::new(Arc::new(model)), Box::new(Turning { signature, turns, sizes }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (items, size) in [(3, 4), (1, 1), (3, 4), (1, 4), (3, 4), (1, 1)] {
            let values = vec![0.0; 2 * items];
            let job = Job::plain(ModelKey(1), vec![floats(&[items, 2], &values)], items, Instant::now());
            runtime.block_on(queue.push(job).unwrap()).unwrap();
            assert_eq!(ran.recv(), Ok(size));
        }
        queue.close();
        worker.join();
        let counted = "ocelli_unrecorded_sizes_total{device=\"gpu-0\",model=\"m\"} 3";
        assert!(metrics.render().contains(counted), "{}", metrics.render());
    }

    #[test]
    fn a_long_batch_is_ended_once_nobody_waits_for_it_and_not_before() {
        let (worker, queue, _) = worker(false);
        let signature = Signature { inputs: Vec::new(), ..signature(&[("y", &[2])]) };
        let (source, time) = (source("endless", "1", ""), Duration::from_secs(60));
        let model = Model::resolve(ModelKey(2), &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(model.key, "endless", model.rules.clone());
        let (begun, began) = mpsc::channel();
        let told = Arc::new(Told::default());
        let engine = Endless { signature, told: Arc::clone(&told), begun };
        worker.serve(Arc::new(Arc::new(model)), Box::new(engine));
        let push = |model| queue.push(Job::plain(ModelKey(model), Vec::new(), 1, Instant::now())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            let endless = push(2);
            began.recv().unwrap();
            let soon = Instant::now();
            let later = soon + UNWANTED_AFTER;
            worker.end_unwanted(later);
            assert!(told.goes_on(), "somebody waits for it");
            drop(endless);
            worker.end_unwanted(soon);
            assert!(told.goes_on(), "it is not long");
            let behind = push(1);
            worker.end_unwanted(later);
            runtime.block_on(behind).unwrap();
        }
        queue.close();
        worker.join();
    }

    /// A worker of the CPU that has such an engine without inputs, and its queue.
    fn worker(breaks: bool) -> (Worker, Arc<Queue>, Health) {
        worker_with(Vec::new(), |_| (!breaks).then_some(Memory::Plain))
    }

    /// The same with these inputs, and memory of what is known of the device.
    fn worker_with(
        inputs: Vec<TensorSpec>,
        memory: impl FnOnce(&Health) -> Option<Memory>,
    ) -> (Worker, Arc<Queue>, Health) {
        let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
        let health = Health::new(batch::roster::CPU.into(), Arc::clone(&queue), false, None);
        let mut signature = signature(&[("y", &[2])]);
        signature.inputs = inputs;
        let (source, time) = (source("m", "1", ""), Duration::from_secs(60));
        let model = Model::resolve(ModelKey(1), &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(model.key, "m", model.rules.clone());
        let metrics = Arc::new(Metrics::new(&[], "0", "none"));
        let (name, queue_of, health_of) = ("test".into(), Arc::clone(&queue), health.clone());
        let post = Post { name, health: health_of, queue: queue_of, metrics };
        let worker = Worker::start(post).unwrap();
        worker.serve(Arc::new(Arc::new(model)), Box::new(Constant { signature, memory: memory(&health) }));
        (worker, queue, health)
    }

    #[test]
    fn a_model_without_inputs_is_answered() {
        let (worker, queue, health) = worker(false);
        let ticket = queue.push(Job::plain(ModelKey(1), Vec::new(), 1, Instant::now())).unwrap();
        let answer = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket);
        assert_eq!(answer.unwrap().outputs[0].shape, [2]);
        queue.close();
        worker.join();
        assert_eq!(health.over(), None);
    }

    #[test]
    fn a_device_is_about_a_batch_from_when_it_is_put_together() {
        let told = Arc::new(AtomicUsize::new(0));
        let watch = |health: &Health| {
            let (told, health) = (Arc::clone(&told), health.clone());
            let refuse = move || {
                assert!(health.busy_for(Instant::now()).is_some(), "nobody would see that it hangs here");
                told.fetch_add(1, Ordering::SeqCst);
            };
            Some(Memory::Pinned(Arc::new(Refusing(Box::new(refuse)))))
        };
        let (worker, queue, health) = worker_with(vec![spec("x", DataType::Fp32, &[-1, 2])], watch);
        let job = Job::plain(ModelKey(1), vec![floats(&[1, 2], &[1.0, 2.0])], 1, Instant::now());
        let ticket = queue.push(job).unwrap();
        let answer = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket);
        assert_eq!(answer.map(|answer| answer.outputs.len()), Ok(1));
        assert_eq!(told.load(Ordering::SeqCst), 1);
        queue.close();
        worker.join();
        assert_eq!(health.over(), None);
    }

    #[test]
    fn memory_is_let_go_each_time_that_nothing_comes_and_used_again_until_then() {
        let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
        let health = Health::new(batch::roster::CPU.into(), Arc::clone(&queue), false, None);
        let signature =
            Signature { inputs: vec![spec("x", DataType::Fp32, &[-1, 2])], ..signature(&[("y", &[2])]) };
        let (source, time) = (source("m", "1", ""), Duration::from_secs(60));
        let model = Model::resolve(ModelKey(1), &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(model.key, "m", model.rules.clone());
        let (_mail, mailbox) = mpsc::channel();
        let mut work = Work {
            health: health.clone(),
            place: queue.attach(&health.device),
            metrics: Arc::new(Metrics::new(&[], "0", "none")),
            queue: Arc::clone(&queue),
            mailbox,
            served: Vec::new(),
            landing: Landing::new("test", health),
            engines: HashMap::new(),
            interrupts: Interrupts::default(),
            rested: false,
        };
        let blocks = Arc::new(AtomicUsize::new(0));
        let taken = Arc::clone(&blocks);
        let count = move || _ = taken.fetch_add(1, Ordering::SeqCst);
        let memory = Some(Memory::Pinned(Arc::new(Refusing(Box::new(count)))));
        work.accept(Arc::new(Arc::new(model)), Box::new(Constant { signature, memory }));
        for rests in 0..2 {
            assert_eq!(blocks.load(Ordering::SeqCst), rests);
            for _ in 0..2 {
                let job = Job::plain(ModelKey(1), vec![floats(&[1, 2], &[1.0, 2.0])], 1, Instant::now());
                let _ticket = queue.push(job).unwrap();
                let batch = work.place.try_take(&work.served).unwrap();
                work.serve(batch);
            }
            assert_eq!(blocks.load(Ordering::SeqCst), rests + 1);
            assert_eq!(work.patience(), Some(REST_AFTER));
            work.rest();
            assert_eq!(work.patience(), None, "there is no more to let go");
        }
    }

    #[test]
    fn a_model_that_is_retired_before_its_engine_is_taken_in_leaves_nothing_behind() {
        let (worker, queue, _) = worker(false);
        let (signature, source) = (signature(&[("y", &[2])]), source("m", "1", ""));
        let signature = Signature { inputs: Vec::new(), ..signature };
        for key in (2..100).map(ModelKey) {
            let time = Duration::from_secs(60);
            let model = Model::resolve(key, &source, signature.clone(), time, &Memory::Plain).unwrap();
            queue.register(key, "m", model.rules.clone());
            let (model, memory) = (Arc::new(Arc::new(model)), Some(Memory::Plain));
            let lent = Arc::downgrade(&model);
            // It sleeps, and wakes when both have happened.
            worker.complete();
            worker.serve(model, Box::new(Constant { signature: signature.clone(), memory }));
            queue.retire(key);
            let end = Instant::now() + Duration::from_secs(60);
            while lent.strong_count() > 0 {
                assert!(Instant::now() < end, "the device still has model {key:?}");
                std::thread::yield_now();
            }
        }
        queue.close();
        worker.join();
    }

    #[test]
    fn a_worker_that_leaves_does_not_outdo_what_its_keeper_has_said() {
        for why in [Over::Left, Over::Failed("it broke".into())] {
            let (worker, queue, health) = worker(false);
            let push = || queue.push(Job::plain(ModelKey(1), Vec::new(), 1, Instant::now()));
            let answer = push().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(answer).unwrap();
            queue.expect(&health.device, Absence { reason: "drained by request".into(), back: None });
            health.end(why);
            worker.join();
            let refused = push().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("cpu is away: drained by request"), "{refused}");
        }
    }

    #[test]
    fn a_call_of_the_device_that_waits_for_its_turn_does_not_count_as_one_that_takes_long() {
        let (worker, queue, health) = worker(false);
        let (release, released) = mpsc::channel::<()>();
        // What comes first takes its time in many calls, of which none is long.
        let first = worker.post(move || released.recv().map(|()| Instant::now())).unwrap();
        let of_device = health.clone();
        let call =
            as_busy(&health, move || of_device.busy_for(Instant::now()).map(|busy| Instant::now() - busy));
        let second = worker.post(call).unwrap();
        assert_eq!(health.busy_for(Instant::now()), None, "it has not begun");
        release.send(()).unwrap();
        let first_ended = worker.wait(&first).unwrap().unwrap().unwrap();
        let second_began = worker.wait(&second).unwrap().unwrap().unwrap();
        assert!(second_began >= first_ended);
        assert_eq!(worker.call_device(|| 7), Ok(7));
        // It may look for what it can let go of by then.
        let (ended, now) = (Instant::now(), Instant::now());
        assert!(health.busy_for(now).is_none_or(|busy| now - busy >= ended), "that call goes on");
        queue.close();
        worker.join();
    }

    #[test]
    fn a_thread_that_panics_ends_its_hold_on_the_device() {
        let (worker, _, health) = worker(true);
        worker.join();
        let why = "a worker's thread panicked: no memory for anybody";
        assert_eq!(health.over(), Some(&Over::Failed(why.into())));
    }
}
