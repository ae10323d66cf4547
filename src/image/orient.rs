//! EXIF orientation: how stored pixels are turned into what a person sees.

use super::{Region, Samples, stack::Encoding};

/// Transposing is done in squares of this many pixels a side, so that reads and writes both stay in cache.
const SQUARE: usize = 32;

/// The EXIF tag for the orientation.
const ORIENTATION: u64 = 0x0112;

/// One of the eight ways in which a camera may have been held: the EXIF numbers 1 to 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orientation(u8);

impl Orientation {
    /// Stored as seen.
    pub(super) const UPRIGHT: Orientation = Orientation(1);

    /// From EXIF's number; anything outside 1 to 8 is upright, as viewers take it.
    pub(super) fn new(number: u64) -> Orientation {
        match number {
            1..=8 => Orientation(number as u8),
            _ => Orientation::UPRIGHT,
        }
    }

    /// From an EXIF block, which begins with its TIFF header; upright if the block does not say.
    pub(super) fn from_exif(block: &[u8]) -> Orientation {
        // Some writers of other formats keep the prefix that the block has in a JPEG.
        let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
        number_of(block).map_or(Orientation::UPRIGHT, Orientation::new)
    }

    /// EXIF's number.
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Whether width and height change places.
    pub(super) fn swaps(self) -> bool {
        self.0 >= 5
    }

    /// Maps a stored size to the size as a person sees it, and back.
    pub(super) fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.swaps() { (height, width) } else { (width, height) }
    }

    /// Whether the stored image is mirrored left to right, and top to bottom (before any transposition).
    fn mirrors(self) -> (bool, bool) {
        match self.0 {
            2 | 8 => (true, false),
            3 | 7 => (true, true),
            4 | 6 => (false, true),
            _ => (false, false),
        }
    }

    /// Turns the pixels of a stored `width` × `height` image with `channels` samples per pixel.
    pub(super) fn turn(self, samples: Samples, width: u32, height: u32, channels: u8) -> Samples {
        if self == Orientation::UPRIGHT {
            return samples;
        }
        let (width, height) = (width as usize, height as usize);
        match samples {
            Samples::U8(stored) => Samples::U8(self.turn_any(&stored, width, height, channels)),
            Samples::U16(stored) => Samples::U16(self.turn_any(&stored, width, height, channels)),
            Samples::F32(stored) => Samples::F32(self.turn_any(&stored, width, height, channels)),
        }
    }

    fn turn_any<T: Copy + Default>(self, stored: &[T], width: usize, height: usize, channels: u8) -> Vec<T> {
        match channels {
            1 => self.turn_pixels::<T, 1>(stored, width, height),
            2 => self.turn_pixels::<T, 2>(stored, width, height),
            3 => self.turn_pixels::<T, 3>(stored, width, height),
            4 => self.turn_pixels::<T, 4>(stored, width, height),
            more => {
                let mut seen = vec![T::default(); stored.len()];
                for channel in 0..usize::from(more) {
                    let plane = plane(stored, channel, more);
                    let turned = self.turn_pixels::<T, 1>(&plane, width, height);
                    let places = seen.iter_mut().skip(channel).step_by(usize::from(more));
                    places.zip(turned).for_each(|(place, sample)| *place = sample);
                }
                seen
            }
        }
    }

    fn turn_pixels<T: Copy + Default, const C: usize>(
        self,
        stored: &[T],
        width: usize,
        height: usize,
    ) -> Vec<T> {
        let mut seen = vec![T::default(); stored.len()];
        let (from, _) = stored.as_chunks::<C>();
        let (to, _) = seen.as_chunks_mut::<C>();
        let (mirror_x, mirror_y) = self.mirrors();
        let column = |x: usize| if mirror_x { width - 1 - x } else { x };
        let row = |y: usize| if mirror_y { height - 1 - y } else { y };
        if self.swaps() {
            // Seen (x, y) is stored (column(y), row(x)); the seen image is `height` wide.
            for top in (0..width).step_by(SQUARE) {
                for left in (0..height).step_by(SQUARE) {
                    for y in top..(top + SQUARE).min(width) {
                        for x in left..(left + SQUARE).min(height) {
                            to[y * height + x] = from[row(x) * width + column(y)];
                        }
                    }
                }
            }
        } else {
            for (y, line) in to.chunks_exact_mut(width).enumerate() {
                let start = row(y) * width;
                let source = &from[start..start + width];
                if mirror_x {
                    for (pixel, stored) in line.iter_mut().zip(source.iter().rev()) {
                        *pixel = *stored;
                    }
                } else {
                    line.copy_from_slice(source);
                }
            }
        }
        seen
    }

    /// Where `region` of a stored `width` × `height` image lies in the image as seen.
    pub(super) fn turn_region(self, region: Region, width: u32, height: u32) -> Region {
        let (mirror_x, mirror_y) = self.mirrors();
        let mut seen = region;
        if mirror_x {
            seen.left = f64::from(width) - region.left - region.width;
        }
        if mirror_y {
            seen.top = f64::from(height) - region.top - region.height;
        }
        if self.swaps() {
            Region { left: seen.top, top: seen.left, width: seen.height, height: seen.width }
        } else {
            seen
        }
    }
}

