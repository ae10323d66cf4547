//! The resize itself, by `fast_image_resize`.
//!
//! Version 6.1.0 of that library sizes the intermediate picture between its two passes by the weights of the last pixel, without their
//! trailing zeros. Cubic and sinc weights are zero at whole distances. If a picture is enlarged and cropped, and its last pixel lies
//! exactly on a source pixel, the pixel before it needs more than that size, and rows are read beyond their end. So with these filters each
//! axis is resized by a call of its own, which has no intermediate picture.

use super::{Filter, pixels::Sample};
use crate::image::Region;
use bytemuck::Pod;
use fast_image_resize::{
    FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
};

/// Pixels, row by row.
pub(in crate::image) struct Picture<'a, T> {
    pub(in crate::image) samples: &'a [T],
    pub(in crate::image) width: u32,
    pub(in crate::image) height: u32,
    pub(in crate::image) channels: usize,
}

/// Resizes a region of a picture to `size` (width, height) into `resized`; `between` is scratch.
pub(super) fn resize<T: Sample>(
    resizer: &mut Resizer,
    picture: &Picture<'_, T>,
    region: &Region,
    size: [u32; 2],
    filter: Filter,
    resized: &mut Vec<T>,
    between: &mut Vec<T>,
) -> Result<(), String> {
    let Some(lobes) = filter.lobes() else {
        return pass(resizer, picture, region, size, filter, resized);
    };
    let ([width, height], channels) = (size, picture.channels);
    let (wide, high) = (f64::from(width), f64::from(height));
    // The passes run in the library's order, because the second one sees what the first has rounded: with 8 bits, columns first.
    if size_of::<T>() == 1 {
        let (from, left, across) = reached(region.left, region.width, wide, picture.width, lobes);
        let columns = Region { left: from, width: f64::from(across), ..*region };
        pass(resizer, picture, &columns, [across, height], filter, between)?;
        let low = Picture { samples: &between[..], width: across, height, channels };
        // Rounding may have pushed the far edge out by an ulp.
        let width = region.width.min(f64::from(across) - left);
        pass(resizer, &low, &Region { left, width, top: 0.0, height: high }, size, filter, resized)
    } else {
        let (from, top, down) = reached(region.top, region.height, high, picture.height, lobes);
        let rows = Region { top: from, height: f64::from(down), ..*region };
        pass(resizer, picture, &rows, [width, down], filter, between)?;
        let narrow = Picture { samples: &between[..], width, height: down, channels };
        let height = region.height.min(f64::from(down) - top);
        pass(resizer, &narrow, &Region { left: 0.0, width: wide, top, height }, size, filter, resized)
    }
}

/// The pixels of a line that any weight can reach when `length` pixels from `start` become `to` pixels. Returns the first of them, the
/// position of `start` relative to it, and how many there are.
fn reached(start: f64, length: f64, to: f64, side: u32, lobes: f64) -> (f64, f64, u32) {
    let reach = lobes * (length / to).max(1.0) + 1.0;
    let first = (start - reach).floor().max(0.0);
    let end = (start + length + reach).ceil().min(f64::from(side));
    (first, start - first, (end - first) as u32)
}

fn pass<T: Sample>(
    resizer: &mut Resizer,
    picture: &Picture<'_, T>,
    region: &Region,
    size: [u32; 2],
    filter: Filter,
    into: &mut Vec<T>,
) -> Result<(), String> {
    if picture.channels == 1 {
        pass_of::<T, T::Gray>(resizer, picture, region, size, filter, into)
    } else {
        pass_of::<T, T::Color>(resizer, picture, region, size, filter, into)
    }
}

/// One pass with the pixel type known at compile time: if the library had to ask for the type, its code for all types would be compiled in.
pub(in crate::image) fn pass_of<T: Pod + Default, P: PixelTrait>(
    resizer: &mut Resizer,
    picture: &Picture<'_, T>,
    region: &Region,
    [width, height]: [u32; 2],
    filter: Filter,
    into: &mut Vec<T>,
) -> Result<(), String> {
    into.resize(width as usize * height as usize * picture.channels, T::default());
    let samples = bytemuck::cast_slice(picture.samples);
    let from = TypedImageRef::<P>::from_buffer(picture.width, picture.height, samples);
    let from = from.map_err(|error| error.to_string())?;
    let to = TypedImage::<P>::from_buffer(width, height, bytemuck::cast_slice_mut(into));
    let mut to = to.map_err(|error| error.to_string())?;
    // Each channel is resized by itself, and alpha like any other.
    let options = ResizeOptions::new().resize_alg(filter.algorithm()).use_alpha(false).crop(
        region.left,
        region.top,
        region.width,
        region.height,
    );
    resizer.resize_typed(&from, &mut to, &options).map_err(|error| error.to_string())
}

impl Filter {
    fn algorithm(self) -> ResizeAlg {
        ResizeAlg::Convolution(match self {
            Filter::Nearest => return ResizeAlg::Nearest,
            Filter::Box => FilterType::Box,
            Filter::Bilinear => FilterType::Bilinear,
            Filter::Bicubic => FilterType::CatmullRom,
            Filter::Lanczos3 => FilterType::Lanczos3,
        })
    }

    /// How far the weights reach, in pixels, for filters whose weights are zero at whole distances within that reach.
    fn lobes(self) -> Option<f64> {
        match self {
            Filter::Nearest | Filter::Box | Filter::Bilinear => None,
            Filter::Bicubic => Some(2.0),
            Filter::Lanczos3 => Some(3.0),
        }
    }
}
