//! The front: from a socket to a request with a permit, and from an answer or an error to a reply.
//!
//! - [`accept`]: connections, their clocks and their end; the threads that serve them, and the prefix of paths.
//! - `routes`: which path is answered by what, on which listener.
//! - [`around`]: what every request passes, in order; [`around::guard`] names it, checks its head, catches panics.
//! - [`admission`]: who may come in, decided on the headers.
//! - `observe`: a span, a log line and counts for each request, and how often there is a line; `tally`: a request in its model's
//!   statistics, once.
//! - `accepted`: what a client says it accepts; `query`: what queries say; `coding`: compressed bodies and replies.
//! - [`body`]: bodies, with limits in bytes and in time, and the files in them.
//! - [`decode`]: the bounded CPU pool between bytes and queue.
//! - `arrange`: tensors as their model takes them; `encoded`: images in tensors; `streamed`: replies that come item by item.
//! - `handlers`: who answers what; `target`, `call`: what they share.
//! - `control`: who may control the server, and which pages may.
//! - [`wire`]: the JSON and binary forms. Pure.
//! - [`reject`]: the table from error to reply.

pub mod accept;
mod accepted;
pub mod admission;
pub mod around;
mod arrange;
pub mod body;
pub(crate) mod call;
pub(crate) mod coding;
pub(crate) mod control;
pub mod decode;
mod encoded;
pub(crate) mod handlers;
pub(crate) mod observe;
mod query;
pub mod reject;
mod routes;
mod streamed;
pub(crate) mod tally;
pub(crate) mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod wire;

use crate::{
    batch::Queue,
    config::{Config, RepositoryMode, Secret, TritonMetrics},
    error::InferError,
    image::stack,
    models::{Catalog, Control},
    status::Status,
    telemetry::{
        filter::LogFilter,
        host::{self, Host},
        logging::LinesLost,
        metrics::{Bounds, DropReason, Metrics},
        traces::Traces,
    },
};
use accept::Connections;
use admission::{Admission, AdmissionLimits};
use axum::{Router, routing::MethodRouter};
use body::BodyLimits;
use decode::DecodePool;
pub(crate) use handlers::health::starting;
use handlers::{localize::stack_options, page, repository, shared_memory::SharedMemory};
use observe::often::Often;
use parking_lot::Mutex;
pub use routes::{OPENAPI, admin_routes, check_base_path, counted, metrics_routes, paths, routes};
use std::{sync::Arc, time::Duration};

/// A path of the API, as `openapi.yaml` and the metrics write it, and what answers there.
type Route = (&'static str, MethodRouter<Arc<Front>>);

fn router(routes: Vec<Route>) -> Router<Arc<Front>> {
    routes.into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods))
}

/// A stack may come for as long as it keeps its rate.
pub(crate) const STACK_DEADLINE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A body may be slower than its minimum rate for this long.
const BODY_GRACE: Duration = Duration::from_secs(5);

/// Bounds on what a request may bring and ask for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes and time of a body.
    pub body: BodyLimits,
    /// The same for a stack, which is read as it comes.
    pub stack_body: BodyLimits,
    /// How a stack is read, and what that may take.
    pub stack: stack::Options,
    /// Files of one request.
    pub parts_max: usize,
    /// The longest deadline that a request may set.
    pub timeout_max: Duration,
}

/// Everything that handlers share.
pub struct Front {
    /// Where work goes.
    pub queue: Arc<Queue>,
    /// What can be served.
    pub catalog: Arc<Catalog>,
    /// What the process knows about itself.
    pub status: Arc<Status>,
    /// Counters, gauges and histograms.
    pub metrics: Arc<Metrics>,
    /// Where images are decoded.
    pub decode: DecodePool,
    /// Admission control.
    pub admission: Arc<Admission>,
    /// The API listener's connections.
    pub connections: Arc<Connections>,
    /// What a request may bring.
    pub limits: Limits,
    /// Orders to load and unload models.
    pub control: Arc<Control>,
    /// Where spans go, if they go anywhere.
    pub traces: Option<Arc<Traces>>,
    /// What callers share with us.
    pub(crate) shared_memory: SharedMemory,
    repository_mode: RepositoryMode,
    admin_token: Option<Secret>,
    /// What lies in the model folder, loaded or not.
    folder: repository::Folder,
    /// Prefix that paths may have; empty for none.
    base_path: Arc<str>,
    /// Where Triton's metrics are written beside our own.
    triton_metrics: TritonMetrics,
    /// What its metadata call the server.
    pub(crate) server_name: String,
    /// Whether predictions of classifiers have TorchServe's form where a request asks for none.
    torchserve_answers: bool,
    /// `None` if it is switched off.
    page: page::Page,
    host: Host,
    lines_lost: LinesLost,
    /// Which lines the log has.
    pub(crate) log_filter: LogFilter,
    /// Requests that take longer than this are in the log.
    pub(crate) log_slow: Option<Duration>,
    /// How often the log has the same kind of failure.
    pub(crate) often: Often,
    scrape: Mutex<()>,
}

