//! Classifies the driver's error codes by their consequence, of which there are four.

use crate::engine::EngineError;
use cudarc::driver::{DriverError, sys::CUresult as Code};
use std::{ffi::CStr, ops::RangeInclusive};

/// The consequence of an error of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call was refused because of its arguments; the context is intact.
    Input,
    /// Memory of the device or of the host is used up; the context is intact.
    OutOfMemory,
    /// A CUDA graph was being recorded somewhere, or that recording was broken; the context is intact, and the same may be done again.
    Passing,
    /// The context cannot be trusted any more. This includes errors of kernels: every later call returns them again, and
    /// according to NVIDIA the process must end.
    Sticky,
}

/// An error of the driver, and the operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {text} ({name}, code {code})")]
pub struct CudaError {
    /// The operation, such as `cannot allocate 4096 bytes`.
    pub doing: String,
    /// The code in `cuda.h`.
    pub code: u32,
    name: String,
    text: String,
}

impl CudaError {
    /// For `map_err`: adds the operation to an error of the driver.
    pub(crate) fn when<D: Into<String>>(doing: D) -> impl FnOnce(DriverError) -> CudaError {
        move |error| {
            let words = |text: Result<&CStr, DriverError>| match text {
                Ok(text) => text.to_string_lossy().into_owned(),
                Err(_) => "an error that the driver has no words for".to_owned(),
            };
            CudaError {
                doing: doing.into(),
                code: error.0 as u32,
                name: words(error.error_name()),
                text: words(error.error_string()),
            }
        }
    }

    /// The consequence of the error.
    pub fn fault(&self) -> Fault {
        fault(self.code)
    }

    /// Whether it is an error of work on the GPU, after which the process can no longer use CUDA. A call that runs nothing there,
    /// such as taking a GPU, returns it only if earlier work of this process has failed with it.
    pub fn ends_process(&self) -> bool {
        ends_process(self.code)
    }

    /// The error of not getting a GPU. If other processes use it exclusively or leave too little memory, that is
    /// [`EngineError::OutOfMemory`]: the GPU may be available later.
    pub(crate) fn of_taking(&self) -> EngineError {
        match others_have(self.code) {
            true => EngineError::OutOfMemory(format!("others have it to themselves: {self}")),
            false => self.clone().into(),
        }
    }
}

#[cfg(test)]
impl CudaError {
    /// An error with this code, without texts.
    pub(crate) fn of_code(code: u32) -> CudaError {
        CudaError { doing: String::new(), code, name: String::new(), text: String::new() }
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> EngineError {
        match error.fault() {
            Fault::Input => EngineError::Input(error.to_string()),
            Fault::OutOfMemory => EngineError::OutOfMemory(error.to_string()),
            Fault::Passing => EngineError::Passing(error.to_string()),
            Fault::Sticky => EngineError::Device(error.to_string()),
        }
    }
}

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to `_WRONG_THREAD`: what a recording does not allow, and what breaks it. For none of these
/// does `cuda.h` say, as it does for errors of kernels, that the context or the process must end.
const RECORDING: RangeInclusive<u32> =
    Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;

/// The consequence of a code. A code that is not known to leave the context intact counts as sticky: a broken context gives wrong
/// answers or none.
fn fault(code: u32) -> Fault {
    const INPUT: [Code; 2] = [Code::CUDA_ERROR_INVALID_VALUE, Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES];
    if code == Code::CUDA_ERROR_OUT_OF_MEMORY as u32 {
        Fault::OutOfMemory
    } else if INPUT.iter().any(|input| *input as u32 == code) {
        Fault::Input
    } else if RECORDING.contains(&code) {
        Fault::Passing
    } else {
        Fault::Sticky
    }
}

/// Whether, according to `cuda.h`, all later calls fail in the same way and the process must be restarted; for assertions in kernels it
/// says that the context must go. Faults of memory and links are excluded: whether they outlive a context depends on the hardware.
fn ends_process(code: u32) -> bool {
    const ENDS: [Code; 12] = [
        Code::CUDA_ERROR_CONTAINED,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS,
        Code::CUDA_ERROR_LAUNCH_TIMEOUT,
        Code::CUDA_ERROR_ASSERT,
        Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Code::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        Code::CUDA_ERROR_MISALIGNED_ADDRESS,
        Code::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        Code::CUDA_ERROR_INVALID_PC,
        Code::CUDA_ERROR_LAUNCH_FAILED,
        Code::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        Code::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    ];
    ENDS.iter().any(|ends| *ends as u32 == code)
}

/// Whether a GPU is refused because it is for one process at a time (its compute mode), its MPS clients are at the limit, or MPS is
/// just starting. Only for errors of taking a GPU: during work, these codes would mean something else.
fn others_have(code: u32) -> bool {
    const OTHERS: [Code; 4] = [
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
        Code::CUDA_ERROR_MPS_SERVER_NOT_READY,
        Code::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
        Code::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
    ];
    OTHERS.iter().any(|others| *others as u32 == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_kernels_and_hardware_are_sticky_and_out_of_memory_is_not() {
        let sticky = [
            Code::CUDA_ERROR_ECC_UNCORRECTABLE,
            Code::CUDA_ERROR_ILLEGAL_ADDRESS,
            Code::CUDA_ERROR_LAUNCH_TIMEOUT,
            Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
            Code::CUDA_ERROR_INVALID_PC,
            Code::CUDA_ERROR_LAUNCH_FAILED,
            Code::CUDA_ERROR_UNKNOWN,
        ];
        for code in sticky {
            assert_eq!(fault(code as u32), Fault::Sticky, "{code:?}");
        }
        assert_eq!(fault(2), Fault::OutOfMemory);
        assert_eq!(fault(1), Fault::Input);
        assert_eq!(fault(12_345), Fault::Sticky, "what nobody knows");
    }

    #[test]
    fn what_a_recording_forbids_or_is_broken_by_is_nobodys_fault() {
        let passing: Vec<u32> = (0..1000).filter(|code| fault(*code) == Fault::Passing).collect();
        assert_eq!(passing, (900..=908).collect::<Vec<_>>());
        let error: EngineError = CudaError::of_code(900).into();
        assert!(matches!(error, EngineError::Passing(_)), "{error:?}");
    }

    #[test]
    fn a_gpu_that_others_have_to_themselves_is_waited_for_where_it_is_taken() {
        let error = CudaError::of_code;
        for code in [46, 807, 808, 809] {
            assert!(matches!(error(code).of_taking(), EngineError::OutOfMemory(_)), "{code}");
            assert!(matches!(error(code).into(), EngineError::Device(_)), "{code}, in the middle of work");
        }
        for code in [100, 101, 214, 700, 805, 999] {
            assert!(matches!(error(code).of_taking(), EngineError::Device(_)), "{code}");
        }
    }

    #[test]
    fn only_errors_of_what_ran_on_the_gpu_end_the_process_and_all_of_these_are_sticky() {
        let ends: Vec<u32> = (0..1000).filter(|code| ends_process(*code)).collect();
        assert_eq!(ends, [226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810]);
        assert!(ends.iter().all(|code| fault(*code) == Fault::Sticky));
        for passes in [
            Code::CUDA_ERROR_OUT_OF_MEMORY,
            Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
            Code::CUDA_ERROR_NO_DEVICE,
            Code::CUDA_ERROR_ECC_UNCORRECTABLE,
            Code::CUDA_ERROR_SYSTEM_NOT_READY,
            Code::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(!ends_process(passes as u32), "{passes:?}: a GPU may be had another time");
        }
    }
}
