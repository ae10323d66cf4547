//! What devices a machine has, for people: looked at, not kept.

use crate::engine::{
    cuda::{self, Context, Gpu, driver::Version},
    kernels::InstructionSet,
};

/// A GPU, with its free bytes or why it cannot be used.
pub type FoundGpu = (Gpu, Result<u64, String>);

/// What models could run on.
pub struct Found {
    /// Threads that a model would have on the CPU.
    pub threads: usize,
    /// The widest instructions that our kernels use there.
    pub instructions: String,
    /// The newest CUDA that the driver knows, and its GPUs; or why there is none.
    pub gpus: Result<(Version, Vec<FoundGpu>), String>,
}

/// Looks. A GPU's free memory is known only to who takes it: that is done here, and undone.
pub fn find(threads: usize) -> Found {
    let free = |gpu: &Gpu| -> Result<u64, String> {
        gpu.check()?;
        let context = Context::open(gpu).map_err(|error| error.to_string())?;
        context.memory().map(|memory| memory.free).map_err(|error| error.to_string())
    };
    let gpus = cuda::probe().map_err(|reason| reason.to_string()).map(|driver| {
        let gpus = driver.gpus.into_iter().map(|gpu| {
            let free = free(&gpu);
            (gpu, free)
        });
        (driver.version, gpus.collect())
    });
    Found { threads, instructions: InstructionSet::detect().to_string(), gpus }
}
