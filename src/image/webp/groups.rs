//! How much memory the prefix codes of a lossless stream take, computed before a decoder allocates it.
//!
//! Each block of an image may have codes of its own, up to 65,536 groups of five. A file states them in hundreds of times fewer bytes than
//! their tables take: a picture of 4 x 4 pixels can ask for gigabytes. So the stream is read here, as RFC 9649 defines it, up to where its
//! pixels begin, and the bytes of the tables are summed up. Only small images are decoded on the way: those of transforms, and the one that
//! says which block uses which group.

/// The stream ends early or states something impossible; the decoder reports that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What the decoder allocates for a group beside its tables.
const GROUP_BYTES: u64 = 5 * 56;
/// The decoder's tables are indexed by at most this many bits; longer codes use nodes behind the table.
const TABLE_BITS: u8 = 10;
/// At most two nodes for each symbol behind a table.
const NODES_BYTES: u64 = 2 * 16;

/// Symbols of green (with the lengths of copies), red, blue, alpha and distances; green also has those of a colour cache.
const SYMBOLS: [usize; 5] = [256 + 24, 256, 256, 256, 40];
/// The order in which the lengths of the code-length codes are stored.
const LENGTHS: [usize; 19] = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The columns and rows to go back for the first 120 distances.
#[rustfmt::skip]
const NEAR: [(i8, i8); 120] = [
    (0, 1), (1, 0), (1, 1), (-1, 1), (0, 2), (2, 0), (1, 2), (-1, 2), (2, 1), (-2, 1), (2, 2), (-2, 2), (0, 3), (3, 0), (1, 3), (-1, 3),
    (3, 1), (-3, 1), (2, 3), (-2, 3), (3, 2), (-3, 2), (0, 4), (4, 0), (1, 4), (-1, 4), (4, 1), (-4, 1), (3, 3), (-3, 3), (2, 4), (-2, 4),
    (4, 2), (-4, 2), (0, 5), (3, 4), (-3, 4), (4, 3), (-4, 3), (5, 0), (1, 5), (-1, 5), (5, 1), (-5, 1), (2, 5), (-2, 5), (5, 2), (-5, 2),
    (4, 4), (-4, 4), (3, 5), (-3, 5), (5, 3), (-5, 3), (0, 6), (6, 0), (1, 6), (-1, 6), (6, 1), (-6, 1), (2, 6), (-2, 6), (6, 2), (-6, 2),
    (4, 5), (-4, 5), (5, 4), (-5, 4), (3, 6), (-3, 6), (6, 3), (-6, 3), (0, 7), (7, 0), (1, 7), (-1, 7), (5, 5), (-5, 5), (7, 1), (-7, 1),
    (4, 6), (-4, 6), (6, 4), (-6, 4), (2, 7), (-2, 7), (7, 2), (-7, 2), (3, 7), (-3, 7), (7, 3), (-7, 3), (5, 6), (-5, 6), (6, 5), (-6, 5),
    (8, 0), (4, 7), (-4, 7), (7, 4), (-7, 4), (8, 1), (8, 2), (6, 6), (-6, 6), (8, 3), (5, 7), (-5, 7), (7, 5), (-7, 5), (8, 4), (6, 7),
    (-6, 7), (7, 6), (-7, 6), (8, 5), (7, 7), (-7, 7), (8, 6), (8, 7),
];

/// Bytes of the tables of a `VP8L` chunk.
pub(super) fn of_chunk(chunk: &[u8]) -> Result<u64, Broken> {
    let mut bits = Bits::new(chunk);
    if bits.read(8)? != 0x2f {
        return Err(Broken);
    }
    let size = (bits.read(14)? + 1, bits.read(14)? + 1);
    // Whether alpha is used, and the version.
    bits.read(4)?;
    of_stream(&mut bits, size)
}

/// Bytes of the tables of the lossless stream in an `ALPH` chunk, for a picture of this size; 0 if the chunk has none.
pub(super) fn of_alpha(chunk: &[u8], size: (u32, u32)) -> Result<u64, Broken> {
    match chunk {
        [flags, stream @ ..] if flags & 3 == 1 => of_stream(&mut Bits::new(stream), size),
        _ => Ok(0),
    }
}

