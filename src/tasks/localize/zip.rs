//! A ZIP archive of uncompressed files: floating-point numbers do not compress enough to be worth the time.
//!
//! Follows PKWARE's APPNOTE, 4.3. No library is used, because the bytes of the files are passed on without copying.

use bytes::Bytes;

/// The largest archive whose offsets fit into 32 bits.
const BYTES_MAX: u64 = u32::MAX as u64;
/// 1 January 1980, the earliest possible day: an archive does not say when it was made.
const DATE: u16 = 1 << 5 | 1;

/// A file of an archive.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) blocks: Vec<Bytes>,
}

/// The bytes of an archive.
///
/// # Errors
/// If it would be larger than 4 GiB.
pub(super) fn archive(entries: Vec<Entry>) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::new();
    let mut directory = Vec::new();
    let mut at = 0_u64;
    let count = entries.len() as u16;
    for entry in entries {
        let size: u64 = entry.blocks.iter().map(|block| block.len() as u64).sum();
        if at + size + (1 << 16) > BYTES_MAX {
            return Err(format!(
                "the archive would be larger than {BYTES_MAX} bytes: choose a streamed format"
            ));
        }
        let mut crc = flate2::Crc::new();
        entry.blocks.iter().for_each(|block| crc.update(block));
        // The fields that an entry shares with its directory entry: version 2.0 to extract, no flags, stored.
        let mut common = Vec::new();
        for number in [20, 0, 0, 0, DATE] {
            common.extend(u16::to_le_bytes(number));
        }
        for number in [crc.sum(), size as u32, size as u32] {
            common.extend(number.to_le_bytes());
        }
        common.extend((entry.name.len() as u16).to_le_bytes());
        common.extend(0_u16.to_le_bytes());

        // Made by version 2.0; no comment, first disk, no attributes.
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend((at as u32).to_le_bytes());
        directory.extend(entry.name.as_bytes());

        let local = [&b"PK\x03\x04"[..], &common, entry.name.as_bytes()].concat();
        at += local.len() as u64 + size;
        pieces.push(Bytes::from(local));
        pieces.extend(entry.blocks);
    }
    let length = directory.len() as u32;
    directory.extend(b"PK\x05\x06\0\0\0\0");
    directory.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    directory.extend(length.to_le_bytes());
    directory.extend((at as u32).to_le_bytes());
    directory.extend([0; 2]);
    pieces.push(Bytes::from(directory));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_leads_to_the_files() {
        let entry = |name: &str, blocks: &[&'static [u8]]| Entry {
            name: name.to_owned(),
            blocks: blocks.iter().copied().map(Bytes::from_static).collect(),
        };
        let bytes = archive(vec![entry("a.txt", &[b"1234", b"56789"]), entry("b", &[])]).unwrap().concat();
        // The check value of CRC-32.
        assert_eq!(bytes[14..18], 0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(bytes[30..44], *b"a.txt123456789");
        assert_eq!(bytes[44..48], *b"PK\x03\x04");
        let end = bytes.len() - 22;
        assert_eq!(bytes[end..end + 4], *b"PK\x05\x06");
        let directory = u32::from_le_bytes(bytes[end + 16..end + 20].try_into().unwrap()) as usize;
        assert_eq!(directory, 44 + 30 + 1);
        assert_eq!(bytes[directory..directory + 4], *b"PK\x01\x02");
        // The second directory entry gives the offset of the second file.
        let second = directory + 46 + 5;
        assert_eq!(bytes[second + 42..second + 46], 44_u32.to_le_bytes());
        assert_eq!(end - directory, (46 + 5) + (46 + 1));
    }

    #[test]
    fn archives_above_four_gigabytes_are_refused() {
        // The same block many times, without copies.
        let block = Bytes::from(vec![0; 1 << 26]);
        let entry = Entry { name: "large".to_owned(), blocks: vec![block; 64] };
        assert!(
            archive(vec![entry])
                .unwrap_err()
                .starts_with("the archive would be larger than 4294967295 bytes")
        );
    }
}
