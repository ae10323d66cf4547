//! Which pixels of an image contribute to a pixel of the input, and with which weights, along one axis: Pillow's rules, in
//! double precision.

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
    /// `length` pixels made of `span` pixels from `from` on, of an axis of `size`; `down`: the vertical axis.
    pub(super) fn new(size: u32, from: f64, span: f64, length: usize, down: bool) -> AxisKey {
        AxisKey { size, from: from.to_bits(), span: span.to_bits(), length, down }
    }
}

/// How the weights of a table are stored: see the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As floats.
    Numbers,
    /// As integers, for two rows at a time.
    Rows,
    /// As integers, for four columns at a time.
    Columns,
}

/// The integer that stands for a weight of 1, as a power of two. The minimum lets weights below 2 fit 16 bits, the maximum lets a sum
/// fit 32.
const BITS: std::ops::RangeInclusive<u32> = 14..=22;

/// The fewest pairs of rows that a pixel is made of.
const PAIRS_MIN: usize = 2;

/// Adjacent pixels of an item that one warp makes.
pub(super) const TILE_WIDTH: u32 = 32;

/// Where a table lies among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) at: u32,
    /// How many weights a pixel has, or pairs or groups of four of them.
    pub(super) taps: u32,
    /// For integers: the power of two that stands for 1.
    pub(super) bits: u32,
    /// For [`Form::Columns`]: the most columns that are read for one tile's width of pixels.
    pub(super) reach: u32,
}

impl AxisKey {
    /// Whether the axis is not resized, and its pixels coincide with those of the image.
    pub(super) fn plain(&self) -> bool {
        let (from, span) = (f64::from_bits(self.from), f64::from_bits(self.span));
        span == self.length as f64 && from == from.round()
    }

    fn scale(&self, filter: Filter) -> f64 {
        let (from, span) = (f64::from_bits(self.from), f64::from_bits(self.span));
        // Exactly the operations of the host's resizer: with `Filter::Box`, the last bit decides.
        let span = if filter == Filter::Nearest { span } else { from + span - from };
        span / self.length as f64
    }

    /// How many pixels contribute to one.
    pub(super) fn taps(&self, filter: Filter) -> usize {
        match filter {
            _ if self.plain() => 1,
            Filter::Nearest => 1,
            _ => (2 * self.reach(filter).ceil() as usize + 1).min(self.size as usize),
        }
    }

    /// The most rows that contribute to one with integer weights.
    pub(super) fn rows(&self, filter: Filter) -> usize {
        2 * self.taps(filter).div_ceil(2).max(PAIRS_MIN)
    }

    fn reach(&self, filter: Filter) -> f64 {
        support(filter) * self.scale(filter).max(1.0)
    }
}

