//! The admin listener, and the one for metrics, each on a thread and runtime of its own: a jammed data path cannot fail a probe.

use super::{AppError, allowed_threads::not_started, failed};
use crate::http::{
    accept::{Acceptor, Settings, Stages},
    threads,
};
use axum::Router;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Connections at once: probes and scrapers are few.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// The running listener.
pub(super) struct Admin {
    stages: Stages,
    thread: std::thread::JoinHandle<()>,
}

impl Admin {
    pub(super) fn start(
        listener: TcpListener,
        name: &str,
        settings: Settings,
        routes: Router,
    ) -> Result<Admin, AppError> {
        let stages = Stages::default();
        let listener = listener.into_std().map_err(failed("cannot hand over the admin socket"))?;
        let theirs = stages.clone();
        let serve = async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    let acceptor = Acceptor {
                        listener,
                        settings,
                        stages: theirs,
                        connections: Arc::default(),
                        threads: Vec::new(),
                    };
                    acceptor.run(routes).await;
                }
                Err(error) => tracing::error!(%error, "the admin listener did not start"),
            }
        };
        let (_, thread) = threads::start(format!("ocelli-{name}"), move |runtime| runtime.block_on(serve))
            .map_err(not_started(&format!("the {name} thread")))?;
        Ok(Admin { stages, thread })
    }

    /// Probes have nothing to finish.
    pub(super) fn end(self) {
        self.stages.abort();
        if self.thread.join().is_err() {
            tracing::error!("the admin thread panicked");
        }
    }
}
