//! Which path is answered by what, on which listener.

use super::{
    Front, Limits, Route,
    accept::base,
    around::{
        self,
        guard::{self, HeadLimits},
    },
    body::BodyLimits,
    control::origin,
    handlers::{
        catalog, devices, health, infer, kserve, listing::Listings, logging, page, predict, repository,
        scrape, shared_memory,
    },
    observe, router,
};
use axum::{
    Router,
    http::header,
    middleware,
    response::IntoResponse,
    routing::{get, post},
};
use std::sync::Arc;

/// The API's contract, as it is served.
pub const OPENAPI: &str = include_str!("../../openapi.yaml");

/// Longest path and query. Nothing that we route is near it.
const URI_BYTES_MAX: usize = 8 * 1024;

/// What costs memory and device time: behind admission.
fn inference_routes() -> Vec<Route> {
    vec![
        // PUT is what `curl -T` sends.
        ("/predictions/{model}", post(predict::predict).put(predict::predict)),
        ("/predictions/{model}/{version}", post(predict::predict).put(predict::predict)),
        ("/v2/models/{model}/infer", post(infer::infer)),
        ("/v2/models/{model}/versions/{version}/infer", post(infer::infer)),
        // The last segment of a POST ends in `:predict`, which a route cannot say: `openapi.yaml` has paths of their own for it.
        ("/v1/models/{model}", get(kserve::ready).post(kserve::call).fallback(kserve::other)),
        (
            "/v1/models/{model}/versions/{version}",
            get(kserve::ready).post(kserve::call).fallback(kserve::other),
        ),
    ]
}

/// What only looks things up.
fn catalog_routes() -> Vec<Route> {
    vec![
        ("/v1/models", get(kserve::models)),
        ("/v2", get(catalog::server)),
        ("/v2/models", get(catalog::models)),
        ("/v2/models/stats", get(catalog::all_statistics)),
        ("/v2/models/{model}", get(catalog::model)),
        ("/v2/models/{model}/ready", get(catalog::ready)),
        ("/v2/models/{model}/config", get(catalog::config)),
        ("/v2/models/{model}/stats", get(catalog::statistics)),
        ("/v2/models/{model}/versions/{version}", get(catalog::model)),
        ("/v2/models/{model}/versions/{version}/ready", get(catalog::ready)),
        ("/v2/models/{model}/versions/{version}/config", get(catalog::config)),
        ("/v2/models/{model}/versions/{version}/stats", get(catalog::statistics)),
    ]
}

/// The contract.
fn contract_routes() -> Vec<Route> {
    vec![("/openapi.yaml", get(openapi))]
}

/// What changes which models, devices and regions of shared memory there are, and what is logged: on both listeners.
fn control_routes() -> Vec<Route> {
    vec![
        ("/v2/repository/models/{model}/load", post(repository::load)),
        ("/v2/repository/models/{model}/unload", post(repository::unload)),
        ("/v2/systemsharedmemory/status", get(shared_memory::status)),
        ("/v2/systemsharedmemory/unregister", post(shared_memory::unregister)),
        ("/v2/systemsharedmemory/region/{region}/status", get(shared_memory::status)),
        ("/v2/systemsharedmemory/region/{region}/register", post(shared_memory::register)),
        ("/v2/systemsharedmemory/region/{region}/unregister", post(shared_memory::unregister)),
        ("/v2/cudasharedmemory/status", get(shared_memory::cuda_status)),
        ("/v2/cudasharedmemory/unregister", post(shared_memory::cuda_unregister)),
        ("/v2/cudasharedmemory/region/{region}/status", get(shared_memory::cuda_status)),
        ("/v2/cudasharedmemory/region/{region}/unregister", post(shared_memory::cuda_unregister)),
        ("/v2/logging", get(logging::settings).post(logging::change)),
        ("/v2/devices", get(devices::list)),
        ("/v2/devices/{id}/drain", post(devices::drain)),
        ("/v2/devices/{id}/resume", post(devices::resume)),
    ]
}

