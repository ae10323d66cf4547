//! What a finder prepares once: the weights of its means, and the scale of the contrast at each pixel of the camera.

use super::{
    Border, FinderOptions, Method, Threshold,
    plane::{Plane, pitch},
    weights::{Kernel, REACH_MAX, Within, net_weights, unlike},
};
use crate::engine::kernels::Camera;

/// Number of planes that are prepared before the first frame.
pub(super) const CONSTANTS: usize = 10;

/// `Taps` of `kernels/filter.cuh`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Taps {
    narrow_reach: i32,
    wide_reach: i32,
    narrow: [f32; REACH_MAX + 1],
    wide: [f32; REACH_MAX + 1],
}

/// `SpotSetup` of `kernels/spots.cu`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct SpotSetup {
    width: i32,
    height: i32,
    pitch: i32,
    net_reach: i32,
    reach: i32,
    border: i32,
    side: i32,
    gain: f32,
    bias: f32,
    threshold: f32,
    power: f32,
    spread_depth: i32,
    readout: f32,
    background_min: f32,
    along_x: Taps,
    along_y: Taps,
}

/// `SpotCall` of `kernels/spots.cu`. Its addresses are on the host or on the device, depending on where it is used; 0 for none.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub struct SpotCall {
    setup: SpotSetup,
    pub(super) frame: u64,
    gain: u64,
    bias: u64,
    narrow_scale: u64,
    wide_scale: u64,
    weights: u64,
    shot: u64,
    readout: u64,
    spread: u64,
    net_weights: u64,
    pub(super) electrons: u64,
    pub(super) narrow: u64,
    pub(super) wide: u64,
    pub(super) contrast: u64,
    pub(super) power: u64,
    pub(super) plane_values: i64,
    pub(super) noise: i32,
    unused: u32,
    pub(super) above: u64,
    pub(super) spots: u64,
    pub(super) spots_max: u64,
    pub(super) count: u64,
}

/// What is prepared before the first frame.
#[derive(Debug)]
pub(super) struct Plan {
    setup: SpotSetup,
    by_noise: bool,
    contrast_per_photon: f32,
    gain: Plane,
    bias: Plane,
    narrow_scale: Plane,
    wide_scale: Plane,
    weights: Plane,
    shot: Plane,
    readout: Plane,
    spread: Plane,
    power: Plane,
    net_weights: Plane,
}

impl Plan {
    /// A plan for options that have been checked.
    pub(super) fn new(options: &FinderOptions, camera: &Camera, width: usize, height: usize) -> Plan {
        let side = options.box_side;
        let no_taps =
            Taps { narrow_reach: 0, wide_reach: 0, narrow: [0.0; REACH_MAX + 1], wide: [0.0; REACH_MAX + 1] };
        let mut plan = Plan {
            setup: SpotSetup {
                width: width as i32,
                height: height as i32,
                pitch: pitch(width) as i32,
                net_reach: 0,
                reach: (side / 2) as i32,
                border: match options.border {
                    Border::Shift => 0,
                    Border::Drop => (side / 2) as i32,
                },
                side: side as i32,
                gain: camera.uniform.gain,
                bias: camera.uniform.bias - camera.uniform.variance,
                threshold: 0.0,
                power: 0.0,
                spread_depth: 0,
                readout: 0.0,
                background_min: 0.0,
                along_x: no_taps,
                along_y: no_taps,
            },
            by_noise: false,
            contrast_per_photon: 0.0,
            gain: Plane::none(),
            bias: Plane::none(),
            narrow_scale: Plane::none(),
            wide_scale: Plane::none(),
            weights: Plane::none(),
            shot: Plane::none(),
            readout: Plane::none(),
            spread: Plane::none(),
            power: Plane::none(),
            net_weights: Plane::none(),
        };
        match options.method {
            Method::NetGradient { minimum } => {
                plan.setup.threshold = minimum;
                plan.setup.net_reach = (side / 2 + 1) as i32;
                plan.setup.border = plan.setup.net_reach;
                plan.net_weights = Plane::plain(net_weights(side / 2));
                plan.convert(camera, width, |_| 1.0);
            }
            Method::Contrast { sigma_px, wide, threshold, radius } => {
                plan.setup.reach = radius as i32;
                plan.setup.threshold = match threshold {
                    Threshold::Photons(photons) => photons,
                    Threshold::Noise(times) => times,
                };
                plan.by_noise = matches!(threshold, Threshold::Noise(_));
                let sigma = sigma_px.map(f64::from);
                let means = [sigma, sigma.map(|sigma| sigma * f64::from(wide))].map(Kernel::gaussian);
                plan.means(camera, [width, height], &means, sigma);
            }
        }
        plan
    }

