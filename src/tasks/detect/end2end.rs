//! Detectors that sort out their boxes themselves: one output, with a row of box, score and class number for each box, in this order or
//! another.

use super::{BoxFormat, Columns, Detect, Raw, beside::Follows, boxes::without_ones, columns::Row, finite};
use crate::{
    engine::{Dim, Signature},
    tasks::{Outputs, choose, is_one, wrong_shape},
};

/// More rows than these are anchors: exports have 300 rows, or at most 1000.
pub const ROWS_MAX: usize = 1000;

impl Detect {
    /// Fills in the output; refuses shapes that cannot hold rows.
    pub(super) fn resolve_end2end(&mut self, signature: &Signature) -> Result<(), String> {
        let output = choose(signature, self.output.as_deref(), "detect.output")?;
        self.refuse_multi_label(&format!("rows of output {:?} have a class number each", output.name))?;
        if !output.shape.is_empty() {
            self.check_rows(&output.name, &output.shape)?;
        }
        self.output = Some(output.name.clone());
        self.box_format.get_or_insert(BoxFormat::Xyxy);
        Ok(())
    }

    /// Filler rows have score 0. Like all rows below the minimum score they are dropped, whatever else they hold.
    pub(super) fn read_end2end(&self, outputs: &Outputs<'_>) -> Result<Vec<Raw>, String> {
        let output = outputs.get(self.output.as_deref())?;
        self.check_rows(output.name, &output.shape())?;
        let columns = self.row_columns();
        let (places, behind) = (columns.places(), columns.numbers());
        let width = output.tensor.shape.last().copied().unwrap_or_default().max(1);
        let numbers = output.numbers()?;
        let mut found = Vec::new();
        for (index, row) in numbers.chunks_exact(width).enumerate() {
            let Row { numbers, score, class, image } = places.read(row);
            // Rows of a negative picture number are filler, too; those of the background are no things.
            if score >= self.score_min && image >= 0.0 && !self.is_background(class) {
                if image != 0.0 {
                    return Err(format!(
                        "output {:?} has box {index} of picture {image}, expected those of one picture, 0",
                        output.name
                    ));
                }
                let class = self.class(class);
                let beside =
                    if self.follows() == Follows::Nothing { Vec::new() } else { row[behind..].to_vec() };
                found.push(Raw { numbers: finite(output.name, numbers)?, score, class, row: index, beside });
            }
        }
        Ok(found)
    }

    fn row_columns(&self) -> Columns {
        match (&self.columns, self.follows()) {
            (Some(columns), _) => columns.clone(),
            (None, Follows::Nothing) => Columns::default(),
            (None, _) => Columns::with_more(),
        }
    }

