//! Loads models, proves each with a forward pass per batch size, hands the engines to workers and publishes them.
//!
//! Loading happens on a thread of its own, so that models that are ready serve while others load.

mod swap;

use super::worker::{Worker, words};
use crate::{
    batch::{ModelKey, Queue},
    engine::{DataType, Dim, Engine, Signature, TensorView, gauss_mle::GaussMle, onnx::Runtime},
    models::{self, Catalog, Found, Model, Source, State, Warmup},
    status::{DeviceState, ModelCounts, Status},
    telemetry::metrics::{Metrics, ModelState},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The only device of this version, and its name in metrics and replies.
pub const CPU: &str = "cpu";

/// What devices need of the rest.
#[derive(Clone)]
pub struct Parts {
    /// ONNX Runtime.
    pub runtime: Runtime,
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
}

/// The workers and what loads models onto them.
pub struct Devices {
    parts: Parts,
    workers: Vec<Worker>,
    next_key: AtomicU64,
    leaving: Mutex<Vec<swap::Leaving>>,
}

/// What loading one model took, for `ocelli check`.
pub struct Loading {
    /// The model, as it was published.
    pub model: Arc<Model>,
    /// Reading and optimising the file, all instances.
    pub load: Duration,
    /// One forward pass at the smallest size after warm-up.
    pub canary: Duration,
}

impl Devices {
    /// Starts `workers` CPU workers (at least one).
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(parts: Parts, workers: usize) -> std::io::Result<Devices> {
        let device: Arc<str> = CPU.into();
        parts.status.set_device(CPU, DeviceState::Waiting, "no model loaded yet");
        let workers = (0..workers.max(1))
            .map(|index| {
                let (queue, metrics) = (Arc::clone(&parts.queue), Arc::clone(&parts.metrics));
                Worker::start(format!("ocelli-cpu-{index}"), Arc::clone(&device), queue, metrics)
            })
            .collect::<Result<_, _>>()?;
        Ok(Devices { parts, workers, next_key: AtomicU64::new(1), leaving: Mutex::default() })
    }

    /// Publishes that these models are about to be loaded.
    pub fn announce(&self, found: &[Found]) {
        if found.iter().any(|found| found.source.is_ok()) {
            self.parts.status.set_device(CPU, DeviceState::Warming, "loading models");
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
        let Loading { model, load, canary } = loading;
        tracing::info!(model = found.name, version = found.version, ?load, ?canary, "model is ready");
        model.statistics.loaded(*load);
        self.publish(found, State::Ready(Arc::clone(model)));
        self.parts.status.set_device(CPU, DeviceState::Serving, "a forward pass works");
    }

    /// How many workers hold a model.
    fn workers_of(&self, model: &Model) -> usize {
        model.instances.clamp(1, self.workers.len())
    }

    fn load_source(&self, source: &Source) -> Result<Loading, String> {
        for part in source.manifest.not_yet().iter().chain(&source.notes) {
            tracing::warn!(model = source.name, "{part}");
        }
        let started = Instant::now();
        let instances = source.manifest.placement.instances.min(self.workers.len());
        let threads = (self.parts.compute_threads / instances.max(1)).max(1);
        let mut engines: Vec<Box<dyn Engine + Send>> = Vec::with_capacity(instances);
        for _ in 0..instances.max(1) {
            engines.push(match &source.manifest.engine {
                models::Engine::Onnx => Box::new(self.parts.runtime.load_cpu(&source.path, threads)?),
                models::Engine::GaussMle(_) => Box::new(GaussMle::new(threads)?),
            });
        }
        let key = ModelKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let model = Model::resolve(key, source, engines[0].signature().clone(), self.parts.timeout)?;
        let load = started.elapsed();
        let mut canary = Duration::ZERO;
        for engine in &mut engines {
            for &size in model.rules.sizes.iter().rev() {
                canary = forward(&mut **engine, &model, size)?;
            }
            for warmup in &source.manifest.warmups {
                run_warmup(&mut **engine, &model, source, warmup)?;
            }
        }
        let model = Arc::new(model);
        self.parts.queue.register(key, &model.name, model.rules.clone());
        for (worker, engine) in self.workers.iter().zip(engines) {
            worker.assign(Arc::clone(&model), engine);
        }
        Ok(Loading { model, load, canary })
    }

    /// Waits until all workers have ended: the queue must be closed first.
    pub fn join(self) {
        for worker in self.workers {
            worker.join();
        }
    }
}

/// One forward pass with zeros at a batch size: allocates what that size needs, and proves that the model runs.
fn forward(engine: &mut dyn Engine, model: &Model, size: usize) -> Result<Duration, String> {
    let setting = model.fit.clone().map(|mut fit| fit.setting()).transpose()?;
    let shapes = warm_shapes(&model.signature, model, size);
    let inputs: Vec<(DataType, Vec<usize>, Vec<u64>)> = shapes
        .into_iter()
        .map(|(datatype, shape)| {
            let bytes = shape.iter().product::<usize>() * datatype.size().unwrap_or(4); // an empty string is a length
            (datatype, shape, vec![0u64; bytes.div_ceil(8)])
        })
        .collect();
    let views: Vec<TensorView<'_>> = inputs
        .iter()
        .map(|(datatype, shape, zeros)| {
            let bytes = shape.iter().product::<usize>() * datatype.size().unwrap_or(4);
            TensorView {
                datatype: *datatype,
                shape: shape.clone(),
                data: &bytemuck::cast_slice(zeros)[..bytes],
            }
        })
        .collect();
    let started = Instant::now();
    match engine.run(&views, setting.as_ref()) {
        Ok(_) => Ok(started.elapsed()),
        // With free extents we can only guess a shape; the model may rightly refuse the guess.
        Err(error) if guessed(&model.signature, model) => {
            tracing::warn!(model = &*model.name, size, %error, "no forward pass at load: free shapes, and a guess was refused");
            Ok(started.elapsed())
        }
        Err(error) => Err(format!("a forward pass with zeros at batch size {size} failed: {error}")),
    }
}

/// The runs that a model's author asks for. Data may be what it likes: it is copied to where any type can be read.
fn run_warmup(
    engine: &mut dyn Engine,
    model: &Model,
    source: &Source,
    warmup: &Warmup,
) -> Result<(), String> {
    let tensors = warmup.tensors(model, &source.folder)?;
    let aligned: Vec<Vec<u64>> = tensors
        .iter()
        .map(|tensor| {
            let mut words = vec![0_u64; tensor.data.len().div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..tensor.data.len()].copy_from_slice(&tensor.data);
            words
        })
        .collect();
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .zip(&aligned)
        .map(|(tensor, words)| TensorView {
            datatype: tensor.datatype,
            shape: tensor.shape.clone(),
            data: &bytemuck::cast_slice(words)[..tensor.data.len()],
        })
        .collect();
    for _ in 0..warmup.runs {
        engine.run(&views, None).map_err(|error| format!("warm-up {:?} failed: {error}", warmup.name))?;
    }
    Ok(())
}

/// Input types and shapes for a forward pass: the image's own shape, [`GUESS`] for extents that nobody fixed.
fn warm_shapes(signature: &Signature, model: &Model, size: usize) -> Vec<(DataType, Vec<usize>)> {
    signature
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let fixed = |dim: &Dim| if let Dim::Fixed(n) = dim { *n } else { GUESS };
            let mut shape: Vec<usize> = input.shape.iter().map(fixed).collect();
            if let (0, Some(image)) = (index, &model.image) {
                let [width, height] = image.size().unwrap_or([GUESS as u32; 2]);
                shape = image.item_shape(width, height);
            }
            if let (0, Some(fit)) = (index, &model.fit) {
                shape = vec![1, fit.box_px(), fit.box_px()];
            }
            if !model.rules.whole {
                shape[0] = size;
            }
            (input.datatype, shape)
        })
        .collect()
}

/// An extent that most networks which take any extent will take.
const GUESS: usize = 64;

/// Whether [`warm_shapes`] had to guess an extent.
fn guessed(signature: &Signature, model: &Model) -> bool {
    if model.fit.is_some() {
        return false;
    }
    let own_size = model.image.as_ref().is_some_and(|image| image.size().is_none());
    let inputs = signature.inputs.iter().skip(usize::from(model.image.is_some()));
    let first = usize::from(!model.rules.whole);
    own_size || inputs.flat_map(|input| input.shape.iter().skip(first)).any(|dim| *dim == Dim::Free)
}
