//! Checks strips and tiles, by what a page's directory says about them and, for JPEG streams, by their first bytes.

use super::{
    COMPRESSION_WEBP, find, find_all,
    source::{Changes, Source},
    streams::{Tables, stream},
    words::{corrupt, unsupported},
};
use crate::image::{DecodeError, Limits};
use tiff::{decoder::Decoder, tags::Tag};

/// The value of the compression tag for JPEG streams.
pub(super) const COMPRESSION_JPEG: u16 = 7;

/// How many separate strips and tiles may have the lowest bit first; no writer goes beyond that.
const REVERSED_MAX: usize = 1 << 18;

/// How many strips or tiles all pages may have. Each has a decompressor of its own, which takes a microsecond however little it holds:
/// pages that share one list of strips would keep a thread busy for a minute.
const CHUNKS_MAX: usize = 1 << 20;

/// How many times the allowed pixels of a picture its tiles may hold. If a picture is nowhere smaller than one of its tiles, they do not
/// hold more than this. A small picture in one tile of 256 x 256 is nothing unusual, and neither are thousands of them.
const PADDED_MAX: u64 = 4;

/// Totals over all pages.
#[derive(Default)]
pub(super) struct Found {
    /// Pixels of the pages so far.
    pixels: u64,
    /// Pixels that are decoded for them: those of whole tiles, and the rows of JPEG streams below the picture.
    decoded: u64,
    /// The byte ranges of JPEG streams: from, and up to.
    jpeg: Vec<[u64; 2]>,
    /// Bytes of JPEG streams. If pages share a stream, it is read again, and counted, for each of them.
    jpeg_bytes: u64,
    /// Strips or tiles of the pages so far.
    chunks: usize,
    /// Whether ImageJ has written the file, and its pages have lookup tables.
    pub(super) of_image_j: bool,
    pub(super) changes: Changes,
}

impl Found {
    /// Counts the pixels of one more page.
    pub(super) fn page(&mut self, [width, height]: [u32; 2], limits: &Limits) -> Result<(), DecodeError> {
        limits.check_side(width, height)?;
        self.pixels += u64::from(width) * u64::from(height);
        limits.check_pixels(self.pixels)
    }

    /// Counts pixels that will be decoded.
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

    /// Checks JPEG streams once all pages have been read: the decoder must read them as they were read here. Changes to their bytes for
    /// another page, such as a strip over the same bytes with the lowest bit first, might give a stream another size.
    pub(super) fn finish(mut self) -> Result<Changes, DecodeError> {
        self.changes.sort();
        if self.jpeg.iter().any(|range| self.changes.meet(*range)) {
            return Err(corrupt("a JPEG stream in it overlaps what is no JPEG stream"));
        }
        Ok(self.changes)
    }

    /// Checks whether the totals are plausible for a file of this size. If not, the whole file is refused, not one page.
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

/// What a directory says about its strips or tiles.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    pub(super) tiled: bool,
    pub(super) compression: u16,
    /// Samples per pixel in each strip or tile.
    pub(super) interleaved: u16,
    /// Width and height of the picture.
    pub(super) size: [u32; 2],
}

/// Checks the strips or tiles of a page. They must lie inside the file. JPEG streams must have the size of their strip or tile and the
/// right number of samples per pixel, and all of them together must not be larger than the file. Notes strips and tiles whose bytes have
/// the lowest bit first.
///
/// Returns the bytes that decoding the largest of the JPEG streams takes.
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
        // These streams define their own bit order.
        _ if jpeg || compression == COMPRESSION_WEBP => false,
        1 => false,
        2 => true,
        other => return Err(unsupported(format!("bits in order {other}"))),
    };
    let (width, rows) = decoder.chunk_dimensions();
    let [across, down] = [size[0].div_ceil(width.max(1)), size[1].div_ceil(rows.max(1)).max(1)];
    let pixels = if tiled {
        // Every tile counts as a whole.
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
        // These streams are read whole, and the size that they state themselves counts.
        found.jpeg_bytes += count;
        found.jpeg.push([offset, offset + count]);
        found.check(bytes.len())?;
        let stream = stream(chunk, &tables, interleaved)?;
        // The decoder would mix up the pixels of different rows. The last strip may be cut or whole.
        let left = if tiled { rows } else { size[1] - index % down * rows };
        let needed = rows.min(left);
        if stream.width != width || !(needed..=rows).contains(&stream.height) {
            return Err(corrupt(format!(
                "a JPEG stream in it has {} x {} px instead of {width} x {needed}",
                stream.width, stream.height
            )));
        }
        // Tiles may be larger than the picture, and JPEG tiles are decoded whole.
        limits.check_side(stream.width, stream.height)?;
        limits.check_pixels(u64::from(stream.width) * u64::from(stream.height))?;
        found.decode(u64::from(stream.width) * u64::from(stream.height - needed), limits)?;
        work_bytes = work_bytes.max(stream.work_bytes);
    }
    Ok(work_bytes)
}
