//! gRPC: the service of `http` for clients of the Open Inference Protocol and of Triton that use gRPC. Connections, admission, deadlines,
//! queues and metrics are those of `http`; this module adds only the messages and the error codes.
//!
//! - `around`: middleware for every call: name, span, admission, counts; `unadmitted`: limits for open calls that are not admitted.
//! - `incoming`: the bytes of a call, within their limits.
//! - `large`: the calls whose messages may be large; `codec`: the memory that such a message needs, computed before it is decoded.
//! - `service`: the calls; `inference`: those that run a model; `change`: parameters of those that load and unload models;
//!   `log_settings`: those of the log; `convert`: tensors from and to messages.
//! - `health`: gRPC's own health checks; `reflection`: descriptions of the calls.
//! - `status`: the table from errors to codes.

mod around;
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
mod unadmitted;

use crate::{
    http::{
        Front,
        accept::{FRAME_BYTES_MAX, Stages},
    },
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
const CALLS: [&str; 22] = [
    "/grpc.health.v1.Health/Check",
    WATCH,
    REFLECTION,
    REFLECTION_ALPHA,
    "/inference.GRPCInferenceService/CudaSharedMemoryStatus",
    "/inference.GRPCInferenceService/CudaSharedMemoryUnregister",
    "/inference.GRPCInferenceService/LogSettings",
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
/// Sends the server's health, and each change of it.
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Descriptions of the calls, one request after another.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// An earlier version of the same, with the same messages: Python's library uses only this one.
const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
/// Calls whose answers grow with the number of models, or with what is known about one.
const DESCRIPTIONS: [&str; 5] = [
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelStatistics",
    "/inference.GRPCInferenceService/RepositoryIndex",
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
];
/// What the paths begin with under the name that TorchServe has for the service; the messages are the same.
const TORCHSERVE: &str = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/";
/// The calls of that service.
const OF_TORCHSERVE: [&str; 6] = [
    INFER,
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ServerReady",
];
/// One inference.
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// A load, whose message may include a model's files.
const LOAD: &str = "/inference.GRPCInferenceService/RepositoryModelLoad";
/// A stream of inferences.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The largest message of a call without data, packed or not. Nothing is charged for it, so it must be no larger than a header may be.
const SMALL_BYTES_MAX: usize = 64 * 1024;
// A message that is too large comes in several frames, and is refused by the length in the first.
const _: () = assert!(FRAME_BYTES_MAX as usize <= SMALL_BYTES_MAX);

/// The path that TorchServe has for a call.
fn torchserves(path: &str) -> String {
    format!("{TORCHSERVE}{}", method(path))
}

/// A path of TorchServe's by the name that the call has here.
fn ours(path: &str) -> Option<&'static str> {
    let theirs = path.strip_prefix(TORCHSERVE)?;
    OF_TORCHSERVE.into_iter().find(|ours| method(ours) == theirs)
}

fn method(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, method)| method)
}

/// The paths of all calls, for the metrics.
pub fn paths() -> Vec<&'static str> {
    CALLS.to_vec()
}

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
    let large = large::routes(service, body_bytes_max);
    // Clients whose channel compresses use it for these calls as well.
    let health = HealthServer::new(health::Health::new(front, stages))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let reflection = ServerReflectionServer::new(reflection::Reflection::new())
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let bounded = middleware::from_fn_with_state(unadmitted::open(), unadmitted::bounded);
    let described = middleware::from_fn_with_state(unadmitted::described(), unadmitted::bounded_once_read);
    let theirs = OF_TORCHSERVE.into_iter().map(|path| (path, torchserves(path)));
    let routed = CALLS.into_iter().map(|path| (path, path.to_owned())).chain(theirs);
    let router = routed.fold(large, |router, (path, at)| {
        if matches!(path, INFER | LOAD | STREAM) {
            router
        } else if DESCRIPTIONS.contains(&path) {
            router.route(&at, any_service(small.clone()).layer(described.clone()))
        } else if path.starts_with("/inference.") {
            router.route_service(&at, small.clone())
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
    fn calls_of_torchserves_name_are_those_of_ours() {
        for path in OF_TORCHSERVE {
            assert!(CALLS.contains(&path) && ours(&torchserves(path)) == Some(path), "{path}");
        }
        for path in [INFER, &torchserves(STREAM), &format!("{TORCHSERVE}Infer")] {
            assert_eq!(ours(path), None, "{path}");
        }
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
