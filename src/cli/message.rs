//! Builds requests for a model from files or tensors, for `predict`, `bench` and `tune`.

use super::client::{Described, Name};
use crate::image::stack::{Array, SampleType};
use axum::{
    body::Body,
    http::{Request, header},
};
use bytes::Bytes;
use serde_json::json;
use std::path::Path;

/// A request that can be sent repeatedly.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl Message {
    /// An HTTP request to send once.
    ///
    /// # Errors
    /// A message, if it is not a valid request.
    pub(super) fn request(&self) -> Result<Request<Body>, String> {
        let mut request = Request::builder().method(self.method).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Body::from(self.body.clone())).map_err(|error| error.to_string())
    }
}

/// The header for the length of a request's or reply's JSON, if tensors follow as binary data.
pub(super) const HEADER_LENGTH: &str = "inference-header-content-length";

/// The kind of a request to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pictures, to `/predictions`.
    Images,
    /// Tensors as binary data, by the Open Inference Protocol.
    Tensors,
}

/// Which model to ask, and with what.
pub(super) struct Ask<'a> {
    pub(super) model: &'a Name,
    pub(super) described: &'a Described,
    pub(super) kind: Kind,
    /// The query with its question mark; empty for none.
    pub(super) query: &'a str,
}

impl Ask<'_> {
    /// A request from a file: a picture or a stack as it is, the tensor of a `.npy` file, or a request in JSON with any binary
    /// data after it.
    ///
    /// # Errors
    /// A message, as from [`array()`] and [`head_length`].
    pub(super) fn file(&self, path: &Path, bytes: Vec<u8>) -> Result<Message, String> {
        if self.kind == Kind::Images {
            return Ok(self.picture(bytes));
        }
        let named = path.extension().is_some_and(|of| of.eq_ignore_ascii_case("json"));
        // A pipe has no extension. No `.npy` file begins with a brace.
        if named || bytes.trim_ascii_start().starts_with(b"{") {
            let length = head_length(&bytes)?;
            return Ok(self.tensors(length, bytes));
        }
        array(self.described, &bytes).map(|(head, data)| self.binary(&head, data))
    }

    /// A picture or a stack, whatever its content.
    pub(super) fn picture(&self, bytes: Vec<u8>) -> Message {
        let headers = vec![(header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned())];
        let path = self.model.path("/predictions") + self.query;
        Message { method: "POST", path, headers, body: bytes.into() }
    }

    /// Tensors by the protocol's binary extension: a head in JSON, then data.
    pub(super) fn binary(&self, head: &str, data: &[u8]) -> Message {
        self.tensors(Some(head.len()), [head.as_bytes(), data].concat())
    }

    /// A request with a head of this length; without a length, it is all JSON.
    fn tensors(&self, head_length: Option<usize>, bytes: Vec<u8>) -> Message {
        let headers = head_length.map(|length| (HEADER_LENGTH, length.to_string())).into_iter().collect();
        let path = self.model.path("/v2/models") + "/infer" + self.query;
        Message { method: "POST", path, headers, body: bytes.into() }
    }
}

/// A `.npy` file as the model's only input, by the protocol's binary extension: head and data. Outputs come as text.
///
/// # Errors
/// A message, if the model has several inputs or the file cannot be one of them.
fn array<'a>(described: &Described, file: &'a [u8]) -> Result<(String, &'a [u8]), String> {
    let [input] = &described.inputs[..] else {
        let names: Vec<&str> = described.inputs.iter().map(|input| &*input.name).collect();
        return Err(format!(
            "the model has the inputs {}: write a request as the Open Inference Protocol has it into a file .json",
            names.join(", ")
        ));
    };
    let Array { sample, shape, begins } =
        Array::of(file).map_err(|why| match file.starts_with(b"\x93NUMPY") {
            true => why,
            false => format!("{why}: a model of tensors takes .npy files, and requests in files .json"),
        })?;
    let head = json!({ "inputs": [{
        "name": input.name, "shape": shape, "datatype": datatype(sample),
        "parameters": { "binary_data_size": file.len() - begins },
    }] });
    Ok((head.to_string(), &file[begins..]))
}

