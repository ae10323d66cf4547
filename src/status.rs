//! The status of the process: live, draining, devices, models, and, derived from these, ready.
//!
//! **Live** means that the data path's runtime still runs its tasks (one of them calls [`Status::beat`] every few seconds),
//! and that the devices are not all GPUs which faults have made unusable for this process. If the process is not live, only a
//! restart helps.
//!
//! **Ready** means that a request sent now can be answered. It becomes true when
//!
//! 1. the models that were present at the start have been loaded or have failed to load (that is, the first time that no
//!    model is loading; models that are loaded later do not take readiness away),
//! 2. at least one model is ready; or there is none, and callers bring them (`repository_mode = "explicit"`), whose loads are requests
//!    like others, and
//! 3. at least one device is serving: a forward pass on it has succeeded. A device that was serving and was released because
//!    it was idle counts as well: it is taken again when a request needs it. So does one of an empty server, and
//! 4. the data path runs its tasks, with less patience than for the process to count as live: it costs nothing to be asked no more
//!    for a while.
//!
//! It becomes false again when the last serving device is lost or fenced, when no working model is left, while the data path stands
//! still, or, for good, with [`Status::begin_drain`]. A full queue does not change it: the caller gets a 429. An unready replica would shift its
//! load to other replicas, which would then be full as well.

mod device;

pub use device::{Cause, Device, DeviceInfo, DeviceState, HeldModel, THROTTLES};

use parking_lot::{Mutex, RwLock};
use std::{
    collections::BTreeMap,
    iter,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// The data path counts as stopped when its last beat is older than this.
pub const BEAT_AGE_MAX: Duration = Duration::from_secs(30);
/// It is not ready when that is older than this.
const READY_BEAT_AGE_MAX: Duration = Duration::from_secs(10);

/// How often each device entered each state, by cause.
pub type Transitions = BTreeMap<(String, DeviceState, Cause), u64>;

/// How many models (versions of models, where there are several) are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Loaded and warm.
    pub ready: usize,
    /// Being loaded.
    pub loading: usize,
    /// Refused; the catalog holds the reason.
    pub unavailable: usize,
}

/// The process's own state. Shared behind an `Arc`; no lock in it is held longer than one read or write takes.
#[derive(Debug)]
pub struct Status {
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    beat_ms: AtomicU64,
    draining: AtomicBool,
    /// The readiness that was logged last.
    told_ready: Mutex<Option<bool>>,
    /// From when on requests without an answer are cut off.
    cut_from: RwLock<Option<Instant>>,
    /// Cancelled at that time.
    cut: CancellationToken,
    devices: RwLock<BTreeMap<String, Device>>,
    transitions: RwLock<Transitions>,
    /// Why the server gives up.
    hopeless: OnceLock<String>,
    models: RwLock<Models>,
    /// What to do if there is no model, for the message that says so.
    pub without_models: Option<&'static str>,
    /// Whether the server is as ready without any: callers bring and take them.
    pub may_be_empty: bool,
    /// Why GPUs that were looked for, some or all, are missing.
    pub no_gpu: Vec<String>,
    /// Notified when the status of a device changes.
    told: Notify,
}

