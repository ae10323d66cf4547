//! Devices: the state of each, and taking one out of use for a while.

use crate::http::{Front, accept::Peer, control, reject::Problem, wire::devices as wire};
use axum::{
    Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the reply to an order waits for it to take effect. The device's keeper looks ten times a second, but not while it loads a model
/// there.
const HEEDED: Duration = Duration::from_secs(5);

/// `GET /v2/devices`
pub(in crate::http) async fn list(State(front): State<Arc<Front>>) -> Json<Value> {
    let status = &front.status;
    Json(wire::devices(&status.devices(), &status.no_gpu, Instant::now()))
}

/// `POST /v2/devices/{id}/drain`: the device finishes what it has begun, is given back, and is not taken until it is resumed.
pub(in crate::http) async fn drain(front: State<Arc<Front>>, id: Path<String>, request: Request) -> Response {
    set(&front, &id, request, true).await
}

/// `POST /v2/devices/{id}/resume`
pub(in crate::http) async fn resume(
    front: State<Arc<Front>>,
    id: Path<String>,
    request: Request,
) -> Response {
    set(&front, &id, request, false).await
}

/// The reply shows the device after the order or, if that takes too long, as it still is.
async fn set(front: &Front, id: &str, request: Request, drained: bool) -> Response {
    if let Err(error) = control::known(front, request.extensions().get::<Peer>(), request.headers()) {
        return error.into_response();
    }
    match front.status.drain_device(id, drained) {
        Some(news) => {
            tracing::info!(device = id, drained, news, "a device was drained or resumed by request");
            // In time or not, the reply says where it stands.
            let _ = tokio::time::timeout(HEEDED, front.status.heeded(id)).await;
            let device = front.status.devices().into_iter().find(|device| device.id == id);
            Json(device.map(|device| wire::device(&device, Instant::now()))).into_response()
        }
        None => {
            let devices = front.status.devices();
            let ids: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
            Problem::unknown_device(id, &ids).into_response()
        }
    }
}
