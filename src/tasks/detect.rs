//! Detect: model outputs to boxes in the posted image.
//!
//! This file has the settings, what they become once the model is known, and the way from candidates to detections;
//! `yolo`, `boxes` (with `scores`) and `end2end` (with `columns`) read candidates out of the three families of outputs, `left` those that
//! an engine has found already.

mod boxes;
mod columns;
mod end2end;
mod left;
mod scores;
mod yolo;

use super::{
    Activation, Labels, Outputs,
    nms::{Candidate, suppress},
};
use crate::{
    engine::{Dim, Signature, TensorSpec, show},
    image::Placement,
};
use std::sync::Arc;

pub use columns::Columns;

/// Numbers of a row that holds box, score and class.
const COLUMNS: usize = 6;
/// Numbers of one that is sorted out and holds more.
const MORE_COLUMNS: usize = 7;

/// Which family of outputs a detector has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One output with a box, perhaps an objectness, and a score per class for each anchor.
    Yolo,
    /// Boxes, scores and classes in outputs of their own.
    Boxes,
    /// One output with a row of box, score and class number for each box that the model has sorted out itself.
    End2end,
}

impl Format {
    /// With their names in manifests.
    pub const ALL: [(&str, Format); 3] =
        [("yolo", Format::Yolo), ("boxes", Format::Boxes), ("end2end", Format::End2end)];
}

/// What the four numbers of a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Top, left, bottom, right.
    Yxyx,
    /// Centre x, centre y, width, height.
    Cxcywh,
    /// Left, top, width, height.
    Xywh,
}

/// Which axis of a YOLO output holds boxes and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// `[1, 4 + C, A]`.
    ChannelsFirst,
    /// `[1, A, 4 + C]`.
    ChannelsLast,
}

/// Which column of scores is of no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// The first, as SSD has it.
    First,
    /// The last, as DETR has it ("no object").
    Last,
}

/// Settings of a detector. What is open is found from the model when it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Detect {
    /// Open: `boxes` for a model of several outputs, `yolo` for one; still open after resolving where the file says nothing of that
    /// one's shape.
    pub format: Option<Format>,
    /// `yolo` and `end2end`: the output to read; the only one when open.
    pub output: Option<String>,
    /// `boxes`: the output with `[1, N, 4]` or `[N, 4]`; open: `boxes`, `detection_boxes` or `dets`.
    pub boxes: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` scores, or `[1, N, C]` (or `[N, C]`) when there is no output of
    /// classes; open: `scores` or `detection_scores`, or that of the boxes if it is `[1, N, 5]`. The same output as that of the
    /// boxes: the fifth number of each is its score.
    pub scores: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` class numbers; open: `labels`, `classes` or `detection_classes`,
    /// where the model has it.
    pub classes: Option<String>,
    /// `boxes`: the output with the number of valid boxes; open: `num_detections`, where the model has it.
    pub count: Option<String>,
    /// The model's second input, if it takes a width and a height in pixels of which boxes come.
    pub size_input: Option<String>,
    /// Open: `cxcywh` for `yolo`, `yxyx` for an output named `detection_boxes`, `xyxy` otherwise.
    pub box_format: Option<BoxFormat>,
    /// Whether coordinates are parts of the input's size instead of pixels of it; open: only for `detection_boxes`.
    pub normalized: Option<bool>,
    /// `yolo`; open: found from the number of labels, else the shorter axis holds the channels.
    pub orientation: Option<Orientation>,
    /// `yolo`: whether the fifth channel is an objectness; open: found from the number of labels.
    pub objectness: Option<bool>,
    /// `end2end`: what the numbers of a row are; open: box, score and class.
    pub columns: Option<Columns>,
    /// `boxes`: what turns scores into those of an answer; open: nothing; refused where the output's name speaks of logits.
    pub activation: Option<Activation>,
    /// `boxes`, where scores are `[1, N, C]`: the column that is no class; labels count the others.
    pub background: Option<Background>,
    /// `boxes` and `end2end`, where classes are numbers: the one that the first label has (1 for models that leave 0 to the
    /// background); open: 1 for an output named `detection_classes`, else 0.
    pub first_class: Option<usize>,
    /// Boxes of a lower score are left out.
    pub score_min: f32,
    /// A box goes when it overlaps a better one of its class by more (intersection over union); 1 keeps all.
    pub iou_max: f32,
    /// At most this many boxes are answered, the best ones.
    pub detections_max: usize,
    /// Width and height of the model's image input in pixels, set by resolving; `None` where images keep their size.
    pub input: Option<[u32; 2]>,
}

