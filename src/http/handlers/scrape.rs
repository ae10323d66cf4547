//! All metrics at the time of a scrape.

use crate::{
    config::TritonMetrics,
    http::Front,
    models::Model,
    status::{Device, DeviceInfo, DeviceState, THROTTLES},
    telemetry::{
        host,
        metrics::{EndReason, Readings, RefuseReason},
        triton,
    },
};
use prometheus::IntCounter;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

/// The listener on which metrics are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Listener {
    /// Beside the API.
    Api,
    /// On the admin listener, or on the one for metrics.
    Apart,
}

impl Front {
    /// All metrics, in Prometheus' text format.
    pub(super) fn scrape(&self, listener: Listener) -> String {
        self.gauge();
        let mut text = self.metrics.render();
        let tritons = match self.triton_metrics {
            TritonMetrics::On => true,
            TritonMetrics::Apart => listener == Listener::Apart,
            TritonMetrics::Off => false,
        };
        if tritons {
            let (models, load) = (self.catalog.ready(), self.queue.load());
            let pending = |key| load.of(key).map_or(0, |load| load.waiting);
            let version = |model| {
                let Model { name, version, key, statistics, .. }: &Model = model;
                triton::Version {
                    model: name,
                    version,
                    counts: statistics.snapshot(),
                    pending: pending(*key),
                }
            };
            let versions: Vec<_> = models.iter().map(|model| version(model)).collect();
            let devices = self.status.devices();
            let gpus: Vec<_> = devices.iter().filter(|device| device.seen.name.is_some()).map(gpu).collect();
            triton::write(&mut text, &versions, self.host.look(), &gpus);
        }
        text
    }

    /// Copies what others count into the gauges, just before a scrape reads them.
    fn gauge(&self) {
        // Two scrapes at once would each add what was counted since the last one.
        let _one_at_a_time = self.scrape.lock();
        let metrics = &self.metrics;
        let flight = self.admission.in_flight();
        let connections = &self.connections;
        metrics.http_connections.set(connections.open.load(Ordering::Relaxed) as i64);
        metrics.http_listeners_full.set(connections.full.load(Ordering::Relaxed) as i64);
        let counted = |counter: &IntCounter, count: u64| counter.inc_by(count.saturating_sub(counter.get()));
        for (counter, count) in [
            (&metrics.http_connections_total, &connections.accepted),
            (&metrics.http_connections_capped_total, &connections.capped),
            (&metrics.http_accept_errors_total, &connections.accept_errors),
            (metrics.ended(EndReason::Idle), &connections.ended_idle),
            (metrics.ended(EndReason::Header), &connections.ended_header),
            (metrics.ended(EndReason::Stalled), &connections.ended_stalled),
            (metrics.ended(EndReason::Evicted), &connections.ended_evicted),
            (&metrics.http_streams_reset_total, &connections.streams_reset),
        ] {
            counted(counter, count.load(Ordering::Relaxed));
        }
        counted(metrics.refused(RefuseReason::Requests), flight.refused_requests);
        counted(metrics.refused(RefuseReason::Bytes), flight.refused_bytes);
        metrics
            .log_lines_lost_total
            .iter()
            .zip(self.lines_lost.counts())
            .for_each(|(of, lost)| counted(of, lost));
        metrics.log_waiting_bytes.set(self.lines_lost.waiting_bytes() as i64);
        if let Some(traces) = &self.traces {
            metrics
                .trace_spans_lost_total
                .iter()
                .zip(traces.spans_lost())
                .for_each(|(of, lost)| counted(of, lost));
        }
        metrics.ready.set(self.status.ready(Instant::now()).is_ok().into());
        metrics.requests_in_flight.set(flight.requests as i64);
        metrics.in_flight_bytes.set(flight.bytes as i64);
        counted(&metrics.gpu_jpegs_total, self.decode.gpu_jpegs());
        counted(&metrics.decode_in_vain_total, self.decode.in_vain());
        metrics.shared_memory_regions.set(self.shared_memory.count() as i64);
        let [read, written] = self.shared_memory.bytes();
        counted(&metrics.shared_memory_read_bytes_total, read);
        counted(&metrics.shared_memory_written_bytes_total, written);
        metrics.set_memory_used(host::memory_used());
        metrics.decode_bytes.set(self.decode.bytes() as i64);
        metrics.decode_jobs.set(self.decode.jobs() as i64);
        let load = self.queue.load();
        metrics.queue_bytes.set(load.bytes as i64);
        metrics.queue_oldest_age_seconds.set(load.oldest.unwrap_or_default().as_secs_f64());
        // The queue still lists a model that has left the catalog while some of it may run, and forgets it after that.
        let known = metrics.models().into_iter().map(|name| (name, 0));
        let mut items: BTreeMap<Arc<str>, usize> = known.collect();
        for of_version in load.models {
            *items.entry(of_version.name).or_default() += of_version.items;
        }
        for (name, items) in items {
            metrics.model(&name).queue_items.set(items as i64);
        }
        for device in self.status.devices() {
            let states = DeviceState::ALL.map(DeviceState::name);
            metrics.devices.set_state(&device.id, &states, device.state.name());
            metrics.devices.set(&device.id, &readings(&device.seen));
        }
        for ((device, state, cause), count) in self.status.transitions() {
            metrics.devices.set_transitions([&device, state.name(), cause.name()], count);
        }
    }
}

/// A GPU, as Triton's metrics have it.
fn gpu(device: &Device) -> triton::Gpu<'_> {
    let seen = &device.seen;
    let used = seen.memory_bytes.zip(seen.memory_free_bytes).map(|(total, free)| total.saturating_sub(free));
    triton::Gpu {
        uuid: &device.id,
        utilization: seen.utilization_percent.map(|percent| f64::from(percent) / 100.0),
        memory_bytes: seen.memory_bytes,
        memory_used_bytes: used,
        power_w: seen.power_w,
        power_limit_w: seen.power_limit_w,
        energy_j: seen.energy_j,
    }
}

/// What is seen of a device, as metrics have it.
fn readings(seen: &DeviceInfo) -> Readings {
    Readings {
        memory_bytes: vec![
            ("total", seen.memory_bytes),
            ("free", seen.memory_free_bytes),
            ("own", seen.memory_own_bytes),
            ("others", seen.others_bytes),
            ("needed", seen.memory_needed_bytes),
        ],
        others: seen.processes.as_ref().map(Vec::len),
        utilization: seen.utilization_percent.map(|percent| f64::from(percent) / 100.0),
        temperature_c: seen.temperature_c,
        power_w: seen.power_w,
        energy_j: seen.energy_j,
        throttled: THROTTLES
            .into_iter()
            .enumerate()
            .map(|(at, kind)| (kind, seen.throttled.map(|by| by[at])))
            .collect(),
        ecc_corrected: seen.ecc_corrected,
        ecc_uncorrected: seen.ecc_uncorrected,
        pcie_replays: seen.pcie_replays.map(u64::from),
        xids: seen.xids.clone(),
        waited_s: seen.waited.as_secs_f64(),
    }
}
