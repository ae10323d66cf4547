//! Tensors as bytes: little-endian numbers without padding; strings with their lengths in front.

use crate::{
    engine::{DataType, Tensor},
    error::InferError,
};
use axum::body::Bytes;

/// Checks that a tensor of `got` bytes may be of this type and shape: that of strings is known only when they are there.
///
/// # Errors
/// 400 saying what was expected and what came.
pub fn check_size(name: &str, datatype: DataType, shape: &[usize], got: u64) -> Result<(), InferError> {
    let elements = super::data::elements(name, shape)?;
    match datatype.size() {
        Some(size) if (elements * size) as u64 != got => Err(bad(format!(
            "input {name:?} has {got} bytes, expected {} for {datatype} of shape {shape:?}",
            elements * size
        ))),
        _ => Ok(()),
    }
}

/// Checks that the bytes of a binary tensor are those of its type and shape.
///
/// # Errors
/// 400 saying what was expected and what came.
pub fn check(name: &str, tensor: &Tensor) -> Result<(), InferError> {
    check_size(name, tensor.datatype, &tensor.shape, tensor.data.len() as u64)?;
    let elements = tensor.elements();
    match tensor.datatype.size() {
        Some(_) if tensor.datatype == DataType::Bool && tensor.data.iter().any(|b| *b > 1) => {
            Err(bad(format!("input {name:?} is BOOL and holds a byte other than 0 and 1")))
        }
        Some(_) => Ok(()),
        None => match strings(&tensor.data) {
            Some(got) if got.len() == elements => Ok(()),
            Some(got) => Err(bad(format!(
                "input {name:?} has {} elements, expected {elements} for shape {:?}",
                got.len(),
                tensor.shape
            ))),
            None => Err(bad(format!(
                "input {name:?} is BYTES and does not consist of 32-bit lengths and as many bytes"
            ))),
        },
    }
}

/// The elements of a [`DataType::Bytes`] tensor, in its memory; `None` if the lengths do not add up.
pub fn strings(data: &Bytes) -> Option<Vec<Bytes>> {
    let mut strings = Vec::new();
    let mut rest = data.clone();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        let end = length.checked_add(4).filter(|end| *end <= rest.len())?;
        strings.push(rest.split_to(end).slice(4..));
    }
    Some(strings)
}

fn bad(what: String) -> InferError {
    InferError::BadRequest(what)
}
