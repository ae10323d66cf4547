//! The words for how pixels become numbers: the kernel of the resize, channels, axes and element types.

use serde::{Deserialize, Serialize};

/// The kernel of the resize. All but [`Filter::Nearest`] are antialiased: widened by the factor of reduction, as Pillow
/// does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Filter {
    /// The pixel under the centre.
    Nearest,
    /// The mean of what a pixel covers.
    Box,
    /// A triangle.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// A windowed sinc of three lobes.
    Lanczos3,
}

impl Filter {
    /// All filters, with their names in manifests.
    pub const ALL: [(&str, Filter); 5] = [
        ("nearest", Filter::Nearest),
        ("box", Filter::Box),
        ("bilinear", Filter::Bilinear),
        ("bicubic", Filter::Bicubic),
        ("lanczos3", Filter::Lanczos3),
    ];
}

/// The channels of the model's input, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Color {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Luma (ITU-R 601: 0.299 R + 0.587 G + 0.114 B).
    Gray,
}

impl Color {
    /// All colour orders, with their names in manifests.
    pub const ALL: [(&str, Color); 3] = [("rgb", Color::Rgb), ("bgr", Color::Bgr), ("gray", Color::Gray)];

    /// The number of channels.
    pub fn channels(self) -> usize {
        match self {
            Color::Rgb | Color::Bgr => 3,
            Color::Gray => 1,
        }
    }

    /// The channels of the placed pixels, before they become numbers.
    pub(in crate::image) fn of_pixels(self) -> Color {
        match self {
            Color::Rgb | Color::Bgr => Color::Rgb,
            Color::Gray => Color::Gray,
        }
    }
}

/// The order of an item's axes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Channel, row, column.
    Nchw,
    /// Row, column, channel.
    Nhwc,
}

/// The element types that a model's image input may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataType {
    /// IEEE single.
    Fp32,
    /// IEEE half, rounded to the nearest.
    Fp16,
    /// The pixels themselves, rounded, without scale, mean and std.
    Uint8,
}

impl DataType {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DataType::Fp32 => 4,
            DataType::Fp16 => 2,
            DataType::Uint8 => 1,
        }
    }

    /// The name in the Open Inference Protocol, such as `FP32`.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Fp32 => "FP32",
            DataType::Fp16 => "FP16",
            DataType::Uint8 => "UINT8",
        }
    }

    /// The type with this protocol name; `None` for a type that images cannot become.
    pub fn from_name(name: &str) -> Option<DataType> {
        [DataType::Fp32, DataType::Fp16, DataType::Uint8].into_iter().find(|datatype| datatype.name() == name)
    }
}
