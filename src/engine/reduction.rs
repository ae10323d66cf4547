//! What of an output is answered, where that is much less than the output: an engine on a device may make it there, so that only
//! this leaves it.
//!
//! What is left comes in the output's place and is again something that its task reads, so an engine may reduce and need not: one on
//! the host copies nothing, and the task does the same on the threads that answer. Both give the same answer: masks and boxes to the
//! bit, scores of classes to 2e-6, since a device's exponentials and sums round otherwise.

use super::kernels::postprocess::{BoxNumbers, ITEMS_MAX, ScoreActivation};
use serde::{Deserialize, Serialize};

/// What of an output a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Reduction {
    /// The best classes with their scores.
    Classify(Best),
    /// The class of each pixel.
    Segment(ClassMap),
    /// The boxes of the score that is asked for.
    Detect(Anchors),
}

impl Reduction {
    /// The output that is read: its place in the signature.
    pub fn output(&self) -> usize {
        match self {
            Reduction::Classify(best) => best.output,
            Reduction::Segment(map) => map.output,
            Reduction::Detect(anchors) => anchors.output,
        }
    }
}

/// From scores of classes, `[n, classes]` and axes of one, to UINT32 of `[n, top, 2]`: the best, best first, each a [`Scored`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The output's place in the signature.
    pub output: usize,
    /// What becomes of scores before they are compared.
    pub activation: ScoreActivation,
    /// How many are left.
    pub top: usize,
}

/// Classes that are left of an item at most: the kernel looks at all of them once for each.
const TOP_MAX: usize = 32;
/// Numbers that an output has for each class that is left of it, at least: less is not worth a launch.
const CLASSES_EACH: usize = 8;

impl Best {
    /// Items and classes; `None` if the shape is another, or too small to be worth reducing.
    pub(super) fn extents(&self, shape: &[usize]) -> Option<[usize; 2]> {
        let (&items, axes) = shape.split_first()?;
        let classes = *axes.iter().max()?;
        let one = axes.iter().filter(|extent| **extent != 1).count() == 1;
        let taken = (1..=ITEMS_MAX as usize).contains(&items) && u32::try_from(classes).is_ok();
        let fewer = (1..=TOP_MAX).contains(&self.top) && CLASSES_EACH * self.top <= classes;
        (taken && one && fewer).then_some([items, classes])
    }
}

/// Words of a [`Scored`].
pub const SCORED_WORDS: usize = 2;

/// `Scored` of `kernels/postprocess.cu`: a class and its score.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Scored {
    /// Its number; all ones for none.
    pub class: u32,
    /// After the activation.
    pub score: f32,
}

const _: () = assert!(size_of::<Scored>() == SCORED_WORDS * size_of::<u32>());

/// From scores to classes: `[n, classes, height, width]`, or with classes last, to UINT16 of `[n, height, width]`. The class with the
/// highest score, the first of equals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassMap {
    /// The output's place in the signature.
    pub output: usize,
    /// Classes are the last axis.
    pub last: bool,
    /// For one class: 1 from here on, 0 below.
    #[serde(with = "crate::bits")]
    pub threshold: f32,
}

impl ClassMap {
    /// Items, classes, height and width of an output; `None` where it has not such a shape, or a kernel cannot take so many.
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

/// From boxes and scores, `[n, 4 + classes, anchors]` or `[n, anchors, 4 + classes]`, to UINT32 of `[n, candidates, 8]`: the boxes of
/// the score asked for, in any order, each a [`Candidate`]; those left over have no area. What overlaps is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Anchors {
    /// The output's place in the signature.
    pub output: usize,
    /// `[n, 4 + classes, anchors]`.
    pub channels_first: bool,
    /// The fifth channel is one, which multiplies the best score.
    pub objectness: bool,
    /// What the four numbers of a box are.
    pub format: BoxNumbers,
    /// Width and height of the input in pixels, where the numbers are parts of them.
    pub size: Option<[u32; 2]>,
    /// Boxes of a lower score are left out.
    #[serde(with = "crate::bits")]
    pub score_min: f32,
}

/// Boxes that are left of an item at most. One that has more comes as it is.
const CANDIDATES_MAX: usize = 1024;

impl Anchors {
    /// Items, channels and anchors of an output, and how many candidates of each item there may be; `None` where it has not such a
    /// shape, or as many would be left.
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

/// Words of a [`Candidate`].
pub const CANDIDATE_WORDS: usize = 8;

/// `Candidate` of `kernels/postprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Candidate {
    /// Left, top, right, bottom in pixels of the input.
    pub corners: [f32; 4],
    /// The best class's, by the objectness where there is one.
    pub score: f32,
    /// That class.
    pub label: u32,
    /// Where in the output it was: of equal scores the first counts.
    pub anchor: u32,
    /// 0.
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
