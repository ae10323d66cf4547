//! Lists in JSON, element by element: a list of a million elements takes no more memory than its text.

use super::bad_json;
use crate::error::InferError;
use serde::{
    Deserializer as _,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// The number of elements in a list, and the first element.
///
/// # Errors
/// 400 if `json`, which is called `what`, is not a list.
pub(super) fn count<'a>(json: &'a str, what: &str) -> Result<(usize, Option<&'a RawValue>), InferError> {
    let mut first = None;
    let count = read(json, what, Taking { most: 1, take: &mut |_, element| first = Some(element) })?;
    Ok((count, first))
}

/// Calls `take` for each element, up to an error; returns the number of elements.
///
/// # Errors
/// As [`count`], and the first error of `take`.
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
    let count = read(json, what, Taking { most: usize::MAX, take })?;
    failed.map_or(Ok(count), Err)
}

fn read<'a>(json: &'a str, what: &str, taking: Taking<'_, 'a>) -> Result<usize, InferError> {
    serde_json::Deserializer::from_str(json).deserialize_seq(taking).map_err(|error| bad_json(what, &error))
}

/// Takes the first `most` elements of a list, and counts them all.
struct Taking<'t, 'a> {
    most: usize,
    take: &'t mut dyn FnMut(usize, &'a RawValue),
}

impl<'a> Visitor<'a> for Taking<'_, 'a> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        loop {
            if count < self.most {
                let Some(element) = list.next_element()? else { break };
                (self.take)(count, element);
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
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
    fn elements_are_counted_and_the_first_is_kept() {
        for (json, expected) in
            [("[]", (0, None)), ("[ [1], 2,{}]", (3, Some("[1]"))), ("[7]", (1, Some("7")))]
        {
            let (count, first) = count(json, "x").unwrap();
            assert_eq!((count, first.map(RawValue::get)), expected, "{json}");
        }
        for json in ["{}", "7", "[1,]", "[1", "[1 2]"] {
            assert!(count(json, "x").is_err(), "{json}");
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
