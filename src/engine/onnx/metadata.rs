//! Reads what a model file's exporter wrote about it (`metadata_props`), without loading the file.

use super::{
    fields::Fields,
    skeleton::{self, Message},
};
use std::{
    io::{Read, Seek},
    path::Path,
};

/// A longer value is an error. The names of 10,000 classes take a fifth of it.
const VALUE_BYTES_MAX: u64 = 1 << 20;

/// A value, or why it is none: it is too long, or no text.
type Value = Result<String, String>;

/// The value under each key; `None` if there is none, or the file cannot be read: loading it reports why.
pub(crate) fn values<const N: usize>(path: &Path, keys: [&str; N]) -> [Option<Value>; N] {
    let found = || {
        let (file, bytes) = skeleton::open(path).ok()?;
        find(file, bytes, keys).ok()
    };
    found().unwrap_or([const { None }; N])
}

fn find<const N: usize>(
    file: impl Read + Seek,
    bytes: u64,
    keys: [&str; N],
) -> Result<[Option<Value>; N], String> {
    let mut found = [const { None }; N];
    skeleton::walk(file, bytes, |fields, field, bytes| {
        match field {
            (Message::Model, 14) => {
                if let Some((at, value)) = entry(fields, bytes, &keys)? {
                    found[at] = Some(value);
                }
            }
            _ => fields.skip(bytes)?,
        }
        Ok(true)
    })?;
    Ok(found)
}

/// The value of an entry, if it is under one of these keys, and under which.
fn entry(
    fields: &mut Fields<impl Read + Seek>,
    bytes: u64,
    keys: &[&str],
) -> Result<Option<(usize, Value)>, String> {
    let end = fields.at() + bytes;
    let (mut at, mut value) = (None, None);
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            1 => {
                let name = fields.name(bytes)?;
                at = keys.iter().position(|key| name == *key);
            }
            2 if bytes > VALUE_BYTES_MAX => {
                fields.skip(bytes)?;
                value = Some(Err(format!("it has {bytes} bytes, more than the limit of {VALUE_BYTES_MAX}")));
            }
            2 => value = Some(String::from_utf8(fields.read(bytes)?).map_err(|_| "it is no text".to_owned())),
            _ => fields.skip(bytes)?,
        }
    }
    Ok(at.zip(value))
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to what they say of themselves.

    use crate::engine::onnx::external::testing::field;

    /// A file with these entries, between which there is a graph.
    pub(crate) fn model(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let entry =
            |(key, value): &(&str, &[u8])| field(14, &[field(1, key.as_bytes()), field(2, value)].concat());
        let graph = field(7, &field(5, &[0xff; 300]));
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
    use proptest::prelude::*;
    use std::io::Cursor;

    fn check(model: &[u8], key: &str) -> Option<Result<String, String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, model).unwrap();
        let [value] = values(&path, [key]);
        value
    }

    #[test]
    fn a_value_is_found_by_its_key() {
        let model = model(&[("author", b"me"), ("names", "{0: 'f\u{e4}n'}".as_bytes()), ("raw", b"\xff")]);
        assert_eq!(check(&model, "author"), Some(Ok("me".into())));
        assert_eq!(check(&model, "names"), Some(Ok("{0: 'f\u{e4}n'}".into())));
        assert_eq!(check(&model, "task"), None);
        assert_eq!(check(&model, "raw"), Some(Err("it is no text".into())));
        assert_eq!(check(b"<html>", "names"), None);
        assert_eq!(values(Path::new("/nowhere/model.onnx"), ["names"]), [None]);
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

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = find(Cursor::new(&bytes), bytes.len() as u64, ["names"]);
        }
    }
}
