//! Sends requests to a server, or to the same routes in this process.

use super::{Exit, target::Target};
use crate::{
    app::{AppError, Local, check_to_ask, check_to_ask_here},
    config::{Config, cores},
    words::causes,
};
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, Uri, header},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde_json::Value;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    runtime::{self, Runtime},
    signal::unix::{SignalKind, signal},
};
use tower::ServiceExt;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Size of a server's description of a model, at most.
const METADATA_BYTES_MAX: usize = 16 << 20;

/// Where requests go. Cloning is cheap.
#[derive(Clone)]
pub(super) enum Server {
    /// To a server, by HTTP/1.1 over persistent connections.
    There {
        /// Makes the connections.
        client: Box<Client<HttpConnector, Body>>,
        /// Its host and port.
        authority: Arc<str>,
    },
    /// To the routes in this process.
    Here(Router),
}

impl Server {
    /// The server at `http://HOST[:PORT]`. Nothing is sent yet.
    pub(super) fn there(target: &Target) -> Server {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_MAX));
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Server::There { client: Box::new(client), authority: target.authority().into() }
    }

    /// The routes of a model in this process.
    pub(super) fn here(local: &Local) -> Server {
        Server::Here(local.router())
    }

    /// A prefix that names the server in messages; empty for this process.
    pub(super) fn says(&self) -> String {
        match self {
            Server::There { authority, .. } => format!("http://{authority}: "),
            Server::Here(_) => String::new(),
        }
    }

    /// Sends a request whose URI is a path with its query.
    ///
    /// # Errors
    /// A message, if no reply came.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, String> {
        let authority = match self {
            Server::There { authority, .. } => authority,
            Server::Here(_) => "localhost",
        };
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let whole = format!("http://{authority}{path}").parse::<Uri>().map_err(|error| error.to_string())?;
        let host = HeaderValue::from_str(authority).map_err(|error| error.to_string())?;
        request.headers_mut().insert(header::HOST, host);
        match self {
            Server::There { client, .. } => {
                *request.uri_mut() = whole;
                client
                    .request(request)
                    .await
                    .map(|reply| reply.map(Body::new))
                    .map_err(|error| self.says() + &causes(&error))
            }
            Server::Here(router) => {
                let Ok(reply) = router.clone().oneshot(request).await;
                Ok(reply)
            }
        }
    }

    /// The server's description of a model.
    ///
    /// # Errors
    /// That the server cannot be reached, or its refusal.
    pub(super) async fn model(&self, name: &Name) -> Result<Described, Unknown> {
        let request = Request::get(name.path("/v2/models")).body(Body::empty()).expect("paths are encoded");
        let reply = self.send(request).await.map_err(Unknown::Unreachable)?;
        let (status, after) = (reply.status(), retry_after(&reply));
        let refused =
            |why: String| Unknown::Refused { why: self.says() + &why, status: status.as_u16(), after };
        if let Some(to) = reply.headers().get(header::LOCATION).filter(|_| status.is_redirection()) {
            let to = String::from_utf8_lossy(to.as_bytes());
            return Err(refused(format!(
                "status {status}: it sends callers to {to}, which are not followed"
            )));
        }
        let body = axum::body::to_bytes(reply.into_body(), METADATA_BYTES_MAX).await;
        let body = body.map_err(|error| Unknown::Unreachable(self.says() + &causes(&error)))?;
        let told: Value = serde_json::from_slice(&body)
            .map_err(|_| refused(format!("status {status}, and what it says is not JSON: is it Ocelli?")))?;
        if !status.is_success() {
            return Err(refused(
                told["error"].as_str().map_or_else(|| format!("status {status}"), str::to_owned),
            ));
        }
        serde_json::from_value(told)
            .map_err(|error| refused(format!("it does not describe models as Ocelli does: {error}")))
    }
}

/// Why there is no description of a model.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    /// No server answers.
    #[error("no server answers: {0}")]
    Unreachable(String),
    /// The server refuses.
    #[error("{why}")]
    Refused {
        /// The server's reason.
        why: String,
        /// The status of its reply.
        status: u16,
        /// The wait before another attempt that it asks for.
        after: Option<Duration>,
    },
}

impl Unknown {
    /// The same error with other words.
    pub(super) fn because(mut self, words: impl FnOnce(&str) -> String) -> Unknown {
        let (Unknown::Unreachable(why) | Unknown::Refused { why, .. }) = &mut self;
        *why = words(why);
        self
    }

    /// What [`Patience`] needs: the status, if a reply came, and the wait that it asks for.
    pub(super) fn told(&self) -> (Option<u16>, Option<Duration>) {
        match self {
            Unknown::Unreachable(_) => (None, None),
            Unknown::Refused { status, after, .. } => (Some(*status), *after),
        }
    }
}

/// A server's description of a model.
#[derive(Debug, Clone, serde::Deserialize)]
pub(super) struct Described {
    /// `classify`, `detect`, ...
    pub(super) task: String,
    /// Whether it takes images.
    pub(super) images: bool,
    /// Its tensors.
    pub(super) inputs: Vec<InputSpec>,
}

/// One input of a model.
#[derive(Debug, Clone, serde::Deserialize)]
pub(super) struct InputSpec {
    /// Its name.
    pub(super) name: String,
    /// By its name in the Open Inference Protocol.
    pub(super) datatype: String,
    /// -1 stands for any extent.
    pub(super) shape: Vec<i64>,
}

/// A model and perhaps its version: `NAME` or `NAME/VERSION`.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) version: Option<String>,
}

impl Name {
    /// From the command line.
    pub(super) fn parse(text: &str) -> Name {
        match text.split_once('/') {
            Some((name, version)) => Name { name: name.into(), version: Some(version.into()) },
            None => Name { name: text.into(), version: None },
        }
    }

