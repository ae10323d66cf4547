//! What is reported about a GPU: to the queue, to people, to the log.

use super::{
    super::super::{
        claim::Outlook,
        probe::{
            Sample,
            others::{Others, Ourselves},
        },
    },
    super::away::Standing,
    Keeper,
};
use crate::{
    batch::queue::Absence,
    config::WhileWaiting,
    status::{Cause, DeviceInfo, DeviceState, HeldModel},
};
use std::time::{Duration, Instant};

/// The first interval between two log lines about one wait, which doubles each time, and the longest.
const REPORT: Duration = Duration::from_secs(5);
const REPORT_MAX: Duration = Duration::from_secs(300);

impl Keeper {
    /// Publishes its state.
    pub(super) fn show(&mut self, now: Instant) {
        let (state, cause, reason) =
            (self.claim.states.state(), self.claim.states.cause(), self.claim.states.reason());
        let status = &self.devices.parts.status;
        if self.hold.is_none() {
            self.expect(now);
        }
        if status.set_device(&self.gpu.id, state, cause, reason) {
            // Taking it out, and taking it so that it serves, have been logged where they happened.
            let told = matches!(state, DeviceState::Fenced | DeviceState::Lost)
                || matches!(cause, Cause::Proved | Cause::Poisoned);
            if !told {
                tracing::info!(
                    device = &*self.gpu.id,
                    state = state.name(),
                    reason,
                    "the GPU's state changed"
                );
            }
        }
        self.seen.models = self.models();
        if let Some((_, sample)) = &self.sample {
            let models = self.seen.models.iter().map(HeldModel::bytes).sum();
            fill(&mut self.seen, sample, &self.ourselves.with_models(models));
        }
        let refused = self.hold.as_ref().map(|hold| self.devices.book.refused(self.index, hold));
        self.seen.refused = refused.unwrap_or_default();
        if self.hold.is_some() {
            self.seen.verdict = match &self.seen.processes {
                Some(others) if others.is_empty() => "ours".into(),
                Some(others) => format!("ours, shared with {} processes", others.len()),
                None => "ours".into(),
            };
        }
        self.seen.waited = self.waited_before + self.claim.lease.waited(now);
        status.see_device(&self.gpu.id, self.seen.clone());
    }

    /// What models hold of it, if it is ours.
    pub(super) fn models(&self) -> Vec<HeldModel> {
        let free = self.sample.as_ref().and_then(|(_, sample)| sample.memory).map(|memory| memory.free);
        let held = self.hold.as_ref().map(|hold| self.devices.book.held(self.index, hold, free));
        held.unwrap_or_default()
    }

    /// Tells the queue why the GPU is away, and when it should be back.
    pub(super) fn expect(&self, now: Instant) {
        let waits = self.devices.sharing.while_waiting == WhileWaiting::Wait;
        let outlook = Outlook { patient: self.idle || waits, hangs: self.ending.hangs(now) };
        let reason = self.claim.states.reason().into();
        let absence = Absence { reason, back: self.claim.back(now, outlook) };
        self.devices.parts.queue.expect(&self.devices.devices[self.index].id, absence);
    }

    /// Reports a wait for the GPU, and gives up when it has lasted too long.
    pub(super) fn patience(&mut self, now: Instant) {
        // A GPU that became faulty while nobody needed it cannot be taken on demand.
        let idle = self.idle && self.claim.states.state() == DeviceState::Waiting;
        let standing = match self.hold.is_some() || idle || self.drained {
            true => Standing::There,
            false if self.devices.book.needs(self.index) => Standing::Awaited,
            false => Standing::Unneeded,
        };
        let away = self.devices.keepers.away(self.index, standing, now);
        if standing != Standing::Awaited {
            return;
        }
        let waited = self.claim.lease.waited(now);
        let available = self.seen.memory_free_bytes;
        let (required, reason) = (self.seen.memory_needed_bytes, self.claim.states.reason());
        let device = &*self.gpu.id;
        let (due, pause) = *self.next_report.get_or_insert((now + REPORT, REPORT));
        if now >= due {
            tracing::info!(
                device,
                elapsed_s = waited.as_secs(),
                available_bytes = available,
                required_bytes = required,
                reason,
                "waiting for the GPU"
            );
            let pause = (pause * 2).min(REPORT_MAX);
            self.next_report = Some((now + pause, pause));
        }
        if let Some(limit) = self.devices.sharing.gpu_timeout
            && let Some(away) = away
            && away >= limit
            // A GPU that is being taken gets its try.
            && self.devices.devices.iter().all(|device| device.hold().is_none())
        {
            let reason = format!(
                "backend is gpu, and none could be had for {} s (gpu_timeout_ms): {device} is {} ({reason})",
                away.as_secs(),
                self.claim.states.state().name()
            );
            self.devices.parts.status.give_up(reason);
        }
    }
}

/// Fills in what a sample shows, for people.
fn fill(seen: &mut DeviceInfo, sample: &Sample, ourselves: &Ourselves) {
    let others = ourselves.others(sample);
    seen.memory_free_bytes = sample.memory.map(|memory| memory.free);
    seen.memory_own_bytes = Some(ourselves.held(sample));
    seen.others_bytes = others.memory();
    seen.processes = match others {
        Others::Processes(list) => Some(list.iter().map(|process| (process.pid, process.memory)).collect()),
        Others::Memory(_) | Others::Unknown => None,
    };
    seen.utilization_percent = sample.utilization_percent;
    seen.temperature_c = sample.temperature_c;
    (seen.slowdown_c, seen.shutdown_c) = (sample.slowdown_c, sample.shutdown_c);
    seen.throttled = sample.throttled.map(|why| [why.thermal, why.power_brake, why.power_cap]);
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
    seen.power_w = sample.power_mw.map(watts);
    seen.power_limit_w = sample.power_limit_mw.map(watts);
    seen.energy_j = sample.energy_mj.map(|energy| energy as f64 / 1000.0);
    (seen.ecc_corrected, seen.ecc_uncorrected) = (sample.ecc_corrected, sample.ecc_uncorrected);
    (seen.pcie_replays, seen.mig) = (sample.pcie_replays, sample.mig);
}
