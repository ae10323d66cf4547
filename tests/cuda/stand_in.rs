//! The server, whose networks for GPUs run on the CPU, in memory of the fake driver's devices: ONNX Runtime's CUDA provider runs on no
//! fake. Its children are this program, too.

use ocelli::engine::onnx::{Runtime, report_nothing};
use std::process::ExitCode;

fn main() -> ExitCode {
    report_nothing();
    let library = std::env::var_os("ORT_DYLIB_PATH").expect("ORT_DYLIB_PATH names ONNX Runtime");
    Runtime::load(library.as_ref(), u64::MAX).expect("ONNX Runtime is there").stand_in(true);
    ocelli::cli::run(std::env::args_os())
}
