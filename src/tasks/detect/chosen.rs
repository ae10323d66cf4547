//! Which classes of a box are answered, if it has a score for each: the best, or with `multi_label` all that reach the minimum score.

use super::Detect;
use crate::tasks::nms::CANDIDATES_MAX;

/// A box that may be answered, with one class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scored {
    /// Its position among the anchors or boxes of the output.
    pub(super) row: usize,
    /// `None` if the model's number is not a class number.
    pub(super) class: Option<usize>,
    pub(super) score: f32,
}

/// Boxes that reach the minimum score, in the order of the output.
pub(super) struct Chosen {
    score_min: f32,
    multi_label: bool,
    found: Vec<Scored>,
}

impl Chosen {
    pub(super) fn new(task: &Detect) -> Chosen {
        Chosen { score_min: task.score_min, multi_label: task.multi_label, found: Vec::new() }
    }

    /// Adds what is answered of the next box, which has these scores by class, each to be multiplied by `objectness`.
    pub(super) fn add(&mut self, row: usize, objectness: f32, scores: impl Iterator<Item = f32>) {
        let scored =
            |(class, score): (usize, f32)| Scored { row, class: Some(class), score: score * objectness };
        let reaches = |scored: &Scored| scored.score >= self.score_min;
        if self.multi_label {
            self.found.extend(scores.enumerate().map(scored).filter(reaches));
            // There may be as many as the output has numbers.
            if self.found.len() >= 2 * CANDIDATES_MAX {
                keep_best(&mut self.found);
            }
            return;
        }
        let mut best = (0, f32::NEG_INFINITY);
        for (class, score) in scores.enumerate() {
            if score > best.1 {
                best = (class, score);
            }
        }
        self.found.extend(Some(scored(best)).filter(reaches));
    }

    /// With `multi_label`, no more than suppression looks at.
    pub(super) fn finish(mut self) -> Vec<Scored> {
        if self.multi_label {
            keep_best(&mut self.found);
            self.found.sort_unstable_by_key(|scored| (scored.row, scored.class));
        }
        self.found
    }
}

/// Drops all but the best, as suppression does: of equal scores the first are kept.
fn keep_best(found: &mut Vec<Scored>) {
    if found.len() > CANDIDATES_MAX {
        let place = |scored: &Scored| (scored.row, scored.class);
        found.select_nth_unstable_by(CANDIDATES_MAX, |a, b| {
            b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
        });
        found.truncate(CANDIDATES_MAX);
    }
}

