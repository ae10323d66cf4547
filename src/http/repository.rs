//! Triton's repository control: which models there are, and loading and unloading them while the server runs.
//!
//! Whoever may do this decides what runs here: without `admin_token` only callers by a loopback address may, with it only those
//! who know it.

mod folder;

use super::{
    Front,
    accept::Peer,
    admission::{Permit, charged, keeping},
    body, catalog, coding,
    target::Target,
    wire::repository as wire,
};
use crate::{
    config::{RepositoryMode, Secret},
    error::InferError,
};
use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
};
use bytes::Bytes;
pub(super) use folder::Folder;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};
use subtle::ConstantTimeEq;

/// Bytes of a body that brings no files. Few: nothing is set aside for it, and anybody may send one.
pub(super) const BODY_BYTES_MAX: u64 = 64 << 10;

/// `POST /v2/repository/index`: every version that is known, and the models of the folder that are not loaded.
pub(super) async fn index(
    State(front): State<Arc<Front>>,
    request: Request,
) -> Result<Json<Vec<wire::Known>>, InferError> {
    let only_ready = wire::only_ready(&read(&front, request).await?)?;
    Ok(Json(list(&front, only_ready).await))
}

/// Everything that is known, or only what takes requests.
pub(crate) async fn list(front: &Front, only_ready: bool) -> Vec<wire::Known> {
    let mut entries = Vec::new();
    let mut known = BTreeSet::new();
    for entry in front.catalog.list() {
        let (state, reason) = catalog::stands(front, &entry);
        known.insert(entry.name.to_string());
        let served = || entry.state.model().is_some_and(|model| front.queue.check_served(model.key).is_ok());
        if !only_ready || served() {
            let (name, version) = (entry.name.to_string(), entry.version.to_string());
            entries.push(wire::Known { name, version, state, reason: reason.into_owned().into() });
        }
    }
    if !only_ready {
        let there = front.folder.names().await;
        for name in there.difference(&known) {
            let (name, reason) = (name.clone(), "it is not loaded".into());
            entries.push(wire::Known { name, version: String::new(), state: "UNAVAILABLE", reason });
        }
    }
    entries
}

/// `POST /v2/repository/models/{model}/load`
pub(super) async fn load(
    State(front): State<Arc<Front>>,
    target: Target,
    mut request: Request,
) -> Result<(), InferError> {
    allowed(&front, request.extensions().get(), request.headers())?;
    // A model's files take memory as the bodies of other requests do.
    let permit = front.admission.enter(&mut request)?;
    let body = body::of(coding::unpack(request)?, front.limits.body).await?;
    let read = move || wire::Load::of_body(&body);
    let load = front.decode.run(charged(Some(&permit), read)).await??;
    load_as(&front, &target.model, load, Some(&permit)).await
}

/// Loads a model as a caller asks who may.
pub(crate) async fn load_as(
    front: &Front,
    name: &str,
    load: wire::Load,
    permit: Option<&Arc<Permit>>,
) -> Result<(), InferError> {
    let load = match permit {
        Some(permit) => load.kept(|bytes| keeping(bytes, permit)),
        None => load,
    };
    let current = front.catalog.get(name, None).ok().map(|model| catalog::config_of(&model));
    front.control.change(name, load.change(name, current.as_ref())?).await
}

