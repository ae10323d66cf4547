//! Weighted sums over neighbourhoods: the means that make up a contrast, and the net gradient.

use std::ops::Range;

/// `REACH_MAX` of `kernels/filter.cuh`: 3 widths of the widest mean.
pub(super) const REACH_MAX: usize = 45;

/// A separable weighted sum: weights by distance along each axis, symmetric.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) x: Vec<f64>,
    pub(super) y: Vec<f64>,
}

impl Kernel {
    /// A normalised Gaussian mean.
    pub(super) fn gaussian([sigma_x, sigma_y]: [f64; 2]) -> Kernel {
        let axis = |sigma: f64| {
            let reach = ((3.0 * sigma).ceil() as usize).clamp(1, REACH_MAX);
            let weight = |d: usize| (-0.5 * (d as f64 / sigma).powi(2)).exp();
            let total: f64 = weight(0) + 2.0 * (1..=reach).map(weight).sum::<f64>();
            (0..=reach).map(|d| weight(d) / total).collect()
        };
        Kernel { x: axis(sigma_x), y: axis(sigma_y) }
    }

    /// These weights times the share of a spot's light in each pixel, for a spot in the middle of a pixel.
    pub(super) fn times_spot(&self, [sigma_x, sigma_y]: [f64; 2]) -> Kernel {
        let axis = |weights: &[f64], sigma| {
            weights.iter().enumerate().map(|(d, weight)| weight * pixel_share(d, sigma)).collect()
        };
        Kernel { x: axis(&self.x, sigma_x), y: axis(&self.y, sigma_y) }
    }

    /// The sum of its weights.
    pub(super) fn sum(&self) -> f64 {
        let axis = |weights: &[f64]| weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
        axis(&self.x) * axis(&self.y)
    }

    /// The same in a plane of `width` columns and `height` rows.
    pub(super) fn within(&self, width: usize, height: usize) -> Within {
        Within { x: Axis::new(&self.x, width), y: Axis::new(&self.y, height) }
    }
}

/// A weighted sum at each pixel of a plane that is mirrored at its edges.
#[derive(Debug, Clone)]
pub(super) struct Within {
    x: Axis,
    y: Axis,
}

impl Within {
    /// For each pixel, the product of its weights in the two sums.
    pub(super) fn times(&self, other: &Within) -> Within {
        Within { x: self.x.times(&other.x), y: self.y.times(&other.y) }
    }

    /// The sums of the weights along x and along y: a pixel's sum is the product of its column's and its row's.
    pub(super) fn sums(&self) -> [Vec<f64>; 2] {
        [&self.x, &self.y].map(|axis| (0..axis.count).map(|place| axis.at(place).1.iter().sum()).collect())
    }

    /// The weighted sums of a plane's values.
    pub(super) fn over(&self, plane: &[f32]) -> Vec<f32> {
        let width = self.x.count;
        let mut down = vec![0.0; plane.len()];
        for (y, sums) in down.chunks_exact_mut(width).enumerate() {
            let (first, weights) = self.y.at(y);
            for (row, weight) in plane.chunks_exact(width).skip(first).zip(weights) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += *weight as f32 * value);
            }
        }
        let mut both = vec![0.0; plane.len()];
        let inner = self.x.inner();
        for (sums, row) in both.chunks_exact_mut(width).zip(down.chunks_exact(width)) {
            for x in (0..inner.start).chain(inner.end..width) {
                let (first, weights) = self.x.at(x);
                sums[x] =
                    weights.iter().zip(&row[first..]).map(|(weight, value)| *weight as f32 * value).sum();
            }
            if inner.is_empty() {
                continue;
            }
            // Where weights are the same, whole rows at a time.
            let (first, weights) = self.x.at(inner.start);
            for (d, weight) in weights.iter().enumerate() {
                let pairs = sums[inner.clone()].iter_mut().zip(&row[first + d..]);
                pairs.for_each(|(sum, value)| *sum += *weight as f32 * value);
            }
        }
        both
    }
}

/// The same along one axis: at each position, the weights of the real pixels. The weights of a pixel's mirror images are added to its
/// own: the pixel is one measurement, so its variance takes the square of the sum.
#[derive(Debug, Clone)]
struct Axis {
    count: usize,
    reach: usize,
    /// Up to this distance from an end, positions have weights of their own.
    depth: usize,
    /// The weights at the positions near both ends, and in between one entry for all the others.
    kinds: Vec<Vec<f64>>,
}

