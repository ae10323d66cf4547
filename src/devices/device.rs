//! One device: its workers, and how engines come to be on it. Engines of a GPU are made and tried on the thread of its first
//! worker, to which its context is bound; those of the CPU where the caller is, so that loading stops nothing that serves.

use super::{
    forward::{self, Asked, Proof},
    landing::Health,
    place::Kind,
    plan,
    supervisor::Parts,
    worker::{Post, Worker},
};
use crate::{
    engine::{
        Engine,
        cuda::{self, Context, Gpu, onnx::OnnxOnGpu},
        gauss_mle::GaussMle,
    },
    models::{self, Model, Source},
    status::DeviceState,
};
use std::sync::Arc;

/// The CPU's name in metrics and replies. A GPU's is its UUID.
pub const CPU: &str = "cpu";

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
        parts.status.set_device(&id, DeviceState::Waiting, "no model loaded yet");
        let no_onnx = parts.runtime.check_gpu(gpu).err();
        let kind = Kind::Gpu(gpu.ordinal);
        Ok(Device { id, kind, health, no_onnx, workers, context: Some(context) })
    }

    /// Makes a model's engines.
    ///
    /// # Errors
    /// Why it cannot be loaded here.
    pub(super) fn load(&self, source: &Source, parts: &Parts) -> Result<Engines, String> {
        let instances = source.manifest.placement.instances.clamp(1, self.workers.len());
        match &self.context {
            None => {
                let threads = (parts.compute_threads / instances).max(1);
                (0..instances).map(|_| on_cpu(source, parts, threads)).collect()
            }
            Some(context) => {
                let (context, source, parts) = (Arc::clone(context), source.clone(), parts.clone());
                let load = move || {
                    (0..instances).map(|left| on_gpu(&source, &parts, &context, instances - left)).collect()
                };
                self.workers[0].call(load)?
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

fn on_cpu(source: &Source, parts: &Parts, threads: usize) -> Result<Box<dyn Engine + Send>, String> {
    Ok(match &source.manifest.engine {
        models::Engine::Onnx => Box::new(parts.runtime.load_cpu(&source.path, threads)?),
        models::Engine::GaussMle(_) => Box::new(GaussMle::new(threads)?),
    })
}

/// One engine on a GPU, of so many that are still to come.
fn on_gpu(
    source: &Source,
    parts: &Parts,
    context: &Arc<Context>,
    left: usize,
) -> Result<Box<dyn Engine + Send>, String> {
    let manifest = &source.manifest;
    match &manifest.engine {
        models::Engine::Onnx => {
            let memory = context.memory().map_err(|error| error.to_string())?;
            let most = plan::arena_bytes_max(&memory, left as u64, manifest.placement.memory_bytes_max);
            let cache = parts.kernel_cache_folder.as_ref().map(|folder| folder.join("tensorrt"));
            let load = cuda::onnx::Load {
                path: &source.path,
                asked: &manifest.gpu,
                items_max: manifest.batch.largest(),
                arena_bytes_max: most,
                whole: manifest.placement.forbids_cpu(),
                cache: cache.as_deref(),
            };
            let (engine, placement) = OnnxOnGpu::load(&parts.runtime, context, &load)?;
            let (model, gpu) = (source.name.as_str(), context.gpu().id.as_str());
            if placement.on_cpu().is_empty() {
                tracing::info!(model, gpu, %placement, arena_bytes_max = most, "loaded on a GPU");
            } else {
                tracing::warn!(model, gpu, %placement, "loaded on a GPU, with nodes that wait for the CPU");
            }
            Ok(Box::new(engine))
        }
        models::Engine::GaussMle(_) => {
            let fitter = cuda::gauss_mle::GaussMle::new(context).map_err(|error| error.to_string())?;
            Ok(Box::new(fitter))
        }
    }
}
