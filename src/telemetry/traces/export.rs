//! Delivers spans to the collector: the HTTP client that posts them, and the counts of spans that are lost. The log says once that the
//! collector does not take them, and once that it does again.

use crate::words::clipped;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use parking_lot::Mutex;
use prost::Message;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Handle;

/// Size of a collector's reply, at most.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Why spans are lost: too many wait; the collector refuses them even after retries; or it takes only a part of what is sent.
pub const SPANS_LOST: [&str; 3] = ["queue", "collector", "rejected"];
const QUEUE: usize = 0;
const COLLECTOR: usize = 1;
const REJECTED: usize = 2;

/// Counts the spans on their way to the collector.
#[derive(Debug)]
pub(super) struct Delivery {
    waiting: AtomicUsize,
    waiting_max: usize,
    /// By the reasons of [`SPANS_LOST`].
    lost: [AtomicU64; SPANS_LOST.len()],
    last: Mutex<Attempt>,
    queue_told: AtomicBool,
    failing: AtomicBool,
}

/// The result of the last request to the collector.
#[derive(Debug, Default)]
struct Attempt {
    error: String,
    /// Spans that it rejected from a batch that it took.
    rejected: u64,
}

impl Delivery {
    pub(super) fn new(waiting_max: usize) -> Delivery {
        Delivery {
            waiting: AtomicUsize::new(0),
            waiting_max,
            lost: Default::default(),
            last: Mutex::default(),
            queue_told: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// Takes a place in the queue for a span. False if the queue is full: the span is lost.
    pub(super) fn has_place(&self) -> bool {
        let place = |waiting: usize| (waiting < self.waiting_max).then_some(waiting + 1);
        let has = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_ok();
        if !has {
            self.lost[QUEUE].fetch_add(1, Ordering::Relaxed);
        }
        has
    }

    /// The spans lost so far, by the reasons of [`SPANS_LOST`].
    pub(super) fn lost(&self) -> [u64; SPANS_LOST.len()] {
        self.lost.each_ref().map(|lost| lost.load(Ordering::Relaxed))
    }

    /// Spans leave the queue. The warning that the queue was full is logged here, not where a span ends: that runs within the layer
    /// that turns log lines into span events.
    fn leaves(&self, spans: usize) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let lost = self.lost[QUEUE].load(Ordering::Relaxed);
        if lost > 0 && !self.queue_told.swap(true, Ordering::Relaxed) {
            let limit = self.waiting_max;
            tracing::warn!(
                lost,
                limit,
                "the collector is slower than traces are made: spans are lost beyond those that may wait"
            );
        }
    }

    fn attempted(&self, result: &Result<Response<Bytes>, HttpError>) {
        *self.last.lock() = match result {
            Ok(reply) if reply.status().is_success() => {
                let said = Reply::decode(reply.body().as_ref()).ok().and_then(|reply| reply.partial);
                let Partial { rejected, error } = said.unwrap_or_default();
                Attempt { error, rejected: u64::try_from(rejected).unwrap_or(0) }
            }
            Ok(reply) => Attempt { error: format!("status {}", reply.status()), rejected: 0 },
            Err(error) => Attempt { error: error.to_string(), rejected: 0 },
        };
    }

    /// Counts a batch after its last attempt.
    fn ended(&self, spans: u64, taken: bool) {
        let Attempt { error, rejected } = std::mem::take(&mut *self.last.lock());
        let (reason, lost) = if taken { (REJECTED, rejected.min(spans)) } else { (COLLECTOR, spans) };
        self.lost[reason].fetch_add(lost, Ordering::Relaxed);
        let was = self.failing.swap(lost > 0, Ordering::Relaxed);
        let error = clipped(&error);
        match (lost > 0, was) {
            (true, false) if taken => {
                tracing::warn!(error, lost, "the collector rejects spans: they are lost");
            }
            (true, false) => {
                tracing::warn!(error, "the collector takes no traces: they are lost until it does");
            }
            (false, true) => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

/// The fields that are read of a collector's reply (OTLP's `ExportTraceServiceResponse`).
#[derive(Clone, PartialEq, Message)]
struct Reply {
    #[prost(message, optional, tag = "1")]
    partial: Option<Partial>,
}

#[derive(Clone, PartialEq, Message)]
struct Partial {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    error: String,
}

/// The library's exporter, which retries temporary failures, with a count of each batch's result.
#[derive(Debug)]
pub(super) struct Exporter {
    pub(super) inner: opentelemetry_otlp::SpanExporter,
    pub(super) delivery: Arc<Delivery>,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.delivery.leaves(spans);
        let result = self.inner.export(batch).await;
        self.delivery.ended(spans as u64, result.is_ok());
        result
    }

    fn shutdown_with_timeout(&self, time_max: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(time_max)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.inner.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Posts on a Tokio runtime, for threads outside of one.
#[derive(Debug)]
pub(super) struct Client {
    handle: Handle,
    pool: Pool<HttpConnector, Full<Bytes>>,
    time_max: Duration,
    delivery: Arc<Delivery>,
}

impl Client {
    pub(super) fn new(handle: Handle, time_max: Duration, delivery: Arc<Delivery>) -> Client {
        let pool = {
            let _inside = handle.enter();
            Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(HttpConnector::new())
        };
        Client { handle, pool, time_max, delivery }
    }
}

#[tonic::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (pool, time_max) = (self.pool.clone(), self.time_max);
        let posted = self.handle.spawn(async move {
            let posted = async {
                let (parts, body) = pool.request(request.map(Full::new)).await?.into_parts();
                let body = Limited::new(body, REPLY_BYTES_MAX).collect().await?.to_bytes();
                Ok::<_, HttpError>(Response::from_parts(parts, body))
            };
            tokio::time::timeout(time_max, posted).await.map_err(|_| "no answer in time")?
        });
        let result = posted.await.map_err(HttpError::from).and_then(|result| result);
        self.delivery.attempted(&result);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::logged;

    #[test]
    fn spans_beyond_those_that_may_wait_are_lost_and_counted() {
        let delivery = Delivery::new(2);
        assert_eq!([(); 4].map(|()| delivery.has_place()), [true, true, false, false]);
        delivery.leaves(2);
        assert!(delivery.has_place());
        assert_eq!(delivery.lost(), [2, 0, 0]);
    }

    #[test]
    fn what_is_lost_is_told_by_the_end_of_all_attempts() {
        let reply = |status: u16, body: Vec<u8>| {
            Ok(Response::builder().status(status).body(Bytes::from(body)).expect("a reply"))
        };
        let partial = Partial { rejected: 3, error: "over quota".to_owned() };
        let part = || reply(200, Reply { partial: Some(partial.clone()) }.encode_to_vec());
        let (refused, taken) = (|| reply(503, Vec::new()), || reply(200, Vec::new()));
        let delivery = Delivery::new(0);
        for (attempts, is_taken, lost, told) in [
            // A span that is refused and then taken is not lost.
            (vec![refused(), taken()], true, [0, 0, 0], ""),
            (vec![refused(), refused()], false, [0, 5, 0], "503"),
            (vec![refused()], false, [0, 10, 0], ""),
            (vec![refused(), part()], true, [0, 10, 3], ""),
            (vec![taken()], true, [0, 10, 3], "again"),
            (vec![part()], true, [0, 10, 6], "over quota"),
            (vec![Err("no route".into())], false, [0, 15, 6], ""),
        ] {
            let text = logged(|| {
                attempts.iter().for_each(|attempt| delivery.attempted(attempt));
                delivery.ended(5, is_taken);
            });
            assert_eq!((delivery.lost(), text.lines().count()), (lost, (!told.is_empty()).into()), "{text}");
            assert!(text.contains(told), "{text}");
        }
    }
}
