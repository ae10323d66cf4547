//! Parses, runs, and turns the result into an exit code.

use std::process::ExitCode;
use tikv_jemallocator::Jemalloc;

/// Of all of the process: `malloc` of C, which ONNX Runtime and the decoders call, is jemalloc's, too.
#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    ocelli::cli::run(std::env::args_os())
}
