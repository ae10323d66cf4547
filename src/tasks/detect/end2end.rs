//! Detectors that sort out their boxes themselves: one output, a row of box, score and class number for each.

use super::{BoxFormat, Detect, Raw, finite};
use crate::{
    engine::{Dim, Signature},
    tasks::{Outputs, choose, is_one, wrong_shape},
};

/// Four numbers of a box, its score, its class number.
pub(super) const COLUMNS: usize = 6;
/// More than these are anchors: exports have 300 rows, or 1000 at most.
pub(super) const ROWS_MAX: usize = 1000;

const SHAPE: &str = "[1, boxes, 6] or [boxes, 6]: four numbers of a box, its score, its class number";

impl Detect {
    /// Fills in the output; refuses shapes that cannot hold rows.
    pub(super) fn resolve_end2end(&mut self, signature: &Signature) -> Result<(), String> {
        let output = choose(signature, self.output.as_deref(), "detect.output")?;
        if !output.shape.is_empty() {
            check_rows(&output.name, &output.shape)?;
        }
        self.output = Some(output.name.clone());
        self.box_format.get_or_insert(BoxFormat::Xyxy);
        Ok(())
    }

    /// Rows of no score fill up: like all below the score asked for they go, whatever else they hold.
    pub(super) fn read_end2end(&self, outputs: &Outputs<'_>) -> Result<Vec<Raw>, String> {
        let output = outputs.get(self.output.as_deref())?;
        check_rows(output.name, &output.shape())?;
        let numbers = output.numbers()?;
        let (rows, _) = numbers.as_chunks::<COLUMNS>();
        let mut found = Vec::new();
        for (index, &[a, b, c, d, score, class]) in rows.iter().enumerate() {
            if score >= self.score_min {
                let class = self.class(class).ok_or_else(|| self.no_class(output.name, index))?;
                found.push(Raw { numbers: finite(output.name, [a, b, c, d])?, score, class });
            }
        }
        Ok(found)
    }
}

