//! What a TIFF's first directory says about the stack, apart from its pixels: the descriptions that ImageJ, tifffile and Micro-Manager
//! write, OME-XML, MetaMorph's count of planes, and the resolution.

use super::{
    Dimensions,
    ome::{self, Ome, nanometres},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The largest pixel that is believed to be measured: 10 µm. The resolution of printers ends well below that; a finer resolution is taken
/// as measured, whoever wrote it.
const RESOLUTION_PIXEL_NM_MAX: f64 = 10_000.0;

/// Everything that was read to describe a stack.
#[derive(Debug, Clone, Default)]
pub(super) struct Description {
    pub(super) ome: Option<Ome>,
    image_j: Option<ImageJ>,
    /// The shape that tifffile states for what it wrote: counts of planes, then the sides of a plane.
    shape: Option<Vec<u64>>,
    /// The planes of a MetaMorph stack, which has one directory for all of them.
    pub(super) meta_morph: Option<u64>,
    /// `PixelSizeUm` of Micro-Manager's frame metadata.
    micro_manager_nm: Option<f64>,
    /// Pixels per unit.
    pub(super) x_resolution: Option<f64>,
    pub(super) y_resolution: Option<f64>,
    pub(super) resolution_unit: Option<u64>,
}

#[derive(Debug, Clone)]
struct ImageJ {
    images: u64,
    dimensions: Dimensions,
    unit_nm: Option<f64>,
    /// Whether samples are signed, stored with 32768 added.
    raised: bool,
}

impl Description {
    /// Takes one `ImageDescription`. Its kind shows in how it begins.
    pub(super) fn take_text(&mut self, bytes: &[u8]) {
        let text = text(bytes);
        let text = text.trim_matches(['\0', ' ', '\n', '\r']);
        if ome::is_ome(text) {
            self.ome = Some(ome::read(text));
        } else if text.starts_with("ImageJ=") {
            self.image_j = Some(ImageJ::read(text));
        } else if text.starts_with('{') {
            self.shape = shape(text);
        }
    }

    /// Takes the JSON that Micro-Manager writes about a frame.
    pub(super) fn take_micro_manager(&mut self, bytes: &[u8]) {
        /// The one member that is read, of many.
        #[derive(Deserialize)]
        struct Told {
            #[serde(rename = "PixelSizeUm", default)]
            size: Option<f64>,
        }
        let Ok(Told { size }) =
            serde_json::from_slice(bytes.trim_ascii_end().strip_suffix(b"\0").unwrap_or(bytes))
        else {
            return;
        };
        self.micro_manager_nm = size.map(|size| size * 1000.0).filter(|size| size.is_finite() && *size > 0.0);
    }

    /// Whether samples of 16 bits are signed ones with 32768 added.
    pub(super) fn is_raised(&self) -> bool {
        self.image_j.as_ref().is_some_and(|image_j| image_j.raised)
    }

    /// How many planes of this size follow each other, counted from the first, if the writer of the description is one that stores them so.
    pub(super) fn contiguous_frames(&self, width: u32, height: u32) -> Option<u64> {
        self.contiguous((width, height, 1))
    }

    /// The same for planes with this many samples per pixel, either interleaved or in a plane each.
    fn contiguous(&self, (width, height, samples): (u32, u32, u16)) -> Option<u64> {
        if let Some(image_j) = &self.image_j {
            return Some(image_j.images);
        }
        if let Some(planes) = self.meta_morph {
            return Some(planes);
        }
        let (width, height, samples) = (u64::from(width), u64::from(height), u64::from(samples));
        let sides = self.shape.as_deref()?;
        let planes = match sides.strip_suffix(&[height, width, samples]) {
            Some(planes) => planes,
            None => {
                let planes = sides.strip_suffix(&[height, width])?;
                planes.strip_suffix(&[samples]).unwrap_or(planes)
            }
        };
        planes.iter().try_fold(1u64, |product, side| product.checked_mul(*side))
    }

    /// The number of planes that is announced, and what they are.
    pub(super) fn frames(&self, width: u32, height: u32) -> (Option<u64>, Option<Dimensions>) {
        let ome = self.ome.as_ref().filter(|ome| ome.images <= 1).and_then(|ome| ome.dimensions);
        let image_j = self.image_j.as_ref().map(|image_j| image_j.dimensions);
        // A count of 1 is ignored: writers that append frame by frame often say 1.
        let told = || self.contiguous_frames(width, height).filter(|frames| *frames > 1);
        let frames = ome.map(Dimensions::planes).or_else(told);
        (frames, ome.or(image_j))
    }

    /// Width and height of a pixel in nanometres, from the best source that there is. In order: `PhysicalSizeX` and `PhysicalSizeY` of
    /// OME-XML; the resolution tags in the unit of ImageJ's description; Micro-Manager's pixel size; the resolution tags in inches or
    /// centimetres. Resolution tags count only if they are finer than any printer's.
    pub(super) fn pixel_nm(&self) -> Option<[f64; 2]> {
        let ome = self.ome.as_ref().and_then(|ome| ome.pixel_nm);
        let image_j = || self.resolution(self.image_j.as_ref()?.unit_nm?);
        let micro_manager = || self.micro_manager_nm.map(|size| (size, size));
        let plain = || match self.resolution_unit.unwrap_or(2) {
            2 => self.resolution(25.4e6),
            3 => self.resolution(1e7),
            _ => None,
        };
        ome.or_else(image_j).or_else(micro_manager).or_else(plain).map(Into::into)
    }

    /// Width and height of a pixel if the resolution counts pixels per `unit` nanometres; `None` for the resolution of a printer.
    fn resolution(&self, unit: f64) -> Option<(f64, f64)> {
        let size = |resolution: Option<f64>| {
            resolution.map(|resolution| unit / resolution).filter(|size| size.is_finite() && *size > 0.0)
        };
        let (x, y) = (size(self.x_resolution), size(self.y_resolution));
        let measured = |(x, y): &(f64, f64)| *x <= RESOLUTION_PIXEL_NM_MAX && *y <= RESOLUTION_PIXEL_NM_MAX;
        x.or(y).zip(y.or(x)).filter(measured)
    }
}

/// How many planes of this width, height and number of samples lie one after another, as stated by one `ImageDescription` or by MetaMorph's
/// count; 1 if neither says anything about that.
pub(in crate::image) fn planes_of(described: &[u8], meta_morph: Option<u64>, size: (u32, u32, u16)) -> u64 {
    let mut description = Description { meta_morph, ..Description::default() };
    description.take_text(described);
    description.contiguous(size).unwrap_or(1)
}

impl ImageJ {
    fn read(text: &str) -> ImageJ {
        let value = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once('='));
            lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next_back()
        };
        let number = |name: &str| value(name).and_then(|value| value.parse::<f64>().ok());
        // Most writers use integers, some write 100.0; the conversion saturates.
        let count = |name: &str| number(name).map(|count| count as u64).filter(|count| *count > 0);
        let images = count("images").unwrap_or(1);
        let (slices, channels) = (count("slices"), count("channels"));
        let rest = images / slices.unwrap_or(1).saturating_mul(channels.unwrap_or(1)).max(1);
        let dimensions = Dimensions {
            frames: count("frames").unwrap_or(rest.max(1)),
            slices: slices.unwrap_or(1),
            channels: channels.unwrap_or(1),
        };
        let raised = number("c0") == Some(-32768.0) && number("c1") == Some(1.0);
        ImageJ { images, dimensions, unit_nm: value("unit").and_then(nanometres), raised }
    }
}

/// The longest list of extents that is parsed.
const SHAPE_BYTES_MAX: usize = 1024;

/// The `shape` of the JSON that tifffile writes.
fn shape(text: &str) -> Option<Vec<u64>> {
    #[derive(Deserialize)]
    struct Told<'a> {
        #[serde(borrow)]
        shape: &'a RawValue,
    }
    let Told { shape } = serde_json::from_str(text).ok()?;
    // A shape has a few axes; a longer list says nothing about frames.
    let shape = Some(shape.get()).filter(|shape| shape.len() <= SHAPE_BYTES_MAX)?;
    serde_json::from_str(shape).ok()
}

/// UTF-8, or Latin-1 where it is not.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    }
}
