//! Decoded image planes: their samples, and what they cover of the posted image.

use super::{
    DecodeError, Format,
    orient::{Orientation, plane},
};

/// Samples of one frame, row-major, channels interleaved.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// 0 to 255.
    U8(Vec<u8>),
    /// 0 to 65535.
    U16(Vec<u16>),
    /// Measured values, from files whose samples are floating-point, signed or of 32 bits: finite, and in the network's own units. White is
    /// not known, so [`scale`](super::Preprocess::scale), which is for parts of white, does not apply to them.
    F32(Vec<f32>),
}

impl Samples {
    /// Number of samples.
    pub fn len(&self) -> usize {
        match self {
            Samples::U8(samples) => samples.len(),
            Samples::U16(samples) => samples.len(),
            Samples::F32(samples) => samples.len(),
        }
    }

    /// Bytes of each sample.
    pub fn bytes_each(&self) -> usize {
        match self {
            Samples::U8(_) => 1,
            Samples::U16(_) => 2,
            Samples::F32(_) => 4,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A rectangle in pixels; the top left corner of the top left pixel is (0, 0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Region {
    /// Left edge.
    pub left: f64,
    /// Top edge.
    pub top: f64,
    /// Extent to the right.
    pub width: f64,
    /// Extent downward.
    pub height: f64,
}

/// One decoded image plane, upright.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha. Alpha is not premultiplied. Of a file whose [pages](super::Pages) are channels,
    /// any number without a meaning.
    pub channels: u8,
    /// `width × height × channels` samples.
    pub samples: Samples,
    /// Width and height of the posted image after orientation: larger than the frame's when a JPEG or a JPEG 2000 was decoded scaled.
    pub source: (u32, u32),
    /// Where the posted image lies in the frame. The image covers the last column and row of a scaled frame only in part if its size is not
    /// a multiple of the scale. In every other case it covers the whole frame.
    pub covered: Region,
}

impl Frame {
    /// A frame whose samples were stored under `orientation`, decoded at full size.
    pub(super) fn upright(
        orientation: Orientation,
        (width, height): (u32, u32),
        channels: u8,
        samples: Samples,
    ) -> Frame {
        let (seen_width, seen_height) = orientation.size(width, height);
        Frame {
            width: seen_width,
            height: seen_height,
            channels,
            samples: orientation.turn(samples, width, height, channels),
            source: (seen_width, seen_height),
            covered: Region {
                left: 0.0,
                top: 0.0,
                width: f64::from(seen_width),
                height: f64::from(seen_height),
            },
        }
    }

    /// One of its channels, as a grey frame.
    pub fn channel(&self, index: usize) -> Frame {
        let samples = match &self.samples {
            Samples::U8(samples) => Samples::U8(plane(samples, index, self.channels)),
            Samples::U16(samples) => Samples::U16(plane(samples, index, self.channels)),
            Samples::F32(samples) => Samples::F32(plane(samples, index, self.channels)),
        };
        let &Frame { width, height, source, covered, .. } = self;
        Frame { width, height, channels: 1, samples, source, covered }
    }

    /// As [`Frame::upright`], of measured values.
    ///
    /// # Errors
    /// One that is no finite number.
    pub(super) fn measured(
        format: Format,
        orientation: Orientation,
        size: (u32, u32),
        channels: u8,
        values: Vec<f32>,
    ) -> Result<Frame, DecodeError> {
        let frame = Frame::upright(orientation, size, channels, Samples::F32(values));
        let Samples::F32(values) = &frame.samples else { return Ok(frame) };
        let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(frame) };
        let what = if values[at].is_nan() { "NaN" } else { "a value that is infinite in single precision" };
        let pixel = at / usize::from(channels);
        let (column, row) = (pixel % frame.width as usize, pixel / frame.width as usize);
        Err(DecodeError::unsupported(
            format,
            format!("{what} (the first is at column {column}, row {row}, counted from 0)"),
            "replace such values by numbers",
        ))
    }
}
