//! Compression and prediction of a strip or tile. Both are undone into memory of a known size, so that no input can expand without bound.

use super::samples::{Order, to_native};
use flate2::{Decompress, FlushDecompress, Status};
use std::io;
use weezl::{BitOrder, LzwStatus, decode::Decoder};
use zstd::stream::raw::{InBuffer, Operation, OutBuffer};

/// Compression of a strip or tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
    Zstd,
}

impl Compression {
    /// The compression with this number in a TIFF; for known kinds that are not read, `Err` has their name.
    pub(super) fn from_tiff(number: u64) -> Result<Compression, String> {
        let name = match number {
            1 => return Ok(Compression::None),
            5 => return Ok(Compression::Lzw),
            8 | 32946 => return Ok(Compression::Deflate),
            32773 => return Ok(Compression::PackBits),
            50000 => return Ok(Compression::Zstd),
            2..=4 => "fax",
            6 | 7 => "JPEG",
            33003 | 33005 | 34712 => "JPEG 2000",
            34887 => "LERC",
            34925 => "LZMA",
            50001 => "WebP",
            50002 => "JPEG XL",
            22610 | 34892 => "JPEG XR",
            _ => "",
        };
        let number = format!("compression {number}");
        Err(if name.is_empty() { number } else { format!("{number} ({name})") })
    }
}

/// Unpacks `packed` until all of `into` is filled; anything left in `packed` is ignored. `Err` says why, if it is too short or damaged.
pub(super) fn unpack(compression: Compression, packed: &[u8], into: &mut [u8]) -> Result<(), String> {
    let written = match compression {
        Compression::None => {
            let len = packed.len().min(into.len());
            into[..len].copy_from_slice(&packed[..len]);
            len
        }
        Compression::Lzw => lzw(packed, into)?,
        Compression::Deflate => inflate(packed, into)?,
        Compression::PackBits => pack_bits(packed, into),
        Compression::Zstd => return Zstd::new()?.fill(packed, into),
    };
    filled(written, into)
}

fn filled(written: usize, into: &[u8]) -> Result<(), String> {
    if written < into.len() {
        return Err(format!("its data end after {written} of {} bytes", into.len()));
    }
    Ok(())
}

fn lzw(packed: &[u8], into: &mut [u8]) -> Result<usize, String> {
    let mut decoder = Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    let (mut read, mut written) = (0, 0);
    loop {
        let step = decoder.decode_bytes(&packed[read..], &mut into[written..]);
        read += step.consumed_in;
        written += step.consumed_out;
        let stands = step.consumed_in == 0 && step.consumed_out == 0;
        match step.status {
            Ok(LzwStatus::Ok) if written < into.len() && !stands => {}
            Ok(_) => return Ok(written),
            Err(_) if written == into.len() => return Ok(written),
            Err(error) => return Err(format!("its LZW data are damaged ({error})")),
        }
    }
}

fn inflate(packed: &[u8], into: &mut [u8]) -> Result<usize, String> {
    let mut stream = Decompress::new(true);
    loop {
        let (read, written) = (stream.total_in() as usize, stream.total_out() as usize);
        let step = stream.decompress(&packed[read..], &mut into[written..], FlushDecompress::None);
        let (now_read, now_written) = (stream.total_in() as usize, stream.total_out() as usize);
        match step {
            Ok(Status::Ok) if now_written < into.len() && (now_read, now_written) != (read, written) => {}
            Ok(_) => return Ok(now_written),
            // Also an error if all bytes are there: the checksum follows the last one.
            Err(error) => return Err(format!("its deflate data are damaged ({error})")),
        }
    }
}

