//! Strips and tiles packed with Zstandard, which the decoder does not unpack. The reader of stacks does, and both unpack in the same way.
//!
//! What the decoder does to others after unpacking is done here: byte order, prediction, and the inversion of white-is-zero.

use super::{
    Page, Source,
    chunks::Chunks,
    find, find_all,
    measured::Measured,
    tiles,
    words::{corrupt, unsupported},
};
use crate::image::{
    DecodeError, Limits,
    stack::{Order, Predictor, Zstd},
};
use std::io::{Read, Seek, SeekFrom};
use tiff::{
    decoder::Decoder,
    tags::{ByteOrder, Tag},
};

/// The value of the compression tag for Zstandard.
pub(super) const COMPRESSION_ZSTD: u16 = 50000;

/// How the samples in strips and tiles are stored, beside their packing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    tiled: bool,
    /// Width and height of a strip or tile.
    sides: [u32; 2],
    /// How samples were transformed before they were packed.
    predictor: Predictor,
    /// Whether 0 is white.
    white_is_zero: bool,
    /// Bytes of the largest of them as it is stored.
    bytes: u64,
}

impl Packed {
    /// What the current directory says.
    pub(super) fn of(
        decoder: &mut Decoder<Source<'_>>,
        Chunks { tiled, size, .. }: Chunks,
        bits: u8,
        measured: Option<Measured>,
        limits: &Limits,
    ) -> Result<Packed, DecodeError> {
        let sides = if tiled {
            tiles::sides(decoder, limits)?
        } else {
            [size[0], decoder.chunk_dimensions().1.clamp(1, size[1].max(1))]
        };
        let is_float = measured.is_some_and(|measured| measured.stored.is_float());
        let predictor = match find::<u16>(decoder, Tag::Predictor)?.unwrap_or(1) {
            1 => Predictor::None,
            2 if bits >= 8 => Predictor::Horizontal,
            3 if is_float => Predictor::FloatingPoint,
            other => return Err(unsupported(format!("predictor {other} for {bits} bits per sample"))),
        };
        if tiled && size[0] > sides[0] && (sides[0] * u32::from(bits)) % 8 != 0 {
            return Err(unsupported(format!("tiles whose rows of {} px end within a byte", sides[0])));
        }
        let white_is_zero = find::<u16>(decoder, Tag::PhotometricInterpretation)? == Some(0);
        let counts: Vec<u64> = find_all(decoder, tags(tiled)[1])?;
        let bytes = counts.into_iter().max().unwrap_or(0);
        Ok(Packed { tiled, sides, predictor, white_is_zero, bytes })
    }

    /// Bytes that reading takes beside the page: a strip or tile as it is stored, what the decompressor keeps of it (no more than it has
    /// unpacked), and a tile before it is cut.
    pub(super) fn work_bytes(&self, page: &Page) -> u64 {
        let unpacked = page.row_bytes(self.sides[0]) * u64::from(self.sides[1]);
        self.bytes + unpacked * if self.tiled { 2 } else { 1 }
    }
}

impl Packed {
    /// Turns what was unpacked into samples as the decoder returns them.
    fn undo(&self, chunk: &mut [u8], row_bytes: usize, page: &Page, order: ByteOrder) {
        let channels = if page.planar { 1 } else { usize::from(page.count) };
        let order = match order {
            ByteOrder::LittleEndian => Order::Little,
            ByteOrder::BigEndian => Order::Big,
        };
        // Several samples of less than 8 bits lie in a byte, and nothing predicts them.
        let size = usize::from(page.bits / 8).max(1);
        self.predictor.undo(order, chunk, row_bytes / size, size, channels);
        if self.white_is_zero {
            chunk.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

/// The tags of the offsets and of the sizes.
fn tags(tiled: bool) -> [Tag; 2] {
    if tiled { [Tag::TileOffsets, Tag::TileByteCounts] } else { [Tag::StripOffsets, Tag::StripByteCounts] }
}

/// Reads the current page, plane by plane, into memory for all planes.
pub(super) fn read(
    decoder: &mut Decoder<Source<'_>>,
    page: &Page,
    packed: Packed,
    into: &mut [u8],
) -> Result<(), DecodeError> {
    let [chunk_width, chunk_rows] = packed.sides;
    let (row_bytes, stride) = (page.row_bytes(page.width) as usize, page.row_bytes(chunk_width) as usize);
    let (across, down) = (page.width.div_ceil(chunk_width), page.height.div_ceil(chunk_rows));
    let [offsets, counts] = tags(packed.tiled).map(|tag| find_all::<u64>(decoder, tag));
    let places: Vec<(u64, u64)> = offsets?.into_iter().zip(counts?).collect();
    let planes = if page.planar { u64::from(page.count) } else { 1 };
    if places.len() as u64 != u64::from(across) * u64::from(down) * planes {
        return Err(corrupt(format!("it has {} strips or tiles where its size makes others", places.len())));
    }
    let mut places = places.into_iter();
    let (mut zstd, mut stored) = (Zstd::new().map_err(corrupt)?, Vec::new());
    let mut tile = vec![0; if packed.tiled { stride * chunk_rows as usize } else { 0 }];
    for plane in into.chunks_exact_mut(row_bytes * page.height as usize) {
        for rows in plane.chunks_mut(row_bytes * chunk_rows as usize) {
            for (left, (offset, count)) in (0..across as usize).zip(&mut places) {
                stored.resize(count as usize, 0);
                let source = decoder.inner();
                source.seek(SeekFrom::Start(offset)).map_err(corrupt)?;
                source.read_exact(&mut stored).map_err(corrupt)?;
                let chunk = if packed.tiled { &mut tile[..] } else { &mut rows[..] };
                zstd.fill(&stored, chunk).map_err(corrupt)?;
                packed.undo(chunk, stride, page, decoder.byte_order());
                if packed.tiled {
                    for (row, from) in rows.chunks_exact_mut(row_bytes).zip(tile.chunks_exact(stride)) {
                        // The last tile may extend beyond the right edge.
                        row[left * stride..].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
    }
    Ok(())
}
