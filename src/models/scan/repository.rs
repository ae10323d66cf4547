//! Where the models lie: a folder with one folder each, or the folder of one model alone.

use super::{CONFIG_FILE, MANIFEST_FILE, MODEL_FILE, disk, is_number};
use std::path::{Path, PathBuf};

/// The folder that the option `models` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    folder: PathBuf,
    name: Option<String>,
}

impl Repository {
    /// A folder with models; if it is itself a model's folder, that model is called `name`, if there is a name.
    pub fn new(folder: PathBuf, name: Option<String>) -> Repository {
        Repository { folder, name }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of what may be models, with their paths.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(in crate::models) fn entries(&self) -> Result<Vec<(String, PathBuf)>, String> {
        let inside = disk::entries(&self.folder)?;
        Ok(match &self.name {
            Some(name) if is_model(&inside) => vec![(name.clone(), self.folder.clone())],
            _ => inside,
        })
    }
}

#[cfg(test)]
impl From<&Path> for Repository {
    fn from(folder: &Path) -> Repository {
        Repository::new(folder.to_owned(), None)
    }
}

/// Whether a folder with these entries is a model's: it has what describes a model, a network, or a version with a network.
fn is_model(inside: &[(String, PathBuf)]) -> bool {
    inside.iter().any(|(name, path)| {
        [MODEL_FILE, MANIFEST_FILE, CONFIG_FILE].contains(&name.as_str())
            || is_number(name) && path.join(MODEL_FILE).exists()
    })
}
