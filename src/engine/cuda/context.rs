//! A GPU that this process has taken: its primary context, what is created in it, and how much of its memory is used.
//!
//! ONNX Runtime uses the same primary context. It is kept until the last thing created in it is dropped. If the CUDA runtime has
//! retained it for a library, it is kept even longer: for good ([`remains`]). cudarc's own tracking of which stream uses which
//! memory is off: one thread owns the streams of an engine and orders them by [`Event`]s.
#![allow(unsafe_code)]

use super::{
    CudaError, Event, Fault, Gpu, HostMemory, Streams,
    numa::{self, Near},
};
use crate::engine::{EngineError, staging::Memory};
use cudarc::driver::{
    CudaContext, CudaStream, DriverError, result,
    sys::{self, CUevent_flags, CUmemPool_attribute, CUmemoryPool},
};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{
    cell::Cell,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// A GPU's context, and what we hold in it. Shared by everything that is created in it.
#[derive(Debug)]
pub struct Context {
    pub(super) cuda: Arc<CudaContext>,
    gpu: Gpu,
    near: Option<Near>,
    /// The stream for allocating and freeing memory. Nothing else runs there, so that this waits for no batch.
    pub(super) heap: Arc<CudaStream>,
    /// Bytes that our buffers hold.
    pub(super) held: AtomicU64,
    /// Host memory that the driver knows.
    pub(super) host: HostMemory,
    /// Memory that results are copied to, if not ordinary pinned memory.
    landing: OnceLock<Memory>,
    /// Held alone by whoever records a CUDA graph, and shared by those who must not meet a recording ([`Context::no_recording`]).
    recordings: RwLock<()>,
    /// Declared last, so that it is dropped last.
    _after: After,
}

/// Checks, when everything of ours is dropped, whether the GPU's context is gone as well.
#[derive(Debug)]
struct After {
    gpu: Gpu,
    host: HostMemory,
}

impl Drop for After {
    fn drop(&mut self) {
        match remains(&self.gpu) {
            Some(true) => tracing::info!(
                gpu = self.gpu.id,
                "the GPU is given back but for its context, some hundred MB: CUDA's runtime keeps that for this process, once ONNX \
                 Runtime or nvJPEG has used it there; isolation = \"process\" gives it back"
            ),
            Some(false) => self.host.forgotten(),
            // Unknown: memory that the driver may still know is kept.
            None => {}
        }
    }
}

/// Whether anything in this process keeps the GPU's primary context. All of our own code releases it in the end. Libraries that use
/// the CUDA runtime do not, and resetting it would break what they still hold. `None` if the driver does not say.
pub fn remains(gpu: &Gpu) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    let asked = result::device::get(i32::try_from(gpu.ordinal).unwrap_or(i32::MAX)).and_then(|device| {
        // SAFETY: writes two numbers; the device was given to us by the driver.
        unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) }.result()
    });
    asked.is_ok().then_some(active != 0)
}

impl Drop for Context {
    fn drop(&mut self) {
        // The pool outlives the context: memory that it keeps would be of no use to anybody.
        if let Err(error) = self.trim() {
            tracing::debug!(%error, "a GPU that is given back keeps memory");
        }
        self.host.close(&self.cuda);
    }
}

/// Allows this thread's driver calls while other threads record CUDA graphs. ONNX Runtime records in a mode in which the driver
/// refuses potentially blocking calls of all other threads, such as pinning memory or waiting for an event, and which these calls
/// break: loading a model would then fail batches of models that serve. Nothing that one thread does here is part of another's recording.
/// What waits for the whole device breaks recordings all the same ([`Context::no_recording`]).
///
/// `cuda` is made the thread's context, since the call may be refused without one. If it is refused, the next call tries again.
fn beside_captures(cuda: Option<&CudaContext>) {
    thread_local!(static HEARD: Cell<bool> = const { Cell::new(false) });
    if HEARD.get() {
        return;
    }
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the context is alive.
    let entered = cuda.map_or(Ok(()), |cuda| unsafe { result::ctx::set_current(cuda.cu_ctx()) });
    // SAFETY: the call exchanges the driver's mode for this thread.
    match entered.and_then(|()| unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result()) {
        Ok(()) => HEARD.set(true),
        Err(error) => {
            tracing::debug!(?error, "a thread may be in the way of graphs that others record");
        }
    }
}

/// Waits until a stream has done all that was enqueued.
///
/// # Errors
/// If that work failed.
pub(super) fn synchronize(stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the stream is alive.
    wait_in(stream.context(), || unsafe { result::stream::synchronize(stream.cu_stream()) })
}

/// Has this thread wait for work in this context, even after earlier errors: until then, the device still reads and writes the memory
/// involved, so it must not be reused.
pub(super) fn wait_in(
    cuda: &CudaContext,
    wait: impl FnOnce() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    if let Err(error) = enter(cuda) {
        tracing::debug!(?error, "a thread waits for a context that it cannot make its own");
    }
    wait()
}

