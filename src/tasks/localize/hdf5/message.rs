//! The messages of object headers (specification, IV.A.2): a type, a length, no flags, and a body.

/// Type of an element.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Datatype {
    U32,
    F32,
    /// UTF-8 text of this many bytes, padded with zeros; not 0.
    Text(u32),
    /// Members that follow one another without gaps.
    Compound(Vec<(String, Datatype)>),
}

impl Datatype {
    /// Bytes of an element.
    pub(super) fn size(&self) -> u32 {
        match self {
            Datatype::U32 | Datatype::F32 => 4,
            Datatype::Text(size) => *size,
            Datatype::Compound(members) => members.iter().map(|(_, member)| member.size()).sum(),
        }
    }

    /// Version 3 of the encoding: class and version, bits of the class, size, properties.
    fn encode(&self) -> Vec<u8> {
        let begin = |class: u8, bits: [u8; 3]| {
            let mut bytes = vec![3 << 4 | class];
            bytes.extend(bits);
            bytes.extend(self.size().to_le_bytes());
            bytes
        };
        match self {
            // Little-endian and unsigned; all 32 bits from bit 0.
            Datatype::U32 => [begin(0, [0; 3]), vec![0, 0, 32, 0]].concat(),
            // Little-endian, leading bit of the mantissa implied, sign in bit 31; all 32 bits from bit 0, exponent of
            // 8 bits from 23, mantissa of 23 from 0, bias 127.
            Datatype::F32 => {
                [begin(1, [0x20, 31, 0]), vec![0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]].concat()
            }
            Datatype::Text(_) => begin(3, [0x11, 0, 0]),
            Datatype::Compound(members) => {
                let [low, high] = (members.len() as u16).to_le_bytes();
                let mut bytes = begin(6, [low, high, 0]);
                // Each offset takes as many bytes as the size of the whole needs.
                let width = (self.size().ilog2() / 8 + 1) as usize;
                let mut offset = 0_u32;
                for (name, member) in members {
                    bytes.extend(name.as_bytes());
                    bytes.push(0);
                    bytes.extend(&offset.to_le_bytes()[..width]);
                    bytes.extend(member.encode());
                    offset += member.size();
                }
                bytes
            }
        }
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u16).to_le_bytes());
    bytes.push(0);
    bytes.extend(body);
    bytes
}

/// One axis with this many elements, or no axis.
pub(super) fn dataspace(rows: Option<u64>) -> Vec<u8> {
    message(1, &space(rows))
}

fn space(rows: Option<u64>) -> Vec<u8> {
    match rows {
        Some(rows) => [&[2, 1, 0, 1][..], &rows.to_le_bytes()].concat(),
        None => vec![2, 0, 0, 0],
    }
}

/// States that no links are stored elsewhere.
pub(super) fn link_info() -> Vec<u8> {
    message(2, &[&[0, 0][..], &[0xff; 16]].concat())
}

pub(super) fn datatype(datatype: &Datatype) -> Vec<u8> {
    message(3, &datatype.encode())
}

/// Late allocation, written if set, and not set.
pub(super) fn fill_value() -> Vec<u8> {
    message(5, &[3, 0x0a])
}

/// A hard link; the name is of less than 256 bytes.
pub(super) fn link(name: &str, address: u64) -> Vec<u8> {
    let mut body = vec![1, 0, name.len() as u8];
    body.extend(name.as_bytes());
    body.extend(address.to_le_bytes());
    message(6, &body)
}

/// Data in one contiguous piece.
pub(super) fn contiguous(address: u64, size: u64) -> Vec<u8> {
    message(8, &[&[3, 1][..], &address.to_le_bytes(), &size.to_le_bytes()].concat())
}

/// The defaults.
pub(super) fn group_info() -> Vec<u8> {
    message(10, &[0, 0])
}

/// A named text; a text that does not fit into a message is cut.
pub(super) fn attribute(name: &str, text: &str) -> Vec<u8> {
    const TEXT_MAX: usize = 60_000;
    let text = &text[..text.floor_char_boundary(TEXT_MAX)];
    let value = if text.is_empty() { "\0" } else { text };
    let datatype = Datatype::Text(value.len() as u32).encode();
    let space = space(None);
    let mut body = vec![3, 0];
    for length in [name.len() + 1, datatype.len(), space.len()] {
        body.extend((length as u16).to_le_bytes());
    }
    // The name is in UTF-8.
    body.push(1);
    body.extend(name.as_bytes());
    body.push(0);
    body.extend(datatype);
    body.extend(space);
    body.extend(value.as_bytes());
    message(12, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_bytes_of_the_specification() {
        assert_eq!(Datatype::U32.encode(), [0x30, 0, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0]);
        let compound =
            Datatype::Compound(vec![("a".to_owned(), Datatype::U32), ("bc".to_owned(), Datatype::F32)]);
        assert_eq!(compound.size(), 8);
        let mut expected = vec![0x36, 2, 0, 0, 8, 0, 0, 0];
        expected.extend(b"a\0\0");
        expected.extend(Datatype::U32.encode());
        expected.extend(b"bc\0\x04");
        expected.extend(Datatype::F32.encode());
        assert_eq!(compound.encode(), expected);
    }

    #[test]
    fn offsets_of_large_compounds_take_two_bytes() {
        let members = (0..64).map(|n| (format!("m{n:02}"), Datatype::F32)).collect();
        let bytes = Datatype::Compound(members).encode();
        // Size 256: two bytes per offset, after a name of three letters and its zero.
        assert_eq!(bytes[4..8], 256_u32.to_le_bytes());
        assert_eq!(bytes.len(), 8 + 64 * (4 + 2 + 20));
        assert_eq!(bytes[8 + 26 + 4..][..2], [4, 0]);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "µ".repeat(40_000);
        assert!(attribute("note", &long).len() < usize::from(u16::MAX));
        assert_eq!(attribute("note", "")[0], 12);
    }
}
