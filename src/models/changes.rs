//! What changed in the model folder between two looks: by the names, sizes and times of files, not by their content.

use std::{collections::BTreeMap, fs, path::Path, time::SystemTime};

/// Folders within folders that are looked into: `NAME/VERSION/` and what lies there.
const DEPTH_MAX: usize = 3;

/// A file as a look sees it.
type Seen = (String, u64, Option<SystemTime>);

/// One look at a model folder: for each name that a model may have, its files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Look(BTreeMap<String, Vec<Seen>>);

/// What a folder asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A model is new or different.
    Load(String),
    /// A model is gone.
    Unload(String),
}

impl Look {
    /// Looks now. What cannot be read is as if it were not there.
    pub fn at(folder: &Path) -> Look {
        let mut look = Look::default();
        for (name, path) in entries(folder) {
            let files = look.0.entry(name.strip_suffix(".onnx").unwrap_or(&name).to_owned()).or_default();
            collect(&name, &path, DEPTH_MAX, files);
        }
        // A folder without files is no model yet.
        look.0.retain(|_, files| !files.is_empty());
        look
    }

    /// The names that models have there.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What to do about what changed from this look to a later one.
    pub fn changes(&self, later: &Look) -> Vec<Change> {
        let gone = self.0.keys().filter(|name| !later.0.contains_key(*name));
        let other = later.0.iter().filter(|(name, files)| self.0.get(*name) != Some(*files));
        let load = other.map(|(name, _)| Change::Load(name.clone()));
        gone.map(|name| Change::Unload(name.clone())).chain(load).collect()
    }
}

fn entries(folder: &Path) -> Vec<(String, std::path::PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let named =
        entries.flatten().map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    // As when models are looked for: mounted volumes have such names for what they are about to show.
    let mut entries: Vec<_> = named.filter(|(name, _)| !name.starts_with('.')).collect();
    entries.sort();
    entries
}

fn collect(name: &str, path: &Path, depth: usize, files: &mut Vec<Seen>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_file() {
        files.push((name.to_owned(), metadata.len(), metadata.modified().ok()));
    } else if depth > 0 {
        for (inner, path) in entries(path) {
            collect(&format!("{name}/{inner}"), &path, depth - 1, files);
        }
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
        let first = Look::at(folder.path());
        assert_eq!(first.changes(&Look::at(folder.path())), []);

        write("other/model.toml", "longer");
        write("bare.onnx", "a");
        write(".hidden/model.onnx", "a");
        fs::remove_dir_all(folder.path().join("gone")).unwrap();
        let second = Look::at(folder.path());
        let load = |name: &str| Change::Load(name.to_owned());
        assert_eq!(first.changes(&second), [Change::Unload("gone".to_owned()), load("bare"), load("other")]);

        write("same/2/model.onnx", "a");
        assert_eq!(second.changes(&Look::at(folder.path())), [load("same")]);
    }
}
