//! From bytes to frames to model input. Pure: no clock, no thread, no network, and no file except one (see [`stack`]).
//!
//! - [`mod@format`]: recognises the format of an image; `foreign`: recognises bytes that are in none of the supported formats.
//! - [`header`] and [`decode`]: check the sizes that the headers state against [`Limits`] before any pixels are allocated. Then one strict
//!   decoder per format (`jpeg`, `png`, `webp`, `bmp`, `gif`, `tiff`, `pnm`, `npy`) makes [`Frame`]s, turned upright (`orient`). A
//!   truncated file is refused, whatever its format.
//! - [`mod@plain_jpeg`]: selects the JPEGs that a hardware decoder may be given instead.
//! - [`preprocess`]: turns a frame into a model's input (resize, crop, colour, and normalisation by `normalize`, now or later), written
//!   straight into the caller's memory. It returns a [`Placement`], which maps back to the pixels of the posted image.
//! - `back`: maps a picture that a model made back to the pixels of the posted image.
//! - [`stack`]: camera frames for measurement rather than viewing: any number of them, read as they arrive, with their values unchanged.

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
mod npy;
mod orient;
mod placement;
mod plain_jpeg;
mod png;
mod pnm;
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

/// How large an image may be. The limits are checked against the headers, so a false size in a header costs nothing.
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

    /// Checks the size for formats of which only one frame is read.
    fn check_one(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        self.check_frames(1)?;
        self.check_side(width, height)?;
        self.check_pixels(u64::from(width) * u64::from(height))
    }
}

/// The size that is enough for the caller: maps the size of the posted image to the size that it will be resized to, or to `None` if every
/// pixel is wanted. [`Preprocess::enough`] is one such function.
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
    /// Width, height and bits of the later frames.
    later: Vec<(u32, u32, u8)>,
    /// The number of further frames that cannot be decoded.
    refused: usize,
    orientation: Orientation,
    /// The component sampling from which a reduced scale is chosen, if the image may be decoded at a fraction of its size.
    scales: Option<jpeg::Sampling>,
    /// Bytes of all decoded frames at their full size.
    frame_bytes: u64,
    /// The most bytes that the decoder holds beside the frames.
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

    /// Whether there is exactly one frame, counting those that cannot be decoded.
    pub fn is_single(&self) -> bool {
        self.later.is_empty() && self.refused == 0
    }

    /// Width, height and bits of each frame that the headers say can be decoded, in the same terms as for the first.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = (u32, u32, u8)> {
        (0..1 + self.later.len()).map(|index| match index {
            0 => (self.width, self.height, self.bits),
            later => self.later[later - 1],
        })
    }

    /// Memory that decoding at full size takes, in bytes: the frames, a second copy where they are turned, and the decoder's working
    /// memory. The caller charges this to a budget; metadata and rows (about 1 MiB) are not counted.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes_for(&|_, _| None)
    }

    /// Like [`decoded_bytes`](Header::decoded_bytes), for a decode that may be scaled because `enough` asks for less.
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

    /// Bytes of each sample.
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
    /// Where the posted image lies in the frame. The image covers the last column and row of a scaled JPEG only in part if its size is not
    /// a multiple of the scale. In every other case it covers the whole frame.
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

/// What `bytes` state about the image, checked against `limits`. No pixel is decoded.
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
        Format::Pnm => pnm::header(bytes, limits),
        Format::Npy => npy::header(bytes, limits),
    })
}

/// Decodes all frames of an image, upright: the pages of a TIFF, each of which may have an error of its own, the images of an array, and
/// one frame of any other format.
///
/// With `enough`, a JPEG may be decoded at a fraction of its size: at the smallest scale that leaves at least twice the size that `enough`
/// asks for along both axes, of colours too. `enough` takes and returns sizes after orientation.
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

/// Like [`decode_each`], for callers that want all frames: the first frame's error is the error of the whole image.
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
        Format::Pnm => pnm::decode(bytes, limits),
        Format::Tiff => return tiff::decode(bytes, limits),
        Format::Npy => return npy::decode(bytes, limits),
    };
    Ok(vec![Ok(frame?)])
}

/// A decoder's panic on hostile bytes costs one image, not the thread. The tests call the decoders without this guard, so that they find
/// such panics.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(DecodeError::corrupt(format, "the decoder gave up on it")))
}
