//! Sets aside memory for the texts of BYTES tensors, before any text is made. An empty text arrives as three or four bytes, and takes many
//! times as much once it is worked on.

use super::Permit;
use crate::{
    engine::{DataType, Tensor},
    error::InferError,
};

/// What one text takes beside the body, however short it is. Measured with a model that returns its texts, per empty text: 157 bytes from
/// binary data, 198 from JSON and 200 from rows. They are its position, our text, ONNX Runtime's copy of it with an end, its own of 32
/// bytes in the input and again in the output, and what is made of that.
const TEXT_BYTES: u64 = 192;
/// How many copies of a text's bytes and length exist at once. Measured: 6 to 8 for texts of 100 bytes and more, one of which the queue
/// counts.
const COPIES: u64 = 7;

/// Sets aside what an engine makes of the texts in its inputs, until the request has ended.
///
/// # Errors
/// As [`Permit::cover`].
pub(crate) fn cover(permit: Option<&Permit>, inputs: &[Tensor]) -> Result<(), InferError> {
    let texts = inputs.iter().filter(|input| input.datatype == DataType::Bytes);
    let bytes = texts.map(|input| input.elements() as u64 * TEXT_BYTES + input.data.len() as u64 * COPIES);
    more(permit, bytes.sum())
}

/// The same for elements that are encoded images: they stay in the body, and only their positions are noted.
///
/// # Errors
/// As [`Permit::cover`].
pub(crate) fn cover_slices(permit: Option<&Permit>, count: usize) -> Result<(), InferError> {
    more(permit, count as u64 * TEXT_BYTES)
}

fn more(permit: Option<&Permit>, bytes: u64) -> Result<(), InferError> {
    permit.map_or(Ok(()), |permit| permit.more(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{
        super::{Admission, AdmissionLimits},
        *,
    };
    use crate::{
        engine::{Dim, TensorSpec},
        http::wire::{
            request::{self, Input},
            v1,
        },
    };
    use bytes::Bytes;

    fn permit(bytes_max: u64) -> Permit {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: bytes_max };
        Admission::new(limits).admit().unwrap()
    }

    fn tensors(inputs: Vec<Input>) -> Vec<Tensor> {
        inputs.into_iter().map(|input| input.tensor).collect()
    }

    /// What a request takes beside a body of 10 bytes.
    fn charged(inputs: &[Tensor]) -> u64 {
        let permit = permit(1 << 30);
        permit.cover(10).unwrap();
        cover(Some(&permit), inputs).unwrap();
        permit.bytes() - 10
    }

    #[test]
    fn the_same_texts_take_the_same_in_whatever_form_they_came() {
        let json = br#"{"inputs":[{"name":"x","shape":[3],"datatype":"BYTES","data":["","","abc"]}]}"#;
        let head = br#"{"inputs":[{"name":"x","shape":[3],"datatype":"BYTES","parameters":{"binary_data_size":15}}]}"#;
        let binary = Bytes::from([&head[..], b"\0\0\0\0\0\0\0\0\x03\0\0\0abc"].concat());
        let spec = [TensorSpec { name: "x".into(), datatype: DataType::Bytes, shape: vec![Dim::Free] }];
        let taken = v1::Taken { inputs: &spec, pixels: &[], images: false };
        let rows = br#"{"instances":["","","abc"]}"#;
        let Ok((_, v1::Asked::Tensors(rows))) = v1::read(rows, taken, 1, &mut |_| Ok(())) else { panic!() };
        for inputs in [
            tensors(request::read(&Bytes::from_static(json), None, &[]).unwrap().inputs),
            tensors(request::read(&binary, Some(head.len()), &[]).unwrap().inputs),
            tensors(rows),
        ] {
            assert_eq!(charged(&inputs), 3 * TEXT_BYTES + 15 * COPIES);
        }
        assert_eq!(charged(&[Tensor::zeros(DataType::Fp32, &[9])]), 0, "numbers are as large as they came");
    }

    #[test]
    fn texts_for_which_there_is_no_room_are_refused_and_nothing_is_set_aside() {
        let texts = Tensor::zeros(DataType::Bytes, &[100, 10]);
        let needed = 1000 * (TEXT_BYTES + 4 * COPIES);
        let alone = permit(needed);
        cover(Some(&alone), std::slice::from_ref(&texts)).unwrap();
        assert_eq!(alone.bytes(), needed);
        let never = permit(needed - 1);
        let told = cover(Some(&never), std::slice::from_ref(&texts)).unwrap_err();
        assert!(matches!(told, InferError::TooLarge { option: "in_flight_bytes_max", .. }), "{told}");
        assert_eq!(never.bytes(), 0);
        let limits = AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max: needed };
        let admission = Admission::new(limits);
        let (other, late) = (admission.admit().unwrap(), admission.admit().unwrap());
        other.cover(1).unwrap();
        let full = cover(Some(&late), &[texts]).unwrap_err();
        assert!(matches!(full, InferError::Full { .. }), "{full}");
    }

    #[test]
    fn encoded_images_take_little_however_long_they_are() {
        let permit = permit(1 << 20);
        cover_slices(Some(&permit), 4).unwrap();
        assert_eq!(permit.bytes(), 4 * TEXT_BYTES);
        cover(None, &[Tensor::zeros(DataType::Bytes, &[9])]).unwrap();
    }
}
