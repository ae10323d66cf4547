//! Parses, runs, and turns the result into an exit code.

use std::process::ExitCode;

/// A body of 600 kB is a hundred and fifty pages: the system's allocator gives them back after each request, and takes
/// them again, zeroed, for the next one. This one keeps them for a moment.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ocelli::cli::run(std::env::args_os())
}
