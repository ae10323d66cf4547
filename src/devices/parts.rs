//! What devices are given: parts of the server, what to run on, and how GPUs are shared.

use crate::{
    batch::Queue,
    config::WhileWaiting,
    engine::{
        child::Isolation,
        cuda::{Gpu, jpeg::JpegOnGpu},
        onnx::Runtime,
    },
    models::Catalog,
    status::Status,
    telemetry::metrics::Metrics,
};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// What is said of a device on which nothing is served.
pub(super) const NO_MODEL: &str = "no model runs here";

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
    /// Where the engines of GPUs run.
    pub isolation: Isolation,
    /// The deadline of models whose manifest sets none.
    pub timeout: Duration,
    /// Where what is built for a GPU is kept.
    pub kernel_cache_folder: Option<PathBuf>,
    /// What decodes JPEGs on GPUs that are ours.
    pub jpeg: Option<JpegOnGpu>,
}

/// What to run on.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// GPUs to take.
    pub gpus: Vec<Gpu>,
    /// Whether the CPU runs models as well.
    pub cpu: bool,
    /// How GPUs are shared.
    pub sharing: Sharing,
}

/// How GPUs are shared with others, and looked after.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// What answers while a GPU is away.
    pub while_waiting: WhileWaiting,
    /// With `backend = "auto"`: how long requests wait for a GPU where the CPU does not answer meanwhile.
    pub auto_timeout: Duration,
    /// With `backend = "gpu"`: how long all GPUs may be away before the server ends; none for ever.
    pub gpu_timeout: Option<Duration>,
    /// A GPU that nobody needed for so long is given back; none for never.
    pub idle_release: Option<Duration>,
    /// A call that takes longer has hung; none for never.
    pub stuck_timeout: Option<Duration>,
    /// NVML, where it is not the system's.
    pub nvml: Option<PathBuf>,
    /// Where servers of one machine queue for its GPUs.
    pub queue_folder: Option<PathBuf>,
    /// Where it is kept what models need of a GPU.
    pub state_folder: Option<PathBuf>,
}

impl Default for Sharing {
    fn default() -> Sharing {
        Sharing {
            while_waiting: WhileWaiting::Cpu,
            auto_timeout: Duration::from_secs(300),
            gpu_timeout: None,
            idle_release: None,
            stuck_timeout: None,
            nvml: None,
            queue_folder: None,
            state_folder: None,
        }
    }
}
