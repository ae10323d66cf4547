//! What outputs are reduced to on the device, so that little of them leaves it: on the stream that computes, behind the network.
#![allow(unsafe_code)]

use super::super::{Buffer, Context, CudaError, Heap, Kernel, Module};
use crate::engine::{
    DataType, EngineError,
    ends::{ClassMap, Reduction},
    kernels::postprocess::{NumberType, Numbers, SEGMENT, SegmentCall},
    staging::{Blocks, Lent},
};
use cudarc::driver::{CudaStream, DeviceRepr};
use std::sync::Arc;

const KERNELS: &str = include_str!("../../../../kernels/generated/postprocess.ptx");

// SAFETY: the struct that the kernel takes by value, its addresses being the device's.
unsafe impl DeviceRepr for SegmentCall {}

/// The kernel, and what it does.
#[derive(Debug)]
pub(super) struct Reducer {
    map: ClassMap,
    kernel: Kernel,
}

/// Memory for what is left of one batch size.
#[derive(Debug)]
pub(super) struct Reduced {
    /// The output that is read, and as what it comes.
    pub(super) output: usize,
    pub(super) shape: Vec<usize>,
    best: Buffer,
    faults: Buffer,
    call: SegmentCall,
    blocks: [u32; 3],
}

impl Reducer {
    /// Loads the kernel.
    pub(super) fn new(context: &Context, reduction: &Reduction) -> Result<Reducer, CudaError> {
        let Reduction::Segment(map) = reduction;
        let module = Module::load(context, "postprocess", KERNELS)?;
        Ok(Reducer { map: *map, kernel: module.kernel(SEGMENT.kernel)? })
    }

    /// Which output it reads.
    pub(super) fn output(&self) -> usize {
        self.map.output
    }

    /// Memory for what is left of an output of this shape at `scores`; `None` where its shape cannot be reduced.
    ///
    /// # Errors
    /// Where too little is free.
    pub(super) fn make(
        &self,
        heap: &Arc<Heap>,
        datatype: DataType,
        shape: &[usize],
        scores: u64,
    ) -> Result<Option<Reduced>, EngineError> {
        let number_type = match datatype {
            DataType::Fp32 => NumberType::F32,
            DataType::Fp16 => NumberType::F16,
            _ => return Ok(None),
        };
        let Some([items, classes, height, width]) = self.map.extents(shape) else { return Ok(None) };
        let pixels = height * width;
        let best = Buffer::new(heap, items * pixels * size_of::<u16>())?;
        let faults = Buffer::new(heap, items * size_of::<u32>())?;
        let call = SegmentCall {
            scores: Numbers::new(scores, number_type),
            pixels: pixels as u64,
            classes: classes as u32,
            last: u32::from(self.map.last),
            threshold: self.map.threshold,
            unused: 0,
            best: best.address(),
            faults: faults.address(),
        };
        let blocks = SEGMENT.blocks(items as u32, pixels as u64);
        let shape = vec![items, height, width];
        Ok(Some(Reduced { output: self.map.output, shape, best, faults, call, blocks }))
    }

    /// Begins to reduce what the network has written.
    ///
    /// # Safety
    /// The scores are where [`Reducer::make`] was told until the stream has come past this.
    pub(super) unsafe fn launch(&self, reduced: &mut Reduced, stream: &CudaStream) -> Result<(), CudaError> {
        reduced.faults.clear(stream)?;
        // SAFETY: what the kernel takes; its results live as long as `reduced`, which goes when its runs have ended.
        unsafe { self.kernel.launch_grid(stream, reduced.blocks, [SEGMENT.threads, 1, 1], &reduced.call) }
    }
}

impl Reduced {
    /// Memory on the host for which items have a fault.
    pub(super) fn faults(&self, blocks: &Blocks) -> Lent {
        blocks.lend(self.faults.bytes())
    }

    /// Begins to copy what is left, and the faults.
    ///
    /// # Safety
    /// Nobody looks at either until the stream has come past this.
    pub(super) unsafe fn download(
        &self,
        best: &mut [u8],
        faults: &mut [u8],
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe {
            self.best.download(best, stream)?;
            self.faults.download(faults, stream)
        }
    }
}
