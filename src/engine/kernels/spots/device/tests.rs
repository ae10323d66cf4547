//! The device version of the finder against the host's.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::{super::emulated, tests::*, *},
    *,
};
use crate::{
    engine::kernels::{CameraValue, SensorMap},
    worse::worse,
};

/// A device's memory: aligned, and garbage.
struct Memory(Vec<u128>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![u128::from_ne_bytes([0xcd; 16]); bytes.div_ceil(16)])
    }

    fn of<T: bytemuck::Pod>(values: &[T]) -> Memory {
        let mut memory = Memory::new(size_of_val(values));
        memory.slice(values.len()).copy_from_slice(values);
        memory
    }

    fn slice<T: bytemuck::Pod>(&mut self, len: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }
}

/// The spots of one frame or several, in the order of their pixels, and the boxes around them with their corners.
fn on_device<T: bytemuck::Pod>(finder: &SpotFinder, frame: &[T]) -> (Vec<Spot>, Vec<T>, Vec<[u32; 2]>) {
    let wide = size_of::<T>() == 4;
    let (width, height) = finder.size();
    let frames = frame.len() / (width * height);
    let plane_values = finder.plane_values() * frames;
    let mut frame = Memory::of(frame);
    let mut constants = finder.constants().map(Memory::of);
    let mut work: [Memory; 5] = std::array::from_fn(|_| Memory::new(plane_values * 4));
    // Devices fill memory with a repeated byte.
    work[3].slice::<u8>(plane_values * 4).fill(LOWEST);
    let places = finder.spots_possible() * frames;
    let mut spots = vec![Spot::default(); places];
    let mut count = 0u64;
    let addresses = SpotAddresses {
        frame: frame.address(),
        constants: std::array::from_fn(|i| {
            if finder.constants()[i].is_empty() { 0 } else { constants[i].address() }
        }),
        work: std::array::from_fn(|i| work[i].address()),
        spots: spots.as_mut_ptr() as u64,
        spots_max: places as u64,
        count: &raw mut count as u64,
    };
    let call = finder.on_device(&addresses);
    for kernel in finder.launches(wide) {
        // SAFETY: addresses are of this machine's memory, of the sizes that the finder gives.
        #[allow(unsafe_code, reason = "a call into C++")]
        unsafe {
            emulated::launch(kernel, finder.blocks(frames as u32), THREADS, 0, &call);
        }
    }
    let found = count as usize;
    assert!(found <= places);
    spots.truncate(found);
    // The device finds spots in any order, and boxes are cut in that order.
    let side = finder.options().box_side;
    let mut rois = Memory::new(places.max(1) * side * side * size_of::<T>());
    let mut corners = vec![[0u32; 2]; places];
    let cut = finder.cut_on_device(&addresses, rois.address(), corners.as_mut_ptr() as u64);
    let kernel = if wide { "spots_cut_f32" } else { "spots_cut_u16" };
    // SAFETY: as above.
    #[allow(unsafe_code, reason = "a call into C++")]
    unsafe {
        emulated::launch(kernel, [3, 1, 1], [CUT_THREADS, 1, 1], 0, &cut);
    }
    let rois: Vec<T> = rois.slice(found * side * side).to_vec();
    let mut order: Vec<usize> = (0..found).collect();
    order.sort_by_key(|&i| (spots[i].frame, spots[i].y, spots[i].x));
    let pixels = side * side;
    let boxes = order.iter().flat_map(|&i| rois[i * pixels..(i + 1) * pixels].to_vec()).collect();
    (order.iter().map(|&i| spots[i]).collect(), boxes, order.iter().map(|&i| corners[i]).collect())
}

fn check(what: &str, options: &FinderOptions, camera: &Camera, scene: &Scene) {
    let mut finder = SpotFinder::new(options, camera, scene.width, scene.height)
        .unwrap()
        .with_instructions(InstructionSet::Baseline);
    let adu: Vec<u16> = scene.pixels.iter().map(|&value| value as u16).collect();
    let (device, boxes, corners) = on_device(&finder, &scene.pixels);
    let (device_u16, boxes_u16, _) = on_device(&finder, &adu);
    let host = finder.find(Adu::F32(&scene.pixels)).unwrap().to_vec();
    assert!(!host.is_empty() || scene.width < 50, "{what}: nothing to compare");
    let mut worst = 0f32;
    for (device, wide) in [(&device, true), (&device_u16, false)] {
        let host = if wide { host.clone() } else { finder.find(Adu::U16(&adu)).unwrap().to_vec() };
        assert_eq!(places(device), places(&host), "{what}");
        for (one, other) in host.iter().zip(device) {
            assert_eq!(one.corner, other.corner, "{what}");
            worst = worse(worst, (one.score - other.score).abs() / one.score.abs().max(1e-3));
        }
    }
    println!("{what}: {} spots, scores at most {worst:.1e} of theirs apart", host.len());
    assert!(worst < 1e-4, "{what}");
    let mut expected = RoiBuffer::new(options.box_side).unwrap();
    expected.cut(Adu::F32(&scene.pixels), scene.width, 0, &host).unwrap();
    assert_eq!(corners, host.iter().map(|spot| spot.corner).collect::<Vec<_>>(), "{what}");
    assert_eq!(
        boxes.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
        expected.to_le_bytes(),
        "{what}"
    );
    assert_eq!(boxes_u16.len(), device_u16.len() * options.box_side * options.box_side);
}

