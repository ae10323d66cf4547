//! The one file that knows every part: builds from the leaves up, binds the sockets, and returns something that can
//! be drained.

mod admin;
mod allowed_threads;
mod base;
mod listen;
mod loader;
mod local;
mod memory;
mod open_files;
mod places;
mod run;
mod signals;
mod waiting;
mod watch;

pub use allowed_threads::{check_to_ask, check_to_ask_here};
pub use local::Local;
pub use places::unfit;
pub use run::{Checked, check, find_devices, serve};

use crate::{
    batch::{Load, ModelLoad},
    config::{Config, RepositoryMode},
    error::InferError,
    grpc,
    http::{
        self, Front,
        accept::{Acceptor, Clocks, Ended, Settings, Stages},
        decode::DecodePool,
        threads::Threads,
    },
    models::{Command, Control, changes::Look},
    status::Status,
    telemetry::{logging::Logging, metrics::DropReason, traces::Traces},
    words,
};
use admin::Admin;
use allowed_threads::not_started;
pub use base::Core;
use futures_util::future::join_all;
use listen::{bind, bind_where};
use loader::Loading;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener, runtime::Handle, sync::oneshot, task::JoinHandle as Task, time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use watch::Watch;

/// Why a run ended other than well; the command line maps each to an exit code.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// What the models should run on is missing: no ONNX Runtime, or no GPU where one was asked for.
    #[error("{0}")]
    Backend(String),
    /// The drain ended before the work was done.
    #[error(
        "{} with work left: {} and {} were dropped",
        if .0.told { "a second signal came" } else { "drain_timeout_ms passed" },
        words::count(.0.connections, "connection"), words::count(.0.jobs, "job")
    )]
    Dropped(Undone),
    /// Anything else: an address in use, a folder that cannot be read, a model that fails its check.
    #[error("{0}")]
    Failed(String),
}

fn failed<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> AppError {
    move |error| AppError::Failed(format!("{}: {error}", what.into()))
}

/// A running server.
pub struct App {
    config: Config,
    front: Arc<Front>,
    addresses: Vec<SocketAddr>,
    admin_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    grpc_address: Option<SocketAddr>,
    stages: Stages,
    accepting: Task<Ended>,
    /// The threads that serve connections.
    threads: Threads,
    heart: Task<()>,
    admin: Option<Admin>,
    metrics: Option<Admin>,
    watch: Option<Watch>,
    loading: Loading,
}

/// How long, after the drain's deadline, refusals of the remaining requests may take to be sent, and idle threads to end.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// How often to check whether it makes sense to go on.
const HOPELESS_PAUSE: Duration = Duration::from_millis(200);

/// What a server left undone when it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Jobs that were accepted and not answered by the deadline.
    pub jobs: usize,
    /// Connections that were cut with a request on them, or before a stuck thread had looked at them.
    pub connections: usize,
    /// Whether an operator ended the drain early, rather than the deadline.
    pub told: bool,
}

