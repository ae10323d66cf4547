//! Reducing an output to what the answer needs, where that is much less than the output. An engine on a device may do so there, so
//! that only the reduced output leaves the device.
//!
//! The reduced output replaces the output, and its task reads either form. So reducing is optional: an engine on the host does not
//! reduce, since nothing has to be copied, and the task does the same work on the threads that answer. Both give the same answer: masks
//! and boxes to the bit, class scores to 2e-6, since exponentials and sums round differently on a device.

use super::kernels::postprocess::{BoxNumbers, ITEMS_MAX, ScoreActivation};
use serde::{Deserialize, Serialize};

/// The part of an output that a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Reduction {
    /// The best classes with their scores.
    Classify(Best),
    /// The class of each pixel.
    Segment(ClassMap),
    /// The boxes with the required score.
    Detect(Anchors),
}

impl Reduction {
    /// Index in the signature of the output that is reduced.
    pub fn output(&self) -> usize {
        match self {
            Reduction::Classify(best) => best.output,
            Reduction::Segment(map) => map.output,
            Reduction::Detect(anchors) => anchors.output,
        }
    }
}

/// Class scores, `[n, classes]` with any further axes of one, become UINT32 of `[n, top, 2]`: the best, best first, each a [`Scored`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Index of the output in the signature.
    pub output: usize,
    /// Applied to scores before they are compared.
    pub activation: ScoreActivation,
    /// How many classes are kept.
    pub top: usize,
}

/// Most classes that are kept per item: the kernel scans all classes once for each.
const TOP_MAX: usize = 32;
/// An output is only reduced if it has at least this many numbers per class kept: less is not worth a launch.
const CLASSES_EACH: usize = 8;

impl Best {
    /// Items and classes of an output; `None` if its shape does not fit, or is too small to be worth reducing.
    pub(super) fn extents(&self, shape: &[usize]) -> Option<[usize; 2]> {
        let (&items, axes) = shape.split_first()?;
        let classes = *axes.iter().max()?;
        let one = axes.iter().filter(|extent| **extent != 1).count() == 1;
        let taken = (1..=ITEMS_MAX as usize).contains(&items) && u32::try_from(classes).is_ok();
        let fewer = (1..=TOP_MAX).contains(&self.top) && CLASSES_EACH * self.top <= classes;
        (taken && one && fewer).then_some([items, classes])
    }
}

/// 32-bit words per [`Scored`].
pub const SCORED_WORDS: usize = 2;

/// `Scored` of `kernels/postprocess.cu`: a class and its score.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Scored {
    /// The class's number; all bits set for none.
    pub class: u32,
    /// The score after the activation.
    pub score: f32,
}

const _: () = assert!(size_of::<Scored>() == SCORED_WORDS * size_of::<u32>());

/// Scores, `[n, classes, height, width]` or with classes last, become UINT16 of `[n, height, width]`: for each pixel, the class with
/// the highest score, the first of equals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassMap {
    /// Index of the output in the signature.
    pub output: usize,
    /// Whether classes are the last axis.
    pub last: bool,
    /// If there is only one class: a pixel is 1 if its score is at least this, else 0.
    #[serde(with = "crate::bits")]
    pub threshold: f32,
}

impl ClassMap {
    /// Items, classes, height and width of an output; `None` if its shape does not fit, or exceeds what the kernel can take.
    pub(super) fn extents(&self, shape: &[usize]) -> Option<[usize; 4]> {
        let extents = match (shape, self.last) {
            (&[items, height, width, classes], true) | (&[items, classes, height, width], false) => {
                [items, classes, height, width]
            }
            _ => return None,
        };
        let [items, classes, height, width] = extents;
        let taken = (1..=ITEMS_MAX as usize).contains(&items) && (1..=1 << 16).contains(&classes);
        (taken && height > 0 && width > 0).then_some(extents)
    }
}

/// Boxes and scores, `[n, 4 + classes, anchors]` or `[n, anchors, 4 + classes]`, become UINT32 of `[n, candidates, 8]`: the boxes with
/// the required score, in any order, each a [`Candidate`]; unused candidates have no area. Overlapping boxes are all kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Anchors {
    /// Index of the output in the signature.
    pub output: usize,
    /// Whether the shape is `[n, 4 + classes, anchors]`.
    pub channels_first: bool,
    /// Whether the fifth channel is an objectness, by which the best score is multiplied.
    pub objectness: bool,
    /// What the four numbers of a box are.
    pub format: BoxNumbers,
    /// Width and height of the input in pixels, if the numbers of a box are fractions of them.
    pub size: Option<[u32; 2]>,
    /// Boxes of a lower score are left out.
    #[serde(with = "crate::bits")]
    pub score_min: f32,
}

