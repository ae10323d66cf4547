//! From bytes to frames to model input. Pure: no clock, no thread, no network, and no file except one (see [`stack`]).
//!
//! - [`mod@format`]: recognises the format of an image; `foreign`: recognises bytes that are in none of the supported formats, with the
//!   table of `signature`, which stacks use as well.
//! - [`open`]: checks the sizes that the headers state against [`Limits`] before any pixels are allocated. Then one strict decoder per
//!   format (`jpeg`, `png`, `webp`, `bmp`, `gif`, `tiff`, `jxl`, `jpeg2000`, `pnm`, `npy`) makes [`Frame`]s (`frame`), turned upright
//!   (`orient`). A truncated file is refused, whatever its format.
//! - [`mod@plain_jpeg`]: selects the JPEGs that a hardware decoder may be given instead.
//! - [`preprocess`]: turns a frame into a model's input (resize, crop, colour, and normalisation by `normalize`, now or later), written
//!   straight into the caller's memory. It returns a [`Placement`], which maps back to the pixels of the posted image.
//! - `back`: maps a picture that a model made back to the pixels of the posted image.
//! - [`stack`]: camera frames for measurement rather than viewing: any number of them, read as they arrive, with their values unchanged.

mod back;
mod bmp;
mod boxes;
#[cfg(test)]
pub(crate) mod corpus;
mod error;
mod foreign;
pub mod format;
mod frame;
mod gif;
mod jpeg;
mod jpeg2000;
mod jxl;
mod npy;
mod orient;
mod placement;
mod plain_jpeg;
mod png;
mod pnm;
pub mod preprocess;
mod signature;
pub mod stack;
#[cfg(test)]
mod tests;
mod tiff;
mod webp;

pub use error::DecodeError;
pub use format::Format;
pub use frame::{Frame, Region, Samples};
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
    /// Bits per decoded sample of the first frame: 8, 16, or 32 for [measured](Samples::F32) ones.
    pub bits: u8,
    /// The later frames.
    later: Vec<Later>,
    /// The number of further frames that cannot be decoded.
    refused: usize,
    orientation: Orientation,
    /// The component sampling from which a reduced scale is chosen, if the image may be decoded at a fraction of its size.
    scales: Option<jpeg::Sampling>,
    /// The same if it may be decoded at half its size, and that halved again.
    halvings: Option<jpeg2000::Halvings>,
    /// Bytes of the first frame, decoded at its full size.
    frame_bytes: u64,
    /// The most bytes that the decoder holds beside the first frame.
    work_bytes: u64,
}

/// A frame after the first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Later {
    width: u32,
    height: u32,
    bits: u8,
    /// Bytes that decoding it takes: the frame and what the decoder holds beside it.
    bytes: u64,
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
            halvings: None,
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
            later => {
                let Later { width, height, bits, .. } = self.later[later - 1];
                (width, height, bits)
            }
        })
    }

    /// Memory that decoding the first frame at full size takes, in bytes: the frame, a second copy where it is turned, and the decoder's
    /// working memory. The caller charges this to a budget; metadata and rows (about 1 MiB) are not counted.
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
        if let Some(halvings) = self.halvings {
            bytes = halvings.bytes((self.width, self.height), enough);
        }
        let copies = if self.orientation == Orientation::UPRIGHT { 1 } else { 2 };
        bytes * copies + self.work_bytes
    }

    /// Memory that decoding any `at_once` of the frames at once takes at most, in bytes.
    pub fn decoding_bytes(&self, at_once: usize, enough: Enough<'_>) -> u64 {
        let mut each: Vec<u64> = self.later.iter().map(|frame| frame.bytes).collect();
        each.push(self.decoded_bytes_for(enough));
        each.sort_unstable_by(|one, other| other.cmp(one));
        each.iter().take(at_once).sum()
    }
}

/// What `bytes` state about the image, checked against `limits`. No pixel is decoded.
///
/// # Errors
/// As [`open`].
pub fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|image| image.header)
}

/// What the pages of a file are, and the first of the three axes of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Pictures of their own. Of three axes, one is that of the channels.
    Pictures,
    /// The channels of one picture, in order. Of an only page of a TIFF, so may the samples of each pixel be.
    Channels,
}

impl Pages {
    /// Both, with their names in manifests.
    pub const ALL: [(&str, Pages); 2] = [("pictures", Pages::Pictures), ("channels", Pages::Channels)];
}

/// An image whose headers are within limits. Its frames may be decoded in any order, and by several threads at once.
pub struct Image<B> {
    bytes: B,
    limits: Limits,
    header: Header,
    /// What the first of three axes of an array is.
    first: Pages,
    /// The pages of a TIFF.
    pages: Option<tiff::Pages>,
}

