//! Frames on the GPU against frames on the CPU: finding, cutting and fitting.

use crate::{
    fakes::cuda::FakeCuda,
    fitter::agree,
    support::{Random, camera_with_maps, open, psfs, samples, setting, staged, worse},
};
use ocelli::engine::{
    DataType, Engine, EngineError, Setting, Tensor, TensorView,
    cuda::gauss_mle::GaussMle,
    gauss_mle::{self, Columns, frames::Found},
    kernels::{Border, Camera, FinderOptions, Method, Threshold},
};
use std::sync::Arc;

/// Pixels of a chunk, for which there is memory from the first frames on.
const PIXELS_MAX: usize = 1 << 22;
/// Side of the frames, px: that of the sensor with maps.
const SIDE: usize = 40;

/// Frames of some spots with noise, and what goes beside them.
fn frames(seed: u64, count: usize, spots: usize, wide: bool) -> Vec<Tensor> {
    let random = &mut Random(seed);
    let lights = |random: &mut Random| {
        let light = |_| [(); 3].map(|()| random.next());
        (0..spots)
            .map(light)
            .map(|[x, y, light]| [3.0 + 33.0 * x, 3.0 + 33.0 * y, 1500.0 + 1500.0 * light])
            .collect()
    };
    lit(random, [SIDE; 2], count, wide, lights)
}

/// Frames of this width and height with these lights: x, y and photons of each.
fn lit(
    random: &mut Random,
    [width, height]: [usize; 2],
    count: usize,
    wide: bool,
    lights: impl Fn(&mut Random) -> Vec<[f32; 3]>,
) -> Vec<Tensor> {
    let mut values: Vec<u16> = Vec::with_capacity(count * width * height);
    for _ in 0..count {
        let lights = lights(random);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y as f32, x as f32))) {
            let light = |[at_x, at_y, photons]: &[f32; 3]| {
                let squared = (x - at_x).powi(2) + (y - at_y).powi(2);
                photons * (-squared / (2.0 * 1.69)).exp() / (std::f32::consts::TAU * 1.69)
            };
            let mean = 20.0 + lights.iter().map(light).sum::<f32>();
            let noise = (0..4).map(|_| random.next() - 0.5).sum::<f32>() * 1.7 * mean.sqrt();
            values.push((mean + noise).max(0.0).round() as u16);
        }
    }
    let (datatype, data) = samples(&values, wide);
    vec![
        Tensor { datatype, shape: vec![count, height, width], data: data.into() },
        Tensor { datatype: DataType::Uint32, shape: vec![count, 2], data: vec![0; 8 * count].into() },
    ]
}

fn finding(method: Method, spots_max: usize) -> FinderOptions {
    FinderOptions { method, box_side: 7, border: Border::Shift, spots_max }
}

fn contrast(threshold: Threshold) -> Method {
    Method::Contrast { sigma_px: [1.3; 2], wide: 2.0, threshold, radius: 2 }
}

fn found(outputs: &[Tensor], setting: &Setting) -> Found {
    Found::read(outputs, Columns::of(setting.model().psf())).unwrap()
}

fn on_cpu(inputs: &[Tensor], setting: &Setting) -> Found {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    found(&gauss_mle::GaussMle::new(1).unwrap().run(&views, Some(setting)).unwrap(), setting)
}

fn on_gpu(engine: &mut GaussMle, inputs: &[Tensor], setting: &Setting) -> Found {
    let inputs = staged(engine, inputs);
    found(&engine.start(inputs, Some(setting)).unwrap().land().unwrap(), setting)
}

/// Fails unless the GPU finds the same spots, and its fits agree.
fn check(what: &str, got: &Found, expected: &Found) {
    assert_eq!(got.counts, expected.counts, "{what}");
    assert_eq!(got.corners, expected.corners, "{what}");
    assert_eq!(got.over_max, expected.over_max, "{what}");
    let worst = got.scores.iter().zip(&expected.scores).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, worse);
    assert!(worst < 1e-4, "{what}: scores {worst} apart");
    let rows = |found: &Found| (found.fits.clone(), found.codes.clone());
    agree(what, &rows(got), &rows(expected), 5e-3);
}

