//! Numbers that JSON lacks: NaN and the infinities. Python's `json`, Triton and TensorFlow Serving write them as the bare words `NaN`,
//! `Infinity` and `-Infinity`, which is not JSON; the JSON of Protocol Buffers has them as strings.

use super::object;
use serde::Deserialize;

const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
/// What stands for NaN where JSON's own rules hold.
pub(super) const NULL: &str = "null";

/// Longer texts are not read a second time. That would take seconds and as much memory again, and clients send so many numbers as binary
/// data.
const BYTES_MAX: usize = 16 << 20;

/// How such numbers are written in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFinite {
    /// Bare words, for clients of those servers.
    Words,
    /// `null`, as KServe writes them: its clients accept only JSON.
    Null,
    /// Not at all: the reply is an error.
    Refused,
}

/// Reads an object in which bare words may stand for numbers, if its text has up to 16 MiB. `room` holds a copy of the text in which they
/// are quoted.
///
/// # Errors
/// The text is not JSON, apart from such words.
pub(super) fn read<'a, T: Deserialize<'a>>(json: &'a [u8], room: &'a mut Vec<u8>) -> serde_json::Result<T> {
    let error = match object(json) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    if json.len() > BYTES_MAX {
        return Err(error);
    }
    *room = quoted(json).ok_or(error)?;
    object(room)
}

/// The number that a string stands for, or a `null`: Python's `orjson`, with which KServe's client writes, has no other word for NaN.
pub(super) fn number(token: &str) -> Option<f64> {
    match token {
        "\"NaN\"" | NULL => Some(f64::NAN),
        "\"Infinity\"" => Some(f64::INFINITY),
        "\"-Infinity\"" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Whether a string that begins with `text`, after its opening quote, stands for a number.
pub(super) fn begins(text: &str) -> bool {
    WORDS.iter().any(|word| text.strip_prefix(word).is_some_and(|rest| rest.starts_with('"')))
}

/// The bare word for a number that is not finite.
pub(super) fn word(number: f64) -> Option<&'static str> {
    match number {
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        number if number.is_nan() => Some("NaN"),
        _ => None,
    }
}

/// The text with quotes around bare words outside of strings; `None` if there are none.
fn quoted(json: &[u8]) -> Option<Vec<u8>> {
    // Most texts that cannot be read have none, and are not copied.
    let has = |word: &str| json.windows(word.len()).any(|there| there == word.as_bytes());
    WORDS.into_iter().find(|word| has(word))?;
    let (mut out, mut found, mut at) = (Vec::with_capacity(json.len() + 64), false, 0);
    let (mut string, mut escaped) = (false, false);
    while let Some(&byte) = json.get(at) {
        let word = WORDS.iter().find(|word| !string && json[at..].starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend(format!("\"{word}\"").bytes());
            (found, at) = (true, at + word.len());
            continue;
        }
        string ^= byte == b'"' && !escaped;
        escaped = string && byte == b'\\' && !escaped;
        out.push(byte);
        at += 1;
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    #[test]
    fn words_outside_of_strings_are_quoted() {
        assert_eq!(quoted(br#"{"a": "NaN, -Infinity", "b\\": 1}"#), None);
        assert_eq!(quoted(br#"["\\", NaN]"#).unwrap(), br#"["\\", "NaN"]"#);
        assert_eq!(quoted(b"[-Infinity,Infinity]").unwrap(), br#"["-Infinity","Infinity"]"#);
    }

    #[test]
    fn every_number_that_is_not_finite_has_its_word_which_is_read_back() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let word = word(odd).unwrap();
            let read = number(&format!("\"{word}\"")).unwrap();
            assert!(read.to_bits() == odd.to_bits() && begins(&format!("{word}\", 1]")), "{word}");
        }
        assert_eq!((word(f64::MAX), number("\"nan\""), begins("NaN1\"")), (None, None, false));
        assert!(number(NULL).unwrap().is_nan());
    }
}
