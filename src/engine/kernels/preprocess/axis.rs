//! Which pixels of an image make one of the input, and with which weights, along one axis: Pillow's rules, in double
//! precision.

use crate::image::Filter;

/// What a table depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisKey {
    size: u32,
    from: u64,
    span: u64,
    length: usize,
    down: bool,
}

impl AxisKey {
    /// `length` pixels out of `span` from `from` on, of an axis of `size`; `down`: that of rows.
    pub(super) fn new(size: u32, from: f64, span: f64, length: usize, down: bool) -> AxisKey {
        AxisKey { size, from: from.to_bits(), span: span.to_bits(), length, down }
    }
}

/// Appends, for each pixel, the first one that it is made of; then the weights of the first for all, of the second for all,
/// and so on, as bits. Returns how many weights each has.
pub(super) fn table(key: &AxisKey, filter: Filter, tables: &mut Vec<u32>) -> u32 {
    let (from, span) = (f64::from_bits(key.from), f64::from_bits(key.span));
    let (size, length) = (key.size as usize, key.length);
    // In the very operations of the host's resizer: a box decides by the last bit.
    let scale = if filter == Filter::Nearest { span } else { from + span - from } / length as f64;
    let support = support(filter);
    // What lies on the pixels of the image is not resized.
    let plain = span == length as f64 && from == from.round();
    let reach = support * scale.max(1.0);
    let taps = match filter {
        _ if plain => 1,
        Filter::Nearest => 1,
        _ => (2 * reach.ceil() as usize + 1).min(size),
    };
    let begun = tables.len();
    tables.resize(begun + length * (1 + taps), 0);
    let (starts, weights) = tables[begun..].split_at_mut(length);
    let mut nearest = from + scale * 0.5;
    for (i, start) in starts.iter_mut().enumerate() {
        let mut set = |tap: usize, weight: f64| weights[tap * length + i] = (weight as f32).to_bits();
        if plain || filter == Filter::Nearest {
            let at = if plain { from + i as f64 } else { nearest };
            *start = (at as usize).min(size - 1) as u32;
            // The host's resizer goes down step by step, and along from the beginning.
            nearest = if key.down { nearest + scale } else { from + scale * 0.5 + scale * (i + 1) as f64 };
            set(0, 1.0);
            continue;
        }
        let centre = from + (i as f64 + 0.5) * scale;
        let low = (centre - reach).floor().max(0.0) as usize;
        let high = ((centre + reach).ceil() as usize).min(size);
        // All taps lie in the image, also where their weight is nothing.
        let first = low.min(size - taps);
        *start = first as u32;
        let weight = |pixel: usize| kernel(filter, (pixel as f64 - (centre - 0.5)) * (1.0 / scale.max(1.0)));
        let total: f64 = (low..high).map(weight).sum();
        for pixel in low..high.min(first + taps) {
            set(pixel - first, if total == 0.0 { 0.0 } else { weight(pixel) / total });
        }
    }
    taps as u32
}

/// How far a kernel reaches.
fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Nearest => 0.0,
        Filter::Box => 0.5,
        Filter::Bilinear => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos3 => 3.0,
    }
}

fn kernel(filter: Filter, x: f64) -> f64 {
    let size = x.abs();
    match filter {
        // Half open, so that of two pixels at the same distance one counts.
        Filter::Box if x > -0.5 && x <= 0.5 => 1.0,
        Filter::Bilinear if size < 1.0 => 1.0 - size,
        Filter::Bicubic if size < 1.0 => (1.5 * size - 2.5) * size * size + 1.0,
        Filter::Bicubic if size < 2.0 => ((-0.5 * size + 2.5) * size - 4.0) * size + 2.0,
        Filter::Lanczos3 if size < 3.0 => sinc(size) * sinc(size / 3.0),
        _ => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}
