//! WebP (a RIFF container): lossy and lossless, with and without alpha. Of an animation, the first frame.
//!
//! The chunks are walked here first: the decoder allocates by what the image data says of its own size, so that is
//! compared with the size of the whole before the decoder sees it.

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use image_webp::WebPDecoder;
use std::io::Cursor;

/// Bytes of an animation frame's own header, before its chunks.
const ANIMATION_FRAME_HEADER: usize = 16;

type Opened<'a> = WebPDecoder<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::WebP, error)
}

/// The chunks of `rest`, name and content; an error where one goes beyond the end.
fn chunks(mut rest: &[u8]) -> impl Iterator<Item = Result<([u8; 4], &[u8]), DecodeError>> {
    std::iter::from_fn(move || {
        let [n0, n1, n2, n3, l0, l1, l2, l3, content @ ..] = rest else {
            // A single byte of padding is no chunk.
            let end = rest.len() > 1;
            rest = &[];
            return end.then(|| Err(corrupt("it ends inside a chunk")));
        };
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        let Some(chunk) = content.get(..length) else {
            rest = &[];
            return Some(Err(corrupt("it ends inside a chunk")));
        };
        rest = content.get(length + length % 2..).unwrap_or_default();
        Some(Ok(([*n0, *n1, *n2, *n3], chunk)))
    })
}

/// The size in the bit stream of a `VP8 ` or `VP8L` chunk; none for others.
fn stream_size(name: &[u8; 4], chunk: &[u8]) -> Option<(u32, u32)> {
    match (name, chunk) {
        (b"VP8 ", [_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1, ..]) => {
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
            Some((side(*w0, *w1), side(*h0, *h1)))
        }
        (b"VP8L", [0x2f, b0, b1, b2, b3, ..]) => {
            let bits = u32::from_le_bytes([*b0, *b1, *b2, *b3]);
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        _ => None,
    }
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    let body = match bytes {
        [_, _, _, _, l0, l1, l2, l3, body @ ..] => {
            let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
            body.get(4..length).ok_or_else(|| corrupt("it is shorter than it says"))?
        }
        _ => return Err(corrupt("it is too short")),
    };
    // What lies behind the container is not part of the image.
    let mut decoder = WebPDecoder::new(Cursor::new(&bytes[..12 + body.len()])).map_err(corrupt)?;
    let (width, height) = decoder.dimensions();
    limits.check_one(width, height)?;

    let mut orientation = Orientation::UPRIGHT;
    let check_stream = |name: &[u8; 4], chunk: &[u8]| match stream_size(name, chunk) {
        Some((w, h)) if w > width || h > height => Err(corrupt("its headers disagree about its size")),
        _ => Ok(()),
    };
    for chunk in chunks(body) {
        let (name, chunk) = chunk?;
        check_stream(&name, chunk)?;
        match &name {
            b"EXIF" => orientation = Orientation::from_exif(chunk),
            b"ANMF" => {
                for inner in chunks(chunk.get(ANIMATION_FRAME_HEADER..).unwrap_or_default()) {
                    let (name, chunk) = inner?;
                    check_stream(&name, chunk)?;
                }
            }
            _ => {}
        }
    }

    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut header = Header::single(Format::WebP, (width, height), channels, 8, orientation);
    // Planes or RGBA of the whole image, and for an animation the frame beside the canvas.
    header.work_bytes = u64::from(width) * u64::from(height) * 8;
    decoder.set_memory_limit(METADATA_BYTES_MAX + header.work_bytes as usize);
    Ok((decoder, header))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|(_, header)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (mut decoder, header) = open(bytes, limits)?;
    let mut samples = vec![0; header.frame_bytes as usize];
    decoder.read_image(&mut samples).map_err(corrupt)?;
    Ok(Frame::upright(
        header.orientation,
        header.orientation.size(header.width, header.height),
        header.channels,
        Samples::U8(samples),
    ))
}
