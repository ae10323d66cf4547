//! The context of a table of localizations: the model whose parameters it holds, and the frames they came from.

use crate::{image::stack::Dimensions, words::named};
use std::fmt::Write;

named! {
    /// A model of the spot, which defines the parameters to fit.
    Model {
        /// x, y, photons, background; the width is fixed.
        Xynb = "xynb",
        /// Additionally one width.
        Xynbs = "xynbs",
        /// Additionally a width for each axis.
        Xynbsxsy = "xynbsxsy",
        /// x, y, z, photons, background; the widths follow from z.
        Xyznb = "xyznb",
    }
}

named! {
    /// A fitted parameter.
    Parameter {
        /// Column of the frame, px.
        X = "x",
        /// Row of the frame, px.
        Y = "y",
        /// Height above the focal plane, um.
        Z = "z",
        /// Photo-electrons of the spot.
        Photons = "photons",
        /// Photo-electrons per pixel under the spot.
        Background = "background",
        /// Width of the spot, px.
        Sigma = "sigma",
        /// Width along x, px.
        SigmaX = "sigma_x",
        /// Width along y, px.
        SigmaY = "sigma_y",
    }
}

impl Model {
    /// The parameters, in the order of a [`Table`](super::Table)'s columns.
    pub fn parameters(self) -> &'static [Parameter] {
        use Parameter::{Background, Photons, Sigma, SigmaX, SigmaY, X, Y, Z};
        match self {
            Model::Xynb => &[X, Y, Photons, Background],
            Model::Xynbs => &[X, Y, Photons, Background, Sigma],
            Model::Xynbsxsy => &[X, Y, Photons, Background, SigmaX, SigmaY],
            Model::Xyznb => &[X, Y, Z, Photons, Background],
        }
    }

    /// The pairs of parameters whose covariances are given, in the order of a table's columns.
    pub fn covariances(self) -> &'static [[Parameter; 2]] {
        use Parameter::{X, Y, Z};
        match self {
            Model::Xyznb => &[[X, Y], [X, Z], [Y, Z]],
            _ => &[[X, Y]],
        }
    }

    /// The position of a parameter among the parameters.
    pub(super) fn index(self, parameter: Parameter) -> Option<usize> {
        self.parameters().iter().position(|p| *p == parameter)
    }
}

/// Where the widths of the spots come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Width {
    /// They are parameters of the model.
    Fitted,
    /// The same for all spots, along x and y, px.
    Fixed([f32; 2]),
    /// They follow from z.
    Astigmatic(Astigmatism),
}

/// Calibration of an astigmatic microscope: the width of a spot along each axis as a function of z.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Astigmatism {
    /// Widths in focus along x and y, px.
    pub sigma_px: [f32; 2],
    /// The distance of each focal line from z = 0: that of x is at +gamma, that of y at -gamma; um.
    pub gamma_um: f32,
    /// Depth of focus, um; not 0.
    pub depth_um: f32,
    /// Third-order terms for x and y.
    pub a: [f32; 2],
    /// Fourth-order terms for x and y.
    pub b: [f32; 2],
}

impl Astigmatism {
    /// The widths along x and y at a height, px.
    pub fn sigma_px(&self, z_um: f32) -> [f32; 2] {
        let width = |axis: usize, from_focus: f32| {
            let t = from_focus / self.depth_um;
            let alpha = 1.0 + t * t * (1.0 + t * (self.a[axis] + t * self.b[axis]));
            self.sigma_px[axis] * alpha.max(0.0).sqrt()
        };
        [width(0, z_um - self.gamma_um), width(1, z_um + self.gamma_um)]
    }
}

/// What detection measured at a spot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Sum of the gradient towards the centre over the box, photo-electrons.
    NetGradient,
    /// Peak of the difference of Gaussians, expressed as the photo-electrons of a spot with that peak.
    DifferenceOfGaussians,
    /// The same peak in multiples of its noise.
    MultipleOfNoise,
}

impl Score {
    /// Whether it is a number of photo-electrons.
    pub(super) fn is_in_electrons(self) -> bool {
        self != Score::MultipleOfNoise
    }
}

/// The context of a table of localizations.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// The model that was fitted.
    pub model: Model,
    /// Where the widths come from.
    pub width: Width,
    /// Width and height of a camera pixel in nm, if known.
    pub pixel_nm: Option<[f64; 2]>,
    /// Width and height of the frames in px, if known.
    pub frame_size: Option<[u32; 2]>,
    /// Number of frames, if known before the end.
    pub frames: Option<u32>,
    /// The number of the first frame, if the frames continue those of another file; else 0.
    pub first_frame: u32,
    /// What the frames are, as the file states: points in time, slices, channels.
    pub axes: Option<Dimensions>,
    /// How many images (positions, series) the file says that its frames are of; usually 1.
    pub images: u64,
    /// The variance of a number of photo-electrons divided by its mean, if the camera multiplies them (F²); else 1.
    pub excess_noise: f32,
    /// What detection measured at each spot, if there was detection.
    pub score: Option<Score>,
    /// The settings that made the rows, by their keys, beside those above.
    pub settings: Vec<(String, String)>,
    /// Further facts for the reader, such as the names of the model and the camera.
    pub notes: Vec<(String, String)>,
}

