//! Reads what a model file's exporter wrote about it (`metadata_props`).

use super::fields::Fields;
use std::io::{Read, Seek};

/// A longer value is an error. The names of 10,000 classes take a fifth of it.
const VALUE_BYTES_MAX: u64 = 1 << 20;

/// A value, or why it is none: it is too long, or no text.
pub(crate) type Value = Result<String, String>;

/// A key and its value, if it has both.
pub(super) fn read(
    fields: &mut Fields<impl Read + Seek>,
    bytes: u64,
) -> Result<Option<(String, Value)>, String> {
    let end = fields.at() + bytes;
    let (mut key, mut value) = (None, None);
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            1 => key = Some(fields.name_or_none(bytes)?),
            2 if bytes > VALUE_BYTES_MAX => {
                fields.skip(bytes)?;
                value = Some(Err(format!("it has {bytes} bytes, more than the limit of {VALUE_BYTES_MAX}")));
            }
            2 => value = Some(String::from_utf8(fields.read(bytes)?).map_err(|_| "it is no text".to_owned())),
            _ => fields.skip(bytes)?,
        }
    }
    Ok(key.zip(value))
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to what they say of themselves.

    use crate::engine::onnx::external::testing::field;

    /// A file with these entries, between which there is a graph.
    pub(crate) fn model(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let entry =
            |(key, value): &(&str, &[u8])| field(14, &[field(1, key.as_bytes()), field(2, value)].concat());
        let graph = field(7, &field(5, &field(9, &[0xff; 300])));
        [entries[..1].iter().map(entry).collect::<Vec<_>>().concat(), graph]
            .into_iter()
            .chain(entries[1..].iter().map(entry))
            .collect::<Vec<_>>()
            .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::model, *};
    use crate::engine::onnx::outline::Outline;

    fn check(model: &[u8], key: &str) -> Option<Value> {
        Outline::of_bytes(model)?.metadata.remove(key)
    }

    #[test]
    fn a_value_is_found_by_its_key() {
        let model = model(&[("author", b"me"), ("names", "{0: 'f\u{e4}n'}".as_bytes()), ("raw", b"\xff")]);
        assert_eq!(check(&model, "author"), Some(Ok("me".into())));
        assert_eq!(check(&model, "names"), Some(Ok("{0: 'f\u{e4}n'}".into())));
        assert_eq!(check(&model, "task"), None);
        assert_eq!(check(&model, "raw"), Some(Err("it is no text".into())));
        assert_eq!(check(b"<html>", "names"), None);
    }

    #[test]
    fn a_value_is_not_read_beyond_its_limit() {
        let most = vec![b'x'; VALUE_BYTES_MAX as usize + 1];
        let model = model(&[("author", b"me"), ("names", &most), ("task", b"detect")]);
        assert_eq!(
            check(&model, "names"),
            Some(Err("it has 1048577 bytes, more than the limit of 1048576".into()))
        );
        assert_eq!(check(&model, "task"), Some(Ok("detect".into())), "what follows is found");
    }
}
