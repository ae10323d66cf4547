//! Every field of a `config.pbtxt`, and every mistake.

use super::{verdict::Verdict, *};
use crate::{
    batch::{OnTimeout, QueuePolicies, QueuePolicy},
    engine::{
        DataType, Dim,
        onnx::gpu::{ConvSearch, CudaGraph},
    },
    image::Layout,
    models::{
        Declared, Fill, Warmup, WarmupInput,
        manifest::{Versions, Waiting},
    },
};
use proptest::prelude::*;
use prost_reflect::{Kind, MessageDescriptor};
use std::time::Duration;

/// Reads a text for the folder `m`.
fn check(text: &str) -> Described {
    read(text, "m").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Checks that a text is refused, and that the reason contains every expected part.
fn refused(text: &str, expected: &[&str]) {
    let error = read(text, "m").expect_err(text);
    for expected in expected {
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
}

/// A complete, realistic file.
const WHOLE: &str = r#"
# A comment.
name: "m"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, -1 ] },
  { name: "text" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } }
]
output { name: "logits", data_type: TYPE_FP16, dims: [ 10 ], label_filename: "labels.txt" }
version_policy: { specific { versions: [ 1, 3 ] } }
dynamic_batching {
  preferred_batch_size: [ 3, 6 ]
  max_queue_delay_microseconds: 500
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 250000 allow_timeout_override: true }
}
instance_group [ { name: "a" count: 2 kind: KIND_GPU gpus: [ 1, 0 ] } ]
default_model_filename: "net.onnx"
model_warmup [ {
  name: "first" batch_size: 4 count: 3
  inputs { key: "image" value { data_type: TYPE_FP32 dims: [ 3, 224, 100 ] random_data: true } }
  inputs { key: "text" value: { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text.bin" } }
} ]
"#;

#[test]
fn every_field_that_is_read_reaches_the_manifest() {
    let Described { manifest, notes } = check(WHOLE);
    assert_eq!(notes, [""; 0]);
    assert_eq!(manifest.file.as_deref(), Some("net.onnx"));
    assert_eq!(manifest.versions, Versions::Specific(["1".to_owned(), "3".to_owned()].into()));
    assert_eq!(manifest.labels.as_deref(), Some("labels.txt"));
    assert_eq!(manifest.priority, 1);
    assert_eq!(manifest.timeout, None);
    let wait_max = Some(Duration::from_millis(250));
    let default = QueuePolicy { wait_max, may_shorten: true, ..QueuePolicy::default() };
    let policies = QueuePolicies { default, ..QueuePolicies::default() };
    assert_eq!(manifest.queue, Waiting { priorities: 3, policies });
    assert_eq!(manifest.batch.items_max, Some(8));
    assert_eq!(manifest.batch.sizes.as_deref(), Some(&[1, 2, 3, 4, 6, 8][..]));
    assert_eq!(manifest.batch.wait_max, Duration::from_micros(500));
    assert_eq!(
        (manifest.placement.instances, &manifest.placement.devices[..]),
        (2, &["gpu:0".into(), "gpu:1".into()][..])
    );
    let declared = manifest.declared.unwrap();
    assert_eq!(declared.items_max, Some(8));
    let [image, text] = &declared.inputs[..] else { panic!("{declared:?}") };
    assert_eq!(
        (image.datatype, &image.dims[..]),
        (DataType::Fp32, &[Dim::Fixed(3), Dim::Fixed(224), Dim::Free][..])
    );
    assert_eq!((&image.reshape, image.format, text.format), (&None, Some(Layout::Nchw), None));
    assert_eq!(
        (text.datatype, &text.dims[..], &text.reshape),
        (DataType::Bytes, &[Dim::Fixed(1)][..], &Some(vec![]))
    );
    assert_eq!((&*declared.outputs[0].name, declared.outputs[0].datatype), ("logits", DataType::Fp16));
    let input = |name: &str, datatype, dims: &[usize], fill| WarmupInput {
        name: name.into(),
        datatype,
        dims: dims.into(),
        fill,
    };
    let first = Warmup {
        name: "first".into(),
        items: Some(4),
        runs: 3,
        inputs: vec![
            input("image", DataType::Fp32, &[3, 224, 100], Fill::Chance),
            input("text", DataType::Bytes, &[1], Fill::File("text.bin".into())),
        ],
    };
    assert_eq!(manifest.warmups, [first]);
}

#[test]
fn the_format_is_read_as_loosely_as_it_is_written() {
    let text = "name:'m' # a comment [ {\n\tmax_batch_size : 4;\ninput: [\n\t{\n#format: FORMAT_NCHW\nname: \"in\" \"put.1\"\n\
                data_type : TYPE_UINT8 dims [-1,3 , 0x10]\n}]\noutput < name:\"y\" data_type:TYPE_BF16 dims: 2 dims: 5 >\n\
                version_policy: {specific {versions: 1}}\n";
    let Described { manifest, .. } = check(text);
    let declared = manifest.declared.as_ref().unwrap();
    assert_eq!((declared.items_max, &*declared.inputs[0].name), (Some(4), "input.1"));
    assert_eq!(declared.inputs[0].dims, [Dim::Free, Dim::Fixed(3), Dim::Fixed(16)]);
    assert_eq!(declared.outputs[0].dims, [Dim::Fixed(2), Dim::Fixed(5)]);
    assert_eq!(manifest.versions, Versions::Specific(["1".to_owned()].into()));
}

#[test]
fn an_empty_file_serves_the_highest_version_as_it_is() {
    let Described { manifest, notes } = check("");
    let mut highest = Manifest { versions: Versions::Latest(1), by_name: true, ..Manifest::default() };
    // A largest batch set by a load applies to requests, as in a file that sets one without dynamic_batching.
    highest.batch.merges = false;
    assert_eq!((manifest, notes), (highest, vec![]));
}

#[test]
fn a_batch_size_of_0_is_a_model_without_a_batch_axis() {
    let declared =
        check("input { name: \"x\" data_type: TYPE_INT8 dims: [ -1, 2 ] }").manifest.declared.unwrap();
    assert_eq!((declared.items_max, &declared.inputs[0].dims[..]), (None, &[Dim::Free, Dim::Fixed(2)][..]));
    // Also without any other setting, which leaves the axis to the file.
    let of_json = |json: &str| read_json(json, "m").unwrap().manifest.declared;
    assert_eq!(check("max_batch_size: 0").manifest.declared, Some(Declared::default()));
    assert_eq!(of_json(r#"{"max_batch_size": 0}"#), Some(Declared::default()));
    assert_eq!((check("").manifest.declared, of_json("{}")), (None, None));
    let text = "model_warmup { batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_INT8 dims: [ 1, 2 ] zero_data: true } } }
                model_warmup { name: \"off\" batch_size: 0 }";
    let [warmup] = &check(text).manifest.warmups[..] else { panic!() };
    assert_eq!((warmup.items, warmup.runs, &warmup.inputs[0].fill), (None, 1, &Fill::Zeros));
}

#[test]
fn versions_follow_their_policy() {
    let versions = |text: &str| check(&format!("version_policy {{ {text} }}")).manifest.versions;
    assert_eq!(versions("latest { num_versions: 2 }"), Versions::Latest(2));
    assert_eq!(versions("all { }"), Versions::All);
    refused("version_policy { latest { } }", &["num_versions is 0, allowed: 1 or more"]);
    refused("version_policy { specific { } }", &["names no versions"]);
    refused("version_policy { all { } latest { num_versions: 1 } }", &["line 1", "policy_choice"]);
}

#[test]
fn instances_of_all_groups_are_on_the_devices_of_all() {
    let placement = |text: &str| {
        let Described { manifest, notes, .. } = check(text);
        (manifest.placement.devices.join(","), manifest.placement.instances, notes.join("; "))
    };
    let none = String::new;
    assert_eq!(placement("instance_group { kind: KIND_CPU }"), ("cpu".into(), 1, none()));
    assert_eq!(placement("instance_group { count: 2 kind: KIND_GPU }"), ("gpu".into(), 2, none()));
    assert_eq!(placement("instance_group { gpus: 1 }"), ("cpu,gpu:1".into(), 1, none()));
    assert_eq!(placement("instance_group { kind: KIND_CPU } instance_group { }"), (none(), 1, none()));
    let (devices, instances, notes) =
        placement("instance_group { kind: KIND_CPU count: 3 } instance_group { kind: KIND_GPU }");
    assert_eq!((&*devices, instances), ("cpu,gpu", 3));
    assert!(notes.starts_with("instance_group[1].count: every device gets"), "{notes}");
    let (.., notes) = placement("instance_group { kind: KIND_MODEL }");
    assert!(notes.contains("instance_group[0].kind: "), "{notes}");
    refused("instance_group { kind: KIND_CPU gpus: 0 }", &["instance_group[0] has gpus"]);
    refused("instance_group { count: -1 gpus: -2 }", &["count is -1, allowed: 1 to 64", "gpus holds -2"]);
}

#[test]
fn priorities_begin_with_1_there_and_with_0_here() {
    let priority = |text: &str| {
        let Described { manifest, notes, .. } = check(&format!("dynamic_batching {{ {text} }}"));
        (manifest.priority, notes.len())
    };
    assert_eq!(priority(""), (Manifest::default().priority, 0));
    assert_eq!(priority("priority_levels: 2 default_priority_level: 1"), (0, 0));
    assert_eq!(priority("priority_levels: 50 default_priority_level: 30"), (29, 0));
    refused(
        "dynamic_batching { priority_levels: 2 }",
        &["default_priority_level is 0, allowed: 1 to priority_levels, which is 2"],
    );
    refused("dynamic_batching { default_priority_level: 2 }", &["which is 0"]);
    refused(
        "dynamic_batching { priority_levels: 256 default_priority_level: 1 }",
        &["priority_levels is 256, allowed: 0 to 255"],
    );
}

#[test]
fn queues_have_their_policies() {
    let text = "dynamic_batching { priority_levels: 20 default_priority_level: 1
        default_queue_policy { max_queue_size: 5 }
        priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 7 } }
        priority_queue_policy { key: 20 value { allow_timeout_override: true } } }";
    let Described { manifest, notes } = check(text);
    let none = QueuePolicy { may_shorten: false, ..QueuePolicy::default() };
    let delay = QueuePolicy { wait_max: Some(Duration::from_micros(7)), then: OnTimeout::Delay, ..none };
    let policies = QueuePolicies {
        default: QueuePolicy { jobs_max: Some(5), ..none },
        of_priority: [(0, delay), (19, QueuePolicy::default())].into(),
    };
    assert_eq!((manifest.queue, notes), (Waiting { priorities: 20, policies }, vec![]));
    refused(
        "dynamic_batching { priority_levels: 2 default_priority_level: 2
         priority_queue_policy { key: 0 value { } } priority_queue_policy { key: 3 value { } } }",
        &[
            "priority_queue_policy[0] is for no level; priority_levels is 2",
            "priority_queue_policy[3] is for no level",
        ],
    );
}

#[test]
fn json_says_the_same_as_text() {
    let json = r#"{"name": "m", "max_batch_size": "8", "dynamicBatching": {"preferred_batch_size": [3]},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}], "optimization": {"eager_batching": true}}"#;
    let text = "name: \"m\" max_batch_size: 8 dynamic_batching { preferred_batch_size: 3 }
        input { name: \"x\" data_type: TYPE_FP32 dims: 4 } optimization { eager_batching: true }";
    assert_eq!(read_json(json, "m"), read(text, "m"));
    for (json, told) in [
        (r#"{"max_batchsize": 1}"#, "max_batchsize"),
        (r#"{} {}"#, "trailing"),
        (r#"{"backend": "python"}"#, "only \"onnxruntime\" is served"),
    ] {
        let error = read_json(json, "m").unwrap_err();
        assert!(error.contains(told), "{error} lacks {told}");
    }
}

#[test]
fn members_in_json_have_either_of_their_two_names_and_keys_of_maps_their_own() {
    let written = |name: &dyn Fn(&'static str) -> &'static str| {
        let spec = serde_json::json!({
            "name": "m",
            name("max_batch_size maxBatchSize"): 4,
            name("dynamic_batching dynamicBatching"): {
                name("preferred_batch_size preferredBatchSize"): [3],
                name("priority_levels priorityLevels"): 2,
                name("default_priority_level defaultPriorityLevel"): 1,
                name("priority_queue_policy priorityQueuePolicy"): { "2": { name("max_queue_size maxQueueSize"): 9 } },
            },
            "input": [{ "name": "x", name("data_type dataType"): "TYPE_FP32", "dims": [4] }],
            "parameters": { "intra_op_thread_count": { name("string_value stringValue"): "1" }, "maxBatchSize": {} },
            name("metric_tags metricTags"): { "data_type": "a", "dataType": "b" },
            name("model_warmup modelWarmup"): [{ "name": "w", "count": 1, name("batch_size batchSize"): 2, "inputs": {
                "zero_data": { name("data_type dataType"): "TYPE_FP32", "dims": [4], name("zero_data zeroData"): true } } }],
        });
        read_json(&spec.to_string(), "m")
    };
    let manifest = written(&|names| names.split_once(' ').unwrap().0).unwrap().manifest;
    assert_eq!(written(&|names| names.split_once(' ').unwrap().1).unwrap().manifest, manifest);
    assert_eq!(manifest.kept.metric_tags.len(), 2);
    assert!(manifest.kept.parameters.contains_key("maxBatchSize"));
    assert_eq!(manifest.warmups[0].inputs[0].name, "zero_data");
    for (json, twice) in [
        (
            r#"{"maxBatchSize": 1, "max_batch_size": 1}"#,
            "max_batch_size is there twice, also as maxBatchSize",
        ),
        (r#"{"input": [{"dataType": "TYPE_FP32", "data_type": "TYPE_FP32"}]}"#, "data_type is there twice"),
        (
            r#"{"modelWarmup": [{"inputs": {"x": {"zeroData": true, "zero_data": true}}}]}"#,
            "zero_data is there twice",
        ),
    ] {
        let error = read_json(json, "m").unwrap_err();
        assert!(error.contains(twice), "{error} lacks {twice}");
    }
}

#[test]
fn what_has_no_effect_is_told_by_name() {
    for (text, names) in [
        ("runtime: \"r\"", "runtime"),
        ("cc_model_filenames { key: \"7.5\" value: \"m.plan\" }", "cc_model_filenames[\"7.5\"]"),
        ("metric_tags { key: \"a\" value: \"b\" }", "metric_tags[\"a\"]"),
        (
            "parameters { key: \"intra_op_thread_count\" value { string_value: \"4\" } }",
            "parameters[\"intra_op_thread_count\"]",
        ),
        ("response_cache { enable: true }", "response_cache.enable"),
        ("model_metrics { metric_control { metric_identifier { family: \"f\" } } }", "model_metrics"),
        ("input { name: \"x\" data_type: TYPE_BOOL dims: 1 optional: true }", "input[\"x\"].optional"),
        ("optimization { graph { level: 1 } }", "optimization.graph"),
        ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
        ("optimization { cuda { busy_wait_events: true } }", "optimization.cuda.busy_wait_events"),
        ("optimization { cuda { graph_spec { batch_size: 1 } } }", "optimization.cuda.graph_spec[0]"),
        ("optimization { cuda { output_copy_stream: true } }", "optimization.cuda.output_copy_stream"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: \"tensorrt\" } } }",
            "optimization.execution_accelerators.gpu_execution_accelerator[\"tensorrt\"]",
        ),
        ("max_batch_size: 4096", "max_batch_size"),
        ("optimization { input_pinned_memory { enable: true } }", "optimization.input_pinned_memory"),
        ("optimization { output_pinned_memory { enable: true } }", "optimization.output_pinned_memory"),
        ("optimization { gather_kernel_buffer_threshold: 1 }", "optimization.gather_kernel_buffer_threshold"),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        (
            "dynamic_batching { max_queue_delay_microseconds: 100 }",
            "dynamic_batching.max_queue_delay_microseconds",
        ),
        ("instance_group { rate_limiter { priority: 2 } }", "instance_group[0].rate_limiter"),
        ("instance_group { secondary_devices { } }", "instance_group[0].secondary_devices[0]"),
        ("instance_group { profile: \"1\" }", "instance_group[0].profile"),
        ("instance_group { name: \"g\" passive: true }", "instance_group[\"g\"].passive"),
        ("instance_group { host_policy: \"h\" }", "instance_group[0].host_policy"),
    ] {
        let notes = check(text).notes;
        assert!(notes.len() == 1 && notes[0].starts_with(&format!("{names}: ")), "{names}: {notes:?}");
    }
}

#[test]
fn graphs_are_recorded_where_it_says_so_and_that_is_known_to_work() {
    let asked = |text: &str| check(text).manifest.gpu.cuda_graph;
    assert_eq!(asked("optimization { cuda { graphs: true } }"), CudaGraph::Auto);
    assert_eq!(asked("optimization { cuda { graphs: false } }"), CudaGraph::Never);
    assert_eq!(asked("optimization { }"), CudaGraph::Auto);
}

#[test]
fn what_would_change_the_answers_is_refused_by_name() {
    for (text, names) in [
        ("sequence_batching { oldest { max_candidate_sequences: 4 } }", "sequence_batching: "),
        ("ensemble_scheduling { step { model_name: \"a\" } }", "ensemble_scheduling: "),
        ("batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"x\" }", "batch_input[0]: "),
        ("batch_output { target_name: \"x\" }", "batch_output[0]: "),
        ("model_operations { op_library_filename: \"x.so\" }", "model_operations: "),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled: "),
        ("model_repository_agents { agents { name: \"checksum\" } }", "model_repository_agents: "),
        ("input { name: \"x\" allow_ragged_batch: true }", "input[\"x\"].allow_ragged_batch: "),
        ("input { is_shape_tensor: true }", "input[0].is_shape_tensor: "),
        ("output { is_non_linear_format_io: true }", "output[0].is_non_linear_format_io: "),
        (
            "platform: \"tensorrt_plan\"",
            "platform is \"tensorrt_plan\", and only \"onnxruntime_onnx\" is served",
        ),
        ("backend: \"python\"", "backend is \"python\", and only \"onnxruntime\" is served"),
    ] {
        refused(text, &[names]);
    }
    // A flag set to its default asks for nothing.
    assert_eq!(
        check("model_transaction_policy { decoupled: false } response_cache { enable: false }").notes,
        [""; 0]
    );
}

#[test]
fn values_outside_their_range_are_told_together() {
    refused(
        "name: \"other\"
         max_batch_size: 4
         input { dims: [ 0, -2 ] format: FORMAT_NHWC }
         output { name: \"y\" data_type: TYPE_FP32 }
         dynamic_batching { preferred_batch_size: 5 }
         default_model_filename: \"../x\"
         model_warmup { name: \"w\" batch_size: 5 count: 10001 inputs { key: \"x\" value { dims: -1 input_data_file: \"a/../b\" } } }",
        &[
            "name is \"other\", but the folder is called \"m\"",
            "input[\"\"] has no name",
            "input[\"\"].format is FORMAT_NHWC, which needs 3 dims",
            "input[\"\"].dims holds 0, allowed: 1 or more, or -1 for any",
            "input[\"\"].dims holds -2",
            "input[\"\"].data_type is missing",
            "output[\"y\"] has no dims",
            "preferred_batch_size holds 5, allowed: 1 to max_batch_size, which is 4",
            "default_model_filename is \"../x\", allowed: the name of a file",
            "model_warmup[\"w\"].batch_size is 5, more than max_batch_size, which is 4",
            "model_warmup[\"w\"].count is 10001, allowed: 0 to 10000",
            "model_warmup[\"w\"].inputs[\"x\"].dims holds -1",
            "model_warmup[\"w\"].inputs[\"x\"].input_data_file is \"a/../b\"",
        ],
    );
    refused("max_batch_size: -1", &["max_batch_size is -1, allowed: 0 or more"]);
    refused(
        "max_batch_size: 1025 dynamic_batching { preferred_batch_size: 1026 } model_warmup { name: \"w\" batch_size: 1027 }",
        &["preferred_batch_size holds 1026, allowed: 1 to", "batch_size is 1027, more than max_batch_size"],
    );
    refused(
        "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 3 ] } }",
        &["input[\"x\"].reshape has not as many elements"],
    );
}

#[test]
fn a_batch_that_is_larger_than_any_here_is_the_largest_there_is() {
    let Described { manifest, notes } = check(
        "max_batch_size: 4096 dynamic_batching { preferred_batch_size: [ 3, 4096 ] }
         model_warmup { name: \"w\" batch_size: 2000 }",
    );
    assert_eq!(notes, ["max_batch_size: it is 4096, and batches have up to 1024 items"]);
    assert_eq!((manifest.batch.items_max, manifest.declared.unwrap().items_max), (Some(1024), Some(1024)));
    assert_eq!(manifest.batch.sizes.unwrap(), [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
    assert_eq!(manifest.warmups[0].items, Some(1024));
}

#[test]
fn a_wait_that_is_longer_than_any_here_is_the_longest_there_is() {
    let Described { manifest, notes } = check(
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 11000000
         default_queue_policy { default_timeout_microseconds: 3600000001 } }",
    );
    let longest = [
        "dynamic_batching.max_queue_delay_microseconds: it is 11000000, and the longest wait is 10000000",
        "dynamic_batching.default_queue_policy.default_timeout_microseconds: it is 3600000001, and the longest wait is 3600000000",
    ];
    assert_eq!(notes, longest);
    let hour = Duration::from_secs(3600);
    assert_eq!(
        (manifest.batch.wait_max, manifest.queue.policies.default.wait_max),
        (Duration::from_secs(10), Some(hour))
    );
}

#[test]
fn a_wait_that_waits_for_nothing_is_told_once() {
    let Described { manifest, notes } =
        check("max_batch_size: 0 dynamic_batching { max_queue_delay_microseconds: 100 }");
    // A remaining wait would be reported again when the model is resolved.
    assert_eq!((notes.len(), manifest.batch.wait_max), (1, Duration::ZERO), "{notes:?}");
}

#[test]
fn how_algorithms_of_convolutions_are_found_is_said_in_a_parameter() {
    let search = |value: &str| {
        let entry = format!("{{ key: \"cudnn_conv_algo_search\" value {{ string_value: \"{value}\" }} }}");
        let Described { manifest, notes } = check(&format!("parameters {entry}"));
        (manifest.gpu.conv_search, notes.join("\n"))
    };
    assert_eq!(search("0"), (ConvSearch::Exhaustive, String::new()));
    assert_eq!(search("1"), (ConvSearch::Heuristic, String::new()));
    let (now, told) = search("2");
    assert_eq!(now, ConvSearch::Heuristic);
    assert!(
        told.starts_with("parameters[\"cudnn_conv_algo_search\"]: it is \"2\"; heard are \"0\""),
        "{told}"
    );
}

#[test]
fn what_is_said_to_providers_is_told_with_its_values() {
    let told = |side: &str, of: &str| {
        let text = format!(
            "optimization {{ execution_accelerators {{ {side}_execution_accelerator {{ {of} }} }} }}"
        );
        check(&text).notes.join("\n")
    };
    let check = |side: &str, of: &str, expected: &[&str]| {
        let told = told(side, of);
        for expected in expected {
            assert!(told.contains(expected), "{told} lacks {expected}");
        }
    };
    let parameters =
        "parameters { key: \"precision_mode\" value: \"FP16\" } parameters { key: \"a\" value: \"1\" }";
    let unheard = "; not heard: a \"1\", precision_mode \"FP16\"";
    check(
        "gpu",
        &format!("name: \"tensorrt\" {parameters}"),
        &[
            "[\"tensorrt\"]: on GPUs ONNX Runtime's CUDA provider runs the model",
            "in [gpu]; not heard",
            unheard,
        ],
    );
    check(
        "gpu",
        &format!("name: \"cuda\" {parameters}"),
        &["[\"cuda\"]: it runs the model on GPUs", unheard],
    );
    check("gpu", "name: \"gpu_io\"", &["[\"gpu_io\"]: there is no such provider"]);
    check("gpu", "", &["gpu_execution_accelerator[0]: there is no such provider"]);
    check(
        "cpu",
        "name: \"openvino\"",
        &["cpu_execution_accelerator[\"openvino\"]: there is no such provider"],
    );
    assert_eq!(told("gpu", "name: \"cuda\""), "");
}

#[test]
fn mistakes_of_fields_and_of_their_values_are_told_together() {
    refused(
        "max_batch_size: -1 model_transaction_policy { decoupled: true }",
        &["model_transaction_policy.decoupled: ", "; max_batch_size is -1"],
    );
}

#[test]
fn a_model_of_another_backend_is_told_that_alone() {
    let told = |text: &str| read(text, "m").expect_err(text);
    let beside = "max_batch_size: -1 model_transaction_policy { decoupled: true }
        sequence_batching { } input { name: \"x\" }";
    assert_eq!(
        told(&format!("backend: \"vllm\" {beside}")),
        "backend is \"vllm\", and only \"onnxruntime\" is served"
    );
    let engine =
        ", and only \"onnxruntime_onnx\" is served: serve the ONNX file that the engine was made from";
    assert_eq!(
        told(&format!("platform: \"tensorrt_plan\" {beside}")),
        format!("platform is \"tensorrt_plan\"{engine}")
    );
    for (text, to_do) in [
        ("backend: \"pytorch\"", "docs/pytorch.md"),
        ("platform: \"pytorch_libtorch\"", "docs/pytorch.md"),
        ("backend: \"tensorrt\"", "the ONNX file that the engine was made from"),
        ("platform: \"tensorflow_savedmodel\"", "tf2onnx"),
        ("platform: \"ensemble\"", "ensembles are not supported: serve the models of their steps alone"),
    ] {
        assert!(told(text).contains(to_do), "{}", told(text));
    }
    let ensemble = "platform: \"ensemble\" ensemble_scheduling { step { model_name: \"a\" } }
        input { name: \"x\" } parameters { key: \"a\" value { string_value: \"b\" } } name: \"other\"";
    let alone = told(ensemble);
    assert!(
        alone.starts_with("ensemble_scheduling: ensembles are not supported: serve the models of"),
        "{alone}"
    );
    assert!(alone.ends_with("takes them as BYTES"), "{alone}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text() {
    assert_eq!(check("\u{feff}name: \"m\""), check("name: \"m\""));
    refused("\u{feff}name: \"m\"\nmax_batchsize: 4\n", &["line 2", "max_batchsize"]);
}

#[test]
fn mistakes_of_the_text_have_their_line() {
    refused("name: \"m\"\nmax_batchsize: 4\n", &["line 2", "max_batchsize", "ModelConfig"]);
    refused("input {\n  name: \"x\"\n  data_type: TYPE_FLOAT\n}", &["line 3", "TYPE_FLOAT"]);
    for (text, nearest) in [
        ("max_batchsize: 4", "; nearest: max_batch_size"),
        ("\ninput { nmae: \"x\" }", "; nearest: name"),
        ("input { data_type: TYPE_FP23 }", "; nearest: TYPE_FP32"),
        ("instance_group { kind: KIND_CUP }", "; nearest: KIND_CPU"),
    ] {
        let told = read(text, "m").expect_err(text);
        assert!(told.ends_with(nearest), "{told}");
    }
    for text in ["something_else: 4", "input { data_type: TYPE_FLOAT }"] {
        let told = read(text, "m").expect_err(text);
        assert!(!told.contains("nearest"), "{told}");
    }
    refused("max_batch_size: \"4\"", &["line 1", "expected"]);
    refused("max_batch_size: 99999999999", &["line 1", "out of range"]);
    refused("\n\ninput {", &["line 3", "end of input"]);
    refused("name: \"a\"\nname: \"b\"", &["line 2", "already set"]);
    refused("<html>", &["line 1"]);
}

#[test]
fn every_field_of_the_definition_has_a_verdict() {
    fn walk(message: &MessageDescriptor, path: &str, seen: &mut usize) {
        for field in message.fields() {
            let path =
                if path.is_empty() { field.name().to_owned() } else { format!("{path}.{}", field.name()) };
            let verdict = verdict::of(&path).unwrap_or_else(|| panic!("{path} has no verdict"));
            *seen += 1;
            let inner = match field.kind() {
                Kind::Message(entry) if entry.is_map_entry() => entry.map_entry_value_field().kind(),
                kind => kind,
            };
            if let (Kind::Message(inner), Verdict::Read) = (inner, verdict) {
                walk(&inner, &path, seen);
            }
        }
    }
    let mut seen = 0;
    walk(&text::definition(), "", &mut seen);
    assert_eq!(seen, verdict::paths().count(), "a verdict on what does not exist");
}

/// Pieces of such files, so that random input gets past the first bracket.
const PIECES: [&str; 30] = [
    "name: \"m\"",
    "max_batch_size:",
    "8",
    "-1",
    "input",
    "output",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "dims",
    "data_type: TYPE_FP32",
    "reshape { shape:",
    "dynamic_batching {",
    "preferred_batch_size",
    "instance_group",
    "gpus",
    "kind: KIND_GPU",
    "model_warmup {",
    "inputs { key: \"x\" value {",
    "batch_size: 3",
    "version_policy { specific { versions:",
    "1e400",
    "\"",
    "'",
    "\\",
    "# x\n",
    "18446744073709551616",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text_is_read_or_refused(picks in prop::collection::vec(0..PIECES.len(), 0..40), noise in ".{0,40}") {
        let text: Vec<&str> = picks.into_iter().map(|pick| PIECES[pick]).collect();
        let _ = read(&text.join(" "), "m");
        let _ = read(&noise, "m");
        let _ = read(&format!("{} {noise}", text.join(" ")), "m");
    }
}

#[test]
fn a_path_leads_down_by_plain_names() {
    for path in ["raw", "sub/raw", "a/b/c.txt", "..2026/x", "a b"] {
        assert_eq!(map::file_path(path), Ok(()), "{path:?}");
    }
    for path in ["", "/", "/raw", "sub/", "sub//raw", "../raw", "sub/../raw", "./raw", "a\\b", "c:/x", "a\0"]
    {
        assert!(map::file_path(path).is_err_and(|why| why.contains("without ..")), "{path:?}");
    }
}
