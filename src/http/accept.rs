//! The accept loop. It serves HTTP/1.1 and HTTP/2 with prior knowledge on one port, gives each connection its timeouts ("clocks"), and
//! shuts down in bounded time whatever clients do.
//!
//! Why our own: `axum` serves without a timer, so half-sent requests stay for ever, and its graceful shutdown waits for them without a
//! bound.
//!
//! # Shutdown
//! 1. [`Stages::drain`]: still accepting. HTTP/1 responses say `Connection: close`; HTTP/2 connections that have had a request get a
//!    GOAWAY.
//! 2. [`Stages::close`]: connections in the backlog or in a handshake are accepted, then the listener is closed. Idle connections end. So
//!    do, half a second later, those that have sent no more than part of their first head. Requests are answered.
//! 3. [`Settings::close_timeout`] later, or at [`Stages::abort`]: connections that are left are dropped. They are counted if a request is
//!    on them or if their task has never run. Connections on a stuck thread end with the process.

mod awake;
mod backlog;
pub(super) mod base;
mod clocks;
mod connection;
mod course;
mod io;
mod seats;
mod service;
pub mod threads;

pub use awake::Awake;
pub use clocks::{Clocks, MEANWHILE, Phase, Reason, Verdict, Watch};
pub(crate) use connection::FRAME_BYTES_MAX;
pub use service::{Answer, HttpService, Peer, Slashed};

use connection::Served;
use seats::Seats;
use std::{
    collections::HashMap,
    io::ErrorKind,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// First pause after a failed accept, for example when no file descriptor is free; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// Longest pause after a failed accept.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the tasks of dropped connections to end: those on a stuck thread never do.
const CUT_TIME_MAX: Duration = Duration::from_millis(250);

/// While a new connection waits for room, how often to look for one to evict.
const EVICT_PAUSE: Duration = Duration::from_millis(100);
/// How long one that was evicted may take to end before another is evicted as well.
const EVICT_TIME_MAX: Duration = Duration::from_secs(2);

/// Which connections may be evicted at the cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// How long one must have been idle. Sooner, its next request may be under way.
    pub idle_min: Duration,
    /// Whether one goes as well whose request's head has been coming for that long.
    pub heads: bool,
}

impl Eviction {
    /// For callers from anywhere, whose links may be slow.
    pub const SLOW: Eviction = Eviction { idle_min: Duration::from_secs(1), heads: false };
    /// For probes and scrapers: they are near, and send a head at once. Whoever takes all connections and sends nothing, or half a head on
    /// each, must not keep them out.
    pub const FAST: Eviction = Eviction { idle_min: Duration::from_millis(50), heads: true };
}

/// What a listener allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Connections at once. At the cap, one more is accepted, and the connection that has been idle for longest is evicted for it. If none
    /// may be, the new one waits until a connection ends, and the backlog pushes back.
    pub connections_max: usize,
    /// Which one may be evicted.
    pub eviction: Eviction,
    /// How long a connection may stay in each of its states.
    pub clocks: Clocks,
    /// Time from [`Stages::close`] until the connections that are left are dropped.
    pub close_timeout: Duration,
}

/// The stages of the shutdown, shared by all listeners of a process. Clones share one state.
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

    /// Resolves when stage 2 begins.
    pub async fn closing(&self) {
        self.closing.cancelled().await;
    }

    /// Whether stage 1 has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Counts of the listeners' connections, for metrics. All but `open` and `full` only grow.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now.
    pub open: AtomicUsize,
    /// Listeners at their cap with a new connection waiting for room.
    pub full: AtomicUsize,
    /// Accepted so far, and served.
    pub accepted: AtomicU64,
    /// Connections that arrived while the cap was reached.
    pub capped: AtomicU64,
    /// Accepts that failed.
    pub accept_errors: AtomicU64,
    /// Ended by the idle clock.
    pub ended_idle: AtomicU64,
    /// Ended by the header clock.
    pub ended_header: AtomicU64,
    /// Evicted: idle while a new connection waited for room.
    pub ended_evicted: AtomicU64,
    /// Ended because the client did not read its responses.
    pub ended_stalled: AtomicU64,
    /// HTTP/2 streams that were reset because the client did not read their response.
    pub streams_reset: AtomicU64,
    /// As [`Ended::connections_dropped`].
    pub dropped: AtomicU64,
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Connections dropped at the deadline with a request on them, or before a stuck thread had run their task.
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
    /// Runtimes that serve connections. Each connection goes to the one with the fewest. Empty: the runtime of [`Acceptor::run`].
    pub threads: Vec<Handle>,
    /// Keeps these awake while requests follow each other closely; `None` if they sleep at once.
    pub awake: Option<Awake>,
}

impl Acceptor {
    /// Serves until [`Stages::close`], and then through the rest of the shutdown. `service` is an `axum::Router` or any service like it.
    pub async fn run(self, service: impl HttpService) -> Ended {
        let Acceptor { listener, settings, stages, connections, threads, awake } = self;
        let shared = Arc::new(Shared { settings, stages, connections, awake });
        let seats = Seats::new(threads);
        let mut listening = Listening { shared, service, seats, open: Open::default(), waits: None };
        listening.accept(&listener).await;
        listening.close(listener).await;
        listening.end().await
    }
}

/// What all connections of a listener share.
struct Shared {
    settings: Settings,
    stages: Stages,
    connections: Arc<Connections>,
    awake: Option<Awake>,
}

