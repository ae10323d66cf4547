//! The keeper of the CPU. The CPU serves beside GPUs, or stands in for those that are away, and it can be drained like any device. If one
//! of its threads has ended by itself, the CPU is taken anew.

use super::{
    super::{Devices, device::Hold, health::Over, parts::NO_MODEL},
    EndingHolds, PAUSE_AFTER_PANIC, survive,
};
use crate::{
    batch::queue::Absence,
    status::{Cause, DeviceState},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two tries to take it anew.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const DRAINED: &str = "drained by request";

/// Keeps the CPU until the server ends.
pub(super) fn keep(devices: &Arc<Devices>, index: usize) {
    let mut keeper = Keeper {
        devices,
        index,
        ending: EndingHolds::default(),
        drained: false,
        failed: false,
        refused: None,
        vain: None,
    };
    let (id, mut goes_on) = (&*devices.devices[index].id, devices.keepers.pause());
    while goes_on {
        // If a turn panics, workers keep serving; the next turn starts afresh.
        goes_on = match survive(id, || keeper.attend()) {
            Ok(()) => devices.keepers.pause(),
            Err(_) => devices.keepers.pause_for(PAUSE_AFTER_PANIC),
        };
    }
}

struct Keeper<'a> {
    devices: &'a Devices,
    index: usize,
    ending: EndingHolds,
    /// An operator asked for it to be left alone.
    drained: bool,
    /// A thread of it has ended by itself.
    failed: bool,
    /// Why it could not be taken anew, and when that is tried again.
    refused: Option<(String, Instant)>,
    /// The reason published, since it was taken anew, why it serves nothing; `None` once it serves something.
    vain: Option<String>,
}

impl Keeper<'_> {
    /// One turn.
    fn attend(&mut self) {
        let (devices, index) = (self.devices, self.index);
        let (device, status) = (&devices.devices[index], &devices.parts.status);
        let now = Instant::now();
        device.hold().iter().for_each(|hold| hold.end_unwanted(now));
        self.ending.end_unwanted(now);
        if device.hold().is_none()
            && let Some(hold) = device.let_go()
        {
            if let Some(Over::Failed(reason)) = hold.health.over() {
                tracing::error!(device = &*device.id, reason, "the CPU is taken anew");
                status.set_device(&device.id, DeviceState::Fenced, Cause::Fault, reason);
            }
            self.ending.push(hold);
            self.failed = true;
        }
        let asked = status.is_drained(&device.id);
        match (asked, device.hold()) {
            (true, _) if !self.drained => {
                self.refused = None;
                tracing::info!(device = &*device.id, "{DRAINED}");
                // Before its workers leave: jobs that only it can run must not wait for somebody to resume it.
                devices.parts.queue.expect(&device.id, Absence { reason: DRAINED.into(), back: None });
                if let Some(hold) = device.let_go() {
                    hold.health.end(Over::Left);
                    self.ending.push(hold);
                }
                status.set_device(&device.id, DeviceState::Fenced, Cause::Drain, DRAINED);
            }
            (true, _) => {}
            (false, Some(hold)) => {
                serve(devices, index, &hold);
                if self.vain.is_some() {
                    self.tell(&hold);
                }
            }
            (false, None) if self.ending.is_done() => self.retake(now),
            (false, None) => {}
        }
        self.drained = asked;
        self.ending.is_done();
    }

    /// Takes it again, after a thread of it has ended or it was resumed. Tries that again after a pause if the system refuses.
    fn retake(&mut self, now: Instant) {
        let (devices, index) = (self.devices, self.index);
        let (device, queue) = (&devices.devices[index], &devices.parts.queue);
        match &self.refused {
            Some((_, again)) if now < *again => return,
            Some(_) => {}
            None => {
                let (cause, reason) = match self.failed {
                    true => (Cause::Taken, "taking it anew, and loading models"),
                    false => (Cause::Resume, "resumed by request"),
                };
                // The queue is told first: callers wait for it.
                queue.expect(&device.id, Absence { reason: reason.into(), back: Some(now) });
                devices.parts.status.set_device(&device.id, DeviceState::Warming, cause, reason);
            }
        }
        match device.take(&devices.parts) {
            Ok(hold) => {
                (self.failed, self.refused) = (false, None);
                serve(devices, index, &hold);
                hold.complete();
                self.vain = Some(String::new());
                self.tell(&hold);
            }
            Err(not) => {
                let reason = not.refusal.to_string();
                if self.refused.as_ref().is_none_or(|(before, _)| *before != reason) {
                    tracing::warn!(device = &*device.id, reason, "not taken again yet");
                    queue.expect(&device.id, Absence { reason: reason.as_str().into(), back: None });
                }
                self.refused = Some((reason, now + RETRY_PAUSE));
            }
        }
    }

    /// Says why it serves nothing, to operators and to callers, until it serves something.
    fn tell(&mut self, hold: &Hold) {
        let (devices, index) = (self.devices, self.index);
        if !devices.book.is_empty_on(index) {
            self.vain = None;
            return;
        }
        let refused = devices.book.refused(index, hold);
        let refused: Vec<String> =
            refused.into_iter().map(|(model, why)| format!("{model}: {why}")).collect();
        let reason = if refused.is_empty() { NO_MODEL.to_owned() } else { refused.join("; ") };
        if self.vain.as_ref() != Some(&reason) {
            let id = &devices.devices[index].id;
            // The queue is told first: a caller that has seen the state must be answered in line with it.
            let absence = Absence { reason: reason.as_str().into(), back: None };
            devices.parts.queue.expect(id, absence);
            devices.parts.status.set_device(id, DeviceState::Waiting, Cause::Empty, &reason);
            self.vain = Some(reason);
        }
    }
}

/// Loads models that should run here and do not yet. Pauses those that should not run here now.
fn serve(devices: &Devices, index: usize, hold: &Arc<Hold>) {
    if let Err(refusal) = devices.catch_up(index, hold) {
        tracing::warn!(device = &*hold.health.device, reason = %refusal, "a model is not served here");
    }
    devices.load_waiting_on(index, hold);
    devices.book.balance(index, hold, &devices.sharing);
}
