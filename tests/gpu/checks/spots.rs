//! The finder of spots on the GPU against the one on the CPU: the same pixels, scores alike, the same boxes.

use crate::{
    device::{Device, Memory, at},
    fits::seeded,
    number,
    support::worse,
};
use ocelli::engine::kernels::{
    Adu, Border, Camera, FinderOptions, Method, RoiBuffer, Spot, SpotFinder, Threshold,
    spots::device::{CUT_THREADS, LOWEST, SpotAddresses, THREADS},
};

const KERNELS: &str = include_str!("../../../kernels/generated/spots.ptx");

/// How far scores may be apart, relative.
const APART_MAX: f32 = 1e-4;

pub(crate) fn against_the_host() {
    let device = Device::open();
    let mut worst = 0f32;
    for (width, height) in [(64, 48), (131, 77), (33, 19)] {
        let frame = frame(width, height);
        for threshold in [Threshold::Photons(300.0), Threshold::Noise(5.0)] {
            let method = Method::Contrast { sigma_px: [1.3; 2], wide: 2.0, threshold, radius: 3 };
            for method in [method, Method::NetGradient { minimum: 300.0 }] {
                worst = worst.max(check(&device, method, &frame, width, height));
            }
        }
    }
    number("spots_apart", f64::from(worst));
}

/// A frame with spots on a slope and noise.
fn frame(width: usize, height: usize) -> Vec<u16> {
    let random = &mut seeded(width as u64);
    let spots: Vec<[f64; 3]> = (0..width * height / 300)
        .map(|i| {
            [(i * 37 % width) as f64 + 0.3, (i * 53 % height) as f64 - 0.2, 900.0 + 100.0 * (i % 7) as f64]
        })
        .collect();
    let pixel = |i: usize| {
        let (x, y) = ((i % width) as f64, (i / width) as f64);
        let light: f64 = spots
            .iter()
            .map(|[at_x, at_y, photons]| {
                photons / 10.6 * (-((x - at_x).powi(2) + (y - at_y).powi(2)) / 3.38).exp()
            })
            .sum();
        10.0 + x / 20.0 + light
    };
    (0..width * height)
        .map(|i| {
            let mean = pixel(i);
            let noise: f64 = random.normal();
            (mean + noise * mean.sqrt()).max(0.0).round() as u16
        })
        .collect()
}

fn check(device: &Device, method: Method, adu: &[u16], width: usize, height: usize) -> f32 {
    let options = FinderOptions { method, box_side: 7, border: Border::Shift, spots_max: 1000 };
    let mut finder = SpotFinder::new(&options, &Camera::ideal(), width, height).unwrap();
    let what = format!("{width} x {height}, {method:?}");
    let (found, boxes) = on_device(device, &finder, adu);
    let host = finder.find(Adu::U16(adu)).unwrap().to_vec();
    let places = |spots: &[Spot]| spots.iter().map(|spot| (spot.x, spot.y, spot.corner)).collect::<Vec<_>>();
    assert_eq!(places(&found), places(&host), "{what}");
    assert!(!host.is_empty() || width < 50, "{what}: nothing to compare");
    let mut expected = RoiBuffer::new(options.box_side).unwrap();
    expected.cut(Adu::U16(adu), width, 0, &host).unwrap();
    let boxes: Vec<u8> = boxes.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(boxes, expected.to_le_bytes(), "{what}: boxes");
    let off = |(a, b): (&Spot, &Spot)| (a.score - b.score).abs() / b.score.abs().max(1e-3);
    let worst = found.iter().zip(&host).map(off).fold(0.0, worse);
    println!("{what}: {} spots, scores {worst:.1e} apart", host.len());
    assert!(worst <= APART_MAX, "{what}: scores are {worst} apart, more than {APART_MAX}");
    worst
}

/// The spots of a frame in the order of their pixels, and the values of the boxes around them.
fn on_device(device: &Device, finder: &SpotFinder, adu: &[u16]) -> (Vec<Spot>, Vec<u16>) {
    let names = finder.launches(false);
    let frame = device.with(adu);
    let constants = finder.constants().map(|values| (!values.is_empty()).then(|| device.with(values)));
    let plane = finder.plane_values();
    let work: [_; 5] = std::array::from_fn(|i| match i {
        3 => device.with(&vec![LOWEST; 4 * plane]),
        _ => device.garbage(4 * plane),
    });
    let places = finder.spots_possible();
    let (spots, count) = (device.garbage(places * size_of::<Spot>()), device.zeros(8));
    let addresses = SpotAddresses {
        frame: frame.address(),
        constants: constants.each_ref().map(|memory| memory.as_ref().map_or(0, Memory::address)),
        work: work.each_ref().map(Memory::address),
        spots: spots.address(),
        spots_max: places as u64,
        count: count.address(),
    };
    let call = finder.on_device(&addresses);
    for name in names {
        let [kernel] = device.kernels(KERNELS, [name]);
        device.launch(kernel, finder.blocks(1), THREADS, &mut [at(&call)]);
    }
    let side = finder.options().box_side;
    let (rois, corners) = (device.garbage(places * side * side * 2), device.garbage(places * 8));
    let cut = finder.cut_on_device(&addresses, rois.address(), corners.address());
    let [kernel] = device.kernels(KERNELS, ["spots_cut_u16"]);
    device.launch(kernel, [3, 1, 1], [CUT_THREADS, 1, 1], &mut [at(&cut)]);
    let found = device.read::<u64>(&count, 1)[0] as usize;
    assert!(found <= places);
    let spots = device.read::<Spot>(&spots, found);
    let (rois, corners) =
        (device.read::<u16>(&rois, found * side * side), device.read::<[u32; 2]>(&corners, found));
    // The device finds in any order.
    let mut order: Vec<usize> = (0..found).collect();
    order.sort_by_key(|&i| (spots[i].y, spots[i].x));
    let at_corner = |i: &usize| corners[*i] == spots[*i].corner;
    assert!(order.iter().all(at_corner), "the corners of the boxes that were cut");
    let pixels = side * side;
    let boxes = order.iter().flat_map(|&i| rois[i * pixels..(i + 1) * pixels].to_vec()).collect();
    (order.iter().map(|&i| spots[i]).collect(), boxes)
}
