//! A kernel that writes where nothing is, and what a process can do afterwards. NVIDIA's word is that it must end; whether a
//! context that is given back or reset works again on the driver at hand is found out here, and is a number, not a failure.

use crate::{
    device::{Device, at},
    network, number, support,
};
use cudarc::driver::{result, sys};
use ocelli::engine::{
    Engine, TensorView,
    cuda::{Canary, Context, Fault},
};
use std::sync::Arc;

/// Also what `fault.c` launches in a server.
const ILLEGAL: &str = include_str!("../illegal_address.ptx");

/// Breaks the primary context, and fails unless that is seen for what it is.
fn break_context(context: &Arc<Context>) {
    let device = Device::open();
    let [kernel] = device.kernels(ILLEGAL, ["illegal_address"]);
    let nowhere = 8u64;
    device.launch(kernel, [1, 1, 1], [1, 1, 1], &mut [at(&nowhere)]);
    let code = device.stream.synchronize().unwrap_err();
    println!("the kernel ended with {code}");
    let seen = context.memory().unwrap_err();
    assert_eq!(seen.fault(), Fault::Sticky, "{seen}");
}

/// Whether a new context works in this process.
fn works() -> bool {
    let tried = ocelli::engine::cuda::probe().map_err(|error| error.to_string()).and_then(|driver| {
        let context = Context::open(&driver.gpus[0]).map_err(|error| error.to_string())?;
        Canary::default().check(&context).map_err(|error| error.to_string())
    });
    println!("afterwards: {tried:?}");
    tried.is_ok()
}

pub(crate) fn released() {
    let context = support::open(0);
    break_context(&context);
    drop(context);
    number("works_after_release", f64::from(u8::from(works())));
}

pub(crate) fn reset() {
    let context = support::open(0);
    break_context(&context);
    reset_primary();
    // Its handles name nothing any more: to give one back is to write where something was (driver 580 crashes).
    std::mem::forget(context);
    number("works_after_reset", f64::from(u8::from(works())));
}

#[allow(unsafe_code, reason = "a call that the product never makes")]
fn reset_primary() {
    let device = result::device::get(0).unwrap();
    // SAFETY: the device is the driver's; nobody touches what was in the context afterwards.
    let code = unsafe { sys::cuDevicePrimaryCtxReset_v2(device) };
    println!("reset: {code:?}");
}

pub(crate) fn with_a_network() {
    let context = support::open(0);
    let (mut engine, inputs) = network::digits(&context);
    let views: Vec<TensorView<'_>> = inputs.iter().map(ocelli::engine::Tensor::view).collect();
    engine.run(&views, None).unwrap();
    break_context(&context);
    let refused = engine.run(&views, None).map(|_| ()).unwrap_err();
    println!("a run in the broken context: {refused}");
    assert!(matches!(refused, ocelli::engine::EngineError::Device(_)), "{refused}");
    // Whether dropping it ends the process is seen by whoever started this.
    drop(engine);
    drop(context);
    number("works_after_network_fault", f64::from(u8::from(works())));
}
