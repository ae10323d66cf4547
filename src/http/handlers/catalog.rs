//! What can be served: server and model metadata by the Open Inference Protocol.

use super::localize;
use crate::{
    engine::{Dim, Signature, TensorSpec},
    error::InferError,
    http::{
        Front,
        reject::Problem,
        target::Target,
        wire::{model_config, statistics},
    },
    models::{Entry, Model, State as ModelState},
    telemetry::statistics::Held,
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

/// The protocol's extensions that are implemented.
const EXTENSIONS: [&str; 8] = [
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
];

/// The extensions that callers may use here.
pub(crate) fn extensions(front: &Front) -> impl Iterator<Item = &'static str> {
    EXTENSIONS.into_iter().chain(front.shared_memory.is_on().then_some("system_shared_memory"))
}

/// `GET /v2`
pub(in crate::http) async fn server(State(front): State<Arc<Front>>) -> Json<Value> {
    let extensions: Vec<&str> = extensions(&front).collect();
    Json(json!({ "name": front.server_name, "version": env!("CARGO_PKG_VERSION"), "extensions": extensions }))
}

/// `GET /v2/models`: every model and version that was to be loaded, served or not, with the reason why not.
pub(in crate::http) async fn models(State(front): State<Arc<Front>>) -> Json<Value> {
    let entries: Vec<Value> = front
        .catalog
        .list()
        .iter()
        .map(|entry| {
            let (state, reason) = stands(&front, entry);
            let task = entry.state.model().map(|model| model.task.name());
            json!({ "name": &*entry.name, "version": &*entry.version, "state": state, "reason": reason, "task": task })
        })
        .collect();
    Json(json!({ "models": entries, "repository_mode": front.repository_mode.name() }))
}

/// The state of a version, and the reason if there is more to say.
pub(super) fn stands<'e>(front: &Front, entry: &'e Entry) -> (&'static str, Cow<'e, str>) {
    match &entry.state {
        ModelState::Loading => ("LOADING", "".into()),
        ModelState::Ready(model) => ("READY", said(front, entry, model)),
        ModelState::Unavailable(reason) => ("UNAVAILABLE", reason.into()),
    }
}

/// What else there is to say of a loaded version: why no device serves it now, and what became of a later load.
fn said<'e>(front: &Front, entry: &'e Entry, model: &Model) -> Cow<'e, str> {
    match front.queue.check_served(model.key) {
        Err(InferError::Unserved { reason, .. }) if entry.note.is_empty() => reason.into(),
        Err(InferError::Unserved { reason, .. }) => format!("{reason}; {}", entry.note).into(),
        _ => Cow::Borrowed(&entry.note),
    }
}

/// `GET /v2/models/{model}[/versions/{version}]`
pub(in crate::http) async fn model(
    State(front): State<Arc<Front>>,
    target: Target,
) -> Result<Json<Value>, InferError> {
    let model = target.find(&front)?;
    let (versions, signature) = (versions(&front, &model, &target), signature(&model));
    Ok(Json(json!({
        "name": &*model.name,
        "versions": versions,
        "platform": signature.platform,
        "inputs": tensors(&signature.inputs),
        "outputs": tensors(&signature.outputs),
        "task": model.task.name(),
        "images": model.image.is_some() || model.fit.is_some(),
        "pixels": pixels(&model),
        "labels": model.labels.iter().map(|label| &**label).collect::<Vec<_>>(),
    })))
}

/// The types and the shape in which pixels may be posted as tensors; null if they may not.
fn pixels(model: &Model) -> Value {
    let forms = &model.takes[model.interface.signature.inputs.len()..];
    let Some(TensorSpec { shape, .. }) = forms.first() else { return Value::Null };
    let shape: Vec<i64> = shape.iter().copied().map(Dim::number).collect();
    json!({ "datatypes": forms.iter().map(|form| form.datatype.name()).collect::<Vec<_>>(), "shape": shape })
}

