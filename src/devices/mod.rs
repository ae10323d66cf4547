//! Devices: what runs batches.
//!
//! - [`worker`]: one OS thread that owns engines and pulls batches for them.
//! - [`supervisor`]: loads models, proves each by a forward pass, hands the engines to workers, publishes the models.
//! - [`probe`]: what can be known of GPUs from outside.
//!
//! A machine's CPU is one device with one or more workers; each GPU will be one device with one worker.

pub mod probe;
pub mod supervisor;
pub mod worker;

pub use supervisor::{Devices, Loading, Parts};
