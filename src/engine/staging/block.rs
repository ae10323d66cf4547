//! Blocks of host memory, plain or pinned for a device, and a store that reuses them.
#![allow(unsafe_code)]

use super::{arena::ALIGN, region::Region};
use crate::engine::tensor::{Tensor, TensorView};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

/// Pinned memory consists of whole pages, so that no other memory shares them.
const PAGE: usize = 4096;

/// Batches whose blocks a store keeps: three in flight, and one that is being assembled or answered.
const BATCHES: usize = 4;
/// Free blocks that a store keeps at least: enough for three batches of two inputs.
const FREE_BLOCKS_MAX: usize = 6;

/// Keeps memory pinned. Dropping it unpins the memory, and waits for that.
pub type Pin = Box<dyn Release>;

/// A pin, which can also be released without waiting.
pub trait Release: Send + Sync {
    /// Unpins without waiting for the device, and drops the memory once it is unpinned.
    fn release(self: Box<Self>, memory: Box<dyn Send>);
}

/// Pins host memory for a device, so that the device copies from and to it by itself while the host does other things.
pub trait Pinner: fmt::Debug + Send + Sync {
    /// Pins memory; `None` if the device refuses: copies are then slower, but correct.
    ///
    /// # Safety
    /// The memory must stay allocated until the pin is dropped, or drops the memory itself ([`Release::release`]).
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Option<Pin>;

    /// Whether the memory is pinned now: the device may be unavailable for a while.
    fn is_known(&self) -> bool {
        true
    }

    /// Identifies the device: the same for all pinners of one device.
    fn owner(&self) -> usize;
}

/// The kind of memory to allocate.
#[derive(Debug, Clone, Default)]
pub enum Memory {
    /// Ordinary host memory.
    #[default]
    Plain,
    /// Memory that a device copies from and to by itself.
    Pinned(Arc<dyn Pinner>),
    /// Memory shared with child processes whose devices copy from and to it; ordinary host memory if that is full.
    Shared(Region),
    /// Memory shared with the parent process, to which a device writes results that the parent reads. If that is full: pinned memory
    /// of this process, from which results are copied on.
    Landing(Region, Arc<dyn Pinner>),
}

impl Memory {
    /// Whether a device copies from and to this kind of memory by itself.
    pub fn is_pinned(&self) -> bool {
        !matches!(self, Memory::Plain)
    }

    /// Whether the device for which the other memory is pinned can now also copy from this memory by itself. It must not copy from
    /// memory that is pinned for another device: that may be unpinned while this one still copies.
    pub(super) fn is_known_to(&self, other: &Memory) -> bool {
        match (self, other) {
            (Memory::Pinned(ours), Memory::Pinned(theirs)) => {
                ours.owner() == theirs.owner() && ours.is_known()
            }
            (Memory::Shared(_) | Memory::Landing(..), Memory::Shared(_) | Memory::Landing(..)) => true,
            _ => false,
        }
    }

    /// A block of at least `bytes` initialised bytes.
    pub(super) fn block(&self, bytes: usize) -> Block {
        match self {
            Memory::Plain => Block::new(bytes, ALIGN),
            Memory::Pinned(pinner) => Block::pinned(bytes, &**pinner),
            Memory::Shared(region) => {
                // The engine copies it: slower, but correct.
                Block::shared(bytes, region).unwrap_or_else(|| Block::new(bytes, ALIGN))
            }
            Memory::Landing(region, pinner) => {
                Block::shared(bytes, region).unwrap_or_else(|| Block::pinned(bytes, &**pinner))
            }
        }
    }
}

/// A block of initialised bytes that does not move.
pub(super) struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// The owner of the memory, until the block is dropped; `shared` says whether it is part of a region.
    of: Option<Box<dyn Send>>,
    shared: bool,
    pin: Option<Pin>,
}

/// Ordinary host memory.
struct Heap(NonNull<u8>, Layout);

// SAFETY: the memory is owned, and is not read or written through this type.
unsafe impl Send for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `Block::new` with this layout; it is no longer pinned.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

