//! Classifies a failed run by the text of ONNX Runtime's message, since it has one code for nearly everything.

use crate::engine::EngineError;

/// Texts of a run for which too little memory was free.
const OUT_OF_MEMORY: [&str; 9] = [
    "Failed to allocate memory",
    "bad_alloc",
    "out of memory",
    "cudaErrorMemoryAllocation",
    // From any library: CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED.
    "_ALLOC_FAILED",
    // From an arena that has reached its limit: `Available memory of 8388608 is smaller than requested bytes of 16777216`.
    "is smaller than requested bytes",
    "Failed to find a free memory block",
    // From libraries that start on an almost full GPU. They report a broken context in the same way; the driver tells the two apart.
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
];

/// Texts of a device, or a library on it, that failed.
const DEVICE: [&str; 7] = [
    "CUDA failure",
    "CUDA error",
    "CUDNN failure",
    "CUDNN error",
    "CUBLAS failure",
    "CUBLAS error",
    "no kernel image is available",
];

/// Texts of a call that the recording of a CUDA graph was in the way of, or of a recording that another call broke: CUDA's words, and its
/// names and numbers for all of that kind.
const RECORDING: [&str; 12] = [
    "when stream is capturing",
    "error during capture",
    "cudaErrorStreamCapture",
    "CUDA failure 900:",
    "CUDA failure 901:",
    "CUDA failure 902:",
    "CUDA failure 903:",
    "CUDA failure 904:",
    "CUDA failure 905:",
    "CUDA failure 906:",
    "CUDA failure 907:",
    "CUDA failure 908:",
];

/// ONNX Runtime reports the failure of any library in this form: `CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=n1`.
const LIBRARY: [&str; 2] = [" failure ", " ; GPU="];

/// With these texts, however, a library says that it does not support the extents, which are the batch's fault.
const EXTENTS: [&str; 3] = ["GRAPH_NOT_SUPPORTED", "SHAPE_DEDUCTION_FAILED", "CUFFT_INVALID_SIZE"];

/// Classifies the error of a run.
pub(in crate::engine) fn of_run(error: &ort::Error) -> EngineError {
    of_message(error.message())
}

/// Whether a load failed for lack of memory, so that it may succeed later.
pub(in crate::engine) fn is_out_of_memory(message: &str) -> bool {
    OUT_OF_MEMORY.iter().any(|words| message.contains(words))
}

fn of_message(message: &str) -> EngineError {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let library_failed = LIBRARY.iter().all(|word| message.contains(word)) && !says(&EXTENTS);
    let line = first_line(message);
    if is_out_of_memory(message) {
        let told = of_arena(&line).unwrap_or(line);
        EngineError::OutOfMemory(format!("out of memory: {told}"))
    } else if says(&RECORDING) {
        EngineError::Passing(line)
    } else if says(&DEVICE) || library_failed {
        EngineError::Device(line)
    } else {
        EngineError::Input(line)
    }
}

/// What an arena that has reached its limit says in the names of its functions.
fn of_arena(line: &str) -> Option<String> {
    let (before, numbers) = line.split_once("Available memory of ")?;
    let (left, needed) = numbers.split_once(" is smaller than requested bytes of ")?;
    let (_, node) = before.split_once("while running ")?;
    let (operator, name) = node.split_once(" node. Name:")?;
    let (name, _) = name.split_once(" Status Message")?;
    Some(format!("{operator} {name} needs {needed} bytes, and {left} are left"))
}

/// The first line of an ONNX Runtime message, without what only its developers can use: stack traces below it, names of source
/// files, the host name.
pub(in crate::engine) fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.split_once(" ; GPU=").map_or(line, |(before, _)| before);
    // The marker is preceded by the function that failed, and followed by a code and its name.
    let line = line
        .split_once("[ONNXRuntimeError] : ")
        .map_or(line, |(_, coded)| coded.splitn(3, " : ").nth(2).unwrap_or(coded));
    let words = line.split_whitespace();
    words.filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" ")
}

