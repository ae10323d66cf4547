//! The page for people at `/`, a viewer of `openapi.yaml` at `/docs`, and the manuals below it. They are files of our own and a vendored
//! viewer, all part of the binary, so that all of it works without a network.
//!
//! The page talks to the same routes as any other client. Its live view polls `/metrics` and `/v2/devices` while somebody
//! looks at it: the numbers are those that monitoring sees, and there is no open connection to bound or to end in a drain.

mod assets;
mod manuals;

use crate::http::{
    Front, Route,
    accept::{Slashed, base::Bare},
    accepted::{self, Offer},
    reject::Problem,
};
use assets::{Asset, Assets};
use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderName, HeaderValue, Response, StatusCode, Uri, header},
    response::IntoResponse,
    routing::get,
};
use serde_json::json;
use std::{sync::Arc, time::Instant};

/// Nothing comes from elsewhere, only files of ours run, and nobody may show the page in a frame. The page itself may make pictures.
const PAGE_POLICY: &str = "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// The page's files, if it is served.
pub(in crate::http) type Page = Option<Assets>;

/// The page's files, for a configuration that wants them.
pub(in crate::http) fn page(wanted: bool) -> Page {
    wanted.then(Assets::new)
}

/// The page, its documents and their parts.
pub(in crate::http) fn routes() -> Vec<Route> {
    vec![
        ("/", get(home)),
        ("/docs", get(documents)),
        ("/docs/{manual}", get(manual)),
        ("/page/{file}", get(part)),
    ]
}

/// The routes of a server. Without a page, there is only `/`, where it tells its state.
pub(in crate::http) fn routes_of(front: &Front) -> Vec<Route> {
    let mut routes = routes();
    routes.retain(|(path, _)| front.page.is_some() || *path == "/");
    routes
}

/// The page for clients that ask for one, as browsers do. Others get what clients of KServe's first protocol look for here: that the server
/// is alive, or why it is to be restarted.
async fn home(State(front): State<Arc<Front>>, request: Request) -> Response<Body> {
    let forms = [Offer::named(true, "text/html"), Offer::ranged(false, "application/json")];
    let wants_page = accepted::best(request.headers(), &forms) == Some(true);
    let mut reply = match wants_page && front.page.is_some() {
        true => answer(file(&front, "index.html"), &request),
        false => match front.status.live(Instant::now()) {
            Ok(()) => Json(json!({ "status": "alive" })).into_response(),
            Err(reason) => Problem::not_live(&reason).into_response(),
        },
    };
    reply.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
    reply
}

async fn documents(State(front): State<Arc<Front>>, request: Request) -> Response<Body> {
    answer(file(&front, "docs.html"), &request)
}

async fn manual(
    State(front): State<Arc<Front>>,
    Path(name): Path<String>,
    request: Request,
) -> Response<Body> {
    answer(front.page.as_ref().and_then(|assets| assets.manual(&name)), &request)
}

async fn part(State(front): State<Arc<Front>>, Path(name): Path<String>, request: Request) -> Response<Body> {
    // The documents have addresses of their own, to which those of their parts are relative.
    answer(file(&front, &name).filter(|asset| !asset.is_document()), &request)
}

/// Names are looked up in a table.
fn file<'a>(front: &'a Front, name: &str) -> Option<&'a Asset> {
    front.page.as_ref()?.get(name)
}

/// Redirects from a document's path with a slash at its end to the one without: its parts have addresses relative to that. The redirect is
/// relative as well, whatever a proxy puts before the path.
fn slashless(uri: &Uri) -> Response<Body> {
    let whole = uri.path_and_query().map_or("/", |whole| whole.as_str());
    let path = uri.path();
    let begin = path.rfind('/').map_or(0, |slash| slash + 1);
    moved(format!("../{}", &whole[begin..]))
}

/// Redirects from `base_path` alone to the same with a slash at its end, for the same reason.
fn slashed(Bare(name): &Bare, uri: &Uri) -> Response<Body> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    moved(format!("./{name}/{query}"))
}

fn moved(to: String) -> Response<Body> {
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response()
}

/// The file, or the reply that the client's copy of it is still good.
fn answer(asset: Option<&Asset>, request: &Request) -> Response<Body> {
    let (headers, uri) = (request.headers(), request.uri());
    let Some(asset) = asset else {
        return Problem::not_found(uri.path()).into_response();
    };
    let mut reply = if asset.is_document() && request.extensions().get::<Slashed>().is_some() {
        slashless(uri)
    } else if let Some(bare) = request.extensions().get::<Bare>() {
        slashed(bare, uri)
    } else if asset.is_known_to(headers) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        match asset.body(headers) {
            Ok(reply) => reply,
            Err(problem) => return problem.into_response(),
        }
    };
    // A document is fetched each time, and its parts are revalidated: both are those of this server.
    let keep = if asset.is_document() { "no-store" } else { "no-cache" };
    for (name, value) in [
        (header::CACHE_CONTROL, keep),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if !asset.is_document() {
        reply.headers_mut().insert(header::ETAG, asset.tag());
    }
    reply
}