/// A decompressor of Zstandard. To make one takes longer than to unpack a small strip, so one may serve many.
pub(in crate::image) struct Zstd(zstd::stream::raw::Decoder<'static>);

impl Zstd {
    pub(in crate::image) fn new() -> Result<Zstd, String> {
        zstd::stream::raw::Decoder::new()
            .map(Zstd)
            .map_err(|error| format!("zstd cannot be unpacked ({error})"))
    }

    /// Unpacks one strip or tile, like [`unpack`].
    pub(in crate::image) fn fill(&mut self, packed: &[u8], into: &mut [u8]) -> Result<(), String> {
        let written =
            self.write(packed, into).map_err(|error| format!("its zstd data are damaged ({error})"))?;
        filled(written, into)
    }

    /// Stops when `into` is full, like the other decompressors, even if the frame goes on. The decoder touches only memory that it has
    /// already written.
    fn write(&mut self, packed: &[u8], into: &mut [u8]) -> io::Result<usize> {
        self.0.reinit()?;
        let (mut from, mut to) = (InBuffer::around(packed), OutBuffer::around(into));
        loop {
            let before = (from.pos(), to.pos());
            self.0.run(&mut from, &mut to)?;
            if to.pos() == to.capacity() || (from.pos(), to.pos()) == before {
                return Ok(to.pos());
            }
        }
    }
}

/// Run-length coding: a byte n < 128 is followed by n + 1 literal bytes; n > 128 by one byte that is repeated 257 - n times.
fn pack_bits(mut packed: &[u8], into: &mut [u8]) -> usize {
    let mut written = 0;
    while let [head, rest @ ..] = packed {
        let room = &mut into[written..];
        if room.is_empty() {
            break;
        }
        let head = usize::from(*head);
        packed = match head {
            0..=127 => {
                let len = (head + 1).min(rest.len());
                let fits = len.min(room.len());
                room[..fits].copy_from_slice(&rest[..fits]);
                written += fits;
                &rest[len..]
            }
            128 => rest,
            _ => {
                let Some((value, rest)) = rest.split_first() else { break };
                let fits = (257 - head).min(room.len());
                room[..fits].fill(*value);
                written += fits;
                rest
            }
        };
    }
    written
}

/// The transform of a row's samples before compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image) enum Predictor {
    None,
    /// Each sample is the difference from the one to its left.
    Horizontal,
    /// As before, but byte by byte, after the bytes of a row were reordered: all first bytes of its samples, then all second ones, and so
    /// on.
    FloatingPoint,
}

impl Predictor {
    /// Undoes it for rows of `row_samples` samples, which are stored in `order`, `size` bytes each, `channels` of each pixel side by side.
    /// They come out in native byte order.
    pub(in crate::image) fn undo(
        self,
        order: Order,
        bytes: &mut [u8],
        row_samples: usize,
        size: usize,
        channels: usize,
    ) {
        match self {
            Predictor::None => to_native(order, size, bytes),
            Predictor::Horizontal => {
                to_native(order, size, bytes);
                add_up(bytes, row_samples, size, channels);
            }
            Predictor::FloatingPoint => gather_floats(bytes, row_samples, size, channels),
        }
    }
}

/// Undoes [`Predictor::Horizontal`] for samples of `size` bytes in native byte order.
fn add_up(bytes: &mut [u8], row_samples: usize, size: usize, channels: usize) {
    for row in bytes.chunks_mut(row_samples * size) {
        match size {
            1 => add_up_row::<1>(row, channels, |a, b| [a[0].wrapping_add(b[0])]),
            2 => add_up_row(row, channels, |a, b| {
                u16::from_ne_bytes(a).wrapping_add(u16::from_ne_bytes(b)).to_ne_bytes()
            }),
            4 => add_up_row(row, channels, |a, b| {
                u32::from_ne_bytes(a).wrapping_add(u32::from_ne_bytes(b)).to_ne_bytes()
            }),
            _ => add_up_row(row, channels, |a, b| {
                u64::from_ne_bytes(a).wrapping_add(u64::from_ne_bytes(b)).to_ne_bytes()
            }),
        }
    }
}

