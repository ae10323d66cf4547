//! Triton's `config.pbtxt`: a model repository of Triton's is served as it is. What such a file says becomes a
//! [`Manifest`], so that nothing else knows where a model came from.
//!
//! ```text
//! models/NAME/config.pbtxt         what is served, and how; instead of model.toml
//! models/NAME/VERSION/model.onnx   those versions that version_policy chooses; without one, the highest
//! models/NAME/FILE                 label_filename of an output
//! models/NAME/warmup/FILE          input_data_file of a model_warmup
//! ```
//!
//! - `text`: from text to the message, with the line of every mistake.
//! - `verdict`: each field there is: read, warned about or refused.
//! - `map`: from the message to a manifest.

mod map;
mod text;
mod verdict;

use super::Manifest;
use std::collections::BTreeSet;

/// The name of the file.
pub(super) const CONFIG_FILE: &str = "config.pbtxt";

/// What a `config.pbtxt` comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Described {
    pub(super) manifest: Manifest,
    /// The model file's name in each version's folder; `None` for the usual one.
    pub(super) file: Option<String>,
    pub(super) versions: Versions,
    /// What it asks for and does not get, by name.
    pub(super) notes: Vec<String>,
}

/// Which versions are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Versions {
    /// So many of the highest.
    Latest(usize),
    All,
    Specific(BTreeSet<String>),
}

/// Reads the text of a `config.pbtxt` in the folder `name`.
///
/// # Errors
/// The first mistake of the text, with its line; or everything that cannot be served, by name.
pub(super) fn read(text: &str, name: &str) -> Result<Described, String> {
    let message = text::parse(text)?;
    let mut notes = verdict::judge(&message)?;
    let config = message.transcode_to().map_err(|error| error.to_string())?;
    let mut described = map::described(&config, name)?;
    notes.append(&mut described.notes);
    described.notes = notes;
    Ok(described)
}

#[cfg(test)]
mod tests;
