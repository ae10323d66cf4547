//! Parses, runs, and turns the result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ocelli::cli::run(std::env::args_os())
}
