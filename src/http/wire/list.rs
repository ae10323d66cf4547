//! Lists in JSON, element by element: a list of a million elements takes no more memory than its text.

use super::bad_json;
use crate::error::InferError;
use serde::{
    Deserializer as _,
    de::{SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// The text from the first element of a list on; `None` if it is empty.
///
/// # Errors
/// 400 if `json`, which is called `what`, is not a list.
pub(super) fn first<'a>(json: &'a str, what: &str) -> Result<Option<&'a str>, InferError> {
    let Some(elements) = json.strip_prefix('[') else {
        return Err(InferError::BadRequest(format!("{what}: expected a list")));
    };
    let first = elements.trim_ascii_start();
    Ok((!first.starts_with(']')).then_some(first))
}

/// The lengths of a list, of its first element if that is a list, and so on, in one pass; none if `json` is not a list. It must be valid.
pub(super) fn lengths(json: &str) -> Vec<usize> {
    let json = json.as_bytes();
    let next = |at: usize| at + json[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let (mut at, mut lengths) = (next(0), Vec::new());
    while json.get(at) == Some(&b'[') {
        at = next(at + 1);
        lengths.push(1);
    }
    if let Some(innermost) = lengths.last_mut()
        && json.get(at) == Some(&b']')
    {
        *innermost = 0;
    }
    for length in lengths.iter_mut().rev() {
        let (mut within, mut quoted) = (0, false);
        while let Some(byte) = json.get(at) {
            at += 1;
            match byte {
                b'\\' if quoted => at += 1,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'[' | b'{' => within += 1,
                b']' if within == 0 => break,
                b']' | b'}' => within -= 1,
                b',' if within == 0 => *length += 1,
                _ => {}
            }
        }
    }
    lengths
}

/// Calls `take` for each element, up to an error; returns the number of elements.
///
/// # Errors
/// 400 if `json`, which is called `what`, is not a list; and the first error of `take`.
pub(super) fn each<'a>(
    json: &'a str,
    what: &str,
    mut take: impl FnMut(usize, &'a RawValue) -> Result<(), InferError>,
) -> Result<usize, InferError> {
    let mut failed = None;
    let take = &mut |index, element| {
        if failed.is_none() {
            failed = take(index, element).err();
        }
    };
    let read = serde_json::Deserializer::from_str(json).deserialize_seq(Taking(take));
    let count = read.map_err(|error| bad_json(what, &error))?;
    failed.map_or(Ok(count), Err)
}

/// Takes the elements of a list, and counts them.
struct Taking<'t, 'a>(&'t mut dyn FnMut(usize, &'a RawValue));

impl<'a> Visitor<'a> for Taking<'_, 'a> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(element) = list.next_element()? {
            (self.0)(count, element);
            count += 1;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    #[test]
    fn the_first_element_is_where_a_list_begins() {
        for (json, expected) in
            [("[]", None), ("[ ]", None), ("[ [1], 2]", Some("[1], 2]")), ("[7]", Some("7]"))]
        {
            assert_eq!(first(json, "x").unwrap(), expected, "{json}");
        }
        for json in ["{}", "7", "\"[\""] {
            assert_eq!(first(json, "x"), Err(InferError::BadRequest("x: expected a list".into())), "{json}");
        }
    }

    #[test]
    fn lists_are_as_long_as_their_text_says() {
        for (json, expected) in [
            ("[]", &[0][..]),
            ("[7]", &[1]),
            ("[ [ ] , [1, 2]]", &[2, 0]),
            ("[[1,2,3],[4]]", &[2, 3]),
            ("[[[1,2],[3,4],[5,6]],7,{}, [8,[9,10]]]", &[4, 3, 2]),
            (r#"["a,]", "\",[", ["\\"], {"b":[1,2]}]"#, &[4]),
            (r#"[[{"b":[1,{"c":[2,3]}],"d":",[\\"}, 2]]"#, &[1, 2]),
            ("7", &[]),
            ("{\"a\":[1]}", &[]),
        ] {
            assert_eq!(lengths(json), expected, "{json}");
        }
    }

    #[test]
    fn what_is_no_list_of_json_is_refused() {
        for json in ["{}", "7", "[1,]", "[1", "[1 2]"] {
            assert!(each(json, "x", |_, _| Ok(())).is_err(), "{json}");
        }
    }

    #[test]
    fn each_element_comes_in_its_place_up_to_the_first_error() {
        let mut seen = Vec::new();
        let stopped = each("[1, [2], \"3\", 4]", "x", |index, element| {
            seen.push((index, element.get().to_owned()));
            if index == 2 { Err(InferError::BadRequest("enough".into())) } else { Ok(()) }
        });
        assert_eq!(stopped, Err(InferError::BadRequest("enough".into())));
        assert_eq!(seen, [(0, "1".into()), (1, "[2]".into()), (2, "\"3\"".into())]);
    }
}
