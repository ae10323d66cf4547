//! The version of ONNX Runtime, and whether it supports replaying CUDA graphs.
#![allow(unsafe_code)]

use libloading::Library;
use ort::sys::OrtApiBase;
use std::{ffi::CStr, path::Path};

/// The first minor version of 1 whose replays do not read memory that has been reused meanwhile: older ones free memory that recorded
/// Concat, Split, batched MatMul (ONNX Runtime's pull request 32121) and Gemm with a bias still read.
const REPLAYS_SINCE: u32 = 31;

/// The version of the library at `path`, which is loaded already.
///
/// # Errors
/// If the library does not say.
pub(super) fn of(path: &Path) -> Result<String, String> {
    // The same lookup as `ort` uses.
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().map(|folder| folder.join(path)).filter(|beside| beside.exists());
    // SAFETY: the library is loaded, and its initialisers have run.
    let library = unsafe { Library::new(beside.as_deref().unwrap_or(path)) };
    let library = library.map_err(|error| format!("it does not tell its version: {error}"))?;
    // SAFETY: this is the function's type in all versions.
    let base = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase") };
    let base = base.map_err(|error| format!("it does not tell its version: {error}"))?;
    // SAFETY: the result belongs to the library and lives as long as that is loaded; the text ends with a zero byte.
    let version = unsafe { CStr::from_ptr(((*base()).GetVersionString)()) };
    Ok(version.to_string_lossy().into_owned())
}

/// Checks that this version may replay CUDA graphs that it has recorded.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn check_replays(version: &str) -> Result<(), String> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let known = numbers.next().flatten().zip(numbers.next().flatten());
    match known {
        Some(known) if known >= (1, REPLAYS_SINCE) => Ok(()),
        _ => Err(format!(
            "CUDA graphs need ONNX Runtime 1.{REPLAYS_SINCE} or newer, and this is {version}, whose replays may read memory that it has given \
             to others: take a newer one, or leave gpu.cuda_graph out"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_for_versions_that_are_known_to_replay_rightly() {
        for version in ["1.31.0", "1.31.1", "1.40.0-dev", "2.0.0"] {
            assert_eq!(check_replays(version), Ok(()), "{version}");
        }
        for version in ["1.30.2", "1.26.0", "1", "", "new"] {
            let why = check_replays(version).expect_err(version);
            let told = format!("CUDA graphs need ONNX Runtime 1.31 or newer, and this is {version}, ");
            assert!(why.starts_with(&told), "{why}");
        }
    }
}
