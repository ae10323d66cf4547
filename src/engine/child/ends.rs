//! What an engine does at the ends of its network, as messages have it: numbers go as their bits.

use crate::{
    engine::{
        Anchors, Best, ClassMap, Ends, PixelInput, Reduction,
        kernels::postprocess::{BoxNumbers, ScoreActivation},
    },
    image::{Color, DataType, Layout, Preprocess},
};
use serde::{Deserialize, Serialize};

/// [`Ends`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndsText {
    pixels: Option<PixelsText>,
    reduction: Option<ReductionText>,
}

/// [`Reduction`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum ReductionText {
    Classify {
        output: usize,
        activation: u32,
        top: usize,
    },
    Segment {
        output: usize,
        last: bool,
        threshold: u32,
    },
    Detect {
        output: usize,
        channels_first: bool,
        objectness: bool,
        format: u32,
        size: Option<[u32; 2]>,
        score_min: u32,
    },
}

impl From<Reduction> for ReductionText {
    fn from(reduction: Reduction) -> ReductionText {
        match reduction {
            Reduction::Classify(Best { output, activation, top }) => {
                ReductionText::Classify { output, activation: activation as u32, top }
            }
            Reduction::Segment(ClassMap { output, last, threshold }) => {
                ReductionText::Segment { output, last, threshold: threshold.to_bits() }
            }
            Reduction::Detect(Anchors { output, channels_first, objectness, format, size, score_min }) => {
                let (format, score_min) = (format as u32, score_min.to_bits());
                ReductionText::Detect { output, channels_first, objectness, format, size, score_min }
            }
        }
    }
}

impl ReductionText {
    fn read(&self) -> Result<Reduction, String> {
        Ok(match *self {
            ReductionText::Classify { output, activation, top } => {
                let known = ACTIVATIONS.into_iter().find(|known| *known as u32 == activation);
                let unknown = || format!("nothing that becomes of scores has the number {activation}");
                Reduction::Classify(Best { output, activation: known.ok_or_else(unknown)?, top })
            }
            ReductionText::Segment { output, last, threshold } => {
                Reduction::Segment(ClassMap { output, last, threshold: f32::from_bits(threshold) })
            }
            ReductionText::Detect { output, channels_first, objectness, format, size, score_min } => {
                let known = BOXES.into_iter().find(|known| *known as u32 == format);
                let format = known.ok_or_else(|| format!("no form of boxes has the number {format}"))?;
                let score_min = f32::from_bits(score_min);
                Reduction::Detect(Anchors { output, channels_first, objectness, format, size, score_min })
            }
        })
    }
}

const ACTIVATIONS: [ScoreActivation; 3] =
    [ScoreActivation::Softmax, ScoreActivation::Sigmoid, ScoreActivation::None];

const BOXES: [BoxNumbers; 4] = [BoxNumbers::Xyxy, BoxNumbers::Yxyx, BoxNumbers::Cxcywh, BoxNumbers::Xywh];

/// [`PixelInput`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PixelsText {
    color: u8,
    interleaved: bool,
    datatype: String,
    scale: u32,
    mean: [u32; 3],
    std: [u32; 3],
    batch_axis: bool,
    channel_axis: bool,
}

const COLORS: [Color; 3] = [Color::Rgb, Color::Bgr, Color::Gray];

impl From<&Ends> for EndsText {
    fn from(ends: &Ends) -> EndsText {
        let text = |pixels: &PixelInput| {
            let (to, [batch_axis, channel_axis]) = pixels.parts();
            PixelsText {
                color: COLORS.iter().position(|color| *color == to.color).unwrap_or_default() as u8,
                interleaved: to.layout == Layout::Nhwc,
                datatype: to.datatype.name().to_owned(),
                scale: to.scale.to_bits(),
                mean: to.mean.map(f32::to_bits),
                std: to.std.map(f32::to_bits),
                batch_axis,
                channel_axis,
            }
        };
        EndsText {
            pixels: ends.pixels.as_ref().map(text),
            reduction: ends.reduction.map(ReductionText::from),
        }
    }
}

impl EndsText {
    pub(super) fn read(&self) -> Result<Ends, String> {
        let read = |text: &PixelsText| {
            let color = COLORS.get(usize::from(text.color));
            let to = Preprocess {
                color: *color.ok_or_else(|| format!("no colour has the number {}", text.color))?,
                layout: if text.interleaved { Layout::Nhwc } else { Layout::Nchw },
                datatype: DataType::from_name(&text.datatype)
                    .ok_or_else(|| format!("no image is {:?}", text.datatype))?,
                scale: f32::from_bits(text.scale),
                mean: text.mean.map(f32::from_bits),
                std: text.std.map(f32::from_bits),
                ..Preprocess::new(1, 1)
            };
            PixelInput::new(&to, text.batch_axis, text.channel_axis)
                .ok_or_else(|| format!("pixels do not become {}", text.datatype))
        };
        let reduction = self.reduction.as_ref().map(ReductionText::read).transpose()?;
        Ok(Ends { pixels: self.pixels.as_ref().map(read).transpose()?, reduction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_back_as_they_went() {
        for (color, layout, datatype) in [
            (Color::Rgb, Layout::Nchw, DataType::Fp32),
            (Color::Bgr, Layout::Nhwc, DataType::Fp16),
            (Color::Gray, Layout::Nchw, DataType::Fp32),
        ] {
            let to = Preprocess {
                color,
                layout,
                datatype,
                scale: 0.1 + 0.2,
                mean: [1e-9, 0.3, -7.1],
                std: [0.229, 3.0, 1e20],
                ..Preprocess::new(1, 1)
            };
            for axes in [[true, true], [true, false], [false, true]] {
                let map = ClassMap { output: 3, last: axes[0], threshold: 0.1 + 0.2 };
                let anchors = Anchors {
                    output: 1,
                    channels_first: axes[0],
                    objectness: axes[1],
                    format: BoxNumbers::Cxcywh,
                    size: axes[0].then_some([640, 480]),
                    score_min: 0.1 + 0.2,
                };
                let [best, map, anchors] = [
                    Reduction::Classify(Best { output: 2, activation: ScoreActivation::Sigmoid, top: 7 }),
                    Reduction::Segment(map),
                    Reduction::Detect(anchors),
                ];
                let reduction = match axes {
                    [true, true] => best,
                    [true, false] => map,
                    _ => anchors,
                };
                let reduction = (datatype == DataType::Fp32).then_some(reduction);
                let ends = Ends { pixels: PixelInput::new(&to, axes[0], axes[1]), reduction };
                let json = serde_json::to_vec(&EndsText::from(&ends)).expect("JSON");
                let heard: EndsText = serde_json::from_slice(&json).expect("JSON");
                assert_eq!(heard.read().expect("ends"), ends);
            }
        }
        assert_eq!(EndsText::from(&Ends::default()).read(), Ok(Ends::default()));
    }
}
