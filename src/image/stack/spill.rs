//! A temporary file for what memory may not hold: the one effect of `image`.
//!
//! It has no name (it is unlinked as it is made), so that nothing is left behind, however the process ends.

use super::StackError;
use std::{fs::File, io, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

/// Bytes at the offsets that they have in the stack; a sparse file, made when the first are written.
pub(super) struct Spill {
    folder: Option<PathBuf>,
    file: Option<File>,
    bytes: u64,
    bytes_max: u64,
}

impl Spill {
    /// With no folder, nothing can be spilled.
    pub(super) fn new(folder: Option<PathBuf>, bytes_max: u64) -> Spill {
        Spill { folder, file: None, bytes: 0, bytes_max }
    }

    /// Whether there is somewhere to write to.
    pub(super) fn possible(&self) -> bool {
        self.folder.is_some()
    }

    /// Bytes written so far; none are given back before the end.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StackError> {
        let total = self.bytes + bytes.len() as u64;
        if total > self.bytes_max {
            return Err(StackError::TooLarge {
                what: "what has to be kept of a stack that is stored out of order, in bytes,",
                got: total,
                limit: self.bytes_max,
                option: "stack_spill_bytes_max",
            });
        }
        let file = match (&mut self.file, &self.folder) {
            (Some(file), _) => file,
            (none, Some(folder)) => none.insert(tempfile::tempfile_in(folder).map_err(failed)?),
            (None, None) => return Err(failed(io::Error::other("no folder for temporary files"))),
        };
        file.write_all_at(bytes, offset).map_err(failed)?;
        self.bytes = total;
        Ok(())
    }

    /// Reads bytes that were written.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StackError> {
        match &self.file {
            Some(file) => file.read_exact_at(into, offset).map_err(failed),
            None => Err(failed(io::Error::other("nothing was written"))),
        }
    }
}

fn failed(error: io::Error) -> StackError {
    StackError::Spill(Arc::new(error))
}
