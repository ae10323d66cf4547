//! Bounds on replies that are made anew for each request and grow with the models or with what is known of one: metrics, lists, metadata.
//! They are not requests in flight, since a full server gives them too, so they have bounds of their own.
//!
//! Over HTTP/2, a client may ask for hundreds on one connection and read none of them: each would be kept until `reply_stall_ms`.

use super::repository;
use crate::{
    error::InferError,
    http::{
        Front, Route, admission,
        body::{self, BodyLimits},
        coding, router,
    },
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Method, Response},
    middleware::{self, Next},
    routing::MethodRouter,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Routes that describe all models, all devices or all regions.
const OF_ALL: [&str; 7] = [
    "/metrics",
    "/v1/models",
    "/v2/models",
    "/v2/models/stats",
    "/v2/repository/index",
    "/v2/systemsharedmemory/status",
    "/v2/devices",
];
/// How many of those at once: few clients ask for them, one at a time, and the metrics of 400 models have 5 MB.
const OF_ALL_MAX: usize = 32;

/// Routes that describe one model.
const OF_ONE: [&str; 6] = [
    "/v2/models/{model}",
    "/v2/models/{model}/config",
    "/v2/models/{model}/stats",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/config",
    "/v2/models/{model}/versions/{version}/stats",
];
/// How many of those at once: every client asks as it begins, and the labels of 20,000 classes have 400 kB.
const OF_ONE_MAX: usize = 256;

/// Documents that are packed at once: packing with gzip takes 350 kB each. Others go out as they are.
const PACKED_MAX: usize = 32;

/// Listings end within milliseconds, unless their clients do not read them.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A bound on how many replies of one kind are under way. Clones share the places.
#[derive(Clone)]
pub(crate) struct Bound {
    places: Arc<Semaphore>,
    what: &'static str,
    max: usize,
}

impl Bound {
    /// Nothing is under way yet.
    pub(crate) fn new(what: &'static str, max: usize) -> Bound {
        Bound { places: Arc::new(Semaphore::new(max)), what, max }
    }

    /// Takes a place, until it is dropped.
    ///
    /// # Errors
    /// [`InferError::Full`].
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, InferError> {
        let (what, limit) = (self.what, self.max as u64);
        let full = |_| InferError::Full { what, limit, retry_after: RETRY_AFTER };
        Arc::clone(&self.places).try_acquire_owned().map_err(full)
    }

    /// Places that are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.places.available_permits()
    }
}

/// The bounds of one listener's replies: requests on another listener take nothing from them.
pub(in crate::http) struct Listings {
    of_all: Bound,
    of_one: Bound,
    body: BodyLimits,
    packing: Arc<Semaphore>,
}

impl Listings {
    /// Nothing is under way yet. `body` limits the bodies of these requests, which are short.
    pub(in crate::http) fn new(body: BodyLimits) -> Listings {
        Listings {
            of_all: Bound::new("the number of lists and metrics under way", OF_ALL_MAX),
            of_one: Bound::new("the number of replies under way that describe a model", OF_ONE_MAX),
            body: body.at_most(repository::BODY_BYTES_MAX),
            packing: Arc::new(Semaphore::new(PACKED_MAX)),
        }
    }

    /// These routes, and the bound around each that has one.
    pub(in crate::http) fn around(&self, routes: Vec<Route>) -> Router<Arc<Front>> {
        router(routes.into_iter().map(|(path, methods)| (path, self.around_one(path, methods))).collect())
    }

    fn around_one(&self, path: &str, methods: MethodRouter<Arc<Front>>) -> MethodRouter<Arc<Front>> {
        let bound = match path {
            _ if OF_ALL.contains(&path) => &self.of_all,
            _ if OF_ONE.contains(&path) => &self.of_one,
            _ => return methods,
        };
        // A method that the path does not take is refused as such.
        methods.route_layer(middleware::from_fn_with_state((bound.clone(), self.body), bounded))
    }

    /// Routes for documents that are the same for all: packed while there is room for that, and never refused.
    pub(in crate::http) fn packed(&self, documents: Vec<Route>) -> Router<Arc<Front>> {
        router(documents).layer(middleware::from_fn_with_state(Arc::clone(&self.packing), packed))
    }
}

/// Lets a request in until the last byte of its reply has gone to the system, or refuses it.
async fn bounded(
    State((bound, body)): State<(Bound, BodyLimits)>,
    request: Request,
    next: Next,
) -> Result<Response<Body>, InferError> {
    let request = whole(request, body).await?;
    let place = bound.enter()?;
    Ok(admission::hold_bytes(next.run(request).await, Arc::new(place)))
}

