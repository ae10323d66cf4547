//! An inference request of the Open Inference Protocol: JSON, JSON with binary tensors behind it, or one raw tensor.
//!
//! ```text
//! Inference-Header-Content-Length: N      body = N bytes of JSON, then the tensors of all inputs with
//!                                         binary_data_size, in the order of the inputs, without padding
//! Inference-Header-Content-Length: 0      body = the data of the model's only input
//! no such header                          body = JSON
//! ```

use super::{
    super::{
        BINARY_OUTPUT, HEADER_LENGTH, Parameters, Whole, bad_json, binary, check_length, clipped, count,
        data, flag,
        members::{FEW_MAX, INNER_MAX, elements, elements_or_absent, members_or_absent},
        not_finite, shared_memory,
    },
    InferRequest, Input, Requested, datatype_of,
};
use crate::{
    engine::{Tensor, TensorSpec},
    error::{InferError, bad},
};
use axum::{body::Bytes, http::HeaderMap};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashSet};

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Wire<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default, deserialize_with = "members_or_absent::<FEW_MAX, _, _>")]
    parameters: Parameters,
    #[serde(borrow, deserialize_with = "elements")]
    inputs: Vec<WireInput<'a>>,
    #[serde(default, deserialize_with = "elements_or_absent")]
    outputs: Vec<WireOutput>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct WireInput<'a> {
    name: String,
    #[serde(deserialize_with = "elements")]
    shape: Vec<Extent>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(default, deserialize_with = "members_or_absent::<INNER_MAX, _, _>")]
    parameters: Parameters,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// An extent of a shape; `None` for -1, which is refused where the input's name is known.
struct Extent(Option<u64>);

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Extent, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?;
        if json.get() == "-1" {
            return Ok(Extent(None));
        }
        Whole::deserialize(json).map(|Whole(extent)| Extent(Some(extent))).map_err(D::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct WireOutput {
    name: String,
    #[serde(default, deserialize_with = "members_or_absent::<INNER_MAX, _, _>")]
    parameters: Parameters,
}

/// The length of the JSON as stated in the head: `None` means that the body is JSON, 0 that it is one raw tensor.
///
/// # Errors
/// 400 if it is not a number.
pub fn json_length(headers: &HeaderMap) -> Result<Option<usize>, InferError> {
    let Some(value) = headers.get(HEADER_LENGTH) else {
        return Ok(None);
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| {
        let got = String::from_utf8_lossy(value.as_bytes()).into_owned();
        bad(format!("the header {HEADER_LENGTH} is {:?}, expected a number of bytes", clipped(&got)))
    })
}

/// Reads a request whose JSON is `json_length` bytes long, or the whole body. For a length of 0 see [`raw`](crate::http::wire::raw).
///
/// # Errors
/// 400 saying which member of which input is wrong, what was expected and what came.
pub fn read(
    body: &Bytes,
    json_length: Option<usize>,
    specs: &[TensorSpec],
) -> Result<InferRequest, InferError> {
    let length = json_length.unwrap_or(body.len());
    if length > body.len() {
        return Err(bad(format!(
            "the header {HEADER_LENGTH} is {length}, but the body has {} bytes",
            body.len()
        )));
    }
    let mut room_for_words = Vec::new();
    let wire: Wire<'_> =
        not_finite::read(&body[..length], &mut room_for_words).map_err(|error| match json_length {
            Some(length) => bad_json(
                &format!("the inference request (the {length} bytes that {HEADER_LENGTH} names)"),
                &error,
            ),
            None => bad_json("the inference request", &error),
        })?;
    check_length("the request", wire.id.as_deref().unwrap_or_default()).map_err(bad)?;
    if let Some(name) = wire.parameters.keys().find(|name| name.starts_with("triton_")) {
        return Err(bad(format!(
            "parameter {:?} is reserved: names must not begin with triton_",
            clipped(name)
        )));
    }
    let mut behind = body.slice(length..);
    if let Some(name) = repeated(wire.inputs.iter().map(|input| &*input.name)) {
        return Err(bad(format!("input {:?} is given twice", clipped(name))));
    }
    let mut inputs: Vec<Input> = Vec::with_capacity(wire.inputs.len().min(64));
    for wire in wire.inputs {
        inputs.push(input(wire, &mut behind, specs)?);
    }
    if !behind.is_empty() {
        return Err(bad(format!(
            "{} bytes are left over behind the binary tensors; the sum of binary_data_size must be the rest of the body",
            behind.len()
        )));
    }
    let binary_default = flag(&wire.parameters, BINARY_OUTPUT)?.unwrap_or(false);
    let outputs = wire.outputs.into_iter().map(|output| (output.name, output.parameters));
    let outputs = Requested::all(outputs, binary_default)?;
    Ok(InferRequest { id: wire.id, parameters: wire.parameters, inputs, outputs, binary_default })
}

/// A name that occurs more than once.
fn repeated<'a>(mut names: impl ExactSizeIterator<Item = &'a str>) -> Option<&'a str> {
    if names.len() < 2 {
        return None;
    }
    let mut seen = HashSet::new();
    names.find(|name| !seen.insert(*name))
}

