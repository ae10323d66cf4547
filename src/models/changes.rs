//! Detects changes in the model folder between two snapshots ("looks"). It compares names, places, sizes, times and inodes of files, not
//! their content.
//!
//! What cannot be read counts as unchanged: a file system that does not answer for a moment is no reason to unload anything. Nor is one
//! that is no longer mounted: its mount point is then an empty folder on another file system.

use super::scan::{self, Repository, candidate};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// How deep nested folders are read: `NAME/VERSION/`, and folders within that, which may hold external data.
const DEPTH_MAX: usize = 4;

/// A file as a snapshot sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FileState {
    /// Its path below the model folder.
    pub(super) name: String,
    /// Its path with links resolved: a link that is redirected shows other files, whatever their size and time.
    place: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    /// Its inode and change time: a retrained network has the same length as before, and a copy may keep the modification time.
    inode: (u64, i64, i64),
}

impl FileState {
    fn of(name: &str, place: PathBuf, metadata: &fs::Metadata) -> FileState {
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        let inode = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
        FileState { name: name.to_owned(), place, bytes, modified, inode }
    }

    /// Whether this is a file that has been written to since an earlier look, and no other in its place.
    pub(super) fn is_rewritten(&self, earlier: &FileState) -> bool {
        self.inode.0 == earlier.inode.0 && (self.bytes, self.modified) != (earlier.bytes, earlier.modified)
    }
}

/// A snapshot of a model folder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The files of each possible model, by name; `None` if they cannot all be read.
    models: BTreeMap<String, Option<Vec<FileState>>>,
    /// Why the folder itself cannot be read, if so.
    unread: Option<String>,
    /// The file system that the folder lies on.
    volume: Option<u64>,
}

/// What a difference between two snapshots asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A model is new or different.
    Load(String),
    /// A model is gone.
    Unload(String),
}

impl Difference {
    /// The model's name.
    pub fn name(&self) -> &str {
        let (Difference::Load(name) | Difference::Unload(name)) = self;
        name
    }
}

impl Snapshot {
    /// Takes a snapshot now.
    pub fn at(repository: &Repository) -> Snapshot {
        Snapshot::with(repository, &|_| true)
    }

    /// A snapshot of one model.
    pub fn of_one(repository: &Repository, name: &str) -> Snapshot {
        Snapshot::with(repository, &|entry| entry == name || entry.strip_suffix(".onnx") == Some(name))
    }

    /// A snapshot of these entries of the folder.
    fn with(repository: &Repository, wanted: &dyn Fn(&str) -> bool) -> Snapshot {
        let mut look = Snapshot::default();
        // A missing folder does not count as empty: it may be about to be mounted or moved into place.
        let entries = repository.entries().unwrap_or_else(|error| {
            look.unread = Some(error);
            Vec::new()
        });
        for (name, path) in entries.into_iter().filter(|(name, _)| wanted(name)) {
            let Some((model, _)) = candidate(&name, &path) else { continue };
            let files = look.models.entry(model).or_insert_with(|| Some(Vec::new()));
            let collected = files.as_mut().map_or(Ok(()), |files| collect(&name, &path, DEPTH_MAX, files));
            if let Err(error) = collected {
                tracing::debug!(name, %error, "not all of this can be read");
                *files = None;
            }
        }
        // A folder without files is not yet a model.
        look.models.retain(|_, files| files.as_ref().is_none_or(|files| !files.is_empty()));
        look.volume = fs::metadata(repository.folder()).ok().map(|metadata| metadata.dev());
        look
    }

    /// This snapshot; marked as unreadable if all models of the snapshot before are gone together with their file system.
    #[must_use]
    pub fn after(mut self, before: &Snapshot) -> Snapshot {
        let is_bare = self.models.is_empty() && !before.models.is_empty();
        if is_bare && self.unread.is_none() && self.volume != before.volume {
            let why = "it is empty, and on another file system than before: is its volume mounted? One model there is enough to go on";
            self.unread = Some(why.to_owned());
        }
        self
    }

    /// This snapshot, with what it could not read taken from the one before.
    #[must_use]
    pub fn filled_from(mut self, mut before: Snapshot) -> Snapshot {
        if self.unread.is_some() {
            return before;
        }
        for (name, files) in self.models.iter_mut().filter(|(_, files)| files.is_none()) {
            *files = before.models.remove(name).flatten();
        }
        self
    }

    /// This snapshot, with one model as the snapshot before has it, so that the next comparison finds its change again.
    #[must_use]
    pub fn with_one_from(mut self, name: &str, before: &Snapshot) -> Snapshot {
        match before.models.get(name) {
            Some(files) => _ = self.models.insert(name.to_owned(), files.clone()),
            None => _ = self.models.remove(name),
        }
        self
    }

