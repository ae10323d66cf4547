//! The GPUs that the server may use, found at its start.

use super::AppError;
use crate::{
    config::{Backend, Config},
    engine::cuda::{self, Driver, Gpu, NoGpu},
};
use std::time::Duration;

/// The GPUs that the backend asks for.
#[derive(Default)]
pub(super) struct Gpus {
    pub(super) gpus: Vec<Gpu>,
    /// Why there are no others, or none at all, and whether that counts as a fault.
    pub(super) without: Vec<(String, bool)>,
}

impl Gpus {
    /// Looks for them.
    pub(super) fn of(config: &Config) -> Result<Gpus, AppError> {
        if config.backend == Backend::Cpu {
            return Ok(Gpus::default());
        }
        if let Some(folder) = &config.kernel_cache_folder {
            cuda::keep_kernels_in(folder);
        }
        let found = match config.backend {
            // A supervisor restarts the server if it fails.
            Backend::Gpu => cuda::probe(),
            _ => awaited(cuda::probe, std::thread::sleep),
        };
        match found {
            Ok(driver) => {
                let names = driver.gpus.iter().map(|gpu| gpu.name.as_str()).collect::<Vec<_>>().join(", ");
                tracing::info!(cuda = %driver.version, gpus = names, "found the CUDA driver");
                let without = driver.left_out.iter().map(|error| (error.to_string(), true)).collect();
                Ok(Gpus { gpus: driver.gpus, without })
            }
            Err(reason) if config.backend == Backend::Gpu => {
                Err(AppError::Backend(format!("backend is gpu, but {reason}")))
            }
            Err(reason) => {
                // Without a driver or a visible GPU, the machine may not be meant to have any.
                let is_fault = !matches!(reason, NoGpu::NoDriver | NoGpu::NoneVisible(_));
                match is_fault {
                    false => tracing::info!("backend auto: models run on the CPU: {reason}"),
                    true => tracing::warn!(
                        "backend auto: models run on the CPU until the server is started again: {reason}"
                    ),
                }
                Ok(Gpus { gpus: Vec::new(), without: vec![(reason.to_string(), is_fault)] })
            }
        }
    }
}

/// How often a driver that is not ready is tried again.
const DRIVER_TRIES: u32 = 30;
/// The pause before each try.
const DRIVER_PAUSE: Duration = Duration::from_secs(1);

/// Probes until the driver is ready, if that is soon: otherwise a server that starts with its machine would have no GPU for as long as it
/// lives.
fn awaited(
    mut probe: impl FnMut() -> Result<Driver, NoGpu>,
    mut pause: impl FnMut(Duration),
) -> Result<Driver, NoGpu> {
    for tries in 0..DRIVER_TRIES {
        match probe() {
            Err(reason) if reason.may_pass() => {
                if tries == 0 {
                    tracing::warn!(%reason, at_most = ?(DRIVER_TRIES * DRIVER_PAUSE), "the GPU driver is not ready; it is waited for");
                }
                pause(DRIVER_PAUSE);
            }
            found => return found,
        }
    }
    probe()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::CudaError;
    use crate::engine::gpu::Version;

    #[test]
    fn a_driver_that_is_not_ready_is_asked_again_for_a_while_and_one_that_is_of_no_use_is_not() {
        let ready = || Driver { version: Version::new(12, 9), gpus: Vec::new(), left_out: Vec::new() };
        let check = |code, failures: u32, expected: (bool, u32)| {
            let (mut asked, mut paused) = (0, Duration::ZERO);
            let probe = || {
                asked += 1;
                if asked > failures { Ok(ready()) } else { Err(NoGpu::Failed(CudaError::of_code(code))) }
            };
            let found = awaited(probe, |time| paused += time);
            assert_eq!((found.is_ok(), asked), expected, "{code}, {failures} times");
            assert_eq!(paused, (asked - 1) * DRIVER_PAUSE, "between the tries");
        };
        for code in [3, 802, 999] {
            check(code, 0, (true, 1));
            check(code, 2, (true, 3));
            check(code, 30, (true, 31));
            check(code, 31, (false, 31));
        }
        // Driver and library have different versions.
        check(803, 1, (false, 1));
    }
}
