//! Walks through the nested messages of an ONNX file without reading their contents; the caller decides which fields to read.
//! Field numbers are those of `onnx.proto`.

use super::fields::Fields;
use crate::engine::regular_file;
use std::{
    fs::File,
    io::{Read, Seek},
    path::Path,
};

/// Levels of nested graphs (branches, loops). ONNX Runtime has the same limit: it reads a hundred nested messages, and each level is three.
const LEVELS_MAX: usize = 32;

/// The messages that lead to nodes and to tensors.
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
    /// The kind of message that a field of this message holds, if it is one of these.
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

/// Opens a model file; also returns its length.
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

/// Walks through a model file of `bytes` bytes. `take` is called for each length-delimited field with its message, number and length;
/// the field's bytes are next in `Fields`. It reads or skips them and returns true, or returns false to have them walked through.
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

/// Walks through a message that ends at `end`, in a graph that is `level` levels below the model's.
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

    /// The number of nodes found in a model with graphs nested `levels` deep, each with one node.
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
