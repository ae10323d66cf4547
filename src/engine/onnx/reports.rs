//! ONNX Runtime's builds for Linux report to Microsoft what runs where, from the moment in which the library starts: turning that
//! off by its API, as [`Runtime::load`](super::Runtime::load) does as well, comes after the first report.
#![allow(unsafe_code)]

/// Has ONNX Runtime report nothing, in this process and in those that it starts. To be called before anything else, while there
/// is no other thread.
pub fn report_nothing() {
    // SAFETY: there is no other thread yet that could read the environment meanwhile.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}