/// Appends, for each pixel, the first pixel that contributes to it, and the weights of that and the following ones.
pub(super) fn table(key: &AxisKey, filter: Filter, form: Form, tables: &mut Vec<u32>) -> Table {
    let at = tables.len() as u32;
    let (taps, length) = (key.taps(filter), key.length);
    let mut weights = vec![0.0; taps * length];
    let mut pixels = Pixels { key, filter, nearest: f64::from_bits(key.from) + key.scale(filter) * 0.5 };
    let firsts: Vec<u32> =
        weights.chunks_mut(taps).enumerate().map(|(i, weights)| pixels.weights(i, weights)).collect();
    if form == Form::Numbers {
        tables.extend(firsts);
        for tap in 0..taps {
            tables.extend(weights.iter().skip(tap).step_by(taps).map(|weight| (*weight as f32).to_bits()));
        }
        return Table { at, taps: taps as u32, bits: 0, reach: 0 };
    }
    // The largest weight uses half the range of 16 bits: the other half is for the rounding remainder.
    let largest = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bits = (14 - largest.log2().ceil() as i64).clamp((*BITS.start()).into(), (*BITS.end()).into()) as u32;
    // Without zeros at the beginning and the end.
    let mut pixels: Vec<(u32, Vec<i16>)> = weights
        .chunks(taps)
        .zip(firsts)
        .map(|(weights, first)| {
            let mut whole: Vec<i16> = whole(weights, f64::from(1 << bits)).collect();
            while whole.len() > 1 && whole.last() == Some(&0) {
                whole.pop();
            }
            let before = whole.iter().take_while(|weight| **weight == 0).count().min(whole.len() - 1);
            (first + before as u32, whole.split_off(before))
        })
        .collect();
    if form == Form::Columns {
        // A tile begins with the first column of its first pixel. A filter that overshoots has zeros inside. So a pixel that coincides with
        // one of the image's begins there, while the following pixel may begin before it.
        for i in (1..pixels.len()).rev() {
            let (before, behind) = pixels.split_at_mut(i);
            let ((first, weights), (next, _)) = (&mut before[i - 1], &behind[0]);
            let missing = first.saturating_sub(*next);
            weights.splice(..0, (0..missing).map(|_| 0));
            *first -= missing;
        }
    }
    let taps = pixels
        .iter()
        .map(|(first, weights)| match form {
            Form::Columns => ((first % 4) as usize + weights.len()).div_ceil(4),
            _ => weights.len().div_ceil(2).max(PAIRS_MIN),
        })
        .max()
        .unwrap_or(0);
    let begun = tables.len();
    tables.resize(begun + length * (1 + taps * if form == Form::Columns { 2 } else { 1 }), 0);
    let words = &mut tables[begun..];
    for (i, (first, weights)) in pixels.iter().enumerate() {
        let (start, its, word, step) = match form {
            Form::Columns => (first & !3, i, length + i, length),
            // All pixels that are read lie in the image, even those of weight 0.
            _ => ((*first).min(key.size - 2 * taps as u32), i * (1 + taps), i * (1 + taps) + 1, 1),
        };
        words[its] = start;
        for (place, weight) in ((first - start) as usize..).zip(weights) {
            words[word + place / 2 * step] |= u32::from(weight.cast_unsigned()) << (16 * (place % 2));
        }
    }
    let reach = match form {
        Form::Columns => {
            let starts = &words[..length];
            let last = |first: usize| starts[(first + TILE_WIDTH as usize).min(length) - 1];
            let reach = (0..length).map(|first| last(first) - starts[first]).max();
            reach.unwrap_or(0) + 4 * taps as u32
        }
        _ => 0,
    };
    Table { at, taps: taps as u32, bits, reach }
}

/// Weights as integers whose sum is the integer for 1: the rounding remainder is added to the largest weight.
fn whole(weights: &[f64], one: f64) -> impl Iterator<Item = i16> {
    let rounded = move |weight: &f64| (weight * one).round() as i32;
    let total: i32 = weights.iter().map(rounded).sum();
    let largest = (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).unwrap_or_default();
    let over = if weights[largest] > 0.0 { one as i32 - total } else { 0 };
    weights.iter().enumerate().map(move |(tap, weight)| {
        let weight = rounded(weight) + if tap == largest { over } else { 0 };
        weight.clamp(i16::MIN.into(), i16::MAX.into()) as i16
    })
}

/// Iterates over the pixels of an axis, from the first to the last.
struct Pixels<'a> {
    key: &'a AxisKey,
    filter: Filter,
    nearest: f64,
}

impl Pixels<'_> {
    /// The first pixel that contributes to pixel `i`, and the weights of that and the following ones. Must be called in the order of `i`.
    fn weights(&mut self, i: usize, weights: &mut [f64]) -> u32 {
        let Pixels { key, filter, .. } = *self;
        let from = f64::from_bits(key.from);
        let (size, taps, scale) = (key.size as usize, weights.len(), key.scale(filter));
        if key.plain() || filter == Filter::Nearest {
            let at = if key.plain() { from + i as f64 } else { self.nearest };
            // As the host's resizer: it accumulates steps vertically, but computes horizontal positions from the start.
            self.nearest =
                if key.down { self.nearest + scale } else { from + scale * 0.5 + scale * (i + 1) as f64 };
            weights[0] = 1.0;
            return (at as usize).min(size - 1) as u32;
        }
        let reach = key.reach(filter);
        let centre = from + (i as f64 + 0.5) * scale;
        let low = (centre - reach).floor().max(0.0) as usize;
        let high = ((centre + reach).ceil() as usize).min(size);
        // All taps lie in the image, even those of weight 0.
        let first = low.min(size - taps);
        let weight = |pixel: usize| kernel(filter, (pixel as f64 - (centre - 0.5)) * (1.0 / scale.max(1.0)));
        let total: f64 = (low..high).map(weight).sum();
        for pixel in low..high.min(first + taps) {
            weights[pixel - first] = if total == 0.0 { 0.0 } else { weight(pixel) / total };
        }
        first as u32
    }
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
        // Half open, so that only one of two pixels at the same distance counts.
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
