//! From a frame to a model's input: colour, resize, crop or padding, normalisation, with the same results as torchvision and Pillow.
//!
//! Resizing is antialiased and happens at the frame's own precision (8 or 16 bits, or single); only what survives the crop is computed. The
//! last pass writes straight into the caller's memory: numbers ([`Preprocess::apply`]), or pixels ([`Preprocess::place`]) that
//! [`Preprocess::normalize`] turns into numbers later.

mod geometry;
mod kinds;
mod mirror;
mod normalize;
mod pixels;
pub(super) mod resize;
#[cfg(test)]
mod tests;

use super::{Frame, Placement, Samples};
use crate::error::InferError;
use fast_image_resize::Resizer;
pub use geometry::{Geometry, Window};
pub use kinds::{Color, DataType, Filter, Layout};
use mirror::mirror;
use normalize::PixelBlock;
pub use normalize::Pixels;
use pixels::flatten;
pub(super) use pixels::{Integer, Sample};
use serde::{Deserialize, Serialize};

/// Sides of a model's input are at most this, in pixels.
const SIDE_MAX: u32 = 1 << 15;

/// A scratch buffer that has grown beyond this many bytes is freed after use.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// How an image is brought to the size of the model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resize {
    /// The shorter side becomes this long and the longer one keeps the aspect ratio (rounded down); then the centre is cut
    /// out, with black around it where the image is smaller: torchvision's `Resize(n)` and `CenterCrop`.
    Shorter(u32),
    /// Both sides become the input's; the aspect ratio is lost.
    Stretch,
    /// Both sides become this long; then the centre is cut out.
    Square(u32),
    /// As large as fits with the aspect ratio kept, centred, with [`Preprocess::pad`] around it.
    Letterbox,
    /// The height becomes the input's, and the input is as wide as that makes the image: see [`Preprocess::width_of`].
    Height,
    /// No resize: an image of another size is refused.
    Exact,
    /// No resize: the image lies in the top left corner, and its mirror image fills each side up to the next multiple of this.
    Multiple(u32),
}

/// How a frame is turned into one item of a model's input: `(pixel × scale − mean) / std` for pixels from 0 to 255
/// (16-bit samples are divided by 257, without rounding), and the largest that the input's type holds where that is more. Measured values
/// take the place of `pixel × scale`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preprocess {
    /// Width of the input in pixels.
    pub width: u32,
    /// Height of the input in pixels.
    pub height: u32,
    /// How the image gets that size.
    pub resize: Resize,
    /// The kernel of the resize.
    pub filter: Filter,
    /// Channels and their order.
    pub color: Color,
    /// The background that shows through where the image is transparent: red, green, blue.
    pub background: [u8; 3],
    /// The pixel value around a letterboxed image, all channels.
    pub pad: u8,
    /// Multiplies pixels, usually 1/255; not measured values.
    #[serde(with = "crate::bits")]
    pub scale: f32,
    /// Subtracted after scaling; in the order of the input's channels (grey uses only the first).
    #[serde(with = "crate::bits")]
    pub mean: [f32; 3],
    /// Divides what remains; in the order of the input's channels.
    #[serde(with = "crate::bits")]
    pub std: [f32; 3],
    /// Order of the axes.
    pub layout: Layout,
    /// Type of the elements.
    pub datatype: DataType,
}

impl Preprocess {
    /// Stretches an RGB image to this size, with pixels from 0 to 1, `FP32`, channels first.
    pub fn new(width: u32, height: u32) -> Preprocess {
        Preprocess {
            width,
            height,
            resize: Resize::Stretch,
            filter: Filter::Bilinear,
            color: Color::Rgb,
            background: [0; 3],
            pad: 114,
            scale: 1.0 / 255.0,
            mean: [0.0; 3],
            std: [1.0; 3],
            layout: Layout::Nchw,
            datatype: DataType::Fp32,
        }
    }

