//! Where the models lie: a folder with one folder each, or the folder of one model alone; and which of its entries may be models.

use super::{
    CONFIG_FILE, Found, MANIFEST_FILE, MODEL_FILE,
    disk::{entries, look},
    instead, is_number, misplaced,
};
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
        let inside = entries(&self.folder)?;
        Ok(match &self.name {
            Some(name) if is_model(&inside) => vec![(name.clone(), self.folder.clone())],
            _ => inside,
        })
    }
}

impl Repository {
    /// Notes at the only model there that it has another name than the one of the option, which callers may expect.
    pub(super) fn note_other_name(&self, found: &mut [Found]) {
        let Some(name) = &self.name else { return };
        let Some(only) = found.first().map(|found| found.name.clone()) else { return };
        if only == *name || found.iter().any(|found| found.name != only) {
            return;
        }
        let note = format!(
            "it is served by the name {only}, not by model_name ({name}), which is for a folder that is itself a model's, with \
             {MODEL_FILE} or {MANIFEST_FILE} in it"
        );
        for source in found.iter_mut().filter_map(|found| found.source.as_mut().ok()) {
            source.notes.push(note.clone());
        }
    }
}

/// What an entry of a model folder is, judged by its name and kind, not its content.
pub(in crate::models) enum Candidate {
    /// A model's folder.
    Folder,
    /// A model without a folder.
    File,
    /// Possibly meant as a model, but it cannot be one; with the reason.
    Mistake(String),
}

/// What an entry of a model folder is, with the name of its model; `None` for unrelated files.
pub(in crate::models) fn candidate(entry: &str, path: &Path) -> Option<(String, Candidate)> {
    let there = look(path);
    let (name, kind) = if matches!(&there, Ok(Some(metadata)) if metadata.is_dir()) {
        (entry, Candidate::Folder)
    } else if let Some(stem) = entry.strip_suffix(".onnx") {
        (stem, Candidate::File)
    } else if entry.to_ascii_lowercase().ends_with(".onnx") {
        let why = "a model's file ends with .onnx, in small letters: rename it";
        (entry, Candidate::Mistake(why.to_owned()))
    } else if let Some(why) = misplaced::at_top(entry) {
        (entry, Candidate::Mistake(why))
    } else if let Some(whose) = instead::alone(entry, path) {
        (entry, Candidate::Mistake(format!("it is {whose}")))
    } else {
        (entry, Candidate::Mistake(there.err()?))
    };
    Some((name.to_owned(), kind))
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