fn of_stream(bits: &mut Bits<'_>, (mut width, height): (u32, u32)) -> Result<u64, Broken> {
    let blocks = |side: u32, shift: u32| side.div_ceil(1 << shift);
    let mut met = [false; 4];
    while bits.read(1)? == 1 {
        let kind = bits.read(2)? as usize;
        if std::mem::replace(&mut met[kind], true) {
            return Err(Broken);
        }
        match kind {
            0 | 1 => {
                let shift = bits.read(3)? + 2;
                pixels(bits, (blocks(width, shift), blocks(height, shift)))?;
            }
            2 => {}
            _ => {
                let colors = bits.read(8)? + 1;
                pixels(bits, (colors, 1))?;
                let shift = match colors {
                    ..=2 => 3,
                    3..=4 => 2,
                    5..=16 => 1,
                    _ => 0,
                };
                width = blocks(width, shift);
            }
        }
    }
    let cache = cache_bits(bits)?;
    let mut groups = 1;
    if bits.read(1)? == 1 {
        let shift = bits.read(3)? + 2;
        let image = pixels(bits, (blocks(width, shift), blocks(height, shift)))?;
        groups += image.iter().map(|argb| argb >> 8 & 0xffff).max().unwrap_or_default();
    }
    let mut bytes = 0;
    for _ in 0..groups {
        bytes += GROUP_BYTES;
        for code in codes(bits, cache)? {
            bytes += code.bytes_decoded();
        }
    }
    Ok(bytes)
}

fn cache_bits(bits: &mut Bits<'_>) -> Result<u32, Broken> {
    match bits.read(1)? {
        0 => Ok(0),
        _ => Some(bits.read(4)?).filter(|bits| (1..=11).contains(bits)).ok_or(Broken),
    }
}

fn codes(bits: &mut Bits<'_>, cache: u32) -> Result<[Code; 5], Broken> {
    let mut codes: [Code; 5] = Default::default();
    for (index, code) in codes.iter_mut().enumerate() {
        let cached = if index == 0 && cache > 0 { 1 << cache } else { 0 };
        *code = Code::read(bits, SYMBOLS[index] + cached)?;
    }
    Ok(codes)
}

/// Decodes the pixels, as ARGB, of an image that has one group of codes.
fn pixels(bits: &mut Bits<'_>, (width, height): (u32, u32)) -> Result<Vec<u32>, Broken> {
    let cache_bits = cache_bits(bits)?;
    let mut cache = vec![0_u32; if cache_bits > 0 { 1 << cache_bits } else { 0 }];
    let [green, red, blue, alpha, distance] = codes(bits, cache_bits)?;
    let count = width as usize * height as usize;
    let mut image: Vec<u32> = Vec::with_capacity(count);
    while image.len() < count {
        let begin = image.len();
        match green.symbol(bits)? {
            literal @ 0..256 => {
                let (red, blue, alpha) = (red.symbol(bits)?, blue.symbol(bits)?, alpha.symbol(bits)?);
                image.push((alpha as u32) << 24 | (red as u32) << 16 | (literal as u32) << 8 | blue as u32);
            }
            length @ 256..280 => {
                let length = number(bits, length - 256)?;
                let distance = distance.symbol(bits)?;
                let back = back(number(bits, distance)?, width as usize);
                if back > begin || length > count - begin {
                    return Err(Broken);
                }
                (0..length).for_each(|_| image.push(image[image.len() - back]));
            }
            cached => image.push(*cache.get(cached - 280).ok_or(Broken)?),
        }
        if cache_bits > 0 {
            for argb in &image[begin..] {
                cache[(0x1e35_a7bd_u32.wrapping_mul(*argb) >> (32 - cache_bits)) as usize] = *argb;
            }
        }
    }
    Ok(image)
}

