//! The messages within messages of an ONNX file, without what is in them: whoever looks for something says which fields it reads.
//! Field numbers are those of `onnx.proto`.

use super::fields::Fields;
use crate::engine::regular_file;
use std::{
    fs::File,
    io::{Read, Seek},
    path::Path,
};

/// Graphs within graphs (branches, loops): as many as ONNX Runtime reads, for which a level is three of a hundred messages within messages.
const LEVELS_MAX: usize = 32;

/// The messages that lead to operations and to tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Model,
    Function,
    Graph,
    Node,
    Attribute,
    SparseTensor,
    Tensor,
}

impl Message {
    /// What a field of this message holds, if it is one of these.
    fn field(self, number: u64) -> Option<Message> {
        Some(match (self, number) {
            (Message::Model, 7) | (Message::Attribute, 6 | 11) => Message::Graph,
            (Message::Model, 25) => Message::Function,
            (Message::Graph, 1) | (Message::Function, 7) => Message::Node,
            (Message::Node, 5) | (Message::Function, 11) => Message::Attribute,
            (Message::Graph, 5) | (Message::Attribute, 5 | 10) | (Message::SparseTensor, 1 | 2) => {
                Message::Tensor
            }
            (Message::Graph, 15) | (Message::Attribute, 22 | 23) => Message::SparseTensor,
            _ => return None,
        })
    }
}

/// A model file, and its length.
///
/// # Errors
/// If it cannot be read.
pub(super) fn open(path: &Path) -> Result<(File, u64), String> {
    let open = || {
        let file = regular_file::open(path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    };
    open().map_err(|error: std::io::Error| format!("cannot read it: {error}"))
}

/// Walks through a model file of so many bytes. `take` sees each field that has a length: the message that it is of and its number, and
/// its bytes, which are next in `Fields`. It reads or skips them and gives true, or leaves them to be walked through.
///
/// # Errors
/// Those of `take`, and a file that is not ONNX, is damaged, or has graphs nested too deeply.
pub(super) fn walk<R: Read + Seek>(
    reader: R,
    bytes: u64,
    mut take: impl FnMut(&mut Fields<R>, (Message, u64), u64) -> Result<bool, String>,
) -> Result<(), String> {
    through(&mut Fields::of(reader), Message::Model, bytes, 0, &mut take)
}

/// The fields of a message that goes up to `end`, in a graph that is so many levels below the model's.
fn through<R: Read + Seek>(
    fields: &mut Fields<R>,
    message: Message,
    end: u64,
    level: usize,
    take: &mut impl FnMut(&mut Fields<R>, (Message, u64), u64) -> Result<bool, String>,
) -> Result<(), String> {
    while let Some((number, bytes)) = fields.next_until(end)? {
        if take(fields, (message, number), bytes)? {
            continue;
        }
        let Some(inner) = message.field(number) else {
            fields.skip(bytes)?;
            continue;
        };
        let level = level + usize::from(message == Message::Attribute && inner == Message::Graph);
        if level > LEVELS_MAX {
            return Err(format!("its graphs are nested more deeply than the limit of {LEVELS_MAX} levels"));
        }
        let end = fields.at() + bytes;
        through(fields, inner, end, level, take)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::external::testing::field, *};
    use std::io::Cursor;

    /// How many nodes a model has whose graph has a node with a graph, and so on, so many levels.
    fn nodes(levels: usize) -> Result<usize, String> {
        let node = |inside: &[u8]| field(1, &[field(4, b"If"), inside.to_vec()].concat());
        let graph = (0..levels).fold(node(&[]), |inner, _| node(&field(5, &field(6, &inner))));
        let (model, mut nodes) = (field(7, &graph), 0);
        walk(Cursor::new(&model), model.len() as u64, |_, field, _| {
            nodes += usize::from(field == (Message::Node, 4));
            Ok(false)
        })?;
        Ok(nodes)
    }

    #[test]
    fn graphs_may_be_nested_as_deeply_as_the_limit_says() {
        assert_eq!(nodes(0), Ok(1));
        assert_eq!(nodes(LEVELS_MAX), Ok(LEVELS_MAX + 1));
        for levels in [LEVELS_MAX + 1, 100] {
            let error = nodes(levels).unwrap_err();
            assert!(error.ends_with("nested more deeply than the limit of 32 levels"), "{error}");
        }
    }
}
