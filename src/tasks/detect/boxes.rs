//! Detectors with separate outputs for boxes, scores and classes, as torchvision, TensorFlow, transformers and mmdeploy export them.

use super::{BoxFormat, Detect, Format, Raw, beside::OTHERS, chosen::Scored, finite};
use crate::{
    engine::{Dim, Signature, TensorSpec, show},
    tasks::{Labels, Output, Outputs, is_one, no_such_output, numeric, output_names, wrong_shape},
};

/// Names that exporters use: torchvision's, then TensorFlow's, mmdeploy's, transformers', and those of YOLOs that sort out their boxes
/// themselves.
const BOXES: &[&str] = &["boxes", "detection_boxes", "dets", "pred_boxes", "det_boxes"];
const SCORES: &[&str] = &["scores", "detection_scores", "logits", "det_scores"];
pub(super) const CLASSES: &[&str] = &["labels", "classes", "detection_classes", "det_classes"];
const COUNT: &[&str] = &["num_detections", "num_dets"];
pub(super) const KEYPOINTS: &[&str] = &["keypoints", "detection_keypoints"];

impl Detect {
    /// Fills in the outputs. Refuses shapes that cannot hold boxes, and outputs for another number of boxes.
    pub(super) fn resolve_boxes(&mut self, signature: &Signature, labels: &Labels) -> Result<(), String> {
        let shape = |index: usize| &signature.outputs[index].shape[..];
        let name = |index: usize| signature.outputs[index].name.clone();
        let boxes = find(signature, self.boxes.as_deref(), "boxes", BOXES)?
            .ok_or_else(|| missing(signature, "boxes", BOXES))?;
        let classes = find(signature, self.classes.as_deref(), "classes", CLASSES)?;
        let scores = match find(signature, self.scores.as_deref(), "scores", SCORES)? {
            Some(scores) => scores,
            None if shape(boxes).last() == Some(&Dim::Fixed(5)) => boxes,
            None => match classes {
                Some(classes) if matches!(shape(classes), [_, _, Dim::Fixed(2..)]) => {
                    return Err(format!(
                        "output {:?} of shape {} has a number for each class, not one for each box: if these are scores, set \
                         detect.scores = {0:?}, and detect.activation to what makes probabilities of them (\"sigmoid\" for RF-DETR)",
                        name(classes),
                        show(shape(classes))
                    ));
                }
                _ => return Err(missing(signature, "scores", SCORES)),
            },
        };
        // One output cannot be both.
        let classes = classes.filter(|classes| *classes != scores);
        let count = find(signature, self.count.as_deref(), "count", COUNT)?;
        // If boxes include their score and nothing tells the class, there is one class: that of a pose model, or the only label.
        let has_one_class = labels.len() == 1 || labels.is_empty() && self.keypoints.is_some();
        if scores == boxes && classes.is_none() && !has_one_class {
            return Err(missing(signature, "classes", CLASSES));
        }
        // TensorFlow's detectors give fractions of the input's size, y first.
        let (box_format, normalized) = match plain(&name(boxes)) {
            "detection_boxes" => (BoxFormat::Yxyx, true),
            // DETR and its relatives also give fractions, as centres and sizes.
            "pred_boxes" if classes.is_none() => (BoxFormat::Cxcywh, true),
            _ => (BoxFormat::Xyxy, false),
        };
        self.box_format.get_or_insert(box_format);
        self.normalized.get_or_insert(normalized);
        // 0 is the background in TensorFlow's label maps.
        let counts_from_1 = classes.is_some_and(|index| plain(&name(index)) == "detection_classes");
        self.first_class.get_or_insert(counts_from_1.into());
        self.boxes = Some(name(boxes));
        self.scores = Some(name(scores));
        self.classes = classes.map(name);
        self.count = count.map(name);

        let n = match shape(boxes) {
            [] => Dim::Free,
            known => box_count(&name(boxes), known, self.columns())?,
        };
        let batch = match without_ones(shape(boxes))[..] {
            [batch, _, _] => Some(batch),
            _ => None,
        };
        let has_one_score = self.resolve_scores(&name(scores), shape(scores), (batch, n), labels)?;
        let may_be_classes = |index: &usize| {
            ![boxes, scores].contains(index) && Some(*index) != count && shape(*index) == shape(scores)
        };
        if has_one_score
            && labels.is_empty()
            && let Some(other) = (0..signature.outputs.len()).find(may_be_classes)
        {
            return Err(format!(
                "output {:?} of shape {} may have class numbers: name it with detect.classes, or give a labels file of one label if \
                 there is one class",
                name(other),
                show(shape(other))
            ));
        }
        if let Some(classes) = classes {
            for index in [scores, classes] {
                if index != boxes && !shape(index).is_empty() {
                    check_column(&name(index), shape(index), n)?;
                }
            }
        }
        self.resolve_keypoints(signature)?;
        self.resolve_masks(signature, n)?;
        match count {
            Some(count) if !shape(count).iter().copied().all(is_one) => {
                Err(wrong_shape(&name(count), shape(count), COUNTED))
            }
            _ => Ok(()),
        }
    }

