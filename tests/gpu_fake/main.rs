//! The fake CUDA driver, held to what the real one promises, through cudarc.
//!
//! A binary of its own: which `libcuda.so` a process has is settled once.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../fakes/mod.rs"]
mod fakes;

mod context;
mod faults;
mod launch;
mod order;
mod support;
mod violations;