/// What a [`Front`] is put together from.
pub struct Parts {
    /// Where work goes.
    pub queue: Arc<Queue>,
    /// What can be served.
    pub catalog: Arc<Catalog>,
    /// What the process knows about itself.
    pub status: Arc<Status>,
    /// Counters, gauges and histograms.
    pub metrics: Arc<Metrics>,
    /// Where images are decoded.
    pub decode: DecodePool,
    /// Lines of the log that were dropped.
    pub lines_lost: LinesLost,
    /// Which lines the log has.
    pub log_filter: LogFilter,
    /// Orders to load and unload models.
    pub control: Arc<Control>,
    /// Where spans go, if they go anywhere.
    pub traces: Option<Arc<Traces>>,
}

impl Front {
    /// Puts the parts together with the limits of the configuration.
    pub fn new(config: &Config, parts: Parts) -> Front {
        let Parts { queue, catalog, status, metrics, decode, lines_lost, log_filter, control, traces } =
            parts;
        let admission = Admission::new(AdmissionLimits {
            requests_in_flight_max: config.requests_in_flight_max as u64,
            bytes_in_flight_max: config.in_flight_bytes_max,
        });
        metrics.set_bounds(Bounds {
            requests_in_flight: config.requests_in_flight_max as u64,
            in_flight_bytes: config.in_flight_bytes_max,
            queue_items: config.queue_items_max as u64,
            queue_bytes: config.queue_bytes_max,
            decode_bytes: config.decode_bytes_max,
            decode_threads: config.decode_threads as u64,
            memory_bytes: host::memory_limit().unwrap_or(0),
        });
        let body = BodyLimits {
            bytes_max: config.body_bytes_max,
            deadline: config.body_timeout_ms,
            grace: BODY_GRACE,
            rate_min: config.body_rate_bytes_min,
            silence_max: config.body_timeout_ms,
            option: "body_bytes_max",
        };
        let limits = Limits {
            body,
            stack_body: BodyLimits {
                bytes_max: config.stack_bytes_max,
                deadline: STACK_DEADLINE,
                option: "stack_bytes_max",
                ..body
            },
            stack: stack_options(config),
            parts_max: config.parts_max,
            timeout_max: config.timeout_ms_max,
        };
        Front {
            folder: repository::Folder::new(control.repository()),
            queue,
            catalog,
            status,
            metrics,
            decode,
            admission,
            connections: Arc::default(),
            limits,
            control,
            traces,
            shared_memory: SharedMemory::new(config.shared_memory_regions_max),
            repository_mode: config.repository_mode,
            admin_token: config.admin_token.clone(),
            base_path: config.base_path.as_str().into(),
            triton_metrics: config.triton_metrics,
            server_name: config.server_name.clone(),
            torchserve_answers: config.torchserve_answers,
            page: page::page(config.page),
            host: Host::default(),
            lines_lost,
            log_filter,
            log_slow: (!config.log_slow_ms.is_zero()).then_some(config.log_slow_ms),
            often: Often::default(),
            scrape: Mutex::default(),
        }
    }

    /// Waits for the answer to a request or to a part of one, unless the server ends first.
    ///
    /// # Errors
    /// [`InferError::Draining`], counted as dropped work of this kind.
    pub(crate) async fn before_the_end<T>(
        &self,
        kind: DropReason,
        answer: impl Future<Output = T>,
    ) -> Result<T, InferError> {
        tokio::select! {
            biased;
            answer = answer => Ok(answer),
            () = self.status.until_cut() => {
                self.metrics.dropped(kind).inc();
                Err(InferError::Draining)
            }
        }
    }
}
