//! Reduces outputs on the device, so that little of them leaves it: on the compute stream, after the network.
#![allow(unsafe_code)]

use super::super::{Buffer, Context, CudaError, Heap, Kernel, Module, context::synchronize};
use crate::engine::{
    Anchors, Best, ClassMap, DataType, EngineError, Reduction,
    kernels::postprocess::{
        CLASSIFY, ClassifyCall, DETECT_CANDIDATES, DetectCall, DetectPlacement, NumberType, Numbers,
        Postprocess, SEGMENT, SegmentCall, Strides,
    },
    reduction::{CANDIDATE_WORDS, SCORED_WORDS},
    staging::{Blocks, Lent},
};
use cudarc::driver::CudaStream;
use std::sync::Arc;

const KERNELS: &str = include_str!("../../../../kernels/generated/postprocess.ptx");

/// The kernel of a reduction.
#[derive(Debug)]
pub(super) struct Reducer {
    reduction: Reduction,
    kernel: Kernel,
}

/// Memory for the reduced output of one batch size.
#[derive(Debug)]
pub(super) struct Reduced {
    /// Index of the output that is reduced.
    pub(super) output: usize,
    /// The type and shape of the reduced output.
    pub(super) datatype: DataType,
    pub(super) shape: Vec<usize>,
    left: Buffer,
    faults: Buffer,
    call: Call,
    blocks: [u32; 3],
}

/// The kernel's arguments.
#[derive(Debug)]
enum Call {
    Classify(ClassifyCall),
    Segment(SegmentCall),
    Detect {
        call: Box<DetectCall>,
        /// How many boxes each item has so far.
        counts: Buffer,
        /// Placements that leave boxes where they are in the input.
        _placements: Buffer,
    },
}

/// The output that is reduced: type, shape and address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scores<'a> {
    pub(super) datatype: DataType,
    pub(super) shape: &'a [usize],
    pub(super) address: u64,
}

impl Scores<'_> {
    /// Its numbers from index `first` on; `None` for a type that the kernels do not read.
    fn numbers(&self, first: usize) -> Option<Numbers> {
        let (number_type, bytes) = match self.datatype {
            DataType::Fp32 => (NumberType::F32, 4),
            DataType::Fp16 => (NumberType::F16, 2),
            _ => return None,
        };
        Some(Numbers::new(self.address + (first * bytes) as u64, number_type))
    }
}

impl Reducer {
    /// Loads the kernel.
    pub(super) fn new(context: &Context, reduction: &Reduction) -> Result<Reducer, CudaError> {
        let module = Module::load(context, "postprocess", KERNELS)?;
        let kernel = module.kernel(launched(reduction).kernel)?;
        Ok(Reducer { reduction: *reduction, kernel })
    }

    /// Index of the output that it reduces.
    pub(super) fn output(&self) -> usize {
        self.reduction.output()
    }

    /// Allocates memory for a reduced output; `None` if the output cannot be reduced.
    ///
    /// # Errors
    /// If too little is free.
    pub(super) fn make(
        &self,
        heap: &Arc<Heap>,
        scores: Scores<'_>,
        stream: &CudaStream,
    ) -> Result<Option<Reduced>, EngineError> {
        match &self.reduction {
            Reduction::Classify(best) => classify(best, heap, scores),
            Reduction::Segment(map) => segment(map, heap, scores),
            Reduction::Detect(anchors) => detect(anchors, heap, scores, stream),
        }
    }

    /// Enqueues the reduction of the network's output.
    ///
    /// # Safety
    /// The scores are where [`Reducer::make`] was told until the stream has passed this.
    pub(super) unsafe fn launch(&self, reduced: &mut Reduced, stream: &CudaStream) -> Result<(), CudaError> {
        let Reduced { left, faults, call, blocks, .. } = reduced;
        let threads = [launched(&self.reduction).threads, 1, 1];
        faults.clear(stream)?;
        match call {
            // SAFETY: the arguments are the kernel's; its results live as long as `reduced`, which is dropped after its runs have ended.
            Call::Classify(call) => unsafe { self.kernel.launch_grid(stream, *blocks, threads, call) },
            // SAFETY: as above.
            Call::Segment(call) => unsafe { self.kernel.launch_grid(stream, *blocks, threads, call) },
            Call::Detect { call, counts, .. } => {
                counts.clear(stream)?;
                // Unused candidates have no area.
                left.clear(stream)?;
                // SAFETY: as above.
                unsafe { self.kernel.launch_grid(stream, *blocks, threads, &**call) }
            }
        }
    }
}

fn launched(reduction: &Reduction) -> Postprocess {
    match reduction {
        Reduction::Classify(_) => CLASSIFY,
        Reduction::Segment(_) => SEGMENT,
        Reduction::Detect(_) => DETECT_CANDIDATES,
    }
}

