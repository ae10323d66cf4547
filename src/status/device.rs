//! A device as others see it: where it stands, what brought it there, and what is seen of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

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
    /// It has too little free memory, or others have it to themselves.
    Memory,
    /// It could not be taken, for another reason.
    Refused,
    /// It was idle.
    Idle,
    /// A call failed.
    Fault,
    /// This process cannot take it again after a fault; another one may.
    Poisoned,
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
            Cause::Poisoned => "poisoned",
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

/// What may lower a GPU's clocks: heat, its power supply, the limit of its power.
pub const THROTTLES: [&str; 3] = ["thermal", "power_brake", "power_cap"];

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
    /// From which on its clocks are lowered, °C.
    pub slowdown_c: Option<u32>,
    /// From which on it turns itself off, °C.
    pub shutdown_c: Option<u32>,
    /// Whether its clocks are lowered now, by each of [`THROTTLES`].
    pub throttled: Option<[bool; THROTTLES.len()]>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Watts that it is held to.
    pub power_limit_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Memory errors that were put right, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that could not be put right, since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Transfers over PCI Express that had to be repeated, since the driver was loaded.
    pub pcie_replays: Option<u32>,
    /// Whether the GPU is parted (MIG).
    pub mig: Option<bool>,
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

impl HeldModel {
    /// Bytes that all of its instances hold.
    pub fn bytes(&self) -> u64 {
        let batches = self.batches.last().map_or(0, |(_, bytes, _)| *bytes);
        self.instances * (self.weights_bytes + batches + self.frames_bytes)
    }
}

impl Device {
    pub(super) fn new(id: &str) -> Device {
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

    /// Whether it stands where whoever asked for it to be left alone, or to be used again, wants it.
    pub(super) fn heeds(&self) -> bool {
        self.drained == (self.cause == Cause::Drain)
    }

    /// Where it stands and why, in words.
    pub(super) fn stands(&self) -> String {
        let (id, state) = (&self.id, self.state.name());
        match self.reason.as_str() {
            "" => format!("{id} is {state}"),
            reason => format!("{id} is {state} ({reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_names_of_their_own() {
        let mut names: Vec<_> = DeviceState::ALL.map(DeviceState::name).to_vec();
        names.dedup();
        assert_eq!(names, ["waiting", "warming", "serving", "suspect", "fenced", "lost"]);
    }
}
