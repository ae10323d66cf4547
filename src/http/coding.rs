//! Content codings: packed (compressed) bodies are unpacked on their way to their reader, and replies are packed as the client accepts
//! them.
//!
//! Both work piece by piece. So neither a small body that unpacks to a large one nor a reply of many megabytes takes more memory than a
//! piece, what a decoder keeps (up to 8 MiB of zstd), and up to 8 MiB of packed pieces that wait where little of them becomes much. Limits
//! on bodies count what comes out. `Inference-Header-Content-Length` is about the unpacked body in both directions.

mod ahead;
mod pack;
mod unpack;

pub(super) use unpack::Malformed;
pub(crate) use unpack::Unpacking;

use super::{accepted, admission::Permit, reject::Problem};
use crate::{error::InferError, words::clipped};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, Response, header},
    middleware::Next,
};
use http_body::Body as HttpBody;
use std::{fmt, sync::Arc};

/// A coding that we read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Zstandard (RFC 8878), with windows of at most 8 MiB (RFC 9659).
    Zstd,
    /// gzip (RFC 1952).
    Gzip,
    /// zlib (RFC 1950), which HTTP calls deflate.
    Deflate,
}

/// All of them, in the order in which we prefer to write them.
const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Gzip, Coding::Deflate];

/// The codings that a body may have, for messages and the header of a refusal.
const ACCEPTED: &str = "gzip, deflate, zstd";

/// Replies below this are not worth packing.
const PACK_BYTES_MIN: u64 = 1024;

/// Bytes that are packed or unpacked in one step. Other tasks may run between steps.
const PIECE_BYTES: usize = 16 * 1024;

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }

    fn named(name: &str) -> Option<Coding> {
        let name = name.strip_prefix("x-").unwrap_or(name);
        CODINGS.into_iter().find(|coding| coding.name().eq_ignore_ascii_case(name))
    }
}

/// Has the request's body unpacked as it is read. The memory for that is charged to its permit, if it has one.
///
/// # Errors
/// [`InferError::UnsupportedEncoding`] for a coding that is not known, before anything is read.
pub(super) fn unpack(request: Request) -> Result<Request, InferError> {
    let Some(coding) = packed_with(request.headers())? else { return Ok(request) };
    let (mut parts, body) = request.into_parts();
    let permit = parts.extensions.get::<Arc<Permit>>();
    parts.headers.remove(header::CONTENT_ENCODING);
    // It is the packed length, not the unpacked one.
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = unpack::Unpacked::new(body, coding, permit.map(|permit| &**permit))?;
    parts.extensions.insert(body.came());
    Ok(Request::from_parts(parts, Body::new(body)))
}

/// The coding of the body; none for `identity`.
fn packed_with(headers: &HeaderMap) -> Result<Option<Coding>, InferError> {
    if !headers.contains_key(header::CONTENT_ENCODING) {
        return Ok(None);
    }
    let text = accepted::joined(headers, header::CONTENT_ENCODING);
    let unsupported =
        || InferError::UnsupportedEncoding { got: clipped(&text).to_owned(), accepted: ACCEPTED };
    match text.trim() {
        "" => Ok(None),
        name if name.eq_ignore_ascii_case("identity") => Ok(None),
        name => Coding::named(name).map(Some).ok_or_else(unsupported),
    }
}

/// Middleware of routes that take no packed bodies: [`pack()`] alone.
pub(super) async fn pack_layer(request: Request, next: Next) -> Response<Body> {
    let wanted = wanted(&request);
    pack(next.run(request).await, wanted)
}

/// The coding that the reply to a request may have.
pub(super) fn wanted(request: &Request) -> Option<Coding> {
    if request.method() == Method::HEAD { None } else { preferred(request.headers()) }
}

/// Packs a reply with the coding that is wanted, if it is large enough and not compressed by its nature.
pub(super) fn pack(reply: Response<Body>, wanted: Option<Coding>) -> Response<Body> {
    let worth = reply.body().size_hint().exact().is_none_or(|bytes| bytes >= PACK_BYTES_MIN);
    // The body of an error is filled in later.
    let refused = reply.extensions().get::<Problem>().is_some();
    if refused || !worth || !packs_well(reply.headers()) {
        return reply;
    }
    let (mut parts, mut body) = reply.into_parts();
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(coding) = wanted
        && let Ok(packer) = pack::Packer::new(coding)
    {
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        body = Body::new(pack::Packed::new(body, packer));
    }
    Response::from_parts(parts, body)
}

