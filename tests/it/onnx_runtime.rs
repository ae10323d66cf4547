//! What is told of an ONNX Runtime that cannot be loaded.

use crate::support::root;
use std::{fs, path::Path, process::Command};

/// What `ocelli check` says of a library at this path.
fn told(library: &Path) -> String {
    let mut check = Command::new(env!("CARGO_BIN_EXE_ocelli"));
    check.arg("check").env_remove("OCELLI_CONFIG").env("ORT_DYLIB_PATH", library);
    check.env("OCELLI_MODELS", root().join("examples/models")).env("OCELLI_BACKEND", "cpu");
    let done = check.output().unwrap();
    assert_eq!(done.status.code(), Some(69));
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn a_library_that_cannot_be_loaded_is_told_with_the_systems_reason_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    for (path, why) in [
        (folder.path().join("no\nne.so"), "No such file or directory"),
        (text, "file too short"),
        (folder.path().to_owned(), "cannot read file data"),
    ] {
        let told = told(&path);
        let line = told.lines().find(|line| line.contains("cannot load ONNX Runtime")).unwrap_or_default();
        assert!(line.contains(why) && line.contains("make ort"), "{told}");
    }
}
