//! The models of a spot's shape and of its fitted parameters, checked before a kernel uses them.

use super::Invalid;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Allowed widths, px: of a fixed width, and the bounds of a fitted one.
pub const SIGMA_PX: RangeInclusive<f32> = 0.3..=5.0;

/// Evaluations of the model that a fit may take (per start).
pub const ITERATIONS_MAX: u32 = 30;

/// A Gaussian spot integrated over the pixels. Widths are in pixels of their axis, so a round spot on oblong pixels has
/// different widths along the two ([`sigma_px`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Psf {
    /// `xynb`: a spot of known width.
    Xynb {
        /// Width along x and y, px.
        #[serde(with = "crate::bits")]
        sigma_px: [f32; 2],
    },
    /// `xynbs`: a spot of one unknown width, on square pixels.
    Xynbs {
        /// Where the fit begins, px.
        #[serde(with = "crate::bits")]
        sigma_start_px: f32,
    },
    /// `xynbsxsy`: a spot of two unknown widths.
    Xynbsxsy {
        /// Where the fit begins, along x and y, px.
        #[serde(with = "crate::bits")]
        sigma_start_px: [f32; 2],
    },
    /// `xyznb`: a spot whose widths encode its depth.
    Xyznb(#[serde(with = "crate::bits")] Astigmatism),
}

/// How the widths of an astigmatic spot depend on z:
/// `sigma(z) = sigma_px sqrt(1 + t² + a t³ + b t⁴)`, with `t = (z - gamma) / depth` along x and `(z + gamma) / depth`
/// along y.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Astigmatism {
    /// Widths in focus along x and y, px.
    pub sigma_px: [f32; 2],
    /// Cubic terms along x and y.
    pub a: [f32; 2],
    /// Quartic terms along x and y.
    pub b: [f32; 2],
    /// Half the distance between the two foci, µm; may be negative.
    pub gamma_um: f32,
    /// Depth of focus, µm.
    pub depth_um: f32,
    /// The smallest and the largest z that a fit may give, µm.
    pub z_um: [f32; 2],
}

/// A round width in µm as widths in px along x and y.
pub fn sigma_px(sigma_um: f32, pixel_um: [f32; 2]) -> [f32; 2] {
    pixel_um.map(|pixel| sigma_um / pixel)
}

impl Psf {
    /// The name in `model.toml` and in queries.
    pub fn name(&self) -> &'static str {
        match self {
            Psf::Xynb { .. } => "xynb",
            Psf::Xynbs { .. } => "xynbs",
            Psf::Xynbsxsy { .. } => "xynbsxsy",
            Psf::Xyznb(_) => "xyznb",
        }
    }

    /// The parameters in the order of [`SpotFit::theta`](super::SpotFit::theta).
    pub fn parameter_names(&self) -> &'static [&'static str] {
        match self {
            Psf::Xynb { .. } => &["x", "y", "photons", "background"],
            Psf::Xynbs { .. } => &["x", "y", "photons", "background", "sigma"],
            Psf::Xynbsxsy { .. } => &["x", "y", "photons", "background", "sigma_x", "sigma_y"],
            Psf::Xyznb(_) => &["x", "y", "z", "photons", "background"],
        }
    }

    /// The number that the kernels know it by.
    pub(super) fn number(&self) -> i32 {
        match self {
            Psf::Xynb { .. } => 0,
            Psf::Xynbs { .. } => 1,
            Psf::Xynbsxsy { .. } => 2,
            Psf::Xyznb(_) => 3,
        }
    }

    /// Fixed or first widths along x and y, px.
    pub(super) fn sigma(&self) -> [f32; 2] {
        match self {
            Psf::Xynb { sigma_px } => *sigma_px,
            Psf::Xynbs { sigma_start_px } => [*sigma_start_px; 2],
            Psf::Xynbsxsy { sigma_start_px } => *sigma_start_px,
            Psf::Xyznb(astigmatism) => astigmatism.sigma_px,
        }
    }
}

/// Whether pixels of this width and height count as square, to the precision with which files state measured sizes.
pub fn are_square([along_x, along_y]: [f64; 2]) -> bool {
    (along_x - along_y).abs() <= 1e-4 * along_x
}

/// A checked model that can be fitted. One that another process sends was checked there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FitModel {
    psf: Psf,
    iterations_max: u32,
}

