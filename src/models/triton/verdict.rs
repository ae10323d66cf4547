//! Decides what happens to each field of a `config.pbtxt`. No field is ignored silently.

use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, ReflectMessage, Value};

/// What happens if a field is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is read.
    Read,
    /// It has no effect here, for this reason. The model is served, and the log says so.
    Noted(&'static str),
    /// The model cannot be served as its author intends, for this reason.
    Refused(&'static str),
}

use Verdict::{Noted, Read, Refused};

const BUFFERS: &str = "the server has its own memory for batches";
const RATES: &str = "instances are not rationed: devices take work when they are free";
const TENSORRT: &str = "only TensorRT has such tensors";

/// Why ensembles are refused, and the alternatives.
pub(super) const ENSEMBLES: &str = "ensembles are not supported: serve the models of their steps alone, each asked by its name; none \
                                    is needed that decodes pictures, since a model with [input] in a model.toml takes them as BYTES";

/// Verdicts by path. A message's verdict holds for everything in it, except if the message is read.
const TABLE: &[(&str, Verdict)] = &[
    ("name", Read),
    ("platform", Read),
    ("backend", Read),
    ("runtime", Noted("there is one runtime for ONNX models, which the option onnx_runtime names")),
    ("version_policy", Read),
    ("version_policy.latest", Read),
    ("version_policy.latest.num_versions", Read),
    ("version_policy.all", Read),
    ("version_policy.specific", Read),
    ("version_policy.specific.versions", Read),
    ("max_batch_size", Read),
    ("input", Read),
    ("input.name", Read),
    ("input.data_type", Read),
    ("input.format", Read),
    ("input.dims", Read),
    ("input.reshape", Read),
    ("input.reshape.shape", Read),
    ("input.is_shape_tensor", Refused(TENSORRT)),
    ("input.allow_ragged_batch", Refused("items of different shapes are not put into one batch")),
    ("input.optional", Noted("every request must bring it, or none where the file has a value for it")),
    ("input.is_non_linear_format_io", Refused(TENSORRT)),
    ("output", Read),
    ("output.name", Read),
    ("output.data_type", Read),
    ("output.dims", Read),
    ("output.reshape", Read),
    ("output.reshape.shape", Read),
    ("output.label_filename", Read),
    ("output.is_shape_tensor", Refused(TENSORRT)),
    ("output.is_non_linear_format_io", Refused(TENSORRT)),
    ("batch_input", Refused("inputs that are made from a batch as a whole are not supported")),
    ("batch_output", Refused("outputs that are cut by another tensor are not supported")),
    ("optimization", Read),
    ("optimization.graph", Noted("ONNX Runtime's graph optimisation is always at its highest level")),
    ("optimization.priority", Noted("a model's share of device time is weight in [batch] of a model.toml")),
    ("optimization.cuda", Read),
    ("optimization.cuda.graphs", Read),
    ("optimization.cuda.busy_wait_events", Noted("a thread that waits for a GPU sleeps")),
    ("optimization.cuda.graph_spec", Noted("graphs are of the sizes that batches are padded to")),
    ("optimization.cuda.output_copy_stream", Noted("outputs always have a stream of their own")),
    // For these and for the parameters below, `backend` reports what has no effect.
    ("optimization.execution_accelerators", Read),
    ("optimization.execution_accelerators.gpu_execution_accelerator", Read),
    ("optimization.execution_accelerators.gpu_execution_accelerator.name", Read),
    ("optimization.execution_accelerators.gpu_execution_accelerator.parameters", Read),
    ("optimization.execution_accelerators.cpu_execution_accelerator", Read),
    ("optimization.execution_accelerators.cpu_execution_accelerator.name", Read),
    ("optimization.execution_accelerators.cpu_execution_accelerator.parameters", Read),
    ("optimization.input_pinned_memory", Noted(BUFFERS)),
    ("optimization.output_pinned_memory", Noted(BUFFERS)),
    ("optimization.gather_kernel_buffer_threshold", Noted(BUFFERS)),
    ("optimization.eager_batching", Noted(BUFFERS)),
    ("dynamic_batching", Read),
    ("dynamic_batching.preferred_batch_size", Read),
    ("dynamic_batching.max_queue_delay_microseconds", Read),
    (
        "dynamic_batching.preserve_ordering",
        Noted("each answer goes to its own caller as soon as it is there"),
    ),
    ("dynamic_batching.priority_levels", Read),
    ("dynamic_batching.default_priority_level", Read),
    ("dynamic_batching.default_queue_policy", Read),
    ("dynamic_batching.default_queue_policy.timeout_action", Read),
    ("dynamic_batching.default_queue_policy.default_timeout_microseconds", Read),
    ("dynamic_batching.default_queue_policy.allow_timeout_override", Read),
    ("dynamic_batching.default_queue_policy.max_queue_size", Read),
    ("dynamic_batching.priority_queue_policy", Read),
    ("dynamic_batching.priority_queue_policy.timeout_action", Read),
    ("dynamic_batching.priority_queue_policy.default_timeout_microseconds", Read),
    ("dynamic_batching.priority_queue_policy.allow_timeout_override", Read),
    ("dynamic_batching.priority_queue_policy.max_queue_size", Read),
    ("sequence_batching", Refused("models with a state between requests are not supported")),
    ("ensemble_scheduling", Refused(ENSEMBLES)),
    ("instance_group", Read),
    // Names of instances appear nowhere.
    ("instance_group.name", Read),
    ("instance_group.kind", Read),
    ("instance_group.count", Read),
    ("instance_group.gpus", Read),
    ("instance_group.rate_limiter", Noted(RATES)),
    ("instance_group.secondary_devices", Noted("there are CPUs and GPUs, and no other devices")),
    ("instance_group.profile", Noted("only TensorRT has optimisation profiles")),
    ("instance_group.passive", Noted("all instances take requests")),
    ("instance_group.host_policy", Noted("there are no policies of hosts")),
    ("default_model_filename", Read),
    ("cc_model_filenames", Noted("one file is run on all devices")),
    ("metric_tags", Noted("metrics have a fixed set of labels")),
    ("parameters", Read),
    ("parameters.string_value", Read),
    ("model_warmup", Read),
    ("model_warmup.name", Read),
    ("model_warmup.batch_size", Read),
    ("model_warmup.count", Read),
    ("model_warmup.inputs", Read),
    ("model_warmup.inputs.data_type", Read),
    ("model_warmup.inputs.dims", Read),
    ("model_warmup.inputs.zero_data", Read),
    ("model_warmup.inputs.random_data", Read),
    ("model_warmup.inputs.input_data_file", Read),
    ("model_operations", Refused("libraries with operators of their own are not loaded")),
    ("model_transaction_policy", Read),
    (
        "model_transaction_policy.decoupled",
        Refused("a model of ONNX has one answer for each request, so it cannot be decoupled"),
    ),
    ("model_repository_agents", Refused("agents that change a model on its way are not supported")),
    ("response_cache", Read),
    ("response_cache.enable", Noted("answers are not cached")),
    ("model_metrics", Noted("histograms have the same buckets for all models")),
];

/// The verdict on a path. A test ensures that every field of the definition has one.
pub(super) fn of(path: &str) -> Option<Verdict> {
    TABLE.iter().find(|(of, _)| *of == path).map(|(_, verdict)| *verdict)
}

/// Notes about the fields that are set, in their order.
///
/// # Errors
/// Every reason why the model cannot be served.
pub(super) fn judge(message: &DynamicMessage) -> Result<Vec<String>, String> {
    let mut found = Found::default();
    found.message(message, "", "");
    if found.refused.is_empty() { Ok(few(found.noted)) } else { Err(few(found.refused).join("; ")) }
}

/// How many notes or reasons are told: each entry of a long list has its own.
const TOLD_MAX: usize = 20;

fn few(mut told: Vec<String>) -> Vec<String> {
    if let Some(more) = told.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        told.truncate(TOLD_MAX);
        told.push(format!("and {more} more"));
    }
    told
}

