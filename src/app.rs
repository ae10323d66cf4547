//! The one file that knows every part: builds from the leaves up, binds the sockets, and returns something that can
//! be drained.

mod admin;
mod again;
mod allowed_threads;
mod base;
mod drain;
mod gpus;
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
    config::{BusyPoll, Chosen, Config, RepositoryMode, cores},
    grpc,
    http::{
        self, Front,
        accept::{Acceptor, Awake, Clocks, Ended, Eviction, Settings, Stages, threads::Threads},
    },
    models::{Control, changes::Snapshot},
    status::Status,
    telemetry::{host, logging::Logging},
    words,
};
use admin::Admin;
use again::Again;
use allowed_threads::not_started;
pub use base::Core;
pub use drain::Undone;
use futures_util::future::join_all;
pub use listen::Addresses;
use listen::{Socket, Sockets};
use loader::{Loading, Reads};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::JoinHandle as Task, time::MissedTickBehavior};
use watch::Watch;

/// Why a run ended other than well; the command line maps each to an exit code.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// What the models should run on is missing: no ONNX Runtime, or no GPU where one was asked for.
    #[error("{0}")]
    Backend(String),
    /// The drain ended before the work was done.
    #[error(
        "{} with work left: {}, {} and {} were dropped",
        if .0.told { "a second signal came" } else { "drain_timeout_ms passed" },
        words::count(.0.connections, "connection"), words::count(.0.requests, "request"), words::count(.0.jobs, "job")
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
    addresses: Addresses,
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

/// How often to check whether it makes sense to go on.
const HOPELESS_PAUSE: Duration = Duration::from_millis(200);

impl App {
    /// Binds the sockets and starts to load models. Probes are answered from the first moment; the server is ready once a model is.
    ///
    /// Must be called inside a tokio runtime, which accepts connections; they are served on threads of their own.
    ///
    /// # Errors
    /// If a socket cannot be bound, the backend cannot be had, or the system refuses a thread.
    pub async fn start(mut config: Config, log: Option<&Logging>) -> Result<App, AppError> {
        // Sockets first: the commonest mistake shows before a model is loaded.
        let sockets = Sockets::bind(&config).await?;
        let addresses = sockets.addresses();
        let apart = |socket: Option<Socket>, name| {
            let settings = accept_settings(&config, admin::CONNECTIONS_MAX, Eviction::FAST);
            socket.map(|socket| Admin::start(socket.listener, name, settings)).transpose()
        };
        // Probes are answered from now on, however long the search for models takes.
        let admin = apart(sockets.admin, "admin")?;
        let metrics = apart(sockets.metrics, "metrics")?;
        // Before the search for models: what changes from now on is a change.
        let files_max = open_files::raise();
        config.shared_memory_regions_max = open_files::regions_max(&config, files_max);
        let repository = base::repository(&config);
        let first = Snapshot::at(&repository);

        let core = Core::start(&config, log)?;
        if core.found.is_empty() && config.startup_models == Chosen::All {
            tracing::warn!(
                folder = %config.models.display(),
                "no models found: each has a folder NAME/model.onnx there; {}", base::without_models(config.repository_mode)
            );
        }
        let (control, commands) = Control::new(repository.clone());
        let control = Arc::new(control);
        let front = core.front(&config, Arc::clone(&control), log)?;
        let Core { devices, found, shared_bytes, .. } = core;
        let threads = Threads::start(config.http_threads).map_err(not_started("the HTTP threads"))?;

        // Before the first request can ask for one: a model that is loading is not unknown.
        devices.announce(&found);
        let stages = Stages::default();
        memory::check(&config, shared_bytes as u64);
        waiting::check(&config);
        let connections_max = open_files::connections_max(&config, files_max);
        front.metrics.http_connections_max.set(i64::try_from(connections_max).unwrap_or(i64::MAX));
        let awake = polls_busily(config.busy_poll, cores()).then(Awake::default);
        let acceptor = |socket: Socket| Acceptor {
            listener: socket.listener,
            settings: accept_settings(&config, connections_max, Eviction::SLOW),
            stages: stages.clone(),
            connections: Arc::clone(&front.connections),
            threads: threads.handles().to_vec(),
            awake: awake.clone(),
        };
        let routes = http::routes(Arc::clone(&front));
        let api = sockets.api.into_iter().map(|socket| acceptor(socket).run(routes.clone()));
        let api = join_all(api.collect::<Vec<_>>());
        let calls = join_all(sockets.grpc.map(|socket| acceptor(socket).run(grpc::routes(&front, &stages))));
        let accepting = tokio::spawn(async {
            let (ended, calls) = tokio::join!(api, calls);
            let dropped = ended.iter().chain(&calls).map(|ended| ended.connections_dropped).sum();
            Ended { connections_dropped: dropped }
        });
        let heart = tokio::spawn(beat(Arc::clone(&front.status), threads.handles().to_vec()));
        if let Some(admin) = &admin {
            admin.serve(http::admin_routes(Arc::clone(&front)));
        }
        if let Some(metrics) = &metrics {
            metrics.serve(http::metrics_routes(Arc::clone(&front)));
        }

        let logs = log.map(Logging::models).unwrap_or_default();
        let reads = Reads { repository, loaded: first.clone(), logs, again: Again::default() };
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
            stages,
            accepting,
            threads,
            heart,
            admin,
            metrics,
            watch,
            loading,
        })
    }

    /// Logs the addresses that it listens on.
    pub fn log_addresses(&self) {
        let Addresses { api, grpc, admin, metrics } = &self.addresses;
        let [admin, metrics, grpc] = [admin, metrics, grpc].map(|at| at.map(tracing::field::display));
        let address = api.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let models = self.config.models.display();
        tracing::info!(address, admin, metrics, grpc, %models, "listening");
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
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

/// Whether threads stay awake for the next request.
fn polls_busily(asked: BusyPoll, cores: usize) -> bool {
    match asked {
        BusyPoll::On => true,
        BusyPoll::Off => false,
        BusyPoll::Auto => cores > 1 && !host::has_cpu_limit(cores),
    }
}

fn accept_settings(config: &Config, connections_max: usize, eviction: Eviction) -> Settings {
    Settings {
        connections_max,
        eviction,
        clocks: Clocks {
            idle: config.idle_timeout_ms,
            header: config.header_timeout_ms,
            write_stall: config.reply_stall_ms,
        },
        // After the drain's own deadline, at which requests are still told that the server ends.
        close_timeout: config.drain_timeout_ms + drain::ABORT_GRACE,
    }
}
