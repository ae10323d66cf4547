//! Base64 in JSON: the standard alphabet, with or without padding. Line breaks, spaces and tabs between the symbols are skipped, as
//! Python's `b64decode` skips what its `encodebytes` writes. Of a data URL (`data:image/png;base64,…`), as browsers make them, what follows
//! the comma is read: what a file is, its bytes say.

use base64::{
    DecodeError, Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

const BASE64: GeneralPurpose = of(DecodePaddingMode::Indifferent);
/// The decoder for all pieces but the last: they can have no padding.
const WITHIN: GeneralPurpose = of(DecodePaddingMode::RequireNone);

/// Symbols per piece of a text with white space: whole groups of four.
const PIECE: usize = 4096;
/// The longest head of a data URL, up to its comma.
const HEAD_MAX: usize = 256;
/// Enough symbols to recognise a file.
const BEGINNING: usize = 32;

const fn of(padding: DecodePaddingMode) -> GeneralPurpose {
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(padding))
}

/// Text that is not base64: the position of the error, and a hint at what may be meant.
#[derive(Debug, thiserror::Error)]
#[error("{}{hint}", error.to_string().to_lowercase().trim_end_matches('.'))]
pub(in crate::http) struct NotBase64 {
    error: DecodeError,
    hint: &'static str,
}

/// Decodes the bytes. Takes no more memory than they do, with or without white space.
///
/// # Errors
/// [`NotBase64`].
pub(in crate::http) fn decode(whole: &str) -> Result<Vec<u8>, NotBase64> {
    let head = head(whole.as_bytes());
    let text = &whole[head..];
    // White space is looked for only if decoding fails: almost no text has any.
    let bytes = match BASE64.decode(text) {
        Err(_) if text.bytes().any(is_white) => spaced(text),
        plain => plain,
    };
    bytes.map_err(|error| NotBase64 { hint: hint(text, &error), error: moved(&error, |at| head + at) })
}

/// The length of a data URL's head, with the comma; 0 for a text that is none of base64.
fn head(text: &[u8]) -> usize {
    let begins = text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"data:"));
    let comma = text.iter().take(HEAD_MAX).position(|byte| begins && *byte == b',');
    let is_base64 = |comma: &usize| text[..*comma].to_ascii_lowercase().ends_with(b";base64");
    comma.filter(is_base64).map_or(0, |comma| comma + 1)
}

/// A hint for text that is almost base64.
fn hint(text: &str, error: &DecodeError) -> &'static str {
    match error {
        DecodeError::InvalidByte(_, b':') if text.trim_start().starts_with("data:") => {
            "; a data URL is read if it says so: data:image/png;base64,"
        }
        DecodeError::InvalidByte(_, b':')
            if ["http:", "https:"].iter().any(|scheme| text.trim_start().starts_with(scheme)) =>
        {
            "; URLs are not fetched: send the file itself, in base64"
        }
        DecodeError::InvalidByte(_, b'-' | b'_') => {
            "; send the standard alphabet, which has + and / where that for URLs has - and _"
        }
        _ => "",
    }
}

/// The bytes that a text begins with; empty if its beginning is not base64.
pub(in crate::http) fn beginning(text: &[u8]) -> Vec<u8> {
    let text = &text[head(text)..];
    let symbols: Vec<u8> = text.iter().copied().filter(|byte| !is_white(*byte)).take(BEGINNING).collect();
    BASE64.decode(symbols).unwrap_or_default()
}

fn is_white(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | b' ' | b'\t')
}

fn spaced(text: &str) -> Result<Vec<u8>, DecodeError> {
    let mut bytes = Vec::with_capacity(base64::decoded_len_estimate(text.len()));
    let mut symbols = text.bytes().filter(|byte| !is_white(*byte)).peekable();
    let (mut piece, mut before) = (Vec::with_capacity(PIECE), 0);
    while symbols.peek().is_some() {
        piece.clear();
        piece.extend(symbols.by_ref().take(PIECE));
        let engine = if symbols.peek().is_some() { &WITHIN } else { &BASE64 };
        engine.decode_vec(&piece, &mut bytes).map_err(|error| within(text, before, &error))?;
        before += piece.len();
    }
    Ok(bytes)
}

/// Converts an error in a piece, which has `before` symbols before it, to an error in the whole text.
fn within(text: &str, before: usize, error: &DecodeError) -> DecodeError {
    let place = |at: usize| {
        let mut symbols = text.bytes().enumerate().filter(|(_, byte)| !is_white(*byte));
        symbols.nth(before + at).map_or(text.len(), |(place, _)| place)
    };
    match *error {
        DecodeError::InvalidLength(symbols) => DecodeError::InvalidLength(before + symbols),
        // Padding that is followed by something.
        DecodeError::InvalidPadding => DecodeError::InvalidByte(text.find('=').unwrap_or(text.len()), b'='),
        _ => moved(error, place),
    }
}

