//! The Protocol Buffers messages of our protocols, generated from the definitions in this folder when the crate is built.
//!
//! - `inference.proto`: the Open Inference Protocol with Triton's extensions.
//! - `model_config.proto`: a model's configuration, as in `config.pbtxt` and `ModelConfig`.
//! - `health.proto`: gRPC's own health checks.
//! - `torchserve.proto`: TorchServe's own service.
//! - `generate.rs`: the code generation that the build script runs.

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::restriction
)]
mod generated {
    pub mod inference {
        include!(concat!(env!("OUT_DIR"), "/inference.rs"));
    }
    pub mod health {
        include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
    }
    pub mod torchserve {
        include!(concat!(env!("OUT_DIR"), "/org.pytorch.serve.grpc.inference.rs"));
    }
}

pub use generated::{health, inference, torchserve};

/// The definitions, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