/// Makes this the thread's context, even after earlier errors. cudarc keeps an error from a drop for the next caller: its own functions
/// return that error instead of doing their work. It has nothing to do with the later call, so it is only logged here.
pub(super) fn enter(cuda: &CudaContext) -> Result<(), DriverError> {
    beside_captures(Some(cuda));
    if let Err(error) = cuda.check_err() {
        tracing::debug!(?error, "something could not be given back");
    }
    // SAFETY: the context is alive.
    unsafe { result::ctx::set_current(cuda.cu_ctx()) }
}

/// Memory of a GPU, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free, for any process.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// One part in so many of a GPU's memory is left free: for other processes, fragmentation, and what libraries allocate later.
const HEADROOM_PART: u64 = 16;
/// The least and the most bytes of headroom,
const HEADROOM_BYTES: (u64, u64) = (2 << 30, 3 << 30);
/// but on a small GPU at most one part in so many,
const HEADROOM_PART_MAX: u64 = 8;
/// and on any GPU at least so many bytes.
const HEADROOM_BYTES_LEAST: u64 = 256 << 20;

/// How many of `total` bytes to leave free: 2 to 3 GiB from 16 GiB on.
pub fn headroom_bytes(total: u64) -> u64 {
    let (least, most) = HEADROOM_BYTES;
    let small = (total / HEADROOM_PART_MAX).max(HEADROOM_BYTES_LEAST);
    (total / HEADROOM_PART).clamp(least, most).min(small)
}

impl MemoryInfo {
    /// The bytes that one of `instances` that are still to be loaded may take: an equal part of what is free beyond the headroom, but at
    /// most `bytes_max`. At least 1, since some libraries take 0 for no limit.
    pub fn part(&self, instances: u64, bytes_max: Option<u64>) -> u64 {
        let part = self.free.saturating_sub(headroom_bytes(self.total)) / instances.max(1);
        bytes_max.unwrap_or(u64::MAX).min(part).max(1)
    }
}

impl Context {
    /// Takes the GPU: the driver then uses some hundred MB of its memory.
    ///
    /// # Errors
    /// If the driver refuses: most often since other processes have taken the memory.
    pub fn open(gpu: &Gpu) -> Result<Arc<Context>, CudaError> {
        Context::open_with(gpu, HostMemory::default())
    }

