//! Finds spots in camera frames, to be cut out and fitted: the launcher of `kernels/spots.cu`.
//!
//! - [`FinderOptions`]: what counts as a spot. [`SpotFinder`]: finds spots in frames of one size.
//! - [`RoiBuffer`] (`rois`): the boxes around spots, as [`super::fit()`] takes them.
//! - [`device`]: the parameters of launches on a device.
//! - `plan`: what is prepared once for a frame size, from `weights`; `plane`: memory with a value for each pixel.
//!
//! A pixel that is no measurement (NaN, infinite, beyond 10⁹ photo-electrons) counts as the mean of the eight around it, so that
//! it hides no spot beside it. If none of the nine is a measurement, no spot is found within reach of the filter. Boxes are copied
//! from the frame unchanged: the fit of a box with such a pixel is [`super::FitStatus::BadInput`].

pub mod device;
mod plan;
mod plane;
mod rois;
mod weights;

use std::{ops::RangeInclusive, ptr};

pub use self::plan::SpotCall;
pub use self::rois::RoiBuffer;
use self::{
    plan::{Plan, Work},
    plane::Plane,
};
use super::{Adu, Camera, InstructionSet, Invalid, SIGMA_PX, entry, fit::odd_side};
use serde::{Deserialize, Serialize};

/// Allowed radii, px, within which a spot must be the highest pixel.
pub const RADIUS: RangeInclusive<usize> = 1..=16;

/// Allowed ratios of the wide to the narrow mean of a difference of Gaussians.
pub const WIDE: RangeInclusive<f32> = 1.25..=3.0;

/// Most pixels of a frame.
pub const FRAME_PIXELS_MAX: usize = 1 << 26;

/// What counts as a spot, and what is cut out around it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FinderOptions {
    /// How spots stand out.
    pub method: Method,
    /// Side of the box around a spot, px: odd, in [`SIDE`](super::SIDE).
    pub box_side: usize,
    /// How to treat spots whose box would leave the frame.
    pub border: Border,
    /// Most spots of a frame: if there are more, the strongest are kept.
    pub spots_max: usize,
}

/// How spots stand out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Method {
    /// A Gaussian mean of the spot's own width less a wider one, which is the background: their local maxima. With a
    /// map of read noise, both means weight pixels by `1 / (variance + its median over the sensor)` (the median
    /// taken as 1 where it is less), so that a noisy pixel counts little.
    ///
    /// Means are truncated at 3 widths and normalised, and the frame is mirrored at its edges: a spot less than about a
    /// width from an edge may be found on the neighbouring pixel.
    Contrast {
        /// Width of a spot along x and y, px: in [`SIGMA_PX`].
        #[serde(with = "crate::bits")]
        sigma_px: [f32; 2],
        /// Width of the wide mean in widths of the spot: in [`WIDE`], commonly 2.
        #[serde(with = "crate::bits")]
        wide: f32,
        /// What the contrast must exceed.
        threshold: Threshold,
        /// A spot is the highest pixel within this many rows and columns: in [`RADIUS`], commonly 2. Of equal pixels,
        /// the first.
        radius: usize,
    },
    /// The highest pixels of their box whose neighbours rise towards them: Picasso's criterion. Boxes, with the
    /// gradients at their edges, must lie within the frame, whatever `border` says.
    NetGradient {
        /// What the net gradient must exceed, photo-electrons: the sum over the box of the central difference (not
        /// halved) along the direction to the middle. Picasso's own is in ADU: multiply that by the gain.
        #[serde(with = "crate::bits")]
        minimum: f32,
    },
}

/// The threshold that a contrast must exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Threshold {
    /// The contrast of a spot of this many photo-electrons in the middle of a pixel. Without weights that is
    /// `photons * (n(x) * n(y) - w(x) * w(y))`, where n and w are the sums over pixels, along one axis, of the
    /// narrow and the wide mean's weight times the share of the spot's light: about `0.3 * photons / (2π σ²)` where
    /// the wide mean is 2 σ wide. Scores are photo-electrons.
    Photons(#[serde(with = "crate::bits")] f32),
    /// This many standard deviations of the contrast that photon and read noise cause where there is no spot: the
    /// root of `Σ weights² * (background + read noise²)`, with the wide mean at the pixel itself as background. This
    /// follows uneven illumination, and is as accurate as the camera's offset and gain. It holds up to the edges of the
    /// frame: the weights of a pixel and its mirror image are added. Scores are multiples of the standard deviation.
    Noise(#[serde(with = "crate::bits")] f32),
}

/// How spots are treated whose box would leave the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Border {
    /// The box is moved inwards, so that the spot is not in its middle.
    #[default]
    Shift,
    /// Such spots are left out.
    Drop,
}

/// A spot in a frame, as the kernel writes it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Spot {
    /// Column of the maximum.
    pub x: u32,
    /// Row of the maximum.
    pub y: u32,
    /// Column and row of the box's first pixel.
    pub corner: [u32; 2],
    /// By how much it stands out, in the unit of the threshold.
    pub score: f32,
    /// Index of its frame, if several are searched together; 0 otherwise.
    pub frame: u32,
}

