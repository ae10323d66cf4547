//! Pixels of 8 and 16 bits: transparency over a background, and conversion of colour to grey.

use bytemuck::Pod;
use fast_image_resize::{PixelTrait, pixels};

/// Puts the background behind transparent pixels, and turns colour into grey where grey is wanted.
///
/// Returns one or three channels; `buffer` is used if anything had to change.
pub(super) fn flatten<'a, T: Sample>(
    samples: &'a [T],
    channels: u8,
    gray: bool,
    background: [u8; 3],
    buffer: &'a mut Vec<T>,
) -> (&'a [T], usize) {
    let background = background.map(T::from_u8);
    let plain = background.iter().all(|c| *c == background[0]);
    buffer.clear();
    let channels = match (channels, gray) {
        (1, _) => return (samples, 1),
        (3, false) => return (samples, 3),
        (2, _) if gray || plain => {
            let (pixels, _) = samples.as_chunks::<2>();
            let behind = luma(background);
            buffer.extend(pixels.iter().map(|&[v, a]| over(v, a, behind)));
            1
        }
        (2, _) => {
            let (pixels, _) = samples.as_chunks::<2>();
            buffer.extend(pixels.iter().flat_map(|&[v, a]| background.map(|behind| over(v, a, behind))));
            3
        }
        (3, true) => {
            let (pixels, _) = samples.as_chunks::<3>();
            buffer.extend(pixels.iter().map(|&pixel| luma(pixel)));
            1
        }
        (_, wants_gray) => {
            let (pixels, _) = samples.as_chunks::<4>();
            let flat = |[r, g, b, a]: [T; 4]| {
                let [behind_r, behind_g, behind_b] = background;
                [over(r, a, behind_r), over(g, a, behind_g), over(b, a, behind_b)]
            };
            if wants_gray {
                buffer.extend(pixels.iter().map(|&pixel| luma(flat(pixel))));
                1
            } else {
                buffer.extend(pixels.iter().flat_map(|&pixel| flat(pixel)));
                3
            }
        }
    };
    (buffer, channels)
}

/// A sample of 8 or 16 bits.
pub(in crate::image) trait Sample: Pod + Default + PartialEq + Into<u32> {
    const WHITE: u32;
    /// A pixel of one channel, as the resizing library represents it.
    type Gray: PixelTrait;
    /// A pixel of three channels.
    type Color: PixelTrait;
    fn from_u8(value: u8) -> Self;
    /// From a number that fits.
    fn from_u32(value: u32) -> Self;
}

impl Sample for u8 {
    const WHITE: u32 = u8::MAX as u32;
    type Gray = pixels::U8;
    type Color = pixels::U8x3;

    fn from_u8(value: u8) -> u8 {
        value
    }

    fn from_u32(value: u32) -> u8 {
        value as u8
    }
}

impl Sample for u16 {
    const WHITE: u32 = u16::MAX as u32;
    type Gray = pixels::U16;
    type Color = pixels::U16x3;

    fn from_u8(value: u8) -> u16 {
        u16::from(value) * 257
    }

    fn from_u32(value: u32) -> u16 {
        value as u16
    }
}

/// `value` with opacity `alpha` over `behind`, rounded. The sums fit 32 bits: both weights together are white.
fn over<T: Sample>(value: T, alpha: T, behind: T) -> T {
    let (value, alpha, behind): (u32, u32, u32) = (value.into(), alpha.into(), behind.into());
    let sum = value * alpha + behind * (T::WHITE - alpha);
    T::from_u32((sum + T::WHITE / 2) / T::WHITE)
}

/// ITU-R 601 luma in 16-bit fixed point, as Pillow rounds it. The weights add up to one, so the sum fits 32 bits.
fn luma<T: Sample>([r, g, b]: [T; 3]) -> T {
    let (r, g, b): (u32, u32, u32) = (r.into(), g.into(), b.into());
    T::from_u32((19_595 * r + 38_470 * g + 7_471 * b + (1 << 15)) >> 16)
}