/// Most boxes that are kept per item. An item with more is not reduced.
const CANDIDATES_MAX: usize = 1024;

impl Anchors {
    /// Items, channels and anchors of an output, and the maximum number of candidates per item; `None` if its shape does not fit, or
    /// the reduced output would not be smaller.
    pub(super) fn extents(&self, shape: &[usize]) -> Option<[usize; 4]> {
        let &[items, a, b] = shape else { return None };
        let [channels, anchors] = if self.channels_first { [a, b] } else { [b, a] };
        let candidates = anchors.min(CANDIDATES_MAX);
        let taken = (1..=ITEMS_MAX as usize).contains(&items) && u32::try_from(anchors).is_ok();
        let fewer = candidates * CANDIDATE_WORDS < anchors * channels;
        (taken && anchors > 0 && channels > 4 + usize::from(self.objectness) && fewer)
            .then_some([items, channels, anchors, candidates])
    }
}

/// 32-bit words per [`Candidate`].
pub const CANDIDATE_WORDS: usize = 8;

/// `Candidate` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Candidate {
    /// Left, top, right, bottom in pixels of the input.
    pub corners: [f32; 4],
    /// The best class's score, times the objectness if there is one.
    pub score: f32,
    /// The best class.
    pub label: u32,
    /// Index of its anchor in the output: of equal scores the first counts.
    pub anchor: u32,
    /// Padding, 0.
    pub unused: u32,
}

const _: () = assert!(size_of::<Candidate>() == CANDIDATE_WORDS * size_of::<u32>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_classes_are_left_only_where_that_is_much_less() {
        let best = |top| Best { output: 0, activation: ScoreActivation::Softmax, top };
        assert_eq!(best(5).extents(&[3, 1000]), Some([3, 1000]));
        assert_eq!(best(5).extents(&[3, 40, 1, 1]), Some([3, 40]));
        assert_eq!(best(5).extents(&[3, 1, 40]), Some([3, 40]));
        for shape in [&[3, 39][..], &[1000], &[3, 40, 2], &[0, 1000], &[70_000, 1000], &[3, 1], &[3, 0], &[]]
        {
            assert_eq!(best(5).extents(shape), None, "{shape:?}");
        }
        assert_eq!(best(32).extents(&[1, 256]), Some([1, 256]));
        assert_eq!(best(33).extents(&[1, 10_000]), None, "as many passes");
    }

    #[test]
    fn a_class_map_is_told_by_where_the_classes_are() {
        let map = |last| ClassMap { output: 0, last, threshold: 0.5 };
        assert_eq!(map(false).extents(&[2, 21, 8, 9]), Some([2, 21, 8, 9]));
        assert_eq!(map(true).extents(&[2, 8, 9, 21]), Some([2, 21, 8, 9]));
        for shape in [&[21, 8, 9][..], &[0, 21, 8, 9], &[2, 70_000, 8, 9], &[2, 0, 8, 9], &[2, 21, 8, 0]] {
            assert_eq!(map(false).extents(shape), None, "{shape:?}");
        }
    }

    #[test]
    fn boxes_are_reduced_only_where_fewer_numbers_are_left() {
        let anchors = |channels_first, objectness| Anchors {
            output: 0,
            channels_first,
            objectness,
            format: BoxNumbers::Cxcywh,
            size: None,
            score_min: 0.25,
        };
        assert_eq!(anchors(true, false).extents(&[2, 84, 8400]), Some([2, 84, 8400, 1024]));
        assert_eq!(anchors(false, false).extents(&[2, 100, 9]), Some([2, 9, 100, 100]));
        assert_eq!(anchors(false, false).extents(&[2, 100, 8]), None, "as many");
        assert_eq!(anchors(true, true).extents(&[2, 5, 8400]), None, "no class");
        assert_eq!(anchors(true, false).extents(&[84, 8400]), None);
    }
}
