//! Binds a session's inputs and outputs to our own memory, so that a run copies nothing.
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

/// Where memory lies, in ONNX Runtime's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Where {
    /// In host memory.
    Host,
    /// In host memory that is pinned for the GPU of this number, which copies to it by itself.
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

/// A tensor in our own memory.
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
    /// The tensor as a value of ONNX Runtime's.
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

/// The inputs and outputs that are bound for a run.
#[derive(Debug)]
pub(in crate::engine) struct Binding {
    io: IoBinding,
}

impl Binding {
    /// A binding with nothing bound.
    pub(in crate::engine) fn new(session: &Session) -> Result<Binding, String> {
        Ok(Binding { io: session.create_binding().map_err(words)? })
    }

    /// The binding to pass to a run.
    pub(super) fn io(&self) -> &IoBinding {
        &self.io
    }

    /// Has runs read an input from this memory. It must lie where the session wants it, or ONNX Runtime copies it now.
    ///
    /// # Safety
    /// The memory spans the tensor, lies where `tensor` says, and stays allocated until every run with this binding has ended or the
    /// input is bound anew.
    pub(in crate::engine) unsafe fn input(&mut self, tensor: Bound<'_>) -> Result<(), String> {
        let name =
            CString::new(tensor.name).map_err(|_| format!("input {:?} has a zero byte", tensor.name))?;
        // SAFETY: the caller's promise; sessions read their inputs and never write them.
        let value = unsafe { tensor.describe() }?;
        // Not with ort's `bind_input`, which copies borrowed values. The binding keeps the tensor's description, so that the value
        // may be dropped.
        // SAFETY: the binding and the value are alive; the name ends with a zero byte.
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

    /// Has the next run allocate memory for an output whose shape is not known. Must be called before every run, or a run would
    /// write into the memory of the previous one.
    pub(in crate::engine) fn open_output(&mut self, name: &str, place: Where) -> Result<(), String> {
        let info = place.info().map_err(words)?;
        self.io.bind_output_to_device(name, &info).map_err(words)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn words(error: ort::Error) -> String {
    first_line(error.message())
}
