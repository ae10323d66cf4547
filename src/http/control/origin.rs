//! Whose page a browser acts for: pages of others must not control this server through a browser that can reach it.
//!
//! Browsers say in `Origin` which page a request comes from. Control is refused to every page but this server's own. Where access to this
//! machine alone allows control, that page must also have been opened by an address or as `localhost`: a name can be pointed at this
//! machine by its owner. Where `admin_token` is set, a request that shows a token (`Authorization: Bearer`) is left to the check of that.
//! Without `admin_token` nobody looks at a token, so it proves nothing. Nor does what a browser adds by itself, such as the password of a
//! proxy (`Basic`).

use super::bearer;
use crate::{error::InferError, http::Front};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, Response, Uri, header, uri::Authority},
    middleware::Next,
    response::IntoResponse,
};
use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// Middleware of routes that change something.
pub(in crate::http) async fn check(
    State(front): State<Arc<Front>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match own_page(request.method(), request.uri(), request.headers(), front.admin_token.is_some()) {
        Ok(()) => next.run(request).await,
        Err(why) => InferError::Forbidden(why.to_owned()).into_response(),
    }
}

/// Refuses what another server's page would have a browser send. `token`: one is set, and is checked where it is shown.
pub(in crate::http) fn own_page(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    token: bool,
) -> Result<(), &'static str> {
    if method.is_safe() || (token && bearer(headers).is_some()) {
        return Ok(());
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str().as_bytes()));
    let origin = authority(origin.as_bytes());
    match (origin, host) {
        (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host) => (),
        _ => return Err("the request comes from a page of another server (header origin)"),
    }
    let by_address = origin.and_then(|origin| Authority::try_from(origin).ok());
    match by_address {
        Some(authority) if is_address(authority.host()) => Ok(()),
        _ => Err("open the page by an address or as localhost, or set admin_token and show it"),
    }
}

/// What follows the scheme.
fn authority(origin: &[u8]) -> Option<&[u8]> {
    let at = origin.windows(3).position(|three| three == b"://")?;
    Some(&origin[at + 3..])
}

/// Whether nobody else can decide where this host is.
fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
        || host.parse::<Ipv4Addr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, given: &[(header::HeaderName, &'static str)], allowed: bool) {
        check_with(method, given, false, allowed);
    }

    fn check_with(method: &Method, given: &[(header::HeaderName, &'static str)], token: bool, allowed: bool) {
        let given: HeaderMap =
            given.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        let result = own_page(method, &Uri::from_static("/v2/repository/models/m/load"), &given, token);
        assert_eq!(result.is_ok(), allowed, "{given:?}: {result:?}");
    }

    #[test]
    fn only_the_servers_own_page_may_control_it() {
        use header::{HOST, ORIGIN};
        let post = Method::POST;
        check(&post, &[(HOST, "127.0.0.1:8000")], true);
        for own in ["127.0.0.1:8000", "[::1]:8000", "localhost:8000", "LOCALHOST", "a.localhost", "10.0.0.7"]
        {
            let origin: &'static str = format!("http://{own}").leak();
            check(&post, &[(HOST, own), (ORIGIN, origin)], true);
        }
        for foreign in
            ["http://evil.example", "null", "", "http://127.0.0.1:9000", "http://127.0.0.1:8000.evil.example"]
        {
            check(&post, &[(HOST, "127.0.0.1:8000"), (ORIGIN, foreign)], false);
            check(&Method::GET, &[(HOST, "127.0.0.1:8000"), (ORIGIN, foreign)], true);
        }
        check(&post, &[(ORIGIN, "http://127.0.0.1:8000")], false);
    }

    #[test]
    fn only_names_below_localhost_are_as_good_as_addresses() {
        for (host, is) in [("localhost", true), ("a.Localhost", true), ("evillocalhost", false)] {
            assert_eq!(is_address(host), is, "{host}");
        }
    }

    #[test]
    fn a_name_that_its_owner_points_here_is_not_the_servers_own_unless_a_token_is_shown() {
        use header::{AUTHORIZATION, HOST, ORIGIN};
        let rebound = [(HOST, "evil.example:8000"), (ORIGIN, "http://evil.example:8000")];
        check(&Method::POST, &rebound, false);
        let shown = [rebound[0].clone(), rebound[1].clone(), (AUTHORIZATION, "Bearer x")];
        check_with(&Method::POST, &shown, true, true);
        // Without an admin token, the token that is shown is ignored.
        check_with(&Method::POST, &shown, false, false);
    }

    #[test]
    fn what_a_browser_adds_by_itself_does_not_make_a_page_the_servers_own() {
        use header::{AUTHORIZATION, HOST, ORIGIN};
        let foreign =
            [(HOST, "127.0.0.1:8000"), (ORIGIN, "http://evil.example"), (AUTHORIZATION, "Basic eDp5")];
        check_with(&Method::POST, &foreign, true, false);
    }
}