    /// Whether a later snapshot has the same files of a model. What cannot be read is not known to be the same.
    pub fn has_same(&self, name: &str, later: &Snapshot) -> bool {
        let [files, then] = [self, later].map(|look| look.models.get(name).and_then(Option::as_ref));
        files.is_some() && files == then
    }

    /// Whether a later snapshot has other files of a model. What cannot be read is not known to be another.
    pub fn has_other(&self, name: &str, later: &Snapshot) -> bool {
        let [files, then] = [self, later].map(|look| look.models.get(name).and_then(Option::as_ref));
        files.is_some() && then.is_some() && files != then
    }

    /// The files of a model; none if there is no such model.
    pub(super) fn files(&self, name: &str) -> &[FileState] {
        self.models.get(name).and_then(Option::as_deref).unwrap_or_default()
    }

    /// Why the folder cannot be read, if so.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// The changes from this snapshot to a later one.
    pub fn changes(&self, later: &Snapshot) -> Vec<Difference> {
        if later.unread.is_some() {
            return Vec::new();
        }
        let gone = self.models.keys().filter(|name| !later.models.contains_key(*name));
        let read = later.models.iter().filter(|(_, files)| files.is_some());
        let other = read.filter(|(name, files)| self.models.get(*name) != Some(*files));
        let load = other.map(|(name, _)| Difference::Load(name.clone()));
        gone.map(|name| Difference::Unload(name.clone())).chain(load).collect()
    }
}

fn collect(name: &str, path: &Path, depth: usize, files: &mut Vec<FileState>) -> io::Result<()> {
    let Some(metadata) = there(fs::metadata(path))? else {
        // A dangling link does not count as gone: loading it reports the reason.
        let link = there(fs::symlink_metadata(path))?;
        files.extend(link.map(|link| FileState::of(name, path.to_owned(), &link)));
        return Ok(());
    };
    if metadata.is_file() {
        let Some(place) = there(fs::canonicalize(path))? else { return Ok(()) };
        files.push(FileState::of(name, place, &metadata));
    } else if metadata.is_dir() && depth > 0 {
        for (inner, path) in there(scan::listed(path))?.unwrap_or_default() {
            collect(&format!("{name}/{inner}"), &path, depth - 1, files)?;
        }
    }
    Ok(())
}

