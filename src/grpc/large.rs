//! The calls whose messages may be large. Each does the same as the generated service, but with a codec that charges for what it decodes.

use super::{
    calls::{INFER, LOAD, PREDICTIONS, STREAM, STREAM_PREDICTIONS, torchserves},
    codec::{Countable, Counted},
    service::Service,
    torchserve::TorchServe,
};
use crate::{
    http::admission::Permit,
    protocol::{
        inference::grpc_inference_service_server::GrpcInferenceService,
        torchserve::inference_ap_is_service_server::InferenceApIsService,
    },
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::any,
};
use prost::Message;
use std::sync::Arc;
use tonic::{codec::CompressionEncoding, server::Grpc};
use tower::service_fn;

#[derive(Clone)]
struct Large {
    service: Arc<Service>,
    torchserve: Arc<TorchServe>,
    bytes_max: usize,
}

/// The routes of these calls, for messages of at most `bytes_max` bytes.
pub(super) fn routes(service: Arc<Service>, torchserve: Arc<TorchServe>, bytes_max: usize) -> Router {
    Router::new()
        .route(INFER, any(infer))
        .route(&torchserves(INFER), any(infer))
        .route(LOAD, any(load))
        .route(STREAM, any(stream))
        .route(PREDICTIONS, any(predictions))
        .route(STREAM_PREDICTIONS, any(stream_predictions))
        .with_state(Large { service, torchserve, bytes_max })
}

impl Large {
    fn grpc<E: Message + 'static, D: Countable>(&self, request: &Request) -> Grpc<Counted<E, D>> {
        let permit = request.extensions().get::<Arc<Permit>>().cloned();
        // `incoming` has unpacked the messages. This only lets the header pass that names their compression.
        Grpc::new(Counted::charged_to(permit))
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
            .max_decoding_message_size(self.bytes_max)
            .max_encoding_message_size(usize::MAX)
    }
}

async fn infer(State(large): State<Large>, request: Request) -> Response {
    let service = &large.service;
    let call = service_fn(|request| service.model_infer(request));
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn load(State(large): State<Large>, request: Request) -> Response {
    // The call checks this again, but only after the files in its message have been read.
    if let Err(refused) = large.service.may_control(request.extensions(), request.headers()) {
        return refused.into_http();
    }
    let service = &large.service;
    let call = service_fn(|request| service.repository_model_load(request));
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn stream(State(large): State<Large>, request: Request) -> Response {
    let service = &large.service;
    let call = service_fn(|request| service.model_stream_infer(request));
    large.grpc(&request).streaming(call, request).await.map(Body::new)
}

async fn predictions(State(large): State<Large>, request: Request) -> Response {
    let service = &large.torchserve;
    let call = service_fn(|request| service.predictions(request));
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn stream_predictions(State(large): State<Large>, request: Request) -> Response {
    let service = &large.torchserve;
    let call = service_fn(|request| service.stream_predictions(request));
    large.grpc(&request).server_streaming(call, request).await.map(Body::new)
}
