//! Weighted sums over neighbourhoods: the means that a contrast is made of, and the net gradient.

/// `REACH_MAX` of `kernels/filter.cuh`: 3 widths of the widest mean.
pub(super) const REACH_MAX: usize = 45;

/// A weighted sum along both axes: weights by the distance, the same to both sides.
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

    /// The share of a spot's light that each pixel has, where the spot is in the middle of one, times this.
    pub(super) fn times_spot(&self, [sigma_x, sigma_y]: [f64; 2]) -> Kernel {
        let axis = |weights: &[f64], sigma| {
            weights.iter().enumerate().map(|(d, weight)| weight * pixel_share(d, sigma)).collect()
        };
        Kernel { x: axis(&self.x, sigma_x), y: axis(&self.y, sigma_y) }
    }

    pub(super) fn times(&self, other: &Kernel) -> Kernel {
        let axis = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).collect();
        Kernel { x: axis(&self.x, &other.x), y: axis(&self.y, &other.y) }
    }

    /// Of its weights.
    pub(super) fn sum(&self) -> f64 {
        let axis = |weights: &[f64]| weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
        axis(&self.x) * axis(&self.y)
    }

    /// The weighted sum at each pixel of a plane, which goes on beyond its edges as in a mirror.
    pub(super) fn over(&self, plane: &[f32], width: usize) -> Vec<f32> {
        let height = plane.len() / width;
        let mut down = vec![0.0; plane.len()];
        for (y, sums) in down.chunks_exact_mut(width).enumerate() {
            let mut add = |y: isize, weight: f64| {
                let row = &plane[mirrored(y, height) * width..][..width];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight as f32 * value);
            };
            add(y as isize, self.y[0]);
            for (d, weight) in self.y.iter().enumerate().skip(1) {
                add(y as isize - d as isize, *weight);
                add((y + d) as isize, *weight);
            }
        }
        let reach = self.x.len() - 1;
        let mut both = vec![0.0; plane.len()];
        let mut wide = vec![0.0; width + 2 * reach];
        for (sums, row) in both.chunks_exact_mut(width).zip(down.chunks_exact(width)) {
            for (i, value) in wide.iter_mut().enumerate() {
                *value = row[mirrored(i as isize - reach as isize, width)];
            }
            for (d, weight) in self.x.iter().enumerate() {
                let weight = if d == 0 { 0.5 * weight } else { *weight } as f32;
                let pairs = wide[reach - d..].iter().zip(&wide[reach + d..]);
                sums.iter_mut().zip(pairs).for_each(|(sum, (a, b))| *sum += weight * (a + b));
            }
        }
        both
    }
}

/// The pixel at position `i` of an axis of `count`, which goes on as in a mirror.
fn mirrored(i: isize, count: usize) -> usize {
    let place = i.rem_euclid(2 * count as isize) as usize;
    place.min(2 * count - 1 - place)
}

/// The share of a spot's light, along one axis, in the pixel `distance` from the one in whose middle it stands.
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

/// The net gradient over a box as weights of the pixels around its middle, one row and column further than the box:
/// each pixel but the middle one gives its two differences, times its direction to the middle.
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
