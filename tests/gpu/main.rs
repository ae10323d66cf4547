//! The script of the checks on GPUs: what it says without a GPU, and all of it on the fakes of the driver and of NVML.
//!
//! The program that it carries is an example of this package, which is built here as the tests were, so that it is never older
//! than they are.
#![allow(clippy::unwrap_used)]

#[path = "../fakes/mod.rs"]
#[allow(unreachable_pub, reason = "other binaries take it as well")]
mod fakes;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The example, built.
fn program() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--offline", "--quiet", "--example", "gpu_checks"]).current_dir(root());
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "the example gpu_checks is not built");
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join("examples/gpu_checks")
}

/// The library that is loaded by another name.
fn preloaded(folder: &Path) -> PathBuf {
    let library = folder.join("libfault.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-o"];
    let source = root().join("tests/gpu/fault.c");
    let status = Command::new(compiler).args(flags).arg(&library).arg(source).arg("-ldl").status();
    assert!(status.unwrap().success());
    library
}

/// Runs the script.
fn run(arguments: &[&str], environment: &[(&str, &Path)]) -> (Option<i32>, String) {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut script = Command::new(python);
    script.arg(root().join("tests/gpu/run.py")).args(arguments).env_remove("CUDA_VISIBLE_DEVICES");
    for (name, value) in environment {
        script.env(name, value);
    }
    let Output { status, stdout, stderr } = script.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    println!("{said}");
    (status.code(), said)
}

#[test]
fn without_a_gpu_the_script_says_so_and_ends_with_77() {
    let nowhere = tempfile::tempdir().unwrap();
    let hidden = [("CUDA_VISIBLE_DEVICES", Path::new("-1")), ("GPU_CHECKS_PROGRAM", nowhere.path())];
    let (code, said) = run(&[], &hidden);
    assert_eq!(code, Some(77));
    assert!(said.starts_with("no GPU: ") && said.lines().count() == 1, "{said}");
}

/// Runs the script on the fakes, with their files in `folder`.
fn on_the_fakes(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let (cuda, nvml) = (fakes::cuda::library(), fakes::nvml::library());
    let libraries = format!("{}:{}", cuda.parent().unwrap().display(), nvml.parent().unwrap().display());
    let out = folder.join("out");
    let environment = [
        ("LD_LIBRARY_PATH", Path::new(&libraries)),
        ("GPU_CHECKS_PROGRAM", &program()),
        ("GPU_CHECKS_FAULT", &preloaded(folder)),
        ("GPU_CHECKS_OUT", &out),
    ];
    run(arguments, &environment)
}

#[test]
fn all_of_the_script_runs_on_the_fakes() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = on_the_fakes(folder.path(), &[]);
    assert_eq!(code, Some(0), "{said}");
    let row = |name: &str| {
        let row = said.lines().find(|line| line.split_whitespace().next() == Some(name));
        row.unwrap_or_else(|| panic!("no row for {name}")).to_owned()
    };
    for passed in [
        "symbols",
        "load",
        "fit",
        "spots",
        "preprocess",
        "postprocess",
        "math",
        "overlap",
        "memory",
        "fault-release",
        "fault-reset",
        "example-spots",
        "memory-taken",
        "illegal-address-thread",
        "illegal-address-process",
        "kill",
        "mig",
    ] {
        assert!(row(passed).contains(" passed"), "{}", row(passed));
    }
    for skipped in [
        "memcheck",
        "racecheck",
        "network",
        "example-digits",
        "processors-busy",
        "bench-fit",
        "bench-resnet50-fp16",
    ] {
        assert!(
            row(skipped).contains(" skipped") && row(skipped).contains("not on the fake driver"),
            "{}",
            row(skipped)
        );
    }
}

#[test]
fn a_check_that_fails_or_hangs_stops_no_other_and_fails_the_script() {
    let folder = tempfile::tempdir().unwrap();
    // The driver's clock for events and the copy of memory to the host fail; the finder's first kernel hangs.
    let script = Path::new(
        "devices;fault on=kernel:preprocess times=always code=700;fault on=kernel:spots_select hang times=always",
    );
    let (code, said) = {
        let (cuda, program) = (fakes::cuda::library(), program());
        let out = folder.path().join("out");
        run(
            &["spots", "preprocess", "math", "--seconds", "5"],
            &[
                ("LD_LIBRARY_PATH", cuda.parent().unwrap()),
                ("GPU_CHECKS_PROGRAM", &program),
                ("GPU_CHECKS_OUT", &out),
                ("FAKE_CUDA", script),
            ],
        )
    };
    assert_eq!(code, Some(1));
    let row =
        |name: &str| said.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap().to_owned();
    assert!(row("spots").contains("FAILED") && row("spots").contains("not within 5 s"), "{}", row("spots"));
    assert!(row("preprocess").contains("FAILED"), "{}", row("preprocess"));
    assert!(row("math").contains(" passed"), "{}", row("math"));
}

#[test]
fn a_name_that_is_no_check_is_refused_with_those_there_are() {
    let (code, said) = run(&["spots", "no-such-check"], &[]);
    assert_eq!(code, Some(64));
    assert!(said.contains("no-such-check") && said.contains("example-spots"), "{said}");
}
