//! A raw inference request (`Inference-Header-Content-Length: 0`): the body is the data of the model's only input.

use super::{
    Parameters, binary,
    request::{InferRequest, Input},
};
use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    error::{InferError, bad},
    image::{self, DecodeError, Format, Limits},
};
use axum::body::Bytes;

/// Reads a raw request. At most one extent may be free; the length of the body determines it. A free first extent is 1 if there is another
/// free one.
///
/// For BYTES, the body is one element, such as an encoded image. For a model that takes images, whose limits are `images`, a body that
/// begins like an image is one element as well. Numbers or pixels may begin like that by chance: a body with the length of one item and no
/// valid image header is taken as numbers or pixels. `pixels` are the other forms in which that model takes an image: a body that does not
/// fit the input's own length, but that of one item in such a form, is that item.
///
/// # Errors
/// 400 if the model has several inputs, or the length does not fit.
pub fn read(
    body: Bytes,
    inputs: &[TensorSpec],
    pixels: &[TensorSpec],
    images: Option<&Limits>,
) -> Result<InferRequest, InferError> {
    if let Some(limits) = images
        && let Some(spec) = inputs.first()
        && Format::sniff(&body).is_some()
        && !(is_item(inputs, pixels, body.len()) && is_no_image(&body, limits))
    {
        return one(spec, DataType::Bytes, vec![1], prefixed(&body)?);
    }
    let [spec] = inputs else {
        return Err(bad(format!(
            "a raw request is for models with one input; this one has {}",
            inputs.len()
        )));
    };
    let mut dims = spec.shape.clone();
    let free = |dims: &[Dim]| dims.iter().filter(|dim| **dim == Dim::Free).count();
    if free(&dims) > 1
        && let Some(first) = dims.first_mut()
        && *first == Dim::Free
    {
        *first = Dim::Fixed(1);
    }
    if free(&dims) > 1 {
        return Err(bad("a raw request is for inputs with one free extent at most"));
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
                if let Some((datatype, shape)) = pixels.iter().find_map(|form| item(form, body.len())) {
                    return one(spec, datatype, shape, body);
                }
                let own = if free(&dims) == 0 { "" } else { "a multiple of " };
                let sizes = pixels.iter().filter_map(|form| Some((item_bytes(form)?.1, form.datatype)));
                let sizes: String = sizes.map(|(bytes, of)| format!(", or {bytes} for {of}")).collect();
                return Err(bad(format!(
                    "the body has {} bytes, expected {own}{row} for {}{sizes}",
                    body.len(),
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

/// Shape and bytes of one image in a form of pixels (`[height, width, channels]`, or with a batch axis before these); `None` if images do
/// not all have the same size.
fn item_bytes(form: &TensorSpec) -> Option<(Vec<usize>, usize)> {
    let extent = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(n) => Some(*n),
        Dim::Free => (axis == 0 && form.shape.len() == 4).then_some(1),
    };
    let shape: Vec<usize> = form.shape.iter().enumerate().map(extent).collect::<Option<_>>()?;
    let bytes = shape.iter().product::<usize>() * form.datatype.size()?;
    Some((shape, bytes))
}

/// Whether one item has this many bytes, in the input's own type or in another form.
fn is_item(inputs: &[TensorSpec], pixels: &[TensorSpec], bytes: usize) -> bool {
    let [spec] = inputs else { return false };
    let fixed = spec.shape.iter().map(|dim| if let Dim::Fixed(n) = dim { *n } else { 1 });
    let own = spec.datatype.size().map(|size| size * fixed.product::<usize>());
    own == Some(bytes) || pixels.iter().any(|form| item(form, bytes).is_some())
}

/// Whether bytes that begin like an image have no valid image header.
fn is_no_image(bytes: &[u8], limits: &Limits) -> bool {
    matches!(image::header(bytes, limits), Err(DecodeError::Corrupt { .. }))
}

/// Type and shape of one item in a form, if it has this many bytes.
fn item(form: &TensorSpec, bytes: usize) -> Option<(DataType, Vec<usize>)> {
    let (shape, expected) = item_bytes(form)?;
    (bytes == expected).then_some((form.datatype, shape))
}

/// A request with one input.
fn one(
    spec: &TensorSpec,
    datatype: DataType,
    shape: Vec<usize>,
    data: Bytes,
) -> Result<InferRequest, InferError> {
    let tensor = binary::checked(&spec.name, Tensor { datatype, shape, data })?;
    Ok(InferRequest {
        id: None,
        parameters: Parameters::new(),
        inputs: vec![Input::whole(spec.name.clone(), tensor)],
        outputs: Vec::new(),
        binary_default: true,
    })
}

/// One element of a BYTES tensor.
fn prefixed(body: &Bytes) -> Result<Bytes, InferError> {
    let length = u32::try_from(body.len()).map_err(|_| bad("the body is over 4 GiB"))?;
    Ok([&length.to_le_bytes()[..], body].concat().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::binary::strings;
    use super::*;

    const LIMITS: Limits = Limits { side_max: 100, pixels_max: 1000, frames_max: 1 };

    #[test]
    fn a_raw_body_is_the_only_input() {
        let spec =
            |datatype, shape: &[Dim]| TensorSpec { name: "x".to_owned(), datatype, shape: shape.to_vec() };
        use Dim::{Fixed, Free};
        let shape = |bytes: usize, spec: &TensorSpec| {
            read(Bytes::from(vec![0; bytes]), std::slice::from_ref(spec), &[], None)
                .map(|r| r.inputs[0].tensor.shape.clone())
        };
        assert_eq!(shape(24, &spec(DataType::Fp32, &[Free, Fixed(3)])), Ok(vec![2, 3]));
        assert_eq!(shape(24, &spec(DataType::Fp32, &[Free, Fixed(3), Free])), Ok(vec![1, 3, 2]));
        assert!(shape(25, &spec(DataType::Fp32, &[Free, Fixed(3)])).is_err());
        assert!(shape(25, &spec(DataType::Fp32, &[Fixed(2), Free, Free])).is_err());
        let image = read(Bytes::from_static(b"jpeg"), &[spec(DataType::Bytes, &[Free])], &[], None).unwrap();
        assert_eq!(strings(&image.inputs[0].tensor.data).unwrap(), ["jpeg"]);
        assert!(image.binary_default);
        assert!(read(Bytes::new(), &[], &[], None).is_err());
        let gif = Bytes::from_static(b"GIF89a..");
        let numbers = [spec(DataType::Uint8, &[Free])];
        let tensor = |images| read(gif.clone(), &numbers, &[], images).unwrap().inputs.remove(0).tensor;
        assert_eq!((tensor(None).datatype, tensor(None).shape), (DataType::Uint8, vec![8]));
        let image = tensor(Some(&LIMITS));
        assert_eq!((image.datatype, image.shape), (DataType::Bytes, vec![1]));
        assert_eq!(strings(&image.data).unwrap(), ["GIF89a.."]);
    }

    #[test]
    fn a_raw_body_may_be_the_pixels_of_one_image() {
        use Dim::{Fixed, Free};
        let spec =
            |datatype, shape: &[Dim]| TensorSpec { name: "x".to_owned(), datatype, shape: shape.to_vec() };
        let own = [spec(DataType::Fp32, &[Free, Fixed(3), Fixed(2), Fixed(2)])];
        let pixels = |height| {
            let shape = [Free, height, Fixed(2), Fixed(3)];
            [spec(DataType::Uint8, &shape), spec(DataType::Uint16, &shape)]
        };
        let read = |bytes: usize, height| {
            let tensor = read(Bytes::from(vec![0; bytes]), &own, &pixels(height), Some(&LIMITS))?
                .inputs
                .remove(0)
                .tensor;
            Ok::<_, InferError>((tensor.datatype, tensor.shape))
        };
        assert_eq!(read(12, Fixed(2)), Ok((DataType::Uint8, vec![1, 2, 2, 3])));
        assert_eq!(read(24, Fixed(2)), Ok((DataType::Uint16, vec![1, 2, 2, 3])));
        // As long as four images in pixels: the input's own type takes precedence, and pixels are always one image.
        assert_eq!(read(48, Fixed(2)), Ok((DataType::Fp32, vec![1, 3, 2, 2])));
        let told =
            "the body has 36 bytes, expected a multiple of 48 for FP32, or 12 for UINT8, or 24 for UINT16";
        assert_eq!(read(36, Fixed(2)).unwrap_err().to_string(), told);
        // The length alone does not say how high an image is.
        let told = "the body has 12 bytes, expected a multiple of 48 for FP32";
        assert_eq!(read(12, Free).unwrap_err().to_string(), told);
    }

    #[test]
    fn numbers_that_begin_as_an_image_does_are_taken_for_one_only_where_they_have_its_header() {
        use Dim::{Fixed, Free};
        let spec =
            |datatype, shape: &[Dim]| TensorSpec { name: "x".to_owned(), datatype, shape: shape.to_vec() };
        let own = [spec(DataType::Fp32, &[Free, Fixed(3), Fixed(2), Fixed(2)])];
        let shape = [Free, Fixed(2), Fixed(2), Fixed(3)];
        let pixels = [spec(DataType::Uint8, &shape), spec(DataType::Uint16, &shape)];
        let read = |begins: &[u8], bytes: usize| {
            let body = [begins, &vec![9; bytes - begins.len()]].concat();
            let tensor = read(body.into(), &own, &pixels, Some(&LIMITS)).unwrap().inputs.remove(0).tensor;
            tensor.datatype
        };
        for begins in [&b"\xff\xd8\xff"[..], b"BM\x09\x09\x09\x09\0\0\0\0", b"II*\0"] {
            assert_eq!(
                [12, 24, 48].map(|bytes| read(begins, bytes)),
                [DataType::Uint8, DataType::Uint16, DataType::Fp32]
            );
            // Not the length of an item: a broken image, whose error the client should see.
            assert_eq!([13, 96].map(|bytes| read(begins, bytes)), [DataType::Bytes; 2]);
        }
        // A picture of 9 x 9 pixels, and one that is over the limit.
        let gif = |side: u8| {
            let of = [side, 0, side, 0, 0];
            [&b"GIF89a"[..], &of, b"\0\0,\0\0\0\0", &of, b"\x02\0;"].concat()
        };
        assert_eq!([9, 200].map(|side| read(&gif(side), 48)), [DataType::Bytes; 2]);
    }
}
