//! The keeper of the CPU: it serves beside GPUs, or stands in for those that are away; and it is drained like any device. Where
//! a thread of it has ended by itself, it is taken anew.

use super::{
    super::{Devices, device::Hold, health::Over, supervisor::NO_MODEL},
    Ending,
};
use crate::status::{Cause, DeviceState};
use std::sync::Arc;

/// Keeps the CPU until the server ends.
pub(super) fn keep(devices: &Arc<Devices>, index: usize) {
    let (device, status) = (&devices.devices[index], &devices.parts.status);
    let mut ending = Ending::default();
    let (mut drained, mut failed) = (false, false);
    while devices.keepers.pause() {
        if device.hold().is_none()
            && let Some(hold) = device.let_go()
        {
            if let Some(Over::Failed(reason)) = hold.health.over() {
                tracing::error!(device = &*device.id, reason, "the CPU is taken anew");
                status.set_device(&device.id, DeviceState::Fenced, Cause::Fault, reason);
            }
            ending.push(hold);
            failed = true;
        }
        let asked = status.is_drained(&device.id);
        match (asked, device.hold()) {
            (true, _) if !drained => {
                tracing::info!(device = &*device.id, "drained by request");
                if let Some(hold) = device.let_go() {
                    hold.health.end(Over::Left);
                    ending.push(hold);
                }
                status.set_device(&device.id, DeviceState::Fenced, Cause::Drain, "drained by request");
            }
            (true, _) => {}
            (false, Some(hold)) => serve(devices, index, &hold),
            (false, None) if ending.is_done() => {
                let (cause, reason) = match std::mem::take(&mut failed) {
                    true => (Cause::Taken, "taking it anew, and loading models"),
                    false => (Cause::Resume, "resumed by request"),
                };
                status.set_device(&device.id, DeviceState::Warming, cause, reason);
                match device.take(&devices.parts) {
                    Ok(hold) => {
                        serve(devices, index, &hold);
                        if devices.book.is_empty_on(index) {
                            status.set_device(&device.id, DeviceState::Waiting, Cause::Empty, NO_MODEL);
                        }
                    }
                    Err(not) => {
                        tracing::warn!(device = &*device.id, reason = %not.refusal, "not resumed yet");
                    }
                }
            }
            (false, None) => {}
        }
        drained = asked;
        ending.is_done();
    }
}

/// What is to run here, and does not yet, is loaded; what is not to run here now is not begun.
fn serve(devices: &Devices, index: usize, hold: &Arc<Hold>) {
    if let Err(refusal) = devices.catch_up(index, hold) {
        tracing::warn!(device = &*hold.health.device, reason = %refusal, "a model is not served here");
    }
    devices.load_waiting_on(index);
    devices.book.balance(index, hold, &devices.sharing);
}