fn add_up_row<const N: usize>(row: &mut [u8], channels: usize, add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (values, _) = row.as_chunks_mut::<N>();
    for channel in 0..channels {
        let mut sum = [0; N];
        for value in values.iter_mut().skip(channel).step_by(channels) {
            sum = add(sum, *value);
            *value = sum;
        }
    }
}

/// Undoes [`Predictor::FloatingPoint`]. The samples come out in native byte order, whatever the file's order.
fn gather_floats(bytes: &mut [u8], row_samples: usize, size: usize, channels: usize) {
    let mut planes = vec![0; row_samples * size];
    for row in bytes.chunks_exact_mut(row_samples * size) {
        planes.copy_from_slice(row);
        add_up_row::<1>(&mut planes, channels, |a, b| [a[0].wrapping_add(b[0])]);
        for (index, sample) in row.chunks_exact_mut(size).enumerate() {
            for (byte, place) in sample.iter_mut().enumerate() {
                // The plane of the highest byte comes first.
                let plane = if cfg!(target_endian = "little") { size - 1 - byte } else { byte };
                *place = planes[plane * row_samples + index];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_beyond_the_last_row_is_left_whatever_packed_it() {
        let rows: Vec<u8> = (0..200_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        // Padded as libtiff pads a last strip; by one byte; by far more than anybody would wait for or hold.
        for padding in [0, 1, 50_000, 1 << 26] {
            let mut padded = rows.clone();
            padded.resize(rows.len() + padding, 0);
            let packed = zstd::bulk::compress(&padded, 1).expect("packed");
            let mut into = vec![0; rows.len()];
            assert_eq!(unpack(Compression::Zstd, &packed, &mut into), Ok(()), "{padding} bytes beyond");
            assert!(into == rows, "{padding} bytes beyond");
        }
    }

    #[test]
    fn data_whose_checksum_is_another_are_damaged_and_those_without_one_are_taken() {
        use std::io::Write;
        let rows: Vec<u8> = (0..200_000_u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        deflate.write_all(&rows).expect("packed");
        // An empty block follows the last byte.
        deflate.flush().expect("packed");
        let deflated = deflate.finish().expect("packed");
        // As libtiff writes it, without stating the size first.
        let mut zstd = zstd::stream::Encoder::new(Vec::new(), 1).expect("an encoder");
        zstd.include_checksum(true).expect("a checksum");
        zstd.write_all(&rows).expect("packed");
        let zstd = zstd.finish().expect("packed");
        for (compression, mut packed) in [(Compression::Deflate, deflated), (Compression::Zstd, zstd)] {
            let mut into = vec![0; rows.len()];
            assert_eq!(unpack(compression, &packed, &mut into), Ok(()), "{compression:?}");
            assert!(into == rows);
            // Only part of the rows is asked for: what follows is ignored.
            assert_eq!(unpack(compression, &packed, &mut into[..500]), Ok(()), "{compression:?}");
            let last = packed.len() - 1;
            if compression == Compression::Deflate {
                assert_eq!(unpack(compression, &packed[..last - 3], &mut into), Ok(()), "cut off before it");
            }
            packed[last] ^= 1;
            assert!(unpack(compression, &packed, &mut into).expect_err("damage").contains("damaged"));
        }
    }

    #[test]
    fn zstd_data_that_end_too_early_or_are_damaged_are_refused() {
        let packed = zstd::bulk::compress(&[7; 1000], 1).expect("packed");
        let unpack = |packed: &[u8], len| unpack(Compression::Zstd, packed, &mut vec![0; len]);
        assert_eq!(unpack(&packed, 1001), Err("its data end after 1000 of 1001 bytes".to_owned()));
        for len in [1000, 1001] {
            assert!(unpack(&packed[..packed.len() - 1], len).is_err());
            assert!(unpack(b"not zstd", len).unwrap_err().starts_with("its zstd data are damaged"));
            assert!(unpack(b"", len).is_err());
        }
    }
}
