//! The parameters of launching `kernels/postprocess.cu`. Launching is not done here. `tasks` defines what outputs mean: if a launch
//! sets an item's fault, `tasks` examines the outputs.

#[cfg(all(test, kernels_emulated))]
pub(crate) mod emulated;

use serde::{Deserialize, Serialize};

/// A kernel and how it is launched: each item is a block along x, or a row of blocks, one row per item along y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postprocess {
    /// The kernel in `kernels/generated/postprocess.ptx`.
    pub kernel: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// Whether each thread works on a part of an item, rather than a block on all of it.
    pub by_parts: bool,
}

/// Takes a [`ClassifyCall`].
pub const CLASSIFY: Postprocess = Postprocess { kernel: "classify", threads: 128, by_parts: false };
/// Takes a [`DetectCall`]; parts are anchors.
pub const DETECT_CANDIDATES: Postprocess =
    Postprocess { kernel: "detect_candidates", threads: 128, by_parts: true };
/// Takes the same [`DetectCall`].
pub const DETECT_SUPPRESS: Postprocess =
    Postprocess { kernel: "detect_suppress", threads: 256, by_parts: false };
/// Takes a [`SegmentCall`]; parts are pixels.
pub const SEGMENT: Postprocess = Postprocess { kernel: "segment", threads: 256, by_parts: true };

/// Items that one launch takes.
pub const ITEMS_MAX: u32 = 65_535;

impl Postprocess {
    /// Blocks of a launch for `items` items of `parts` parts each.
    pub fn blocks(&self, items: u32, parts: u64) -> [u32; 3] {
        match self.by_parts {
            true => [parts.div_ceil(u64::from(self.threads)) as u32, items, 1],
            false => [items, 1, 1],
        }
    }
}

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit)]
#[repr(u32)]
pub enum NumberType {
    /// IEEE single.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// Signed integers of 64 bits; beyond 2^24 they are rounded to singles, as `tasks` does.
    I64 = 2,
    /// Signed integers of 32 bits.
    I32 = 3,
}

/// A tensor on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit)]
#[repr(C)]
pub struct Numbers {
    address: u64,
    number_type: u32,
    unused: u32,
}

impl Numbers {
    /// No tensor, if a model has no such output.
    pub const NONE: Numbers = Numbers { address: 0, number_type: 0, unused: 0 };

    /// Elements of this type from an address on.
    pub fn new(address: u64, number_type: NumberType) -> Numbers {
        Numbers { address, number_type: number_type as u32, unused: 0 }
    }
}

/// The function applied to scores before they are compared and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit, Serialize, Deserialize)]
#[repr(u32)]
pub enum ScoreActivation {
    /// Exponentials over their sum.
    Softmax = 0,
    /// The logistic function.
    Sigmoid = 1,
    /// Nothing.
    None = 2,
}

/// `ClassifyCall` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit)]
#[repr(C)]
pub struct ClassifyCall {
    /// `[items, classes]`.
    pub scores: Numbers,
    /// At least 1.
    pub classes: u32,
    /// Applied to the scores.
    pub activation: ScoreActivation,
    /// Classes that are answered, at least 1; may be more than there are.
    pub top: u32,
    /// 0.
    pub unused: u32,
    /// `[items, top]` of [`Scored`](crate::engine::reduction::Scored), the best first; of equal ones the first.
    pub best: u64,
    /// `[items]` of `u32`: 1 if a score is not finite.
    pub faults: u64,
}

/// What the four numbers of a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::NoUninit, Serialize, Deserialize)]
#[repr(u32)]
pub enum BoxNumbers {
    /// Left, top, right, bottom.
    Xyxy = 0,
    /// Top, left, bottom, right.
    Yxyx = 1,
    /// Centre x, centre y, width, height.
    Cxcywh = 2,
    /// Left, top, width, height.
    Xywh = 3,
}

