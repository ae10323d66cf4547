//! The reply to an inference request: JSON with tensors in it or behind it.
//!
//! Numbers are written in the shortest form that reads back as the same value of their type. In a reply in one piece, NaN and the
//! infinities are written as Triton's words. The parts of a reply that is sent item by item are strict JSON, which has no such numbers.

use super::{
    binary::strings,
    not_finite::{self, NotFinite},
    shared_memory::Place,
};
use crate::{
    engine::{DataType, Tensor, tensor::bytes_of},
    error::InferError,
};
use axum::body::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    borrow::Cow,
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// One output.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its value.
    pub tensor: Tensor,
    /// Whether it is sent behind the JSON rather than in it.
    pub binary: bool,
    /// The shared memory that it has been put into instead of the reply.
    pub place: Option<Place>,
}

impl Output {
    /// The most bytes that it takes as text; 0 if it is not text.
    pub fn text_bytes_max(&self) -> u64 {
        if self.binary || self.place.is_some() { 0 } else { text_bytes_max(&self.tensor) }
    }
}

/// Numbers that are stated beside the outputs, by name.
pub type OutputParameters = Vec<(&'static str, u64)>;

/// A reply to write.
#[derive(Debug, Clone, Default)]
pub struct InferReply {
    /// The id of the request.
    pub id: Option<String>,
    /// Which model answered.
    pub model_name: Arc<str>,
    /// Which version of it.
    pub model_version: Arc<str>,
    /// Numbers beside the outputs; left out if empty.
    pub parameters: OutputParameters,
    /// In the order of the request, or of the model.
    pub outputs: Vec<Output>,
}

/// A reply as bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// `application/json`, or `application/octet-stream` if something is binary.
    pub content_type: &'static str,
    /// For the header `Inference-Header-Content-Length`, which must be absent if nothing is binary.
    pub json_length: Option<usize>,
    /// Bytes of the JSON.
    pub text: usize,
    /// The JSON, then the binary tensors in their own memory.
    pub body: Chunks,
}

/// Writes a reply.
///
/// # Errors
/// 400 for an FP16 or BF16 output that was not asked for as binary: JSON does not carry these types.
/// [`InferError::Internal`] for a BYTES output whose lengths do not add up.
pub fn write(reply: &InferReply) -> Result<Encoded, InferError> {
    let mut json = Vec::new();
    room(&mut json, 512 + reply.outputs.iter().map(Output::text_bytes_max).sum::<u64>())?;
    json.push(b'{');
    json.extend(reply.id.as_deref().map(id).unwrap_or_default());
    json.extend_from_slice(b"\"model_name\":");
    string(&mut json, &reply.model_name);
    json.extend_from_slice(b",\"model_version\":");
    string(&mut json, &reply.model_version);
    json.push(b',');
    parameters(&mut json, &reply.parameters);
    json.extend_from_slice(b"\"outputs\":[");
    let mut chunks = VecDeque::with_capacity(1 + reply.outputs.len());
    chunks.push_back(Bytes::new());
    for (index, Output { name, tensor, binary, place }) in reply.outputs.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        json.extend_from_slice(b"{\"name\":");
        string(&mut json, name);
        head(&mut json, tensor);
        if place.is_some() {
            // The client that asked knows the place. Triton's C++ client takes any parameters of an output for those of binary data.
            json.push(b'}');
        } else if *binary {
            json.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            number(&mut json, tensor.data.len());
            json.extend_from_slice(b"}}");
            chunks.push_back(tensor.data.clone());
        } else {
            json.extend_from_slice(b",\"data\":[");
            numbers_of(&mut json, name, tensor, NotFinite::Words)?;
            json.extend_from_slice(b"]}");
        }
    }
    json.extend_from_slice(b"]}");
    let text = json.len();
    let json_length = (chunks.len() > 1).then_some(text);
    chunks[0] = json.into();
    chunks.retain(|chunk| !chunk.is_empty());
    Ok(Encoded {
        content_type: match json_length {
            Some(_) => "application/octet-stream",
            None => "application/json",
        },
        json_length,
        text,
        body: Chunks(chunks),
    })
}

/// The member that repeats a request's id, followed by a comma.
pub fn id(id: &str) -> Vec<u8> {
    let mut json = b"\"id\":".to_vec();
    string(&mut json, id);
    json.push(b',');
    json
}