/// The error with the place that it has elsewhere.
fn moved(error: &DecodeError, place: impl Fn(usize) -> usize) -> DecodeError {
    match *error {
        DecodeError::InvalidByte(at, byte) => DecodeError::InvalidByte(place(at), byte),
        DecodeError::InvalidLastSymbol { offset, symbol, symbol_value } => {
            DecodeError::InvalidLastSymbol { offset: place(offset), symbol, symbol_value }
        }
        ref other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use base64::prelude::BASE64_STANDARD;

    /// The text in lines, as written by `encodebytes` (76 symbols, `\n`) and MIME (`\r\n`).
    fn lines(text: &str, symbols: usize, end: &str) -> String {
        let lines = text.as_bytes().chunks(symbols).map(|line| std::str::from_utf8(line).unwrap());
        lines.flat_map(|line| [line, end]).collect()
    }

    #[test]
    fn line_breaks_and_spaces_between_symbols_are_passed_over_wherever_they_are() {
        for length in [0, 1, 2, 3, 56, 57, 58, 3071, 3072, 3073, 3074, 10_000] {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 7 % 251) as u8).collect();
            let text = BASE64_STANDARD.encode(&bytes);
            let unpadded = text.trim_end_matches('=');
            for text in [&*text, unpadded] {
                for spaced in [
                    text.to_owned(),
                    lines(text, 76, "\n"),
                    lines(text, 76, "\r\n"),
                    lines(text, 1, " \t"),
                    format!("\n {text}\n"),
                ] {
                    let got = decode(&spaced).unwrap();
                    assert_eq!(got, bytes, "{length} bytes as {spaced:?}");
                    assert!(got.capacity() <= base64::decoded_len_estimate(spaced.len()));
                }
            }
        }
    }

    #[test]
    fn of_a_data_url_what_follows_its_head_is_read() {
        for head in ["data:image/png;base64,", "data:;base64,", "DATA:a/b;charset=utf-8;BASE64,"] {
            assert_eq!(decode(&format!("{head}YWJj")).unwrap(), b"abc", "{head}");
            assert_eq!(decode(&format!("{head}YW\nJj\n")).unwrap(), b"abc", "{head}");
            assert_eq!(beginning(format!("{head}YWJj").as_bytes()), b"abc", "{head}");
            let error = decode(&format!("{head}YW!j")).unwrap_err().to_string();
            assert!(error.ends_with(&format!("offset {}", head.len() + 2)), "{error}");
        }
        let long = format!("data:{};base64,YWJj", "x".repeat(HEAD_MAX));
        assert!(decode(&long).is_err() && beginning(long.as_bytes()).is_empty());
    }

    #[test]
    fn what_is_no_base64_is_told_with_its_place_in_the_text() {
        let long = lines(&"YWJj".repeat(2000), 76, "\n");
        for (text, told) in [
            ("YW!I".to_owned(), "symbol 33, offset 2"),
            ("Y W\n!I".to_owned(), "symbol 33, offset 4"),
            (format!("{long}YW?="), &*format!("symbol 63, offset {}", long.len() + 2)),
            // The end of a piece is not the end of the text.
            (format!("{}YQ==\nYQ==", "YWJj".repeat(1023)), "symbol 61, offset 4094"),
            ("YQ==\nYQ==".to_owned(), "symbol 61, offset 2"),
            ("YW\u{a0}I=".to_owned(), "symbol 194, offset 2"),
            (
                "data:image/svg+xml,YWJj".to_owned(),
                "symbol 58, offset 4; a data url is read if it says so: data:image/png;base64,",
            ),
            ("http://a/b.png".to_owned(), "symbol 58, offset 4; urls are not fetched: send the file itself"),
            ("https://a/b.png".to_owned(), "symbol 58, offset 5; urls are not fetched: send the file itself"),
            ("YW:j".to_owned(), "symbol 58, offset 2"),
            ("YW-j".to_owned(), "symbol 45, offset 2; send the standard alphabet"),
            ("YW\n_j".to_owned(), "symbol 95, offset 3; send the standard alphabet"),
        ] {
            let error = decode(&text).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(told), "{error} lacks {told}");
        }
        assert!(decode("Y\n").is_err() && decode("YW\n===").is_err());
    }
}
