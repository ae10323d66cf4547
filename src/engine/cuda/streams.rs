//! Streams of a GPU, what may be recorded on them, and the events that order them.
#![allow(unsafe_code)]

use super::{
    CudaError,
    context::{enter, synchronize, wait_in},
};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::{ptr, sync::Arc};

/// Streams that run concurrently: copies in each direction, and kernels.
#[derive(Debug)]
pub struct Streams {
    pub(super) upload: Arc<CudaStream>,
    pub(super) compute: Arc<CudaStream>,
    pub(super) download: Arc<CudaStream>,
}

impl Streams {
    /// Waits until nothing runs on any stream, even after errors: afterwards, memory that was being copied can be reused.
    pub(super) fn settle(&self) {
        for stream in [&self.upload, &self.compute, &self.download] {
            if let Err(error) = synchronize(stream) {
                tracing::debug!(?error, "work on a stream ended badly");
            }
        }
    }

    /// Begins to record the compute stream as ONNX Runtime does, for networks that only stand in for those on a GPU.
    pub(super) fn begin_recording(&self) -> Result<(), CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is alive.
        let begun = enter(self.compute.context())
            .and_then(|()| unsafe { result::stream::begin_capture(self.compute.cu_stream(), mode) });
        begun.map_err(CudaError::when("cannot record"))
    }

    /// Ends that, and throws away what was recorded.
    pub(super) fn finish_recording(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive; nobody uses what was recorded.
        let ended = unsafe {
            result::stream::end_capture(self.compute.cu_stream())
                .and_then(|graph| result::graph::destroy(graph))
        };
        ended.map_err(CudaError::when("a recording failed"))
    }

    /// Ends a recording that was left open on the compute stream: until it ends, nobody can wait for the stream.
    pub(super) fn end_recording(&self) {
        let stream = self.compute.cu_stream();
        if let Err(error) = enter(self.compute.context()) {
            tracing::debug!(?error, "a recording may be left open");
        }
        // SAFETY: the stream is alive; nobody uses what was recorded.
        unsafe {
            let status = result::stream::is_capturing(stream);
            if matches!(status, Ok(sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) | Err(_)) {
                return;
            }
            match result::stream::end_capture(stream) {
                Ok(graph) if !graph.is_null() => drop(result::graph::destroy(graph)),
                ended => tracing::debug!(?ended, "a recording that was left came to nothing"),
            }
        }
    }
}

/// A point in a stream, whose time nobody reads.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    cuda: Arc<CudaContext>,
}

// SAFETY: the driver ties events to no thread.
unsafe impl Send for Event {}
// SAFETY: as above, and it has them used by several threads at once.
unsafe impl Sync for Event {}

impl Event {
    /// An event with these flags, and without time stamps, which would take time.
    pub(super) fn new(cuda: &Arc<CudaContext>, flags: &[sys::CUevent_flags]) -> Result<Event, CudaError> {
        let untimed = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let flags = flags.iter().fold(untimed, |all, flag| all | *flag as u32);
        let mut event = ptr::null_mut();
        // SAFETY: one handle is written. Called directly: cudarc takes one flag.
        let made = enter(cuda).and_then(|()| unsafe { sys::cuEventCreate(&raw mut event, flags) }.result());
        made.map_err(CudaError::when("cannot make an event"))?;
        Ok(Event { event, cuda: Arc::clone(cuda) })
    }

    /// Marks the work that has been enqueued on the stream so far.
    pub(super) fn record(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let entered = enter(&self.cuda);
        // SAFETY: event and stream are there.
        let recorded =
            entered.and_then(|()| unsafe { result::event::record(self.event, stream.cu_stream()) });
        recorded.map_err(CudaError::when("cannot mark a point in a stream"))
    }

    /// Has a stream, not this thread, wait for the event.
    pub(super) fn before(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let entered = enter(&self.cuda);
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are there.
        let waits = entered
            .and_then(|()| unsafe { result::stream::wait_event(stream.cu_stream(), self.event, flags) });
        waits.map_err(CudaError::when("cannot have one stream wait for another"))
    }

    /// Waits for the event, without keeping a core busy.
    ///
    /// # Errors
    /// If the work before it failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event is alive.
        wait_in(&self.cuda, || unsafe { result::event::synchronize(self.event) })
            .map_err(CudaError::when("work on the GPU failed"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made once and is destroyed once; work that waits for it is none the worse.
        let gone = enter(&self.cuda).and_then(|()| unsafe { result::event::destroy(self.event) });
        if let Err(error) = gone {
            tracing::debug!(?error, "an event could not be given back");
        }
    }
}
