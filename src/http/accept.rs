//! The accept loop: HTTP/1.1 and HTTP/2 with prior knowledge on one port, each connection with its clocks, and an end
//! that nobody can hold up.
//!
//! Why our own: `axum` serves without a timer, so that half-sent requests stay for ever, and its graceful shutdown
//! waits for them without a bound.
//!
//! # The end
//! 1. [`Stages::drain`]: still accepting; each answer says `Connection: close`, HTTP/2 connections with a request say GOAWAY.
//! 2. [`Stages::close`]: the listener is closed, idle connections end, requests are answered.
//! 3. [`Settings::close_timeout`] later, or at [`Stages::abort`]: what is left is dropped and counted.

mod clocks;
mod io;
mod service;

pub use clocks::{Clocks, Phase, Reason, Verdict, Watch};
pub use service::{Answer, Peer};

use axum::{
    body::Body,
    http::{Request, Response},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use io::{Io, LeftAt};
use service::Observed;
use std::{
    convert::Infallible,
    io::ErrorKind,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// First pause after a failed accept, such as for want of file descriptors; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// Longest pause after a failed accept.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// After a reply that left a body unread: how long we read and throw away, so that the reply is not lost in a reset.
const LINGER: Duration = Duration::from_secs(2);
/// And how much.
const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// When the listener closes: how long the backlog may be silent before it counts as empty.
const BACKLOG_PAUSE: Duration = Duration::from_millis(20);
/// How long taking it may last in all, however many keep coming.
const BACKLOG_TIME_MAX: Duration = Duration::from_millis(100);
/// And how long a connection that has not sent its first request yet may still do so: it cannot know that we are closing.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(500);

/// What is read from an HTTP/1 connection at once, and the longest header. A frame of this size is still in the core's
/// cache when it is put with the rest of its body; hyper's own bound (408 KiB) was 11 % slower with bodies of 602 kB.
const READ_BYTES_MAX: usize = 128 * 1024;

/// What a listener allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Connections at once. At the cap nothing is accepted until one ends: the backlog pushes back.
    pub connections_max: usize,
    /// How long a connection may stay in each of its states.
    pub clocks: Clocks,
    /// From [`Stages::close`] until what is left is dropped.
    pub close_timeout: Duration,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// HTTP/2 requests that the client may cancel before we have looked at them, before the connection is ended.
    pub http2_resets_pending_max: usize,
    /// HTTP/2 streams that we may reset for the client's errors in the life of a connection.
    pub http2_resets_local_max: usize,
    /// Bytes of all header names and values of one HTTP/2 request.
    pub http2_header_bytes_max: u32,
    /// How often a silent HTTP/2 connection is pinged, and how long the answer may take.
    pub http2_ping: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections_max: 4096,
            clocks: Clocks {
                idle: Duration::from_secs(75),
                header: Duration::from_secs(10),
                write_stall: Duration::from_secs(30),
            },
            close_timeout: Duration::from_secs(25),
            http2_streams_max: 256,
            http2_resets_pending_max: 100,
            http2_resets_local_max: 4096,
            http2_header_bytes_max: 32 * 1024,
            http2_ping: Duration::from_secs(20),
        }
    }
}

/// The stages of the end, shared by all listeners of a process. Clones are the same stages.
#[derive(Debug, Clone, Default)]
pub struct Stages {
    draining: CancellationToken,
    closing: CancellationToken,
    aborting: CancellationToken,
}

impl Stages {
    /// Stage 1: ask clients to go elsewhere, and keep serving.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Stage 2: accept nothing more, finish what was begun.
    pub fn close(&self) {
        self.draining.cancel();
        self.closing.cancel();
    }

    /// Stage 3, without waiting for its deadline.
    pub fn abort(&self) {
        self.close();
        self.aborting.cancel();
    }

