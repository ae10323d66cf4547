//! How the GPU is used: loading kernels, copying while computing, and memory that runs out.

use crate::{
    device::{Device, Kernel, at, launch_on},
    fits::{known_width, run, simulated, tensors},
    given, number, rehearsed, support,
};
use cudarc::driver::{CudaEvent, CudaStream, sys};
use ocelli::engine::{
    Engine, EngineError, Flight,
    cuda::{Buffer, Canary, Fault, Heap, gauss_mle::GaussMle},
    staging::Blocks,
};
use std::{sync::Arc, time::Instant};

const MATH: &str = include_str!("../../../kernels/generated/math_check.ptx");
/// Threads of its blocks: as many as it is compiled for.
const MATH_THREADS: u32 = 128;
const MODULES: [(&str, &str); 7] = [
    ("xynb", include_str!("../../../kernels/generated/gauss_mle_xynb.ptx")),
    ("xynbs", include_str!("../../../kernels/generated/gauss_mle_xynbs.ptx")),
    ("xynbsxsy", include_str!("../../../kernels/generated/gauss_mle_xynbsxsy.ptx")),
    ("xyznb", include_str!("../../../kernels/generated/gauss_mle_xyznb.ptx")),
    ("spots", include_str!("../../../kernels/generated/spots.ptx")),
    ("preprocess", include_str!("../../../kernels/generated/preprocess.ptx")),
    ("postprocess", include_str!("../../../kernels/generated/postprocess.ptx")),
];

/// How long the driver takes to make our kernels ready. `run.py` calls this twice: its cache is empty first.
pub(crate) fn load() {
    let device = Device::open();
    let prefix = given("GPU_CHECKS_PREFIX").unwrap_or_else(|| "load".to_owned());
    for (name, ptx) in MODULES {
        let began = Instant::now();
        let [] = device.kernels(ptx, []);
        number(&format!("{prefix}_{name}_s"), began.elapsed().as_secs_f64());
    }
}

/// Keeps the GPU busy for a while.
pub(crate) struct Work {
    kernel: Kernel,
    from: crate::device::Memory,
    to: crate::device::Memory,
    count: u64,
}

impl Work {
    pub(crate) fn new(device: &Device, count: usize) -> Work {
        let [kernel] = device.kernels(MATH, ["math_check"]);
        Work { kernel, from: device.zeros(4 * count), to: device.zeros(4 * count), count: count as u64 }
    }

    pub(crate) fn begin(&self, stream: &CudaStream, times: usize) {
        let (function, from, to) = (0i32, self.from.address(), self.to.address());
        for _ in 0..times {
            let arguments = &mut [at(&function), at(&from), at(&to), at(&self.count)];
            launch_on(
                stream,
                self.kernel,
                [self.count.div_ceil(u64::from(MATH_THREADS)) as u32, 1, 1],
                [MATH_THREADS, 1, 1],
                0,
                arguments,
            );
        }
    }
}