fn check_rows(name: &str, shape: &[Dim]) -> Result<(), String> {
    match *shape {
        [batch, _, columns] if is_one(batch) && columns.takes(COLUMNS) => Ok(()),
        [_, columns] if columns.takes(COLUMNS) => Ok(()),
        _ => Err(wrong_shape(name, shape, SHAPE)),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Format, testing::*},
        *,
    };
    use crate::{
        image::{Preprocess, Resize},
        tasks::{Labels, testing::*},
    };

    /// Two boxes of one class, one over the other; one of another class; two rows that fill up.
    const ROWS: [[f32; 6]; 5] = [
        [10.0, 20.0, 30.0, 40.0, 0.9, 1.0],
        [11.0, 20.0, 31.0, 40.0, 0.8, 1.0],
        [50.0, 60.0, 70.0, 120.0, 0.7, 0.0],
        [0.0; 6],
        [0.0, 0.0, 0.0, 0.0, 0.0, -1.0],
    ];

    /// As a manifest gives it: what the model has sorted out is not sorted out again.
    fn task() -> Detect {
        Detect { format: Some(Format::End2end), iou_max: 1.0, ..Detect::default() }
    }

    fn check(task: Detect, rows: &[[f32; 6]]) -> Result<Vec<Seen>, String> {
        let tensor = floats(&[1, rows.len(), 6], &rows.concat());
        run(task, &[("output0", &[-1, rows.len() as i64, 6], tensor)], "cat\ndog", None)
    }

    #[test]
    fn rows_of_box_score_and_class_are_answered_as_they_are() {
        let first = ([10.0, 20.0, 30.0, 40.0], 1, 0.9);
        let second = ([11.0, 20.0, 31.0, 40.0], 1, 0.8);
        let third = ([50.0, 60.0, 70.0, 100.0], 0, 0.7);
        assert_eq!(check(task(), &ROWS).unwrap(), [first, second, third]);
        assert_eq!(check(Detect { score_min: 0.75, ..task() }, &ROWS).unwrap(), [first, second]);
        assert_eq!(check(Detect { score_min: 0.8, ..task() }, &ROWS).unwrap(), [first, second]);
        assert_eq!(check(Detect { iou_max: 0.5, ..task() }, &ROWS).unwrap(), [first, third]);
        let rows = floats(&[5, 6], &ROWS.concat());
        assert_eq!(run(task(), &[("output0", &[-1, 6], rows)], "", None).unwrap(), [first, second, third]);
    }

    #[test]
    fn boxes_of_rows_take_other_forms_and_class_numbers_another_start() {
        let rows = [[0.25, 0.5, 0.25, 0.5, 0.75, 2.0], [0.5, 0.5, 0.5, 0.5, 0.1, 0.0]];
        let task = Detect {
            box_format: Some(BoxFormat::Cxcywh),
            normalized: Some(true),
            first_class: Some(1),
            ..task()
        };
        assert_eq!(check(task, &rows).unwrap(), [([12.5, 25.0, 37.5, 75.0], 1, 0.75)]);
    }

    #[test]
    fn parts_of_an_image_that_keeps_its_size_are_of_its_own_width_and_height() {
        let (signature, labels) = (signature(&[("output0", &[-1, 1, 6])]), Labels::default());
        let task = Detect { normalized: Some(true), ..task() }.resolve(&signature, &labels, None).unwrap();
        let tensors = [floats(&[1, 1, 6], &[0.0, 0.0, 1.0, 1.0, 0.9, 0.0])];
        let outputs = Outputs::new(&tensors, &signature).unwrap();
        let placement = Preprocess { resize: Resize::Exact, ..Preprocess::new(200, 100) }.placement(200, 100);
        let found = task.answer(&outputs, &labels, Some(&placement)).unwrap();
        let corners: Vec<_> = found.iter().map(|found| [found.x0, found.y0, found.x1, found.y1]).collect();
        assert_eq!(corners, [[0.0, 0.0, 200.0, 100.0]]);
    }

    #[test]
    fn rows_that_hold_no_box_are_errors_if_they_count() {
        let error = check(task(), &[[0.0, 0.0, 9.0, 9.0, 0.9, 0.5]]).unwrap_err();
        assert!(
            error.contains("\"output0\" has a class number at box 0 that is not a whole number"),
            "{error}"
        );
        let error = check(task(), &[[0.0, 0.0, f32::INFINITY, 9.0, 0.9, 1.0]]).unwrap_err();
        assert!(error.contains("expected finite numbers"), "{error}");
        let wrong = floats(&[1, 2, 7], &[0.0; 14]);
        let error = run(task(), &[("output0", &[-1, 2, 7], wrong)], "", None).unwrap_err();
        assert!(error.contains("has shape [?, 2, 7], expected [1, boxes, 6]"), "{error}");
        let error = check(Detect { objectness: Some(true), ..task() }, &ROWS).unwrap_err();
        assert_eq!(error, "detect.objectness is for detect.format = \"yolo\"");
    }

    #[test]
    fn six_numbers_a_row_are_not_guessed_to_be_anchors() {
        let check = |task: Detect, shape: [i64; 3], labels: &str| {
            let signature = signature(&[("output0", &shape)]);
            let labels = if labels.is_empty() { Labels::default() } else { Labels::parse(labels).unwrap() };
            task.resolve(&signature, &labels, None).map(|_| ())
        };
        for labels in ["", "person", "cat\ndog", "a\nb\nc\nd"] {
            for rows in [300, 1000] {
                let error = check(Detect::default(), [-1, rows, 6], labels).unwrap_err();
                assert!(
                    error.contains("detect.format = \"yolo\"")
                        && error.contains("detect.format = \"end2end\""),
                    "{error}"
                );
            }
        }
        // The anchors of a YOLOv5 of one class are more.
        check(Detect::default(), [-1, 25_200, 6], "person").unwrap();
        check(Detect { format: Some(Format::Yolo), ..Detect::default() }, [-1, 300, 6], "person").unwrap();
        check(Detect { objectness: Some(true), ..Detect::default() }, [-1, 300, 6], "person").unwrap();
        for labels in ["", "person", "cat\ndog", "a\nb\nc"] {
            let error = check(Detect::default(), [-1, -1, 6], labels).unwrap_err();
            assert!(error.contains("[?, ?, 6] can be read both ways"), "{error}");
        }
        check(Detect { format: Some(Format::Yolo), ..Detect::default() }, [-1, -1, 6], "cat\ndog").unwrap();
    }

    #[test]
    fn what_the_file_leaves_open_is_asked_again_of_the_shape_that_was_seen() {
        let labels = Labels::parse("cat\ndog").unwrap();
        let again = |open: &[i64], seen: &[i64]| {
            let task = Detect::default().resolve(&signature(&[("y", open)]), &labels, None).unwrap();
            task.resolve(&signature(&[("y", seen)]), &labels, None).map(|task| task.format)
        };
        for open in [&[-1, -1, -1][..], &[]] {
            let error = again(open, &[-1, 300, 6]).unwrap_err();
            assert!(error.contains("set detect.format"), "{error}");
            assert_eq!(again(open, &[-1, 8400, 6]), Ok(Some(Format::Yolo)));
            assert_eq!(again(open, &[-1, 6, 300]), Ok(Some(Format::Yolo)));
            assert!(again(open, &[-1, 85, 8400]).unwrap_err().contains("expected 6 channels"));
        }
        // What was told by the file stays, whatever is alike by chance.
        assert_eq!(again(&[-1, 6, -1], &[-1, 6, 6]), Ok(Some(Format::Yolo)));
    }
}