/// A listener at work.
struct Listening<S> {
    shared: Arc<Shared>,
    service: S,
    seats: Seats,
    open: Open,
    /// The accepted connection that waits for room.
    waits: Option<(std::net::TcpStream, SocketAddr)>,
}

impl<S: HttpService> Listening<S> {
    /// Accepts connections until the listener is to close.
    async fn accept(&mut self, listener: &TcpListener) {
        let shared = Arc::clone(&self.shared);
        let mut backoff = BACKOFF_MIN;
        loop {
            if self.has_room() {
                self.seat_who_waits();
            }
            let accepted = tokio::select! {
                biased;
                () = shared.stages.closing.cancelled() => break,
                true = self.open.one_ends() => continue,
                () = tokio::time::sleep(EVICT_PAUSE), if self.waits.is_some() => {
                    self.open.evict_one(shared.settings.eviction);
                    continue;
                }
                accepted = listener.accept(), if self.waits.is_none() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    backoff = BACKOFF_MIN;
                    // The socket leaves this thread's event queue; the serving thread puts it into its own.
                    if let Ok(stream) = stream.into_std() {
                        self.let_in(stream, peer);
                    }
                }
                Err(error) => {
                    shared.connections.accept_errors.fetch_add(1, Ordering::Relaxed);
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
        self.seat_who_waits();
    }

    fn has_room(&self) -> bool {
        self.open.tasks.len() < self.shared.settings.connections_max
    }

    /// Serves a new connection, or lets it wait for room.
    fn let_in(&mut self, stream: std::net::TcpStream, peer: SocketAddr) {
        if self.has_room() {
            return self.serve(stream, peer);
        }
        self.waits = Some((stream, peer));
        let counts = &self.shared.connections;
        counts.capped.fetch_add(1, Ordering::Relaxed);
        counts.full.fetch_add(1, Ordering::Relaxed);
        self.open.evict_one(self.shared.settings.eviction);
    }

    fn seat_who_waits(&mut self) {
        if let Some((stream, peer)) = self.waits.take() {
            self.shared.connections.full.fetch_sub(1, Ordering::Relaxed);
            self.serve(stream, peer);
        }
    }

    /// Starts the task of a connection.
    fn serve(&mut self, stream: std::net::TcpStream, peer: SocketAddr) {
        let counts = &self.shared.connections;
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        let (thread, seat) = self.seats.take(Arc::clone(counts));
        let (shared, service) = (Arc::clone(&self.shared), self.service.clone());
        let watch = Arc::new(Watch::new(Instant::now()));
        let served = Served(Arc::clone(&watch));
        let serve = async move {
            let _seat = seat;
            match TcpStream::from_std(stream) {
                Ok(stream) => shared.serve(stream, peer, service, served).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
        };
        let task = self.open.tasks.spawn_on(serve, &thread).id();
        self.open.watches.insert(task, watch);
    }

    /// Empties the backlog, and then closes the listener, which resets what is still in it.
    async fn close(&mut self, listener: TcpListener) {
        let Ok(listener) = listener.into_std() else { return };
        let shared = Arc::clone(&self.shared);
        let take = |stream: std::net::TcpStream, peer| {
            if stream.set_nonblocking(true).is_ok() {
                self.serve(stream, peer);
            }
            self.has_room()
        };
        tokio::select! {
            () = backlog::empty(&listener, take) => (),
            () = shared.stages.aborting.cancelled() => (),
        }
    }

    /// Waits for the connections to end, and drops those that are left.
    async fn end(mut self) -> Ended {
        tokio::select! {
            () = self.open.all_end() => (),
            () = self.shared.stages.aborting.cancelled() => (),
            () = tokio::time::sleep(self.shared.settings.close_timeout) => (),
        }
        let left: Vec<_> = self.open.watches.values().cloned().collect();
        self.open.tasks.abort_all();
        let _ = tokio::time::timeout(CUT_TIME_MAX, self.open.all_end()).await;
        let connections_dropped = left.iter().filter(|watch| watch.is_cut()).count();
        let dropped = &self.shared.connections.dropped;
        dropped.fetch_add(connections_dropped as u64, Ordering::Relaxed);
        Ended { connections_dropped }
    }
}

/// The connections that are open.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    watches: HashMap<Id, Arc<Watch>>,
}

impl Open {
    /// Waits until a connection has ended; false if there is none.
    async fn one_ends(&mut self) -> bool {
        let Some(ended) = self.tasks.join_next_with_id().await else { return false };
        self.watches.remove(&ended.map_or_else(|error: JoinError| error.id(), |(task, ())| task));
        true
    }

    /// Evicts the connection that has been idle for longest, if it has been for long enough.
    fn evict_one(&self, eviction: Eviction) {
        let now = Instant::now();
        let is_leaving = |watch: &Arc<Watch>| {
            let evicted = watch.evicted().is_some_and(|at| now < at + EVICT_TIME_MAX);
            // A request may have come just before it was told.
            evicted && !watch.has_request()
        };
        if self.watches.values().any(is_leaving) {
            return;
        }
        let idle = |watch: &Watch| watch.evictable_since(eviction.heads);
        let idle = self.watches.values().filter_map(|watch| Some((idle(watch)?, watch)));
        if let Some((since, watch)) = idle.min_by_key(|(since, _)| *since)
            && now >= since + eviction.idle_min
        {
            watch.evict(now);
        }
    }

    async fn all_end(&mut self) {
        while self.one_ends().await {}
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
