//! What devices are given: parts of the server, what to run on, and how to share GPUs.

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

/// The status text of a device on which no model is served.
pub(super) const NO_MODEL: &str = "no model runs here";

/// The parts of the server that devices need.
#[derive(Clone)]
pub struct Parts {
    /// ONNX Runtime, or why there is none: only ONNX models need it.
    pub runtime: Result<Runtime, String>,
    /// Where work comes from.
    pub queue: Arc<Queue>,
    /// Where loaded models are published.
    pub catalog: Arc<Catalog>,
    /// Where device states are published.
    pub status: Arc<Status>,
    /// Where devices report measurements.
    pub metrics: Arc<Metrics>,
    /// Threads that share the work of one operator on the CPU.
    pub compute_threads: usize,
    /// Where the engines of GPUs run: in this process or apart.
    pub isolation: Isolation,
    /// The deadline for models whose manifest sets none.
    pub timeout: Duration,
    /// Where kernels and engines built for a GPU are kept.
    pub kernel_cache_folder: Option<PathBuf>,
    /// The decoder of JPEGs on GPUs that we hold.
    pub jpeg: Option<JpegOnGpu>,
}

/// The devices to run on.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// GPUs to take.
    pub gpus: Vec<Gpu>,
    /// Whether the CPU runs models as well.
    pub cpu: bool,
    /// How GPUs are shared.
    pub sharing: Sharing,
}

/// How GPUs are shared with others, and when they count as hung or idle.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// What answers requests while a GPU is away.
    pub while_waiting: WhileWaiting,
    /// With `backend = "auto"`: how long requests wait for a GPU where the CPU does not answer meanwhile.
    pub auto_timeout: Duration,
    /// With `backend = "gpu"`: how long all GPUs may be away before the server ends; `None`: for ever.
    pub gpu_timeout: Option<Duration>,
    /// A GPU that no request needed for so long is given back; `None`: never.
    pub idle_release: Option<Duration>,
    /// A call that takes longer has hung; `None`: never.
    pub stuck_timeout: Option<Duration>,
    /// The NVML library, where it is not the system's.
    pub nvml: Option<PathBuf>,
    /// Where the servers of one machine queue for its GPUs.
    pub queue_folder: Option<PathBuf>,
    /// Where measurements of what models need of a GPU are kept.
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