#[derive(Debug, Default)]
struct Models {
    counts: ModelCounts,
    /// Whether the models of the start have all been loaded or have failed. Never becomes false again.
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
            cut: CancellationToken::new(),
            devices: RwLock::default(),
            transitions: RwLock::default(),
            hopeless: OnceLock::new(),
            models: RwLock::default(),
            without_models: None,
            may_be_empty: false,
            no_gpu: Vec::new(),
            told: Notify::new(),
        }
    }

    /// Records that the data path still runs. A task of its runtime calls this every few seconds.
    pub fn beat(&self, now: Instant) {
        // The latest wins: two tasks may beat out of order.
        self.beat_ms.fetch_max(self.since_start_ms(now), Ordering::Relaxed);
    }

    /// Whether the last beat (or, before the first, the start) is at most [`BEAT_AGE_MAX`] old, and the devices do not all need a
    /// restart before they can serve again.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn live(&self, now: Instant) -> Result<(), String> {
        self.moves(now, BEAT_AGE_MAX)?;
        // A device that was refused at the start was never usable, so it does not count. A draining server ends anyway.
        let mut devices = self.devices();
        devices.retain(|device| device.cause != Cause::Refused);
        let lost = !devices.is_empty() && devices.iter().all(|device| device.cause == Cause::Poisoned);
        if lost && !self.draining() {
            let list: Vec<_> = devices.iter().map(Device::stands).collect();
            return Err(format!("no device can be used without a restart: {}", list.join(", ")));
        }
        Ok(())
    }

    /// Whether the last beat is at most so old.
    fn moves(&self, now: Instant, age_max: Duration) -> Result<(), String> {
        let age = self.since_start_ms(now).saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        match u128::from(age) > age_max.as_millis() {
            true => Err(format!("the data path has stood still for {} s", age / 1000)),
            false => Ok(()),
        }
    }

    fn since_start_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }

    /// Makes the process unready from now on, for good.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether [`Status::begin_drain`] was called.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Sets the time from which unanswered requests are cut off. The earliest time that was set counts.
    pub fn cut_from(&self, at: Instant) {
        let mut from = self.cut_from.write();
        *from = Some(from.map_or(at, |known| known.min(at)));
    }

    /// Cuts off the requests that have no answer now.
    pub fn cut(&self, now: Instant) {
        self.cut_from(now);
        self.cut.cancel();
    }

    /// Waits for [`Status::cut`].
    pub fn until_cut(&self) -> WaitForCancellationFuture<'_> {
        self.cut.cancelled()
    }

    /// Whether a request that ends now without an answer was cut off by the server, rather than abandoned by its caller.
    pub fn cuts(&self, now: Instant) -> bool {
        self.cut_from.read().is_some_and(|from| now >= from)
    }

    /// Sets a device's state and its cause, adding the device if it is new. `reason` may be empty. True if the state has changed.
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

    /// Sets what has been measured of a device. Unknown devices are ignored.
    pub fn see_device(&self, id: &str, seen: DeviceInfo) {
        let mut devices = self.devices.write();
        if let Some(device) = devices.get_mut(id) {
            device.seen = seen;
        }
    }

    /// Asks for a device to be drained, or to be used again; its keeper sees that soon. `None` if there is no device of this
    /// name, else whether the request changed anything.
    pub fn drain_device(&self, id: &str, drained: bool) -> Option<bool> {
        let mut devices = self.devices.write();
        devices.get_mut(id).map(|device| std::mem::replace(&mut device.drained, drained) != drained)
    }

    /// Waits until the keeper of a device has acted on the last [`Status::drain_device`]. Returns at once for an unknown device.
    pub async fn heeded(&self, id: &str) {
        loop {
            // Registered before the check: any later change wakes it.
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

    /// Whether an operator has drained a device.
    pub fn is_drained(&self, id: &str) -> bool {
        let devices = self.devices.read();
        devices.get(id).is_some_and(|device| device.drained)
    }

    /// All devices, by id.
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.devices.read();
        devices.values().cloned().collect()
    }

    /// How often each device entered each state, by cause.
    pub fn transitions(&self) -> Transitions {
        self.transitions.read().clone()
    }

    /// Declares that the server cannot work and never will: it then exits. The first reason counts.
    pub fn give_up(&self, reason: String) {
        // Only the first reason is kept.
        let _ = self.hopeless.set(reason);
    }

    /// Why the server has to exit, if it has to.
    pub fn hopeless(&self) -> Option<&str> {
        self.hopeless.get().map(String::as_str)
    }

    /// Sets how many models are in each state. The first call with none loading ends the start: call this with all models
    /// in `loading` before the first is loaded, or only after the last has been.
    pub fn set_models(&self, counts: ModelCounts) {
        let mut models = self.models.write();
        models.counts = counts;
        models.loaded |= counts.loading == 0;
    }

    /// What [`Status::set_models`] said last.
    pub fn models(&self) -> ModelCounts {
        let models = self.models.read();
        models.counts
    }

    /// Whether a request sent now can be answered, by the rules at the top of this file. Once the start is over, its outcome and each
    /// later change are logged, once each, however often this is called.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        let now = self.stands(now);
        // Not logged here: the start, which each model logs, and a drain, which whoever began it logs.
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

    fn stands(&self, now: Instant) -> Result<(), String> {
        if self.draining() {
            return Err("it is draining".into());
        }
        let devices = self.devices();
        self.models_ready(&devices)?;
        self.moves(now, READY_BEAT_AGE_MAX)?;
        // A device that was released because it was idle is taken again when a request needs it. One that no model runs on yet is tried
        // with the first that is loaded.
        let is_empty = self.models() == ModelCounts::default();
        let may_serve = |device: &Device| {
            let waits = device.cause == Cause::Idle || is_empty && device.cause == Cause::Empty;
            device.state.runs() || waits
        };
        if devices.iter().any(may_serve) {
            return Ok(());
        }
        if devices.is_empty() {
            return Err("no device has been found yet".into());
        }
        let list: Vec<_> = devices.iter().map(Device::stands).collect();
        Err(format!("no device is serving: {}", list.join(", ")))
    }

    fn models_ready(&self, devices: &[Device]) -> Result<(), String> {
        let models = self.models.read();
        let ModelCounts { ready, loading, unavailable } = models.counts;
        let all = ready + loading + unavailable;
        if !models.loaded {
            return Err(match all {
                0 => "the models have not been looked at yet".into(),
                // What they may wait for is told as well.
                all => {
                    let away = devices.iter().filter(|device| !device.state.runs()).map(Device::stands);
                    let told = iter::once(format!("{loading} of {all} models are still loading"));
                    told.chain(away).collect::<Vec<_>>().join("; ")
                }
            });
        }
        match (ready, all) {
            (0, 0) if self.may_be_empty => Ok(()),
            (0, 0) => {
                let how = self.without_models.map(|how| format!(": {how}"));
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
        assert_eq!(status.ready(Instant::now()), expected.map_err(String::from));
    }

    #[test]
    fn is_not_ready_while_the_data_path_stands_still() {
        let (status, t0, s) = (serving(), Instant::now(), Duration::from_secs);
        assert_eq!(status.ready(t0 + s(10)), Ok(()));
        assert_eq!(status.ready(t0 + s(12)), Err("the data path has stood still for 12 s".into()));
        status.beat(t0 + s(12));
        assert_eq!(status.ready(t0 + s(13)), Ok(()));
    }

    #[test]
    fn what_loading_models_may_wait_for_is_told() {
        let status = Status::new(Instant::now());
        status.set_models(counts(0, 1, 0));
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
        status.set_device("gpu", DeviceState::Waiting, Cause::Start, "others use it");
        check(&status, Err("1 of 1 models are still loading; gpu is waiting (others use it)"));
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
            // It is being tried again.
            (&[poisoned, (Warming, Cause::Poisoned)], false),
            // Too old for the server, which never uses it.
            (&[poisoned, (Waiting, Cause::Refused)], false),
            (&[(Waiting, Cause::Refused)], true),
            (&[(Fenced, Cause::Fault)], true),
            (&[poisoned, (Serving, Cause::Proved)], true),
            (&[poisoned, (Waiting, Cause::Contended)], true),
            (&[poisoned, (Lost, Cause::Bus)], true),
            // The operator who drained it may ask for it to be used again.
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
            // The CPU, where it may serve, needs no restart; nor does a draining server.
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
        let mut status = serving();
        status.set_models(counts(0, 0, 2));
        check(&status, Err("no model is ready: 2 of 2 unavailable, 0 loading"));
        status.set_models(counts(0, 0, 0));
        check(&status, Err("no model is loaded"));
        status.without_models = Some("restart");
        check(&status, Err("no model is loaded: restart"));
        status.set_models(counts(1, 0, 0));
        check(&status, Ok(()));
    }

    #[test]
    fn where_callers_bring_the_models_none_is_as_ready_and_one_that_failed_is_not() {
        let mut status = Status::new(Instant::now());
        status.may_be_empty = true;
        check(&status, Err("the models have not been looked at yet"));
        status.set_models(counts(0, 0, 0));
        status.set_device("cpu", DeviceState::Waiting, Cause::Empty, "");
        check(&status, Ok(()));
        status.set_models(counts(0, 0, 1));
        check(&status, Err("no model is ready: 1 of 1 unavailable, 0 loading"));
        status.set_models(counts(0, 0, 0));
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
        status.begin_drain();
        check(&status, Err("it is draining"));
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
        check(&status, Err("it is draining"));
        assert_eq!(status.live(t0), Ok(()));
    }
}
