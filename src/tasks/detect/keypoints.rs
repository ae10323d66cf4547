//! Keypoints: from the numbers that follow a box, or from an output of their own.

use super::{
    BoxFormat, Detect, Keypoint,
    boxes::{KEYPOINTS, find},
};
use crate::{
    engine::{Dim, Signature},
    tasks::{Outputs, output_names, wrong_shape},
};

/// Names of the output with the scores of keypoints, if there is one.
const SCORES: &[&str] = &["keypoints_scores", "detection_keypoint_scores"];

impl Detect {
    /// For detectors with separate outputs for boxes, scores and classes. Refuses a file that has no output with this many keypoints.
    pub(super) fn resolve_keypoints(&self, signature: &Signature) -> Result<(), String> {
        let Some(keypoints) = &self.keypoints else {
            return Ok(());
        };
        let output = &signature.outputs[place(signature)?];
        let fits = match output.shape[..] {
            [] => true,
            [.., count, numbers] => count.takes(keypoints.count) && (numbers.takes(2) || numbers.takes(3)),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(wrong_shape(&output.name, &output.shape, &expected(keypoints.count))),
        }
    }

    /// The numbers of the keypoints of the first `valid` of `n` boxes, box after box, x first; empty without keypoints in the settings.
    pub(super) fn read_keypoints(
        &self,
        outputs: &Outputs<'_>,
        n: usize,
        valid: usize,
    ) -> Result<Vec<f32>, String> {
        let Some(count) = self.keypoints.as_ref().map(|keypoints| keypoints.count) else {
            return Ok(Vec::new());
        };
        let named = |index: usize| outputs.get(Some(&outputs.signature.outputs[index].name));
        let output = named(place(outputs.signature)?)?;
        let shape = output.shape();
        let width = match shape[..] {
            [.., Dim::Fixed(points), Dim::Fixed(width @ (2 | 3))] if points == count => width,
            _ => return Err(wrong_shape(output.name, &shape, &expected(count))),
        };
        if output.tensor.elements() != n * count * width {
            return Err(wrong_shape(output.name, &shape, &format!("{n} boxes x {count} x {width}")));
        }
        let mut numbers = output.first_numbers(valid * count * width)?;
        if self.box_format == Some(BoxFormat::Yxyx) {
            numbers.chunks_exact_mut(width).for_each(|point| point.swap(0, 1));
        }
        let Some(scores) = find(outputs.signature, None, "keypoints", SCORES)?.map(named).transpose()? else {
            return Ok(numbers);
        };
        if scores.tensor.elements() != n * count {
            let expected = format!("{n} boxes x {count} keypoints");
            return Err(wrong_shape(scores.name, &scores.shape(), &expected));
        }
        let scored = numbers.chunks_exact(width).zip(scores.first_numbers(valid * count)?);
        Ok(scored.flat_map(|(point, score)| [point[0], point[1], score]).collect())
    }

    /// Converts the numbers of a box's keypoints to points of the posted image. `size` is the input's, for coordinates that are fractions
    /// of it.
    pub(super) fn points(
        &self,
        numbers: &[f32],
        size: Option<[u32; 2]>,
        to_source: impl Fn([f32; 2]) -> [f32; 2],
    ) -> Result<Vec<Keypoint>, String> {
        let Some(keypoints) = &self.keypoints else {
            return Ok(Vec::new());
        };
        let unit = match (self.normalized, size) {
            (Some(true), Some(size)) => size.map(|pixels| pixels as f32),
            _ => [1.0; 2],
        };
        let point = |(index, point): (usize, &[f32])| {
            if !point.iter().all(|number| number.is_finite()) {
                return Err(format!("a box has keypoint {index} at {point:?}, expected finite numbers"));
            }
            let [x, y] = to_source([point[0] * unit[0], point[1] * unit[1]]);
            Ok(Keypoint { x, y, score: point.get(2).copied(), label: keypoints.names.get(index) })
        };
        numbers.chunks_exact((numbers.len() / keypoints.count).max(1)).enumerate().map(point).collect()
    }
}

/// The output that holds the keypoints.
fn place(signature: &Signature) -> Result<usize, String> {
    find(signature, None, "keypoints", KEYPOINTS)?.ok_or_else(|| {
        format!(
            "detect.keypoints: the model has no output named {}; it has {}: call the one that has them so when it is exported \
             (output_names)",
            KEYPOINTS.join(" or "),
            output_names(signature)
        )
    })
}

fn expected(count: usize) -> String {
    format!(
        "[1, boxes, {count}, 2 or 3] or [boxes, {count}, 2 or 3] for {count} keypoints (detect.keypoints)"
    )
}
