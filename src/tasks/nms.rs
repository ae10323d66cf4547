//! Greedy non-maximum suppression, class by class.

use super::quad::{self, Quad};

/// The best candidates are examined, at most this many. Other implementations have the same limit. It bounds the work per image to this
/// many times the number of detections in the answer.
pub const CANDIDATES_MAX: usize = 30_000;

/// A box that may become a detection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Corners `x0, y0, x1, y1`; `x0 < x1` and `y0 < y1`.
    pub corners: [f32; 4],
    /// Never NaN.
    pub score: f32,
    /// Class index.
    pub class: usize,
    /// The corners of a rotated box; `corners` are then those of the upright box around it.
    pub quad: Option<Quad>,
    /// Its index among all boxes that were found.
    pub from: usize,
}

/// The candidates that are kept, highest score first, equal scores in the order they came (0 is above -0, as on GPUs); at most
/// `detections_max`.
///
/// A candidate is suppressed if it overlaps a better one of its own class by more than `iou_max` (intersection over union); at 1 all are
/// kept.
pub fn suppress(mut candidates: Vec<Candidate>, iou_max: f32, detections_max: usize) -> Vec<Candidate> {
    // The sort is stable, so ties keep their order.
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    candidates.truncate(CANDIDATES_MAX);
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if kept.len() == detections_max {
            break;
        }
        let covered = iou_max < 1.0
            && kept
                .iter()
                .any(|better| better.class == candidate.class && overlap(better, &candidate) > iou_max);
        if !covered {
            kept.push(candidate);
        }
    }
    kept
}

/// Intersection over union; for rotated boxes, that of the rotated boxes themselves.
fn overlap(a: &Candidate, b: &Candidate) -> f32 {
    let upright = iou(&a.corners, &b.corners);
    match (&a.quad, &b.quad) {
        (Some(a), Some(b)) if upright > 0.0 => quad::iou(a, b),
        _ => upright,
    }
}

/// Intersection over union of two boxes given as corners `x0, y0, x1, y1`; 0 when both are empty.
pub fn iou(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |b: &[f32; 4]| (b[2] - b[0]).max(0.0) * (b[3] - b[1]).max(0.0);
    let shared = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let union = area(a) + area(b) - shared;
    if union > 0.0 { shared / union } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(corners: [f32; 4], score: f32, class: usize) -> Candidate {
        Candidate { corners, score, class, quad: None, from: 0 }
    }

    #[test]
    fn iou_of_known_boxes() {
        // 10 × 10 boxes shifted by 5: 50 shared of 150.
        assert_eq!(iou(&[0.0, 0.0, 10.0, 10.0], &[5.0, 0.0, 15.0, 10.0]), 1.0 / 3.0);
        assert_eq!(iou(&[0.0, 0.0, 10.0, 10.0], &[10.0, 0.0, 20.0, 10.0]), 0.0);
        assert_eq!(iou(&[0.0; 4], &[0.0; 4]), 0.0);
    }

    /// a overlaps b by 1/3 and b overlaps c by 1/3; a and c do not touch.
    fn row() -> Vec<Candidate> {
        vec![
            at([10.0, 0.0, 20.0, 10.0], 0.7, 0),
            at([0.0, 0.0, 10.0, 10.0], 0.9, 0),
            at([5.0, 0.0, 15.0, 10.0], 0.8, 0),
        ]
    }

    fn scores(kept: &[Candidate]) -> Vec<f32> {
        kept.iter().map(|c| c.score).collect()
    }

    #[test]
    fn a_box_goes_when_a_better_one_that_stays_covers_it() {
        // b is suppressed by a; c is kept, since b is gone.
        assert_eq!(scores(&suppress(row(), 0.3, 10)), [0.9, 0.7]);
        assert_eq!(scores(&suppress(row(), 0.34, 10)), [0.9, 0.8, 0.7]);
        assert_eq!(scores(&suppress(row(), 1.0, 2)), [0.9, 0.8]);
    }

    #[test]
    fn classes_do_not_suppress_each_other() {
        let mut boxes = row();
        boxes[2].class = 1;
        assert_eq!(scores(&suppress(boxes, 0.3, 10)), [0.9, 0.8, 0.7]);
    }

    #[test]
    fn only_the_best_candidates_are_looked_at() {
        let boxes =
            (0..CANDIDATES_MAX + 10).map(|i| at([i as f32, 0.0, i as f32 + 0.5, 1.0], i as f32, 0)).collect();
        let kept = suppress(boxes, 1.0, usize::MAX);
        assert_eq!(kept.len(), CANDIDATES_MAX);
        assert_eq!(kept.last().unwrap().score, 10.0);
    }

    fn any_box() -> impl Strategy<Value = Candidate> {
        (0_u8..20, 0_u8..20, 1_u8..12, 1_u8..12, 0_u8..8, 0_usize..3).prop_map(
            |(x, y, w, h, score, class)| {
                let [x, y, w, h] = [x, y, w, h].map(f32::from);
                at([x, y, x + w, y + h], f32::from(score), class)
            },
        )
    }

    proptest! {
        #[test]
        fn whoever_stays_overlaps_nobody_and_whoever_goes_is_covered(
            boxes in prop::collection::vec(any_box(), 0..60), iou_max in 0.0_f32..0.99,
        ) {
            let kept = suppress(boxes.clone(), iou_max, usize::MAX);
            let covers = |a: &Candidate, b: &Candidate| a.class == b.class && iou(&a.corners, &b.corners) > iou_max;
            for (i, a) in kept.iter().enumerate() {
                prop_assert!(boxes.contains(a));
                for b in &kept[i + 1..] {
                    prop_assert!(a.score >= b.score && !covers(a, b));
                }
            }
            for b in &boxes {
                prop_assert!(kept.contains(b) || kept.iter().any(|a| a.score >= b.score && covers(a, b)));
            }
        }
    }
}
