//! Packed rows that are held until the end, up to a limit.

use bytes::Bytes;

#[derive(Debug)]
pub(super) struct Held {
    blocks: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
}

impl Held {
    pub(super) fn new(bytes_max: usize) -> Held {
        Held { blocks: Vec::new(), bytes: 0, bytes_max }
    }

    /// Bytes that are held now.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds rows.
    ///
    /// # Errors
    /// If all rows would exceed the limit; the earlier rows stay.
    pub(super) fn push(&mut self, block: Vec<u8>) -> Result<(), String> {
        if block.len() > self.bytes_max - self.bytes {
            return Err(format!(
                "the rows need more than the {} bytes that may be held until the end: choose a format that is \
                 streamed (csv, ndjson, arrow), or post fewer frames at once",
                self.bytes_max
            ));
        }
        self.bytes += block.len();
        if !block.is_empty() {
            self.blocks.push(Bytes::from(block));
        }
        Ok(())
    }

    /// The rows, block by block.
    pub(super) fn into_blocks(self) -> Vec<Bytes> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};

    #[test]
    fn more_rows_than_may_be_held_are_an_error() {
        let schema = square(Model::Xynb);
        for format in [Format::Npy, Format::Hdf5, Format::Picasso] {
            let options = Options { held_bytes_max: 200, ..Options::default() };
            let mut writer = Writer::new(format, &schema, &options).unwrap();
            let mut out = Pieces::default();
            writer.begin(&mut out).unwrap();
            writer.chunk(table(&schema, 3), &mut out).unwrap();
            let error = writer.chunk(table(&schema, 3), &mut out).unwrap_err();
            assert!(error.starts_with("the rows need more than the 200 bytes that may be held"), "{error}");
            assert_eq!(writer.counts().written, 3);
            assert!(out.into_vec().is_empty() && writer.error("gone", "").is_empty() && !format.streams());
        }
    }
}
