//! Metrics of a model, and of a model on a device. Their children are resolved once, so that counting a job takes a few atomic
//! additions.
//!
//! Each model has its own metrics, which the registry collects through [`Models`]. A model that is removed leaves nothing there;
//! whatever still counts for it is no longer exported.

use super::{FailReason, LITERALS};
use crate::words::named;
use parking_lot::{Mutex, RwLock};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, atomic::AtomicUsize},
};

named! {
    /// How a request for a model ended.
    Outcome {
        /// Answered.
        Ok = "ok",
        /// Malformed, or of a type that no route accepts.
        BadRequest = "bad_request",
        /// Not an image that the server can decode.
        Decode = "decode",
        /// Over a limit.
        TooLarge = "too_large",
        /// A queue or the admission budget was full.
        Full = "full",
        /// The server was shutting down.
        Draining = "draining",
        /// The deadline passed, or could not be met.
        Late = "late",
        /// The same for a deadline that the caller set, with less time than the model's own.
        Hasty = "hasty",
        /// The caller went away.
        Cancelled = "cancelled",
        /// The engine refused the input.
        Input = "input",
        /// No device could run it.
        Device = "device",
        /// The server's disk had no room for it.
        Storage = "storage",
        /// The server's own fault.
        Internal = "internal",
        /// The model cannot be served now.
        Unavailable = "unavailable",
        /// The model is still being loaded.
        Loading = "loading",
    }
}

named! {
    /// The state of a version of a model.
    ModelState {
        /// Loaded and warm.
        Ready = "ready",
        /// Being loaded.
        Loading = "loading",
        /// Refused.
        Unavailable = "unavailable",
    }
}

/// From 50 µs to a minute in factors of 2 to 2.5: a stage may be a memory copy, or a large model on a small CPU behind other batches.
pub(super) const DURATION_BUCKETS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 25.0, 60.0,
];

/// Buckets for numbers of items in a batch.
pub(super) fn batch_buckets() -> Vec<f64> {
    exponential_buckets(1.0, 2.0, 11).expect("1 to 1024, doubling")
}

/// The metrics of one model, all with its name as the label `model`.
#[derive(Debug, Clone)]
pub(super) struct Families {
    stages: HistogramVec,
    batch_items: HistogramVec,
    padding: IntCounterVec,
    items: IntCounterVec,
    failed: IntCounterVec,
    again: IntCounterVec,
    fallbacks: IntCounterVec,
    ceiling: IntGaugeVec,
    unrecorded: IntCounterVec,
    queue_items: IntGauge,
    outcomes: IntCounterVec,
    state: IntGaugeVec,
    load_failed: IntGaugeVec,
}

impl Families {
    pub(super) fn of(model: &str) -> Families {
        let opts = |name, help| Opts::new(name, help).const_label("model", model);
        let counters =
            |name, help, labels: &[&str]| IntCounterVec::new(opts(name, help), labels).expect(LITERALS);
        let gauges =
            |name, help, labels: &[&str]| IntGaugeVec::new(opts(name, help), labels).expect(LITERALS);
        let histograms = |name, help, labels: &[&str], buckets: Vec<f64>| {
            let options = HistogramOpts { common_opts: opts(name, help), buckets };
            HistogramVec::new(options, labels).expect(LITERALS)
        };
        Families {
            stages: histograms(
                "ocelli_stage_duration_seconds",
                "Time spent in a stage: by a batch for stage and compute, by a job for the other stages.",
                &["device", "stage"],
                DURATION_BUCKETS.to_vec(),
            ),
            batch_items: histograms(
                "ocelli_batch_items",
                "Items in a batch, without padding.",
                &["device"],
                batch_buckets(),
            ),
            padding: counters(
                "ocelli_batch_padding_items_total",
                "Padding rows, computed only to fill a batch up to its size.",
                &["device"],
            ),
            items: counters("ocelli_items_total", "Items that were run, without padding.", &["device"]),
            failed: counters(
                "ocelli_failed_batches_total",
                "Batches that failed on a device.",
                &["device", "reason"],
            ),
            again: counters(
                "ocelli_retried_jobs_total",
                "Jobs that went back to the queue after their batch failed on a device.",
                &["device", "reason"],
            ),
            fallbacks: counters(
                "ocelli_fallbacks_total",
                "Jobs that this device answered in place of another: one that the model is meant for, or one that had the job first.",
                &["device", "reason"],
            ),
            ceiling: gauges(
                "ocelli_batch_ceiling_items",
                "The largest batch that a device is given after its memory was too small for a batch. No sample once full batches are tried again.",
                &["device"],
            ),
            unrecorded: counters(
                "ocelli_unrecorded_sizes_total",
                "Times that memory was allocated for a batch size without recording a CUDA graph, because the copy of the model had used up its graphs.",
                &["device"],
            ),
            queue_items: IntGauge::with_opts(opts("ocelli_queue_items", "Items that wait or run."))
                .expect(LITERALS),
            outcomes: counters(
                "ocelli_outcomes_total",
                "Requests for a model, by how they ended.",
                &["outcome"],
            ),
            state: gauges(
                "ocelli_model_state",
                "1 for the current state of a version of a model, 0 for the other states.",
                &["version", "state"],
            ),
            load_failed: gauges(
                "ocelli_model_load_failed",
                "1 if the last load of a version failed, until a load succeeds. Meanwhile an earlier load may go on serving.",
                &["version"],
            ),
        }
    }

