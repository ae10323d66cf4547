//! Why bytes could not be decoded into frames, worded for the client that posted them.

use super::format::Format;
use crate::error::InferError;
use std::fmt::Write as _;

/// How many of the first bytes an error shows.
pub(super) const SHOWN_BYTES: usize = 12;

/// Why bytes could not be decoded into frames.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes begin like none of the supported formats, nor like any other format that we know.
    #[error("not an image: tried {}, but the body {}{}", formats(), begins(first), hint(first))]
    Unknown {
        /// The first bytes, at most twelve.
        first: Vec<u8>,
    },
    /// Another format that we know by its first bytes.
    #[error("not a supported image: the body is {what}; {instead}")]
    Foreign {
        /// What it is.
        what: String,
        /// What to do.
        instead: String,
    },
    /// A kind of image that we know but do not decode.
    #[error("{format} with {what} is not supported; {instead}")]
    Unsupported {
        /// Its format.
        format: Format,
        /// What is special about it.
        what: String,
        /// What to do.
        instead: &'static str,
    },
    /// Truncated or damaged.
    #[error("the {format} is corrupt or truncated: {reason}")]
    Corrupt {
        /// Its format.
        format: Format,
        /// The decoder's words.
        reason: String,
    },
    /// Over a limit, by what the headers say.
    #[error("{what} is {got}, more than the limit of {limit}; raise it with {option}")]
    TooLarge {
        /// What was measured, with its unit.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The limit.
        limit: u64,
        /// The option that raises the limit.
        option: &'static str,
    },
}

impl DecodeError {
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
    pub(super) fn corrupt(format: Format, reason: impl ToString) -> DecodeError {
        DecodeError::Corrupt { format, reason: reason.to_string() }
    }

    #[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
    pub(super) fn unsupported(format: Format, what: impl ToString, instead: &'static str) -> DecodeError {
        DecodeError::Unsupported { format, what: what.to_string(), instead }
    }

    /// With the number of the page that it is about, counted as in answers, if the file has several.
    pub(super) fn of_page(self, several: bool, page: usize) -> DecodeError {
        match self {
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
}

impl From<DecodeError> for InferError {
    fn from(error: DecodeError) -> InferError {
        match error {
            DecodeError::TooLarge { what, got, limit, option } => {
                InferError::TooLarge { what: what.into(), got, limit, option }
            }
            other => InferError::Decode(other.to_string()),
        }
    }
}

/// What clients do who send a file's name in place of the file.
fn hint(first: &[u8]) -> &'static str {
    if is_text(first) { "; curl sends a file by -T FILE, and in a form by -F data=@FILE" } else { "" }
}

fn formats() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Whether these bytes are printable.
fn is_text(first: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    !first.is_empty() && first.iter().all(plain)
}

/// Describes how a body or file with these first bytes begins: `begins with 4d 4d 00 2a`, `begins with the text "%!PS"`, or `is empty`.
pub(super) fn begins(first: &[u8]) -> String {
    if first.is_empty() {
        return "is empty".to_owned();
    }
    if is_text(first) {
        return format!("begins with the text {:?}", String::from_utf8_lossy(first));
    }
    let mut text = "begins with".to_owned();
    for byte in first {
        // Writing to a string cannot fail.
        let _ = write!(text, " {byte:02x}");
    }
    text
}
