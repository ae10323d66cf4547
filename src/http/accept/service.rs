//! Wraps each request of a connection: reports its beginning and end, and adds `Connection: close` where needed.

use super::{
    Stages,
    clocks::{STALL_BYTES_MIN, Watch},
};
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header, uri::PathAndQuery},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tower::ServiceExt;

/// Largest piece of a response that is handed to an HTTP/2 connection at once. The connection buffers what the client's window does not let
/// out, and a response counts as sent once its last piece is there. The stall clock asks for as many bytes.
const HTTP2_PIECE_BYTES_MAX: usize = STALL_BYTES_MIN;
/// The same for HTTP/1, where one piece is one write: hyper writes what it has before it asks for more than 256 KiB.
const HTTP1_PIECE_BYTES_MAX: usize = 1024 * 1024;

/// An unread body of up to this size is read and discarded, for at most [`UNREAD_WAIT`]. Beyond either, the connection is closed.
const UNREAD_BYTES_MAX: u64 = 64 * 1024;
const UNREAD_WAIT: Duration = Duration::from_secs(1);

/// While a response goes out that needs no more of the body: how many bytes of the body are discarded, and for how long.
const BESIDE_BYTES_MAX: usize = 1 << 30;
const BESIDE_WAIT: Duration = Duration::from_secs(60);

/// After a request that took so long, other connections have their turn before the next one of the same connection.
const LONG: Duration = Duration::from_millis(1);

/// The client's address, in the extensions of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// What answers requests: an `axum::Router`, or any service like it.
pub trait HttpService:
    tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> HttpService for S where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// What a connection needs to observe its requests.
pub(super) struct Observed<S> {
    pub(super) inner: S,
    pub(super) watch: Arc<Watch>,
    pub(super) stages: Arc<Stages>,
    pub(super) peer: Peer,
}

impl<S: HttpService> hyper::service::Service<Request<Incoming>> for Observed<S> {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let http1 = request.version() < Version::HTTP_2;
        let under_way = Arc::new(RequestGuard {
            request: self.watch.request_begins(),
            watch: Arc::clone(&self.watch),
            stages: Arc::clone(&self.stages),
            http1,
            unread: Mutex::default(),
        });
        if under_way.stages.is_draining() {
            self.watch.asked_in_drain();
        }
        let (mut parts, incoming) = request.into_parts();
        if without_slash(&mut parts.uri) {
            parts.extensions.insert(Slashed);
        }
        parts.extensions.insert(self.peer);
        // Reading would tell a client that waits for `100 Continue` to send.
        let waits_for_us = parts.headers.contains_key(header::EXPECT);
        let body = if incoming.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Upload { incoming: Some(incoming), under_way: Arc::clone(&under_way) })
        };
        let answer = self.inner.clone().oneshot(Request::from_parts(parts, body));
        Box::pin(async move {
            let begun = Instant::now();
            let mut response = answer.await?;
            if http1 && begun.elapsed() >= LONG {
                // What other connections have sent is looked at first: a caller may have sent a thousand such requests in a row.
                tokio::task::yield_now().await;
            }
            let left = match std::mem::replace(&mut *under_way.unread.lock(), Unread::Late) {
                Unread::Left(left) => Some(left),
                Unread::Nothing | Unread::Late => None,
            };
            if http1 {
                // A client that was too slow already is not waited for.
                let slow =
                    matches!(response.status(), StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT);
                let draining = under_way.stages.is_draining();
                let body_left = match left {
                    // A connection that is closed anyway is not kept by reading the rest before the reply; it is read after that.
                    Some(left) => waits_for_us || slow || draining || !throw_away(left).await,
                    None => false,
                };
                if body_left {
                    under_way.watch.body_left();
                }
                if body_left || draining {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
            } else if let Some(left) = left {
                read_beside_the_reply(left, &under_way);
            }
            Ok(response.map(|body| Answer::of(body, under_way)))
        })
    }
}

