//! WebP (a RIFF container): lossy and lossless, with and without alpha. Of an animation, the first frame.
//!
//! The chunks are walked here first. The decoder allocates by the size that the image data state, so that size is compared with the size of
//! the whole before the decoder sees it. The decoder also allocates for prefix codes; `groups` says how much.

mod groups;

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use image_webp::WebPDecoder;
use std::{borrow::Cow, io::Cursor};

/// Bytes of an animation frame's own header, before its chunks.
const ANIMATION_FRAME_HEADER: usize = 16;

/// Flags of a container: it has alpha; it has animation frames.
const ALPHA: u8 = 0x10;
const ANIMATED: u8 = 0x02;
/// The offset of these flags in the file.
const FLAGS_AT: usize = 20;

type Opened<'a> = WebPDecoder<Cursor<Cow<'a, [u8]>>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::WebP, error)
}

/// The chunks of `rest`: name and content; an error if one goes beyond the end.
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

/// The size in the bit stream of a `VP8 ` or `VP8L` chunk; `None` for others.
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
    // Bytes behind the container are not part of the image.
    let container = without_false_alpha(&bytes[..12 + body.len()]);
    let copied = if let Cow::Owned(copy) = &container { copy.len() as u64 } else { 0 };
    let mut decoder = WebPDecoder::new(Cursor::new(container)).map_err(corrupt)?;
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
    // Planes or RGBA of the whole image; for an animation, the frame beside the canvas.
    header.work_bytes = u64::from(width) * u64::from(height) * 8;
    decoder.set_memory_limit(METADATA_BYTES_MAX + header.work_bytes as usize);
    header.work_bytes += copied;
    Ok((decoder, header))
}

/// The container as the decoder accepts it: the alpha flag is only a hint, and lossy pixels may lack the alpha.
fn without_false_alpha(container: &[u8]) -> Cow<'_, [u8]> {
    let body = &container[12..];
    let has = |name| first(body, name).is_some();
    let flags = container.get(FLAGS_AT).filter(|_| body.starts_with(b"VP8X"));
    match flags {
        Some(flags) if flags & (ALPHA | ANIMATED) == ALPHA && has(b"VP8 ") && !has(b"ALPH") => {
            let mut copy = container.to_vec();
            copy[FLAGS_AT] &= !ALPHA;
            copy.into()
        }
        _ => container.into(),
    }
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let (_, mut header) = open(bytes, limits)?;
    header.work_bytes += tables_bytes(&bytes[12..], (header.width, header.height));
    Ok(header)
}

/// Bytes that the prefix codes of a stream take. A decoder takes one stream, for the picture or for its alpha: the first of each kind, in
/// the container or in its first frame. The largest of these counts. A broken stream counts 0, because the decoder reports the damage
/// before it allocates for that stream.
fn tables_bytes(body: &[u8], size: (u32, u32)) -> u64 {
    let frame = first(body, b"ANMF").unwrap_or_default();
    let (frame_header, inner) = frame.split_at(ANIMATION_FRAME_HEADER.min(frame.len()));
    let side = |at: usize| {
        let bytes = frame_header.get(at..at + 3);
        bytes.map_or(1, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) + 1)
    };
    let mut bytes = Vec::new();
    for chunks in [body, inner] {
        bytes.extend(first(chunks, b"VP8L").map(groups::of_chunk));
        // A frame's alpha has the frame's size; a decoder that takes it for the container's alpha uses the container's size.
        let alpha = first(chunks, b"ALPH");
        let sizes = [size, (side(6), side(9))];
        bytes.extend(alpha.iter().flat_map(|chunk| sizes.map(|size| groups::of_alpha(chunk, size))));
    }
    bytes.into_iter().map(|bytes| bytes.unwrap_or(0)).max().unwrap_or_default()
}

/// The first chunk with a name.
fn first<'a>(chunks: &'a [u8], wanted: &[u8; 4]) -> Option<&'a [u8]> {
    self::chunks(chunks).map_while(Result::ok).find(|(name, _)| name == wanted).map(|(_, chunk)| chunk)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::corpus::{LIMITS, fixture};

    /// A container of these chunks.
    fn container(chunks: &[([u8; 4], &[u8])]) -> Vec<u8> {
        let chunk = |(name, content): &([u8; 4], &[u8])| {
            let length = (content.len() as u32).to_le_bytes();
            [name, &length[..], content, &vec![0; content.len() % 2]].concat()
        };
        let body = [b"WEBP".to_vec(), chunks.iter().flat_map(chunk).collect()].concat();
        [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
    }

    #[test]
    fn what_prefix_codes_take_counts_in_the_memory_that_a_picture_is_decoded_in() {
        let few = container(&[(*b"VP8L", &groups::testing::picture(1))]);
        let many = container(&[(*b"VP8L", &groups::testing::picture(20_000))]);
        assert!(header(&few, &LIMITS).unwrap().decoded_bytes() < 50_000);
        // A picture of 4 x 4 pixels that asks for 0.4 GB.
        let asked = header(&many, &LIMITS).unwrap().decoded_bytes();
        assert!(asked > 20_000 * 5 * 4096, "{asked} for {}", many.len());
        // So does alpha, in the container or in its first frame.
        let stream = groups::testing::picture(20_000);
        let alpha = [&[1], &stream[5..]].concat();
        let vp8x = [&[0x10, 0, 0, 0][..], &[3, 0, 0, 3, 0, 0]].concat();
        let lossy = b"\x10\0\0\x9d\x01\x2a\x04\0\x04\0";
        let plain = container(&[(*b"VP8X", &vp8x), (*b"ALPH", &alpha), (*b"VP8 ", lossy)]);
        assert!(header(&plain, &LIMITS).unwrap().decoded_bytes() > 20_000 * 5 * 4096);
    }

    #[test]
    fn a_flag_for_alpha_that_is_not_there_makes_nothing_transparent() {
        let lossy = fixture("lossy.webp");
        let stream = first(&lossy[12..], b"VP8 ").unwrap();
        let plain = decode(&lossy, &LIMITS).unwrap();
        let [width, height] = [plain.width - 1, plain.height - 1].map(|side| side as u8);
        let flagged = |flags: u8| {
            let vp8x = [flags, 0, 0, 0, width, 0, 0, height, 0, 0];
            container(&[(*b"VP8X", &vp8x), (*b"VP8 ", stream)])
        };
        assert_eq!(decode(&flagged(0), &LIMITS), Ok(plain.clone()));
        assert_eq!(decode(&flagged(ALPHA), &LIMITS), Ok(plain));
        let bytes = |file: &[u8]| header(file, &LIMITS).unwrap().decoded_bytes();
        assert_eq!(bytes(&flagged(ALPHA)), bytes(&flagged(0)) + flagged(0).len() as u64);
    }

    #[test]
    fn a_file_of_another_encoder_is_read_to_where_its_pixels_begin() {
        let file = fixture("groups.webp");
        let stream = first(&file[12..], b"VP8L").unwrap();
        let bytes = groups::of_chunk(stream).unwrap();
        println!("{bytes} bytes of tables in a file of {}", file.len());
        assert!((10_000..30_000).contains(&bytes), "{bytes}");
        assert!(decode(&file, &LIMITS).is_ok());
    }
}
