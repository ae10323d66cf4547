//! A file to a request, sent until there is a reply or patience ends.

use super::super::client::{Described, Name, Patience, Server, causes, query, retry_after};
use crate::image::stack::{Array, SampleType};
use axum::{
    body::Body,
    http::{Request, header},
};
use bytes::Bytes;
use serde_json::json;
use std::{path::Path, time::Duration};

/// What is asked of every file.
pub(super) struct Asking {
    pub(super) server: Server,
    pub(super) model: Name,
    pub(super) described: Described,
    pub(super) patience: Patience,
    /// How long a reply may take.
    pub(super) time_max: Duration,
    /// Keys of the query.
    pub(super) set: Vec<(String, String)>,
}

/// A file's reply, whatever its status.
pub(super) struct Reply {
    pub(super) ok: bool,
    pub(super) body: Bytes,
}

/// What is sent.
struct Message {
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Asking {
    /// Posts a picture, or the tensor of a `.npy` file, or a request as JSON.
    ///
    /// # Errors
    /// Words, if the file cannot be sent or no reply came.
    pub(super) async fn file(&self, path: &Path) -> Result<Reply, String> {
        let name = path.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read(name)).await;
        let bytes =
            read.map_err(|error| error.to_string())?.map_err(|error| format!("cannot be read: {error}"))?;
        let message = if self.described.images {
            self.picture(bytes)
        } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            self.tensors(Vec::new(), bytes.into())
        } else {
            let (head, data) = array(&self.described, &bytes)?;
            self.binary(&head, data)
        };
        let mut tried = 0;
        loop {
            let mut request = Request::post(&message.path);
            for (name, value) in &message.headers {
                request = request.header(*name, value);
            }
            let request =
                request.body(Body::from(message.body.clone())).map_err(|error| error.to_string())?;
            let Ok(asked) = tokio::time::timeout(self.time_max, self.once(request)).await else {
                // Not asked again: what took so long would take as long, and longer than whoever asks wants to wait.
                return Err(format!("no reply within {} ms", self.time_max.as_millis()));
            };
            let (answered, status, after) = match asked {
                Ok((status, after, reply)) => (Ok(reply), Some(status), after),
                Err(why) => (Err(why), None, None),
            };
            match self.patience.wait(tried, status, after) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return answered,
            }
            tried += 1;
        }
    }

    async fn once(&self, request: Request<Body>) -> Result<(u16, Option<Duration>, Reply), String> {
        let reply = self.server.send(request).await?;
        let (status, after) = (reply.status(), retry_after(&reply));
        let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await;
        let body = body.map_err(|error| format!("the reply broke off: {}", causes(&error)))?;
        Ok((status.as_u16(), after, Reply { ok: status.is_success(), body }))
    }

    /// Whether whoever asks wants replies in a form of their own choice.
    pub(super) fn sets_format(&self) -> bool {
        self.set.iter().any(|(key, _)| key == "format")
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(key, value)| (&**key, &**value))
    }

    fn picture(&self, bytes: Vec<u8>) -> Message {
        // The server may be set to another form than that which rows are made of.
        let own = (!self.sets_format()).then_some(("format", "ocelli"));
        let path = self.model.path("/predictions") + &query(self.pairs().chain(own));
        let media = "application/octet-stream".to_owned();
        Message { path, headers: vec![(header::CONTENT_TYPE.as_str(), media)], body: bytes.into() }
    }

    fn tensors(&self, headers: Vec<(&'static str, String)>, body: Bytes) -> Message {
        Message { path: self.model.path("/v2/models") + "/infer" + &query(self.pairs()), headers, body }
    }

    fn binary(&self, head: &str, data: &[u8]) -> Message {
        let length = ("inference-header-content-length", head.len().to_string());
        self.tensors(vec![length], [head.as_bytes(), data].concat().into())
    }
}

/// A `.npy` file as the model's only input, by the binary extension of the protocol: head and data. Outputs come as text.
///
/// # Errors
/// Words, if the model has several inputs or the file is not one that it could take.
pub(in crate::cli) fn array<'a>(described: &Described, file: &'a [u8]) -> Result<(String, &'a [u8]), String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, routing::post};
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    #[tokio::test(start_paused = true)]
    async fn a_file_whose_answer_is_late_is_not_asked_about_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&asked);
        let answer = move || {
            seen.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>()
        };
        let asking = Asking {
            server: Server::Here(Router::new().route("/predictions/m", post(answer))),
            model: Name::parse("m"),
            described: Described { task: "classify".into(), images: true, inputs: Vec::new() },
            patience: Patience { retries: 5, wait_max: Duration::from_secs(30) },
            time_max: Duration::from_secs(120),
            set: Vec::new(),
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        let reply = asking.file(file.path()).await.map(|reply| reply.body);
        assert_eq!(reply, Err("no reply within 120000 ms".into()));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
