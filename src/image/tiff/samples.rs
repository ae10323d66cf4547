//! The kinds of samples in a TIFF page, and their conversion to grey or RGB: palettes, packed bits, planes, inks, luma and chroma.

use super::{
    super::{Orientation, Samples, preprocess::Integer},
    measured::Measured,
    zstd::Packed,
};

/// How the samples of a page are to be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// One sample, 0 is black (the decoder inverts white-is-zero).
    Gray,
    /// Grey, then alpha.
    GrayAlpha,
    /// Three samples, and perhaps others that are ignored.
    Rgb,
    /// RGB, then alpha, and perhaps others that are ignored.
    Rgba,
    /// Indices into a colour map: all reds, then all greens, then all blues, 16 bits each.
    Palette(Vec<u16>),
    /// Inks; 0 is no ink.
    Cmyk,
    /// Full-range BT.601, as in JPEG.
    YCbCr,
    /// As many samples, each a channel by itself, whatever the file says that they mean.
    Channels(u8),
}

impl Kind {
    /// Channels after conversion.
    pub(super) fn channels(&self) -> u8 {
        match self {
            Kind::Gray => 1,
            Kind::GrayAlpha => 2,
            Kind::Rgb | Kind::Palette(_) | Kind::Cmyk | Kind::YCbCr => 3,
            Kind::Rgba => 4,
            Kind::Channels(count) => *count,
        }
    }

    /// Samples per pixel that are used; those behind them are dropped.
    pub(super) fn samples(&self) -> u16 {
        match self {
            Kind::Palette(_) => 1,
            Kind::Cmyk => 4,
            _ => u16::from(self.channels()),
        }
    }
}

/// One page, from its directory.
pub(super) struct Page {
    /// Where in the file its directory is.
    pub(super) directory: u64,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) kind: Kind,
    /// Bits per stored sample: 1, 2, 4, 8 or 16; also 32 and 64 where they are measured.
    pub(super) bits: u8,
    /// How they are stored if they are measured values.
    pub(super) measured: Option<Measured>,
    /// Stored samples per pixel.
    pub(super) count: u16,
    /// Whether each channel is stored as a plane of its own.
    pub(super) planar: bool,
    /// Whether colours are stored multiplied with alpha.
    pub(super) premultiplied: bool,
    /// Width and height of its tiles, if they are read one by one.
    pub(super) tiles: Option<[u32; 2]>,
    /// How its strips or tiles are stored, if the decoder does not unpack them.
    pub(super) packed: Option<Packed>,
    /// Bytes that decoding the largest of its JPEG streams takes; 0 if there are none.
    pub(super) stream_bytes: u64,
    /// How its pixels are to be turned.
    pub(super) orientation: Orientation,
}

impl Page {
    /// Bits per sample after conversion.
    pub(super) fn decoded_bits(&self) -> u8 {
        match self.measured {
            Some(_) => 32,
            None if self.bits == 16 => 16,
            None => 8,
        }
    }