    /// Prepares the means, and the scale of the contrast.
    fn means(&mut self, camera: &Camera, size: [usize; 2], means: &[Kernel; 2], sigma: [f64; 2]) {
        let [narrow, wide] = means;
        self.setup.along_x = taps(&narrow.x, &wide.x);
        self.setup.along_y = taps(&narrow.y, &wide.y);
        self.setup.background_min = (wide.x[0] * wide.y[0]) as f32;
        let seen = [narrow.times_spot(sigma), wide.times_spot(sigma)];
        let per_photon = seen[0].sum() - seen[1].sum();
        self.contrast_per_photon = per_photon as f32;
        self.setup.power = (per_photon * per_photon) as f32;

        let Some(maps) = &camera.maps else {
            self.noise_of_equals(camera.uniform.variance, size, means);
            return;
        };
        let [width, height] = size;
        let first = maps.variance.first().copied().unwrap_or_default();
        if maps.variance.iter().all(|variance| *variance == first) {
            self.noise_of_equals(first, size, means);
            self.convert(camera, width, |_| 1.0);
            return;
        }
        let typical = median(&maps.variance).max(1.0);
        let weight = |variance: f32| typical / (variance + typical);
        self.convert(camera, width, weight);
        let weights: Vec<f32> = maps.variance.iter().map(|variance| weight(*variance)).collect();
        let sums = |kernel: &Kernel| kernel.within(width, height).over(&weights);
        let scales =
            [narrow, wide].map(|mean| sums(mean).iter().map(|sum| sum.recip()).collect::<Vec<f32>>());
        if self.by_noise {
            let squares = squares(means, size);
            // At each pixel, the sum of (narrow weight / its total - wide weight / its total)² times the value of `of_pixel`.
            let variance = |of_pixel: Vec<f32>| {
                let [nn, nw, ww] = squares.each_ref().map(|square| square.over(&of_pixel));
                let at = |i: usize| {
                    let [n, w] = [scales[0][i], scales[1][i]];
                    (nn[i] * n * n - 2.0 * nw[i] * n * w + ww[i] * w * w).max(0.0)
                };
                Plane::of(&(0..of_pixel.len()).map(at).collect::<Vec<f32>>(), width)
            };
            self.shot = variance(weights.iter().map(|weight| weight * weight).collect());
            let read =
                weights.iter().zip(&maps.variance).map(|(weight, variance)| weight * weight * variance);
            self.readout = variance(read.collect());
        } else {
            let [n, w] = seen.each_ref().map(sums);
            // Where weights leave next to nothing of a spot, its light is not extrapolated from that.
            let least = 0.2 * self.contrast_per_photon;
            let at = |i: usize| (n[i] * scales[0][i] - w[i] * scales[1][i]).max(least).powi(2);
            self.power = Plane::of(&(0..weights.len()).map(at).collect::<Vec<f32>>(), width);
        }
        let [narrow_scale, wide_scale] = scales;
        self.narrow_scale = Plane::of(&narrow_scale, width);
        self.wide_scale = Plane::of(&wide_scale, width);
        self.weights = Plane::of(&weights, width);
    }

    /// Prepares the noise of the contrast, if the threshold needs it and all pixels have this variance of readout. Rows beyond the means'
    /// reach from the edges are alike.
    fn noise_of_equals(&mut self, variance: f32, [width, height]: [usize; 2], means: &[Kernel; 2]) {
        if !self.by_noise {
            return;
        }
        let parts = squares(means, [width, height]).each_ref().map(Within::sums);
        let depth = means.iter().map(|mean| mean.y.len() - 1).max().unwrap_or_default();
        let at = |x: usize, y: usize| {
            let [nn, nw, ww] = parts.each_ref().map(|[columns, rows]| columns[x] * rows[y]);
            (nn - 2.0 * nw + ww) as f32
        };
        let rows = unlike(height, depth).flat_map(|y| (0..width).map(move |x| [x, y]));
        let spread: Vec<f32> = rows.map(|[x, y]| at(x, y)).collect();
        self.setup.readout = variance;
        self.setup.spread_depth = depth as i32;
        self.spread = Plane::of(&spread, width);
    }

