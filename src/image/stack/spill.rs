//! A temporary file for what memory may not hold: the one effect of `image`.
//!
//! It has no name (it is unlinked as it is made), so that nothing is left behind, however the process ends.

use super::StackError;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

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
            (none, Some(folder)) => match tempfile::tempfile_in(folder) {
                Ok(file) => none.insert(file),
                Err(error) => return Err(self.failed(total, error)),
            },
            (None, None) => return Err(self.failed(total, io::Error::other("there is no folder for it"))),
        };
        if let Err(error) = file.write_all_at(bytes, offset) {
            return Err(self.failed(total, error));
        }
        self.bytes = total;
        Ok(())
    }

    /// Reads bytes that were written.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StackError> {
        match &self.file {
            Some(file) => file.read_exact_at(into, offset).map_err(|error| self.failed(self.bytes, error)),
            None => Err(self.failed(0, io::Error::other("nothing was written"))),
        }
    }

    /// For the caller, who need not know where the folder is, and for whoever looks after the server.
    fn failed(&self, bytes: u64, error: io::Error) -> StackError {
        let folder = self.folder.as_deref().unwrap_or(Path::new("")).display();
        tracing::error!(
            %folder,
            bytes,
            %error,
            "cannot keep a stack in a temporary file: make room there, or give stack_spill_folder another folder"
        );
        StackError::Spill { bytes, cause: Arc::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InferError;

    #[test]
    fn a_full_disk_is_an_error_of_its_own_that_says_how_much_had_no_room_and_not_where() {
        let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
        let folder = Some(PathBuf::from("/secret"));
        let mut spill = Spill { folder, file: Some(full), bytes: 1000, bytes_max: 1 << 20 };
        let error = InferError::from(spill.write(0, &[0; 24]).expect_err("it takes nothing"));
        let told = "cannot keep 1024 bytes of the stack in a temporary file: no storage space; the server's option \
                    stack_spill_folder names the folder, and its log has more";
        assert_eq!(error, InferError::NoStorage(told.to_owned()));
        assert_eq!(spill.bytes(), 1000);
    }
}