// SAFETY: a block is plain memory with one owner; `Slot` and `Lent` decide who may write which part.
unsafe impl Send for Block {}
// SAFETY: as above; shared access only reads parts that nobody writes any more.
unsafe impl Sync for Block {}

impl Block {
    /// At least `bytes`, in whole multiples of `align`.
    fn new(bytes: usize, align: usize) -> Block {
        let layout = Layout::from_size_align(bytes.max(1), align).map(|layout| layout.pad_to_align());
        let layout = layout.expect("sizes of blocks are checked by Staging::new, or are those of data");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Block {
            start,
            bytes: layout.size(),
            of: Some(Box::new(Heap(start, layout))),
            shared: false,
            pin: None,
        }
    }

    /// The same, pinned for a device.
    fn pinned(bytes: usize, pinner: &dyn Pinner) -> Block {
        let mut block = Block::new(bytes, PAGE);
        // SAFETY: when the block is dropped, the pin takes over the memory and drops it after unpinning.
        block.pin = unsafe { pinner.pin(block.start, block.bytes()) };
        block
    }

    /// A part of a region, if there is room.
    fn shared(bytes: usize, region: &Region) -> Option<Block> {
        let part = region.lend(bytes)?;
        Some(Block {
            start: part.start(),
            bytes: part.len(),
            of: Some(Box::new(part)),
            shared: true,
            pin: None,
        })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (Some(pin), Some(of)) = (self.pin.take(), self.of.take()) {
            pin.release(of);
        }
    }
}

/// A store of blocks that are lent out and come back.
#[derive(Clone)]
pub struct Blocks {
    store: Arc<Store>,
}

struct Store {
    memory: Memory,
    free_max: usize,
    free: Mutex<Vec<Block>>,
}

impl Blocks {
    /// An empty store of this kind of memory.
    pub fn new(memory: Memory) -> Blocks {
        Blocks::for_batches(memory, 0)
    }

    /// The same for batches of `blocks` blocks each: it keeps enough free blocks for all batches that are in flight at once.
    pub fn for_batches(memory: Memory, blocks: usize) -> Blocks {
        let free_max = FREE_BLOCKS_MAX.max(BATCHES * blocks);
        Blocks { store: Arc::new(Store { memory, free_max, free: Mutex::default() }) }
    }

    /// Allocates `blocks` blocks of `bytes` each now, if they have to be pinned, so that no batch waits for that.
    pub fn ready(&self, bytes: usize, blocks: usize) {
        if matches!(self.store.memory, Memory::Pinned(_)) {
            let lent: Vec<Lent> = (0..blocks.min(self.store.free_max)).map(|_| self.lend(bytes)).collect();
            drop(lent);
        }
    }

    /// Their kind of memory.
    pub(super) fn memory(&self) -> &Memory {
        &self.store.memory
    }

    /// Lends `bytes` bytes, aligned to 64. They hold whatever their last user left.
    pub fn lend(&self, bytes: usize) -> Lent {
        // Landing memory costs nothing to allocate and free. It is not kept, so that every user gets a share.
        if let Memory::Landing(region, _) = &self.store.memory
            && let Some(block) = Block::shared(bytes, region)
        {
            return Lent { block: Some(block), bytes, store: Arc::clone(&self.store) };
        }
        let mut free = self.store.free.lock();
        let best = free.iter().enumerate().filter(|(_, block)| block.bytes() >= bytes);
        let best = best.min_by_key(|(_, block)| block.bytes()).map(|(index, _)| index);
        let block = best.map(|index| free.swap_remove(index));
        drop(free);
        let block = block.unwrap_or_else(|| self.store.memory.block(bytes));
        Lent { block: Some(block), bytes, store: Arc::clone(&self.store) }
    }

    /// A tensor with a copy of this one's bytes.
    pub fn copy(&self, view: &TensorView<'_>) -> Tensor {
        let mut data = self.lend(view.data.len());
        data.copy_from_slice(view.data);
        Tensor { datatype: view.datatype, shape: view.shape.clone(), data: data.freeze() }
    }

    /// Gives free blocks back to the system.
    pub fn clear(&self) {
        let blocks = std::mem::take(&mut *self.store.free.lock());
        drop(blocks);
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("memory", &self.store.memory).finish_non_exhaustive()
    }
}

