//! Limits set by options, exported beside the gauges that they limit, so that a dashboard needs no knowledge of the
//! options.

use super::register::Register;
use prometheus::IntGauge;

/// The limits. Each is in the units of the gauge with the same name without `_max`, unless its own description names
/// another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// `requests_in_flight_max`.
    pub requests_in_flight: u64,
    /// `in_flight_bytes_max`.
    pub in_flight_bytes: u64,
    /// `queue_items_max`, all models together.
    pub queue_items: u64,
    /// `queue_bytes_max`.
    pub queue_bytes: u64,
    /// `decode_bytes_max`.
    pub decode_bytes: u64,
    /// `decode_threads`.
    pub decode_threads: u64,
    /// [`memory_limit`](crate::telemetry::host::memory_limit), which bounds the process's resident memory.
    pub memory_bytes: u64,
}

/// The gauges of [`Bounds`].
#[derive(Debug)]
pub(super) struct BoundMetrics {
    requests_in_flight: IntGauge,
    in_flight_bytes: IntGauge,
    queue_items: IntGauge,
    queue_bytes: IntGauge,
    decode_bytes: IntGauge,
    decode_threads: IntGauge,
    memory_bytes: IntGauge,
}

impl BoundMetrics {
    pub(super) fn new(register: &mut Register) -> BoundMetrics {
        let mut bound = |name, help| register.gauge(name, help);
        BoundMetrics {
            requests_in_flight: bound(
                "ocelli_requests_in_flight_max",
                "Limit on requests in flight; more are refused.",
            ),
            in_flight_bytes: bound(
                "ocelli_in_flight_bytes_max",
                "Limit on bytes of request bodies and of what replies hold; more are refused.",
            ),
            queue_items: bound(
                "ocelli_queue_items_max",
                "Limit on items of all models together; more are refused.",
            ),
            queue_bytes: bound("ocelli_queue_bytes_max", "Limit on bytes of model input; more are refused."),
            decode_bytes: bound(
                "ocelli_decode_bytes_max",
                "Limit on bytes reserved for decoded images; decodes wait for their share.",
            ),
            decode_threads: bound(
                "ocelli_decode_threads",
                "Threads of the decode pool; work beyond one for each waits.",
            ),
            memory_bytes: bound(
                "ocelli_memory_bytes_max",
                "Memory that the process may use: the limit of its control group, or all memory of the machine.",
            ),
        }
    }

    pub(super) fn set(&self, bounds: Bounds) {
        let Bounds {
            requests_in_flight,
            in_flight_bytes,
            queue_items,
            queue_bytes,
            decode_bytes,
            decode_threads,
            memory_bytes,
        } = bounds;
        for (gauge, bound) in [
            (&self.requests_in_flight, requests_in_flight),
            (&self.in_flight_bytes, in_flight_bytes),
            (&self.queue_items, queue_items),
            (&self.queue_bytes, queue_bytes),
            (&self.decode_bytes, decode_bytes),
            (&self.decode_threads, decode_threads),
            (&self.memory_bytes, memory_bytes),
        ] {
            gauge.set(i64::try_from(bound).unwrap_or(i64::MAX));
        }
    }
}