/// The orientation in the first directory of an EXIF block: one number, which has 16 bits by the standard and 32 bits with some writers.
fn number_of(block: &[u8]) -> Option<u64> {
    let encoding = Encoding::begins(block).filter(|encoding| !encoding.big)?;
    let number = |at: u64, bytes: u64| {
        let range = usize::try_from(at).ok()?..usize::try_from(at + bytes).ok()?;
        Some(encoding.number(block.get(range)?))
    };
    let directory = number(4, 4)?;
    let mut entries = (0..number(directory, 2)?).map(|index| directory + 2 + 12 * index);
    let entry = entries.find(|entry| number(*entry, 2) == Some(ORIENTATION))?;
    match (number(entry + 2, 2)?, number(entry + 4, 4)?) {
        (3, 1) => number(entry + 8, 2),
        (4, 1) => number(entry + 8, 4),
        _ => None,
    }
}

/// The samples of one channel, of pixels that have so many.
pub(super) fn plane<T: Copy>(samples: &[T], channel: usize, channels: u8) -> Vec<T> {
    samples.iter().skip(channel).step_by(usize::from(channels)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::{Orientation, Region, Samples};

    /// What a 3 × 2 image `abc / def` looks like under each number, by EXIF's definition of the 0th row and column.
    const SEEN: [(&str, u64); 8] = [
        ("abcdef", 1),
        ("cbafed", 2),
        ("fedcba", 3),
        ("defabc", 4),
        ("adbecf", 5),
        ("daebfc", 6),
        ("fcebda", 7),
        ("cfbead", 8),
    ];

    #[test]
    fn each_number_turns_pixels_as_exif_defines_it() {
        for (seen, number) in SEEN {
            for channels in 1..=6u8 {
                let wide = |text: &str| -> Vec<u8> {
                    text.bytes().flat_map(|b| (0..channels).map(move |c| b + 20 * c)).collect()
                };
                let turned = Orientation::new(number).turn(Samples::U8(wide("abcdef")), 3, 2, channels);
                assert_eq!(turned, Samples::U8(wide(seen)), "{number} × {channels}");
            }
        }
    }

    #[test]
    fn a_region_turns_with_its_pixels() {
        // The pixel `c` of `abc / def`.
        let c = Region { left: 2.0, top: 0.0, width: 1.0, height: 1.0 };
        for (seen, number) in SEEN {
            let orientation = Orientation::new(number);
            let (width, _) = orientation.size(3, 2);
            let at = seen.find('c').expect("c is in every row") as u32;
            let region = orientation.turn_region(c, 3, 2);
            assert_eq!((region.left, region.top), (f64::from(at % width), f64::from(at / width)), "{number}");
        }
    }

    #[test]
    fn numbers_outside_exif_are_upright() {
        assert_eq!(Orientation::new(0), Orientation::UPRIGHT);
        assert_eq!(Orientation::new(9), Orientation::UPRIGHT);
        assert_eq!(Orientation::from_exif(b"MM\0*junk"), Orientation::UPRIGHT);
        let far = b"II*\0\xff\xff\xff\xff\x01\0\x12\x01";
        assert_eq!(Orientation::from_exif(far), Orientation::UPRIGHT);
    }

    #[test]
    fn an_orientation_of_16_or_32_bits_in_either_order_is_read() {
        let resolution = [0x1a, 1, 5, 0, 1, 0, 0, 0, 8, 0, 0, 0];
        for (kind, bytes) in [(3, 2), (4, 4)] {
            let entry = [0x12, 1, kind, 0, 1, 0, 0, 0, 6, 0, 0, 0];
            let little = [b"II*\0\x08\0\0\0\x02\0", &resolution[..], &entry].concat();
            assert_eq!(Orientation::from_exif(&little).number(), 6);
            let mut value = [0; 4];
            value[bytes - 1] = 6;
            let entry = [&[1, 0x12, 0, kind, 0, 0, 0, 1], &value[..]].concat();
            let big = [b"MM\0*\0\0\0\x08\0\x01", &entry[..]].concat();
            assert_eq!(Orientation::from_exif(&big).number(), 6);
            assert_eq!(Orientation::from_exif(&big[..big.len() - 4]), Orientation::UPRIGHT, "it is cut off");
        }
    }
}
