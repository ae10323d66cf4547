//! Calls that are no requests in flight, since a full server answers them, too, and so have bounds of their own: those that stay open and
//! ask for nothing, which are watchers of the server's health and questions about its calls; and those whose answers grow with the models,
//! of which a caller who takes nothing keeps each.

use super::status;
use crate::http::{admission, listing::Bound};
use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use std::future::ready;

/// As many watchers and questions as may be open. A replica's watchers are its balancers and its operators' tools.
const OPEN_MAX: usize = 1024;
/// As many descriptions of models as may be under way: every client asks for one as it begins.
const DESCRIBED_MAX: usize = 256;

/// For calls that stay open.
pub(super) fn open() -> Bound {
    Bound::new("the number of open calls of Health/Watch and reflection", OPEN_MAX)
}

/// For calls whose answers grow with the models.
pub(super) fn described() -> Bound {
    Bound::new("the number of answers under way that describe models", DESCRIBED_MAX)
}

/// The same for calls of one message, which is read first: one that trickles in has no place meanwhile.
pub(super) async fn bounded_once_read(bound: State<Bound>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let body = match to_bytes(body, usize::MAX).await {
        Ok(message) => Body::from(message),
        // The call tells it.
        Err(error) => Body::from_stream(stream::once(ready(Err::<Bytes, _>(error)))),
    };
    bounded(bound, Request::from_parts(head, body), next).await
}

/// Lets a call in until its reply has ended, or refuses it.
pub(super) async fn bounded(State(bound): State<Bound>, request: Request, next: Next) -> Response {
    match bound.enter() {
        Ok(place) => admission::hold(next.run(request).await, place),
        Err(full) => status::of(&full).into_http(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use axum::{Router, http::header, middleware, routing::any};
    use futures_util::{FutureExt, StreamExt};
    use tonic::Status;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_call_has_its_place_until_its_reply_has_gone() {
        let bound = Bound::new("two", 2);
        let calls = Router::new().route("/", any(async || "told"));
        let calls = calls.layer(middleware::from_fn_with_state(bound.clone(), bounded));
        let call = async || calls.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        let (first, second) = (call().await, call().await);
        let refused = call().await;
        assert_eq!(refused.headers()[Status::GRPC_STATUS], "8");
        assert_eq!(refused.headers()[Status::GRPC_MESSAGE], "two%20is%20full%20(2);%20retry%20after%201%20s");
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        assert_eq!(refused.headers()["grpc-retry-pushback-ms"], "1000");
        assert!(first.headers().get(Status::GRPC_STATUS).is_none());
        drop(refused);
        assert_eq!(bound.free(), 0);
        drop((first, second));
        assert_eq!(bound.free(), 2);
    }

    #[tokio::test]
    async fn a_message_that_trickles_in_has_no_place_and_what_is_wrong_with_it_is_told_by_the_call() {
        let bound = Bound::new("one", 1);
        let told = async |request: Request| match to_bytes(request.into_body(), 1000).await {
            Ok(message) => Ok(message),
            Err(error) => Err(error.to_string()),
        };
        let calls = Router::new().route("/", any(told));
        let calls = calls.layer(middleware::from_fn_with_state(bound.clone(), bounded_once_read));
        let call = |body| calls.clone().oneshot(Request::new(body));
        let began = stream::iter([Ok::<_, Status>("half")]).chain(stream::pending());
        let mut slow = Box::pin(call(Body::from_stream(began)));
        assert!((&mut slow).now_or_never().is_none());
        assert_eq!(bound.free(), 1);
        let whole = call(Body::from("whole")).await.unwrap();
        assert_eq!(bound.free(), 0, "until it has gone");
        assert_eq!(to_bytes(whole.into_body(), 100).await.unwrap(), "whole");
        let lost = Body::from_stream(stream::iter([Err::<Bytes, _>(Status::cancelled("lost"))]));
        let lost = to_bytes(call(lost).await.unwrap().into_body(), 1000).await.unwrap();
        assert!(String::from_utf8_lossy(&lost).contains("lost"), "{lost:?}");
        assert_eq!(bound.free(), 1);
    }
}