/// Reads the length or distance that a symbol begins.
fn number(bits: &mut Bits<'_>, symbol: usize) -> Result<usize, Broken> {
    if symbol < 4 {
        return Ok(symbol + 1);
    }
    let extra = (symbol as u32 - 2) >> 1;
    Ok(((2 + (symbol & 1)) << extra) + bits.read(extra)? as usize + 1)
}

/// How many pixels to go back for a distance code.
fn back(distance: usize, width: usize) -> usize {
    match NEAR.get(distance - 1) {
        Some((columns, rows)) => {
            let back = isize::from(*columns) + isize::from(*rows) * width as isize;
            back.max(1) as usize
        }
        None => distance - NEAR.len(),
    }
}

/// A prefix code: how many symbols there are of each code length, and the symbols, shortest code first.
#[derive(Debug, Default)]
struct Code {
    /// How many symbols have a code of each number of bits.
    counts: [u32; 16],
    symbols: Vec<u16>,
}

impl Code {
    fn read(bits: &mut Bits<'_>, symbols: usize) -> Result<Code, Broken> {
        if bits.read(1)? == 1 {
            let two = bits.read(1)? == 1;
            let wide = bits.read(1)? == 1;
            // In the order in which they are stored, as in the decoder.
            let mut code =
                Code { symbols: vec![bits.read(if wide { 8 } else { 1 })? as u16], ..Code::default() };
            if two {
                code.symbols.push(bits.read(8)? as u16);
            }
            code.counts[1] = code.symbols.len() as u32;
            let known = |symbol: &u16| usize::from(*symbol) < symbols;
            return if code.symbols.iter().all(known) { Ok(code) } else { Err(Broken) };
        }
        let mut lengths = [0; 19];
        for place in LENGTHS.iter().take(bits.read(4)? as usize + 4) {
            lengths[*place] = bits.read(3)? as u8;
        }
        let code = Code::of(&lengths)?;
        let mut left = match bits.read(1)? {
            0 => symbols,
            _ => {
                let width = 2 + 2 * bits.read(3)?;
                2 + bits.read(width)? as usize
            }
        };
        let (mut lengths, mut last) = (Vec::with_capacity(symbols), 8);
        while lengths.len() < symbols && left > 0 {
            left -= 1;
            let (length, times) = match code.symbol(bits)? {
                16 => (last, 3 + bits.read(2)?),
                17 => (0, 3 + bits.read(3)?),
                18 => (0, 11 + bits.read(7)?),
                length => (length as u8, 1),
            };
            lengths.extend(std::iter::repeat_n(length, times as usize));
            last = if length > 0 { length } else { last };
        }
        if lengths.len() > symbols {
            return Err(Broken);
        }
        Code::of(&lengths)
    }

    fn of(lengths: &[u8]) -> Result<Code, Broken> {
        let mut code = Code::default();
        for length in 1..=15 {
            let of_length = (0_u16..).zip(lengths).filter(|(_, known)| **known == length);
            let before = code.symbols.len();
            code.symbols.extend(of_length.map(|(symbol, _)| symbol));
            code.counts[usize::from(length)] = (code.symbols.len() - before) as u32;
        }
        if code.symbols.is_empty() { Err(Broken) } else { Ok(code) }
    }

    /// Reads the next symbol. A symbol that is alone takes no bits.
    fn symbol(&self, bits: &mut Bits<'_>) -> Result<usize, Broken> {
        if let [only] = self.symbols[..] {
            return Ok(usize::from(only));
        }
        let (mut code, mut first, mut before) = (0_u32, 0_u32, 0_u32);
        for count in &self.counts[1..] {
            code |= bits.read(1)?;
            if code < first + count {
                let at = (before + code).checked_sub(first).ok_or(Broken)?;
                return self.symbols.get(at as usize).map(|symbol| usize::from(*symbol)).ok_or(Broken);
            }
            (before, first, code) = (before + count, (first + count) << 1, code << 1);
        }
        Err(Broken)
    }

    /// Bytes that a decoder allocates for it.
    fn bytes_decoded(&self) -> u64 {
        if self.symbols.len() == 1 {
            return 0;
        }
        let longest = self.counts.iter().rposition(|count| *count > 0).unwrap_or_default() as u8;
        let behind: u32 = self.counts[usize::from(TABLE_BITS) + 1..].iter().sum();
        (4 << longest.min(TABLE_BITS)) + NODES_BYTES * u64::from(behind)
    }
}

