//! Health and metrics. They are outside the layers of the API, so they answer when everything else is refused. The admin listener has them
//! again: its thread shares with the data path only locks that are held for moments (of the queue, of the catalog, of the status).

use super::scrape::Listener;
use crate::http::{Front, Route, coding, reject::Problem};
use axum::{
    Json,
    extract::State,
    http::header,
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use std::{sync::Arc, time::Instant};

/// Everything that a probe or a scraper asks for.
pub(in crate::http) fn routes() -> Vec<Route> {
    vec![
        ("/v2/health/live", get(live)),
        ("/v2/health/ready", get(ready)),
        ("/ping", get(ping)),
        metrics(Listener::Api),
    ]
}

/// The same for a listener apart from the API.
pub(in crate::http) fn routes_apart() -> Vec<Route> {
    let mut routes = routes();
    routes.retain(|(path, _)| *path != METRICS);
    routes.push(metrics(Listener::Apart));
    routes
}

const METRICS: &str = "/metrics";

/// All metrics, as a listener has them. Most of the text repeats itself: scrapers and the page ask for it packed.
pub(in crate::http) fn metrics(listener: Listener) -> Route {
    let text = async move |State(front): State<Arc<Front>>| {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], front.scrape(listener))
    };
    (METRICS, get(text).layer(middleware::from_fn(coding::pack_layer)))
}

/// Alive means that the data path's runtime turns over and that a device may serve: false only if a restart would help, whatever the load,
/// the models or a drain. Triton's clients read the status, KServe's the body.
async fn live(State(front): State<Arc<Front>>) -> Response {
    match front.status.live(Instant::now()) {
        Ok(()) => {
            Json(json!({ "live": true, "ready": front.status.ready(Instant::now()).is_ok() })).into_response()
        }
        Err(reason) => Problem::not_live(&reason).into_response(),
    }
}

/// Ready means that no drain has begun; that all models of the start were tried and one of them works; and that a device runs batches, or
/// would if one were needed.
async fn ready(State(front): State<Arc<Front>>) -> Response {
    match front.status.ready(Instant::now()) {
        Ok(()) => Json(json!({ "live": true, "ready": true })).into_response(),
        Err(reason) => Problem::not_ready(&reason).into_response(),
    }
}

/// The reply of a listener apart from the API during the start: alive, however long that takes.
pub(crate) fn starting(path: &str) -> Response {
    match path {
        "/v2/health/live" => Json(json!({ "live": true, "ready": false })).into_response(),
        _ => Problem::not_ready("it is starting").into_response(),
    }
}

/// TorchServe's health check.
async fn ping(State(front): State<Arc<Front>>) -> Response {
    match front.status.ready(Instant::now()) {
        Ok(()) => Json(json!({ "status": "Healthy" })).into_response(),
        Err(reason) => Problem::not_ready(&reason).into_response(),
    }
}