    /// Prepares the conversion of pixels to electrons, times a weight that depends on their variance; for cameras with maps.
    fn convert(&mut self, camera: &Camera, width: usize, weight: impl Fn(f32) -> f32) {
        let Some(maps) = &camera.maps else { return };
        let pixels = || maps.gain.iter().zip(&maps.bias).zip(&maps.variance);
        let gain: Vec<f32> = pixels().map(|((gain, _), variance)| gain * weight(*variance)).collect();
        let bias: Vec<f32> =
            pixels().map(|((_, bias), variance)| (bias - variance) * weight(*variance)).collect();
        self.gain = Plane::of(&gain, width);
        self.bias = Plane::of(&bias, width);
    }

    pub(super) fn size(&self) -> (usize, usize) {
        (self.setup.width as usize, self.setup.height as usize)
    }

    /// Reach of the window in which a spot is the maximum.
    pub(super) fn reach(&self) -> usize {
        self.setup.reach as usize
    }

    pub(super) fn by_noise(&self) -> bool {
        self.by_noise
    }

    pub(super) fn contrast_per_photon(&self) -> f32 {
        self.contrast_per_photon
    }

    pub(super) fn by_gradient(&self) -> bool {
        self.setup.net_reach > 0
    }

    /// The constants that the kernels read besides the frame, in the order of [`Plan::call_with`].
    pub(super) fn constants(&self) -> [&Plane; CONSTANTS] {
        [
            &self.gain,
            &self.bias,
            &self.narrow_scale,
            &self.wide_scale,
            &self.weights,
            &self.shot,
            &self.readout,
            &self.spread,
            &self.power,
            &self.net_weights,
        ]
    }

    /// A call without a frame, working planes and room for spots.
    pub(super) fn call(&self) -> SpotCall {
        self.call_with(self.constants().map(|plane| plane.as_ptr() as u64))
    }

    /// The same with constants at these addresses, 0 for none.
    pub(super) fn call_with(&self, constants: [u64; CONSTANTS]) -> SpotCall {
        let [gain, bias, narrow_scale, wide_scale, weights, shot, readout, spread, power, net_weights] =
            constants;
        SpotCall {
            setup: self.setup,
            frame: 0,
            gain,
            bias,
            narrow_scale,
            wide_scale,
            weights,
            shot,
            readout,
            spread,
            net_weights,
            electrons: 0,
            narrow: 0,
            wide: 0,
            contrast: 0,
            // Only read if the threshold is not in units of noise.
            power,
            plane_values: 0,
            noise: 0,
            unused: 0,
            above: 0,
            spots: 0,
            spots_max: 0,
            count: 0,
        }
    }
}

/// The addresses of the first pixels of a call's working planes.
pub(super) struct Work {
    pub(super) electrons: u64,
    pub(super) narrow: u64,
    pub(super) wide: u64,
    pub(super) contrast: u64,
    /// Used if the threshold is in units of noise.
    pub(super) noise: u64,
}

impl SpotCall {
    pub(super) fn work(&mut self, work: &Work, by_noise: bool) {
        self.electrons = work.electrons;
        self.narrow = work.narrow;
        self.wide = work.wide;
        self.contrast = work.contrast;
        if by_noise {
            self.power = work.noise;
            self.noise = 1;
        }
    }
}

/// The terms of (narrow weight - wide weight)² of each pixel: they give the variance of a contrast, since pixels vary independently.
fn squares(means: &[Kernel; 2], [width, height]: [usize; 2]) -> [Within; 3] {
    let [narrow, wide] = means.each_ref().map(|mean| mean.within(width, height));
    [narrow.times(&narrow), narrow.times(&wide), wide.times(&wide)]
}

fn taps(narrow: &[f64], wide: &[f64]) -> Taps {
    let mut taps = Taps {
        narrow_reach: narrow.len() as i32 - 1,
        wide_reach: wide.len() as i32 - 1,
        narrow: [0.0; REACH_MAX + 1],
        wide: [0.0; REACH_MAX + 1],
    };
    taps.narrow.iter_mut().zip(narrow).for_each(|(tap, weight)| *tap = *weight as f32);
    taps.wide.iter_mut().zip(wide).for_each(|(tap, weight)| *tap = *weight as f32);
    taps
}

fn median(values: &[f32]) -> f32 {
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}
