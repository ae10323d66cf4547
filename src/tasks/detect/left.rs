//! Candidates that an engine has already found on its device: what to ask the engine for, and how to read its result.

use super::{BoxFormat, Detect, Format, Orientation, beside::Follows};
use crate::{
    engine::{
        Anchors, DataType, Signature,
        kernels::postprocess::BoxNumbers,
        reduction::{self, CANDIDATE_WORDS},
    },
    tasks::{Outputs, nms::Candidate},
};

impl Detect {
    /// What an engine needs to find the boxes that reach the minimum score. Only if a single output holds the boxes and nothing else, its
    /// axes are known, and the best class of a box is enough.
    pub(in crate::tasks) fn anchors(&self, signature: &Signature) -> Option<Anchors> {
        let output =
            signature.outputs.iter().position(|output| Some(&output.name) == self.output.as_ref())?;
        let numbers = matches!(signature.outputs[output].datatype, DataType::Fp32 | DataType::Fp16);
        let size = match self.normalized {
            Some(true) => Some(self.input?),
            _ => None,
        };
        let anchors = Anchors {
            output,
            channels_first: self.orientation? == Orientation::ChannelsFirst,
            objectness: self.objectness?,
            format: match self.box_format? {
                BoxFormat::Xyxy => BoxNumbers::Xyxy,
                BoxFormat::Yxyx => BoxNumbers::Yxyx,
                BoxFormat::Cxcywh => BoxNumbers::Cxcywh,
                BoxFormat::Xywh => BoxNumbers::Xywh,
            },
            size,
            score_min: self.score_min,
        };
        // A candidate has one class, the best.
        let alone = self.follows() == Follows::Nothing && !self.multi_label;
        (numbers && alone && self.format == Some(Format::Yolo)).then_some(anchors)
    }

    /// The candidates, if an engine has reduced the output, in the order of the output; `None` if the output is not reduced.
    pub(super) fn left(&self, outputs: &Outputs<'_>) -> Result<Option<Vec<Candidate>>, String> {
        if self.anchors(outputs.signature).is_none() {
            return Ok(None);
        }
        let tensor = outputs.get(self.output.as_deref())?.tensor;
        if tensor.datatype != DataType::Uint32 || tensor.shape.last() != Some(&CANDIDATE_WORDS) {
            return Ok(None);
        }
        let mut found: Vec<reduction::Candidate> = bytemuck::pod_collect_to_vec(&tensor.data);
        found.retain(|candidate| {
            let [left, top, right, bottom] = candidate.corners;
            left < right && top < bottom
        });
        found.sort_unstable_by_key(|candidate| candidate.anchor);
        let candidate = |found: reduction::Candidate| Candidate {
            corners: found.corners,
            score: found.score,
            class: found.label as usize,
            quad: None,
            from: 0,
        };
        Ok(Some(found.into_iter().map(candidate).collect()))
    }
}