/// One input; takes its binary data, if it has any, from the front of `behind`.
fn input(wire: WireInput<'_>, behind: &mut Bytes, specs: &[TensorSpec]) -> Result<Input, InferError> {
    let WireInput { name, shape, datatype, mut parameters, data } = wire;
    // On platforms where `usize` is smaller, so is the memory.
    let shape: Option<Vec<usize>> =
        shape.into_iter().map(|Extent(extent)| extent.map(|extent| extent as usize)).collect();
    let Some(shape) = shape else {
        return Err(bad(format!(
            "input {name:?} has -1 in its shape: a request says each extent of its data; -1 is for models, of extents that are free"
        )));
    };
    let datatype = datatype_of(&name, &datatype, &shape, specs)?;
    let place = shared_memory::place(format_args!("input {name:?}"), &mut parameters)?;
    let size = count(&parameters, "binary_data_size")?;
    if let Some(place) = place {
        if data.is_some() || size.is_some() {
            return Err(bad(format!("input {name:?} has both data and shared_memory_region; send one")));
        }
        return Input::placed(name, datatype, shape, place);
    }
    let tensor = match (data, size) {
        (Some(data), None) => data::tensor(&name, datatype, shape, data)?,
        (None, Some(size)) => {
            let left = behind.len();
            let size = usize::try_from(size).ok().filter(|size| *size <= left).ok_or_else(|| {
                bad(format!(
                    "input {name:?} has binary_data_size {size}, but {left} bytes of the body are left for it"
                ))
            })?;
            binary::checked(&name, Tensor { datatype, shape, data: behind.split_to(size) })?
        }
        (Some(_), Some(_)) => {
            return Err(bad(format!("input {name:?} has both data and binary_data_size; send one")));
        }
        (None, None) => {
            return Err(bad(format!("input {name:?} has neither data nor binary_data_size; send one")));
        }
    };
    Ok(Input::whole(name, tensor))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::super::{Parameter, binary::strings};
    use super::*;
    use crate::{
        engine::{DataType, Dim},
        http::wire::shared_memory::Place,
    };
    use std::time::Duration;

    fn body(json: &str, binary: &[u8]) -> (Bytes, Option<usize>) {
        let whole = [json.as_bytes(), binary].concat();
        (whole.into(), Some(json.len()))
    }

    fn refuses(json: &str, binary: &[u8], told: &str) {
        let (body, length) = body(json, binary);
        let error = read(&body, length, &[]).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn json_tensors_and_parameters_are_read() {
        let json = r#"{"id":"7","parameters":{"timeout":1500,"priority":2,"binary_data_output":true,"knob":0.5},
            "inputs":[{"name":"a","data":[1,2],"datatype":"FP32","shape":[1,2],"parameters":{"k":"v"}}],
            "outputs":[{"name":"y"},{"name":"z","parameters":{"binary_data":false,"classification":3}}],"more":1}"#;
        let request = read(&Bytes::from(json), None, &[]).unwrap();
        assert_eq!(request.id.as_deref(), Some("7"));
        assert_eq!(request.timeout(), Ok(Some(Duration::from_micros(1500))));
        assert_eq!(request.priority(), Ok(Some(2)));
        assert_eq!(request.parameters["knob"], Parameter::Number("0.5".to_owned()));
        let input = &request.inputs[0];
        assert_eq!(input.tensor.data[..], [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
        let asked: Vec<_> = request.outputs.iter().map(|o| (&*o.name, o.binary, o.classification)).collect();
        assert_eq!(asked, [("y", true, None), ("z", false, Some(3))]);
    }

    #[test]
    fn binary_tensors_lie_in_the_memory_of_the_body() {
        let json = r#"{"inputs":[
            {"name":"a","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}},
            {"name":"b","shape":[1],"datatype":"INT8","data":[-1]},
            {"name":"c","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":11}}]}"#;
        let (body, length) = body(json, b"\0\0\x80\x3f\0\0\0\x40\x02\0\0\0ab\x01\0\0\0c");
        let request = read(&body, length, &[]).unwrap();
        let [a, b, c] = &request.inputs[..] else { panic!() };
        assert_eq!(a.tensor.to_f32().unwrap(), [1.0, 2.0]);
        assert_eq!(a.tensor.data.as_ptr(), body[json.len()..].as_ptr());
        assert_eq!(b.tensor.data[..], [0xff]);
        assert_eq!(strings(&c.tensor.data).unwrap(), ["ab", "c"]);
    }

    #[test]
    fn binary_data_must_fit_its_shape_and_the_body() {
        let one = |parameters: &str, datatype: &str, shape: &str| {
            format!(r#"{{"inputs":[{{"name":"a","shape":{shape},"datatype":"{datatype}",{parameters}}}]}}"#)
        };
        let sized = |size: &str| format!(r#""parameters":{{"binary_data_size":{size}}}"#);
        refuses(&one(&sized("8"), "FP32", "[2]"), &[0; 7], "7 bytes of the body are left");
        refuses(&one(&sized("8"), "FP32", "[2]"), &[0; 9], "1 bytes are left over");
        refuses(&one(&sized("4"), "FP32", "[2]"), &[0; 4], "has 4 bytes, expected 8 for FP32 of shape [2]");
        refuses(&one(&sized("-4"), "FP32", "[2]"), &[], "expected an integer of 0 or more");
        refuses(&one(&sized("4"), "BYTES", "[1]"), &[1, 0, 0, 0], "32-bit lengths");
        refuses(&one(&sized("8"), "BYTES", "[1]"), &[0; 8], "has 2 elements, expected 1");
        refuses(&one(&format!("{},\"data\":[1]", sized("0")), "FP32", "[0]"), &[], "both data and");
        refuses(&one("\"x\":1", "FP32", "[1]"), &[], "neither data nor");
        refuses(&one("\"data\":[1]", "FLOAT", "[1]"), &[], "expected one of BOOL, UINT8");
        refuses(&one("\"data\":[1]", "FP32", "[-2]"), &[], "cannot be read");
        refuses(&one("\"data\":[1]", "FP32", "[-1]"), &[], "input \"a\" has -1 in its shape");
        assert!(
            read(&Bytes::from_static(b"{}"), Some(3), &[])
                .unwrap_err()
                .to_string()
                .contains("the body has 2")
        );
    }

    #[test]
    fn data_may_be_elsewhere_and_outputs_may_go_there() {
        let json = r#"{"inputs":[
            {"name":"a","shape":[2],"datatype":"FP32",
             "parameters":{"shared_memory_region":"r","shared_memory_offset":16,"shared_memory_byte_size":8}},
            {"name":"b","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}],
            "outputs":[{"name":"y","parameters":{"binary_data":false,"classification":0,
             "shared_memory_region":"r","shared_memory_byte_size":99}},{"name":"z"}]}"#;
        let (body, length) = body(json, &[0; 4]);
        let request = read(&body, length, &[]).unwrap();
        let place = |offset, bytes| Some(Place { region: "r".to_owned(), offset, bytes });
        let [a, b] = &request.inputs[..] else { panic!() };
        assert_eq!((&a.place, a.tensor.data.len()), (&place(16, 8), 0));
        assert_eq!((&b.place, b.tensor.data.len()), (&None, 4));
        assert_eq!(request.outputs[0].place, place(0, 99));
        assert_eq!(request.outputs[1].place, None);
    }

    #[test]
    fn shared_memory_stands_alone_and_fits_its_shape() {
        let input = |more: &str, size: u32| {
            format!(
                r#"{{"inputs":[{{"name":"a","shape":[2],"datatype":"FP32"{more}
                ,"parameters":{{"shared_memory_region":"r","shared_memory_byte_size":{size}}}}}]}}"#
            )
        };
        refuses(&input(r#","data":[1,2]"#, 8), &[], "both data and shared_memory_region");
        refuses(&input("", 7), &[], "has 7 bytes, expected 8 for FP32 of shape [2]");
        refuses(&input("", 9), &[], "has 9 bytes, expected 8");
        for form in [r#""binary_data":true"#, r#""classification":3"#] {
            let output = format!(
                r#"{{"inputs":[],"outputs":[{{"name":"y","parameters":{{{form},"shared_memory_region":"r","shared_memory_byte_size":8}}}}]}}"#
            );
            refuses(&output, &[], "ask for one");
        }
    }

    #[test]
    fn an_output_that_is_asked_for_twice_comes_once() {
        let body = r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":true}},{"name":"z"},{"name":"y"}]}"#;
        let request = read(&Bytes::from(body), None, &[]).unwrap();
        let outputs: Vec<_> = request.outputs.iter().map(|output| (&*output.name, output.binary)).collect();
        assert_eq!(outputs, [("y", true), ("z", false)]);
    }

    #[test]
    fn what_clients_of_other_servers_say_beside_their_tensors_is_passed_over() {
        let body = r#"{"parameters":{"content_type":"np","headers":null,"more":{"a":[1]}},
            "inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1],"parameters":{"content_type":"np","k":[]}}]}"#;
        let request = read(&Bytes::from(body), None, &[]).unwrap();
        assert!(!request.parameters.contains_key("headers") && request.parameters.contains_key("more"));
        let heard = r#"{"parameters":{"timeout":[1]},"inputs":[]}"#;
        let told = read(&Bytes::from(heard), None, &[]).unwrap().timeout().unwrap_err().to_string();
        assert!(told.contains("\"timeout\" is [1], expected an integer"), "{told}");
    }

    #[test]
    fn bare_words_are_numbers_that_are_not_finite() {
        let body = r#"{"inputs":[{"name":"a","shape":[1,3],"datatype":"FP32","data":[[NaN],[-Infinity,Infinity]]}]}"#;
        let request = read(&Bytes::from(body), None, &[]).unwrap();
        let got = request.inputs[0].tensor.to_f32().unwrap();
        assert!(got[0].is_nan() && got[1..] == [f32::NEG_INFINITY, f32::INFINITY], "{got:?}");
        refuses(&body.replace("-Infinity", "-Inf"), &[], "cannot be read");
        refuses(&body.replace("FP32", "INT8"), &[], "element 0 is \"NaN\"");
    }

    #[test]
    fn long_names_and_ids_are_refused_and_not_repeated() {
        let long = "\u{80}".repeat(2049);
        let input = |name: &str, key: &str| {
            format!(
                r#"{{"name":"{name}","shape":[1],"datatype":"FP32","data":[1],"parameters":{{"{key}":1}}}}"#
            )
        };
        for (whose, json) in [
            ("an input", format!(r#"{{"inputs":[{}]}}"#, input(&long, "k"))),
            ("a member", format!(r#"{{"inputs":[{}]}}"#, input("a", &long))),
            ("a member", format!(r#"{{"inputs":[],"parameters":{{"{long}":1}}}}"#)),
            ("an output", format!(r#"{{"inputs":[],"outputs":[{{"name":"{long}"}}]}}"#)),
            ("the request", format!(r#"{{"id":"{long}","inputs":[]}}"#)),
        ] {
            let error = read(&Bytes::from(json), None, &[]).unwrap_err().to_string();
            let told =
                format!("{whose} has a name or id of 4098 bytes, more than the limit of 4096: it begins");
            assert!(error.contains(&told) && error.len() < 1000, "{error}");
        }
        let fits = "x".repeat(4096);
        let json = format!(r#"{{"id":"{fits}","inputs":[],"outputs":[{{"name":"{fits}"}}]}}"#);
        assert_eq!(read(&Bytes::from(json), None, &[]).unwrap().id, Some(fits));
    }

    #[test]
    fn names_are_unique_and_reserved_parameters_are_refused() {
        let input = r#"{"name":"a","shape":[1],"datatype":"FP32","data":[1]}"#;
        refuses(&format!(r#"{{"inputs":[{input},{input}]}}"#), &[], "\"a\" is given twice");
        refuses(r#"{"inputs":[],"parameters":{"triton_x":1}}"#, &[], "reserved");
        refuses("{}", &[], "missing field `inputs`");
        let shape = |extent: &str| {
            format!(r#"{{"inputs":[{{"name":"a","shape":[{extent}],"datatype":"FP32","data":[]}}]}}"#)
        };
        let expected = "where an integer from 0 to 18446744073709551615 is expected at line 1 column";
        refuses(&shape("18446744073709551616"), &[], &format!("18446744073709551616 {expected}"));
        refuses(&shape("-2"), &[], &format!("-2 {expected}"));
        refuses(
            &shape("-1, 4"),
            &[],
            "input \"a\" has -1 in its shape: a request says each extent of its data",
        );
        refuses("7", &[], "invalid type: integer `7`, expected an object at line 1");
        refuses(r#"{"inputs":["a"]}"#, &[], "invalid type: string \"a\", expected an object at line 1");
    }

    #[test]
    fn what_is_null_is_left_out() {
        let input = r#"{"name":"a","shape":[1],"datatype":"FP32","data":[1],"parameters":null}"#;
        let told = |outputs: &str| {
            let json = format!(r#"{{"id":null,"parameters":null,"inputs":[{input}],"outputs":{outputs}}}"#);
            let request = read(&Bytes::from(json), None, &[]).unwrap();
            (request.inputs.len(), request.outputs.into_iter().map(|output| output.name).collect::<Vec<_>>())
        };
        assert_eq!(told("null"), (1, vec![]));
        assert_eq!(told(r#"[{"name":"y","parameters":null}]"#), (1, vec!["y".to_owned()]));
    }

    #[test]
    fn what_is_refused_is_not_repeated_at_any_length() {
        let spec = TensorSpec { name: "a".into(), datatype: DataType::Uint8, shape: vec![Dim::Free] };
        let (long, deep) = ("n".repeat(1 << 20), "1,".repeat(1 << 20));
        for (json, why) in [
            (
                format!(r#"{{"inputs":[{{"name":"{long}","shape":[1],"datatype":"FP9","data":[1]}}]}}"#),
                "more than the limit of",
            ),
            (
                format!(r#"{{"inputs":[{{"name":"a","shape":[{deep}1],"datatype":"UINT8","data":[1]}}]}}"#),
                "more than 4096 elements in a list",
            ),
        ] {
            let told = read(&Bytes::from(json), None, std::slice::from_ref(&spec)).unwrap_err().to_string();
            assert!(told.len() < 300 && told.contains(why), "{}: {told:.300}", told.len());
        }
        let told =
            read(&Bytes::from(format!("{{\"inputs\":\"{long}\"}}")), None, &[]).unwrap_err().to_string();
        assert!(told.len() < 500 && told.ends_with("at line 1 column 1048588"), "{told:.600}");
    }

    #[test]
    fn more_names_than_anybody_means_are_refused() {
        let each = |form: fn(u32) -> String| (0..100_000).map(form).collect::<Vec<_>>().join(",");
        let inputs =
            each(|i| format!(r#"{{"name":"input{i:09}","shape":[1],"datatype":"BOOL","data":[1]}}"#));
        let outputs = each(|i| format!(r#"{{"name":"output{i:09}"}}"#));
        for json in
            [format!(r#"{{"inputs":[{inputs}]}}"#), format!(r#"{{"inputs":[],"outputs":[{outputs}]}}"#)]
        {
            refuses(&json, &[], "more than 4096 elements in a list");
        }
    }

    #[test]
    fn the_length_of_the_json_is_a_number_or_absent() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER_LENGTH, http::HeaderValue::from_static(value));
            json_length(&headers)
        };
        assert_eq!(json_length(&HeaderMap::new()), Ok(None));
        assert_eq!(of("12"), Ok(Some(12)));
        assert!(of("-1").is_err());
    }
}
