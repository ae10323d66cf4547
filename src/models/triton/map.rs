//! Maps the message of a `config.pbtxt` to a manifest: each field that is read, with its range and its default.

use super::{Described, backend, findings::Findings, groups, queue};
use crate::{
    engine::{DataType, Dim, onnx::OnGpu},
    image::Layout,
    models::{
        Declared, DeclaredTensor, Engine, Fill, Manifest, Warmup, WarmupInput,
        manifest::{BatchLimits, COMPANY_WAIT_MAX, ITEMS_MAX, Kept, Versions, Waiting, file_name},
        powers_of_two,
    },
    protocol::inference::{
        DataType as WireType, ModelConfig, ModelDynamicBatching, ModelInput, ModelTensorReshape,
        ModelVersionPolicy,
        model_config::SchedulingChoice,
        model_input::Format,
        model_version_policy::PolicyChoice,
        model_warmup::{self, input::InputDataType},
    },
    tasks::Task,
};
use std::time::Duration;

/// Runs of one warm-up, at most: a model serves no requests while it warms up.
const WARMUP_RUNS_MAX: u32 = 10_000;

/// The manifest for a message, for the model in the folder `name`. `says_size` tells whether `max_batch_size` is given,
/// even as 0.
pub(super) fn described(config: &ModelConfig, name: &str, says_size: bool) -> Result<Described, String> {
    let mut told = Findings::default();
    if !config.name.is_empty() && config.name != name {
        told.wrong(format!(
            "name is {:?}, but the folder is called {name:?}: they must be the same",
            config.name
        ));
    }
    let items_max = items_max(&mut told, config);
    let file = model_file(&mut told, &config.default_model_filename);
    let declared = declared(&mut told, config, (items_max, says_size));
    // The model's labels are those of the first output that has any.
    let mut outputs = declared.iter().flat_map(|declared| &declared.outputs);
    let labels = outputs.find_map(|output| output.labels.clone());
    let (mut batch, queue, priority) = batching(&mut told, config, items_max);
    if declared.as_ref().is_some_and(|declared| declared.items_max.is_none()) {
        // `batching` has noted that nothing is waited for. A wait left here would be reported a second time.
        batch.wait_max = Duration::ZERO;
    }
    let warmups = warmups(&mut told, config, items_max);
    let placement = groups::placement(&mut told, &config.instance_group);
    let versions = versions(&mut told, config.version_policy.as_ref());
    let conv_search = backend::conv_search(&mut told, config);
    backend::accelerators(&mut told, config.optimization.as_ref());
    let manifest = Manifest {
        engine: Engine::Onnx,
        task: Task::Tensors,
        versions,
        file,
        labels,
        priority: priority.unwrap_or(Manifest::default().priority),
        timeout: None,
        input: None,
        batch,
        queue,
        placement,
        gpu: OnGpu { conv_search, ..OnGpu::default() },
        declared,
        by_name: true,
        warmups,
        kept: Kept {
            parameters: config
                .parameters
                .iter()
                .map(|(key, value)| (key.clone(), value.string_value.clone()))
                .collect(),
            metric_tags: config.metric_tags.clone().into_iter().collect(),
            ..Kept::default()
        },
    };
    told.into_notes().map(|notes| Described { manifest, notes })
}

/// Items in the largest batch, cut to [`ITEMS_MAX`] with a note: larger requests are split into several batches.
fn items_max(told: &mut Findings, config: &ModelConfig) -> usize {
    let (asked, most) = (config.max_batch_size, i32::try_from(ITEMS_MAX).unwrap_or(i32::MAX));
    if asked > most {
        told.note(format!("max_batch_size: it is {asked}, and batches have up to {most} items"));
    }
    usize::try_from(asked.min(most)).unwrap_or_else(|_| {
        told.wrong(format!("max_batch_size is {asked}, allowed: 0 or more"));
        0
    })
}

/// Cuts a size to `items_max` if the author's own largest batch allows it.
fn lowered(size: i64, config: &ModelConfig, items_max: usize) -> i64 {
    if size <= config.max_batch_size.into() { size.min(items_max as i64) } else { size }
}

/// The name of a version's model file; `None` if it is not given.
fn model_file(told: &mut Findings, name: &str) -> Option<String> {
    if file_name(name).is_err() {
        told.wrong(format!(
            "default_model_filename is {name:?}, allowed: the name of a file, without a path: the file lies in the version's folder, or \
             is model.onnx in a folder of this name there"
        ));
    }
    (!name.is_empty()).then(|| name.to_owned())
}

/// Checks that a path consists of names, without `..`: it leads to a file in a folder or in one below it. Links are checked as the file
/// is opened.
pub(super) fn file_path(path: &str) -> Result<(), String> {
    let is_name = |part: &str| !part.is_empty() && file_name(part).is_ok();
    if path.split('/').all(is_name) {
        return Ok(());
    }
    Err(format!(
        "is {path:?}, allowed: the name of a file in the model's folder, or its path from there, without .."
    ))
}

