//! Sends a file as a request, with retries until there is a reply or patience ends.

use super::super::{
    client::{Described, Name, Patience, Server, query, retry_after, told},
    message::{Ask, HEADER_LENGTH, Kind},
};
use crate::words::causes;
use axum::{body::Body, http::Request};
use bytes::Bytes;
use std::{path::Path, time::Duration};

/// What to ask for every file.
pub(super) struct Asking {
    pub(super) server: Server,
    pub(super) model: Name,
    pub(super) described: Described,
    pub(super) patience: Patience,
    /// How long a reply may take.
    pub(super) time_max: Duration,
    /// Keys and values of the query.
    pub(super) set: Vec<(String, String)>,
}

/// A file's reply, whatever its status.
pub(super) struct Reply {
    pub(super) ok: bool,
    pub(super) body: Bytes,
}

impl Reply {
    /// The server's reason for a refusal.
    pub(super) fn refusal(body: &[u8]) -> String {
        told(body).unwrap_or_else(|| "the server refused it without a word".into())
    }
}

/// A reply, or why it cannot be written.
type Answer = Result<Reply, String>;

/// The error for a reply whose outputs are not text.
const BINARY: &str = "its outputs would come as binary data, which is not written: leave binary_data and binary_data_output out of \
    the request";

impl Asking {
    /// Posts a picture, the tensor of a `.npy` file, or a request. `accept`: the media type to answer with, if not
    /// JSON.
    ///
    /// # Errors
    /// A message, if the file cannot be sent or no reply came.
    pub(super) async fn file(&self, path: &Path, accept: Option<&str>) -> Result<Reply, String> {
        let name = path.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read(name)).await;
        let bytes =
            read.map_err(|error| error.to_string())?.map_err(|error| format!("cannot be read: {error}"))?;
        let kind = if self.described.images { Kind::Images } else { Kind::Tensors };
        // The server may be configured for a form of predictions other than the one that rows are made from.
        let own =
            (kind == Kind::Images && accept.is_none() && !self.sets_format()).then_some(("format", "ocelli"));
        let query = query(self.set.iter().map(|(key, value)| (&**key, &**value)).chain(own));
        let ask = Ask { model: &self.model, described: &self.described, kind, query: &query };
        let mut message = ask.file(path, bytes)?;
        message.headers.extend(accept.map(|accept| ("accept", accept.to_owned())));
        let mut tried = 0;
        loop {
            let asked = tokio::time::timeout(self.time_max, self.once(message.request()?)).await;
            let Ok(asked) = asked else {
                // No retry: it would take as long again, which is longer than the user wants to wait.
                return Err(format!("no reply within {} ms", self.time_max.as_millis()));
            };
            let (answered, status, after) = match asked {
                Ok((status, after, reply)) => (reply, Some(status), after),
                Err(why) => (Err(why), None, None),
            };
            match self.patience.wait(tried, status, after) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return answered,
            }
            tried += 1;
        }
    }

    /// The status of a reply, the wait before a retry that it asks for, and the reply itself.
    async fn once(&self, request: Request<Body>) -> Result<(u16, Option<Duration>, Answer), String> {
        let reply = self.server.send(request).await?;
        let (status, after) = (reply.status(), retry_after(&reply));
        if reply.headers().contains_key(HEADER_LENGTH) {
            return Ok((status.as_u16(), after, Err(BINARY.into())));
        }
        let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await;
        let body = body.map_err(|error| format!("the reply broke off: {}", causes(&error)))?;
        Ok((status.as_u16(), after, Ok(Reply { ok: status.is_success(), body })))
    }

    /// Whether the user chose the form of replies.
    pub(super) fn sets_format(&self) -> bool {
        self.set.iter().any(|(key, _)| key == "format")
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

    fn asking(router: Router, images: bool) -> Asking {
        Asking {
            server: Server::Here(router),
            model: Name::parse("m"),
            described: Described { task: "classify".into(), images, inputs: Vec::new() },
            patience: Patience { retries: 5, wait_max: Duration::from_secs(30) },
            time_max: Duration::from_secs(120),
            set: Vec::new(),
        }
    }

    #[tokio::test]
    async fn outputs_that_come_as_binary_data_are_refused_and_not_asked_for_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&asked);
        let answer = move || {
            seen.fetch_add(1, Ordering::Relaxed);
            std::future::ready(([(HEADER_LENGTH, "2")], b"{}\0\x1b[2J".to_vec()))
        };
        let asking = asking(Router::new().route("/v2/models/m/infer", post(answer)), false);
        let file = tempfile::Builder::new().suffix(".json").tempfile().expect("a file");
        std::fs::write(file.path(), r#"{"inputs":[],"parameters":{"binary_data_output":true}}"#)
            .expect("written");
        let reply = asking.file(file.path(), None).await.map(|reply| reply.body);
        assert_eq!(reply, Err(BINARY.into()));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_whose_answer_is_late_is_not_asked_about_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&asked);
        let answer = move || {
            seen.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>()
        };
        let asking = asking(Router::new().route("/predictions/m", post(answer)), true);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let reply = asking.file(file.path(), None).await.map(|reply| reply.body);
        assert_eq!(reply, Err("no reply within 120000 ms".into()));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
