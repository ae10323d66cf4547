//! What a finder prepares once: the weights of its means, and what the contrast amounts to at each pixel of the camera.

use std::{ffi::c_void, ptr};

use super::{Border, FinderOptions, Method, Spot, Threshold};
use crate::engine::kernels::Camera;

/// `REACH_MAX` of `kernels/filter.cuh`: 3 widths of the widest mean.
const REACH_MAX: usize = 45;

/// Columns of memory before and after each row of a plane. More than any reach, and whole vectors.
const MARGIN_COLUMNS: usize = 48;

/// Rows of memory above and below a plane: as many as a window reaches.
const MARGIN_ROWS: usize = 16;

/// `Taps` of `kernels/filter.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Taps {
    narrow_reach: i32,
    wide_reach: i32,
    narrow: [f32; REACH_MAX + 1],
    wide: [f32; REACH_MAX + 1],
}

/// `SpotSetup` of `kernels/spots.cu`.
#[derive(Debug, Clone, Copy)]
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
    shot: f32,
    readout: f32,
    background_min: f32,
    along_x: Taps,
    along_y: Taps,
}

/// `SpotCall` of `kernels/spots.cu`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SpotCall {
    setup: SpotSetup,
    pub(super) frame: *const c_void,
    gain: *const f32,
    bias: *const f32,
    narrow_scale: *const f32,
    wide_scale: *const f32,
    shot: *const f32,
    readout: *const f32,
    net_weights: *const f32,
    pub(super) electrons: *mut f32,
    pub(super) narrow: *mut f32,
    pub(super) wide: *mut f32,
    pub(super) contrast: *mut f32,
    pub(super) power: *mut f32,
    pub(super) noise: i32,
    pub(super) spots: *mut Spot,
    pub(super) spots_max: u64,
    pub(super) count: *mut u64,
}

/// One value per pixel with a margin around, rows beginning at whole cache lines. Or nothing.
#[derive(Debug)]
pub(super) struct Plane {
    values: Vec<f32>,
    /// Where the first pixel stands.
    first: usize,
    pitch: usize,
}

impl Plane {
    pub(super) fn none() -> Plane {
        Plane { values: Vec::new(), first: 0, pitch: 0 }
    }

    /// All of it is `value`, the margin too.
    pub(super) fn new(width: usize, height: usize, value: f32) -> Plane {
        const LINE: usize = 16;
        let pitch = pitch(width);
        let values = vec![value; pitch * (height + 2 * MARGIN_ROWS) + 2 * LINE];
        let to_line = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Plane { values, first: to_line + pitch * MARGIN_ROWS + MARGIN_COLUMNS, pitch }
    }

    /// One with the values of `pixels`, row-major.
    fn of(pixels: &[f32], width: usize) -> Plane {
        let mut plane = Plane::new(width, pixels.len() / width, 0.0);
        let rows = plane.values[plane.first..].chunks_mut(plane.pitch);
        for (row, from) in rows.zip(pixels.chunks_exact(width)) {
            row[..width].copy_from_slice(from);
        }
        plane
    }

    /// The values without the margin, row-major.
    pub(super) fn pixels(&self, width: usize, height: usize) -> Vec<f32> {
        if self.values.is_empty() {
            return Vec::new();
        }
        let rows = self.values[self.first..].chunks(self.pitch).take(height);
        rows.flat_map(|row| row[..width].iter().copied()).collect()
    }

    /// Where the first pixel stands; null where there is none.
    fn as_ptr(&self) -> *const f32 {
        match self.values.is_empty() {
            true => ptr::null(),
            false => self.values.as_ptr().wrapping_add(self.first),
        }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        match self.values.is_empty() {
            true => ptr::null_mut(),
            false => self.values.as_mut_ptr().wrapping_add(self.first),
        }
    }
}

/// From one row of a plane to the next, in values.
fn pitch(width: usize) -> usize {
    width.next_multiple_of(16) + 2 * MARGIN_COLUMNS
}

/// A weighted sum along both axes: weights by the distance, the same to both sides.
#[derive(Debug, Clone)]
struct Kernel {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Kernel {
    /// A normalised Gaussian mean.
    fn gaussian([sigma_x, sigma_y]: [f64; 2]) -> Kernel {
        let axis = |sigma: f64| {
            let reach = ((3.0 * sigma).ceil() as usize).clamp(1, REACH_MAX);
            let weight = |d: usize| (-0.5 * (d as f64 / sigma).powi(2)).exp();
            let total: f64 = weight(0) + 2.0 * (1..=reach).map(weight).sum::<f64>();
            (0..=reach).map(|d| weight(d) / total).collect()
        };
        Kernel { x: axis(sigma_x), y: axis(sigma_y) }
    }

    /// The share of a spot's light that each pixel has, where the spot is in the middle of one, times this.
    fn times_spot(&self, [sigma_x, sigma_y]: [f64; 2]) -> Kernel {
        let axis = |weights: &[f64], sigma| {
            weights.iter().enumerate().map(|(d, weight)| weight * pixel_share(d, sigma)).collect()
        };
        Kernel { x: axis(&self.x, sigma_x), y: axis(&self.y, sigma_y) }
    }

    fn times(&self, other: &Kernel) -> Kernel {
        let axis = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).collect();
        Kernel { x: axis(&self.x, &other.x), y: axis(&self.y, &other.y) }
    }

    /// Of its weights.
    fn sum(&self) -> f64 {
        let axis = |weights: &[f64]| weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
        axis(&self.x) * axis(&self.y)
    }