/// The member for numbers beside the outputs, followed by a comma; nothing if there are none.
fn parameters(json: &mut Vec<u8>, told: &OutputParameters) {
    if told.is_empty() {
        return;
    }
    let told: serde_json::Map<_, _> =
        told.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect();
    json.extend_from_slice(b"\"parameters\":");
    serde_json::to_writer(&mut *json, &told).expect("a JSON value can be written to memory");
    json.push(b',');
}

/// The members of an object with the results for some of a request's items. Everything is text.
///
/// # Errors
/// As [`write()`], and 400 for NaN and infinities.
pub fn members(told: &OutputParameters, outputs: &[Output]) -> Result<Vec<u8>, InferError> {
    let mut json = Vec::new();
    room(&mut json, 512 + outputs.iter().map(Output::text_bytes_max).sum::<u64>())?;
    parameters(&mut json, told);
    json.extend_from_slice(b"\"outputs\":[");
    for (index, Output { name, tensor, .. }) in outputs.iter().enumerate() {
        json.extend_from_slice(if index > 0 { b",{\"name\":" } else { b"{\"name\":" });
        string(&mut json, name);
        head(&mut json, tensor);
        json.extend_from_slice(b",\"data\":[");
        numbers_of(&mut json, name, tensor, NotFinite::Refused)?;
        json.extend_from_slice(b"]}");
    }
    json.push(b']');
    Ok(json)
}

/// Writes a tensor's type and shape.
fn head(json: &mut Vec<u8>, tensor: &Tensor) {
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(tensor.datatype.name().as_bytes());
    json.extend_from_slice(b"\",\"shape\":[");
    for (axis, extent) in tensor.shape.iter().enumerate() {
        if axis > 0 {
            json.extend_from_slice(b", ");
        }
        number(json, extent);
    }
    json.push(b']');
}

/// How to get values that JSON cannot represent. Replies that are sent item by item, and those of other routes, are text only.
const BINARY: &str =
    "ask /v2/models/…/infer for it with \"parameters\": {\"binary_data\": true}, in one reply";

/// The tensor, converted to FP32 if it has half precision, which is exact: for replies that are never binary.
pub(super) fn single(tensor: &Tensor) -> Cow<'_, Tensor> {
    match tensor.datatype {
        DataType::Fp16 | DataType::Bf16 => {
            let data = bytes_of(tensor.to_f32().unwrap_or_default());
            Cow::Owned(Tensor { datatype: DataType::Fp32, shape: tensor.shape.clone(), data })
        }
        _ => Cow::Borrowed(tensor),
    }
}

/// The most bytes that the elements of a tensor take as text, with separators.
pub fn text_bytes_max(tensor: &Tensor) -> u64 {
    let each = match tensor.datatype {
        DataType::Bool | DataType::Uint16 => 6,
        DataType::Uint8 => 4,
        DataType::Int8 => 5,
        DataType::Int16 => 7,
        DataType::Uint32 => 11,
        DataType::Int32 => 12,
        DataType::Uint64 | DataType::Int64 => 21,
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 => 17,
        DataType::Fp64 => 25,
        // Every byte is escaped.
        DataType::Bytes => return 6 * tensor.data.len() as u64,
    };
    each * tensor.elements() as u64
}

/// Reserves memory for this much text.
///
/// # Errors
/// [`InferError::Full`] if there is not enough memory.
pub fn room(json: &mut Vec<u8>, bytes: u64) -> Result<(), InferError> {
    let reserved = usize::try_from(bytes).map(|bytes| json.try_reserve_exact(bytes));
    if let Ok(Ok(())) = reserved {
        return Ok(());
    }
    Err(InferError::Full {
        what: "memory for the text of the reply, in bytes,",
        limit: bytes,
        retry_after: Duration::from_secs(1),
    })
}

