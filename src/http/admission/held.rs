//! Response bodies, and bytes, that hold a permit.

use axum::{
    body::{Body, Bytes},
    http::Response,
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Makes a response hold a permit until its body has ended.
pub(crate) fn hold<P: Send + Unpin + 'static>(reply: Response<Body>, permit: P) -> Response<Body> {
    reply.map(|body| Body::new(Held { body, permit, keep: |bytes: Bytes, _: &P| bytes }))
}

/// Makes a response hold a permit until its body has ended and the last of the body's bytes is dropped. A body of one piece has ended once
/// the piece is handed to the connection, which may keep it for long.
pub(crate) fn hold_bytes<P: Send + Sync + 'static>(reply: Response<Body>, permit: Arc<P>) -> Response<Body> {
    reply.map(|body| Body::new(Held { body, permit, keep: keeping }))
}

/// Makes bytes hold a permit until the last of them is dropped.
pub(crate) fn keeping<P: Send + Sync + 'static>(bytes: Bytes, permit: &Arc<P>) -> Bytes {
    Bytes::from_owner(Keeping { bytes, _permit: Arc::clone(permit) })
}

struct Keeping<P> {
    bytes: Bytes,
    _permit: Arc<P>,
}

impl<P> AsRef<[u8]> for Keeping<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A response's body that holds its permit until it has ended.
struct Held<P, K> {
    body: Body,
    permit: P,
    /// Applied to the bytes of each frame.
    keep: K,
}

impl<P: Unpin, K: Fn(Bytes, &P) -> Bytes + Unpin> HttpBody for Held<P, K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| frame.map_data(|bytes| (self.keep)(bytes, &self.permit)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{
        super::{Admission, tests::admission},
        *,
    };
    use axum::{
        Router,
        extract::{Request, State},
        middleware::{self, Next},
        routing::post,
    };
    use tower::ServiceExt;

    #[tokio::test]
    async fn the_permit_lives_until_the_body_of_the_reply_has_ended() {
        let admission = admission();
        let router: Router =
            Router::new().route("/", post(|| async { "answer" })).layer(middleware::from_fn_with_state(
                Arc::clone(&admission),
                async |State(admission): State<Arc<Admission>>, mut request: Request, next: Next| {
                    let permit = admission.enter(&mut request).unwrap();
                    permit.cover(10).unwrap();
                    hold(next.run(request).await, permit)
                },
            ));
        let request = http::Request::post("/").body(Body::empty()).unwrap();
        let reply = router.oneshot(request).await.unwrap();
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (1, 10));
        drop(reply);
        assert_eq!(admission.in_flight().requests, 0);
    }
}
