//! What the process knows about itself: live, draining, devices, models, and from them whether it is ready.
//!
//! **Live** says that the data path's runtime still runs its tasks: one of them calls [`Status::beat`] every few
//! seconds. Not live means that only a restart helps.
//!
//! **Ready** says that a request sent now can be answered. It turns true when
//!
//! 1. the models that were there at the start have been loaded, or have failed to (the first time that none is
//!    loading; models that are loaded later do not take readiness away),
//! 2. at least one model is ready, and
//! 3. at least one device is serving, which it is after a forward pass that worked;
//!
//! and it turns back when the last serving device is lost or fenced, when no model is left that works, or for good
//! with [`Status::begin_drain`]. A full queue does not turn it: that is an answer to one caller (429), while an
//! unready replica takes its load to others, which would then be full as well.

use std::{
    collections::BTreeMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The data path has stopped when its last beat is older than this.
pub const BEAT_AGE_MAX: Duration = Duration::from_secs(30);

/// Where a device stands, in the order of a life without trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceState {
    /// Not ours yet: another process computes on it, or too little memory is free.
    Waiting,
    /// Loading models, or running the first forward pass.
    Warming,
    /// Runs batches; a forward pass has worked.
    Serving,
    /// Runs batches, but something points at a fault.
    Suspect,
    /// Given no work until a canary has passed.
    Fenced,
    /// Gone.
    Lost,
}

impl DeviceState {
    /// All of them.
    pub const ALL: [DeviceState; 6] = [
        DeviceState::Waiting,
        DeviceState::Warming,
        DeviceState::Serving,
        DeviceState::Suspect,
        DeviceState::Fenced,
        DeviceState::Lost,
    ];

    /// As it stands in replies and metrics.
    pub fn name(self) -> &'static str {
        match self {
            DeviceState::Waiting => "waiting",
            DeviceState::Warming => "warming",
            DeviceState::Serving => "serving",
            DeviceState::Suspect => "suspect",
            DeviceState::Fenced => "fenced",
            DeviceState::Lost => "lost",
        }
    }

    /// Whether it is given batches. A suspect device still is: its answers have been right so far.
    pub fn runs(self) -> bool {
        matches!(self, DeviceState::Serving | DeviceState::Suspect)
    }
}

