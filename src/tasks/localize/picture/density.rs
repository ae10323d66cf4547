//! Localizations added up, pixel by pixel.

/// How many standard deviations of a Gaussian are drawn to either side.
const REACH: f64 = 4.0;
/// The smallest standard deviation that is drawn, in pixels: such a Gaussian lies within one pixel unless it is on a border.
const SIGMA_MIN: f64 = 0.01;

pub(super) struct Density {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Localizations per pixel.
    pub(super) sums: Vec<f32>,
    /// Sum of the z of the localizations in each pixel, in um; `None` without colors by z.
    pub(super) z_sums: Option<Vec<f32>>,
    /// Weights of the columns and rows for the Gaussian that is being drawn.
    weights: [Vec<f32>; 2],
}

impl Density {
    pub(super) fn new([width, height]: [usize; 2], with_z: bool) -> Density {
        let image = || vec![0.0; width * height];
        Density {
            width,
            height,
            sums: image(),
            z_sums: with_z.then(image),
            weights: [Vec::new(), Vec::new()],
        }
    }

    /// Counts one localization in the pixel at this position. Returns `false` and adds nothing if there is no such pixel.
    pub(super) fn count(&mut self, [x, y]: [f64; 2], z: f32) -> bool {
        let inside = |place: f64, side: usize| place >= 0.0 && place < side as f64;
        if !(inside(x, self.width) && inside(y, self.height) && z.is_finite()) {
            return false;
        }
        let index = y as usize * self.width + x as usize;
        self.sums[index] += 1.0;
        if let Some(z_sums) = &mut self.z_sums {
            z_sums[index] += z;
        }
        true
    }

    /// Adds one localization as a Gaussian of these widths: each pixel gets the integral over its area, and the sum is 1. The part outside
    /// the picture is lost. Returns `false` and adds nothing if the position is outside.
    pub(super) fn blur(&mut self, place: [f64; 2], sigma: [f64; 2], z: f32) -> bool {
        let sides = [self.width, self.height];
        let inside = (0..2).all(|axis| place[axis] >= 0.0 && place[axis] < sides[axis] as f64);
        if !(inside && z.is_finite() && sigma.iter().all(|sigma| sigma.is_finite())) {
            return false;
        }
        let mut weights = std::mem::take(&mut self.weights);
        let starts: [usize; 2] =
            std::array::from_fn(|axis| integrate(&mut weights[axis], place[axis], sigma[axis], sides[axis]));
        for (row, along_y) in weights[1].iter().enumerate() {
            let start = (starts[1] + row) * self.width + starts[0];
            let add = |image: &mut [f32], worth: f32| {
                let pixels = image[start..].iter_mut().zip(&weights[0]);
                pixels.for_each(|(pixel, along_x)| *pixel += along_x * worth);
            };
            add(&mut self.sums, *along_y);
            if let Some(z_sums) = &mut self.z_sums {
                add(z_sums, along_y * z);
            }
        }
        self.weights = weights;
        true
    }
}

/// Computes the parts of a Gaussian that fall into the pixels 0 to `side` along one axis. Returns the first of these pixels.
fn integrate(weights: &mut Vec<f32>, center: f64, sigma: f64, side: usize) -> usize {
    let sigma = sigma.max(SIGMA_MIN);
    let first = (center - REACH * sigma).floor();
    let last = (center + REACH * sigma).floor();
    let below = |edge: f64| normal_below((edge - center) / sigma);
    // Normalised to the part within reach, so that the sum is 1.
    let [begin, end] = [below(first), below(last + 1.0)];
    let from = first.max(0.0);
    let to = last.min(side as f64 - 1.0);
    weights.clear();
    let mut before = below(from);
    for pixel in from as usize..=to as usize {
        let after = below(pixel as f64 + 1.0);
        weights.push(((after - before) / (end - begin)) as f32);
        before = after;
    }
    from as usize
}

/// The share of the normal distribution below a value, to within 1e-7: the complementary error function in the rational form of Abramowitz
/// and Stegun, 7.1.26.
fn normal_below(value: f64) -> f64 {
    const COEFFICIENTS: [f64; 5] = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
    let x = value.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.3275911 * x);
    let polynomial = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    let tail = polynomial * (-x * x).exp() / 2.0;
    if value < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_the_normal_distribution_are_those_of_the_tables() {
        for (value, share) in
            [(0.0, 0.5), (1.0, 0.841344746), (-1.0, 0.158655254), (2.5, 0.993790335), (-4.0, 3.1671e-5)]
        {
            assert!((normal_below(value) - share).abs() < 1e-7, "{value}: {}", normal_below(value));
        }
    }

    #[test]
    fn a_wide_gaussian_is_cut_at_the_border_only() {
        let mut density = Density::new([10, 10], false);
        // On the left border: half of it is outside.
        assert!(density.blur([0.0, 5.0], [1.0, 1.0], 0.0));
        let sum: f32 = density.sums.iter().sum();
        assert!((sum - 0.5).abs() < 1e-4, "{sum}");
        assert!(!density.blur([-0.1, 5.0], [1.0, 1.0], 0.0));
        assert!(!density.blur([5.0, 10.0], [1.0, 1.0], 0.0));
        assert!(!density.blur([5.0, 5.0], [1.0, f64::NAN], 0.0));
        assert!(!density.count([5.0, f64::NAN], 0.0));
        assert!(!density.count([5.0, 5.0], f32::NAN));
    }

    proptest! {
        #[test]
        fn every_localization_inside_is_worth_one(
            x in 30.0_f64..50.0, y in 30.0_f64..50.0, sx in 0.0_f64..7.0, sy in 0.0_f64..7.0, z in -1.0_f32..1.0,
        ) {
            let mut density = Density::new([80, 80], true);
            prop_assert!(density.blur([x, y], [sx, sy], z));
            let sum: f64 = density.sums.iter().map(|v| f64::from(*v)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            let z_sum: f64 = density.z_sums.as_ref().unwrap().iter().map(|v| f64::from(*v)).sum();
            prop_assert!((z_sum - f64::from(z)).abs() < 1e-5, "{}", z_sum);
            // The mean is the position, with pixels counted by their centres.
            let mean = |axis: usize| -> f64 {
                let places = density.sums.iter().enumerate();
                places.map(|(at, v)| f64::from(*v) * ([at % 80, at / 80][axis] as f64 + 0.5)).sum()
            };
            // A Gaussian narrower than a pixel may lie in one pixel alone.
            let tolerance = |sigma: f64| if sigma < 0.5 { 0.51 } else { 0.05 };
            prop_assert!((mean(0) - x).abs() < tolerance(sx), "{} {}", mean(0), x);
            prop_assert!((mean(1) - y).abs() < tolerance(sy), "{} {}", mean(1), y);
        }
    }
}