impl App {
    /// Binds the sockets and starts to load models. Probes are answered from the first moment; the server is ready once a model is.
    ///
    /// Must be called inside a tokio runtime, which accepts connections; they are served on threads of their own.
    ///
    /// # Errors
    /// If a socket cannot be bound, the backend cannot be had, or the system refuses a thread.
    pub async fn start(mut config: Config, log: Option<&Logging>) -> Result<App, AppError> {
        // Sockets first: the commonest mistake shows before a model is loaded.
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in &config.listen {
            let (listener, at) = bind(*address, "listen").await?;
            listeners.push(listener);
            addresses.push(at);
        }
        let (admin_listener, admin_address) = bind_where(config.admin_listen, "admin_listen").await?;
        let (metrics_listener, metrics_address) = bind_where(config.metrics_listen, "metrics_listen").await?;
        let (grpc_listener, grpc_address) = bind_where(config.grpc_listen, "grpc_listen").await?;
        let apart = |listener: Option<TcpListener>, name| {
            let settings = accept_settings(&config, admin::CONNECTIONS_MAX);
            listener.map(|listener| Admin::start(listener, name, settings)).transpose()
        };
        // Probes are answered from now on, however long the search for models takes.
        let admin = apart(admin_listener, "admin")?;
        let metrics_apart = apart(metrics_listener, "metrics")?;
        // Before the search for models: what changes from now on is a change.
        let files_max = open_files::raise();
        config.shared_memory_regions_max = open_files::regions_max(&config, files_max);
        let first = Look::at(&config.models);

        let Core { queue, catalog, status, metrics, devices, jpeg, found, shared_bytes } =
            Core::start(&config, log)?;
        let decode = DecodePool::new(config.decode_threads, config.decode_bytes_max, base::limits(&config))
            .map_err(not_started("the decode pool"))?
            .with_gpu(jpeg);
        let (control, commands) = Control::new(config.models.clone());
        let control = Arc::new(control);
        let parts = http::Parts {
            queue,
            catalog,
            status: Arc::clone(&status),
            metrics,
            decode,
            lines_lost: log.map(Logging::lines_lost).unwrap_or_default(),
            control: Arc::clone(&control),
            traces: log.and_then(Logging::traces),
        };
        let front = Arc::new(Front::new(&config, parts));

        let threads = Threads::start(config.http_threads).map_err(not_started("the HTTP threads"))?;

        // Before the first request can ask for one: a model that is loading is not unknown.
        devices.announce(&found);
        let stages = Stages::default();
        let routes = http::routes(Arc::clone(&front));
        memory::check(&config, shared_bytes as u64);
        waiting::check(&config);
        let connections_max = open_files::connections_max(&config, files_max);
        front.metrics.http_connections_max.set(i64::try_from(connections_max).unwrap_or(i64::MAX));
        let acceptor = |listener| Acceptor {
            listener,
            settings: accept_settings(&config, connections_max),
            stages: stages.clone(),
            connections: Arc::clone(&front.connections),
            threads: threads.handles().to_vec(),
        };
        let accepting = listeners.into_iter().map(|listener| acceptor(listener).run(routes.clone()));
        let accepting = join_all(accepting.collect::<Vec<_>>());
        let calls = grpc_listener.map(|listener| acceptor(listener).run(grpc::routes(&front, &stages)));
        let accepting = tokio::spawn(async {
            let (ended, calls) = tokio::join!(accepting, join_all(calls));
            let dropped = ended.iter().chain(&calls).map(|ended| ended.connections_dropped).sum();
            Ended { connections_dropped: dropped }
        });
        let heart = tokio::spawn(beat(status, threads.handles().to_vec()));
        if let Some(admin) = &admin {
            admin.serve(http::admin_routes(Arc::clone(&front)));
        }
        if let Some(metrics) = &metrics_apart {
            metrics.serve(http::metrics_routes(Arc::clone(&front)));
        }

        let reads = (config.models.clone(), log.map(Logging::models).unwrap_or_default());
        let loading =
            Loading::start(devices, found, commands, reads).map_err(not_started("the loading thread"))?;
        let watch = match config.repository_mode {
            RepositoryMode::Watch => Some(Watch::start(control, first)?),
            RepositoryMode::None | RepositoryMode::Explicit => None,
        };
        Ok(App {
            config,
            front,
            addresses,
            admin_address,
            metrics_address,
            grpc_address,
            stages,
            accepting,
            threads,
            heart,
            admin,
            metrics: metrics_apart,
            watch,
            loading,
        })
    }

    /// Logs the addresses that it listens on.
    pub fn log_addresses(&self) {
        let [admin, metrics, grpc] = [self.admin_address, self.metrics_address, self.grpc_address]
            .map(|address| address.map(tracing::field::display));
        let address = self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let models = self.config.models.display();
        tracing::info!(address, admin, metrics, grpc, %models, "listening");
    }

    /// The addresses of the API: at least one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of the admin listener, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// What the process knows about itself.
    pub fn status(&self) -> &Arc<Status> {
        &self.front.status
    }

    /// Waits until the server can no longer do its job and never will again; returns why.
    pub async fn hopeless(&self) -> String {
        loop {
            if let Some(reason) = self.front.status.hopeless() {
                return reason.to_owned();
            }
            tokio::time::sleep(HOPELESS_PAUSE).await;
        }
    }

