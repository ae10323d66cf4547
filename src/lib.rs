//! Ocelli: a long-running HTTP service that runs image models.
//!
//! # The way of a request
//!
//! ```text
//! tokio task, one per request                     OS thread, one per device worker
//! http::accept    connection, clocks              devices::worker   loop:
//! http            layers, admission, extract        take   batch::policy decides (waiting, now, limits)
//! image           decode on a bounded CPU pool,     stage  engine::staging hands over one contiguous batch,
//!                 pixels into a staging slot               pinned where a GPU copies from it
//! batch::queue    push: bounded in items, bytes     start  engine::Engine::start, and on to the next batch
//! (await)      <------------ oneshot ------------   devices::landing  waits, batch::queue::finish answers each job once
//! tasks           outputs -> answers
//! http::wire      answers -> JSON
//! ```
//!
//! A stack of camera frames for a fitter goes in and out in pieces, while it arrives. `http::handlers::localize` drives `image::stack`
//! (bytes to frames) and `engine::kernels::spots` (frames to ROIs) on the decode pool. The ROIs go through the same queue to
//! `engine::gauss_mle`; where a GPU serves the model, whole frames do, and the GPU finds the spots itself. `tasks::localize` turns the
//! results into a file or a picture. `kernels/` holds the C++ of both, one source for the vector units of the CPU and for CUDA, and what
//! GPUs do before and after a network; `kernels/generated` has the PTX that `make kernels` builds from it.
//!
//! Images are staged as 8-bit pixels (16-bit if they have so many); the engine normalises them, on a GPU with a kernel that writes
//! straight into the network's input (`engine::ends`). Images of measured values, and those whose channels are the pages of a file, are
//! staged as the network's own numbers. Where an answer needs little of an output, only that leaves the GPU
//! (`engine::reduction`).
//!
//! A machine's CPU is one device, and so is each GPU (`engine::cuda`, whose driver is found at run time). Several batches of a GPU are in
//! flight at once; each holds the memory that it reads and writes, so nothing waits for the slowest. A thread per device keeps it
//! (`devices::keeper`): takes it when `devices::lease` says that others leave room, has models loaded and tried, gives it back when
//! `devices::health` says that it is faulty, and tries again. Work that was on it goes back to its lane and to other devices
//! (`batch::book`). With `isolation = "process"` a GPU's engines live in a process of their own (`engine::child`), behind the same trait.
//!
//! # What never happens
//!
//! - **`http`, with `grpc` on it, and `devices` do not know each other**: work meets in `batch`, state in `status`.
//! - **`batch::{lanes, policy}` read no clock, take no lock and start no thread**: time is passed in, so that
//!   `batch::sim` can run them through thousands of seeds.
//! - **`unsafe` lives under `engine` and nowhere else**, each block with its reason.
//! - **Nobody pushes to a device**: workers pull, so a device that disappears strands nothing. A CPU batch that takes less time than its
//!   worker takes to wake is run by the thread that pushed the job, on the worker's behalf (`batch::queue::Inline`).
//! - **Nothing in a request becomes a path or an outbound connection**: models are looked up in a map. The one exception is a plain name
//!   under `/dev/shm`, from callers who may control the server (`http::handlers::shared_memory`); it is off by default.
//! - **No queue without a bound**: in items and in bytes; full is an answer, never a panic.
//! - **A job is answered exactly once**; one that is dropped unanswered becomes an error with its cause.
//!
//! Imports point one way (`tests/it/tidy.rs` reads the `use crate::` lines and keeps it so):
//! `main → cli → app → grpc → {http, devices} → models → {batch, tasks} → engine → image`, with `config`, `error`, `protocol`,
//! `status` and `telemetry` as leaves; `bits`, `random` and `words` are there for all. Those in braces do not use each other. The parts of
//! each module use each other one way as well (`tests/it/circles.rs`).

// Documents are for those who read the code.
#![allow(rustdoc::private_intra_doc_links)]

// In the order a newcomer should read them. Plain comments: links in a module's own documents would be looked up from here otherwise.

// Builds every part from the leaves up, binds the sockets, and hands back something that can be drained.
pub mod app;
// Jobs and batches: lanes, the policy that forms batches, the queue, and the simulation of all three.
pub mod batch;
// Numbers that must reach another process bit by bit.
pub(crate) mod bits;
// The command line: `serve`, `check`, `devices`, `predict`, `bench`, `tune`, `health`, `config`, `completions`.
pub mod cli;
// Options: file, environment and flags in, one checked and immutable `Config` out.
pub mod config;
// Devices: taking them, giving them back, whether they work, and the OS threads that own what is on them.
pub mod devices;
// Engines and their memory. All `unsafe` lives here.
pub mod engine;
// Why a request has no answer.
pub mod error;
// gRPC: the same service by another protocol, built on parts of the HTTP front.
pub mod grpc;
// The front: the accept loop, the routes and their layers, the wire formats, the page.
pub mod http;
// Bytes to frames to model input. Pure.
pub mod image;
// The model folder: manifests, the catalog of what can be served, and what a request needs to know of a model.
pub mod models;
// Generated messages: the inference protocol over gRPC, and `config.pbtxt`.
pub mod protocol;
// Numbers that look random and are the same for the same seed.
pub mod random;
// What the process knows about itself: live, draining, devices, ready.
pub mod status;
// Engine outputs to answers: classify, detect, segment, image, landmarks, embed, tensors, localize.
pub mod tasks;
// Logs, metrics and traces.
pub mod telemetry;
// Helpers for messages to people: shortened values, causes, suggestions of names.
pub(crate) mod words;

#[cfg(test)]
mod blessed;
#[cfg(test)]
mod worse;
