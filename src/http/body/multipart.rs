//! `multipart/form-data` (RFC 7578) in a body that has been read: finds the parts in place, without copying them.
//!
//! A body is in memory once, within its limits, before it comes here; a parser over a stream would gather each part
//! again, and the usual ones bound neither the number of parts nor the bytes of their headers.

use crate::error::{InferError, bad};
use axum::body::Bytes;
use memchr::memmem::Finder;
use std::ops::Range;

/// Longest boundary that RFC 2046 allows.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Bytes of all headers of one part.
const PART_HEADER_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a part's name, and of its file name.
const NAME_BYTES_MAX: usize = 256;

/// One part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// `name` of its `Content-Disposition`.
    pub name: String,
    /// `filename`, if it has one. Never used as a path.
    pub file_name: Option<String>,
    /// `Content-Type`, if it has one.
    pub content_type: Option<String>,
    /// What it holds, in the memory of the body.
    pub bytes: Bytes,
}

/// The boundary in a `multipart/form-data` content type; `None` if it is another type.
///
/// # Errors
/// 400 if there is no boundary, or not a legal one.
pub fn boundary(content_type: &str) -> Result<Option<String>, InferError> {
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Ok(None);
    }
    let Some(boundary) = parameter(parameters, "boundary") else {
        return Err(bad("the content type multipart/form-data has no boundary"));
    };
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&b);
    if boundary.is_empty()
        || boundary.len() > BOUNDARY_BYTES_MAX
        || !boundary.bytes().all(legal)
        || boundary.ends_with(' ')
    {
        return Err(bad("the multipart boundary is not 1 to 70 of the characters that RFC 2046 allows"));
    }
    Ok(Some(boundary))
}

/// The parts of `body`, in the order they were sent.
///
/// # Errors
/// 400 for what is malformed, 413 for more than `parts_max` parts.
pub fn parts(body: &Bytes, boundary: &str, parts_max: usize) -> Result<Vec<Part>, InferError> {
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    let finder = Finder::new(&delimiter);
    // The first delimiter may stand at the very beginning, without its line break.
    let mut at = if body.starts_with(&delimiter[2..]) {
        delimiter.len() - 2
    } else {
        finder.find(body).ok_or_else(|| bad("the multipart body does not contain its boundary"))?
            + delimiter.len()
    };
    let mut parts = Vec::new();
    loop {
        if body[at..].starts_with(b"--") {
            return Ok(parts);
        }
        let padding = body[at..].iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        at += padding;
        if !body[at..].starts_with(b"\r\n") {
            return Err(bad("a multipart boundary is not followed by a line break"));
        }
        if parts.len() == parts_max {
            return Err(InferError::TooLarge {
                what: "the number of parts".into(),
                got: parts.len() as u64 + 1,
                limit: parts_max as u64,
                option: "parts_max",
            });
        }
        let header = header_range(body, at, parts.len())?;
        let start = header.end + 4;
        // For an empty part, the delimiter's line break may be the one that ends the header.
        let Some(found) = finder.find(&body[start - 2..]) else {
            return Err(bad("the multipart body ends inside a part; was it cut short?"));
        };
        let found = start - 2 + found;
        let end = found.max(start);
        let part = part(&body[header], body.slice(start..end), parts.len())?;
        parts.push(part);
        at = found + delimiter.len();
    }
}

/// The header lines of the part whose boundary line ends at `at`, without the first line break and the empty line.
fn header_range(body: &[u8], at: usize, index: usize) -> Result<Range<usize>, InferError> {
    // The two line breaks of an empty header are allowed to be the same as the one of the boundary's line.
    let window_end = body.len().min(at + PART_HEADER_BYTES_MAX + 4);
    let window = &body[at..window_end];
    match window.windows(4).position(|w| w == b"\r\n\r\n") {
        Some(length) => Ok(at..at + length),
        None if window_end < body.len() => Err(InferError::BadRequest(format!(
            "the headers of part {index} are over {PART_HEADER_BYTES_MAX} bytes"
        ))),
        None => Err(bad("the multipart body ends inside the headers of a part; was it cut short?")),
    }
}

fn part(header: &[u8], bytes: Bytes, index: usize) -> Result<Part, InferError> {
    let malformed = |what: &str| InferError::BadRequest(format!("part {index} of the multipart body {what}"));
    let header = str::from_utf8(header).map_err(|_| malformed("has a header that is not UTF-8"))?;
    let (mut disposition, mut content_type) = (None, None);
    for line in header.split("\r\n").filter(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            return Err(malformed("has a header line without a colon"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-disposition") {
            disposition = Some(value);
        } else if name.eq_ignore_ascii_case("content-type") {
            content_type = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("content-transfer-encoding")
            && !["binary", "8bit", "7bit"].iter().any(|plain| value.eq_ignore_ascii_case(plain))
        {
            return Err(malformed("has a content-transfer-encoding; send the bytes as they are"));
        }
    }
    let disposition = disposition.ok_or_else(|| malformed("has no content-disposition"))?;
    let (kind, parameters) = disposition.split_once(';').unwrap_or((disposition, ""));
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(malformed("is not form-data"));
    }
    let name = parameter(parameters, "name").ok_or_else(|| malformed("has no name"))?;
    // Some clients send a name that is not ASCII only as `filename*`, which forms must not have (RFC 7578, 4.2).
    let file_name = parameter(parameters, "filename").or_else(|| parameter(parameters, "filename*"));
    let longest = name.len().max(file_name.as_ref().map_or(0, String::len));
    if longest > NAME_BYTES_MAX {
        return Err(malformed(&format!(
            "has a name of {longest} bytes, more than the limit of {NAME_BYTES_MAX}"
        )));
    }
    Ok(Part { name, file_name, content_type, bytes })
}

/// The value of `wanted` among `; name=value` parameters; values may be quoted, with backslashes.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters.trim_start_matches([' ', '\t', ';']);
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, next) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), next)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next.trim_start_matches([' ', '\t', ';']);
    }
    None
}