impl Axis {
    fn new(weights: &[f64], count: usize) -> Axis {
        let reach = weights.len() - 1;
        Axis::of(count, reach, reach, |place| {
            let first = place.saturating_sub(reach);
            let mut folded = vec![0.0; (place + reach + 1).min(count) - first];
            let mut add = |at: isize, weight| folded[mirrored(at, count) - first] += weight;
            add(place as isize, weights[0]);
            for (d, weight) in weights.iter().enumerate().skip(1) {
                add(place as isize - d as isize, *weight);
                add((place + d) as isize, *weight);
            }
            folded
        })
    }

    fn of(count: usize, reach: usize, depth: usize, at: impl Fn(usize) -> Vec<f64>) -> Axis {
        Axis { count, reach, depth, kinds: unlike(count, depth).map(at).collect() }
    }

    /// The first pixel with a weight at a position, and the weights from there on.
    fn at(&self, place: usize) -> (usize, &[f64]) {
        let kind = place.min(self.depth).max((place + self.kinds.len()).saturating_sub(self.count));
        (place.saturating_sub(self.reach), &self.kinds[kind])
    }

    /// The positions in between, whose weights are the same.
    fn inner(&self) -> Range<usize> {
        match self.count > 2 * self.depth {
            true => self.depth..self.count - self.depth,
            false => self.count..self.count,
        }
    }

    fn times(&self, other: &Axis) -> Axis {
        // Only the pixels of the narrower sum count; but the wider one's weights are folded up to a larger distance from the ends.
        let (reach, depth) = (self.reach.min(other.reach), self.depth.max(other.depth));
        Axis::of(self.count, reach, depth, |place| {
            let from = place.saturating_sub(reach);
            let [a, b] = [self, other].map(|axis| {
                let (first, weights) = axis.at(place);
                &weights[from - first..]
            });
            a.iter().zip(b).map(|(a, b)| a * b).collect()
        })
    }
}

/// The positions on an axis of `count` that are near both ends, and one for all that are at least `depth` away from them.
pub(super) fn unlike(count: usize, depth: usize) -> impl Iterator<Item = usize> {
    let kinds = count.min(2 * depth + 1);
    (0..kinds).map(move |kind| if kind <= depth { kind } else { kind + count - kinds })
}

/// The pixel at position `i` of an axis of `count` that is mirrored at its ends.
fn mirrored(i: isize, count: usize) -> usize {
    let place = i.rem_euclid(2 * count as isize) as usize;
    place.min(2 * count - 1 - place)
}

/// The share of a spot's light, along one axis, in the pixel at `distance` from the one whose middle is the spot's.
fn pixel_share(distance: usize, sigma: f64) -> f64 {
    // Simpson's rule over the pixel; the density is smooth.
    const STEPS: u32 = 32;
    let density = |x: f64| (-0.5 * (x / sigma).powi(2)).exp() / (sigma * (2.0 * std::f64::consts::PI).sqrt());
    let sample = |i: u32| {
        let times = if i == 0 || i == STEPS { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        times * density(distance as f64 - 0.5 + f64::from(i) / f64::from(STEPS))
    };
    (0..=STEPS).map(sample).sum::<f64>() / f64::from(3 * STEPS)
}

/// The net gradient over a box, as weights of the pixels around its middle, one row and column beyond the box: each pixel
/// except the middle one contributes its two differences, times its direction to the middle.
pub(super) fn net_weights(half: usize) -> Vec<f32> {
    let reach = half as isize + 1;
    let size = (2 * reach + 1) as usize;
    let mut weights = vec![0.0f64; size * size];
    let at = |y: isize, x: isize| (y + reach) as usize * size + (x + reach) as usize;
    let half = half as isize;
    for y in -half..=half {
        for x in -half..=half {
            if (y, x) == (0, 0) {
                continue;
            }
            let distance = ((x * x + y * y) as f64).sqrt();
            let (towards_x, towards_y) = (-x as f64 / distance, -y as f64 / distance);
            weights[at(y, x + 1)] += towards_x;
            weights[at(y, x - 1)] -= towards_x;
            weights[at(y + 1, x)] += towards_y;
            weights[at(y - 1, x)] -= towards_y;
        }
    }
    weights.iter().map(|weight| *weight as f32).collect()
}
