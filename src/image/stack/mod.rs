//! Stacks of camera frames, read as their bytes come in: TIFF, `.npy`, and raw samples.
//!
//! [`StackReader`] takes bytes and gives frames, in memory that does not grow with the stack:
//!
//! ```text
//! push(bytes) → store (what may still be needed) → contiguous or tiff (where the next frame lies) → page (its samples)
//! ```
//!
//! `reader` drives these. A `store` has what memory may not hold in a file (`spill`). `tiff` follows the chain of directories: a
//! `directory` has `tags`, of which those that describe the stack (`wanted`) are read by `describe` and `ome`; `page` unpacks strips and
//! tiles (`packing`) as far as `swelling` lets it. `npy` has the header of such an array, `samples` the types of both, and `error` why a
//! stack did not become frames.
//!
//! # What is read
//!
//! - **TIFF and BigTIFF** of either byte order, grey, in strips or tiles; integers of 8 to 64 bits and floats of 16 to 64;
//!   uncompressed, LZW, deflate, PackBits and zstd, with either predictor. Values are taken as they are stored: colour
//!   maps, white-is-zero and orientations only say how to show them. Descriptions by OME-XML, ImageJ, Micro-Manager and tifffile are
//!   read for the pixel size and for how many frames there are. Reduced copies and masks are no frames.
//! - **`.npy`** 1.0 to 3.0, `[t, h, w]` or `[h, w]` in C order (ROIs are `[n, b, b]`), integers and floats of up to 8 bytes.
//! - **Raw** little-endian samples, whose size the caller states.
//!
//! # What streams
//!
//! A frame comes out with its last byte where the file is written in order: `.npy`, raw samples, ImageJ, `imwrite` of
//! tifffile for whole stacks (with its own, ImageJ's or OME's description), Micro-Manager, libtiff and whoever writes one page
//! after another. What comes before the place that says what it is has to be kept: pages whose directories are all at
//! the end, or whose pixels run backwards. They are kept in memory up to [`Limits::memory_bytes_max`], beyond that in a
//! temporary file up to [`Limits::spill_bytes_max`].
//!
//! Bytes are given up when they were read. A file whose pages share pixels is refused for that, and so is one whose
//! directories run in a circle: work is bounded by the size of the file, and where pages are packed by what `swelling` lets come out of it.

mod contiguous;
mod describe;
mod directory;
mod error;
mod npy;
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

pub use describe::Dimensions;
pub use error::StackError;
pub use npy::Array;
pub use reader::StackReader;
pub use samples::{SampleType, Samples, Values};
pub use spill::SpillFolder;
pub use swelling::Came;

pub(in crate::image) use describe::planes_of;
pub(in crate::image) use directory::Encoding;

use crate::error::InferError;
use std::sync::Arc;

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

/// What raw samples do not say of themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw {
    /// Columns of a frame.
    pub width: u32,
    /// Rows of a frame.
    pub height: u32,
    /// Type of the samples.
    pub sample: SampleType,
    /// Where it is stated, how many frames there have to be; else they go on to the end.
    pub frames: Option<u64>,
}

impl Format {
    /// The format that a stack which begins with `bytes` has. Eight bytes are enough to know.
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

/// How large a stack may be, and what reading it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Width and height of a frame, in pixels.
    pub side_max: u32,
    /// Pixels of one frame.
    pub frame_pixels_max: u64,
    /// Frames of one stack.
    pub frames_max: u64,
    /// Memory for bytes that wait for what says what they are, in bytes; the frame that is read comes on top.
    pub memory_bytes_max: usize,
    /// What may go to the temporary file of one stack when memory is full, in bytes.
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
    /// What it may take.
    pub limits: Limits,
    /// Where a temporary file may be made; without one, stacks that do not stream have to fit into memory.
    pub spill_folder: Option<Arc<SpillFolder>>,
    /// Takes the frames of this file alone where its OME-XML says that others hold some; otherwise that is an error.
    pub file_alone: bool,
}

/// Told how many bytes of memory a stack holds that cannot be read yet, whenever that changes; says whether it may hold as many.
/// What it may not hold goes to the temporary file.
pub type MayHold = Box<dyn FnMut(usize) -> bool + Send>;

/// Asked for the memory in which frames come out before any of it is taken: for so many bytes in all, which stay until the reader is
/// dropped. Where it says no, the stack ends with its reason.
pub type Charge = Box<dyn FnMut(usize) -> Result<(), InferError> + Send>;

/// What a stack says of itself.
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
    /// What they are, where that is said. Frames come in the order of the file.
    pub dimensions: Option<Dimensions>,
    /// Width and height of a pixel in the specimen, nm, where they are said. Some writers say it at the end of the file, so that it is
    /// known then.
    pub pixel_nm: Option<[f64; 2]>,
}

/// Frames in the reader's memory, which is used again for the next ones.
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

/// What came of [trying](StackReader::try_frames) for frames.
#[derive(Debug)]
pub enum Tried<'a> {
    /// The next ones.
    Frames(Frames<'a>),
    /// More bytes are needed, or all frames came out.
    Nothing,
    /// Others should have their turn before it goes on.
    Busy,
}

/// What a source of pages can say.
enum Step<T> {
    Ready(T),
    /// There is more to be read before the next is known.
    Busy,
    /// Nothing before the stack has so many bytes.
    Wait {
        until: u64,
    },
    End,
}

impl<T> Step<T> {
    /// The same for another type; what was ready is lost.
    fn nothing<U>(self) -> Step<U> {
        match self {
            Step::Wait { until } => Step::Wait { until },
            Step::Busy => Step::Busy,
            Step::Ready(_) | Step::End => Step::End,
        }
    }
}
