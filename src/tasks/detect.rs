//! Detect: model outputs to boxes in the posted image.
//!
//! This file holds the [`settings`] once they are resolved against the model, and turns candidates into a [`detection`]. The candidates are
//! read from the three families of outputs by `yolo`, `boxes` (with `scores`; both with `chosen`) and `end2end` (with `columns`), and by
//! `left` if an engine has found them already. `beside` handles what else a model says about a box: `keypoints`, masks (`instance`), or its
//! rotation.

mod beside;
mod boxes;
mod chosen;
mod columns;
mod detection;
mod end2end;
mod instance;
mod keypoints;
mod left;
mod scores;
mod settings;
mod yolo;

use self::beside::Follows;
use super::{
    Labels, Outputs, choose,
    nms::{Candidate, suppress},
    quad,
};
use crate::{
    engine::{Dim, Signature, TensorSpec, show},
    image::Placement,
};

pub use columns::Columns;
pub use detection::{Detection, Instance, Keypoint};
pub use end2end::ROWS_MAX;
pub use settings::{Background, BoxFormat, Detect, Format, Keypoints, MaskArea, Orientation, SizeOrder};

/// Numbers in a row of box, score and class.
const COLUMNS: usize = 6;
/// Numbers in a row that the model has sorted out and that holds one more.
const MORE_COLUMNS: usize = 7;

/// A box as the model gives it, before it is known to lie in the image.
struct Raw {
    numbers: [f32; 4],
    score: f32,
    /// `None` if the model's number is not a class number. That is an error if the box is valid.
    class: Option<usize>,
    /// Its position among the anchors, rows or boxes of the output.
    row: usize,
    /// Its keypoints, prototype factors, or angle.
    beside: Vec<f32>,
}