impl Default for Detect {
    fn default() -> Detect {
        Detect {
            format: None,
            output: None,
            boxes: None,
            scores: None,
            classes: None,
            count: None,
            size_input: None,
            box_format: None,
            normalized: None,
            orientation: None,
            objectness: None,
            columns: None,
            activation: None,
            background: None,
            first_class: None,
            score_min: 0.25,
            iou_max: 0.5,
            detections_max: 300,
            input: None,
        }
    }
}

/// One box of an answer, in pixels of the posted image.
#[derive(Debug, Clone, PartialEq)]
pub struct Detection {
    /// Left edge.
    pub x0: f32,
    /// Top edge.
    pub y0: f32,
    /// Right edge, more than `x0`.
    pub x1: f32,
    /// Bottom edge, more than `y0`.
    pub y1: f32,
    /// The class's place among the labels.
    pub index: usize,
    /// Its name, if the model has labels.
    pub label: Option<Arc<str>>,
    /// The model's confidence.
    pub score: f32,
}

/// A box as a model gives it, before it is known to lie in the image.
struct Raw {
    numbers: [f32; 4],
    score: f32,
    class: usize,
}

impl Detect {
    pub(super) fn resolve(
        mut self,
        signature: &Signature,
        labels: &Labels,
        input: Option<[u32; 2]>,
    ) -> Result<Detect, String> {
        self.input = input;
        let named = |name| signature.outputs.iter().find(|output| output.name == name);
        self.format = match (self.format, &signature.outputs[..], self.output.as_deref().and_then(named)) {
            (Some(format), ..) => Some(format),
            (None, [only], _) | (None, _, Some(only)) => self.of_one_output(only)?,
            (None, _, None) => Some(Format::Boxes),
        };
        let format = self.format.unwrap_or(Format::Yolo);
        self.refuse_settings_of_others(format)?;
        match format {
            Format::Yolo => self.resolve_yolo(signature, labels)?,
            Format::Boxes => self.resolve_boxes(signature, labels)?,
            Format::End2end => self.resolve_end2end(signature)?,
        }
        Ok(self)
    }

    /// YOLO's, unless its shape is one that boxes which are sorted out have, too. Of no shape nothing is told yet: it is read as YOLO's,
    /// and asked again once one was seen.
    fn of_one_output(&self, output: &TensorSpec) -> Result<Option<Format>, String> {
        if self.orientation.is_some() || self.objectness.is_some() {
            return Ok(Some(Format::Yolo));
        }
        if self.columns.is_some() {
            return Ok(Some(Format::End2end));
        }
        let few = |rows| matches!(rows, Dim::Free | Dim::Fixed(0..=end2end::ROWS_MAX));
        match output.shape[..] {
            [] | [.., Dim::Free, Dim::Free] => Ok(None),
            [.., rows, Dim::Fixed(COLUMNS)] if few(rows) => Err(format!(
                "output {:?} of shape {} can be read both ways, as YOLO's anchors (detect.format = \"yolo\") and as \
                     rows of box, score and class that the model has sorted out (detect.format = \"end2end\"): set \
                     detect.format",
                output.name,
                show(&output.shape)
            )),
            // Of a box, score, class and angle; or of the picture's number, box, class and score.
            [.., rows, Dim::Fixed(MORE_COLUMNS)] if few(rows) => Err(format!(
                "output {:?} of shape {} can be read both ways, as YOLO's anchors (detect.format = \"yolo\") and as rows of \
                 {MORE_COLUMNS} numbers that the model has sorted out: set detect.format, or detect.columns where a row says of which \
                 picture it is, and serve oriented boxes (OBB) with task = \"tensors\"",
                output.name,
                show(&output.shape)
            )),
            _ => Ok(Some(Format::Yolo)),
        }
    }

