//! Samples that are measured values rather than parts of white: floating-point, signed, and of 32 and 64 bits.

use super::{
    Kind, Page,
    chunks::COMPRESSION_JPEG,
    words::{unsupported_channels, unsupported_compression, unsupported_values},
};
use crate::image::{DecodeError, Samples, stack::SampleType};
use tiff::decoder::DecodingSampleType as Decoded;

/// How measured values are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    /// By our name.
    pub(super) stored: SampleType,
    /// By the decoder's.
    pub(super) decoded: Decoded,
}

/// The number of the sample format, the bits of a sample, and how values of these are stored.
const KINDS: [(u16, u8, SampleType, Decoded); 9] = [
    (1, 32, SampleType::U32, Decoded::U32),
    (1, 64, SampleType::U64, Decoded::U64),
    (2, 8, SampleType::I8, Decoded::I8),
    (2, 16, SampleType::I16, Decoded::I16),
    (2, 32, SampleType::I32, Decoded::I32),
    (2, 64, SampleType::I64, Decoded::I64),
    (3, 16, SampleType::F16, Decoded::F16),
    (3, 32, SampleType::F32, Decoded::F32),
    (3, 64, SampleType::F64, Decoded::F64),
];

impl Measured {
    /// Of samples of this format; `None` if they are parts of white, or indices.
    pub(super) fn of(format: u16, bits: u8) -> Result<Option<Measured>, DecodeError> {
        let found = KINDS.iter().find(|kind| (kind.0, kind.1) == (format, bits));
        match (found, format) {
            (Some(&(_, _, stored, decoded)), _) => Ok(Some(Measured { stored, decoded })),
            (None, 1 | 4) => Ok(None),
            (None, 2) => Err(unsupported_values(format!("signed samples of {bits} bits"))),
            (None, 3) => Err(unsupported_values(format!("floating-point samples of {bits} bits"))),
            (None, other) => Err(unsupported_values(format!("sample format {other}"))),
        }
    }

    /// The kind of a page whose pixels have `count` of them: grey or RGB.
    pub(super) fn kind(self, photometric: u16, count: u16, compression: u16) -> Result<Kind, DecodeError> {
        let name = self.stored.name();
        match (photometric, count) {
            _ if compression == COMPRESSION_JPEG => {
                Err(unsupported_compression(format!("{name} samples in JPEG streams")))
            }
            (1, 1) => Ok(Kind::Gray),
            (2, 3) => Ok(Kind::Rgb),
            (0, 1) => Err(unsupported_values(format!("{name} samples of which 0 is white"))),
            _ => {
                let what =
                    format!("{count} {name} samples per pixel under colour interpretation {photometric}");
                Err(if photometric < 2 || count > 4 {
                    unsupported_channels(what)
                } else {
                    unsupported_values(what)
                })
            }
        }
    }
}

impl Page {
    /// The values of a page from its samples as the decoder returns them, in bytes.
    pub(super) fn values(&self, measured: Measured, raw: Samples) -> Vec<f32> {
        let raw = match raw {
            Samples::U8(raw) => raw,
            Samples::U16(_) | Samples::F32(_) => unreachable!("measured values are read as bytes"),
        };
        let mut values = vec![0.0; raw.len() / measured.stored.bytes()];
        measured.stored.to_f32(&raw, &mut values);
        drop(raw);
        self.arrange(values)
    }
}
