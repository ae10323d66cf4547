//! Serves one connection until its client, a clock or a stage of the shutdown ends it.

use super::{
    Peer, Shared, Watch,
    awake::Lookout,
    course::{Action, Course},
    io::{Io, LeftAt},
    service::{HttpService, Observed},
};
use hyper::rt::Executor;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// After a response that left a body unread: how long we read and discard the rest, so that a reset does not destroy the response.
const LINGER: Duration = Duration::from_secs(2);
/// And how many bytes of it.
const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes read from an HTTP/1 connection at once, and the longest header. An image of 224 × 224 in bytes (151 kB) comes in one piece, which
/// is read in place. A frame of this size is still in the core's cache when it is joined with the rest of its body; hyper's own bound (408
/// KiB) was 11 % slower with bodies of 602 kB.
const READ_BYTES_MAX: usize = 256 * 1024;

/// Sleeps until `at`; for ever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// A connection that is being served, or will be. Dropping it reports the end, whatever the cause.
pub(super) struct Served(pub(super) Arc<Watch>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.dropped();
    }
}

impl Shared {
    /// Serves one connection to its end.
    pub(super) async fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        service: impl HttpService,
        served: Served,
    ) {
        // Replies are written whole; waiting to fill a segment only delays them.
        let _ = stream.set_nodelay(true);
        let watch = Arc::clone(&served.0);
        watch.begins();
        let left_at = LeftAt::default();
        let io = Io::new(stream, Arc::clone(&watch), Arc::clone(&left_at));
        let service = Observed {
            inner: service,
            watch: Arc::clone(&watch),
            stages: Arc::new(self.stages.clone()),
            peer: Peer(peer),
        };
        // How hyper ended the connection; `None` if a clock or the shutdown did.
        let ended = {
            let builder = builder(Streams(Arc::clone(&watch)));
            let connection = builder.serve_connection(TokioIo::new(io), service);
            let mut connection = pin!(connection);
            // Declared after the connection, so dropped before it: once the connection is gone, none of its requests can be seen.
            let _served = served;
            let mut course = Course::new(self, Arc::clone(&watch), peer, Instant::now());
            let mut look = pin!(tokio::time::sleep(Duration::ZERO));
            let mut lookout = Lookout::new(self.awake.as_ref());
            let ended = loop {
                let action = tokio::select! {
                    // Bytes are read before a clock counts as run out: on a busy machine, both are ready at once.
                    biased;
                    ended = connection.as_mut() => break Some(ended),
                    () = look.as_mut() => {
                        let action = course.looked_at(Instant::now());
                        look.as_mut().reset(course.look_at.into());
                        action
                    }
                    () = watch.news() => course.news(Instant::now()),
                    () = self.stages.draining.cancelled(), if course.awaits_drain() => course.draining(),
                    () = self.stages.closing.cancelled(), if course.awaits_close() => course.closing(Instant::now()),
                    () = until(course.first_request_until) => course.first_request_due(Instant::now()),
                    () = until(course.farewell_until) => course.farewell_due(Instant::now()),
                    // Last, when it is known that nothing is ready.
                    never = poll_fn(|context| lookout.poll(&watch, context)) => match never {},
                };
                match action {
                    Action::GoOn => (),
                    Action::GoAway => connection.as_mut().graceful_shutdown(),
                    Action::End => break None,
                }
            };
            watch.ends();
            ended
        };
        // On HTTP/2 the client is told of an error, too, and with it which of its requests to send again.
        if ended.is_some_and(|ended| watch.is_http2() || ended.is_ok() && watch.may_still_send()) {
            let left = left_at.lock().take();
            if let Some(stream) = left {
                linger(stream).await;
            }
        }
    }
}

/// Reads on for a while if the client may still be sending: it has not yet seen our refusal, or on HTTP/2 that we are closing. Closing at
/// once would reset the connection, and the reset would overtake what we said last.
async fn linger(mut stream: TcpStream) {
    let throw_away = async {
        let mut buffer = vec![0; 16 * 1024];
        let mut left = LINGER_BYTES_MAX;
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => left = left.saturating_sub(count),
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, throw_away).await;
}

/// Requests at once on one HTTP/2 connection, including gRPC streams. Up to 64 KiB of each response may wait for the client's window, and
/// are in no budget.
const STREAMS_MAX: u32 = 256;
/// HTTP/2 requests that a client may cancel before we have looked at them; with more, the connection ends.
const RESETS_PENDING_MAX: usize = 100;
/// HTTP/2 streams that we may reset for the client's errors over the life of a connection.
const RESETS_LOCAL_MAX: usize = 4096;
/// Bytes of an HTTP/2 frame, which is read whole. With the standard 16 KiB, 602 kB of pixels come in 37 frames, each with calls and
/// wake-ups of its own. gRPC refuses a message that is too large by the length in its first frame, before more of it is taken.
pub(crate) const FRAME_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of all header names and values of one HTTP/2 request.
const HEADER_LIST_BYTES_MAX: u32 = 32 * 1024;
/// How often a silent HTTP/2 connection is pinged, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);

/// Runs the streams of an HTTP/2 connection. hyper does not poll a response while its window is closed. Here its stream can be ended all
/// the same: h2 sends RST_STREAM for a stream that is dropped before its end.
#[derive(Clone)]
struct Streams(Arc<Watch>);

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        // hyper calls this as soon as a request has begun, so the latest number is this request's.
        let reset = self.0.reset_of(self.0.requests());
        tokio::spawn(async move { reset.run_until_cancelled_owned(stream).await });
    }
}

/// hyper, set up for both versions.
fn builder(streams: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .max_buf_size(READ_BYTES_MAX)
        // Our own two clocks do this. hyper's timer acts before it has seen what arrived while the process was suspended.
        .header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_LOCAL_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        // Images are larger than the standard 64 KiB window: one round trip less for most of them.
        .initial_stream_window_size(1024 * 1024)
        // A gRPC stream that we do not read for a while must not hold up the others. h2 also ends a connection once the overhead of unread
        // small frames (below 256 bytes) exceeds half of this.
        .initial_connection_window_size(16 * 1024 * 1024);
    builder
}