/// The path of a file in the model's folder; `None` if it is not given.
fn file(told: &mut Findings, field: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return None;
    }
    if let Err(why) = file_path(path) {
        told.wrong(format!("{field} {why}"));
    }
    Some(path.to_owned())
}

/// The declared inputs and outputs; `None` if the configuration says nothing of them, nor whether there is a batch axis.
fn declared(
    told: &mut Findings,
    config: &ModelConfig,
    (items_max, says_size): (usize, bool),
) -> Option<Declared> {
    if config.input.is_empty() && config.output.is_empty() && !says_size {
        return None;
    }
    let inputs = config.input.iter().map(|input: &ModelInput| {
        let at = format!("input[{:?}]", input.name);
        if input.format() != Format::None && input.dims.len() != 3 {
            told.wrong(format!("{at}.format is {}, which needs 3 dims", input.format().as_str_name()));
        }
        let format = match input.format() {
            Format::None => None,
            Format::Nchw => Some(Layout::Nchw),
            Format::Nhwc => Some(Layout::Nhwc),
        };
        let reshape = input.reshape.as_ref();
        let of = tensor(told, &at, &input.name, input.data_type(), &input.dims, reshape);
        DeclaredTensor { format, optional: input.optional, ..of }
    });
    let inputs = inputs.collect();
    let outputs = config.output.iter().map(|output| {
        let at = format!("output[{:?}]", output.name);
        let reshape = output.reshape.as_ref();
        let labels = file(told, &format!("{at}.label_filename"), &output.label_filename);
        DeclaredTensor {
            labels,
            ..tensor(told, &at, &output.name, output.data_type(), &output.dims, reshape)
        }
    });
    Some(Declared { items_max: (items_max > 0).then_some(items_max), inputs, outputs: outputs.collect() })
}

fn tensor(
    told: &mut Findings,
    at: &str,
    name: &str,
    datatype: WireType,
    dims: &[i64],
    reshape: Option<&ModelTensorReshape>,
) -> DeclaredTensor {
    if name.is_empty() {
        told.wrong(format!("{at} has no name"));
    }
    if dims.is_empty() {
        told.wrong(format!("{at} has no dims; one element is dims: [ 1 ] with reshape {{ shape: [ ] }}"));
    }
    let datatype = self::datatype(told, &format!("{at}.data_type"), datatype);
    let shape = self::dims(told, &format!("{at}.dims"), dims);
    let reshape = reshape.map(|reshape| self::dims(told, &format!("{at}.reshape"), &reshape.shape));
    if let Some(inside) = &reshape {
        let elements = |dims: &[Dim]| {
            let free = dims.iter().filter(|dim| **dim == Dim::Free).count();
            let fixed = dims.iter().map(|dim| if let Dim::Fixed(n) = dim { *n } else { 1 });
            (free, fixed.fold(1_usize, usize::saturating_mul))
        };
        if elements(&shape) != elements(inside) {
            told.wrong(format!("{at}.reshape has not as many elements, and extents of -1, as dims has"));
        }
    }
    DeclaredTensor {
        name: name.to_owned(),
        datatype,
        dims: shape,
        reshape,
        format: None,
        labels: None,
        optional: false,
    }
}

fn datatype(told: &mut Findings, at: &str, datatype: WireType) -> DataType {
    let name = datatype.as_str_name().trim_start_matches("TYPE_");
    let name = if datatype == WireType::TypeString { "BYTES" } else { name };
    DataType::from_name(name).unwrap_or_else(|| {
        told.wrong(format!("{at} is missing; allowed: TYPE_FP32 and the like"));
        DataType::Fp32
    })
}

fn dims(told: &mut Findings, at: &str, dims: &[i64]) -> Vec<Dim> {
    let mut dim = |n: &i64| match n {
        -1 => Dim::Free,
        n => usize::try_from(*n).ok().filter(|n| *n > 0).map(Dim::Fixed).unwrap_or_else(|| {
            told.wrong(format!("{at} holds {n}, allowed: 1 or more, or -1 for any"));
            Dim::Free
        }),
    };
    dims.iter().map(&mut dim).collect()
}

/// How items are batched, how requests wait, and their default priority.
fn batching(
    told: &mut Findings,
    config: &ModelConfig,
    items_max: usize,
) -> (BatchLimits, Waiting, Option<u8>) {
    let mut limits = BatchLimits {
        items_max: (items_max > 0).then_some(items_max),
        sizes: None,
        no_axis: None,
        wait_max: Duration::ZERO,
        weight: 1.0,
        merges: false,
    };
    let Some(SchedulingChoice::DynamicBatching(dynamic)) = &config.scheduling_choice else {
        return (limits, Waiting::default(), None);
    };
    limits.merges = true;
    let preferred = &dynamic.preferred_batch_size;
    if !preferred.is_empty() {
        let preferred = preferred.iter().map(|size| lowered((*size).into(), config, items_max));
        limits.sizes = Some(sizes(told, powers_of_two(items_max), preferred, items_max));
    }
    limits.wait_max = wait_max(told, dynamic);
    if items_max == 0 && limits.wait_max > Duration::ZERO {
        told.note(
            "dynamic_batching.max_queue_delay_microseconds: nothing is waited for, since max_batch_size is 0"
                .to_owned(),
        );
    }
    let (queue, priority) = queue::waiting(told, dynamic);
    (limits, queue, priority)
}

