//! Samples from NVML, which comes with the driver and is loaded at run time.

use std::path::Path;

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold},
    enums::device::{SampleValue, UsedGpuMemory},
    error::NvmlError,
    struct_wrappers::device::MemoryInfo,
    structs::device::FieldId,
};

use super::{GPU, GpuId, Memory, Missing, Probe, Process, Sample, Throttled};

/// The library's name where a driver is installed; the name without the number exists only in developers' packages.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// Fields that have no function of their own, by their numbers in `nvml.h`: rows that wait to be remapped, rows that could not be, and
/// the advised recovery action.
const ROWS_PENDING: FieldId = FieldId(144);
const ROWS_FAILED: FieldId = FieldId(145);
const RECOVERY_ACTION: FieldId = FieldId(230);

/// The prefix of the UUID of a part of a GPU (MIG).
const PART: &str = "MIG-";

/// Why NVML cannot be used. The machine may have GPUs all the same.
#[derive(Debug, thiserror::Error)]
#[error("NVML ({library}) cannot be used: {why}; GPUs are then known by the CUDA driver alone")]
pub struct Unavailable {
    /// The library that was tried.
    pub library: String,
    /// What went wrong.
    #[source]
    pub why: NvmlError,
}

/// Loads NVML from `library`, or from the driver's place.
///
/// # Errors
///
/// [`Unavailable`] where there is none, or where it does not start.
pub(super) fn open(library: Option<&Path>) -> Result<Nvml, Unavailable> {
    let library = library.unwrap_or(Path::new(LIBRARY));
    let opened = Nvml::builder().lib_path(library.as_os_str()).init();
    opened.map_err(|why| Unavailable { library: library.display().to_string(), why })
}

/// The GPUs that NVML has, in its order. A GPU that does not even say which it is, is left out.
pub(super) fn gpus(nvml: &Nvml) -> Vec<GpuId> {
    let identity = |index| -> Result<GpuId, NvmlError> {
        let device = nvml.device_by_index(index)?;
        Ok(GpuId { uuid: device.uuid()?, pci: device.pci_info()?.bus_id })
    };
    let count = nvml.device_count().unwrap_or(0);
    let found = (0..count).map(|index| identity(index).map_err(|why| (index, why)));
    let known = found.filter_map(|gpu| match gpu {
        Ok(gpu) => Some(gpu),
        Err((index, why)) => {
            tracing::warn!(gpu = index, error = %why, "NVML does not say which GPU this is; it is left alone");
            None
        }
    });
    known.collect()
}

/// Finds a GPU by its PCI address: then NVML reports it as lost only if it is. By UUID, NVML may do so when any other GPU is lost.
pub(super) fn device<'a>(nvml: &'a Nvml, gpu: &GpuId) -> Result<Device<'a>, NvmlError> {
    nvml.device_by_pci_bus_id(gpu.pci.as_str())
}

/// Whether a GPU that was asked for is gone. Other errors concern the call, and say nothing of the GPU.
pub(super) fn is_gone(why: &NvmlError) -> bool {
    matches!(why, NvmlError::GpuLost | NvmlError::NotFound)
}

/// Samples by NVML.
pub struct NvmlProbe {
    nvml: Nvml,
    gpus: Vec<GpuId>,
    /// For each of them, the last readings of what is not read at every look.
    kept: Vec<Option<Kept>>,
    /// Parts (MIG) that are looked at, each with the index of its GPU in `gpus`.
    parts: Vec<(usize, GpuId)>,
}

/// Slowly changing values are read at one look in so many. On an H200 each reading queries the GPU itself, and all of them at every look
/// kept a core busy for 4 ms.
const LOOKS: u32 = 10;

/// Slowly changing values, for the looks that do not read them.
#[derive(Clone)]
struct Kept {
    sample: Sample,
    looks_left: u32,
}

