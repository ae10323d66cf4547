//! What queries of requests say: keys with values, each at most once. Pure.

use crate::words::{clipped, meant};
use std::borrow::Cow;

/// The options of a prediction.
pub(super) const OPTIONS: [&str; 3] = ["top_k", "mask", FORMAT];
/// The one of them that says what a reply looks like.
pub(super) const FORMAT: &str = "format";

/// A key and its value.
pub(super) type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Keys and values of a query, percent-decoded.
///
/// # Errors
/// A message for the client: a key without a value or with two, and what is not UTF-8.
pub(super) fn pairs(query: &str) -> Result<Vec<Pair<'_>>, String> {
    read(query.split('&'))
}

/// The same of these keys alone. All others pass unread, since clients and gateways have keys of their own.
///
/// # Errors
/// As [`pairs`].
pub(super) fn pairs_of<'q>(query: &'q str, keys: &[&str]) -> Result<Vec<Pair<'q>>, String> {
    read(query.split('&').filter(|pair| keys.contains(&key(pair).as_ref())))
}

/// The key of a pair, as it is compared.
fn key(pair: &str) -> Cow<'_, str> {
    let key = pair.split_once('=').map_or(pair, |(key, _)| key);
    percent_encoding::percent_decode_str(key).decode_utf8_lossy()
}

fn read<'q>(query: impl Iterator<Item = &'q str>) -> Result<Vec<Pair<'q>>, String> {
    let decode = |text: &'q str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .map_err(|_| format!("the query has {:?}, which is not UTF-8", clipped(text)))
    };
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for pair in query.filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("{0:?} in the query has no value: write {0}=...", clipped(pair)))?;
        let key = decode(key)?;
        if pairs.iter().any(|(known, _)| *known == key) {
            return Err(format!("{} is given twice", clipped(&key)));
        }
        pairs.push((key, decode(value)?));
    }
    Ok(pairs)
}

/// The message for a key that is not one of these.
pub(super) fn unknown<'k>(key: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let (key, hint, known) = (clipped(key), meant(key, &known), known.join(", "));
    format!("unknown key {key:?} in the query; there are {known}{hint}")
}

/// Refuses the options of predictions in the query of a request whose body says what is wanted: they would be ignored there. All other keys
/// pass, since clients and gateways have keys of their own. `instead` tells what to use here.
///
/// # Errors
/// A message for the client, naming the key.
pub(super) fn has_no_options(query: &str, instead: &str) -> Result<(), String> {
    has_none_of(&OPTIONS, query, instead)
}

/// The same for some of the options.
///
/// # Errors
/// As [`has_no_options`].
pub(super) fn has_none_of(options: &[&str], query: &str, instead: &str) -> Result<(), String> {
    match query.split('&').map(key).find(|key| options.contains(&key.as_ref())) {
        Some(key) => Err(format!("{key} in the query is for /predictions alone: {instead}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_predictions_are_refused_by_name_where_the_body_says_what_is_wanted() {
        for query in ["", "test_1=1&test_2=2", "debug", "a=1&a=2", "b=%ff", "top_k2=1&x=top_k&&"] {
            assert_eq!(has_no_options(query, ""), Ok(()), "{query}");
        }
        for (query, key) in
            [("top_k=1", "top_k"), ("a=1&mask=rle", "mask"), ("form%61t=x", "format"), ("top_k", "top_k")]
        {
            let error = has_no_options(query, "do that").expect_err(query);
            let told = format!("{key} in the query is for /predictions alone: do that");
            assert_eq!(error, told, "{query}");
        }
    }

    #[test]
    fn keys_have_values_that_are_decoded() {
        let read = |query| {
            pairs(query)
                .map(|pairs| pairs.into_iter().map(|(key, value)| format!("{key}: {value}")).collect())
        };
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("a=1&&b%5b=%c3%a4=&"), Ok(vec!["a: 1".to_owned(), "b[: \u{e4}=".to_owned()]));
        assert_eq!(read("a=&b=1"), Ok(vec!["a: ".to_owned(), "b: 1".to_owned()]));
        for (query, expected) in [
            ("a", "\"a\" in the query has no value: write a=..."),
            ("a=1&%61=2", "a is given twice"),
            ("a=%ff", "\"%ff\", which is not UTF-8"),
        ] {
            let error = read(query).expect_err(query);
            assert!(error.contains(expected), "{query}: {error}");
        }
    }

    #[test]
    fn keys_that_others_have_pass_unread_where_some_alone_are_meant() {
        let read = |query| pairs_of(query, &["format", "top_k"]);
        assert_eq!(read("debug&a=%ff&a=1&b&form%61t=x"), Ok(vec![("format".into(), "x".into())]));
        assert_eq!(read("format=x&format=y"), Err("format is given twice".to_owned()));
        assert!(read("top_k").is_err_and(|error| error.contains("has no value")));
    }

    #[test]
    fn an_unknown_key_is_told_with_those_that_there_are() {
        assert_eq!(
            unknown("topk", ["top_k", "mask"]),
            "unknown key \"topk\" in the query; there are top_k, mask; nearest: top_k"
        );
        assert_eq!(unknown("x", ["top_k"]), "unknown key \"x\" in the query; there are top_k");
    }
}
