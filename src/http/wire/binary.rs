//! Tensors as bytes: little-endian numbers without padding; strings, each preceded by its length.

use crate::{
    engine::{DataType, Tensor},
    error::{InferError, bad},
};
use axum::body::Bytes;

/// Checks that `got` bytes can be a tensor of this type and shape. For strings, the size is known only once they have arrived.
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

/// A binary tensor, checked to have the bytes of its type and shape. Any flag byte other than 0 is true, as in Triton, and becomes 1:
/// engines know only 0 and 1.
///
/// # Errors
/// 400 saying what was expected and what came.
pub fn checked(name: &str, mut tensor: Tensor) -> Result<Tensor, InferError> {
    check_size(name, tensor.datatype, &tensor.shape, tensor.data.len() as u64)?;
    let elements = tensor.elements();
    match tensor.datatype.size() {
        Some(_) => {
            if tensor.datatype == DataType::Bool && tensor.data.iter().any(|byte| *byte > 1) {
                tensor.data = tensor.data.iter().map(|byte| u8::from(*byte > 0)).collect();
            }
            Ok(tensor)
        }
        None => match count(&tensor.data) {
            Some(got) if got == elements => Ok(tensor),
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

/// How many elements a [`DataType::Bytes`] tensor has; `None` if the lengths do not add up. Allocates nothing: elements may be empty, and a
/// handle for each would take many times as much memory as the element.
fn count(mut data: &[u8]) -> Option<usize> {
    let mut count = 0;
    while let Some((length, rest)) = data.split_first_chunk() {
        data = rest.get(u32::from_le_bytes(*length) as usize..)?;
        count += 1;
    }
    data.is_empty().then_some(count)
}

/// The bytes of the first `count` elements of a [`DataType::Bytes`] tensor; of all elements, if the lengths do not add up.
pub fn length_of(data: &[u8], count: usize) -> usize {
    let mut rest = data;
    for _ in 0..count {
        let Some((length, more)) = rest.split_first_chunk() else { return data.len() };
        let Some(more) = more.get(u32::from_le_bytes(*length) as usize..) else { return data.len() };
        rest = more;
    }
    data.len() - rest.len()
}

/// The elements of a [`DataType::Bytes`] tensor, as slices of its memory; `None` if the lengths do not add up.
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
    fn of_flags_every_byte_but_0_is_true_and_no_other_byte_goes_on() {
        let flags = |data: &'static [u8]| Tensor {
            datatype: DataType::Bool,
            shape: vec![4],
            data: Bytes::from_static(data),
        };
        assert_eq!(
            checked("x", flags(b"\0\x01\x02\xff")).map(|flags| flags.data),
            Ok("\0\x01\x01\x01".into())
        );
        let plain = flags(b"\0\x01\x01\0");
        let same = checked("x", plain.clone()).map(|flags| flags.data.as_ptr());
        assert_eq!(same, Ok(plain.data.as_ptr()), "what is fine is not copied");
        assert!(checked("x", flags(b"\0\x01")).is_err());
    }

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