/// Reads bits, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0 }
    }

    fn read(&mut self, count: u32) -> Result<u32, Broken> {
        let mut value = 0;
        for i in 0..count {
            let byte = *self.bytes.get(self.at / 8).ok_or(Broken)?;
            value |= u32::from(byte >> (self.at % 8) & 1) << i;
            self.at += 1;
        }
        Ok(value)
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Streams that ask for much.

    /// Bits, as a stream has them.
    #[derive(Default)]
    struct Writer {
        bytes: Vec<u8>,
        bits: u32,
    }

    impl Writer {
        fn write(&mut self, value: u32, count: u32) {
            for i in 0..count {
                if self.bits.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().unwrap() |= ((value >> i & 1) as u8) << (self.bits % 8);
                self.bits += 1;
            }
        }

        /// A code of one symbol.
        fn single(&mut self, symbol: u32) {
            self.write(0b101, 3);
            self.write(symbol, 8);
        }

        /// A code of eleven symbols, the longest of ten bits.
        fn ten_bits(&mut self) {
            self.write(0, 1);
            // Lengths 1 to 6 have codes of three bits, 7 to 10 of four.
            let places = super::LENGTHS.iter().rposition(|place| *place == 10).unwrap() + 1;
            self.write(places as u32 - 4, 4);
            for place in &super::LENGTHS[..places] {
                self.write([3, 4][usize::from(*place > 6)] * u32::from((1..=10).contains(place)), 3);
            }
            self.write(1, 1);
            self.write(1, 3);
            self.write(11 - 2, 4);
            for length in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10_u32] {
                let (code, bits) = if length <= 6 { (length - 1, 3) } else { (12 + length - 7, 4) };
                // The first bit of a code comes first.
                (0..bits).rev().for_each(|bit| self.write(code >> bit, 1));
            }
        }
    }

    /// A picture of 4 x 4 pixels, as a `VP8L` chunk, whose one block has the last of so many groups of codes.
    pub(in super::super) fn picture(groups: u32) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.write(0x2f, 8);
        writer.write(3, 14);
        writer.write(3, 14);
        // Neither alpha, transforms nor a cache; groups for blocks of 4 x 4.
        writer.write(0, 6);
        writer.write(1, 1);
        writer.write(0, 3);
        writer.write(0, 1);
        [(groups - 1) & 255, (groups - 1) >> 8, 0, 0, 0].into_iter().for_each(|symbol| writer.single(symbol));
        (0..5 * groups).for_each(|_| writer.ten_bits());
        writer.write(0, 32);
        writer.write(0, 32);
        writer.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_counted_for_all_groups_however_few_pixels_there_are() {
        for groups in [1, 2, 300, 3000] {
            let chunk = testing::picture(groups);
            assert_eq!(of_chunk(&chunk), Ok(u64::from(groups) * (GROUP_BYTES + 5 * 4096)));
            // Of the pixels nothing is read.
            assert_eq!(of_chunk(&chunk[..chunk.len() - 40]), Err(Broken));
        }
        let stream = &testing::picture(7)[5..];
        // Alpha begins where a chunk has the size behind it.
        let alpha = [&[1], stream].concat();
        assert_eq!(of_alpha(&alpha, (4, 4)), Ok(7 * (GROUP_BYTES + 5 * 4096)));
        assert_eq!(of_alpha(&[0, 1, 2], (4, 4)), Ok(0));
    }

    #[test]
    fn near_distances_are_columns_and_rows_back() {
        let backs: Vec<usize> =
            [1, 2, 3, 4, 120, 121, 200].iter().map(|distance| back(*distance, 10)).collect();
        assert_eq!(backs, [10, 1, 11, 9, 78, 1, 80]);
        assert_eq!(back(13, 1), 3);
        assert_eq!(back(4, 1), 1, "not before the first");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let _ = of_stream(&mut Bits::new(&bytes), (300, 200));
        }
    }
}
