//! Loads models onto the devices that they may run on, proves each with a forward pass per batch size, hands the engines to
//! workers and publishes the models.
//!
//! Loading happens on a thread of its own, so that models that are ready serve meanwhile. On several devices it happens at once.

mod load;
mod swap;
#[cfg(test)]
mod tests;
mod waiting;

use super::{
    book::Book,
    device::{CPU, Device},
    keeper::Keepers,
    meanwhile::meanwhile,
    parts::{NO_MODEL, Parts, Sharing, Wanted},
    place::Kind,
    plan::Footprint,
};
use crate::{
    engine::cuda::jpeg::JpegOnGpu,
    error::panic_words,
    models::{Found, Model, State},
    status::{Cause, DeviceState},
    telemetry::metrics::ModelState,
};
use parking_lot::Mutex;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};
pub use swap::NotReloaded;
use waiting::NotLoaded;

/// The index of the CPU in the list of devices, if it is there.
const CPU_INDEX: usize = 0;

/// How often the log says that a load still goes on.
const STILL_EVERY: Duration = Duration::from_secs(60);

/// The devices, and the loading of models onto them.
pub struct Devices {
    pub(super) parts: Parts,
    pub(super) sharing: Sharing,
    pub(super) devices: Vec<Device>,
    pub(super) book: Book,
    next_key: AtomicU64,
    leaving: Mutex<Vec<swap::Leaving>>,
    /// Held to load or unload a model, one at a time. A device that is taken anew loads the served models without it.
    turn: Mutex<()>,
    pub(super) keepers: Keepers,
}

/// A model that was loaded; `ocelli check` prints it.
pub struct Loading {
    /// The model, as it was published.
    pub model: Arc<Model>,
    /// For each device, what loading took, or why it failed.
    pub on: Vec<(Arc<str>, Result<LoadedOn, String>)>,
}

/// What loading a model onto one device took.
pub struct LoadedOn {
    /// Reading and optimising the file, and all forward passes, of all instances.
    pub load: Duration,
    /// One forward pass at the smallest size after warm-up.
    pub canary: Duration,
    /// The largest batch that it gets there, in items, where that is not the model's largest.
    pub largest: Option<usize>,
    /// What it holds on a device with memory of its own.
    pub footprint: Option<Footprint>,
}

impl Devices {
    /// Takes the CPU, and starts to look after the GPUs: each is taken when it is free, and until then its state says why it is not ours.
    ///
    /// # Errors
    /// If no device can ever be had, or the system refuses a thread.
    pub fn start(parts: Parts, wanted: &Wanted) -> Result<Arc<Devices>, String> {
        let mut devices = Vec::new();
        if wanted.cpu {
            devices.push(Device::cpu());
            parts.status.set_device(CPU, DeviceState::Waiting, Cause::Empty, NO_MODEL);
        }
        let mut refused = Vec::new();
        for gpu in &wanted.gpus {
            match gpu.check() {
                Ok(()) => {
                    parts.status.set_device(&gpu.id, DeviceState::Waiting, Cause::Start, "not looked at yet");
                    devices.push(Device::gpu(gpu, wanted.sharing.stuck_timeout));
                }
                Err(reason) => {
                    tracing::warn!(gpu = gpu.id, reason, "a GPU cannot be used");
                    parts.status.set_device(&gpu.id, DeviceState::Waiting, Cause::Refused, &reason);
                    refused.push(reason);
                }
            }
        }
        if devices.is_empty() {
            return Err(refused.join("; "));
        }
        for cpu in devices.iter().filter(|device| device.kind == Kind::Cpu) {
            cpu.take(&parts).map_err(|not| not.refusal.to_string())?;
        }
        let beside = parts.jpeg.as_ref().map_or(0, JpegOnGpu::device_bytes);
        let devices = Arc::new(Devices {
            parts,
            sharing: wanted.sharing.clone(),
            devices,
            book: Book::new(wanted.sharing.state_folder.as_deref(), beside),
            next_key: AtomicU64::new(1),
            leaving: Mutex::default(),
            turn: Mutex::default(),
            keepers: Keepers::default(),
        });
        devices
            .keepers
            .start(&devices)
            .map_err(|error| format!("cannot start a thread for a device: {error}"))?;
        Ok(devices)
    }

    /// Publishes that these models are about to be loaded; from now on, GPUs that they need are taken.
    pub fn announce(&self, found: &[Found]) {
        if found.iter().any(|found| found.source.is_ok())
            && let Some(cpu) = self.devices.iter().find(|device| device.kind == Kind::Cpu)
        {
            self.parts.status.set_device(&cpu.id, DeviceState::Warming, Cause::Taken, "loading models");
        }
        // Models that want GPUs for themselves go first: the first one by name gets them, and others are placed elsewhere.
        let sources = || found.iter().filter_map(|found| found.source.as_ref().ok());
        for source in sources().filter(|source| source.manifest.placement.exclusive) {
            if let Ok(placed) = self.place(source) {
                self.book.claim(source, &placed.on);
            }
        }
        for found in found {
            if let Ok(source) = &found.source {
                self.book.announce(
                    source,
                    self.place(source)
                        .map(|placed| placed.on.into_iter().chain(placed.stands_in).collect())
                        .unwrap_or_default(),
                );
            }
            self.publish(found, State::Loading);
        }
        self.keepers.begin();
        self.count();
    }

