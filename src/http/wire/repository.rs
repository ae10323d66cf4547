//! The bodies of repository control. They are optional, and parsed strictly, because a client would believe that an ignored member had an
//! effect.

use super::{bad_json, base64_text, clipped, members::Str, object, optional_object};
use crate::{
    error::{InferError, bad},
    models::{Change, Given, triton},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// The prefix of a file's parameter name.
const FILE: &str = "file:";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Index {
    ready: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Control<P> {
    parameters: Option<P>,
}

/// An entry of the index: one version of a model, or a model that is not loaded.
#[derive(Debug, Serialize)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its version; empty for a model that is not loaded.
    pub version: String,
    /// The state, by its name in the protocol.
    pub state: &'static str,
    /// Why it is not ready; or a remark about a model that is.
    pub reason: Cow<'static, str>,
}

/// Whether the index should list only what accepts requests.
///
/// # Errors
/// 400 for an invalid body.
pub fn only_ready(body: &[u8]) -> Result<bool, InferError> {
    let index: Index = optional_object(body)?;
    Ok(index.ready.unwrap_or(false))
}

/// Checks the body of an unload. No model depends on another here, so `unload_dependents` has no effect.
///
/// # Errors
/// 400 for unknown parameters.
pub fn unload(body: &[u8]) -> Result<(), InferError> {
    let control: Control<BTreeMap<Cow<'_, str>, &RawValue>> = optional_object(body)?;
    let parameters = control.parameters.unwrap_or_default();
    let known =
        |name: &str, value: &RawValue| name == "unload_dependents" && matches!(value.get(), "true" | "false");
    match parameters.iter().find(|(name, value)| !known(name, value)) {
        None => Ok(()),
        Some((name, value)) => Err(bad(format!(
            "parameter {:?} is {}; the only one is unload_dependents, true or false",
            clipped(name),
            clipped(value.get())
        ))),
    }
}

/// The content of a load request, over HTTP or gRPC.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    config: Option<String>,
    files: Vec<(String, Bytes)>,
}

impl Load {
    /// Reads the body of a load over HTTP: files are in base64.
    ///
    /// # Errors
    /// 400 for unknown parameters, and for files that are not base64.
    pub fn of_body(body: &[u8]) -> Result<Load, InferError> {
        let control: Control<BTreeMap<Cow<'_, str>, &RawValue>> = optional_object(body)?;
        let mut load = Load::default();
        for (name, value) in control.parameters.unwrap_or_default() {
            let text = serde_json::from_str::<Str<'_>>(value.get()).ok();
            match (name.strip_prefix(FILE), text) {
                (Some(_), None) => return Err(not_a_file(&name)),
                (Some(_), Some(Str(text))) => {
                    let bytes = base64_text::decode(&text).map_err(|_| not_a_file(&name))?;
                    load.file(&name, bytes.into())?;
                }
                (None, text) => load.config(&name, text.map(|Str(text)| text.into_owned()))?,
            }
        }
        Ok(load)
    }

    /// Takes a parameter that holds bytes.
    ///
    /// # Errors
    /// 400 if it is not a file.
    pub fn file(&mut self, name: &str, bytes: Bytes) -> Result<(), InferError> {
        let path = name.strip_prefix(FILE).ok_or_else(|| unknown(name))?;
        self.files.push((path.to_owned(), bytes));
        Ok(())
    }

    /// Takes a parameter that holds text; `None` for any other type.
    ///
    /// # Errors
    /// 400 if it is not the configuration.
    pub fn config(&mut self, name: &str, text: Option<String>) -> Result<(), InferError> {
        match (name, text) {
            ("config", Some(text)) => self.config = Some(text),
            ("config", None) => {
                return Err(bad("the parameter config must be a string that holds JSON"));
            }
            (file, _) if file.starts_with(FILE) => return Err(not_a_file(file)),
            (other, _) => return Err(unknown(other)),
        }
        Ok(())
    }

    /// The same load with each file's bytes replaced by `keep`.
    #[must_use]
    pub fn kept(mut self, keep: impl Fn(Bytes) -> Bytes) -> Load {
        for (_, bytes) in &mut self.files {
            *bytes = keep(std::mem::take(bytes));
        }
        self
    }

