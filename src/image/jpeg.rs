//! JPEG by libjpeg-turbo, strict: its warnings (truncation, bad codes, stray bytes) are errors, except for padding zeros before the end
//! marker.
//!
//! The markers are read here first, so that size, precision, orientation and the order and cost of scans are known and checked before the
//! library is called.

mod scale;
pub(super) mod scans;

use super::{DecodeError, Enough, Format, Frame, Header, Limits, Orientation, Region, Samples};
pub(super) use scale::{Sampling, scaled};
use turbojpeg::{Colorspace, Decompressor, Image, PixelFormat, ScalingFactor};

/// More scans than any encoder writes, whatever the size. What they cost is checked before (`scans`).
const SCANS_MAX: u32 = 100;

/// The end-of-image marker.
const END: [u8; 2] = [0xff, 0xd9];

/// How the library's warning ends when there are bytes between the last code and the end marker.
const STRAY_BEFORE_END: &str = " extraneous bytes before marker 0xd9";

/// What the markers before the first scan say.
pub(super) struct Markers {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) components: u8,
    precision: u8,
    sampling: Sampling,
    /// Whether several scans hold the image: progressive, or one scan per component.
    pub(super) scans: bool,
    /// A lossless JPEG is always decoded at full size.
    lossless: bool,
    orientation: Orientation,
}

/// Reads markers up to the first scan. Also for the JPEG streams inside a TIFF.
pub(super) fn markers(bytes: &[u8]) -> Result<Markers, DecodeError> {
    let corrupt = |reason: &str| DecodeError::corrupt(Format::Jpeg, reason);
    let unsupported = |what: &str| {
        DecodeError::unsupported(Format::Jpeg, what, "write it as a baseline or progressive JPEG, or as PNG")
    };
    let mut orientation = None;
    let mut frame: Option<Markers> = None;
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        let [0xff, marker, after @ ..] = rest else {
            return Err(corrupt("a marker is missing before the first scan"));
        };
        match marker {
            // Fill bytes may precede any marker.
            0xff => {
                rest = &rest[1..];
                continue;
            }
            0x01 | 0xd0..=0xd7 => {
                rest = after;
                continue;
            }
            0xd9 => return Err(corrupt("it ends before the first scan")),
            // JPEG-LS has frame headers of its own after the same start marker.
            0xf7 => return Err(unsupported("JPEG-LS compression")),
            0xc5..=0xc7 | 0xcd..=0xcf | 0xde => return Err(unsupported("hierarchical frames")),
            _ => {}
        }
        let length = match after {
            [high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => 0,
        };
        let Some(segment) = after.get(2..length) else {
            return Err(corrupt("it ends inside a header segment"));
        };
        match marker {
            0xc0..=0xcf if ![0xc4, 0xc8, 0xcc].contains(marker) => {
                let &[precision, h1, h0, w1, w0, components, ref each @ ..] = segment else {
                    return Err(corrupt("the frame header is too short"));
                };
                if frame.is_some() {
                    return Err(corrupt("it has two frame headers"));
                }
                frame = Some(Markers {
                    width: u32::from(u16::from_be_bytes([w1, w0])),
                    height: u32::from(u16::from_be_bytes([h1, h0])),
                    components,
                    precision,
                    sampling: Sampling::of(each),
                    scans: matches!(marker, 0xc2 | 0xca),
                    lossless: matches!(marker, 0xc3 | 0xcb),
                    orientation: Orientation::UPRIGHT,
                });
            }
            0xe1 => {
                if let Some(exif) = segment.strip_prefix(b"Exif\0\0") {
                    // If there are several EXIF blocks, the first counts, as in other readers.
                    orientation.get_or_insert_with(|| Orientation::from_exif(exif));
                }
            }
            0xda => {
                let mut frame =
                    frame.ok_or_else(|| corrupt("no frame header comes before the first scan"))?;
                frame.orientation = orientation.unwrap_or(Orientation::UPRIGHT);
                frame.scans |= segment.first().is_some_and(|components| *components < frame.components);
                return Ok(frame);
            }
            _ => {}
        }
        rest = &after[length..];
    }
}

