//! Detectors with outputs of their own for boxes, scores and classes, as torchvision, TensorFlow and transformers export them.

use super::{BoxFormat, Detect, Raw, finite};
use crate::{
    engine::{Dim, Signature},
    tasks::{Labels, Output, Outputs, is_one, no_such_output, output_names, wrong_shape},
};

/// Names that exporters give: torchvision's, then TensorFlow's.
const BOXES: &[&str] = &["boxes", "detection_boxes"];
const SCORES: &[&str] = &["scores", "detection_scores"];
const CLASSES: &[&str] = &["labels", "classes", "detection_classes"];
const COUNT: &[&str] = &["num_detections"];

impl Detect {
    /// Fills in the outputs; refuses shapes that cannot hold boxes.
    pub(super) fn resolve_boxes(&mut self, signature: &Signature, labels: &Labels) -> Result<(), String> {
        let boxes = find(signature, self.boxes.as_deref(), "boxes", BOXES)?
            .ok_or_else(|| missing(signature, "boxes", BOXES))?;
        let scores = find(signature, self.scores.as_deref(), "scores", SCORES)?
            .ok_or_else(|| missing(signature, "scores", SCORES))?;
        let classes = find(signature, self.classes.as_deref(), "classes", CLASSES)?;
        let count = find(signature, self.count.as_deref(), "count", COUNT)?;

        let shape = |index: usize| &signature.outputs[index].shape[..];
        let name = |index: usize| signature.outputs[index].name.clone();
        if !shape(boxes).is_empty() {
            box_count(&name(boxes), shape(boxes))?;
        }
        self.resolve_scores(&name(scores), shape(scores), classes.is_some(), labels)?;
        // TensorFlow's detectors give parts of the input's size, y first.
        let tensorflow = name(boxes) == "detection_boxes";
        self.box_format.get_or_insert(if tensorflow { BoxFormat::Yxyx } else { BoxFormat::Xyxy });
        self.normalized.get_or_insert(tensorflow);
        self.boxes = Some(name(boxes));
        self.scores = Some(name(scores));
        self.classes = classes.map(name);
        self.count = count.map(name);
        Ok(())
    }

    pub(super) fn read_boxes(&self, outputs: &Outputs<'_>) -> Result<Vec<Raw>, String> {
        let boxes = outputs.get(self.boxes.as_deref())?;
        let Dim::Fixed(n) = box_count(boxes.name, &boxes.shape())? else {
            return Err(wrong_shape(boxes.name, &boxes.shape(), "[1, boxes, 4]"));
        };
        let numbers = boxes.numbers()?;
        let scores = outputs.get(self.scores.as_deref())?;
        let scored = match self.classes.as_deref() {
            Some(classes) => self.classes_given(&scores, &outputs.get(Some(classes))?, n)?,
            None => self.classes_best(&scores, n)?,
        };
        let valid = match self.count.as_deref() {
            Some(count) => read_count(&outputs.get(Some(count))?, n)?,
            None => n,
        };
        let mut found = Vec::new();
        for (index, (class, score)) in scored.into_iter().take(valid).enumerate() {
            if score < self.score_min {
                continue;
            }
            let class =
                class.ok_or_else(|| self.no_class(self.classes.as_deref().unwrap_or_default(), index))?;
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| numbers[index * 4 + i]);
            found.push(Raw { numbers: finite(boxes.name, [a, b, c, d])?, score, class });
        }
        Ok(found)
    }

    /// Scores `[1, N]` and class numbers `[1, N]`. A class that is none is only a mistake if its box is used:
    /// exporters pad with whatever they like.
    fn classes_given(
        &self,
        scores: &Output<'_>,
        classes: &Output<'_>,
        n: usize,
    ) -> Result<Vec<(Option<usize>, f32)>, String> {
        for output in [scores, classes] {
            if !is_column(&output.tensor.shape, n) {
                return Err(wrong_shape(output.name, &output.shape(), &format!("[1, {n}], one per box")));
            }
        }
        let classes = classes.numbers()?.into_iter().map(|number| self.class(number));
        let mut numbers = scores.numbers()?;
        self.activate(scores.name, &mut numbers)?;
        Ok(classes.zip(numbers).collect())
    }
}

