//! Turns a model's outputs into answers, and warns the model's author of labels or boxes that look wrong.

use super::Model;
use crate::{
    engine::Tensor,
    image::Placement,
    tasks::{Answer, Task},
};
use std::sync::atomic::Ordering;

/// How many answers are checked for boxes that are fractions of the input's size. The bound matters because outputs of answers
/// without boxes are read twice.
const LOOKS_MAX: usize = 100;

impl Model {
    /// The answer for one item. `task` is the model's own or one that a request has changed. If the model has labels and a class
    /// has none, the log says so once: nothing else shows that the labels are shifted or too few. The log likewise says once if
    /// boxes are a pixel large, or if none of a box is left.
    ///
    /// # Errors
    /// As [`Task::answer`].
    pub fn answer(
        &self,
        task: &Task,
        outputs: &[Tensor],
        placement: Option<&Placement>,
    ) -> Result<Answer, String> {
        let answer = task.answer(outputs, &self.signature, &self.labels, placement)?;
        if let Some(told) = self.first_nameless(&answer) {
            tracing::warn!(model = &*self.name, version = &*self.version, "{told}");
        }
        if let Some(told) = self.first_in_parts(task, outputs, placement) {
            tracing::warn!(model = &*self.name, version = &*self.version, "{told}");
        }
        Ok(answer)
    }

    /// The warning for the model's first boxes, if they seem to be fractions of the input's size that are read as its pixels.
    fn first_in_parts(
        &self,
        task: &Task,
        outputs: &[Tensor],
        placement: Option<&Placement>,
    ) -> Option<&'static str> {
        if self.looks.load(Ordering::Relaxed) >= LOOKS_MAX {
            return None;
        }
        self.looks.fetch_add(1, Ordering::Relaxed);
        let seem_parts = task.seem_parts(outputs, &self.signature, &self.labels, placement)?;
        let is_first = self.looks.swap(LOOKS_MAX, Ordering::Relaxed) < LOOKS_MAX;
        (seem_parts && is_first).then_some(
            "no number of any box is more than 1.5, which were pixels of the input: are they parts of its size (detect.normalized = true)?",
        )
    }

    /// The warning for the model's first class without a label.
    fn first_nameless(&self, answer: &Answer) -> Option<String> {
        if self.labels.is_empty() || self.nameless.load(Ordering::Relaxed) {
            return None;
        }
        let class = match answer {
            Answer::Classes(classes) => classes.iter().find(|class| class.label.is_none())?.index,
            Answer::Detections(boxes) => boxes.iter().find(|found| found.label.is_none())?.index,
            Answer::Mask(mask) => mask.present.iter().find(|class| class.label.is_none())?.index.into(),
            Answer::Picture(_) | Answer::Landmarks(_) | Answer::Vector(_) | Answer::Tensors(_) => {
                return None;
            }
        };
        if self.nameless.swap(true, Ordering::Relaxed) {
            return None;
        }
        let is = match answer {
            Answer::Detections(_) => ": is detect.first_class, the number that the first label has, right?",
            _ => "",
        };
        Some(format!("class {class} has no name among {} labels{is}", self.labels.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Dim,
        models::testing::{model_of, source},
        tasks::{
            Labels,
            testing::{floats, integers, signature},
        },
    };
    use std::sync::Arc;

    /// What is said of two equal answers.
    fn check(manifest: &str, labels: &str, shape: [i64; 3], output: Tensor, expected: Option<&str>) {
        let mut source = source("m", "1", manifest);
        source.labels = Arc::new(Labels::parse(labels).unwrap());
        let mut signature = signature(&[("y", &shape)]);
        signature.outputs[0].datatype = output.datatype;
        let model = model_of(&source, signature).unwrap();
        let answer =
            model.task.answer(std::slice::from_ref(&output), &model.signature, &model.labels, None).unwrap();
        assert_eq!(model.first_nameless(&answer).as_deref(), expected);
        assert_eq!(model.first_nameless(&answer), None);
        // Answers to requests set the flag as well.
        model.nameless.store(false, Ordering::Relaxed);
        model.answer(&model.task, &[output], None).unwrap();
        assert_eq!(model.nameless.load(Ordering::Relaxed), expected.is_some());
    }

    #[test]
    fn boxes_that_seem_parts_of_the_input_and_are_read_as_pixels_are_told_once() {
        let check = |keys: &str, boxes: [&[f32]; 2], expected: bool| {
            let manifest = format!("task = \"detect\"\n[detect]\nformat = \"end2end\"\n{keys}");
            let source = source("m", "1", &manifest);
            let mut signature = signature(&[("y", &[-1, -1, 6])]);
            signature.inputs[0].shape[2..].fill(Dim::Fixed(320));
            let model = model_of(&source, signature).unwrap();
            let mut told = Vec::new();
            for rows in boxes {
                let outputs = [floats(&[1, rows.len() / 6, 6], rows)];
                model.answer(&model.task, &outputs, None).unwrap();
                model.looks.store(0, Ordering::Relaxed);
                told.push(model.first_in_parts(&model.task, &outputs, None).is_some());
                assert_eq!(model.first_in_parts(&model.task, &outputs, None), None, "once");
            }
            assert_eq!(told[1], expected, "{keys} {boxes:?}");
            assert!(!told[0], "nothing is of the score asked for");
        };
        let [parts, pixels] = [[0.1, 0.2, 0.5, 1.1, 0.9, 3.0], [0.1, 0.2, 50.0, 60.0, 0.9, 3.0]];
        let none = [0.0, 0.0, 1.0, 1.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0];
        check("", [&none, &parts], true);
        // A centre and a size: read as corners, this box has no area.
        check("", [&none, &[0.6, 0.5, 0.2, 0.3, 0.9, 3.0]], true);
        check("", [&none, &pixels], false);
        check("", [&none, &[parts, pixels].concat()], false);
        check("normalized = true", [&none, &parts], false);
    }

    #[test]
    fn a_class_without_a_label_is_told_once() {
        let detect = "task = \"detect\"\n[detect]\nformat = \"end2end\"";
        let row = |class| floats(&[1, 1, 6], &[1.0, 1.0, 4.0, 4.0, 0.9, class]);
        let of = |labels: &str, class, expected| check(detect, labels, [-1, 1, 6], row(class), expected);
        of("a\nb", 1.0, None);
        let first = "class 2 has no name among 2 labels: is detect.first_class, the number that the first label has, right?";
        of("a\nb", 2.0, Some(first));
        // A model without labels misses none.
        of("", 2.0, None);
        let mask = integers(&[1, 2, 2], &[0, 1, 255, 1]);
        let segment = |labels: &str, expected| {
            check("task = \"segment\"", labels, [-1, 2, 2], mask.clone(), expected);
        };
        segment("a\nb", Some("class 255 has no name among 2 labels"));
        segment("", None);
    }
}
