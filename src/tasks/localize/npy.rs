//! NumPy's file: one array of records, with a field per column, packed and little-endian.
//!
//! The head is a Python literal; names beyond Latin-1 need version 3 of the format. The format has no place for units and conventions: our
//! own fields have the unit in their name, and the conventions are sent with the reply.

use super::{
    Counts, Encoder, Pieces, Table,
    held::Held,
    layout::{Kind, Layout},
    schema::Schema,
};
use bytes::Bytes;
use std::sync::Arc;

pub(super) struct Npy {
    schema: Arc<Schema>,
    layout: Layout,
    held: Held,
}

impl Npy {
    pub(super) fn new(schema: &Arc<Schema>, layout: Layout, held_bytes_max: usize) -> Npy {
        Npy { schema: Arc::clone(schema), layout, held: Held::new(held_bytes_max) }
    }

    fn head(&self) -> Vec<u8> {
        let rows = self.held.bytes() / self.layout.row_size();
        let field = |name: &str, kind: Kind| {
            let code = match kind {
                Kind::U8 => "|u1",
                Kind::U32 => "<u4",
                Kind::F32 => "<f4",
            };
            format!("('{name}', '{code}'), ")
        };
        let fields: String =
            self.layout.columns.iter().map(|column| field(&column.name, column.kind)).collect();
        let mut text = format!(
            "{{'descr': [{}], 'fortran_order': False, 'shape': ({rows},), }}",
            fields.trim_end_matches(", ")
        );
        // Magic, version and length come first; the rows begin at a multiple of 64.
        let wide = !text.is_ascii() || text.len() > 60_000;
        let before = if wide { 12 } else { 10 };
        let padding = 63 - (before + text.len()) % 64;
        text.extend(std::iter::repeat_n(' ', padding));
        text.push('\n');
        let mut head = b"\x93NUMPY".to_vec();
        if wide {
            head.extend([3, 0]);
            head.extend((text.len() as u32).to_le_bytes());
        } else {
            head.extend([1, 0]);
            head.extend((text.len() as u16).to_le_bytes());
        }
        head.extend(text.as_bytes());
        head
    }
}

impl Encoder for Npy {
    fn rows(&mut self, table: Table, first: u64, _out: &mut Pieces) -> Result<(), String> {
        self.held.push(self.layout.pack(&self.schema, table, first)?)
    }

    fn holds(&self) -> usize {
        self.held.bytes()
    }

    fn end(self: Box<Self>, _counts: &Counts) -> Result<Vec<Bytes>, String> {
        let head = Bytes::from(self.head());
        Ok(std::iter::once(head).chain(self.held.into_blocks()).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};

    #[test]
    fn the_array_is_one_of_packed_records() {
        let schema = schema(Model::Xynb);
        let both = [&table(&schema, 2), &table(&schema, 1)];
        let bytes = bytes(Format::Npy, &schema, &Options::default(), &both);
        assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
        let head = u16::from_le_bytes([bytes[8], bytes[9]]) as usize + 10;
        assert_eq!(head % 64, 0);
        let text = std::str::from_utf8(&bytes[10..head]).unwrap();
        assert!(text.starts_with("{'descr': [('frame', '<u4'), ('x_nm', '<f4'), "), "{text}");
        assert!(
            text.contains(
                "('iterations', '|u1'), ('status', '|u1')], 'fortran_order': False, 'shape': (3,), }"
            )
        );
        assert!(text.ends_with('\n'));
        // frame, eleven numbers, two codes.
        let row = 4 + 11 * 4 + 2;
        assert_eq!(bytes.len(), head + 3 * row);
        let second = &bytes[head + row..head + 2 * row];
        assert_eq!(second[..4], 0_u32.to_le_bytes());
        assert_eq!(second[4..8], 1150_f32.to_le_bytes());
        assert_eq!(second[row - 2..], [5, 0]);
    }

    #[test]
    fn names_beyond_ascii_take_version_3() {
        let schema = schema(Model::Xynb);
        let options = Options { columns: Columns::GaussMle, ..Options::default() };
        let bytes = bytes(Format::Npy, &schema, &options, &[]);
        assert_eq!(bytes[..8], *b"\x93NUMPY\x03\x00");
        assert_eq!(bytes.len() % 64, 0);
        assert!(std::str::from_utf8(&bytes[12..]).unwrap().contains("('σ_x', '<f4')"));
    }
}
