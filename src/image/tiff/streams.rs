//! Checks JPEG streams in strips and tiles, and the tables that the streams of a page share.
//!
//! The decoder puts the tables in front of each stream, believes the first frame header in either, and skips what it does not know. The
//! checks here must read a stream exactly as the decoder does. So tables may hold nothing but tables, and nothing before the first scan of
//! a stream may be ambiguous.

use super::{
    source::Source,
    words::{corrupt, from_tiff, unsupported},
};
use crate::image::{DecodeError, jpeg};
use tiff::{
    decoder::{Decoder, ifd::Entry},
    tags::Tag,
};

/// Bytes of tables: all that a stream can use takes less than 3,000. They are read again for each strip or tile.
const TABLES_BYTES_MAX: u64 = 8192;

/// The marker that begins a JPEG stream.
const START: [u8; 2] = [0xff, 0xd8];
/// The marker that ends it.
const END: [u8; 2] = [0xff, 0xd9];

/// The longest side of the blocks in a stream: 8 samples of a component that is sampled a quarter as often as another.
const BLOCK_SIDE_MAX: u64 = 32;

/// Adobe's segment. With it the decoder may return four samples where there are fewer.
const ADOBE: u8 = 0xee;

/// The tables that all streams of a page begin with.
#[derive(Default)]
pub(super) struct Tables {
    bytes: u64,
    adobe: bool,
}

impl Tables {
    /// The tables of the current directory, or none.
    pub(super) fn of(decoder: &mut Decoder<Source<'_>>) -> Result<Tables, DecodeError> {
        let bytes = decoder.image_ifd().directory().get(Tag::JPEGTables).map_or(0, Entry::count);
        if bytes > TABLES_BYTES_MAX {
            return Err(corrupt(format!("its JPEG tables have {bytes} bytes, more than {TABLES_BYTES_MAX}")));
        }
        let Some(tables) = decoder.find_tag(Tag::JPEGTables).map_err(from_tiff)? else {
            return Ok(Tables::default());
        };
        let tables = tables.into_u8_vec().map_err(from_tiff)?;
        let cut = || corrupt("its JPEG tables are cut off or damaged");
        let mut rest = tables.strip_prefix(&START).ok_or_else(cut)?;
        let mut adobe = false;
        loop {
            match next_marker(&mut rest).ok_or_else(cut)? {
                // The decoder cuts off the last two bytes, whatever they are.
                (0xd9, _) if rest.is_empty() => return Ok(Tables { bytes, adobe }),
                (0xd9, _) => return Err(cut()),
                // Huffman codes, quantization, restart intervals, application segments, comments.
                (marker @ (0xc4 | 0xdb | 0xdd | 0xe0..=0xef | 0xfe), _) => adobe |= marker == ADOBE,
                (marker, _) => {
                    return Err(corrupt(format!(
                        "its JPEG tables hold more than tables (marker {marker:#04x})"
                    )));
                }
            }
        }
    }
}

/// What a stream says about itself before its first scan.
pub(super) struct Stream {
    pub(super) width: u32,
    pub(super) height: u32,
    /// Bytes that decoding takes until the samples have been copied.
    pub(super) work_bytes: u64,
}

/// Checks a stream that must have `interleaved` samples per pixel.
pub(super) fn stream(chunk: &[u8], tables: &Tables, interleaved: u16) -> Result<Stream, DecodeError> {
    let markers = jpeg::markers(chunk)?;
    // The decoder would invent missing data. Bytes behind the end marker are not counted as damage.
    if !chunk.windows(2).rev().any(|pair| pair == END) {
        return Err(corrupt("a JPEG stream in it has no end"));
    }
    let mut rest = chunk.get(2..).unwrap_or_default();
    let mut adobe = tables.adobe;
    loop {
        match next_marker(&mut rest) {
            Some((0xda, _)) => break,
            Some((marker, _)) => adobe |= marker == ADOBE,
            None => {
                return Err(corrupt(
                    "what stands before the first scan of a JPEG stream in it can be read in two ways",
                ));
            }
        }
    }
    // The decoder would mix up the samples of different pixels.
    let components = u16::from(markers.components);
    if components != interleaved {
        return Err(corrupt(format!(
            "a JPEG stream in it has {components} samples per pixel instead of {interleaved}"
        )));
    }
    // Of two components the decoder returns only the first.
    if components == 2 {
        return Err(unsupported("JPEG streams of grey and alpha"));
    }
    let (width, height) = (u64::from(markers.width), u64::from(markers.height));
    let samples = if adobe { components.max(4) } else { components };
    // The bytes are gathered in a buffer that may grow to twice their size.
    let mut work_bytes = width * height * u64::from(samples) + 2 * (chunk.len() as u64 + tables.bytes);
    if markers.scans {
        jpeg::scans::check(chunk)?;
        // All coefficients are held, 16 bits each, until the last scan.
        let padded = [width, height].map(|side| side.next_multiple_of(BLOCK_SIDE_MAX));
        work_bytes += padded[0] * padded[1] * u64::from(components) * 2;
    }
    Ok(Stream { width: markers.width, height: markers.height, work_bytes })
}

/// The next marker and its segment, if it has one; `None` if the decoder might read them differently. The decoder reads a length after
/// every marker except the end marker, even after markers that have none; takes a zero for a fill byte before a marker; and reads one byte
/// too many of an APP0 segment of four bytes.
fn next_marker<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let marked = rest.strip_prefix(&[0xff])?;
    let filled = marked.iter().take_while(|byte| **byte == 0xff).count();
    let (&marker, after) = marked[filled..].split_first()?;
    if matches!(marker, 0x00 | 0x01 | 0xd0..=0xd8) {
        return None;
    }
    if marker == 0xd9 {
        *rest = after;
        return Some((marker, &[]));
    }
    let (length, _) = after.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let segment = after.get(2..length)?;
    if marker == 0xe0 && segment.len() == 4 {
        return None;
    }
    *rest = &after[length..];
    Some((marker, segment))
}
