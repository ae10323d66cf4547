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

/// How the weights of a table are written: see the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As numbers.
    Numbers,
    /// In whole numbers, each for a row.
    Rows,
    /// In whole numbers, for four columns at a time.
    Columns,
}

/// What stands for a weight of 1 in whole numbers: `X_BITS` and `Y_BITS` of the kernel.
const ROWS_ONE: f64 = (1 << 22) as f64;
const COLUMNS_ONE: f64 = (1 << 14) as f64;

impl AxisKey {
    /// Whether what is read lies on the pixels of the image, which is not resized.
    fn plain(&self) -> bool {
        let (from, span) = (f64::from_bits(self.from), f64::from_bits(self.span));
        span == self.length as f64 && from == from.round()
    }

    fn scale(&self, filter: Filter) -> f64 {
        let (from, span) = (f64::from_bits(self.from), f64::from_bits(self.span));
        // In the very operations of the host's resizer: a box decides by the last bit.
        let span = if filter == Filter::Nearest { span } else { from + span - from };
        span / self.length as f64
    }

    /// How many pixels make one.
    pub(super) fn taps(&self, filter: Filter) -> usize {
        match filter {
            _ if self.plain() => 1,
            Filter::Nearest => 1,
            _ => (2 * self.reach(filter).ceil() as usize + 1).min(self.size as usize),
        }
    }

    fn reach(&self, filter: Filter) -> f64 {
        support(filter) * self.scale(filter).max(1.0)
    }
}

/// Appends, for each pixel, the first one that it is made of; then the weights of the first for all, of the second for all,
/// and so on. Returns how many weights each has, or words of them.
pub(super) fn table(key: &AxisKey, filter: Filter, form: Form, tables: &mut Vec<u32>) -> u32 {
    let taps = key.taps(filter);
    let mut made = vec![0.0; taps];
    let length = key.length;
    let words = match form {
        Form::Numbers | Form::Rows => taps,
        // From a multiple of four on.
        Form::Columns => (taps + 3).div_ceil(4),
    };
    let per_word = if form == Form::Columns { 2 } else { 1 };
    let begun = tables.len();
    tables.resize(begun + length * (1 + words * per_word), 0);
    let (starts, weights) = tables[begun..].split_at_mut(length);
    let mut pixels = Pixels { key, filter, nearest: f64::from_bits(key.from) + key.scale(filter) * 0.5 };
    for (i, start) in starts.iter_mut().enumerate() {
        made.fill(0.0);
        let first = pixels.weights(i, &mut made);
        match form {
            Form::Numbers => {
                *start = first;
                made.iter()
                    .enumerate()
                    .for_each(|(tap, weight)| weights[tap * length + i] = (*weight as f32).to_bits());
            }
            Form::Rows => {
                *start = first;
                let whole = whole(&made, ROWS_ONE);
                whole
                    .enumerate()
                    .for_each(|(tap, weight)| weights[tap * length + i] = weight.cast_unsigned());
            }
            Form::Columns => {
                *start = first & !3;
                for (tap, weight) in whole(&made, COLUMNS_ONE).enumerate() {
                    // w = 256 upper + lower, both signed bytes.
                    let weight = weight.clamp(-0x7f7f, 0x7f7f);
                    let lower = i32::from(weight as i8);
                    let upper = (weight - lower) >> 8;
                    let place = (first & 3) as usize + tap;
                    let (word, shift) = (2 * (place / 4), 8 * (place % 4));
                    weights[word * length + i] |= (upper as u32 & 255) << shift;
                    weights[(word + 1) * length + i] |= (lower as u32 & 255) << shift;
                }
            }
        }
    }
    words as u32
}

/// Weights as whole numbers that add up to what stands for 1: what rounding leaves over is the largest one's.
fn whole(weights: &[f64], one: f64) -> impl Iterator<Item = i32> {
    let rounded = move |weight: &f64| (weight * one).round() as i32;
    let total: i32 = weights.iter().map(rounded).sum();
    let largest = (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).unwrap_or_default();
    let over = if weights[largest] > 0.0 { one as i32 - total } else { 0 };
    weights
        .iter()
        .enumerate()
        .map(move |(tap, weight)| rounded(weight) + if tap == largest { over } else { 0 })
}

/// The pixels of an axis, from the first to the last.
struct Pixels<'a> {
    key: &'a AxisKey,
    filter: Filter,
    nearest: f64,
}

impl Pixels<'_> {
    /// The first pixel that pixel `i` is made of, and the weights of that and those behind it. To be asked for one after the other.
    fn weights(&mut self, i: usize, weights: &mut [f64]) -> u32 {
        let Pixels { key, filter, .. } = *self;
        let from = f64::from_bits(key.from);
        let (size, taps, scale) = (key.size as usize, weights.len(), key.scale(filter));
        if key.plain() || filter == Filter::Nearest {
            let at = if key.plain() { from + i as f64 } else { self.nearest };
            // The host's resizer goes down step by step, and along from the beginning.
            self.nearest =
                if key.down { self.nearest + scale } else { from + scale * 0.5 + scale * (i + 1) as f64 };
            weights[0] = 1.0;
            return (at as usize).min(size - 1) as u32;
        }
        let reach = key.reach(filter);
        let centre = from + (i as f64 + 0.5) * scale;
        let low = (centre - reach).floor().max(0.0) as usize;
        let high = ((centre + reach).ceil() as usize).min(size);
        // All taps lie in the image, also where their weight is nothing.
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
