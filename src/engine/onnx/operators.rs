//! The operators of a network, found in its file without loading it: also those in branches, loops and functions.

use super::fields::Fields;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{Read, Seek},
    path::Path,
};

/// Messages within messages beyond this are a mistake.
const DEPTH_MAX: usize = 200;
/// A name beyond this is no operator's.
const NAME_BYTES_MAX: u64 = 256;

/// The names of all operators in a model file. Of a file that cannot be read, nothing: whoever loads it says why.
pub(in crate::engine) fn of(path: &Path) -> Option<BTreeSet<String>> {
    let file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    let mut found = BTreeSet::new();
    collect(&mut Fields::of(file), bytes, Level::Model, &mut found, DEPTH_MAX).ok()?;
    Some(found)
}

/// Whether a network sorts out boxes itself. A file that cannot be read tells nothing.
pub(crate) fn suppresses(path: &Path) -> bool {
    of(path).is_some_and(|operators| operators.contains("NonMaxSuppression"))
}

/// The messages that hold operations.
#[derive(Clone, Copy)]
enum Level {
    Model,
    Graph,
    Function,
    Node,
    Attribute,
}

fn collect(
    fields: &mut Fields<impl Read + Seek>,
    end: u64,
    of: Level,
    found: &mut BTreeSet<String>,
    depth: usize,
) -> Result<(), String> {
    while let Some((number, bytes)) = fields.next_until(end)? {
        let below = match (of, number) {
            (Level::Model, 7) | (Level::Attribute, 6 | 11) => Level::Graph,
            (Level::Model, 25) => Level::Function,
            (Level::Graph, 1) | (Level::Function, 7) => Level::Node,
            (Level::Node, 5) => Level::Attribute,
            (Level::Node, 4) => {
                if bytes > NAME_BYTES_MAX {
                    return Err(fields.broken());
                }
                let name = String::from_utf8(fields.read(bytes)?).map_err(|_| fields.broken())?;
                if !found.contains(&name) {
                    found.insert(name);
                }
                continue;
            }
            _ => {
                fields.skip(bytes)?;
                continue;
            }
        };
        let depth = depth.checked_sub(1).ok_or_else(|| fields.broken())?;
        let end = fields.at() + bytes;
        collect(fields, end, below, found, depth)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ending::testing::model, external::testing::field},
        *,
    };
    use proptest::prelude::*;
    use std::io::Cursor;

    fn names(bytes: &[u8]) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, bytes).unwrap();
        of(&path).map(|names| names.into_iter().collect())
    }

    #[test]
    fn operators_are_found_wherever_one_can_be() {
        let flat = model(&[["Conv", "x", "a"], ["Relu", "a", "b"], ["Conv", "b", "y"]]);
        assert_eq!(names(&flat).unwrap(), ["Conv", "Relu"]);
        let node =
            |operator: &str, more: &[u8]| field(1, &[field(4, operator.as_bytes()), more.to_vec()].concat());
        let branch = node("If", &field(5, &field(6, &node("NonMaxSuppression", &[]))));
        assert_eq!(names(&field(7, &branch)).unwrap(), ["If", "NonMaxSuppression"]);
        let function = field(25, &field(7, &field(4, b"NonZero")));
        assert_eq!(names(&[field(7, &node("Mine", &[])), function].concat()).unwrap(), ["Mine", "NonZero"]);
        assert_eq!((names(b"<html>"), of(Path::new("/nowhere/model.onnx"))), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = collect(&mut Fields::of(Cursor::new(&bytes)), bytes.len() as u64, Level::Model, &mut BTreeSet::new(), DEPTH_MAX);
        }
    }
}