    fn check_rows(&self, name: &str, shape: &[Dim]) -> Result<(), String> {
        let columns = self.row_columns();
        let follows = self.follows();
        if follows != Follows::Nothing && !columns.is_open() {
            return Err(format!(
                "detect.columns is {columns}: \"rest\" at its end stands for what follows{follows}"
            ));
        }
        let takes = |dim| match dim {
            Dim::Fixed(numbers) if follows == Follows::Nothing => columns.takes(numbers),
            Dim::Fixed(numbers) => {
                numbers.checked_sub(columns.numbers()).is_some_and(|rest| follows.widths().contains(&rest))
            }
            Dim::Free => true,
        };
        match without_ones(shape)[..] {
            [batch, _, numbers] if is_one(batch) && takes(numbers) => Ok(()),
            [_, numbers] if takes(numbers) => Ok(()),
            _ => {
                let expected = format!(
                    "[1, boxes, n] or [boxes, n] with {columns}{follows}, as detect.columns says or is by default"
                );
                Err(wrong_shape(name, shape, &expected))
            }
        }
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

    fn task() -> Detect {
        Detect { format: Some(Format::End2end), ..Detect::default() }
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
        assert_eq!(check(Detect { iou_max: Some(0.5), ..task() }, &ROWS).unwrap(), [first, third]);
        let rows = floats(&[5, 6], &ROWS.concat());
        assert_eq!(run(task(), &[("output0", &[-1, 6], rows)], "", None).unwrap(), [first, second, third]);
    }

    #[test]
    fn boxes_of_rows_take_other_forms_and_class_numbers_another_start() {
        // The last one is of the background, which no label names.
        let rows = [
            [0.25, 0.5, 0.25, 0.5, 0.75, 2.0],
            [0.5, 0.5, 0.5, 0.5, 0.1, 0.0],
            [0.5, 0.5, 0.5, 0.5, 0.9, 0.0],
        ];
        let task = Detect {
            box_format: Some(BoxFormat::Cxcywh),
            normalized: Some(true),
            first_class: Some(1),
            ..task()
        };
        assert_eq!(check(task, &rows).unwrap(), [([12.5, 25.0, 37.5, 75.0], 1, 0.75)]);
    }

    #[test]
    fn numbers_of_a_row_come_in_any_order_that_is_said_and_rows_of_no_picture_fill_up() {
        let columns = Columns::of(&["image", "box", "class", "score", "rest"]);
        let task = || Detect { columns: columns.clone(), ..Detect::default() };
        let check = |rows: &[[f32; 9]]| {
            let tensor = floats(&[rows.len(), 9], &rows.concat());
            run(task(), &[("output", &[-1, 9], tensor)], "cat\ndog", None)
        };
        let (first, second) = (
            [0.0, 10.0, 20.0, 30.0, 40.0, 1.0, 0.9, 7.0, 8.0],
            [0.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.5, 0.0, 9.0],
        );
        let none = [-1.0, 0.0, 0.0, 9.0, 9.0, -1.0, 0.8, 0.0, 0.0];
        let expected = [([10.0, 20.0, 30.0, 40.0], 1, 0.9), ([5.0, 6.0, 7.0, 8.0], 0, 0.5)];
        assert_eq!(check(&[second, first, none]).unwrap(), expected);
        let other = [1.0, 10.0, 20.0, 30.0, 40.0, 1.0, 0.9, 0.0, 0.0];
        let error = check(&[first, other]).unwrap_err();
        assert!(error.contains("box 1 of picture 1, expected those of one picture"), "{error}");
        let labels = Labels::default();
        let error = task().resolve(&signature(&[("output", &[-1, 6])]), &labels, None).unwrap_err();
        assert!(error.contains("with 7 or more numbers a row (image, box, class, score, rest)"), "{error}");
        // Columns say which family it is; no other family has them.
        let yolo = Detect { format: Some(Format::Yolo), ..task() };
        let error = yolo.resolve(&signature(&[("output", &[-1, 9])]), &labels, None).unwrap_err();
        assert_eq!(error, "detect.columns is for detect.format = \"end2end\"");
    }

    #[test]
    fn rows_may_have_a_further_axis_of_1_before_them() {
        let columns = Columns::of(&["image", "class", "score", "box"]);
        let rows = [0.0, 1.0, 0.9, 10.0, 20.0, 30.0, 40.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let task = Detect { columns, ..Detect::default() };
        let outputs = [("detection_out", &[1, 1, -1, 7][..], floats(&[1, 1, 2, 7], &rows))];
        assert_eq!(run(task, &outputs, "cat\ndog", None).unwrap(), [([10.0, 20.0, 30.0, 40.0], 1, 0.9)]);
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
        let expected = "has shape [?, 2, 7], expected [1, boxes, n] or [boxes, n] with 6 numbers a row (box, score, class)";
        assert!(error.contains(expected), "{error}");
        let error = check(Detect { objectness: Some(true), ..task() }, &ROWS).unwrap_err();
        assert_eq!(error, "detect.objectness is for detect.format = \"yolo\"");
    }

    #[test]
    fn six_numbers_a_row_are_not_guessed_to_be_anchors() {
        let check = |task: Detect, shape: [i64; 3], labels: &str| {
            let signature = signature(&[("output0", &shape)]);
            let labels = Labels::parse(labels).unwrap();
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
        // The anchors of a YOLOv5 with one class are more than that.
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
        // What the file has settled stays, even if extents match by chance.
        assert_eq!(again(&[-1, 6, -1], &[-1, 6, 6]), Ok(Some(Format::Yolo)));
    }
}
