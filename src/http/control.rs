//! Who may control the server: change what is loaded, drain devices, share memory.
//!
//! Whoever may do this decides what runs here. Without `admin_token`, only clients at a loopback address may; with it, only those that know
//! it.

pub(super) mod origin;

use super::{Front, accept::Peer};
use crate::{
    config::{RepositoryMode, Secret},
    error::InferError,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use subtle::ConstantTimeEq;

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

/// Headers that proxies add. A request with one of these may come from anywhere.
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
/// What the names of other such headers begin with.
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
        (None, _) if peer.is_some_and(is_own) => Ok(()),
        (None, _) => refused(
            "only callers by a loopback address (127.0.0.1, ::1) may do this, unless admin_token is set",
        ),
    }
}

/// Whether an address is one that only this machine has. Sidecars pass requests on from other addresses of 127.0.0.0/8, whoever sent them
/// (Istio's 127.0.0.6).
fn is_own(peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    peer == Ipv4Addr::LOCALHOST || peer == Ipv6Addr::LOCALHOST
}

/// The token that a caller shows.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
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
        // What a sidecar hands on comes from an address like this.
        check(None, "127.0.0.6", &none, false);
        check(Some(&token), "127.0.0.6", &right, true);
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
        for name in [
            "forwarded",
            "via",
            "x-real-ip",
            "x-client-ip",
            "x-cluster-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "x-original-host",
            "k-proxy-request",
            "x-forwarded-for",
            "x-forwarded-client-cert",
            "x-envoy-external-address",
        ] {
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
