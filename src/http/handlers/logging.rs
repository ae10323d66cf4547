//! Triton's settings of the log: which lines it has, told and changed while the server runs.

use super::repository;
use crate::{
    error::{InferError, bad},
    http::{Front, accept::Peer, control, wire::logging as wire},
    words::clipped,
};
use axum::{
    Json,
    extract::{Request, State},
};
use serde_json::{Map, Value};
use std::sync::Arc;

/// `GET /v2/logging`
pub(in crate::http) async fn settings(State(front): State<Arc<Front>>) -> Json<Map<String, Value>> {
    Json(wire::settings(&front.log_filter.now()))
}

/// `POST /v2/logging`: the reply has the settings after the change, which holds until the server ends.
pub(in crate::http) async fn change(
    State(front): State<Arc<Front>>,
    request: Request,
) -> Result<Json<Map<String, Value>>, InferError> {
    control::known(&front, request.extensions().get::<Peer>(), request.headers())?;
    let body = repository::read(&front, request).await?;
    change_as(&front, &body).map(Json)
}

/// Changes the settings as a body says, for a caller that may, and returns all of them.
pub(crate) fn change_as(front: &Front, body: &[u8]) -> Result<Map<String, Value>, InferError> {
    let now = front.log_filter.now();
    if let Some(filter) = wire::filter(body, &now)? {
        front.log_filter.set(&filter).map_err(|reason| {
            bad(format!("log_filter {:?} is not a log filter: {reason}", clipped(&filter)))
        })?;
    }
    Ok(wire::settings(&front.log_filter.now()))
}