    /// Whether stage 1 has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Counts of a listener's connections, for metrics. All but `open` only grow.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now.
    pub open: AtomicUsize,
    /// Accepted so far.
    pub accepted: AtomicU64,
    /// Times that the cap was met and accepting stopped.
    pub capped: AtomicU64,
    /// Accepts that failed.
    pub accept_errors: AtomicU64,
    /// Ended by the idle clock.
    pub ended_idle: AtomicU64,
    /// Ended by the header clock.
    pub ended_header: AtomicU64,
    /// Ended because the client did not take its answer.
    pub ended_stalled: AtomicU64,
    /// Dropped at the end of [`Settings::close_timeout`].
    pub dropped: AtomicU64,
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Connections that had not ended by the deadline, with or without a request.
    pub connections_dropped: usize,
}

/// One listener.
pub struct Acceptor {
    /// Bound by the caller, who knows the address.
    pub listener: TcpListener,
    /// What it allows.
    pub settings: Settings,
    /// When it ends.
    pub stages: Stages,
    /// What it counts.
    pub connections: Arc<Connections>,
}

impl Acceptor {
    /// Serves until [`Stages::close`] and what follows it. `service` is an `axum::Router` or any service like it.
    pub async fn run<S>(self, service: S) -> Ended
    where
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        let Acceptor { listener, settings, stages, connections } = self;
        let shared = Arc::new(Shared { builder: builder(&settings), settings, stages, connections });
        let mut open = JoinSet::new();
        let mut backoff = BACKOFF_MIN;
        let serve = |open: &mut JoinSet<()>, stream: TcpStream, peer: SocketAddr| {
            let counts = &shared.connections;
            counts.accepted.fetch_add(1, Ordering::Relaxed);
            counts.open.fetch_add(1, Ordering::Relaxed);
            let counted = Counted(Arc::clone(counts));
            let (server, service) = (Arc::clone(&shared), service.clone());
            open.spawn(async move {
                let _counted = counted;
                server.serve(stream, peer, service).await;
            });
            if open.len() >= shared.settings.connections_max {
                counts.capped.fetch_add(1, Ordering::Relaxed);
            }
        };
        loop {
            let capped = open.len() >= shared.settings.connections_max;
            let accepted = tokio::select! {
                biased;
                () = shared.stages.closing.cancelled() => break,
                Some(_) = open.join_next() => continue,
                accepted = listener.accept(), if !capped => accepted,
            };
            let counts = &shared.connections;
            match accepted {
                Ok((stream, peer)) => {
                    backoff = BACKOFF_MIN;
                    serve(&mut open, stream, peer);
                }
                Err(error) => {
                    counts.accept_errors.fetch_add(1, Ordering::Relaxed);
                    if !is_about_one_client(error.kind()) {
                        tracing::warn!(%error, pause = ?backoff, "cannot accept connections");
                        tokio::select! {
                            () = shared.stages.closing.cancelled() => break,
                            () = tokio::time::sleep(backoff) => (),
                        }
                        backoff = (backoff * 2).min(BACKOFF_MAX);
                    }
                }
            }
        }
        // Whoever is in the backlog has a connection, for all it knows, and may have sent its request. Bounded as a whole:
        // callers that do not look at readiness keep coming.
        let rest = async {
            while open.len() < shared.settings.connections_max
                && let Ok(Ok((stream, peer))) = tokio::time::timeout(BACKLOG_PAUSE, listener.accept()).await
            {
                serve(&mut open, stream, peer);
            }
        };
        tokio::select! {
            () = rest => (),
            () = shared.stages.aborting.cancelled() => (),
            () = tokio::time::sleep(BACKLOG_TIME_MAX) => (),
        }
        drop(listener);
        let answered = async { while open.join_next().await.is_some() {} };
        tokio::select! {
            () = answered => (),
            () = shared.stages.aborting.cancelled() => (),
            () = tokio::time::sleep(shared.settings.close_timeout) => (),
        }
        // Those that have just ended are not among the dropped.
        while open.try_join_next().is_some() {}
        let connections_dropped = open.len();
        let dropped = &shared.connections.dropped;
        dropped.fetch_add(connections_dropped as u64, Ordering::Relaxed);
        open.shutdown().await;
        Ended { connections_dropped }
    }
}

