//! What OME-XML says about the file that holds it: pixel size, how many planes there are, and whether this file has all of them.

use super::Dimensions;
use crate::words::clipped;
use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

/// The parts of a document that are used.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Ome {
    /// Width and height of a pixel of the first image.
    pub(super) pixel_nm: Option<(f64, f64)>,
    /// Planes of the first image.
    pub(super) dimensions: Option<Dimensions>,
    /// Images (positions, series).
    pub(super) images: u64,
    /// Whether they are more than the frames of one movie, each written as an image of its own: one of several has several planes, or pixels
    /// of another size.
    pub(super) apart: bool,
    /// The beginning of the name of another file, if planes or the document itself lie in one.
    pub(super) other_file: Option<String>,
}

/// Whether a description is OME-XML.
pub(super) fn is_ome(text: &str) -> bool {
    let start: String = text.chars().take(4096).collect();
    start.trim_start().starts_with('<') && (start.contains("<OME") || start.contains(":OME"))
}

/// Reads a document as far as it goes: one that breaks off still counts up to there.
pub(super) fn read(text: &str) -> Ome {
    let mut reader = Reader::from_str(text);
    let mut ome = Ome::default();
    // The file of the first plane; all planes of a single file have the same.
    let mut own: Option<String> = None;
    loop {
        let element = match reader.read_event() {
            Ok(Event::Start(element) | Event::Empty(element)) => element,
            Ok(Event::Eof) | Err(_) => return ome,
            Ok(_) => continue,
        };
        match element.local_name().as_ref() {
            "Image" => ome.images += 1,
            "Pixels" => {
                let (pixel_nm, dimensions) = pixels(&element);
                if ome.images <= 1 {
                    (ome.pixel_nm, ome.dimensions) = (pixel_nm, Some(dimensions));
                } else {
                    let first = ome.dimensions.map_or(1, Dimensions::planes);
                    let differ = ome.pixel_nm.zip(pixel_nm).is_some_and(|(first, its)| first != its);
                    ome.apart |= differ || first.max(dimensions.planes()) > 1;
                }
            }
            // The file of a plane.
            "UUID" => {
                let Some(name) = attribute(&element, "FileName") else { continue };
                match &own {
                    Some(own) if *own != name => {
                        ome.other_file.get_or_insert_with(|| clipped(&name).to_owned());
                    }
                    _ => own = Some(name),
                }
            }
            // The full document is in another file, and so is the information on where the planes are.
            "BinaryOnly" => {
                let name = attribute(&element, "MetadataFile").unwrap_or_default();
                ome.other_file = Some(clipped(&name).to_owned());
            }
            _ => {}
        }
    }
}

/// Width and height of a pixel of an image in nm, and its planes.
fn pixels(element: &BytesStart<'_>) -> (Option<(f64, f64)>, Dimensions) {
    let x = size(element, "PhysicalSizeX", "PhysicalSizeXUnit");
    let y = size(element, "PhysicalSizeY", "PhysicalSizeYUnit");
    let count = |name| attribute(element, name).and_then(|value| value.parse().ok()).unwrap_or(1);
    let dimensions = Dimensions { frames: count("SizeT"), slices: count("SizeZ"), channels: count("SizeC") };
    (x.or(y).zip(y.or(x)), dimensions)
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = element.try_get_attribute(name).ok()??;
    Some(attribute.normalized_value(XmlVersion::Implicit1_0).ok()?.into_owned())
}

fn size(element: &BytesStart<'_>, name: &str, unit: &str) -> Option<f64> {
    let value: f64 = attribute(element, name)?.trim().parse().ok()?;
    let unit = attribute(element, unit).unwrap_or_else(|| "µm".to_owned());
    let size = value * nanometres(&unit)?;
    (size.is_finite() && size > 0.0).then_some(size)
}

/// Nanometres per unit of length, by the names that microscopes and their software write.
pub(super) fn nanometres(unit: &str) -> Option<f64> {
    // Java writes non-ASCII characters as escapes.
    let unit = unit.trim().replace("\\u00B5", "µ").replace("\\u00b5", "µ");
    Some(match unit.as_str() {
        "pm" => 1e-3,
        "Å" | "angstrom" => 0.1,
        "nm" | "nanometer" | "nanometers" | "nanometre" => 1.0,
        // The micro sign and the Greek letter.
        "µm" | "μm" | "um" | "micron" | "microns" | "micrometer" | "micrometers" | "micrometre" => 1e3,
        "mm" | "millimeter" | "millimetre" => 1e6,
        "cm" | "centimeter" | "centimetre" => 1e7,
        "m" | "meter" | "metre" => 1e9,
        "in" | "inch" | "\"" => 25.4e6,
        _ => return None,
    })
}
