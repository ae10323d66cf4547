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
//! 3. at least one device is serving, which it is after a forward pass that worked; one that did, and was given back because
//!    nobody needed it, counts as well: it is taken again for whoever does;
//!
//! and it turns back when the last serving device is lost or fenced, when no model is left that works, or for good
//! with [`Status::begin_drain`]. A full queue does not turn it: that is an answer to one caller (429), while an
//! unready replica takes its load to others, which would then be full as well.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock, PoisonError, RwLock,
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

/// What brought a device to where it stands, for counting: the label `reason` of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The server has just started.
    Start,
    /// It was taken.
    Taken,
    /// A forward pass has worked.
    Proved,
    /// Nothing runs there.
    Empty,
    /// Others use it.
    Contended,
    /// Others wait for it, and came first.
    Turn,
    /// It has too little free memory.
    Memory,
    /// It could not be taken, for another reason.
    Refused,
    /// It was idle.
    Idle,
    /// A call failed.
    Fault,
    /// A call does not come back.
    Stuck,
    /// An Xid error.
    Xid,
    /// Memory errors.
    Ecc,
    /// The driver's advice.
    Advice,
    /// Heat or power.
    Thermal,
    /// A forward pass with a known answer failed.
    Canary,
    /// It does not answer on the bus.
    Bus,
    /// Nothing has pointed at a fault for a while.
    Clean,
    /// Somebody asked for it to be left alone.
    Drain,
    /// Somebody asked for it to be used again.
    Resume,
}

impl Cause {
    /// As it stands in replies and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Taken => "taken",
            Cause::Proved => "proved",
            Cause::Empty => "empty",
            Cause::Contended => "contended",
            Cause::Turn => "turn",
            Cause::Memory => "memory",
            Cause::Refused => "refused",
            Cause::Idle => "idle",
            Cause::Fault => "fault",
            Cause::Stuck => "stuck",
            Cause::Xid => "xid",
            Cause::Ecc => "ecc",
            Cause::Advice => "advice",
            Cause::Thermal => "thermal",
            Cause::Canary => "canary",
            Cause::Bus => "bus",
            Cause::Clean => "clean",
            Cause::Drain => "drain",
            Cause::Resume => "resume",
        }
    }
}

/// A device as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Such as `cpu` or a GPU's UUID.
    pub id: String,
    /// Where it stands.
    pub state: DeviceState,
    /// What brought it there.
    pub cause: Cause,
    /// Why, in words; may be empty.
    pub reason: String,
    /// Since when it stands there.
    pub since: Instant,
    /// Whether somebody asked for it to be left alone.
    pub drained: bool,
    /// What is seen of it.
    pub seen: Seen,
}

/// What is seen of a device; what is not told is not there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The maker's name of it.
    pub name: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that are free.
    pub memory_free_bytes: Option<u64>,
    /// Bytes that this process holds.
    pub memory_own_bytes: Option<u64>,
    /// Bytes that must be free before it is taken beside others.
    pub memory_needed_bytes: Option<u64>,
    /// Other processes that compute on it: their numbers and bytes.
    pub processes: Option<Vec<(u32, Option<u64>)>>,
    /// Bytes that others hold.
    pub others_bytes: Option<u64>,
    /// Why no network runs there, where none can: what is ours beside ONNX Runtime may all the same.
    pub no_networks: Option<String>,
    /// Models that are meant for it and cannot be there now: their names, and why.
    pub refused: Vec<(String, String)>,
    /// Models that are there, by name and version.
    pub models: Vec<HeldModel>,
    /// Whether it is shared, and how, in a few words.
    pub verdict: String,
    /// Share of its time in use, %.
    pub utilization_percent: Option<u32>,
    /// °C.
    pub temperature_c: Option<u32>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Watts that it is held to.
    pub power_limit_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Memory errors that could not be put right, since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Xid errors since the server started, by number.
    pub xids: BTreeMap<u64, u64>,
    /// How long it has been waited for in all.
    pub waited: Duration,
}

/// What a model holds on a device, as measured when it was loaded there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldModel {
    /// Its name.
    pub name: String,
    /// Which version.
    pub version: String,
    /// Instances loaded.
    pub instances: u64,
    /// Instances that fit now, with these, and what is kept free left alone.
    pub instances_max: u64,
    /// Bytes of one instance before its first batch.
    pub weights_bytes: u64,
    /// What one holds beside that, by the size of batches, ascending: items, bytes, and of these what batches are copied into
    /// and out of, where that is told.
    pub batches: Vec<(usize, u64, Option<u64>)>,
    /// Bytes of one for batches of whole camera frames, where it takes such.
    pub frames_bytes: u64,
}

impl Device {
    fn new(id: &str) -> Device {
        Device {
            id: id.into(),
            state: DeviceState::Waiting,
            cause: Cause::Start,
            reason: String::new(),
            since: Instant::now(),
            drained: false,
            seen: Seen::default(),
        }
    }
}

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
    devices: RwLock<BTreeMap<String, Device>>,
    transitions: RwLock<Transitions>,
    /// Why it makes no sense to go on.
    hopeless: OnceLock<String>,
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
            transitions: RwLock::default(),
            hopeless: OnceLock::new(),
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

    /// Sets where a device stands and why, adding it when it is new. `reason` may be empty. True where it stood elsewhere.
    pub fn set_device(&self, id: &str, state: DeviceState, cause: Cause, reason: &str) -> bool {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let known = devices.contains_key(id);
        let device = devices.entry(id.into()).or_insert_with(|| Device::new(id));
        let moved = !known || device.state != state;
        if moved {
            device.since = Instant::now();
            let mut transitions = self.transitions.write().unwrap_or_else(PoisonError::into_inner);
            *transitions.entry((id.into(), state, cause)).or_default() += 1;
        }
        if device.reason != reason {
            device.reason = reason.into();
        }
        (device.state, device.cause) = (state, cause);
        moved
    }

    /// Says what is seen of a device that is known.
    pub fn see_device(&self, id: &str, seen: Seen) {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get_mut(id) {
            device.seen = seen;
        }
    }

    /// Asks for a device to be left alone, or to be used again; whoever keeps it sees that soon. None where there is none of
    /// this name, else whether it was asked for anew.
    pub fn drain_device(&self, id: &str, drained: bool) -> Option<bool> {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.get_mut(id).map(|device| std::mem::replace(&mut device.drained, drained) != drained)
    }

    /// Whether somebody asked for a device to be left alone.
    pub fn is_drained(&self, id: &str) -> bool {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.get(id).is_some_and(|device| device.drained)
    }

    /// All devices, by id.
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.values().cloned().collect()
    }

    /// How often devices came to each state, and by what.
    pub fn transitions(&self) -> Transitions {
        self.transitions.read().unwrap_or_else(PoisonError::into_inner).clone()
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
        // One that was given back because nobody needed it is taken again for whoever does.
        if devices.iter().any(|device| device.state.runs() || device.cause == Cause::Idle) {
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
        status.set_device("cpu", DeviceState::Serving, Cause::Start, "");
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