    /// Numbers per box; the score may be one of them.
    fn columns(&self) -> usize {
        4 + usize::from(self.scores == self.boxes)
    }

    /// How many boxes an output holds.
    pub(super) fn box_count(&self, outputs: &Outputs<'_>) -> Result<usize, String> {
        Ok(outputs.get(self.boxes.as_deref())?.tensor.elements() / self.columns())
    }

    pub(super) fn read_boxes(&self, outputs: &Outputs<'_>) -> Result<Vec<Raw>, String> {
        let (boxes, columns) = (outputs.get(self.boxes.as_deref())?, self.columns());
        let Dim::Fixed(n) = box_count(boxes.name, &boxes.shape(), columns)? else {
            return Err(wrong_shape(boxes.name, &boxes.shape(), &box_shape(columns)));
        };
        // Boxes beyond the valid ones are not read: they may never have been written.
        let valid = match self.count.as_deref() {
            Some(count) => read_count(&outputs.get(Some(count))?, n)?,
            None => n,
        };
        let numbers = boxes.first_numbers(valid * columns)?;
        let scored = match self.classes.as_deref() {
            Some(classes) => self.classes_given(outputs, classes, &numbers, [n, valid])?,
            None if columns == 5 => {
                let scores = self.scores_beside(&numbers)?.into_iter().enumerate();
                scores.map(|(row, score)| Scored { row, class: Some(0), score }).collect()
            }
            None => self.classes_chosen(&outputs.get(self.scores.as_deref())?, [n, valid])?,
        };
        let keypoints = self.read_keypoints(outputs, n, valid)?;
        let of_box = keypoints.len() / valid.max(1);
        let mut found = Vec::new();
        for Scored { row, class, score } in scored {
            if score < self.score_min {
                continue;
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| numbers[row * columns + i]);
            let beside = keypoints[row * of_box..][..of_box].to_vec();
            found.push(Raw { numbers: finite(boxes.name, [a, b, c, d])?, score, class, row, beside });
        }
        Ok(found)
    }

    /// Class numbers `[1, N]` of the valid boxes, with their scores: `[1, N]`, or those included in the boxes.
    fn classes_given(
        &self,
        outputs: &Outputs<'_>,
        classes: &str,
        boxes: &[f32],
        [n, valid]: [usize; 2],
    ) -> Result<Vec<Scored>, String> {
        let mut scores = match self.columns() {
            5 => self.scores_beside(boxes)?,
            _ => {
                let output = outputs.get(self.scores.as_deref())?;
                let mut numbers = read_column(&output, n, valid)?;
                self.activate(output.name, &mut numbers)?;
                numbers
            }
        };
        let classes = read_column(&outputs.get(Some(classes))?, n, valid)?;
        for (score, _) in scores.iter_mut().zip(&classes).filter(|(_, class)| self.is_background(**class)) {
            // This is below any minimum, so that the box is left out.
            *score = f32::NEG_INFINITY;
        }
        let scored = |(row, (number, score))| Scored { row, class: self.class(number), score };
        Ok(classes.into_iter().zip(scores).enumerate().map(scored).collect())
    }