#[test]
fn spots_of_frames_are_found_and_fitted_as_on_the_cpu() {
    let _fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let methods = [
        contrast(Threshold::Photons(300.0)),
        contrast(Threshold::Noise(6.0)),
        Method::NetGradient { minimum: 400.0 },
    ];
    for (number, method) in methods.into_iter().enumerate() {
        for camera in [Arc::new(Camera::ideal()), camera_with_maps()] {
            for wide in [false, true] {
                let inputs = frames(number as u64 + 1, 5, 4, wide);
                let asked = setting(psfs()[number], &camera).finding(finding(method, 1000));
                let expected = on_cpu(&inputs, &asked);
                assert!(expected.corners.len() > 8, "{} spots", expected.corners.len());
                let what = format!("{method:?} maps {} f32 {wide}", camera.sensor().is_some());
                check(&what, &on_gpu(&mut engine, &inputs, &asked), &expected);
                let strongest = setting(psfs()[number], &camera).finding(finding(method, 1));
                let expected = on_cpu(&inputs, &strongest);
                assert!(expected.over_max > 3, "{} spots are left out", expected.over_max);
                check(&what, &on_gpu(&mut engine, &inputs, &strongest), &expected);
            }
        }
    }
}

/// The second one's kernels hang; what the first found is fetched all the same.
#[test]
fn rows_of_frames_are_fetched_while_later_frames_are_computed() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let asked = setting(psfs()[0], &Arc::new(Camera::ideal()))
        .finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    let inputs = frames(5, 6, 3, false);
    let before = fake.log().len();
    let expected = on_gpu(&mut engine, &inputs, &asked);
    let log = fake.log();
    let kernels = log[before..].iter().filter(|operation| operation.kind == "kernel").count();
    fake.tell(&format!("fault on=kernel after={kernels} hang"));
    let mut start = || engine.start(staged(&engine, &inputs), Some(&asked)).unwrap();
    let (first, second) = (start(), start());
    assert_eq!(found(&first.land().unwrap(), &asked).corners, expected.corners);
    fake.tell("release");
    assert_eq!(found(&second.land().unwrap(), &asked).corners, expected.corners);
}

#[test]
fn frames_are_copied_in_once_and_come_back_as_rows() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    let inputs = frames(5, 6, 3, false);
    on_gpu(&mut engine, &inputs, &asked);
    let before = fake.log().len();
    let spots = on_gpu(&mut engine, &inputs, &asked).corners.len() as u64;
    let log = fake.log().split_off(before);
    let bytes = |kind: &str| {
        let of_kind = log.iter().filter(|operation| operation.kind == kind);
        of_kind.map(|operation| operation.bytes).collect::<Vec<u64>>()
    };
    assert_eq!(bytes("copy_in"), [6 * (SIDE * SIDE * 2) as u64], "the frames and nothing else");
    assert_eq!(bytes("copy_out"), [8, spots * 24, spots * 44, spots * 2], "their number, then as many");
    let kernels: Vec<&str> =
        log.iter().filter(|operation| operation.kind == "kernel").map(|kernel| &*kernel.kernel).collect();
    let expected =
        ["spots_convert_u16", "spots_columns", "spots_rows", "spots_select", "spots_cut_u16", "fit_xynb_u16"];
    assert_eq!(kernels, expected, "all frames together");
}

#[test]
fn batches_of_frames_follow_each_other_and_reuse_their_memory() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let [one, other] = [300.0, 500.0].map(|photons| {
        setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(photons)), 1000))
    });
    // Three settings of two: the searches in use take turns, and the larger takes the place of the smaller.
    let batches: Vec<(Vec<Tensor>, &Setting)> = [(3, &one), (2, &other), (5, &one), (1, &other), (5, &one)]
        .into_iter()
        .map(|(count, asked)| (frames(count as u64 + 7, count, 3, false), asked))
        .collect();
    for chunk in batches.chunks(3) {
        let flights: Vec<_> = chunk
            .iter()
            .map(|(inputs, asked)| {
                let inputs = staged(&engine, inputs);
                engine.start(inputs, Some(asked)).unwrap()
            })
            .collect();
        for (flight, (inputs, asked)) in flights.into_iter().zip(chunk) {
            check("one of some", &found(&flight.land().unwrap(), asked), &on_cpu(inputs, asked));
        }
    }
    let allocated = fake.books().calls("cuMemAllocAsync");
    for (inputs, asked) in &batches[2..] {
        on_gpu(&mut engine, inputs, asked);
    }
    let again = fake.books().calls("cuMemAllocAsync");
    for (inputs, asked) in &batches[2..] {
        on_gpu(&mut engine, inputs, asked);
    }
    assert!(again >= allocated && fake.books().calls("cuMemAllocAsync") == again, "all of it is there");
    engine.rest();
    assert_eq!(engine.device_bytes(), 0, "a resting engine holds nothing");
}

