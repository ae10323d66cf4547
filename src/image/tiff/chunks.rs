//! Strips and tiles, by what a page's directory says of them and, of JPEG streams, what their first bytes do.

use super::{
    COMPRESSION_WEBP, find, find_all,
    source::{Changes, Source},
    streams::{Tables, stream},
    words::{corrupt, unsupported},
};
use crate::image::{DecodeError, Limits};
use tiff::{decoder::Decoder, tags::Tag};

/// The value of the compression tag for JPEG streams.
const COMPRESSION_JPEG: u16 = 7;

/// Strips and tiles with the lowest bit first, apart from each other, beyond which no writer goes.
const REVERSED_MAX: usize = 1 << 18;

/// Strips or tiles of all pages. Each has a decompressor of its own, which takes a microsecond however little there is in it: pages that
/// share one list of them would keep a thread for a minute.
const CHUNKS_MAX: usize = 1 << 20;

/// What is gathered from all pages.
#[derive(Default)]
pub(super) struct Found {
    /// Bytes of JPEG streams. Pages that share one would have it read for each of them.
    jpeg_bytes: u64,
    /// Strips or tiles of the pages so far.
    chunks: usize,
    pub(super) changes: Changes,
}

impl Found {
    /// Whether all of it is no more than a file of so many bytes can be in earnest. It is the file that is refused otherwise, not a page.
    pub(super) fn check(&self, file_bytes: usize) -> Result<(), DecodeError> {
        if self.chunks > CHUNKS_MAX {
            return Err(corrupt(format!("more than {CHUNKS_MAX} strips or tiles in all of its pages")));
        }
        if self.changes.reversed.len() > REVERSED_MAX {
            return Err(corrupt(format!("more than {REVERSED_MAX} strips with the lowest bit first")));
        }
        if self.jpeg_bytes > file_bytes as u64 {
            return Err(corrupt("its JPEG streams overlap"));
        }
        Ok(())
    }
}

/// What a directory says of its strips or tiles.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    pub(super) tiled: bool,
    pub(super) compression: u16,
    /// Samples of a pixel in each.
    pub(super) interleaved: u16,
    /// Rows of the picture.
    pub(super) height: u32,
}

/// Strips or tiles must lie inside the file; JPEG streams must have the size of the strip or tile that they are for, and as many
/// samples in a pixel, and must not be larger than the file, all of them together. Notes those whose bytes are in the other order.
/// What decoding the largest of the streams takes is the answer, in bytes.
pub(super) fn check(
    bytes: &[u8],
    decoder: &mut Decoder<Source<'_>>,
    chunks: Chunks,
    limits: &Limits,
    found: &mut Found,
) -> Result<u64, DecodeError> {
    let Chunks { tiled, compression, interleaved, height } = chunks;
    let (offsets, counts) = if tiled {
        (Tag::TileOffsets, Tag::TileByteCounts)
    } else {
        (Tag::StripOffsets, Tag::StripByteCounts)
    };
    let offsets: Vec<u64> = find_all(decoder, offsets)?;
    let counts: Vec<u64> = find_all(decoder, counts)?;
    found.chunks += offsets.len();
    found.check(bytes.len())?;
    let jpeg = compression == COMPRESSION_JPEG;
    let reversed = match find::<u16>(decoder, Tag::FillOrder)?.unwrap_or(1) {
        // Streams that have an order of their own.
        _ if jpeg || compression == COMPRESSION_WEBP => false,
        1 => false,
        2 => true,
        other => return Err(unsupported(format!("bits in order {other}"))),
    };
    let (width, rows) = decoder.chunk_dimensions();
    let down = height.div_ceil(rows.max(1)).max(1);
    let tables = if jpeg { Tables::of(decoder)? } else { Tables::default() };
    let mut work_bytes = 0;
    for ((&offset, &count), index) in offsets.iter().zip(&counts).zip(0u32..) {
        let chunk = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(count).ok())
            .and_then(|(offset, count)| bytes.get(offset..offset.checked_add(count)?))
            .ok_or_else(|| corrupt("pixel data lies beyond its end"))?;
        if reversed {
            found.changes.reverse([offset, offset + count]);
            found.check(bytes.len())?;
        }
        if !jpeg {
            continue;
        }
        // These streams are read whole and by their own word on their size.
        found.jpeg_bytes += count;
        found.check(bytes.len())?;
        let stream = stream(chunk, &tables, interleaved)?;
        // The decoder would take the pixels of one row for those of others. The last strip may be cut, or whole.
        let left = if tiled { rows } else { height - index % down * rows };
        let needed = rows.min(left);
        if stream.width != width || !(needed..=rows).contains(&stream.height) {
            return Err(corrupt(format!(
                "a JPEG stream in it has {} x {} px instead of {width} x {needed}",
                stream.width, stream.height
            )));
        }
        // Tiles may be larger than the picture, and these are decoded whole.
        limits.check_side(stream.width, stream.height)?;
        limits.check_pixels(u64::from(stream.width) * u64::from(stream.height))?;
        work_bytes = work_bytes.max(stream.work_bytes);
    }
    Ok(work_bytes)
}
