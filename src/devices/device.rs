//! One device, and each hold on it: its workers, and how engines come to be on it.
//!
//! Engines of a GPU are made and tried on the thread of its first worker, to which its context is bound; those of the CPU where
//! the caller is, so that loading stops nothing that serves.

use super::{
    forward::{self, Asked, Proof},
    health::Health,
    parts::Parts,
    place::Kind,
    refusal::Refusal,
    worker::{Lent, Post, Worker},
};
use crate::{
    batch::{ModelKey, Recalled},
    engine::{
        Engine, EngineError,
        child::{Executor, Place, Recipe},
        cuda::{Gpu, HostMemory, jpeg::Offer, onnx::Load},
        onnx::Runtime,
        staging::Memory,
    },
    models::{self, Source},
    telemetry::metrics::{FailReason, Metrics},
};
use parking_lot::{Mutex, RwLock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The CPU's name in metrics and replies. A GPU's is its UUID.
pub const CPU: &str = crate::batch::roster::CPU;

/// A model's engines on a device, one for each worker that is to serve it.
pub(super) type Engines = Vec<Box<dyn Engine + Send>>;

/// A device, ours or not.
pub(super) struct Device {
    /// Its name.
    pub(super) id: Arc<str>,
    /// What it is.
    pub(super) kind: Kind,
    /// The GPU, if it is one.
    pub(super) gpu: Option<Gpu>,
    /// Memory that it copies from by itself, hold after hold.
    host: HostMemory,
    /// One call of it that takes longer has hung.
    stuck_after: Option<Duration>,
    hold: Mutex<Option<Arc<Hold>>>,
    next: AtomicU64,
}

impl Device {
    /// The machine's processors.
    pub(super) fn cpu() -> Device {
        Device::new(CPU.into(), Kind::Cpu, None, None)
    }

    /// A GPU. One call of it that takes longer than `stuck_after` has hung.
    pub(super) fn gpu(gpu: &Gpu, stuck_after: Option<Duration>) -> Device {
        Device::new(gpu.id.as_str().into(), Kind::gpu(gpu), Some(gpu.clone()), stuck_after)
    }

    fn new(id: Arc<str>, kind: Kind, gpu: Option<Gpu>, stuck_after: Option<Duration>) -> Device {
        let (host, hold, next) = (HostMemory::default(), Mutex::default(), AtomicU64::new(1));
        Device { id, kind, gpu, host, stuck_after, hold, next }
    }

    /// Takes it: starts its first worker, and opens its context there.
    ///
    /// # Errors
    /// Why it cannot be had now, with what is there of it still.
    pub(super) fn take(&self, parts: &Parts) -> Result<Arc<Hold>, NotTaken> {
        let (device, queue) = (Arc::clone(&self.id), Arc::clone(&parts.queue));
        let health = Health::new(device, queue, self.gpu.is_some(), self.stuck_after);
        let thread = match &self.kind {
            Kind::Cpu => CPU.to_owned(),
            Kind::Gpu { ordinal, .. } => format!("gpu{ordinal}"),
        };
        let first = start(parts, &health, &thread, 0)
            .map_err(|error| format!("cannot start the device's thread: {error}"))?;
        let opened = self.gpu.clone().map(|gpu| {
            let (host, isolation) = (self.host.clone(), parts.isolation.clone());
            // The watch over calls that hang tells of it first: here it is only ended, since the keeper has nothing to end yet.
            let patience = self.stuck_after.map(|after| 2 * after);
            let opened = first.call_device(move || isolation.open(&gpu, host, patience));
            opened.map_err(Refusal::Failed).and_then(|opened| opened.map_err(Refusal::from))
        });
        if let Some(Ok(executor)) = &opened {
            let executor = executor.clone();
            // Where this fails, so does what comes next.
            let _ = first.call_device(move || executor.bind());
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let hold = |executor| {
            let context = match &executor {
                Some(Executor::Thread(context)) => Some(context),
                _ => None,
            };
            let jpeg = context.zip(parts.jpeg.as_ref()).map(|(context, jpeg)| jpeg.offer(context));
            let health = health.clone();
            let (workers, growing) = (RwLock::new(vec![Arc::clone(&first)]), Mutex::default());
            Hold { number, health, thread, first, workers, growing, jpeg, executor }
        };
        match opened.transpose() {
            Ok(executor) => {
                let hold = Arc::new(hold(executor));
                *self.hold.lock() = Some(Arc::clone(&hold));
                Ok(hold)
            }
            Err(refusal) => Err(NotTaken { refusal, left: Some(Arc::new(hold(None))) }),
        }
    }

    /// What its batches are best put together in, if that is not plain memory.
    pub(super) fn memory(&self, parts: &Parts) -> Option<Memory> {
        self.gpu.as_ref()?;
        Some(parts.isolation.memory().unwrap_or_else(|| Memory::Pinned(Arc::new(self.host.clone()))))
    }

    /// The hold on it, while it is ours.
    pub(super) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.lock().clone().filter(|hold| !hold.health.is_over())
    }

    /// Takes the hold away, for whoever ends it.
    pub(super) fn let_go(&self) -> Option<Arc<Hold>> {
        self.hold.lock().take()
    }
}

/// A device that is ours, and its workers.
pub(super) struct Hold {
    /// Which of the device's, from 1 on.
    pub(super) number: u64,
    /// Whether it still works.
    pub(super) health: Health,
    /// As its workers' threads are called, but for their numbers.
    thread: String,
    /// On whose thread engines of a GPU are made.
    first: Arc<Worker>,
    /// All of them; more for a model that has more instances than there are.
    workers: RwLock<Vec<Arc<Worker>>>,
    /// Whoever has this adds some.
    growing: Mutex<()>,
    /// Its context, lent to a decoder of images.
    jpeg: Option<Offer>,
    /// Kept to the end of all that is in it.
    executor: Option<Executor>,
}

impl Hold {
    /// How many instances of a model it has.
    pub(super) fn instances(source: &Source) -> usize {
        source.manifest.placement.instances.max(1)
    }

    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.workers.read().clone()
    }

    /// Starts workers until there are so many.
    fn grow(&self, count: usize, parts: &Parts) -> Result<(), Refusal> {
        let _turn = self.growing.lock();
        for index in self.workers().len()..count {
            let worker = start(parts, &self.health, &self.thread, index)
                .map_err(|error| format!("cannot start another thread for the device: {error}"))?;
            if let Some(executor) = self.executor.clone() {
                // Where this fails, so does what comes next.
                let _ = worker.call_device(move || executor.bind());
            }
            self.workers.write().push(worker);
        }
        Ok(())
    }

    /// Makes a model's engines.
    ///
    /// # Errors
    /// Why it cannot be loaded here.
    pub(super) fn load(&self, source: &Source, parts: &Parts) -> Result<Engines, Refusal> {
        let instances = Hold::instances(source);
        self.grow(instances, parts)?;
        match &self.executor {
            None => {
                let recipe = recipe(source, parts, false, (parts.compute_threads / instances).max(1));
                let place = Place::Cpu(parts.runtime.clone());
                Ok((0..instances).map(|_| recipe.make(&place)).collect::<Result<_, _>>()?)
            }
            Some(executor) => {
                let (executor, runtime) = (executor.clone(), parts.runtime.clone());
                let recipes: Vec<Recipe> =
                    (0..instances).map(|made| recipe(source, parts, true, instances - made)).collect();
                let health = self.health.clone();
                self.first.call(move || {
                    let mut made = Engines::new();
                    for recipe in &recipes {
                        // A call that builds for minutes has not hung.
                        let _busy = (!recipe.builds()).then(|| health.busy());
                        match executor.make(recipe, &runtime) {
                            Ok(engine) => made.push(engine),
                            Err(error) => {
                                health.note(&error);
                                // While it counts as busy: this is calls of the device as well.
                                made.clear();
                                return Err(Refusal::from(error));
                            }
                        }
                    }
                    Ok(made)
                })?
            }
        }
    }

    /// Its free memory and all of it, bytes, where it has memory of its own.
    ///
    /// # Errors
    /// Where it is broken.
    pub(super) fn memory(&self) -> Result<Option<(u64, u64)>, Refusal> {
        let Some(executor) = &self.executor else { return Ok(None) };
        let (executor, health) = (executor.clone(), self.health.clone());
        self.first.call_device(move || {
            let memory = executor.memory().inspect_err(|error| health.note(error));
            memory.map(|memory| Some((memory.free, memory.total))).map_err(Refusal::from)
        })?
    }

    /// Runs a model's engines at every batch size, and hands them back.
    ///
    /// # Errors
    /// What failed.
    pub(super) fn prove(
        &self,
        engines: Engines,
        model: &Lent,
        asked: &[Asked],
        ending: &(dyn Fn() -> bool + Sync),
    ) -> Result<(Engines, Proof), Refusal> {
        let (mut proved, mut whole): (Engines, Option<Proof>) = (Vec::new(), None);
        let mut left = engines.into_iter();
        for worker in self.workers() {
            let Some(engine) = left.next() else { break };
            match self.prove_on(&worker, engine, model, asked, ending) {
                Ok((engine, proof)) => {
                    proved.push(engine);
                    let counts = proof.counts.is_ok();
                    whole = Some(match whole {
                        Some(before) => before.and(proof),
                        None => proof,
                    });
                    if !counts {
                        break;
                    }
                }
                Err(refusal) => {
                    self.drop_engines(proved.into_iter().chain(left).collect());
                    return Err(refusal);
                }
            }
        }
        let whole = whole.ok_or_else(|| Refusal::Failed("there is no engine".to_owned()))?;
        Ok((proved.into_iter().chain(left).collect(), whole))
    }

    /// Runs an engine at every batch size: that of a GPU on the thread which will serve with it, where libraries make what they have
    /// for a thread, such as graphs.
    fn prove_on(
        &self,
        worker: &Worker,
        mut engine: Box<dyn Engine + Send>,
        model: &Lent,
        asked: &[Asked],
        ending: &(dyn Fn() -> bool + Sync),
    ) -> Result<(Box<dyn Engine + Send>, Proof), Refusal> {
        let Some(executor) = &self.executor else {
            return forward::prove(&mut *engine, model, asked, None, ending).map(|proof| (engine, proof));
        };
        let (executor, model, asked) = (executor.clone(), Arc::clone(model), asked.to_vec());
        let health = self.health.clone();
        worker.call(move || {
            match forward::prove(&mut *engine, &model, &asked, Some((&executor, &health)), &|| false) {
                Ok(proof) => Ok((engine, proof)),
                Err(refusal) => {
                    let _busy = health.busy();
                    drop(engine);
                    Err(refusal)
                }
            }
        })?
    }

    /// Has the workers serve a model.
    pub(super) fn serve(&self, model: &Lent, engines: Engines) {
        for (worker, engine) in self.workers().iter().zip(engines) {
            worker.serve(Arc::clone(model), engine);
        }
    }

    /// Has the workers take no more work for a model, or take it again.
    pub(super) fn pause(&self, model: ModelKey, paused: bool) {
        self.workers().iter().for_each(|worker| worker.pause(model, paused));
    }

    /// Waits until the queue knows what the first worker was given to serve.
    pub(super) fn settle(&self) {
        // Where the thread has ended, it serves nothing.
        let _ = self.first.call(|| ());
    }

    /// Says that it has all models that it will have for now: requests wait for it to come back with no other.
    pub(super) fn complete(&self) {
        // The first has one instance of each.
        self.first.complete();
    }

    /// Drops engines that are not wanted after all, where they were made.
    pub(super) fn drop_engines(&self, engines: Engines) {
        // Where the thread has ended, they are dropped with the message.
        let _ = self.first.call_device(move || drop(engines));
    }

    /// Gives back to the driver what nothing holds, after engines that could not stay; where that fails, what comes next does.
    pub(super) fn trim(&self) {
        let Some(executor) = &self.executor else { return };
        let (executor, health) = (executor.clone(), self.health.clone());
        let _ = self.first.call_device(move || {
            let trimmed = executor.trim();
            trimmed.inspect_err(|error| health.note(error))
        });
    }

    /// Whether the device answers as it should: a small fit, whose result is known. Nothing to ask of the CPU.
    ///
    /// # Errors
    /// What it did instead; [`Refusal::Memory`] says nothing of how it is.
    pub(super) fn canary(&self) -> Result<(), Refusal> {
        let Some(executor) = &self.executor else { return Ok(()) };
        let (executor, health) = (executor.clone(), self.health.clone());
        self.first.call_device(move || {
            let answered = executor.canary();
            answered.inspect_err(|error| health.note(error)).map_err(Refusal::from)
        })?
    }

    /// The number of the process that has it.
    pub(super) fn process(&self) -> u32 {
        self.executor.as_ref().and_then(Executor::process).unwrap_or_else(std::process::id)
    }

    /// Takes note where a process of the device's own has ended, though nothing was asked of it.
    pub(super) fn look(&self) {
        if let Some(reason) = self.executor.as_ref().and_then(Executor::ended) {
            self.health.note(&EngineError::Device(reason));
        }
    }

    /// Ends a process of the device's own, and with it whatever hangs there.
    pub(super) fn kill(&self, reason: &str) {
        if let Some(executor) = &self.executor {
            executor.kill(reason);
        }
    }

    /// Has others do what hangs here: batches that were begun and do not come back.
    pub(super) fn recall(&self, reason: &str, metrics: &Metrics) {
        for Recalled { model, items, aftermath } in
            self.workers().iter().flat_map(|worker| worker.recall(reason))
        {
            let (device, requests_run_again) = (&self.health.device, aftermath.again);
            tracing::warn!(
                model = &*model,
                device = &**device,
                items,
                requests_run_again,
                reason,
                "a batch that hangs on the device is run elsewhere"
            );
            metrics.model(&model).device(device).failed(FailReason::Device, requests_run_again);
        }
    }

    /// Ends what nobody waits for any more, where it takes long.
    pub(super) fn end_unwanted(&self, now: Instant) {
        self.workers().iter().for_each(|worker| worker.end_unwanted(now));
    }

    /// Whether all of its workers have left, and a decoder of images with them.
    pub(super) fn has_ended(&self) -> bool {
        let left = self.jpeg.as_ref().is_none_or(Offer::has_left);
        left && self.workers().iter().all(|worker| worker.has_ended())
    }

    /// Waits for the workers to end, and gives the device back.
    pub(super) fn join(self) {
        drop(self.first);
        let workers = self.workers.into_inner();
        for worker in workers.into_iter().filter_map(Arc::into_inner) {
            worker.join();
        }
    }
}