/// Writes the elements of a tensor, flat, separated by commas.
pub(super) fn numbers_of(
    json: &mut Vec<u8>,
    name: &str,
    tensor: &Tensor,
    not_finite: NotFinite,
) -> Result<(), InferError> {
    fn each<const SIZE: usize>(json: &mut Vec<u8>, data: &[u8], one: impl Fn(&mut Vec<u8>, [u8; SIZE])) {
        for (index, chunk) in data.as_chunks::<SIZE>().0.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            one(json, *chunk);
        }
    }
    let data = &tensor.data[..];
    if not_finite == NotFinite::Refused
        && let Some(index) = first_not_finite(tensor)
    {
        return Err(InferError::BadRequest(format!(
            "output {name:?} is not a finite number at element {index}, which JSON does not carry; {BINARY}"
        )));
    }
    let told = |word: &'static str| if not_finite == NotFinite::Null { "null" } else { word }.as_bytes();
    match tensor.datatype {
        DataType::Bool => each(json, data, |json, [b]| number(json, b != 0)),
        DataType::Uint8 => each(json, data, |json, b| number(json, u8::from_le_bytes(b))),
        DataType::Uint16 => each(json, data, |json, b| number(json, u16::from_le_bytes(b))),
        DataType::Uint32 => each(json, data, |json, b| number(json, u32::from_le_bytes(b))),
        DataType::Uint64 => each(json, data, |json, b| number(json, u64::from_le_bytes(b))),
        DataType::Int8 => each(json, data, |json, b| number(json, i8::from_le_bytes(b))),
        DataType::Int16 => each(json, data, |json, b| number(json, i16::from_le_bytes(b))),
        DataType::Int32 => each(json, data, |json, b| number(json, i32::from_le_bytes(b))),
        DataType::Int64 => each(json, data, |json, b| number(json, i64::from_le_bytes(b))),
        DataType::Fp32 => each(json, data, |json, b| {
            let value = f32::from_le_bytes(b);
            match not_finite::word(value.into()) {
                Some(word) => json.extend_from_slice(told(word)),
                None => number(json, value),
            }
        }),
        DataType::Fp64 => each(json, data, |json, b| {
            let value = f64::from_le_bytes(b);
            match not_finite::word(value) {
                Some(word) => json.extend_from_slice(told(word)),
                None => number(json, value),
            }
        }),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(InferError::BadRequest(format!(
                "output {name:?} is {}, which JSON does not carry; {BINARY}",
                tensor.datatype
            )));
        }
        DataType::Bytes => {
            let broken = || InferError::Internal(format!("output {name:?} has lengths that do not add up"));
            for (index, element) in strings(&tensor.data).ok_or_else(broken)?.iter().enumerate() {
                if index > 0 {
                    json.push(b',');
                }
                string(json, &String::from_utf8_lossy(element));
            }
        }
    }
    Ok(())
}

/// Writes a finite number or a flag in its shortest form.
fn number(json: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(json, &value).expect("a number can be written to memory");
}

/// The first element that is NaN or infinite.
fn first_not_finite(tensor: &Tensor) -> Option<usize> {
    match tensor.datatype {
        DataType::Fp32 => tensor.data.as_chunks().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
        DataType::Fp64 => tensor.data.as_chunks().0.iter().position(|b| !f64::from_le_bytes(*b).is_finite()),
        _ => None,
    }
}

pub(super) fn string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("a string can be written to memory");
}

/// A body of known length in several pieces of memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chunks(VecDeque<Bytes>);