/// The length of a request's JSON, if inputs are binary. `binary_data_size` of each input gives its share of the bytes after the
/// JSON.
///
/// # Errors
/// A message, if these sizes do not add up to the bytes that follow.
fn head_length(request: &[u8]) -> Result<Option<usize>, String> {
    let mut heads = serde_json::Deserializer::from_slice(request).into_iter::<Head>();
    // An invalid request is sent as it is: the server reports what is wrong.
    let Some(Ok(head)) = heads.next() else { return Ok(None) };
    let end = heads.byte_offset();
    let mut sizes = head.inputs.iter().filter_map(|input| input.parameters.as_ref()?.binary_data_size);
    let Some(first) = sizes.next() else { return Ok(None) };
    let binary = sizes.fold(first, u64::saturating_add);
    // Blanks after the JSON belong to it.
    let blank = |length: &usize| request.get(end..*length).is_some_and(|rest| rest.trim_ascii().is_empty());
    let length = usize::try_from(binary).ok().and_then(|binary| request.len().checked_sub(binary));
    length.filter(blank).map(Some).ok_or_else(|| {
        format!(
            "binary_data_size of its inputs is {binary} bytes in all, and {} bytes follow the JSON",
            request.len() - end
        )
    })
}

/// The part of a request that tells where its inputs are.
#[derive(serde::Deserialize)]
struct Head {
    inputs: Vec<Input>,
}

#[derive(serde::Deserialize)]
struct Input {
    parameters: Option<Parameters>,
}

#[derive(serde::Deserialize)]
struct Parameters {
    binary_data_size: Option<u64>,
}

/// The name that the Open Inference Protocol has for a type.
fn datatype(sample: SampleType) -> &'static str {
    match sample {
        SampleType::U8 => "UINT8",
        SampleType::I8 => "INT8",
        SampleType::U16 => "UINT16",
        SampleType::I16 | SampleType::I16Raised => "INT16",
        SampleType::U32 => "UINT32",
        SampleType::I32 => "INT32",
        SampleType::U64 => "UINT64",
        SampleType::I64 => "INT64",
        SampleType::F16 => "FP16",
        SampleType::F32 => "FP32",
        SampleType::F64 => "FP64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::client::InputSpec;

    /// The message for a file of this name, for a model of tensors.
    fn sent(name: &str, bytes: &[u8]) -> Result<Message, String> {
        let input = InputSpec { name: "x".into(), datatype: "FP32".into(), shape: vec![-1] };
        let described = Described { task: "tensors".into(), images: false, inputs: vec![input] };
        let model = Name::parse("m");
        let ask = Ask { model: &model, described: &described, kind: Kind::Tensors, query: "" };
        ask.file(Path::new(name), bytes.to_vec())
    }

    #[test]
    fn a_request_is_known_by_its_beginning_where_no_name_says_it() {
        let request = br#" {"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;
        for name in ["/dev/stdin", "request.txt", "request.json"] {
            let message = sent(name, request).expect("a request");
            assert_eq!((&message.body[..], message.headers), (&request[..], Vec::new()), "{name}");
        }
        let told = sent("/dev/stdin", b"1 2 3").expect_err("neither");
        assert!(told.contains("it does not begin as .npy files do"), "{told}");
        // A file named as JSON is sent as it is; the server reads it.
        assert!(sent("request.json", b"1 2 3").is_ok());
    }

    #[test]
    fn binary_data_behind_a_request_is_sent_as_such() {
        let input = |name: &str, size: &str| {
            format!(
                r#"{{"name":"{name}","shape":[1],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}"#
            )
        };
        let json = format!(
            r#"{{"inputs":[{},{},{{"name":"c","shape":[1],"datatype":"FP32","data":[1]}}]}}"#,
            input("a", "4"),
            input("b", "4")
        );
        // Also if the data consists of blanks.
        for (blanks, data) in [("", "abcdefgh"), ("\n", "abcdefgh"), ("", "        "), (" \n", "{}{}{}{}")] {
            let message = sent("x.json", format!("{json}{blanks}{data}").as_bytes()).expect("a request");
            let length = (json.len() + blanks.len()).to_string();
            assert_eq!(message.headers, [(HEADER_LENGTH, length)], "{blanks:?} {data:?}");
            assert!(message.body.ends_with(data.as_bytes()));
        }
        for data in ["", "\n", "abcdefg", "abcdefghi"] {
            let told = sent("x.json", format!("{json}{data}").as_bytes()).expect_err(data);
            let expected = format!("is 8 bytes in all, and {} bytes follow the JSON", data.len());
            assert!(told.ends_with(&expected), "{told}");
        }
        let huge = format!(r#"{{"inputs":[{},{}]}}"#, input("a", &u64::MAX.to_string()), input("b", "1"));
        assert!(sent("x.json", huge.as_bytes()).is_err());
    }
}
