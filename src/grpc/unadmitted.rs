//! Limits for calls that are not counted as requests in flight. A full server answers them too, so they have limits of their own. There are
//! two kinds. Calls that stay open without asking for work: watchers of the server's health, and reflection. And calls whose answers grow
//! with the models: a client that does not read keeps each answer in memory.

use super::status;
use crate::http::{admission, handlers::listing::Bound};
use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use std::future::ready;

/// How many health watchers and reflection calls may be open. The watchers of a replica are its load balancers and its operators' tools.
const OPEN_MAX: usize = 1024;
/// How many descriptions of models may be in flight: every client asks for one when it starts.
const DESCRIBED_MAX: usize = 256;

/// The limit for calls that stay open.
pub(super) fn open() -> Bound {
    Bound::new("the number of open calls of Health/Watch and reflection", OPEN_MAX)
}

/// The limit for calls whose answers grow with the models.
pub(super) fn described() -> Bound {
    Bound::new("the number of answers under way that describe models", DESCRIBED_MAX)
}

/// Like [`bounded`] for calls of one message, which is read first: a message that arrives slowly does not take a place meanwhile.
pub(super) async fn bounded_once_read(bound: State<Bound>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let body = match to_bytes(body, usize::MAX).await {
        Ok(message) => Body::from(message),
        // The call reports the error.
        Err(error) => Body::from_stream(stream::once(ready(Err::<Bytes, _>(error)))),
    };
    bounded(bound, Request::from_parts(head, body), next).await
}

/// Admits a call until its reply has ended, or refuses it.
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
