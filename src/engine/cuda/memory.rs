//! Memory on the device and memory that it copies from and to by itself.
//!
//! Host memory is ours, and only registered with the driver: whoever still reads it when a context has gone (a reply that is
//! being sent) reads memory that is still there. That leaves out write-combined memory, which the driver must allocate
//! itself, and which is slow to read where a batch runs on the CPU or is padded.
#![allow(unsafe_code)]

use super::{
    Context, CudaError,
    context::{beside_captures, synchronize},
    numa::Near,
};
use crate::engine::staging::{Pin, Pinner};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result, sys};
use std::{
    collections::BTreeMap,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
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
    pub(super) fn clear(&mut self, stream: &CudaStream) -> Result<(), CudaError> {
        self.fill(0, stream)
    }

    /// Begins to fill it with a byte.
    pub(super) fn fill(&mut self, byte: u8, stream: &CudaStream) -> Result<(), CudaError> {
        let bytes = self.bytes();
        // SAFETY: so many bytes are there, until the stream has come past this: dropping waits for work.
        unsafe { result::memset_d8_async(self.address(), byte, bytes, stream.cu_stream()) }
            .map_err(CudaError::when("cannot clear memory of the GPU"))
    }

    /// Begins to copy `bytes` to its start.
    ///
    /// # Safety
    /// `bytes` stay as they are until the stream has come past this.
    pub(super) unsafe fn upload(&mut self, bytes: &[u8], stream: &CudaStream) -> Result<(), CudaError> {
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

/// Registers host memory with a device's driver, while this process has the device. Memory that is taken when it has not is
/// registered when it has; when the context goes, all is unregistered, so that nobody who still reads it keeps the context, and
/// registered again with the next one.
#[derive(Debug, Clone, Default)]
pub struct HostMemory(Arc<Mutex<Pins>>);

#[derive(Debug, Default)]
struct Pins {
    /// Of the device, while it is ours.
    cuda: Option<Arc<CudaContext>>,
    /// The processors near it, where there is a choice.
    near: Option<Near>,
    /// Memory that is there, by where it begins.
    memory: BTreeMap<usize, Known>,
}

/// Memory that the driver is to know.
#[derive(Debug)]
struct Known {
    bytes: usize,
    /// Whether it does.
    registered: bool,
}

impl HostMemory {
    /// For copies from and to this device (and any other).
    pub fn of(context: &Context) -> HostMemory {
        context.host.clone()
    }

    /// Registers everything: the device is ours from now on. What is registered already is so by a hold on the same context that
    /// has not ended yet, and stays so.
    pub(super) fn open(&self, cuda: &Arc<CudaContext>, near: Option<&Near>) {
        let mut pins = self.lock();
        pins.cuda = Some(Arc::clone(cuda));
        pins.near = near.cloned();
        let mut memory = std::mem::take(&mut pins.memory);
        for (start, known) in &mut memory {
            known.registered = known.registered || pins.register(*start, known.bytes);
        }
        pins.memory = memory;
    }

    /// Unregisters everything: this context goes.
    pub(super) fn close(&self, cuda: &Arc<CudaContext>) {
        let mut pins = self.lock();
        if pins.cuda.as_ref().is_some_and(|open| Arc::ptr_eq(open, cuda)) {
            let mut memory = std::mem::take(&mut pins.memory);
            for (start, known) in &mut memory {
                if std::mem::take(&mut known.registered) {
                    pins.unregister(*start);
                }
            }
            (pins.memory, pins.cuda) = (memory, None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pins> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pins {
    /// False where the driver refuses, or there is none now.
    fn register(&self, start: usize, bytes: usize) -> bool {
        let Some(cuda) = &self.cuda else { return false };
        let register = || {
            beside_captures(cuda);
            cuda.bind_to_thread()?;
            let (start, flags) =
                (std::ptr::with_exposed_provenance_mut(start), sys::CU_MEMHOSTREGISTER_PORTABLE);
            // SAFETY: the memory is there until its pin is dropped, which waits for the lock that is held here.
            unsafe { sys::cuMemHostRegister_v2(start, bytes, flags) }.result()
        };
        let registered = match &self.near {
            Some(near) => near.within(register),
            None => register(),
        };
        if let Err(error) = registered {
            let error = CudaError::when(format!("cannot pin {bytes} bytes"))(error);
            tracing::warn!(%error, "copies of this memory will wait for each other");
        }
        registered.is_ok()
    }

    fn unregister(&self, start: usize) {
        let Some(cuda) = &self.cuda else { return };
        beside_captures(cuda);
        let released = cuda.bind_to_thread().and_then(|()| {
            // SAFETY: registered, and not unregistered since, as the notes say under the lock that is held here. Its memory is there
            // until its pin is dropped, which waits for that lock.
            unsafe { sys::cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(start)) }.result()
        });
        if let Err(error) = released {
            // A broken context has forgotten it, and the memory is ours.
            tracing::debug!(?error, "host memory could not be unregistered");
        }
    }
}

impl Pinner for HostMemory {
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Option<Pin> {
        let start = start.as_ptr().expose_provenance();
        let mut pins = self.lock();
        let registered = pins.register(start, bytes);
        // What the driver refused is plain memory; what it was not asked for yet, it is when it is there.
        (registered || pins.cuda.is_none()).then(|| {
            pins.memory.insert(start, Known { bytes, registered });
            Box::new(Pinned { start, host: self.clone() }) as Pin
        })
    }
}

/// Memory that the driver knows while there is one.
struct Pinned {
    start: usize,
    host: HostMemory,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = self.host.lock();
        if pins.memory.remove(&self.start).is_some_and(|known| known.registered) {
            pins.unregister(self.start);
        }
    }
}
