//! PNG: 1 to 16 bits, palettes and transparency expanded, interlacing resolved. Of an animation, the default image.

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use png::{BitDepth, ColorType, Decoder, DecodingError, Reader, Transformations};
use std::io::Cursor;

/// Bytes of the largest pixel, 16-bit RGBA: bounds the rows that the decoder holds.
const PIXEL_BYTES_MAX: usize = 8;

/// How the decoder's debug output for a chunk type begins.
const CHUNK_TYPE: &str = "ChunkType { type: ";

type Opened<'a> = Reader<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Png, error)
}

/// Wraps an error of the decoder, which writes chunk types in debug form: `ChunkType { type: IDAT, critical: …, … }`.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn from_png(error: DecodingError) -> DecodeError {
    let words = error.to_string();
    let named = words.split_once(CHUNK_TYPE).and_then(|(before, rest)| {
        let (kind, rest) = rest.split_once(", critical: ")?;
        let (_, after) = rest.split_once(" }")?;
        Some(format!("{before}{kind}{after}"))
    });
    corrupt(named.as_deref().unwrap_or(&words).trim_end_matches('.'))
}

/// Reads and checks everything before the pixels.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    let info = decoder.read_header_info().map_err(from_png)?;
    let size = info.size();
    limits.check_one(size.0, size.1)?;
    decoder.set_limits(png::Limits { bytes: METADATA_BYTES_MAX + 2 * PIXEL_BYTES_MAX * size.0 as usize });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND);
    let reader = decoder.read_info().map_err(from_png)?;

    let (color, depth) = reader.output_color_type();
    let exif = reader.info().exif_metadata.as_deref();
    let orientation = exif.map_or(Orientation::UPRIGHT, Orientation::from_exif);
    let channels = match color {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let bits = if depth == BitDepth::Sixteen { 16 } else { 8 };
    let header = Header::single(Format::Png, size, channels, bits, orientation);
    if reader.output_buffer_size().map(|size| size as u64) != Some(header.frame_bytes) {
        return Err(DecodeError::corrupt(Format::Png, "its headers disagree about its size"));
    }
    Ok((reader, header))
}

/// Whether the file continues to its last chunk: the decoder stops after the last row that it needs.
fn check_complete(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut rest = bytes.get(8..).unwrap_or_default();
    loop {
        let [l3, l2, l1, l0, kind @ ..] = rest else {
            return Err(corrupt("it ends before its last chunk"));
        };
        // Length, kind and checksum are twelve bytes.
        let length = u32::from_be_bytes([*l3, *l2, *l1, *l0]) as usize + 12;
        if rest.len() < length {
            return Err(corrupt("it ends inside a chunk"));
        }
        if kind.starts_with(b"IEND") {
            return Ok(());
        }
        rest = &rest[length..];
    }
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|(_, header)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (mut reader, header) = open(bytes, limits)?;
    check_complete(bytes)?;
    let stored = header.orientation.size(header.width, header.height);
    let samples = header.frame_bytes as usize / usize::from(header.bits / 8);
    let samples = if header.bits == 16 {
        let mut samples = vec![0u16; samples];
        reader.next_frame(bytemuck::cast_slice_mut(&mut samples)).map_err(from_png)?;
        for sample in &mut samples {
            *sample = u16::from_be(*sample);
        }
        Samples::U16(samples)
    } else {
        let mut samples = vec![0u8; samples];
        reader.next_frame(&mut samples).map_err(from_png)?;
        Samples::U8(samples)
    };
    Ok(Frame::upright(header.orientation, stored, header.channels, samples))
}
