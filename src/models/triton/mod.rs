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
//! - `map`: from the message to a manifest; `queue`: what of it says how requests wait.
//!
//! The same configuration also comes as JSON, with the files of a model that a caller sends.

mod map;
mod queue;
mod text;
mod verdict;

use super::{Manifest, manifest::Waiting};
use map::Told;
use prost_reflect::{DynamicMessage, MessageDescriptor};

/// The name of the file.
pub(super) const CONFIG_FILE: &str = "config.pbtxt";

/// What a `config.pbtxt` comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The manifest that says the same.
    pub manifest: Manifest,
    /// What it asks for and does not get, by name.
    pub notes: Vec<String>,
}

/// Reads the text of a `config.pbtxt` in the folder `name`.
///
/// # Errors
/// The first mistake of the text, with its line; or everything that cannot be served, by name.
pub fn read(text: &str, name: &str) -> Result<Described, String> {
    described(&text::parse(text)?, name)
}

/// Reads the same configuration as JSON, for the model `name`.
///
/// # Errors
/// As [`read`].
pub(super) fn read_json(json: &str, name: &str) -> Result<Described, String> {
    described(&message(text::definition(), json)?, name)
}

/// How requests wait by a `dynamic_batching` in JSON, and the priority of those that do not say.
///
/// # Errors
/// As [`read`].
pub fn waiting(json: &str) -> Result<(Waiting, Option<u8>), String> {
    let definition = text::definition().get_field_by_name("dynamic_batching");
    let definition = definition.and_then(|field| field.kind().as_message().cloned());
    let message = message(definition.expect("the definitions have it"), json)?;
    let mut told = Told::default();
    let dynamic = message.transcode_to().map_err(|error| error.to_string())?;
    let waiting = queue::waiting(&mut told, &dynamic);
    told.into_wrong().map_or(Ok(waiting), Err)
}

fn message(definition: MessageDescriptor, json: &str) -> Result<DynamicMessage, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    DynamicMessage::deserialize(definition, &mut reader)
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|error| error.to_string())
}

fn described(message: &DynamicMessage, name: &str) -> Result<Described, String> {
    let mut notes = verdict::judge(message)?;
    let config = message.transcode_to().map_err(|error| error.to_string())?;
    let mut described = map::described(&config, name)?;
    notes.append(&mut described.notes);
    described.notes = notes;
    Ok(described)
}

#[cfg(test)]
mod tests;
