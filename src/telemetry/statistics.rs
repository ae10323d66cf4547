//! Statistics of the requests for one loaded version of a model, since it was loaded. Triton's clients ask for them as
//! *statistics*; `telemetry::triton` exports them as metrics.
//!
//! A *request* is one inference request, however many batches it takes and in whatever form its reply is sent; or one image or
//! frame of a prediction, or one piece of a stack. Counting a request takes a few atomic additions. Only counting a batch takes a
//! lock, which readers hold only briefly.

use crate::words::named;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

named! {
    /// Why a request failed, as in Triton's metrics.
    Failure {
        /// Refused because of a full queue, a deadline or a drain.
        Rejected = "REJECTED",
        /// The caller went away.
        Cancelled = "CANCELED",
        /// The engine refused it, or no device could run it.
        Backend = "BACKEND",
        /// Anything else.
        Other = "OTHER",
    }
}

/// How often something happened, and its total time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// How often.
    pub count: u64,
    /// Total time in nanoseconds.
    pub ns: u64,
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Counter {
    fn add(&self, took: Duration) {
        self.ns.fetch_add(ns(took), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self) -> Sum {
        Sum { count: self.count.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) }
    }
}

fn ns(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

/// How the time of a request divides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Waiting for a device.
    pub queue: Duration,
    /// Assembling its batch.
    pub input: Duration,
    /// Running it.
    pub infer: Duration,
    /// Writing the reply.
    pub output: Duration,
}

/// The batches of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batches {
    /// Batches that ran.
    pub count: u64,
    /// Nanoseconds spent assembling them.
    pub input_ns: u64,
    /// Nanoseconds spent running them.
    pub infer_ns: u64,
    /// Nanoseconds spent handing out their results.
    pub output_ns: u64,
}

/// The counts of one loaded version of a model.
#[derive(Debug, Default)]
pub struct Statistics {
    success: Counter,
    failures: [Counter; Failure::ALL.len()],
    queue: Counter,
    input: Counter,
    infer: Counter,
    output: Counter,
    items: AtomicU64,
    batches: Mutex<BTreeMap<usize, Batches>>,
    last_ms: AtomicU64,
    load_ns: AtomicU64,
    held: Mutex<BTreeMap<Arc<str>, Held>>,
}

/// The memory that a version holds on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The GPU's number in this process.
    pub ordinal: usize,
    /// Measured when it was loaded there: all of its instances with their largest batches.
    pub bytes: u64,
}

/// All counts at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Requests that were answered; time from entering the queue to the end of the reply.
    pub success: Sum,
    /// Requests that failed, by [`Failure`].
    pub failures: [Sum; Failure::ALL.len()],
    /// Time spent waiting for a device, of the requests that were answered.
    pub queue: Sum,
    /// Time spent assembling their batches.
    pub input: Sum,
    /// Time spent running their batches.
    pub infer: Sum,
    /// Time spent writing their replies.
    pub output: Sum,
    /// Items that were run.
    pub items: u64,
    /// Batches that were run.
    pub executions: u64,
    /// Batches by their number of items.
    pub batches: BTreeMap<usize, Batches>,
    /// When the last batch ran, in milliseconds since 1970; 0 if none did.
    pub last_ms: u64,
    /// How long it took to load the model.
    pub load: Duration,
}

impl Snapshot {
    /// All failures together.
    pub fn fail(&self) -> Sum {
        let add = |sum: Sum, other: &Sum| Sum { count: sum.count + other.count, ns: sum.ns + other.ns };
        self.failures.iter().fold(Sum::default(), add)
    }
}

impl Statistics {
    /// Counts a request that was answered `total` after it was queued; the steps divide that time.
    pub fn answered(&self, total: Duration, Steps { queue, input, infer, output }: Steps) {
        self.success.add(total);
        self.queue.add(queue);
        self.input.add(input);
        self.infer.add(infer);
        self.output.add(output);
    }

    /// Counts a request that failed.
    pub fn failed(&self, why: Failure, total: Duration) {
        self.failures[why as usize].add(total);
    }

    /// Counts a batch of `items` items that ran.
    pub fn ran(&self, items: usize, input: Duration, infer: Duration) {
        self.items.fetch_add(items as u64, Ordering::Relaxed);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_ms.fetch_max(since_1970.as_millis() as u64, Ordering::Relaxed);
        let mut batches = self.batches.lock();
        let batch = batches.entry(items).or_default();
        batch.count += 1;
        batch.input_ns += ns(input);
        batch.infer_ns += ns(infer);
    }

    /// Records how long it took to hand out the results of a batch of `items` items.
    pub fn handed_out(&self, items: usize, took: Duration) {
        self.batches.lock().entry(items).or_default().output_ns += ns(took);
    }

    /// Records how long it took to load the model.
    pub fn loaded(&self, took: Duration) {
        self.load_ns.store(ns(took), Ordering::Relaxed);
    }

    /// Records what the version holds on a GPU after a load; `None` if the load failed.
    pub fn holds(&self, device: &Arc<str>, held: Option<Held>) {
        let mut all = self.held.lock();
        match held {
            Some(held) => all.insert(Arc::clone(device), held),
            None => all.remove(device),
        };
    }

    /// What the version holds on GPUs, by device name; for GPUs that it has released since, what it held.
    pub fn held(&self) -> BTreeMap<Arc<str>, Held> {
        self.held.lock().clone()
    }

    /// All counts now.
    pub fn snapshot(&self) -> Snapshot {
        let batches = self.batches.lock().clone();
        Snapshot {
            success: self.success.sum(),
            failures: Failure::ALL.map(|failure| self.failures[failure as usize].sum()),
            queue: self.queue.sum(),
            input: self.input.sum(),
            infer: self.infer.sum(),
            output: self.output.sum(),
            items: self.items.load(Ordering::Relaxed),
            executions: batches.values().map(|batch| batch.count).sum(),
            batches,
            last_ms: self.last_ms.load(Ordering::Relaxed),
            load: Duration::from_nanos(self.load_ns.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn every_step_of_an_answered_request_is_counted_once() {
        let statistics = Statistics::default();
        statistics.ran(3, us(5), us(70));
        statistics.answered(us(104), Steps { queue: us(20), input: us(5), infer: us(70), output: us(4) });
        statistics.handed_out(3, us(2));
        let now = statistics.snapshot();
        assert_eq!(now.success, Sum { count: 1, ns: 104_000 });
        let steps = [now.queue, now.input, now.infer, now.output];
        assert_eq!(steps.map(|step| step.count), [1; 4]);
        assert_eq!(steps.map(|step| step.ns), [20_000, 5_000, 70_000, 4_000]);
        assert_eq!((now.items, now.executions), (3, 1));
        let batch = Batches { count: 1, input_ns: 5_000, infer_ns: 70_000, output_ns: 2_000 };
        assert_eq!(now.batches, BTreeMap::from([(3, batch)]));
        assert!(now.last_ms > 1_700_000_000_000, "{}", now.last_ms);
        assert_eq!(now.fail(), Sum::default());
    }

    #[test]
    fn failures_are_counted_by_their_reason_and_together() {
        let statistics = Statistics::default();
        statistics.failed(Failure::Rejected, us(1));
        statistics.failed(Failure::Rejected, us(2));
        statistics.failed(Failure::Other, us(3));
        let now = statistics.snapshot();
        assert_eq!(now.failures.map(|sum| sum.count), [2, 0, 0, 1]);
        assert_eq!(now.fail(), Sum { count: 3, ns: 6_000 });
        assert_eq!((now.success.count, now.items), (0, 0));
    }
}
