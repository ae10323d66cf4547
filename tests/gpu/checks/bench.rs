//! What the GPU's own code reaches: the fitter, with data on the device and from host to host, and the preprocessing of images.

use crate::{
    device::{Device, Kernel, Memory, at, launch_on, resident},
    fits::{known_width, seeded, simulated, tensors},
    images, number, rehearsed, support,
};
use ocelli::{
    engine::{
        Engine, Flight, Setting, Tensor,
        cuda::gauss_mle::GaussMle,
        kernels::{
            Camera, FitCall, FitModel, Psf,
            fit::{
                Columns,
                device::{FitAddresses, FitLaunch, FitRound, ROUNDS, SharedMemory, state_words},
            },
        },
        staging::Blocks,
    },
    image::Preprocess,
};
use std::{collections::VecDeque, time::Instant};

const FITTERS: [(&str, &str); 2] = [
    ("gauss_mle_xynb", include_str!("../../../kernels/generated/gauss_mle_xynb.ptx")),
    ("gauss_mle_xynbs", include_str!("../../../kernels/generated/gauss_mle_xynbs.ptx")),
];

/// Milliseconds of the fastest of several runs: others on the machine only add.
fn fastest(device: &Device, act: impl Fn()) -> f64 {
    (0..if rehearsed() { 1 } else { 7 }).map(|_| device.timed(&act)).fold(f64::MAX, f64::min)
}

pub(crate) fn fit() {
    let device = Device::open();
    let gpu = ocelli::engine::cuda::probe().unwrap().gpus.remove(0);
    let memory =
        SharedMemory { block_max: gpu.shared_block_bytes, multiprocessor: gpu.shared_processor_bytes };
    let count = if rehearsed() { 100 } else { 4 << 20 };
    for (name, psf, side) in
        [("xynb7", Psf::Xynb { sigma_px: [1.3; 2] }, 7), ("xynbs11", Psf::Xynbs { sigma_start_px: 1.3 }, 11)]
    {
        let model = FitModel::new(psf, [0.1, 0.1]).unwrap();
        let values = many(count, side);
        let rois = device.with(&values);
        let fits = device.garbage(count * Columns::of(model.psf()).count() * size_of::<f32>());
        let codes = device.garbage(2 * count);
        let launch = FitLaunch::new(model.psf(), false, false, side, memory);
        let (_, text) = FITTERS.iter().find(|(module, _)| *module == launch.module).unwrap();
        let [kernel] = device.kernels(text, [launch.kernel]);
        let at_once = resident(kernel, launch.threads, launch.shared_bytes) * gpu.processors;
        let words = state_words(model.psf());
        let lists = [(); 2].map(|()| device.garbage(4 * words * count));
        let counts = device.zeros(8 * ROUNDS.len());
        let zeros = device.zeros(8 * ROUNDS.len());
        let addresses =
            FitAddresses { rois: rois.address(), maps: None, fits: fits.address(), codes: codes.address() };
        let call = FitCall::on_device(&model, &Camera::ideal(), side, count as u64, &addresses);
        let rounds = Rounds {
            device: &device,
            kernel,
            launch,
            at_once,
            lists: &lists,
            counts: &counts,
            zeros: &zeros,
        };
        let milliseconds = fastest(&device, || rounds.run(&call, count));
        number(&format!("kernel_fits_{name}"), count as f64 / milliseconds * 1e3);
    }
    let mut engine = GaussMle::new(&support::open(0)).unwrap();
    let (count, batches) = if rehearsed() { (50, 3) } else { (1 << 20, 12) };
    number("host_to_host_fits", host_to_host(&mut engine, &many(count, 7), 7, batches, 3));
}

/// ROIs of a thousand different spots, again and again.
fn many(count: usize, side: usize) -> Vec<u16> {
    let (some, _) = simulated(1, count.min(1000), side);
    some.iter().copied().cycle().take(count * side * side).collect()
}

/// Fits in rounds as the engine does.
struct Rounds<'a> {
    device: &'a Device,
    kernel: Kernel,
    launch: FitLaunch,
    at_once: u32,
    lists: &'a [Memory; 2],
    counts: &'a Memory,
    zeros: &'a Memory,
}

