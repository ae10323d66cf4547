//! Iterates over the fields of an ONNX file's messages. Fields that are not needed are skipped without reading them.

use std::io::{BufReader, Read, Seek};

/// Longer names are an error, or none, as whoever reads them needs it.
const NAME_BYTES_MAX: u64 = 8192;

/// A position in a file of messages.
pub(super) struct Fields<R> {
    reader: BufReader<R>,
    at: u64,
}

impl<R: Read + Seek> Fields<R> {
    pub(super) fn of(reader: R) -> Fields<R> {
        Fields { reader: BufReader::new(reader), at: 0 }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn broken(&self) -> String {
        format!("it is not an ONNX file, or a damaged one (at byte {})", self.at)
    }

    /// The number and the length of the next length-delimited field (text, message, raw data) in a message that ends at `end`. Other
    /// fields are skipped.
    pub(super) fn next_until(&mut self, end: u64) -> Result<Option<(u64, u64)>, String> {
        while self.at < end {
            let key = self.varint(end)?;
            // No field has the number 0. A file that is not written yet consists of zeros, and would give gigabytes of two-byte fields.
            if key >> 3 == 0 {
                return Err(self.broken());
            }
            let bytes = match key & 7 {
                0 => {
                    self.varint(end)?;
                    continue;
                }
                1 => 8,
                2 => self.varint(end)?,
                5 => 4,
                _ => return Err(self.broken()),
            };
            if bytes > end - self.at {
                return Err(self.broken());
            }
            if key & 7 == 2 {
                return Ok(Some((key >> 3, bytes)));
            }
            self.skip(bytes)?;
        }
        Ok(None)
    }

    /// Reads `bytes` bytes; the caller makes sure that they are few.
    pub(super) fn read(&mut self, bytes: u64) -> Result<Vec<u8>, String> {
        let mut read = vec![0; bytes as usize];
        self.reader.read_exact(&mut read).map_err(|_| self.broken())?;
        self.at += bytes;
        Ok(read)
    }

    /// Reads a name of `bytes` bytes.
    pub(super) fn name(&mut self, bytes: u64) -> Result<String, String> {
        if bytes > NAME_BYTES_MAX {
            return Err(format!("a name has {bytes} bytes, more than the limit of {NAME_BYTES_MAX}"));
        }
        String::from_utf8(self.read(bytes)?).map_err(|_| self.broken())
    }

    /// The same; empty for a name that is too long or no text, which is that of nothing that anybody looks for.
    pub(super) fn name_or_none(&mut self, bytes: u64) -> Result<String, String> {
        if bytes > NAME_BYTES_MAX {
            self.skip(bytes)?;
            return Ok(String::new());
        }
        Ok(String::from_utf8(self.read(bytes)?).unwrap_or_default())
    }

    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), String> {
        let step = i64::try_from(bytes).map_err(|_| self.broken())?;
        self.reader.seek_relative(step).map_err(|_| self.broken())?;
        self.at += bytes;
        Ok(())
    }

    /// A varint: seven bits per byte, the lowest first.
    fn varint(&mut self, end: u64) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.at >= end || self.reader.read_exact(&mut byte).is_err() {
                return Err(self.broken());
            }
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(self.broken())
    }
}
