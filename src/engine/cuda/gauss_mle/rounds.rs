//! The launches of a batch: one where the device takes all of its fits at once, else the rounds that put unfinished fits aside.
//!
//! What was weighed for the kernel and left out, each by what `ptxas` says of it (`make check-kernels`):
//!
//! - *Copying the next tile while this one is fitted.* `cp.async` begins with sm_80, so it takes a second set of all texts, and a second
//!   tile of shared memory, which for 11 x 11 pixels leaves four blocks on a multiprocessor where there are six. To have the L2 cache
//!   fetch it instead (`prefetch.global.L2`, on every GPU) is ten lines; but `fit_xynb_u16` then spills on sm_90, where it had 95
//!   registers. Seven loads of 16 bytes by each thread bring in a tile of 7 x 7 pixels, and some 20,000 instructions of each fit it:
//!   the blocks beside it on a multiprocessor hide the loads.
//! - *A kernel for each box size.* The texts are 500 to 720 KiB for four kernels of a model, compiled as a whole when a model is first
//!   loaded; three sizes more, their loops unrolled, are four times as much and more. What unrolling saves is the address and the
//!   branch of a pixel, of the 50 instructions that it takes; registers are at 95 to 124, without room for the factors of an axis.

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

/// The kernels, and what rounds put aside. Batches on one stream share it: they follow each other there.
#[derive(Debug)]
pub(super) struct Rounds {
    context: Arc<Context>,
    heap: Arc<Heap>,
    /// Of the models that were asked for: a driver that meets a module for the first time compiles all of it.
    modules: Vec<Module>,
    memory: SharedMemory,
    processors: u32,
    /// By name and bytes that a block shares, with how many blocks are on the device at a time.
    kernels: HashMap<(&'static str, u32), (Kernel, u32)>,
    lists: [Option<Buffer>; 2],
    /// How many fits each round put aside.
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

    /// Blocks of a kernel that are on the device at a time, without memory that they share.
    pub(super) fn resident(&self, kernel: &Kernel, threads: u32) -> Result<u32, CudaError> {
        Ok(kernel.resident(threads, 0)?.max(1) * self.processors)
    }

    /// How ROIs of `side` pixels are fitted: `f32` if `wide`, with maps or without.
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

    /// The kernel, and how many of its blocks are on the device at a time.
    fn kernel(&mut self, launch: &FitLaunch) -> Result<(Kernel, u32), CudaError> {
        let key = (launch.kernel, launch.shared_bytes);
        if let Some(known) = self.kernels.get(&key) {
            return Ok(known.clone());
        }
        let kernel = self.module(launch.module)?.kernel(launch.kernel)?;
        // Of the sizes that it is used with, the largest is allowed.
        let of_kernel = self.kernels.keys().filter(|(name, _)| *name == launch.kernel);
        let shared = of_kernel.map(|(_, shared)| *shared).max().unwrap_or(0).max(launch.shared_bytes);
        kernel.allow_shared(shared)?;
        let resident = kernel.resident(launch.threads, launch.shared_bytes)? * self.processors;
        self.kernels.insert(key, (kernel.clone(), resident));
        Ok((kernel, resident))
    }

    /// Makes room for what rounds of `room_for` fits put aside, and says whether a batch of `count` takes several.
    ///
    /// # Errors
    /// Where there is too little memory.
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
            // The batch before may still use them.
            synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
        }
        for list in &mut self.lists {
            room(&self.heap, list, bytes)?;
        }
        room(&self.heap, &mut self.counts, ROUNDS.len() * size_of::<u64>())?;
        Ok(count as u64 > at_once)
    }

    /// Begins to fit, in rounds if [`Rounds::prepare`] said so. `found` is where on the device it stands how many of `count` ROIs
    /// there are, or 0 for all.
    ///
    /// # Safety
    /// What `call` leads to is there until the stream has come past this, and is as `launch` was planned for.
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
            // SAFETY: the kernel that `launch` names; the lists have places for `count` fits each, and stay until the stream is
            // past them (`prepare`); the rest is the caller's promise.
            unsafe { kernel.launch(stream, shape, call, &argument) }?;
        }
        Ok(())
    }

    /// Lets go of what the next batch can get again.
    pub(super) fn rest(&mut self) {
        self.lists = [None, None];
        self.counts = None;
    }
}
