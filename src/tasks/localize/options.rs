//! What a caller may choose about the output.

use super::{colormap::Colormap, table::Status};

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

impl Units {
    /// By the names `auto`, `px` and `nm`.
    pub fn from_name(name: &str) -> Option<Units> {
        match name {
            "auto" => Some(Units::Auto),
            "px" => Some(Units::Pixels),
            "nm" => Some(Units::Nanometers),
            _ => None,
        }
    }
}

/// Which columns the formats without columns of their own (CSV, NDJSON, Arrow, npy) have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Columns {
    /// Ours: everything that was fitted.
    #[default]
    All,
    /// The fields of GaussMLE.jl's emitters in their order: um from the outer corner of the first pixel, frames
    /// from 1. The status follows as a last column.
    GaussMle,
}

impl Columns {
    /// By the names `all` and `gaussmle`.
    pub fn from_name(name: &str) -> Option<Columns> {
        match name {
            "all" => Some(Columns::All),
            "gaussmle" => Some(Columns::GaussMle),
            _ => None,
        }
    }
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

impl Keep {
    /// By the names `all`, `finite` and `converged`.
    pub fn from_name(name: &str) -> Option<Keep> {
        match name {
            "all" => Some(Keep::All),
            "finite" => Some(Keep::Finite),
            "converged" => Some(Keep::Converged),
            _ => None,
        }
    }

    /// Whether a row is written.
    pub(super) fn takes(self, status: u8, finite: bool) -> bool {
        match self {
            Keep::All => true,
            Keep::Finite => finite,
            Keep::Converged => finite && status == Status::Converged as u8,
        }
    }
}

/// How localizations become brightness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Render {
    /// One count in the pixel where each lies.
    Histogram,
    /// One count spread as a Gaussian of each one's standard errors.
    #[default]
    Blur,
}

impl Render {
    /// By the names `histogram` and `blur`.
    pub fn from_name(name: &str) -> Option<Render> {
        match name {
            "histogram" => Some(Render::Histogram),
            "blur" => Some(Render::Blur),
            _ => None,
        }
    }
}

/// Size of the picture's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scale {
    /// Ten to a camera pixel, or as many as keep the picture's longer side within 4,096 pixels.
    #[default]
    Auto,
    /// Side of a pixel, nm; needs the camera's pixel size.
    Nanometers(f64),
    /// Pixels per camera pixel and axis.
    PerPixel(f64),
}

/// What colors mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ColorBy {
    /// Brightness and color both show density.
    #[default]
    Density,
    /// Brightness shows density, the hue the mean z: red at the lower end of the range, azure at the upper. Without a
    /// range, in um, it is that of the middle 98 % of the bright pixels.
    Z(Option<[f32; 2]>),
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
    /// The percentile of the pixels that are not empty which is shown at full brightness; above 0, at most 100.
    pub white_percentile: f64,
    /// Localizations less certain than this along an axis, in camera pixels, are left out of a blurred picture.
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
    /// Which rows; the format's own choice where it is open: all where there is a column for the status, else those
    /// that converged.
    pub keep: Option<Keep>,
    /// Name of the files inside an archive, without extension.
    pub name: String,
    /// The most bytes of rows that are held until the end, for formats whose head tells their number.
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
            name: "localizations".to_owned(),
            held_bytes_max: 1 << 29,
            picture: PictureOptions::default(),
        }
    }
}
