//! ONNX Runtime keeps to itself.

use crate::support::{config, root};
use std::{fs, process::Command};

/// Its own reports begin with a file in the user's folder of caches, whether they can be sent or not.
#[test]
fn nothing_is_reported_of_what_runs_here() {
    let home = tempfile::tempdir().unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_ocelli"));
    check.arg("check").env_remove("ORT_DISABLE_TELEMETRY").env_remove("OCELLI_CONFIG");
    check.env("HOME", home.path()).env("XDG_CACHE_HOME", home.path().join("cache"));
    check.env("OCELLI_MODELS", root().join("examples/models")).env("OCELLI_BACKEND", "cpu");
    check.env("ORT_DYLIB_PATH", config().onnx_runtime);
    let done = check.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