impl Schema {
    /// A schema in which only the model and the widths are known.
    ///
    /// # Errors
    /// If the widths do not belong to the model, or are not above 0.
    pub fn new(model: Model, width: Width) -> Result<Schema, String> {
        let schema = Schema {
            model,
            width,
            pixel_nm: None,
            frame_size: None,
            frames: None,
            first_frame: 0,
            axes: None,
            images: 1,
            excess_noise: 1.0,
            score: None,
            settings: Vec::new(),
            notes: Vec::new(),
        };
        schema.check()?;
        Ok(schema)
    }

    /// Checks that the parts are consistent.
    pub(super) fn check(&self) -> Result<(), String> {
        let positive =
            |name: &str, values: &[f64]| match values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
                Some(value) => Err(format!("{name} is {value}, expected a number above 0")),
                None => Ok(()),
            };
        match (self.model, self.width) {
            (Model::Xynb, Width::Fixed(sigma)) => positive("sigma_px", &sigma.map(f64::from))?,
            (Model::Xynbs | Model::Xynbsxsy, Width::Fitted) => (),
            (Model::Xyznb, Width::Astigmatic(astigmatism)) => {
                positive("sigma_px", &astigmatism.sigma_px.map(f64::from))?;
                positive("depth_um", &[f64::from(astigmatism.depth_um)])?;
            }
            (model, width) => {
                return Err(format!("model {} cannot have widths of kind {width:?}", model.name()));
            }
        }
        if let Some(pixel) = self.pixel_nm {
            positive("the pixel size in nm", &pixel)?;
        }
        if let Some([width, height]) = self.frame_size.filter(|size| size.contains(&0)) {
            return Err(format!("the frame size is {width} x {height} px, expected at least 1 x 1"));
        }
        Ok(())
    }

    /// The pixel size, or an error that says why it is needed.
    pub(super) fn need_pixel_nm(&self, for_what: &str) -> Result<[f64; 2], String> {
        self.pixel_nm.ok_or_else(|| {
            format!(
                "{for_what} needs the pixel size, which is not known so far: give pixel_nm, such as pixel_nm=100 in the query (ocelli \
                 predict: --set pixel_nm=100); an OME-TIFF may say it only at its end"
            )
        })
    }

    /// Known facts as pairs for the head of a file. Values are text, including numbers.
    pub(super) fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![("model".to_owned(), self.model.name().to_owned())];
        let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
        match self.width {
            Width::Fitted => (),
            Width::Fixed([x, y]) => fact("sigma_px", format!("{x} {y}")),
            Width::Astigmatic(a) => {
                let mut text = format!("sigma_px {} {}", a.sigma_px[0], a.sigma_px[1]);
                let _ = write!(text, " gamma_um {} depth_um {}", a.gamma_um, a.depth_um);
                let _ = write!(text, " a {} {} b {} {}", a.a[0], a.a[1], a.b[0], a.b[1]);
                fact("astigmatism", text);
            }
        }
        if let Some([x, y]) = self.pixel_nm {
            fact("pixel_size_nm", format!("{x} {y}"));
        }
        if let Some([width, height]) = self.frame_size {
            fact("frame_size_px", format!("{width} {height}"));
        }
        if let Some(frames) = self.frames {
            fact("frames", frames.to_string());
        }
        if self.first_frame > 0 {
            fact("first_frame", self.first_frame.to_string());
        }
        if let Some(Dimensions { frames, slices, channels }) = self.axes {
            fact("axes", format!("{frames} frames x {slices} slices x {channels} channels"));
        }
        if self.images > 1 {
            fact("images", self.images.to_string());
        }
        fact("excess_noise", self.excess_noise.to_string());
        facts.extend(self.settings.iter().cloned());
        facts.extend(self.notes.iter().cloned());
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASTIGMATISM: Astigmatism =
        Astigmatism { sigma_px: [1.3, 1.2], gamma_um: 0.25, depth_um: 0.5, a: [0.1, 0.0], b: [0.0, 0.2] };

    #[test]
    fn widths_are_smallest_in_the_focal_line_of_their_axis() {
        assert_eq!(ASTIGMATISM.sigma_px(0.25)[0], 1.3);
        assert_eq!(ASTIGMATISM.sigma_px(-0.25)[1], 1.2);
        // t = (0.75 - 0.25) / 0.5 = 1 for x, 2 for y: alpha = 1 + 1 + 0.1 and 1 + 4 + 0.2 * 16.
        let [x, y] = ASTIGMATISM.sigma_px(0.75);
        assert!((x - 1.3 * 2.1_f32.sqrt()).abs() < 1e-6, "{x}");
        assert!((y - 1.2 * 8.2_f32.sqrt()).abs() < 1e-6, "{y}");
    }

    #[test]
    fn widths_must_belong_to_the_model() {
        for model in Model::ALL {
            let widths = [Width::Fitted, Width::Fixed([1.0, 1.0]), Width::Astigmatic(ASTIGMATISM)];
            let fitting = widths.into_iter().filter(|width| Schema::new(model, *width).is_ok()).count();
            assert_eq!(fitting, 1, "{}", model.name());
        }
        let error = Schema::new(Model::Xynb, Width::Fixed([1.0, 0.0])).unwrap_err();
        assert_eq!(error, "sigma_px is 0, expected a number above 0");
    }
}
