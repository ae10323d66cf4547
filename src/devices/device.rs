//! One device: its workers, and how engines come to be on it. Engines of a GPU are made and tried on the thread of its first
//! worker, to which its context is bound; those of the CPU where the caller is, so that loading stops nothing that serves.

use super::{
    forward::{self, Asked, Proof},
    landing::Health,
    place::Kind,
    supervisor::Parts,
    worker::{Post, Worker},
};
use crate::{
    engine::{
        Engine,
        child::{Place, Recipe},
        cuda::{Context, Gpu, onnx::Load},
    },
    models::{self, Model, Source},
    status::DeviceState,
};
use std::sync::Arc;

/// The CPU's name in metrics and replies. A GPU's is its UUID.
pub const CPU: &str = crate::batch::roster::CPU;

/// A model's engines on a device, one for each worker that is to serve it.
pub(super) type Engines = Vec<Box<dyn Engine + Send>>;

/// A device and its workers.
pub(super) struct Device {
    /// Its name.
    pub(super) id: Arc<str>,
    /// What it is.
    pub(super) kind: Kind,
    /// Whether it still works.
    pub(super) health: Health,
    /// Why ONNX models cannot run on it, where they cannot.
    pub(super) no_onnx: Option<String>,
    workers: Vec<Worker>,
    /// Kept to the end of all that is in it.
    context: Option<Arc<Context>>,
}

impl Device {
    /// The machine's processors, with so many workers (at least one).
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn cpu(parts: &Parts, workers: usize) -> std::io::Result<Device> {
        parts.status.set_device(CPU, DeviceState::Waiting, "no model loaded yet");
        // A fault of an engine on the CPU says nothing about the CPU.
        let health = Health::new(CPU.into(), Arc::clone(&parts.queue), None);
        let workers = start(parts, &health, CPU, workers)?;
        Ok(Device { id: CPU.into(), kind: Kind::Cpu, health, no_onnx: None, workers, context: None })
    }

    /// A GPU, which is taken now.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(super) fn gpu(parts: &Parts, gpu: &Gpu, workers: usize) -> Result<Device, String> {
        gpu.check()?;
        let id: Arc<str> = gpu.id.as_str().into();
        let (status, name) = (Arc::clone(&parts.status), Arc::clone(&id));
        let on_loss = Arc::new(move |reason: &str| {
            tracing::error!(
                device = &*name,
                reason,
                "the device is lost: it gets no more work until the server is restarted"
            );
            status.set_device(&name, DeviceState::Lost, reason);
        });
        let health = Health::new(Arc::clone(&id), Arc::clone(&parts.queue), Some(on_loss));
        let thread = format!("gpu{}", gpu.ordinal);
        let workers = start(parts, &health, &thread, workers).map_err(|error| error.to_string())?;
        let opened = {
            let gpu = gpu.clone();
            workers[0].call(move || Context::open(&gpu))
        };
        let opened = opened.and_then(|opened| opened.map_err(|error| error.to_string()));
        // Workers without a device have nothing to serve: they end with the queue.
        let context = opened?;
        for worker in &workers {
            let context = Arc::clone(&context);
            worker.call(move || context.bind())?.map_err(|error| error.to_string())?;
        }
        parts.status.set_device(&id, DeviceState::Waiting, "no model loaded yet");
        let no_onnx = parts.runtime.clone().and_then(|runtime| runtime.check_gpu(gpu)).err();
        let kind = Kind::Gpu(gpu.ordinal);
        Ok(Device { id, kind, health, no_onnx, workers, context: Some(context) })
    }

    /// Makes a model's engines.
    ///
    /// # Errors
    /// Why it cannot be loaded here.
    pub(super) fn load(&self, source: &Source, parts: &Parts) -> Result<Engines, String> {
        let instances = source.manifest.placement.instances.clamp(1, self.workers.len());
        let make = |recipe: &Recipe, place: &Place| recipe.make(place).map_err(|error| error.to_string());
        let runtime = parts.runtime.as_ref().ok().cloned();
        match &self.context {
            None => {
                if let (models::Engine::Onnx, Err(why)) = (&source.manifest.engine, &parts.runtime) {
                    return Err(why.clone());
                }
                let recipe = recipe(source, parts, self.kind, (parts.compute_threads / instances).max(1));
                (0..instances).map(|_| make(&recipe, &Place::Cpu(runtime.clone()))).collect()
            }
            Some(context) => {
                let recipes: Vec<Recipe> =
                    (0..instances).map(|made| recipe(source, parts, self.kind, instances - made)).collect();
                let place = Place::Gpu(Arc::clone(context), runtime);
                self.workers[0].call(move || recipes.iter().map(|recipe| make(recipe, &place)).collect())?
            }
        }
    }

    /// Runs a model's engines at every batch size, and hands them back.
    ///
    /// # Errors
    /// What failed.
    pub(super) fn prove(
        &self,
        mut engines: Engines,
        model: &Arc<Model>,
        asked: &[Asked],
        memory_bytes_max: Option<u64>,
    ) -> Result<(Engines, Proof), String> {
        match &self.context {
            None => forward::prove(&mut engines, model, asked, None, None).map(|proof| (engines, proof)),
            Some(context) => {
                let (context, model, asked) = (Arc::clone(context), Arc::clone(model), asked.to_vec());
                self.workers[0].call(move || {
                    forward::prove(&mut engines, &model, &asked, memory_bytes_max, Some(&context))
                        .map(|proof| (engines, proof))
                })?
            }
        }
    }

    /// Has the workers serve a model.
    pub(super) fn serve(&self, model: &Arc<Model>, engines: Engines) {
        for (worker, engine) in self.workers.iter().zip(engines) {
            worker.serve(Arc::clone(model), engine);
        }
    }

    /// Waits for the workers to end, and gives the device back.
    pub(super) fn join(self) {
        for worker in self.workers {
            worker.join();
        }
    }
}

fn start(parts: &Parts, health: &Health, name: &str, workers: usize) -> std::io::Result<Vec<Worker>> {
    let post = |index| Post {
        name: format!("ocelli-{name}-{index}"),
        health: health.clone(),
        queue: Arc::clone(&parts.queue),
        metrics: Arc::clone(&parts.metrics),
    };
    (0..workers.max(1)).map(|index| Worker::start(post(index))).collect()
}

/// Which engine a model has here: on the CPU with so many threads, or on a GPU as one of so many instances still to come.
fn recipe(source: &Source, parts: &Parts, on: Kind, share: usize) -> Recipe {
    let manifest = &source.manifest;
    match (&manifest.engine, on) {
        (models::Engine::GaussMle(_), _) => Recipe::GaussMle { threads: share },
        (models::Engine::Onnx, Kind::Cpu) => Recipe::Onnx { path: source.path.clone(), threads: share },
        (models::Engine::Onnx, Kind::Gpu(_)) => Recipe::OnnxOnGpu(Load {
            path: source.path.clone(),
            asked: manifest.gpu.clone(),
            items_max: manifest.batch.largest(),
            memory_bytes_max: manifest.placement.memory_bytes_max,
            instances: share as u64,
            whole: manifest.placement.forbids_cpu(),
            cache: parts.kernel_cache_folder.as_ref().map(|folder| folder.join("tensorrt")),
        }),
    }
}