/// A device that could not be taken.
pub(super) struct NotTaken {
    /// Why.
    pub(super) refusal: Refusal,
    /// What there is of a hold on it, for whoever ends it.
    pub(super) left: Option<Arc<Hold>>,
}

impl From<String> for NotTaken {
    fn from(reason: String) -> NotTaken {
        NotTaken { refusal: reason.into(), left: None }
    }
}

/// One worker.
fn start(parts: &Parts, health: &Health, name: &str, index: usize) -> std::io::Result<Arc<Worker>> {
    Worker::start(Post {
        name: format!("ocelli-{name}-{index}"),
        health: health.clone(),
        queue: Arc::clone(&parts.queue),
        metrics: Arc::clone(&parts.metrics),
    })
    .map(Arc::new)
}

/// Which engine a model has here: on the CPU with so many threads, or on a GPU as one of so many instances still to come.
fn recipe(source: &Source, parts: &Parts, on_gpu: bool, share: usize) -> Recipe {
    let manifest = &source.manifest;
    match (&manifest.engine, on_gpu) {
        (models::Engine::GaussMle(_), _) => Recipe::GaussMle { threads: share },
        (models::Engine::Onnx, false) => Recipe::Onnx { path: source.path.clone(), threads: share },
        (models::Engine::Onnx, true) => Recipe::OnnxOnGpu(Load {
            path: source.path.clone(),
            asked: manifest.gpu.clone(),
            items_max: manifest.batch.largest(),
            memory_bytes_max: manifest.placement.memory_bytes_max,
            instances: share as u64,
            whole: manifest.placement.forbids_cpu(),
            on_host: parts.runtime.as_ref().is_ok_and(Runtime::stands_in),
            cache: parts.kernel_cache_folder.as_ref().and_then(|folder| models::Files::built(source, folder)),
        }),
    }
}
