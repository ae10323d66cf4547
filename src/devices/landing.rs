//! Where batches end: a thread per worker waits for batches in flight, oldest first, and answers them.
//!
//! So one batch can be computed and the next one staged while replies go out for a third. The engines decide how many may be in flight;
//! the channel here holds the worker back at the most that any engine takes.

use super::{
    Lent,
    health::{Health, Over},
};
use crate::{
    batch::{Ran, Running},
    engine::{Airborne, EngineError, Tensor, caught},
    error::panic_words,
    telemetry::metrics::{DeviceMetrics, FailReason},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Batches that may wait here, besides the one that is waited for and the one just started.
const AHEAD: usize = 1;

/// A batch that was started.
pub(super) struct Outbound {
    /// Its jobs.
    pub(super) batch: Running,
    /// Its model.
    pub(super) model: Lent,
    /// Time of putting it together.
    pub(super) stage: Duration,
    /// When it was given to the engine.
    pub(super) begun: Instant,
    /// Where it is counted.
    pub(super) metrics: Arc<DeviceMetrics>,
    /// Whether it was told to end, because nobody waits for it.
    pub(super) told: Arc<AtomicBool>,
}

impl Outbound {
    /// Answers it, where the engine started computing at once.
    pub(super) fn land(self, result: Result<Vec<Tensor>, EngineError>, health: &Health) {
        let begun = self.begun;
        self.finish(result, begun, health);
    }

    /// Answers it. `since`: when the engine started computing it.
    pub(super) fn finish(self, result: Result<Vec<Tensor>, EngineError>, since: Instant, health: &Health) {
        let (model, device) = (Lent::clone(&self.model), &*health.device);
        // Whatever became of it: the next batch has not been told.
        let told = self.told.swap(false, Ordering::Relaxed);
        let answered = match result {
            Ok(outputs) => {
                let ended = Instant::now();
                health.worked(ended);
                self.worked(outputs, since, ended, device)
            }
            Err(error) => self.failed(error, told, health),
        };
        if !answered {
            tracing::info!(
                model = &*model.name,
                device,
                "a batch that was taken back has come back too late"
            );
        }
    }

    /// Answers it with what the engine gave. False if it was taken back.
    fn worked(self, outputs: Vec<Tensor>, since: Instant, ended: Instant, device: &str) -> bool {
        let (compute, metrics) = (ended.saturating_duration_since(since), &self.metrics);
        let statistics = &self.model.statistics;
        let (items, size) = (self.batch.items, self.batch.size);
        let counted = || {
            metrics.stage_seconds.observe(self.stage.as_secs_f64());
            metrics.compute_seconds.observe(compute.as_secs_f64());
            metrics.batch(items, size);
            statistics.ran(items, self.stage, compute);
        };
        let waited = since.saturating_duration_since(self.begun);
        let ran = Ran { outputs, stage: self.stage, waited, compute };
        let Some(aftermath) = self.batch.finish_counted(Ok(ran), counted) else { return false };
        statistics.handed_out(items, ended.elapsed());
        let model = &*self.model.name;
        if aftermath.again > 0 {
            let requests_run_again = aftermath.again;
            tracing::warn!(
                model,
                device,
                items,
                requests_run_again,
                "the model's outputs have not a row for each item of a batch"
            );
        }
        if let Some(items) = aftermath.ceiling {
            tracing::info!(model, device, items, "larger batches are tried");
            let full = items >= self.model.rules.largest();
            metrics.set_ceiling((!full).then_some(items));
        }
        true
    }

    /// Answers it with the engine's error, or has its jobs run again. `told`: it was told to end. False if it was taken back.
    fn failed(self, error: EngineError, told: bool, health: &Health) -> bool {
        let (items, device, model) = (self.batch.items, &*health.device, &*self.model.name);
        let reason = match &error {
            EngineError::Input(_) => FailReason::Input,
            EngineError::OutOfMemory(_) => FailReason::OutOfMemory,
            EngineError::Passing(_) => FailReason::Passing,
            EngineError::Device(_) => FailReason::Device,
        };
        // Done first, so that no worker of this device takes the jobs again.
        health.note(&error);
        let text = error.to_string();
        let Some(aftermath) = self.batch.finish(Err(error)) else { return false };
        let requests_run_again = aftermath.again;
        // A batch that was told to end fails by that: its input is not at fault.
        if !told || reason != FailReason::Input {
            tracing::warn!(model, device, items, error = text, requests_run_again, "a batch failed");
            self.metrics.failed(reason, requests_run_again);
        }
        if let Some(items) = aftermath.ceiling {
            tracing::warn!(model, device, items, "memory is too small: batches are smaller from now on");
            self.metrics.set_ceiling(Some(items));
        }
        true
    }
}

enum Message {
    Flight(Box<Outbound>, Box<dyn Airborne>),
    /// Asks for a message once all flights sent before have landed.
    Settled(mpsc::Sender<()>),
}

/// The worker's end of the channel to its landing thread.
pub(super) struct Landing {
    name: String,
    health: Health,
    /// Started with the first flight: most engines of the CPU have none.
    thread: Option<(mpsc::SyncSender<Message>, JoinHandle<()>)>,
    /// Flights may not have landed: one was sent since the last [`Landing::settle`].
    away: bool,
}

impl Landing {
    /// For a worker of this name.
    pub(super) fn new(worker: &str, health: Health) -> Landing {
        Landing { name: format!("{worker}-land"), health, thread: None, away: false }
    }

    /// Hands a batch over; blocks while too many are in flight.
    pub(super) fn send(&mut self, out: Outbound, flight: Box<dyn Airborne>) {
        let message = Message::Flight(Box::new(out), flight);
        if self.thread.is_none() {
            self.thread = self.start();
        }
        self.away = true;
        // If the thread is gone, both are dropped: dropping the flight waits for it, and the batch counts as failed.
        if let Some((messages, _)) = &self.thread {
            let _ = messages.send(message);
        }
    }

    fn start(&self) -> Option<(mpsc::SyncSender<Message>, JoinHandle<()>)> {
        let (messages, coming) = mpsc::sync_channel(AHEAD);
        let health = self.health.clone();
        let thread = std::thread::Builder::new().name(self.name.clone());
        let land = move || {
            // Without this thread nothing would land any more, so the device is over.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| land_all(&coming, &health))) {
                health.end(Over::Failed(format!(
                    "the thread that lands batches panicked: {}",
                    panic_words(&panic)
                )));
            }
        };
        match thread.spawn(land) {
            Ok(thread) => Some((messages, thread)),
            Err(error) => {
                tracing::error!(%error, "no thread to land batches on");
                self.health.end(Over::Failed(format!("no thread to land batches on: {error}")));
                None
            }
        }
    }

    /// Waits until all have landed. False if none was sent since the last call.
    pub(super) fn settle(&mut self) -> bool {
        if !std::mem::take(&mut self.away) {
            return false;
        }
        let (tell, told) = mpsc::channel();
        if let Some((messages, _)) = &self.thread
            && messages.send(Message::Settled(tell)).is_ok()
        {
            // An error means the same: nothing is in flight.
            let _ = told.recv();
        }
        true
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let Some((messages, thread)) = self.thread.take() else { return };
        drop(messages);
        if thread.join().is_err() {
            tracing::error!("the thread that lands batches panicked");
        }
    }
}

