//! A tensor: a data type, a shape and bytes. The network layer, the queues and the engines all exchange this type.

use crate::words::named;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

named! {
    /// Element types, named as the Open Inference Protocol names them.
    #[derive(Hash, Serialize, Deserialize)]
    DataType {
        /// One byte, 0 or 1.
        Bool = "BOOL",
        /// 8-bit unsigned.
        Uint8 = "UINT8",
        /// 16-bit unsigned.
        Uint16 = "UINT16",
        /// 32-bit unsigned.
        Uint32 = "UINT32",
        /// 64-bit unsigned.
        Uint64 = "UINT64",
        /// 8-bit signed.
        Int8 = "INT8",
        /// 16-bit signed.
        Int16 = "INT16",
        /// 32-bit signed.
        Int32 = "INT32",
        /// 64-bit signed.
        Int64 = "INT64",
        /// IEEE half.
        Fp16 = "FP16",
        /// bfloat16.
        Bf16 = "BF16",
        /// IEEE single.
        Fp32 = "FP32",
        /// IEEE double.
        Fp64 = "FP64",
        /// Byte strings: on the wire each is a 32-bit little-endian length and its bytes.
        Bytes = "BYTES",
    }
}

impl DataType {
    /// Bytes per element; `None` for [`DataType::Bytes`], whose elements vary.
    pub fn size(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dense row-major tensor. Numbers are little-endian; [`DataType::Bytes`] elements are length-prefixed.
///
/// `data` may be a slice of a network buffer, of a staging slab or of a batch's output: cloning copies no element.
/// Nothing is promised about its alignment.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Element type.
    pub datatype: DataType,
    /// Extents, outermost first. For a model that batches, `shape[0]` counts items.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Bytes,
}

impl Tensor {
    /// A tensor of zeros, or of empty strings, each a four-byte length of 0. Aligned for any type.
    pub fn zeros(datatype: DataType, shape: &[usize]) -> Tensor {
        let bytes = shape.iter().product::<usize>() * datatype.size().unwrap_or(size_of::<u32>());
        let words = vec![0_u64; bytes.div_ceil(size_of::<u64>())];
        Tensor { datatype, shape: shape.to_vec(), data: bytes_of(words).slice(..bytes) }
    }

    /// Number of elements the shape spans.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// A view for engines to read. It is as aligned as the tensor is.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { datatype: self.datatype, shape: self.shape.clone(), data: &self.data }
    }

    /// Rows `start..end` along the first axis, sharing memory. Not for [`DataType::Bytes`].
    ///
    /// # Panics
    /// If the range is outside the first axis: a bug of ours, since callers take ranges from the shape.
    pub fn rows(&self, start: usize, end: usize) -> Tensor {
        assert!(start <= end && end <= self.shape[0], "rows {start}..{end} of {:?}", self.shape);
        let row = self.data.len() / self.shape[0].max(1);
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        Tensor { datatype: self.datatype, shape, data: self.data.slice(start * row..end * row) }
    }

    /// The elements as `f32`: borrowed if they are aligned `f32` already, else converted.
    pub fn as_f32(&self) -> Option<Cow<'_, [f32]>> {
        if let (DataType::Fp32, Ok(values), true) =
            (self.datatype, bytemuck::try_cast_slice(&self.data), cfg!(target_endian = "little"))
        {
            return Some(Cow::Borrowed(values));
        }
        self.to_f32().map(Cow::Owned)
    }

    /// The elements as `f32`, converted from any numeric type; `None` for [`DataType::Bytes`].
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        fn read<const N: usize>(data: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            data.as_chunks::<N>().0.iter().map(|chunk| number(*chunk)).collect()
        }
        let data = &self.data[..];
        Some(match self.datatype {
            DataType::Bool | DataType::Uint8 => read(data, |[b]| f32::from(b)),
            DataType::Int8 => read(data, |[b]| f32::from(b as i8)),
            DataType::Uint16 => read(data, |b| f32::from(u16::from_le_bytes(b))),
            DataType::Int16 => read(data, |b| f32::from(i16::from_le_bytes(b))),
            DataType::Uint32 => read(data, |b| u32::from_le_bytes(b) as f32),
            DataType::Int32 => read(data, |b| i32::from_le_bytes(b) as f32),
            DataType::Uint64 => read(data, |b| u64::from_le_bytes(b) as f32),
            DataType::Int64 => read(data, |b| i64::from_le_bytes(b) as f32),
            DataType::Fp16 => read(data, |b| half::f16::from_le_bytes(b).to_f32()),
            DataType::Bf16 => read(data, |b| half::bf16::from_le_bytes(b).to_f32()),
            DataType::Fp32 => read(data, f32::from_le_bytes),
            DataType::Fp64 => read(data, |b| f64::from_le_bytes(b) as f32),
            DataType::Bytes => return None,
        })
    }
}

/// The numbers as bytes, without a copy and with the same alignment.
pub fn bytes_of<T: bytemuck::NoUninit + Send + 'static>(numbers: Vec<T>) -> Bytes {
    struct Numbers<T>(Vec<T>);
    impl<T: bytemuck::NoUninit> AsRef<[u8]> for Numbers<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Bytes::from_owner(Numbers(numbers))
}

/// Appends an element to the data of a [`DataType::Bytes`] tensor. `None` if its length does not fit the prefix: over 4 GiB.
pub fn push_element(data: &mut Vec<u8>, element: &[u8]) -> Option<()> {
    data.extend_from_slice(&u32::try_from(element.len()).ok()?.to_le_bytes());
    data.extend_from_slice(element);
    Some(())
}

/// A tensor in borrowed memory, aligned for its type: the form that an engine reads.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// Element type.
    pub datatype: DataType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The elements; as many as `shape` spans.
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// A copy, aligned for any type.
    pub fn to_tensor(&self) -> Tensor {
        let mut words = vec![0_u64; self.data.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..self.data.len()].copy_from_slice(self.data);
        let data = bytes_of(words).slice(..self.data.len());
        Tensor { datatype: self.datatype, shape: self.shape.clone(), data }
    }

    /// The elements of a [`DataType::Bytes`] tensor as text.
    ///
    /// # Errors
    /// If a length prefix exceeds the data, an element is not UTF-8 or holds a NUL, or the count is not the shape's.
    pub fn strings(&self) -> Result<Vec<&'a str>, String> {
        let expected: usize = self.shape.iter().product();
        let mut strings = Vec::new();
        let mut rest = self.data;
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            let (element, tail) = tail.split_at_checked(length).ok_or_else(|| {
                format!("string {} says it has {length} bytes, but {} are left", strings.len(), tail.len())
            })?;
            let index = strings.len();
            let text =
                std::str::from_utf8(element).map_err(|_| format!("element {index} is not UTF-8 text"))?;
            // Engines with NUL-terminated strings would cut the element there.
            if text.contains('\0') {
                return Err(format!("element {index} holds a NUL, a byte of 0"));
            }
            strings.push(text);
            rest = tail;
        }
        if !rest.is_empty() || strings.len() != expected {
            return Err(format!("{} strings in the data, {expected} in the shape", strings.len()));
        }
        Ok(strings)
    }
}
