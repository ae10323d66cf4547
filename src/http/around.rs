//! What is around each route: what every request passes, and what requests pass that cost memory and device time.

pub mod guard;

use super::{Front, admission, coding, observe::Observation, reject::Readers};
use crate::telemetry::metrics::DropReason;
use axum::{Router, body::Body, extract::Request, http::Response, response::IntoResponse};
use guard::HeadLimits;
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};
use tower::{Service, ServiceExt, layer::layer_fn};

/// These routes with all that is around them.
pub(super) fn layered(
    router: Router<Arc<Front>>,
    front: &Arc<Front>,
    head: HeadLimits,
    admits: bool,
) -> Router<Arc<Front>> {
    let front = Arc::clone(front);
    let layer = layer_fn(move |inner| Around { inner, front: Arc::clone(&front), head, admits });
    router.method_not_allowed_fallback(guard::method_not_allowed).layer(layer)
}

/// What every request passes. It is one layer with a service of its own: each layer, above all one made of a function, allocates boxes for
/// every request.
#[derive(Clone)]
struct Around<S> {
    inner: S,
    front: Arc<Front>,
    head: HeadLimits,
    /// Whether the routes within cost memory and device time.
    admits: bool,
}

impl<S> Service<Request> for Around<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let around = self.clone();
        Box::pin(async move { Ok(around.answer(request).await) })
    }
}

impl<S> Around<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible>,
{
    async fn answer(self, mut request: Request) -> Response<Body> {
        let Around { inner, front, head, admits } = self;
        // Named before anything can fail, so that every log line and reply has the id.
        let id = guard::identify(request.headers());
        let readers = Readers::of(request.uri().path());
        // Counts what is refused below, too.
        let observation = Observation::begin(&front, &id, &mut request);
        let passed = async {
            // Nothing of the body is read: a client that waits for `100 Continue` never sends it.
            if let Err(problem) = guard::check_head(&request, head) {
                return problem.into_response();
            }
            if !admits {
                let Ok(reply) = inner.oneshot(request).await;
                return reply;
            }
            // A full server refuses now, before anything is read: the client can try elsewhere.
            let permit = match front.admission.enter(&mut request) {
                Ok(permit) => permit,
                Err(full) => return full.into_response(),
            };
            // Only here, not for look-ups: Triton's asynchronous client asks for packed replies everywhere, but unpacks only these.
            let wanted = coding::wanted(&request);
            let reply = match coding::unpack(request) {
                Ok(request) => front.before_the_end(DropReason::Request, inner.oneshot(request)).await,
                Err(refused) => Err(refused),
            };
            let reply = reply.map_or_else(IntoResponse::into_response, |Ok(reply)| reply);
            admission::hold(coding::pack(reply, wanted), permit)
        };
        // In place: a future that is passed on is copied whole, and this one has some kilobytes.
        let mut passed = pin!(guard::catch_panics(passed));
        let mut reply =
            poll_fn(|context| observation.span().in_scope(|| passed.as_mut().poll(context))).await;
        observation.end(&mut reply);
        guard::sign(&mut reply, &id, readers);
        reply
    }
}