/// Reads the headers of an image and checks them against `limits`. No pixel is decoded.
///
/// # Errors
/// [`DecodeError`]: unknown format, a kind that is not supported, damage that shows in the headers, or over a limit.
pub fn open<B: AsRef<[u8]>>(bytes: B, limits: &Limits) -> Result<Image<B>, DecodeError> {
    open_pages(bytes, limits, Pages::Pictures)
}

/// The same for a file whose pages are this. Whether it has frames of one channel and of one size is left to the caller.
///
/// # Errors
/// As [`open`].
pub fn open_pages<B: AsRef<[u8]>>(bytes: B, limits: &Limits, pages: Pages) -> Result<Image<B>, DecodeError> {
    let format = Format::sniff(bytes.as_ref()).ok_or_else(|| foreign::of_no_image(bytes.as_ref()))?;
    guarded(format, || open_as(format, bytes, limits, pages))
}

fn open_as<B: AsRef<[u8]>>(
    format: Format,
    bytes: B,
    limits: &Limits,
    first: Pages,
) -> Result<Image<B>, DecodeError> {
    let (file, mut pages) = (bytes.as_ref(), None);
    let header = match format {
        Format::Jpeg => jpeg::header(file, limits),
        Format::Png => png::header(file, limits),
        Format::WebP => webp::header(file, limits),
        Format::Bmp => bmp::header(file, limits),
        Format::Gif => gif::header(file, limits),
        Format::Jxl => jxl::header(file, limits),
        Format::Jpeg2000 => jpeg2000::header(file, limits),
        Format::Pnm => pnm::header(file, limits),
        Format::Npy => npy::header(file, limits, first),
        Format::Tiff => pages.insert(tiff::walk(file, limits, first)?).header(),
    }?;
    Ok(Image { bytes, limits: *limits, header, first, pages })
}

impl<B: AsRef<[u8]>> Image<B> {
    /// What its headers state.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of its frames, counting those that cannot be decoded: the pages of a TIFF, the images of an array, and one of any other
    /// format.
    pub fn frame_count(&self) -> usize {
        1 + self.header.later.len() + self.header.refused
    }

    /// Decodes the frame at `index`, upright.
    ///
    /// With `enough`, a JPEG may be decoded at a fraction of its size: at the smallest scale that leaves at least twice the size that
    /// `enough` asks for along both axes, of colours too; a JPEG 2000 at the smallest that leaves four times that size. `enough` takes and
    /// returns sizes after orientation.
    ///
    /// # Errors
    /// [`DecodeError::Corrupt`] for truncated or damaged pixel data, and what is wrong with this page of a TIFF.
    /// Also for an index beyond the last frame.
    pub fn frame(&self, index: usize, enough: Enough<'_>) -> Result<Frame, DecodeError> {
        let count = self.frame_count();
        if index >= count {
            return Err(DecodeError::corrupt(
                self.header.format,
                format!("it has {count} frames, none {index}"),
            ));
        }
        guarded(self.header.format, || self.decoded(index, enough))
    }

    fn decoded(&self, index: usize, enough: Enough<'_>) -> Result<Frame, DecodeError> {
        let (bytes, limits) = (self.bytes.as_ref(), &self.limits);
        if let Some(pages) = &self.pages {
            return pages.decode(bytes, index);
        }
        match self.header.format {
            Format::Jpeg => jpeg::decode(bytes, limits, enough),
            Format::Png => png::decode(bytes, limits),
            Format::WebP => webp::decode(bytes, limits),
            Format::Bmp => bmp::decode(bytes, limits),
            Format::Gif => gif::decode(bytes, limits),
            Format::Jxl => jxl::decode(bytes, limits),
            Format::Jpeg2000 => jpeg2000::decode(bytes, limits, enough),
            Format::Pnm => pnm::decode(bytes, limits),
            Format::Npy => npy::decode(bytes, limits, self.first, index),
            Format::Tiff => Err(DecodeError::corrupt(Format::Tiff, "it has no pages")),
        }
    }
}

/// Decodes all frames of an image. An error of one is the error of the image.
///
/// # Errors
/// As [`open`] and [`Image::frame`].
pub fn decode(bytes: &[u8], limits: &Limits, enough: Enough<'_>) -> Result<Vec<Frame>, DecodeError> {
    let image = open(bytes, limits)?;
    (0..image.frame_count()).map(|index| image.frame(index, enough)).collect()
}

/// A decoder's panic on hostile bytes costs one image, not the thread. The tests call the decoders without this guard, so that they find
/// such panics.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(DecodeError::corrupt(format, "the decoder gave up on it")))
}
