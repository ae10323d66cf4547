//! The calls by their paths, and the size of a message where little is sent.

use crate::http::accept::FRAME_BYTES_MAX;

/// Every call that is answered, by its path.
pub(super) const CALLS: [&str; 25] = [
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
    PING,
    PREDICTIONS,
    STREAM_PREDICTIONS,
];
/// Sends the server's health, and each change of it.
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Descriptions of the calls, one request after another.
pub(super) const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// An earlier version of the same, with the same messages: Python's library uses only this one.
pub(super) const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
/// Calls whose answers grow with the number of models, or with what is known about one.
pub(super) const DESCRIPTIONS: [&str; 5] = [
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelStatistics",
    "/inference.GRPCInferenceService/RepositoryIndex",
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
];
/// What the paths begin with under the name that TorchServe has for the service; the messages are the same.
const TORCHSERVE: &str = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/";
/// The calls of that service.
pub(super) const OF_TORCHSERVE: [&str; 6] = [
    INFER,
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ServerReady",
];
/// One inference.
pub(super) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// A load, whose message may include a model's files.
pub(super) const LOAD: &str = "/inference.GRPCInferenceService/RepositoryModelLoad";
/// TorchServe's own service: its health.
pub(super) const PING: &str = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping";
/// A file for a model.
pub(super) const PREDICTIONS: &str = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions";
/// The same, for an answer that may come in several messages.
pub(super) const STREAM_PREDICTIONS: &str =
    "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions";
/// A stream of inferences.
pub(super) const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The calls that run a model.
pub(super) const INFERENCES: [&str; 4] = [INFER, STREAM, PREDICTIONS, STREAM_PREDICTIONS];

/// The largest message of a call without data, packed or not. Nothing is charged for it, so it must be no larger than a header may be.
pub(super) const SMALL_BYTES_MAX: usize = 64 * 1024;
// A message that is too large comes in several frames, and is refused by the length in the first.
const _: () = assert!(FRAME_BYTES_MAX as usize <= SMALL_BYTES_MAX);

/// The path that TorchServe has for a call.
pub(super) fn torchserves(path: &str) -> String {
    format!("{TORCHSERVE}{}", method(path))
}

/// A path of TorchServe's by the name that the call has here.
pub(super) fn ours(path: &str) -> Option<&'static str> {
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