#[cfg(test)]
#[test]
fn of_many_reasons_the_first_are_told_and_how_many_more_there_are() {
    let told = few((0..20_000).map(|index| index.to_string()).collect());
    assert_eq!((told.len(), told[19].as_str(), told[20].as_str()), (21, "19", "and 19980 more"));
    assert_eq!(few(vec!["a".into(); 20]).len(), 20);
}

#[derive(Default)]
struct Found {
    noted: Vec<String>,
    refused: Vec<String>,
}

impl Found {
    /// `path` is the path in the table; `shown` also has positions in lists and keys of maps.
    fn message(&mut self, message: &DynamicMessage, path: &str, shown: &str) {
        // Fields with their default are not among these; they ask for nothing.
        for (field, value) in message.fields() {
            self.field(&field, value, &below(path, field.name()), &below(shown, field.name()));
        }
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value, path: &str, shown: &str) {
        let verdict = of(path).unwrap_or(Refused("this version does not know what to do with it"));
        match value {
            // Each entry of a map of strings is reported by its own key.
            Value::Map(entries) => {
                for (key, value) in entries {
                    let shown = format!("{shown}[{}]", key_text(key));
                    self.value(verdict, value, path, &shown);
                }
            }
            Value::List(values) if field.kind().as_message().is_some() => {
                for (index, value) in values.iter().enumerate() {
                    self.value(verdict, value, path, &named(shown, index, value));
                }
            }
            value => self.value(verdict, value, path, shown),
        }
    }

    fn value(&mut self, verdict: Verdict, value: &Value, path: &str, shown: &str) {
        match (verdict, value) {
            (Read, Value::Message(message)) => self.message(message, path, shown),
            (Read, _) => {}
            (Noted(why), _) => self.noted.push(format!("{shown}: {why}")),
            (Refused(why), _) => self.refused.push(format!("{shown}: {why}")),
        }
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// An element of a list, by its name if it has one, otherwise by its position.
fn named(shown: &str, index: usize, value: &Value) -> String {
    let name = value.as_message().and_then(|message| {
        message.descriptor().get_field_by_name("name")?;
        let name = message.get_field_by_name("name")?.as_str()?.to_owned();
        (!name.is_empty()).then_some(name)
    });
    match name {
        Some(name) => format!("{shown}[{name:?}]"),
        None => format!("{shown}[{index}]"),
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(key) => format!("{key:?}"),
        MapKey::U64(key) => key.to_string(),
        other => format!("{other:?}"),
    }
}

/// All paths of the table.
#[cfg(test)]
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(path, _)| *path)
}
