//! Recognises an image's format by its first bytes alone: file names and content types are not trusted.

use std::fmt;

/// The formats that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Baseline and progressive, 8 bits: grey, YCbCr, RGB, CMYK, YCCK.
    Jpeg,
    /// 1 to 16 bits, palettes, transparency, interlacing; of an animation, its default image.
    Png,
    /// Lossy and lossless, with and without alpha; of an animation, its first frame.
    WebP,
    /// Uncompressed, run-length and bit-field bitmaps.
    Bmp,
    /// The first frame.
    Gif,
    /// Any number of pages of 8 or 16 bits (and fewer, for grey and palettes), classic and BigTIFF.
    Tiff,
    /// Lossy and lossless, up to 16 bits; of an animation, its first frame.
    Jxl,
    /// Files (JP2) and bare codestreams, up to 16 bits.
    Jpeg2000,
    /// PBM, PGM, PPM and PAM, with up to 16 bits a sample; the first image.
    Pnm,
    /// NumPy arrays of 8 or 16 bits, of one image or several.
    Npy,
}

impl Format {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Format; 10] = [
        Format::Jpeg,
        Format::Png,
        Format::WebP,
        Format::Bmp,
        Format::Gif,
        Format::Tiff,
        Format::Jxl,
        Format::Jpeg2000,
        Format::Pnm,
        Format::Npy,
    ];

    /// The format whose magic bytes `bytes` begins with.
    pub fn sniff(bytes: &[u8]) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.begins(bytes))
    }

    fn begins(self, bytes: &[u8]) -> bool {
        let begins = |magic: &[u8]| bytes.starts_with(magic);
        match self {
            Format::Jpeg => begins(b"\xff\xd8\xff"),
            Format::Png => begins(b"\x89PNG\r\n\x1a\n"),
            Format::WebP => begins(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"),
            // Two letters are little evidence, so the reserved bytes must also be zero, or a header of a known size must follow.
            Format::Bmp => begins(b"BM") && (bytes.get(6..10) == Some(&[0; 4]) || has_bmp_header(bytes)),
            Format::Gif => begins(b"GIF87a") || begins(b"GIF89a"),
            Format::Tiff => [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].into_iter().any(|magic| begins(magic)),
            Format::Jxl => begins(b"\xff\x0a") || begins(b"\0\0\0\x0cJXL \r\n\x87\n"),
            Format::Jpeg2000 => begins(b"\xff\x4f\xff\x51") || begins(b"\0\0\0\x0cjP  \r\n\x87\n"),
            Format::Pnm => is_pnm(bytes),
            Format::Npy => begins(b"\x93NUMPY"),
        }
    }

    /// Whether a small file can take its decoder many seconds, however few pixels it has for that: nothing bounds the work for a pixel
    /// but the format.
    pub fn is_slow(self) -> bool {
        matches!(self, Format::Jxl | Format::Jpeg2000)
    }

    /// The media type that HTTP uses, such as `image/jpeg`.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Jpeg => "image/jpeg",
            Format::Png => "image/png",
            Format::WebP => "image/webp",
            Format::Bmp => "image/bmp",
            Format::Gif => "image/gif",
            Format::Tiff => "image/tiff",
            Format::Jxl => "image/jxl",
            Format::Jpeg2000 => "image/jp2",
            Format::Pnm => "image/x-portable-anymap",
            // None is registered.
            Format::Npy => "application/x-npy",
        }
    }

    /// What people call it, such as `JPEG`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::WebP => "WebP",
            Format::Bmp => "BMP",
            Format::Gif => "GIF",
            Format::Tiff => "TIFF",
            Format::Jxl => "JPEG XL",
            Format::Jpeg2000 => "JPEG 2000",
            Format::Pnm => "PNM",
            Format::Npy => "NPY",
        }
    }
}

/// Whether the second header has one of the known sizes, which tell the kinds of bitmap apart: those of OS/2 (12, 16, 64) and of Windows.
fn has_bmp_header(bytes: &[u8]) -> bool {
    let size = bytes.get(14..18).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
    matches!(size, Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124))
}

/// A letter and a digit are little evidence, so a number or a comment must follow, or the header's next line.
fn is_pnm(bytes: &[u8]) -> bool {
    match bytes {
        [b'P', b'1'..=b'6', space, next, ..] if space.is_ascii_whitespace() => {
            next.is_ascii_digit() || next.is_ascii_whitespace() || *next == b'#'
        }
        [b'P', b'7', b'\n', next, ..] => next.is_ascii_uppercase() || *next == b'#',
        _ => false,
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        for (bytes, format) in [
            (&b"\xff\xd8\xff\xe0"[..], Some(Format::Jpeg)),
            (b"\x89PNG\r\n\x1a\n....", Some(Format::Png)),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some(Format::WebP)),
            (b"RIFF\x10\0\0\0WAVEfmt ", None),
            (b"BM\x10\0\0\0\0\0\0\0", Some(Format::Bmp)),
            (b"BM\x10\0\0\0abcd\x36\0\0\0\x28\0\0\0", Some(Format::Bmp)),
            (b"BM\x10\0\0\0abcd\x36\0\0\0\x29\0\0\0", None),
            (b"BMW is a car maker", None),
            (b"GIF89a", Some(Format::Gif)),
            (b"MM\0+", Some(Format::Tiff)),
            (b"\xff\x0a\xfa\x7f", Some(Format::Jxl)),
            (b"\0\0\0\x0cJXL \r\n\x87\n\0\0", Some(Format::Jxl)),
            (b"\0\0\0\x0cjP  \r\n\x87\n\0\0", Some(Format::Jpeg2000)),
            (b"\xff\x4f\xff\x51\0\x2f", Some(Format::Jpeg2000)),
            (b"P5\n64 64\n255\n", Some(Format::Pnm)),
            (b"P2\n# by hand", Some(Format::Pnm)),
            (b"P7\nWIDTH 7", Some(Format::Pnm)),
            (b"P2 is a number", None),
            (b"P8 7 7", None),
            (b"\x93NUMPY\x01\0", Some(Format::Npy)),
            (b"", None),
        ] {
            assert_eq!(Format::sniff(bytes), format, "{bytes:?}");
        }
    }
}
