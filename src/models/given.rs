//! A model that a caller sends with its load request: its files, and a Triton configuration in JSON. The files are kept in a folder
//! of their own while the model may still be loaded onto another device, and then removed.

use super::scan::{self, Found};
use crate::words::clipped;
use bytes::Bytes;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

/// Files of one model, at most.
const FILES_MAX: usize = 64;
/// The folder of data for warm-up runs.
const WARMUP: &str = "warmup";
/// The prefix of the folders' names.
const PREFIX: &str = "ocelli-model-";
/// A folder is only removed once it is older than this: the server of a younger one may not yet hold its lock.
const LEFT_BEHIND: Duration = Duration::from_secs(60);

/// The folder of one model. Dropping this removes the folder. If the server was killed, [the next server](remove_left_behind)
/// removes it.
#[derive(Debug)]
pub struct Kept {
    folder: TempDir,
    /// Held while the folder's server runs.
    _lock: File,
}

impl Kept {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes folders of servers that were killed.
pub fn remove_left_behind() {
    remove_left_behind_in(&std::env::temp_dir(), SystemTime::now());
}

fn remove_left_behind_in(parent: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let folder = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // If the lock is free, the folder's server has ended.
        if ours && left(&folder, now).is_some_and(|lock| lock.try_lock().is_ok()) {
            let removed = fs::remove_dir_all(&folder);
            let folder = folder.display();
            match removed {
                Ok(()) => tracing::info!(%folder, "removed a model that a killed server had left behind"),
                Err(error) => {
                    tracing::warn!(%folder, %error, "a model that a killed server left behind cannot be removed");
                }
            }
        }
    }
}

/// Opens a folder if it belongs to this user and is old enough. Other users may share the parent and put anything there under such
/// a name at any moment. So the checks ask the opened file, and the open cannot block.
fn left(folder: &Path, now: SystemTime) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let folder = File::options().read(true).custom_flags(flags).open(folder).ok()?;
    let metadata = folder.metadata().ok()?;
    let age = now.duration_since(metadata.modified().ok()?).ok()?;
    let mine = metadata.uid() == rustix::process::geteuid().as_raw();
    (mine && age > LEFT_BEHIND).then_some(folder)
}

/// A model as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    config: String,
    files: Vec<(Place, Bytes)>,
}

/// A file's place in the folder. Its names are checked, so that no path leads out of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    folder: Option<String>,
    name: String,
}

impl Given {
    /// Takes the files by the path after `file:` in their parameters: `VERSION/NAME`, `warmup/NAME` or `NAME`.
    ///
    /// # Errors
    /// What is wrong with their names or their number.
    pub fn new(config: String, files: Vec<(String, Bytes)>) -> Result<Given, String> {
        if files.len() > FILES_MAX {
            return Err(format!("there are {} files, more than the limit of {FILES_MAX}", files.len()));
        }
        let mut placed: Vec<(Place, Bytes)> = Vec::with_capacity(files.len());
        for (path, bytes) in files {
            let place = Place::of(&path)?;
            if placed.iter().any(|(other, _)| *other == place) {
                return Err(format!("file {path:?} is given twice"));
            }
            placed.push((place, bytes));
        }
        Ok(Given { config, files: placed })
    }

    /// Size of all files in bytes.
    pub fn bytes(&self) -> usize {
        self.files.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Writes the files to a folder, and scans it as the model folder is scanned. Returns every version of the model `name`, or why
    /// there is none.
    pub fn lay_out(self, name: &str) -> Vec<Found> {
        self.lay_out_in(&std::env::temp_dir(), name)
    }

    fn lay_out_in(self, parent: &Path, name: &str) -> Vec<Found> {
        match keep(self.files, parent) {
            Ok(kept) => {
                let mut found = scan::scan_given(name, kept.path(), &self.config);
                let kept = Arc::new(kept);
                for source in found.iter_mut().flat_map(|found| &mut found.source) {
                    source.kept = Some(Arc::clone(&kept));
                }
                found
            }
            Err(error) => {
                let parent = parent.display();
                let why = format!("cannot keep the files in {parent}: {error}; TMPDIR names another folder");
                let (name, version) = (name.to_owned(), String::new());
                vec![Found { name, version, source: Err(why), only_named: false }]
            }
        }
    }
}

/// Writes files into a folder of their own.
fn keep(files: Vec<(Place, Bytes)>, parent: &Path) -> io::Result<Kept> {
    // Only for this user, whatever the umask is.
    let mine = fs::Permissions::from_mode(0o700);
    let kept = tempfile::Builder::new().prefix(PREFIX).permissions(mine).tempdir_in(parent)?;
    let lock = File::open(kept.path())?;
    // If locking fails here, it fails for other servers too, and none of them removes the folder.
    let _ = lock.lock();
    for (Place { folder, name }, bytes) in files {
        let folder = folder.map_or_else(|| kept.path().to_owned(), |folder| kept.path().join(folder));
        fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(name), bytes))?;
    }
    Ok(Kept { folder: kept, _lock: lock })
}

