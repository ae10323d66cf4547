//! The client that posts spans to the collector. Says once that it cannot, and once that it can again.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{HttpClient, HttpError};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::runtime::Handle;

/// What a collector says, at most, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Posts on a runtime, from threads that are in none.
#[derive(Debug)]
pub(super) struct Client {
    handle: Handle,
    pool: Pool<HttpConnector, Full<Bytes>>,
    time_max: Duration,
    failing: AtomicBool,
}

impl Client {
    pub(super) fn new(handle: Handle, time_max: Duration) -> Client {
        let pool = {
            let _inside = handle.enter();
            Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(HttpConnector::new())
        };
        Client { handle, pool, time_max, failing: AtomicBool::new(false) }
    }

    fn tell(&self, result: &Result<Response<Bytes>, HttpError>) {
        let failed = match result {
            Ok(reply) if reply.status().is_success() => None,
            Ok(reply) => Some(format!("status {}", reply.status())),
            Err(error) => Some(error.to_string()),
        };
        let was = self.failing.swap(failed.is_some(), Ordering::Relaxed);
        match failed {
            Some(error) if !was => {
                tracing::warn!(error, "the collector takes no traces: they are lost until it does");
            }
            None if was => tracing::info!("the collector takes traces again"),
            _ => {}
        }
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
        self.tell(&result);
        result
    }
}