/// In the extensions of a request whose path ended in a slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slashed;

/// Removes a slash at the end of the path, as other servers do: scrapers ask for `/metrics/`. Returns whether there was one.
fn without_slash(uri: &mut Uri) -> bool {
    let shorter: Option<PathAndQuery> = match uri.path_and_query() {
        Some(whole) if whole.path().len() > 1 && whole.path().ends_with('/') => {
            let (path, query) = (&whole.path()[..whole.path().len() - 1], whole.query());
            query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")).try_into().ok()
        }
        _ => None,
    };
    let Some(shorter) = shorter else { return false };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(shorter);
    *uri = Uri::from_parts(parts).expect("one part was replaced by another of its kind");
    true
}

/// Reads and discards the rest of a body if it is short, so that the connection can be kept; false if it is long or slow.
async fn throw_away(mut left: Incoming) -> bool {
    let little = left.size_hint().upper().is_some_and(|upper| upper <= UNREAD_BYTES_MAX);
    let to_the_end = async {
        while let Some(frame) = left.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    little && tokio::time::timeout(UNREAD_WAIT, to_the_end).await.unwrap_or(false)
}

/// A request that has not been answered completely, or whose body is still being read. Dropped when both are done, or when the client is
/// gone.
struct RequestGuard {
    request: u64,
    watch: Arc<Watch>,
    stages: Arc<Stages>,
    http1: bool,
    /// What its body leaves behind.
    unread: Mutex<Unread>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.watch.request_ends(self.request, Instant::now());
    }
}

/// The rest of a body that was not read to its end.
#[derive(Default)]
enum Unread {
    #[default]
    Nothing,
    Left(Incoming),
    /// The response has begun: nobody looks here any more.
    Late,
}

/// A request's body. Dropped before its end, it leaves the rest in `unread` or has it discarded beside the response.
struct Upload {
    /// Present until dropped.
    incoming: Option<Incoming>,
    under_way: Arc<RequestGuard>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) else {
            return;
        };
        let mut unread = self.under_way.unread.lock();
        if matches!(*unread, Unread::Late) {
            drop(unread);
            read_beside_the_reply(incoming, &self.under_way);
        } else {
            *unread = Unread::Left(incoming);
        }
    }
}

/// Reads and discards what a client sends while a response goes out that needs no more of it: many clients read nothing before they have
/// sent everything. HTTP/2 has a reset without an error for this. But many clients then forget the response that came before it, so only
/// one that exceeds the bounds gets it.
fn read_beside_the_reply(mut incoming: Incoming, under_way: &Arc<RequestGuard>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return under_way.watch.body_left() };
    let RequestGuard { request, ref watch, ref stages, http1, .. } = **under_way;
    let (reset, watch, stages) = (watch.reset_of(request), Arc::clone(watch), Arc::clone(stages));
    // On HTTP/1 the connection is this request's until then; on HTTP/2 the request ends with its response.
    let open = http1.then(|| Arc::clone(under_way));
    runtime.spawn(async move {
        let _open = open;
        let to_the_end = async {
            let mut bytes = 0;
            while let Some(frame) = incoming.frame().await {
                let Ok(frame) = frame else { return false };
                watch.body_read(request, Instant::now());
                bytes += frame.data_ref().map_or(0, Bytes::len);
                if bytes > BESIDE_BYTES_MAX {
                    return false;
                }
            }
            true
        };
        let read = tokio::select! {
            read = to_the_end => read,
            () = tokio::time::sleep(BESIDE_WAIT) => false,
            () = closed(&stages) => false,
            // h2 sends the reset only once nobody holds the stream.
            () = reset.cancelled() => false,
        };
        if !read && http1 {
            watch.body_left();
        }
    });
}

