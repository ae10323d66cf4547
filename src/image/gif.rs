//! GIF: the first frame, on a transparent canvas of the size of the logical screen.
//!
//! The blocks are walked here first, up to the trailer. The decoder stops after the first frame, so it would not notice that the rest is
//! missing; and it would not check how large that frame is before it allocates.

use super::{DecodeError, Format, Frame, Header, Limits, METADATA_BYTES_MAX, Orientation, Samples};
use image::{ImageDecoder, codecs::gif::GifDecoder};
use std::io::Cursor;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Gif, error)
}

/// Bytes of a colour table, from the flags of the descriptor before it.
fn table_bytes(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

/// What walking the blocks found.
struct Blocks {
    screen: (u32, u32),
    /// Size of the first frame.
    first: (u32, u32),
}

fn blocks(bytes: &[u8]) -> Result<Blocks, DecodeError> {
    let ended = || corrupt("it ends before its trailer");
    let &[_, _, _, _, _, _, w0, w1, h0, h1, flags, _, _, ref rest @ ..] = bytes else {
        return Err(ended());
    };
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]));
    let screen = (side(w0, w1), side(h0, h1));
    let mut rest = rest.get(table_bytes(flags)..).ok_or_else(ended)?;
    let mut first = None;
    loop {
        rest = match rest {
            [0x3b, ..] => break,
            // An image: position, size, flags, colour table, code size, then its data.
            &[0x2c, _, _, _, _, w0, w1, h0, h1, flags, ref after @ ..] => {
                first.get_or_insert((side(w0, w1), side(h0, h1)));
                after.get(table_bytes(flags) + 1..).ok_or_else(ended)?
            }
            // An extension: its label, then its data.
            [0x21, _, after @ ..] => after,
            [0x2c | 0x21, ..] | [] => return Err(ended()),
            [other, ..] => return Err(corrupt(format!("block {other:#04x} is unknown"))),
        };
        // Data comes in sub-blocks; an empty one is the last.
        loop {
            let (&length, after) = rest.split_first().ok_or_else(ended)?;
            rest = after.get(usize::from(length)..).ok_or_else(ended)?;
            if length == 0 {
                break;
            }
        }
    }
    let first = first.ok_or_else(|| corrupt("it holds no image"))?;
    Ok(Blocks { screen, first })
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let Blocks { screen, first } = blocks(bytes)?;
    for (width, height) in [screen, first] {
        limits.check_one(width, height)?;
        if width == 0 || height == 0 {
            return Err(corrupt(format!("its size is {width} × {height}")));
        }
    }
    let mut header = Header::single(Format::Gif, screen, 4, 8, Orientation::UPRIGHT);
    if first != screen {
        header.work_bytes = u64::from(first.0) * u64::from(first.1) * 4;
    }
    Ok(header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let header = header(bytes, limits)?;
    let size = (header.width, header.height);
    let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(corrupt)?;
    let mut memory = image::Limits::no_limits();
    memory.max_alloc = Some(header.work_bytes + METADATA_BYTES_MAX as u64);
    decoder.set_limits(memory).map_err(corrupt)?;
    if decoder.dimensions() != size {
        return Err(corrupt("its headers disagree about its size"));
    }
    let mut samples = vec![0; header.frame_bytes as usize];
    decoder.read_image(&mut samples).map_err(corrupt)?;
    Ok(Frame::upright(header.orientation, size, header.channels, Samples::U8(samples)))
}
