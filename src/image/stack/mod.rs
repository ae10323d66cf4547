//! Stacks of camera frames, read as their bytes arrive: TIFF, `.npy`, and raw samples.
//!
//! [`StackReader`] takes bytes and returns frames, in memory that does not grow with the stack:
//!
//! ```text
//! push(bytes) → store (what may still be needed) → contiguous or tiff (where the next frame lies) → page (its samples)
//! ```
//!
//! - `reader` drives the other modules.
//! - `store` keeps bytes that may still be needed, and puts those that do not fit into memory into a temporary file (`spill`).
//! - `tiff` follows the chain of directories. A `directory` has `tags`; those that describe the stack (`wanted`) are read by `describe` and
//!   `ome`.
//! - `page` unpacks strips and tiles (`packing`) as far as `swelling` allows.
//! - `npy` reads the header of a `.npy` file, `samples` has the sample types of all formats, and `error` says why a stack could not be
//!   decoded.
//!
//! # What is read
//!
//! - **TIFF and BigTIFF** of either byte order, grey, in strips or tiles; integers of 8 to 64 bits and floats of 16 to 64; uncompressed,
//!   LZW, deflate, PackBits and zstd, with either predictor. Values are taken as they are stored: colour maps, white-is-zero and
//!   orientations only say how to show them. Descriptions by OME-XML, ImageJ, Micro-Manager and tifffile are read for the pixel size and
//!   the number of frames. Reduced copies and masks are not frames.
//! - **`.npy`** 1.0 to 3.0, `[t, h, w]` or `[h, w]` in C order (ROIs are `[n, b, b]`), integers and floats of up to 8 bytes.
//! - **Raw** little-endian samples, whose size the caller states.
//!
//! # What streams
//!
//! A frame is returned as soon as its last byte arrives if the file is written in order: `.npy`, raw samples, ImageJ, `imwrite` of tifffile
//! for whole stacks (with its own, ImageJ's or OME's description), Micro-Manager, libtiff, and any writer that writes one page after
//! another. Other files have pixels before the directories that describe them: pages whose directories are all at the end, or whose pixels
//! run backwards. Such pixels are kept in memory up to [`Limits::memory_bytes_max`], and beyond that in a temporary file up to
//! [`Limits::spill_bytes_max`].
//!
//! Bytes are released once they have been read. A file whose pages share pixels is therefore refused, and so is one whose directories form
//! a cycle. This bounds the work by the size of the file; for compressed pages, `swelling` bounds what they may unpack to.

mod contiguous;
mod describe;
mod directory;
mod error;
pub(super) mod npy;
mod ome;
mod packing;
mod page;
mod reader;
mod samples;
mod spill;
mod store;
mod swelling;
mod tags;
#[cfg(test)]
mod tests;
mod tiff;
mod wanted;

pub use error::StackError;
pub use npy::Array;
pub use reader::StackReader;
pub(super) use samples::Order;
pub use samples::{SampleType, Samples, Values};
pub use spill::SpillFolder;
pub use swelling::Received;

pub(in crate::image) use describe::planes_of;
pub(in crate::image) use directory::Encoding;
pub(in crate::image) use packing::{Predictor, Zstd};
pub(in crate::image) use samples::to_native;

use crate::error::InferError;
use std::sync::Arc;

/// How many frames, slices and channels a stack has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// Points in time.
    pub frames: u64,
    /// Slices in depth.
    pub slices: u64,
    /// Channels.
    pub channels: u64,
}

impl Dimensions {
    /// Planes in all.
    pub fn planes(self) -> u64 {
        self.frames.saturating_mul(self.slices).saturating_mul(self.channels)
    }
}

/// How a stack is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TIFF or BigTIFF.
    Tiff,
    /// NumPy's array file.
    Npy,
    /// Little-endian samples, row by row, frame by frame, and nothing else.
    Raw(Raw),
}

/// What the caller must state about raw samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw {
    /// Columns of a frame.
    pub width: u32,
    /// Rows of a frame.
    pub height: u32,
    /// Type of the samples.
    pub sample: SampleType,
    /// How many frames there must be; if `None`, the frames go on to the end of the body.
    pub frames: Option<u64>,
}

impl Format {
    /// The format of a stack that begins with `bytes`. Eight bytes are enough to tell.
    pub fn sniff(bytes: &[u8]) -> Option<Format> {
        if Encoding::begins(bytes).is_some() {
            Some(Format::Tiff)
        } else if bytes.starts_with(npy::MAGIC) {
            Some(Format::Npy)
        } else {
            None
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Tiff => "TIFF",
            Format::Npy => ".npy",
            Format::Raw(_) => "raw stack",
        }
    }
}