/// A quoted string after its opening quote, and what follows its closing one.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            // Old browsers send Windows paths unescaped: only what must be escaped is unescaped.
            '\\' if quoted[at + 1..].starts_with(['"', '\\']) => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use proptest::prelude::*;

    const PARTS_MAX: usize = 3;

    /// Name, file name and content.
    type Told<'a> = (&'a str, Option<&'a str>, &'a str);

    fn check(body: &str, expected: Result<&[Told<'_>], &str>) {
        let got = parts(&Bytes::from(body.to_owned()), "B", PARTS_MAX);
        match (&got, expected) {
            (Ok(got), Ok(expected)) => {
                let got: Vec<_> = got
                    .iter()
                    .map(|part| {
                        (&*part.name, part.file_name.as_deref(), str::from_utf8(&part.bytes).unwrap())
                    })
                    .collect();
                assert_eq!(got, expected);
            }
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{error} lacks {expected}");
            }
            _ => panic!("{body:?}: {got:?}, expected {expected:?}"),
        }
    }

    fn one(header: &str, content: &str) -> String {
        format!("--B\r\n{header}\r\n\r\n{content}\r\n--B--\r\n")
    }

    #[test]
    fn parts_come_in_the_order_sent_with_their_names() {
        check(
            "preamble\r\n--B \r\nContent-Disposition: form-data; name=data; filename=\"a \\\"b\\\".jpg\"\r\n\
             Content-Type: image/jpeg\r\n\r\none\r\ntwo\r\n--B\r\ncontent-disposition: form-data; filename=\"\"; \
             name=\"x\"\r\n\r\n\r\n--B--",
            Ok(&[("data", Some("a \"b\".jpg"), "one\r\ntwo"), ("x", Some(""), "")]),
        );
    }

    #[test]
    fn a_file_name_in_the_form_of_headers_says_that_it_is_a_file() {
        let name = "UTF-8''%C3%A4.jpg";
        let header = format!("Content-Disposition: form-data; name=\"photo\"; filename*={name}");
        check(&one(&header, "x"), Ok(&[("photo", Some(name), "x")]));
    }

    #[test]
    fn a_boundary_that_only_begins_like_one_is_content() {
        check(
            &one("Content-Disposition: form-data; name=a", "x\r\n--A\r\n-"),
            Ok(&[("a", None, "x\r\n--A\r\n-")]),
        );
    }

    #[test]
    fn what_is_malformed_is_named() {
        check("nothing", Err("does not contain its boundary"));
        check("--Bx", Err("not followed by a line break"));
        check("--B\r\nContent-Disposition: form-data; name=a\r\n\r\nx", Err("ends inside a part"));
        check("--B\r\nContent-Disposition: form", Err("ends inside the headers"));
        check(&one("Content-Type: a/b", ""), Err("no content-disposition"));
        check(&one("Content-Disposition: form-data", ""), Err("has no name"));
        check(&one("Content-Disposition: attachment; name=a", ""), Err("not form-data"));
        check(&one("Content-Disposition form-data", ""), Err("without a colon"));
        let base64 = "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64";
        check(&one(base64, ""), Err("send the bytes as they are"));
    }

    #[test]
    fn parts_names_and_headers_are_bounded() {
        let header = "Content-Disposition: form-data; name=a";
        let four = format!("--B\r\n{header}\r\n\r\nx\r\n").repeat(4) + "--B--";
        check(&four, Err("the number of parts is 4, more than the limit of 3; raise it with parts_max"));
        let long = format!("{header}\r\nX: {}", "x".repeat(500_000));
        check(&one(&long, "x"), Err("the headers of part 0 are over 8192 bytes"));
        let long = format!("{header}{}", "b".repeat(256));
        check(&one(&long, "x"), Err("a name of 257 bytes, more than the limit of 256"));
    }

    #[test]
    fn the_boundary_is_read_from_the_content_type() {
        let of = |content_type| boundary(content_type);
        assert_eq!(of("image/png"), Ok(None));
        assert_eq!(of("Multipart/Form-Data; charset=x; Boundary=\"a b\""), Ok(Some("a b".to_owned())));
        assert_eq!(of("multipart/form-data; boundary=----a1"), Ok(Some("----a1".to_owned())));
        assert!(of("multipart/form-data").is_err());
        assert!(of("multipart/form-data; boundary=a\"b").is_err());
        assert!(of(&format!("multipart/form-data; boundary={}", "a".repeat(71))).is_err());
    }

    proptest! {
        #[test]
        fn any_content_without_the_boundary_comes_back_and_nothing_panics(
            contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..3),
            cut in 0..200usize,
        ) {
            let mut body = Vec::new();
            for content in &contents {
                body.extend_from_slice(b"--boundary-7\r\nContent-Disposition: form-data; name=a\r\n\r\n");
                body.extend_from_slice(content);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"--boundary-7--");
            let body = Bytes::from(body);
            let got: Vec<_> = parts(&body, "boundary-7", PARTS_MAX).unwrap();
            prop_assert!(got.iter().map(|part| &part.bytes[..]).eq(contents.iter().map(|content| &content[..])));
            let _ = parts(&body.slice(..cut.min(body.len())), "boundary-7", PARTS_MAX);
        }
    }
}
