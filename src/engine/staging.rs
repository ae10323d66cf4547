//! The memory in which batches are put together: slabs of equal slots, one slot per item.
//!
//! The decode pool writes an image's tensor straight into a slot; slots are handed out in rising order within a slab,
//! so that jobs which run in the order they came lie side by side and [`Staging::stage`] hands the slab itself to the
//! engine: no copy. Jobs out of order, and tensors from the network, are gathered into one pooled buffer.
#![allow(unsafe_code)]

use super::tensor::Tensor;
use bytes::Bytes;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Slots begin at multiples of this, which suits AVX-512 loads and cache lines.
const ALIGN: usize = 64;

/// Free slabs kept for reuse; more are returned to the system.
const FREE_SLABS_MAX: usize = 4;

/// A fixed block of zeroed bytes, aligned to [`ALIGN`].
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is plain memory with one owner; who may write which part is settled by `Slot`.
unsafe impl Send for Block {}
// SAFETY: as above; shared access only reads parts that nobody writes any more.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Block {
        let layout = Layout::from_size_align(bytes.max(ALIGN), ALIGN)
            .expect("slab sizes are checked by Staging::new");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Block {
            start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)),
            layout,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A block of slots. It goes back to its pool when the last slot is dropped.
struct Slab {
    block: Option<Block>,
    pool: Weak<Pool>,
}

impl Slab {
    fn start(&self) -> *mut u8 {
        self.block
            .as_ref()
            .expect("a slab has its block until it is dropped")
            .start
            .as_ptr()
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
    state: Mutex<State>,
    /// Bytes of all blocks alive, free ones included.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct State {
    free: Vec<Block>,
    /// The slab being handed out, and its next slot.
    current: Option<(Arc<Slab>, usize)>,
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn put_back(&self, block: Block) {
        let mut state = self.lock();
        if state.free.len() < FREE_SLABS_MAX {
            state.free.push(block);
        } else {
            self.bytes.fetch_sub(block.layout.size(), Ordering::Relaxed);
        }
    }
}

/// Slots of one size, for one input of one model.
#[derive(Clone)]
pub struct Staging {
    pool: Arc<Pool>,
}

impl Staging {
    /// Slabs of `slots` slots of `slot_bytes` each. Memory is taken when the first slot is.
    ///
    /// # Errors
    /// If a slab would not fit in the address space.
    pub fn new(slot_bytes: usize, slots: usize) -> Result<Staging, String> {
        let fits = slot_bytes
            .checked_mul(slots.max(1))
            .is_some_and(|bytes| bytes <= isize::MAX as usize - ALIGN);
        if !fits {
            return Err(format!(
                "a staging slab of {slots} items of {slot_bytes} bytes does not fit in memory"
            ));
        }
        let pool = Pool {
            slot_bytes,
            slots: slots.max(1),
            state: Mutex::default(),
            bytes: AtomicUsize::new(0),
        };
        Ok(Staging {
            pool: Arc::new(pool),
        })
    }

    /// Bytes per slot.
    pub fn slot_bytes(&self) -> usize {
        self.pool.slot_bytes
    }

    /// Bytes held now, free slabs included.
    pub fn bytes(&self) -> usize {
        self.pool.bytes.load(Ordering::Relaxed)
    }

    /// The next slot. Its content is whatever its last user left.
    pub fn slot(&self) -> Slot {
        let mut state = self.pool.lock();
        let (slab, index) = match state.current.take() {
            Some(current) => current,
            None => {
                let block = state.free.pop().unwrap_or_else(|| {
                    let block = Block::new(self.pool.slot_bytes * self.pool.slots);
                    self.pool
                        .bytes
                        .fetch_add(block.layout.size(), Ordering::Relaxed);
                    block
                });
                (
                    Arc::new(Slab {
                        block: Some(block),
                        pool: Arc::downgrade(&self.pool),
                    }),
                    0,
                )
            }
        };
        if index + 1 < self.pool.slots {
            state.current = Some((Arc::clone(&slab), index + 1));
        }
        Slot {
            slab,
            offset: index * self.pool.slot_bytes,
            bytes: self.pool.slot_bytes,
        }
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

/// The parts of one input, side by side in memory and padded to a batch size: what an engine reads.
///
/// Padding rows repeat the last row, since zeros may be outside what a model was made for (a division by a norm).
pub fn gather(parts: &[&Tensor], size: usize, buffer: &mut Vec<u8>) -> Tensor {
    let first = parts[0];
    let items: usize = parts.iter().map(|part| part.shape[0]).sum();
    let mut shape = first.shape.clone();
    shape[0] = size;
    if let [only] = parts
        && items == size
        && (only.data.as_ptr() as usize).is_multiple_of(ALIGN.min(8))
    {
        return Tensor {
            datatype: only.datatype,
            shape,
            data: only.data.clone(),
        };
    }
    buffer.clear();
    let row = first.data.len() / first.shape[0].max(1);
    buffer.reserve_exact(row * size);
    for part in parts {
        buffer.extend_from_slice(&part.data);
    }
    for _ in items..size {
        buffer.extend_from_within(row * (items - 1)..row * items);
    }
    Tensor {
        datatype: first.datatype,
        shape,
        data: Bytes::new(),
    }
}
