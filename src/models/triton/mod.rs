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
//! - `map`: from the message to a manifest; `queue`: what of it says how requests wait; `groups`: where
//!   instances run; `backend`: what is said to what runs it, and who that is.
//! - `overrides`: what a load changes of it; `names`: of members in JSON, which have two.
//!
//! The same configuration also comes as JSON, with the files of a model that a caller sends.

mod backend;
mod groups;
mod map;
mod names;
mod overrides;
mod queue;
mod text;
mod verdict;

use super::Manifest;
use crate::{engine::onnx::gpu::CudaGraph, protocol::inference::ModelConfig, words::clipped};
pub use groups::{gpus, kinds, told_placement};
use map::Told;
pub use overrides::overrides;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
pub use queue::Queueing;
use serde_json::{Map, Value};

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
    let members: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    described(&message(text::definition(), as_defined(members)?)?, name)
}

/// A configuration in JSON with its members' names as in the definition, whichever of both each has.
///
/// # Errors
/// A member that is there by both.
pub fn as_defined(config: Map<String, Value>) -> Result<Map<String, Value>, String> {
    names::as_defined(&text::definition(), config)
}

/// The member that says how a model is run.
pub const OPTIMIZATION: &str = "optimization";

/// Whether CUDA graphs are asked for by an `optimization` as it is told again; nothing if it says nothing of CUDA.
pub fn cuda_graph(optimization: &Map<String, Value>) -> Option<CudaGraph> {
    let graphs = optimization.get("cuda")?.get("graphs")?.as_bool()?;
    // Triton, too, goes on without those that cannot be recorded.
    Some(if graphs { CudaGraph::Auto } else { CudaGraph::Never })
}

/// The `optimization` of a configuration, as Triton tells it: every member that is no message, and numbers as numbers. Empty if there is
/// none.
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

/// Whether two values of a member of a configuration say the same, however each is written: numbers may be text, and what has its
/// default need not be there.
pub fn says_as(member: &str, one: &Value, other: &Value) -> bool {
    let read = |value: &Value| alone(member, value).ok()?.transcode_to::<ModelConfig>().ok();
    one == other || read(one).is_some_and(|one| read(other) == Some(one))
}

/// The sizes that batches are padded to, with those that somebody prefers beside them.
///
/// # Errors
/// Every size that is larger than the largest batch.
pub(super) fn preferring(
    sizes: Vec<usize>,
    preferred: &[usize],
    items_max: usize,
) -> Result<Vec<usize>, String> {
    let mut told = Told::default();
    let preferred = preferred.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX));
    let sizes = map::sizes(&mut told, sizes, preferred, items_max);
    told.into_wrong().map_or(Ok(sizes), Err)
}

/// A configuration of which nothing is said but this member.
fn alone(member: &str, value: &Value) -> Result<DynamicMessage, String> {
    message(text::definition(), Map::from_iter([(member.to_owned(), value.clone())]))
        .map_err(|why| format!("{member} is {}: {why}", clipped(&value.to_string())))
}

fn message(definition: MessageDescriptor, members: Map<String, Value>) -> Result<DynamicMessage, String> {
    DynamicMessage::deserialize(definition, Value::Object(members)).map_err(|error| error.to_string())
}

fn described(message: &DynamicMessage, name: &str) -> Result<Described, String> {
    let config = message.transcode_to().map_err(|error| error.to_string())?;
    // What it says beside is for whatever runs it.
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
