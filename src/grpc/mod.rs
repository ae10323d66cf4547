//! gRPC: the service of `http` for clients of the Open Inference Protocol and of Triton that use gRPC. Connections, admission, deadlines,
//! queues and metrics are those of `http`; this module adds only the messages and the error codes.
//!
//! - `calls`: the calls by their paths.
//! - `around`: middleware for every call: name, span, admission, counts; `unadmitted`: limits for open calls that are not admitted.
//! - `incoming`: the bytes of a call, within their limits.
//! - `large`: the calls whose messages may be large; `codec`: the memory that such a message needs, computed before it is decoded.
//! - `service`: the calls; `inference`: those that run a model; `change`: parameters of those that load and unload models;
//!   `log_settings`: those of the log; `convert`: tensors from and to messages.
//! - `torchserve`: TorchServe's own service.
//! - `health`: gRPC's own health checks; `reflection`: descriptions of the calls.
//! - `status`: the table from errors to codes.

mod around;
mod calls;
mod change;
mod codec;
mod convert;
mod health;
mod incoming;
mod inference;
mod large;
mod log_settings;
mod reflection;
mod service;
mod status;
mod torchserve;
mod unadmitted;

use crate::{
    http::{Front, accept::Stages},
    protocol::{
        health::health_server::HealthServer,
        inference::grpc_inference_service_server::GrpcInferenceServiceServer,
        torchserve::inference_ap_is_service_server::InferenceApIsServiceServer,
    },
    words::clipped,
};
use axum::{
    Router, extract::Request, handler::Handler, http::Uri, middleware, response::Response,
    routing::any_service,
};
pub use calls::paths;
use calls::{
    CALLS, DESCRIPTIONS, INFERENCES, LOAD, OF_TORCHSERVE, PING, REFLECTION, REFLECTION_ALPHA,
    SMALL_BYTES_MAX, WATCH, torchserves,
};
use std::sync::Arc;
use tonic::{Code, Status, codec::CompressionEncoding};
use tonic_reflection::server::v1::ServerReflectionServer;

/// The routes of the gRPC listener, which serves until `stages` close it.
pub fn routes(front: &Arc<Front>, stages: &Stages) -> Router {
    let body_bytes_max = usize::try_from(front.limits.body.bytes_max).unwrap_or(usize::MAX);
    let service = Arc::new(service::Service::new(front, stages));
    // Replies hold numbers and are not compressed: a client that wants compression can use a proxy.
    let small = GrpcInferenceServiceServer::from_arc(Arc::clone(&service))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(SMALL_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let theirs = Arc::new(torchserve::TorchServe::new(front));
    let large = large::routes(front, service, Arc::clone(&theirs), body_bytes_max);
    let ping = InferenceApIsServiceServer::from_arc(theirs)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(SMALL_BYTES_MAX);
    // Clients whose channel compresses use it for these calls as well.
    let health = HealthServer::new(health::Health::new(front, stages))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let reflection = ServerReflectionServer::new(reflection::Reflection::new())
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let bounded = middleware::from_fn_with_state(unadmitted::open(), unadmitted::bounded);
    let described = middleware::from_fn_with_state(unadmitted::described(), unadmitted::bounded_once_read);
    let renamed = OF_TORCHSERVE.into_iter().map(|path| (path, torchserves(path)));
    let routed = CALLS.into_iter().map(|path| (path, path.to_owned())).chain(renamed);
    let router = routed.fold(large, |router, (path, at)| {
        if path == LOAD || INFERENCES.contains(&path) {
            router
        } else if DESCRIPTIONS.contains(&path) {
            router.route(&at, any_service(small.clone()).layer(described.clone()))
        } else if path.starts_with("/inference.") {
            router.route_service(&at, small.clone())
        } else if path == PING {
            router.route_service(path, ping.clone())
        } else if path == WATCH {
            router.route(path, any_service(health.clone()).layer(bounded.clone()))
        } else if matches!(path, REFLECTION | REFLECTION_ALPHA) {
            let finished = middleware::map_request(async |mut request: Request| {
                *request.uri_mut() = Uri::from_static(REFLECTION);
                request
            });
            router.route(path, any_service(reflection.clone()).layer(finished).layer(bounded.clone()))
        } else {
            router.route_service(path, health.clone())
        }
    });
    router
        .fallback_service(unimplemented.with_state(()))
        .layer(middleware::from_fn_with_state(Arc::clone(front), around::around))
}

/// The reply for a path that is not a call.
async fn unimplemented(request: Request) -> Response {
    let path = clipped(request.uri().path());
    Status::new(
        Code::Unimplemented,
        format!("there is no call {path:?}; reflection lists those that there are"),
    )
    .into_http()
}
