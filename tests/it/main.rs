//! One integration binary.
#![allow(clippy::unwrap_used)]

mod accept;
mod api;
mod circles;
mod control;
mod drain;
mod fuzz;
#[path = "../cuda/graph.rs"]
#[allow(dead_code, reason = "the tests on the fake driver take more of it")]
mod graph;
mod imports;
mod isolation;
mod localizations;
mod onnx_runtime;
mod openapi;
mod quiet;
mod signals;
mod statistics;
mod support;
mod threads;
mod tidy;
mod weights;