    /// All of them, in the order in which the reference shows them.
    pub(super) fn each(&self) -> [&dyn Collector; 13] {
        [
            &self.stages,
            &self.batch_items,
            &self.padding,
            &self.items,
            &self.failed,
            &self.again,
            &self.fallbacks,
            &self.ceiling,
            &self.unrecorded,
            &self.queue_items,
            &self.outcomes,
            &self.state,
            &self.load_failed,
        ]
    }
}

/// The metrics of all known models, as the registry collects them. Clones share the same metrics.
#[derive(Debug, Clone)]
pub(super) struct Models {
    /// Metrics of no model; they provide the descriptions of all.
    pub(super) example: Families,
    known: Arc<RwLock<BTreeMap<String, Arc<ModelMetrics>>>>,
}

impl Models {
    pub(super) fn new() -> Models {
        Models { example: Families::of(""), known: Arc::default() }
    }

    /// A model's metrics, created at zero if the model is new.
    pub(super) fn add(&self, name: &str) -> Arc<ModelMetrics> {
        let mut known = self.known.write();
        Arc::clone(known.entry(name.to_owned()).or_insert_with(|| Arc::new(ModelMetrics::new(name))))
    }

    /// A model's metrics, if there is one of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<ModelMetrics>> {
        self.known.read().get(name).cloned()
    }

    /// Removes a model.
    pub(super) fn remove(&self, name: &str) {
        self.known.write().remove(name);
    }

    /// All names.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let known = self.known.read();
        known.keys().map(|name| Arc::from(name.as_str())).collect()
    }
}

impl Collector for Models {
    fn desc(&self) -> Vec<&Desc> {
        self.example.each().into_iter().flat_map(Collector::desc).collect()
    }

    /// The registry merges families with the same name.
    fn collect(&self) -> Vec<MetricFamily> {
        // Clones the map's values first: collecting thousands of models takes long, and counting needs the map's lock.
        let known: Vec<_> = self.known.read().values().cloned().collect();
        known.iter().flat_map(|model| model.families.each().map(Collector::collect)).flatten().collect()
    }
}

/// The metrics of a model.
#[derive(Debug)]
pub struct ModelMetrics {
    families: Families,
    outcomes: [IntCounter; Outcome::ALL.len()],
    devices: Mutex<BTreeMap<String, Arc<DeviceMetrics>>>,

    /// Requests that have not ended. Not a metric; logged at the end of a drain.
    pub requests_open: AtomicUsize,
    /// Items that wait or run.
    pub queue_items: IntGauge,
    /// Time from bytes to pixels to model input, per image. A device is chosen only afterwards.
    pub decode_seconds: Histogram,
    /// Time from push until a device starts on the job, or until the job ends before that, per job without an answer.
    pub unanswered_queue_seconds: Late,
}

impl ModelMetrics {
    /// All metrics at zero, not yet collected.
    pub(super) fn new(name: &str) -> ModelMetrics {
        let families = Families::of(name);
        ModelMetrics {
            outcomes: Outcome::ALL.map(|outcome| families.outcomes.with_label_values(&[outcome.name()])),
            queue_items: families.queue_items.clone(),
            decode_seconds: families.stages.with_label_values(&["", "decode"]),
            unanswered_queue_seconds: Late::new(&families.stages, &["", "queue"]),
            devices: Mutex::default(),
            requests_open: AtomicUsize::new(0),
            families,
        }
    }

    /// The counter of requests that ended with `outcome`.
    pub fn outcome(&self, outcome: Outcome) -> &IntCounter {
        &self.outcomes[outcome as usize]
    }

    /// The metrics of this model on a device. Keep the result where batches run: looking it up takes a lock.
    pub fn device(&self, device: &str) -> Arc<DeviceMetrics> {
        let mut devices = self.devices.lock();
        if let Some(known) = devices.get(device) {
            return Arc::clone(known);
        }
        let new = Arc::new(DeviceMetrics::new(&self.families, device));
        devices.insert(device.into(), Arc::clone(&new));
        new
    }