/// `GET /v2/models/{model}[/versions/{version}]/ready`. Callers of Triton expect 400 for a model that is not ready.
pub(in crate::http) async fn ready(
    State(front): State<Arc<Front>>,
    target: Target,
) -> Result<Json<Value>, Problem> {
    match target.find_ready(&front) {
        Ok(model) => Ok(Json(json!({ "name": &*model.name, "ready": true }))),
        Err(
            InferError::ModelUnavailable { name, reason, .. } | InferError::Unserved { name, reason, .. },
        ) => Err(Problem::model_not_ready(&name, &reason)),
        Err(error @ InferError::Draining) => Err(Problem::model_not_ready(&target.model, &error.to_string())),
        Err(error) => Err(Problem::from(&error)),
    }
}

/// `GET /v2/models/{model}[/versions/{version}]/config`
pub(in crate::http) async fn config(
    State(front): State<Arc<Front>>,
    target: Target,
) -> Result<Json<Value>, InferError> {
    Ok(Json(config_of(&*target.find(&front)?)))
}

/// A model's configuration, as Triton's clients read it.
pub(crate) fn config_of(model: &Model) -> Value {
    let signature = signature(model);
    model_config::of(model, &signature.inputs, &signature.outputs)
}

/// What requests for a model bring and get.
pub(crate) fn signature(model: &Model) -> Cow<'_, Signature> {
    match &model.fit {
        Some(settings) => Cow::Owned(localize::tensors::signature(settings)),
        None => Cow::Borrowed(&model.interface.signature),
    }
}

/// The versions of a model that can be asked for: those that take requests. Only the model's own, if it was asked for by version or if none
/// takes requests any more.
pub(crate) fn versions(front: &Front, model: &Model, target: &Target) -> Vec<String> {
    let mut versions = front.catalog.ready_versions(&model.name);
    if target.version.is_some() || versions.is_empty() {
        versions.clear();
        versions.push(Arc::clone(&model.version));
    }
    versions.iter().map(ToString::to_string).collect()
}

/// `GET /v2/models/stats`, and of one model `GET /v2/models/{model}[/versions/{version}]/stats`: all versions that take
/// requests, or the one that is named.
pub(in crate::http) async fn all_statistics(State(front): State<Arc<Front>>) -> Json<Value> {
    statistics_of(&front, &front.catalog.ready())
}

/// See [`all_statistics`].
pub(in crate::http) async fn statistics(
    State(front): State<Arc<Front>>,
    target: Target,
) -> Result<Json<Value>, InferError> {
    Ok(statistics_of(&front, &counted(&front, &target)?))
}

/// The versions whose statistics are asked for: the one that is named, or all of the model that take requests.
pub(crate) fn counted(front: &Front, target: &Target) -> Result<Vec<Arc<Model>>, InferError> {
    let model = target.find(front)?;
    if target.version.is_some() {
        return Ok(vec![model]);
    }
    let versions = front.catalog.entries(&model.name);
    Ok(versions.iter().filter_map(|of| of.state.model().cloned()).collect())
}

fn statistics_of(front: &Front, models: &[Arc<Model>]) -> Json<Value> {
    Json(statistics_value(front, models))
}

/// The statistics of these versions, as Triton's clients read them.
pub(crate) fn statistics_value(front: &Front, models: &[Arc<Model>]) -> Value {
    // Memory on a GPU that was given back does not count.
    let devices = front.status.devices().into_iter();
    let ours: BTreeSet<String> =
        devices.filter(|device| device.state.runs()).map(|device| device.id).collect();
    let entry = |model: &Arc<Model>| {
        let held = model.statistics.held().into_iter().filter(|(device, _)| ours.contains(&**device));
        let held: Vec<Held> = held.map(|(_, held)| held).collect();
        statistics::entry(&model.name, &model.version, &model.statistics.snapshot(), &held)
    };
    json!({ "model_stats": models.iter().map(entry).collect::<Vec<_>>() })
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
