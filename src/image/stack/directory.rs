//! One directory of a TIFF: its entries, and where the values of the entries lie.

use super::samples::Order;

/// More entries than any writer puts into a directory.
pub(super) const ENTRIES_MAX: u64 = 4096;

/// How a TIFF encodes numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::image) struct Encoding {
    pub(super) order: Order,
    /// BigTIFF: offsets and counts take 8 bytes.
    pub(in crate::image) big: bool,
}

impl Encoding {
    /// The encoding that the first bytes of a file state.
    pub(in crate::image) fn begins(bytes: &[u8]) -> Option<Encoding> {
        let (order, big) = match bytes.get(..4)? {
            b"II*\0" => (Order::Little, false),
            b"MM\0*" => (Order::Big, false),
            b"II+\0" => (Order::Little, true),
            b"MM\0+" => (Order::Big, true),
            _ => return None,
        };
        Some(Encoding { order, big })
    }

    /// A number of up to 8 bytes.
    pub(in crate::image) fn number(self, bytes: &[u8]) -> u64 {
        let push = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self.order {
            Order::Little => bytes.iter().rev().fold(0, push),
            Order::Big => bytes.iter().fold(0, push),
        }
    }

    /// Bytes of the header, whose last field is the offset of the first directory.
    pub(super) fn header_bytes(self) -> u64 {
        if self.big { 16 } else { 8 }
    }

    /// Bytes of an offset, which is also the room that an entry has for values.
    pub(in crate::image) fn offset_bytes(self) -> usize {
        if self.big { 8 } else { 4 }
    }

    /// Bytes of the number of entries at the start of a directory.
    pub(in crate::image) fn count_bytes(self) -> u64 {
        if self.big { 8 } else { 2 }
    }

    /// Bytes of an entry.
    pub(in crate::image) fn entry_bytes(self) -> u64 {
        if self.big { 20 } else { 12 }
    }
}

/// A tag and its values.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) tag: u16,
    /// The TIFF number for the type of the values.
    kind: u16,
    pub(super) count: u64,
    /// The values themselves or their offset, in the first `room` bytes.
    value: [u8; 8],
    room: usize,
}

impl Entry {
    /// Bytes of one value; 0 for an unknown type.
    pub(super) fn value_bytes(&self) -> u64 {
        match self.kind {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            _ => 0,
        }
    }

    /// Bytes of all values.
    pub(super) fn bytes(&self) -> u64 {
        self.value_bytes().saturating_mul(self.count)
    }

    /// Where the values lie, unless the entry itself holds them.
    pub(super) fn offset(&self, encoding: Encoding) -> Option<u64> {
        (self.bytes() > self.room as u64).then(|| encoding.number(&self.value[..self.room]))
    }

    /// The values that the entry itself holds.
    pub(super) fn inline(&self) -> &[u8] {
        &self.value[..(self.room as u64).min(self.bytes()) as usize]
    }

    /// Whether the values are unsigned integers.
    pub(super) fn is_unsigned(&self) -> bool {
        matches!(self.kind, 1 | 3 | 4 | 13 | 16 | 18)
    }
}

/// The entries of one directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Directory {
    pub(super) entries: Vec<Entry>,
    /// Offset of the next directory; 0 if there is none.
    pub(super) next: u64,
    encoding: Encoding,
}

impl Directory {
    /// Reads the entries, and the offset of the next directory behind them; an incomplete entry is left out.
    pub(super) fn read(encoding: Encoding, bytes: &[u8]) -> Directory {
        let offset = encoding.offset_bytes();
        let (entries, next) = bytes.split_at(bytes.len().saturating_sub(offset));
        let entry = |entry: &[u8]| {
            // Every slice has the full length of an entry, because the table was cut into such slices.
            let (tag, rest) = entry.split_at(2);
            let (kind, rest) = rest.split_at(2);
            let (count, inline) = rest.split_at(offset);
            let mut value = [0; 8];
            value[..offset].copy_from_slice(inline);
            Entry {
                tag: encoding.number(tag) as u16,
                kind: encoding.number(kind) as u16,
                count: encoding.number(count),
                value,
                room: offset,
            }
        };
        let entries = entries.chunks_exact(encoding.entry_bytes() as usize).map(entry).collect();
        Directory { entries, next: encoding.number(next), encoding }
    }

    pub(super) fn find(&self, tag: u16) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    /// The single number of a tag; `Err` says why the tag does not hold one.
    pub(super) fn number(&self, tag: u16, name: &str) -> Result<Option<u64>, String> {
        let Some(entry) = self.find(tag) else { return Ok(None) };
        let value = entry.inline().get(..entry.value_bytes() as usize);
        match (entry.is_unsigned(), entry.count, value) {
            (true, 1, Some(value)) => Ok(Some(self.encoding.number(value))),
            _ => Err(format!("its {name} is not one number")),
        }
    }
}
