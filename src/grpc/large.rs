//! The calls whose messages may be large. Each does the same as the generated service, but with a codec that charges for what it decodes,
//! and decodes what is large elsewhere.

use super::{
    calls::{INFER, LOAD, PREDICTIONS, STREAM, STREAM_PREDICTIONS, torchserves},
    codec::{Countable, Counted, Encoded},
    service::Service,
    torchserve::TorchServe,
};
use crate::{
    http::{Front, admission::Permit},
    protocol::{
        inference::{ModelInferRequest, grpc_inference_service_server::GrpcInferenceService},
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
use futures_util::StreamExt;
use prost::Message;
use std::sync::Arc;
use tonic::{Status, Streaming, codec::CompressionEncoding, server::Grpc};
use tower::service_fn;

#[derive(Clone)]
struct Large {
    front: Arc<Front>,
    service: Arc<Service>,
    torchserve: Arc<TorchServe>,
    bytes_max: usize,
}

/// The routes of these calls, for messages of at most `bytes_max` bytes.
pub(super) fn routes(
    front: &Arc<Front>,
    service: Arc<Service>,
    torchserve: Arc<TorchServe>,
    bytes_max: usize,
) -> Router {
    Router::new()
        .route(INFER, any(infer))
        .route(&torchserves(INFER), any(infer))
        .route(LOAD, any(load))
        .route(STREAM, any(stream))
        .route(PREDICTIONS, any(predictions))
        .route(STREAM_PREDICTIONS, any(stream_predictions))
        .with_state(Large { front: Arc::clone(front), service, torchserve, bytes_max })
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

/// The same request with its message decoded.
async fn whole<D: Countable + Send>(
    front: &Front,
    request: tonic::Request<Encoded<D>>,
) -> Result<tonic::Request<D>, Status> {
    let (metadata, extensions, message) = request.into_parts();
    Ok(tonic::Request::from_parts(metadata, extensions, message.decoded(&front.decode).await?))
}

async fn infer(State(large): State<Large>, request: Request) -> Response {
    let (service, front) = (&large.service, &large.front);
    let call = service_fn(async |request| service.model_infer(whole(front, request).await?).await);
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn load(State(large): State<Large>, request: Request) -> Response {
    // The call checks this again, but only after the files in its message have been read.
    if let Err(refused) = large.service.may_control(request.extensions(), request.headers()) {
        return refused.into_http();
    }
    let (service, front) = (&large.service, &large.front);
    let call = service_fn(async |request| service.repository_model_load(whole(front, request).await?).await);
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn stream(State(large): State<Large>, request: Request) -> Response {
    let (service, front) = (&large.service, &large.front);
    let call = service_fn(async |request: tonic::Request<Streaming<Encoded<ModelInferRequest>>>| {
        let (metadata, extensions, messages) = request.into_parts();
        let front = Arc::clone(front);
        let messages = messages.map(move |message| {
            let front = Arc::clone(&front);
            async move { message?.decoded(&front.decode).await }
        });
        service.stream(metadata, &extensions, messages)
    });
    large.grpc(&request).streaming(call, request).await.map(Body::new)
}

async fn predictions(State(large): State<Large>, request: Request) -> Response {
    let (service, front) = (&large.torchserve, &large.front);
    let call = service_fn(async |request| service.predictions(whole(front, request).await?).await);
    large.grpc(&request).unary(call, request).await.map(Body::new)
}

async fn stream_predictions(State(large): State<Large>, request: Request) -> Response {
    let (service, front) = (&large.torchserve, &large.front);
    let call = service_fn(async |request| service.stream_predictions(whole(front, request).await?).await);
    large.grpc(&request).server_streaming(call, request).await.map(Body::new)
}
