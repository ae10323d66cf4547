//! One worker: an OS thread that owns its engines, pulls a batch when it is free, runs it and answers it.
//!
//! The worker decides nothing: `batch::policy` says what to run. Engines arrive through a mailbox, so that loading a
//! model never stops the ones that serve.

use crate::{
    batch::{self, Batch, ModelKey, Queue, Ran, RunResult, Running, Taken},
    engine::{Engine, EngineError, staging::Assembler},
    models::Model,
    telemetry::metrics::{DeviceMetrics, Metrics},
};
use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Instant,
};

/// A model and the engine to serve it with.
type Assignment = (Arc<Model>, Box<dyn Engine + Send>);

/// A running worker thread.
pub(super) struct Worker {
    assignments: mpsc::Sender<Assignment>,
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. It ends when the queue is closed and empty.
    pub(super) fn start(
        name: String,
        device: Arc<str>,
        queue: Arc<Queue>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Worker> {
        let (assignments, mailbox) = mpsc::channel();
        let place = queue.attach(&device);
        let waiting = Arc::clone(&queue);
        let work = Work {
            device,
            place,
            metrics,
            queue: waiting,
            mailbox,
            served: Vec::new(),
            engines: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || work.run())?;
        Ok(Worker { assignments, queue, thread })
    }

    /// Has the worker serve a model from now on.
    pub(super) fn assign(&self, model: Arc<Model>, engine: Box<dyn Engine + Send>) {
        // A worker that is gone has nothing to serve; the queue is closed by then.
        let _ = self.assignments.send((model, engine));
        self.queue.wake();
    }

    /// Waits for the thread to end.
    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("a worker thread panicked outside of an engine");
        }
    }
}

struct Work {
    device: Arc<str>,
    place: batch::Worker,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    mailbox: mpsc::Receiver<Assignment>,
    served: Vec<ModelKey>,
    engines: HashMap<ModelKey, Loaded>,
}

struct Loaded {
    model: Arc<Model>,
    engine: Box<dyn Engine + Send>,
    assemblers: Vec<Assembler>,
    metrics: Arc<DeviceMetrics>,
}

impl Work {
    fn run(mut self) {
        loop {
            while let Ok(assignment) = self.mailbox.try_recv() {
                self.accept(assignment);
            }
            match self.place.take(&self.served) {
                Taken::Batch(batch) => self.serve(batch),
                Taken::Woken => self.unload(),
                Taken::Closed => return,
            }
        }
    }

    /// Lets go of the models that are retired and have nothing left to run.
    fn unload(&mut self) {
        let Work { queue, served, engines, .. } = self;
        served.retain(|key| queue.knows(*key));
        engines.retain(|key, _| queue.knows(*key));
    }

    fn accept(&mut self, (model, engine): Assignment) {
        let assemblers = engine.signature().inputs.iter().map(|_| Assembler::default()).collect();
        let metrics = self.metrics.model(&model.name).device(&self.device);
        self.served.push(model.key);
        self.engines.insert(model.key, Loaded { model, engine, assemblers, metrics });
    }

    fn serve(&mut self, batch: Running) {
        let result = match self.engines.get_mut(&batch.model) {
            Some(loaded) => loaded.run(&batch),
            None => Err(EngineError::Device("the worker has no engine for the model".into())),
        };
        if let Err(error) = &result {
            let model = self.engines.get(&batch.model).map(|loaded| &*loaded.model.name);
            tracing::warn!(model, device = &*self.device, items = batch.items, %error, "a batch failed");
        }
        let (model, items) = (batch.model, batch.items);
        let (ran, began) = (result.is_ok(), Instant::now());
        batch.finish(result);
        if let (true, Some(loaded)) = (ran, self.engines.get(&model)) {
            loaded.model.statistics.handed_out(items, began.elapsed());
        }
    }
}

impl Loaded {
    fn run(&mut self, batch: &Batch) -> RunResult {
        let started = Instant::now();
        let whole = self.model.rules.whole;
        let mut staging = self.model.image.as_ref().and_then(|image| image.staging.as_ref());
        let mut inputs = Vec::with_capacity(self.assemblers.len());
        for (index, assembler) in self.assemblers.iter_mut().enumerate() {
            let parts: Vec<_> = batch.parts.iter().map(|part| &part.inputs[index]).collect();
            // Only the first input of a model can be an image.
            inputs.push(assembler.assemble(&parts, batch.size, whole, staging.take()));
        }
        let staged = Instant::now();
        let outputs = catch_unwind(AssertUnwindSafe(|| self.engine.run(&inputs, batch.setting.as_ref())))
            .unwrap_or_else(|panic| {
                Err(EngineError::Device(format!("the engine panicked: {}", words(&panic))))
            })?;
        let (stage, compute) = (staged - started, staged.elapsed());
        self.metrics.stage_seconds.observe(stage.as_secs_f64());
        self.metrics.compute_seconds.observe(compute.as_secs_f64());
        self.metrics.batch(batch.items, batch.size);
        self.model.statistics.ran(batch.items, stage, compute);
        Ok(Ran { outputs, stage, compute })
    }
}

/// What a panic said, where it said something.
pub(super) fn words(panic: &Box<dyn Any + Send>) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without words".into())
}
