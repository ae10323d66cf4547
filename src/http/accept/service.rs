//! Around each request of a connection: reports its begin and end, and says `Connection: close` where it must be said.

use super::{Stages, clocks::Watch};
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Request, Response, Uri, Version, header, uri::PathAndQuery},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tower::ServiceExt;

/// A body that nobody read is read and thrown away up to this size, and so fast; beyond it the connection is closed.
const UNREAD_BYTES_MAX: u64 = 64 * 1024;
const UNREAD_WAIT: Duration = Duration::from_secs(1);

/// The client's address, in the extensions of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// What a connection needs to observe its requests.
pub(super) struct Observed<S> {
    pub(super) inner: S,
    pub(super) watch: Arc<Watch>,
    pub(super) stages: Stages,
    /// Told when a request begins during a drain: an HTTP/2 connection says GOAWAY then.
    pub(super) drained_request: Arc<Notify>,
    pub(super) peer: Peer,
}

impl<S> hyper::service::Service<Request<Incoming>> for Observed<S>
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let under_way = UnderWay { request: self.watch.request_begins(), watch: Arc::clone(&self.watch) };
        let stages = self.stages.clone();
        if stages.is_draining() {
            self.drained_request.notify_one();
        }
        let http1 = request.version() < Version::HTTP_2;
        let (mut parts, incoming) = request.into_parts();
        without_slash(&mut parts.uri);
        parts.extensions.insert(self.peer);
        // A client that waits for `100 Continue` would be told to send if we read.
        let waits_for_us = parts.headers.contains_key(header::EXPECT);
        let unread = Unread::default();
        let body = if incoming.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Upload { incoming: Some(incoming), unread: Arc::clone(&unread) })
        };
        let answer = self.inner.clone().oneshot(Request::from_parts(parts, body));
        Box::pin(async move {
            let mut response = answer.await?;
            if http1 {
                let left = lock(&unread).take();
                let body_left = match left {
                    None => false,
                    Some(left) => waits_for_us || !throw_away(left).await,
                };
                if body_left {
                    under_way.watch.body_left();
                }
                if body_left || stages.is_draining() {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
            }
            under_way.waits();
            Ok(response.map(|body| Answer { body, under_way }))
        })
    }
}

/// A path that ends in a slash is that without it, as other servers have it: scrapers ask for `/metrics/`.
fn without_slash(uri: &mut Uri) {
    let shorter: Option<PathAndQuery> = match uri.path_and_query() {
        Some(whole) if whole.path().len() > 1 && whole.path().ends_with('/') => {
            let (path, query) = (&whole.path()[..whole.path().len() - 1], whole.query());
            query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")).try_into().ok()
        }
        _ => None,
    };
    if let Some(shorter) = shorter {
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = Some(shorter);
        *uri = Uri::from_parts(parts).expect("one part was replaced by another of its kind");
    }
}

/// Reads what little is left of a body, so that the connection can be kept; false if it is much, or slow in coming.
async fn throw_away(mut left: Incoming) -> bool {
    let little = left.size_hint().upper().is_some_and(|upper| upper <= UNREAD_BYTES_MAX);
    let to_the_end = async {
        while let Some(frame) = left.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    little && tokio::time::timeout(UNREAD_WAIT, to_the_end).await.unwrap_or(false)
}

/// A request that has not been answered completely; dropped when it has, or when its client is gone.
struct UnderWay {
    request: u64,
    watch: Arc<Watch>,
}

impl UnderWay {
    fn waits(&self) {
        self.watch.answer_waits(self.request, Some(Instant::now()));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.watch.request_ends(self.request, Instant::now());
    }
}

/// Where a body is left that nobody has read to its end.
type Unread = Arc<Mutex<Option<Incoming>>>;

fn lock(unread: &Unread) -> MutexGuard<'_, Option<Incoming>> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's body that is left behind, rather than lost, if it is dropped before its end.
struct Upload {
    /// Present until dropped.
    incoming: Option<Incoming>,
    unread: Unread,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && !incoming.is_end_stream()
        {
            *lock(&self.unread) = Some(incoming);
        }
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(incoming).poll_frame(context));
        if frame.is_none() {
            self.incoming = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// A reply's body that reports whether it waits for the client or the client for it.
pub struct Answer {
    body: Body,
    under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Ready(_) => self.under_way.waits(),
            Poll::Pending => {
                let Self { under_way, .. } = &*self;
                under_way.watch.answer_waits(under_way.request, None);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