/// Why a file cannot be loaded; for one that is newer than this ONNX Runtime, with what to do.
pub(in crate::engine) fn of_load(message: &str) -> String {
    let line = first_line(message);
    match line.split_once("Unsupported model IR version") {
        Some((_, versions)) => format!(
            "the file is too new for this ONNX Runtime: its IR version is unsupported{versions}; export it with an \
             older version of onnx, or use a newer ONNX Runtime"
        ),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::discriminant;

    #[test]
    fn a_file_that_is_too_new_is_told_with_what_to_do() {
        let message = "Load model from m/model.onnx failed:/onnxruntime_src/onnxruntime/core/graph/model.cc:256 \
                       onnxruntime::Model::Model(onnx::ModelProto&&) Unsupported model IR version: 99, max supported IR version: 13";
        let told = of_load(message);
        assert!(
            told.contains(": 99, max supported IR version: 13; export it") && !told.contains("::"),
            "{told}"
        );
        assert_eq!(of_load("Load model failed: no such file"), "Load model failed: no such file");
    }

    fn kind(message: &str, expected: fn(String) -> EngineError) {
        let got = of_message(message);
        assert_eq!(discriminant(&got), discriminant(&expected(String::new())), "{got:?}");
    }

    #[test]
    fn messages_for_callers_name_no_source_files() {
        let message =
            "Non-zero status code /onnxruntime_src/onnxruntime/core/bfc_arena.cc:360 void* f() Failed\n0x1";
        assert_eq!(first_line(message), "Non-zero status code void* f() Failed");
        let message = "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=n1 ; file=/a.cc ; line=1";
        assert_eq!(first_line(message), "CUDA failure 700: an illegal memory access was encountered");
    }

    #[test]
    fn messages_begin_with_what_went_wrong() {
        let message = "T f(const U&) [ONNXRuntimeError] : 1 : FAIL : Failed to load : a library";
        assert_eq!(first_line(message), "Failed to load : a library");
    }

    #[test]
    fn want_of_memory_is_no_fault_of_the_device_and_a_wrong_shape_is_the_batchs_own() {
        kind(
            "BFCArena: Failed to allocate memory for requested buffer of size 4096",
            EngineError::OutOfMemory,
        );
        kind("CUDA failure 2: out of memory ; GPU=0", EngineError::OutOfMemory);
        kind("CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0", EngineError::OutOfMemory);
        let arena = "Non-zero status code returned while running MatMul node. Name:'' Status Message: \
                     /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* \
                     onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*)";
        let full = format!("{arena} Available memory of 8388608 is smaller than requested bytes of 16777216");
        kind(&full, EngineError::OutOfMemory);
        let told = EngineError::OutOfMemory(
            "out of memory: MatMul '' needs 16777216 bytes, and 8388608 are left".to_owned(),
        );
        assert_eq!(of_message(&full), told);
        assert!(is_out_of_memory(&full), "of a load as well");
        kind(
            &format!("{arena} Failed to find a free memory block despite calling Extend. rounded_bytes=256"),
            EngineError::OutOfMemory,
        );
        kind("CUBLAS failure 1: CUBLAS_STATUS_NOT_INITIALIZED ; GPU=0", EngineError::OutOfMemory);
        kind("CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED ; GPU=0", EngineError::OutOfMemory);
        kind("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", EngineError::OutOfMemory);
        kind("CUDA failure 700: an illegal memory access was encountered ; GPU=0", EngineError::Device);
        kind("CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available", EngineError::Device);
        kind("Non-zero status code returned while running Reshape node", EngineError::Input);
    }

    #[test]
    fn a_recording_beside_a_run_is_neither_the_devices_fault_nor_the_inputs() {
        let check = |failed: &str| {
            kind(&format!("{failed} ; GPU=0 ; hostname=n1 ; file=/a.cc"), EngineError::Passing);
        };
        check("CUDA failure 900: operation not permitted when stream is capturing");
        check("CUDA failure 901: operation failed due to a previous error during capture");
        check(
            "CUDA failure 906: operation would make the legacy stream depend on a capturing blocking stream",
        );
        check("CUDA error cudaErrorStreamCaptureInvalidated: operation failed");
        kind("CUDA failure 9: invalid configuration argument ; GPU=0", EngineError::Device);
        kind("CUDA failure 909: the operation cannot be performed ; GPU=0", EngineError::Device);
    }

    #[test]
    fn a_library_that_fails_is_the_devices_fault_unless_it_has_nothing_for_the_batchs_extents() {
        let check = |failed: &str, expected: fn(String) -> EngineError| {
            let before = "Non-zero status code returned while running Conv node. Status Message:";
            kind(
                &format!("{before} {failed} ; GPU=0 ; hostname=n1 ; file=/a.cc ; line=9 ; expr=f();"),
                expected,
            );
        };
        check("CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED", EngineError::Device);
        check("CUDNN_FE failure 8: HEURISTIC_QUERY_FAILED", EngineError::Device);
        check("CUDNN_FE failure 5: GRAPH_NOT_SUPPORTED", EngineError::Input);
        check("CUFFT failure 6: CUFFT_EXEC_FAILED", EngineError::Device);
        check("CUFFT failure 8: CUFFT_INVALID_SIZE", EngineError::Input);
        check("CUFFT failure 2: CUFFT_ALLOC_FAILED", EngineError::OutOfMemory);
        check("CURAND failure 201: (see curand.h)", EngineError::Device);
        check("CUSPARSE failure 6: CUSPARSE_STATUS_EXECUTION_FAILED", EngineError::Device);
    }
}
