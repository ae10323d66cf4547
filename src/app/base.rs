//! The parts below the front, built from the leaves up: the runtime, the models that were found, the queue, the devices.

use super::{AppError, allowed_threads::not_started, failed, gpus::Gpus, memory};
use crate::{
    batch::{Queue, QueueLimits},
    config::{self, Backend, Chosen, Config, RepositoryMode},
    devices::{self, Devices},
    engine::{
        child::Isolation,
        cuda::{Gpu, jpeg::JpegOnGpu},
        onnx::Runtime,
    },
    grpc,
    http::{self, Front, decode::DecodePool},
    image::Limits,
    models::{self, Catalog, Control, Repository},
    status::Status,
    telemetry::{COMMIT, VERSION, logging::Logging, metrics::Metrics},
    words::meant,
};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Everything below the front: what `serve` and `check` share.
pub struct Core {
    /// Jobs wait here.
    pub queue: Arc<Queue>,
    /// What can be served.
    pub catalog: Arc<Catalog>,
    /// What the process knows about itself.
    pub status: Arc<Status>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The devices, which run batches.
    pub devices: Arc<Devices>,
    /// The decoder of JPEGs on GPUs that are held.
    pub jpeg: Option<JpegOnGpu>,
    /// The models in the model folder.
    pub found: Vec<models::Found>,
    /// Bytes of memory shared with the processes of GPUs.
    pub shared_bytes: usize,
}

impl Core {
    /// Scans the model folder, loads ONNX Runtime and starts the devices. No model is loaded yet. The log file of each model that was
    /// found is created meanwhile, if there are such files.
    ///
    /// # Errors
    /// If the backend is missing, or ONNX Runtime where a model needs it; if `stack_spill_folder` cannot be written; or if the system
    /// refuses a thread.
    pub fn start(config: &Config, log: Option<&Logging>) -> Result<Core, AppError> {
        spill_folder(config).map_err(|why| {
            AppError::Failed(format!("stack_spill_folder {:?}: {why}", config.stack_spill_folder))
        })?;
        if let Err(why) = default_spill_folder(config, &std::env::temp_dir()) {
            tracing::warn!("{why}");
        }
        let gpus = Gpus::of(config)?;
        let mut found = models::scan(&repository(config)).map_err(|reason| {
            AppError::Failed(format!("{reason}; the option models names the folder that holds them"))
        })?;
        choose(&mut found, config)?;
        let runtime = runtime(config, &found)?;
        let logs = log.map(Logging::models).unwrap_or_default();
        for model in &found {
            logs.add_model(&model.name);
        }
        start(config, gpus, runtime, found)
    }

    /// The front of these parts, which answers requests, whether they come by a socket or not. Models are loaded and unloaded by way of
    /// `control`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn front(
        &self,
        config: &Config,
        control: Arc<Control>,
        log: Option<&Logging>,
    ) -> Result<Arc<Front>, AppError> {
        let decode = DecodePool::new(config.decode_threads, config.decode_bytes_max, limits(config))
            .map_err(not_started("the decode pool"))?
            .with_gpu(self.jpeg.clone());
        let parts = http::Parts {
            queue: Arc::clone(&self.queue),
            catalog: Arc::clone(&self.catalog),
            status: Arc::clone(&self.status),
            metrics: Arc::clone(&self.metrics),
            decode,
            lines_lost: log.map(Logging::lines_lost).unwrap_or_default(),
            log_filter: log.map(Logging::filter).unwrap_or_default(),
            control,
            traces: log.and_then(Logging::traces),
        };
        Ok(Arc::new(Front::new(config, parts)))
    }
}

/// How a server without models can get one.
pub(super) fn without_models(mode: RepositoryMode) -> &'static str {
    match mode {
        RepositoryMode::None => {
            "the folder is read at the start alone: put models into it and restart, or set repository_mode = \"watch\""
        }
        RepositoryMode::Explicit => {
            "put models into the folder and load them by /v2/repository (repository_mode = \"explicit\")"
        }
        RepositoryMode::Watch => {
            "a model is loaded as soon as it is in the folder (repository_mode = \"watch\")"
        }
    }
}

