//! A model's place on a worker: its batches are put together and started here, by the worker's thread, or by a thread that pushes a job
//! while the worker sleeps.

use super::super::{
    Lent,
    health::{Health, Over},
    landing::Outbound,
};
use crate::{
    batch::{self, ModelKey, Running, queue::Inline},
    engine::{DataType, Engine, EngineError, Flight, Habits, Tensor, caught, staging::Blocks},
    error::panic_words,
    telemetry::metrics::DeviceMetrics,
};
use parking_lot::Mutex;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// How long a model is idle before its engine releases memory that it can allocate again.
pub(super) const REST_AFTER: Duration = Duration::from_secs(30);

/// A model, its engine, and the device that it is on.
pub(super) struct Seat {
    pub(super) key: ModelKey,
    /// Whether other threads may run batches of it.
    pub(super) is_lent: bool,
    /// Whether the running batch was told to end.
    pub(super) told: Arc<AtomicBool>,
    health: Health,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    model: Lent,
    engine: Box<dyn Engine + Send>,
    blocks: Blocks,
    metrics: Arc<DeviceMetrics>,
    /// How the engine takes batches, as last reported.
    habits: Option<Habits>,
    /// When it last ran, or was loaded; `None` once its memory has been released since.
    ran: Option<Instant>,
}

impl Seat {
    pub(super) fn new(
        model: Lent,
        engine: Box<dyn Engine + Send>,
        health: Health,
        metrics: Arc<DeviceMetrics>,
    ) -> Seat {
        let blocks = Blocks::for_batches(engine.memory(), model.signature.inputs.len());
        if let Some(slabs) = model.staging(DataType::Uint8) {
            // Images that are not contiguous are gathered into buffers; on a device, as many as there may be batches in flight.
            blocks.ready(slabs.slab_bytes(), engine.depth());
        }
        // If so, the number of items alone determines how long a batch takes.
        let is_lent = engine.is_even() && model.signature.is_fixed(!model.rules.whole);
        let (key, ran) = (model.key, Some(Instant::now()));
        let loaded = Loaded { model, engine, blocks, metrics, habits: None, ran };
        Seat { key, is_lent, told: Arc::default(), health, loaded: Mutex::new(loaded) }
    }

    /// Puts a batch together and starts it.
    pub(super) fn begin(&self, batch: Running) -> (Outbound, Result<Flight, EngineError>) {
        let mut loaded = self.loaded.lock();
        let started = Instant::now();
        loaded.ran = Some(started);
        // Memory that a device copies from is allocated by its driver, in calls that may hang.
        let _busy = self.health.busy();
        let inputs = loaded.assemble(&batch);
        let begun = Instant::now();
        let stage = begun.saturating_duration_since(started);
        let engine = &mut loaded.engine;
        let begin = || match batch.reduced {
            true => engine.start_reduced(inputs),
            false => engine.start(inputs, batch.setting.as_ref()),
        };
        let flight = caught("the engine", begin);
        let (model, metrics) = (Arc::clone(&loaded.model), Arc::clone(&loaded.metrics));
        let told = Arc::clone(&self.told);
        (Outbound { batch, model, stage, begun, metrics, told }, flight)
    }

    /// Reports how the engine takes batches to the queue and the metrics, if that has changed. What a batch has shown is known before the
    /// next one is formed, or one batch later where the engine is in another process, which reports it with its results.
    pub(super) fn tell(&self, place: &batch::Worker) {
        self.loaded.lock().tell(place);
    }

    /// Releases memory that can be allocated again, if nothing has run for a while. Returns whether none is left, and none will be before
    /// the worker's thread has run something.
    pub(super) fn rest(&self, now: Instant) -> bool {
        let mut loaded = self.loaded.lock();
        if loaded.ran.is_some_and(|ran| now.saturating_duration_since(ran) >= REST_AFTER) {
            loaded.engine.rest();
            loaded.blocks.clear();
            loaded.model.rest();
            loaded.ran = None;
        }
        loaded.ran.is_none() && !self.is_lent
    }
}

impl Inline for Seat {
    fn run(&self, batch: Running) {
        let run = || {
            let (out, flight) = self.begin(batch);
            out.land(flight.and_then(Flight::land), &self.health);
        };
        // As when the worker's thread panics; the thread that pushed the job goes on.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let words = panic_words(&panic);
            self.health
                .end(Over::Failed(format!("a batch that was run in a worker's name panicked: {words}")));
        }
    }
}

impl Loaded {
    fn tell(&mut self, place: &batch::Worker) {
        let habits = self.engine.habits();
        let before = self.habits.replace(habits);
        if before.map(|before| before.plans_anew) != Some(habits.plans_anew) {
            place.keep_size(self.model.key, habits.plans_anew);
        }
        let counted = before.map_or(0, |before| before.unrecorded);
        self.metrics.unrecorded.inc_by(habits.unrecorded.saturating_sub(counted));
    }

    /// The inputs of a batch, each in one piece.
    fn assemble(&self, batch: &batch::Batch) -> Vec<Tensor> {
        let whole = self.model.rules.whole;
        // Only the first input of a model can be images or frames; some models have none.
        let first = batch.parts.first().and_then(|part| part.inputs.first());
        let mut staging = first.and_then(|input| self.model.staging(input.datatype));
        let inputs = 0..self.model.signature.inputs.len();
        inputs
            .map(|index| {
                let parts: Vec<_> = batch.parts.iter().map(|part| &part.inputs[index]).collect();
                self.blocks.assemble(&parts, batch.size, whole, staging.take())
            })
            .collect()
    }
}
