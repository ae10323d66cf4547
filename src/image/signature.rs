//! How files begin that are posted in the place of others: one table for bodies that are posted as images ([`super::foreign`]) and as
//! stacks (`stack::foreign`). Both only word errors by it.

/// What kind of file it is, by which a caller is told what to do instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An image of a format that is not read.
    Picture,
    /// What cameras and microscopes write, in a format of their makers' own.
    Recording,
    /// A stack of a format that is read, where it is not stated to be something else.
    Stack,
    Pdf,
    Zip,
    Gzip,
}

/// How a kind of file begins.
pub(super) struct Signature {
    /// Bytes that stand at these offsets, all of them.
    marks: &'static [(usize, &'static [u8])],
    /// What such a file is called, with its article.
    pub(super) what: &'static str,
    pub(super) kind: Kind,
}

const fn of(kind: Kind, what: &'static str, marks: &'static [(usize, &'static [u8])]) -> Signature {
    Signature { marks, what, kind }
}

/// The longest prefix that the table looks at.
pub(super) const BYTES: usize = 132;

/// The longest prefix that it looks at in what is stated to be samples.
pub(super) const SAMPLES_BYTES: usize = 16;

static SIGNATURES: [Signature; 25] = [
    of(Kind::Picture, "a JPEG XL image", &[(0, b"\0\0\0\x0cJXL ")]),
    of(Kind::Picture, "a JPEG XL image", &[(0, b"\xff\x0a")]),
    of(Kind::Picture, "a JPEG 2000 image", &[(0, b"\0\0\0\x0cjP  ")]),
    of(Kind::Picture, "a JPEG 2000 image", &[(0, b"\xff\x4f\xff\x51")]),
    of(Kind::Picture, "a Photoshop document", &[(0, b"8BPS")]),
    of(Kind::Picture, "an OpenEXR image", &[(0, b"\x76\x2f\x31\x01")]),
    of(Kind::Picture, "a DICOM file", &[(128, b"DICM")]),
    of(Kind::Recording, "a DCIMG file (Hamamatsu)", &[(0, b"DCIMG\0\0\0")]),
    of(Kind::Recording, "an ND2 file (Nikon)", &[(0, b"\xda\xce\xbe\x0a")]),
    of(Kind::Recording, "a CZI file (Zeiss)", &[(0, b"ZISRAWFILE")]),
    of(Kind::Recording, "a SIF file (Andor)", &[(0, b"Andor Technology")]),
    // A number, a length, a byte, another length, and XML in UTF-16.
    of(Kind::Recording, "a LIF file (Leica)", &[(0, b"\x70\0\0\0"), (8, b"\x2a"), (13, b"<\0")]),
    of(Kind::Recording, "an OIB or ZVI file (Olympus, Zeiss)", &[(0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")]),
    of(Kind::Recording, "an HDF5 file", &[(0, b"\x89HDF\r\n\x1a\n")]),
    of(Kind::Recording, "a FITS file", &[(0, b"SIMPLE  =")]),
    of(Kind::Stack, "a TIFF file", &[(0, b"II*\0")]),
    of(Kind::Stack, "a TIFF file", &[(0, b"MM\0*")]),
    of(Kind::Stack, "a TIFF file", &[(0, b"II+\0\x08\0\0\0")]),
    of(Kind::Stack, "a TIFF file", &[(0, b"MM\0+\0\x08\0\0")]),
    // The version's second number is 0.
    of(Kind::Stack, "a .npy file", &[(0, b"\x93NUMPY"), (7, b"\0")]),
    of(Kind::Pdf, "a PDF document", &[(0, b"%PDF")]),
    of(Kind::Zip, "a ZIP archive", &[(0, b"PK\x03\x04")]),
    // With the flags that packers set, that of a file's name or none.
    of(Kind::Gzip, "packed by gzip", &[(0, b"\x1f\x8b\x08\0")]),
    of(Kind::Gzip, "packed by gzip", &[(0, b"\x1f\x8b\x08\x08")]),
    of(Kind::Gzip, "packed by gzip", &[(0, b"\x1f\x8b")]),
];

impl Signature {
    fn stands_in(&self, bytes: &[u8]) -> bool {
        let stands =
            |(at, mark): &(usize, &[u8])| bytes.get(*at..).is_some_and(|bytes| bytes.starts_with(mark));
        self.marks.iter().all(stands)
    }

    /// Whether numbers that a camera counted begin so only by a rare chance. Then bytes that are stated to be samples are refused.
    ///
    /// A mark of four bytes is two counts of 16 bits. Those of the table are 18761 beside 42 (TIFF; 19789 beside 10752 in the other order),
    /// 52954 beside 2750 (ND2), 19280 beside 1027 (ZIP), 35615 beside 8 or 2056 (gzip). Pixels that are neighbours in a frame are alike; and
    /// of counts that were random, one stack in four thousand million would begin so. Longer marks are as good as impossible. The first two
    /// bytes of gzip alone are a single count, which any bright frame may begin with. Pictures and documents are left out: nobody states
    /// their shape. Whoever has samples that do begin so can send them with the head of a `.npy` file in front.
    fn is_no_count(&self) -> bool {
        let bytes: usize = self.marks.iter().map(|(_, mark)| mark.len()).sum();
        bytes >= 4 && !matches!(self.kind, Kind::Picture | Kind::Pdf)
    }
}

/// What a file is that begins with these bytes, if it is in the table.
pub(super) fn find(bytes: &[u8]) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.stands_in(bytes))
}

/// The same for bytes that are stated to be samples: only where these would hardly ever begin so.
pub(super) fn find_in_samples(bytes: &[u8]) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.is_no_count() && signature.stands_in(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mark_lies_beyond_what_is_looked_at() {
        let end = |all: &dyn Fn(&&Signature) -> bool| {
            let marks = SIGNATURES.iter().filter(all).flat_map(|signature| signature.marks);
            marks.map(|(at, mark)| at + mark.len()).max()
        };
        assert_eq!(end(&|_| true), Some(BYTES));
        assert_eq!(end(&|signature| signature.is_no_count()), Some(SAMPLES_BYTES));
    }

    #[test]
    fn a_single_count_of_a_camera_is_no_signature() {
        for begins in [
            &b"\x1f\x8b\x10\x8b"[..],
            b"\xff\x0a\0\x0a",
            b"II\x4a\x49",
            b"\x70\0\0\0\x71\0\x70\0\x72\0\x6f\0\x70\0",
        ] {
            let bytes: Vec<u8> = begins.iter().copied().chain([0x70, 0]).collect();
            assert!(find_in_samples(&bytes).is_none(), "{begins:?}");
        }
    }
}