/// Bytes of a store, written by one owner; frozen into [`Bytes`] when they are complete.
pub struct Lent {
    block: Option<Block>,
    bytes: usize,
    store: Arc<Store>,
}

impl Lent {
    /// Ends writing. The block comes back when the last clone of the bytes is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn start(&self) -> *mut u8 {
        self.block.as_ref().expect("it has its block until it is dropped").start()
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block has at least `bytes` initialised bytes, and this is its owner.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        if block.shared && matches!(self.store.memory, Memory::Landing(..)) {
            return;
        }
        let mut free = self.store.free.lock();
        free.push(block);
        // The smallest block is the cheapest to allocate again.
        let spare = (free.len() > self.store.free_max)
            .then(|| (0..free.len()).min_by_key(|index| free[*index].bytes()))
            .flatten()
            .map(|index| free.swap_remove(index));
        drop(free);
        drop(spare);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicUsize, Ordering},
    };

    /// Counts the memory that it pins.
    #[derive(Debug, Default)]
    pub(crate) struct Counter(pub(crate) Arc<AtomicUsize>);

    struct Counted(usize, Arc<AtomicUsize>);

    impl Pinner for Counter {
        unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Option<Pin> {
            assert!(start.addr().get().is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE), "whole pages");
            self.0.fetch_add(bytes, Ordering::SeqCst);
            Some(Box::new(Counted(bytes, Arc::clone(&self.0))))
        }

        fn owner(&self) -> usize {
            Arc::as_ptr(&self.0).addr()
        }
    }

    impl Release for Counted {
        fn release(self: Box<Self>, memory: Box<dyn Send>) {
            drop(self);
            drop(memory);
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_block_comes_back_when_the_last_of_its_bytes_is_dropped_and_is_lent_again() {
        let blocks = Blocks::new(Memory::Plain);
        let mut lent = blocks.lend(100);
        lent.fill(7);
        let place = lent.as_ptr();
        let bytes = lent.freeze();
        let other = blocks.lend(100);
        assert_ne!(other.as_ptr(), place, "it is still lent");
        let part = bytes.slice(50..);
        drop(bytes);
        assert!(part.iter().all(|byte| *byte == 7));
        drop(part);
        assert_eq!(blocks.lend(60).as_ptr(), place, "a block of the same store");
        drop(other);
    }

    #[test]
    fn blocks_for_batches_of_many_tensors_are_all_kept_and_made_once() {
        let pinned = Arc::new(AtomicUsize::new(0));
        let blocks = Blocks::for_batches(Memory::Pinned(Arc::new(Counter(Arc::clone(&pinned)))), 5);
        blocks.ready(PAGE, 100);
        assert_eq!(pinned.load(Ordering::SeqCst), 20 * PAGE, "no more than are kept");
        let places = |lent: &[Lent]| lent.iter().map(|lent| lent.as_ptr().addr()).collect::<BTreeSet<_>>();
        let first: Vec<Lent> = (0..20).map(|_| blocks.lend(PAGE)).collect();
        let known = places(&first);
        drop(first);
        let second: Vec<Lent> = (0..20).map(|_| blocks.lend(PAGE)).collect();
        assert_eq!((places(&second), pinned.load(Ordering::SeqCst)), (known, 20 * PAGE));
        Blocks::new(Memory::Plain).ready(usize::MAX, 1);
    }

    #[test]
    fn a_store_keeps_few_blocks_and_gives_all_back_when_told() {
        let pinned = Arc::new(AtomicUsize::new(0));
        let blocks = Blocks::new(Memory::Pinned(Arc::new(Counter(Arc::clone(&pinned)))));
        let lent: Vec<Lent> = (1..=10).map(|pages| blocks.lend(pages * PAGE)).collect();
        assert_eq!(pinned.load(Ordering::SeqCst), 55 * PAGE);
        drop(lent);
        assert_eq!(pinned.load(Ordering::SeqCst), (5..=10).sum::<usize>() * PAGE, "the largest are kept");
        blocks.clear();
        assert_eq!(pinned.load(Ordering::SeqCst), 0);
    }
}