fn classify(best: &Best, heap: &Arc<Heap>, scores: Scores<'_>) -> Result<Option<Reduced>, EngineError> {
    let (Some([items, classes]), Some(numbers)) = (best.extents(scores.shape), scores.numbers(0)) else {
        return Ok(None);
    };
    let shape = vec![items, best.top, SCORED_WORDS];
    let left = Buffer::new(heap, shape.iter().product::<usize>() * size_of::<u32>())?;
    let faults = Buffer::new(heap, items * size_of::<u32>())?;
    let call = Call::Classify(ClassifyCall {
        scores: numbers,
        classes: classes as u32,
        activation: best.activation,
        top: best.top as u32,
        unused: 0,
        best: left.address(),
        faults: faults.address(),
    });
    let blocks = CLASSIFY.blocks(items as u32, classes as u64);
    Ok(Some(Reduced { output: best.output, datatype: DataType::Uint32, shape, left, faults, call, blocks }))
}

fn segment(map: &ClassMap, heap: &Arc<Heap>, scores: Scores<'_>) -> Result<Option<Reduced>, EngineError> {
    let (Some([items, classes, height, width]), Some(numbers)) =
        (map.extents(scores.shape), scores.numbers(0))
    else {
        return Ok(None);
    };
    let pixels = height * width;
    let left = Buffer::new(heap, items * pixels * size_of::<u16>())?;
    let faults = Buffer::new(heap, items * size_of::<u32>())?;
    let call = Call::Segment(SegmentCall {
        scores: numbers,
        pixels: pixels as u64,
        classes: classes as u32,
        last: u32::from(map.last),
        threshold: map.threshold,
        unused: 0,
        best: left.address(),
        faults: faults.address(),
    });
    let blocks = SEGMENT.blocks(items as u32, pixels as u64);
    let (output, datatype, shape) = (map.output, DataType::Uint16, vec![items, height, width]);
    Ok(Some(Reduced { output, datatype, shape, left, faults, call, blocks }))
}

fn detect(
    anchors: &Anchors,
    heap: &Arc<Heap>,
    scores: Scores<'_>,
    stream: &CudaStream,
) -> Result<Option<Reduced>, EngineError> {
    let Some([items, channels, count, candidates]) = anchors.extents(scores.shape) else { return Ok(None) };
    let (anchor, channel) = if anchors.channels_first { (1, count) } else { (channels, 1) };
    let by = Strides { item: (channels * count) as u64, anchor: anchor as u64, channel: channel as u64 };
    let first_class = 4 + usize::from(anchors.objectness);
    let from = |number: usize| scores.numbers(number * channel);
    let (Some(boxes), Some(classes), Some(objectness)) = (from(0), from(first_class), from(4)) else {
        return Ok(None);
    };
    let left = Buffer::new(heap, items * candidates * CANDIDATE_WORDS * size_of::<u32>())?;
    let [faults, counts] =
        [Buffer::new(heap, items * size_of::<u32>())?, Buffer::new(heap, items * size_of::<u32>())?];
    let size = anchors.size.unwrap_or([1; 2]).map(|side| side as f32);
    let nowhere = [0.0; 2];
    let stays =
        DetectPlacement { offset: nowhere, resized: nowhere, source: nowhere, size, placed: 0, unused: 0 };
    let told = vec![stays; items];
    let placements = Buffer::new(heap, size_of_val(&told[..]))?;
    // SAFETY: the copy is waited for while both are alive.
    unsafe { placements.upload(bytemuck::cast_slice(&told), stream) }?;
    synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
    let call = Box::new(DetectCall {
        boxes,
        scores: classes,
        objectness: if anchors.objectness { objectness } else { Numbers::NONE },
        labels: Numbers::NONE,
        counts: Numbers::NONE,
        boxes_by: by,
        scores_by: by,
        objectness_by: by,
        anchors: count as u32,
        classes: (channels - first_class) as u32,
        first_class: 0.0,
        format: anchors.format,
        normalized: u32::from(anchors.size.is_some()),
        score_min: anchors.score_min,
        iou_max: 1.0,
        detections_max: 0,
        candidates_max: candidates as u32,
        unused: 0,
        placements: placements.address(),
        candidates: left.address(),
        candidate_counts: counts.address(),
        detections: 0,
        detection_counts: 0,
        faults: faults.address(),
    });
    let call = Call::Detect { call, counts, _placements: placements };
    let blocks = DETECT_CANDIDATES.blocks(items as u32, count as u64);
    let (output, datatype) = (anchors.output, DataType::Uint32);
    let shape = vec![items, candidates, CANDIDATE_WORDS];
    Ok(Some(Reduced { output, datatype, shape, left, faults, call, blocks }))
}

impl Reduced {
    /// Host memory for the faults, which say which items could not be reduced.
    pub(super) fn faults(&self, blocks: &Blocks) -> Lent {
        blocks.lend(self.faults.bytes())
    }

    /// Enqueues the copy of the reduced output and the faults.
    ///
    /// # Safety
    /// Both must stay allocated, and nobody may read them, until the stream has passed this.
    pub(super) unsafe fn download(
        &self,
        left: &mut [u8],
        faults: &mut [u8],
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe {
            self.left.download(left, stream)?;
            self.faults.download(faults, stream)
        }
    }
}
