//! Programs of tests: examples of this package, built as the tests were, so that they are never older.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The example of that name, built.
pub fn built(name: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--offline", "--quiet", "--example", name]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "the example {name} is not built");
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join("examples").join(name)
}
