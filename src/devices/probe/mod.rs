//! What can be learnt of a machine's GPUs from outside: no CUDA context is made, and no other process is disturbed.
//!
//! - [`nvml`]: the readings of NVIDIA's management library.
//! - [`sampler`]: a thread that samples regularly, so that a library that hangs blocks nobody else.
//! - [`events`]: Xid errors as they happen, on a thread of their own.
//! - [`others`]: how much of a GPU's memory other processes hold.
//!
//! Any reading may be missing, since no GPU has all of them. A missing one is listed by its name, and is no error.

pub mod events;
pub mod nvml;
pub mod others;
pub mod sampler;

/// The reading that is missing if a GPU cannot even be asked for: then all are, for that look.
pub(super) const GPU: &str = "gpu";

/// Looks at all GPUs of the machine.
pub trait Probe: Send {
    /// One sample for each GPU, and for each MIG part that is looked at; empty where there is nothing to look with. `None` if they cannot
    /// be looked at now, although they could be before. Takes as long as the driver takes.
    fn look(&mut self) -> Option<Vec<Sample>>;
}

/// A GPU's identity, by what does not change while the machine runs. Indices do change: NVML and CUDA count differently, and so do
/// containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GpuId {
    /// `GPU-` (`MIG-` for a part of one) and 8-4-4-4-12 hexadecimal digits.
    pub uuid: String,
    /// Such as `00000000:41:00.0`.
    pub pci: String,
}

impl GpuId {
    /// Whether it is the GPU that CUDA knows by this UUID. A part of a GPU (MIG) also matches by the PCI address of the whole, which NVML
    /// writes with more digits.
    pub fn is(&self, uuid: &str, pci: &str) -> bool {
        let bus = || !pci.is_empty() && self.pci.to_lowercase().ends_with(pci);
        self.uuid == uuid || (uuid.starts_with("MIG-") && bus())
    }
}

/// One look at one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Which it is.
    pub gpu: GpuId,
    /// It no longer answers: off the bus, or taken away. Then all readings are missing.
    pub lost: bool,
    /// Memory of the GPU, or of the part.
    pub memory: Option<Memory>,
    /// Share of the last second or so in which a kernel ran, %.
    pub utilization_percent: Option<u32>,
    /// Processes that compute on it, including ours. Empty where the driver lists none, as within a PID namespace.
    pub processes: Option<Vec<Process>>,
    /// Temperature of the chip, °C.
    pub temperature_c: Option<u32>,
    /// Temperature from which on clocks are lowered, °C.
    pub slowdown_c: Option<u32>,
    /// Temperature from which on it turns itself off, °C.
    pub shutdown_c: Option<u32>,
    /// Why clocks are lower than they could be.
    pub throttled: Option<Throttled>,
    /// Power draw, mW.
    pub power_mw: Option<u32>,
    /// Enforced limit of the draw, mW.
    pub power_limit_mw: Option<u32>,
    /// Energy since the driver was loaded, mJ.
    pub energy_mj: Option<u64>,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected memory errors since then.
    pub ecc_uncorrected: Option<u64>,
    /// Pages wait for a reset to be retired (before Ampere).
    pub pages_pending: Option<bool>,
    /// Rows wait for a reset to be remapped.
    pub rows_pending: Option<bool>,
    /// A row could not be remapped, for want of spare rows.
    pub rows_failed: Option<bool>,
    /// Transfers over PCI Express that had to be repeated.
    pub pcie_replays: Option<u32>,
    /// The GPU is partitioned (MIG).
    pub mig: Option<bool>,
    /// The recovery action that the driver advises; 0 is none.
    pub recovery_action: Option<u64>,
    /// What could not be read, and why.
    pub missing: Vec<Missing>,
}

impl Sample {
    /// Whether the GPU is on the bus; `None` if it could not be asked for.
    pub(super) fn on_bus(&self) -> Option<bool> {
        let asked = self.lost || self.missing.iter().all(|missing| missing.reading != GPU);
        asked.then_some(!self.lost)
    }

    /// A sample without readings.
    pub fn of(gpu: GpuId) -> Sample {
        Sample {
            gpu,
            lost: false,
            memory: None,
            utilization_percent: None,
            processes: None,
            temperature_c: None,
            slowdown_c: None,
            shutdown_c: None,
            throttled: None,
            power_mw: None,
            power_limit_mw: None,
            energy_mj: None,
            ecc_corrected: None,
            ecc_uncorrected: None,
            pages_pending: None,
            rows_pending: None,
            rows_failed: None,
            pcie_replays: None,
            mig: None,
            recovery_action: None,
            missing: Vec::new(),
        }
    }
}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that the driver keeps for itself; no process is listed for them.
    pub reserved: u64,
}

impl Memory {
    /// Bytes that all processes hold together.
    pub fn held(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.reserved)
    }
}

/// A process on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id by the driver's count, which is the host's.
    pub pid: u32,
    /// Bytes that it holds; `None` if the driver does not say.
    pub memory: Option<u64>,
}

/// Why clocks are lower than they could be, as far as that concerns health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttled {
    /// Too hot, by the driver's or the chip's own decision.
    pub thermal: bool,
    /// The power supply asked for it.
    pub power_brake: bool,
    /// At the limit of its power: common under load.
    pub power_cap: bool,
}

/// A reading that a GPU or a driver does not give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The name of the field of [`Sample`].
    pub reading: &'static str,
    /// The reason in the driver's words.
    pub why: String,
}