/// Like [`Core::start`], with these models, and with ONNX Runtime or why there is none.
pub(super) fn start(
    config: &Config,
    Gpus { gpus, without }: Gpus,
    runtime: Result<Runtime, String>,
    found: Vec<models::Found>,
) -> Result<Core, AppError> {
    if config.backend == Backend::Gpu {
        check_onnx(runtime.as_ref(), &gpus, &found).map_err(AppError::Backend)?;
    }
    let isolation = isolation(config, gpus.len(), runtime.is_ok())?;
    let shared_bytes = isolation.shared_bytes();
    let catalog = Arc::new(Catalog::new());
    let metrics = Arc::new(Metrics::new(&[http::counted(), grpc::paths()].concat(), VERSION, COMMIT));
    metrics.gpus_failed.set(without.iter().filter(|(_, is_fault)| *is_fault).count() as i64);
    let mut status = Status::new(Instant::now());
    status.without_models = Some(without_models(config.repository_mode));
    status.may_be_empty = config.repository_mode == RepositoryMode::Explicit;
    status.no_gpu = without.into_iter().map(|(reason, _)| reason).collect();
    let status = Arc::new(status);
    let queue = Queue::new(QueueLimits {
        items_max: config.queue_items_max,
        bytes_max: config.queue_bytes_max as usize,
    });
    let jpeg = jpeg(config, &gpus);
    let parts = devices::Parts {
        runtime,
        queue: Arc::clone(&queue),
        catalog: Arc::clone(&catalog),
        status: Arc::clone(&status),
        metrics: Arc::clone(&metrics),
        compute_threads: config.compute_threads,
        isolation,
        timeout: config.timeout_ms,
        kernel_cache_folder: config.kernel_cache_folder.clone(),
        jpeg: jpeg.clone(),
    };
    let (cpu, sharing) = (config.backend != Backend::Gpu, sharing(config));
    let wanted = devices::Wanted { gpus, cpu, sharing };
    let devices = Devices::start(parts, &wanted).map_err(AppError::Backend)?;
    Ok(Core { queue, catalog, status, metrics, devices, jpeg, found, shared_bytes })
}

/// The limits on the size of an image.
pub(super) fn limits(config: &Config) -> Limits {
    Limits {
        side_max: config.image_side_max,
        pixels_max: config.image_pixels_max,
        frames_max: config.image_frames_max,
    }
}

/// Whether stacks can be stored in the configured folder: otherwise the first request that needs it would fail.
pub(super) fn spill_folder(config: &Config) -> Result<(), String> {
    let folder = &config.stack_spill_folder;
    if folder.as_os_str().is_empty() || config.stack_spill_bytes_max == 0 {
        return Ok(());
    }
    let made = tempfile::tempfile_in(folder).map(drop);
    made.map_err(|error| format!("cannot make a temporary file there: {error}"))
}

/// Likewise for the default folder, where none is configured: it may never be needed, so a server starts without it.
fn default_spill_folder(config: &Config, folder: &Path) -> Result<(), String> {
    if !config.stack_spill_folder.as_os_str().is_empty() || config.stack_spill_bytes_max == 0 {
        return Ok(());
    }
    tempfile::tempfile_in(folder).map(drop).map_err(|error| {
        format!(
            "stacks that need a temporary file will be refused: none can be made in {folder:?} ({error}); name another folder with \
             stack_spill_folder or TMPDIR, or set stack_spill_bytes_max = 0"
        )
    })
}

/// Where the models lie.
pub(super) fn repository(config: &Config) -> Repository {
    Repository::new(config.models.clone(), config.model_name.clone())
}

/// The names in `startup_models` that were not found, with suggestions.
pub(super) fn unknown(found: &[models::Found], config: &Config) -> Vec<String> {
    let Chosen::Only(names) = &config.startup_models else { return Vec::new() };
    let unknown = names.iter().filter(|name| found.iter().all(|found| found.name != **name));
    let known = || found.iter().map(|found| &found.name);
    unknown
        .map(|name| {
            let folder = config.models.display();
            format!("there is no model {name:?} in {folder}{}", meant(name, known()))
        })
        .collect()
}

/// Keeps the models that are to be loaded at the start.
fn choose(found: &mut Vec<models::Found>, config: &Config) -> Result<(), AppError> {
    // A model may have gone since the configuration was checked.
    if let Some(why) = unknown(found, config).into_iter().next() {
        return Err(AppError::Failed(format!("startup_models: {why}")));
    }
    found.retain(|found| config.startup_models.has(&found.name));
    Ok(())
}

/// The first model that needs ONNX Runtime.
fn network(found: &[models::Found]) -> Option<&models::Found> {
    found.iter().find(|found| {
        found.source.as_ref().is_ok_and(|source| source.manifest.engine == models::Engine::Onnx)
    })
}

