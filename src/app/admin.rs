//! The listeners for admin and for metrics, each on a thread and runtime of its own: a jammed data path cannot fail a probe.

use super::{AppError, allowed_threads::not_started, failed};
use crate::http::{
    self,
    accept::{Acceptor, Settings, Stages, threads},
};
use axum::{Router, extract::Request};
use std::sync::{Arc, OnceLock};
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot};
use tower::{ServiceExt, service_fn};

/// The most connections at once: there are few probes and scrapers.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// The running listener.
pub(super) struct Admin {
    stages: Stages,
    ended: oneshot::Receiver<()>,
    routes: Arc<OnceLock<Router>>,
}

impl Admin {
    /// Starts it. Until [`Admin::serve`], probes are told that the server is starting.
    pub(super) fn start(listener: TcpListener, name: &str, settings: Settings) -> Result<Admin, AppError> {
        let (stages, routes) = (Stages::default(), Arc::<OnceLock<Router>>::default());
        let there = Arc::clone(&routes);
        let service = service_fn(move |request: Request| {
            let routes = there.get().cloned();
            async move {
                match routes {
                    Some(routes) => routes.oneshot(request).await,
                    None => Ok(http::starting(request.uri().path())),
                }
            }
        });
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
                        awake: None,
                    };
                    acceptor.run(service).await;
                }
                Err(error) => tracing::error!(%error, "the admin listener did not start"),
            }
        };
        let (tell, ended) = oneshot::channel();
        let run = move |runtime: Runtime| {
            runtime.block_on(serve);
            let _ = tell.send(());
        };
        threads::start(format!("ocelli-{name}"), run).map_err(not_started(&format!("the {name} thread")))?;
        Ok(Admin { stages, ended, routes })
    }

    /// Answers by these routes from now on.
    pub(super) fn serve(&self, routes: Router) {
        // They are set once.
        let _ = self.routes.set(routes);
    }

    /// Ends it, and waits for that; a handler that is stuck may delay it for ever. Probes have nothing to finish.
    pub(super) async fn end(mut self) {
        self.stages.abort();
        if (&mut self.ended).await.is_err() {
            tracing::error!("the admin thread panicked");
        }
    }
}

impl Drop for Admin {
    /// For a server that could not start after all.
    fn drop(&mut self) {
        self.stages.abort();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::accept::{Clocks, Eviction};
    use axum::routing::get;
    use parking_lot::Mutex;
    use std::{
        io::{Read, Write},
        sync::mpsc,
        time::Duration,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    fn settings() -> Settings {
        Settings {
            connections_max: 1,
            eviction: Eviction::FAST,
            clocks: Clocks { idle: HOUR, header: HOUR, write_stall: HOUR },
            close_timeout: HOUR,
        }
    }

    #[tokio::test]
    async fn a_server_that_starts_is_alive_and_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let admin = Admin::start(listener, "admin", settings()).unwrap();
        let status = |path: &str| {
            let mut asks = std::net::TcpStream::connect(address).unwrap();
            write!(asks, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut reply = String::new();
            asks.read_to_string(&mut reply).unwrap();
            reply.split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(
            ["/v2/health/live", "/v2/health/ready", "/ping", "/metrics"].map(status),
            ["200", "503", "503", "503"]
        );
        admin.serve(Router::new().route("/v2/health/ready", get(async || "as ever")));
        assert_eq!(["/v2/health/live", "/v2/health/ready"].map(status), ["404", "200"]);
        admin.end().await;
    }

    #[tokio::test]
    async fn probes_are_answered_while_others_take_all_connections_and_send_half_a_head_or_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let admin = Admin::start(listener, "admin", Settings { connections_max: 3, ..settings() }).unwrap();
        let mut flood = Vec::new();
        for turn in 0..30 {
            let mut half = std::net::TcpStream::connect(address).unwrap();
            let sent: &[u8] = if turn % 3 == 0 { b"" } else { b"GET /v2/health/live HTTP/1.1\r\nHo" };
            half.write_all(sent).unwrap();
            flood.push(half);
        }
        for _ in 0..3 {
            let mut asks = std::net::TcpStream::connect(address).unwrap();
            asks.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            asks.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut reply = String::new();
            asks.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        }
        admin.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_stuck_holds_up_nobody_but_who_waits_for_the_end() {
        let ((begin, begun), (go, wait)) = (mpsc::channel(), mpsc::channel::<()>());
        let wait = Arc::new(Mutex::new(wait));
        let stuck = get(async move || {
            begin.send(()).unwrap();
            let _ = wait.lock().recv();
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut asks = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let admin = Admin::start(listener, "admin", settings()).unwrap();
        admin.serve(Router::new().route("/", stuck));
        asks.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        begun.recv().unwrap();
        let end = admin.end();
        tokio::pin!(end);
        assert!(tokio::time::timeout(HOUR, &mut end).await.is_err());
        drop(go);
        end.await;
    }
}