    /// Checks whether this can be carried out. The other methods rely on it.
    ///
    /// # Errors
    /// What is wrong, with the value and what would be right.
    pub fn check(&self) -> Result<(), String> {
        for (name, side) in [("width", self.width), ("height", self.height)] {
            if !(1..=SIDE_MAX).contains(&side) {
                return Err(format!("{name} is {side}, but must be 1 to {SIDE_MAX}"));
            }
        }
        if let Resize::Shorter(side) | Resize::Square(side) | Resize::Multiple(side) = self.resize
            && !(1..=SIDE_MAX).contains(&side)
        {
            return Err(format!("the size is {side}, but must be 1 to {SIDE_MAX}"));
        }
        let depth = self.color.channels();
        let (mean, std) = (&self.mean[..depth], &self.std[..depth]);
        if !self.scale.is_finite() || self.scale == 0.0 {
            return Err(format!("scale is {}, but must be finite and not zero", self.scale));
        }
        if let Some(mean) = mean.iter().find(|mean| !mean.is_finite()) {
            return Err(format!("mean holds {mean}, but must be finite"));
        }
        if let Some(std) = std.iter().find(|std| !std.is_finite() || **std == 0.0) {
            return Err(format!("std holds {std}, but must be finite and not zero"));
        }
        let plain =
            self.scale == 1.0 && mean.iter().all(|mean| *mean == 0.0) && std.iter().all(|std| *std == 1.0);
        if self.datatype == DataType::Uint8 && !plain {
            return Err("UINT8 input takes pixels as they are: set scale 1, mean 0 and std 1".to_owned());
        }
        Ok(())
    }

    /// Extents of one item, in the order of the layout.
    pub fn shape(&self) -> [usize; 3] {
        let (width, height) = (self.width as usize, self.height as usize);
        let depth = self.color.channels();
        match self.layout {
            Layout::Nchw => [depth, height, width],
            Layout::Nhwc => [height, width, depth],
        }
    }

    /// Bytes of one item.
    pub fn out_bytes(&self) -> usize {
        self.shape().into_iter().product::<usize>() * self.datatype.size()
    }

    /// The size that an image of `width` × `height` is resized to, for [`decode`](super::decode): more detail than that is not needed.
    /// `None` where every pixel counts: [`Filter::Box`] takes whole source pixels, and a few larger ones do not cover the same area.
    pub fn enough(&self, width: u32, height: u32) -> Option<(u32, u32)> {
        match (self.resize, self.filter) {
            (Resize::Exact | Resize::Multiple(_), _) | (_, Filter::Nearest | Filter::Box) => None,
            _ => Some(self.placement(width, height).resized),
        }
    }

    /// Where an image of `width` × `height` lies in the input.
    pub fn placement(&self, width: u32, height: u32) -> Placement {
        let (width, height) = (width.max(1), height.max(1));
        let resized = match self.resize {
            Resize::Exact | Resize::Multiple(_) => (width, height),
            Resize::Stretch | Resize::Height => (self.width, self.height),
            Resize::Square(side) => (side, side),
            Resize::Shorter(side) => {
                let long = |long: u32, short: u32| {
                    let long = u64::from(side) * u64::from(long) / u64::from(short);
                    u32::try_from(long).unwrap_or(u32::MAX)
                };
                if width <= height { (side, long(height, width)) } else { (long(width, height), side) }
            }
            Resize::Letterbox => {
                let ratio = (f64::from(self.width) / f64::from(width))
                    .min(f64::from(self.height) / f64::from(height));
                let side = |side: u32, limit: u32| {
                    // Rounds half to even, as Python does.
                    let side = (f64::from(side) * ratio).round_ties_even() as u32;
                    side.clamp(1, limit)
                };
                (side(width, self.width), side(height, self.height))
            }
        };
        let mirrored = matches!(self.resize, Resize::Multiple(_));
        let offset = match mirrored {
            true => (0, 0),
            false => (centred(self.width, resized.0), centred(self.height, resized.1)),
        };
        Placement { source: (width, height), resized, offset, input: (self.width, self.height), mirrored }
    }

    /// Extents of one item's pixels: rows, columns, and 1 or 3 channels, as [`Preprocess::place`] writes them.
    pub fn pixels_shape(&self) -> [usize; 3] {
        [self.height as usize, self.width as usize, self.color.channels()]
    }

