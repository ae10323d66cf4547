//! Passes tensors to ONNX Runtime, and takes its results, without copying them.
#![allow(unsafe_code)]

use super::failure;
use crate::engine::{DataType, EngineError, Tensor, TensorView};
use bytes::Bytes;
use ort::{
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::SessionInputValue,
    sys::c_void,
    value::{
        DynTensor, DynTensorValueType, DynValue, DynValueRefMut, PrimitiveTensorElementType, Shape,
        Tensor as OrtTensor, TensorElementType, TensorRefMut, ValueRefMut,
    },
};
use std::fmt::Debug;

/// Our type for ONNX Runtime's element type; `None` for the few that we do not support (complex, 4- and 8-bit floats).
pub(super) fn datatype(element: TensorElementType) -> Option<DataType> {
    Some(match element {
        TensorElementType::Bool => DataType::Bool,
        TensorElementType::Uint8 => DataType::Uint8,
        TensorElementType::Uint16 => DataType::Uint16,
        TensorElementType::Uint32 => DataType::Uint32,
        TensorElementType::Uint64 => DataType::Uint64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Float16 => DataType::Fp16,
        TensorElementType::Bfloat16 => DataType::Bf16,
        TensorElementType::Float32 => DataType::Fp32,
        TensorElementType::Float64 => DataType::Fp64,
        TensorElementType::String => DataType::Bytes,
        _ => return None,
    })
}

/// Describes memory as a tensor: where it lies, its first element, its shape.
///
/// # Safety
/// The memory lies there, is aligned and spans the shape, for as long as the result is used.
pub(super) type Describe =
    unsafe fn(MemoryInfo<'static>, *mut c_void, Shape) -> ort::Result<DynValueRefMut<'static>>;

/// The function that describes memory of this type.
pub(super) fn describe(datatype: DataType) -> Describe {
    unsafe fn of<T: PrimitiveTensorElementType + Debug>(
        info: MemoryInfo<'static>,
        data: *mut c_void,
        shape: Shape,
    ) -> ort::Result<DynValueRefMut<'static>> {
        // SAFETY: the caller's promise.
        unsafe { TensorRefMut::<'static, T>::from_raw(info, data, shape) }.map(ValueRefMut::into_dyn)
    }
    match datatype {
        DataType::Bool => of::<bool>,
        DataType::Uint8 => of::<u8>,
        DataType::Uint16 => of::<u16>,
        DataType::Uint32 => of::<u32>,
        DataType::Uint64 => of::<u64>,
        DataType::Int8 => of::<i8>,
        DataType::Int16 => of::<i16>,
        DataType::Int32 => of::<i32>,
        DataType::Int64 => of::<i64>,
        DataType::Fp16 => of::<half::f16>,
        DataType::Bf16 => of::<half::bf16>,
        DataType::Fp32 => of::<f32>,
        DataType::Fp64 => of::<f64>,
        DataType::Bytes => unreachable!("byte strings have no memory that could be lent"),
    }
}

/// A shape in ONNX Runtime's form.
pub(super) fn shape_of(extents: &[usize]) -> Shape {
    Shape::new(extents.iter().map(|&n| n as i64))
}

/// Lends an input's memory to a session for one run. Byte strings are copied, since ONNX Runtime has its own representation.
pub(super) fn lend<'a>(name: &str, view: &TensorView<'a>) -> Result<SessionInputValue<'a>, EngineError> {
    let bad = |error: ort::Error| EngineError::Input(failure::first_line(error.message()));
    let shape = shape_of(&view.shape);
    if view.datatype == DataType::Bytes {
        let wrong = |why| EngineError::Input(format!("input {name:?} is of strings, but its {why}"));
        let strings: Vec<String> = view.strings().map_err(wrong)?.into_iter().map(str::to_owned).collect();
        let copy = OrtTensor::from_string_array((shape, strings.as_slice())).map_err(bad)?;
        return Ok(SessionInputValue::Owned(copy.into_dyn()));
    }
    let info =
        MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default).map_err(bad)?;
    let data = view.data.as_ptr().cast_mut().cast();
    let size = view.datatype.size().unwrap_or(1);
    debug_assert!(
        view.data.is_empty() || view.data.as_ptr().addr().is_multiple_of(size),
        "staging aligns its views"
    );
    // SAFETY: the memory lives for 'a, spans the shape (checked when the view was made) and is aligned; a session reads its
    // inputs and never writes them. The result lives no longer than 'a.
    let tensor = unsafe { describe(view.datatype)(info, data, shape) }.map_err(bad)?;
    Ok(tensor.into())
}

/// Whether an output lies in memory that was lent to the run: if an output is an input, ONNX Runtime returns the input itself.
fn lies_in(output: &[u8], lent: &[TensorView<'_>]) -> bool {
    lent.iter().any(|view| view.data.as_ptr_range().contains(&output.as_ptr()))
}

/// A session's output. Its memory goes back to ONNX Runtime when the last slice of it is dropped.
struct Output {
    tensor: DynTensor,
    bytes: usize,
}

impl AsRef<[u8]> for Output {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[]; // ONNX Runtime may give a null pointer for these
        }
        // SAFETY: the tensor is on the CPU and has `bytes` bytes from here, which nobody writes any more: it owns them, or `take` copies
        // them while the inputs' memory is still lent.
        unsafe { std::slice::from_raw_parts(self.tensor.data_ptr().cast(), self.bytes) }
    }
}

/// Takes over a session's output. `lent` is the memory of its inputs, if that stays allocated.
pub(in crate::engine) fn take(output: DynValue, lent: &[TensorView<'_>]) -> Result<Tensor, EngineError> {
    let tensor: DynTensor = output
        .downcast::<DynTensorValueType>()
        .map_err(|_| EngineError::Input("the model gave an output that is not a tensor".into()))?;
    let datatype = datatype(*tensor.data_type()).ok_or_else(|| {
        EngineError::Input(format!("the model gave an output of type {}", tensor.data_type()))
    })?;
    let shape: Vec<usize> = tensor.shape().iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
    let data = match datatype.size() {
        Some(size) => {
            let bytes = shape.iter().product::<usize>() * size;
            let output = Output { tensor, bytes };
            match lies_in(output.as_ref(), lent) {
                // Copied, so that a slow reader of the output does not hold the batch's memory.
                true => Bytes::copy_from_slice(output.as_ref()),
                false => Bytes::from_owner(output),
            }
        }
        None => {
            let (_, strings) = tensor
                .try_extract_strings()
                .map_err(|error| EngineError::Input(error.message().to_owned()))?;
            // Reserved at once: a growing vector takes its memory twice.
            let bytes = strings.iter().map(|string| size_of::<u32>() + string.len()).sum();
            let mut data = Vec::with_capacity(bytes);
            for string in strings {
                data.extend_from_slice(&(string.len() as u32).to_le_bytes());
                data.extend_from_slice(string.as_bytes());
            }
            data.into()
        }
    };
    Ok(Tensor { datatype, shape, data })
}