/// How large a stack may be, and how much reading it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Width and height of a frame, in pixels.
    pub side_max: u32,
    /// Pixels of one frame.
    pub frame_pixels_max: u64,
    /// Frames of one stack.
    pub frames_max: u64,
    /// Memory for bytes that must wait until it is known what they are, in bytes. The frame that is being read comes on top.
    pub memory_bytes_max: usize,
    /// How many bytes the temporary file of one stack may hold once memory is full.
    pub spill_bytes_max: u64,
}

impl Limits {
    fn check_side(&self, what: &'static str, side: u64) -> Result<u32, StackError> {
        match u32::try_from(side) {
            Ok(side) if side <= self.side_max => Ok(side),
            _ => Err(StackError::TooLarge {
                what,
                got: side,
                limit: u64::from(self.side_max),
                option: "image_side_max",
            }),
        }
    }

    fn check_frame(&self, format: Format, width: u32, height: u32) -> Result<(), StackError> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            let what = format!("its frames are {width} x {height} px");
            return Err(StackError::Empty { format: format.name(), what });
        }
        if pixels > self.frame_pixels_max {
            return Err(StackError::TooLarge {
                what: "size of a frame in pixels",
                got: pixels,
                limit: self.frame_pixels_max,
                option: "image_pixels_max",
            });
        }
        Ok(())
    }
}

/// How to read a stack.
#[derive(Debug, Clone)]
pub struct Options {
    /// What reading may use.
    pub limits: Limits,
    /// Where a temporary file may be made. Without a folder, stacks that do not stream must fit into memory.
    pub spill_folder: Option<Arc<SpillFolder>>,
    /// What to do if the OME-XML of this file says that other files hold some of the frames, or that this one holds several images: take the
    /// planes of this file, whatever they are, or fail.
    pub file_alone: bool,
}

/// Called with the number of bytes of memory that a stack holds because they cannot be read yet, whenever that number changes. Returns
/// whether the stack may hold that many; any that it may not hold go to the temporary file.
pub type MayHold = Box<dyn FnMut(usize) -> bool + Send>;

/// Called before memory for decoded frames is allocated, with the total number of bytes. They stay allocated until the reader is dropped.
/// If it returns an error, the stack ends with that error.
pub type Charge = Box<dyn FnMut(usize) -> Result<(), InferError> + Send>;

/// What a stack says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct StackInfo {
    /// Columns of each frame.
    pub width: u32,
    /// Rows of each frame.
    pub height: u32,
    /// What samples are stored as.
    pub sample: SampleType,
    /// How many frames are announced. A Micro-Manager acquisition that was stopped holds fewer.
    pub frames: Option<u64>,
    /// What the frames are, if the stack says so. Frames are returned in the order of the file.
    pub dimensions: Option<Dimensions>,
    /// How many images (positions, series) the stack says that it has; 1 if it says nothing.
    pub images: u64,
    /// Width and height of a pixel in the specimen in nm, if the stack says so. Some writers put it at the end of the file, so that it is
    /// known only then.
    pub pixel_nm: Option<[f64; 2]>,
}

/// Frames in the reader's memory, which is reused for the next ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frames<'a> {
    /// The number of the first, from 0.
    pub first: u64,
    /// How many.
    pub count: usize,
    /// Columns of each.
    pub width: u32,
    /// Rows of each.
    pub height: u32,
    /// `[count, height, width]` samples.
    pub samples: Samples<'a>,
}

/// The outcome of [trying](StackReader::try_frames) for frames.
#[derive(Debug)]
pub enum Tried<'a> {
    /// The next ones.
    Frames(Frames<'a>),
    /// More bytes are needed, or all frames have been returned.
    Nothing,
    /// More work is left; other stacks should have their turn first.
    Busy,
}

/// What a source of pages can answer.
enum Step<T> {
    Ready(T),
    /// More must be read before the next page is known, and this call has done its share of work.
    Busy,
    /// Nothing can be returned before the stack has this many bytes.
    Wait {
        until: u64,
    },
    End,
}

impl<T> Step<T> {
    /// The same step for another type; a ready value is dropped.
    fn nothing<U>(self) -> Step<U> {
        match self {
            Step::Wait { until } => Step::Wait { until },
            Step::Busy => Step::Busy,
            Step::Ready(_) | Step::End => Step::End,
        }
    }
}
