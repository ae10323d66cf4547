//! One region: a name under `/dev/shm` that a caller registered, opened once, read and written by position.
//!
//! Nothing is mapped. A client may cut its memory short at any time, and touching a mapped page that is gone ends the process (SIGBUS), as
//! it does where there is no memory left for a page. `pread` and `pwrite` come short or fail instead, which is an error of that one
//! request. They cost one copy, which is needed anyway: a region may change while it is looked at, so a check of it in place would prove
//! nothing. The copy goes straight to where the batch is read from.

use crate::{
    error::{InferError, bad},
    http::wire::shared_memory::{Place, Registration, check_name},
    words::clipped,
};
use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Where the system keeps what `shm_open` opens.
pub(super) const FOLDER: &str = "/dev/shm";

/// The longest name of a file.
const KEY_BYTES_MAX: usize = 255;

/// A region. Its file stays open until the last request that uses it has ended.
#[derive(Debug)]
pub(crate) struct Region {
    /// As the caller calls it.
    pub(crate) name: String,
    /// As it was registered.
    pub(crate) registration: Registration,
    file: File,
}

impl Region {
    /// Opens the memory that a registration names, in `folder`.
    ///
    /// # Errors
    /// 400 for a key that is no plain name, what cannot be opened for reading and writing, what is not a file (links are not
    /// followed), and more bytes than the file has.
    pub(super) fn open(folder: &Path, name: &str, registration: Registration) -> Result<Region, InferError> {
        check_name(name)?;
        let Registration { key, offset, byte_size } = &registration;
        let file_name = file_name(key)?;
        let cannot = |why: &str| bad(format!("shared memory {key:?} cannot be registered: {why}"));
        // Follow no links, and do not wait for the other end of a pipe.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder.join(file_name));
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => cannot("there is none of this name; create it first"),
            Some(libc::ELOOP) => cannot("it is a link"),
            Some(libc::EACCES | libc::EPERM) => cannot("the server may not read and write it"),
            Some(libc::EMFILE | libc::ENFILE) => {
                InferError::Internal("the server has no file descriptor left for shared memory".to_owned())
            }
            _ => cannot(&error.to_string()),
        })?;
        let metadata = file.metadata().map_err(|error| cannot(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(cannot("it is not a file"));
        }
        let end = offset.checked_add(*byte_size);
        if *byte_size == 0 || end.is_none_or(|end| end > metadata.len()) {
            return Err(cannot(&format!(
                "offset {offset} and byte_size {byte_size} (1 or more) do not lie in its {} bytes",
                metadata.len()
            )));
        }
        Ok(Region { name: name.to_owned(), registration, file })
    }

    /// Where in the file a place of the region begins.
    ///
    /// # Errors
    /// 400 for what is not in the region.
    pub(super) fn at(&self, place: &Place) -> Result<u64, InferError> {
        let Registration { offset, byte_size, .. } = self.registration;
        let end = place.offset.checked_add(place.bytes).filter(|end| *end <= byte_size);
        // The end of the region is a number of bytes that a file had: the sum fits.
        end.map(|_| offset + place.offset).ok_or_else(|| {
            bad(format!(
                "{} bytes at offset {} do not lie in the {byte_size} bytes of shared memory region {:?}",
                place.bytes, place.offset, self.name
            ))
        })
    }

    /// Copies a place of the region, of as many bytes as `into` has.
    ///
    /// # Errors
    /// 400 for what is not in the region, or is not there any more.
    pub(super) fn read(&self, place: &Place, into: &mut [u8]) -> Result<(), InferError> {
        debug_assert_eq!(into.len() as u64, place.bytes, "the place of a tensor");
        self.file.read_exact_at(into, self.at(place)?).map_err(|error| self.failed(&error))
    }

    /// Copies `data` to the beginning of a place of the region.
    ///
    /// # Errors
    /// 400 for what is not in the region, is not there any more, or has no memory.
    pub(super) fn write(&self, place: &Place, data: &[u8]) -> Result<(), InferError> {
        debug_assert!(data.len() as u64 <= place.bytes, "it was compared");
        let at = self.at(place)?;
        let end = at + data.len() as u64;
        // Writing beyond its end would make the file longer. A caller who cuts it short right now gets it back as long as it was.
        match self.file.metadata() {
            Ok(metadata) if metadata.len() < end => Err(self.failed(&ErrorKind::UnexpectedEof.into())),
            _ => self.file.write_all_at(data, at).map_err(|error| self.failed(&error)),
        }
    }

    fn failed(&self, error: &io::Error) -> InferError {
        let name = &self.name;
        bad(match error.kind() {
            ErrorKind::UnexpectedEof => {
                format!("shared memory region {name:?} has been cut short since it was registered")
            }
            ErrorKind::StorageFull => {
                format!("shared memory region {name:?} cannot be written: {FOLDER} is full")
            }
            _ => format!("shared memory region {name:?} cannot be used: {error}"),
        })
    }
}

