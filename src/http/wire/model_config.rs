//! A model as Triton's `ModelConfig` in JSON, with the field names of its definition and with numbers as numbers. Every member that is not
//! a message is present, because clients read them without checking.
//!
//! Only what is true for our models is stated. A model counts as batching (`max_batch_size` above 0) if its first axis is free; that axis
//! is then left out of `dims`. The same goes for a model whose requests may have many items and run one by one, such as one of strings.

use crate::{
    batch::{OnTimeout, QueuePolicy},
    engine::{Batching, DataType, Dim, TensorSpec},
    image::Layout,
    models::{DeclaredTensor, Fill, Model, Warmup, manifest::Versions, triton},
};
use serde_json::{Map, Value, json};

/// Whether requests have an axis for items in front of what the configuration says of the tensors.
pub fn has_batch_axis(model: &Model) -> bool {
    model.alone_max.is_some() || (model.batching == Batching::Dynamic && model.fit.is_none())
}

/// The configuration of a model with these tensors (a fitter's are not those of its engine).
pub fn of(model: &Model, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Value {
    let fitter = model.fit.is_some();
    let batches = model.batching == Batching::Dynamic && !fitter;
    // Requests may have many items, which run as they arrived.
    let (rows, largest) = (has_batch_axis(model), model.alone_max.unwrap_or(model.rules.largest()));
    let declared = model.manifest.declared.as_ref();
    let tensor = |spec: &TensorSpec, declared: Option<&[DeclaredTensor]>| {
        let mut value = json!({
            "name": spec.name,
            "data_type": type_name(spec.datatype),
            "dims": numbers(item(spec, rows)),
            "is_shape_tensor": false,
            "is_non_linear_format_io": false,
        });
        let own = declared.and_then(|declared| declared.iter().find(|own| own.name == spec.name));
        if let Some(inside) = own.and_then(|own| own.reshape.as_deref()) {
            value["reshape"] = json!({ "shape": numbers(inside) });
        }
        value
    };
    let input = |spec: &TensorSpec| {
        let mut value = tensor(spec, declared.map(|declared| &declared.inputs[..]));
        let own = declared.and_then(|declared| declared.inputs.iter().find(|own| own.name == spec.name));
        value["format"] = format(model, own, item(spec, rows)).into();
        value["allow_ragged_batch"] = false.into();
        value["optional"] = false.into();
        value
    };
    let output = |spec: &TensorSpec| {
        let mut value = tensor(spec, declared.map(|declared| &declared.outputs[..]));
        let own = declared.map(|declared| declared.outputs.iter().find(|own| own.name == spec.name));
        let file = match own {
            Some(own) => own.and_then(|own| own.labels.as_deref()),
            None => model.manifest.labels.as_deref(),
        };
        let file = file.filter(|_| labelled(model, spec, rows));
        value["label_filename"] = file.unwrap_or_default().into();
        value
    };
    let file = model.manifest.file.as_deref().unwrap_or("model.onnx");
    let mut config = json!({
        "name": &*model.name,
        "platform": model.signature.platform,
        "backend": if fitter { "" } else { "onnxruntime" },
        "version_policy": versions(&model.manifest.versions),
        "max_batch_size": if rows { largest } else { 0 },
        "input": inputs.iter().map(input).collect::<Vec<_>>(),
        "output": outputs.iter().map(output).collect::<Vec<_>>(),
        "instance_group": [instances(model)],
        "default_model_filename": if fitter { "" } else { file },
        "model_warmup": model.manifest.warmups.iter().map(warmup).collect::<Vec<_>>(),
        "metric_tags": model.manifest.kept.metric_tags,
        "parameters": model.manifest.kept.parameters.iter().map(parameter).collect::<Map<_, _>>(),
        "runtime": "",
        "batch_input": [],
        "batch_output": [],
        "cc_model_filenames": {},
        "model_transaction_policy": { "decoupled": false },
    });
    let optimization = &model.manifest.kept.optimization;
    if !optimization.is_empty() {
        config[triton::OPTIMIZATION] = Value::Object(optimization.clone());
    }
    if batches {
        let queue = &model.rules.queue;
        let own_policy =
            |(priority, own): (&u8, &QueuePolicy)| ((u16::from(*priority) + 1).to_string(), policy(own));
        config["dynamic_batching"] = json!({
            "preferred_batch_size": model.rules.sizes,
            "max_queue_delay_microseconds": model.rules.wait_max.as_micros() as u64,
            "preserve_ordering": false,
            // The protocol counts from 1; 0 means no preference.
            "priority_levels": model.priorities,
            "default_priority_level": u64::from(model.priority) + 1,
            "default_queue_policy": policy(&queue.default),
            "priority_queue_policy": queue.of_priority.iter().map(own_policy).collect::<Map<_, _>>(),
        });
    }
    config
}

/// The extents of one item.
fn item(spec: &TensorSpec, batches: bool) -> &[Dim] {
    &spec.shape[usize::from(batches).min(spec.shape.len())..]
}

fn numbers(dims: &[Dim]) -> Vec<i64> {
    dims.iter().copied().map(Dim::number).collect()
}

/// The order of the axes of an image input: as the model's author states it, or as its images are prepared.
fn format(model: &Model, declared: Option<&DeclaredTensor>, item: &[Dim]) -> &'static str {
    let made = || model.image.as_ref().map(|image| image.preprocess.layout);
    match declared.and_then(|declared| declared.format).or_else(made) {
        Some(Layout::Nchw) if item.len() == 3 => "FORMAT_NCHW",
        Some(Layout::Nhwc) if item.len() == 3 => "FORMAT_NHWC",
        _ => "FORMAT_NONE",
    }
}

