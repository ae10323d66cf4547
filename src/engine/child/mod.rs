//! Engines in a child process, so that a failure in a driver or a library (a segfault, an abort, an error that its process
//! cannot survive) costs one process and no request.
//!
//! ```text
//! parent                                              child (this program again: `ocelli worker`)
//! worker: ChildEngine::start  -- ask 7, 32 bytes -->  serve: reads asks       seat: engine.start
//!         batch in the shared region ..................... read there, by the GPU itself
//! landing: Away::land         <-- answer 7 ---------  desk: results into the region    seat: flight.land
//!         copies them out     -- taken 7 --------->   their memory is free again
//! ```
//!
//! - [`region`](super::staging::region): the shared memory.
//! - `link`: the socket and its messages; `wire`: what the messages point to.
//! - `parent`: [`Child`] and its pending asks; `ticket`: a pending answer; `process`: how the process is started and how it ends.
//! - `engine`: [`ChildEngine`], the proxy that a worker holds.
//! - [`mod@serve`]: the child's main loop; `seat`: an engine in the child; `desk`: how it sends its answers.
//! - `executor`: [`Isolation`] and [`Executor`], the choice between threads and child processes.
//! - `recipe`: which engine to create, and the one place where engines are created.
//!
//! A child ends with its parent: by a signal from the system, and when the socket closes. It knows no names from requests and has no
//! callers' sockets. All memory is bounded: the region by the option `isolation_bytes`; batches in flight, in the region or in sheets
//! (memory for one message), by the engines' depth.

mod desk;
mod engine;
mod executor;
mod link;
mod parent;
mod process;
mod recipe;
mod seat;
pub mod serve;
mod ticket;
mod wire;

pub use engine::ChildEngine;
pub use executor::{Executor, Isolation, NotOpened};
pub use parent::{Child, Post};
pub use process::Program;
pub use recipe::{Place, Recipe};
pub use serve::serve;
