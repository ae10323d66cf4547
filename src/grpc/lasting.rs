//! Calls that stay open and ask for nothing: watchers of the server's health, and questions about its calls. They are no requests in
//! flight, since a full server answers them, too; so they have a bound of their own.

use crate::http::admission;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::Status;

/// As many as may be open. A replica's watchers are its balancers and its operators' tools.
pub(super) const OPEN_MAX: usize = 1024;

/// Lets a call in until its reply has ended, or refuses it.
pub(super) async fn bounded(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match places.try_acquire_owned() {
        Ok(place) => admission::hold(next.run(request).await, place),
        Err(_) => {
            let words = format!(
                "{OPEN_MAX} calls of Health/Watch and reflection are open already: end one, or ask Health/Check"
            );
            Status::resource_exhausted(words).into_http()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use axum::{Router, body::Body, middleware, routing::any};
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_call_has_its_place_until_its_reply_has_gone() {
        let places = Arc::new(Semaphore::new(2));
        let calls = Router::new().route("/", any(async || "told"));
        let calls = calls.layer(middleware::from_fn_with_state(Arc::clone(&places), bounded));
        let call = async || calls.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        let (first, second) = (call().await, call().await);
        let refused = call().await;
        assert_eq!(refused.headers()[Status::GRPC_STATUS], "8");
        assert!(first.headers().get(Status::GRPC_STATUS).is_none());
        drop(refused);
        assert!(places.try_acquire().is_err());
        drop((first, second));
        assert_eq!(places.available_permits(), 2);
    }
}