/// The number of valid boxes, at most `n`.
fn read_count(count: &Output<'_>, n: usize) -> Result<usize, String> {
    match count.numbers()?[..] {
        [number] if number >= 0.0 && number.fract() == 0.0 => Ok((number as usize).min(n)),
        _ => Err(wrong_shape(count.name, &count.shape(), "one whole number, the number of boxes")),
    }
}

/// Whether a shape is `[1, n]`, `[n]`, or `[1, n, 1]`.
fn is_column(shape: &[usize], n: usize) -> bool {
    matches!(shape, [1, boxes] | [boxes] | [1, boxes, 1] | [boxes, 1] if *boxes == n)
}

/// N of `[1, N, 4]` or `[N, 4]`.
fn box_count(name: &str, shape: &[Dim]) -> Result<Dim, String> {
    match *shape {
        [batch, n, four] if is_one(batch) && four.takes(4) => Ok(n),
        [n, four] if four.takes(4) => Ok(n),
        _ => Err(wrong_shape(name, shape, "[1, boxes, 4] or [boxes, 4]")),
    }
}

/// The output that a setting names, or else the first of the names that exporters give it.
fn find(
    signature: &Signature,
    set: Option<&str>,
    key: &str,
    usual: &[&str],
) -> Result<Option<usize>, String> {
    let position = |name: &str| signature.outputs.iter().position(|o| o.name == name);
    match set {
        Some(name) => match position(name) {
            Some(index) => Ok(Some(index)),
            None => Err(format!("detect.{key}: {}", no_such_output(signature, name))),
        },
        None => Ok(usual.iter().find_map(|name| position(name))),
    }
}

