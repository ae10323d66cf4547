//! The launches of a batch: one if the device can hold all of its fits at once, otherwise rounds that set unfinished fits aside.
//!
//! Two optimisations of the kernel were considered and rejected, based on the output of `ptxas` (`make check-kernels`):
//!
//! - *Copying the next tile while this one is fitted.* `cp.async` needs sm_80 or newer, so it takes a second set of all PTX texts. It
//!   also takes a second tile of shared memory, which for 11 x 11 pixels leaves four blocks per multiprocessor instead of six.
//!   Prefetching to the L2 cache instead (`prefetch.global.L2`, on every GPU) is ten lines, but `fit_xynb_u16` then spills registers on
//!   sm_90, where it had 95. A tile of 7 x 7 pixels takes seven loads of 16 bytes per thread, and the fit takes some 20,000 instructions
//!   per thread: the other blocks on the multiprocessor hide the loads.
//! - *A kernel for each box size.* The PTX texts are 500 to 720 KiB for the four kernels of a model, and are compiled as a whole when a
//!   model is first loaded. Three more sizes with unrolled loops are more than four times as much. Unrolling saves a pixel's address and
//!   branch, out of 50 instructions; registers are at 95 to 124, without room for the factors of an axis.

use super::super::{
    Buffer, Context, CudaError, Heap, Kernel, Module,
    context::synchronize,
    memory::{address, room},
    module::Shape,
};
use crate::engine::kernels::{
    FitCall, Psf,
    fit::device::{FitLaunch, FitRound, ROUNDS, SharedMemory, state_words},
};
use cudarc::driver::CudaStream;
use std::{collections::HashMap, sync::Arc};

/// The kernels of each model, as [`FitLaunch`] names them.
const MODULES: [(&str, &str); 4] = [
    ("gauss_mle_xynb", include_str!("../../../../kernels/generated/gauss_mle_xynb.ptx")),
    ("gauss_mle_xynbs", include_str!("../../../../kernels/generated/gauss_mle_xynbs.ptx")),
    ("gauss_mle_xynbsxsy", include_str!("../../../../kernels/generated/gauss_mle_xynbsxsy.ptx")),
    ("gauss_mle_xyznb", include_str!("../../../../kernels/generated/gauss_mle_xyznb.ptx")),
];

/// The kernels, and the memory for fits that rounds set aside. Batches on one stream share it, since they run there in order.
#[derive(Debug)]
pub(super) struct Rounds {
    context: Arc<Context>,
    heap: Arc<Heap>,
    /// The modules of the models used so far. Each is loaded on first use, since a driver compiles all of a module that is new to it.
    modules: Vec<Module>,
    memory: SharedMemory,
    processors: u32,
    /// By name and shared bytes per block; with the number of blocks that are resident on the device at a time.
    kernels: HashMap<(&'static str, u32), (Kernel, u32)>,
    lists: [Option<Buffer>; 2],
    /// How many fits each round set aside.
    counts: Option<Buffer>,
}

impl Rounds {
    pub(super) fn new(context: &Arc<Context>, heap: &Arc<Heap>) -> Rounds {
        let gpu = context.gpu();
        Rounds {
            context: Arc::clone(context),
            heap: Arc::clone(heap),
            modules: Vec::new(),
            memory: SharedMemory {
                block_max: gpu.shared_block_bytes,
                multiprocessor: gpu.shared_processor_bytes,
            },
            processors: gpu.processors,
            kernels: HashMap::new(),
            lists: [None, None],
            counts: None,
        }
    }

    /// Blocks of a kernel that are resident on the device at a time, without dynamic shared memory.
    pub(super) fn resident(&self, kernel: &Kernel, threads: u32) -> Result<u32, CudaError> {
        Ok(kernel.resident(threads, 0)?.max(1) * self.processors)
    }

    /// Plans the fit of ROIs of `side` pixels: `f32` if `wide`, with or without maps.
    pub(super) fn plan(&self, psf: &Psf, wide: bool, maps: bool, side: usize) -> FitLaunch {
        FitLaunch::new(psf, wide, maps, side, self.memory)
    }

