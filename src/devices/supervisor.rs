//! Loads models onto the devices that they may run on, proves each with a forward pass per batch size, hands the engines to
//! workers and publishes the models.
//!
//! Loading happens on a thread of its own, so that models that are ready serve while others load. On several devices it
//! happens at once.

mod swap;

use super::{
    device::{Device, Engines},
    forward::{Asked, Proof},
    place::{self, Kind},
    plan::Footprint,
    worker::words,
};
use crate::{
    batch::{ModelKey, Queue},
    engine::{cuda::Gpu, onnx::Runtime},
    models::{Catalog, Found, Model, Source, State},
    status::{DeviceState, ModelCounts, Status},
    telemetry::metrics::{Metrics, ModelState},
};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What devices need of the rest.
#[derive(Clone)]
pub struct Parts {
    /// ONNX Runtime, or why there is none: only its own models need it.
    pub runtime: Result<Runtime, String>,
    /// Where work comes from.
    pub queue: Arc<Queue>,
    /// Where loaded models are published.
    pub catalog: Arc<Catalog>,
    /// Where device states are published.
    pub status: Arc<Status>,
    /// Where numbers go.
    pub metrics: Arc<Metrics>,
    /// Threads that share one operator on the CPU.
    pub compute_threads: usize,
    /// The deadline of models whose manifest sets none.
    pub timeout: Duration,
    /// Where what is built for a GPU is kept.
    pub kernel_cache_folder: Option<PathBuf>,
}

/// What to run on.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// GPUs to take.
    pub gpus: Vec<Gpu>,
    /// Whether the CPU runs models as well.
    pub cpu: bool,
    /// Workers of each device; at least one. A model has at most so many instances on each.
    pub workers: usize,
}

/// The devices, and what loads models onto them.
pub struct Devices {
    parts: Parts,
    devices: Vec<Device>,
    next_key: AtomicU64,
    leaving: Mutex<Vec<swap::Leaving>>,
    /// How many engines each model was loaded into; each holds its model.
    engines: Mutex<HashMap<ModelKey, usize>>,
}

/// A model that was loaded, for `ocelli check`.
pub struct Loading {
    /// The model, as it was published.
    pub model: Arc<Model>,
    /// Where it is served, and where it could not be.
    pub on: Vec<(Arc<str>, Result<LoadedOn, String>)>,
}

/// What loading a model onto one device took.
pub struct LoadedOn {
    /// Reading and optimising the file, all instances.
    pub load: Duration,
    /// One forward pass at the smallest size after warm-up.
    pub canary: Duration,
    /// What it holds on a device of its own.
    pub footprint: Option<Footprint>,
}

impl Devices {
    /// Takes the devices and starts their workers. A GPU that cannot be had is left out, and its state says why.
    ///
    /// # Errors
    /// If no device is left, or the system refuses a thread.
    pub fn start(parts: Parts, wanted: &Wanted) -> Result<Devices, String> {
        let mut devices = Vec::new();
        if wanted.cpu {
            let cpu = Device::cpu(&parts, wanted.workers);
            devices.push(cpu.map_err(|error| format!("cannot start the device threads: {error}"))?);
        }
        let mut refused = Vec::new();
        for gpu in &wanted.gpus {
            match Device::gpu(&parts, gpu, wanted.workers) {
                Ok(device) => devices.push(device),
                Err(reason) => {
                    tracing::warn!(gpu = gpu.id, reason, "a GPU cannot be used");
                    parts.status.set_device(&gpu.id, DeviceState::Waiting, &reason);
                    refused.push(reason);
                }
            }
        }
        if devices.is_empty() {
            return Err(refused.join("; "));
        }
        Ok(Devices {
            parts,
            devices,
            next_key: AtomicU64::new(1),
            leaving: Mutex::default(),
            engines: Mutex::default(),
        })
    }