/// Whether an output's classes have labels, by the same rule as in the classification extension.
fn labelled(model: &Model, spec: &TensorSpec, batches: bool) -> bool {
    let extents = item(spec, batches).iter();
    let fixed = extents.map(|dim| if let Dim::Fixed(n) = dim { Some(*n) } else { None });
    let labels = model.labels_of(&spec.name, fixed.product());
    labels.is_some_and(|labels| !labels.is_empty())
}

fn versions(versions: &Versions) -> Value {
    match versions {
        Versions::All => json!({ "all": {} }),
        Versions::Latest(count) => json!({ "latest": { "num_versions": count } }),
        Versions::Specific(of) => {
            let numbers: Vec<i64> = of.iter().filter_map(|version| version.parse().ok()).collect();
            json!({ "specific": { "versions": numbers } })
        }
    }
}

/// Where the model's instances may run.
fn instances(model: &Model) -> Value {
    let (kind, gpus) = triton::told_placement(&model.manifest.placement, model.may_use_gpu);
    json!({
        "name": format!("{}_0", model.name),
        "kind": kind,
        "count": model.instances,
        "gpus": gpus,
        "secondary_devices": [],
        "profile": [],
        "passive": false,
        "host_policy": "",
    })
}

/// How requests wait in the queue; 0 means no limit.
fn policy(policy: &QueuePolicy) -> Value {
    json!({
        "timeout_action": match policy.then {
            OnTimeout::Refuse => "REJECT",
            OnTimeout::Delay => "DELAY",
        },
        "default_timeout_microseconds": policy.wait_max.map_or(0, |wait| wait.as_micros() as u64),
        "allow_timeout_override": policy.may_shorten,
        "max_queue_size": policy.jobs_max.unwrap_or(0),
    })
}

fn warmup(warmup: &Warmup) -> Value {
    let input = |input: &crate::models::WarmupInput| {
        let mut value = json!({ "data_type": type_name(input.datatype), "dims": input.dims });
        match &input.fill {
            Fill::Zeros => value["zero_data"] = true.into(),
            Fill::Chance => value["random_data"] = true.into(),
            Fill::File(file) => value["input_data_file"] = file.as_str().into(),
        }
        (input.name.clone(), value)
    };
    json!({
        "name": warmup.name,
        "batch_size": warmup.items.unwrap_or(1),
        "inputs": warmup.inputs.iter().map(input).collect::<Map<_, _>>(),
        "count": warmup.runs,
    })
}

fn parameter((key, value): (&String, &String)) -> (String, Value) {
    (key.clone(), json!({ "string_value": value }))
}

