//! What an engine does at the ends of its network, as messages have it: numbers go as their bits.

use crate::{
    engine::{ClassMap, Ends, PixelInput, Reduction},
    image::{Color, DataType, Layout, Preprocess},
};
use serde::{Deserialize, Serialize};

/// [`Ends`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndsText {
    pixels: Option<PixelsText>,
    class_map: Option<ClassMapText>,
}

/// [`ClassMap`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ClassMapText {
    output: usize,
    last: bool,
    threshold: u32,
}

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
        let map = |Reduction::Segment(ClassMap { output, last, threshold })| ClassMapText {
            output,
            last,
            threshold: threshold.to_bits(),
        };
        EndsText { pixels: ends.pixels.as_ref().map(text), class_map: ends.reduction.map(map) }
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
        let reduction = self.class_map.as_ref().map(|&ClassMapText { output, last, threshold }| {
            Reduction::Segment(ClassMap { output, last, threshold: f32::from_bits(threshold) })
        });
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
                let reduction = axes[1].then_some(Reduction::Segment(map));
                let ends = Ends { pixels: PixelInput::new(&to, axes[0], axes[1]), reduction };
                let json = serde_json::to_vec(&EndsText::from(&ends)).expect("JSON");
                let heard: EndsText = serde_json::from_slice(&json).expect("JSON");
                assert_eq!(heard.read().expect("ends"), ends);
            }
        }
        assert_eq!(EndsText::from(&Ends::default()).read(), Ok(Ends::default()));
    }
}
