//! Devices: what runs batches.
//!
//! - [`supervisor`]: loads models onto devices, proves each by a forward pass, hands the engines to workers, publishes them.
//! - `device`: one device and its workers; `place`: which of them a model is loaded on; `forward`: the passes that prove it,
//!   with shapes of `warm`, sizes of `trial` and an end (`bounded`); `company`: that its rows have nothing to do with each other;
//!   [`plan`]: whether it fits.
//! - `parts`: what all of them are given; `refusal`: what a device cannot do, and whether it may another time.
//! - `keeper`: who takes devices, gives them back and tries again; [`lease`]: when a shared GPU is taken; [`health`]: what
//!   follows from what is seen of a device; `claim`: both together; `book`: what is to be served where. `sim`: claims and the real
//!   queue on machines that are none, through many seeds.
//! - `found`: what there is, for people; `meanwhile`: what is done every so often while a load or a pass goes on.
//! - `worker`: one OS thread that owns engines, pulls batches for them, stages and begins them; `landing`: waits for what was
//!   begun, and answers it.
//! - [`probe`]: what can be known of GPUs from outside.
//!
//! A machine's CPU is one device, and so is each GPU; each has as many workers as a model may have instances on it.

mod book;
mod bounded;
mod claim;
mod company;
mod device;
mod forward;
mod found;
pub mod health;
mod keeper;
mod landing;
pub mod lease;
mod meanwhile;
mod parts;
mod place;
pub mod plan;
pub mod probe;
mod refusal;
#[cfg(test)]
mod sim;
pub mod supervisor;
mod trial;
mod warm;
mod worker;

pub use device::CPU;
pub use found::{Found, FoundGpu, find};
pub use parts::{Parts, Sharing, Wanted};
pub use supervisor::{Devices, LoadedOn, Loading};