    /// The path of the model below `below`: `/v2/models` (Open Inference Protocol) or `/predictions`.
    pub(super) fn path(&self, below: &str) -> String {
        let encoded = |text: &str| percent_encoding::utf8_percent_encode(text, QUERY).to_string();
        let name = encoded(&self.name);
        match &self.version {
            None => format!("{below}/{name}"),
            Some(version) if below == "/predictions" => format!("{below}/{name}/{}", encoded(version)),
            Some(version) => format!("{below}/{name}/versions/{}", encoded(version)),
        }
    }
}

/// The characters that stay unescaped in paths and queries.
const QUERY: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',');

/// A query of keys and values, with its question mark; empty for none.
pub(super) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = String::new();
    for (key, value) in pairs {
        let encoded = |text| percent_encoding::utf8_percent_encode(text, QUERY);
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(&format!("{}={}", encoded(key), encoded(value)));
    }
    query
}

/// The `error` of a reply.
pub(super) fn told(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    value["error"].as_str().map(str::to_owned)
}

/// Decides whether and when to retry after a failure. Pure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// How often to retry.
    pub(super) retries: u32,
    /// If a server asks for a longer wait, the command gives up.
    pub(super) wait_max: Duration,
}

/// The first wait if the server does not name one; doubled each time.
const BACKOFF: Duration = Duration::from_millis(250);

impl Patience {
    /// How long to wait after attempt `tried`, counted from 0; `None` to give up. `status` is `None` if no reply came. Retrying is
    /// safe, because inference changes nothing on the server.
    pub(super) fn wait(
        &self,
        tried: u32,
        status: Option<u16>,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        if tried >= self.retries || !matches!(status, None | Some(429 | 502 | 503)) {
            return None;
        }
        let own = BACKOFF.saturating_mul(1 << tried.min(16)).min(self.wait_max);
        Some(retry_after.unwrap_or(own)).filter(|wait| *wait <= self.wait_max)
    }

    /// The message when giving up.
    pub(super) fn given_up(&self, why: &dyn std::fmt::Display, after: Option<Duration>) -> String {
        match after.filter(|after| *after > self.wait_max) {
            Some(after) => format!("{why}; it asks to wait {} s, more than --wait-ms-max", after.as_secs()),
            None => why.to_string(),
        }
    }
}

/// The wait that a reply asks for, in whole seconds. (`Retry-After` may also be a date, which is ignored.)
pub(super) fn retry_after(reply: &Response<Body>) -> Option<Duration> {
    let text = reply.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// A runtime for requests to servers.
pub(super) fn runtime() -> Result<Runtime, AppError> {
    check_to_ask(cores())?;
    of_threads(cores())
}

/// A runtime for requests to a model in this process, and for answering them.
pub(super) fn runtime_here(config: &Config) -> Result<Runtime, AppError> {
    check_to_ask_here(config)?;
    of_threads(config.http_threads)
}

/// Panics or hangs if the system refuses a thread: the caller must check that beforehand.
fn of_threads(count: usize) -> Result<Runtime, AppError> {
    runtime::Builder::new_multi_thread()
        .worker_threads(count)
        .thread_name("ocelli-ask")
        .enable_all()
        .build()
        .map_err(|error| AppError::Failed(format!("cannot start the runtime: {error}")))
}

/// Runs work until it ends or a signal arrives. A signal drops the work: its connections are closed, and its incomplete files
/// removed.
pub(super) fn until_signal(runtime: &Runtime, work: impl Future<Output = Exit>) -> Exit {
    // The work may be blocked on a pipe that nobody reads.
    runtime.spawn(async {
        let exit = signalled().await;
        tokio::time::sleep(DROPPED_MAX).await;
        exit.by_signal();
        std::process::exit(exit as i32)
    });
    runtime.block_on(async {
        tokio::select! {
            exit = work => exit,
            exit = signalled() => exit,
        }
    })
}

/// How long dropped work may take to end.
const DROPPED_MAX: Duration = Duration::from_secs(1);

async fn signalled() -> Exit {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Terminated,
    }
}

/// Seconds since an instant, for summaries.
pub(super) fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { retries: 3, wait_max: Duration::from_secs(10) };

    fn check(tried: u32, status: Option<u16>, retry_after: Option<u64>, expected: Option<u64>) {
        let wait = PATIENCE.wait(tried, status, retry_after.map(Duration::from_secs));
        assert_eq!(wait, expected.map(Duration::from_millis), "{tried} {status:?} {retry_after:?}");
    }

    #[test]
    fn a_full_server_is_asked_again_when_it_says() {
        check(0, Some(429), Some(2), Some(2000));
        check(2, Some(503), Some(10), Some(10_000));
    }

    #[test]
    fn without_a_word_of_the_server_waits_double() {
        check(0, Some(503), None, Some(250));
        check(2, None, None, Some(1000));
    }

    #[test]
    fn patience_ends_in_number_and_in_time() {
        check(3, Some(429), Some(1), None);
        check(0, Some(429), Some(11), None);
    }

    #[test]
    fn what_will_not_change_is_not_asked_again() {
        for status in [400, 404, 413, 500, 504] {
            check(0, Some(status), Some(1), None);
        }
    }

    #[test]
    fn versions_are_part_of_the_path() {
        assert_eq!(Name::parse("a b").path("/predictions"), "/predictions/a%20b");
        assert_eq!(Name::parse("a/2").path("/predictions"), "/predictions/a/2");
        assert_eq!(Name::parse("a/2").path("/v2/models"), "/v2/models/a/versions/2");
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(query([("z_range_um", "-0.5,0.5"), ("a", "&=")]), "?z_range_um=-0.5,0.5&a=%26%3D");
        assert_eq!(query([]), "");
    }
}
