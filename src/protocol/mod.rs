//! The messages of the protocols that are written in Protocol Buffers, generated from the definitions in this folder when the
//! crate is built.
//!
//! - `inference.proto`: the Open Inference Protocol with Triton's extensions.
//! - `model_config.proto`: what `config.pbtxt` and `ModelConfig` say of a model.
//! - `health.proto`: gRPC's own health checks.
//! - `generate.rs`: what the build script does with them.

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
}

pub use generated::{health, inference};

/// The definitions, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
