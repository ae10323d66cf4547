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

pub(super) fn from_tiff(error: TiffError) -> DecodeError {
    match error {
        TiffError::UnsupportedError(TiffUnsupportedError::UnsupportedCompressionMethod(method)) => {
            DecodeError::unsupported(
                Format::Tiff,
                compression_name(method),
                "compress it with Deflate, LZW or Zstandard, or not at all",
            )
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

/// Adds the number of the page to an error, counted as in answers, if the file has several pages.
pub(super) fn of_page(several: bool, page: usize, error: DecodeError) -> DecodeError {
    match error {
        DecodeError::Corrupt { format, reason } if several => {
            DecodeError::Corrupt { format, reason: format!("page {page} (they count from 0): {reason}") }
        }
        DecodeError::Unsupported { format, what, instead } if several => {
            let what = format!("{what} in page {page} (they count from 0)");
            DecodeError::Unsupported { format, what, instead }
        }
        other => other,
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