impl Chunks {
    /// Bytes of all pieces that are left.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn output(datatype: DataType, shape: &[usize], data: &[u8], binary: bool) -> Output {
        Output {
            name: "y".to_owned(),
            tensor: Tensor { datatype, shape: shape.to_vec(), data: Bytes::copy_from_slice(data) },
            binary,
            place: None,
        }
    }

    fn encode(outputs: Vec<Output>) -> Result<(Encoded, Vec<u8>), InferError> {
        let reply = InferReply {
            id: Some("a\"b".to_owned()),
            model_name: "m".into(),
            model_version: "1".into(),
            outputs,
            ..InferReply::default()
        };
        let encoded = write(&reply)?;
        let bytes = encoded.body.0.iter().flatten().copied().collect();
        Ok((encoded, bytes))
    }

    fn check(datatype: DataType, data: &[u8], shape: &[usize], expected: &str) {
        let (encoded, bytes) = encode(vec![output(datatype, shape, data, false)]).unwrap();
        assert_eq!((encoded.content_type, encoded.json_length), ("application/json", None));
        let expected = format!(
            r#"{{"id":"a\"b","model_name":"m","model_version":"1","outputs":[{{"name":"y","datatype":"{datatype}","shape":{shape:?},"data":{expected}}}]}}"#
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn every_type_has_its_json_form() {
        check(DataType::Bool, &[1, 0], &[2], "[true,false]");
        check(DataType::Int16, &[0xff, 0xff, 2, 1], &[2, 1], "[-1,258]");
        check(DataType::Uint64, &[0xff; 8], &[1], "[18446744073709551615]");
        let floats: Vec<u8> = [0.1f32, -3e38, 1.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        check(DataType::Fp32, &floats, &[3], "[0.1,-3e+38,1.0]");
        check(DataType::Bytes, b"\x02\0\0\0ab\x01\0\0\0\"", &[2], r#"["ab","\""]"#);
        check(DataType::Fp64, &0.1f64.to_le_bytes(), &[1], "[0.1]");
        check(DataType::Fp32, &[], &[0, 4], "[]");
    }

    #[test]
    fn integers_have_all_their_bits_and_their_sign() {
        macro_rules! extremes {
            ($($name:ident $type:ty),*) => {$(
                let (min, max) = (<$type>::MIN, <$type>::MAX);
                let bytes = [min.to_le_bytes(), max.to_le_bytes()].concat();
                check(DataType::$name, &bytes, &[2], &format!("[{min},{max}]"));
            )*};
        }
        extremes!(Uint8 u8, Uint16 u16, Uint32 u32, Uint64 u64, Int8 i8, Int16 i16, Int32 i32, Int64 i64);
    }

    #[test]
    fn binary_outputs_follow_the_json_in_order_and_are_not_copied() {
        let first = output(DataType::Fp32, &[1, 2], b"\0\0\x80\x3f\0\0\0\x40", true);
        let second = output(DataType::Bytes, &[2], b"\x02\0\0\0ab\x01\0\0\0c", true);
        let (encoded, bytes) =
            encode(vec![first.clone(), output(DataType::Int8, &[1], &[5], false), second]).unwrap();
        let length = encoded.json_length.unwrap();
        assert_eq!(encoded.content_type, "application/octet-stream");
        assert_eq!(bytes[length..], *b"\0\0\x80\x3f\0\0\0\x40\x02\0\0\0ab\x01\0\0\0c");
        assert_eq!(encoded.body.len(), bytes.len());
        assert_eq!(encoded.body.0[1].as_ptr(), first.tensor.data.as_ptr());
        let json: Value = serde_json::from_slice(&bytes[..length]).unwrap();
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(json["outputs"][1]["data"][0], 5);
        assert_eq!(json["outputs"][2]["parameters"]["binary_data_size"], 11);
    }

    #[test]
    fn an_output_that_was_put_elsewhere_is_not_in_the_reply() {
        let place = Some(Place { region: "r".to_owned(), offset: 0, bytes: 64 });
        let nan = f32::NAN.to_le_bytes();
        let outputs = [true, false]
            .map(|binary| Output { place: place.clone(), ..output(DataType::Fp32, &[1], &nan, binary) });
        let (encoded, bytes) = encode(outputs.into()).unwrap();
        assert_eq!((encoded.content_type, encoded.json_length), ("application/json", None));
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        let expected = serde_json::json!({"name": "y", "datatype": "FP32", "shape": [1]});
        assert_eq!(json["outputs"], serde_json::json!([expected, expected]));
    }

    #[test]
    fn what_json_cannot_hold_is_a_word_in_one_piece_and_refused_item_by_item() {
        for (odd, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "Infinity"), (f32::NEG_INFINITY, "-Infinity")]
        {
            let single = [1f32.to_le_bytes(), odd.to_le_bytes()].concat();
            let double: Vec<u8> =
                [1.0, f64::from(odd)].iter().flat_map(|odd: &f64| odd.to_le_bytes()).collect();
            for (datatype, data) in [(DataType::Fp32, single), (DataType::Fp64, double)] {
                let (_, json) = encode(vec![output(datatype, &[2], &data, false)]).unwrap();
                let text = String::from_utf8_lossy(&json).into_owned();
                assert!(text.contains(&format!("\"data\":[1.0,{word}]")), "{text}");
                let error = members(&OutputParameters::new(), &[output(datatype, &[2], &data, false)])
                    .unwrap_err()
                    .to_string();
                assert!(error.contains("element 1") && error.contains("binary_data"), "{error}");
                assert!(encode(vec![output(datatype, &[2], &data, true)]).is_ok());
            }
        }
    }

    #[test]
    fn what_is_told_beside_outputs_is_in_the_json_of_all_replies() {
        let told = serde_json::json!({"over_spots_max": 7});
        let output = output(DataType::Int8, &[1], &[5], true);
        let reply = InferReply {
            parameters: vec![("over_spots_max", 7)],
            outputs: vec![output.clone()],
            ..InferReply::default()
        };
        let encoded = write(&reply).unwrap();
        let json: Value = serde_json::from_slice(&encoded.body.0[0]).unwrap();
        assert_eq!((&json["parameters"], json["outputs"].as_array().unwrap().len()), (&told, 1));
        let part = [b"{", &members(&reply.parameters, &[output]).unwrap()[..], b"}"].concat();
        let json: Value = serde_json::from_slice(&part).unwrap();
        assert_eq!((&json["parameters"], json["outputs"].as_array().unwrap().len()), (&told, 1));
    }

    #[test]
    fn half_floats_are_binary_only() {
        let error = encode(vec![output(DataType::Fp16, &[1], &[0, 0], false)]).unwrap_err();
        assert!(error.to_string().contains("binary_data"), "{error}");
        assert!(encode(vec![output(DataType::Fp16, &[1], &[0, 0], true)]).is_ok());
    }

    proptest! {
        #[test]
        fn written_numbers_read_back_as_the_same_bits(numbers in prop::collection::vec(any::<f32>(), 0..50)) {
            let finite: Vec<f32> = numbers.into_iter().filter(|n| n.is_finite()).collect();
            let data: Vec<u8> = finite.iter().flat_map(|n| n.to_le_bytes()).collect();
            let mut json = b"[".to_vec();
            let sent = output(DataType::Fp32, &[finite.len()], &data, false).tensor;
            numbers_of(&mut json, "y", &sent, NotFinite::Words).unwrap();
            json.push(b']');
            let raw: &serde_json::value::RawValue = serde_json::from_slice(&json).unwrap();
            let got = super::super::data::tensor("y", DataType::Fp32, vec![finite.len()], raw).unwrap();
            prop_assert_eq!(got.data, sent.data);
        }
    }

    #[test]
    fn text_takes_no_more_than_is_set_aside_for_it() {
        use DataType::*;
        let check = |datatype, data: Vec<u8>, count| {
            let tensor = Tensor { datatype, shape: vec![count], data: data.into() };
            let mut json = Vec::new();
            numbers_of(&mut json, "y", &tensor, NotFinite::Words).unwrap();
            // With one comma more than there are.
            assert!(json.len() as u64 <= text_bytes_max(&tensor), "{datatype}: {}", json.len());
        };
        let twice = |bytes: &[u8]| bytes.repeat(2);
        check(Bool, vec![0, 0], 2);
        for (signed, unsigned) in [(Int8, Uint8), (Int16, Uint16), (Int32, Uint32), (Int64, Uint64)] {
            let size = signed.size().unwrap();
            let least = [&vec![0; size - 1][..], &[0x80]].concat();
            check(signed, twice(&least), 2);
            check(unsigned, vec![0xff; 2 * size], 2);
        }
        for value in [f32::MIN, -1.175_494_2e-38, -1.0e-45, -0.123_456_79, f32::NEG_INFINITY, f32::NAN] {
            check(Fp32, twice(&value.to_le_bytes()), 2);
        }
        for value in [f64::MIN, -2.225_073_858_507_201e-308, -5.0e-324, -0.123_456_789_012_345_67] {
            check(Fp64, twice(&value.to_le_bytes()), 2);
        }
        let texts: [&[u8]; 4] = [b"", b"\x01\x02", b"\xff\xff", "é\"\\".as_bytes()];
        let data = texts.map(|text| [&(text.len() as u32).to_le_bytes(), text].concat()).concat();
        check(Bytes, data, 4);
    }

    #[test]
    fn text_for_which_there_is_no_memory_is_refused_before_it_is_begun() {
        let refused = room(&mut Vec::new(), 1 << 62).unwrap_err();
        assert!(matches!(refused, InferError::Full { limit, .. } if limit == 1 << 62), "{refused}");
    }
}