/// Sleeps; for ever without a time.
async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether a failed accept says nothing about the next one.
fn is_about_one_client(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

/// One open connection; counted out however its task ends.
struct Counted(Arc<Connections>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What all connections of a listener share.
struct Shared {
    settings: Settings,
    stages: Stages,
    connections: Arc<Connections>,
    builder: auto::Builder<TokioExecutor>,
}

impl Shared {
    /// Serves one connection to its end.
    async fn serve<S>(&self, stream: TcpStream, peer: SocketAddr, service: S)
    where
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        // Replies are written whole; waiting to fill a segment only delays them.
        let _ = stream.set_nodelay(true);
        let watch = Arc::new(Watch::new(Instant::now()));
        let left_at = LeftAt::default();
        let io = Io::new(stream, Arc::clone(&watch), Arc::clone(&left_at));
        let drained_request = Arc::new(Notify::new());
        let service = Observed {
            inner: service,
            watch: Arc::clone(&watch),
            stages: self.stages.clone(),
            drained_request: Arc::clone(&drained_request),
            peer: Peer(peer),
        };
        let in_order = {
            let connection = self.builder.serve_connection(TokioIo::new(io), service);
            let mut connection = pin!(connection);
            let mut drain_seen = false;
            let mut close_seen = false;
            let mut first_request_until = None;
            let mut idle_seen = false;
            let mut look = pin!(tokio::time::sleep(Duration::ZERO));
            loop {
                tokio::select! {
                    ended = connection.as_mut() => break ended.is_ok(),
                    () = look.as_mut() => match watch.verdict(&self.settings.clocks, Instant::now()) {
                        Verdict::LookAt(at) => look.as_mut().reset(at.into()),
                        Verdict::End(Reason::Idle) if !idle_seen => {
                            // HTTP/2 says GOAWAY and may need a moment for it.
                            idle_seen = true;
                            self.count(Reason::Idle);
                            connection.as_mut().graceful_shutdown();
                            look.as_mut().reset((Instant::now() + self.settings.clocks.header).into());
                        }
                        Verdict::End(reason) => {
                            if reason != Reason::Idle {
                                self.count(reason);
                            }
                            break false;
                        }
                    },
                    () = drained_request.notified() => {
                        if watch.is_http2() {
                            connection.as_mut().graceful_shutdown();
                        }
                    }
                    () = self.stages.draining.cancelled(), if !drain_seen => {
                        drain_seen = true;
                        if watch.is_http2() && watch.requests() > 0 {
                            connection.as_mut().graceful_shutdown();
                        }
                    }
                    () = self.stages.closing.cancelled(), if !close_seen => {
                        close_seen = true;
                        if watch.is_http2() || watch.requests() > 0 {
                            connection.as_mut().graceful_shutdown();
                        } else {
                            first_request_until = Some(tokio::time::Instant::now() + FIRST_REQUEST_GRACE);
                        }
                    }
                    () = until(first_request_until), if first_request_until.is_some() => {
                        first_request_until = None;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        };
        if in_order && watch.may_still_send() {
            let left = left_at.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(stream) = left {
                linger(stream).await;
            }
        }
    }

    fn count(&self, reason: Reason) {
        let counter = match reason {
            Reason::Idle => &self.connections.ended_idle,
            Reason::Header => &self.connections.ended_header,
            Reason::Stalled => &self.connections.ended_stalled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads on, for a while, what a client sends that has not yet seen our refusal: closing at once would reset the
/// connection, and the reset would overtake the reply.
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

/// hyper, set up for both versions.
fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(READ_BYTES_MAX)
        // Behind our own two clocks, which are the ones that act.
        .header_read_timeout(settings.clocks.idle + settings.clocks.header);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.http2_ping)
        .keep_alive_timeout(settings.http2_ping)
        .max_concurrent_streams(settings.http2_streams_max)
        .max_pending_accept_reset_streams(settings.http2_resets_pending_max)
        .max_local_error_reset_streams(settings.http2_resets_local_max)
        .max_header_list_size(settings.http2_header_bytes_max)
        // Images are larger than the standard 64 KiB window: one round trip less for most of them.
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024);
    builder
}
