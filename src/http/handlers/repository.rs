//! Triton's repository control: which models there are, and loading and unloading them while the server runs, for clients that may
//! (`control`).

mod folder;

use super::catalog;
use crate::{
    error::InferError,
    http::{
        Front,
        admission::{Permit, charged, keeping},
        body, coding,
        control::allowed,
        decode::{LONG_FILES, Step},
        target::Target,
        wire::repository as wire,
    },
};
use axum::{
    Json,
    extract::{Request, State},
};
use bytes::Bytes;
pub(in crate::http) use folder::Folder;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// Bytes of a body without files. Few: nothing is set aside for it, and anybody may send one.
pub(super) const BODY_BYTES_MAX: u64 = 4 << 10;

/// `POST /v2/repository/index`: every version that is known, those that have served until they were unloaded, and the models of the folder
/// that have not been loaded.
pub(in crate::http) async fn index(
    State(front): State<Arc<Front>>,
    request: Request,
) -> Result<Json<Vec<wire::Known>>, InferError> {
    let only_ready = wire::only_ready(&read(&front, request).await?)?;
    Ok(Json(list(&front, only_ready).await))
}

/// Everything that is known, or only what takes requests.
pub(crate) async fn list(front: &Front, only_ready: bool) -> Vec<wire::Known> {
    let mut entries = Vec::new();
    let mut known = BTreeSet::new();
    for entry in front.catalog.list() {
        let (state, reason) = catalog::stands(front, &entry);
        known.insert(entry.name.to_string());
        let served = || entry.state.model().is_some_and(|model| front.queue.check_served(model.key).is_ok());
        if !only_ready || served() {
            let (name, version) = (entry.name.to_string(), entry.version.to_string());
            entries.push(wire::Known { name, version, state, reason: reason.into_owned().into() });
        }
    }
    if !only_ready {
        let unavailable = |name: &str, version: &str, reason: &'static str| wire::Known {
            name: name.to_owned(),
            version: version.to_owned(),
            state: "UNAVAILABLE",
            reason: reason.into(),
        };
        let there = front.folder.names().await;
        let mut unloaded = front.catalog.unloaded();
        unloaded.retain(|name, _| !known.contains(name));
        let left = there.iter().filter(|name| !known.contains(*name) && !unloaded.contains_key(*name));
        entries.extend(left.map(|name| unavailable(name, "", "it is not loaded")));
        for (name, versions) in &unloaded {
            // Triton's word.
            entries.extend(versions.iter().map(|version| unavailable(name, version, "unloaded")));
        }
    }
    entries
}

/// `POST /v2/repository/models/{model}/load`
pub(in crate::http) async fn load(
    State(front): State<Arc<Front>>,
    target: Target,
    mut request: Request,
) -> Result<Json<Value>, InferError> {
    allowed(&front, request.extensions().get(), request.headers())?;
    // A model's files take memory as the bodies of other requests do.
    let permit = front.admission.enter(&mut request)?;
    let body = body::of(coding::unpack(request)?, front.limits.body).await?;
    let long = body.len() >= LONG_FILES;
    let read = move || wire::Load::of_body(&body);
    let load = front.decode.run_slow(Step::Request(0), long, charged(Some(&permit), read)).await??;
    load_as(&front, &target.model, load, Some(&permit)).await?;
    // As KServe's own server answers; Triton's reply is empty, and its clients look at nothing but the status.
    Ok(Json(json!({ "name": target.model, "load": true })))
}

/// Loads a model for a caller that may.
pub(crate) async fn load_as(
    front: &Front,
    name: &str,
    load: wire::Load,
    permit: Option<&Arc<Permit>>,
) -> Result<(), InferError> {
    let load = match permit {
        Some(permit) => load.kept(|bytes| keeping(bytes, permit)),
        None => load,
    };
    let current = front.catalog.get(name, None).ok().map(|model| catalog::config_of(&model));
    let failed = |error| match error {
        InferError::BadRequest(reason) => {
            InferError::LoadFailed { name: name.to_owned(), reason, for_now: false }
        }
        other => other,
    };
    front.control.load(name, load.change(name, current.as_ref()).map_err(failed)?).await
}

/// `POST /v2/repository/models/{model}/unload`
pub(in crate::http) async fn unload(
    State(front): State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<Json<Value>, InferError> {
    allowed(&front, request.extensions().get(), request.headers())?;
    unload_as(&front, &target.model, &read(&front, request).await?).await?;
    Ok(Json(json!({ "name": target.model, "unload": true })))
}

/// Unloads a model as this body says, for a caller that may.
pub(crate) async fn unload_as(front: &Front, name: &str, body: &[u8]) -> Result<(), InferError> {
    wire::unload(body)?;
    match front.control.unload(name).await {
        // It is as the client wants it: a clean-up need not know what there was.
        Err(InferError::UnknownModel { .. }) => Ok(()),
        unloaded => unloaded,
    }
}

/// Reads a body without files.
pub(super) async fn read(front: &Front, request: Request) -> Result<Bytes, InferError> {
    body::of(coding::unpack(request)?, front.limits.body.at_most(BODY_BYTES_MAX)).await
}
