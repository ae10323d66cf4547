//! A model as Triton's `ModelConfig` in JSON: the names of its definition's fields, numbers as numbers.
//!
//! Only what is so for us is said. A model counts as batching (`max_batch_size` above 0) if its first axis is free; that
//! axis is then left out of `dims`.

use crate::{
    engine::{Batching, DataType, Dim, TensorSpec},
    models::Model,
};
use serde_json::{Value, json};

/// The configuration of a model whose tensors are these (a fitter's are not those of its engine).
pub fn of(model: &Model, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Value {
    let fitter = model.fit.is_some();
    let batches = model.batching == Batching::Dynamic && !fitter;
    let tensor = |spec: &TensorSpec| {
        let dims: Vec<i64> = spec.shape.iter().skip(usize::from(batches)).copied().map(Dim::number).collect();
        json!({
            "name": spec.name,
            "data_type": type_name(spec.datatype),
            "dims": dims,
            "is_shape_tensor": false,
        })
    };
    let input = |spec: &TensorSpec| {
        let mut value = tensor(spec);
        value["format"] = "FORMAT_NONE".into();
        value["allow_ragged_batch"] = false.into();
        value["optional"] = false.into();
        value
    };
    let output = |spec: &TensorSpec| {
        let mut value = tensor(spec);
        value["label_filename"] = "".into();
        value
    };
    let largest = model.rules.sizes.last().copied().unwrap_or(1);
    let mut config = json!({
        "name": &*model.name,
        "platform": model.signature.platform,
        "backend": if fitter { "" } else { "onnxruntime" },
        "version_policy": { "all": {} },
        "max_batch_size": if batches { largest } else { 0 },
        "input": inputs.iter().map(input).collect::<Vec<_>>(),
        "output": outputs.iter().map(output).collect::<Vec<_>>(),
        "instance_group": [{
            "name": &*model.name,
            "kind": "KIND_CPU",
            "count": model.instances,
            "gpus": [],
        }],
        "default_model_filename": if fitter { "" } else { "model.onnx" },
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": { "decoupled": false },
    });
    if batches {
        config["dynamic_batching"] = json!({
            "preferred_batch_size": model.rules.sizes,
            "max_queue_delay_microseconds": model.rules.wait_max.as_micros() as u64,
            "preserve_ordering": false,
            // The protocol counts from 1, and takes 0 for no wish.
            "priority_levels": u64::from(crate::models::manifest::PRIORITY_MAX) + 1,
            "default_priority_level": u64::from(model.priority) + 1,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": model.timeout.as_micros() as u64,
                "allow_timeout_override": true,
                "max_queue_size": 0,
            },
        });
    }
    config
}

/// A type's name in configurations.
pub fn type_name(datatype: DataType) -> String {
    match datatype {
        DataType::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}