    /// Bytes after conversion.
    pub(super) fn decoded_bytes(&self) -> u64 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        pixels * u64::from(self.kind.channels()) * u64::from(self.decoded_bits() / 8)
    }

    /// Bytes of a row of `width` pixels in one plane (if there are no planes, of all samples), padded to whole bytes.
    pub(super) fn row_bytes(&self, width: u32) -> u64 {
        let interleaved = if self.planar { 1 } else { u64::from(self.count) };
        (u64::from(width) * interleaved * u64::from(self.bits)).div_ceil(8)
    }

    /// Bytes as the decoder returns them for a picture of this size: all rows, all samples of the file.
    pub(super) fn bytes_of(&self, (width, height): (u32, u32)) -> u64 {
        let planes = if self.planar { u64::from(self.count) } else { 1 };
        self.row_bytes(width) * u64::from(height) * planes
    }

    /// Bytes of the page before conversion.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.bytes_of((self.width, self.height))
    }

    /// Bytes of a tile that is read by itself.
    pub(super) fn tile_bytes(&self) -> u64 {
        let [width, height] = self.tiles.unwrap_or_default();
        self.row_bytes(width) * u64::from(height)
    }

    /// Bytes that decoding holds beside the page: what the decoder returns and reads, or a second copy where the page is turned.
    pub(super) fn work_bytes(&self) -> u64 {
        let turned = if self.orientation == Orientation::UPRIGHT { 0 } else { self.decoded_bytes() };
        // Values take their places only once they are values.
        let moved = match self.measured {
            Some(_) if self.planar => self.decoded_bytes(),
            _ => 0,
        };
        let raw = self.raw_bytes() + self.tile_bytes() + self.packed_bytes() + self.stream_bytes;
        turned.max(raw).max(moved)
    }

    /// Bytes that unpacking its strips or tiles takes, if the decoder does not do that.
    pub(super) fn packed_bytes(&self) -> u64 {
        self.packed.map_or(0, |packed| packed.work_bytes(self))
    }

    /// The width and height that the decoder is told: for pages that are read tile by tile, those of all tiles together.
    pub(super) fn told(&self) -> (u32, u32) {
        match self.tiles {
            Some([width, height]) => {
                let up = |side: u32, tile| side.checked_next_multiple_of(tile).unwrap_or(u32::MAX);
                (up(self.width, width), up(self.height, height))
            }
            None => (self.width, self.height),
        }
    }

    /// Converts the decoder's output to grey or RGB.
    pub(super) fn convert(&self, raw: Samples) -> Samples {
        match raw {
            Samples::U8(raw) => Samples::U8(self.convert_u8(raw)),
            Samples::U16(raw) => Samples::U16(self.convert_any(self.arrange(raw))),
            Samples::F32(values) => Samples::F32(values),
        }
    }

    /// The samples that are used, interleaved.
    pub(super) fn arrange<T: Copy>(&self, raw: Vec<T>) -> Vec<T> {
        let (count, read) = (usize::from(self.count), usize::from(self.kind.samples()));
        if self.planar {
            let plane = self.width as usize * self.height as usize;
            (0..plane).flat_map(|i| (0..read).map(move |c| c * plane + i)).map(|at| raw[at]).collect()
        } else if read < count {
            raw.chunks_exact(count).flat_map(|pixel| &pixel[..read]).copied().collect()
        } else {
            raw
        }
    }

    fn convert_u8(&self, raw: Vec<u8>) -> Vec<u8> {
        let raw = if self.bits < 8 { self.unpack(&raw) } else { self.arrange(raw) };
        match &self.kind {
            Kind::Palette(map) => self.look_up(&raw, map),
            Kind::Gray if self.bits < 8 => {
                let white = (1 << self.bits) - 1;
                raw.into_iter().map(|v| v * (255 / white)).collect()
            }
            Kind::YCbCr => {
                let (pixels, _) = raw.as_chunks::<3>();
                pixels.iter().copied().flat_map(rgb_from_ycbcr).collect()
            }
            _ => self.convert_any(raw),
        }
    }

    /// Unpacks to one byte per sample, from rows of packed bits that begin at whole bytes.
    fn unpack(&self, raw: &[u8]) -> Vec<u8> {
        let (width, bits) = (self.width as usize, usize::from(self.bits));
        let row_bytes = (width * bits).div_ceil(8).max(1);
        let mask = ((1u16 << bits) - 1) as u8;
        let mut samples = Vec::with_capacity(width * self.height as usize);
        for row in raw.chunks_exact(row_bytes) {
            samples.extend((0..width).map(|x| {
                let bit = x * bits;
                row[bit / 8] >> (8 - bits - bit % 8) & mask
            }));
        }
        samples
    }

    fn look_up(&self, indices: &[u8], map: &[u16]) -> Vec<u8> {
        let colors = 1 << self.bits;
        // The standard says 16 bits, but some writers store 8.
        let shift = if map.iter().all(|&v| v < 256) { 0 } else { 8 };
        let channel = |c: usize, index: u8| (map[c * colors + usize::from(index)] >> shift) as u8;
        indices.iter().flat_map(|&index| [0, 1, 2].map(|c| channel(c, index))).collect()
    }

    fn convert_any<T: Integer>(&self, raw: Vec<T>) -> Vec<T> {
        let white = T::WHITE;
        match self.kind {
            Kind::Cmyk => {
                let (pixels, _) = raw.as_chunks::<4>();
                let light = |ink: T, k: T| {
                    let paper = u64::from(white - ink.into()) * u64::from(white - k.into());
                    T::from_u32(((paper + u64::from(white / 2)) / u64::from(white)) as u32)
                };
                pixels.iter().flat_map(|&[c, m, y, k]| [c, m, y].map(|ink| light(ink, k))).collect()
            }
            Kind::GrayAlpha if self.premultiplied => unmultiply::<T, 2>(raw),
            Kind::Rgba if self.premultiplied => unmultiply::<T, 4>(raw),
            _ => raw,
        }
    }
}

/// Undoes premultiplication: divides colours by alpha, the last of `C` channels.
fn unmultiply<T: Integer, const C: usize>(mut samples: Vec<T>) -> Vec<T> {
    let (pixels, _) = samples.as_chunks_mut::<C>();
    for pixel in pixels {
        let alpha: u32 = pixel[C - 1].into();
        for color in &mut pixel[..C - 1] {
            let value: u32 = (*color).into();
            let value = u64::from(value) * u64::from(T::WHITE) + u64::from(alpha / 2);
            let value = value.checked_div(u64::from(alpha)).unwrap_or(0);
            *color = T::from_u32(value.min(u64::from(T::WHITE)) as u32);
        }
    }
    samples
}

/// JFIF's full-range BT.601.
fn rgb_from_ycbcr([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (f32::from(y), f32::from(cb) - 128.0, f32::from(cr) - 128.0);
    // Conversion to an integer saturates.
    [y + 1.402 * cr, y - 0.344_136 * cb - 0.714_136 * cr, y + 1.772 * cb].map(|value| value.round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_jfif() {
        // The primaries, as JFIF's equations give them, rounded.
        for (ycbcr, rgb) in [
            ([76, 85, 255], [255, 0, 0]),
            ([150, 44, 21], [0, 255, 0]),
            ([29, 255, 107], [0, 0, 255]),
            ([128, 128, 128], [128, 128, 128]),
        ] {
            let got = rgb_from_ycbcr(ycbcr);
            let apart = got.iter().zip(rgb).map(|(a, b): (&u8, u8)| a.abs_diff(b)).max();
            assert!(apart <= Some(2), "{ycbcr:?} is {got:?}, not {rgb:?}");
        }
    }
}
