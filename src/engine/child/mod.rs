//! Engines in a process of their own, so that whatever a driver or a library does there (a segfault, an abort, an error that
//! its process cannot live with) costs one process and no request.
//!
//! ```text
//! parent                                              child (this program again: `ocelli worker`)
//! worker: ChildEngine::start  -- ask 7, 32 bytes -->  serve: reads asks       seat: engine.start
//!         batch in the shared region ..................... read there, by the GPU itself
//! landing: Away::land         <-- answer 7 ---------  desk: results into the region    seat: flight.land
//!         copies them out     -- taken 7 --------->   their memory is free again
//! ```
//!
//! - [`region`]: the shared memory, and [`arena`]: who has which part of it.
//! - `link`: the socket and its messages; `wire`: what they point to.
//! - `parent`: [`Child`], its process, and who waits for what; `ticket`: for which answer; `process`: how that is started and how it ended.
//! - `engine`: [`ChildEngine`], what a worker holds.
//! - [`mod@serve`]: the child; `seat`: an engine in it; `desk`: where its answers go out.
//! - `executor`: [`Isolation`] and [`Executor`], the choice between the two ways.
//! - `recipe`: which engine to make, the one place where it is made.
//!
//! A child ends with its parent: by a signal from the system, and with the socket. It has no request's names and no sockets of
//! callers. Every memory is bounded: the region by the option `isolation_bytes`, what is on its way, in it or in sheets, by the engines'
//! depth.

pub mod arena;
mod desk;
mod engine;
mod executor;
mod link;
mod parent;
mod process;
mod recipe;
pub mod region;
mod seat;
pub mod serve;
mod ticket;
mod wire;

pub use engine::ChildEngine;
pub use executor::{Executor, Isolation, NotOpened};
pub use parent::{Child, Post};
pub use process::Program;
pub use recipe::{Place, Recipe};
pub use region::Region;
pub use serve::serve;
