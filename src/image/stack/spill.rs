//! A temporary file for bytes that do not fit into memory: the only side effect of `image`.
//!
//! The file has no name (it is unlinked as soon as it is made), so nothing is left behind, however the process ends.

use super::StackError;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The folder for the temporary files of all stacks, and how many bytes they hold.
#[derive(Debug)]
pub struct SpillFolder {
    path: PathBuf,
    bytes: AtomicU64,
    bytes_max: u64,
}

impl SpillFolder {
    /// Temporary files in `path`, which may hold at most `bytes_max` together.
    pub fn new(path: PathBuf, bytes_max: u64) -> SpillFolder {
        SpillFolder { path, bytes: AtomicU64::new(0), bytes_max }
    }

    /// How many bytes the files hold now.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<(), StackError> {
        let fits = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        let taken = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(drop).map_err(|_| StackError::SpillFull { limit: self.bytes_max })
    }

    fn put_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes at the same offsets as in the stack: a sparse file, made when the first bytes are written.
pub(super) struct Spill {
    folder: Option<Arc<SpillFolder>>,
    file: Option<File>,
    bytes: u64,
    bytes_max: u64,
}

impl Spill {
    /// Without a folder, nothing can be spilled.
    pub(super) fn new(folder: Option<Arc<SpillFolder>>, bytes_max: u64) -> Spill {
        Spill { folder, file: None, bytes: 0, bytes_max }
    }

    /// Whether there is a folder to write to.
    pub(super) fn possible(&self) -> bool {
        self.folder.is_some()
    }

    /// Bytes written so far; none are freed before the stack ends.
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
        let Some(folder) = &self.folder else {
            return Err(self.failed(total, io::Error::other("there is no folder for it")));
        };
        folder.take(bytes.len() as u64)?;
        if let Err(error) = write_to(&mut self.file, folder, offset, bytes) {
            folder.put_back(bytes.len() as u64);
            return Err(self.failed(total, error));
        }
        self.bytes = total;
        Ok(())
    }

    /// Reads bytes that were written before.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StackError> {
        match &self.file {
            Some(file) => file.read_exact_at(into, offset).map_err(|error| self.failed(self.bytes, error)),
            None => Err(self.failed(0, io::Error::other("nothing was written"))),
        }
    }

    /// Logs the failure with the folder, for the operator; the error for the client does not name the folder.
    fn failed(&self, bytes: u64, error: io::Error) -> StackError {
        let folder = self.folder.as_ref().map(|folder| folder.path.display().to_string());
        tracing::error!(
            folder,
            bytes,
            %error,
            "cannot keep a stack in a temporary file: make room there, or give stack_spill_folder another folder"
        );
        StackError::Spill { bytes, cause: Arc::new(error) }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // Close the file first: once the budget shows room, another stack must not find the disk full.
            drop(self.file.take());
            folder.put_back(self.bytes);
        }
    }
}

fn write_to(file: &mut Option<File>, folder: &SpillFolder, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let file = match file {
        Some(file) => file,
        none => none.insert(tempfile::tempfile_in(&folder.path)?),
    };
    file.write_all_at(bytes, offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InferError;

    #[test]
    fn the_files_of_all_stacks_share_one_bound_and_give_their_part_back_with_their_end() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Arc::new(SpillFolder::new(place.path().to_owned(), 100));
        let spill = || Spill::new(Some(Arc::clone(&folder)), 80);
        let (mut first, mut second) = (spill(), spill());
        first.write(0, &[1; 60]).expect("it has room");
        let error = InferError::from(second.write(0, &[2; 41]).expect_err("the other has 60 of 100"));
        let told = "the space for temporary files of stacks (stack_spill_total_bytes_max) is full (100); retry after 10 s";
        assert_eq!((error.to_string().as_str(), folder.bytes()), (told, 60));
        second.write(0, &[2; 40]).expect("it has room");
        let error = first.write(60, &[1; 21]).expect_err("more than one may have");
        assert!(matches!(error, StackError::TooLarge { got: 81, limit: 80, .. }), "{error:?}");
        drop(first);
        second.write(40, &[2; 40]).expect("the other is gone");
        drop(second);
        assert_eq!(folder.bytes(), 0);
    }

    #[test]
    fn a_full_disk_is_an_error_of_its_own_that_says_how_much_had_no_room_and_not_where() {
        let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
        let folder = Arc::new(SpillFolder::new(PathBuf::from("/secret"), u64::MAX));
        folder.take(1000).expect("no bound");
        let mut spill =
            Spill { folder: Some(Arc::clone(&folder)), file: Some(full), bytes: 1000, bytes_max: 1 << 20 };
        let error = InferError::from(spill.write(0, &[0; 24]).expect_err("it takes nothing"));
        let told = "cannot keep 1024 bytes of the stack in a temporary file: no storage space; the server's option \
                    stack_spill_folder names the folder, and its log has more";
        assert_eq!(error, InferError::NoStorage(told.to_owned()));
        assert_eq!((spill.bytes(), folder.bytes()), (1000, 1000));
    }
}
