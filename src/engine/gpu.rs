//! What is known of a GPU: what its driver says of it, without a context there.

use std::fmt;

/// The lowest compute capability that the kernels support.
const CAPABILITY_MIN: (u32, u32) = (7, 5);

/// A version of CUDA, as drivers number it: 1000 × major + 10 × minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i32);

impl Version {
    /// As a driver gives it.
    pub(crate) const fn numbered(number: i32) -> Version {
        Version(number)
    }

    /// Such as 12 and 9.
    pub const fn new(major: i32, minor: i32) -> Version {
        Version(1000 * major + 10 * minor)
    }

    /// The major version. Libraries built for it run on the driver, whatever their minor version.
    pub fn major(self) -> u32 {
        self.0.unsigned_abs() / 1000
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A GPU that the driver shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its index in this process, which depends on `CUDA_VISIBLE_DEVICES` and the container.
    pub ordinal: usize,
    /// The vendor's name for it.
    pub name: String,
    /// Its UUID, such as `GPU-8f2c…`: the same in every process and in NVML. For a part of a GPU it begins with `MIG-`.
    pub id: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Bytes that the threads of a block may share.
    pub shared_block_bytes: u32,
    /// Bytes that blocks on one multiprocessor may share, all together.
    pub shared_processor_bytes: u32,
    /// Memory in all, bytes.
    pub memory_bytes: u64,
    /// Its address on the PCI bus, such as `0000:01:00.0`.
    pub pci: String,
    /// The NUMA node that it is attached to, if the system says.
    pub numa_node: Option<u32>,
    /// Whether its compute mode lets no process use it.
    pub prohibited: bool,
    /// The newest CUDA version that its driver supports.
    pub cuda: Version,
}

impl Gpu {
    /// Checks that our kernels support it, and that anybody may use it.
    ///
    /// # Errors
    /// The capability that it has and the one that is needed, or what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.prohibited {
            return Err(format!(
                "{} is in compute mode PROHIBITED: no process may use it before `nvidia-smi -i {} -c DEFAULT`, and a server that runs \
                 by then is to be started again",
                self.name, self.id
            ));
        }
        if self.capability >= CAPABILITY_MIN {
            return Ok(());
        }
        let ((major, minor), (need_major, need_minor)) = (self.capability, CAPABILITY_MIN);
        Err(format!(
            "{} has compute capability {major}.{minor}; {need_major}.{need_minor} or more is needed",
            self.name
        ))
    }
}