/// How much of the copying goes on while kernels run, by the times of events; and what three batches at once gain over one.
pub(crate) fn overlap() {
    const ROUNDS: usize = 8;
    let device = Device::open();
    let (elements, bytes) = if rehearsed() { (1 << 10, 1 << 16) } else { (1 << 25, 96 << 20) };
    let work = Work::new(&device, elements);
    let (compute, upload) = (device.stream(), device.stream());
    // SAFETY: written before it is copied from.
    #[allow(unsafe_code, reason = "fresh memory")]
    let mut host = unsafe { device.context.alloc_pinned_with_flags::<u8>(bytes, 0) }.unwrap();
    host.as_mut_slice().unwrap().fill(7);
    let mut target = device.stream.alloc_zeros::<u8>(bytes).unwrap();
    device.wait();
    let mark =
        |stream: &Arc<CudaStream>| stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
    // As many launches as take longer than a copy: the way to one GPU is slow, and another is fast. The first of each is not counted.
    work.begin(&compute, 1);
    upload.memcpy_htod(&host, &mut target).unwrap();
    let before_launch = mark(&compute);
    work.begin(&compute, 1);
    let (launched, before_copy) = (mark(&compute), mark(&upload));
    upload.memcpy_htod(&host, &mut target).unwrap();
    let copied = mark(&upload);
    let launch_ms = before_launch.elapsed_ms(&launched).unwrap();
    let copy_ms = before_copy.elapsed_ms(&copied).unwrap();
    let launches = (1.5 * copy_ms / launch_ms.max(1e-3)).ceil().clamp(1.0, 10_000.0) as usize;
    println!("a copy takes {copy_ms} ms and a launch {launch_ms}: {launches} launches beside each copy");
    let (mut copying, mut both) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let begin = mark(&compute);
        upload.wait(&begin).unwrap();
        let computing = mark(&compute);
        work.begin(&compute, launches);
        let computed = mark(&compute);
        let copy_begun = mark(&upload);
        upload.memcpy_htod(&host, &mut target).unwrap();
        let copied = mark(&upload);
        computed.synchronize().unwrap();
        copied.synchronize().unwrap();
        let since = |event: &CudaEvent| f64::from(begin.elapsed_ms(event).unwrap());
        let [k0, k1, c0, c1] = [&computing, &computed, &copy_begun, &copied].map(since);
        copying += c1 - c0;
        both += (k1.min(c1) - k0.max(c0)).max(0.0);
    }
    let hidden = both / copying;
    number("overlap_of_copy", hidden);
    assert!(hidden > 0.5, "only {:.0} % of the copying went on while kernels ran", 100.0 * hidden);

    // The engine's own streams.
    let mut engine = GaussMle::new(&support::open(0)).unwrap();
    let (count, batches) = if rehearsed() { (60, 4) } else { (1 << 19, 12) };
    let (some, _) = simulated(1, 1000.min(count), 7);
    let values: Vec<u16> = some.iter().copied().cycle().take(count * 49).collect();
    let [one_by_one, at_once] =
        [1, 3].map(|depth| crate::bench::host_to_host(&mut engine, &values, 7, batches, depth));
    number("pipeline_gain", at_once / one_by_one);
}

/// Memory of the GPU is taken until it is refused: that is no fault, and when it is given back, all is as before.
pub(crate) fn memory_runs_out_and_comes_back() {
    let context = support::open(0);
    let inputs = tensors(&simulated(1, 300, 7).0, 7);
    let mut engine = GaussMle::new(&context).unwrap();
    let first = support::read(&run(&mut engine, &inputs, &known_width()));
    let before = context.memory().unwrap();
    let heap = Heap::new(&context);
    let (mut taken, mut piece) = (Vec::new(), (before.total / 16) as usize);
    // Down to pieces that are smaller than what a batch takes.
    while piece >= 1 << 12 {
        match Buffer::new(&heap, piece) {
            Ok(buffer) => taken.push(buffer),
            Err(error) => {
                assert_eq!(error.fault(), Fault::OutOfMemory, "{error}");
                piece /= 2;
            }
        }
    }
    let full = context.memory().unwrap();
    println!("{} pieces, {} bytes are left", taken.len(), full.free);
    assert!(heap.held_bytes() as f64 > 0.9 * before.free as f64, "memory was refused while there was some");
    let blocks = Blocks::new(engine.memory());
    let larger = tensors(&simulated(2, 3000, 7).0, 7);
    let larger = larger.iter().map(|input| blocks.assemble(&[input], 3000, false, None)).collect();
    let refused = engine.start(larger, Some(&known_width())).and_then(Flight::land).err();
    let judged = refused.as_ref().is_none_or(|error| matches!(error, EngineError::OutOfMemory(_)));
    assert!(judged, "too little memory is no fault of the device: {refused:?}");
    println!("a larger batch was {}", if refused.is_some() { "refused" } else { "fitted in what was left" });
    taken.clear();
    context.trim().unwrap();
    let back = context.memory().unwrap();
    number("memory_back", back.free as f64 / before.free as f64);
    assert!(back.free as f64 > 0.95 * before.free as f64, "{} of {} bytes came back", back.free, before.free);
    assert_eq!(support::read(&run(&mut engine, &inputs, &known_width())), first, "the same fits afterwards");
    Canary::default().check(&context).unwrap();
}