// SAFETY: numbers of four bytes each, for which any bit pattern is valid.
#[allow(unsafe_code, reason = "the bytes come from a device")]
unsafe impl bytemuck::Zeroable for Spot {}
// SAFETY: as above, and there is no padding.
#[allow(unsafe_code, reason = "the bytes come from a device")]
unsafe impl bytemuck::Pod for Spot {}

/// Finds spots in frames of one size from one camera. Holds all memory that this needs, about 10 to 40 bytes per pixel:
/// nothing is allocated from the second frame on.
#[derive(Debug)]
pub struct SpotFinder {
    options: FinderOptions,
    set: InstructionSet,
    plan: Plan,
    electrons: Plane,
    narrow: Plane,
    wide: Plane,
    contrast: Plane,
    noise: Plane,
    /// Positions at which to look for maxima.
    above: Vec<u32>,
    spots: Vec<Spot>,
    /// How many of `spots` the last frame has.
    kept: usize,
    over_max: usize,
}

entry!(
    host_find_spots,
    (call: *const SpotCall, wide: i32),
    ocelli_find_spots_baseline,
    ocelli_find_spots_avx2,
    ocelli_find_spots_avx512
);

impl SpotFinder {
    /// A finder for frames of `width` by `height` pixels.
    ///
    /// # Errors
    /// If an option is out of range, the frame is smaller than a box, or the camera's maps do not have the frame's size.
    pub fn new(
        options: &FinderOptions,
        camera: &Camera,
        width: usize,
        height: usize,
    ) -> Result<SpotFinder, Invalid> {
        options.check_for(camera, width, height)?;
        let plan = Plan::new(options, camera, width, height);
        let contrast = matches!(options.method, Method::Contrast { .. });
        let plane = |needed, height| if needed { Plane::new(width, height, 0.0) } else { Plane::none() };
        // No two maxima lie within the radius of each other.
        let reach = plan.reach() + 1;
        let spots_possible = width.div_ceil(reach) * height.div_ceil(reach);
        Ok(SpotFinder {
            options: *options,
            set: InstructionSet::detect(),
            electrons: plane(true, height),
            narrow: plane(contrast, 1),
            wide: plane(contrast, 1),
            contrast: if contrast { Plane::new(width, height, -3e38) } else { Plane::none() },
            noise: plane(plan.by_noise(), height),
            // The number of steps with the fewest lanes.
            above: vec![0; if contrast { width.div_ceil(4) * height } else { 0 }],
            spots: vec![Spot::default(); spots_possible],
            kept: 0,
            over_max: 0,
            plan,
        })
    }

    /// Uses `set` instead of the widest instruction set of this machine; the baseline if the machine cannot run `set`.
    #[must_use]
    pub fn with_instructions(mut self, set: InstructionSet) -> SpotFinder {
        self.set = set;
        self
    }

    /// Memory that it holds, in bytes.
    pub fn bytes(&self) -> usize {
        let work = [&self.electrons, &self.narrow, &self.wide, &self.contrast, &self.noise];
        let planes = work.into_iter().chain(self.plan.constants());
        let values: usize = planes.map(|plane| plane.values().len()).sum();
        values * size_of::<f32>() + size_of_val(&*self.above) + size_of_val(&*self.spots)
    }

    /// What counts as a spot.
    pub fn options(&self) -> &FinderOptions {
        &self.options
    }

    /// Columns and rows of a frame.
    pub fn size(&self) -> (usize, usize) {
        self.plan.size()
    }

    /// The spots of a frame, row by row. Runs on the calling thread.
    ///
    /// # Errors
    /// If `frame` does not have as many values as there are pixels.
    pub fn find(&mut self, frame: Adu<'_>) -> Result<&[Spot], Invalid> {
        let (width, height) = self.size();
        if frame.len() != width * height {
            let why = format!("{} values are not one of {width} x {height} pixels", frame.len());
            return Err(Invalid::new("frame", why));
        }
        let (pixels, wide) = frame.address();
        let mut count = 0_u64;
        let mut call = self.plan.call();
        call.frame = pixels;
        let work = Work {
            electrons: self.electrons.as_mut_ptr() as u64,
            narrow: self.narrow.as_mut_ptr() as u64,
            wide: self.wide.as_mut_ptr() as u64,
            contrast: self.contrast.as_mut_ptr() as u64,
            noise: self.noise.as_mut_ptr() as u64,
        };
        call.work(&work, self.plan.by_noise());
        call.above = self.above.as_mut_ptr() as u64;
        call.spots = self.spots.as_mut_ptr() as u64;
        call.spots_max = self.spots.len() as u64;
        call.count = &raw mut count as u64;
        // SAFETY: the frame holds width * height values of the kind that `wide` says (checked); planes have that
        // size with a margin wider than any reach, and are null only where the kernel does not read; `above` has an
        // entry for every step; no more than `spots_max` spots are written; the structs are the kernel's own; the
        // object is one that this machine can run.
        #[allow(unsafe_code, reason = "a call into C++")]
        unsafe {
            host_find_spots(self.set)(ptr::from_ref(&call), wide);
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.spots.len());
        self.kept = strongest(&mut self.spots[..count], self.options.spots_max);
        self.over_max = count - self.kept;
        Ok(self.spots())
    }