    /// Publishes that these models are about to be loaded.
    pub fn announce(&self, found: &[Found]) {
        if found.iter().any(|found| found.source.is_ok()) {
            for device in &self.devices {
                self.parts.status.set_device(&device.id, DeviceState::Warming, "loading models");
            }
        }
        for found in found {
            self.publish(found, State::Loading);
        }
        self.count();
    }

    /// Loads what was announced, one after the other, and publishes each result in the catalog.
    ///
    /// `stop` is asked between models: a server that is told to end does not load the rest.
    pub fn load_all(&self, found: &[Found], stop: &dyn Fn() -> bool) {
        for found in found {
            if stop() {
                return;
            }
            // The result is in the catalog and in the log.
            let _ = self.load(found);
            self.count();
        }
        let idle = |device: &&Device| {
            let states = self.parts.status.devices();
            states.iter().any(|s| *s.id == *device.id && s.state == DeviceState::Warming)
        };
        for device in self.devices.iter().filter(idle) {
            let why = device.no_onnx.as_ref().map(|why| format!("no model runs here; ONNX models: {why}"));
            let why = why.as_deref().unwrap_or("no model runs here");
            self.parts.status.set_device(&device.id, DeviceState::Waiting, why);
        }
    }

    /// Says a model's state where it is looked up, and where it is counted.
    fn publish(&self, found: &Found, state: State) {
        let counted = match &state {
            State::Loading => ModelState::Loading,
            State::Ready(_) => ModelState::Ready,
            State::Unavailable(_) => ModelState::Unavailable,
        };
        self.parts.metrics.model(&found.name).set_state(&found.version, counted);
        self.parts.catalog.set(&found.name, &found.version, state);
    }

    fn count(&self) {
        let mut counts = ModelCounts::default();
        for entry in self.parts.catalog.list() {
            match entry.state {
                State::Loading => counts.loading += 1,
                State::Ready(_) => counts.ready += 1,
                State::Unavailable(_) => counts.unavailable += 1,
            }
        }
        self.parts.status.set_models(counts);
    }

    /// Loads one model and publishes it, or the reason why it cannot be served.
    ///
    /// # Errors
    /// The reason.
    pub fn load(&self, found: &Found) -> Result<Loading, String> {
        let (name, version) = (&found.name, &found.version);
        let loaded = self.try_load(found);
        match &loaded {
            Ok(loading) => self.present(found, loading),
            Err(reason) => {
                tracing::error!(model = name, version, reason, "model is unavailable");
                self.publish(found, State::Unavailable(reason.clone()));
            }
        }
        loaded
    }

    /// Loads one model and publishes nothing.
    fn try_load(&self, found: &Found) -> Result<Loading, String> {
        found.source.clone().and_then(|source| {
            catch_unwind(AssertUnwindSafe(|| self.load_source(&source)))
                .unwrap_or_else(|panic| Err(format!("loading panicked: {}", words(&panic))))
        })
    }

    /// Publishes what was loaded: from now on requests find it.
    fn present(&self, found: &Found, loading: &Loading) {
        let (model, version) = (&found.name, &found.version);
        for (device, result) in &loading.on {
            let device = &**device;
            match result {
                Ok(LoadedOn { load, canary, .. }) => {
                    tracing::info!(model, version, device, ?load, ?canary, "model is ready");
                }
                Err(reason) => tracing::warn!(model, version, device, reason, "the model is not served here"),
            }
        }
        let load = loading.on.iter().filter_map(|(_, on)| on.as_ref().ok()).map(|on| on.load).max();
        loading.model.statistics.loaded(load.unwrap_or_default());
        self.publish(found, State::Ready(Arc::clone(&loading.model)));
    }

