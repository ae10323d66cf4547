//! What stands below the front, from the leaves up: the runtime, the models that were found, the queue, the devices.

use super::{AppError, failed};
use crate::{
    batch::{Queue, QueueLimits},
    config::{Backend, Config},
    devices::{self, Devices},
    engine::{
        cuda::{self, Gpu},
        onnx::Runtime,
    },
    grpc, http,
    models::{self, Catalog},
    status::Status,
    telemetry::{COMMIT, VERSION, logging::Logging, metrics::Metrics},
};
use std::{sync::Arc, time::Instant};

/// Everything below the front: what `serve` and `check` share.
pub struct Core {
    /// Where work waits.
    pub queue: Arc<Queue>,
    /// What can be served.
    pub catalog: Arc<Catalog>,
    /// What the process knows about itself.
    pub status: Arc<Status>,
    /// Numbers.
    pub metrics: Arc<Metrics>,
    /// What runs batches.
    pub devices: Devices,
    /// What the model folder holds.
    pub found: Vec<models::Found>,
}

impl Core {
    /// Loads ONNX Runtime, scans the model folder and starts the workers. No model is loaded yet; each that was found
    /// has its log file, if there are such files.
    ///
    /// # Errors
    /// If the backend cannot be had, a log file cannot be written, or the system refuses a thread.
    pub fn start(config: &Config, log: Option<&Logging>) -> Result<Core, AppError> {
        let gpus = gpus(config)?;
        let runtime = Runtime::load(&config.onnx_runtime).map_err(AppError::Backend)?;
        tracing::info!(path = %config.onnx_runtime.display(), build = runtime.description(), "loaded ONNX Runtime");
        let found = models::scan(&config.models).map_err(|reason| {
            AppError::Failed(format!("{reason}; the option models names the folder that holds them"))
        })?;
        if found.is_empty() {
            tracing::warn!(
                folder = %config.models.display(),
                "no models found: put each into a folder NAME/model.onnx there, and start again"
            );
        }
        for model in &found {
            log.map_or(Ok(()), |log| log.add_model(&model.name)).map_err(failed("cannot log per model"))?;
        }
        if config.backend == Backend::Gpu {
            check_onnx(&runtime, &gpus, &found).map_err(AppError::Backend)?;
        }
        let catalog = Arc::new(Catalog::new());
        let metrics = Arc::new(Metrics::new(&[http::paths(), grpc::paths()].concat(), VERSION, COMMIT));
        let status = Arc::new(Status::new(Instant::now()));
        let queue = Queue::new(QueueLimits {
            items_max: config.queue_items_max,
            bytes_max: config.queue_bytes_max as usize,
        });
        let instances = found.iter().filter_map(|found| found.source.as_ref().ok());
        let workers = instances.map(|source| source.manifest.placement.instances).max().unwrap_or(1);
        let parts = devices::Parts {
            runtime,
            queue: Arc::clone(&queue),
            catalog: Arc::clone(&catalog),
            status: Arc::clone(&status),
            metrics: Arc::clone(&metrics),
            compute_threads: config.compute_threads,
            timeout: config.timeout_ms,
            kernel_cache_folder: config.kernel_cache_folder.clone(),
        };
        let wanted = devices::Wanted { gpus, cpu: config.backend != Backend::Gpu, workers };
        let devices = Devices::start(parts, &wanted).map_err(AppError::Backend)?;
        Ok(Core { queue, catalog, status, metrics, devices, found })
    }
}

/// Whether ONNX models that are there can run on one of the GPUs.
fn check_onnx(runtime: &Runtime, gpus: &[Gpu], found: &[models::Found]) -> Result<(), String> {
    let is_onnx = |found: &models::Found| {
        found.source.as_ref().is_ok_and(|source| source.manifest.engine == models::Engine::Onnx)
    };
    let Some(model) = found.iter().find(|found| is_onnx(found)) else { return Ok(()) };
    let refused = gpus.iter().map(|gpu| runtime.check_gpu(gpu).err());
    let refused: Option<Vec<String>> = refused.collect();
    match refused.and_then(|reasons| reasons.into_iter().next()) {
        None => Ok(()),
        Some(reason) => {
            Err(format!("backend is gpu, but the ONNX model {} can run on none: {reason}", model.name))
        }
    }
}

/// The GPUs that the backend asks for.
fn gpus(config: &Config) -> Result<Vec<Gpu>, AppError> {
    if config.backend == Backend::Cpu {
        return Ok(Vec::new());
    }
    if let Some(folder) = &config.kernel_cache_folder {
        cuda::keep_kernels_in(folder);
    }
    match cuda::probe() {
        Ok(driver) => {
            let names = driver.gpus.iter().map(|gpu| gpu.name.as_str()).collect::<Vec<_>>().join(", ");
            tracing::info!(cuda = %driver.version, gpus = names, "found the CUDA driver");
            Ok(driver.gpus)
        }
        Err(reason) if config.backend == Backend::Gpu => {
            Err(AppError::Backend(format!("backend is gpu, but {reason}")))
        }
        Err(reason) => {
            tracing::info!("backend auto: models run on the CPU: {reason}");
            Ok(Vec::new())
        }
    }
}
