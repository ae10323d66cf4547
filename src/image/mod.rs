//! Bytes to frames to model input. Pure: no clock, no thread, no network, and no file but one (see [`stack`]).
//!
//! - [`format`]: which of the formats some bytes are in; `foreign`: what those are that are in none of them.
//! - [`header`] and [`decode`]: sizes are checked against [`Limits`] by what the headers say, before pixels are allocated;
//!   then one strict decoder per format (`jpeg`, `png`, `webp`, `bmp`, `gif`, `tiff`) makes [`Frame`]s, upright as a
//!   person sees them (`orient`). A truncated file is refused, whatever the format.
//! - [`plain_jpeg`]: which JPEGs a decoder in hardware may be given instead.
//! - [`preprocess`]: from a frame to a model's input (resize, crop, colour; normalisation now, by `normalize`, or later), written straight into the
//!   caller's memory, and a [`Placement`] that leads from there back to the pixels that were posted.
//! - `back`: the way from a picture that a model made to the posted image's pixels.
//! - [`stack`]: camera frames for measuring, not for looking: of any number, as they come in, their values as they are.

mod back;
mod bmp;
#[cfg(test)]
mod corpus;
mod error;
mod foreign;
pub mod format;
mod gif;
mod jpeg;
mod normalize;
mod orient;
mod placement;
mod plain_jpeg;
mod png;
pub mod preprocess;
pub mod stack;
#[cfg(test)]
mod tests;
mod tiff;
mod webp;

pub use error::DecodeError;
pub use format::Format;
pub use placement::Placement;
pub use plain_jpeg::{PlainJpeg, plain_jpeg};
pub use preprocess::{Color, DataType, Filter, Geometry, Layout, Pixels, Preprocess, Resize, Scratch};

use orient::Orientation;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a decoder may allocate for metadata (palettes, profiles, tags), in bytes. Orientation needs a few hundred.
const METADATA_BYTES_MAX: usize = 1 << 20;

/// How large an image may be; checked against headers, so that a lie costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Width and height of a frame, in pixels.
    pub side_max: u32,
    /// Pixels of all frames of one image together.
    pub pixels_max: u64,
    /// Frames of one image (pages of a TIFF).
    pub frames_max: usize,
}

impl Limits {
    fn check_side(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        for (what, got) in [("image width in pixels", width), ("image height in pixels", height)] {
            if got > self.side_max {
                return Err(DecodeError::TooLarge {
                    what,
                    got: u64::from(got),
                    limit: u64::from(self.side_max),
                    option: "image_side_max",
                });
            }
        }
        Ok(())
    }

    fn check_pixels(&self, pixels: u64) -> Result<(), DecodeError> {
        if pixels > self.pixels_max {
            return Err(DecodeError::TooLarge {
                what: "image size in pixels, all frames together,",
                got: pixels,
                limit: self.pixels_max,
                option: "image_pixels_max",
            });
        }
        Ok(())
    }

    fn check_frames(&self, frames: usize) -> Result<(), DecodeError> {
        if frames > self.frames_max {
            return Err(DecodeError::TooLarge {
                what: "number of frames in the image",
                got: frames as u64,
                limit: self.frames_max as u64,
                option: "image_frames_max",
            });
        }
        Ok(())
    }

    /// For formats of which one frame is read.
    fn check_one(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        self.check_frames(1)?;
        self.check_side(width, height)?;
        self.check_pixels(u64::from(width) * u64::from(height))
    }
}

/// Which size is enough for whoever asked: from the size of the posted image to the size that it will be resized to, or
/// `None` when every pixel is wanted. [`Preprocess::enough`] is one.
pub type Enough<'a> = &'a dyn Fn(u32, u32) -> Option<(u32, u32)>;

/// What an image says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Its format.
    pub format: Format,
    /// Width of the first frame as a person sees it, after orientation.
    pub width: u32,
    /// Height of the first frame as a person sees it, after orientation.
    pub height: u32,
    /// Samples per pixel of the first decoded frame: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    pub channels: u8,
    /// Bits per decoded sample of the first frame: 8 or 16.
    pub bits: u8,
    /// The same of the frames after it: width, height and bits.
    later: Vec<(u32, u32, u8)>,
    /// Frames beside these that cannot be decoded.
    refused: usize,
    orientation: Orientation,
    /// By what it may be decoded at a fraction of its size, if it may.
    scales: Option<jpeg::Sampling>,
    /// Bytes of all decoded frames at their full size.
    frame_bytes: u64,
    /// Bytes that the decoder holds beside them, at most.
    work_bytes: u64,
}

impl Header {
    /// The header of an image of one frame.
    fn single(
        format: Format,
        (width, height): (u32, u32),
        channels: u8,
        bits: u8,
        orientation: Orientation,
    ) -> Header {
        let (seen_width, seen_height) = orientation.size(width, height);
        let samples = u64::from(width) * u64::from(height) * u64::from(channels);
        Header {
            format,
            width: seen_width,
            height: seen_height,
            channels,
            bits,
            later: Vec::new(),
            refused: 0,
            orientation,
            scales: None,
            frame_bytes: samples * u64::from(bits.div_ceil(8)),
            work_bytes: 0,
        }
    }