/// ONNX Runtime, or why there is none: its absence ends a server only where a model needs it.
fn runtime(config: &Config, found: &[models::Found]) -> Result<Result<Runtime, String>, AppError> {
    let runtime = Runtime::load(&config.onnx_runtime, memory::of_models(config));
    match (&runtime, network(found)) {
        (Ok(runtime), _) => {
            tracing::info!(path = %config.onnx_runtime.display(), build = runtime.description(), "loaded ONNX Runtime");
        }
        (Err(reason), Some(model)) => {
            return Err(AppError::Backend(format!("the ONNX model {} cannot be run: {reason}", model.name)));
        }
        (Err(reason), None) => tracing::warn!(reason, "no ONNX model can be loaded; none was found so far"),
    }
    Ok(runtime)
}

/// Whether the ONNX models that were found can run on one of the GPUs.
fn check_onnx(
    runtime: Result<&Runtime, &String>,
    gpus: &[Gpu],
    found: &[models::Found],
) -> Result<(), String> {
    let Some(model) = network(found) else { return Ok(()) };
    // Without it, models report that themselves.
    let Ok(runtime) = runtime else { return Ok(()) };
    let refused = gpus.iter().map(|gpu| runtime.check_gpu(gpu).err());
    let refused: Option<Vec<String>> = refused.collect();
    match refused.and_then(|reasons| reasons.into_iter().next()) {
        None => Ok(()),
        Some(reason) => {
            Err(format!("backend is gpu, but the ONNX model {} can run on none: {reason}", model.name))
        }
    }
}

/// Whether each GPU gets a process of its own.
fn apart(config: &Config) -> bool {
    match config.isolation {
        config::Isolation::Thread => false,
        config::Isolation::Process => true,
        // CUDA's runtime keeps its context for as long as its process lives; nvJPEG decodes in the server's process.
        config::Isolation::Auto => !config.idle_release_ms.is_zero() && !config.gpu_jpeg,
    }
}

/// Where the engines of this many GPUs run.
fn isolation(config: &Config, gpus: usize, with_onnx: bool) -> Result<Isolation, AppError> {
    if !apart(config) || gpus == 0 {
        return Ok(Isolation::Thread);
    }
    let onnx_runtime = with_onnx.then(|| config.onnx_runtime.clone());
    let processes = Isolation::process(gpus, config.isolation_bytes as usize, onnx_runtime);
    match (processes, config.isolation) {
        (Ok(processes), config::Isolation::Auto) => {
            tracing::info!(
                "each GPU has a process of its own, since idle_release_ms is set: what is given back is whole only so (isolation)"
            );
            Ok(processes)
        }
        // Separate processes were not asked for explicitly.
        (Err(error), config::Isolation::Auto) => {
            tracing::warn!(
                %error,
                bytes = config.isolation_bytes,
                "memory cannot be shared with processes of GPUs (isolation_bytes): models of GPUs run in this one, which keeps a part \
                 of a GPU that is given back"
            );
            Ok(Isolation::Thread)
        }
        (processes, _) => {
            processes.map_err(failed("cannot share memory with processes of GPUs (isolation_bytes)"))
        }
    }
}

/// The decoder of JPEGs on GPUs, if it is wanted and available.
fn jpeg(config: &Config, gpus: &[Gpu]) -> Option<JpegOnGpu> {
    let gpu = gpus.first().filter(|_| config.gpu_jpeg)?;
    JpegOnGpu::start(gpu.cuda)
        .inspect_err(|reason| tracing::warn!("gpu_jpeg: JPEGs are decoded on the CPU alone: {reason}"))
        .ok()
}

/// How GPUs are shared.
fn sharing(config: &Config) -> devices::Sharing {
    let some = |duration: Duration| (!duration.is_zero()).then_some(duration);
    devices::Sharing {
        while_waiting: config.while_waiting,
        auto_timeout: config.auto_timeout_ms,
        gpu_timeout: some(config.gpu_timeout_ms).filter(|_| config.backend == Backend::Gpu),
        idle_release: some(config.idle_release_ms),
        stuck_timeout: some(config.gpu_stuck_ms),
        nvml: config.nvml_library.clone(),
        queue_folder: config.gpu_queue_folder.clone(),
        state_folder: config.gpu_state_folder.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_temporary_files_that_cannot_be_written_is_told_where_one_may_be_needed() {
        let folder = tempfile::tempdir().expect("a folder");
        let gone = folder.path().join("gone");
        let config = Config { stack_spill_folder: "".into(), ..Config::default() };
        assert_eq!(default_spill_folder(&config, folder.path()), Ok(()));
        let told = default_spill_folder(&config, &gone).expect_err("no folder");
        assert!(told.contains("gone") && told.contains("stack_spill_folder"), "{told}");
        let never = Config { stack_spill_bytes_max: 0, ..config };
        assert_eq!(default_spill_folder(&never, &gone), Ok(()));
    }
}
