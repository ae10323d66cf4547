//! Finds the driver and the GPUs that it shows, without a panic if there is none.
//!
//! CUDA is not linked: the driver's library is opened on first use. So the same binary starts on any machine, and says in one line
//! why it has no GPU. No context is created here, so probing takes no GPU memory.
#![allow(unsafe_code)]

use super::{CudaError, numa};
use crate::engine::gpu::{Gpu, Version};
use cudarc::driver::{
    result,
    sys::{self, CUdevice_attribute as Attribute, CUresult as Code},
};
use std::{ffi::CStr, path::Path};

/// The oldest version of CUDA whose driver can load our kernels: 12.0, driver 525.
const VERSION_MIN: Version = Version::new(12, 0);

/// The compute mode in which no context can be made on a GPU (`CU_COMPUTEMODE_PROHIBITED`).
const PROHIBITED: u32 = 2;

/// The driver and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA version that it supports.
    pub version: Version,
    /// In the order of their ordinals; at least one.
    pub gpus: Vec<Gpu>,
    /// Why other GPUs that it shows are not used.
    pub left_out: Vec<CudaError>,
}

/// Why there is no GPU to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// No library of the driver.
    #[error(
        "no CUDA driver (libcuda.so.1) is found; where there is a GPU, install NVIDIA's driver (580 or newer for ONNX models, 525 for \
         fitters), or start the container with its GPUs (docker run --gpus all)"
    )]
    NoDriver,
    /// A driver that cannot load our kernels.
    #[error("the driver knows CUDA {0} only; {VERSION_MIN} is needed, which comes with NVIDIA's driver 525")]
    TooOld(Version),
    /// The toolkit's stub library, meant for linking, instead of the driver's.
    #[error(
        "libcuda.so is the CUDA toolkit's stub for linking, not a driver; take its folder (lib64/stubs) out of \
         LD_LIBRARY_PATH"
    )]
    Stub,
    /// A driver without a GPU.
    #[error("the driver shows no GPU: {0}")]
    NoneVisible(String),
    /// A driver whose part in the kernel is not loaded (yet), on a machine with a GPU for it.
    #[error(
        "the driver shows no GPU: there is one from NVIDIA, but the kernel has no driver for it (nvidia.ko is not loaded)"
    )]
    NotLoaded,
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] CudaError),
}

impl NoGpu {
    /// Whether the driver may just not be ready yet, as while the machine boots.
    pub fn may_pass(&self) -> bool {
        const NOT_READY: [Code; 3] =
            [Code::CUDA_ERROR_NOT_INITIALIZED, Code::CUDA_ERROR_SYSTEM_NOT_READY, Code::CUDA_ERROR_UNKNOWN];
        match self {
            NoGpu::Failed(error) => NOT_READY.iter().any(|code| *code as u32 == error.code),
            NoGpu::NotLoaded => true,
            _ => false,
        }
    }
}

/// Looks for the driver and its GPUs. A GPU that the driver lists but cannot describe is left out.
///
/// # Errors
/// Why there are none.
pub fn probe() -> Result<Driver, NoGpu> {
    // SAFETY: opens and closes the library by its usual names, which runs its initialisers; a driver's are safe to run.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoGpu::NoDriver);
    }
    let version = version()?;
    if version < VERSION_MIN {
        return Err(NoGpu::TooOld(version));
    }
    match result::init() {
        Ok(()) => {}
        Err(error) => return Err(no_gpu(error)),
    }
    let count = result::device::get_count().map_err(CudaError::when("cannot count the GPUs"))?;
    if count == 0 {
        return Err(NoGpu::NoneVisible(none_visible()));
    }
    let (mut gpus, mut left_out) = (Vec::new(), Vec::new());
    for ordinal in 0..count {
        match gpu(ordinal, version) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => {
                tracing::warn!(gpu = ordinal, %error, "the driver does not tell what this GPU is; it is left alone");
                left_out.push(error);
            }
        }
    }
    match left_out.pop_if(|_| gpus.is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(Driver { version, gpus, left_out }),
    }
}

fn no_gpu(error: result::DriverError) -> NoGpu {
    match error.0 {
        Code::CUDA_ERROR_STUB_LIBRARY => NoGpu::Stub,
        Code::CUDA_ERROR_NO_DEVICE if is_not_loaded(Path::new("/")) => NoGpu::NotLoaded,
        Code::CUDA_ERROR_NO_DEVICE => NoGpu::NoneVisible(none_visible()),
        _ => NoGpu::Failed(CudaError::when("the driver does not start")(error)),
    }
}

