//! Around each request of a connection: reports its begin and end, and says `Connection: close` where it must be said.

use super::{Stages, clocks::Watch};
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Request, Response, Version, header},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio::sync::Notify;
use tower::ServiceExt;

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
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let under_way = UnderWay {
            request: self.watch.request_begins(),
            watch: Arc::clone(&self.watch),
        };
        let stages = self.stages.clone();
        if stages.is_draining() {
            self.drained_request.notify_one();
        }
        let http1 = request.version() < Version::HTTP_2;
        let (mut parts, incoming) = request.into_parts();
        parts.extensions.insert(self.peer);
        let read = Arc::new(AtomicBool::new(incoming.is_end_stream()));
        let body = if incoming.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Upload {
                incoming,
                read: Arc::clone(&read),
            })
        };
        let answer = self.inner.clone().oneshot(Request::from_parts(parts, body));
        Box::pin(async move {
            let mut response = answer.await?;
            if http1 {
                // What the client may still send would have to be read and thrown away before its next request.
                let body_left = !read.load(Ordering::Acquire);
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

/// A request's body that remembers whether it was read to its end.
struct Upload {
    incoming: Incoming,
    read: Arc<AtomicBool>,
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        if frame.is_none() || self.incoming.is_end_stream() {
            self.read.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
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
