//! The published status of a device: its state, the cause of that state, and what has been measured.

use crate::words::named;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

named! {
    /// The state of a device. The variants are in the order in which a healthy device passes through them; the faults come last.
    #[derive(PartialOrd, Ord)]
    DeviceState {
        /// Not ours yet: another process computes on it, or too little memory is free.
        Waiting = "waiting",
        /// Loading models, or running the first forward pass.
        Warming = "warming",
        /// Runs batches; a forward pass has worked.
        Serving = "serving",
        /// Runs batches, but something indicates a fault.
        Suspect = "suspect",
        /// Given no work until a canary has passed.
        Fenced = "fenced",
        /// Gone.
        Lost = "lost",
    }
}

impl DeviceState {
    /// Whether the device is given batches. A suspect device still is: its answers have been right so far.
    pub fn runs(self) -> bool {
        matches!(self, DeviceState::Serving | DeviceState::Suspect)
    }
}

named! {
    /// What brought a device into its state, for counting: the label `reason` of metrics.
    #[derive(PartialOrd, Ord)]
    Cause {
        /// The server has just started.
        Start = "start",
        /// It was taken.
        Taken = "taken",
        /// A forward pass has worked.
        Proved = "proved",
        /// No model runs on it.
        Empty = "empty",
        /// Other processes use it.
        Contended = "contended",
        /// Other processes wait for it, and came first.
        Turn = "turn",
        /// It has too little free memory, or other processes use it exclusively.
        Memory = "memory",
        /// It could not be taken, for another reason.
        Refused = "refused",
        /// It was idle.
        Idle = "idle",
        /// A call failed.
        Fault = "fault",
        /// This process cannot take it again after a fault; another one may.
        Poisoned = "poisoned",
        /// A call does not return.
        Stuck = "stuck",
        /// An Xid error.
        Xid = "xid",
        /// Memory errors.
        Ecc = "ecc",
        /// The driver advised it.
        Advice = "advice",
        /// Heat or power.
        Thermal = "thermal",
        /// A forward pass with a known answer failed.
        Canary = "canary",
        /// It does not answer on the bus.
        Bus = "bus",
        /// Nothing has indicated a fault for a while.
        Clean = "clean",
        /// An operator drained it.
        Drain = "drain",
        /// An operator asked for it to be used again.
        Resume = "resume",
    }
}

/// The published status of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Such as `cpu` or a GPU's UUID.
    pub id: String,
    /// Its state.
    pub state: DeviceState,
    /// What brought it into that state.
    pub cause: Cause,
    /// Why, in words; may be empty.
    pub reason: String,
    /// Since when it has been in that state.
    pub since: Instant,
    /// Whether an operator has drained it.
    pub drained: bool,
    /// What has been measured.
    pub seen: DeviceInfo,
}

/// What may lower a GPU's clocks: heat, its power supply, its power limit.
pub const THROTTLES: [&str; 3] = ["thermal", "power_brake", "power_cap"];

/// What has been measured of a device. What the device does not report is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceInfo {
    /// The manufacturer's name for it.
    pub name: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that are free.
    pub memory_free_bytes: Option<u64>,
    /// Bytes that this process holds.
    pub memory_own_bytes: Option<u64>,
    /// Bytes that must be free before it is taken while other processes use it.
    pub memory_needed_bytes: Option<u64>,
    /// Other processes that compute on it: process id, and bytes where known.
    pub processes: Option<Vec<(u32, Option<u64>)>>,
    /// Bytes that other processes hold.
    pub others_bytes: Option<u64>,
    /// Why it cannot run networks, if it cannot. Our own engines, which do not use ONNX Runtime, may run on it all the same.
    pub no_networks: Option<String>,
    /// Models that are meant for it and cannot be loaded there now: name and reason.
    pub refused: Vec<(String, String)>,
    /// Models that are loaded there, by name and version.
    pub models: Vec<HeldModel>,
    /// Whether it is shared, and how, in a few words.
    pub verdict: String,
    /// Share of time in which it is busy, %.
    pub utilization_percent: Option<u32>,
    /// °C.
    pub temperature_c: Option<u32>,
    /// The temperature from which its clocks are lowered, °C.
    pub slowdown_c: Option<u32>,
    /// The temperature at which it turns itself off, °C.
    pub shutdown_c: Option<u32>,
    /// Whether its clocks are lowered now, by each of [`THROTTLES`].
    pub throttled: Option<[bool; THROTTLES.len()]>,
    /// Watts.
    pub power_w: Option<f64>,
    /// The power limit, W.
    pub power_limit_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Memory errors that were corrected, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Transfers over PCI Express that had to be repeated, since the driver was loaded.
    pub pcie_replays: Option<u32>,
    /// Whether the GPU is partitioned (MIG).
    pub mig: Option<bool>,
    /// Xid errors since the server started, by number.
    pub xids: BTreeMap<u64, u64>,
    /// The total time that the server has waited for it.
    pub waited: Duration,
}

/// What a model holds on a device, as measured when it was loaded there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldModel {
    /// The model's name.
    pub name: String,
    /// The model's version.
    pub version: String,
    /// Instances loaded.
    pub instances: u64,
    /// Instances that fit now, the loaded ones included, without using the memory that is kept free.
    pub instances_max: u64,
    /// Bytes of one instance before its first batch.
    pub weights_bytes: u64,
    /// What one instance holds beside that, by batch size, ascending: items, bytes, and how many of these bytes are buffers that
    /// batches are copied into and out of, where the engine reports that.
    pub batches: Vec<(usize, u64, Option<u64>)>,
    /// Bytes that one instance holds for batches of whole camera frames, if the model takes them.
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
            seen: DeviceInfo::default(),
        }
    }

    /// Whether its state reflects the last request to drain it or to use it again.
    pub(super) fn heeds(&self) -> bool {
        self.drained == (self.cause == Cause::Drain)
    }

    /// Its state and the reason, in words.
    pub(super) fn stands(&self) -> String {
        let (id, state) = (&self.id, self.state.name());
        match self.reason.as_str() {
            "" => format!("{id} is {state}"),
            reason => format!("{id} is {state} ({reason})"),
        }
    }
}