/// A device as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Such as `cpu` or a GPU's UUID.
    pub id: String,
    /// Where it stands.
    pub state: DeviceState,
    /// Why, in words; may be empty.
    pub reason: String,
}

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
    devices: RwLock<BTreeMap<String, (DeviceState, String)>>,
    models: RwLock<Models>,
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
            devices: RwLock::default(),
            models: RwLock::default(),
        }
    }

    /// Says that the data path still runs. Called every few seconds by a task of its runtime.
    pub fn beat(&self, now: Instant) {
        // The largest wins: two tasks may beat, and not in order.
        self.beat_ms.fetch_max(self.since_start_ms(now), Ordering::Relaxed);
    }

    /// Whether the last beat (or the start, before the first) is at most [`BEAT_AGE_MAX`] old.
    pub fn live(&self, now: Instant) -> bool {
        let age = self.since_start_ms(now).saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        u128::from(age) <= BEAT_AGE_MAX.as_millis()
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

    /// Sets where a device stands and why, adding it when it is new. `reason` may be empty.
    pub fn set_device(&self, id: &str, state: DeviceState, reason: &str) {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.insert(id.into(), (state, reason.into()));
    }

    /// All devices, by id.
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices
            .iter()
            .map(|(id, (state, reason))| Device { id: id.clone(), state: *state, reason: reason.clone() })
            .collect()
    }

    /// Sets how many models are in which state. The first call in which none is loading ends the start: call it
    /// with all of them in `loading` before the first is loaded, or only after the last.
    pub fn set_models(&self, counts: ModelCounts) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        models.counts = counts;
        models.loaded |= counts.loading == 0;
    }

    /// What [`Status::set_models`] said last.
    pub fn models(&self) -> ModelCounts {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.counts
    }

    /// Whether a request sent now can be answered, by the rules at the top of this file.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn ready(&self) -> Result<(), String> {
        if self.draining() {
            return Err("the server is draining".into());
        }
        self.models_ready()?;
        let devices = self.devices();
        if devices.iter().any(|device| device.state.runs()) {
            return Ok(());
        }
        if devices.is_empty() {
            return Err("no device has been found yet".into());
        }
        let list = devices.iter().map(|device| {
            let state = device.state.name();
            match device.reason.as_str() {
                "" => format!("{} is {state}", device.id),
                reason => format!("{} is {state} ({reason})", device.id),
            }
        });
        let list: Vec<_> = list.collect();
        Err(format!("no device is serving: {}", list.join(", ")))
    }

    fn models_ready(&self) -> Result<(), String> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let ModelCounts { ready, loading, unavailable } = models.counts;
        let all = ready + loading + unavailable;
        if !models.loaded {
            return Err(match all {
                0 => "the models have not been looked at yet".into(),
                all => format!("{loading} of {all} models are still loading"),
            });
        }
        if ready == 0 && all > 0 {
            return Err(format!("no model is ready: {unavailable} of {all} unavailable, {loading} loading"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ready: usize, loading: usize, unavailable: usize) -> ModelCounts {
        ModelCounts { ready, loading, unavailable }
    }

    fn serving() -> Status {
        let status = Status::new(Instant::now());
        status.set_models(counts(1, 0, 0));
        status.set_device("cpu", DeviceState::Serving, "");
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
        assert!(status.live(t0 + s(30)));
        assert!(!status.live(t0 + s(31)));
        status.beat(t0 + s(31));
        assert!(status.live(t0 + s(61)));
        assert!(!status.live(t0 + s(62)));
        status.beat(t0 + s(5));
        assert!(status.live(t0 + s(61)), "a late beat does not turn time back");
        assert!(status.live(t0), "a clock that is read early is not a fault");
    }

    #[test]
    fn is_ready_once_models_are_loaded_and_a_device_serves() {
        let status = Status::new(Instant::now());
        check(&status, Err("the models have not been looked at yet"));
        status.set_models(counts(1, 2, 0));
        check(&status, Err("2 of 3 models are still loading"));
        status.set_models(counts(2, 0, 1));
        check(&status, Err("no device has been found yet"));
        status.set_device("cpu", DeviceState::Warming, "");
        check(&status, Err("no device is serving: cpu is warming"));
        status.set_device("cpu", DeviceState::Serving, "");
        check(&status, Ok(()));
    }

    #[test]
    fn losing_the_last_device_turns_readiness_back_and_its_return_turns_it_again() {
        let status = serving();
        status.set_device("GPU-1", DeviceState::Serving, "");
        status.set_device("cpu", DeviceState::Lost, "");
        check(&status, Ok(()));
        status.set_device("GPU-1", DeviceState::Fenced, "Xid 79");
        check(&status, Err("no device is serving: GPU-1 is fenced (Xid 79), cpu is lost"));
        status.set_device("GPU-1", DeviceState::Suspect, "slow");
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
    fn a_replica_whose_models_all_failed_is_not_ready_but_one_without_models_is() {
        let status = serving();
        status.set_models(counts(0, 0, 2));
        check(&status, Err("no model is ready: 2 of 2 unavailable, 0 loading"));
        status.set_models(counts(0, 0, 0));
        check(&status, Ok(()));
    }

    #[test]
    fn draining_is_unready_for_good_and_stays_live() {
        let t0 = Instant::now();
        let status = serving();
        assert!(status.begin_drain());
        assert!(!status.begin_drain(), "only the first begins it");
        check(&status, Err("the server is draining"));
        status.set_device("cpu", DeviceState::Serving, "");
        check(&status, Err("the server is draining"));
        assert!(status.live(t0));
    }

    #[test]
    fn states_have_names_of_their_own() {
        let mut names: Vec<_> = DeviceState::ALL.map(DeviceState::name).to_vec();
        names.dedup();
        assert_eq!(names, ["waiting", "warming", "serving", "suspect", "fenced", "lost"]);
    }
}
