//! What devices a machine has, for people: looked at, not kept.

use super::{
    lease::{self, Contention},
    probe::{
        Probe, Sample,
        nvml::NvmlProbe,
        others::{Others, Ourselves},
    },
};
use crate::engine::{
    cuda::{self, Context, Gpu, driver::Version, headroom_bytes},
    kernels::InstructionSet,
    onnx::Runtime,
};
use std::path::Path;

/// A GPU, and what was seen of it.
pub struct FoundGpu {
    /// Which it is.
    pub gpu: Gpu,
    /// Its free bytes, or why it cannot be used.
    pub free: Result<u64, String>,
    /// What others have there, as far as NVML tells.
    pub others: Option<Others>,
    /// Share of its time in use, %, as far as NVML tells.
    pub utilization_percent: Option<u32>,
    /// Why no network would run there.
    pub no_networks: Option<String>,
    /// Why a server would leave it to others, whatever little its models need.
    pub contended: Option<Contention>,
}

/// What models could run on.
pub struct Found {
    /// Threads that a model would have on the CPU.
    pub threads: usize,
    /// The widest instructions that our kernels use there.
    pub instructions: String,
    /// The newest CUDA that the driver knows, and its GPUs; or why there is none.
    pub gpus: Result<(Version, Vec<FoundGpu>), String>,
}

/// Looks, by NVML (the system's, or this library), which disturbs nobody. Without it a GPU's free memory is known only to who takes
/// it: that is done here, and undone. `runtime`: ONNX Runtime, or why there is none.
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
    let seen = lease::Seen {
        others: others.as_ref().is_some_and(Others::any),
        free: told,
        utilization: utilization_percent,
    };
    let contended = lease::contended(&seen, lease::needed(0, headroom_bytes(gpu.memory_bytes)));
    FoundGpu { gpu, free, others, utilization_percent, no_networks, contended }
}

/// The free bytes of a GPU, for whoever has it for a moment.
fn taken(gpu: &Gpu) -> Result<u64, String> {
    let context = Context::open(gpu).map_err(|error| error.to_string())?;
    context.memory().map(|memory| memory.free).map_err(|error| error.to_string())
}
