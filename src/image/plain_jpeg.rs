//! Selects the JPEGs that a hardware decoder may be given: complete files of the commonest kind. Any other file goes to the strict decoder
//! in `jpeg`, which decodes it or says what is wrong.
//!
//! A file qualifies if it is baseline with 8 bits, has three YCbCr components sampled 4:4:4, 4:4:0, 4:2:2 or 4:2:0, and has one scan that
//! ends with the end marker and has as many restarts as the file states. This excludes files that are cut off, progressive, grey, CMYK or
//! of 12 bits. Codes within the scan are not read: a decoder may or may not notice damage there.

use super::Orientation;

/// A JPEG of the commonest kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainJpeg {
    /// Width as stored, in pixels.
    pub width: u32,
    /// Height as stored, in pixels.
    pub height: u32,
    /// EXIF's number for the orientation, 1 to 8.
    pub orientation: u8,
    /// The offset at which the scan begins.
    scan: usize,
    /// Restarts that the scan must have.
    restarts: u64,
}

impl PlainJpeg {
    /// Width and height as a person sees it.
    pub fn seen(&self) -> (u32, u32) {
        Orientation::new(u64::from(self.orientation)).size(self.width, self.height)
    }

    /// Whether the scan is complete. Reads all of the file.
    pub fn is_whole(&self, bytes: &[u8]) -> bool {
        bytes.get(self.scan..).and_then(restarts_of_scan) == Some(self.restarts)
    }
}

/// What the segments before the scan say.
struct Segments {
    size: Option<(u32, u32)>,
    /// Pixels of a minimal coded unit, along x and y.
    unit: (u32, u32),
    orientation: Option<Orientation>,
    /// Units between restarts; 0 for none.
    restart_units: u32,
}

/// Checks the file up to its scan: what it is, if it is of the kind above.
pub fn plain_jpeg(bytes: &[u8]) -> Option<PlainJpeg> {
    let mut rest = bytes.strip_prefix(&[0xff, 0xd8])?;
    let mut segments = Segments { size: None, unit: (8, 8), orientation: None, restart_units: 0 };
    loop {
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let content = rest.get(4..2 + length)?;
        rest = &rest[2 + length..];
        match marker {
            // One scan of all three components, all coefficients at once.
            0xda => match content {
                [3, _, _, _, _, _, _, 0, 63, 0] => break,
                _ => return None,
            },
            0xc0 => segments.frame(content)?,
            // Any other kind of frame, arithmetic coding, or a height that comes later.
            0xc1..=0xc3 | 0xc5..=0xcf | 0xdc | 0xde | 0xdf => return None,
            0xdd => segments.restart_units = u32::from(u16::from_be_bytes(content.try_into().ok()?)),
            0xe1 => {
                if let Some(exif) = content.strip_prefix(b"Exif\0\0") {
                    segments.orientation.get_or_insert_with(|| Orientation::from_exif(exif));
                }
            }
            // Adobe's segment: its last byte says how colours are stored; 1 is YCbCr.
            0xee if content.starts_with(b"Adobe") && content.get(11) != Some(&1) => return None,
            0xc4 | 0xdb | 0xe0..=0xef | 0xfe => {}
            _ => return None,
        }
    }
    let (width, height) = segments.size?;
    let units = u64::from(width.div_ceil(segments.unit.0)) * u64::from(height.div_ceil(segments.unit.1));
    let restarts = match segments.restart_units {
        0 => 0,
        interval => units.div_ceil(u64::from(interval)) - 1,
    };
    let scan = bytes.len() - rest.len();
    let orientation = segments.orientation.unwrap_or(Orientation::UPRIGHT).number();
    Some(PlainJpeg { width, height, orientation, scan, restarts })
}

impl Segments {
    /// The frame's header: precision, height, width, and three components with their sampling.
    fn frame(&mut self, content: &[u8]) -> Option<()> {
        let [8, h1, h0, w1, w0, 3, id1, sampling, _, id2, 0x11, _, id3, 0x11, _] = *content else {
            return None;
        };
        let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
        let unit = match sampling {
            0x11 => (8, 8),
            0x12 => (8, 16),
            0x21 => (16, 8),
            0x22 => (16, 16),
            _ => return None,
        };
        let stored_as_rgb = [id1, id2, id3] == *b"RGB";
        if stored_as_rgb || width == 0 || height == 0 || self.size.is_some() {
            return None;
        }
        self.size = Some((u32::from(width), u32::from(height)));
        self.unit = unit;
        Some(())
    }
}