impl Rounds<'_> {
    fn run(&self, call: &FitCall, count: usize) {
        self.device.copy(self.zeros, self.counts, 8 * ROUNDS.len());
        let counted = |round: usize| self.counts.address() + 8 * round as u64;
        for round in 0..=ROUNDS.len() {
            let (first, last) = (round == 0, round == ROUNDS.len());
            let argument = FitRound {
                begun: if first { 0 } else { self.lists[(round + 1) % 2].address() },
                begun_count: if first { 0 } else { counted(round - 1) },
                unfinished: if last { 0 } else { self.lists[round % 2].address() },
                unfinished_count: if last { 0 } else { counted(round) },
                places: count as u64,
                evaluations: ROUNDS.get(round).copied().unwrap_or(1),
                tile: self.launch.tile,
            };
            let blocks = self.launch.blocks(count as u64, self.at_once);
            let (threads, shared) = (self.launch.threads, self.launch.shared_bytes);
            let arguments = &mut [at(call), at(&argument)];
            launch_on(&self.device.stream, self.kernel, [blocks, 1, 1], [threads, 1, 1], shared, arguments);
        }
    }
}

/// Fits per second from ROIs in pinned memory to rows in host memory, so many batches of `values` on their way at once.
pub(crate) fn host_to_host(
    engine: &mut GaussMle,
    values: &[u16],
    side: usize,
    batches: usize,
    depth: usize,
) -> f64 {
    let setting: Setting = known_width();
    let blocks = Blocks::new(engine.memory());
    let inputs = tensors(values, side);
    let count = inputs[0].shape[0];
    let staged: Vec<Tensor> =
        inputs.iter().map(|input| blocks.assemble(&[input], count, false, None)).collect();
    let mut flights = VecDeque::<Flight>::new();
    let mut begin = |engine: &mut GaussMle| {
        if flights.len() == depth {
            flights.pop_front().unwrap().land().unwrap();
        }
        flights.push_back(engine.start(staged.clone(), Some(&setting)).unwrap());
    };
    // Memory for the batches is taken by the first of them.
    for _ in 0..depth {
        begin(engine);
    }
    let began = Instant::now();
    for _ in 0..batches {
        begin(engine);
    }
    // As many end in that time as begin.
    let seconds = began.elapsed().as_secs_f64();
    for flight in flights {
        flight.land().unwrap();
    }
    (batches * count) as f64 / seconds
}

/// Bytes that the kernel must read and write, over those that a copy on the device reads and writes in the same time: of images that are
/// resized, also where rows begin within words, and of such that have the input's size.
pub(crate) fn preprocess() {
    let device = Device::open();
    let kernels = images::kernels(&device);
    let large = if rehearsed() { 1 << 16 } else { 512 << 20 };
    let (from, target) = (device.zeros(large), device.zeros(large));
    let copy_seconds = fastest(&device, || device.copy(&from, &target, large)) / 1e3;
    let copied = 2.0 * large as f64 / copy_seconds;
    number("copy_bytes", copied);
    // As many bytes as are copied.
    let count = if rehearsed() { 1 } else { 1024 };
    for (what, width, height) in
        [("preprocess", 500, 375), ("preprocess_unaligned", 375, 500), ("normalize", 224, 224)]
    {
        let to = Preprocess {
            scale: 1.0 / 255.0,
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            ..Preprocess::new(224, 224)
        };
        let frame = images::frame(&mut seeded(1), width, height, 3);
        let frames: Vec<_> = (0..count).map(|_| frame.clone()).collect();
        let launch = images::Launch::new(&device, &to, &frames);
        let seconds = fastest(&device, || launch.run(&device, &kernels)) / 1e3;
        let bytes = count * (width as usize * height as usize * 3 + to.out_bytes());
        number(&format!("{what}_images"), count as f64 / seconds);
        number(&format!("{what}_of_copy_bandwidth"), bytes as f64 / seconds / copied);
    }
}