/// Elements from one item, anchor or channel to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, bytemuck::NoUninit)]
#[repr(C)]
pub struct Strides {
    /// From item to item of the batch.
    pub item: u64,
    /// From box to box.
    pub anchor: u64,
    /// From number to number of a box, or from class to class.
    pub channel: u64,
}

/// `DetectPlacement` of `kernels/postprocess.cu`: where an item's image lies in the model's input, along x and y.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct DetectPlacement {
    /// Its top left corner, input pixels.
    pub offset: [f64; 2],
    /// Its size, input pixels.
    pub resized: [f64; 2],
    /// Its size as it was posted; boxes are clipped to it.
    pub source: [f64; 2],
    /// The size of the input, if boxes are fractions of it.
    pub size: [f32; 2],
    /// 1; or 0 if boxes stay as the model gives them.
    pub placed: u32,
    /// 0.
    pub unused: u32,
}

/// `Detection` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct DeviceDetection {
    /// Left, top, right, bottom in pixels of the posted image.
    pub corners: [f32; 4],
    /// The model's confidence.
    pub score: f32,
    /// Class index.
    pub label: u32,
}

/// Bytes of an entry of [`DetectCall::candidates`].
pub const CANDIDATE_BYTES: usize = 32;

/// `DetectCall` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::NoUninit)]
#[repr(C)]
pub struct DetectCall {
    /// Four numbers for each anchor.
    pub boxes: Numbers,
    /// As many as `classes` for each anchor.
    pub scores: Numbers,
    /// A factor of the best score for each anchor; or none.
    pub objectness: Numbers,
    /// `[items, anchors]` class numbers, if scores have one channel; or none.
    pub labels: Numbers,
    /// `[items]`: how many anchors are valid; or none.
    pub counts: Numbers,
    /// Strides of the boxes.
    pub boxes_by: Strides,
    /// Strides of the scores.
    pub scores_by: Strides,
    /// Strides of the objectness.
    pub objectness_by: Strides,
    /// Boxes of an item.
    pub anchors: u32,
    /// Scores of a box, at least 1.
    pub classes: u32,
    /// The number of the first class in `labels`.
    pub first_class: f32,
    /// What the numbers of a box are.
    pub format: BoxNumbers,
    /// 1 if coordinates are fractions of the input's size.
    pub normalized: u32,
    /// Boxes of a lower score are left out.
    pub score_min: f32,
    /// A box is removed if a better one of its class overlaps it by more.
    pub iou_max: f32,
    /// Most boxes that are answered per item.
    pub detections_max: u32,
    /// Room for candidates per item; `anchors` suffices. An item with more has a fault.
    pub candidates_max: u32,
    /// 0.
    pub unused: u32,
    /// `[items]` of [`DetectPlacement`].
    pub placements: u64,
    /// `[items, candidates_max]` entries of [`CANDIDATE_BYTES`], working memory.
    pub candidates: u64,
    /// `[items]` of `u32`, 0 before.
    pub candidate_counts: u64,
    /// `[items, detections_max]` of [`DeviceDetection`], the best first.
    pub detections: u64,
    /// `[items]` of `u32`: the number of detections.
    pub detection_counts: u64,
    /// `[items]` of `u32`, 0 before: 1 if outputs cannot be answered.
    pub faults: u64,
}

/// `SegmentCall` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::NoUninit)]
#[repr(C)]
pub struct SegmentCall {
    /// `[items, classes, pixels]`, or `[items, pixels, classes]`.
    pub scores: Numbers,
    /// Pixels of an item.
    pub pixels: u64,
    /// 1 to 65536.
    pub classes: u32,
    /// 1 if classes are the last axis.
    pub last: u32,
    /// If there is only one class: a pixel is 1 if its score is at least this, else 0.
    pub threshold: f32,
    /// 0.
    pub unused: u32,
    /// `[items, pixels]` of `u16`: the best class, the first of equals.
    pub best: u64,
    /// `[items]` of `u32`, 0 before: 1 if a score is NaN.
    pub faults: u64,
}
