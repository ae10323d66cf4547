//! The fake CUDA driver and the fake NVML, held to what the real ones promise, through cudarc and nvml-wrapper; and what the product
//! does with NVML and nvJPEG on fakes of them.
//!
//! A binary of its own: which `libcuda.so` a process has is settled once.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../fakes/mod.rs"]
mod fakes;

mod child;
mod context;
mod faults;
mod jpeg;
mod launch;
mod nvml;
mod order;
mod probe;
mod shared;
mod support;
mod violations;
mod visible;
