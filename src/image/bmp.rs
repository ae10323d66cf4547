//! BMP: uncompressed, run-length and bit-field bitmaps.

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use image::{ColorType, ImageDecoder, ImageError, codecs::bmp::BmpDecoder, error::UnsupportedErrorKind};
use std::io::Cursor;

/// What the caller can do instead about a kind of bitmap that is not read.
const INSTEAD: &str = "write it with 24 bits per pixel and no compression, or as PNG";

type Opened<'a> = BmpDecoder<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Bmp, error)
}

fn from_image(error: ImageError) -> DecodeError {
    let ImageError::Unsupported(unsupported) = &error else { return corrupt(error) };
    match unsupported.kind() {
        UnsupportedErrorKind::GenericFeature(what)
            if what.ends_with(" compression") || what.ends_with(" format") =>
        {
            DecodeError::unsupported(Format::Bmp, what, INSTEAD)
        }
        _ => corrupt(error),
    }
}

/// The compression number for bit fields that include alpha, as in Windows CE.
const ALPHA_BIT_FIELDS: u32 = 6;

/// Refuses kinds of bitmap that the decoder cannot tell from damage: they are known by the size of their header and, one of them, by its
/// compression number.
fn check_kind(bytes: &[u8]) -> Result<(), DecodeError> {
    if let Some(&[size, 0, 0, 0]) = bytes.get(14..18)
        && size >= 40
        && bytes.get(30..34) == Some(&ALPHA_BIT_FIELDS.to_le_bytes())
    {
        return Err(DecodeError::unsupported(Format::Bmp, "compression 6 (bit fields with alpha)", INSTEAD));
    }
    match bytes.get(14..18) {
        Some(&[size @ (16 | 64), 0, 0, 0]) => Err(DecodeError::unsupported(
            Format::Bmp,
            format!("a header of {size} bytes, as OS/2 2.x has it,"),
            "write it for Windows, whose header has 40 bytes or more, or as PNG",
        )),
        _ => Ok(()),
    }
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    check_kind(bytes)?;
    let mut decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(from_image)?;
    let size = decoder.dimensions();
    limits.check_one(size.0, size.1)?;
    if size.0 == 0 || size.1 == 0 {
        return Err(corrupt(format!("its size is {} × {}", size.0, size.1)));
    }
    let channels = match decoder.color_type() {
        ColorType::Rgba8 => 4,
        _ => 3,
    };
    let header = Header::single(Format::Bmp, size, channels, 8, Orientation::UPRIGHT);
    let mut memory = image::Limits::no_limits();
    memory.max_alloc = Some(header.frame_bytes + METADATA_BYTES_MAX as u64);
    decoder.set_limits(memory).map_err(corrupt)?;
    if decoder.total_bytes() != header.frame_bytes {
        return Err(corrupt("its headers disagree about its size"));
    }
    Ok((decoder, header))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|(_, header)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (decoder, header) = open(bytes, limits)?;
    let mut samples = vec![0; header.frame_bytes as usize];
    decoder.read_image(&mut samples).map_err(from_image)?;
    Ok(Frame::upright(
        header.orientation,
        (header.width, header.height),
        header.channels,
        Samples::U8(samples),
    ))
}
