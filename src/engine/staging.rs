//! The memory in which batches are put together: slabs of equal slots, one slot per item.
//!
//! The decode pool writes an image's tensor straight into a slot; slots are handed out in rising order within a slab,
//! so that jobs which run in the order they came lie side by side and [`Staging::stage`] hands the slab itself to the
//! engine: no copy. Jobs out of order, and tensors from the network, are gathered into one pooled buffer.
#![allow(unsafe_code)]

use super::tensor::{Tensor, TensorView};
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
        let layout =
            Layout::from_size_align(bytes.max(ALIGN), ALIGN).expect("slab sizes are checked by Staging::new");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Block { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
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
        self.block.as_ref().expect("a slab has its block until it is dropped").start.as_ptr()
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
    /// Slabs with slots in use.
    slabs: Vec<Weak<Slab>>,
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
        let fits =
            slot_bytes.checked_mul(slots.max(1)).is_some_and(|bytes| bytes <= isize::MAX as usize - ALIGN);
        if !fits {
            return Err(format!(
                "a staging slab of {slots} items of {slot_bytes} bytes does not fit in memory"
            ));
        }
        let pool =
            Pool { slot_bytes, slots: slots.max(1), state: Mutex::default(), bytes: AtomicUsize::new(0) };
        Ok(Staging { pool: Arc::new(pool) })
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
                    self.pool.bytes.fetch_add(block.layout.size(), Ordering::Relaxed);
                    block
                });
                let slab = Arc::new(Slab { block: Some(block), pool: Arc::downgrade(&self.pool) });
                state.slabs.retain(|slab| slab.strong_count() > 0);
                state.slabs.push(Arc::downgrade(&slab));
                (slab, 0)
            }
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
    /// The memory of `parts` as one slice, if they are slots of this pool that lie side by side in order.
    fn side_by_side<'a>(&self, parts: &[&'a Tensor]) -> Option<&'a [u8]> {
        let first = parts.first()?.data.as_ptr().addr();
        let bytes: usize = parts.iter().map(|part| part.data.len()).sum();
        let mut end = first;
        for part in parts {
            if part.data.as_ptr().addr() != end {
                return None;
            }
            end += part.data.len();
        }
        // Collected first: dropping the last hold on a slab takes the lock.
        let slabs: Vec<Arc<Slab>> = self.pool.lock().slabs.iter().filter_map(Weak::upgrade).collect();
        let slab = slabs.iter().find(|slab| {
            let start = slab.start().addr();
            start <= first && end <= start + self.pool.slot_bytes * self.pool.slots
        })?;
        // SAFETY: the range lies in the slab, made of whole frozen slots that `parts` borrow for 'a: they keep the
        // slab alive and are not written any more.
        Some(unsafe { std::slice::from_raw_parts(slab.start().add(first - slab.start().addr()), bytes) })
    }
}

/// Puts the parts of a batch side by side for an engine; one per worker, model and input. Its memory is reused.
#[derive(Default)]
pub struct Assembler {
    buffer: Option<Block>,
}