    /// The change that this load asks for in the model `name`. With files, the configuration is the whole configuration of the model in
    /// those files. Without files, it states changes; `current` is the configuration of the model that serves, and members that repeat it
    /// are accepted. If no model serves, such members are checked once the model is loaded.
    ///
    /// # Errors
    /// 400 naming what cannot be changed or is out of its range; also for files without a configuration, and for invalid file names.
    pub fn change(self, name: &str, current: Option<&Value>) -> Result<Change, InferError> {
        let Load { config, files } = self;
        match config {
            None if files.is_empty() => Ok(Change::Folder),
            None => Err(bad(
                "file: parameters need the parameter config: the whole configuration of the model that \
                             they are",
            )),
            Some(config) if files.is_empty() => {
                let read = triton::overrides(members(&config)?, name, current);
                read.map(|read| Change::Overrides(Box::new(read)))
                    .map_err(|why| bad(format!("config: {why}")))
            }
            Some(config) => {
                members(&config)?;
                Given::new(config, files).map(Change::Given).map_err(bad)
            }
        }
    }
}

/// The members of a configuration, by the names in its definition.
fn members(config: &str) -> Result<Map<String, Value>, InferError> {
    let members = object(config.as_bytes()).map_err(|error| bad_json("the parameter config", &error))?;
    triton::as_defined(members).map_err(|why| bad(format!("config: {why}")))
}

fn not_a_file(name: &str) -> InferError {
    bad(format!("parameter {:?} must hold a file: base64 over HTTP, bytes over gRPC", clipped(name)))
}