    /// The spots of the last frame.
    pub fn spots(&self) -> &[Spot] {
        &self.spots[..self.kept]
    }

    /// How many more spots the last frame had than `spots_max`: the weakest, which were left out.
    pub fn over_max(&self) -> usize {
        self.over_max
    }

    /// The contrast of the last frame, row-major, photo-electrons, in which maxima were searched. Helps to choose a
    /// threshold; empty for [`Method::NetGradient`].
    pub fn contrast(&self) -> Vec<f32> {
        let (width, height) = self.size();
        self.contrast.pixels(width, height)
    }

    /// The contrast of a spot of one photo-electron in the middle of a pixel, without weights. 0 for
    /// [`Method::NetGradient`].
    pub fn contrast_per_photon(&self) -> f32 {
        self.plan.contrast_per_photon()
    }
}

/// Moves the strongest `max` spots to the front, in the order of their pixels. Returns how many there are.
fn strongest(spots: &mut [Spot], max: usize) -> usize {
    if spots.len() <= max {
        return spots.len();
    }
    // Of equally strong spots, the first, so that the same frame gives the same spots everywhere.
    spots.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then((a.y, a.x).cmp(&(b.y, b.x))));
    spots[..max].sort_unstable_by_key(|spot| (spot.y, spot.x));
    max
}

impl FinderOptions {
    /// Checks the options, independently of the frame size.
    ///
    /// # Errors
    /// If an option is out of range; names the key that requests use for it.
    pub fn check(&self) -> Result<(), Invalid> {
        odd_side("box_px", self.box_side)?;
        if self.spots_max == 0 {
            return Err(Invalid::new("spots_max", "0 leaves no spot: allow at least 1".to_owned()));
        }
        match self.method {
            Method::NetGradient { minimum } => positive("gradient_min", minimum),
            Method::Contrast { sigma_px, wide, threshold, radius } => {
                if let Some(sigma) = sigma_px.iter().find(|sigma| !SIGMA_PX.contains(*sigma)) {
                    let (low, high) = (SIGMA_PX.start(), SIGMA_PX.end());
                    return Err(Invalid::new("sigma_px", format!("{sigma} is not between {low} and {high}")));
                }
                if !WIDE.contains(&wide) {
                    let (low, high) = (WIDE.start(), WIDE.end());
                    return Err(Invalid::new("wide", format!("{wide} is not between {low} and {high}")));
                }
                if !RADIUS.contains(&radius) {
                    let (low, high) = (RADIUS.start(), RADIUS.end());
                    return Err(Invalid::new(
                        "radius_px",
                        format!("{radius} is not between {low} and {high}"),
                    ));
                }
                match threshold {
                    Threshold::Photons(photons) => positive("photons_min", photons),
                    Threshold::Noise(times) => positive("noise_min", times),
                }
            }
        }
    }

    /// Checks the options for frames of this size from this camera.
    fn check_for(&self, camera: &Camera, width: usize, height: usize) -> Result<(), Invalid> {
        self.check()?;
        let side = self.box_side;
        if width < side || height < side {
            let why = format!("{width} x {height} pixels are smaller than the box of {side} x {side}");
            return Err(Invalid::new("frame", why));
        }
        if width.checked_mul(height).is_none_or(|pixels| pixels > FRAME_PIXELS_MAX) {
            let why = format!("{width} x {height} pixels are more than {FRAME_PIXELS_MAX}");
            return Err(Invalid::new("frame", why));
        }
        if let Some((rows, columns)) = camera.sensor()
            && (columns, rows) != (width, height)
        {
            let hint = match width <= columns && height <= rows {
                true => ": give corner_px, the column and the row of the maps in which the frames begin",
                false => "",
            };
            let why =
                format!("{width} x {height} pixels, but the camera's maps are {columns} x {rows}{hint}");
            return Err(Invalid::new("frame", why));
        }
        let least = side + 2;
        if matches!(self.method, Method::NetGradient { .. }) && (width < least || height < least) {
            let why = format!(
                "{width} x {height} pixels hold no box of {side} x {side} with the gradients at its edges: that \
                 takes {least} x {least}"
            );
            return Err(Invalid::new("frame", why));
        }
        Ok(())
    }
}

/// Checks that a threshold is a positive number far below the limit of `f32`: no other value works as a threshold.
fn positive(field: &'static str, threshold: f32) -> Result<(), Invalid> {
    if threshold > 0.0 && threshold <= 1e9 {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{threshold} is not above 0 and up to 1000000000")))
}

#[cfg(test)]
mod tests;
