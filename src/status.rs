//! What the process knows about itself: live, draining, devices, models, and from them whether it is ready.
//!
//! **Live** says that the data path's runtime still runs its tasks (one of them calls [`Status::beat`] every few seconds),
//! and that not all devices are GPUs which this process cannot use again after faults. Not live means that only a restart
//! helps.
//!
//! **Ready** says that a request sent now can be answered. It turns true when
//!
//! 1. the models that were there at the start have been loaded, or have failed to (the first time that none is
//!    loading; models that are loaded later do not take readiness away),
//! 2. at least one model is ready, and
//! 3. at least one device is serving, which it is after a forward pass that worked; one that did, and was given back because
//!    nobody needed it, counts as well: it is taken again for whoever does;
//!
//! and it turns back when the last serving device is lost or fenced, when no model is left that works, or for good
//! with [`Status::begin_drain`]. A full queue does not turn it: that is an answer to one caller (429), while an
//! unready replica takes its load to others, which would then be full as well.

mod device;

pub use device::{Cause, Device, DeviceState, HeldModel, Seen, THROTTLES};

use parking_lot::{Mutex, RwLock};
use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// The data path has stopped when its last beat is older than this.
pub const BEAT_AGE_MAX: Duration = Duration::from_secs(30);

/// How often devices came to a state, and by what.
pub type Transitions = BTreeMap<(String, DeviceState, Cause), u64>;

/// How many models (versions of models, where there are several) are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Loaded and warm.
    pub ready: usize,
    /// On the way.
    pub loading: usize,
    /// Refused, with a reason that the catalog holds.
    pub unavailable: usize,
}

/// The process's own state. Shared behind an `Arc`; nothing in it is held longer than a look.
#[derive(Debug)]
pub struct Status {
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    beat_ms: AtomicU64,
    draining: AtomicBool,
    /// Whether it was ready when the log told of that last.
    told_ready: Mutex<Option<bool>>,
    /// When what is not answered yet is cut.
    cut_from: RwLock<Option<Instant>>,
    devices: RwLock<BTreeMap<String, Device>>,
    transitions: RwLock<Transitions>,
    /// Why it makes no sense to go on.
    hopeless: OnceLock<String>,
    models: RwLock<Models>,
    /// What is to be done where there is no model.
    without_models: OnceLock<&'static str>,
    no_gpu: OnceLock<Vec<String>>,
    /// Tells whoever waits for it that something was said of a device.
    told: Notify,
}

#[derive(Debug, Default)]
struct Models {
    counts: ModelCounts,
    /// Whether the models of the start are through: said once, never taken back.
    loaded: bool,
}

impl Status {
    /// The state of a process that has just started: live, and not ready.
    pub fn new(now: Instant) -> Status {
        Status {
            started: now,
            beat_ms: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            told_ready: Mutex::default(),
            cut_from: RwLock::default(),
            devices: RwLock::default(),
            transitions: RwLock::default(),
            hopeless: OnceLock::new(),
            models: RwLock::default(),
            without_models: OnceLock::new(),
            no_gpu: OnceLock::new(),
            told: Notify::new(),
        }
    }

    /// Says that the data path still runs. Called every few seconds by a task of its runtime.
    pub fn beat(&self, now: Instant) {
        // The largest wins: two tasks may beat, and not in order.
        self.beat_ms.fetch_max(self.since_start_ms(now), Ordering::Relaxed);
    }