    /// Sets the state of a version.
    pub fn set_state(&self, version: &str, now: ModelState) {
        for state in ModelState::ALL {
            self.families.state.with_label_values(&[version, state.name()]).set(i64::from(state == now));
        }
        match now {
            ModelState::Ready => self.set_load_failed(version, false),
            ModelState::Unavailable => self.set_load_failed(version, true),
            // The outcome of the load is not known yet.
            ModelState::Loading => {}
        }
    }

    /// Sets whether the last load of a version failed.
    pub fn set_load_failed(&self, version: &str, failed: bool) {
        self.families.load_failed.with_label_values(&[version]).set(i64::from(failed));
    }

    /// Removes a version that is gone from the catalog.
    pub fn remove_version(&self, version: &str) {
        for state in ModelState::ALL {
            // Fails only if it was never set.
            let _ = self.families.state.remove_label_values(&[version, state.name()]);
        }
        let _ = self.families.load_failed.remove_label_values(&[version]);
    }
}

/// A histogram that is created with its first value. Histograms of every model on every device would make up most of a scrape, and many
/// models run on few of their devices.
#[derive(Debug)]
pub struct Late {
    of: HistogramVec,
    labels: Vec<String>,
    made: OnceLock<Histogram>,
}

impl Late {
    pub(super) fn new(of: &HistogramVec, labels: &[&str]) -> Late {
        let labels = labels.iter().copied().map(str::to_owned).collect();
        Late { of: of.clone(), labels, made: OnceLock::new() }
    }

    /// Creates it now.
    pub(super) fn begin(&self) -> &Histogram {
        self.made.get_or_init(|| self.of.with_label_values(&self.labels))
    }

    /// Records a value.
    pub fn observe(&self, value: f64) {
        self.begin().observe(value);
    }
}

/// The metrics of a model on a device.
#[derive(Debug)]
pub struct DeviceMetrics {
    batch_items: Late,
    padding: IntCounter,
    items: IntCounter,
    failed: [IntCounter; FailReason::LABELS.len()],
    again: [IntCounter; FailReason::LABELS.len()],
    fallbacks: IntCounterVec,
    ceiling: IntGaugeVec,
    device: String,

    /// Times that memory was allocated for a batch size that was not recorded, because the CUDA graphs of the model's copy were used
    /// up.
    pub unrecorded: IntCounter,
    /// Time from push until a device starts on the job, per job: until it is taken, and then behind batches that began before its first
    /// one.
    pub queue_seconds: Histogram,
    /// Time to assemble the batch, per batch.
    pub stage_seconds: Late,
    /// Time to run the engine, per batch.
    pub compute_seconds: Late,
    /// Time from the result to the end of the reply, per job.
    pub reply_seconds: Late,
}

impl DeviceMetrics {
    fn new(families: &Families, device: &str) -> DeviceMetrics {
        let stage = |stage| Late::new(&families.stages, &[device, stage]);
        DeviceMetrics {
            batch_items: Late::new(&families.batch_items, &[device]),
            padding: families.padding.with_label_values(&[device]),
            items: families.items.with_label_values(&[device]),
            failed: FailReason::LABELS.map(|reason| families.failed.with_label_values(&[device, reason])),
            again: FailReason::LABELS.map(|reason| families.again.with_label_values(&[device, reason])),
            fallbacks: families.fallbacks.clone(),
            ceiling: families.ceiling.clone(),
            device: device.to_owned(),
            unrecorded: families.unrecorded.with_label_values(&[device]),
            // Created from the start: autoscalers read it and take a missing metric for a fault.
            queue_seconds: families.stages.with_label_values(&[device, "queue"]),
            stage_seconds: stage("stage"),
            compute_seconds: stage("compute"),
            reply_seconds: stage("reply"),
        }
    }

    /// Counts a batch that failed, and those of its jobs that run again.
    pub fn failed(&self, reason: FailReason, again: usize) {
        self.failed[reason as usize].inc();
        self.again[reason as usize].inc_by(again as u64);
    }

    /// Counts a job that this device answered in place of another; `reason` is one of a few values.
    pub fn fell_back(&self, reason: &'static str) {
        self.fallbacks.with_label_values(&[&self.device, reason]).inc();
    }

    /// Sets how many items the largest batch may have from now on; `None` for a full batch.
    pub fn set_ceiling(&self, items: Option<usize>) {
        match items {
            Some(items) => self.ceiling.with_label_values(&[&self.device]).set(items as i64),
            // Fails only if none was set.
            None => {
                let _ = self.ceiling.remove_label_values(&[&self.device]);
            }
        }
    }

    /// Counts a batch of `items` that was padded to `size`.
    pub fn batch(&self, items: usize, size: usize) {
        self.batch_items.observe(items as f64);
        self.items.inc_by(items as u64);
        self.padding.inc_by(size.saturating_sub(items) as u64);
    }
}