impl Place {
    fn of(path: &str) -> Result<Place, String> {
        let (folder, name) = match path.split_once('/') {
            Some((folder, name)) => (Some(folder), name),
            None => (None, path),
        };
        let is_version = |folder: &str| {
            (1..=18).contains(&folder.len()) && folder.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let fits = folder.is_none_or(|folder| folder == WARMUP || is_version(folder))
            && (1..=128).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(is_plain);
        if !fits {
            let path = clipped(path);
            return Err(format!(
                "file {path:?} must be VERSION/NAME, {WARMUP}/NAME or NAME, with a version of 1 to 18 digits and a name of 1 to \
                 128 of A-Z a-z 0-9 . _ - that does not begin with a dot"
            ));
        }
        Ok(Place { folder: folder.map(str::to_owned), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    /// The smallest ONNX file: just the version of its format.
    const ONNX: &[u8] = b"\x08\x08";

    fn given(config: &str, files: &[(&str, &'static [u8])]) -> Result<Given, String> {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), Bytes::from_static(bytes)));
        Given::new(config.to_owned(), files.collect())
    }

    #[test]
    fn files_are_a_folder_for_as_long_as_something_of_it_is_held() {
        let config = r#"{"version_policy": {"all": {}}, "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2],
            "label_filename": "labels.txt"}]}"#;
        let files = [("1/model.onnx", ONNX), ("3/model.onnx", ONNX), ("labels.txt", b"a\nb\n")];
        let found = given(config, &files).unwrap().lay_out("m");
        let versions: Vec<&str> = found.iter().map(|found| found.version.as_str()).collect();
        assert_eq!(versions, ["1", "3"]);
        let source = found[1].source.clone().unwrap();
        drop(found);
        assert_eq!((source.bytes, source.labels.len()), (2, 2));
        assert_eq!(fs::read(&source.path).unwrap(), ONNX);
        let folder = source.folder.clone();
        assert!(folder.is_dir());
        drop(source);
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_killed_server_left_is_removed_and_what_another_one_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("ocelli-model-left");
        let others = folder.path().join("others");
        for folder in [left.join("1"), others.clone()] {
            fs::create_dir_all(folder).unwrap();
        }
        let held = given("{}", &[("1/model.onnx", ONNX)]).unwrap().lay_out_in(folder.path(), "m");
        let mine = held[0].source.as_ref().map_or_else(|why| panic!("{why}"), |source| source.folder.clone());
        let there = || [&left, &mine, &others].map(|folder| folder.exists());
        remove_left_behind_in(folder.path(), SystemTime::now());
        assert_eq!(there(), [true; 3], "its server may just have made it");
        let later = SystemTime::now() + 2 * LEFT_BEHIND;
        remove_left_behind_in(folder.path(), later);
        assert_eq!(there(), [false, true, true]);
        drop(held);
        assert_eq!(there(), [false, false, true]);
        remove_left_behind_in(&folder.path().join("gone"), later);
    }

    #[test]
    fn what_others_put_under_the_name_of_such_a_folder_is_left_alone_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [mine, link, pipe, theirs] =
            ["mine", "link", "pipe", "theirs"].map(|name| folder.path().join(format!("ocelli-model-{name}")));
        for made in [&mine, &theirs] {
            fs::create_dir(made).unwrap();
        }
        std::os::unix::fs::symlink(&mine, &link).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let later = SystemTime::now() + 2 * LEFT_BEHIND;
        assert!(left(&mine, later).is_some() && left(&mine, SystemTime::now()).is_none());
        assert!(left(&link, later).is_none() && left(&pipe, later).is_none());
        // Only root can give a folder to another.
        let is_theirs = std::os::unix::fs::chown(&theirs, Some(65_534), None).is_ok();
        remove_left_behind_in(folder.path(), later);
        assert_eq!([&mine, &theirs].map(|folder| folder.exists()), [false, is_theirs]);
        assert!(link.is_symlink() && pipe.exists());
    }

    #[test]
    fn files_that_cannot_be_kept_are_the_reason_of_a_model_that_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        let found = given("{}", &[("1/model.onnx", ONNX)]).unwrap().lay_out_in(&gone, "m");
        let [Found { name, version, source: Err(reason), only_named: false }] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((name.as_str(), version.as_str()), ("m", ""));
        assert!(reason.starts_with(&format!("cannot keep the files in {}: ", gone.display())), "{reason}");
        assert!(reason.ends_with("; TMPDIR names another folder"), "{reason}");
    }

    #[test]
    fn a_configuration_that_does_not_fit_is_the_reason() {
        let reason = |config: &str| {
            let found = given(config, &[("1/model.onnx", ONNX)]).unwrap().lay_out("m");
            found[0].source.clone().unwrap_err()
        };
        assert!(reason("{\"name\": \"n\"}").contains("config: name is \"n\""));
        assert!(reason("{").starts_with("config: "));
    }

    #[test]
    fn names_lead_nowhere_else() {
        for path in [
            "",
            "/",
            "../x",
            "1/../x",
            "1/.x",
            "1/2/x",
            "a/x",
            "1/",
            "/x",
            "1/a\\b",
            "1/a b",
            "01234567890123456789/x",
        ] {
            let told = given("{}", &[(path, b"")]).unwrap_err();
            assert!(told.contains("must be VERSION/NAME"), "{path:?}: {told}");
        }
        let twice = given("{}", &[("1/x", b""), ("1/x", b"")]).unwrap_err();
        assert!(twice.contains("twice"), "{twice}");
        let many: Vec<_> = (0..=FILES_MAX).map(|n| (n.to_string(), Bytes::new())).collect();
        assert!(Given::new(String::new(), many).unwrap_err().contains("limit of 64"));
    }
}