    /// The scores included in boxes of five numbers.
    fn scores_beside(&self, boxes: &[f32]) -> Result<Vec<f32>, String> {
        let mut scores: Vec<f32> = boxes.iter().skip(4).step_by(5).copied().collect();
        self.activate(self.scores.as_deref().unwrap_or_default(), &mut scores)?;
        Ok(scores)
    }
}

const COUNTED: &str = "one whole number, the number of boxes";

/// The number of valid boxes, at most `n`.
fn read_count(count: &Output<'_>, n: usize) -> Result<usize, String> {
    match count.numbers()?[..] {
        [number] if number >= 0.0 && number.fract() == 0.0 => Ok((number as usize).min(n)),
        _ => Err(wrong_shape(count.name, &count.shape(), COUNTED)),
    }
}

/// One number for each of the first `valid` of `n` boxes.
fn read_column(output: &Output<'_>, n: usize, valid: usize) -> Result<Vec<f32>, String> {
    check_column(output.name, &output.shape(), Dim::Fixed(n))?;
    output.first_numbers(valid)
}

/// Refuses shapes other than `[1, n]`, `[n]`, or `[1, n, 1]`.
fn check_column(name: &str, shape: &[Dim], n: Dim) -> Result<(), String> {
    let fits = match *shape {
        [boxes] => is_as_many(boxes, n),
        [a, b] => is_one(a) && is_as_many(b, n) || is_as_many(a, n) && is_one(b),
        [a, boxes, c] => is_one(a) && is_as_many(boxes, n) && is_one(c),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(wrong_shape(name, shape, &format!("[1, {}], one per box", many(n)))),
    }
}

/// Whether two extents can be equal.
pub(super) fn is_as_many(a: Dim, b: Dim) -> bool {
    a == b || a == Dim::Free || b == Dim::Free
}

/// A number of boxes, in words.
pub(super) fn many(n: Dim) -> String {
    match n {
        Dim::Fixed(n) => n.to_string(),
        Dim::Free => "boxes".to_owned(),
    }
}

/// Names of mask outputs, which a setting must name.
const MASKS: &[&str] = &["masks", "detection_masks"];

impl Detect {
    /// Hints about outputs with usual names that a setting would read.
    pub(in crate::tasks) fn unread(&self, signature: &Signature) -> Vec<String> {
        let known =
            |names: &[&str]| signature.outputs.iter().find(|output| names.contains(&plain(&output.name)));
        let is_boxes = self.format == Some(Format::Boxes);
        let masks = known(MASKS).filter(|_| is_boxes && self.masks.is_none());
        let keypoints = known(KEYPOINTS).filter(|_| is_boxes && self.keypoints.is_none());
        let of_masks = masks.map(|TensorSpec { name, .. }| {
            format!(
                "output {name:?} is not read: detect.masks = {name:?} answers the mask of each thing, with detect.mask_area = \"box\" \
                 where each covers its own box (28 x 28, say)"
            )
        });
        let of_keypoints = keypoints.map(|TensorSpec { name, .. }| {
            format!("output {name:?} is not read: detect.keypoints, their number or names, answers those of each box")
        });
        of_masks.into_iter().chain(of_keypoints).collect()
    }
}

/// The N of `[1, N, 4]` or `[N, 4]`, or of five numbers if scores are included.
fn box_count(name: &str, shape: &[Dim], columns: usize) -> Result<Dim, String> {
    match without_ones(shape)[..] {
        [batch, n, numbers] if is_one(batch) && numbers.takes(columns) => Ok(n),
        [n, numbers] if numbers.takes(columns) => Ok(n),
        _ => Err(wrong_shape(name, shape, &box_shape(columns))),
    }
}

/// Reduces a shape to three axes if the others between the first and the last have extent 1: `[N, boxes, 1, 4]`, `[1, 1, rows, 7]`.
pub(super) fn without_ones(shape: &[Dim]) -> Vec<Dim> {
    let mut shape = shape.to_vec();
    while let [_, within @ .., _] = &shape[..]
        && within.len() > 1
        && let Some(at) = within.iter().position(|extent| *extent == Dim::Fixed(1))
    {
        shape.remove(1 + at);
    }
    shape
}