    /// Loads the announced models one after the other, and publishes each result in the catalog.
    ///
    /// `stop` is checked between models: a server that is told to end does not load the rest.
    pub fn load_all(&self, found: &[Found], stop: &dyn Fn() -> bool) {
        self.keepers.decided();
        for found in found {
            if stop() {
                return;
            }
            // The result is in the catalog and in the log.
            let _ = self.load(found);
            self.count();
        }
        self.book.forget_announced();
        if let Some(cpu) = self.devices.iter().find(|device| device.kind == Kind::Cpu)
            && self.book.is_empty_on(CPU_INDEX)
        {
            self.parts.status.set_device(&cpu.id, DeviceState::Waiting, Cause::Empty, NO_MODEL);
        }
    }

    /// Waits until it is known which GPUs can be had at present.
    pub fn decided(&self) {
        self.keepers.decided();
    }

    /// Publishes a model's state in the catalog and in the metrics.
    fn publish(&self, found: &Found, state: State) {
        let counted = match &state {
            State::Loading => ModelState::Loading,
            State::Ready(_) => ModelState::Ready,
            State::Unavailable(_) => ModelState::Unavailable,
        };
        self.parts.metrics.add_model(&found.name).set_state(&found.version, counted);
        self.parts.catalog.set(&found.name, &found.version, state);
    }

    fn count(&self) {
        self.parts.status.set_models(self.parts.catalog.counts());
    }

    /// Loads one model and publishes it, or the reason why it cannot be served. If all its devices are away, or have no room for it now,
    /// it waits until one of them is back or has room.
    ///
    /// # Errors
    /// The reason.
    pub fn load(&self, found: &Found) -> Result<Loading, String> {
        let _turn = self.turn.lock();
        self.load_now(found)
    }

    /// Like [`Devices::load`], for a caller that holds `turn`.
    fn load_now(&self, found: &Found) -> Result<Loading, String> {
        match self.try_load(found) {
            Ok(loading) => {
                self.present(found, &loading);
                self.book.stop_waiting_for(found);
                Ok(loading)
            }
            Err(why) => {
                let reason = why.reason().to_owned();
                self.not_loaded(found, why);
                Err(reason)
            }
        }
    }

    /// Loads one model without publishing it. A model that does not meet the caller's expectation is unloaded again.
    fn try_load(&self, found: &Found) -> Result<Loading, NotLoaded> {
        let source = found.source.clone().map_err(NotLoaded::Failed)?;
        let expected = source.expected.clone();
        let (model, version, began) = (found.name.clone(), found.version.clone(), Instant::now());
        tracing::info!(model, version, "loading model");
        let still = move || {
            let seconds = began.elapsed().as_secs();
            tracing::warn!(model, version, seconds, "the model is still being loaded");
        };
        let load = || catch_unwind(AssertUnwindSafe(|| self.load_source(source)));
        let loading = meanwhile(STILL_EVERY, still, load).unwrap_or_else(|panic| {
            Err(NotLoaded::Failed(format!("loading panicked: {}", panic_words(&panic))))
        })?;
        if let Err(why) = expected.check(&loading.model) {
            self.leave(loading.model);
            // No request can use it yet.
            self.let_go();
            return Err(NotLoaded::Unexpected(why));
        }
        Ok(loading)
    }

    /// Whether the server is ending: loads are abandoned then, which says nothing of their models.
    pub fn ends(&self) -> bool {
        self.parts.status.draining()
    }

    /// Publishes a loaded model: from now on requests find it.
    fn present(&self, found: &Found, loading: &Loading) {
        let (model, version) = (&found.name, &found.version);
        for (device, result) in &loading.on {
            let device = &**device;
            match result {
                Ok(LoadedOn { load, canary, .. }) => {
                    tracing::info!(model, version, device, ?load, ?canary, "model is ready");
                }
                Err(_) if self.ends() => {}
                Err(reason) => tracing::warn!(model, version, device, reason, "the model is not served here"),
            }
        }
        let load = loading.on.iter().filter_map(|(_, on)| on.as_ref().ok()).map(|on| on.load).max();
        loading.model.statistics.loaded(load.unwrap_or_default());
        self.publish(found, State::Ready(Arc::clone(&loading.model)));
    }

    /// Waits until all workers have ended: the queue must be closed first.
    pub fn join(&self) {
        self.keepers.join();
        for device in &self.devices {
            if let Some(hold) = device.let_go().and_then(Arc::into_inner) {
                hold.join();
            }
        }
    }
}
