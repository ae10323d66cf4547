//! gRPC: the service of `http`, for clients of the Open Inference Protocol and of Triton that speak it. Connections,
//! admission, deadlines, queue and metrics are those of `http`; here are only the messages and the codes of errors.
//!
//! - `around`: what every call passes: name, span, admission, counts; `unadmitted`: how many may be open that are not admitted.
//! - `incoming`: the bytes of a call, within their limits.
//! - `large`: the calls whose messages may be large; `codec`: what such a message takes in memory, told before it is decoded.
//! - `service`: the calls; `inference`: those that run a model; `change`: what those say that load and unload models;
//!   `convert`: tensors in messages, there and back.
//! - `health`: gRPC's own health checks; `reflection`: questions about the calls.
//! - `status`: the table from error to code.

mod around;
mod change;
mod codec;
mod convert;
mod health;
mod incoming;
mod inference;
mod large;
mod reflection;
mod service;
mod status;
mod unadmitted;

use crate::{
    http::{Front, accept::Stages},
    protocol::{
        health::health_server::HealthServer,
        inference::grpc_inference_service_server::GrpcInferenceServiceServer,
    },
    words::clipped,
};
use axum::{
    Router, extract::Request, handler::Handler, http::Uri, middleware, response::Response,
    routing::any_service,
};
use std::sync::Arc;
use tonic::{Code, Status, codec::CompressionEncoding};
use tonic_reflection::server::v1::ServerReflectionServer;

/// Every call that is answered, by its path.
const CALLS: [&str; 21] = [
    "/grpc.health.v1.Health/Check",
    WATCH,
    REFLECTION,
    REFLECTION_ALPHA,
    "/inference.GRPCInferenceService/CudaSharedMemoryStatus",
    "/inference.GRPCInferenceService/CudaSharedMemoryUnregister",
    INFER,
    STREAM,
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ModelStatistics",
    "/inference.GRPCInferenceService/RepositoryIndex",
    LOAD,
    "/inference.GRPCInferenceService/RepositoryModelUnload",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/SystemSharedMemoryRegister",
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
    "/inference.GRPCInferenceService/SystemSharedMemoryUnregister",
];
/// The server's health, and each change of it.
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Questions about the calls, one after the other.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The same from before it was finished, with the same messages: Python's library asks nothing else.
const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
/// Answers that grow with the models, or with what is known of one.
const DESCRIPTIONS: [&str; 5] = [
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelStatistics",
    "/inference.GRPCInferenceService/RepositoryIndex",
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
];
/// One inference.
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// A load, which may bring a model's files.
const LOAD: &str = "/inference.GRPCInferenceService/RepositoryModelLoad";
/// Inferences one after the other.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Bytes of a message that brings no data, packed or not: nothing is set aside for it, so it must not be more than a header may be.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// The calls, for the metrics.
pub fn paths() -> Vec<&'static str> {
    CALLS.to_vec()
}

/// What the gRPC listener serves until `stages` close it.
pub fn routes(front: &Arc<Front>, stages: &Stages) -> Router {
    let body_bytes_max = usize::try_from(front.limits.body.bytes_max).unwrap_or(usize::MAX);
    let service = Arc::new(service::Service::new(front, stages));
    // What is sent back is numbers: whoever wants them packed asks a proxy.
    let small = GrpcInferenceServiceServer::from_arc(Arc::clone(&service))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(SMALL_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let large = large::routes(service, body_bytes_max);
    // Whoever has a channel that packs asks for these by it as well.
    let health = HealthServer::new(health::Health::new(front, stages))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let reflection = ServerReflectionServer::new(reflection::Reflection::new())
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let bounded = middleware::from_fn_with_state(unadmitted::open(), unadmitted::bounded);
    let described = middleware::from_fn_with_state(unadmitted::described(), unadmitted::bounded_once_read);
    let router = CALLS.into_iter().fold(large, |router, path| {
        if matches!(path, INFER | LOAD | STREAM) {
            router
        } else if DESCRIPTIONS.contains(&path) {
            router.route(path, any_service(small.clone()).layer(described.clone()))
        } else if path.starts_with("/inference.") {
            router.route_service(path, small.clone())
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

/// What a path that is no call of ours gets.
async fn unimplemented(request: Request) -> Response {
    let path = clipped(request.uri().path());
    Status::new(
        Code::Unimplemented,
        format!("there is no call {path:?}; reflection lists those that there are"),
    )
    .into_http()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol;
    use prost_reflect::DescriptorPool;

    #[test]
    fn what_describes_models_is_a_call() {
        assert!(DESCRIPTIONS.iter().all(|path| CALLS.contains(path)));
    }

    #[test]
    fn every_call_that_is_defined_has_a_route() {
        let pool = DescriptorPool::decode(protocol::DESCRIPTORS).unwrap();
        let mut defined: Vec<String> = pool
            .services()
            .flat_map(|service| {
                let name = service.full_name().to_owned();
                service.methods().map(|method| format!("/{name}/{}", method.name())).collect::<Vec<_>>()
            })
            .collect();
        for version in ["v1", "v1alpha"] {
            defined.push(format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"));
        }
        defined.sort();
        let mut routed = CALLS.to_vec();
        routed.sort_unstable();
        assert_eq!(routed, defined);
    }
}
