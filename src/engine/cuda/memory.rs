//! Memory on the device.
#![allow(unsafe_code)]

use super::{Context, CudaError, context::synchronize};
use cudarc::driver::{CudaSlice, CudaStream, result, sys};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts the device memory of one owner, such as an engine.
#[derive(Debug)]
pub struct Heap {
    context: Arc<Context>,
    held: AtomicU64,
}

impl Heap {
    /// An empty heap on this device.
    pub fn new(context: &Arc<Context>) -> Arc<Heap> {
        Arc::new(Heap { context: Arc::clone(context), held: AtomicU64::new(0) })
    }

    /// Bytes that its buffers hold.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) {
        self.held.fetch_add(bytes as u64, Ordering::Relaxed);
        self.context.held.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.context.held.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

/// Device memory, usable on any stream. Dropping it frees the memory: work on it must be done by then.
#[derive(Debug)]
pub struct Buffer {
    slice: CudaSlice<u8>,
    heap: Arc<Heap>,
}

impl Buffer {
    /// Allocates `bytes` bytes, at least one, with undefined contents.
    ///
    /// # Errors
    /// If they are not free; the message says how many are.
    pub fn new(heap: &Arc<Heap>, bytes: usize) -> Result<Buffer, CudaError> {
        let context = &heap.context;
        let slice = match allocate(&context.heap, bytes) {
            Ok(slice) => slice,
            Err(first) => {
                // The pool may hold memory that others have freed.
                let again = context.trim().is_ok().then(|| allocate(&context.heap, bytes).ok()).flatten();
                again.ok_or_else(|| CudaError::when(shortage(context, bytes))(first))?
            }
        };
        heap.take(slice.len());
        Ok(Buffer { slice, heap: Arc::clone(heap) })
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.slice.len()
    }

    /// Its address, for a kernel.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        use cudarc::driver::DevicePtr;
        // cudarc's tracking is off: the guard has nothing to record.
        let (address, _guard) = self.slice.device_ptr(self.slice.stream());
        address
    }

    /// Enqueues filling it with zeros.
    pub(super) fn clear(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.fill(0, stream)
    }

    /// Enqueues filling it with a byte.
    pub(super) fn fill(&self, byte: u8, stream: &CudaStream) -> Result<(), CudaError> {
        let bytes = self.bytes();
        // SAFETY: the buffer has `bytes` bytes, and is not dropped before work on it is done.
        unsafe { result::memset_d8_async(self.address(), byte, bytes, stream.cu_stream()) }
            .map_err(CudaError::when("cannot clear memory of the GPU"))
    }

    /// Enqueues copying `bytes` to its start.
    ///
    /// # Safety
    /// `bytes` must stay unchanged until the stream has passed this.
    pub(super) unsafe fn upload(&self, bytes: &[u8], stream: &CudaStream) -> Result<(), CudaError> {
        assert!(bytes.len() <= self.bytes(), "{} bytes for a buffer of {}", bytes.len(), self.bytes());
        // SAFETY: the lengths fit; the rest is the caller's promise.
        unsafe { result::memcpy_htod_async(self.address(), bytes, stream.cu_stream()) }
            .map_err(CudaError::when("cannot copy to the GPU"))
    }

    /// Enqueues copying its start to `bytes`.
    ///
    /// # Safety
    /// `bytes` must stay allocated, and nobody may read them, until the stream has passed this.
    pub(super) unsafe fn download(&self, bytes: &mut [u8], stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.download_from(0, bytes, stream) }
    }

    /// The same, from `start` bytes after its start.
    ///
    /// # Safety
    /// As of [`Buffer::download`].
    pub(super) unsafe fn download_from(
        &self,
        start: usize,
        bytes: &mut [u8],
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let (end, held) = (start + bytes.len(), self.bytes());
        assert!(end <= held, "bytes {start} to {end} of a buffer of {held}");
        // SAFETY: the lengths fit; the rest is the caller's promise.
        unsafe { result::memcpy_dtoh_async(bytes, self.address() + start as u64, stream.cu_stream()) }
            .map_err(CudaError::when("cannot copy from the GPU"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.heap.give_back(self.slice.len());
    }
}

/// Grows a buffer to at least `bytes` bytes, without keeping its contents.
pub(super) fn room(heap: &Arc<Heap>, buffer: &mut Option<Buffer>, bytes: usize) -> Result<(), CudaError> {
    if bytes > 0 && buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
        // Dropped first, so that both need not fit at the same time.
        *buffer = None;
        *buffer = Some(Buffer::new(heap, bytes)?);
    }
    Ok(())
}

/// The address of a buffer, for a kernel; 0 if there is none.
pub(super) fn address(buffer: &Option<Buffer>) -> sys::CUdeviceptr {
    buffer.as_ref().map_or(0, Buffer::address)
}

fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, result::DriverError> {
    // SAFETY: any bit pattern is a valid byte; nobody reads what nobody has written.
    let slice = unsafe { stream.alloc::<u8>(bytes.max(1)) }?;
    // Other streams may use the memory from here on.
    synchronize(stream)?;
    Ok(slice)
}

/// A message with what was asked for, and what is free.
fn shortage(context: &Context, bytes: usize) -> String {
    let id = &context.gpu().id;
    match context.memory() {
        Ok(memory) => format!(
            "cannot allocate {bytes} bytes on {id}: {} of {} bytes are free, this process's buffers hold {}",
            memory.free,
            memory.total,
            context.held_bytes()
        ),
        Err(_) => format!("cannot allocate {bytes} bytes on {id}"),
    }
}
