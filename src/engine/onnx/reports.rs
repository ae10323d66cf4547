//! Turns off ONNX Runtime's telemetry. Its builds for Linux report to Microsoft what runs where, from the moment the library starts.
//! [`Runtime::load`](super::Runtime::load) also turns that off through the API, but only after the first report.
#![allow(unsafe_code)]

/// Has ONNX Runtime report nothing, in this process and in those that it starts. Must be called before anything else, while there
/// is no other thread.
pub fn report_nothing() {
    // SAFETY: there is no other thread yet that could read the environment concurrently.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}
