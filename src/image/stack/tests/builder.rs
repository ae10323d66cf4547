//! TIFFs put together byte by byte, so that a test can decide where everything lies, and state false offsets.

use super::super::{directory::Encoding, samples::Order, tags};

pub(super) const LITTLE: Encoding = Encoding { order: Order::Little, big: false };
pub(super) const BIG_LITTLE: Encoding = Encoding { order: Order::Little, big: true };
pub(super) const BIG_BIG: Encoding = Encoding { order: Order::Big, big: true };

/// A tag with its type, count and the bytes of its values.
#[derive(Clone)]
pub(super) struct Field(u16, u16, u64, Vec<u8>);

/// A file that grows at its end.
pub(super) struct Builder {
    encoding: Encoding,
    pub(super) bytes: Vec<u8>,
    /// Where the offset of the next directory has to be written.
    link: usize,
}

impl Builder {
    pub(super) fn new(encoding: Encoding) -> Builder {
        let mut bytes = match (encoding.order, encoding.big) {
            (Order::Little, false) => b"II*\0".to_vec(),
            (Order::Big, false) => b"MM\0*".to_vec(),
            (Order::Little, true) => b"II+\0\x08\0\0\0".to_vec(),
            (Order::Big, true) => b"MM\0+\0\x08\0\0".to_vec(),
        };
        let link = bytes.len();
        bytes.resize(link + encoding.offset_bytes(), 0);
        Builder { encoding, bytes, link }
    }

    fn number(&self, value: u64, size: usize) -> Vec<u8> {
        match self.encoding.order {
            Order::Little => value.to_le_bytes()[..size].to_vec(),
            Order::Big => value.to_be_bytes()[8 - size..].to_vec(),
        }
    }

    /// Appends bytes and returns their offset.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u64 {
        self.bytes.extend_from_slice(bytes);
        (self.bytes.len() - bytes.len()) as u64
    }

    /// Makes the last directory (or the header) point somewhere.
    pub(super) fn point(&mut self, to: u64) {
        let number = self.number(to, self.encoding.offset_bytes());
        self.bytes[self.link..self.link + number.len()].copy_from_slice(&number);
    }

    pub(super) fn short(&self, tag: u16, value: u64) -> Field {
        Field(tag, 3, 1, self.number(value, 2))
    }

    pub(super) fn longs(&self, tag: u16, values: &[u64]) -> Field {
        let (kind, size) = if self.encoding.big { (16, 8) } else { (4, 4) };
        let bytes = values.iter().flat_map(|value| self.number(*value, size)).collect();
        Field(tag, kind, values.len() as u64, bytes)
    }

    pub(super) fn text(tag: u16, text: &str) -> Field {
        Field(tag, 2, text.len() as u64, text.as_bytes().to_vec())
    }

    /// A field that states more or fewer values than it has.
    pub(super) fn counting(field: Field, count: u64) -> Field {
        Field(field.0, field.1, count, field.3)
    }

    /// Appends a directory, its values after it, and links it.
    pub(super) fn directory(&mut self, fields: &[Field]) -> u64 {
        let room = self.encoding.offset_bytes();
        let at = self.bytes.len();
        self.point(at as u64);
        let size =
            self.encoding.count_bytes() as usize + fields.len() * self.encoding.entry_bytes() as usize + room;
        let mut values = Vec::new();
        let mut table = self.number(fields.len() as u64, self.encoding.count_bytes() as usize);
        for Field(tag, kind, count, bytes) in fields {
            table.extend(self.number(u64::from(*tag), 2));
            table.extend(self.number(u64::from(*kind), 2));
            table.extend(self.number(*count, room));
            let mut value = bytes.clone();
            if bytes.len() > room {
                value = self.number((at + size + values.len()) as u64, room);
                values.extend_from_slice(bytes);
            }
            value.resize(room, 0);
            table.extend(value);
        }
        self.link = at + table.len();
        table.extend(vec![0; room]);
        self.bytes.extend(table);
        self.bytes.extend(values);
        at as u64
    }

    /// The fields of a page of 16 bits in one strip.
    pub(super) fn page(&self, width: u64, height: u64, offset: u64, bytes: u64) -> Vec<Field> {
        vec![
            self.short(tags::WIDTH, width),
            self.short(tags::HEIGHT, height),
            self.short(tags::BITS, 16),
            self.longs(tags::STRIP_OFFSETS, &[offset]),
            self.longs(tags::STRIP_BYTES, &[bytes]),
        ]
    }

    /// Samples of 16 bits in the file's order.
    pub(super) fn samples(&self, samples: &[u16]) -> Vec<u8> {
        samples.iter().flat_map(|sample| self.number(u64::from(*sample), 2)).collect()
    }
}
