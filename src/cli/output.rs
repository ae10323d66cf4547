//! Files that commands write. They get their names only once they are complete.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// An output for a path.
pub(super) enum Output {
    /// A temporary file beside the path, which replaces it at the end. Dropping this earlier removes it.
    Beside(NamedTempFile, PathBuf),
    /// A pipe or a device, which is written directly.
    Itself(File),
}

impl Output {
    /// Begins to write. A file that exists at the path stays until the end.
    pub(super) fn create(path: &Path) -> io::Result<Output> {
        // For a link, its target is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let permissions = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Permissions::from_mode(0o666),
            Err(error) => return Err(error),
            Ok(there) => {
                // A file that must not be written must not be replaced either.
                let file = OpenOptions::new().write(true).open(&path)?;
                if !there.is_file() {
                    return Ok(Output::Itself(file));
                }
                there.permissions()
            }
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::metadata(folder)?;
        let beside = tempfile::Builder::new()
            .prefix(".ocelli-")
            .suffix(".part")
            .permissions(permissions)
            .tempfile_in(folder)?;
        Ok(Output::Beside(beside, path))
    }

    /// Gives the file its name.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Output::Beside(beside, path) => {
                // Some file systems report only here that there is no space.
                beside.as_file().sync_data()?;
                beside.persist(path).map(drop).map_err(|error| error.error)
            }
            Output::Itself(mut file) => file.flush(),
        }
    }

    /// Keeps the incomplete content as `NAME.part`; returns that path, if it is a file.
    pub(super) fn leave(self) -> Option<PathBuf> {
        let Output::Beside(beside, path) = self else { return None };
        let mut name = path.into_os_string();
        name.push(".part");
        beside.persist(&name).ok().map(|_| name.into())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Beside(file, _) => file.write(bytes),
            Output::Itself(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Beside(file, _) => file.flush(),
            Output::Itself(file) => file.flush(),
        }
    }
}

/// Writes a file whose content is complete.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(content)?;
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_what_was_there_stays_until_then() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.csv");
        fs::write(&path, "before").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
        let mut output = Output::create(&path).expect("begun");
        output.write_all(b"after").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"before");
        drop(output);
        assert_eq!(names(folder.path()), ["a.csv"]);
        write(&path, b"after").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"after");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["a.csv"]);
    }

    #[test]
    fn a_link_stays_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, link] = ["a.csv", "link.csv"].map(|name| folder.path().join(name));
        fs::write(&path, "before").expect("written");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        write(&link, b"after").expect("written");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read(&path).expect("read"), b"after");
    }

    #[test]
    fn what_came_before_the_end_can_be_left_under_a_name_that_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut output = Output::create(&folder.path().join("a.csv")).expect("begun");
        output.write_all(b"some").expect("written");
        let left = output.leave().expect("a file");
        assert_eq!(fs::read(left).expect("read"), b"some");
        assert_eq!(names(folder.path()), ["a.csv.part"]);
    }

    #[test]
    fn what_is_no_file_is_written_as_it_is() {
        write(Path::new("/dev/null"), b"text").expect("written");
        let full = write(Path::new("/dev/full"), b"text").expect_err("full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(!fs::metadata("/dev/full").expect("still there").is_file());
        assert!(write(Path::new("/"), b"").is_err());
        assert!(write(Path::new("/no/such/folder/x"), b"").is_err());
    }
}
