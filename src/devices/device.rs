//! One device, and each period for which we hold it (a *hold*): its workers, and how engines get there.
//!
//! Engines of a GPU are made and tried on the thread of its first worker, to which its context is bound. Engines of the CPU are made on
//! the caller's thread, so that loading does not interrupt serving.

use super::{
    Lent,
    forward::{self, Asked, Proof},
    health::Health,
    parts::Parts,
    place::Kind,
    refusal::Refusal,
    worker::{Post, Worker},
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
    models::{self, Files, Source},
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

/// A device, whether we hold it or not.
pub(super) struct Device {
    /// Its name.
    pub(super) id: Arc<str>,
    /// What it is.
    pub(super) kind: Kind,
    /// The GPU, if it is one.
    pub(super) gpu: Option<Gpu>,
    /// Memory that the device copies from directly; kept from one hold to the next.
    host: HostMemory,
    /// A call of the device that takes longer has hung.
    stuck_after: Option<Duration>,
    hold: Mutex<Option<Arc<Hold>>>,
    next: AtomicU64,
}

impl Device {
    /// The machine's processors.
    pub(super) fn cpu() -> Device {
        Device::new(CPU.into(), Kind::Cpu, None, None)
    }

    /// A GPU. A call of it that takes longer than `stuck_after` has hung.
    pub(super) fn gpu(gpu: &Gpu, stuck_after: Option<Duration>) -> Device {
        Device::new(gpu.id.as_str().into(), Kind::gpu(gpu), Some(gpu.clone()), stuck_after)
    }

    fn new(id: Arc<str>, kind: Kind, gpu: Option<Gpu>, stuck_after: Option<Duration>) -> Device {
        let (host, hold, next) = (HostMemory::default(), Mutex::default(), AtomicU64::new(1));
        Device { id, kind, gpu, host, stuck_after, hold, next }
    }

    /// Takes the device: starts its first worker, and opens its context there.
    ///
    /// # Errors
    /// Why it cannot be had now, with what was started nevertheless.
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
            // The watch for calls that hang reports it first. This longer limit only ends the call: the keeper has no hold to end yet.
            let patience = self.stuck_after.map(|after| 2 * after);
            let opened = first.call_device(move || isolation.open(&gpu, host, patience));
            opened.map_err(Refusal::Failed).and_then(|opened| opened.map_err(Refusal::from))
        });
        if let Some(Ok(executor)) = &opened {
            let executor = executor.clone();
            // If this fails, so does the next call.
            let _ = first.call_device(move || executor.bind());
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let hold = |executor| {
            let context = match &executor {
                Some(Executor::Thread(context, _)) => Some(context),
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

    /// The memory that its batches are best put together in, if that is not plain memory.
    pub(super) fn memory(&self, parts: &Parts) -> Option<Memory> {
        self.gpu.as_ref()?;
        Some(parts.isolation.memory().unwrap_or_else(|| Memory::Pinned(Arc::new(self.host.clone()))))
    }

    /// The present hold on it, while it is not over.
    pub(super) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.lock().clone().filter(|hold| !hold.health.is_over())
    }

    /// Removes the hold, for the caller to end it.
    pub(super) fn let_go(&self) -> Option<Arc<Hold>> {
        self.hold.lock().take()
    }
}

/// A device that we hold, and its workers.
pub(super) struct Hold {
    /// The number of this hold of the device, from 1.
    pub(super) number: u64,
    /// Whether it still works.
    pub(super) health: Health,
    /// The name of its workers' threads, without their numbers.
    thread: String,
    /// The worker on whose thread engines of a GPU are made.
    first: Arc<Worker>,
    /// All workers; more are added for a model that has more instances than there are workers.
    workers: RwLock<Vec<Arc<Worker>>>,
    /// Locked while workers are added.
    growing: Mutex<()>,
    /// The offer of its context to the JPEG decoder.
    jpeg: Option<Offer>,
    /// Dropped last, after all that is in it.
    executor: Option<Executor>,
}

impl Hold {
    /// How many instances a model has on a device.
    pub(super) fn instances(source: &Source) -> usize {
        source.manifest.placement.instances.max(1)
    }

    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.workers.read().clone()
    }

    /// Starts workers until there are `count`.
    fn grow(&self, count: usize, parts: &Parts) -> Result<(), Refusal> {
        let _turn = self.growing.lock();
        for index in self.workers().len()..count {
            let worker = start(parts, &self.health, &self.thread, index)
                .map_err(|error| format!("cannot start another thread for the device: {error}"))
                .map_err(Refusal::Passing)?;
            if let Some(executor) = self.executor.clone() {
                // If this fails, so does the next call.
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
    pub(super) fn load(&self, source: &Source, files: &Files, parts: &Parts) -> Result<Engines, Refusal> {
        let instances = Hold::instances(source);
        self.grow(instances, parts)?;
        match &self.executor {
            None => {
                let recipe = recipe(source, files, parts, false, (parts.compute_threads / instances).max(1));
                let place = Place::Cpu(parts.runtime.clone());
                Ok((0..instances).map(|_| recipe.make(&place)).collect::<Result<_, _>>()?)
            }
            Some(executor) => {
                let (executor, runtime) = (executor.clone(), parts.runtime.clone());
                let recipe = |made| recipe(source, files, parts, true, instances - made);
                let recipes: Vec<Recipe> = (0..instances).map(recipe).collect();
                let health = self.health.clone();
                self.first.call(move || {
                    let mut made = Engines::new();
                    for recipe in &recipes {
                        // A call that builds for minutes has not hung, so it is not watched.
                        let _busy = (!recipe.builds()).then(|| health.busy());
                        match executor.make(recipe, &runtime) {
                            Ok(engine) => made.push(engine),
                            Err(error) => {
                                health.note(&error);
                                // Dropped while the call counts as busy: this calls the device as well.
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

    /// Its free and total bytes of memory, where it has memory of its own.
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

    /// The same for one engine. A GPU's runs on the thread that will serve with it: libraries make things per thread, such as graphs.
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

    /// Has the workers serve a model. Returns the engines of those that are gone, for the caller to drop: that may take seconds.
    pub(super) fn serve(&self, model: &Lent, engines: Engines) -> Engines {
        let serve = |(worker, engine): (&Arc<Worker>, _)| worker.serve(Arc::clone(model), engine);
        self.workers().iter().zip(engines).filter_map(serve).collect()
    }

    /// Has the workers stop, or resume, taking work for a model.
    pub(super) fn pause(&self, model: ModelKey, paused: bool) {
        self.workers().iter().for_each(|worker| worker.pause(model, paused));
    }

    /// Waits until the queue knows what the first worker serves.
    pub(super) fn settle(&self) {
        // If the thread has ended, it serves nothing.
        let _ = self.first.call(|| ());
    }

    /// Says that it has all models that it will have for now: requests no longer wait for it to come back with others.
    pub(super) fn complete(&self) {
        // The first worker has one instance of each model.
        self.first.complete();
    }

    /// Drops engines that are not wanted after all, on the thread that made them.
    pub(super) fn drop_engines(&self, engines: Engines) {
        // If the thread has ended, they are dropped with the message.
        let _ = self.first.call_device(move || drop(engines));
    }

    /// Returns unused memory to the driver, after engines that could not stay. If this fails, so does the next call.
    pub(super) fn trim(&self) {
        let Some(executor) = &self.executor else { return };
        let (executor, health) = (executor.clone(), self.health.clone());
        let _ = self.first.call_device(move || {
            let trimmed = executor.trim();
            trimmed.inspect_err(|error| health.note(error))
        });
    }

    /// Whether the device works: it runs a small fit with a known result. The CPU is not asked.
    ///
    /// # Errors
    /// What happened instead. [`Refusal::Memory`] says nothing about the device's condition.
    pub(super) fn canary(&self) -> Result<(), Refusal> {
        let Some(executor) = &self.executor else { return Ok(()) };
        let (executor, health) = (executor.clone(), self.health.clone());
        self.first.call_device(move || {
            let answered = executor.canary();
            answered.inspect_err(|error| health.note(error)).map_err(Refusal::from)
        })?
    }

    /// The id of the process that uses the device.
    pub(super) fn process(&self) -> u32 {
        self.executor.as_ref().and_then(Executor::process).unwrap_or_else(std::process::id)
    }

    /// Records it if a process of the device's own has ended by itself.
    pub(super) fn look(&self) {
        if let Some(reason) = self.executor.as_ref().and_then(Executor::ended) {
            self.health.note(&EngineError::Device(reason));
        }
    }

    /// Ends a process of the device's own, with any call that hangs there.
    pub(super) fn kill(&self, reason: &str) {
        if let Some(executor) = &self.executor {
            executor.kill(reason);
        }
    }

    /// Gives batches that were started here and do not return to other devices.
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

    /// Ends batches that nobody waits for any more, if they take long.
    pub(super) fn end_unwanted(&self, now: Instant) {
        self.workers().iter().for_each(|worker| worker.end_unwanted(now));
    }

    /// Whether all of its workers have ended, and the JPEG decoder has left it.
    pub(super) fn has_ended(&self) -> bool {
        let left = self.jpeg.as_ref().is_none_or(Offer::has_left);
        left && self.workers().iter().all(|worker| worker.has_ended())
    }

    /// Waits for the workers to end, and releases the device.
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
    /// What there is of a hold on it, for the caller to end.
    pub(super) left: Option<Arc<Hold>>,
}

impl From<String> for NotTaken {
    fn from(reason: String) -> NotTaken {
        NotTaken { refusal: reason.into(), left: None }
    }
}

/// Starts one worker.
fn start(parts: &Parts, health: &Health, name: &str, index: usize) -> std::io::Result<Arc<Worker>> {
    Worker::start(Post {
        name: format!("ocelli-{name}-{index}"),
        health: health.clone(),
        queue: Arc::clone(&parts.queue),
        metrics: Arc::clone(&parts.metrics),
    })
    .map(Arc::new)
}

/// The engine that a model has here: on the CPU with `share` threads, or on a GPU as one of `share` instances still to come.
fn recipe(source: &Source, files: &Files, parts: &Parts, on_gpu: bool, share: usize) -> Recipe {
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
            cache: parts.kernel_cache_folder.as_ref().and_then(|folder| files.built(source, folder)),
        }),
    }
}