    /// The weighted sum at each pixel of a plane, which goes on beyond its edges as in a mirror.
    fn over(&self, plane: &[f32], width: usize) -> Vec<f32> {
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

/// What is ready before the first frame.
#[derive(Debug)]
pub(super) struct Plan {
    setup: SpotSetup,
    by_noise: bool,
    contrast_per_photon: f32,
    gain: Plane,
    bias: Plane,
    narrow_scale: Plane,
    wide_scale: Plane,
    shot: Plane,
    readout: Plane,
    power: Plane,
    net_weights: Vec<f32>,
}

impl Plan {
    /// Of options that have been checked.
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
                shot: 0.0,
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
            shot: Plane::none(),
            readout: Plane::none(),
            power: Plane::none(),
            net_weights: Vec::new(),
        };
        match options.method {
            Method::NetGradient { minimum } => {
                plan.setup.threshold = minimum;
                plan.setup.net_reach = (side / 2 + 1) as i32;
                plan.setup.border = plan.setup.net_reach;
                plan.net_weights = net_weights(side / 2);
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
                plan.means(camera, width, &means, sigma);
            }
        }
        plan
    }

    /// The means, and what a contrast is measured by.
    fn means(&mut self, camera: &Camera, width: usize, means: &[Kernel; 2], sigma: [f64; 2]) {
        let [narrow, wide] = means;
        self.setup.along_x = taps(&narrow.x, &wide.x);
        self.setup.along_y = taps(&narrow.y, &wide.y);
        self.setup.background_min = (wide.x[0] * wide.y[0]) as f32;
        let seen = [narrow.times_spot(sigma), wide.times_spot(sigma)];
        let per_photon = seen[0].sum() - seen[1].sum();
        self.contrast_per_photon = per_photon as f32;
        self.setup.power = (per_photon * per_photon) as f32;
        // Of the weights' squares, since pixels vary independently: (narrow - wide)².
        let squares = [narrow.times(narrow), narrow.times(wide), wide.times(wide)];
        let shot = squares[0].sum() - 2.0 * squares[1].sum() + squares[2].sum();
        self.setup.shot = shot as f32;

        let Some(maps) = &camera.maps else {
            self.setup.readout = (shot * f64::from(camera.uniform.variance)) as f32;
            return;
        };
        let first = maps.variance.first().copied().unwrap_or_default();
        if maps.variance.iter().all(|variance| *variance == first) {
            self.setup.readout = (shot * f64::from(first)) as f32;
            self.convert(camera, width, |_| 1.0);
            return;
        }
        let typical = median(&maps.variance).max(1.0);
        let weight = |variance: f32| typical / (variance + typical);
        self.convert(camera, width, weight);
        let weights: Vec<f32> = maps.variance.iter().map(|variance| weight(*variance)).collect();
        let scales = [narrow, wide]
            .map(|mean| mean.over(&weights, width).iter().map(|sum| sum.recip()).collect::<Vec<f32>>());
        // The sum at each pixel of (narrow weight / its total - wide weight / its total)² times what a pixel has.
        let variance = |of_pixel: Vec<f32>| {
            let [nn, nw, ww] = [0, 1, 2].map(|i| squares[i].over(&of_pixel, width));
            let at = |i: usize| {
                let [n, w] = [scales[0][i], scales[1][i]];
                (nn[i] * n * n - 2.0 * nw[i] * n * w + ww[i] * w * w).max(0.0)
            };
            Plane::of(&(0..of_pixel.len()).map(at).collect::<Vec<f32>>(), width)
        };
        if self.by_noise {
            self.shot = variance(weights.iter().map(|weight| weight * weight).collect());
            let read =
                weights.iter().zip(&maps.variance).map(|(weight, variance)| weight * weight * variance);
            self.readout = variance(read.collect());
        } else {
            let [n, w] = [0, 1].map(|i| seen[i].over(&weights, width));
            // Where weights leave next to nothing of a spot, its light is not made up from that.
            let least = 0.2 * self.contrast_per_photon;
            let at = |i: usize| (n[i] * scales[0][i] - w[i] * scales[1][i]).max(least).powi(2);
            self.power = Plane::of(&(0..weights.len()).map(at).collect::<Vec<f32>>(), width);
        }
        let [narrow_scale, wide_scale] = scales;
        self.narrow_scale = Plane::of(&narrow_scale, width);
        self.wide_scale = Plane::of(&wide_scale, width);
    }

    /// How pixels become electrons, times a weight by their variance; for cameras with maps.
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

    /// Of the window in which a spot is the maximum.
    pub(super) fn reach(&self) -> usize {
        self.setup.reach as usize
    }

    pub(super) fn by_noise(&self) -> bool {
        self.by_noise
    }

    pub(super) fn contrast_per_photon(&self) -> f32 {
        self.contrast_per_photon
    }

    /// A call without a frame, planes to work in and places for spots.
    pub(super) fn call(&self) -> SpotCall {
        SpotCall {
            setup: self.setup,
            frame: ptr::null(),
            gain: self.gain.as_ptr(),
            bias: self.bias.as_ptr(),
            narrow_scale: self.narrow_scale.as_ptr(),
            wide_scale: self.wide_scale.as_ptr(),
            shot: self.shot.as_ptr(),
            readout: self.readout.as_ptr(),
            net_weights: self.net_weights.as_ptr(),
            electrons: ptr::null_mut(),
            narrow: ptr::null_mut(),
            wide: ptr::null_mut(),
            contrast: ptr::null_mut(),
            // Only read where it is no noise.
            power: self.power.as_ptr().cast_mut(),
            noise: 0,
            spots: ptr::null_mut(),
            spots_max: 0,
            count: ptr::null_mut(),
        }
    }
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

/// The net gradient over a box as weights of the pixels around its middle, one row and column further than the box:
/// each pixel but the middle one gives its two differences, times its direction to the middle.
fn net_weights(half: usize) -> Vec<f32> {
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

fn median(values: &[f32]) -> f32 {
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}
