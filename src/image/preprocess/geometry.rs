//! The part of a model's input that an image fills, and the part of the frame that goes there.

use super::{Placement, Preprocess, Resize};
use crate::{error::InferError, image::Region};

/// The part of a model's input that an image fills, in input pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Left edge.
    pub left: usize,
    /// Top edge.
    pub top: usize,
    /// Extent to the right.
    pub width: usize,
    /// Extent downward.
    pub height: usize,
}

/// The source and the target of a resize.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometry {
    /// The part of the input that is filled.
    pub window: Window,
    /// The part of the frame that fills it, in pixels of the frame. Fractions matter. The resizer also sees the neighbourhood beyond the
    /// edges of this part, so that the result is the same as resizing everything and then cropping.
    pub from: Region,
}

/// The widest input for [`Resize::Height`], in pixels. A posted row of pixels would become one of a million.
const WIDTH_MAX: u32 = 1 << 14;

impl Preprocess {
    /// The width of an image that is brought to the input's height. It is one pixel more than the widest where
    /// [`takes`](Preprocess::takes) refuses the image.
    pub fn width_of(&self, (width, height): (u32, u32)) -> u32 {
        let wide = f64::from(width) * f64::from(self.height) / f64::from(height.max(1));
        (wide.round() as u32).clamp(1, WIDTH_MAX + 1)
    }

    /// Checks whether an image of this size is accepted at all.
    ///
    /// # Errors
    /// [`InferError::BadRequest`] when the image must have the input's size and has another, or would become too wide.
    pub fn takes(&self, (width, height): (u32, u32)) -> Result<(), InferError> {
        if self.resize == Resize::Height && self.width_of((width, height)) > WIDTH_MAX {
            return Err(InferError::BadRequest(format!(
                "the image is {width} × {height} pixels: at the height of {} that the model takes, it is wider than {WIDTH_MAX}",
                self.height
            )));
        }
        if let Resize::Multiple(side) = self.resize {
            let fills = |length: u32, input: u32| (length..length + side).contains(&input);
            return match fills(width, self.width) && fills(height, self.height) {
                true => Ok(()),
                false => Err(InferError::BadRequest(format!(
                    "the image is {width} × {height} pixels, which are filled up to multiples of {side}, but the model takes {} × {}",
                    self.width, self.height
                ))),
            };
        }
        if self.resize != Resize::Exact {
            return Ok(());
        }
        // A side that already matches may be one that the model leaves open, so only the other side is named.
        let exactly = match (width == self.width, height == self.height) {
            (true, true) => return Ok(()),
            (false, true) => format!("a width of exactly {}", self.width),
            (true, false) => format!("a height of exactly {}", self.height),
            (false, false) => format!("exactly {} × {}", self.width, self.height),
        };
        Err(InferError::BadRequest(format!(
            "the image is {width} × {height} pixels, but the model takes {exactly}"
        )))
    }

    /// The geometry for a frame of `size` in which the posted image lies at `covered`.
    pub fn geometry(&self, size: (u32, u32), covered: Region, placement: &Placement) -> Geometry {
        let window = self.window(placement);
        let axis =
            |start: usize, length: usize, offset: i64, resized: u32, from: f64, span: f64, side: u32| {
                let scale = span / f64::from(resized);
                let start = from + (start as i64 - offset) as f64 * scale;
                // Rounding may have pushed the far edges out by a few ulp.
                (start, (length as f64 * scale).min(f64::from(side) - start))
            };
        let (offset, resized) = (placement.offset, placement.resized);
        let (left, width) =
            axis(window.left, window.width, offset.0, resized.0, covered.left, covered.width, size.0);
        let (top, height) =
            axis(window.top, window.height, offset.1, resized.1, covered.top, covered.height, size.1);
        Geometry { window, from: Region { left, top, width, height } }
    }

    /// The part of the input that the image fills.
    pub(super) fn window(&self, placement: &Placement) -> Window {
        let axis = |offset: i64, resized: u32, side: u32| {
            let start = offset.max(0);
            let end = (offset + i64::from(resized)).min(i64::from(side));
            (start as usize, (end - start).max(0) as usize)
        };
        let (left, width) = axis(placement.offset.0, placement.resized.0, self.width);
        let (top, height) = axis(placement.offset.1, placement.resized.1, self.height);
        Window { left, top, width, height }
    }
}