/// Reads a request's body, if it has one, before a place is taken: a slow sender keeps no place from others.
async fn whole(request: Request, limits: BodyLimits) -> Result<Request, InferError> {
    if request.method() != Method::POST {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let body = body::read(body, limits).await?;
    Ok(Request::from_parts(parts, body.into()))
}

/// Packs a document while there is room for that.
async fn packed(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response<Body> {
    let place = places.try_acquire_owned().ok();
    let wanted = coding::wanted(&request).filter(|_| place.is_some());
    admission::hold(coding::pack(next.run(request).await, wanted), place)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::{admin_routes, metrics_routes, paths, routes, testing};
    use axum::{body::Bytes, http::header};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn ask(router: &Router, method: &str, path: &str, coding: &str) -> Response<Body> {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "a");
        let request = request.header(header::ACCEPT_ENCODING, coding);
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn get(router: &Router, path: &str) -> Response<Body> {
        ask(router, "GET", path, "identity").await
    }

    fn front_routes() -> Router {
        routes(testing::front(&paths()))
    }

    #[tokio::test]
    async fn of_what_grows_with_the_models_a_few_are_under_way_and_probes_are_always_answered() {
        let router = front_routes();
        let mut held = Vec::new();
        for path in ["/metrics", "/v2/models"].into_iter().cycle().take(OF_ALL_MAX) {
            held.push(get(&router, path).await);
            assert_eq!(held.last().unwrap().status(), 200, "{path}");
        }
        for path in OF_ALL {
            let method = if path == "/v2/repository/index" { "POST" } else { "GET" };
            let refused = ask(&router, method, path, "identity").await;
            assert_eq!(refused.status(), 429, "{path}");
            assert_eq!(refused.headers()[header::RETRY_AFTER], "1", "{path}");
            let told = refused.into_body().collect().await.unwrap().to_bytes();
            let told = String::from_utf8_lossy(&told).into_owned();
            assert!(told.contains("the number of lists and metrics under way is full (32)"), "{told}");
        }
        for (path, status) in [
            ("/v2/health/live", 200),
            ("/v2/health/ready", 503),
            ("/ping", 503),
            ("/v2", 200),
            ("/openapi.yaml", 200),
            ("/v2/models/none", 404),
            ("/v2/models/none/ready", 404),
        ] {
            assert_eq!(get(&router, path).await.status(), status, "{path}");
        }
        assert_eq!(ask(&router, "PUT", "/metrics", "identity").await.status(), 405);
        // A piece of the reply may wait for its client after all of it has been handed on.
        let mut last = held.pop().unwrap().into_body();
        let piece = last.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(last);
        assert_eq!(get(&router, "/metrics").await.status(), 429);
        drop(piece);
        assert_eq!(get(&router, "/metrics").await.status(), 200);
        drop(held);
        assert_eq!(get(&router, "/v2/models").await.status(), 200);
    }

    #[tokio::test]
    async fn who_sends_what_is_asked_slowly_takes_no_place_from_others() {
        let router = front_routes();
        let ask = || {
            let (send, mut pieces) = tokio::sync::mpsc::unbounded_channel::<Result<Bytes, std::io::Error>>();
            let body = futures_util::stream::poll_fn(move |context| pieces.poll_recv(context));
            let request = Request::post("/v2/repository/index").header(header::HOST, "a");
            let request = request.body(Body::from_stream(body)).unwrap();
            (send, Box::pin(router.clone().oneshot(request)))
        };
        let mut slow: Vec<_> = (0..=OF_ALL_MAX).map(|_| ask()).collect();
        for (send, reply) in &mut slow {
            send.send(Ok(Bytes::from_static(b"{"))).unwrap();
            assert!(futures_util::poll!(reply).is_pending());
        }
        assert_eq!(get(&router, "/metrics").await.status(), 200);
        let (send, reply) = slow.pop().unwrap();
        send.send(Ok(Bytes::from_static(b"\"ready\": true}"))).unwrap();
        drop(send);
        let reply = reply.await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "[]");
        let (send, reply) = ask();
        send.send(Ok(vec![b' '; (64 << 10) + 1].into())).unwrap();
        assert_eq!(reply.await.unwrap().status(), 413);
    }

    #[tokio::test]
    async fn each_listener_has_places_of_its_own() {
        let front = testing::front(&paths());
        let listeners = [routes, admin_routes, metrics_routes].map(|routes| routes(Arc::clone(&front)));
        let mut held = Vec::new();
        for router in &listeners {
            for _ in 0..OF_ALL_MAX {
                held.push(ask(router, "GET", "/metrics", "gzip").await);
            }
            assert!(held.iter().all(|reply| reply.status() == 200));
            assert_eq!(get(router, "/metrics").await.status(), 429);
        }
    }

    #[tokio::test]
    async fn documents_are_packed_while_there_is_room_and_never_refused() {
        let router = front_routes();
        let packed = |reply: &Response<Body>| reply.headers().contains_key(header::CONTENT_ENCODING);
        let mut held = Vec::new();
        for path in ["/openapi.yaml", "/docs/options"].into_iter().cycle().take(PACKED_MAX) {
            held.push(ask(&router, "GET", path, "gzip").await);
        }
        assert!(held.iter().all(packed));
        for path in ["/openapi.yaml", "/docs/options"] {
            let plain = ask(&router, "GET", path, "gzip").await;
            assert!(plain.status() == 200 && !packed(&plain), "{path}");
        }
        drop(held);
        assert!(packed(&ask(&router, "GET", "/openapi.yaml", "gzip").await));
    }

    #[test]
    fn what_has_a_bound_is_a_path_of_the_api() {
        let paths = paths();
        for path in OF_ALL.iter().chain(&OF_ONE) {
            assert!(paths.contains(path), "{path}");
        }
    }
}