    /// Whether the last beat (or the start, before the first) is at most [`BEAT_AGE_MAX`] old, and a device may serve again
    /// without a restart.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn live(&self, now: Instant) -> Result<(), String> {
        let age = self.since_start_ms(now).saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        if u128::from(age) > BEAT_AGE_MAX.as_millis() {
            return Err(format!("the data path has stood still for {} s", age / 1000));
        }
        // One that was refused at the start was never in question, and a server that drains ends anyway.
        let mut devices = self.devices();
        devices.retain(|device| device.cause != Cause::Refused);
        let lost = !devices.is_empty() && devices.iter().all(|device| device.cause == Cause::Poisoned);
        if lost && !self.draining() {
            let list: Vec<_> = devices.iter().map(Device::stands).collect();
            return Err(format!("no device can be used without a restart: {}", list.join(", ")));
        }
        Ok(())
    }

    fn since_start_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }

    /// From now on unready, for good. True for the first who says so.
    pub fn begin_drain(&self) -> bool {
        !self.draining.swap(true, Ordering::SeqCst)
    }

    /// Whether [`Status::begin_drain`] was called.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Says when requests that are not answered are cut. The earliest time that was said counts.
    pub fn cut_from(&self, at: Instant) {
        let mut from = self.cut_from.write();
        *from = Some(from.map_or(at, |known| known.min(at)));
    }

    /// Whether a request that goes now without an answer was cut: it is not its caller who went away.
    pub fn cuts(&self, now: Instant) -> bool {
        self.cut_from.read().is_some_and(|from| now >= from)
    }

    /// Sets where a device stands and why, adding it when it is new. `reason` may be empty. True where it stood elsewhere.
    pub fn set_device(&self, id: &str, state: DeviceState, cause: Cause, reason: &str) -> bool {
        let mut devices = self.devices.write();
        let known = devices.contains_key(id);
        let device = devices.entry(id.into()).or_insert_with(|| Device::new(id));
        let moved = !known || device.state != state;
        if moved {
            device.since = Instant::now();
            let mut transitions = self.transitions.write();
            *transitions.entry((id.into(), state, cause)).or_default() += 1;
        }
        if device.reason != reason {
            device.reason = reason.into();
        }
        (device.state, device.cause) = (state, cause);
        drop(devices);
        self.told.notify_waiters();
        moved
    }

    /// Says what is seen of a device that is known.
    pub fn see_device(&self, id: &str, seen: Seen) {
        let mut devices = self.devices.write();
        if let Some(device) = devices.get_mut(id) {
            device.seen = seen;
        }
    }

    /// Asks for a device to be left alone, or to be used again; whoever keeps it sees that soon. None where there is none of
    /// this name, else whether it was asked for anew.
    pub fn drain_device(&self, id: &str, drained: bool) -> Option<bool> {
        let mut devices = self.devices.write();
        devices.get_mut(id).map(|device| std::mem::replace(&mut device.drained, drained) != drained)
    }

    /// Waits until whoever keeps a device has heeded what was asked last. A device that is not there is not waited for.
    pub async fn heeded(&self, id: &str) {
        loop {
            // Before the look: what is said from now on wakes it.
            let told = self.told.notified();
            let heeded = {
                let devices = self.devices.read();
                devices.get(id).is_none_or(Device::heeds)
            };
            if heeded {
                return;
            }
            told.await;
        }
    }

    /// Whether somebody asked for a device to be left alone.
    pub fn is_drained(&self, id: &str) -> bool {
        let devices = self.devices.read();
        devices.get(id).is_some_and(|device| device.drained)
    }

    /// All devices, by id.
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.devices.read();
        devices.values().cloned().collect()
    }

    /// How often devices came to each state, and by what.
    pub fn transitions(&self) -> Transitions {
        self.transitions.read().clone()
    }

    /// Says that the server cannot do what it is for, and will not be able to: it ends. The first reason counts.
    pub fn give_up(&self, reason: String) {
        // Whoever comes second has nothing to add.
        let _ = self.hopeless.set(reason);
    }

    /// Why the server is to end, if it is.
    pub fn hopeless(&self) -> Option<&str> {
        self.hopeless.get().map(String::as_str)
    }

    /// Sets how many models are in which state. The first call in which none is loading ends the start: call it
    /// with all of them in `loading` before the first is loaded, or only after the last.
    pub fn set_models(&self, counts: ModelCounts) {
        let mut models = self.models.write();
        models.counts = counts;
        models.loaded |= counts.loading == 0;
    }

    /// Says what is to be done where there is no model. What was said first counts.
    pub fn say_without_models(&self, how: &'static str) {
        let _ = self.without_models.set(how);
    }

    /// Says why there are no GPUs, or not all, though they were looked for. What was said first counts.
    pub fn say_no_gpu(&self, reasons: Vec<String>) {
        let _ = self.no_gpu.set(reasons);
    }

    /// What [`Status::say_no_gpu`] said.
    pub fn no_gpu(&self) -> &[String] {
        self.no_gpu.get().map_or(&[], Vec::as_slice)
    }

    /// What [`Status::set_models`] said last.
    pub fn models(&self) -> ModelCounts {
        let models = self.models.read();
        models.counts
    }

    /// Whether a request sent now can be answered, by the rules at the top of this file. Once the start is over, the log tells what came
    /// of it, and each change, once, however often this is asked.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn ready(&self) -> Result<(), String> {
        let now = self.stands();
        // Of the start tells each model, and of a drain whoever began it.
        let news = self.models.read().loaded
            && !self.draining()
            && self.told_ready.lock().replace(now.is_ok()) != Some(now.is_ok());
        match &now {
            Ok(()) if news => tracing::info!("the server is ready"),
            Err(reason) if news => tracing::warn!(reason, "the server is not ready"),
            _ => {}
        }
        now
    }

    fn stands(&self) -> Result<(), String> {
        if self.draining() {
            return Err("the server is draining".into());
        }
        self.models_ready()?;
        let devices = self.devices();
        // One that was given back because nobody needed it is taken again for whoever does.
        if devices.iter().any(|device| device.state.runs() || device.cause == Cause::Idle) {
            return Ok(());
        }
        if devices.is_empty() {
            return Err("no device has been found yet".into());
        }
        let list: Vec<_> = devices.iter().map(Device::stands).collect();
        Err(format!("no device is serving: {}", list.join(", ")))
    }

    fn models_ready(&self) -> Result<(), String> {
        let models = self.models.read();
        let ModelCounts { ready, loading, unavailable } = models.counts;
        let all = ready + loading + unavailable;
        if !models.loaded {
            return Err(match all {
                0 => "the models have not been looked at yet".into(),
                all => format!("{loading} of {all} models are still loading"),
            });
        }
        match (ready, all) {
            (0, 0) => {
                let how = self.without_models.get().map(|how| format!(": {how}"));
                Err(format!("no model is loaded{}", how.unwrap_or_default()))
            }
            (0, all) => {
                Err(format!("no model is ready: {unavailable} of {all} unavailable, {loading} loading"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn counts(ready: usize, loading: usize, unavailable: usize) -> ModelCounts {
        ModelCounts { ready, loading, unavailable }
    }

    fn serving() -> Status {
        let status = Status::new(Instant::now());
        status.set_models(counts(1, 0, 0));
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
        status
    }

    fn check(status: &Status, expected: Result<(), &str>) {
        assert_eq!(status.ready(), expected.map_err(String::from));
    }

    #[test]
    fn is_live_until_the_last_beat_is_thirty_seconds_old() {
        let t0 = Instant::now();
        let s = Duration::from_secs;
        let status = Status::new(t0);
        assert_eq!(status.live(t0 + s(30)), Ok(()));
        assert_eq!(status.live(t0 + s(31)), Err("the data path has stood still for 31 s".into()));
        status.beat(t0 + s(31));
        assert_eq!(status.live(t0 + s(61)), Ok(()));
        assert_eq!(status.live(t0 + s(62)), Err("the data path has stood still for 31 s".into()));
        status.beat(t0 + s(5));
        assert_eq!(status.live(t0 + s(61)), Ok(()), "a late beat does not turn time back");
        assert_eq!(status.live(t0), Ok(()), "a clock that is read early is not a fault");
    }

    #[test]
    fn is_not_live_once_every_gpu_is_lost_to_this_process_and_nothing_else_may_serve() {
        use DeviceState::{Fenced, Lost, Serving, Waiting, Warming};
        let poisoned = (Fenced, Cause::Poisoned);
        for (devices, live) in [
            (&[poisoned][..], false),
            (&[poisoned, poisoned], false),
            // It is being tried.
            (&[poisoned, (Warming, Cause::Poisoned)], false),
            // Too old for the server, which never uses it.
            (&[poisoned, (Waiting, Cause::Refused)], false),
            (&[(Waiting, Cause::Refused)], true),
            (&[(Fenced, Cause::Fault)], true),
            (&[poisoned, (Serving, Cause::Proved)], true),
            (&[poisoned, (Waiting, Cause::Contended)], true),
            (&[poisoned, (Lost, Cause::Bus)], true),
            // Whoever asked for it to be left alone may ask for it to be used again.
            (&[poisoned, (Fenced, Cause::Drain)], true),
            (&[], true),
        ] {
            let t0 = Instant::now();
            let status = Status::new(t0);
            for (gpu, (state, cause)) in devices.iter().enumerate() {
                status.set_device(&format!("GPU-{gpu}"), *state, *cause, "restart it");
            }
            assert_eq!(status.live(t0).is_ok(), live, "{devices:?}");
            if let Err(why) = status.live(t0) {
                assert!(why.contains("GPU-0 is fenced (restart it)"), "{why}");
            }
            // The CPU, where it may serve, needs no restart; nor does a server that ends.
            status.set_device("cpu", Waiting, Cause::Empty, "");
            assert_eq!(status.live(t0), Ok(()), "{devices:?}");
        }
        let t0 = Instant::now();
        let status = Status::new(t0);
        status.set_device("GPU-0", Fenced, Cause::Poisoned, "");
        status.begin_drain();
        assert_eq!(status.live(t0), Ok(()));
    }

    #[test]
    fn is_ready_once_models_are_loaded_and_a_device_serves() {
        let status = Status::new(Instant::now());
        check(&status, Err("the models have not been looked at yet"));
        status.set_models(counts(1, 2, 0));
        check(&status, Err("2 of 3 models are still loading"));
        status.set_models(counts(2, 0, 1));
        check(&status, Err("no device has been found yet"));
        status.set_device("cpu", DeviceState::Warming, Cause::Start, "");
        check(&status, Err("no device is serving: cpu is warming"));
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
        check(&status, Ok(()));
    }

    #[test]
    fn losing_the_last_device_turns_readiness_back_and_its_return_turns_it_again() {
        let status = serving();
        status.set_device("GPU-1", DeviceState::Serving, Cause::Start, "");
        status.set_device("cpu", DeviceState::Lost, Cause::Start, "");
        check(&status, Ok(()));
        status.set_device("GPU-1", DeviceState::Fenced, Cause::Start, "Xid 79");
        check(&status, Err("no device is serving: GPU-1 is fenced (Xid 79), cpu is lost"));
        status.set_device("GPU-1", DeviceState::Suspect, Cause::Start, "slow");
        check(&status, Ok(()));
    }

    #[test]
    fn a_model_that_is_loaded_later_does_not_take_readiness_away() {
        let status = serving();
        status.set_models(counts(1, 1, 0));
        check(&status, Ok(()));
        status.set_models(counts(1, 0, 1));
        check(&status, Ok(()));
    }

    #[test]
    fn a_replica_whose_models_all_failed_or_left_is_not_ready() {
        let status = serving();
        status.set_models(counts(0, 0, 2));
        check(&status, Err("no model is ready: 2 of 2 unavailable, 0 loading"));
        status.set_models(counts(0, 0, 0));
        check(&status, Err("no model is loaded"));
        status.say_without_models("restart");
        check(&status, Err("no model is loaded: restart"));
        status.set_models(counts(1, 0, 0));
        check(&status, Ok(()));
    }

    #[tokio::test]
    async fn an_order_is_heeded_once_the_device_stands_where_it_leads() {
        let status = serving();
        status.heeded("cpu").await;
        for (drained, state, cause) in
            [(true, DeviceState::Fenced, Cause::Drain), (false, DeviceState::Warming, Cause::Resume)]
        {
            assert_eq!(status.drain_device("cpu", drained), Some(true));
            let heeded = status.heeded("cpu");
            tokio::pin!(heeded);
            assert!(heeded.as_mut().now_or_never().is_none(), "{drained}: nobody has done anything yet");
            status.set_device("GPU-1", state, cause, "");
            assert!(heeded.as_mut().now_or_never().is_none(), "{drained}: that was another one");
            status.set_device("cpu", state, cause, "");
            heeded.await;
        }
        status.heeded("GPU-7").await;
    }

    #[test]
    fn draining_is_unready_for_good_and_stays_live() {
        let t0 = Instant::now();
        let status = serving();
        assert!(status.begin_drain());
        assert!(!status.begin_drain(), "only the first begins it");
        check(&status, Err("the server is draining"));
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
        check(&status, Err("the server is draining"));
        assert_eq!(status.live(t0), Ok(()));
    }
}