/// What control begins with. It changes nothing, though it is a `POST`.
fn index_routes() -> Vec<Route> {
    vec![("/v2/repository/index", post(repository::index))]
}

/// Every path of the API, for the test that holds `openapi.yaml` equal.
pub fn paths() -> Vec<&'static str> {
    [
        inference_routes(),
        catalog_routes(),
        contract_routes(),
        index_routes(),
        control_routes(),
        health::routes(),
        page::routes(),
    ]
    .concat()
    .into_iter()
    .map(|(path, _)| path)
    .collect()
}

/// Checks that `base_path` does not begin as a path of ours: it is taken off first, so such a path would become another.
///
/// # Errors
/// The part that is ours already.
pub fn check_base_path(base: &str) -> Result<(), String> {
    let first = |path: &str| path.split('/').nth(1).unwrap_or_default().to_owned();
    let begins = first(base);
    match !begins.is_empty() && paths().into_iter().any(|path| first(path) == begins) {
        true => {
            Err(format!("paths of the API begin with /{begins} already, and would not be found any more"))
        }
        false => Ok(()),
    }
}

/// What the metrics tell apart: the paths, and predictions and stacks where a path has more than these.
pub fn counted() -> Vec<&'static str> {
    paths().into_iter().chain(observe::apart()).collect()
}

/// Control. All that changes something is behind the check of whose page asks for it.
fn control(front: &Arc<Front>, listings: &Listings) -> Router<Arc<Front>> {
    listings
        .around(control_routes())
        .layer(middleware::from_fn_with_state(Arc::clone(front), origin::check))
        .merge(listings.around(index_routes()))
}

/// The API: what [`Acceptor`](super::accept::Acceptor) serves.
pub fn routes(front: Arc<Front>) -> Router {
    let Limits { body, stack_body, .. } = &front.limits;
    let head_of = |limits: &BodyLimits| HeadLimits {
        body_bytes_max: limits.bytes_max,
        option: limits.option,
        uri_bytes_max: URI_BYTES_MAX,
    };
    // Which model takes a stack is not known here. Whoever reads a body applies its own limit.
    let longest = if stack_body.bytes_max > body.bytes_max { stack_body } else { body };
    let (head, of_others) = (head_of(longest), head_of(body));
    let inference = around::layered(router(inference_routes()), &front, head, true);
    // Health and metrics are beside the admission of the others: they answer when everything else is refused.
    let listings = Listings::new(front.limits.body);
    let others = listings
        .around(catalog_routes())
        .merge(listings.packed(contract_routes()))
        .merge(control(&front, &listings))
        .merge(listings.packed(page::routes_of(&front)))
        .merge(listings.around(health::routes()))
        .fallback(guard::not_found);
    let api = around::layered(others, &front, of_others, false).merge(inference);
    let base = Arc::clone(&front.base_path);
    base::below(&base, api.with_state(front))
}

/// What the admin listener serves: health, metrics and control.
pub fn admin_routes(front: Arc<Front>) -> Router {
    let BodyLimits { bytes_max, option, .. } = front.limits.body;
    let head = HeadLimits { body_bytes_max: bytes_max, option, uri_bytes_max: URI_BYTES_MAX };
    let listings = Listings::new(front.limits.body);
    finish(listings.around(health::routes_apart()).merge(control(&front, &listings)), head, front)
}

/// What the listener for metrics serves: nothing else.
pub fn metrics_routes(front: Arc<Front>) -> Router {
    let head = HeadLimits { body_bytes_max: 0, option: "body_bytes_max", uri_bytes_max: URI_BYTES_MAX };
    finish(
        Listings::new(front.limits.body).around(vec![health::metrics(scrape::Listener::Apart)]),
        head,
        front,
    )
}

/// A whole listener none of whose routes asks for admission.
fn finish(router: Router<Arc<Front>>, head: HeadLimits, front: Arc<Front>) -> Router {
    around::layered(router.fallback(guard::not_found_here), &front, head, false).with_state(front)
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/yaml")], OPENAPI)
}
