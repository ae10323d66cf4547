//! What is wrong with a TIFF, worded for the client that posted it.

use super::COMPRESSION_WEBP;
use crate::image::{DecodeError, Format};
use tiff::{TiffError, TiffUnsupportedError, tags::CompressionMethod};

pub(super) fn corrupt(reason: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Tiff, reason)
}

pub(super) fn unsupported(what: impl ToString) -> DecodeError {
    DecodeError::unsupported(Format::Tiff, what, "post it as grey or RGB with 8 or 16 bits per sample")
}

/// Of strips or tiles packed in another way than the others are.
pub(super) fn unsupported_compression(what: impl ToString) -> DecodeError {
    DecodeError::unsupported(Format::Tiff, what, "compress it with Deflate, LZW or Zstandard, or not at all")
}

/// Of measured values, which 8 or 16 bits would not hold.
pub(super) fn unsupported_values(what: impl ToString) -> DecodeError {
    let instead = "post it as grey or RGB without alpha, of floats of 16, 32 or 64 bits";
    DecodeError::unsupported(Format::Tiff, what, instead)
}

/// Of more samples than a colour has.
pub(super) fn unsupported_channels(what: impl ToString) -> DecodeError {
    let instead =
        "post it with a page for each channel, to a model with pages = \"channels\"; or as grey or RGB";
    DecodeError::unsupported(Format::Tiff, what, instead)
}

pub(super) fn from_tiff(error: TiffError) -> DecodeError {
    match error {
        TiffError::UnsupportedError(TiffUnsupportedError::UnsupportedCompressionMethod(method)) => {
            unsupported_compression(compression_name(method))
        }
        TiffError::UnsupportedError(kind) => {
            // The decoder's message already says that this is not supported.
            let kind = kind.to_string();
            let what = kind.trim_end_matches(" is unsupported").trim_end_matches(" not supported");
            unsupported(what.trim_start_matches("unsupported "))
        }
        TiffError::LimitsExceeded => corrupt("a tag has more values than any image needs"),
        other => corrupt(other),
    }
}

/// The common name of a kind of compression that is not read.
fn compression_name(method: CompressionMethod) -> String {
    let name = match method {
        CompressionMethod::Huffman => "CCITT RLE",
        CompressionMethod::Fax3 => "CCITT Group 3",
        CompressionMethod::JPEG => "old-style JPEG",
        other => match other.to_u16() {
            22610 | 34892 => "JPEG XR",
            33003 | 33005 | 34712 => "JPEG 2000",
            34887 => "LERC",
            34925 => "LZMA",
            COMPRESSION_WEBP => "WebP",
            50002 => "JPEG XL",
            number => return format!("compression method {number}"),
        },
    };
    format!("{name} compression")
}