/// The name of a type in configurations.
pub fn type_name(datatype: DataType) -> String {
    match datatype {
        DataType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{
        batch::ModelKey,
        engine::staging::Memory,
        models::testing::source,
        protocol::DESCRIPTORS,
        tasks::{Labels, testing},
    };
    use prost_reflect::{DescriptorPool, MessageDescriptor};
    use std::{sync::Arc, time::Duration};

    /// Checks that every member of a message that is neither a message itself nor a oneof is present, and that nothing else is.
    fn check(of: &MessageDescriptor, value: &Value, path: &str) {
        let members = value.as_object().unwrap_or_else(|| panic!("{path} is {value}"));
        for name in members.keys() {
            assert!(of.get_field_by_name(name).is_some(), "{path}.{name} is no member");
        }
        for field in of.fields() {
            let path = format!("{path}.{}", field.name());
            let Some(value) = members.get(field.name()) else {
                let may_be_absent = field.containing_oneof().is_some() || field.supports_presence();
                assert!(may_be_absent, "{path} is missing");
                continue;
            };
            let kind = field.kind();
            let Some(inner) = kind.as_message() else { continue };
            if field.is_map() {
                let inner = inner.map_entry_value_field().kind();
                for value in value.as_object().unwrap().values() {
                    if let Some(inner) = inner.as_message() {
                        check(inner, value, &path);
                    }
                }
            } else if field.is_list() {
                value.as_array().unwrap().iter().for_each(|value| check(inner, value, &path));
            } else {
                check(inner, value, &path);
            }
        }
    }

    fn config(text: &str) -> Value {
        config_of(text, "a\nb\nc\n")
    }

    fn config_of(text: &str, labels: &str) -> Value {
        let model = model_of(text, labels);
        of(&model, &model.interface.signature.inputs, &model.interface.signature.outputs)
    }

    fn model_of(text: &str, labels: &str) -> Model {
        let mut signature = testing::signature(&[("y", &[-1, 3])]);
        signature.inputs = vec![testing::spec("x", DataType::Fp32, &[-1, 3, 8, 8])];
        let mut source = source("m", "1", "");
        source.manifest = triton::read(text, "m").unwrap().manifest;
        source.output_labels = [("y".to_owned(), Arc::new(Labels::parse(labels).unwrap()))].into();
        Model::resolve(ModelKey(1), &source, signature, Duration::from_secs(1), &Memory::Plain).unwrap()
    }

    #[test]
    fn the_order_of_axes_is_as_it_was_declared() {
        let format = |format: &str| {
            let input = format!("input {{ name: \"x\" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] {format} }}");
            config(&format!("max_batch_size: 4 {input}"))["input"][0]["format"].clone()
        };
        assert_eq!(format("format: FORMAT_NCHW"), "FORMAT_NCHW");
        assert_eq!(format("format: FORMAT_NHWC"), "FORMAT_NHWC");
        assert_eq!(format(""), "FORMAT_NONE");
    }

    const TEXT: &str = "max_batch_size: 4
        input { name: \"x\" data_type: TYPE_FP32 dims: [ 192 ] reshape { shape: [ 3, 8, 8 ] } }
        output { name: \"y\" data_type: TYPE_FP32 dims: 3 label_filename: \"words.txt\" }
        version_policy { specific { versions: [ 1, 4 ] } }
        instance_group { kind: KIND_GPU gpus: 2 count: 3 }
        default_model_filename: \"net.onnx\"
        dynamic_batching { priority_levels: 3 default_priority_level: 2 max_queue_delay_microseconds: 7
          default_queue_policy { max_queue_size: 9 }
          priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 50 } } }
        parameters { key: \"intra_op_thread_count\" value { string_value: \"4\" } }
        metric_tags { key: \"team\" value: \"optics\" }
        optimization { priority: PRIORITY_MAX cuda { graph_spec { batch_size: 4 input { key: \"x\" value { dim: [ 192 ] } } } }
          execution_accelerators { gpu_execution_accelerator { name: \"tensorrt\" parameters { key: \"k\" value: \"v\" } } }
          input_pinned_memory { enable: true } }
        model_warmup { name: \"w\" batch_size: 2 count: 5
          inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 192 random_data: true } } }";

    #[test]
    fn all_members_of_the_definition_are_there_and_no_other() {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        let definition = pool.get_message_by_name("inference.ModelConfig").unwrap();
        for text in ["", TEXT] {
            check(&definition, &config(text), "config");
        }
    }

    #[test]
    fn what_a_repository_says_of_a_model_is_what_is_told_of_it() {
        let config = config(TEXT);
        assert_eq!(config["version_policy"], json!({ "specific": { "versions": [1, 4] } }));
        assert_eq!(
            (&config["default_model_filename"], &config["max_batch_size"]),
            (&"net.onnx".into(), &4.into())
        );
        assert_eq!(config["output"][0]["label_filename"], "words.txt");
        assert_eq!(config["parameters"], json!({ "intra_op_thread_count": { "string_value": "4" } }));
        assert_eq!(config["metric_tags"], json!({ "team": "optics" }));
        let spec = json!({ "batch_size": 4, "input": { "x": { "dim": [192] } } });
        let accelerator = json!({ "name": "tensorrt", "parameters": { "k": "v" } });
        assert_eq!(
            config["optimization"],
            json!({ "priority": "PRIORITY_MAX", "input_pinned_memory": { "enable": true },
                    "cuda": { "graphs": false, "busy_wait_events": false, "graph_spec": [spec], "output_copy_stream": false },
                    "execution_accelerators": { "gpu_execution_accelerator": [accelerator], "cpu_execution_accelerator": [] },
                    "gather_kernel_buffer_threshold": 0, "eager_batching": false })
        );
        assert_eq!(config_of("", "").get("optimization"), None, "nothing is told where nothing was said");
        assert_eq!(
            (&config["input"][0]["dims"], &config["input"][0]["reshape"]),
            (&json!([192]), &json!({ "shape": [3, 8, 8] }))
        );
        let group = &config["instance_group"][0];
        assert_eq!(
            (&group["kind"], &group["gpus"], &group["count"]),
            (&"KIND_GPU".into(), &json!([2]), &3.into())
        );
        let batching = &config["dynamic_batching"];
        assert_eq!(
            (&batching["priority_levels"], &batching["default_priority_level"]),
            (&3.into(), &2.into())
        );
        assert_eq!(
            batching["default_queue_policy"],
            json!({ "timeout_action": "REJECT", "default_timeout_microseconds": 0, "allow_timeout_override": false,
                    "max_queue_size": 9 })
        );
        assert_eq!(batching["priority_queue_policy"]["3"]["timeout_action"], "DELAY");
        assert_eq!(config["model_warmup"][0]["inputs"]["x"]["random_data"], true);
        assert_eq!(
            (&config["model_warmup"][0]["batch_size"], &config["model_warmup"][0]["count"]),
            (&2.into(), &5.into())
        );
    }

    #[test]
    fn where_a_model_may_run_anywhere_is_told_as_where_that_is() {
        let told = |group: &str, may_use_gpu: bool| {
            let mut model = model_of(&format!("instance_group {{ {group} }}"), "");
            model.may_use_gpu = may_use_gpu;
            let group = instances(&model);
            (group["kind"].clone(), group["gpus"].clone())
        };
        let (cpu, gpu, two) = ("KIND_CPU", "KIND_GPU", "gpus: [ 2 ]");
        assert_eq!(told("", false), (cpu.into(), json!([])));
        assert_eq!(told("", true), (gpu.into(), json!([])));
        assert_eq!(told(two, false), (cpu.into(), json!([])), "which takes none");
        assert_eq!(told(two, true), (gpu.into(), json!([2])));
        // A fixed placement is stated unchanged.
        assert_eq!(told(&format!("kind: KIND_GPU {two}"), false), (gpu.into(), json!([2])));
        assert_eq!(told("kind: KIND_CPU", true), (cpu.into(), json!([])));
    }

    #[test]
    fn each_output_has_the_labels_that_are_said_for_it() {
        let text = "max_batch_size: 4
            output { name: \"y\" data_type: TYPE_FP32 dims: 3 label_filename: \"words.txt\" }
            output { name: \"z\" data_type: TYPE_FP32 dims: 3 label_filename: \"colors.txt\" }
            output { name: \"plain\" data_type: TYPE_FP32 dims: 3 }";
        let outputs: [(&str, &[i64]); 3] = [("y", &[-1, 3]), ("z", &[-1, 3]), ("plain", &[-1, 3])];
        let mut source = source("m", "1", "");
        source.manifest = triton::read(text, "m").unwrap().manifest;
        let labels = |text: &str| Arc::new(Labels::parse(text).unwrap());
        source.labels = labels("a\nb\nc");
        source.output_labels =
            [("y".to_owned(), labels("a\nb\nc")), ("z".to_owned(), labels("red\ngreen\nblue"))].into();
        let signature = testing::signature(&outputs);
        let model =
            Model::resolve(ModelKey(1), &source, signature, Duration::from_secs(1), &Memory::Plain).unwrap();
        let first = |output| model.labels_of(output, Some(3)).and_then(|labels| labels.get(0));
        assert_eq!([first("y").as_deref(), first("z").as_deref()], [Some("a"), Some("red")]);
        assert_eq!(first("plain"), None);
        let config = of(&model, &model.interface.signature.inputs, &model.interface.signature.outputs);
        let file = |index: usize| config["output"][index]["label_filename"].clone();
        assert_eq!([file(0), file(1), file(2)], ["words.txt", "colors.txt", ""]);
    }

    #[test]
    fn labels_of_another_number_than_classes_are_those_of_the_output_that_names_them() {
        let file = |labels| config_of(TEXT, labels)["output"][0]["label_filename"].clone();
        assert_eq!((file("a\nb\nc\n"), file("a\nb\n")), ("words.txt".into(), "words.txt".into()));
    }

    #[test]
    fn a_models_labels_are_those_of_the_outputs_with_as_many_classes() {
        let mut source = source("m", "1", "labels = \"words.txt\"");
        source.labels = Arc::new(Labels::parse("a\nb\nc").unwrap());
        let signature = testing::signature(&[("y", &[-1, 3]), ("z", &[-1, 4]), ("free", &[-1, -1])]);
        let model =
            Model::resolve(ModelKey(1), &source, signature, Duration::from_secs(1), &Memory::Plain).unwrap();
        let config = of(&model, &model.interface.signature.inputs, &model.interface.signature.outputs);
        let file = |index: usize| config["output"][index]["label_filename"].clone();
        assert_eq!([file(0), file(1), file(2)], ["words.txt", "", ""]);
        let first = |classes| model.labels_of("free", Some(classes)).and_then(|labels| labels.get(0));
        assert_eq!((first(3).as_deref(), first(4)), (Some("a"), None));
    }
}
