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

/// Tiles may hold so many times as many pixels as pictures may: those of a picture that is nowhere smaller than one of them do not hold
/// more, and a small picture in one tile of 256 x 256 is nothing unusual, thousands of them neither.
const PADDED_MAX: u64 = 4;

/// What is gathered from all pages.
#[derive(Default)]
pub(super) struct Found {
    /// Pixels of the pages so far.
    pixels: u64,
    /// Pixels that are decoded for them: those of whole tiles, and what JPEG streams have below the last row.
    decoded: u64,
    /// Where JPEG streams are: from, and up to.
    jpeg: Vec<[u64; 2]>,
    /// Bytes of JPEG streams. Pages that share one would have it read for each of them.
    jpeg_bytes: u64,
    /// Strips or tiles of the pages so far.
    chunks: usize,
    pub(super) changes: Changes,
}

impl Found {
    /// Counts the pixels of one more page.
    pub(super) fn page(&mut self, [width, height]: [u32; 2], limits: &Limits) -> Result<(), DecodeError> {
        limits.check_side(width, height)?;
        self.pixels += u64::from(width) * u64::from(height);
        limits.check_pixels(self.pixels)
    }

    /// Counts pixels that are decoded.
    fn decode(&mut self, pixels: u64, limits: &Limits) -> Result<(), DecodeError> {
        self.decoded = self.decoded.saturating_add(pixels);
        let limit = limits.pixels_max.saturating_mul(PADDED_MAX);
        if self.decoded > limit {
            return Err(DecodeError::TooLarge {
                what: "number of pixels in the image's tiles, all frames together and with their padding \
                       (which may be 4 times image_pixels_max),",
                got: self.decoded,
                limit,
                option: "image_pixels_max",
            });
        }
        Ok(())
    }

    /// What is found once all pages are: JPEG streams must be read as they were here. What pages before them or after them have
    /// changed, such as a strip over the same bytes with the lowest bit first, may have another size in it.
    pub(super) fn finish(mut self) -> Result<Changes, DecodeError> {
        self.changes.sort();
        if self.jpeg.iter().any(|range| self.changes.meet(*range)) {
            return Err(corrupt("a JPEG stream in it overlaps what is no JPEG stream"));
        }
        Ok(self.changes)
    }

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
    /// Width and rows of the picture.
    pub(super) size: [u32; 2],
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
    let Chunks { tiled, compression, interleaved, size } = chunks;
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
    let [across, down] = [size[0].div_ceil(width.max(1)), size[1].div_ceil(rows.max(1)).max(1)];
    let pixels = if tiled {
        // So many along each side, each of them whole.
        let all = |count: u32, side: u32| u64::from(count) * u64::from(side);
        all(across, width).saturating_mul(all(down, rows))
    } else {
        u64::from(size[0]) * u64::from(size[1])
    };
    found.decode(pixels, limits)?;
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
        found.jpeg.push([offset, offset + count]);
        found.check(bytes.len())?;
        let stream = stream(chunk, &tables, interleaved)?;
        // The decoder would take the pixels of one row for those of others. The last strip may be cut, or whole.
        let left = if tiled { rows } else { size[1] - index % down * rows };
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
        found.decode(u64::from(stream.width) * u64::from(stream.height - needed), limits)?;
        work_bytes = work_bytes.max(stream.work_bytes);
    }
    Ok(work_bytes)
}