    /// Writes `frame` as one item into `out`, and says where in it the image lies.
    ///
    /// # Errors
    /// [`InferError::BadRequest`] when the image must have the input's size and has another, and for measured values that the input's
    /// type does not hold. (Pixels become the largest number that it holds.)
    ///
    /// # Panics
    /// If `out` is not [`out_bytes`](Preprocess::out_bytes) long.
    pub fn apply(
        &self,
        frame: &Frame,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Placement, InferError> {
        assert_eq!(out.len(), self.out_bytes(), "bytes of one item");
        let placement = self.write(frame, scratch, out, normalize::write)?;
        match frame.samples {
            Samples::F32(_) => self.held(&placement, out).map(|()| placement),
            Samples::U8(_) | Samples::U16(_) => Ok(placement),
        }
    }

    /// Checks that measured values became numbers.
    fn held(&self, placement: &Placement, item: &[u8]) -> Result<(), InferError> {
        let Some(at) = normalize::infinite(self, item) else { return Ok(()) };
        let centre = |at: usize| at as f32 + 0.5;
        let (x, y) = (at % self.width as usize, at / self.width as usize);
        let (column, row) = placement.to_source(centre(x), centre(y));
        Err(InferError::BadRequest(format!(
            "a value, less mean and divided by std, is beyond what the model's input holds, which is {} (the first is at column {}, row {}, \
             counted from 0)",
            self.datatype.name(),
            column.floor(),
            row.floor()
        )))
    }

    /// These settings for one channel of several, with its own mean and standard deviation.
    pub fn of_channel(self, [mean, std]: [f32; 2]) -> Preprocess {
        Preprocess { mean: [mean; 3], std: [std; 3], ..self }
    }

    /// Writes the pixels that `frame` becomes, as samples of the frame's own type: grey, or red, green and blue, channels last. Followed by
    /// [`Preprocess::normalize`], this gives the same bits as [`Preprocess::apply`].
    ///
    /// # Errors
    /// As [`Preprocess::apply`].
    ///
    /// # Panics
    /// If `out` does not have one sample for each of [`pixels_shape`](Preprocess::pixels_shape).
    pub fn place(
        &self,
        frame: &Frame,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Placement, InferError> {
        let samples = self.pixels_shape().into_iter().product::<usize>();
        assert_eq!(out.len(), samples * frame.samples.bytes_each(), "bytes of one item's pixels");
        self.write(frame, scratch, out, normalize::place)
    }

    /// Turns the pixels of several items into numbers.
    ///
    /// # Panics
    /// If the number of pixels is not that of `items` items, or if `out` is not [`out_bytes`](Preprocess::out_bytes) long for each.
    pub fn normalize(&self, pixels: Pixels<'_>, items: usize, out: &mut [u8]) {
        let samples = self.pixels_shape().into_iter().product::<usize>();
        assert_eq!(pixels.len(), items * samples, "samples of {items} items");
        assert_eq!(out.len(), items * self.out_bytes(), "bytes of {items} items");
        normalize::finish(self, pixels, items, out);
    }

    fn write(
        &self,
        frame: &Frame,
        scratch: &mut Scratch,
        out: &mut [u8],
        how: fn(&Preprocess, &PixelBlock<'_>, &mut [u8], &mut Vec<u32>),
    ) -> Result<Placement, InferError> {
        let (width, height) = frame.source;
        let placement = self.placement(width, height);
        self.takes(frame.source)?;
        let window = match self.resize {
            Resize::Multiple(_) => {
                Window { left: 0, top: 0, width: self.width as usize, height: self.height as usize }
            }
            _ => self.window(&placement),
        };
        let pad = if self.resize == Resize::Letterbox { self.pad } else { 0 };
        match &frame.samples {
            Samples::U8(samples) => {
                let mut buffers = std::mem::take(&mut scratch.u8s);
                let (pixels, channels) = self.resized(frame, samples, &placement, scratch, &mut buffers)?;
                let given = PixelBlock { pixels: Pixels::U8(pixels), channels, window, pad };
                how(self, &given, out, &mut scratch.elements);
                scratch.u8s = buffers.kept();
            }
            Samples::U16(samples) => {
                let mut buffers = std::mem::take(&mut scratch.u16s);
                let (pixels, channels) = self.resized(frame, samples, &placement, scratch, &mut buffers)?;
                let given = PixelBlock { pixels: Pixels::U16(pixels), channels, window, pad };
                how(self, &given, out, &mut scratch.elements);
                scratch.u16s = buffers.kept();
            }
            Samples::F32(samples) => {
                let mut buffers = std::mem::take(&mut scratch.f32s);
                let (pixels, channels) = self.resized(frame, samples, &placement, scratch, &mut buffers)?;
                let given = PixelBlock { pixels: Pixels::F32(pixels), channels, window, pad };
                how(self, &given, out, &mut scratch.elements);
                scratch.f32s = buffers.kept();
            }
        }
        if scratch.resizer.size_of_internal_buffers() > KEPT_BYTES_MAX {
            scratch.resizer.reset_internal_buffers();
        }
        Ok(placement)
    }

    /// The pixels of the window with one or three channels.
    fn resized<'a, T: Sample>(
        &self,
        frame: &Frame,
        samples: &'a [T],
        placement: &Placement,
        scratch: &mut Scratch,
        buffers: &'a mut Buffers<T>,
    ) -> Result<(&'a [T], usize), InferError> {
        let Buffers { flat, between, resized } = buffers;
        let background = self.background.map(|level| T::of_level(level, self.scale));
        let (flat, channels) = flatten(samples, frame.channels, self.color == Color::Gray, background, flat);

        let size = (frame.width, frame.height);
        let Geometry { window, from } = self.geometry(size, frame.covered, placement);
        let same = (from.left, from.top) == (0.0, 0.0)
            && (frame.width as usize, frame.height as usize) == (window.width, window.height)
            && (from.width, from.height) == (window.width as f64, window.height as f64);
        let (of_frame, of_input) = ([frame.width, frame.height], [self.width, self.height]);
        if let Resize::Multiple(_) = self.resize
            && of_frame != of_input
        {
            let [from, to] = [of_frame, of_input].map(|size| size.map(|side| side as usize));
            mirror(flat, from, channels, to, resized);
            return Ok((resized, channels));
        }
        if same {
            return Ok((flat, channels));
        }

        let picture = resize::Picture { samples: flat, width: frame.width, height: frame.height, channels };
        let size = [window.width as u32, window.height as u32];
        resize::resize(&mut scratch.resizer, &picture, &from, size, self.filter, resized, between)
            .map_err(|error| InferError::Internal(format!("an image could not be resized: {error}")))?;
        Ok((resized, channels))
    }
}

/// Where something `inner` long begins when it is centred in `outer`. As in torchvision, an excess is cropped with Python's `round` (half
/// to even), and a deficit is padded with the smaller half first.
fn centred(outer: u32, inner: u32) -> i64 {
    let difference = i64::from(inner) - i64::from(outer);
    if difference <= 0 {
        return -difference / 2;
    }
    let half = difference / 2;
    -(half + (difference & half & 1))
}

/// Buffers that one thread reuses from image to image. Those that a large image has enlarged are freed.
#[derive(Default)]
pub struct Scratch {
    resizer: Resizer,
    u8s: Buffers<u8>,
    u16s: Buffers<u16>,
    f32s: Buffers<f32>,
    /// Used if the output is not aligned for its elements.
    elements: Vec<u32>,
}

#[derive(Default)]
struct Buffers<T> {
    flat: Vec<T>,
    /// The result of the first pass of a resize, where there are two.
    between: Vec<T>,
    resized: Vec<T>,
}

impl<T> Buffers<T> {
    fn kept(mut self) -> Buffers<T> {
        for buffer in [&mut self.flat, &mut self.between, &mut self.resized] {
            if buffer.capacity() * size_of::<T>() > KEPT_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
        self
    }
}
