//! Pixels of 8 and 16 bits, and of measured values: transparency over a background, and conversion of colour to grey.

use bytemuck::Pod;
use fast_image_resize::{PixelTrait, pixels};

/// Puts the background behind transparent pixels, and turns colour into grey where grey is wanted.
///
/// Returns one or three channels; `buffer` is used if anything had to change.
pub(super) fn flatten<'a, T: Sample>(
    samples: &'a [T],
    channels: u8,
    gray: bool,
    background: [T; 3],
    buffer: &'a mut Vec<T>,
) -> (&'a [T], usize) {
    let plain = background.iter().all(|c| *c == background[0]);
    buffer.clear();
    let channels = match (channels, gray) {
        (1, _) => return (samples, 1),
        (3, false) => return (samples, 3),
        (2, _) if gray || plain => {
            let (pixels, _) = samples.as_chunks::<2>();
            let behind = T::luma(background);
            buffer.extend(pixels.iter().map(|&[v, a]| v.over(a, behind)));
            1
        }
        (2, _) => {
            let (pixels, _) = samples.as_chunks::<2>();
            buffer.extend(pixels.iter().flat_map(|&[v, a]| background.map(|behind| v.over(a, behind))));
            3
        }
        (3, true) => {
            let (pixels, _) = samples.as_chunks::<3>();
            buffer.extend(pixels.iter().map(|&pixel| T::luma(pixel)));
            1
        }
        (_, wants_gray) => {
            let (pixels, _) = samples.as_chunks::<4>();
            let flat = |[r, g, b, a]: [T; 4]| {
                let [behind_r, behind_g, behind_b] = background;
                [r.over(a, behind_r), g.over(a, behind_g), b.over(a, behind_b)]
            };
            if wants_gray {
                buffer.extend(pixels.iter().map(|&pixel| T::luma(flat(pixel))));
                1
            } else {
                buffer.extend(pixels.iter().flat_map(|&pixel| flat(pixel)));
                3
            }
        }
    };
    (buffer, channels)
}

/// A sample of a frame.
pub(in crate::image) trait Sample: Pod + Default + PartialEq {
    /// A pixel of one channel, as the resizing library represents it.
    type Gray: PixelTrait;
    /// A pixel of three channels.
    type Color: PixelTrait;
    /// The sample that stands for a level of 0 to 255 in a model that multiplies levels by `scale`.
    fn of_level(level: u8, scale: f32) -> Self;
    /// This sample with opacity `alpha` over `behind`.
    fn over(self, alpha: Self, behind: Self) -> Self;
    /// ITU-R 601 luma.
    fn luma(rgb: [Self; 3]) -> Self;
}

/// A sample of 8 or 16 bits.
pub(in crate::image) trait Integer: Sample + Into<u32> {
    const WHITE: u32;
    /// From a number that fits.
    fn from_u32(value: u32) -> Self;
}

/// The shares of red, green and blue in luma, of 2^16.
const LUMA: [u32; 3] = [19_595, 38_470, 7_471];

impl Sample for u8 {
    type Gray = pixels::U8;
    type Color = pixels::U8x3;

    fn of_level(level: u8, _scale: f32) -> u8 {
        level
    }

    fn over(self, alpha: u8, behind: u8) -> u8 {
        over(self, alpha, behind)
    }

    fn luma(rgb: [u8; 3]) -> u8 {
        luma(rgb)
    }
}

impl Integer for u8 {
    const WHITE: u32 = u8::MAX as u32;

    fn from_u32(value: u32) -> u8 {
        value as u8
    }
}

impl Sample for u16 {
    type Gray = pixels::U16;
    type Color = pixels::U16x3;

    fn of_level(level: u8, _scale: f32) -> u16 {
        u16::from(level) * 257
    }

    fn over(self, alpha: u16, behind: u16) -> u16 {
        over(self, alpha, behind)
    }

    fn luma(rgb: [u16; 3]) -> u16 {
        luma(rgb)
    }
}

impl Integer for u16 {
    const WHITE: u32 = u16::MAX as u32;

    fn from_u32(value: u32) -> u16 {
        value as u16
    }
}

/// A measured value.
impl Sample for f32 {
    type Gray = pixels::F32;
    type Color = pixels::F32x3;

    fn of_level(level: u8, scale: f32) -> f32 {
        f32::from(level) * scale
    }

    /// Opacity is from 0 to 1.
    fn over(self, alpha: f32, behind: f32) -> f32 {
        let alpha = alpha.clamp(0.0, 1.0);
        self * alpha + behind * (1.0 - alpha)
    }

    fn luma(rgb: [f32; 3]) -> f32 {
        let [r, g, b] = LUMA.map(|weight| weight as f32 / 65_536.0);
        r * rgb[0] + g * rgb[1] + b * rgb[2]
    }
}

/// `value` with opacity `alpha` over `behind`, rounded. The sums fit 32 bits: both weights together are white.
fn over<T: Integer>(value: T, alpha: T, behind: T) -> T {
    let (value, alpha, behind): (u32, u32, u32) = (value.into(), alpha.into(), behind.into());
    let sum = value * alpha + behind * (T::WHITE - alpha);
    T::from_u32((sum + T::WHITE / 2) / T::WHITE)
}

/// Luma in 16-bit fixed point, as Pillow rounds it. The weights add up to one, so the sum fits 32 bits.
fn luma<T: Integer>([r, g, b]: [T; 3]) -> T {
    let (r, g, b): (u32, u32, u32) = (r.into(), g.into(), b.into());
    T::from_u32((LUMA[0] * r + LUMA[1] * g + LUMA[2] * b + (1 << 15)) >> 16)
}
