//! What devices a machine has, for people to read: looked at, but not held.

use super::{
    lease::{self, Contention},
    probe::{
        Sample,
        nvml::NvmlProbe,
        others::{Others, Ourselves},
    },
};
use crate::engine::{
    cuda::{self, Context, Gpu, headroom_bytes},
    gpu::Version,
    kernels::InstructionSet,
    onnx::Runtime,
};
use std::path::Path;

/// A GPU and its condition.
pub struct FoundGpu {
    /// Which it is.
    pub gpu: Gpu,
    /// Its free bytes of memory, or why it cannot be used.
    pub free: Result<u64, String>,
    /// What other processes use there, as far as NVML tells.
    pub others: Option<Others>,
    /// Share of its time in use, %, as far as NVML tells.
    pub utilization_percent: Option<u32>,
    /// Why no network can run there, if so.
    pub no_networks: Option<String>,
    /// Why a server would leave it to others, however little its models need; `None` if it would not.
    pub contended: Option<Contention>,
}

/// The devices that models could run on.
pub struct Found {
    /// Threads that a model would get on the CPU.
    pub threads: usize,
    /// The widest instructions that our kernels use there.
    pub instructions: String,
    /// The newest CUDA version that the driver supports, and its GPUs; or why there are none.
    pub gpus: Result<(Version, Vec<FoundGpu>), String>,
}

/// Looks by NVML (`nvml`, or the system's library), which disturbs nobody. Without NVML, free memory is known only to a process that has
/// taken the GPU, so each one is taken and released again. `runtime`: ONNX Runtime, or why there is none.
pub fn find(threads: usize, nvml: Option<&Path>, runtime: &Result<Runtime, String>) -> Found {
    let gpus = cuda::probe().map_err(|reason| reason.to_string()).map(|driver| {
        let parts = driver.gpus.iter().map(|gpu| (&*gpu.id, &*gpu.pci));
        let probe = NvmlProbe::open(nvml).map(|probe| probe.with_parts(parts));
        let samples = probe.map(|mut probe| probe.sample()).unwrap_or_default();
        let look = |gpu: Gpu| {
            let sample = samples.iter().find(|sample| sample.gpu.uuid == gpu.id);
            let networks = runtime.as_ref().map_err(Clone::clone).and_then(|runtime| runtime.check_gpu(&gpu));
            look(gpu, sample, networks.err())
        };
        (driver.version, driver.gpus.into_iter().map(look).collect())
    });
    Found { threads, instructions: InstructionSet::detect().to_string(), gpus }
}

fn look(gpu: Gpu, sample: Option<&Sample>, no_networks: Option<String>) -> FoundGpu {
    let told = sample.and_then(|sample| sample.memory).map(|memory| memory.free);
    let free = gpu.check().and_then(|()| told.map_or_else(|| taken(&gpu), Ok));
    let others = sample.map(|sample| Ourselves::before(std::process::id()).others(sample));
    let utilization_percent = sample.and_then(|sample| sample.utilization_percent);
    let seen = lease::Occupancy {
        others: others.as_ref().is_some_and(Others::any),
        free: told,
        utilization: utilization_percent,
    };
    let contended = lease::contended(&seen, lease::needed(0, headroom_bytes(gpu.memory_bytes)));
    FoundGpu { gpu, free, others, utilization_percent, no_networks, contended }
}

/// The free bytes of a GPU, found by taking it for a moment.
fn taken(gpu: &Gpu) -> Result<u64, String> {
    let context = Context::open(gpu).map_err(|error| error.to_string())?;
    context.memory().map(|memory| memory.free).map_err(|error| error.to_string())
}
