//! What can be known of a machine's GPUs from outside: no CUDA context is made, and nobody's work is disturbed.
//!
//! - [`nvml`]: the readings of NVIDIA's management library.
//! - [`scripted`]: readings that a test or a simulation gives.
//! - [`sampler`]: a thread that looks again and again, so that a library which hangs holds up nobody else.
//! - [`events`]: Xid errors as they happen, on a thread of their own.
//! - [`others`]: which of a GPU's memory other processes hold.
//!
//! Every reading may be missing, since no GPU has all of them: what is missing says so by its name, and is no error.

pub mod events;
pub mod nvml;
pub mod others;
pub mod sampler;
pub mod scripted;

/// What is missing where a GPU cannot even be asked for: all of it, for that look.
pub(super) const GPU: &str = "gpu";

/// Looks at all GPUs of the machine.
pub trait Probe: Send {
    /// One sample for each GPU, and for each part of one that is looked at, always in the same order. May take as long as the driver takes.
    fn sample(&mut self) -> Vec<Sample>;
}

/// Which GPU, by what does not change while the machine runs. Numbers do: NVML and CUDA count differently, and so do containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GpuId {
    /// `GPU-` (`MIG-` of a part of one) and 8-4-4-4-12 hexadecimal digits.
    pub uuid: String,
    /// Such as `00000000:41:00.0`.
    pub pci: String,
    /// As its maker calls it.
    pub name: String,
}

impl GpuId {
    /// Whether it is the GPU that CUDA knows by this UUID, at this place on the bus; a part of a GPU (MIG) goes by the place of
    /// the whole, which NVML writes with more digits.
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
    /// It does not answer any more: off the bus, or taken away. Then all readings are missing.
    pub lost: bool,
    /// Memory of the GPU, or of the part.
    pub memory: Option<Memory>,
    /// Share of the last second or so in which a kernel ran, %.
    pub utilization_percent: Option<u32>,
    /// Processes that compute on it, with ours among them. Empty where the driver tells none, as within a PID namespace.
    pub processes: Option<Vec<Process>>,
    /// Of the chip, °C.
    pub temperature_c: Option<u32>,
    /// From which on clocks are lowered, °C.
    pub slowdown_c: Option<u32>,
    /// From which on it turns itself off, °C.
    pub shutdown_c: Option<u32>,
    /// Why clocks are lower than they could be.
    pub throttled: Option<Throttled>,
    /// Draw, mW.
    pub power_mw: Option<u32>,
    /// The draw that the driver holds it to, mW.
    pub power_limit_mw: Option<u32>,
    /// Since the driver was loaded, mJ.
    pub energy_mj: Option<u64>,
    /// Memory errors that were put right, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Pages wait for a reset to be retired (before Ampere).
    pub pages_pending: Option<bool>,
    /// Rows wait for a reset to be remapped.
    pub rows_pending: Option<bool>,
    /// No spare row was left to remap to.
    pub rows_failed: Option<bool>,
    /// Transfers over PCI Express that had to be repeated.
    pub pcie_replays: Option<u32>,
    /// The GPU is parted into instances.
    pub mig: Option<bool>,
    /// What the driver advises to do; 0 is nothing.
    pub recovery_action: Option<u64>,
    /// What could not be read, and why.
    pub missing: Vec<Missing>,
}

impl Sample {
    /// Whether the GPU is there: not known of one that could not be asked for.
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
    /// All there is.
    pub total: u64,
    /// What nobody holds.
    pub free: u64,
    /// What the driver keeps for itself; no process is listed for it.
    pub reserved: u64,
}

impl Memory {
    /// What processes hold together.
    pub fn held(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.reserved)
    }
}

/// A process on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// By the driver's numbers, which are the host's.
    pub pid: u32,
    /// Bytes; none where the driver does not tell.
    pub memory: Option<u64>,
}

/// Why clocks are lower than they could be, as far as it says something about health.
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
    /// As the field of [`Sample`] is called.
    pub reading: &'static str,
    /// In the driver's words.
    pub why: String,
}