    /// The kernels of a model.
    fn module(&mut self, name: &'static str) -> Result<&Module, CudaError> {
        let known = self.modules.iter().position(|module| module.name() == name);
        if known.is_none() {
            let (_, text) = MODULES.iter().find(|(known, _)| *known == name).expect("one for each model");
            self.modules.push(Module::load(&self.context, name, text)?);
        }
        Ok(&self.modules[known.unwrap_or(self.modules.len() - 1)])
    }

    /// The kernel, and how many of its blocks are resident on the device at a time.
    fn kernel(&mut self, launch: &FitLaunch) -> Result<(Kernel, u32), CudaError> {
        let key = (launch.kernel, launch.shared_bytes);
        if let Some(known) = self.kernels.get(&key) {
            return Ok(known.clone());
        }
        let kernel = self.module(launch.module)?.kernel(launch.kernel)?;
        // The limit applies to the kernel as a whole, so it is the largest of all sizes in use.
        let of_kernel = self.kernels.keys().filter(|(name, _)| *name == launch.kernel);
        let shared = of_kernel.map(|(_, shared)| *shared).max().unwrap_or(0).max(launch.shared_bytes);
        kernel.allow_shared(shared)?;
        let resident = kernel.resident(launch.threads, launch.shared_bytes)? * self.processors;
        self.kernels.insert(key, (kernel.clone(), resident));
        Ok((kernel, resident))
    }

    /// Allocates memory for what rounds of `room_for` fits set aside. Returns whether a batch of `count` fits takes several rounds.
    ///
    /// # Errors
    /// If there is too little memory.
    pub(super) fn prepare(
        &mut self,
        launch: &FitLaunch,
        psf: &Psf,
        (count, room_for): (usize, usize),
        stream: &CudaStream,
    ) -> Result<bool, CudaError> {
        let (_, resident) = self.kernel(launch)?;
        let at_once = u64::from(resident) * u64::from(launch.tile);
        if count.max(room_for) as u64 <= at_once {
            return Ok(false);
        }
        let bytes = state_words(psf) * count.max(room_for) * size_of::<u32>();
        if self.lists.iter().flatten().any(|list| list.bytes() < bytes) {
            // The previous batch may still use the buffers.
            synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
        }
        for list in &mut self.lists {
            room(&self.heap, list, bytes)?;
        }
        room(&self.heap, &mut self.counts, ROUNDS.len() * size_of::<u64>())?;
        Ok(count as u64 > at_once)
    }

    /// Enqueues the fits, in rounds if [`Rounds::prepare`] said so. `found` is the device address of the number of ROIs, at most `count`,
    /// or 0 if there are `count`.
    ///
    /// # Safety
    /// The memory that `call` refers to stays allocated until the stream has passed this, and is as `launch` was planned for.
    #[allow(unsafe_code, reason = "kernels are launched")]
    pub(super) unsafe fn launch(
        &mut self,
        launch: &FitLaunch,
        call: &FitCall,
        (count, found): (usize, u64),
        in_rounds: bool,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let (kernel, resident) = self.kernel(launch)?;
        let shape = Shape {
            blocks: launch.blocks(count as u64, resident),
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
        };
        let limits: &[u32] = if in_rounds { &ROUNDS } else { &[] };
        if let (true, Some(counts)) = (in_rounds, &mut self.counts) {
            counts.clear(stream)?;
        }
        let counted = |round: usize| address(&self.counts) + (round * size_of::<u64>()) as u64;
        for round in 0..=limits.len() {
            let (first, last) = (round == 0, round == limits.len());
            let [to, from] = [round % 2, (round + 1) % 2].map(|list| address(&self.lists[list]));
            let argument = FitRound {
                begun: if first { 0 } else { from },
                begun_count: if first { found } else { counted(round - 1) },
                unfinished: if last { 0 } else { to },
                unfinished_count: if last { 0 } else { counted(round) },
                places: if in_rounds { count as u64 } else { 0 },
                evaluations: limits.get(round).copied().unwrap_or(1),
                tile: launch.tile,
            };
            // SAFETY: the kernel that `launch` names; the lists have room for `count` fits each, and stay until the stream has
            // passed this (`prepare`); the rest is the caller's promise.
            unsafe { kernel.launch(stream, shape, call, &argument) }?;
        }
        Ok(())
    }

    /// Frees memory that the next batch can allocate again.
    pub(super) fn rest(&mut self) {
        self.lists = [None, None];
        self.counts = None;
    }
}
