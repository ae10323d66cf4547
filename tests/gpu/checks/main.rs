//! What `tests/gpu/run.py` carries to a machine with a GPU: one program that is the server, for all that goes through HTTP, and
//! that runs one check or measurement of the GPU itself, for all that does not.
//!
//! `gpu_checks check NAME` runs one, on the first GPU of whatever driver is found; `gpu_checks list` names them. A check that fails
//! panics. What it measured is printed as lines of `number NAME VALUE`; `run.py` knows the units and what each means. Anything else
//! is the command line of `ocelli`, whose networks of GPUs run on the CPU where it is only rehearsed.
#![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]

mod bench;
mod device;
#[path = "../../../src/engine/kernels/erf.rs"]
mod erf;
mod fault;
mod fits;
mod hold;
mod images;
mod jpeg;
mod life;
mod network;
mod outputs;
mod spots;
#[path = "../../cuda/support.rs"]
#[allow(dead_code, reason = "the tests on the fake driver take more of it")]
mod support;

use ocelli::engine::onnx::{Runtime, report_nothing};
use std::{path::Path, process::ExitCode};
use tikv_jemallocator::Jemalloc;

/// As of the server: drivers and libraries are to meet the heap that they meet there.
#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

/// Every check by its name, and what runs it.
const CHECKS: &[(&str, fn())] = &[
    ("load", life::load),
    ("fit", fits::against_the_host_and_truth),
    ("spots", spots::against_the_host),
    ("preprocess", images::against_the_host),
    ("postprocess", outputs::against_plain_code),
    ("math", outputs::functions),
    ("overlap", life::overlap),
    ("memory", life::memory_runs_out_and_comes_back),
    ("fault-release", fault::released),
    ("fault-reset", fault::reset),
    ("fault-network", fault::with_a_network),
    ("network", network::against_the_cpu),
    ("jpeg", jpeg::against_the_cpu),
    ("hold-memory", hold::memory),
    ("hold-processors", hold::processors),
    ("bench-fit", bench::fit),
    ("bench-preprocess", bench::preprocess),
    ("bench-jpeg", jpeg::bench),
    ("bench-network", network::bench),
];

/// How a check says that it cannot be had here.
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    report_nothing();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check", name] => match CHECKS.iter().find(|(known, _)| *known == name) {
            Some((_, run)) => {
                run();
                ExitCode::SUCCESS
            }
            None => {
                eprintln!("there is no check {name:?}: gpu_checks list");
                ExitCode::FAILURE
            }
        },
        ["list"] => {
            for (name, _) in CHECKS {
                println!("{name}");
            }
            ExitCode::SUCCESS
        }
        _ => {
            if let (true, Some(library)) = (rehearsed(), given("ORT_DYLIB_PATH")) {
                // The same library as the server's, which is loaded once: its networks run on the CPU, all else on the fake.
                Runtime::load(Path::new(&library), u64::MAX).unwrap().stand_in(true);
            }
            ocelli::cli::run(std::env::args_os())
        }
    }
}

/// Prints what was measured, for `run.py`.
fn number(name: &str, value: f64) {
    println!("number {name} {value:e}");
}

/// Ends the process as a check that cannot be had here.
fn skip(why: &str) -> ! {
    println!("skip {why}");
    std::process::exit(i32::from(SKIPPED))
}

/// A variable that `run.py` sets.
fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether measurements are only rehearsed: as small as they can be, since no GPU is there to be measured.
fn rehearsed() -> bool {
    given("GPU_CHECKS_REHEARSAL").is_some()
}