impl Assembler {
    /// The parts of one input as one tensor, padded to `size` rows.
    ///
    /// No copy when the parts fill the batch and lie side by side (one part, or neighbouring slots of `staging`).
    /// Padding repeats the last row: zeros may be outside what a model was made for.
    ///
    /// With `whole`, there is one part, which has no batch axis.
    pub fn assemble<'a>(
        &'a mut self,
        parts: &[&'a Tensor],
        size: usize,
        whole: bool,
        staging: Option<&Staging>,
    ) -> TensorView<'a> {
        let first = parts[0];
        let bytes: usize = parts.iter().map(|part| part.data.len()).sum();
        let mut shape = first.shape.clone();
        let items: usize = if whole { size } else { parts.iter().map(|part| part.shape[0]).sum() };
        if !whole {
            shape[0] = size;
        }
        let view = |data| TensorView { datatype: first.datatype, shape, data };
        if items == size {
            let aligned = first.data.as_ptr().addr().is_multiple_of(first.datatype.size().unwrap_or(1));
            if let ([only], true) = (parts, aligned) {
                return view(&only.data);
            }
            if let Some(data) = staging.and_then(|staging| staging.side_by_side(parts)) {
                return view(data);
            }
        }
        let last = parts[parts.len() - 1];
        let row = if whole { 0 } else { last.data.len() / last.shape[0].max(1) };
        let total = bytes + row * (size - items);
        let data = self.buffer(total);
        let mut at = 0;
        for part in parts {
            data[at..at + part.data.len()].copy_from_slice(&part.data);
            at += part.data.len();
        }
        for _ in items..size {
            data.copy_within(bytes - row..bytes, at);
            at += row;
        }
        view(data)
    }

    /// At least `bytes` of aligned memory, grown when needed.
    fn buffer(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.as_ref().is_none_or(|block| block.layout.size() < bytes) {
            self.buffer = Some(Block::new(bytes));
        }
        let block = self.buffer.as_mut().expect("made above");
        // SAFETY: the block has at least `bytes` initialised bytes, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(block.start.as_ptr(), bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::DataType;

    fn row(staging: &Staging, value: f32) -> Tensor {
        let mut slot = staging.slot();
        slot.as_chunks_mut::<4>().0.fill(value.to_le_bytes());
        Tensor { datatype: DataType::Fp32, shape: vec![1, slot.len() / 4], data: slot.freeze() }
    }

    fn values(view: &TensorView<'_>) -> Vec<f32> {
        view.data.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    }

    #[test]
    fn slots_taken_in_order_are_one_slice_without_a_copy() {
        let staging = Staging::new(8, 4).unwrap();
        let rows: Vec<Tensor> = (0..4u8).map(|i| row(&staging, f32::from(i))).collect();
        let mut assembler = Assembler::default();
        let view = assembler.assemble(&[&rows[1], &rows[2]], 2, false, Some(&staging));
        assert_eq!(values(&view), [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(view.data.as_ptr(), rows[1].data.as_ptr(), "no copy");
        assert_eq!(view.shape, [2, 2]);
    }

    #[test]
    fn slots_out_of_order_and_across_slabs_are_gathered() {
        let staging = Staging::new(8, 2).unwrap();
        let rows: Vec<Tensor> = (0..4u8).map(|i| row(&staging, f32::from(i))).collect();
        let mut assembler = Assembler::default();
        let view = assembler.assemble(&[&rows[1], &rows[0]], 2, false, Some(&staging));
        assert_eq!(values(&view), [1.0, 1.0, 0.0, 0.0]);
        let view = assembler.assemble(&[&rows[1], &rows[2]], 2, false, Some(&staging));
        assert_eq!(values(&view), [1.0, 1.0, 2.0, 2.0]);
    }

    #[test]
    fn padding_repeats_the_last_row() {
        let staging = Staging::new(4, 4).unwrap();
        let rows = [row(&staging, 1.0), row(&staging, 2.0), row(&staging, 3.0)];
        let parts: Vec<&Tensor> = rows.iter().collect();
        let mut assembler = Assembler::default();
        let view = assembler.assemble(&parts, 4, false, Some(&staging));
        assert_eq!(values(&view), [1.0, 2.0, 3.0, 3.0]);
        assert_eq!(view.shape, [4, 1]);
    }

    #[test]
    fn a_misaligned_network_buffer_is_copied_to_aligned_memory() {
        let bytes = Bytes::from(vec![0u8; 9]).slice(1..9);
        let bytes = if bytes.as_ptr().addr().is_multiple_of(4) {
            Bytes::from(vec![0u8; 10]).slice(2..10)
        } else {
            bytes
        };
        let tensor = Tensor { datatype: DataType::Fp32, shape: vec![1, 2], data: bytes };
        let mut assembler = Assembler::default();
        let view = assembler.assemble(&[&tensor], 1, false, None);
        assert!(view.data.as_ptr().addr().is_multiple_of(4));
    }

    #[test]
    fn slabs_come_back_when_their_last_slot_is_dropped() {
        let staging = Staging::new(64, 2).unwrap();
        for _ in 0..100 {
            let rows = [row(&staging, 0.0), row(&staging, 0.0), row(&staging, 0.0)];
            drop(rows);
        }
        assert!(staging.bytes() <= 128 * 3, "{} bytes held for at most two live slabs", staging.bytes());
    }
}