/// Waits until the listener is closed, and a moment more: a client that is told of the end must not get a reset right behind that.
async fn closed(stages: &Stages) {
    stages.closing.cancelled().await;
    tokio::time::sleep(UNREAD_WAIT).await;
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(incoming).poll_frame(context));
        match frame {
            Some(_) => self.under_way.watch.body_read(self.under_way.request, Instant::now()),
            None => self.incoming = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// A response's body, handed out piece by piece. The response is under way, with all that it holds, until its last piece has been asked
/// for.
pub struct Answer {
    body: Body,
    /// The part of the body's last frame that has not been handed on.
    rest: Bytes,
    piece_bytes_max: usize,
    /// Bytes handed on since the stall clock started. It restarts only once they reach [`STALL_BYTES_MIN`].
    clocked: usize,
    under_way: Arc<RequestGuard>,
}

impl Answer {
    fn of(body: Body, under_way: Arc<RequestGuard>) -> Answer {
        let piece_bytes_max = if under_way.http1 { HTTP1_PIECE_BYTES_MAX } else { HTTP2_PIECE_BYTES_MAX };
        let (rest, clocked) = (Bytes::new(), STALL_BYTES_MIN);
        let answer = Answer { body, rest, piece_bytes_max, clocked, under_way };
        answer.note(true);
        answer
    }

    /// Only HTTP/2 has a client's window. On HTTP/1 a response can wait only for the socket, which reports that itself.
    fn note(&self, waits: bool) {
        let RequestGuard { request, watch, http1, .. } = &*self.under_way;
        if !http1 {
            watch.answer_waits(*request, waits.then(Instant::now));
        }
    }

    /// Notes whether a piece waits for the client to make room, or the client waits for us. Everything handed on before has been taken. If
    /// that was enough, in however many pieces, the stall clock restarts now.
    fn waits(&mut self, waits: bool) {
        if !waits {
            self.clocked = STALL_BYTES_MIN;
            self.note(false);
        } else if self.clocked >= STALL_BYTES_MIN {
            self.clocked = 0;
            self.note(true);
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = Pin::new(&mut self.body).poll_frame(context);
            self.waits(frame.is_ready());
            match ready!(frame).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => self.rest = bytes,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        } else {
            self.waits(true);
        }
        let piece = self.rest.len().min(self.piece_bytes_max);
        self.clocked = self.clocked.saturating_add(piece);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, behind) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest + behind.lower());
        if let Some(upper) = behind.upper() {
            hint.set_upper(rest.saturating_add(upper));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::{
        accept::{Clocks, Verdict},
        admission::{self, Admission, AdmissionLimits},
    };
    use axum::http::HeaderMap;
    use futures_util::{FutureExt, stream};
    use http_body_util::StreamBody;

    const CLOCKS: Clocks = Clocks {
        idle: Duration::from_secs(75),
        header: Duration::from_secs(10),
        write_stall: Duration::from_secs(30),
    };

    fn answer(body: Body, http1: bool) -> (Answer, Arc<Watch>) {
        let watch = Arc::new(Watch::new(Instant::now()));
        let (request, stages, unread) = (watch.request_begins(), Arc::default(), Mutex::default());
        let under_way = Arc::new(RequestGuard { request, watch: Arc::clone(&watch), stages, http1, unread });
        (Answer::of(body, under_way), watch)
    }

    /// The next frame of an answer, which is there.
    fn next(answer: &mut Answer) -> Option<Frame<Bytes>> {
        answer.frame().now_or_never().expect("it waits for nothing").map(Result::unwrap)
    }

    fn pattern(bytes: usize) -> Bytes {
        (0..bytes).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn a_reply_of_any_length_goes_out_whole_in_pieces_that_are_told_of_until_the_last() {
        for (http1, most) in [(true, HTTP1_PIECE_BYTES_MAX), (false, HTTP2_PIECE_BYTES_MAX)] {
            for length in [1, most - 1, most, most + 1, 3 * most + 7] {
                let sent = pattern(length);
                let (mut answer, watch) = answer(Body::from(sent.clone()), http1);
                let mut got = Vec::new();
                while !answer.is_end_stream() {
                    assert_eq!(answer.size_hint().exact(), Some((length - got.len()) as u64));
                    let piece = next(&mut answer).unwrap().into_data().unwrap();
                    assert!(!piece.is_empty() && piece.len() <= most, "{}", piece.len());
                    assert_eq!(piece.as_ptr(), sent[got.len()..].as_ptr(), "nothing is copied");
                    got.extend_from_slice(&piece);
                    assert_eq!(answer.is_end_stream(), got.len() == length);
                }
                assert_eq!((&got[..], watch.requests_open()), (&sent[..], 1));
                drop(answer);
                assert_eq!(watch.requests_open(), 0);
            }
        }
    }

    #[test]
    fn trailers_and_what_the_reply_holds_stay_behind_its_last_piece() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let frames = [Frame::data(pattern(3 * HTTP2_PIECE_BYTES_MAX)), Frame::trailers(HeaderMap::new())];
        let body = Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))));
        let permit = Arc::new(admission.admit().unwrap());
        permit.cover(10).unwrap();
        let held = admission::hold(Response::new(body), permit).into_body();
        let (mut answer, _watch) = answer(held, false);
        for piece in 0..3 {
            let piece = (piece, next(&mut answer).unwrap().into_data().unwrap().len());
            assert_eq!(piece.1, HTTP2_PIECE_BYTES_MAX, "{piece:?}");
            let now = admission.in_flight();
            assert_eq!((now.requests, now.bytes), (1, 10), "{piece:?}");
        }
        assert!(next(&mut answer).unwrap().is_trailers() && next(&mut answer).is_none());
    }

    #[test]
    fn each_piece_that_a_window_lets_out_begins_the_clock_anew() {
        let (mut answer, watch) = answer(Body::from(pattern(5 * HTTP2_PIECE_BYTES_MAX)), false);
        while !answer.is_end_stream() {
            let began = Instant::now();
            next(&mut answer).unwrap();
            let verdict = |since: Instant| watch.verdict(&CLOCKS, since + CLOCKS.write_stall);
            let early = verdict(began - Duration::from_nanos(1));
            assert!(matches!(early, Verdict::LookAt(_)), "{early:?}");
            let late = verdict(Instant::now());
            assert_eq!(late, Verdict::Reset(1), "a window that stays shut");
        }
    }

    #[test]
    fn pieces_that_are_small_begin_the_clock_anew_together() {
        let piece = HTTP2_PIECE_BYTES_MAX / 4;
        let frames = (0..12).map(move |_| Ok::<_, Infallible>(Frame::data(pattern(piece))));
        let (mut answer, watch) = answer(Body::new(StreamBody::new(stream::iter(frames))), false);
        // The clock began between these two.
        let mut began = [Instant::now(); 2];
        for number in 0..12 {
            let before = Instant::now();
            next(&mut answer).unwrap();
            if number % 4 == 0 {
                began = [before, Instant::now()];
            }
            let verdict = |since: Instant| watch.verdict(&CLOCKS, since + CLOCKS.write_stall);
            let early = verdict(began[0] - Duration::from_nanos(1));
            assert!(matches!(early, Verdict::LookAt(_)), "{number}: {early:?}");
            let late = verdict(began[1]);
            assert_eq!(late, Verdict::Reset(1), "{number}");
        }
    }

    #[test]
    fn without_windows_only_the_socket_says_that_an_answer_is_not_taken() {
        let (mut answer, watch) = answer(Body::from(pattern(2 * HTTP1_PIECE_BYTES_MAX)), true);
        next(&mut answer).unwrap();
        let hours = Instant::now() + Duration::from_secs(3 * 3600);
        let verdict = watch.verdict(&CLOCKS, hours);
        assert!(matches!(verdict, Verdict::LookAt(_)), "{verdict:?}");
        watch.write_blocked(Instant::now());
        let verdict = watch.verdict(&CLOCKS, hours);
        assert!(matches!(verdict, Verdict::End(_)), "{verdict:?}");
    }
}
