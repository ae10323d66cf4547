//! The GPU path of the service on a fake CUDA driver, which runs our kernels' device code on the host.
#![allow(clippy::unwrap_used)]

mod absence;
mod contention;
mod driver;
mod failover;
#[path = "../fakes/mod.rs"]
#[allow(unreachable_pub, reason = "other binaries take it as well")]
mod fakes;
mod fitter;
mod graph;
#[path = "../it/support.rs"]
#[allow(dead_code, reason = "the other binary takes more of it")]
mod http;
mod isolated;
mod jpeg;
mod machine;
mod onnx;
mod pixels;
mod poisoned;
mod process;
mod readings;
mod recording;
mod room;
mod scenarios;
mod search;
mod server;
mod sharing;
mod sizes;
mod staging;
mod support;
mod waiting;