/// How long a batch may wait for further requests.
pub(super) fn wait_max(told: &mut Findings, dynamic: &ModelDynamicBatching) -> Duration {
    let micros = dynamic.max_queue_delay_microseconds;
    told.capped("dynamic_batching.max_queue_delay_microseconds", micros, COMPANY_WAIT_MAX)
}

/// Batches are padded to the preferred sizes and to the usual ones (powers of two), so that none is padded by much.
pub(super) fn sizes(
    told: &mut Findings,
    mut sizes: Vec<usize>,
    preferred: impl Iterator<Item = i64>,
    items_max: usize,
) -> Vec<usize> {
    for size in preferred {
        match usize::try_from(size) {
            Ok(size) if (1..=items_max).contains(&size) => sizes.push(size),
            _ => told.wrong(format!(
                "dynamic_batching.preferred_batch_size holds {size}, allowed: 1 to max_batch_size, which is {items_max}"
            )),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Versions that a policy may name, at most: each is listed, whether or not it exists.
const VERSIONS_MAX: usize = 1000;

/// Without a policy the highest version is served.
pub(super) fn versions(told: &mut Findings, policy: Option<&ModelVersionPolicy>) -> Versions {
    match policy.and_then(|policy| policy.policy_choice.as_ref()) {
        None => Versions::Latest(1),
        Some(PolicyChoice::All(_)) => Versions::All,
        Some(PolicyChoice::Latest(latest)) => {
            if latest.num_versions == 0 {
                told.wrong("version_policy.latest.num_versions is 0, allowed: 1 or more".to_owned());
            }
            Versions::Latest(latest.num_versions as usize)
        }
        Some(PolicyChoice::Specific(specific)) => {
            if specific.versions.is_empty() {
                told.wrong("version_policy.specific names no versions".to_owned());
            }
            let count = specific.versions.len();
            if count > VERSIONS_MAX {
                told.wrong(format!(
                    "version_policy.specific names {count} versions, more than the limit of {VERSIONS_MAX}"
                ));
            }
            if let Some(version) = specific.versions.iter().find(|version| **version < 0) {
                told.wrong(format!("version_policy.specific names {version}: versions are 0 or more"));
            }
            Versions::Specific(specific.versions.iter().map(i64::to_string).collect())
        }
    }
}

fn warmups(told: &mut Findings, config: &ModelConfig, items_max: usize) -> Vec<Warmup> {
    // A batch size of 0 turns a warm-up off.
    let on = config.model_warmup.iter().filter(|warmup| warmup.batch_size > 0);
    on.map(|warmup| {
        let at = format!("model_warmup[{:?}]", warmup.name);
        let items = lowered(warmup.batch_size.into(), config, items_max) as usize;
        if items > items_max.max(1) {
            told.wrong(format!("{at}.batch_size is {items}, more than max_batch_size, which is {items_max}"));
        }
        if warmup.count > WARMUP_RUNS_MAX {
            told.wrong(format!("{at}.count is {}, allowed: 0 to {WARMUP_RUNS_MAX}", warmup.count));
        }
        let inputs = warmup.inputs.iter().map(|(name, input)| warm_input(told, &at, name, input));
        Warmup {
            inputs: inputs.collect(),
            name: warmup.name.clone(),
            items: (items_max > 0).then_some(items),
            runs: warmup.count.max(1) as usize,
        }
    })
    .collect()
}

fn warm_input(told: &mut Findings, at: &str, name: &str, input: &model_warmup::Input) -> WarmupInput {
    let at = format!("{at}.inputs[{name:?}]");
    let dims = input.dims.iter().map(|n| {
        usize::try_from(*n).ok().filter(|n| *n > 0).unwrap_or_else(|| {
            told.wrong(format!("{at}.dims holds {n}, allowed: 1 or more"));
            1
        })
    });
    let dims = dims.collect();
    let fill = match &input.input_data_type {
        Some(InputDataType::RandomData(true)) => Fill::Chance,
        Some(InputDataType::InputDataFile(file)) => {
            if let Err(why) = file_path(file) {
                told.wrong(format!("{at}.input_data_file {why}, from its folder warmup"));
            }
            Fill::File(file.clone())
        }
        _ => Fill::Zeros,
    };
    let datatype = datatype(told, &format!("{at}.data_type"), input.data_type());
    WarmupInput { name: name.to_owned(), datatype, dims, fill }
}
