//! JPEG 2000: files (JP2) and bare codestreams, lossy and lossless, up to 16 bits, with and without alpha, of grey, RGB and sYCC.
//!
//! A picture is stored so that it can be decoded at half its size, and that halved again. What the decoder allocates is found by walking
//! the markers first (`codestream`).

mod codestream;

use super::{DecodeError, Enough, Format, Frame, Header, Limits, Orientation, Region, Samples, boxes::boxes};
use codestream::{COMPONENTS_MAX, Codestream, Refused};
use hayro_jpeg2000::{ColorSpace, ComponentData, DecodeSettings, DecoderContext, Image};

/// How a file begins that has boxes around the codestream.
const CONTAINER: &[u8] = b"\0\0\0\x0cjP  ";

const INSTEAD: &str = "post it as grey or RGB, as JPEG 2000 of another kind, PNG or TIFF";

/// A halved picture must be at least this many times the size that is wanted. Its pixels lie where every second one of the picture lies,
/// and not between two: at this size, that is less than an eighth of a pixel of the model's.
const OVERSAMPLING: u32 = 4;

/// Numbers of the decoder for each pixel of a component: its own, and those of the transform of one.
const NUMBER_BYTES: u64 = 4;
const TRANSFORM_BYTES: u64 = 12;

/// The colour spaces of a file that are read, by their numbers: black and white, sRGB, grey, sYCC.
const COLORS: [u32; 5] = [0, 15, 16, 17, 18];

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Jpeg2000, error)
}

fn unsupported(what: impl ToString) -> DecodeError {
    DecodeError::unsupported(Format::Jpeg2000, what, INSTEAD)
}

/// How large a picture may be decoded, and the memory for each of its pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Halvings {
    most: u8,
    pixel_bytes: u64,
}

impl Halvings {
    /// How often a picture of this size is halved.
    fn times(self, (width, height): (u32, u32), enough: Enough<'_>) -> u8 {
        let Some(wanted) = enough(width, height) else { return 0 };
        let is_enough = |times: u8| {
            let is_large = |side, wanted| halved(side, times) >= u64::from(wanted) * u64::from(OVERSAMPLING);
            is_large(width, wanted.0) && is_large(height, wanted.1)
        };
        (0..=self.most.min(31)).rev().find(|times| is_enough(*times)).unwrap_or(0)
    }

    /// Memory for the frame and what the decoder holds for its pixels, in bytes.
    pub(super) fn bytes(self, (width, height): (u32, u32), enough: Enough<'_>) -> u64 {
        let times = self.times((width, height), enough);
        halved(width, times) * halved(height, times) * self.pixel_bytes
    }
}

/// A side after it was halved so often. Where the picture begins at an odd place of its grid, it is one pixel less.
fn halved(side: u32, times: u8) -> u64 {
    u64::from(side).div_ceil(1 << times)
}

/// The boxes that matter.
#[derive(Default)]
struct Boxes<'a> {
    codestream: &'a [u8],
    /// Whether channels are copied to be put in order or looked up in a palette.
    copied: bool,
}

/// Finds the codestream, and checks what the file says of its channels.
fn unwrapped(bytes: &[u8]) -> Result<Boxes<'_>, DecodeError> {
    if !bytes.starts_with(CONTAINER) {
        return Ok(Boxes { codestream: bytes, copied: false });
    }
    let (mut header, mut found) = (None, Boxes::default());
    for each in boxes(bytes) {
        match each.map_err(corrupt)? {
            (kind, content) if kind == *b"jp2h" && header.is_none() => header = Some(content),
            (kind, content) if kind == *b"jp2c" && header.is_some() && found.codestream.is_empty() => {
                found.codestream = content;
            }
            (kind, _) if kind == *b"jp2h" || kind == *b"jp2c" => {
                return Err(corrupt("it has not one header and one picture after it"));
            }
            _ => {}
        }
    }
    let mut colored = false;
    for each in boxes(header.unwrap_or_default()) {
        match each.map_err(corrupt)? {
            // The first one counts.
            (kind, [1, _, _, number @ ..]) if kind == *b"colr" && !colored => {
                colored = true;
                let number = number.first_chunk().map(|number| u32::from_be_bytes(*number));
                match number.ok_or_else(|| corrupt("it ends inside a box"))? {
                    number if COLORS.contains(&number) => {}
                    12 | 13 => return Err(unsupported("inks (CMYK)")),
                    number => return Err(unsupported(format!("colour space {number}"))),
                }
            }
            (kind, _) if kind == *b"colr" => colored = true,
            (kind, [_, _, columns, bits @ ..]) if kind == *b"pclr" => {
                found.copied = true;
                if u16::from(*columns) > COMPONENTS_MAX {
                    return Err(unsupported(format!("a palette of {columns} channels")));
                }
                // One less than they are.
                if bits.iter().take(usize::from(*columns)).any(|bits| *bits > 7) {
                    return Err(unsupported("a palette of more than 8 bits"));
                }
            }
            // Each channel of a palette takes four bytes.
            (kind, content) if kind == *b"cmap" && content.len() > 4 * usize::from(COMPONENTS_MAX) => {
                return Err(unsupported(format!("a palette of {} channels", content.len() / 4)));
            }
            (kind, _) if kind == *b"cdef" => found.copied = true,
            _ => {}
        }
    }
    Ok(found)
}