/// The number of restarts in a scan, which must come in order; `None` if the scan does not end with the end marker.
fn restarts_of_scan(mut codes: &[u8]) -> Option<u64> {
    let mut restarts = 0;
    loop {
        let at = codes.iter().position(|byte| *byte == 0xff)?;
        match *codes.get(at + 1)? {
            // A stuffed 0xff, which is part of the codes.
            0x00 => {}
            restart @ 0xd0..=0xd7 if u64::from(restart - 0xd0) == restarts % 8 => restarts += 1,
            0xd9 => return Some(restarts),
            _ => return None,
        }
        codes = &codes[at + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these segments, this frame header and this scan.
    fn file(frame: (u8, &[u8]), before: &[&[u8]], scan: &[u8]) -> Vec<u8> {
        let segment = |marker: u8, content: &[u8]| {
            let length = (content.len() as u16 + 2).to_be_bytes();
            [&[0xff, marker][..], &length, content].concat()
        };
        let head = segment(0xda, &[3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0]);
        [&[0xff, 0xd8], &before.concat()[..], &segment(frame.0, frame.1), &head, scan].concat()
    }

    const FRAME: [u8; 15] = [8, 0, 20, 0, 33, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1];
    const SCAN: [u8; 6] = [7, 0xff, 0x00, 8, 0xff, 0xd9];

    fn taken(file: &[u8]) -> Option<PlainJpeg> {
        plain_jpeg(file).filter(|jpeg| jpeg.is_whole(file))
    }

    fn size(file: &[u8]) -> Option<(u32, u32)> {
        taken(file).map(|jpeg| (jpeg.width, jpeg.height))
    }

    #[test]
    fn the_commonest_kind_is_taken() {
        assert_eq!(size(&file((0xc0, &FRAME), &[], &SCAN)), Some((33, 20)));
        for sampling in [0x11, 0x12, 0x21, 0x22] {
            let mut frame = FRAME;
            frame[7] = sampling;
            assert!(size(&file((0xc0, &frame), &[], &SCAN)).is_some(), "{sampling:x}");
        }
        let trailing = [&SCAN[..], b"more"].concat();
        assert!(size(&file((0xc0, &FRAME), &[], &trailing)).is_some(), "what follows the end is nobody's");
    }

    #[test]
    fn anything_else_is_left_to_the_strict_decoder() {
        let check = |what: &str, file: &[u8]| assert_eq!(taken(file), None, "{what}");
        check("progressive", &file((0xc2, &FRAME), &[], &SCAN));
        check("extended", &file((0xc1, &FRAME), &[], &SCAN));
        for (what, at, value) in [
            ("12 bits", 0, 12),
            ("grey", 5, 1),
            ("4:1:1", 7, 0x41),
            ("chroma of its own size", 10, 0x21),
            ("no height", 2, 0),
        ] {
            let mut frame = FRAME;
            frame[at] = value;
            check(what, &file((0xc0, &frame), &[], &SCAN));
        }
        let mut rgb = FRAME;
        (rgb[6], rgb[9], rgb[12]) = (b'R', b'G', b'B');
        check("stored as RGB", &file((0xc0, &rgb), &[], &SCAN));
        let adobe =
            |transform: u8| [&[0xff, 0xee, 0, 14][..], b"Adobe", &[0, 100, 0, 0, 0, 0, transform]].concat();
        check("stored as RGB, says Adobe", &file((0xc0, &FRAME), &[&adobe(0)], &SCAN));
        assert!(size(&file((0xc0, &FRAME), &[&adobe(1)], &SCAN)).is_some());
        check("another format", b"\x89PNG\r\n\x1a\n");
        check("two frames", &file((0xc0, &FRAME), &[&file((0xc0, &FRAME), &[], &[])[2..21]], &SCAN));
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_left_to_the_strict_decoder() {
        let whole = file((0xc0, &FRAME), &[], &SCAN);
        for length in 0..whole.len() {
            assert_eq!(taken(&whole[..length]), None, "{length} of {} bytes", whole.len());
        }
    }

    #[test]
    fn restarts_must_be_as_many_as_announced_and_in_order() {
        // 33 x 20 pixels in units of 16 x 16 are 6; every 2 of them, 2 restarts.
        let announced: &[u8] = &[0xff, 0xdd, 0, 4, 0, 2];
        let check = |scan: &[u8]| size(&file((0xc0, &FRAME), &[announced], scan)).is_some();
        assert!(check(&[1, 0xff, 0xd0, 2, 0xff, 0xd1, 3, 0xff, 0xd9]));
        assert!(!check(&[1, 0xff, 0xd0, 3, 0xff, 0xd9]), "one is missing");
        assert!(!check(&[1, 0xff, 0xd1, 2, 0xff, 0xd0, 3, 0xff, 0xd9]), "out of order");
        assert!(!check(&SCAN), "none");
    }
}
