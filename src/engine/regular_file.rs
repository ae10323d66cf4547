//! Opening files whose names and contents others control: a pipe or a device in place of a file must not block the server, and a link
//! must not lead to what the others may not read. What is checked is what is open, never a path: it may name something else by then.

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::retry_on_intr,
};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Opens a regular file for reading. A pipe is refused, since opening one waits for its writer; so is a device, which has no end.
///
/// # Errors
/// If there is no regular file, or it cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Opened without blocking, and checked once it is open: a path that is checked before may name something else by then.
    open_at(&CWD, path)
}

fn open_at(folder: &impl AsFd, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(retry_on_intr(|| openat(folder, path, flags, Mode::empty()))?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Where an open file or folder lies, with all links resolved.
///
/// # Errors
/// If the system does not say: `/proc` is missing.
pub(crate) fn place(file: &impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(through(file)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::other("/proc is not mounted, which says where an open file lies")
        }
        _ => error,
    })
}

/// The path of what is open, whatever becomes of its name.
fn through(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// An open folder. It stays the same if its path is made to name another.
pub(crate) struct Folder(OwnedFd);

impl Folder {
    /// Opens a folder; its path may be a link.
    ///
    /// # Errors
    /// If there is no folder, or it cannot be opened.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a regular file in the folder for reading. If it is a link, that may lead anywhere.
    ///
    /// # Errors
    /// As [`open`].
    pub(crate) fn file(&self, name: &Path) -> io::Result<File> {
        open_at(&self.0, name)
    }

    /// Opens a regular file for reading that lies in the folder, or in `other`, a [`place`]. Links may lead within these.
    ///
    /// # Errors
    /// As [`open`], and if the file lies elsewhere.
    pub(crate) fn file_inside(&self, name: &Path, other: Option<&Path>) -> io::Result<File> {
        // Found first, and opened only if it may be: to open a device has effects of its own.
        let found = openat(&self.0, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let at = place(&found)?;
        if at.starts_with(place(&self.0)?) || other.is_some_and(|other| at.starts_with(other)) {
            return open(Path::new(&through(&found)));
        }
        Err(io::Error::other("it leads out of the model's folder"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::io::Read;

    #[test]
    fn what_is_no_file_is_told_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::os::unix::fs::symlink("pipe", at("link")).unwrap();
        for other in [at("pipe"), at("link"), folder.path().to_owned(), "/dev/zero".into()] {
            let error = open(&other).unwrap_err();
            assert_eq!(error.to_string(), "it is not a file", "{}", other.display());
        }
        assert_eq!(open(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(at("file"), "text").unwrap();
        let mut text = String::new();
        open(&at("file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    fn text(file: io::Result<File>) -> Result<String, String> {
        let mut text = String::new();
        file.and_then(|mut file| file.read_to_string(&mut text)).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn links_may_lead_within_the_folder_however_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["m/..2026/file", "m/data/file", "away/file"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), name).unwrap();
        }
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        // As volumes of Kubernetes have it; by a full path; out and in again; and the folder itself.
        link(Path::new("..2026"), "m/..data");
        link(Path::new("..data/file"), "m/file");
        link(&at("m/data/file"), "m/full");
        link(Path::new("../away/../m/data/file"), "m/round");
        link(Path::new("../away/file"), "m/out");
        link(Path::new("m"), "linked");
        link(&at("m/none"), "m/dangling");
        for path in [at("m"), at("linked")] {
            let folder = Folder::open(&path).unwrap();
            let read = |name: &str| text(folder.file_inside(Path::new(name), None));
            assert_eq!(read("file").as_deref(), Ok("m/..2026/file"));
            for name in ["data/file", "full", "round", "../m/data/file", at("m/data/file").to_str().unwrap()]
            {
                assert_eq!(read(name).as_deref(), Ok("m/data/file"), "{name}");
            }
            for name in ["out", "../away/file", "/proc/self/environ", "/dev/zero"] {
                assert_eq!(read(name), Err("it leads out of the model's folder".to_owned()), "{name}");
            }
            assert!(read("dangling").unwrap_err().contains("No such file"));
            assert_eq!(read("data"), Err("it is not a file".to_owned()));
            let away = at("away").canonicalize().unwrap();
            let read = text(folder.file_inside(Path::new("out"), Some(&away)));
            assert_eq!(read.as_deref(), Ok("away/file"));
            assert_eq!(text(folder.file(Path::new("out"))).as_deref(), Ok("away/file"));
        }
    }

    #[test]
    fn a_folder_that_is_swapped_for_another_stays_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["m", "secret"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), name).unwrap();
        }
        let open = Folder::open(&at("m")).unwrap();
        fs::rename(at("m"), at("was")).unwrap();
        std::os::unix::fs::symlink("secret", at("m")).unwrap();
        assert_eq!(text(open.file_inside(Path::new("file"), None)).as_deref(), Ok("m"));
        assert_eq!(text(open.file(Path::new("file"))).as_deref(), Ok("m"));
    }

    #[test]
    fn a_file_that_is_swapped_for_a_link_while_it_is_opened_gives_nothing_of_the_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("m")).unwrap();
        fs::write(at("m/file"), "plain").unwrap();
        fs::write(at("secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret", at("m/link")).unwrap();
        let open = Folder::open(&at("m")).unwrap();
        let ends = std::time::Instant::now() + std::time::Duration::from_millis(200);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while std::time::Instant::now() < ends {
                    let swap = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, at("m/file"), CWD, at("m/link"), swap).unwrap();
                }
            });
            while std::time::Instant::now() < ends {
                match text(open.file_inside(Path::new("file"), None)) {
                    Ok(text) => assert_eq!(text, "plain"),
                    Err(error) => assert_eq!(error, "it leads out of the model's folder"),
                }
            }
        });
    }
}