/// Whether a machine, whose files begin at `root`, has a GPU from NVIDIA and its kernel no driver for it, as while it boots.
fn is_not_loaded(root: &Path) -> bool {
    // A vendor, and the class of displays and of what computes beside one.
    const NVIDIA: (&str, &str) = ("0x10de", "0x03");
    let says = |device: &Path, file: &str, begins: &str| {
        std::fs::read_to_string(device.join(file)).is_ok_and(|text| text.starts_with(begins))
    };
    let mut devices = std::fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    !root.join("proc/driver/nvidia/version").exists()
        && devices
            .any(|device| says(&device.path(), "vendor", NVIDIA.0) && says(&device.path(), "class", NVIDIA.1))
}

/// The likely reason why a driver shows no GPU.
fn none_visible() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!("CUDA_VISIBLE_DEVICES is {value:?}, which names none that is there"),
        Err(_) => "there is none, or none that this process may use".to_owned(),
    }
}

fn version() -> Result<Version, NoGpu> {
    let mut version = 0;
    // SAFETY: writes one number; may be called before anything else.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    match asked {
        Ok(()) => Ok(Version::numbered(version)),
        Err(error) => Err(no_gpu(error)),
    }
}

fn gpu(ordinal: i32, cuda: Version) -> Result<Gpu, CudaError> {
    let failed = |what: &str| CudaError::when(format!("cannot read the {what} of GPU {ordinal}"));
    let device = result::device::get(ordinal).map_err(failed("handle"))?;
    let attribute = |attribute, what: &str| {
        // SAFETY: the device was given to us by the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map(i32::unsigned_abs).map_err(failed(what))
    };
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }.map_err(failed("memory"))?;
    let pci = pci(device).map_err(failed("place on the bus"))?;
    Ok(Gpu {
        ordinal: ordinal.unsigned_abs() as usize,
        name: result::device::get_name(device).map_err(failed("name"))?,
        id: id(device).map_err(failed("UUID"))?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability")?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability")?,
        ),
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "processors")?,
        shared_block_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            "shared memory",
        )?,
        shared_processor_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            "shared memory",
        )?,
        memory_bytes: memory as u64,
        numa_node: numa::node(Path::new(numa::SYSTEM), &pci),
        pci,
        prohibited: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, "compute mode")? == PROHIBITED,
        cuda,
    })
}

/// The UUID as NVML writes it. A part of a GPU (MIG) has a UUID of its own, besides that of the whole GPU.
fn id(device: sys::CUdevice) -> Result<String, result::DriverError> {
    let whole = result::device::get_uuid(device)?;
    let mut own = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes; the device was given to us by the driver.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut own, device) }.result()?;
    let kind = if own.bytes == whole.bytes { "GPU" } else { "MIG" };
    Ok(format!("{kind}-{}", uuid::Uuid::from_bytes(own.bytes.map(|byte| byte as u8))))
}

fn pci(device: sys::CUdevice) -> Result<String, result::DriverError> {
    let mut text = [0; 32];
    // SAFETY: writes at most `text.len()` bytes, with a zero at the end.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) }.result()?;
    let bytes = text.map(|byte| byte as u8);
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().to_lowercase())
}

/// Has the driver cache the kernels that it compiles in `folder`, unless the environment names a folder. Must be called before
/// anything else here, and before there are threads.
pub fn keep_kernels_in(folder: &Path) {
    const VARIABLE: &str = "CUDA_CACHE_PATH";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: the driver reads the variable when it is initialised, which is later. The threads that exist by now (the log's) do not
        // read the environment.
        unsafe { std::env::set_var(VARIABLE, folder) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_write_them() {
        assert_eq!(Version::numbered(12_000).to_string(), "12.0");
        assert_eq!(Version::numbered(12_090).to_string(), "12.9");
        assert!(Version::numbered(11_080) < VERSION_MIN);
    }

    #[test]
    fn a_gpu_whose_driver_is_not_in_the_kernel_yet_is_told_from_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let is_not_loaded = || is_not_loaded(folder.path());
        assert!(!is_not_loaded(), "no bus");
        put("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n");
        put("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
        put("sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
        put("sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
        assert!(!is_not_loaded(), "another maker's, and one for sound");
        put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
        put("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        assert!(is_not_loaded() && NoGpu::NotLoaded.may_pass());
        put("proc/driver/nvidia/version", "NVRM version: 580\n");
        assert!(!is_not_loaded(), "its driver is there, and shows it to others");
    }

    #[test]
    fn every_reason_to_have_no_gpu_is_one_line() {
        for reason in [
            NoGpu::NoDriver,
            NoGpu::TooOld(Version::numbered(11_080)),
            NoGpu::Stub,
            NoGpu::NoneVisible(none_visible()),
            NoGpu::NotLoaded,
        ] {
            let text = reason.to_string();
            assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        }
    }
}
