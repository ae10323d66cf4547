//! Opening files whose names and contents others control: a pipe or a device in place of a file must not block the server.

use std::{fs::File, io, os::unix::fs::OpenOptionsExt, path::Path};

/// Opens a regular file for reading. A pipe is refused, since opening one waits for its writer; so is a device, which has no end.
///
/// # Errors
/// If there is no regular file, or it cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Opened without blocking, and checked once it is open: a path that is checked before may name something else by then.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
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
        std::fs::write(at("file"), "text").unwrap();
        let mut text = String::new();
        open(&at("file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }
}