/// `POST /v2/repository/models/{model}/unload`
pub(super) async fn unload(
    State(front): State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<(), InferError> {
    allowed(&front, request.extensions().get(), request.headers())?;
    unload_as(&front, &target.model, &read(&front, request).await?).await
}

/// Unloads a model as this body says, for a caller who may.
pub(crate) async fn unload_as(front: &Front, name: &str, body: &[u8]) -> Result<(), InferError> {
    wire::unload(body)?;
    match front.control.unload(name).await {
        // It is as the caller wants it: whoever cleans up need not know what there was.
        Err(InferError::UnknownModel { .. }) => Ok(()),
        unloaded => unloaded,
    }
}

/// A body that brings no files.
pub(super) async fn read(front: &Front, request: Request) -> Result<Bytes, InferError> {
    body::of(coding::unpack(request)?, front.limits.body.at_most(BODY_BYTES_MAX)).await
}

/// Whether a caller may load and unload.
pub(crate) fn allowed(front: &Front, peer: Option<&Peer>, headers: &HeaderMap) -> Result<(), InferError> {
    let peer = peer.map(|Peer(address)| address.ip());
    may(front.repository_mode, front.admin_token.as_ref(), peer, headers)
}

/// Whether a caller may change what runs here: one from this machine, or one who knows the token.
pub(crate) fn known(front: &Front, peer: Option<&Peer>, headers: &HeaderMap) -> Result<(), InferError> {
    let peer = peer.map(|Peer(address)| address.ip());
    is_known(front.admin_token.as_ref(), peer, headers)
}

/// Whether a caller may change what is loaded.
fn may(
    mode: RepositoryMode,
    token: Option<&Secret>,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<(), InferError> {
    let refused = |why: &str| Err(InferError::Forbidden(why.to_owned()));
    match mode {
        RepositoryMode::None => refused(
            "models are loaded at the start only; repository_mode = \"explicit\" lets callers load them",
        ),
        RepositoryMode::Watch => refused(
            "models follow their folder; repository_mode = \"explicit\" lets callers load them instead",
        ),
        RepositoryMode::Explicit => is_known(token, peer, headers),
    }
}

/// What proxies add: of a request with one of these, nothing says where it is from.
const FORWARDED: [&str; 9] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-original-host",
    "k-proxy-request",
];
/// What the names of others begin with.
const FORWARDED_BY: [&str; 2] = ["x-forwarded-", "x-envoy-"];

fn is_of_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    FORWARDED.contains(&name) || FORWARDED_BY.iter().any(|beginning| name.starts_with(beginning))
}

fn is_known(token: Option<&Secret>, peer: Option<IpAddr>, headers: &HeaderMap) -> Result<(), InferError> {
    let refused = |why: &str| Err(InferError::Forbidden(why.to_owned()));
    match (token, bearer(headers)) {
        (Some(token), Some(given)) if bool::from(given.ct_eq(token.as_bytes())) => Ok(()),
        (Some(_), Some(_)) => refused("the token in the header authorization is not admin_token"),
        (Some(_), None) => refused("the header authorization must be Bearer and admin_token"),
        (None, _) if headers.keys().any(is_of_proxy) => {
            refused("the request came by a proxy, behind which anybody may be: set admin_token and show it")
        }
        (None, _) if peer.is_some_and(|peer| peer.to_canonical().is_loopback()) => Ok(()),
        (None, _) => refused(
            "only callers by a loopback address (127.0.0.1, ::1) may do this, unless admin_token is set",
        ),
    }
}

/// The token that a caller shows.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)?;
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_from_elsewhere_need_the_token_and_with_one_all_do() {
        let token = Secret::from("a-token-of-16-or-more");
        let with = |value: &'static str| {
            HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))])
        };
        let (none, right, wrong) =
            (HeaderMap::new(), with("Bearer a-token-of-16-or-more"), with("Bearer a-token-of-16-or-mor"));
        let peer = |text: &str| text.parse().ok();
        let check = |token: Option<&Secret>, address: &str, headers: &HeaderMap, expected: bool| {
            let got = may(RepositoryMode::Explicit, token, peer(address), headers);
            assert_eq!(got.is_ok(), expected, "{address} {headers:?}: {got:?}");
            let told = got.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!told.contains("16-or-more"), "{told}");
        };
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            check(None, here, &none, true);
            check(Some(&token), here, &none, false);
        }
        check(None, "10.0.0.7", &none, false);
        check(None, "10.0.0.7", &right, false);
        check(Some(&token), "10.0.0.7", &right, true);
        check(Some(&token), "10.0.0.7", &wrong, false);
        check(None, "nowhere", &none, false);
        // Behind a proxy on this machine are callers from anywhere.
        let others = ["x-forwarded-for", "x-forwarded-client-cert", "x-envoy-external-address"];
        for name in FORWARDED.into_iter().chain(others) {
            let mut headers = right.clone();
            headers.insert(name, HeaderValue::from_static("for=203.0.113.9"));
            check(Some(&token), "127.0.0.1", &headers, true);
            check(None, "127.0.0.1", &headers, false);
        }
        for mode in [RepositoryMode::None, RepositoryMode::Watch] {
            assert!(may(mode, Some(&token), peer("127.0.0.1"), &right).is_err());
        }
    }

    #[test]
    fn a_token_is_what_stands_behind_bearer() {
        let of = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(of("Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(of("bearer  abc "), Some(b"abc".to_vec()));
        assert_eq!(of("Basic abc"), None);
        assert_eq!(of("Bear"), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
