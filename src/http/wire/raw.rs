//! A raw inference request (`Inference-Header-Content-Length: 0`): the body is the data of the model's only input.

use super::{
    Parameters,
    request::{InferRequest, Input},
};
use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    error::InferError,
    image::Format,
};
use axum::body::Bytes;

/// Reads a raw request. At most one extent may be free, and is then
/// whatever the body's length makes it, except that a free first extent is 1 if there is another. For BYTES the body
/// is one element, such as an encoded image; and so it is for a model that `takes_images`, if it begins as an image does.
///
/// # Errors
/// 400 if the model has several inputs, or the length does not fit.
pub fn read(body: Bytes, inputs: &[TensorSpec], takes_images: bool) -> Result<InferRequest, InferError> {
    let [spec] = inputs else {
        return Err(bad(format!(
            "a raw request is for models with one input; this one has {}",
            inputs.len()
        )));
    };
    if takes_images && Format::sniff(&body).is_some() {
        return one(spec, DataType::Bytes, vec![1], prefixed(&body)?);
    }
    let mut dims = spec.shape.clone();
    let free = |dims: &[Dim]| dims.iter().filter(|dim| **dim == Dim::Free).count();
    if free(&dims) > 1
        && let Some(first) = dims.first_mut()
        && *first == Dim::Free
    {
        *first = Dim::Fixed(1);
    }
    if free(&dims) > 1 {
        return Err(bad("a raw request is for inputs with one free extent at most".to_owned()));
    }
    let tensor = match spec.datatype.size() {
        None => Tensor { datatype: spec.datatype, shape: vec![1; dims.len()], data: prefixed(&body)? },
        Some(size) => {
            let fixed: usize = dims.iter().map(|dim| if let Dim::Fixed(n) = dim { *n } else { 1 }).product();
            let row = fixed * size;
            let fits = row > 0
                && match free(&dims) {
                    0 => body.len() == row,
                    _ => !body.is_empty() && body.len().is_multiple_of(row),
                };
            if !fits {
                return Err(bad(format!(
                    "the body has {} bytes, expected {}{row} for {}",
                    body.len(),
                    if free(&dims) == 0 { "" } else { "a multiple of " },
                    spec.datatype
                )));
            }
            let extent = |dim: &Dim| {
                if let Dim::Fixed(n) = dim { *n } else { body.len() / row }
            };
            Tensor { datatype: spec.datatype, shape: dims.iter().map(extent).collect(), data: body }
        }
    };
    one(spec, tensor.datatype, tensor.shape, tensor.data)
}

/// The request of one input.
fn one(
    spec: &TensorSpec,
    datatype: DataType,
    shape: Vec<usize>,
    data: Bytes,
) -> Result<InferRequest, InferError> {
    let tensor = Tensor { datatype, shape, data };
    Ok(InferRequest {
        id: None,
        parameters: Parameters::new(),
        inputs: vec![Input::whole(spec.name.clone(), tensor, Parameters::new())],
        outputs: Vec::new(),
        binary_default: true,
    })
}

/// One element of a BYTES tensor.
fn prefixed(body: &Bytes) -> Result<Bytes, InferError> {
    let length = u32::try_from(body.len()).map_err(|_| bad("the body is over 4 GiB".to_owned()))?;
    Ok([&length.to_le_bytes()[..], body].concat().into())
}

fn bad(what: String) -> InferError {
    InferError::BadRequest(what)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::binary::strings;
    use super::*;

    #[test]
    fn a_raw_body_is_the_only_input() {
        let spec =
            |datatype, shape: &[Dim]| TensorSpec { name: "x".to_owned(), datatype, shape: shape.to_vec() };
        use Dim::{Fixed, Free};
        let shape = |bytes: usize, spec: &TensorSpec| {
            read(Bytes::from(vec![0; bytes]), std::slice::from_ref(spec), false)
                .map(|r| r.inputs[0].tensor.shape.clone())
        };
        assert_eq!(shape(24, &spec(DataType::Fp32, &[Free, Fixed(3)])), Ok(vec![2, 3]));
        assert_eq!(shape(24, &spec(DataType::Fp32, &[Free, Fixed(3), Free])), Ok(vec![1, 3, 2]));
        assert!(shape(25, &spec(DataType::Fp32, &[Free, Fixed(3)])).is_err());
        assert!(shape(25, &spec(DataType::Fp32, &[Fixed(2), Free, Free])).is_err());
        let image = read(Bytes::from_static(b"jpeg"), &[spec(DataType::Bytes, &[Free])], false).unwrap();
        assert_eq!(strings(&image.inputs[0].tensor.data).unwrap(), ["jpeg"]);
        assert!(image.binary_default);
        assert!(read(Bytes::new(), &[], false).is_err());
        let gif = Bytes::from_static(b"GIF89a..");
        let numbers = [spec(DataType::Uint8, &[Free])];
        let tensor =
            |takes_images| read(gif.clone(), &numbers, takes_images).unwrap().inputs.remove(0).tensor;
        assert_eq!((tensor(false).datatype, tensor(false).shape), (DataType::Uint8, vec![8]));
        assert_eq!((tensor(true).datatype, tensor(true).shape), (DataType::Bytes, vec![1]));
        assert_eq!(strings(&tensor(true).data).unwrap(), ["GIF89a.."]);
    }
}