/// Whether packing makes it smaller: pictures and archives are compressed already.
fn packs_well(headers: &HeaderMap) -> bool {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return false;
    }
    let media = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    !media.is_empty() && !media.starts_with(b"image/") && !media.starts_with(b"application/zip")
}

/// The coding with the highest weight in `Accept-Encoding`; of several, the one we prefer to write. None if there is no such header, if it
/// names none of ours, or if the client prefers the reply as it is.
fn preferred(headers: &HeaderMap) -> Option<Coding> {
    let named: Vec<_> = accepted::weighted(headers, header::ACCEPT_ENCODING).collect();
    if named.is_empty() {
        return None;
    }
    let weight = |name: &str| {
        let of = |wanted: &str| {
            named.iter().find(|(member, _)| accepted::is(member, wanted)).map(|(_, weight)| *weight)
        };
        of(name).or_else(|| of(&format!("x-{name}"))).or_else(|| of("*").filter(|_| name != "identity"))
    };
    let plain = weight("identity").unwrap_or(0.0);
    let mut best: Option<(Coding, f32)> = None;
    for coding in CODINGS {
        if let Some(weight) = weight(coding.name())
            && weight > 0.0
            && weight >= plain
            && best.is_none_or(|(_, best)| weight > best)
        {
            best = Some((coding, weight));
        }
    }
    best.map(|(coding, _)| coding)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use axum::{Router, middleware, response::IntoResponse, routing::post};
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::BodyExt;
    use std::io::{Read, Write};
    use tower::ServiceExt;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn the_coding_that_the_caller_likes_best_is_chosen() {
        for (accept, expected) in [
            ("gzip", Some(Coding::Gzip)),
            ("deflate", Some(Coding::Deflate)),
            ("gzip, deflate, br, zstd", Some(Coding::Zstd)),
            ("gzip;q=0.5, deflate;q=0.8", Some(Coding::Deflate)),
            ("GZIP ; q=0.3", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("*", Some(Coding::Zstd)),
            ("*;q=0.5, zstd;q=0", Some(Coding::Gzip)),
            ("identity, gzip;q=0.5", None),
            ("gzip;q=0", None),
            ("gzip;q=much", None),
            ("br", None),
            ("", None),
        ] {
            assert_eq!(preferred(&headers(header::ACCEPT_ENCODING, accept)), expected, "{accept:?}");
        }
        assert_eq!(preferred(&HeaderMap::new()), None);
    }

    #[test]
    fn codings_that_are_not_known_are_refused_and_listed() {
        let of = |value: &str| packed_with(&headers(header::CONTENT_ENCODING, value));
        assert_eq!(of("Gzip"), Ok(Some(Coding::Gzip)));
        assert_eq!(of("identity"), Ok(None));
        for unknown in ["br", "gzip, gzip", "gzip;q=1"] {
            let told = of(unknown).unwrap_err().to_string();
            assert!(told.contains(unknown) && told.contains(ACCEPTED), "{told}");
        }
    }

    pub(super) fn packed(coding: Coding, data: &[u8]) -> Vec<u8> {
        let mut packer = pack::Packer::new(coding).unwrap();
        packer.write(data).unwrap();
        packer.finish().unwrap()
    }

    fn text() -> Vec<u8> {
        (0..20_000).flat_map(|n: u32| format!("row {} of a table; ", n / 100).into_bytes()).collect()
    }

    /// Sends a body to a handler that sends it back.
    async fn echoed(sent: Vec<u8>, coding: Coding, accept: &str) -> (HeaderMap, Bytes) {
        let echo = |body: Bytes| async { ([(header::CONTENT_TYPE, "text/plain")], body) };
        let app = Router::new()
            .route("/", post(echo))
            .layer(middleware::map_request(async |request| unpack(request)))
            .layer(middleware::from_fn(pack_layer));
        // In pieces of an odd size, as a network may have it.
        let pieces: Vec<_> = sent.chunks(777).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let request = Request::post("/")
            .header(header::CONTENT_ENCODING, coding.to_string())
            .header(header::ACCEPT_ENCODING, accept)
            .body(Body::from_stream(futures_util::stream::iter(pieces)))
            .unwrap();
        let reply = app.oneshot(request).await.unwrap();
        let (parts, body) = reply.into_parts();
        (parts.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn bodies_go_both_ways_in_every_coding() {
        for coding in CODINGS {
            let (headers, plain) = echoed(packed(coding, &text()), coding, "identity").await;
            assert!(!headers.contains_key(header::CONTENT_ENCODING));
            assert_eq!(plain, text(), "{coding}");

            let (headers, sent) = echoed(packed(coding, &text()), coding, &coding.to_string()).await;
            assert_eq!(headers[header::CONTENT_ENCODING], coding.to_string());
            assert_eq!(headers[header::VARY], "accept-encoding");
            assert!(sent.len() < text().len() / 2, "{coding}: {} bytes", sent.len());
            let mut unpacked = Vec::new();
            match coding {
                Coding::Zstd => zstd::stream::copy_decode(&sent[..], &mut unpacked).unwrap(),
                Coding::Gzip => {
                    flate2::read::GzDecoder::new(&sent[..]).read_to_end(&mut unpacked).unwrap();
                }
                Coding::Deflate => {
                    flate2::read::ZlibDecoder::new(&sent[..]).read_to_end(&mut unpacked).unwrap();
                }
            }
            assert_eq!(unpacked, text(), "{coding}");
        }
    }

    #[tokio::test]
    async fn trailers_follow_the_last_bytes_of_a_packed_reply() {
        for coding in CODINGS {
            let trailers = headers(header::SERVER, "told at the end");
            let frames = [Frame::data(Bytes::from(text())), Frame::trailers(trailers.clone())];
            let frames = futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>));
            let body = Body::new(http_body_util::StreamBody::new(frames));
            let packed = pack::Packed::new(body, pack::Packer::new(coding).unwrap());
            let collected = packed.collect().await.unwrap();
            assert_eq!(collected.trailers(), Some(&trailers), "{coding}");
            let mut unpacking = Unpacking::new(coding).unwrap();
            let mut got = Vec::new();
            let mut take = |piece: &[u8]| -> Result<(), InferError> {
                got.extend_from_slice(piece);
                Ok(())
            };
            unpacking.feed(collected.to_bytes(), &mut take).unwrap();
            unpacking.end(&mut take).unwrap();
            assert_eq!(got, text(), "{coding}");
        }
    }

    #[tokio::test]
    async fn small_replies_and_pictures_are_sent_as_they_are() {
        let (reply, _) = echoed(packed(Coding::Gzip, b"short"), Coding::Gzip, "gzip").await;
        assert!(!reply.contains_key(header::CONTENT_ENCODING), "{reply:?}");
        let picture = headers(header::CONTENT_TYPE, "image/png");
        assert!(!packs_well(&picture));
    }

    #[test]
    fn errors_are_sent_as_they_are_however_long() {
        let reply = InferError::BadRequest("x".repeat(2048)).into_response();
        let reply = pack(reply, Some(Coding::Gzip));
        assert!(reply.body().size_hint().exact().is_some_and(|bytes| bytes > 2048));
        assert!(!reply.headers().contains_key(header::CONTENT_ENCODING), "{reply:?}");
    }

    #[tokio::test]
    async fn a_stream_is_packed_as_it_comes_and_can_be_read_at_once() {
        let (mut sender, body) = tokio::io::duplex(64);
        let stream = futures_util::stream::unfold(body, async |mut body| {
            let mut piece = [0; 64];
            let n = tokio::io::AsyncReadExt::read(&mut body, &mut piece).await.unwrap();
            (n > 0).then(|| (Ok::<_, std::io::Error>(piece[..n].to_vec()), body))
        });
        let mut body = pack::Packed::new(Body::from_stream(stream), pack::Packer::new(Coding::Gzip).unwrap());
        tokio::io::AsyncWriteExt::write_all(&mut sender, b"first").await.unwrap();
        let mut got = flate2::write::GzDecoder::new(Vec::new());
        while got.get_ref().is_empty() {
            let frame = body.frame().await.unwrap().unwrap();
            got.write_all(&frame.into_data().unwrap()).unwrap();
            got.flush().unwrap();
        }
        assert_eq!(got.get_ref(), b"first");
    }
}
