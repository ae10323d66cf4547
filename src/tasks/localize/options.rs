//! What a caller may choose about the output.

use super::{Format, colormap::Colormap, table::Status};
use std::str::FromStr;

/// Every key of [`Options::set`]. Queries use the same keys.
pub const KEYS: [&str; 11] = [
    "units",
    "keep",
    "p_min",
    "render",
    "scale",
    "scale_nm",
    "colormap",
    "color_by",
    "z_range_um",
    "white_percentile",
    "error_px_max",
];

/// The keys that apply to pictures only.
const OF_PICTURES: [&str; 8] =
    ["render", "scale", "scale_nm", "colormap", "color_by", "z_range_um", "white_percentile", "error_px_max"];

/// What is chosen by a word in manifests and queries.
pub trait Words: Copy + PartialEq + 'static {
    /// Each choice with its word.
    const ALL: &'static [(&'static str, Self)];

    /// The choice of a key's value.
    ///
    /// # Errors
    /// The words, if the value is none of them.
    fn read(key: &str, value: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == value);
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            let (last, others) = names.split_last().expect("there are words");
            format!("{key} is {value:?}, expected {} or {last}", others.join(", "))
        })
    }

    /// Its word.
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, choice)| *choice == self).map_or("", |(name, _)| name)
    }
}

/// Units of positions and widths in our own columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// Nanometres where the pixel size is known, else pixels.
    #[default]
    Auto,
    /// Camera pixels; z in um.
    Pixels,
    /// Nanometres; needs the pixel size.
    Nanometers,
}

impl Words for Units {
    const ALL: &'static [(&'static str, Units)] =
        &[("auto", Units::Auto), ("px", Units::Pixels), ("nm", Units::Nanometers)];
}

/// The columns of formats without columns of their own (CSV, NDJSON, Arrow, npy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Columns {
    /// Our own columns: everything that was fitted.
    #[default]
    All,
    /// The fields of GaussMLE.jl's emitters in their order: um from the outer corner of the first pixel, frames
    /// from 1. The status follows as a last column.
    GaussMle,
}

impl Words for Columns {
    const ALL: &'static [(&'static str, Columns)] =
        &[("none", Columns::All), ("gaussmle", Columns::GaussMle)];
}

/// Which rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of them; the status says which can be trusted.
    All,
    /// Those with finite parameters and standard errors.
    Finite,
    /// Those that also converged.
    Converged,
}

impl Words for Keep {
    const ALL: &'static [(&'static str, Keep)] =
        &[("all", Keep::All), ("finite", Keep::Finite), ("converged", Keep::Converged)];
}

impl Keep {
    /// Whether a row is written.
    pub(super) fn takes(self, status: u8, finite: bool) -> bool {
        match self {
            Keep::All => true,
            Keep::Finite => finite,
            Keep::Converged => finite && status == Status::Converged as u8,
        }
    }
}

/// How localizations are turned into brightness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Render {
    /// One count in the pixel where the localization lies.
    Histogram,
    /// One count, spread as a Gaussian with the localization's standard errors.
    #[default]
    Blur,
}

impl Words for Render {
    const ALL: &'static [(&'static str, Render)] =
        &[("histogram", Render::Histogram), ("blur", Render::Blur)];
}

/// Size of the picture's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scale {
    /// Ten per camera pixel, or as many as keep the picture's longer side within 4,096 pixels.
    #[default]
    Auto,
    /// Side of a pixel in nm; needs the camera's pixel size.
    Nanometers(f64),
    /// Pixels per camera pixel, along each axis.
    PerPixel(f64),
}

/// What colors mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ColorBy {
    /// Brightness and color both show density.
    #[default]
    Density,
    /// Brightness shows density, the hue the mean z: red at the lower end of the range, azure at the upper end. The range is in um; without
    /// one, it covers the middle 98 % of the bright pixels.
    Z(Option<[f32; 2]>),
}

impl Words for ColorBy {
    const ALL: &'static [(&'static str, ColorBy)] = &[("density", ColorBy::Density), ("z", ColorBy::Z(None))];
}

/// What a caller may choose about the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureOptions {
    /// Histogram or blur.
    pub render: Render,
    /// Size of the picture's pixels.
    pub scale: Scale,
    /// Colors for density; [`ColorBy::Z`] has its own.
    pub colormap: Colormap,
    /// What colors mean.
    pub color_by: ColorBy,
    /// The percentile of the non-empty pixels that is shown at full brightness; above 0, at most 100.
    pub white_percentile: f64,
    /// Localizations with a larger standard error along an axis, in camera pixels, are left out of a blurred picture.
    pub error_px_max: f32,
    /// The most pixels a picture may have.
    pub pixels_max: u64,
}

impl Default for PictureOptions {
    fn default() -> PictureOptions {
        PictureOptions {
            render: Render::default(),
            scale: Scale::default(),
            colormap: Colormap::Hot,
            color_by: ColorBy::default(),
            white_percentile: 99.5,
            error_px_max: 1.0,
            pixels_max: 1 << 25,
        }
    }
}

