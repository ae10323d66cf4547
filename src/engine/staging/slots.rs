//! Slabs of equal slots, one slot per item: the decode pool writes an image's tensor straight into a slot.
//!
//! Slots are handed out in rising order within a slab. So jobs that run in the order of their arrival lie side by side, and
//! the slab itself goes to the engine without a copy.
#![allow(unsafe_code)]

use super::block::{Block, Memory};
use crate::engine::tensor::Tensor;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Free slabs kept for reuse; more are returned to the system.
const FREE_SLABS_MAX: usize = 4;
/// The same for pinned slabs: pinning takes long.
const FREE_PINNED_SLABS_MAX: usize = 16;

/// A block of slots. It goes back to its pool when the last slot is dropped.
struct Slab {
    block: Option<Block>,
    pool: Weak<Pool>,
}

impl Slab {
    fn start(&self) -> *mut u8 {
        self.block.as_ref().expect("a slab has its block until it is dropped").start()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let (Some(pool), Some(block)) = (self.pool.upgrade(), self.block.take()) {
            pool.put_back(block);
        }
    }
}

struct Pool {
    slot_bytes: usize,
    slots: usize,
    memory: Memory,
    free_max: usize,
    state: Mutex<State>,
    /// Bytes of all allocated blocks, free ones included.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct State {
    free: Vec<Block>,
    /// The slab being handed out, and its next slot.
    current: Option<(Arc<Slab>, usize)>,
    /// Slabs with slots in use.
    slabs: Vec<Weak<Slab>>,
}

impl Pool {
    /// Allocates one more block.
    fn block(&self) -> Block {
        let block = self.memory.block(self.slot_bytes * self.slots);
        self.bytes.fetch_add(block.bytes(), Ordering::Relaxed);
        block
    }

    fn put_back(&self, block: Block) {
        let mut state = self.state.lock();
        if state.free.len() < self.free_max {
            state.free.push(block);
        } else {
            self.bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
        }
    }
}

/// Slots of one size, for one input of one model.
#[derive(Clone)]
pub struct Staging {
    pool: Arc<Pool>,
}

impl Staging {
    /// Slabs of `slots` slots of `slot_bytes` each, in this kind of memory. Memory is allocated with the first slot.
    ///
    /// # Errors
    /// If a slab would not fit in the address space.
    pub fn new(slot_bytes: usize, slots: usize, memory: Memory) -> Result<Staging, String> {
        let fits = slot_bytes.checked_mul(slots.max(1)).is_some_and(|bytes| bytes <= isize::MAX as usize / 2);
        if !fits {
            return Err(format!(
                "a staging slab of {slots} items of {slot_bytes} bytes does not fit in memory"
            ));
        }
        let pool = Pool {
            slot_bytes,
            slots: slots.max(1),
            free_max: if memory.is_pinned() { FREE_PINNED_SLABS_MAX } else { FREE_SLABS_MAX },
            memory,
            state: Mutex::default(),
            bytes: AtomicUsize::new(0),
        };
        Ok(Staging { pool: Arc::new(pool) })
    }

    /// The same, but keeps at most `slabs` free slabs. For large slabs. Must be called before the first slot is taken.
    #[must_use]
    pub fn keeping(mut self, slabs: usize) -> Staging {
        Arc::get_mut(&mut self.pool).expect("nobody else has it yet").free_max = slabs;
        self
    }

    /// Bytes per slot.
    pub fn slot_bytes(&self) -> usize {
        self.pool.slot_bytes
    }

    /// Bytes of all slots of a slab.
    pub fn slab_bytes(&self) -> usize {
        self.pool.slot_bytes * self.pool.slots
    }

    /// Bytes held now, free slabs included.
    pub fn bytes(&self) -> usize {
        self.pool.bytes.load(Ordering::Relaxed)
    }

    /// Allocates memory for `slabs` slabs now, if it has to be pinned, so that no request waits for that.
    pub fn ready(&self, slabs: usize) {
        if !matches!(self.pool.memory, Memory::Pinned(_)) {
            return;
        }
        // Not by their bytes: pinned memory comes in whole pages.
        let held = {
            let state = self.pool.state.lock();
            state.free.len() + state.slabs.iter().filter(|slab| slab.strong_count() > 0).count()
        };
        let made: Vec<Block> = (held..slabs.min(self.pool.free_max)).map(|_| self.pool.block()).collect();
        self.pool.state.lock().free.extend(made);
    }

