//! From pixels to a model's numbers: channel order, layout, scale, mean, standard deviation and element type in one pass. Or only the
//! placing of pixels in the model's input, for a later stage to turn into numbers.

use super::{Color, DataType, Layout, Preprocess, Sample as _, Window};
use bytemuck::Pod;
use half::f16;

/// 16-bit samples per 8-bit step: 65535 / 255.
const STEPS: f32 = 257.0;

/// Samples of `channels` interleaved channels (1, or 3 for RGB).
#[derive(Debug, Clone, Copy)]
pub enum Pixels<'a> {
    /// 0 to 255.
    U8(&'a [u8]),
    /// 0 to 65535.
    U16(&'a [u16]),
    /// Measured values, which are not scaled.
    F32(&'a [f32]),
}

impl Pixels<'_> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Pixels::U8(samples) => samples.len(),
            Pixels::U16(samples) => samples.len(),
            Pixels::F32(samples) => samples.len(),
        }
    }
}

/// The pixels that are to be written, and where they belong.
pub(super) struct PixelBlock<'a> {
    /// As many as the window holds.
    pub(super) pixels: Pixels<'a>,
    /// 1 or 3.
    pub(super) channels: usize,
    /// The part of the model's input that they fill.
    pub(super) window: Window,
    /// The value around the window, 0 to 255.
    pub(super) pad: u8,
}

/// Fills `out` with the normalised pixels of one item, and the padding around them.
///
/// `spare` is used when `out` is not aligned for its elements.
pub(super) fn write(to: &Preprocess, given: &PixelBlock<'_>, out: &mut [u8], spare: &mut Vec<u32>) {
    numbers(to, given, 1, out, spare);
}

/// Like `write`, but keeps pixels as they are: of the same type, grey or red, green, blue, channels last.
pub(super) fn place(to: &Preprocess, given: &PixelBlock<'_>, out: &mut [u8], spare: &mut Vec<u32>) {
    let to = Preprocess { color: to.color.of_pixels(), layout: Layout::Nhwc, ..to.clone() };
    let &PixelBlock { pixels, channels, window, pad } = given;
    if (window.width, window.height) == (to.width as usize, to.height as usize)
        && channels == to.color.channels()
    {
        return out.copy_from_slice(match pixels {
            Pixels::U8(pixels) => pixels,
            Pixels::U16(pixels) => bytemuck::cast_slice(pixels),
            Pixels::F32(pixels) => bytemuck::cast_slice(pixels),
        });
    }
    match pixels {
        Pixels::U8(pixels) => arrange(&to, pixels, channels, window, [pad; 3], out, |_, value| value),
        Pixels::U16(pixels) => aligned(out, spare, |out: &mut [u16]| {
            let pad = u16::from(pad) * STEPS as u16;
            arrange(&to, pixels, channels, window, [pad; 3], out, |_, value| value);
        }),
        Pixels::F32(pixels) => aligned(out, spare, |out: &mut [f32]| {
            let pad = f32::of_level(pad, to.scale);
            arrange(&to, pixels, channels, window, [pad; 3], out, |_, value| value);
        }),
    }
}

/// Fills `out` with the numbers of several items whose pixels were [placed](place).
pub(super) fn finish(to: &Preprocess, pixels: Pixels<'_>, items: usize, out: &mut [u8]) {
    let window = Window { left: 0, top: 0, width: to.width as usize, height: to.height as usize };
    let given = PixelBlock { pixels, channels: to.color.channels(), window, pad: 0 };
    numbers(to, &given, items, out, &mut Vec::new());
}

fn numbers(to: &Preprocess, given: &PixelBlock<'_>, items: usize, out: &mut [u8], spare: &mut Vec<u32>) {
    match to.datatype {
        DataType::Fp32 => aligned(out, spare, |out: &mut [f32]| fill(to, given, items, out, |number| number)),
        DataType::Fp16 => aligned(out, spare, |out: &mut [f16]| match given.pixels {
            // What becomes infinite is found afterwards: see `infinite`.
            Pixels::F32(_) => fill(to, given, items, out, f16::from_f32),
            Pixels::U8(_) | Pixels::U16(_) => {
                let [low, high] = [f16::MIN, f16::MAX].map(f16::to_f32);
                fill(to, given, items, out, |number| f16::from_f32(number.clamp(low, high)));
            }
        }),
        DataType::Uint8 => {
            let as_they_are = Preprocess { scale: 1.0, mean: [0.0; 3], std: [1.0; 3], ..to.clone() };
            // Conversion to an integer saturates.
            fill(&as_they_are, given, items, out, |number| number.round() as u8);
        }
    }
}