/// What a caller may choose about the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Units of our own columns.
    pub units: Units,
    /// Which columns.
    pub columns: Columns,
    /// Which rows. If not set, the format chooses: all rows if there is a column for the status, else those that converged.
    pub keep: Option<Keep>,
    /// Rows whose `p_value` is below this or NaN are left out; at 0, none are.
    pub p_min: f32,
    /// Name of the files inside an archive, without extension.
    pub name: String,
    /// The most bytes of rows that are held until the end, for formats whose head states the number of rows.
    pub held_bytes_max: usize,
    /// The picture.
    pub picture: PictureOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            units: Units::default(),
            columns: Columns::default(),
            keep: None,
            p_min: 0.0,
            name: "localizations".to_owned(),
            held_bytes_max: 1 << 29,
            picture: PictureOptions::default(),
        }
    }
}

impl Options {
    /// Sets the value of a key of [`KEYS`]. Set `color_by` before `z_range_um`.
    ///
    /// # Errors
    /// What is wrong with the value, beginning with the key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let picture = &mut self.picture;
        match key {
            "units" => self.units = Units::read(key, value)?,
            "keep" => self.keep = Some(Keep::read(key, value)?),
            "p_min" => {
                let p_min = value.parse().ok().filter(|p| (0.0..=1.0).contains(p));
                self.p_min =
                    p_min.ok_or_else(|| format!("{key} is {value:?}, expected a number from 0 to 1"))?;
            }
            "render" => picture.render = Render::read(key, value)?,
            "scale" => picture.scale = Scale::PerPixel(number(key, value)?),
            "scale_nm" => picture.scale = Scale::Nanometers(number(key, value)?),
            "colormap" => {
                let names = Colormap::ALL.map(Colormap::name).join(", ");
                let value = if value == "grey" { "gray" } else { value };
                picture.colormap = word(key, value, Colormap::from_name, &names)?;
            }
            "color_by" => picture.color_by = ColorBy::read(key, value)?,
            "z_range_um" => match &mut picture.color_by {
                ColorBy::Z(of) => *of = Some(range(key, value)?),
                ColorBy::Density => return Err(format!("{key} needs color_by=z")),
            },
            "white_percentile" => picture.white_percentile = number(key, value)?,
            "error_px_max" => picture.error_px_max = number(key, value)?,
            _ => return Err(format!("unknown key {key:?}; there are {}", KEYS.join(", "))),
        }
        Ok(())
    }
}

/// Checks what one request says about pictures: that the keys are consistent, and that the reply is a picture in this format. So no key is
/// silently ignored.
///
/// # Errors
/// What is wrong, beginning with the key.
pub fn agree(said: &[(impl AsRef<str>, impl AsRef<str>)], format: Format) -> Result<(), String> {
    let is_said = |key: &str| said.iter().any(|(said, _)| said.as_ref() == key);
    let is =
        |key: &str, value: &str| said.iter().any(|(said, its)| said.as_ref() == key && its.as_ref() == value);
    if is_said("scale") && is_said("scale_nm") {
        return Err(
            "scale_nm is given beside scale: give the one that says how large a pixel of the picture is"
                .into(),
        );
    }
    if is("color_by", "z") && is_said("colormap") {
        return Err("colormap is of color_by=density, but color_by is z, which has colours of its own: leave one of them \
                    out"
            .into());
    }
    if is("render", "histogram") && is_said("error_px_max") {
        return Err("error_px_max is of render=blur, but render is histogram, which leaves none out: leave one of them out"
            .into());
    }
    match OF_PICTURES.into_iter().find(|key| is_said(key)) {
        Some(key) if format != Format::Png => Err(format!(
            "{key} is of pictures, but the format is {}: leave it out, or give format=png",
            format.name()
        )),
        _ => Ok(()),
    }
}

/// Parses one of some words.
///
/// # Errors
/// If the word is none of `names`.
pub(crate) fn word<T>(
    key: &str,
    value: &str,
    of: impl Fn(&str) -> Option<T>,
    names: &str,
) -> Result<T, String> {
    of(value).ok_or_else(|| format!("{key} is {value:?}, expected {names}"))
}

/// Parses a number.
///
/// # Errors
/// If the value is not a number.
pub(super) fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key} is {value:?}, expected a number"))
}

fn range(key: &str, value: &str) -> Result<[f32; 2], String> {
    let both = value.split_once(',').and_then(|(low, high)| Some([low.parse().ok()?, high.parse().ok()?]));
    both.filter(|[low, high]: &[f32; 2]| low < high)
        .ok_or_else(|| format!("{key} is {value:?}, expected the lower and the upper end, such as -0.5,0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_known_and_refuses_what_it_does_not_know() {
        for key in KEYS {
            let error = Options::default().set(key, "?").unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
        let error = Options::default().set("colour", "?").unwrap_err();
        assert!(error.contains("unknown key \"colour\"") && error.contains("colormap"), "{error}");
    }

    #[test]
    fn grey_is_gray() {
        let mut options = Options::default();
        for word in ["gray", "hot", "grey"] {
            options.set("colormap", word).unwrap();
            assert_eq!(options.picture.colormap == Colormap::Gray, word != "hot", "{word}");
        }
    }

    #[test]
    fn a_range_belongs_to_colors_by_z() {
        let mut options = Options::default();
        assert!(options.set("z_range_um", "-0.5,0.5").unwrap_err().contains("needs color_by=z"));
        options.set("color_by", "z").unwrap();
        assert!(options.set("z_range_um", "1,0").unwrap_err().contains("the lower and the upper end"));
        options.set("z_range_um", "-0.5,0.5").unwrap();
        assert_eq!(options.picture.color_by, ColorBy::Z(Some([-0.5, 0.5])));
    }
}
