//! Tensors as bytes: little-endian numbers without padding; strings with their lengths in front.

use crate::{
    engine::{DataType, Tensor},
    error::{InferError, bad},
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
        None => match count(&tensor.data) {
            Some(got) if got == elements => Ok(()),
            Some(got) => Err(bad(format!(
                "input {name:?} has {got} elements, expected {elements} for shape {:?}",
                tensor.shape
            ))),
            None => Err(bad(format!(
                "input {name:?} is BYTES and does not consist of 32-bit lengths and as many bytes"
            ))),
        },
    }
}

/// How many elements a [`DataType::Bytes`] tensor has; `None` if the lengths do not add up. Takes no memory: elements may be
/// empty, and then what says where one lies is many times as large as the element.
fn count(mut data: &[u8]) -> Option<usize> {
    let mut count = 0;
    while let Some((length, rest)) = data.split_first_chunk() {
        data = rest.get(u32::from_le_bytes(*length) as usize..)?;
        count += 1;
    }
    data.is_empty().then_some(count)
}

/// The bytes of the first `count` elements of a [`DataType::Bytes`] tensor; all that there are, if the lengths do not add up.
pub fn length_of(data: &[u8], count: usize) -> usize {
    let mut rest = data;
    for _ in 0..count {
        let Some((length, more)) = rest.split_first_chunk() else { return data.len() };
        let Some(more) = more.get(u32::from_le_bytes(*length) as usize..) else { return data.len() };
        rest = more;
    }
    data.len() - rest.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_are_counted_as_they_are_read() {
        for (data, expected) in [
            (&b""[..], Some(0)),
            (b"\0\0\0\0\0\0\0\0", Some(2)),
            (b"\x01\0\0\0a", Some(1)),
            (b"\x02\0\0\0a", None),
            (b"\0\0\0", None),
            (b"\xff\xff\xff\xffa", None),
        ] {
            assert_eq!(count(data), expected, "{data:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_there_is(
            elements in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..5),
            cut in 0..40usize,
        ) {
            let one = |element: &Vec<u8>| [&(element.len() as u32).to_le_bytes()[..], element].concat();
            let data = Bytes::from(elements.iter().flat_map(one).collect::<Vec<u8>>());
            let data = data.slice(..cut.min(data.len()));
            prop_assert_eq!(count(&data), strings(&data).map(|strings| strings.len()));
        }
    }
}