impl Detect {
    /// Refuses `multi_label` for a model whose boxes have one class each, and says `why` that is so.
    pub(super) fn refuse_multi_label(&self, why: &str) -> Result<(), String> {
        match self.multi_label {
            true => Err(format!(
                "detect.multi_label is for boxes with a score for each of several classes: {why}"
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Columns, Format, Keypoints, testing::*},
        *,
    };
    use crate::tasks::{Activation, Labels, testing::*};

    fn task() -> Detect {
        Detect { multi_label: true, ..Detect::default() }
    }

    const FIRST: [f32; 4] = [10.0, 20.0, 30.0, 40.0];
    const SECOND: [f32; 4] = [50.0, 60.0, 70.0, 80.0];

    #[test]
    fn every_class_of_a_box_that_reaches_the_minimum_score_is_a_detection() {
        let boxes = || floats(&[1, 2, 4], &[FIRST, SECOND].concat());
        let scores = || floats(&[1, 2, 3], &[0.5, 0.75, 0.125, 0.25, 0.0, 0.875]);
        let outputs = || [("boxes", &[-1, 2, 4][..], boxes()), ("scores", &[-1, 2, 3], scores())];
        let all = [(SECOND, 2, 0.875), (FIRST, 1, 0.75), (FIRST, 0, 0.5), (SECOND, 0, 0.25)];
        let found = |task: Detect| run(task, &outputs(), "a\nb\nc", None).unwrap();
        assert_eq!(found(task()), all);
        assert_eq!(found(Detect { score_min: 0.5, ..task() }), all[..3]);
        assert_eq!(found(Detect { detections_max: 2, ..task() }), all[..2], "of all boxes and classes");
        assert_eq!(found(Detect::default()), all[..2], "one a box");
    }

    #[test]
    fn classes_of_one_box_do_not_suppress_each_other_and_those_of_others_do() {
        // The second lies on the first.
        let anchors = [[20.0, 30.0, 20.0, 20.0, 0.5, 0.75], [21.0, 30.0, 20.0, 20.0, 0.625, 0.25]];
        let rows = || floats(&[1, 2, 6], &anchors.concat());
        let found = |iou_max| {
            let task = Detect { format: Some(Format::Yolo), iou_max: Some(iou_max), ..task() };
            run(task, &[("out", &[-1, 2, 6], rows())], "a\nb", None).unwrap()
        };
        let moved = [11.0, 20.0, 31.0, 40.0];
        assert_eq!(found(0.5), [(FIRST, 1, 0.75), (moved, 0, 0.625)]);
        assert_eq!(found(1.0), [(FIRST, 1, 0.75), (moved, 0, 0.625), (FIRST, 0, 0.5), (moved, 1, 0.25)]);
    }

    #[test]
    fn each_score_is_multiplied_by_the_objectness_and_a_background_is_no_class() {
        let anchors =
            [20.0, 30.0, 20.0, 20.0, 0.5, 0.75, 1.0, 0.25, 60.0, 70.0, 20.0, 20.0, 0.125, 1.0, 1.0, 1.0];
        let yolo = Detect { format: Some(Format::Yolo), ..task() };
        let found = run(yolo, &[("out", &[-1, 2, 8], floats(&[1, 2, 8], &anchors))], "a\nb\nc", None);
        assert_eq!(found.unwrap(), [(FIRST, 1, 0.5), (FIRST, 0, 0.375)]);
        let soft = Detect {
            activation: Some(Activation::Softmax),
            background: Some(super::super::Background::Last),
            ..task()
        };
        // e^0.5 / 3 of equal logits of three columns each.
        let outputs = [
            ("boxes", &[-1, 1, 4][..], floats(&[1, 1, 4], &FIRST)),
            ("scores", &[-1, 1, 3], floats(&[1, 1, 3], &[2.0; 3])),
        ];
        let found = run(soft, &outputs, "a\nb", None).unwrap();
        assert_eq!(
            found.iter().map(|found| (found.0, found.1)).collect::<Vec<_>>(),
            [(FIRST, 0), (FIRST, 1)]
        );
        assert!(found.iter().all(|found| (found.2 - 1.0 / 3.0).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn what_a_box_has_beside_its_classes_goes_with_each() {
        let anchors = [20.0, 30.0, 20.0, 20.0, 0.5, 0.75, 15.0, 25.0];
        let task = Detect {
            format: Some(Format::Yolo),
            keypoints: Some(Keypoints { count: 1, names: Labels::default() }),
            ..task()
        };
        let found =
            detections(task, &[("out", &[-1, 1, 8], floats(&[1, 1, 8], &anchors))], "a\nb", None).unwrap();
        let points: Vec<_> =
            found.iter().map(|found| (found.index, found.keypoints[0].x, found.keypoints[0].y)).collect();
        assert_eq!(points, [(1, 15.0, 25.0), (0, 15.0, 25.0)]);
    }

    #[test]
    fn the_best_of_very_many_are_kept_in_the_order_of_the_output() {
        let (rows, classes) = (700, 200);
        // Whole numbers below 1000, each 140 times, in no order.
        let score = |row: usize, class: usize| ((row * classes + class) * 7919 % 1000) as f32;
        let mut chosen = Chosen::new(&Detect { score_min: 0.0, ..task() });
        for row in 0..rows {
            chosen.add(row, 1.0, (0..classes).map(|class| score(row, class)));
            assert!(chosen.found.len() < 2 * CANDIDATES_MAX + classes);
        }
        let found = chosen.finish();
        let mut all: Vec<Scored> = (0..rows)
            .flat_map(|row| (0..classes).map(move |class| (row, class)))
            .map(|(row, class)| Scored { row, class: Some(class), score: score(row, class) })
            .collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all.truncate(CANDIDATES_MAX);
        all.sort_by_key(|scored| (scored.row, scored.class));
        assert_eq!(found.len(), CANDIDATES_MAX);
        assert!(found == all);
    }

    #[test]
    fn where_a_box_has_one_class_there_is_nothing_to_choose_from() {
        let check = |task: Detect, outputs: &[(&str, &[i64])], labels: &str, expected: &str| {
            let labels = Labels::parse(labels).unwrap();
            let error = task.resolve(&signature(outputs), &labels, None).unwrap_err();
            let told = "detect.multi_label is for boxes with a score for each of several classes: ";
            assert_eq!(error, format!("{told}{expected}"));
        };
        let boxes: (&str, &[i64]) = ("boxes", &[-1, 3, 4]);
        let numbered = "output \"labels\" has a class number for each box";
        check(task(), &[boxes, ("scores", &[-1, 3]), ("labels", &[-1, 3])], "", numbered);
        check(task(), &[("dets", &[-1, 3, 5]), ("labels", &[-1, 3])], "", numbered);
        let one = "output \"scores\" has scores of one class";
        check(task(), &[boxes, ("scores", &[-1, 3])], "", one);
        check(task(), &[boxes, ("scores", &[-1, 3, 1])], "face", one);
        let of_two = Detect { background: Some(super::super::Background::First), ..task() };
        check(of_two, &[boxes, ("scores", &[-1, 3, 2])], "face", one);
        check(
            task(),
            &[("dets", &[-1, 3, 5]), ("y", &[-1])],
            "face",
            "output \"dets\" has scores of one class",
        );
        let rows = "rows of output \"y\" have a class number each";
        let end2end = Detect { format: Some(Format::End2end), ..task() };
        check(end2end, &[("y", &[-1, 300, 6])], "", rows);
        let columns = Columns::of(&["image", "box", "class", "score"]);
        check(Detect { columns, ..task() }, &[("y", &[-1, 7])], "", rows);
        check(task(), &[("y", &[-1, 5, 8400])], "face", "output \"y\" has scores of one class");
        let labels = Labels::default();
        let open = signature(&[("boxes", &[-1, -1, 4]), ("scores", &[-1, -1])]);
        assert!(task().resolve(&open, &labels, None).is_ok(), "a pass will tell");
    }

    #[test]
    fn a_device_that_keeps_one_class_a_box_is_not_asked_to_reduce() {
        let signature = signature(&[("y", &[-1, 6, 8400])]);
        let reduces = |task: Detect| {
            let labels = Labels::parse("a\nb").unwrap();
            task.resolve(&signature, &labels, Some([640, 640])).unwrap().anchors(&signature).is_some()
        };
        assert!(reduces(Detect::default()));
        assert!(!reduces(task()));
    }
}
