//! How a frame becomes a model's input, and where a pixel of that input lies in the posted image.

use crate::engine::DataType;

/// How a frame is brought to the input's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side to this many pixels, then the centre is cut out.
    Shorter(u32),
    /// Both sides to the input's size, whatever the aspect ratio.
    Stretch,
    /// As large as fits, centred, the rest padded.
    Letterbox,
    /// Not at all.
    None,
}

/// Resampling kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// Area average.
    Box,
    /// Triangle.
    Bilinear,
    /// Cubic convolution.
    Bicubic,
    /// Windowed sinc, three lobes.
    Lanczos3,
}

/// Channels of the input, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Luma alone.
    Gray,
}

/// Where the channel axis is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Planes.
    Nchw,
    /// Interleaved.
    Nhwc,
}

/// How a frame becomes a model's input.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// How the size is reached.
    pub resize: Resize,
    /// Input width in pixels.
    pub width: u32,
    /// Input height in pixels.
    pub height: u32,
    /// Resampling kernel.
    pub filter: Filter,
    /// Channels.
    pub color: Color,
    /// What lies behind transparent pixels.
    pub background: [u8; 3],
    /// Factor on 8-bit values, before mean and std.
    pub scale: f32,
    /// Subtracted after scaling, per channel.
    pub mean: [f32; 3],
    /// Divided by after the mean, per channel.
    pub std: [f32; 3],
    /// Value of letterbox padding, 8 bit.
    pub pad: u8,
    /// Where the channel axis is.
    pub layout: Layout,
    /// Element type of the input.
    pub datatype: DataType,
}

/// Where a model's input lies in the posted image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// Posted image width in pixels.
    pub source_width: u32,
    /// Posted image height in pixels.
    pub source_height: u32,
    /// Source pixels per model pixel, horizontally.
    pub scale_x: f32,
    /// Source pixels per model pixel, vertically.
    pub scale_y: f32,
    /// Source x of the input's left edge.
    pub offset_x: f32,
    /// Source y of the input's top edge.
    pub offset_y: f32,
}

impl Placement {
    /// The point of the posted image under a point of the input, clamped to the posted image.
    pub fn to_source(&self, x: f32, y: f32) -> (f32, f32) {
        (
            (self.offset_x + x * self.scale_x).clamp(0.0, self.source_width as f32),
            (self.offset_y + y * self.scale_y).clamp(0.0, self.source_height as f32),
        )
    }
}
