//! Devices: what runs batches.
//!
//! - [`supervisor`]: loads models onto devices, proves each by a forward pass, hands the engines to workers, publishes the models.
//! - `device`: one device and its workers. `place`: which devices a model is loaded on. [`plan`]: whether it fits.
//! - `forward`: the passes that prove a model, with shapes of `warm`, sizes of `trial` and a time limit (`bounded`). `company`: whether
//!   it computes its rows independently.
//! - `parts`: what all devices are given. `refusal`: what a device cannot do, and whether it may later.
//! - `keeper`: takes devices, gives them back and tries again. [`lease`]: when a shared GPU is taken. [`health`]: what follows from
//!   observations of a device. `claim`: both together. `book`: what is to be served where. `sim`: claims and the real queue on simulated
//!   machines, through many seeds.
//! - `found`: what devices there are, for people. `meanwhile`: does something regularly while a load or a pass goes on.
//! - `worker`: an OS thread that owns engines, takes batches for them, stages and starts them. `landing`: waits for batches that were
//!   started, and answers them.
//! - [`probe`]: what can be known of GPUs from outside.
//!
//! A machine's CPU is one device, and so is each GPU. Each has as many workers as the model with the most instances needs there.

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
mod probabilities;
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
pub use supervisor::{Devices, LoadedOn, Loading, NotReloaded};

use crate::models::Model;
use std::sync::Arc;

/// A model as devices hold it. They share one `Arc` of it, so its count shows what requests hold even if a device hangs
/// ([`Devices::let_go`]).
type Lent = Arc<Arc<Model>>;