fn unknown(name: &str) -> InferError {
    bad(format!("parameter {:?} is not known; there are config and file:VERSION/NAME", clipped(name)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{
        batch::{ModelKey, QueuePolicies, QueuePolicy},
        engine::{DataType, staging::Memory},
        http::{
            admission::{Admission, AdmissionLimits, keeping},
            wire::model_config,
        },
        models::{
            Manifest, Model, Overrides,
            manifest::{Versions, Waiting},
            testing::source,
        },
        tasks::testing,
    };
    use serde_json::json;
    use std::{sync::Arc, time::Duration};

    fn load(body: &[u8], current: Option<&Value>) -> Result<Change, InferError> {
        Load::of_body(body)?.change("m", current)
    }

    fn config(config: &Value, current: Option<&Value>) -> Result<Overrides, InferError> {
        let body = json!({ "parameters": { "config": config.to_string() } });
        match load(body.to_string().as_bytes(), current)? {
            Change::Overrides(overrides) => Ok(*overrides),
            other => panic!("neither files nor nothing were sent: {other:?}"),
        }
    }

    #[test]
    fn what_is_set_aside_for_files_is_given_back_with_the_last_of_them() {
        let admission =
            Admission::new(AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 });
        let permit = Arc::new(admission.admit().unwrap());
        permit.cover(60).unwrap();
        let body = json!({ "parameters": { "config": "{}", "file:1/model.onnx": "AAAA", "file:a": "AAAA" } });
        let load = Load::of_body(body.to_string().as_bytes()).unwrap().kept(|bytes| keeping(bytes, &permit));
        drop(permit);
        let given = load.change("m", None).unwrap();
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (1, 60));
        drop(given);
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (0, 0));
    }

    fn refuses(config_: &Value, told: &str) {
        let error = config(config_, None).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn what_can_be_changed_is_read() {
        assert_eq!(load(b"", None), Ok(Change::Folder));
        let got = config(
            &json!({
                "name": "m", "backend": "onnxruntime", "max_batch_size": "8",
                "dynamic_batching": {
                    "preferred_batch_size": [4, 2], "max_queue_delay_microseconds": 500, "default_priority_level": 1,
                    "default_queue_policy": { "default_timeout_microseconds": "2000000" }
                },
                "instance_group": [{ "count": 2, "kind": "KIND_CPU", "gpus": [2, 0] }],
                "version_policy": { "specific": { "versions": [2, "7"] } },
                "optimization": { "priority": "PRIORITY_DEFAULT", "input_pinned_memory": { "enable": true } },
                "response_cache": { "enable": true }
            }),
            None,
        )
        .unwrap();
        let wait_max = Some(Duration::from_secs(2));
        let default = QueuePolicy { wait_max, ..QueuePolicy::default() };
        let policies = QueuePolicies { default, ..QueuePolicies::default() };
        let queue = got.queue.clone().unwrap().over(&Waiting::default(), 1);
        assert_eq!(queue, Ok((Waiting { policies, ..Waiting::default() }, 0)));
        let expected = Overrides {
            merges: true,
            items_max: Some(8),
            sizes: Some(vec![2, 4]),
            wait_max: Some(Duration::from_micros(500)),
            instances: Some(2),
            queue: got.queue.clone(),
            kind: Some("KIND_CPU".to_owned()),
            gpus: Some([0, 2].into()),
            versions: Some(Versions::Specific(["2".to_owned(), "7".to_owned()].into())),
            optimization: got.optimization.clone(),
            notes: got.notes.clone(),
            repeated: Map::new(),
        };
        assert_eq!(got, expected);
        let told = |member: &str| got.notes.iter().any(|note| note.starts_with(member));
        assert!(got.notes.len() == 2 && told("optimization") && told("response_cache"), "{:?}", got.notes);
        let accelerators = json!({ "gpu_execution_accelerator": [{ "name": "tensorrt" }] });
        let got =
            config(&json!({ "optimization": { "execution_accelerators": accelerators } }), None).unwrap();
        assert!(got.notes.len() == 1 && got.notes[0].contains("[\"tensorrt\"]: on GPUs"), "{:?}", got.notes);
        refuses(&json!({ "version_policy": { "latest": { "num_versions": 0 } } }), "num_versions is 0");
        refuses(&json!({ "version_policy": { "newest": {} } }), "newest");
        let specific =
            |versions: Vec<i64>| json!({ "version_policy": { "specific": { "versions": versions } } });
        refuses(&specific((0..1001).collect()), "names 1001 versions, more than the limit of 1000");
        refuses(&specific(vec![1, -1]), "names -1");
        refuses(&json!({ "optimization": { "colour": 1 } }), "colour");
    }

    /// What `/config` states about a model after a load.
    fn told(manifest: &Manifest, overrides: &Overrides) -> Value {
        let mut signature = testing::signature(&[("y", &[-1, 3])]);
        signature.inputs = vec![testing::spec("x", DataType::Fp32, &[-1, 4])];
        let mut source = source("m", "1", "");
        source.manifest = manifest.clone();
        overrides.apply(&mut source.manifest, false).unwrap();
        let timeout = Duration::from_secs(1);
        let model = Model::resolve(ModelKey(1), &source, signature, timeout, &Memory::Plain).unwrap();
        model_config::of(&model, &model.interface.signature.inputs, &model.interface.signature.outputs)
    }

    #[test]
    fn a_change_that_is_sent_again_and_a_config_that_is_sent_back_change_nothing() {
        let described =
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 3, 6 ] priority_levels: 3
            default_priority_level: 2 priority_queue_policy { key: 1 value { max_queue_size: 2 } } }
            instance_group { kind: KIND_GPU gpus: [ 2, 10 ] count: 2 } optimization { eager_batching: true }";
        for manifest in [Manifest::default(), triton::read(described, "m").unwrap().manifest] {
            let plain = told(&manifest, &Overrides::default());
            for change in [
                json!({ "max_batch_size": 2 }),
                json!({ "max_batch_size": 32 }),
                json!({ "instance_group": [{ "count": 3 }] }),
                json!({ "dynamic_batching": { "preferred_batch_size": [5] } }),
                json!({ "dynamic_batching": { "max_queue_delay_microseconds": 700 } }),
                json!({ "dynamic_batching": { "default_priority_level": 3 } }),
                json!({ "dynamic_batching": { "default_queue_policy": { "max_queue_size": 7 } } }),
                json!({ "optimization": { "priority": "PRIORITY_MIN", "cuda": { "graphs": true } } }),
            ] {
                let load = |current: &Value, config_: &Value| {
                    told(&manifest, &config(config_, Some(current)).unwrap())
                };
                assert_eq!(load(&plain, &plain), plain);
                let changed = load(&plain, &change);
                assert_ne!(changed, plain, "{change}");
                assert_eq!(load(&changed, &change), changed, "{change} again");
                assert_eq!(load(&changed, &changed), changed, "{change}, and /config back");
                // After an unload, there is no current configuration to repeat.
                let back = config(&changed, None).unwrap();
                let again = told(&manifest, &back);
                assert_eq!(again, changed, "{change}, and /config back after an unload");
                assert_eq!(back.check_repeated(&again), Ok(()));
            }
        }
    }

    #[test]
    fn members_have_either_of_their_two_names() {
        let camel = json!({ "maxBatchSize": 8, "instanceGroup": [{ "count": 2 }], "versionPolicy": { "all": {} },
            "dynamicBatching": { "preferredBatchSize": [4], "maxQueueDelayMicroseconds": "500",
                "defaultQueuePolicy": { "defaultTimeoutMicroseconds": "7", "maxQueueSize": 2 } },
            "optimization": { "cuda": { "graphSpec": [{ "batchSize": 2 }] } } });
        let snake = json!({ "max_batch_size": 8, "instance_group": [{ "count": 2 }], "version_policy": { "all": {} },
            "dynamic_batching": { "preferred_batch_size": [4], "max_queue_delay_microseconds": "500",
                "default_queue_policy": { "default_timeout_microseconds": "7", "max_queue_size": 2 } },
            "optimization": { "cuda": { "graph_spec": [{ "batch_size": 2 }] } } });
        let read = config(&snake, None).unwrap();
        assert_eq!((read.items_max, read.sizes.as_deref()), (Some(8), Some(&[4][..])));
        assert_eq!(config(&camel, None), Ok(read));
        let twice = json!({ "dynamic_batching": { "preferredBatchSize": [4], "preferred_batch_size": [4] } });
        refuses(&twice, "preferred_batch_size is there twice, also as preferredBatchSize");
        let current = json!({ "metric_tags": { "max_batch_size": "1" } });
        let same = json!({ "metricTags": { "max_batch_size": "1" } });
        assert_eq!(config(&same, Some(&current)), Ok(Overrides::default()));
        assert!(config(&json!({ "metricTags": { "maxBatchSize": "1" } }), Some(&current)).is_err());
    }

    #[test]
    fn what_a_load_says_of_optimization_is_told_beside_what_the_folder_says() {
        let described = "optimization { priority: PRIORITY_MAX cuda { graphs: true } }";
        let manifest = triton::read(described, "m").unwrap().manifest;
        let load = |config_: &Value| told(&manifest, &config(config_, None).unwrap())["optimization"].clone();
        let plain = load(&json!({}));
        assert_eq!((&plain["priority"], &plain["cuda"]["graphs"]), (&json!("PRIORITY_MAX"), &json!(true)));
        let pinned = load(&json!({ "optimization": { "input_pinned_memory": { "enable": true } } }));
        assert_eq!(
            (&pinned["input_pinned_memory"]["enable"], &pinned["cuda"]),
            (&json!(true), &plain["cuda"])
        );
        let off = load(&json!({ "optimization": { "cuda": { "graphs": false } } }));
        assert_eq!(off["cuda"]["graphs"], false);
    }

    #[test]
    fn every_change_is_one_of_what_the_folder_says() {
        let manifest = Manifest::default();
        let load =
            |current: &Value, config_: &Value| told(&manifest, &config(config_, Some(current)).unwrap());
        let plain = told(&manifest, &Overrides::default());
        let bounded = json!({ "dynamic_batching": { "default_queue_policy": { "max_queue_size": 7 } } });
        let levels = json!({ "dynamic_batching": { "priority_levels": 3 } });
        assert_eq!(load(&load(&plain, &bounded), &levels), load(&plain, &levels));
    }

    #[test]
    fn files_come_with_the_configuration_of_their_model() {
        let files = vec![("1/model.onnx".to_owned(), Bytes::from_static(&[0, 1, 2, 3]))];
        let given = Ok(Change::Given(Given::new("{}".into(), files).unwrap()));
        // Also with the line breaks of Python's `encodebytes`.
        for base64 in ["AAECAw==", r"AAEC\nAw==\n"] {
            let body = format!(r#"{{"parameters":{{"config":"{{}}","file:1/model.onnx":"{base64}"}}}}"#);
            assert_eq!(load(body.as_bytes(), None), given);
        }
        for (parameters, told) in [
            (json!({ "file:1/model.onnx": "AAAA" }), "need the parameter config"),
            (json!({ "file:1/model.onnx": "A", "config": "{}" }), "base64"),
            (json!({ "file:1/model.onnx": 1, "config": "{}" }), "base64"),
            (json!({ "file:../x": "AAAA", "config": "{}" }), "must be VERSION/NAME"),
            (json!({ "x": 1 }), "\"x\" is not known"),
            (json!({ "config": 1 }), "must be a string"),
        ] {
            let body = json!({ "parameters": parameters }).to_string();
            let error = load(body.as_bytes(), None).unwrap_err().to_string();
            assert!(error.contains(told), "{error} lacks {told}");
        }
    }

    #[test]
    fn what_cannot_be_changed_may_be_repeated_and_is_refused_by_name_otherwise() {
        let current =
            json!({ "input": [{ "name": "x" }], "dynamic_batching": { "preserve_ordering": false } });
        let repeated = Overrides { merges: true, ..Overrides::default() };
        assert_eq!(config(&current, Some(&current)), Ok(repeated));
        let other = json!({ "input": [{ "name": "y" }] });
        let told = config(&other, Some(&current)).unwrap_err().to_string();
        assert!(told.contains("\"input\" cannot be changed"), "{told}");
        // Whether a change repeats the configuration of a model that does not serve is known only once that model is loaded.
        let misspelt = config(&json!({ "max_batchsize": 8 }), None).unwrap_err().to_string();
        assert!(misspelt.contains("\"max_batchsize\" cannot be changed"), "{misspelt}");
        let later = config(&other, None).unwrap();
        let told = later.check_repeated(&current).unwrap_err();
        assert!(told.contains("\"input\" is not as the model has it"), "{told}");
        assert_eq!(later.check_repeated(&other), Ok(()));
        let plain = config(&json!({ "max_batch_size": 0 }), None).unwrap();
        assert_eq!(plain.check_repeated(&json!({ "max_batch_size": 0 })), Ok(()));
        assert!(
            plain.check_repeated(&json!({ "max_batch_size": 4 })).unwrap_err().contains("\"max_batch_size\"")
        );
        let told =
            config(&json!({ "max_batch_size": 0 }), Some(&json!({ "max_batch_size": 4 }))).unwrap_err();
        assert!(told.to_string().contains("allowed: 1 to 1024"), "{told}");
        refuses(&json!({ "name": "n" }), "\"name\"");
        refuses(
            &json!({ "dynamic_batching": { "preserve_ordering": true } }),
            "dynamic_batching.preserve_ordering: ",
        );
        refuses(&json!({ "instance_group": [{ "kind": "x" }] }), "enum value 'x'");
        refuses(&json!({ "instance_group": [{ "gpus": ["a"] }] }), "instance_group is [{\"gpus\":[\"a\"]}]");
        refuses(&json!({ "instance_group": [{ "passive": true }] }), "instance_group[0].passive: ");
        refuses(&json!({ "instance_group": [{}, {}] }), "instance_group has 2 groups, expected one");
        refuses(
            &json!({ "instance_group": [{ "count": 65 }] }),
            "instance_group.count is 65, allowed: 1 to 64",
        );
        let wait = json!({ "dynamic_batching": { "max_queue_delay_microseconds": 10_000_001 } });
        refuses(&wait, "max_queue_delay_microseconds: it is 10000001, and the longest wait is 10000000");
        let sizes = json!({ "dynamic_batching": { "preferred_batch_size": [4, 1025] } });
        refuses(&sizes, "preferred_batch_size is 1025, allowed: 1 to 1024");
        refuses(&json!({ "dynamic_batching": { "default_queue_policy": { "size": 2 } } }), "size");
    }

    #[test]
    fn what_no_model_can_have_is_refused_before_one_is_loaded() {
        for (config, told) in [
            (
                json!({ "ensemble_scheduling": { "step": [] } }),
                "ensemble_scheduling: ensembles are not supported",
            ),
            (json!({ "sequence_batching": {} }), "sequence_batching: models with a state"),
            (json!({ "model_transaction_policy": { "decoupled": true } }), "cannot be decoupled"),
            (json!({ "input": [{ "name": "x", "is_shape_tensor": true }] }), "input[\"x\"].is_shape_tensor"),
            (json!({ "batch_input": [{ "kind": "BATCH_ELEMENT_COUNT" }] }), "batch_input[0]"),
            (json!({ "input": 7 }), "config: input is 7: "),
            (json!({ "default_model_filename": 7 }), "config: default_model_filename is 7: "),
        ] {
            refuses(&config, told);
        }
        // Members of a fitter, or of an ONNX model; and members that are empty for each of them.
        for (member, value) in [
            ("platform", json!("ocelli_gauss_mle")),
            ("backend", json!("")),
            ("runtime", json!("")),
            ("batch_input", json!([])),
            ("metric_tags", json!({})),
            ("parameters", json!({ "a": { "string_value": "b" } })),
            ("model_transaction_policy", json!({ "decoupled": false })),
            ("model_transaction_policy", json!({})),
            ("default_model_filename", json!("other.onnx")),
        ] {
            let repeated = config(&json!({ member: value.clone() }), None).unwrap().repeated;
            assert_eq!(repeated.get(member), Some(&value));
        }
        let later = config(&json!({ "platform": "tensorrt_plan" }), None).unwrap();
        let told = later.check_repeated(&json!({ "platform": "onnxruntime_onnx" })).unwrap_err();
        assert!(told.contains("\"platform\" is not as the model has it"), "{told}");
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused_where_it_stands() {
        let of = |config: &str| {
            let body = json!({ "parameters": { "config": config } }).to_string();
            load(body.as_bytes(), None).unwrap_err().to_string()
        };
        for (config, told) in [
            (r#"{"max_batch_size":18446744073709551616}"#, "config: max_batch_size is 1.8446744073709552e"),
            (
                r#"{"max_batch_size":18446744073709551615}"#,
                "config: max_batch_size is 18446744073709551615: ",
            ),
            (r#"{"instance_group":[{"count":1e30}]}"#, "config: instance_group is [{\"count\":1e+30}]: "),
        ] {
            let error = of(config);
            assert!(error.starts_with(told), "{error}");
        }
        let unload = unload(br#"{"parameters":{"n":18446744073709551616}}"#).unwrap_err().to_string();
        assert!(unload.contains("parameter \"n\" is 18446744073709551616;"), "{unload}");
    }

    #[test]
    fn a_config_that_grpc_printed_repeats_as_well() {
        let current = json!({ "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [16], "format": "FORMAT_NONE",
            "optional": false }], "version_policy": { "latest": { "num_versions": 1 } }, "metric_tags": {},
            "model_transaction_policy": { "decoupled": false } });
        // Large numbers are strings, and defaults are left out.
        let printed = json!({ "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": ["16"] }],
            "version_policy": { "latest": { "num_versions": 1 } }, "model_transaction_policy": {} });
        let versions = Some(Versions::Latest(1));
        assert_eq!(config(&printed, Some(&current)), Ok(Overrides { versions, ..Overrides::default() }));
        assert_eq!(config(&printed, None).unwrap().check_repeated(&current), Ok(()));
        let other = json!({ "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": ["17"] }] });
        assert!(config(&other, Some(&current)).is_err());
        assert!(config(&other, None).unwrap().check_repeated(&current).is_err());
    }

    #[test]
    fn other_bodies_are_refused() {
        assert_eq!((only_ready(b""), only_ready(br#"{"ready":true}"#)), (Ok(false), Ok(true)));
        for body in [&br#"{"redy":true}"#[..], b"[true]", b"true"] {
            let told = only_ready(body).unwrap_err().to_string();
            assert!(told.starts_with("the body cannot be read: ") && !told.contains("Index"), "{told}");
        }
        assert!(unload(b"[null]").is_err() && load(b"[null]", None).is_err());
        assert_eq!(unload(br#"{"parameters":{"unload_dependents":true}}"#), Ok(()));
        assert_eq!(unload(br#"{"parameters":{"unload_dependents":false}}"#), Ok(()));
        assert!(unload(br#"{"parameters":{"other":true}}"#).is_err());
        for body in [r#"{"config":"{}"}"#, r#"{"paramters":{"config":"{}"}}"#, r#"{"unload_dependent":true}"#]
        {
            assert!(load(body.as_bytes(), None).is_err(), "{body}");
            assert!(unload(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn null_is_as_good_as_nothing() {
        assert_eq!(only_ready(br#"{"ready":null}"#), Ok(false));
        assert_eq!(unload(br#"{"parameters":null}"#), Ok(()));
        assert_eq!(load(br#"{"parameters":null}"#, None), load(b"", None));
    }
}