impl NvmlProbe {
    /// Finds the machine's GPUs. `library` replaces [`LIBRARY`].
    ///
    /// # Errors
    ///
    /// [`Unavailable`] where there is no NVML, or where it does not start.
    pub fn open(library: Option<&Path>) -> Result<NvmlProbe, Unavailable> {
        let nvml = open(library)?;
        let gpus = gpus(&nvml);
        Ok(NvmlProbe { nvml, kept: vec![None; gpus.len()], gpus, parts: Vec::new() })
    }

    /// Looks at these as well, if they are parts (MIG) of GPUs that are there. Each is given by CUDA's UUID and PCI address.
    pub fn with_parts<'a>(mut self, parts: impl Iterator<Item = (&'a str, &'a str)>) -> NvmlProbe {
        self.parts = parts
            .filter(|(uuid, _)| uuid.starts_with(PART))
            .filter_map(|(uuid, pci)| {
                let whole = self.gpus.iter().position(|gpu| gpu.is(uuid, pci))?;
                Some((whole, GpuId { uuid: uuid.to_owned(), ..self.gpus[whole].clone() }))
            })
            .collect();
        self
    }

    /// The GPUs, in the order of the samples.
    pub fn gpus(&self) -> &[GpuId] {
        &self.gpus
    }

    /// One sample for each GPU, and for each part that is looked at, always in the same order. Takes as long as the driver takes.
    pub fn sample(&mut self) -> Vec<Sample> {
        let whole = |(gpu, kept): (&GpuId, &mut Option<Kept>)| {
            let sample = Sample::of(gpu.clone());
            match device(&self.nvml, gpu) {
                Ok(device) => Look { sample }.at(&device, kept),
                Err(why) => {
                    *kept = None;
                    let missing = vec![Missing { reading: GPU, why: why.to_string() }];
                    Sample { lost: is_gone(&why), missing, ..sample }
                }
            }
        };
        let mut samples: Vec<Sample> = self.gpus.iter().zip(&mut self.kept).map(whole).collect();
        let parts = self.parts.iter().map(|(whole, part)| self.part(&samples[*whole], part));
        let parts: Vec<Sample> = parts.collect();
        samples.extend(parts);
        samples
    }

    /// One look at a part of a GPU. Its memory and processes are its own, and read by its own UUID. NVML does not tell how busy a part
    /// is; all other values are those of the whole.
    fn part(&self, whole: &Sample, part: &GpuId) -> Sample {
        let own = ["memory", "processes"];
        let missing = whole.missing.iter().filter(|missing| !own.contains(&missing.reading)).cloned();
        let sample = Sample {
            gpu: part.clone(),
            memory: None,
            utilization_percent: None,
            processes: None,
            missing: missing.collect(),
            ..whole.clone()
        };
        if sample.lost {
            return sample;
        }
        let mut look = Look { sample };
        let device = || self.nvml.device_by_uuid(part.uuid.as_str());
        look.memory(device().and_then(|device| device.memory_info()));
        look.sample.processes = look.read("processes", device().and_then(|device| processes(&device)));
        // A part is found by its UUID alone, so NVML may report it as lost because any other GPU is. The whole's answer is reliable.
        look.sample.lost = whole.lost;
        look.sample
    }
}

impl Probe for NvmlProbe {
    fn look(&mut self) -> Option<Vec<Sample>> {
        Some(self.sample())
    }
}

/// A look in progress.
struct Look {
    sample: Sample,
}