/// The first pixel of an item, counted row by row, with a number that is infinite or NaN; channels that lie one by one are searched so.
pub(super) fn infinite(to: &Preprocess, item: &[u8]) -> Option<usize> {
    let at = match to.datatype {
        DataType::Fp32 => {
            item.as_chunks().0.iter().position(|number| !f32::from_ne_bytes(*number).is_finite())
        }
        DataType::Fp16 => {
            item.as_chunks().0.iter().position(|number| !f16::from_ne_bytes(*number).is_finite())
        }
        DataType::Uint8 => None,
    }?;
    Some(match to.layout {
        Layout::Nchw => at % (to.width as usize * to.height as usize),
        Layout::Nhwc => at / to.color.channels(),
    })
}

/// Runs `work` on `out` as elements, in place where its alignment allows.
fn aligned<T: Pod>(out: &mut [u8], spare: &mut Vec<u32>, work: impl FnOnce(&mut [T])) {
    if let Ok(elements) = bytemuck::try_cast_slice_mut(out) {
        work(elements);
    } else {
        spare.resize(out.len().div_ceil(size_of::<u32>()), 0);
        let bytes = &mut bytemuck::cast_slice_mut(spare)[..out.len()];
        work(bytemuck::cast_slice_mut(bytes));
        out.copy_from_slice(bytes);
    }
}

fn fill<T: Copy>(
    to: &Preprocess,
    given: &PixelBlock<'_>,
    items: usize,
    out: &mut [T],
    element: impl Fn(f32) -> T,
) {
    let &PixelBlock { pixels, channels, window, pad } = given;
    let standard = |channel: usize, scaled: f32| element((scaled - to.mean[channel]) / to.std[channel]);
    let number = |channel: usize, value: f32| standard(channel, value * to.scale);
    let padding: [T; 3] = std::array::from_fn(|channel| number(channel, f32::from(pad)));
    let samples = window.width * window.height * channels;
    let item = out.len() / items.max(1);
    let outs = out.chunks_exact_mut(item.max(1)).enumerate();
    match pixels {
        Pixels::U8(pixels) => {
            // There are only 256 values, so each is computed once, by the formula itself.
            let tables: [[T; 256]; 3] =
                std::array::from_fn(|channel| std::array::from_fn(|value| number(channel, value as f32)));
            let number = |channel: usize, v: u8| tables[channel][usize::from(v)];
            for (i, out) in outs {
                arrange(to, &pixels[i * samples..][..samples], channels, window, padding, out, number);
            }
        }
        Pixels::U16(pixels) => {
            let number = |channel: usize, v: u16| number(channel, f32::from(v) / STEPS);
            for (i, out) in outs {
                arrange(to, &pixels[i * samples..][..samples], channels, window, padding, out, number);
            }
        }
        Pixels::F32(pixels) => {
            for (i, out) in outs {
                arrange(to, &pixels[i * samples..][..samples], channels, window, padding, out, standard);
            }
        }
    }
}

/// Puts every sample where the layout wants it.
fn arrange<S: Copy, T: Copy>(
    to: &Preprocess,
    pixels: &[S],
    channels: usize,
    window: Window,
    padding: [T; 3],
    out: &mut [T],
    number: impl Fn(usize, S) -> T,
) {
    // Which sample of a pixel is the model's channel `k`.
    let sample = |k: usize| match (channels, to.color) {
        (1, _) => 0,
        (_, Color::Bgr) => 2 - k,
        _ => k,
    };
    let depth = to.color.channels();
    let (width, height) = (to.width as usize, to.height as usize);
    let whole = window.width == width && window.height == height;
    let row_samples = window.width * channels;
    match to.layout {
        Layout::Nchw => {
            for (k, plane) in out.chunks_exact_mut(width * height).enumerate() {
                if !whole {
                    plane.fill(padding[k]);
                }
                let rows = plane.chunks_exact_mut(width).skip(window.top);
                for (row, pixels) in rows.zip(pixels.chunks_exact(row_samples)) {
                    let row = &mut row[window.left..window.left + window.width];
                    let from = sample(k);
                    if channels == 1 {
                        for (out, v) in row.iter_mut().zip(pixels) {
                            *out = number(k, *v);
                        }
                    } else {
                        let (pixels, _) = pixels.as_chunks::<3>();
                        for (out, pixel) in row.iter_mut().zip(pixels) {
                            *out = number(k, pixel[from]);
                        }
                    }
                }
            }
        }
        Layout::Nhwc => {
            if !whole {
                for pixel in out.chunks_exact_mut(depth) {
                    pixel.copy_from_slice(&padding[..depth]);
                }
            }
            let rows = out.chunks_exact_mut(width * depth).skip(window.top);
            for (row, pixels) in rows.zip(pixels.chunks_exact(row_samples)) {
                let row = &mut row[window.left * depth..(window.left + window.width) * depth];
                for (out, pixel) in row.chunks_exact_mut(depth).zip(pixels.chunks_exact(channels)) {
                    for (k, out) in out.iter_mut().enumerate() {
                        *out = number(k, pixel[sample(k)]);
                    }
                }
            }
        }
    }
}