    /// Ends the server in order. It reports not ready immediately, but still serves for `drain_delay_ms`, so that load balancers can
    /// notice. Then it accepts nothing new, and finishes accepted work within `drain_timeout_ms`. `now` cuts all of this short.
    pub async fn drain(self, now: &CancellationToken) -> Undone {
        // `threads` are dropped, and end, with this function.
        let App {
            config,
            front,
            stages,
            accepting,
            threads: _threads,
            heart,
            admin,
            metrics,
            watch,
            loading,
            ..
        } = self;
        let deadline = Instant::now() + config.drain_delay_ms + config.drain_timeout_ms;
        front.status.begin_drain();
        front.status.cut_from(deadline);
        stages.drain();
        loading.stop();
        drop(watch);
        front.control.say(Command::Stop);
        tracing::info!(delay = ?config.drain_delay_ms, timeout = ?config.drain_timeout_ms, "draining");
        wait(config.drain_delay_ms, now).await;

        stages.close();
        front.queue.hurry();
        let mut accepting = accepting;
        let left = deadline.saturating_duration_since(Instant::now());
        let in_order = tokio::select! {
            ended = &mut accepting => Some(ended),
            () = wait(left, now) => None,
        };
        let told = now.is_cancelled();
        front.queue.close();
        let load = front.queue.load();
        let jobs = front.queue.abort(&InferError::Draining);
        // Counted at once, and logged: soon nobody will be left to scrape the metrics.
        front.metrics.dropped(DropReason::Job).inc_by(jobs as u64);
        let why = if told { "told to end now" } else { "the time to drain is over" };
        if jobs > 0 {
            tell_dropped(&load, why);
        }
        if jobs > 0 && in_order.is_none() {
            // Their callers get an error; give it a moment to be sent.
            wait(ABORT_GRACE, now).await;
        }
        let ended = match in_order {
            Some(ended) => ended,
            None => {
                for (model, requests) in front.metrics.requests_open() {
                    tracing::warn!(model = &*model, requests, "{why}: requests of the model are cut");
                }
                // Earlier than announced, if a signal came again.
                front.status.cut_from(Instant::now());
                stages.abort();
                accepting.await
            }
        };
        let connections = ended.map_or(0, |ended| ended.connections_dropped);
        front.metrics.dropped(DropReason::Connection).inc_by(connections as u64);
        heart.abort();
        let apart = [admin, metrics].into_iter().flatten().map(Admin::end);
        if !in_time(join_all(apart), deadline, now).await {
            tracing::warn!("ended while a probe or a scrape was stuck: not waited for");
        }
        // Not every batch or load can be interrupted; the deadline holds all the same.
        if !in_time(loading.end(), deadline, now).await {
            tracing::warn!("ended while a batch ran or a model was loading: not waited for");
        }
        if let Some(traces) = front.traces.clone() {
            flush(traces, deadline, now).await;
        }
        Undone { jobs, connections, told }
    }
}

/// Logs the requests that go unanswered.
fn tell_dropped(load: &Load, why: &str) {
    for ModelLoad { name, items, waiting, .. } in load.models.iter().filter(|model| model.items > 0) {
        tracing::warn!(model = &**name, items, waiting_jobs = waiting, "{why}: the model's work is dropped");
    }
}

/// Sends the pending traces.
async fn flush(traces: Arc<Traces>, deadline: Instant, now: &CancellationToken) {
    let left = deadline.saturating_duration_since(Instant::now()).max(ABORT_GRACE);
    let (tell, flushed) = oneshot::channel();
    let flush = std::thread::Builder::new().name("ocelli-flush".into()).spawn(move || {
        traces.end(left);
        let _ = tell.send(());
    });
    if let Err(error) = flush {
        tracing::warn!(%error, "traces were lost at the end");
    }
    // It limits itself, except for what cannot be interrupted and a signal that comes meanwhile.
    if !in_time(flushed, deadline, now).await {
        tracing::warn!("ended while traces were on their way: not waited for");
    }
}

/// Waits, but no longer than until `now` is cancelled.
async fn wait(duration: Duration, now: &CancellationToken) {
    let _ = tokio::time::timeout(duration, now.cancelled()).await;
}

/// Waits for something that ends with the server; returns whether it did. Waits until the deadline or until `now` is cancelled, or for
/// [`ABORT_GRACE`] if that has passed already.
async fn in_time(ended: impl Future, deadline: Instant, now: &CancellationToken) -> bool {
    let left = deadline.saturating_duration_since(Instant::now()).max(ABORT_GRACE);
    let already = now.is_cancelled();
    tokio::select! {
        _ = ended => true,
        () = now.cancelled(), if !already => false,
        () = tokio::time::sleep(if already { ABORT_GRACE } else { left }) => false,
    }
}

/// The data path's heartbeat, which the liveness probe checks: it stops when one of the threads is stuck.
async fn beat(status: Arc<Status>, threads: Vec<Handle>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        Threads::pulse(&threads).await;
        status.beat(Instant::now());
    }
}

fn accept_settings(config: &Config, connections_max: usize) -> Settings {
    Settings {
        connections_max,
        clocks: Clocks {
            idle: config.idle_timeout_ms,
            header: config.header_timeout_ms,
            write_stall: config.reply_stall_ms,
        },
        close_timeout: config.drain_timeout_ms,
    }
}