/// Walks the file, and has the decoder read its headers.
fn open<'a>(
    bytes: &'a [u8],
    limits: &Limits,
    target: Option<(u32, u32)>,
) -> Result<(Image<'a>, Codestream, Header), DecodeError> {
    let found = unwrapped(bytes)?;
    let codestream = codestream::walk(found.codestream).map_err(|refused| match refused {
        Refused::Corrupt(words) => corrupt(words),
        Refused::Unsupported(what) => unsupported(what),
    })?;
    let settings = DecodeSettings { strict: true, target_resolution: target, ..DecodeSettings::default() };
    let image = Image::new(bytes, &settings).map_err(corrupt)?;
    let size = (image.width(), image.height());
    limits.check_one(size.0, size.1)?;
    if size.0 == 0 || size.1 == 0 {
        return Err(corrupt(format!("its size is {} × {}", size.0, size.1)));
    }
    let colors = match image.color_space() {
        ColorSpace::Gray => 1,
        ColorSpace::RGB => 3,
        ColorSpace::CMYK => return Err(unsupported("four channels without a word about their colours")),
        ColorSpace::Icc { profile, .. } => match profile.get(16..20) {
            Some(b"GRAY") => 1,
            Some(b"RGB ") => 3,
            _ => return Err(unsupported("a profile that is neither of grey nor of RGB")),
        },
        ColorSpace::Unknown { num_channels } => return Err(unsupported(format!("{num_channels} channels"))),
    };
    let channels = colors + u8::from(image.has_alpha());
    let bits = if codestream.bits.iter().any(|bits| *bits > 8) { 16 } else { 8 };
    let mut header = Header::single(Format::Jpeg2000, size, channels, bits, Orientation::UPRIGHT);
    let held = u64::from(channels).max(codestream.bits.len() as u64) * if found.copied { 2 } else { 1 };
    let pixel_bytes = u64::from(channels) * u64::from(bits / 8) + held * NUMBER_BYTES + TRANSFORM_BYTES;
    // Indices of a palette have nothing between them.
    let most = if found.copied { 0 } else { codestream.halvings };
    header.halvings = Some(Halvings { most, pixel_bytes });
    header.work_bytes = codestream.structure_bytes;
    Ok((image, codestream, header))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits, None).map(|(_, _, header)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits, enough: Enough<'_>) -> Result<Frame, DecodeError> {
    let (_, _, header) = open(bytes, limits, None)?;
    let source = (header.width, header.height);
    let times = header.halvings.map_or(0, |halvings| halvings.times(source, enough));
    let target = (times > 0).then(|| (source.0 >> times, source.1 >> times));
    let (image, _, _) = open(bytes, limits, target)?;
    let (width, height) = (image.width(), image.height());
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(corrupt)?;
    let (planes, pixels) = (decoded.components(), width as usize * height as usize);
    if planes.len() != usize::from(header.channels)
        || planes.iter().any(|plane| plane.samples().len() != pixels)
    {
        return Err(corrupt("its channels are not what its headers say"));
    }
    let samples = if header.bits == 16 {
        Samples::U16(interleaved(planes, u16::MAX.into(), |sample| sample as u16))
    } else {
        Samples::U8(interleaved(planes, u8::MAX.into(), |sample| sample as u8))
    };
    let scale = f64::from(1u32 << times);
    let covered = Region {
        left: 0.0,
        top: 0.0,
        width: f64::from(source.0) / scale,
        height: f64::from(source.1) / scale,
    };
    Ok(Frame { width, height, channels: header.channels, samples, source, covered })
}

/// The samples of all planes, those of a pixel beside each other, where white is `white`.
fn interleaved<T: Copy + Default>(planes: &[ComponentData], white: f32, sample: impl Fn(f32) -> T) -> Vec<T> {
    let count = planes.len();
    let mut samples = vec![T::default(); planes.first().map_or(0, |plane| plane.samples().len()) * count];
    for (channel, plane) in planes.iter().enumerate() {
        // At most 16 bits: `codestream` and the palette's check refuse others.
        let scale = white / ((1u64 << plane.bit_depth()) - 1) as f32;
        for (out, value) in samples[channel..].iter_mut().step_by(count).zip(plane.samples()) {
            // A cast goes to the nearest that there is.
            *out = sample((value * scale).round());
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;
    use crate::image::corpus::{LIMITS, fixture};

    /// The error for a file in which these bytes stand in the place of others.
    fn refused(name: &str, before: &[u8], after: &[u8]) -> String {
        let mut file = fixture(name);
        let at = file.windows(before.len()).position(|bytes| bytes == before).unwrap();
        file[at..at + after.len()].copy_from_slice(after);
        header(&file, &LIMITS).unwrap_err().to_string()
    }

    #[test]
    fn colours_that_are_not_read_are_named() {
        let of_number = |number: u8| {
            refused("j2k_rgb.jp2", b"colr\x01\0\0", &[b"colr\x01\0\0\0\0\0", &[number][..]].concat())
        };
        assert!(
            of_number(12).starts_with("JPEG 2000 with inks (CMYK) is not supported; "),
            "{}",
            of_number(12)
        );
        assert!(
            of_number(14).starts_with("JPEG 2000 with colour space 14 is not supported; "),
            "{}",
            of_number(14)
        );
        let columns = refused("j2k_palette.jp2", b"pclr\0\x04\x03", b"pclr\0\x04\x09");
        assert!(columns.contains("a palette of 9 channels"), "{columns}");
        let bits = refused("j2k_palette.jp2", b"pclr\0\x04\x03\x07", b"pclr\0\x04\x03\x7f");
        assert!(bits.contains("a palette of more than 8 bits"), "{bits}");
    }

    #[test]
    fn what_is_not_one_picture_is_refused() {
        let file = fixture("j2k_rgb.jp2");
        let at = file.windows(4).position(|kind| kind == b"jp2c").unwrap() - 4;
        let two = [&file[..], &file[at..]].concat();
        for broken in [&two[..], &file[..at]] {
            assert!(matches!(header(broken, &LIMITS), Err(DecodeError::Corrupt { .. })));
        }
    }
}
