//! Iterates over the fields of an ONNX file's messages. Fields that are not needed are skipped without reading them.

use std::io::{self, BufReader, ErrorKind, Read, Seek};

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

    /// A file that ends too early is broken. Where it cannot be read, as on a volume that fails, nothing is known of what is in it.
    fn unread(&self, error: &io::Error) -> String {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.broken(),
            _ => format!("cannot read it: {error}"),
        }
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
        self.reader.read_exact(&mut read).map_err(|error| self.unread(&error))?;
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
        self.reader.seek_relative(step).map_err(|error| self.unread(&error))?;
        self.at += bytes;
        Ok(())
    }

    /// A varint: seven bits per byte, the lowest first.
    fn varint(&mut self, end: u64) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.at >= end {
                return Err(self.broken());
            }
            self.reader.read_exact(&mut byte).map_err(|error| self.unread(&error))?;
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(self.broken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of which nothing can be read, or be skipped, after `bytes`.
    struct Failing {
        bytes: io::Cursor<Vec<u8>>,
        kind: ErrorKind,
    }

    impl Read for Failing {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.bytes.read(into)? {
                0 => Err(self.kind.into()),
                read => Ok(read),
            }
        }
    }

    impl Seek for Failing {
        fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
            match self.bytes.seek(to)? {
                at if at > self.bytes.get_ref().len() as u64 => Err(self.kind.into()),
                at => Ok(at),
            }
        }
    }

    #[track_caller]
    fn check(bytes: &[u8], kind: ErrorKind, expected: &str) {
        let mut fields = Fields::of(Failing { bytes: io::Cursor::new(bytes.to_vec()), kind });
        let found = fields.next_until(100).and_then(|field| match field {
            Some((7, bytes)) => fields.read(bytes).map(drop),
            _ => Ok(()),
        });
        assert_eq!(found, Err(expected.to_owned()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_called_damaged() {
        const TEXT: u8 = 7 << 3 | 2;
        const NUMBER: u8 = 1 << 3 | 1;
        for bytes in [&[][..], &[TEXT], &[TEXT, 9], &[TEXT, 9, b'a'], &[NUMBER]] {
            check(bytes, ErrorKind::StaleNetworkFileHandle, "cannot read it: stale network file handle");
        }
        for (bytes, at) in [(&[][..], 0), (&[TEXT], 1), (&[TEXT, 9, b'a'], 2)] {
            let broken = format!("it is not an ONNX file, or a damaged one (at byte {at})");
            check(bytes, ErrorKind::UnexpectedEof, &broken);
        }
        check(&[0], ErrorKind::Other, "it is not an ONNX file, or a damaged one (at byte 1)");
    }
}