#[test]
fn the_first_frames_take_the_memory_of_all_that_follow() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = camera_with_maps();
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Noise(6.0)), 1000));
    for _ in 0..engine.depth() {
        on_gpu(&mut engine, &frames(3, 1, 1, true), &asked);
    }
    let seen = |engine: &GaussMle| (fake.books().calls("cuMemAllocAsync"), engine.device_bytes());
    let first = seen(&engine);
    for (count, wide) in [(3, false), (40, true), (40, false)] {
        let inputs = frames(count as u64, count, 2, wide);
        check("more of them", &on_gpu(&mut engine, &inputs, &asked), &on_cpu(&inputs, &asked));
    }
    assert_eq!(seen(&engine), first, "calls to allocate, and bytes");
}

#[test]
fn frames_of_several_sizes_take_turns_in_the_same_memory() {
    let _fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    for (seed, [width, height]) in [[40, 40], [64, 24], [17, 50], [64, 24], [40, 40]].into_iter().enumerate()
    {
        let light = |random: &mut Random| {
            let [x, y, light] = [(); 3].map(|()| random.next());
            [3.0 + (width - 7) as f32 * x, 3.0 + (height - 7) as f32 * y, 1500.0 + 1500.0 * light]
        };
        let lights = |random: &mut Random| (0..3).map(|_| light(random)).collect();
        let inputs = lit(&mut Random(seed as u64 + 21), [width, height], 4, false, lights);
        let expected = on_cpu(&inputs, &asked);
        assert!(expected.corners.len() > 5, "{} spots", expected.corners.len());
        check(&format!("{width} x {height}"), &on_gpu(&mut engine, &inputs, &asked), &expected);
    }
}

#[test]
fn more_spots_than_places_are_found_by_the_host_and_then_have_places() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    // Side by side, more than the least places of a batch.
    let inputs = lit(&mut Random(11), [SIDE; 2], 100, false, |random| {
        let place = |n: usize| 4.0 + 5.0 * n as f32;
        let light = |i: usize| [place(i % 7), place(i / 7), 3000.0 + 500.0 * random.next()];
        (0..49).map(light).collect()
    });
    let expected = on_cpu(&inputs, &asked);
    assert!(expected.corners.len() > 4096, "{} spots", expected.corners.len());
    let copies = |fake: &FakeCuda| fake.log().iter().filter(|copy| copy.kind == "copy_out").count();
    check("by the host", &on_gpu(&mut engine, &inputs, &asked), &expected);
    assert_eq!(copies(&fake), 1, "their number");
    check("on the device", &on_gpu(&mut engine, &inputs, &asked), &expected);
    assert_eq!(copies(&fake), 1 + 4, "their number, and they");
}

/// A frame with a spot in every ninth pixel, and what finds all of them.
fn crowded(side: usize, camera: &Arc<Camera>) -> (Vec<Tensor>, Setting) {
    let values: Vec<u16> =
        (0..side * side).map(|at| if at % side % 3 == 1 && at / side % 3 == 1 { 1000 } else { 0 }).collect();
    let (datatype, data) = samples(&values, false);
    let inputs = vec![
        Tensor { datatype, shape: vec![1, side, side], data: data.into() },
        Tensor { datatype: DataType::Uint32, shape: vec![1, 2], data: vec![0; 8].into() },
    ];
    let method =
        Method::Contrast { sigma_px: [1.0; 2], wide: 2.0, threshold: Threshold::Photons(0.001), radius: 1 };
    (inputs, setting(psfs()[0], camera).finding(finding(method, 1_000_000)))
}

