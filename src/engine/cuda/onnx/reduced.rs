//! What outputs are reduced to on the device, so that little of them leaves it: on the stream that computes, behind the network.
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

/// The kernel, and what it does.
#[derive(Debug)]
pub(super) struct Reducer {
    reduction: Reduction,
    kernel: Kernel,
}

/// Memory for what is left of one batch size.
#[derive(Debug)]
pub(super) struct Reduced {
    /// The output that is read.
    pub(super) output: usize,
    /// As what it comes.
    pub(super) datatype: DataType,
    pub(super) shape: Vec<usize>,
    left: Buffer,
    faults: Buffer,
    call: Call,
    blocks: [u32; 3],
}

/// What the kernel is launched with.
#[derive(Debug)]
enum Call {
    Classify(ClassifyCall),
    Segment(SegmentCall),
    Detect {
        call: Box<DetectCall>,
        /// How many boxes each item has so far.
        counts: Buffer,
        /// That boxes stay where they are in the input.
        _placements: Buffer,
    },
}

/// What is known of the output that is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scores<'a> {
    pub(super) datatype: DataType,
    pub(super) shape: &'a [usize],
    pub(super) address: u64,
}

impl Scores<'_> {
    /// Its numbers from one on; `None` for a type that the kernels do not read.
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

    /// Which output it reads.
    pub(super) fn output(&self) -> usize {
        self.reduction.output()
    }

    /// Memory for what is left of an output; `None` where such an output cannot be reduced.
    ///
    /// # Errors
    /// Where too little is free.
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

    /// Begins to reduce what the network has written.
    ///
    /// # Safety
    /// The scores are where [`Reducer::make`] was told until the stream has come past this.
    pub(super) unsafe fn launch(&self, reduced: &mut Reduced, stream: &CudaStream) -> Result<(), CudaError> {
        let Reduced { left, faults, call, blocks, .. } = reduced;
        let threads = [launched(&self.reduction).threads, 1, 1];
        faults.clear(stream)?;
        match call {
            // SAFETY: what the kernel takes; its results live as long as `reduced`, which goes when its runs have ended.
            Call::Classify(call) => unsafe { self.kernel.launch_grid(stream, *blocks, threads, call) },
            // SAFETY: as above.
            Call::Segment(call) => unsafe { self.kernel.launch_grid(stream, *blocks, threads, call) },
            Call::Detect { call, counts, .. } => {
                counts.clear(stream)?;
                // Places that no box takes have no area.
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
    // SAFETY: it is waited for while they are there.
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
