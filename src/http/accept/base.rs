//! Takes off the prefix that paths may have (option `base_path`), for proxies that pass paths on as they are.
//!
//! It is taken off before anything looks at the path, so routes, metrics and traces do not know of it. A path without it stays as it is:
//! probes and scrapers come to the server directly.
//!
//! The root is the base with a slash behind it, since addresses in the page are relative to that.

use super::Slashed;
use axum::{Router, extract::Request};
use http::{Uri, uri::PathAndQuery};
use std::sync::Arc;
use tower::util::MapRequest;

/// Extension of a request for the base without a slash behind it: the last name of the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Bare(pub(in crate::http) String);

/// The same API, below `base` as well.
pub(in crate::http) fn below(base: &Arc<str>, api: Router) -> Router {
    if base.is_empty() {
        return api;
    }
    let base = Arc::clone(base);
    let strip = move |mut request: Request| {
        if let Some(shorter) = without(&base, request.uri()) {
            let alone = request.uri().path() == &*base;
            *request.uri_mut() = shorter;
            // A slash behind the base is the root's own. If there was one, it was taken off as from any path.
            if alone && request.extensions_mut().remove::<Slashed>().is_none() {
                let name = base.rsplit('/').next().unwrap_or_default();
                request.extensions_mut().insert(Bare(name.to_owned()));
            }
        }
        request
    };
    Router::new().fallback_service(MapRequest::new(api, strip))
}

/// The address without the base; `None` if its path does not begin with it.
fn without(base: &str, uri: &Uri) -> Option<Uri> {
    let whole = uri.path_and_query()?;
    let rest = whole.as_str().strip_prefix(base)?;
    let rest: PathAndQuery = match rest.as_bytes().first() {
        Some(b'/') => rest.try_into().ok()?,
        None | Some(b'?') => format!("/{rest}").try_into().ok()?,
        // Another name that begins alike.
        Some(_) => return None,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_is_taken_off_whole_and_once() {
        for (uri, expected) in [
            ("/eye/v2/models?ready=1", Some("/v2/models?ready=1")),
            ("http://host:1/eye/v2", Some("http://host:1/v2")),
            ("/eye/eye/v2", Some("/eye/v2")),
            ("/eye", Some("/")),
            ("/eye?a=/b", Some("/?a=/b")),
            ("/eyes/v2", None),
            ("/v2/eye", None),
            ("/v2", None),
            ("/", None),
        ] {
            let got = without("/eye", &uri.parse().expect("an address")).map(|uri| uri.to_string());
            assert_eq!(got.as_deref(), expected, "{uri}");
        }
    }
}