    /// Gives all memory back to the system, unless some of it is in use. Of pinned slabs, which take long to pin, up to `pinned`
    /// are kept.
    pub fn clear(&self, pinned: usize) {
        let mut state = self.pool.state.lock();
        // The current slab is also held by `current` itself.
        let of_current = |slab: &Weak<Slab>| {
            state
                .current
                .as_ref()
                .is_some_and(|(current, _)| std::ptr::eq(Arc::as_ptr(current), slab.as_ptr()))
        };
        if state.slabs.iter().any(|slab| slab.strong_count() > usize::from(of_current(slab))) {
            return;
        }
        let current = state.current.take();
        drop(state);
        // Dropping it takes the lock, and returns its slab to the free ones.
        drop(current);
        let mut state = self.pool.state.lock();
        let kept = if self.pool.memory.is_pinned() { pinned.min(state.free.len()) } else { 0 };
        let free = state.free.split_off(kept);
        drop(state);
        let bytes = free.iter().map(Block::bytes).sum();
        self.pool.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The next slot. It holds whatever its last user left.
    pub fn slot(&self) -> Slot {
        let mut state = self.pool.state.lock();
        let (slab, index) = loop {
            if let Some(current) = state.current.take() {
                break current;
            }
            if let Some(block) = state.free.pop() {
                let slab = Arc::new(Slab { block: Some(block), pool: Arc::downgrade(&self.pool) });
                state.slabs.retain(|slab| slab.strong_count() > 0);
                state.slabs.push(Arc::downgrade(&slab));
                break (slab, 0);
            }
            // Pinning may take long, so the lock is released: nobody else has to wait for it.
            drop(state);
            let block = self.pool.block();
            state = self.pool.state.lock();
            state.free.push(block);
        };
        if index + 1 < self.pool.slots {
            state.current = Some((Arc::clone(&slab), index + 1));
        }
        Slot { slab, offset: index * self.pool.slot_bytes, bytes: self.pool.slot_bytes }
    }
}

/// One item's memory, written by one owner; frozen into [`Bytes`] when it is complete.
pub struct Slot {
    slab: Arc<Slab>,
    offset: usize,
    bytes: usize,
}

impl Slot {
    /// Ends writing. The bytes give the slot back when their last clone is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `offset + bytes` lies inside the slab, which this slot keeps alive; each slot is handed out once
        // in the life of its slab, so nobody else writes here.
        unsafe { std::slice::from_raw_parts(self.slab.start().add(self.offset), self.bytes) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start().add(self.offset), self.bytes) }
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Staging {
    /// The memory of `parts` as one, if they are adjacent slots of this pool, in order. The result keeps the slab alive.
    pub(super) fn side_by_side(&self, parts: &[&Tensor]) -> Option<Bytes> {
        let first = parts.first()?.data.as_ptr().addr();
        let mut end = first;
        for part in parts {
            if part.data.as_ptr().addr() != end {
                return None;
            }
            end += part.data.len();
        }
        // Collected first: dropping the last reference to a slab takes the lock.
        let slabs: Vec<Arc<Slab>> = self.pool.state.lock().slabs.iter().filter_map(Weak::upgrade).collect();
        let slab = slabs.iter().find(|slab| {
            let start = slab.start().addr();
            start <= first && end <= start + self.pool.slot_bytes * self.pool.slots
        })?;
        let start = slab.start().addr();
        Some(Bytes::from_owner(Frozen { slab: Arc::clone(slab), range: first - start..end - start }))
    }

    /// Whether a tensor lies in one of its slabs.
    #[cfg(test)]
    pub(crate) fn has(&self, tensor: &Tensor) -> bool {
        self.side_by_side(&[tensor]).is_some()
    }

    /// As [`Memory::is_known_to`], for the memory of these slabs.
    pub(super) fn is_known_to(&self, memory: &Memory) -> bool {
        self.pool.memory.is_known_to(memory)
    }
}

/// Adjacent slots that were frozen. Their slab is not handed out again while this holds it.
struct Frozen {
    slab: Arc<Slab>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range lies in the slab and covers whole frozen slots. A slot is handed out once in the life of its slab,
        // so nobody writes them any more.
        unsafe { std::slice::from_raw_parts(self.slab.start().add(self.range.start), self.range.len()) }
    }
}
