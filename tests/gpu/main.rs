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
    fakes::example::built("gpu_checks")
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
        "fault-network",
        "example-spots",
        "example-digits",
        "example-digits-process",
        "example-digits-detector",
        "example-digits-segmenter",
        "example-digits-embedder",
        "graphs",
        "given-back",
        "memory-taken",
        "illegal-address-thread",
        "illegal-address-process",
        "two-gpus",
        "kill",
        "mig",
    ] {
        assert!(row(passed).contains(" passed"), "{}", row(passed));
    }
    for skipped in [
        "look-cost",
        "memcheck",
        "racecheck",
        "network",
        "processors-busy",
        "two-servers",
        "jpeg",
        "network-rests",
        "graphs-sizes",
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
    // A kernel of the finder hangs, and that of images breaks its context.
    let script = Path::new(
        "devices;fault on=kernel:preprocess times=always code=700;fault on=kernel:spots_select hang times=always",
    );
    let (code, said) = {
        let (cuda, program) = (fakes::cuda::library(), program());
        let out = folder.path().join("out");
        run(
            &["spots", "preprocess", "math", "--seconds", "spots=5"],
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

/// Runs the packing script.
fn pack(arguments: &[&Path]) -> Output {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut script = Command::new(python);
    script.arg(root().join("tools/pack_gpu_checks.py")).args(arguments).output().unwrap()
}

#[test]
fn the_packed_folder_has_all_that_the_script_needs() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, out) = (folder.path().join("packed"), folder.path().join("out"));
    let words = ["pack", "--fast", "--mib-max", "200"].map(Path::new);
    let made = pack(&[&words[..], &[&program(), &preloaded(folder.path()), &packed]].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut script = Command::new("python3");
    // A server for fits alone needs no ONNX Runtime, which was not packed.
    script.arg(packed.join("run.py")).args(["symbols", "math", "example-spots", "example-digits"]);
    script.env("LD_LIBRARY_PATH", fakes::cuda::library().parent().unwrap()).env("GPU_CHECKS_OUT", &out);
    let output = script.env_remove("CUDA_VISIBLE_DEVICES").env_remove("ORT_DYLIB_PATH").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("3 passed, 0 failed, 1 skipped"), "{said}");

    let small = ["pack", "--fast", "--mib-max", "0.1"].map(Path::new);
    let refused = pack(&[&small[..], &[&program(), &preloaded(folder.path()), &packed]].concat());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("more than 0.1"), "too large is refused");
}

#[test]
fn code_for_other_gpus_is_left_out_and_all_else_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    // A fat binary between other bytes: text for compilers, and machine code for 8.0 and for 9.0.
    let entry = |kind: u16, capability: u32, fill: u8| {
        let mut head = [0u8; 64];
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&64u32.to_le_bytes());
        head[8..16].copy_from_slice(&40u64.to_le_bytes());
        head[28..32].copy_from_slice(&capability.to_le_bytes());
        [&head[..], &[fill; 40]].concat()
    };
    let library = |other: u8| {
        let content = [entry(1, 80, 1), entry(2, 80, other), entry(2, 90, 3)].concat();
        let mut head = 0xBA55_ED50_u32.to_le_bytes().to_vec();
        head.extend([1, 0, 16, 0]);
        head.extend((content.len() as u64).to_le_bytes());
        [&[7; 100][..], &head, &content, &[9; 50]].concat()
    };
    std::fs::write(&from, library(2)).unwrap();
    let prune = |sm: &str| pack(&[Path::new("prune"), &from, &to, Path::new(sm)]);
    assert!(prune("90").status.success());
    assert_eq!(std::fs::read(&to).unwrap(), library(0));
    let refused = prune("100");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no code for [100], only for [80, 90]"));
}

#[test]
fn a_name_that_is_no_check_is_refused_with_those_there_are() {
    let (code, said) = run(&["spots", "no-such-check"], &[]);
    assert_eq!(code, Some(64));
    assert!(said.contains("no-such-check") && said.contains("example-spots"), "{said}");
    let (code, said) = run(&["spots", "--seconds", "spots=soon"], &[]);
    assert_eq!(code, Some(64));
    assert!(said.contains("--seconds") && said.contains("spots=soon"), "{said}");
}
