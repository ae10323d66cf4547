//! What can be served: server and model metadata by the Open Inference Protocol.

use super::Front;
use crate::{
    engine::{Dim, TensorSpec},
    error::InferError,
    models::State as ModelState,
};
use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The protocol's extensions that are built, no more.
const EXTENSIONS: [&str; 2] = ["binary_tensor_data", "parameters"];

/// `GET /v2`
pub(super) async fn server() -> Json<Value> {
    Json(json!({ "name": "ocelli", "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS }))
}

/// `GET /v2/models`: every model and version, served or not, with the reason why not.
pub(super) async fn models(State(front): State<Arc<Front>>) -> Json<Value> {
    let entries: Vec<Value> = front
        .catalog
        .list()
        .iter()
        .map(|entry| {
            let (state, reason, task) = match &entry.state {
                ModelState::Loading => ("LOADING", "", None),
                ModelState::Ready(model) => ("READY", "", Some(model.task.name())),
                ModelState::Unavailable(reason) => ("UNAVAILABLE", reason.as_str(), None),
            };
            json!({ "name": &*entry.name, "version": &*entry.version, "state": state, "reason": reason, "task": task })
        })
        .collect();
    Json(json!({ "models": entries }))
}

/// `GET /v2/models/{model}`
pub(super) async fn latest(
    State(front): State<Arc<Front>>,
    Path(model): Path<String>,
) -> Result<Json<Value>, InferError> {
    metadata(&front, &model, None)
}

/// `GET /v2/models/{model}/versions/{version}`
pub(super) async fn versioned(
    State(front): State<Arc<Front>>,
    Path((model, version)): Path<(String, String)>,
) -> Result<Json<Value>, InferError> {
    metadata(&front, &model, Some(&version))
}

/// `GET /v2/models/{model}/ready`
pub(super) async fn latest_ready(
    State(front): State<Arc<Front>>,
    Path(model): Path<String>,
) -> Result<Json<Value>, InferError> {
    readiness(&front, &model, None)
}

/// `GET /v2/models/{model}/versions/{version}/ready`
pub(super) async fn versioned_ready(
    State(front): State<Arc<Front>>,
    Path((model, version)): Path<(String, String)>,
) -> Result<Json<Value>, InferError> {
    readiness(&front, &model, Some(&version))
}

fn metadata(front: &Front, name: &str, version: Option<&str>) -> Result<Json<Value>, InferError> {
    let model = front.catalog.get(name, version)?;
    let versions: Vec<String> = front
        .catalog
        .list()
        .into_iter()
        .filter(|entry| *entry.name == *name)
        .map(|entry| entry.version.to_string())
        .collect();
    Ok(Json(json!({
        "name": &*model.name,
        "versions": versions,
        "platform": model.signature.platform,
        "inputs": tensors(&model.signature.inputs),
        "outputs": tensors(&model.signature.outputs),
        "task": model.task.name(),
        "images": model.image.is_some(),
    })))
}

/// Callers of Triton expect 400 for a model that is not ready, and 200 for one that is.
fn readiness(front: &Front, name: &str, version: Option<&str>) -> Result<Json<Value>, InferError> {
    match front.catalog.get(name, version) {
        Ok(model) => Ok(Json(json!({ "name": &*model.name, "ready": true }))),
        Err(InferError::ModelUnavailable { name, reason }) => {
            Err(InferError::BadRequest(format!("model {name:?} is not ready: {reason}")))
        }
        Err(error) => Err(error),
    }
}

fn tensors(specs: &[TensorSpec]) -> Vec<Value> {
    specs
        .iter()
        .map(|spec| {
            let shape: Vec<i64> = spec.shape.iter().copied().map(Dim::number).collect();
            json!({ "name": spec.name, "datatype": spec.datatype.name(), "shape": shape })
        })
        .collect()
}
