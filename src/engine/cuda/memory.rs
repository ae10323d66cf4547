//! Memory on the device.
#![allow(unsafe_code)]

use super::{Context, CudaError, context::synchronize};
use cudarc::driver::{CudaSlice, CudaStream, result, sys};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What one owner holds on a device, such as an engine.
#[derive(Debug)]
pub struct Heap {
    context: Arc<Context>,
    held: AtomicU64,
}

impl Heap {
    /// Nothing yet, on this device.
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

/// Bytes on a device, for any stream. Dropping it frees them: work on it must be done by then.
#[derive(Debug)]
pub struct Buffer {
    slice: CudaSlice<u8>,
    heap: Arc<Heap>,
}

impl Buffer {
    /// So many bytes, at least one; what is in them is not said.
    ///
    /// # Errors
    /// Where they are not free: with how many are.
    pub fn new(heap: &Arc<Heap>, bytes: usize) -> Result<Buffer, CudaError> {
        let context = &heap.context;
        let slice = match allocate(&context.heap, bytes) {
            Ok(slice) => slice,
            Err(first) => {
                // The pool may hold what others gave back.
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

    /// Where it begins, for a kernel.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        use cudarc::driver::DevicePtr;
        // Nothing is tracked: the guard has nothing to record.
        let (address, _guard) = self.slice.device_ptr(self.slice.stream());
        address
    }

    /// Begins to fill it with zeros.
    pub(super) fn clear(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.fill(0, stream)
    }

    /// Begins to fill it with a byte.
    pub(super) fn fill(&self, byte: u8, stream: &CudaStream) -> Result<(), CudaError> {
        let bytes = self.bytes();
        // SAFETY: so many bytes are there, until the stream has come past this: dropping waits for work.
        unsafe { result::memset_d8_async(self.address(), byte, bytes, stream.cu_stream()) }
            .map_err(CudaError::when("cannot clear memory of the GPU"))
    }

    /// Begins to copy `bytes` to its start.
    ///
    /// # Safety
    /// `bytes` stay as they are until the stream has come past this.
    pub(super) unsafe fn upload(&self, bytes: &[u8], stream: &CudaStream) -> Result<(), CudaError> {
        assert!(bytes.len() <= self.bytes(), "{} bytes for a buffer of {}", bytes.len(), self.bytes());
        // SAFETY: the lengths fit; the rest is the caller's promise.
        unsafe { result::memcpy_htod_async(self.address(), bytes, stream.cu_stream()) }
            .map_err(CudaError::when("cannot copy to the GPU"))
    }

    /// Begins to copy its start to `bytes`.
    ///
    /// # Safety
    /// `bytes` are there and nobody looks at them until the stream has come past this.
    pub(super) unsafe fn download(&self, bytes: &mut [u8], stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.download_from(0, bytes, stream) }
    }

    /// The same for what begins so many bytes behind its start.
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

/// Makes room for so many bytes, where there are any; what was there was smaller.
pub(super) fn room(heap: &Arc<Heap>, buffer: &mut Option<Buffer>, bytes: usize) -> Result<(), CudaError> {
    if bytes > 0 && buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
        // First, so that the two need not fit side by side.
        *buffer = None;
        *buffer = Some(Buffer::new(heap, bytes)?);
    }
    Ok(())
}

/// Where it begins, for a kernel; 0 where there is none.
pub(super) fn address(buffer: &Option<Buffer>) -> sys::CUdeviceptr {
    buffer.as_ref().map_or(0, Buffer::address)
}

fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, result::DriverError> {
    // SAFETY: any bytes are bytes; nobody reads what nobody wrote.
    let slice = unsafe { stream.alloc::<u8>(bytes.max(1)) }?;
    // Other streams may use it from here on.
    synchronize(stream)?;
    Ok(slice)
}

/// What was asked for, and what there is.
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