fn box_shape(columns: usize) -> String {
    format!("[1, boxes, {columns}] or [boxes, {columns}]")
}

/// A name without the number that TensorFlow appends (`detection_boxes:0`).
pub(super) fn plain(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((plain, number)) if number.parse::<u16>().is_ok() => plain,
        _ => name,
    }
}

/// The output that a setting names, or else the first one with a name that exporters use.
pub(super) fn find(
    signature: &Signature,
    set: Option<&str>,
    key: &str,
    usual: &[&str],
) -> Result<Option<usize>, String> {
    let position = |is: &dyn Fn(&str) -> bool| signature.outputs.iter().position(|o| is(&o.name));
    let found = match set {
        Some(set) => match position(&|name| name == set) {
            Some(index) => Some(index),
            None => return Err(format!("detect.{key}: {}", no_such_output(signature, set))),
        },
        None => usual.iter().find_map(|usual| position(&|name| plain(name) == *usual)),
    };
    found.map(|index| numeric(&signature.outputs[index]).map(|_| index)).transpose()
}

fn missing(signature: &Signature, key: &str, usual: &[&str]) -> String {
    let told = format!(
        "the model has no output named {}; it has {}: name it with detect.{key}",
        usual.join(" or "),
        output_names(signature)
    );
    let shape = |index: usize| &signature.outputs[index].shape;
    let prototypes = |index: &usize| shape(*index).len() == 4 && shape(1 - *index).len() == 3;
    if key == "boxes"
        && signature.outputs.len() == 2
        && let Some(index) = [0, 1].iter().find(|index| prototypes(index))
    {
        // Most likely a YOLO model with masks.
        let name = &signature.outputs[*index].name;
        format!(
            "the model has outputs {}: if {name:?} has the prototypes of masks, set detect.masks = {name:?}; {told}",
            output_names(signature)
        )
    } else if key == "boxes" {
        format!(
            "{told}, or, where one output holds all that a YOLO gives, that one with detect.output; {OTHERS}; heads that are not decoded \
             (RetinaFace, SCRFD, BlazeFace) are read by no key: docs/pytorch.md says what to do (other detectors)"
        )
    } else {
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Keypoints, SizeOrder, testing::*},
        *,
    };
    use crate::{
        engine::{DataType, Tensor},
        tasks::testing::*,
    };

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
        let just = torchvision(Detect { score_min: 0.5, ..Detect::default() }).unwrap();
        assert_eq!(just.len(), 2, "the least score counts");
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

    /// Boxes with their scores, and class numbers, as mmdeploy exports them; filler boxes are zeros.
    fn mmdeploy(task: Detect, dets: &[i64]) -> Result<Vec<Seen>, String> {
        let boxes = [10.0, 20.0, 30.0, 40.0, 0.75, 50.0, 60.0, 70.0, 120.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0];
        let outputs = [
            ("dets", dets, floats(&[1, 3, 5], &boxes)),
            ("labels", &[-1, -1], integers(&[1, 3], &[1, 0, -1])),
        ];
        run(task, &outputs, "cat\ndog", None)
    }

    #[test]
    fn boxes_of_five_numbers_bring_their_scores() {
        let expected = [([10.0, 20.0, 30.0, 40.0], 1, 0.75), ([50.0, 60.0, 70.0, 100.0], 0, 0.5)];
        assert_eq!(mmdeploy(Detect::default(), &[-1, -1, 5]).unwrap(), expected);
        assert_eq!(
            mmdeploy(Detect { score_min: 0.6, ..Detect::default() }, &[-1, 3, 5]).unwrap(),
            expected[..1]
        );
        // If the file does not tell, the manifest does.
        let open = [-1, -1, -1];
        let error = mmdeploy(Detect::default(), &open).unwrap_err();
        assert!(error.ends_with("name it with detect.scores"), "{error}");
        let told = Detect { scores: Some("dets".to_owned()), ..Detect::default() };
        assert_eq!(mmdeploy(told, &open).unwrap(), expected);
        let alone =
            [("dets", &[-1, 1, 5][..], floats(&[1, 1, 5], &[0.0; 5])), ("y", &[-1], floats(&[1], &[0.0]))];
        let error = run(Detect::default(), &alone, "", None).unwrap_err();
        assert!(error.ends_with("name it with detect.classes"), "{error}");
    }

    #[test]
    fn outputs_that_are_not_as_many_as_the_boxes_are_refused_at_load() {
        let check = |outputs: &[(&str, &[i64])], expected: &str| {
            let error = Detect::default().resolve(&signature(outputs), &Labels::default(), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        let boxes: (&str, &[i64]) = ("boxes", &[-1, 3, 4]);
        check(
            &[boxes, ("scores", &[-1, 2]), ("labels", &[-1, 3])],
            "output \"scores\" has shape [?, 2], expected [1, 3], one per box",
        );
        check(
            &[boxes, ("scores", &[-1, 3]), ("labels", &[-1, 3, 2])],
            "output \"labels\" has shape [?, 3, 2], expected [1, 3], one per box",
        );
        check(
            &[boxes, ("scores", &[-1, 2, 80])],
            "has shape [?, 2, 80], expected [1, 3, classes], or [1, 3] of one class",
        );
        check(
            &[boxes, ("scores", &[-1, 3, 80]), ("num_detections", &[-1, 3])],
            "output \"num_detections\" has shape [?, 3], expected one whole number",
        );
        let mut strings = signature(&[boxes, ("scores", &[-1, 3]), ("labels", &[-1, 3])]);
        strings.outputs[2].datatype = DataType::Bytes;
        let error = Detect::default().resolve(&strings, &Labels::default(), None).unwrap_err();
        assert_eq!(error, "output \"labels\" is BYTES, expected numbers");
    }

    fn tensorflow(classes: &[f32], count: f32) -> Result<Vec<Seen>, String> {
        tensorflow_as(Detect::default(), "", classes, count)
    }

    /// With a suffix to the names of outputs.
    fn tensorflow_as(task: Detect, behind: &str, classes: &[f32], count: f32) -> Result<Vec<Seen>, String> {
        let names = ["boxes", "classes", "scores"].map(|name| format!("detection_{name}{behind}"));
        let boxes = [
            0.25, 0.125, 0.5, 0.75, // y0 x0 y1 x1
            0.0, 0.0, 0.25, 0.25, //
            0.0, 0.0, 0.0, 0.0,
        ];
        run(
            task,
            &[
                (&names[0], &[-1, 3, 4], floats(&[1, 3, 4], &boxes)),
                (&names[1], &[-1, 3], floats(&[1, 3], classes)),
                (&names[2], &[-1, 3], floats(&[1, 3], &[0.75, 0.5, 0.0])),
                (&format!("num_detections{behind}"), &[-1], floats(&[1], &[count])),
            ],
            "person\nbicycle",
            None,
        )
    }

    #[test]
    fn tensorflow_outputs_are_parts_of_the_input_with_y_first_and_classes_from_1() {
        let first = ([12.5, 25.0, 75.0, 50.0], 1, 0.75);
        let second = ([0.0, 0.0, 25.0, 25.0], 0, 0.5);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 2.0).unwrap(), [first, second]);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 1.0).unwrap(), [first]);
        assert_eq!(tensorflow(&[2.0, 1.0, 0.0], 100.0).unwrap(), [first, second]);
        // The same with the tensor names of a TensorFlow graph, found or set.
        let named = |name: &str| Some(format!("detection_{name}:0"));
        let said = Detect { boxes: named("boxes"), classes: named("classes"), ..Detect::default() };
        for task in [Detect::default(), said] {
            assert_eq!(tensorflow_as(task, ":0", &[2.0, 1.0, 0.0], 1.0).unwrap(), [first]);
        }
    }

    #[test]
    fn boxes_of_the_background_are_left_out_and_other_numbers_below_the_first_are_an_error() {
        let second = ([0.0, 0.0, 25.0, 25.0], 0, 0.5);
        assert_eq!(tensorflow(&[0.0, 1.0, 0.0], 2.0).unwrap(), [second]);
        assert_eq!(tensorflow(&[0.0, 0.0, 0.0], 3.0).unwrap(), []);
        for none in [-1.0, 0.5, 1.5, f32::INFINITY] {
            let error = tensorflow(&[none, 1.0, 0.0], 2.0).unwrap_err();
            assert!(error.contains("\"detection_classes\" has a class number at box 0"), "{error}");
        }
        // Such a box suppresses no other, here the one of class 2 that lies on it.
        let outputs = [
            ("boxes", &[-1, 4][..], floats(&[2, 4], &[10.0, 20.0, 30.0, 40.0].repeat(2))),
            ("labels", &[-1], integers(&[2], &[0, 2])),
            ("scores", &[-1], floats(&[2], &[0.9, 0.5])),
        ];
        let from_1 = Detect { first_class: Some(1), ..Detect::default() };
        assert_eq!(run(from_1, &outputs, "cat\ndog", None).unwrap(), [([10.0, 20.0, 30.0, 40.0], 1, 0.5)]);
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
    fn axes_of_1_between_boxes_and_their_numbers_count_for_nothing() {
        let task = || Detect { scores: Some("confs".to_owned()), ..Detect::default() };
        let boxes = floats(&[1, 2, 1, 4], &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        let confs = || floats(&[1, 2, 2], &[0.0, 0.0, 0.5, 0.75]);
        let outputs = [("boxes", &[-1, 2, 1, 4][..], boxes), ("confs", &[-1, 2, 2], confs())];
        assert_eq!(run(task(), &outputs, "cat\ndog", None).unwrap(), [([50.0, 60.0, 70.0, 80.0], 1, 0.75)]);
        let wrong = [
            ("boxes", &[-1, 2, 2, 4][..], floats(&[1, 2, 2, 4], &[0.0; 16])),
            ("confs", &[-1, 2, 2], confs()),
        ];
        assert!(run(task(), &wrong, "cat\ndog", None).unwrap_err().contains("expected [1, boxes, 4]"));
    }

    #[test]
    fn what_lies_behind_the_boxes_that_count_may_be_anything() {
        const NAN: f32 = f32::NAN;
        let outputs = |valid: i64| {
            [
                ("num_dets", &[-1, 1][..], integers(&[1, 1], &[valid])),
                ("det_boxes", &[-1, 2, 4], floats(&[1, 2, 4], &[10.0, 20.0, 30.0, 40.0, NAN, 0.0, 0.0, NAN])),
                ("det_scores", &[-1, 2], floats(&[1, 2], &[0.75, NAN])),
                ("det_classes", &[-1, 2], floats(&[1, 2], &[0.0, NAN])),
                ("keypoints", &[-1, 2, 1, 2], floats(&[1, 2, 1, 2], &[11.0, 21.0, NAN, NAN])),
            ]
        };
        let keypoints = Keypoints { count: 1, names: Labels::default() };
        let task = || Detect { keypoints: Some(keypoints.clone()), ..Detect::default() };
        assert_eq!(run(task(), &outputs(1), "person", None).unwrap(), [([10.0, 20.0, 30.0, 40.0], 0, 0.75)]);
        let error = run(task(), &outputs(2), "person", None).unwrap_err();
        assert!(error.contains("output \"det_boxes\" is not a number (NaN) at element 4"), "{error}");
        // The best of several scores is refused as well.
        let outputs = |valid: i64| {
            [
                ("num_dets", &[-1, 1][..], integers(&[1, 1], &[valid])),
                ("det_boxes", &[-1, 2, 4], floats(&[1, 2, 4], &[10.0, 20.0, 30.0, 40.0, NAN, 0.0, 0.0, NAN])),
                ("det_scores", &[-1, 2, 2], floats(&[1, 2, 2], &[0.25, 0.75, NAN, 0.0])),
            ]
        };
        let found = run(Detect::default(), &outputs(1), "cat\ndog", None).unwrap();
        assert_eq!(found, [([10.0, 20.0, 30.0, 40.0], 1, 0.75)]);
    }

    #[test]
    fn a_box_of_no_area_needs_no_class() {
        let with = |corners: [f32; 4]| {
            let boxes = [&[10.0, 20.0, 30.0, 40.0], &corners[..]].concat();
            let outputs = [
                ("boxes", &[-1, 2, 4][..], floats(&[1, 2, 4], &boxes)),
                ("scores", &[-1, 2], floats(&[1, 2], &[0.75, 0.0])),
                ("labels", &[-1, 2], integers(&[1, 2], &[0, -1])),
            ];
            run(Detect { score_min: 0.0, ..Detect::default() }, &outputs, "person", None)
        };
        assert_eq!(with([0.0; 4]).unwrap(), [([10.0, 20.0, 30.0, 40.0], 0, 0.75)]);
        let error = with([0.0, 0.0, 1.0, 1.0]).unwrap_err();
        assert!(error.contains("output \"labels\" has a class number at box 1"), "{error}");
    }

    #[test]
    fn names_of_yolos_that_sort_out_boxes_are_found() {
        let outputs = [
            ("num_dets", &[-1, 1][..], integers(&[1, 1], &[1])),
            ("det_boxes", &[-1, 2, 4], floats(&[1, 2, 4], &[10.0, 20.0, 30.0, 40.0, 0.0, 0.0, 0.0, 0.0])),
            ("det_scores", &[-1, 2], floats(&[1, 2], &[0.75, 0.9])),
            ("det_classes", &[-1, 2], integers(&[1, 2], &[0, 0])),
        ];
        let found = run(Detect::default(), &outputs, "person", None).unwrap();
        assert_eq!(found, [([10.0, 20.0, 30.0, 40.0], 0, 0.75)]);
    }

    #[test]
    fn one_of_several_outputs_is_read_as_yolo_where_it_is_named() {
        let heads: [(&str, &[i64]); 2] = [("p3", &[-1, 3, 80, 80, 7]), ("p4", &[-1, 3, 40, 40, 7])];
        let whole = signature(&[("output0", &[-1, 25_200, 7]), heads[0], heads[1]]);
        let task = Detect { output: Some("output0".into()), ..Detect::default() };
        let labels = Labels::parse("a\nb").unwrap();
        let resolved = task.resolve(&whole, &labels, Some([640, 640])).unwrap();
        assert_eq!((resolved.format, resolved.objectness), (Some(Format::Yolo), Some(true)));
        let error = Detect::default().resolve(&whole, &labels, None).unwrap_err();
        assert!(error.contains("that one with detect.output"), "{error}");
    }

    #[test]
    fn outputs_that_are_missing_or_do_not_match_are_named() {
        let boxes = || floats(&[1, 2, 4], &[0.0; 8]);
        let scores = |n: usize| floats(&[1, n], &vec![0.0; n]);
        let check = |outputs: &[(&str, &[i64], Tensor)], expected: &str| {
            assert_eq!(run(Detect::default(), outputs, "", None).unwrap_err(), expected);
        };
        check(
            &[("b", &[-1, 2, 4], boxes()), ("scores", &[-1, 2], scores(2))],
            "the model has no output named boxes or detection_boxes or dets or pred_boxes or det_boxes; it has \"b\", \"scores\": name \
             it with detect.boxes, or, where one output holds all that a YOLO gives, that one with detect.output; what a model gives beside its boxes is read by detect.keypoints (pose), detect.masks (segment) or detect.angle (OBB); heads that are not decoded (RetinaFace, SCRFD, BlazeFace) are read by no key: docs/pytorch.md says what to do (other detectors)",
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
            &[("boxes", &[-1, 2, 4], boxes()), ("scores", &[-1, -1], scores(3))],
            "output \"scores\" has shape [1, 3], expected [1, 2, classes], or [1, 2] of one class, since no output of classes is set",
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
        let of_nothing = Detect { size_order: Some(SizeOrder::Wh), ..Detect::default() };
        let error = torchvision(of_nothing).unwrap_err();
        assert_eq!(error, "detect.size_order is for detect.size_input, the input that takes a size");
    }
}
