//! BMP: uncompressed, run-length and bit-field bitmaps.

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use image::{ColorType, ImageDecoder, codecs::bmp::BmpDecoder};
use std::io::Cursor;

type Opened<'a> = BmpDecoder<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Bmp, error)
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    let mut decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(corrupt)?;
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
    decoder.read_image(&mut samples).map_err(corrupt)?;
    Ok(Frame::upright(
        header.orientation,
        (header.width, header.height),
        header.channels,
        Samples::U8(samples),
    ))
}