/// The file of a key: `shm_open` leaves out slashes in front, and takes no others.
fn file_name(key: &str) -> Result<&OsStr, InferError> {
    let name = key.trim_start_matches('/');
    if name.is_empty()
        || name == "."
        || name == ".."
        || name.contains(['/', '\0'])
        || name.len() > KEY_BYTES_MAX
    {
        let shown = clipped(key);
        return Err(bad(format!(
            "key {shown:?} is no name of shared memory: expected 1 to {KEY_BYTES_MAX} bytes without a slash, but for slashes in front"
        )));
    }
    Ok(OsStr::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// A folder with the file `m`, which has this content.
    fn folder(content: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("m"), content).unwrap();
        folder
    }

    fn open(folder: &tempfile::TempDir, key: &str, offset: u64, byte_size: u64) -> Result<Region, String> {
        let registration = Registration { key: key.to_owned(), offset, byte_size };
        Region::open(folder.path(), "r", registration).map_err(|error| error.to_string())
    }

    fn place(offset: u64, bytes: u64) -> Place {
        Place { region: "r".to_owned(), offset, bytes }
    }

    #[test]
    fn places_count_from_the_regions_own_offset() {
        let folder = folder(b"0123456789");
        let region = open(&folder, "/m", 2, 6).unwrap();
        let mut got = [0; 3];
        region.read(&place(1, 3), &mut got).unwrap();
        assert_eq!(&got, b"345");
        region.write(&place(4, 2), b"ab").unwrap();
        assert_eq!(fs::read(folder.path().join("m")).unwrap(), b"012345ab89");
    }

    #[test]
    fn only_plain_names_are_opened() {
        let outside = folder(b"secret");
        let inner = tempfile::tempdir_in(outside.path()).unwrap();
        fs::write(inner.path().join("m"), b"here").unwrap();
        symlink(outside.path().join("m"), inner.path().join("link")).unwrap();
        fs::create_dir(inner.path().join("d")).unwrap();
        for key in ["m", "/m", "//m"] {
            assert!(open(&inner, key, 0, 4).is_ok(), "{key}");
        }
        let absolute = outside.path().join("m");
        let long = "x".repeat(256);
        for key in [
            "",
            "/",
            ".",
            "..",
            "../m",
            "/../m",
            "d/../m",
            "./m",
            "m/",
            "m\0",
            absolute.to_str().unwrap(),
            &long,
        ] {
            let told = open(&inner, key, 0, 4).unwrap_err();
            assert!(told.contains("is no name of shared memory"), "{key:?}: {told}");
        }
        for (key, why) in [("link", "it is a link"), ("d", "directory"), ("n", "create it first")] {
            let told = open(&inner, key, 0, 4).unwrap_err();
            assert!(told.contains(why), "{key:?}: {told}");
        }
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = folder(b"");
        let path = folder.path().join("p");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert!(open(&folder, "p", 0, 1).unwrap_err().contains("it is not a file"));
    }

    #[test]
    fn a_region_lies_in_its_file() {
        let folder = folder(&[7; 100]);
        for (offset, bytes) in [(0, 100), (99, 1), (40, 60)] {
            assert!(open(&folder, "m", offset, bytes).is_ok(), "{offset} {bytes}");
        }
        for (offset, bytes) in
            [(0, 101), (100, 1), (0, 0), (1, 100), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
        {
            let told = open(&folder, "m", offset, bytes).unwrap_err();
            assert!(told.contains("do not lie in its 100 bytes"), "{offset} {bytes}: {told}");
        }
    }

    #[test]
    fn a_place_lies_in_its_region() {
        let folder = folder(&[7; 100]);
        let region = open(&folder, "m", 10, 50).unwrap();
        for (offset, bytes) in [(0, 50), (49, 1), (20, 30)] {
            assert_eq!(region.at(&place(offset, bytes)), Ok(10 + offset), "{offset} {bytes}");
        }
        for (offset, bytes) in [(0, 51), (50, 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            assert!(region.at(&place(offset, bytes)).is_err(), "{offset} {bytes}");
            assert!(region.write(&place(offset, bytes), b"x").is_err(), "{offset} {bytes}");
        }
        assert_eq!(fs::read(folder.path().join("m")).unwrap(), [7; 100]);
    }

    #[test]
    fn a_region_that_is_cut_short_fails_its_request_and_is_not_made_longer() {
        let folder = folder(&[7; 100]);
        let region = open(&folder, "m", 0, 100).unwrap();
        let file = OpenOptions::new().write(true).open(folder.path().join("m")).unwrap();
        file.set_len(30).unwrap();
        let told = |result: Result<(), InferError>| result.unwrap_err().to_string();
        assert!(told(region.read(&place(20, 20), &mut [0; 20])).contains("cut short"));
        assert!(told(region.write(&place(20, 20), &[1; 20])).contains("cut short"));
        assert_eq!(fs::read(folder.path().join("m")).unwrap(), [7; 30]);
        // What is left can be used.
        region.write(&place(20, 20), &[1; 10]).unwrap();
        region.read(&place(0, 30), &mut [0; 30]).unwrap();
        // Its memory stays when its name is gone.
        fs::remove_file(folder.path().join("m")).unwrap();
        region.read(&place(0, 30), &mut [0; 30]).unwrap();
    }
}
