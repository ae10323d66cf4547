//! The memory in which batches are put together, and in which results leave a device.
//!
//! - [`slots`]: slabs of equal slots, which images are decoded into; those that lie side by side are a batch without a copy.
//! - [`assemble`]: parts of a batch to one tensor per input. Jobs out of order, and tensors from the network, are gathered.
//! - [`block`]: blocks, plain or known to a device (*pinned*), so that it copies by itself while the next batch is staged.
//!
//! What an engine is given it shares: a batch's memory is used again when nobody reads it any more, however many batches are
//! on their way.

pub mod assemble;
pub mod block;
pub mod slots;

pub use assemble::Assembler;
pub use block::{Blocks, Lent, Memory, Pin, Pinner, Release};
pub use slots::{Slot, Staging};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
