//! Enough of HDF5 to write a file of tables that follow one another: a head, and then the bytes of the tables.
//!
//! Follows the file format specification, version 3.0, in the parts that readers support since HDF5 1.8: a version 2 superblock (II.B),
//! version 2 object headers (IV.A.1.b), a root group whose links are messages in its header (IV.A.2.g), contiguous datasets (IV.A.2.i).
//! Libraries for all of HDF5 are a hundred times as large as this file, and want to hold the data themselves.

mod checksum;
mod message;

pub(super) use message::Datatype;

use checksum::lookup3;
use message::{attribute, contiguous, dataspace, datatype, fill_value, group_info, link, link_info};

/// Bytes of the superblock.
const SUPERBLOCK: u64 = 48;
/// The undefined address.
const NOWHERE: u64 = u64::MAX;

/// A table in the root group.
#[derive(Debug, Clone)]
pub(super) struct Dataset {
    pub(super) name: &'static str,
    pub(super) datatype: Datatype,
    /// Number of elements; `None` for a single element without an axis.
    pub(super) rows: Option<u64>,
    /// Attributes: names and texts.
    pub(super) attributes: Vec<(String, String)>,
}

impl Dataset {
    /// Bytes of its data.
    fn size(&self) -> u64 {
        self.rows.unwrap_or(1) * u64::from(self.datatype.size())
    }

    fn header(&self, address: u64) -> Vec<u8> {
        let address = if self.size() == 0 { NOWHERE } else { address };
        let mut messages = vec![
            dataspace(self.rows),
            datatype(&self.datatype),
            fill_value(),
            contiguous(address, self.size()),
        ];
        messages.extend(self.attributes.iter().map(|(name, text)| attribute(name, text)));
        object_header(&messages)
    }
}

/// The head of a file with these datasets. Their data must follow it in the same order without gaps.
pub(super) fn head(datasets: &[Dataset]) -> Vec<u8> {
    let root = |addresses: &[u64]| {
        let links = datasets.iter().zip(addresses).map(|(dataset, address)| link(dataset.name, *address));
        let messages: Vec<Vec<u8>> = [link_info(), group_info()].into_iter().chain(links).collect();
        object_header(&messages)
    };
    // The lengths of headers do not depend on the addresses in them.
    let mut at = SUPERBLOCK + root(&vec![0; datasets.len()]).len() as u64;
    let mut headers = Vec::new();
    for dataset in datasets {
        headers.push(at);
        at += dataset.header(0).len() as u64;
    }
    let padding = at.next_multiple_of(8) - at;
    let mut end = at + padding;
    let mut data = Vec::new();
    for dataset in datasets {
        data.push(end);
        end += dataset.size();
    }

    let mut bytes = superblock(end);
    bytes.extend(root(&headers));
    for (dataset, address) in datasets.iter().zip(data) {
        bytes.extend(dataset.header(address));
    }
    bytes.extend(std::iter::repeat_n(0, padding as usize));
    bytes
}

fn superblock(end_of_file: u64) -> Vec<u8> {
    let mut bytes = b"\x89HDF\r\n\x1a\n".to_vec();
    // Version, bytes of an address, bytes of a length, no flags.
    bytes.extend([2, 8, 8, 0]);
    for address in [0, NOWHERE, end_of_file, SUPERBLOCK] {
        bytes.extend(address.to_le_bytes());
    }
    with_checksum(bytes)
}

/// An object header that holds all messages in one chunk, with a length of four bytes.
fn object_header(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"OHDR\x02\x02".to_vec();
    let length: usize = messages.iter().map(Vec::len).sum();
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend(messages.concat());
    with_checksum(bytes)
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = lookup3(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn addresses_and_checksums_hold() {
        let rows = Dataset {
            name: "rows",
            datatype: Datatype::Compound(vec![
                ("n".to_owned(), Datatype::U32),
                ("x".to_owned(), Datatype::F32),
            ]),
            rows: Some(3),
            attributes: vec![("unit".to_owned(), "px".to_owned())],
        };
        let note = Dataset { name: "note", datatype: Datatype::Text(5), rows: None, attributes: Vec::new() };
        let head = head(&[rows.clone(), note]);
        assert_eq!(head.len() % 8, 0);
        // End of file: the head, three rows of eight bytes, five bytes of text.
        assert_eq!(u64_at(&head, 28), head.len() as u64 + 3 * 8 + 5);
        assert_eq!(u64_at(&head, 36), SUPERBLOCK);
        // Every header begins where a link says, and its checksum is that of its bytes.
        let starts: Vec<usize> =
            head.windows(4).enumerate().filter(|(_, w)| *w == b"OHDR").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        for start in &starts {
            let length = u32::from_le_bytes(head[start + 6..start + 10].try_into().unwrap()) as usize;
            let end = start + 10 + length;
            assert_eq!(head[end..end + 4], lookup3(&head[*start..end]).to_le_bytes());
        }
        for (name, start) in [(&b"\x04rows"[..], starts[1]), (b"\x04note", starts[2])] {
            let at = head.windows(5).position(|window| window == name).unwrap();
            assert_eq!(u64_at(&head, at + 5), start as u64);
        }
        assert_eq!(head[..44][36..44], SUPERBLOCK.to_le_bytes());
        assert_eq!(head[44..48], lookup3(&head[..44]).to_le_bytes());
        // The data follow: the layout of the first has the address of the end of the head.
        let layout: Vec<u8> =
            [&[3, 1][..], &(head.len() as u64).to_le_bytes(), &24_u64.to_le_bytes()].concat();
        assert!(head.windows(layout.len()).any(|window| window == layout));
        // Without rows there is no address.
        let empty = super::head(&[Dataset { rows: Some(0), ..rows }]);
        let layout: Vec<u8> = [&[3, 1][..], &NOWHERE.to_le_bytes(), &[0; 8]].concat();
        assert!(empty.windows(layout.len()).any(|window| window == layout));
    }
}