    /// Whether there is one frame, and no other beside it that cannot be decoded.
    pub fn is_single(&self) -> bool {
        self.later.is_empty() && self.refused == 0
    }

    /// Width, height and bits of each frame that can be decoded by what the headers say, as they are for the first.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = (u32, u32, u8)> {
        (0..1 + self.later.len()).map(|index| match index {
            0 => (self.width, self.height, self.bits),
            later => self.later[later - 1],
        })
    }

    /// Memory that decoding at full size takes, in bytes: the frames, a second copy where they are turned, and what the
    /// decoder works with. For a budget that the caller keeps; metadata and rows (about 1 MiB) are not counted.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes_for(&|_, _| None)
    }

    /// As [`decoded_bytes`](Header::decoded_bytes), for a decode that may be scaled because `enough` asks for less.
    pub fn decoded_bytes_for(&self, enough: Enough<'_>) -> u64 {
        let mut bytes = self.frame_bytes;
        if let Some(sampling) = self.scales {
            let stored = self.orientation.size(self.width, self.height);
            let eighths = sampling.eighths(stored, self.orientation, enough);
            let scaled = |side: u32| u64::from(jpeg::scaled(side, eighths));
            bytes = scaled(self.width) * scaled(self.height) * u64::from(self.channels);
        }
        let copies = if self.orientation == Orientation::UPRIGHT { 1 } else { 2 };
        bytes * copies + self.work_bytes
    }
}

/// Samples of one frame, row-major, channels interleaved.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// 0 to 255.
    U8(Vec<u8>),
    /// 0 to 65535.
    U16(Vec<u16>),
}

impl Samples {
    /// Number of samples.
    pub fn len(&self) -> usize {
        match self {
            Samples::U8(samples) => samples.len(),
            Samples::U16(samples) => samples.len(),
        }
    }

    /// Bytes of each.
    pub fn bytes_each(&self) -> usize {
        match self {
            Samples::U8(_) => 1,
            Samples::U16(_) => 2,
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
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha. Alpha is not premultiplied.
    pub channels: u8,
    /// `width × height × channels` samples.
    pub samples: Samples,
    /// Width and height of the posted image after orientation: larger than the frame's when a JPEG was decoded scaled.
    pub source: (u32, u32),
    /// Where the posted image lies in the frame. A scaled JPEG's last column and row are only partly covered when its
    /// size is not a multiple of the scale; everything else covers the whole frame.
    pub covered: Region,
}

impl Frame {
    /// A frame whose samples were stored under `orientation`, decoded at full size.
    fn upright(
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
}

/// What `bytes` says about itself, checked against `limits`. No pixel is decoded.
///
/// # Errors
/// [`DecodeError`]: unknown format, a kind that is not supported, damage that shows in the headers, or over a limit.
pub fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let format = Format::sniff(bytes).ok_or_else(|| DecodeError::of_no_image(bytes))?;
    guarded(format, || match format {
        Format::Jpeg => jpeg::header(bytes, limits),
        Format::Png => png::header(bytes, limits),
        Format::WebP => webp::header(bytes, limits),
        Format::Bmp => bmp::header(bytes, limits),
        Format::Gif => gif::header(bytes, limits),
        Format::Tiff => tiff::header(bytes, limits),
    })
}

/// Decodes all frames of an image, upright: the pages of a TIFF, of which each may have an error of its own, one frame of
/// everything else.
///
/// `enough` lets a JPEG be decoded at a fraction of its size, by the smallest of the scales that leave at least twice
/// what it asks for along both axes, of colours too; it is given and gives sizes after orientation.
///
/// # Errors
/// As [`header`], and [`DecodeError::Corrupt`] for truncated or damaged pixel data.
pub fn decode_each(
    bytes: &[u8],
    limits: &Limits,
    enough: Enough<'_>,
) -> Result<Vec<Result<Frame, DecodeError>>, DecodeError> {
    let format = Format::sniff(bytes).ok_or_else(|| DecodeError::of_no_image(bytes))?;
    guarded(format, || decode_as(format, bytes, limits, enough))
}

/// The same where all frames are wanted: the first error of one is that of the whole.
///
/// # Errors
/// As [`decode_each`].
pub fn decode(bytes: &[u8], limits: &Limits, enough: Enough<'_>) -> Result<Vec<Frame>, DecodeError> {
    decode_each(bytes, limits, enough)?.into_iter().collect()
}

fn decode_as(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
    enough: Enough<'_>,
) -> Result<Vec<Result<Frame, DecodeError>>, DecodeError> {
    let frame = match format {
        Format::Jpeg => jpeg::decode(bytes, limits, enough),
        Format::Png => png::decode(bytes, limits),
        Format::WebP => webp::decode(bytes, limits),
        Format::Bmp => bmp::decode(bytes, limits),
        Format::Gif => gif::decode(bytes, limits),
        Format::Tiff => return tiff::decode(bytes, limits),
    };
    Ok(vec![Ok(frame?)])
}

/// A decoder's panic on hostile bytes costs one image, not the thread. The tests call the decoders without this, so that
/// a panic is found there.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(DecodeError::corrupt(format, "the decoder gave up on it")))
}