impl Look {
    /// The reading; if it failed, notes that it is missing.
    fn read<T>(&mut self, reading: &'static str, result: Result<T, NvmlError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(why) => {
                self.sample.lost |= matches!(why, NvmlError::GpuLost);
                self.sample.missing.push(Missing { reading, why: why.to_string() });
                None
            }
        }
    }

    fn memory(&mut self, result: Result<MemoryInfo, NvmlError>) {
        let told = self.read("memory", result);
        self.sample.memory =
            told.map(|memory| Memory { total: memory.total, free: memory.free, reserved: memory.reserved });
    }

    /// Values that decisions depend on at once are read at every look: which processes are there, and whether the GPU fails. All others
    /// are read now and then.
    fn at(mut self, device: &Device<'_>, kept: &mut Option<Kept>) -> Sample {
        self.memory(device.memory_info());
        if self.sample.lost {
            // Every other call would fail likewise, some of them slowly. If the GPU comes back, the values kept are out of date.
            *kept = None;
            return self.sample;
        }
        let slow = match kept.as_mut().filter(|kept| kept.looks_left > 0) {
            Some(kept) => {
                kept.looks_left -= 1;
                kept.sample.clone()
            }
            None => {
                let sample = Look { sample: Sample::of(self.sample.gpu.clone()) }.slow(device);
                kept.insert(Kept { sample, looks_left: LOOKS - 1 }).sample.clone()
            }
        };
        let missing = [self.sample.missing, slow.missing].concat();
        self.sample = Sample { memory: self.sample.memory, missing, ..slow };
        self.sample.utilization_percent =
            self.read("utilization_percent", device.utilization_rates()).map(|rates| rates.gpu);
        self.sample.processes = self.read("processes", processes(device));
        let uncorrected = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        self.sample.ecc_uncorrected = self.read("ecc_uncorrected", uncorrected);
        self.sample.recovery_action = self.read("recovery_action", field(device, RECOVERY_ACTION));
        if self.sample.lost {
            *kept = None;
        }
        self.sample
    }

    /// Values that change slowly, or never.
    fn slow(mut self, device: &Device<'_>) -> Sample {
        let threshold = |kind| device.temperature_threshold(kind);
        self.sample.slowdown_c = self.read("slowdown_c", threshold(TemperatureThreshold::Slowdown));
        self.sample.shutdown_c = self.read("shutdown_c", threshold(TemperatureThreshold::Shutdown));
        // 1 is "on".
        self.sample.mig = self.read("mig", device.mig_mode()).map(|mode| mode.current == 1);
        self.sample.temperature_c = self.read("temperature_c", device.temperature(TemperatureSensor::Gpu));
        self.sample.throttled = self.read("throttled", device.current_throttle_reasons()).map(throttled);
        self.sample.power_mw = self.read("power_mw", device.power_usage());
        self.sample.power_limit_mw = self.read("power_limit_mw", device.enforced_power_limit());
        self.sample.energy_mj = self.read("energy_mj", device.total_energy_consumption());
        let corrected = device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile);
        self.sample.ecc_corrected = self.read("ecc_corrected", corrected);
        self.sample.pages_pending = self.read("pages_pending", device.are_pages_pending_retired());
        self.sample.pcie_replays = self.read("pcie_replays", device.pcie_replay_counter());
        self.sample.rows_pending =
            self.read("rows_pending", field(device, ROWS_PENDING)).map(|rows| rows > 0);
        self.sample.rows_failed = self.read("rows_failed", field(device, ROWS_FAILED)).map(|rows| rows > 0);
        self.sample
    }
}

fn processes(device: &Device<'_>) -> Result<Vec<Process>, NvmlError> {
    let memory = |used: &UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => Some(*bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let listed = device.running_compute_processes()?;
    Ok(listed
        .iter()
        .map(|process| Process { pid: process.pid, memory: memory(&process.used_gpu_memory) })
        .collect())
}

fn throttled(reasons: ThrottleReasons) -> Throttled {
    Throttled {
        thermal: reasons
            .intersects(ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN),
        power_brake: reasons.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
        power_cap: reasons.contains(ThrottleReasons::SW_POWER_CAP),
    }
}

fn field(device: &Device<'_>, field: FieldId) -> Result<u64, NvmlError> {
    let values = device.field_values_for(&[field])?;
    let sample = values.into_iter().next().ok_or(NvmlError::NotFound)??;
    match sample.value? {
        SampleValue::U32(value) => Ok(u64::from(value)),
        SampleValue::U64(value) => Ok(value),
        // No counter is signed or fractional.
        SampleValue::I64(_) | SampleValue::F64(_) => Err(NvmlError::Unknown),
    }
}
