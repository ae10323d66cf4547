//! The end of a server: it finishes what it has accepted, in order, within its time.

use super::{App, admin::Admin};
use crate::{
    batch::ModelLoad,
    error::InferError,
    http::Front,
    models::Command,
    telemetry::{metrics::DropReason, traces::Traces},
};
use futures_util::future::join_all;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// What a server left undone when it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Jobs without an answer at the deadline, and those that came after it.
    pub jobs: usize,
    /// Requests that still came or were decoded then, and stacks that were broken off: their callers got an error.
    pub requests: usize,
    /// Connections that were cut with a request on them, or before a stuck thread had looked at them.
    pub connections: usize,
    /// Whether an operator ended the drain early, rather than the deadline.
    pub told: bool,
}

/// How long, after the drain's deadline, refusals of the remaining requests may take to be sent, and idle threads to end.
pub(super) const ABORT_GRACE: Duration = Duration::from_millis(500);

impl App {
    /// Ends the server in order. It reports not ready immediately, but still serves for `drain_delay_ms`, so that load balancers can
    /// notice. Then it accepts nothing new, and finishes accepted work within `drain_timeout_ms`. `now` cuts all of this short.
    pub async fn drain(self, now: &CancellationToken) -> Undone {
        // `threads` are dropped, and end, with this function.
        let App {
            config,
            front,
            stages,
            mut accepting,
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
        let left = deadline.saturating_duration_since(Instant::now());
        let in_order = tokio::select! {
            ended = &mut accepting => Some(ended),
            () = wait(left, now) => None,
        };
        let told = now.is_cancelled();
        drop_work(&front, in_order.is_some(), told);
        let ended = match in_order {
            Some(ended) => ended,
            None => {
                // Callers get an error, those of a stack after what was found so far: give it a moment to be sent.
                tokio::select! {
                    ended = &mut accepting => ended,
                    () = wait(ABORT_GRACE, now) => {
                        stages.abort();
                        accepting.await
                    }
                }
            }
        };
        // Some are counted only as their requests end.
        let [jobs, requests] =
            [DropReason::Job, DropReason::Request].map(|kind| front.metrics.dropped(kind).get() as usize);
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
        Undone { jobs, requests, connections, told }
    }
}

/// Ends the work that is left, which is counted and logged at once: soon nobody will be left to scrape the metrics. Connections that have
/// ended in order have no requests.
fn drop_work(front: &Front, in_order: bool, told: bool) {
    front.queue.close();
    let load = front.queue.load();
    let jobs = front.queue.abort(&InferError::Draining);
    front.metrics.dropped(DropReason::Job).inc_by(jobs as u64);
    let why = if told { "told to end now" } else { "the time to drain is over" };
    if jobs > 0 {
        for ModelLoad { name, items, waiting, .. } in load.models.iter().filter(|model| model.items > 0) {
            tracing::warn!(
                model = &**name,
                items,
                waiting_jobs = waiting,
                "{why}: the model's work is dropped"
            );
        }
    }
    if !in_order {
        for (model, requests) in front.metrics.requests_open() {
            tracing::warn!(model = &*model, requests, "{why}: requests of the model are cut");
        }
        // Earlier than announced, if a signal came again.
        front.status.cut(Instant::now());
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
