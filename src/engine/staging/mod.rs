//! The memory in which batches are assembled, and in which results leave a device.
//!
//! - [`slots`]: slabs of equal slots, into which images are decoded. Adjacent slots form a batch without a copy.
//! - `assemble`: joins the parts of a batch to one tensor per input. Jobs out of order, and tensors from the network, are copied.
//! - [`block`]: blocks of memory, pageable or registered with a device (*pinned*). A device copies from and to pinned memory by
//!   itself while the next batch is staged.
//! - [`region`]: memory that processes share, and [`arena`]: its allocator.
//!
//! An engine shares ownership of its inputs: a batch's memory is reused when nobody reads it any more, however many batches are
//! in flight.

pub mod arena;
mod assemble;
pub mod block;
pub mod region;
pub mod slots;

pub use block::{Blocks, Lent, Memory, Pin, Pinner, Release};
pub use region::Region;
pub use slots::{Slot, Staging};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