fn checked(bytes: &[u8], limits: &Limits) -> Result<Markers, DecodeError> {
    let markers = markers(bytes)?;
    if markers.width == 0 || markers.height == 0 {
        return Err(DecodeError::corrupt(
            Format::Jpeg,
            format!("its size is {} × {}", markers.width, markers.height),
        ));
    }
    limits.check_one(markers.width, markers.height)?;
    if markers.precision != 8 {
        return Err(DecodeError::unsupported(
            Format::Jpeg,
            format!("{} bits per sample", markers.precision),
            "post an 8-bit JPEG, or a PNG or TIFF with 16 bits",
        ));
    }
    if !matches!(markers.components, 1 | 3 | 4) {
        return Err(DecodeError::unsupported(
            Format::Jpeg,
            format!("{} components", markers.components),
            "post it as grey, RGB or CMYK",
        ));
    }
    Ok(markers)
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let markers = checked(bytes, limits)?;
    if markers.scans {
        scans::check(bytes)?;
    }
    let size = (markers.width, markers.height);
    let channels = if markers.components == 1 { 1 } else { 3 };
    let mut header = Header::single(Format::Jpeg, size, channels, 8, markers.orientation);
    header.scales = (!markers.lossless).then_some(markers.sampling);
    let pixels = u64::from(markers.width) * u64::from(markers.height);
    if markers.scans {
        // All coefficients are held, 16 bits each, until the last scan.
        header.work_bytes += pixels * u64::from(markers.components) * 2;
    }
    if markers.components == 4 {
        header.work_bytes += pixels * 4;
    }
    if let Some(zeros) = zeros_before_end(bytes) {
        // Decoding may need a copy of the file without these zeros.
        header.work_bytes += (zeros + END.len()) as u64;
    }
    Ok(header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits, enough: Enough<'_>) -> Result<Frame, DecodeError> {
    let corrupt = |error: turbojpeg::Error| DecodeError::corrupt(Format::Jpeg, words(&error));
    let markers = checked(bytes, limits)?;
    let orientation = markers.orientation;
    let stored = (markers.width, markers.height);

    let mut decompressor = Decompressor::new().map_err(corrupt)?;
    decompressor.set_scan_limit(SCANS_MAX).map_err(corrupt)?;
    let header = decompressor.read_header(bytes).map_err(corrupt)?;
    if (header.width, header.height) != (markers.width as usize, markers.height as usize) {
        return Err(DecodeError::corrupt(Format::Jpeg, "its headers disagree about its size"));
    }
    let eighths = if markers.lossless { 8 } else { markers.sampling.eighths(stored, orientation, enough) };
    decompressor.set_scaling_factor(ScalingFactor::new(eighths as usize, 8)).map_err(corrupt)?;

    let (width, height) = (scaled(markers.width, eighths), scaled(markers.height, eighths));
    let (format, channels) = match header.colorspace {
        Colorspace::Gray => (PixelFormat::GRAY, 1),
        Colorspace::CMYK | Colorspace::YCCK => (PixelFormat::CMYK, 3),
        Colorspace::RGB | Colorspace::YCbCr => (PixelFormat::RGB, 3),
    };
    let pitch = width as usize * format.size();
    let mut pixels = vec![0; pitch * height as usize];
    let mut decompress = |bytes: &[u8]| {
        let image =
            Image { pixels: &mut pixels[..], width: width as usize, pitch, height: height as usize, format };
        decompressor.decompress(bytes, image)
    };
    let decompressed = decompress(bytes);
    match (decompressed, zeros_before_end(bytes)) {
        // Zeros that a writer padded with are no damage if the file decodes without them. The library gives the same warning where zeros
        // have replaced lost codes, and it reports only its first warning; so the file is decoded again without the zeros.
        (Err(error), Some(zeros)) if words(&error).ends_with(STRAY_BEFORE_END) => {
            decompress(&[&bytes[..zeros], &END].concat()).map_err(|_| error)
        }
        (decompressed, _) => decompressed,
    }
    .map_err(corrupt)?;
    if format == PixelFormat::CMYK {
        pixels = rgb_from_inverted_cmyk(&pixels);
    }

    let covered = Region {
        left: 0.0,
        top: 0.0,
        width: f64::from(markers.width) * f64::from(eighths) / 8.0,
        height: f64::from(markers.height) * f64::from(eighths) / 8.0,
    };
    let (seen_width, seen_height) = orientation.size(width, height);
    Ok(Frame {
        width: seen_width,
        height: seen_height,
        channels,
        samples: orientation.turn(Samples::U8(pixels), width, height, channels),
        source: orientation.size(markers.width, markers.height),
        covered: orientation.turn_region(covered, width, height),
    })
}

/// CMYK in a JPEG is stored as Adobe does it: 255 is no ink.
fn rgb_from_inverted_cmyk(pixels: &[u8]) -> Vec<u8> {
    let (cmyk, _) = pixels.as_chunks::<4>();
    cmyk.iter()
        .flat_map(|&[c, m, y, k]| [c, m, y].map(|ink| ((u32::from(ink) * u32::from(k) + 127) / 255) as u8))
        .collect()
}

/// Where the zeros directly before the end marker begin, if there are any.
fn zeros_before_end(bytes: &[u8]) -> Option<usize> {
    let before = bytes.strip_suffix(&END)?;
    let zeros = before.iter().rev().take_while(|byte| **byte == 0).count();
    (zeros > 0).then_some(before.len() - zeros)
}

fn words(error: &turbojpeg::Error) -> String {
    match error {
        turbojpeg::Error::TurboJpegError(words) => words.clone(),
        other => other.to_string(),
    }
}