impl Detect {
    pub(super) fn resolve(
        mut self,
        signature: &Signature,
        labels: &Labels,
        input: Option<[u32; 2]>,
    ) -> Result<Detect, String> {
        self.input = input;
        if self.masks.is_some() {
            choose(signature, self.masks.as_deref(), "detect.masks")?;
        }
        if self.format.is_none_or(|format| format != Format::Boxes) && self.output.is_none() {
            self.output = self.beside_masks(signature).map(str::to_owned);
        }
        let named = |name| signature.outputs.iter().find(|output| output.name == name);
        let one = match (&signature.outputs[..], self.output.as_deref().and_then(named)) {
            ([only], _) | (_, Some(only)) => Some(only),
            _ => None,
        };
        if self.format.map_or(one.is_some(), |format| format != Format::Boxes) {
            self.resolve_beside(signature)?;
        }
        self.format = match (self.format, one) {
            (Some(format), _) => Some(format),
            (None, Some(one)) => self.of_one_output(one)?,
            (None, None) => Some(Format::Boxes),
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

    /// The format of a single output: YOLO's, unless the shape may also hold rows that the model has sorted out, which is an error. `None`
    /// if the file does not give the shape: the output is then read as YOLO's, and resolved again once a shape has been seen.
    fn of_one_output(&self, output: &TensorSpec) -> Result<Option<Format>, String> {
        if self.orientation.is_some() || self.objectness.is_some() {
            return Ok(Some(Format::Yolo));
        }
        if self.columns.is_some() {
            return Ok(Some(Format::End2end));
        }
        let few = |rows| matches!(rows, Dim::Free | Dim::Fixed(0..=ROWS_MAX));
        let follows = self.follows();
        let is_row = |numbers: usize| follows.widths().iter().any(|width| numbers == COLUMNS + width);
        match output.shape[..] {
            [] | [.., Dim::Free, Dim::Free] => Ok(None),
            [.., rows, Dim::Fixed(numbers)] if few(rows) && is_row(numbers) => Err(format!(
                "output {:?} of shape {} can be read both ways, as YOLO's anchors (detect.format = \"yolo\") and as \
                     rows of box, score and class{follows} that the model has sorted out (detect.format = \"end2end\"): set \
                     detect.format",
                output.name,
                show(&output.shape)
            )),
            // Rows may hold box, score, class and angle; or the number of the picture, box, class and score.
            [.., rows, Dim::Fixed(MORE_COLUMNS)] if few(rows) && follows == Follows::Nothing => Err(format!(
                "output {:?} of shape {} can be read both ways, as YOLO's anchors (detect.format = \"yolo\") and as rows of \
                 {MORE_COLUMNS} numbers that the model has sorted out: set detect.format, and detect.columns where a row says of which \
                 picture it is, or detect.angle = true where its last number turns the box (OBB)",
                output.name,
                show(&output.shape)
            )),
            _ => Ok(Some(Format::Yolo)),
        }
    }

    /// Whether the output that holds the boxes has one axis more than boxes need, so that it can be told apart as the batch axis.
    pub(super) fn can_batch(&self, signature: &Signature) -> bool {
        let holder = match self.format {
            Some(Format::Boxes) => &self.boxes,
            _ => &self.output,
        };
        // Rows that say which picture they belong to describe the whole batch.
        let of_all = self.columns.as_ref().is_some_and(Columns::has_image);
        !of_all
            && signature
                .outputs
                .iter()
                .filter(|output| Some(&output.name) == holder.as_ref())
                .all(|output| output.shape.len() != 2)
    }

    /// The boxes that lie in the image and reach the minimum score, the best first.
    pub(super) fn answer(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Vec<Detection>, String> {
        let size = self.size(placement);
        let (candidates, raw) = match self.left(outputs)? {
            Some(candidates) => (candidates, Vec::new()),
            None => {
                let mut raw = self.read(outputs, labels)?;
                // A box without area is not answered, suppresses nothing and needs no class: models fill up rows with such boxes.
                raw.retain(|raw| has_area(&self.corners(raw.numbers, size)));
                (self.candidates(&raw, size)?, raw)
            }
        };
        let kept = self.thin_out(candidates, placement);
        // Only infinite scores can be left: NaN is not `>=` the minimum score.
        if let Some(Candidate { score, .. }) = kept.iter().find(|kept| !kept.score.is_finite()) {
            let output = self.scores.as_deref().or(self.output.as_deref()).unwrap_or_default();
            return Err(format!("output {output:?} has a box of score {score}, expected a finite number"));
        }
        let to_source =
            |[x, y]: [f32; 2]| placement.map_or([x, y], |placement| placement.to_source_open(x, y).into());
        let masks = if kept.is_empty() { None } else { self.read_masks(outputs, placement)? };
        let mut found = Vec::with_capacity(kept.len());
        for kept in kept {
            let Some(edges) = self.place(kept.corners, placement) else {
                continue;
            };
            let (raw, [x0, y0, x1, y1]) = (raw.get(kept.from), edges);
            let beside = raw.map_or(&[][..], |raw| &raw.beside);
            found.push(Detection {
                x0,
                y0,
                x1,
                y1,
                index: kept.class,
                label: labels.get(kept.class),
                score: kept.score,
                corners: kept.quad.map(|quad| quad.map(to_source)),
                keypoints: self.points(beside, size, to_source)?,
                mask: masks
                    .as_ref()
                    .zip(raw)
                    .map(|(masks, raw)| masks.instance(raw, kept.corners, edges))
                    .transpose()?,
            });
        }
        Ok(found)
    }

    /// Whether boxes are read as pixels of the input but seem to be fractions of its size: all numbers of the boxes that reach the minimum
    /// score are about 1 at most. `None` if there are no boxes, or if nothing can be concluded.
    pub(super) fn seem_parts(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Option<bool> {
        const SIDE_MIN: u32 = 32;
        // A box may extend beyond the image.
        const PART_MAX: f32 = 1.5;
        self.size(placement).filter(|size| size.iter().all(|side| *side >= SIDE_MIN))?;
        let mut boxes: Vec<[f32; 4]> = match self.left(outputs).ok()? {
            Some(candidates) => candidates.iter().map(|candidate| candidate.corners).collect(),
            None => self.read(outputs, labels).ok()?.iter().map(|raw| raw.numbers).collect(),
        };
        // Filler rows tell nothing.
        boxes.retain(|numbers| *numbers != [0.0; 4]);
        let is_part = |number: &f32| number.abs() <= PART_MAX;
        (!boxes.is_empty()).then(|| self.normalized != Some(true) && boxes.iter().flatten().all(is_part))
    }

    /// Width and height of the input. If images keep their size, those of the posted image.
    fn size(&self, placement: Option<&Placement>) -> Option<[u32; 2]> {
        self.input.or(placement.map(|p| [p.source.0, p.source.1]))
    }

    /// The boxes that reach the minimum score, as the model gives them.
    fn read(&self, outputs: &Outputs<'_>, labels: &Labels) -> Result<Vec<Raw>, String> {
        match self.format {
            Some(Format::Boxes) => self.read_boxes(outputs),
            Some(Format::End2end) => self.read_end2end(outputs),
            _ => self.read_yolo(outputs, labels),
        }
    }

    /// Converts the boxes to pixels of an input of this size.
    fn candidates(&self, raw: &[Raw], size: Option<[u32; 2]>) -> Result<Vec<Candidate>, String> {
        if self.normalized == Some(true) && size.is_none() {
            return Err("boxes are parts of the input's size, which is not known without an image".to_owned());
        }
        let candidate = |(from, raw): (usize, &Raw)| {
            let mut corners = self.corners(raw.numbers, size);
            let mut quad = None;
            if self.is_turned()
                && let [angle] = raw.beside[..]
            {
                if !angle.is_finite() {
                    return Err(format!("box {} is turned by {angle}, expected a finite number", raw.row));
                }
                let [x0, y0, x1, y1] = corners;
                let turned = quad::turned([(x0 + x1) / 2.0, (y0 + y1) / 2.0, x1 - x0, y1 - y0], angle);
                (corners, quad) = (quad::hull(&turned), Some(turned));
            }
            let class = raw.class.ok_or_else(|| self.no_class(raw.row))?;
            Ok(Candidate { corners, score: raw.score, class, quad, from })
        };
        raw.iter().enumerate().map(candidate).collect()
    }

    /// The candidates that lie in the image and that no better one of their class covers, the best first.
    fn thin_out(&self, mut candidates: Vec<Candidate>, placement: Option<&Placement>) -> Vec<Candidate> {
        // Boxes in the padding are not answered and do not suppress others.
        candidates.retain(|candidate| self.place(candidate.corners, placement).is_some());
        suppress(candidates, self.iou_max(), self.detections_max)
    }

    /// The class for a class number, if it is valid.
    fn class(&self, number: f32) -> Option<usize> {
        let index = number - self.first_class.unwrap_or(0) as f32;
        (index >= 0.0 && index.fract() == 0.0 && index < 1e6).then_some(index as usize)
    }

    /// Whether a class number is one of those below the first label's, which are the background.
    fn is_background(&self, number: f32) -> bool {
        number >= 0.0 && number.fract() == 0.0 && number < self.first_class.unwrap_or(0) as f32
    }

    /// The error for a box whose class number is invalid.
    fn no_class(&self, index: usize) -> String {
        let output = self.classes.as_deref().or(self.output.as_deref()).unwrap_or_default();
        format!(
            "output {output:?} has a class number at box {index} that is not a whole number from {} on \
             (detect.first_class)",
            self.first_class.unwrap_or(0)
        )
    }

    /// Converts the model's four numbers to corners in pixels of its input.
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

    /// Converts pixels of the input to pixels of the posted image, clamped to it; `None` if nothing is left.
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
        Some([x0, y0, x1, y1]).filter(has_area)
    }
}

/// Whether a box has any area.
fn has_area([x0, y0, x1, y1]: &[f32; 4]) -> bool {
    x0 < x1 && y0 < y1
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

    /// The parts of a detection that tests compare: corners, class, score.
    pub(super) type Seen = ([f32; 4], usize, f32);

    /// Runs a detector on outputs with their names and their shapes in the model file; returns the answer or the error.
    pub(super) fn detections(
        task: Detect,
        outputs: &[(&str, &[i64], Tensor)],
        labels: &str,
        placement: Option<&Placement>,
    ) -> Result<Vec<Detection>, String> {
        let specs: Vec<(&str, &[i64])> = outputs.iter().map(|(n, s, _)| (*n, *s)).collect();
        let signature = signature(&specs);
        let labels = Labels::parse(labels)?;
        let tensors: Vec<Tensor> = outputs.iter().map(|(_, _, t)| t.clone()).collect();
        let found = task.resolve(&signature, &labels, Some([100, 100]))?.answer(
            &Outputs::new(&tensors, &signature)?,
            &labels,
            placement,
        )?;
        for detection in &found {
            assert_eq!(detection.label, labels.get(detection.index));
        }
        Ok(found)
    }

    /// The same for the boxes alone.
    pub(super) fn run(
        task: Detect,
        outputs: &[(&str, &[i64], Tensor)],
        labels: &str,
        placement: Option<&Placement>,
    ) -> Result<Vec<Seen>, String> {
        let found = detections(task, outputs, labels, placement)?;
        Ok(found.into_iter().map(|d| ([d.x0, d.y0, d.x1, d.y1], d.index, d.score)).collect())
    }
}
