//! Chooses the file for each answer that is a file of its own: the one that `-o` names, or one in that folder.

use super::files;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What `-o` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The file of the only answer.
    File,
    /// A folder for all answers.
    Folder {
        /// The folder has to be created.
        is_new: bool,
    },
}

/// What `-o` names for the answers of this many files; `what` names the kind of files in messages. `says_form`: whether its
/// extension is that of an answer.
///
/// # Errors
/// A message, if it is one file for several answers.
pub(super) fn place(files: usize, output: &Path, says_form: bool, what: &str) -> Result<Place, String> {
    // A path that does not exist is a folder if several files need one, or if it ends in a slash.
    let like_folder = output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let is_new = fs::symlink_metadata(output).is_err() && (files > 1 || like_folder);
    match output.is_dir() || is_new {
        false if files == 1 => Ok(Place::File),
        false => Err(format!("{files} {what} need a folder, and {} is none", output.display())),
        true if is_new && !like_folder && says_form => Err(format!(
            "{files} {what} do not go to one file, {}: name a folder with -o, and what to write with --format",
            output.display()
        )),
        true => Ok(Place::Folder { is_new }),
    }
}

/// A file in the folder for each file found, with the same name and another extension; `what` names the kind of files in
/// messages.
///
/// # Errors
/// A message, if two of them are the same, or if one would overwrite an input.
pub(super) fn within(
    folder: &Path,
    found: &[PathBuf],
    extension: &str,
    what: &str,
) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in found {
        let mut file = folder.join(path.file_stem().unwrap_or_default()).into_os_string();
        // Appended to the stem, which may contain dots and need not be UTF-8.
        file.push(format!(".{extension}"));
        let file = PathBuf::from(file);
        if files.contains(&file) {
            return Err(format!("two {what} would be written to {}: give them other names", file.display()));
        }
        if files::same(found, &file) {
            return Err(format!("{} would be written over: name another folder", file.display()));
        }
        files.push(file);
    }
    Ok(files)
}

/// Creates the folder.
///
/// # Errors
/// A message, if that fails.
pub(super) fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir(folder).map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))
}