/// Turns "not found" into `None`, which is no failure.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    #[test]
    fn models_that_are_new_changed_or_gone_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("same/1/model.onnx", "a");
        write("other/model.toml", "a");
        write("gone/model.onnx", "a");
        fs::create_dir(folder.path().join("empty")).unwrap();
        let first = Snapshot::at(&folder.path().into());
        assert_eq!(first.changes(&Snapshot::at(&folder.path().into())), []);

        write("other/model.toml", "longer");
        write("bare.onnx", "a");
        write(".hidden/model.onnx", "a");
        write("README.md", "no model");
        write("lost+found/#1234", "no model");
        fs::remove_dir_all(folder.path().join("gone")).unwrap();
        let second = Snapshot::at(&folder.path().into());
        let load = |name: &str| Difference::Load(name.to_owned());
        assert_eq!(
            first.changes(&second),
            [Difference::Unload("gone".to_owned()), load("bare"), load("other")]
        );

        write("same/2/model.onnx", "a");
        assert_eq!(second.changes(&Snapshot::at(&folder.path().into())), [load("same")]);
    }

    #[test]
    fn a_model_s_files_are_the_same_until_any_of_them_is_written_or_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let look = || Snapshot::of_one(&folder.path().into(), "m");
        let write = |path: &str, text: &str| fs::write(folder.path().join(path), text).unwrap();
        assert!(!look().has_same("m", &look()), "there is none");
        fs::create_dir(folder.path().join("m")).unwrap();
        write("m/model.onnx", "a");
        let mut first = look();
        assert!(first.has_same("m", &look()));
        assert!(Snapshot::at(&folder.path().into()).has_same("m", &first), "whatever else is looked at");
        write("mm.onnx", "another model");
        assert!(first.has_same("m", &look()));
        for file in ["m/labels.txt", "m/model.onnx", "m.onnx"] {
            write(file, "written now");
            assert!(!first.has_same("m", &look()), "{file}");
            first = look();
        }
        fs::remove_file(folder.path().join("m/labels.txt")).unwrap();
        assert!(!first.has_same("m", &look()));
        std::os::unix::fs::symlink("link", folder.path().join("m/link")).unwrap();
        assert!(!look().has_same("m", &look()), "nobody can read a link to itself");
    }

    #[test]
    fn external_data_in_folders_of_its_own_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("m/1/weights/large/w");
        fs::create_dir_all(data.parent().unwrap()).unwrap();
        fs::write(&data, "a").unwrap();
        let first = Snapshot::at(&folder.path().into());
        fs::write(&data, "other").unwrap();
        assert_eq!(first.changes(&Snapshot::at(&folder.path().into())), [Difference::Load("m".to_owned())]);
    }

    #[test]
    fn a_file_of_the_same_length_and_time_in_another_s_place_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let write = |path: &Path, content: &str| {
            fs::write(path, content).unwrap();
            fs::File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        };
        write(&place("one.onnx"), "old");
        let first = Snapshot::at(&folder.path().into());
        assert_eq!(first.changes(&Snapshot::at(&folder.path().into())), []);
        write(&place(".next"), "new");
        fs::rename(place(".next"), place("one.onnx")).unwrap();
        assert_eq!(first.changes(&Snapshot::at(&folder.path().into())), [Difference::Load("one".to_owned())]);
    }

    #[test]
    fn a_volume_that_is_unmounted_takes_no_model_with_it_and_one_that_is_emptied_does() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("one.onnx"), "a").unwrap();
        let first = Snapshot::at(&folder.path().into());
        let gone = || vec![Difference::Unload("one".to_owned())];
        assert!(first.volume.is_some());
        let bare = Snapshot { volume: first.volume.map(|volume| volume + 1), ..Snapshot::default() };
        assert_eq!(first.changes(&bare), gone(), "were it not held against the look before");
        let later = bare.clone().after(&first);
        assert!(later.unread().is_some_and(|why| why.contains("mounted")), "{later:?}");
        assert_eq!(first.changes(&later), []);
        // Mounted again, nothing has changed. Other files in its place do count.
        assert_eq!(
            later.filled_from(first.clone()).changes(&Snapshot::at(&folder.path().into()).after(&first)),
            []
        );
        fs::rename(folder.path().join("one.onnx"), folder.path().join("two.onnx")).unwrap();
        let other = Snapshot { volume: bare.volume, ..Snapshot::at(&folder.path().into()) }.after(&first);
        assert_eq!(first.changes(&other), [gone(), vec![Difference::Load("two".to_owned())]].concat());
        fs::remove_file(folder.path().join("two.onnx")).unwrap();
        assert_eq!(first.changes(&Snapshot::at(&folder.path().into()).after(&first)), gone());
        // A folder that had no models misses none.
        let empty = Snapshot::at(&folder.path().into());
        assert_eq!(bare.after(&empty).unread(), None);
    }

    #[test]
    fn a_link_that_leads_nowhere_now_is_to_be_loaded_and_not_unloaded() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        fs::create_dir(&models).unwrap();
        let place = folder.path().join("place");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("model.onnx"), "a").unwrap();
        std::os::unix::fs::symlink(&place, models.join("one")).unwrap();
        let first = Snapshot::at(&models.as_path().into());
        fs::rename(&place, folder.path().join("aside")).unwrap();
        let second = Snapshot::at(&models.as_path().into());
        assert_eq!(first.changes(&second), [Difference::Load("one".to_owned())]);
        assert_eq!(second.changes(&Snapshot::at(&models.as_path().into())), [], "once");
        fs::rename(folder.path().join("aside"), &place).unwrap();
        assert_eq!(
            second.changes(&Snapshot::at(&models.as_path().into())),
            [Difference::Load("one".to_owned())]
        );
        fs::remove_file(models.join("one")).unwrap();
        assert_eq!(
            first.changes(&Snapshot::at(&models.as_path().into())),
            [Difference::Unload("one".to_owned())]
        );
    }

    #[test]
    fn what_cannot_be_read_for_a_while_is_not_unloaded() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        fs::create_dir_all(models.join("one")).unwrap();
        fs::write(models.join("one/model.onnx"), "a").unwrap();
        fs::write(models.join("two.onnx"), "a").unwrap();
        let first = Snapshot::at(&models.as_path().into());
        assert_eq!(first.models.len(), 2);

        // Nobody can read a link to itself, not even root.
        let aside = folder.path().join("aside");
        fs::rename(models.join("one"), &aside).unwrap();
        std::os::unix::fs::symlink("one", models.join("one")).unwrap();
        let second = Snapshot::at(&models.as_path().into());
        assert_eq!(first.changes(&second), []);
        fs::remove_file(models.join("one")).unwrap();
        fs::rename(&aside, models.join("one")).unwrap();
        // Compared with that snapshot alone it is new; compared with the one before, it is the same.
        assert_eq!(
            second.clone().filled_from(first.clone()).changes(&Snapshot::at(&models.as_path().into())),
            []
        );
        assert_eq!(
            second.changes(&Snapshot::at(&models.as_path().into())),
            [Difference::Load("one".to_owned())]
        );

        fs::rename(&models, &aside).unwrap();
        std::os::unix::fs::symlink("models", &models).unwrap();
        let none = Snapshot::at(&models.as_path().into());
        assert_eq!(first.changes(&none), []);
        assert_eq!(none.changes(&Snapshot::at(&aside.as_path().into())).len(), 2);
        assert_eq!(none.filled_from(first.clone()), first);
        fs::remove_file(&models).unwrap();
        assert_eq!(first.changes(&Snapshot::at(&models.as_path().into())), []);
    }
}
