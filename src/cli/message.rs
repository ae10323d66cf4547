//! Requests for a model, made of files or of tensors: what `predict`, `bench` and `tune` send.

use super::client::{Described, Name};
use crate::image::stack::{Array, SampleType};
use axum::{
    body::Body,
    http::{Request, header},
};
use bytes::Bytes;
use serde_json::json;
use std::path::Path;

/// A request that may be sent again.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl Message {
    /// The request, to be sent once.
    ///
    /// # Errors
    /// Words, if it is none.
    pub(super) fn request(&self) -> Result<Request<Body>, String> {
        let mut request = Request::builder().method(self.method).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Body::from(self.body.clone())).map_err(|error| error.to_string())
    }
}

/// What a model is asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pictures, to `/predictions`.
    Images,
    /// Tensors as binary, by the Open Inference Protocol.
    Tensors,
}

/// Whom to ask, and with what.
pub(super) struct Ask<'a> {
    pub(super) model: &'a Name,
    pub(super) described: &'a Described,
    pub(super) kind: Kind,
    /// With its question mark; empty for none.
    pub(super) query: &'a str,
}

impl Ask<'_> {
    /// A file: a picture or a stack as it is, or the tensor of a `.npy` file, or a request as JSON.
    ///
    /// # Errors
    /// Words, as those of an [`array`].
    pub(super) fn file(&self, path: &Path, bytes: Vec<u8>) -> Result<Message, String> {
        match path.extension() {
            _ if self.kind == Kind::Images => Ok(self.picture(bytes)),
            Some(of) if of.eq_ignore_ascii_case("json") => Ok(self.tensors(Vec::new(), bytes)),
            _ => array(self.described, &bytes).map(|(head, data)| self.binary(&head, data)),
        }
    }

    /// A picture or a stack, whatever is in it.
    pub(super) fn picture(&self, bytes: Vec<u8>) -> Message {
        let headers = vec![(header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned())];
        let path = self.model.path("/predictions") + self.query;
        Message { method: "POST", path, headers, body: bytes.into() }
    }

    /// Tensors by the binary extension of the protocol: a head in JSON, and data.
    pub(super) fn binary(&self, head: &str, data: &[u8]) -> Message {
        let length = ("inference-header-content-length", head.len().to_string());
        self.tensors(vec![length], [head.as_bytes(), data].concat())
    }

    fn tensors(&self, headers: Vec<(&'static str, String)>, bytes: Vec<u8>) -> Message {
        let path = self.model.path("/v2/models") + "/infer" + self.query;
        Message { method: "POST", path, headers, body: bytes.into() }
    }
}

/// A `.npy` file as the model's only input, by the binary extension of the protocol: head and data. Outputs come as text.
///
/// # Errors
/// Words, if the model has several inputs or the file is not one that it could take.
fn array<'a>(described: &Described, file: &'a [u8]) -> Result<(String, &'a [u8]), String> {
    let [input] = &described.inputs[..] else {
        let names: Vec<&str> = described.inputs.iter().map(|input| &*input.name).collect();
        return Err(format!(
            "the model has the inputs {}: write a request as the Open Inference Protocol has it into a file .json",
            names.join(", ")
        ));
    };
    let Array { sample, shape, begins } = Array::of(file)?;
    let head = json!({ "inputs": [{
        "name": input.name, "shape": shape, "datatype": datatype(sample),
        "parameters": { "binary_data_size": file.len() - begins },
    }] });
    Ok((head.to_string(), &file[begins..]))
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