    fn load_source(&self, source: &Source) -> Result<Loading, String> {
        let kinds: Vec<Kind> = self.devices.iter().map(|device| device.kind).collect();
        let no_onnx: Vec<Option<String>> = self.devices.iter().map(|device| device.no_onnx.clone()).collect();
        let placed = place::place(&source.manifest, &kinds, &no_onnx)?;
        for note in placed.notes.iter().chain(&source.notes) {
            tracing::warn!(model = source.name, "{note}");
        }
        let devices: Vec<&Device> = placed.on.iter().map(|index| &self.devices[*index]).collect();
        let loaded = side_by_side(devices.iter().map(|device| {
            || {
                let started = Instant::now();
                device.load(source, &self.parts).map(|engines| (engines, started.elapsed()))
            }
        }));

        let mut engines = loaded.iter().flatten().flat_map(|(engines, _)| engines);
        let Some(first) = engines.next() else {
            return Err(reasons(&devices, loaded.iter().map(|loaded| loaded.as_ref().err())));
        };
        // Images are decoded into what the most demanding device likes.
        let memories = std::iter::once(first).chain(engines).map(|engine| engine.memory());
        let memory = memories.reduce(|one, other| if one.is_pinned() { one } else { other });
        let key = ModelKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let signature = first.signature().clone();
        let model = Model::resolve(key, source, signature, self.parts.timeout, memory.unwrap_or_default())?;
        let model = Arc::new(model);

        let asked = Asked::of(source, &model)?;
        let bytes_max = source.manifest.placement.memory_bytes_max;
        let proved = side_by_side(devices.iter().zip(loaded).map(|(device, loaded)| {
            let (model, asked) = (&model, &asked);
            move || {
                let (engines, load) = loaded?;
                device.prove(engines, model, asked, bytes_max).map(|(engines, proof)| (engines, proof, load))
            }
        }));
        if proved.iter().all(Result::is_err) {
            return Err(reasons(&devices, proved.iter().map(|proved| proved.as_ref().err())));
        }
        let engines = proved.iter().flatten().map(|(engines, ..)| engines.len()).sum();
        self.engines.lock().unwrap_or_else(PoisonError::into_inner).insert(key, engines);
        self.parts.queue.register(key, &model.name, model.rules.clone());
        let on = devices.iter().zip(proved).map(|(device, proved)| {
            let on = proved.map(|(engines, proof, load)| self.put(device, &model, engines, proof, load));
            (Arc::clone(&device.id), on)
        });
        Ok(Loading { on: on.collect(), model: Arc::clone(&model) })
    }

    /// Has a device serve a model from now on.
    fn put(
        &self,
        device: &Device,
        model: &Arc<Model>,
        engines: Engines,
        proof: Proof,
        load: Duration,
    ) -> LoadedOn {
        device.serve(model, engines);
        if !device.health.is_lost() {
            let why =
                device.no_onnx.as_ref().map(|why| format!("a forward pass works; no ONNX models: {why}"));
            let why = why.as_deref().unwrap_or("a forward pass works");
            self.parts.status.set_device(&device.id, DeviceState::Serving, why);
        }
        LoadedOn { load, canary: proof.canary, footprint: proof.footprint }
    }

    /// Waits until all workers have ended: the queue must be closed first.
    pub fn join(self) {
        for device in self.devices {
            device.join();
        }
    }
}

/// Does things at once, each on a thread of its own if there are several. A panic is passed on.
fn side_by_side<T: Send, F: FnOnce() -> T + Send>(things: impl ExactSizeIterator<Item = F>) -> Vec<T> {
    if things.len() == 1 {
        return things.map(|thing| thing()).collect();
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = things.map(|thing| scope.spawn(thing)).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Why no device could: one reason as it is, several with their devices.
fn reasons<'a>(devices: &[&Device], reasons: impl Iterator<Item = Option<&'a String>>) -> String {
    let reasons: Vec<_> = devices.iter().zip(reasons.flatten()).collect();
    match reasons.as_slice() {
        [(_, only)] => (*only).clone(),
        several => {
            several.iter().map(|(device, why)| format!("{}: {why}", device.id)).collect::<Vec<_>>().join("; ")
        }
    }
}
