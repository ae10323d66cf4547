//! Another process on the GPU, as a server meets it: one that fills the memory, and one that keeps the processors busy. Each says
//! so in a line, and ends when its standard input does.

use crate::{device::Device, given, life::Work, support};
use ocelli::engine::cuda::{Buffer, Heap};
use std::io::Read;

/// Bytes that are left to others.
const LEFT: u64 = 64 << 20;

pub(crate) fn memory() {
    let context = support::open(0);
    let heap = Heap::new(&context);
    let left = given("GPU_CHECKS_LEAVE_BYTES").map_or(LEFT, |bytes| bytes.parse().unwrap());
    let mut held = Vec::new();
    let mut piece = context.memory().unwrap().total as usize / 8;
    while piece >= 1 << 20 {
        let free = context.memory().unwrap().free;
        match (free > left + piece as u64).then(|| Buffer::new(&heap, piece)) {
            Some(Ok(buffer)) => held.push(buffer),
            _ => piece /= 2,
        }
    }
    println!("holding {} bytes", heap.held_bytes());
    until_told();
    drop(held);
}

pub(crate) fn processors() {
    let device = Device::open();
    let work = Work::new(&device, 1 << 24);
    work.begin(&device.stream, 1);
    device.wait();
    println!("holding the processors");
    let told = std::thread::spawn(until_told);
    while !told.is_finished() {
        work.begin(&device.stream, 64);
        device.wait();
    }
}

/// Waits for the end of the standard input.
fn until_told() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