    /// Nothing that is set is without effect.
    fn refuse_settings_of_others(&self, format: Format) -> Result<(), String> {
        use Format::{Boxes, End2end, Yolo};
        let keys: [(&str, bool, &[Format]); 11] = [
            ("output", self.output.is_some(), &[Yolo, End2end]),
            ("orientation", self.orientation.is_some(), &[Yolo]),
            ("objectness", self.objectness.is_some(), &[Yolo]),
            ("columns", self.columns.is_some(), &[End2end]),
            ("boxes", self.boxes.is_some(), &[Boxes]),
            ("scores", self.scores.is_some(), &[Boxes]),
            ("classes", self.classes.is_some(), &[Boxes]),
            ("count", self.count.is_some(), &[Boxes]),
            ("activation", self.activation.is_some(), &[Boxes]),
            ("background", self.background.is_some(), &[Boxes]),
            ("first_class", self.first_class.is_some_and(|first| first != 0), &[Boxes, End2end]),
        ];
        let Some((key, _, of)) = keys.iter().find(|(_, set, of)| *set && !of.contains(&format)) else {
            return Ok(());
        };
        let of: Vec<String> =
            Format::ALL.iter().filter(|(_, f)| of.contains(f)).map(|(name, _)| format!("{name:?}")).collect();
        Err(format!("detect.{key} is for detect.format = {}", of.join(" or ")))
    }

    /// Whether the output that holds the boxes has an axis more than the boxes need, and is told apart by it.
    pub(super) fn can_batch(&self, signature: &Signature) -> bool {
        let holder = match self.format {
            Some(Format::Boxes) => &self.boxes,
            _ => &self.output,
        };
        // Where rows say of which picture they are, they speak of the whole batch.
        let of_all = self.columns.as_ref().is_some_and(Columns::has_image);
        !of_all
            && signature
                .outputs
                .iter()
                .filter(|output| Some(&output.name) == holder.as_ref())
                .all(|output| output.shape.len() != 2)
    }