impl FitModel {
    /// Checks `psf` for a camera with pixels of `pixel_um` along x and y (µm). The fit itself is in pixels; their
    /// size only decides which models are allowed.
    ///
    /// # Errors
    /// If a width, a calibration or a size is out of range, or one width is asked for on oblong pixels.
    pub fn new(psf: Psf, pixel_um: [f32; 2]) -> Result<FitModel, Invalid> {
        for (axis, pixel) in ["x", "y"].iter().zip(pixel_um) {
            if !(pixel > 0.0 && pixel.is_finite()) {
                return Err(Invalid::new(
                    "pixel_um",
                    format!("{pixel} along {axis} is not a positive length"),
                ));
            }
        }
        for sigma in psf.sigma() {
            if !SIGMA_PX.contains(&sigma) {
                let (low, high) = (SIGMA_PX.start(), SIGMA_PX.end());
                return Err(Invalid::new("sigma_px", format!("{sigma} is not between {low} and {high}")));
            }
        }
        let [along_x, along_y] = pixel_um;
        if matches!(psf, Psf::Xynbs { .. }) && !are_square(pixel_um.map(f64::from)) {
            let why = format!(
                "xynbs fits one width, but pixels are {along_x} by {along_y} um: use xynbsxsy, or xynb with a width \
                 for each axis"
            );
            return Err(Invalid::new("psf", why));
        }
        if let Psf::Xyznb(astigmatism) = &psf {
            astigmatism.check()?;
        }
        Ok(FitModel { psf, iterations_max: ITERATIONS_MAX })
    }

    /// Lets a fit take up to `iterations_max` evaluations of the model (per start) before it is given up.
    ///
    /// # Errors
    /// If it is not between 1 and 100.
    pub fn with_iterations_max(mut self, iterations_max: u32) -> Result<FitModel, Invalid> {
        if !(1..=100).contains(&iterations_max) {
            return Err(Invalid::new("iterations_max", format!("{iterations_max} is not between 1 and 100")));
        }
        self.iterations_max = iterations_max;
        Ok(self)
    }

    /// The model of the spot.
    pub fn psf(&self) -> &Psf {
        &self.psf
    }

    /// Evaluations of the model that a fit may take (per start).
    pub fn iterations_max(&self) -> u32 {
        self.iterations_max
    }
}

impl Astigmatism {
    fn check(&self) -> Result<(), Invalid> {
        let finite = |field, value: f32| match value.is_finite() {
            true => Ok(()),
            false => Err(Invalid::new(field, format!("{value} is not a number"))),
        };
        finite("gamma_um", self.gamma_um)?;
        if !(self.depth_um > 0.0 && self.depth_um.is_finite()) {
            return Err(Invalid::new("depth_um", format!("{} is not a positive length", self.depth_um)));
        }
        for (a, b) in self.a.into_iter().zip(self.b) {
            finite("a", a)?;
            finite("b", b)?;
        }
        let [low, high] = self.z_um;
        if !(low < high && low.abs() <= 100.0 && high.abs() <= 100.0) {
            return Err(Invalid::new("z_um", format!("{low} to {high} is not a range within -100 to 100")));
        }
        const SAMPLES: u16 = 1000;
        let at = |sample: u16| low + (high - low) * f32::from(sample) / f32::from(SAMPLES);
        // The square of the width must stay positive wherever a fit may look.
        for z in (0..=SAMPLES).map(at) {
            if let Some(axis) = self.squares(z).iter().position(|square| *square < 0.05) {
                let name = ["x", "y"][axis];
                let why =
                    format!("at z = {z} um the calibration gives no width along {name}: narrow the range");
                return Err(Invalid::new("z_um", why));
            }
        }
        let both = low.abs().min(high.abs());
        let alike = |z: f32| {
            let (above, below) = (self.squares(z), self.squares(-z));
            above.iter().zip(below).all(|(above, below)| (above - below).abs() < 1e-3 * below)
        };
        if low < 0.0
            && high > 0.0
            && (1..=SAMPLES).all(|sample| alike(both * f32::from(sample) / f32::from(SAMPLES)))
        {
            let why = "spots above and below the focus have the same widths, so that the sign of z cannot be told: set \
                       gamma_um, or a range z_um on one side";
            return Err(Invalid::new("gamma_um", why.to_owned()));
        }
        Ok(())
    }

    /// Squares of the widths at z over those in focus, along x and y.
    fn squares(&self, z: f32) -> [f32; 2] {
        let square = |axis: usize, gamma: f32| {
            let t = (z - gamma) / self.depth_um;
            1.0 + t * t * (1.0 + t * (self.a[axis] + t * self.b[axis]))
        };
        [square(0, self.gamma_um), square(1, -self.gamma_um)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_that_cannot_tell_the_sign_of_z_is_refused_unless_no_sign_is_asked_for() {
        let told = |gamma_um, a, z_um| {
            let (sigma_px, depth_um, b) = ([1.3; 2], 0.4, [0.0; 2]);
            let calibration = Astigmatism { sigma_px, gamma_um, depth_um, a, b, z_um };
            calibration.check().map_err(|invalid| invalid.field)
        };
        assert_eq!(told(0.25, [0.0; 2], [-0.6, 0.6]), Ok(()));
        assert_eq!(told(0.0, [0.0; 2], [-0.6, 0.6]), Err("gamma_um"));
        assert_eq!(told(0.0, [0.0; 2], [0.0, 0.6]), Ok(()));
        assert_eq!(told(0.0, [0.1, 0.0], [-0.6, 0.6]), Ok(()), "an axis that is not symmetric tells it");
    }
}
