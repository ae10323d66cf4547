//! Metrics of devices, copied in just before a scrape.

use super::register::Register;
use prometheus::{
    CounterVec, GaugeVec, IntCounter, IntCounterVec, IntGaugeVec,
    core::{MetricVec, MetricVecBuilder},
};
use std::collections::BTreeMap;

/// Readings of a device. A reading that is missing has no sample, except that counters keep their last value.
#[derive(Debug, Clone, Default)]
pub struct Readings {
    /// Bytes by kind: `total`, `free`, `own`, `others`, `needed`.
    pub memory_bytes: Vec<(&'static str, Option<u64>)>,
    /// Other processes that compute on it.
    pub others: Option<usize>,
    /// Fraction of time in use, 0 to 1.
    pub utilization: Option<f64>,
    /// °C.
    pub temperature_c: Option<u32>,
    /// Whether its clocks are lowered now, by reason.
    pub throttled: Vec<(&'static str, Option<bool>)>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrectable memory errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// PCI Express transfers that had to be repeated, since the driver was loaded.
    pub pcie_replays: Option<u64>,
    /// Xid errors, by number.
    pub xids: BTreeMap<u64, u64>,
    /// Total seconds spent waiting for it.
    pub waited_s: f64,
}

/// The metric families of devices.
#[derive(Debug)]
pub struct DeviceFamilies {
    state: IntGaugeVec,
    transitions: IntCounterVec,
    memory: IntGaugeVec,
    others: IntGaugeVec,
    utilization: GaugeVec,
    temperature: GaugeVec,
    throttled: IntGaugeVec,
    power: GaugeVec,
    energy: CounterVec,
    corrected: IntCounterVec,
    uncorrected: IntCounterVec,
    replays: IntCounterVec,
    xids: IntCounterVec,
    waited: CounterVec,
}

impl DeviceFamilies {
    pub(super) fn new(register: &mut Register) -> DeviceFamilies {
        let device = &["device"];
        DeviceFamilies {
            state: register.gauges(
                "ocelli_device_state",
                "1 for the current state of a device, 0 for the other states.",
                &["device", "state"],
            ),
            transitions: register.counters(
                "ocelli_device_transitions_total",
                "Times that a device entered a state, by reason.",
                &["device", "state", "reason"],
            ),
            memory: register.gauges(
                "ocelli_device_memory_bytes",
                "A GPU's memory, by kind.",
                &["device", "kind"],
            ),
            others: register.gauges(
                "ocelli_device_other_processes",
                "Other processes that compute on a GPU.",
                device,
            ),
            utilization: register.float_gauges(
                "ocelli_device_utilization_ratio",
                "Share of time in which a kernel of any process ran on a GPU, 0 to 1.",
                device,
            ),
            temperature: register.float_gauges(
                "ocelli_device_temperature_celsius",
                "Temperature of a GPU.",
                device,
            ),
            throttled: register.gauges(
                "ocelli_device_throttled",
                "1 while a GPU's clocks are lowered, 0 while they are not, by cause.",
                &["device", "cause"],
            ),
            power: register.float_gauges("ocelli_device_power_watts", "Power that a GPU draws.", device),
            energy: register.float_counters(
                "ocelli_device_energy_joules_total",
                "Energy that a GPU has used since its driver was loaded.",
                device,
            ),
            corrected: register.counters(
                "ocelli_device_ecc_corrected_total",
                "Memory errors of a GPU that were corrected, since its driver was loaded.",
                device,
            ),
            uncorrected: register.counters(
                "ocelli_device_ecc_uncorrected_total",
                "Memory errors of a GPU that could not be corrected, since its driver was loaded.",
                device,
            ),
            replays: register.counters(
                "ocelli_device_pcie_replays_total",
                "PCI Express transfers that a GPU had to repeat, since its driver was loaded.",
                device,
            ),
            xids: register.counters(
                "ocelli_device_xids_total",
                "Xid errors of a GPU since the server started.",
                &["device", "xid"],
            ),
            waited: register.float_counters(
                "ocelli_device_wait_seconds_total",
                "Time that the server has waited for a GPU.",
                device,
            ),
        }
    }

    /// Sets which of its possible `states` a device is in now.
    pub fn set_state(&self, device: &str, states: &[&str], now: &str) {
        for state in states {
            self.state.with_label_values(&[device, state]).set(i64::from(*state == now));
        }
    }

    /// Sets how often a device has entered a state in total.
    pub fn set_transitions(&self, [device, state, reason]: [&str; 3], count: u64) {
        let counter = self.transitions.with_label_values(&[device, state, reason]);
        counter.inc_by(count.saturating_sub(counter.get()));
    }

    /// Sets the current readings of a device.
    pub fn set(&self, device: &str, seen: &Readings) {
        let label = &[device];
        for (kind, bytes) in &seen.memory_bytes {
            match bytes {
                Some(bytes) => self.memory.with_label_values(&[device, kind]).set(*bytes as i64),
                None => forget(&self.memory, &[device, kind]),
            }
        }
        match seen.others {
            Some(others) => self.others.with_label_values(label).set(others as i64),
            None => forget(&self.others, label),
        }
        for (kind, lowered) in &seen.throttled {
            match lowered {
                Some(lowered) => self.throttled.with_label_values(&[device, kind]).set(i64::from(*lowered)),
                None => forget(&self.throttled, &[device, kind]),
            }
        }
        for (gauge, value) in [
            (&self.utilization, seen.utilization),
            (&self.temperature, seen.temperature_c.map(f64::from)),
            (&self.power, seen.power_w),
        ] {
            match value {
                Some(value) => gauge.with_label_values(label).set(value),
                None => forget(gauge, label),
            }
        }
        for (counter, value) in [(&self.energy, seen.energy_j), (&self.waited, Some(seen.waited_s))] {
            if let Some(value) = value {
                let counter = counter.with_label_values(label);
                counter.inc_by((value - counter.get()).max(0.0));
            }
        }
        for (counter, count) in [
            (&self.corrected, seen.ecc_corrected),
            (&self.uncorrected, seen.ecc_uncorrected),
            (&self.replays, seen.pcie_replays),
        ] {
            if let Some(count) = count {
                follow(&counter.with_label_values(label), count);
            }
        }
        for (xid, count) in &seen.xids {
            follow(&self.xids.with_label_values(&[device, &xid.to_string()]), *count);
        }
    }
}

/// Sets a counter to an external count. If that has restarted, as after a GPU reset, the counter restarts too: scrapers handle counter
/// resets.
fn follow(counter: &IntCounter, count: u64) {
    if count < counter.get() {
        counter.reset();
    }
    counter.inc_by(count - counter.get());
}

/// Removes a sample.
fn forget<M: MetricVecBuilder>(gauges: &MetricVec<M>, labels: &[&str]) {
    // Fails only if the sample was never set.
    let _ = gauges.remove_label_values(labels);
}
