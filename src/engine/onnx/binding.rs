//! A session's inputs and outputs bound to memory that is ours, so that a run copies nothing.
#![allow(unsafe_code)]

use super::{
    failure::first_line,
    placement::checked,
    value::{describe, shape_of},
};
use crate::engine::DataType;
use ort::{
    AsPointer,
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    value::DynValueRefMut,
};
use std::ffi::CString;

/// Where memory lies, as ONNX Runtime is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Where {
    /// In the host's memory.
    Host,
    /// In the host's memory, known to the GPU of this number: what it copies to by itself.
    Pinned(i32),
    /// On the GPU of this number.
    Device(i32),
}

impl Where {
    fn info(self) -> ort::Result<MemoryInfo<'static>> {
        let (device, number, kind) = match self {
            Where::Host => (AllocationDevice::CPU, 0, MemoryType::Default),
            Where::Pinned(number) => (AllocationDevice::CUDA_PINNED, number, MemoryType::CPUOutput),
            Where::Device(number) => (AllocationDevice::CUDA, number, MemoryType::Default),
        };
        MemoryInfo::new(device, number, AllocatorType::Device, kind)
    }
}

/// A tensor in memory that is ours.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Bound<'a> {
    /// The input's or output's name.
    pub(in crate::engine) name: &'a str,
    /// Not [`DataType::Bytes`].
    pub(in crate::engine) datatype: DataType,
    /// Its extents.
    pub(in crate::engine) shape: &'a [usize],
    /// Its first element.
    pub(in crate::engine) address: u64,
    /// Where that is.
    pub(in crate::engine) place: Where,
}

impl Bound<'_> {
    /// As ONNX Runtime has it.
    ///
    /// # Safety
    /// As [`Binding::input`].
    unsafe fn describe(&self) -> Result<DynValueRefMut<'static>, String> {
        let info = self.place.info().map_err(words)?;
        let data = self.address as usize as *mut _;
        // SAFETY: the caller's promise.
        unsafe { describe(self.datatype)(info, data, shape_of(self.shape)) }.map_err(words)
    }
}

/// What is bound for a run.
#[derive(Debug)]
pub(in crate::engine) struct Binding {
    io: IoBinding,
}

impl Binding {
    /// Nothing yet.
    pub(in crate::engine) fn new(session: &Session) -> Result<Binding, String> {
        Ok(Binding { io: session.create_binding().map_err(words)? })
    }

    /// What a run is given.
    pub(super) fn io(&self) -> &IoBinding {
        &self.io
    }

    /// Has runs read an input from this memory, where the session wants it: else it would be copied now.
    ///
    /// # Safety
    /// The memory spans the tensor, lies where `tensor` says, and is there until every run with this has ended or the input is
    /// bound anew.
    pub(in crate::engine) unsafe fn input(&mut self, tensor: Bound<'_>) -> Result<(), String> {
        let name =
            CString::new(tensor.name).map_err(|_| format!("input {:?} has a zero byte", tensor.name))?;
        // SAFETY: the caller's promise; sessions read their inputs and never write them.
        let value = unsafe { tensor.describe() }?;
        // Not by ort's `bind_input`, which copies what is borrowed. The binding keeps the tensor's description, so that the value
        // may go.
        // SAFETY: both are there; the name ends with a zero byte.
        let status = unsafe { (ort::api().BindInput)(self.io.ptr().cast_mut(), name.as_ptr(), value.ptr()) };
        checked(status).map_err(|message| first_line(&message))
    }

    /// Has runs write an output to this memory.
    ///
    /// # Safety
    /// As [`Binding::input`].
    pub(in crate::engine) unsafe fn output(&mut self, tensor: Bound<'_>) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let value = unsafe { tensor.describe() }?;
        self.io.bind_output(tensor.name, value).map_err(words)
    }

    /// Has the next run make memory for an output, whose shape is not known. To be said before every run: the next one would
    /// write into the memory of the one before.
    pub(in crate::engine) fn open_output(&mut self, name: &str, place: Where) -> Result<(), String> {
        let info = place.info().map_err(words)?;
        self.io.bind_output_to_device(name, &info).map_err(words)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn words(error: ort::Error) -> String {
    first_line(error.message())
}