#[test]
fn the_device_finds_and_cuts_what_the_host_does() {
    for (width, height) in [(64, 48), (131, 77), (33, 19)] {
        let mut scene = Scene::new(width, height, 12.0);
        for i in 0..width * height / 300 {
            let (x, y) = ((i * 37 % width) as f64 + 0.3, (i * 53 % height) as f64 - 0.2);
            scene = scene.with(x, y, 900.0 + 100.0 * (i % 7) as f64);
        }
        let scene = scene.noisy(0x5eed + width as u64).set(3, 4, 65000.0);
        let by_photons = contrast(Threshold::Photons(300.0));
        let by_noise = contrast(Threshold::Noise(5.0));
        let dropped = FinderOptions { border: Border::Drop, ..by_noise };
        let ideal = Camera::ideal();
        let noise = SensorMap {
            height,
            width,
            values: (0..width * height).map(|i| if i % 11 == 3 { 25.0 } else { 1.5 }).collect(),
        };
        let maps =
            Camera::new(&CameraValue::Scalar(2.0), &CameraValue::Scalar(0.9), &CameraValue::Map(noise))
                .unwrap();
        for (name, camera) in [("ideal", &ideal), ("maps", &maps)] {
            for (kind, options) in [
                ("photons", &by_photons),
                ("noise", &by_noise),
                ("dropped", &dropped),
                ("gradient", &net_gradient(300.0)),
            ] {
                check(&format!("{width} x {height}, {name}, {kind}"), options, camera, &scene);
            }
        }
    }
}

#[test]
fn pixels_that_are_no_numbers_hide_no_spots_on_the_device_either() {
    let scene = Scene::new(60, 40, 10.0).with(15.0, 20.0, 2000.0).with(45.0, 20.0, 2000.0).noisy(9).set(
        16,
        21,
        f32::NAN,
    );
    let finder = SpotFinder::new(&contrast(Threshold::Photons(500.0)), &Camera::ideal(), 60, 40).unwrap();
    let (spots, ..) = on_device(&finder, &scene.pixels);
    assert_eq!(places(&spots), [[15, 20], [45, 20]]);
    assert_eq!(places(&scene.find(&contrast(Threshold::Photons(500.0)))), places(&spots));
    // Of nine together, the one in the middle has no measurement around it.
    let nine = (0..9).fold(scene, |scene, i| scene.set(15 + i % 3, 20 + i / 3, f32::NAN));
    assert_eq!(places(&on_device(&finder, &nine.pixels).0), [[45, 20]]);
}

#[test]
fn frames_that_are_looked_at_together_do_not_mix() {
    let (width, height) = (70, 45);
    let scenes: Vec<Scene> = (0..5)
        .map(|frame: usize| {
            let spot = |scene: Scene, i: usize| {
                let (x, y) = ((i * 37 + frame * 11) % width, (i * 53 + frame * 7) % height);
                scene.with(x as f64 + 0.2, y as f64 - 0.1, 900.0 + 150.0 * (i % 5) as f64)
            };
            // One of them has no spot.
            let spots = if frame == 2 { 0..0 } else { 0..6 + frame };
            spots.fold(Scene::new(width, height, 12.0), spot).noisy(0xf00 + frame as u64)
        })
        .collect();
    let values = (0..width * height).map(|i| if i % 11 == 3 { 25.0 } else { 1.5 }).collect();
    let noise = SensorMap { height, width, values };
    let maps =
        Camera::new(&CameraValue::Scalar(2.0), &CameraValue::Scalar(0.9), &CameraValue::Map(noise)).unwrap();
    let together: Vec<f32> = scenes.iter().flat_map(|scene| scene.pixels.clone()).collect();
    for camera in [&Camera::ideal(), &maps] {
        let by_photons = contrast(Threshold::Photons(300.0));
        for options in [by_photons, contrast(Threshold::Noise(6.0)), net_gradient(300.0)] {
            let finder = SpotFinder::new(&options, camera, width, height).unwrap();
            let (spots, boxes, corners) = on_device(&finder, &together);
            let (mut found, mut cut, mut at) = (Vec::new(), Vec::new(), Vec::new());
            for (frame, scene) in scenes.iter().enumerate() {
                let (spots, boxes, corners) = on_device(&finder, &scene.pixels);
                found.extend(spots.into_iter().map(|spot| Spot { frame: frame as u32, ..spot }));
                cut.extend(boxes);
                at.extend(corners);
            }
            assert_eq!(spots, found);
            assert_eq!((boxes, corners), (cut, at));
            assert!(spots.len() > 20, "{} spots", spots.len());
        }
    }
}
