//! Ocelli: a long-running HTTP service that runs image models.
//!
//! # The way of a request
//!
//! ```text
//! tokio task, one per request                     OS thread, one per device worker
//! http::accept    connection, clocks              devices::worker   loop:
//! http            layers, admission, extract        take   batch::policy decides (waiting, now, limits)
//! image           decode on a bounded CPU pool,     stage  engine::staging hands over one contiguous batch
//!                 straight into a staging slot      run    engine::Engine::run
//! batch::queue    push: bounded in items, bytes     reply  batch::queue::finish answers each job once
//! (await)      <------------ oneshot ------------
//! tasks           outputs -> answers
//! http::wire      answers -> JSON
//! ```
//!
//! A stack of camera frames for a fitter goes in and out in pieces, while it comes: `http::localize` drives `image::stack`
//! (bytes to frames) and `engine::kernels::spots` (frames to ROIs) on the decode pool, the ROIs go through the same queue to
//! `engine::gauss_mle`, and `tasks::localize` turns what comes of them into a file or a picture. `kernels/` holds the C++ of
//! both, one source for the vectors of the CPU and for CUDA, and what GPUs do before and after a network; `kernels/generated`
//! has the PTX that `make kernels` makes of it.
//!
//! # What never happens
//!
//! - **`http` and `devices` do not know each other**: work meets in `batch`, state in `status`.
//! - **`batch::{lanes, policy}` read no clock, take no lock and start no thread**: time is passed in, so that
//!   `batch::sim` can run them through thousands of seeds.
//! - **`unsafe` lives under `engine` and nowhere else**, each block with its reason.
//! - **Nobody pushes to a device**: workers pull, so a device that disappears strands nothing.
//! - **Nothing in a request becomes a path or an outbound connection**: models are looked up in a map.
//! - **No queue without a bound**: in items and in bytes; full is an answer, never a panic.
//! - **A job is answered exactly once**; one that is dropped unanswered becomes an error with its cause.
//!
//! Imports point one way (`tests/it/tidy.rs` reads the `use crate::` lines and keeps it so):
//! `main → cli → app → http → batch ← devices → models → tasks → engine → image`, with `config`, `error`, `status`
//! and `telemetry` as leaves.

// In the order a newcomer should read them.

/// Builds every part from the leaves up, binds the sockets, and hands back something that can be drained.
pub mod app;
/// Jobs and batches: lanes, the policy that forms batches, the queue, and the simulation of all three.
pub mod batch;
/// The command line: `serve`, `check`, `health`, `completions`.
pub mod cli;
/// Options: file, environment and flags in, one checked and immutable `Config` out.
pub mod config;
/// Device workers: the OS thread that owns a device and everything on it.
pub mod devices;
/// Engines and their memory. All `unsafe` lives here.
pub mod engine;
/// Why a request has no answer.
pub mod error;
/// The front: the accept loop, the routes and their layers, the wire formats.
pub mod http;
/// Bytes to frames to model input. Pure.
pub mod image;
/// The model folder: manifests, the catalog of what can be served, and what a request needs to know of a model.
pub mod models;
/// What the process knows about itself: live, draining, devices, ready.
pub mod status;
/// Engine outputs to answers: classify, detect, segment, embed, tensors, localize.
pub mod tasks;
/// Logs and metrics.
pub mod telemetry;