fn land_all(coming: &mpsc::Receiver<Message>, health: &Health) {
    // An engine computes a batch once it has the batch and has finished the one before.
    let mut free: Option<Instant> = None;
    while let Ok(message) = coming.recv() {
        match message {
            Message::Flight(out, flight) => {
                let busy = health.busy();
                let result = caught("the engine", || flight.land());
                drop(busy);
                let since = free.map_or(out.begun, |free| out.begun.max(free));
                free = Some(Instant::now());
                out.finish(result, since, health);
            }
            Message::Settled(tell) => {
                // The caller waits for it.
                let _ = tell.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        batch::{Job, ModelKey, Queue, QueueLimits},
        engine::{DataType, Signature},
        models::testing::{model_of, source},
        tasks::testing::{floats, signature, spec},
        telemetry::metrics::Metrics,
    };

    struct There;

    impl Airborne for There {
        fn land(self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
            Ok(vec![floats(&[1, 2], &[1.0, 2.0])])
        }
    }

    #[test]
    fn a_batch_that_waited_behind_another_took_only_what_came_after_that() {
        let start = Instant::now();
        let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 1000 });
        let signature =
            Signature { inputs: vec![spec("x", DataType::Fp32, &[-1, 2])], ..signature(&[("y", &[-1, 2])]) };
        let source = source("m", "1", "");
        let model = model_of(&source, signature).unwrap();
        queue.register(model.key, "m", model.rules.clone());
        let (model, worker) = (Arc::new(Arc::new(model)), queue.attach(&"gpu-0".into()));
        let metrics = Metrics::new(&[], "0", "none");
        metrics.add_model("m");
        let mut landing = Landing::new("test", Health::new("gpu-0".into(), Arc::clone(&queue), true, None));
        // As if both had been given to the engine an hour ago.
        let hour = Duration::from_secs(3600);
        let tickets = [(); 2].map(|()| {
            let input = floats(&[1, 2], &[0.0; 2]);
            let ticket = queue.push(Job::plain(ModelKey(1), vec![input], 1, start)).unwrap();
            let out = Outbound {
                batch: worker.try_take(&[ModelKey(1)]).unwrap(),
                model: Arc::clone(&model),
                stage: Duration::ZERO,
                begun: start - hour,
                metrics: metrics.model("m").device("gpu-0"),
                told: Arc::default(),
            };
            landing.send(out, Box::new(There));
            ticket
        });
        assert!(landing.settle());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [first, second] = tickets.map(|ticket| runtime.block_on(ticket).unwrap().timing);
        assert!(first.compute >= hour && first.queue < hour, "{first:?}");
        assert!(second.compute <= start.elapsed(), "{second:?} of {:?}", start.elapsed());
        assert!(second.queue >= hour, "{second:?}");
    }
}