#[test]
fn crowded_frames_have_later_ones_take_more_memory_up_to_a_bound_and_until_a_rest() {
    let _fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    let inputs = frames(5, 6, 3, false);
    let held = |engine: &mut GaussMle| {
        for _ in 0..engine.depth() {
            on_gpu(engine, &inputs, &asked);
        }
        engine.device_bytes()
    };
    let first = held(&mut engine);
    let (crowd, all) = crowded(1200, &camera);
    let spots = on_gpu(&mut engine, &crowd, &all).corners.len();
    let grown = held(&mut engine);
    println!("{spots} spots, {first} bytes held before them and {grown} after");
    // In each place a spot of 24 bytes, its ROI of FP32 and its results, for one of 24 pixels instead of 128; and two lists of fits
    // that rounds put aside, of less than 128 bytes each.
    let (many, few) = (PIXELS_MAX / 24, PIXELS_MAX / 128);
    let bound = 3 * (many - few) * (24 + 7 * 7 * 4 + 46) + 2 * many * 128;
    assert!(grown > first && grown - first <= bound as u64, "{spots} spots: {first} bytes, then {grown}");
    engine.rest();
    assert_eq!(held(&mut engine), first);
}

#[test]
fn where_places_for_as_many_spots_as_there_were_do_not_fit_there_are_as_many_as_at_first() {
    let fake = FakeCuda::start("memory=1GiB");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    let inputs = frames(5, 6, 3, false);
    for _ in 0..engine.depth() {
        on_gpu(&mut engine, &inputs, &asked);
    }
    let first = engine.device_bytes();
    let (crowd, all) = crowded(600, &camera);
    let spots = on_gpu(&mut engine, &crowd, &all).corners.len();
    assert!(spots > PIXELS_MAX / 128, "{spots} are no more than there are places for at first");
    // All but what is held, and a little.
    let free = (1 << 30) - fake.books().devices[0].own - (2 << 20);
    fake.tell(&format!("foreign device=0 bytes={free}"));
    for _ in 0..engine.depth() {
        check("in less memory", &on_gpu(&mut engine, &inputs, &asked), &on_cpu(&inputs, &asked));
    }
    assert_eq!(engine.device_bytes(), first, "as many batches at once as before");
    check("by the host", &on_gpu(&mut engine, &crowd, &all), &on_cpu(&crowd, &all));
    let asked_for = fake.books().calls("cuMemAllocAsync");
    check("and the next", &on_gpu(&mut engine, &inputs, &asked), &on_cpu(&inputs, &asked));
    assert_eq!(fake.books().calls("cuMemAllocAsync"), asked_for, "it is not tried over and over");
}

#[test]
fn frames_without_spots_and_no_frames_are_answered() {
    let _fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let asked = setting(psfs()[0], &Arc::new(Camera::ideal()))
        .finding(finding(contrast(Threshold::Photons(5000.0)), 1000));
    let empty = on_gpu(&mut engine, &frames(3, 4, 0, false), &asked);
    assert_eq!(empty, Found { counts: vec![0; 4], ..Found::default() });
    assert_eq!(on_gpu(&mut engine, &frames(3, 0, 0, false), &asked), Found::default());
}

#[test]
fn what_goes_wrong_with_frames_is_the_batchs_or_the_devices_fault() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let asked = setting(psfs()[0], &camera).finding(finding(contrast(Threshold::Photons(300.0)), 1000));
    let start = |engine: &mut GaussMle| {
        let inputs = staged(engine, &frames(9, 3, 3, false));
        engine.start(inputs, Some(&asked)).and_then(ocelli::engine::Flight::land)
    };
    let small =
        setting(psfs()[0], &camera).finding(FinderOptions { box_side: 4, ..*asked.finder().unwrap() });
    let inputs = staged(&engine, &frames(9, 3, 3, false));
    let Err(EngineError::Input(why)) = engine.start(inputs, Some(&small)) else { panic!("a bad box") };
    assert!(why.contains("box_px: 4 is not an odd number"), "{why}");
    fake.tell("fault on=cuMemAllocAsync code=2 times=always");
    assert!(matches!(start(&mut engine), Err(EngineError::OutOfMemory(_))));
    fake.tell("clear");
    start(&mut engine).unwrap();
    fake.tell("fault on=kernel:spots_select code=700");
    assert!(matches!(start(&mut engine), Err(EngineError::Device(_))));
}