    /// Boxes of the score asked for that lie in the image, the best first.
    pub(super) fn answer(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Vec<Detection>, String> {
        let candidates = match self.left(outputs)? {
            Some(candidates) => candidates,
            None => self.candidates(outputs, labels, placement)?,
        };
        let kept = self.thin_out(candidates, placement);
        // NaN is at least no score.
        if let Some(Candidate { score, .. }) = kept.iter().find(|kept| !kept.score.is_finite()) {
            let output = self.scores.as_deref().or(self.output.as_deref()).unwrap_or_default();
            return Err(format!("output {output:?} has a box of score {score}, expected a finite number"));
        }
        let detection = |kept: Candidate| {
            let [x0, y0, x1, y1] = self.place(kept.corners, placement)?;
            let (index, label) = (kept.class, labels.get(kept.class));
            Some(Detection { x0, y0, x1, y1, index, label, score: kept.score })
        };
        Ok(kept.into_iter().filter_map(detection).collect())
    }

    /// The boxes of the score asked for, in the order of the output.
    fn candidates(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Vec<Candidate>, String> {
        let raw = match self.format {
            Some(Format::Boxes) => self.read_boxes(outputs)?,
            Some(Format::End2end) => self.read_end2end(outputs)?,
            _ => self.read_yolo(outputs, labels)?,
        };
        // Where images keep their size, the input is the posted image.
        let size = self.input.or(placement.map(|p| [p.source.0, p.source.1]));
        if self.normalized == Some(true) && size.is_none() {
            return Err("boxes are parts of the input's size, which is not known without an image".to_owned());
        }
        let candidate = |raw: Raw| Candidate {
            corners: self.corners(raw.numbers, size),
            score: raw.score,
            class: raw.class,
        };
        Ok(raw.into_iter().map(candidate).collect())
    }

    /// Those that lie in the image and that no better one of their class covers, the best first.
    fn thin_out(&self, mut candidates: Vec<Candidate>, placement: Option<&Placement>) -> Vec<Candidate> {
        // What lies in padding, or has no area, neither is answered nor suppresses anything.
        candidates.retain(|candidate| self.place(candidate.corners, placement).is_some());
        suppress(candidates, self.iou_max, self.detections_max)
    }

    /// The class of a class number, if it is one.
    fn class(&self, number: f32) -> Option<usize> {
        let index = number - self.first_class.unwrap_or(0) as f32;
        (index >= 0.0 && index.fract() == 0.0 && index < 1e6).then_some(index as usize)
    }

    /// The mistake of a box whose class number is none.
    fn no_class(&self, output: &str, index: usize) -> String {
        format!(
            "output {output:?} has a class number at box {index} that is not a whole number from {} on \
             (detect.first_class)",
            self.first_class.unwrap_or(0)
        )
    }

    /// From the model's four numbers to corners in pixels of its input.
    fn corners(&self, [a, b, c, d]: [f32; 4], size: Option<[u32; 2]>) -> [f32; 4] {
        let corners = match self.box_format.unwrap_or(BoxFormat::Xyxy) {
            BoxFormat::Xyxy => [a, b, c, d],
            BoxFormat::Yxyx => [b, a, d, c],
            BoxFormat::Cxcywh => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
            BoxFormat::Xywh => [a, b, a + c, b + d],
        };
        match (self.normalized, size) {
            (Some(true), Some([width, height])) => {
                let [width, height] = [width as f32, height as f32];
                let [x0, y0, x1, y1] = corners;
                [x0 * width, y0 * height, x1 * width, y1 * height]
            }
            _ => corners,
        }
    }

    /// From pixels of the input to pixels of the posted image, clamped to it; `None` if nothing is left.
    fn place(&self, [x0, y0, x1, y1]: [f32; 4], placement: Option<&Placement>) -> Option<[f32; 4]> {
        let (x0, y0, x1, y1) = match (placement, self.input) {
            (Some(placement), _) => {
                let (left, top) = placement.to_source(x0, y0);
                let (right, bottom) = placement.to_source(x1, y1);
                (left, top, right, bottom)
            }
            (None, Some([width, height])) => {
                let [width, height] = [width as f32, height as f32];
                (x0.clamp(0.0, width), y0.clamp(0.0, height), x1.clamp(0.0, width), y1.clamp(0.0, height))
            }
            (None, None) => (x0, y0, x1, y1),
        };
        (x0 < x1 && y0 < y1).then_some([x0, y0, x1, y1])
    }
}

/// Refuses infinite coordinates; NaN was refused before.
fn finite(name: &str, numbers: [f32; 4]) -> Result<[f32; 4], String> {
    if numbers.iter().all(|n| n.is_finite()) {
        Ok(numbers)
    } else {
        Err(format!("output {name:?} has a box of {numbers:?}, expected finite numbers"))
    }
}

#[cfg(test)]
mod testing {
    //! Checks of whole detectors.

    use super::{super::testing::signature, *};
    use crate::engine::Tensor;

    /// What a check looks at: corners, class, score.
    pub(super) type Seen = ([f32; 4], usize, f32);

    /// Outputs with their names and the shapes in the model file; the answer, or the mistake.
    pub(super) fn run(
        task: Detect,
        outputs: &[(&str, &[i64], Tensor)],
        labels: &str,
        placement: Option<&Placement>,
    ) -> Result<Vec<Seen>, String> {
        let specs: Vec<(&str, &[i64])> = outputs.iter().map(|(n, s, _)| (*n, *s)).collect();
        let signature = signature(&specs);
        let labels = if labels.is_empty() { Labels::default() } else { Labels::parse(labels)? };
        let tensors: Vec<Tensor> = outputs.iter().map(|(_, _, t)| t.clone()).collect();
        let found = task.resolve(&signature, &labels, Some([100, 100]))?.answer(
            &Outputs::new(&tensors, &signature)?,
            &labels,
            placement,
        )?;
        for detection in &found {
            assert_eq!(detection.label, labels.get(detection.index));
        }
        Ok(found.into_iter().map(|d| ([d.x0, d.y0, d.x1, d.y1], d.index, d.score)).collect())
    }
}