fn missing(signature: &Signature, key: &str, usual: &[&str]) -> String {
    format!(
        "the model has no output named {}; it has {}: name it with detect.{key}",
        usual.join(" or "),
        output_names(signature)
    )
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::{engine::Tensor, tasks::testing::*};

    fn torchvision(task: Detect) -> Result<Vec<Seen>, String> {
        let boxes = floats(&[2, 4], &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 120.0]);
        run(
            task,
            &[
                ("boxes", &[-1, 4], boxes),
                ("labels", &[-1], integers(&[2], &[1, 0])),
                ("scores", &[-1], floats(&[2], &[0.5, 0.9])),
            ],
            "background\ncat",
            None,
        )
    }

    #[test]
    fn torchvision_outputs_are_corners_in_pixels() {
        assert_eq!(
            torchvision(Detect::default()).unwrap(),
            [([50.0, 60.0, 70.0, 100.0], 0, 0.9), ([10.0, 20.0, 30.0, 40.0], 1, 0.5),]
        );
    }

    #[test]
    fn an_infinite_score_is_an_error() {
        let outputs = [
            ("boxes", &[-1, 4][..], floats(&[1, 4], &[10.0, 20.0, 30.0, 40.0])),
            ("labels", &[-1], integers(&[1], &[1])),
            ("scores", &[-1], floats(&[1], &[f32::INFINITY])),
        ];
        let error = run(Detect::default(), &outputs, "", None).unwrap_err();
        assert!(error.contains("output \"scores\" has a box of score inf"), "{error}");
    }

    #[test]
    fn no_detections_are_an_empty_answer() {
        let empty = |shape: &[usize]| floats(shape, &[]);
        let outputs: [(&str, &[i64], Tensor); 3] = [
            ("boxes", &[-1, 4], empty(&[0, 4])),
            ("labels", &[-1], integers(&[0], &[])),
            ("scores", &[-1], empty(&[0])),
        ];
        assert_eq!(run(Detect::default(), &outputs, "", None).unwrap(), []);
    }

    fn tensorflow(classes: &[f32], count: f32) -> Result<Vec<Seen>, String> {
        let boxes = [
            0.25, 0.125, 0.5, 0.75, // y0 x0 y1 x1
            0.0, 0.0, 0.25, 0.25, //
            0.0, 0.0, 0.0, 0.0,
        ];
        run(
            Detect { first_class: 1, ..Detect::default() },
            &[
                ("detection_boxes", &[-1, 3, 4], floats(&[1, 3, 4], &boxes)),
                ("detection_classes", &[-1, 3], floats(&[1, 3], classes)),
                ("detection_scores", &[-1, 3], floats(&[1, 3], &[0.75, 0.5, 0.0])),
                ("num_detections", &[-1], floats(&[1], &[count])),
            ],
            "person\nbicycle",
            None,
        )
    }

    #[test]
    fn tensorflow_outputs_are_parts_of_the_input_with_y_first() {
        let first = ([12.5, 25.0, 75.0, 50.0], 1, 0.75);
        let second = ([0.0, 0.0, 25.0, 25.0], 0, 0.5);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 2.0).unwrap(), [first, second]);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 1.0).unwrap(), [first]);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 100.0).unwrap(), [first, second]);
    }

    #[test]
    fn class_numbers_below_the_first_are_an_error_unless_they_are_padding() {
        let error = tensorflow(&[0.0, 1.0, 0.0], 2.0).unwrap_err();
        assert!(error.contains("\"detection_classes\" has a class number at box 0"), "{error}");
        assert!(tensorflow(&[1.5, 1.0, 0.0], 2.0).is_err());
    }

    #[test]
    fn boxes_in_other_forms_are_understood() {
        let check = |box_format, numbers: [f32; 4]| {
            let task = Detect {
                boxes: Some("b".to_owned()),
                scores: Some("s".to_owned()),
                box_format: Some(box_format),
                ..Detect::default()
            };
            // Scores per class, no output of classes.
            let found = run(
                task,
                &[
                    ("b", &[-1, 1, 4], floats(&[1, 1, 4], &numbers)),
                    ("s", &[-1, 1, 3], floats(&[1, 1, 3], &[0.1, 0.3, 0.6])),
                ],
                "",
                None,
            );
            assert_eq!(found.unwrap(), [([10.0, 20.0, 30.0, 60.0], 2, 0.6)]);
        };
        check(BoxFormat::Xyxy, [10.0, 20.0, 30.0, 60.0]);
        check(BoxFormat::Yxyx, [20.0, 10.0, 60.0, 30.0]);
        check(BoxFormat::Cxcywh, [20.0, 40.0, 20.0, 40.0]);
        check(BoxFormat::Xywh, [10.0, 20.0, 20.0, 40.0]);
    }

    #[test]
    fn outputs_that_are_missing_or_do_not_match_are_named() {
        let boxes = || floats(&[1, 2, 4], &[0.0; 8]);
        let scores = |n: usize| floats(&[1, n], &vec![0.0; n]);
        let check = |outputs: &[(&str, &[i64], Tensor)], expected: &str| {
            assert_eq!(run(Detect::default(), outputs, "", None).unwrap_err(), expected);
        };
        check(
            &[("dets", &[-1, 2, 4], boxes()), ("scores", &[-1, 2], scores(2))],
            "the model has no output named boxes or detection_boxes; it has \"dets\", \"scores\": name it with detect.boxes",
        );
        check(
            &[
                ("boxes", &[-1, 2, 4], boxes()),
                ("scores", &[-1, -1], scores(3)),
                ("labels", &[-1, 2], scores(2)),
            ],
            "output \"scores\" has shape [1, 3], expected [1, 2], one per box",
        );
        check(
            &[("boxes", &[-1, 2, 4], boxes()), ("scores", &[-1, 2], scores(2))],
            "output \"scores\" has shape [1, 2], expected [1, 2, classes], since no output of classes is set",
        );
        check(
            &[("boxes", &[-1, 2, 5], boxes()), ("scores", &[-1, 2], scores(2))],
            "output \"boxes\" has shape [?, 2, 5], expected [1, boxes, 4] or [boxes, 4]",
        );
    }

    #[test]
    fn settings_of_the_other_format_are_refused() {
        let task = Detect { objectness: Some(true), ..Detect::default() };
        assert_eq!(torchvision(task).unwrap_err(), "detect.objectness is for detect.format = \"yolo\"");
    }
}
