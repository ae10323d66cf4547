//! Triton's `config.pbtxt`, so that Triton model repositories are served as they are. The file becomes a [`Manifest`], so that other
//! code does not need to know where a model came from.
//!
//! ```text
//! models/NAME/config.pbtxt         what is served, and how; instead of model.toml
//! models/NAME/VERSION/model.onnx   those versions that version_policy chooses; without one, the highest
//! models/NAME/FILE                 label_filename of an output
//! models/NAME/warmup/FILE          input_data_file of a model_warmup
//! ```
//!
//! - `text`: parses the text into the message, with the line of a mistake.
//! - `verdict`: whether each field is read, noted in the log or refused.
//! - `map`: maps the message to a manifest; `queue`: how requests wait; `groups`: where instances run; `backend`: Triton's backend and
//!   its settings. `findings`: the mistakes and notes of all these.
//! - `overrides`: changes that a load makes to a configuration; `names`: the two names of members in JSON.
//!
//! A caller that sends a model's files sends the same configuration as JSON.

mod backend;
mod findings;
mod groups;
mod map;
mod names;
mod overrides;
mod queue;
mod text;
mod verdict;

use super::Manifest;
use crate::{engine::onnx::gpu::CudaGraph, protocol::inference::ModelConfig, words::clipped};
use findings::Findings;
pub use groups::{gpus, kinds, told_placement};
pub use overrides::overrides;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
pub use queue::Queueing;
use serde_json::{Map, Value};

/// The name of the file.
pub(super) const CONFIG_FILE: &str = "config.pbtxt";

/// The result of reading a `config.pbtxt`.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The equivalent manifest.
    pub manifest: Manifest,
    /// Settings that have no effect here, by name.
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
    let members: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    described(&message(text::definition(), as_defined(members)?)?, name)
}

/// Renames the members of a configuration in JSON to the names in the definition. Each may have either of its two names.
///
/// # Errors
/// A member that is present by both names.
pub fn as_defined(config: Map<String, Value>) -> Result<Map<String, Value>, String> {
    names::as_defined(&text::definition(), config)
}

/// The member that says how a model is run.
pub const OPTIMIZATION: &str = "optimization";

/// Whether an `optimization`, in its reported form, asks for CUDA graphs; `None` if it does not say.
pub fn cuda_graph(optimization: &Map<String, Value>) -> Option<CudaGraph> {
    let graphs = optimization.get("cuda")?.get("graphs")?.as_bool()?;
    // Triton, too, continues without graphs that cannot be recorded.
    Some(if graphs { CudaGraph::Auto } else { CudaGraph::Never })
}

/// The `optimization` of a configuration, as Triton reports it: with every member that is not a message, and numbers as numbers. Empty
/// if there is none.
fn said_of_optimization(config: &DynamicMessage) -> Result<Map<String, Value>, String> {
    let said = config.get_field_by_name(OPTIMIZATION).filter(|_| config.has_field_by_name(OPTIMIZATION));
    let Some(said) = said.as_deref().and_then(prost_reflect::Value::as_message) else {
        return Ok(Map::new());
    };
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    match said.serialize_with_options(serde_json::value::Serializer, &options) {
        Ok(Value::Object(said)) => Ok(said),
        Ok(other) => Err(format!("{OPTIMIZATION} is {other}, expected an object")),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether two values of a configuration's member mean the same. Numbers may be written as strings, and members with their default may
/// be omitted.
pub fn says_as(member: &str, one: &Value, other: &Value) -> bool {
    let read = |value: &Value| alone(member, value).ok()?.transcode_to::<ModelConfig>().ok();
    one == other || read(one).is_some_and(|one| read(other) == Some(one))
}

/// The sizes that batches are padded to: `sizes` together with `preferred`.
///
/// # Errors
/// Every size that is larger than the largest batch.
pub(super) fn preferring(
    sizes: Vec<usize>,
    preferred: &[usize],
    items_max: usize,
) -> Result<Vec<usize>, String> {
    let mut told = Findings::default();
    let preferred = preferred.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX));
    let sizes = map::sizes(&mut told, sizes, preferred, items_max);
    told.into_notes().map(|_| sizes)
}

/// A configuration with only this member.
fn alone(member: &str, value: &Value) -> Result<DynamicMessage, String> {
    message(text::definition(), Map::from_iter([(member.to_owned(), value.clone())]))
        .map_err(|why| format!("{member} is {}: {why}", clipped(&value.to_string())))
}

fn message(definition: MessageDescriptor, members: Map<String, Value>) -> Result<DynamicMessage, String> {
    DynamicMessage::deserialize(definition, Value::Object(members)).map_err(|error| error.to_string())
}

fn described(message: &DynamicMessage, name: &str) -> Result<Described, String> {
    let config = message.transcode_to().map_err(|error| error.to_string())?;
    // Checked first: the other fields are meant for the backend that runs the model.
    if let Some(why) = backend::run_by_others(&config) {
        return Err(why);
    }
    let judged = verdict::judge(message);
    let described = map::described(&config, name, message.has_field_by_name(text::MAX_BATCH_SIZE));
    let (mut notes, mut described) = match (judged, described) {
        (Ok(notes), Ok(described)) => (notes, described),
        (judged, described) => {
            let wrong = [judged.err(), described.err()];
            return Err(wrong.into_iter().flatten().collect::<Vec<_>>().join("; "));
        }
    };
    let kept = &mut described.manifest.kept;
    kept.optimization = said_of_optimization(message)?;
    described.manifest.gpu.cuda_graph = cuda_graph(&kept.optimization).unwrap_or_default();
    notes.append(&mut described.notes);
    described.notes = notes;
    Ok(described)
}

#[cfg(test)]
mod tests;
