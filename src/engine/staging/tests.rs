//! Slots, blocks and batches made of them.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(unsafe_code)] // the pinner of a test

use super::{block::tests::Counter, *};
use crate::engine::{DataType, Tensor};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

fn row(staging: &Staging, value: f32) -> Tensor {
    let mut slot = staging.slot();
    slot.as_chunks_mut::<4>().0.fill(value.to_le_bytes());
    Tensor { datatype: DataType::Fp32, shape: vec![1, slot.len() / 4], data: slot.freeze() }
}

fn values(view: &Tensor) -> Vec<f32> {
    view.data.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

#[test]
fn slots_taken_in_order_are_one_slice_without_a_copy() {
    let staging = Staging::new(8, 4, Memory::Plain).unwrap();
    let rows: Vec<Tensor> = (0..4u8).map(|i| row(&staging, f32::from(i))).collect();
    let blocks = Blocks::new(Memory::Plain);
    let view = blocks.assemble(&[&rows[1], &rows[2]], 2, false, Some(&staging));
    assert_eq!(values(&view), [1.0, 1.0, 2.0, 2.0]);
    assert_eq!(view.data.as_ptr(), rows[1].data.as_ptr(), "no copy");
    assert_eq!(view.shape, [2, 2]);
}

#[test]
fn slots_out_of_order_and_across_slabs_are_gathered() {
    let staging = Staging::new(8, 2, Memory::Plain).unwrap();
    let rows: Vec<Tensor> = (0..4u8).map(|i| row(&staging, f32::from(i))).collect();
    let blocks = Blocks::new(Memory::Plain);
    let view = blocks.assemble(&[&rows[1], &rows[0]], 2, false, Some(&staging));
    assert_eq!(values(&view), [1.0, 1.0, 0.0, 0.0]);
    let view = blocks.assemble(&[&rows[1], &rows[2]], 2, false, Some(&staging));
    assert_eq!(values(&view), [1.0, 1.0, 2.0, 2.0]);
}

#[test]
fn padding_repeats_the_last_row() {
    let staging = Staging::new(4, 4, Memory::Plain).unwrap();
    let rows = [row(&staging, 1.0), row(&staging, 2.0), row(&staging, 3.0)];
    let parts: Vec<&Tensor> = rows.iter().collect();
    let blocks = Blocks::new(Memory::Plain);
    let view = blocks.assemble(&parts, 4, false, Some(&staging));
    assert_eq!(values(&view), [1.0, 2.0, 3.0, 3.0]);
    assert_eq!(view.shape, [4, 1]);
    for first in [1, 2] {
        let numbers = [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
        let part = |rows: Range<usize>| Tensor {
            datatype: DataType::Fp32,
            shape: vec![rows.len(), 1],
            data: Bytes::copy_from_slice(&numbers[4 * rows.start..4 * rows.end]),
        };
        let view = blocks.assemble(&[&part(0..first), &part(first..3)], 4, false, None);
        assert_eq!(values(&view), [1.0, 2.0, 3.0, 3.0], "the first part has {first} rows");
    }
}

#[test]
fn a_misaligned_network_buffer_is_copied_to_aligned_memory() {
    let bytes = Bytes::from(vec![0u8; 9]).slice(1..9);
    let bytes =
        if bytes.as_ptr().addr().is_multiple_of(4) { Bytes::from(vec![0u8; 10]).slice(2..10) } else { bytes };
    let tensor = Tensor { datatype: DataType::Fp32, shape: vec![1, 2], data: bytes };
    let blocks = Blocks::new(Memory::Plain);
    let view = blocks.assemble(&[&tensor], 1, false, None);
    assert!(view.data.as_ptr().addr().is_multiple_of(4));
}

#[test]
fn slabs_come_back_when_their_last_slot_is_dropped() {
    let staging = Staging::new(64, 2, Memory::Plain).unwrap();
    for _ in 0..100 {
        let rows = [row(&staging, 0.0), row(&staging, 0.0), row(&staging, 0.0)];
        drop(rows);
    }
    assert!(staging.bytes() <= 128 * 3, "{} bytes held for at most two live slabs", staging.bytes());
}

#[test]
fn slabs_that_nobody_uses_are_given_back_when_that_is_asked_for() {
    let staging = Staging::new(8, 2, Memory::Plain).unwrap();
    let (first, second) = (row(&staging, 1.0), row(&staging, 2.0));
    let third = row(&staging, 3.0);
    let held = staging.bytes();
    drop((first, second));
    staging.clear(1);
    assert_eq!(staging.bytes(), held, "somebody uses one: others are about to");
    assert_eq!(values(&third), [3.0; 2]);
    // Its slab is only half handed out.
    drop(third);
    staging.clear(1);
    assert_eq!(staging.bytes(), 0);
    assert_eq!(values(&row(&staging, 4.0)), [4.0; 2]);

    let staging = Staging::new(8, 1, pinned(&Arc::default())).unwrap();
    drop([1.0, 2.0, 3.0].map(|value| row(&staging, value)));
    let slab = staging.bytes() / 3;
    staging.clear(2);
    assert_eq!(staging.bytes(), 2 * slab, "requests need not wait until a device knows these");
}

fn pinned(bytes: &Arc<AtomicUsize>) -> Memory {
    Memory::Pinned(Arc::new(Counter(Arc::clone(bytes))))
}

/// A device that is slow to pin the first memory.
#[derive(Debug)]
struct Slow {
    began: mpsc::Sender<()>,
    goes_on: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Pinner for Slow {
    unsafe fn pin(&self, _: NonNull<u8>, _: usize) -> Option<Pin> {
        let goes_on = self.goes_on.lock().take();
        if let Some(goes_on) = goes_on {
            self.began.send(()).unwrap();
            // An error: the test has ended.
            let _ = goes_on.recv();
        }
        None
    }

    fn owner(&self) -> usize {
        0
    }
}

#[test]
fn while_a_device_is_told_of_one_slab_others_are_handed_out_and_come_back() {
    let ((began, begins), (release, goes_on)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow { began, goes_on: Mutex::new(Some(goes_on)) };
    let staging = Staging::new(8, 1, Memory::Pinned(Arc::new(slow))).unwrap();
    let (theirs, others) = (staging.clone(), staging.clone());
    let first = std::thread::spawn(move || drop(theirs.slot()));
    begins.recv().unwrap();
    let (tell, told) = mpsc::channel();
    let second = std::thread::spawn(move || {
        drop(row(&others, 2.0));
        tell.send(()).unwrap();
    });
    let patience = Duration::from_secs(60);
    let told = told.recv_timeout(patience);
    release.send(()).unwrap();
    assert_eq!(told, Ok(()), "it does not wait for the device");
    first.join().unwrap();
    second.join().unwrap();
}

/// The device of a counter, after it has been released.
#[derive(Debug)]
struct Gone(Counter);

impl Pinner for Gone {
    unsafe fn pin(&self, _: NonNull<u8>, _: usize) -> Option<Pin> {
        None
    }

    fn is_known(&self) -> bool {
        false
    }

    fn owner(&self) -> usize {
        self.0.owner()
    }
}

#[test]
fn a_device_reads_pinned_slots_in_place_and_the_rest_from_a_pinned_copy() {
    let counted = Arc::new(AtomicUsize::new(0));
    let blocks = Blocks::new(pinned(&counted));
    let gone = Memory::Pinned(Arc::new(Gone(Counter(Arc::clone(&counted)))));
    let others = pinned(&Arc::default());
    for (memory, in_place) in
        [(pinned(&counted), true), (Memory::Plain, false), (gone, false), (others, false)]
    {
        let staging = Staging::new(8, 4, memory).unwrap();
        let rows = [row(&staging, 1.0), row(&staging, 2.0)];
        let parts: Vec<&Tensor> = rows.iter().collect();
        let tensor = blocks.assemble(&parts, 2, false, Some(&staging));
        assert_eq!(tensor.data.as_ptr() == rows[0].data.as_ptr(), in_place);
        assert_eq!(values(&tensor), [1.0, 1.0, 2.0, 2.0]);
    }
    let network = Tensor { datatype: DataType::Fp32, shape: vec![1, 2], data: Bytes::from(vec![0; 8]) };
    let tensor = blocks.assemble(&[&network], 1, false, None);
    assert_ne!(tensor.data.as_ptr(), network.data.as_ptr(), "the network's memory is not pinned");
    drop((tensor, blocks));
    assert_eq!(counted.load(Ordering::SeqCst), 0, "all pins are gone with their memory");
}

#[test]
fn a_batch_on_its_way_keeps_its_memory_while_the_next_one_is_put_together() {
    let blocks = Blocks::new(Memory::Plain);
    let part = |value: u8| Tensor { datatype: DataType::Uint8, shape: vec![1, 1], data: vec![value].into() };
    let batch = |value| blocks.assemble(&[&part(value), &part(value)], 3, false, None);
    let (first, second) = (batch(1), batch(2));
    assert_eq!((&first.data[..], &second.data[..]), (&[1; 3][..], &[2; 3][..]));
    let place = first.data.as_ptr();
    drop(first);
    assert_eq!(batch(3).data.as_ptr(), place, "memory is used again when its batch is done");
}

#[test]
fn a_slab_that_a_batch_reads_is_not_handed_out_when_its_rows_are_gone() {
    let staging = Staging::new(8, 2, Memory::Plain).unwrap();
    let rows = [row(&staging, 1.0), row(&staging, 2.0)];
    let parts: Vec<&Tensor> = rows.iter().collect();
    let batch = Blocks::new(Memory::Plain).assemble(&parts, 2, false, Some(&staging));
    drop(rows);
    let _others: Vec<Tensor> = (0..8u8).map(|_| row(&staging, 9.0)).collect();
    assert_eq!(values(&batch), [1.0, 1.0, 2.0, 2.0]);
}