    /// Like [`Context::open`], with host memory that was allocated for this GPU before, all of which is registered now.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn open_with(gpu: &Gpu, host: HostMemory) -> Result<Arc<Context>, CudaError> {
        let failed = || CudaError::when(format!("cannot take {} ({})", gpu.id, gpu.name));
        // To make a context may itself be among the calls that break recordings, also those on other GPUs.
        beside_captures(None);
        let cuda = CudaContext::new(gpu.ordinal).map_err(failed())?;
        beside_captures(Some(&cuda));
        // SAFETY: whoever uses a buffer on several streams orders them by events, and drops the buffer only when all work on it
        // is done (`memory`).
        unsafe { cuda.disable_event_tracking() };
        let heap = cuda.new_stream().map_err(failed())?;
        let near = Near::find(Path::new(numa::SYSTEM), gpu.numa_node);
        host.open(&cuda, near.as_ref());
        let after = After { gpu: gpu.clone(), host: host.clone() };
        let context = Context {
            cuda,
            gpu: gpu.clone(),
            near,
            heap,
            held: AtomicU64::new(0),
            host,
            landing: OnceLock::new(),
            recordings: RwLock::new(()),
            _after: after,
        };
        // The pool keeps memory that a batch has freed for the next one; `trim` releases it.
        if let Some(pool) = context.pool().map_err(failed())? {
            let mut threshold = u64::MAX;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            // SAFETY: the pool is the device's own; this attribute is a 64-bit number.
            unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast()) }
                .map_err(failed())?;
        }
        Ok(Arc::new(context))
    }

    /// Has results of engines that are created from now on copied to this memory, instead of pinned host memory. The first call counts.
    pub fn land_in(&self, memory: Memory) {
        // An error: it is set already. A process calls this only once.
        let _ = self.landing.set(memory);
    }

    /// The memory that results of engines are copied to.
    pub fn landing(&self) -> Memory {
        self.landing.get().cloned().unwrap_or_else(|| Memory::Pinned(Arc::new(self.host.clone())))
    }

    /// Which GPU it is.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The processors near it, if there is a choice.
    pub fn near(&self) -> Option<&Near> {
        self.near.as_ref()
    }

    /// Makes this the context of the calling thread, and has the thread run near the GPU. Functions of this module set the context
    /// themselves. A device thread calls this once, for libraries that do not, and for the threads that it starts.
    ///
    /// # Errors
    /// If the context is broken.
    pub fn bind(&self) -> Result<(), CudaError> {
        if let Some(near) = self.near()
            && let Err(error) = near.bind()
        {
            tracing::debug!(gpu = self.gpu.id, %error, "a thread cannot be bound to the processors near its GPU");
        }
        enter(&self.cuda).map_err(CudaError::when(format!("cannot use {}", self.gpu.id)))
    }

    /// The GPU's free memory.
    ///
    /// # Errors
    /// If the context is broken.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        let asked = enter(&self.cuda).and_then(|()| result::mem_get_info());
        let (free, total) =
            asked.map_err(CudaError::when(format!("cannot read the memory of {}", self.gpu.id)))?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Why nothing more can be done in it, if so.
    pub(super) fn broken(&self) -> Option<CudaError> {
        self.memory().err().filter(|error| error.fault() == Fault::Sticky)
    }

    /// Waits until nobody records a CUDA graph here, and keeps it so while the guard is held: for calls that wait for the whole device.
    /// CUDA refuses these beside any recording, and breaks the recording, whatever mode either thread is in. ONNX Runtime waits so when it
    /// makes a session, and the libraries that it and nvJPEG use do when what they hold begins and ends.
    ///
    /// No two threads wait for each other here. Whoever records takes the lock only if it is free ([`Context::recording`]), and then waits
    /// for the device alone, never for a thread. So whoever waits here waits for a recording at most, and guards may be nested.
    pub(super) fn no_recording(&self) -> RwLockReadGuard<'_, ()> {
        self.recordings.read_recursive()
    }

    /// The right to record a CUDA graph while the guard is held; `None` if that cannot be had at once. Not waited for: a model may take
    /// minutes to load, and a batch can be run without a graph. Nor is it needed to replay one.
    pub(super) fn recording(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.recordings.try_write()
    }

    /// Waits for everything on the GPU that is this process's.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        enter(&self.cuda)
            .and_then(|()| result::ctx::synchronize())
            .map_err(CudaError::when("cannot wait for the GPU"))
    }

    /// Reclassifies the error of a batch that could not be started, by asking the driver whether the context is intact: the error itself
    /// may not say. The call that asks has no input, so it cannot fail because of one.
    pub fn judged(&self, error: EngineError) -> EngineError {
        match self.memory() {
            Err(broken) if !matches!(broken.fault(), Fault::OutOfMemory | Fault::Passing) => {
                EngineError::Device(format!("{error}; {broken}"))
            }
            _ => error,
        }
    }

    /// Bytes that our buffers hold.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Gives the memory of dropped buffers back to the system.
    ///
    /// # Errors
    /// If the context is broken.
    pub fn trim(&self) -> Result<(), CudaError> {
        let failed = || CudaError::when(format!("cannot give memory of {} back", self.gpu.id));
        // Memory is only free once the stream has reached the call that frees it.
        synchronize(&self.heap).map_err(failed())?;
        if let Some(pool) = self.pool().map_err(failed())? {
            // SAFETY: the pool is the device's own.
            unsafe { result::mem_pool::trim_to(pool, 0) }.map_err(failed())?;
        }
        Ok(())
    }

    /// The pool that memory comes from, on devices that have pools.
    fn pool(&self) -> Result<Option<CUmemoryPool>, DriverError> {
        if !self.cuda.has_async_alloc() {
            return Ok(None);
        }
        // SAFETY: the device was given to us by the driver.
        unsafe { result::device::get_default_mem_pool(self.cuda.cu_device()) }.map(Some)
    }

    /// An event that a thread can wait for without keeping a core busy.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn event(&self) -> Result<Event, CudaError> {
        Event::new(&self.cuda, &[CUevent_flags::CU_EVENT_BLOCKING_SYNC])
    }

    /// An event that only streams wait for.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn mark(&self) -> Result<Event, CudaError> {
        Event::new(&self.cuda, &[])
    }

    /// Three new streams.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn streams(&self) -> Result<Streams, CudaError> {
        let stream = || {
            let made = enter(&self.cuda).and_then(|()| self.cuda.new_stream());
            made.map_err(CudaError::when("cannot make a stream"))
        };
        Ok(Streams { upload: stream()?, compute: stream()?, download: stream()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_takes_no_more_than_its_part_and_what_it_is_allowed() {
        const MB: u64 = 1 << 20;
        let memory = MemoryInfo { free: 1256 * MB, total: 2048 * MB };
        assert_eq!(memory.part(2, None), 500 * MB);
        assert_eq!(memory.part(2, Some(100 * MB)), 100 * MB);
        assert_eq!(MemoryInfo { free: MB, ..memory }.part(1, None), 1);
        assert_eq!(MemoryInfo { free: 8192 * MB, total: 81_920 * MB }.part(1, None), 5120 * MB);
    }

    #[test]
    fn gpus_keep_two_to_three_gib_free_and_small_ones_an_eighth() {
        for (total, expected) in [
            (1, 256),
            (1024, 256),
            (4096, 512),
            (8192, 1024),
            (15_360, 1920),
            (16_384, 2048),
            (24_576, 2048),
            (32_768, 2048),
            (40_960, 2560),
            (81_920, 3072),
            (143_360, 3072),
        ] {
            assert_eq!(headroom_bytes(total << 20), expected << 20, "of {total} MiB");
        }
    }
}
