//! The device version of the fitter against the host's.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::{super::emulated, tests::*, *},
    *,
};

const MEMORY: SharedMemory = SharedMemory { block_max: 64 << 10, multiprocessor: 64 << 10 };

/// The results of a fit in rounds, and how many fits the rounds set aside.
fn on_device(
    model: &FitModel,
    camera: &Camera,
    rois: Rois<'_>,
    rounds: &[u32],
    places: usize,
    resident: u32,
) -> (Vec<SpotFit>, u64) {
    let maps = camera.map_values().map(|[gain, bias, variance]| MapAddresses {
        corners: rois.corners.unwrap().as_ptr() as u64,
        gain: gain.as_ptr() as u64,
        bias: bias.as_ptr() as u64,
        variance: variance.as_ptr() as u64,
    });
    let (values, wide) = match rois.adu {
        Adu::U16(values) => (bytemuck::cast_slice::<_, u8>(values), false),
        Adu::F32(values) => (bytemuck::cast_slice(values), true),
    };
    // Aligned as a device's memory is.
    let mut aligned = vec![0u128; values.len().div_ceil(16)];
    bytemuck::cast_slice_mut(&mut aligned)[..values.len()].copy_from_slice(values);
    let mut results = Results::new(model, rois.len());
    let launch = FitLaunch::new(model.psf(), wide, maps.is_some(), rois.side(), MEMORY);
    let addresses = results.addresses(aligned.as_ptr() as u64, maps);
    let call = FitCall::on_device(model, camera, rois.side(), rois.len() as u64, &addresses);
    let words = state_words(model.psf());
    let mut lists = [vec![0xeeee_eeee_u32; words * places], vec![0xeeee_eeee_u32; words * places]];
    let mut counts = vec![0u64; rounds.len() + 1];
    let mut aside = 0;
    for number in 0..=rounds.len() {
        let first = number == 0;
        let last = number == rounds.len();
        let address = |list: &mut Vec<u32>| list.as_mut_ptr() as u64;
        let [even, odd] = &mut lists;
        let (from, to) =
            if number % 2 == 0 { (address(odd), address(even)) } else { (address(even), address(odd)) };
        let round = FitRound {
            begun: if first { 0 } else { from },
            begun_count: if first { 0 } else { &raw const counts[number - 1] as u64 },
            unfinished: if last { 0 } else { to },
            unfinished_count: if last { 0 } else { &raw mut counts[number] as u64 },
            places: places as u64,
            evaluations: rounds.get(number).copied().unwrap_or(1),
            tile: launch.tile,
        };
        let blocks = launch.blocks(call.count, resident);
        let (shared, threads) = (launch.shared_bytes as usize, [launch.threads, 1, 1]);
        let mut arguments = [(&raw const call).cast_mut().cast(), (&raw const round).cast_mut().cast()];
        // SAFETY: the addresses are of this machine's memory, of the sizes that the kernel states.
        #[allow(unsafe_code, reason = "a call into C++")]
        unsafe {
            emulated::launch_with(launch.kernel, [blocks, 1, 1], threads, shared, &mut arguments);
        }
        aside += counts[number];
    }
    (results.fits(), aside)
}

/// Where a launch writes.
struct Results {
    columns: Columns,
    rows: Vec<f32>,
    codes: Vec<[u8; 2]>,
}

impl Results {
    /// Results filled with a pattern that [`Results::untouched`] recognises.
    fn new(model: &FitModel, count: usize) -> Results {
        let columns = Columns::of(model.psf());
        Results { columns, rows: vec![-7.0; count * columns.count()], codes: vec![[77; 2]; count] }
    }

    fn addresses(&mut self, rois: u64, maps: Option<MapAddresses>) -> FitAddresses {
        let (fits, codes) = (self.rows.as_mut_ptr() as u64, self.codes.as_mut_ptr() as u64);
        FitAddresses { rois, maps, fits, codes }
    }

    fn fits(&self) -> Vec<SpotFit> {
        let rows = self.rows.chunks_exact(self.columns.count()).zip(&self.codes);
        rows.map(|(row, codes)| SpotFit::of(self.columns, row, *codes)).collect()
    }

    /// Whether nothing has been written from this index on.
    fn untouched(&self, from: usize) -> bool {
        let rows = &self.rows[from * self.columns.count()..];
        rows.iter().all(|value| *value == -7.0) && self.codes[from..].iter().all(|codes| *codes == [77; 2])
    }
}

/// Fails if the device's results are not those of the host. Returns the largest difference in standard errors.
fn check(what: &str, model: &FitModel, camera: &Camera, rois: Rois<'_>) -> f32 {
    let mut host = vec![SpotFit::default(); rois.len()];
    fit(InstructionSet::Baseline, model, camera, rois, &mut host).unwrap();
    let (whole, aside) = on_device(model, camera, rois, &[], 0, 3);
    assert_eq!(aside, 0);
    let mut worst = 0f32;
    for (roi, (host, device)) in host.iter().zip(&whole).enumerate() {
        let what = format!("{what}: ROI {roi}: {host:?} {device:?}");
        assert_eq!(host.status(), device.status(), "{what}");
        let values = |fit: &SpotFit| {
            let mut values = fit.theta.to_vec();
            values.extend(fit.errors);
            values.extend(fit.covariance);
            values.extend([fit.log_likelihood_ratio, fit.p_value]);
            values
        };
        for (a, b) in values(host).into_iter().zip(values(device)) {
            assert_eq!(a.is_nan(), b.is_nan(), "{what}");
        }
        if matches!(host.status(), FitStatus::Converged | FitStatus::AtBound) {
            for k in 0..model.psf().parameter_names().len() {
                worst = worst.max((host.theta[k] - device.theta[k]).abs() / host.errors[k]);
                worst = worst.max((host.errors[k] / device.errors[k] - 1.0).abs());
            }
            worst = worst.max((host.p_value - device.p_value).abs());
        }
    }
    assert!(worst < 0.02, "{what}: {worst}");
    // With any number of rounds, and with or without room for all unfinished fits.
    let mut aside_ever = 0;
    for (rounds, places) in [(&[3][..], 1000), (&ROUNDS, 1000), (&[1, 1, 2, 3], 50), (&[2, 3], 0)] {
        let (cut, aside) = on_device(model, camera, rois, rounds, places, 2);
        aside_ever += aside;
        for (roi, (a, b)) in whole.iter().zip(&cut).enumerate() {
            let bytes = |fit: &SpotFit| {
                (
                    fit.theta.map(f32::to_bits),
                    fit.errors.map(f32::to_bits),
                    fit.covariance.map(f32::to_bits),
                    fit.p_value.to_bits(),
                    fit.iterations,
                    fit.status(),
                )
            };
            assert_eq!(bytes(a), bytes(b), "{what}: ROI {roi}, rounds {rounds:?}, {places} places");
        }
    }
    assert!(aside_ever > 0, "{what}: no fit is put aside");
    worst
}

fn psfs() -> [Psf; 4] {
    [
        Psf::Xynb { sigma_px: [1.25; 2] },
        Psf::Xynbs { sigma_start_px: 1.3 },
        Psf::Xynbsxsy { sigma_start_px: [1.3; 2] },
        Psf::Xyznb(astigmatism()),
    ]
}

#[test]
fn the_device_fits_as_the_host_does_whatever_the_rounds() {
    for (side, count) in [(3, 70), (7, 203), (11, 130), (21, 33)] {
        let values = noisy(side as u64, count, side);
        let floats: Vec<f32> = values.iter().map(|&value| f32::from(value)).collect();
        for psf in psfs() {
            let model = model(psf);
            let mut worst = 0f32;
            for adu in [Adu::U16(&values), Adu::F32(&floats)] {
                let rois = Rois::new(adu, side, None).unwrap();
                let what = format!("{} {side}", psf.name());
                worst = worst.max(check(&what, &model, &Camera::ideal(), rois));
            }
            println!("{} {side}: at most {worst:.1e} standard errors apart", psf.name());
        }
    }
}

#[test]
fn the_device_reads_maps_as_the_host_does() {
    let (height, width) = (50, 70);
    let camera = Camera::new(
        &map(height, width, |r, c| 90.0 + (r * 3 + c) as f32 % 17.0),
        &map(height, width, |r, c| 0.4 + ((r + 2 * c) % 5) as f32 * 0.05),
        &map(height, width, |r, _| 0.5 + r as f32 * 0.3),
    )
    .unwrap();
    for (side, count) in [(5, 90), (11, 60), (21, 20)] {
        let values: Vec<u16> = noisy(31, count, side).iter().map(|&value| value * 2 + 95).collect();
        let floats: Vec<f32> = values.iter().map(|&value| f32::from(value)).collect();
        let corners: Vec<[u32; 2]> = (0..count as u32).map(|i| [i * 7 % 49, i * 5 % 29]).collect();
        for psf in psfs() {
            for adu in [Adu::U16(&values), Adu::F32(&floats)] {
                let rois = Rois::new(adu, side, Some(&corners)).unwrap();
                check(&format!("{} {side} with maps", psf.name()), &model(psf), &camera, rois);
            }
        }
    }
}

#[test]
fn what_is_no_spot_has_the_same_status_on_the_device() {
    let side = 7;
    let pixels = side * side;
    let mut values: Vec<f32> = noisy(77, 64, side).into_iter().map(f32::from).collect();
    let kinds = [f32::NAN, f32::INFINITY, 0.0, 65535.0, -5.0, 1e12, 9e8, f32::MAX];
    for (roi, value) in kinds.into_iter().enumerate() {
        values[(roi * 8 + 3) * pixels..(roi * 8 + 4) * pixels].fill(value);
    }
    for psf in psfs() {
        let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
        check(psf.name(), &model(psf), &Camera::ideal(), rois);
    }
}

#[test]
fn a_round_takes_the_number_of_rois_from_the_device() {
    let values = noisy(5, 20, 7);
    let rois = Rois::new(Adu::U16(&values), 7, None).unwrap();
    let model = model(Psf::Xynb { sigma_px: [1.2; 2] });
    let mut aligned = vec![0u128; values.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut aligned)[..values.len()].copy_from_slice(&values);
    let mut results = Results::new(&model, 20);
    let addresses = results.addresses(aligned.as_ptr() as u64, None);
    let call = FitCall::on_device(&model, &Camera::ideal(), 7, 20, &addresses);
    let launch = FitLaunch::new(model.psf(), false, false, 7, MEMORY);
    let found = 13u64;
    let round = FitRound {
        begun: 0,
        begun_count: &raw const found as u64,
        unfinished: 0,
        unfinished_count: 0,
        places: 0,
        evaluations: 1,
        tile: launch.tile,
    };
    let mut arguments = [(&raw const call).cast_mut().cast(), (&raw const round).cast_mut().cast()];
    let (shared, threads) = (launch.shared_bytes as usize, [launch.threads, 1, 1]);
    // SAFETY: as above.
    #[allow(unsafe_code, reason = "a call into C++")]
    unsafe {
        emulated::launch_with(launch.kernel, [1, 1, 1], threads, shared, &mut arguments);
    }
    let mut expected = vec![SpotFit::default(); 13];
    fit(InstructionSet::Baseline, &model, &Camera::ideal(), rois.part(0..13), &mut expected).unwrap();
    for (a, b) in expected.iter().zip(&results.fits()) {
        assert!((a.theta[0] - b.theta[0]).abs() < 1e-3);
    }
    assert!(results.untouched(13), "ROIs beyond the count are left alone");
}

#[test]
fn tiles_fit_in_what_blocks_may_share() {
    let square = |multiprocessor_kib: u32, block_kib: u32| SharedMemory {
        block_max: block_kib << 10,
        multiprocessor: multiprocessor_kib << 10,
    };
    // sm_75, sm_86, sm_90.
    for memory in [square(64, 64), square(100, 99), square(228, 227)] {
        for psf in psfs() {
            for side in (3..=21).step_by(2) {
                for (wide, maps) in [(false, false), (true, false), (false, true), (true, true)] {
                    let launch = FitLaunch::new(&psf, wide, maps, side, memory);
                    assert!(launch.shared_bytes + RESERVED_BYTES <= memory.block_max, "{launch:?}");
                    assert!(launch.tile.is_multiple_of(8) && launch.tile <= launch.threads, "{launch:?}");
                }
            }
        }
    }
    // The arithmetic in the head comment of the kernel.
    let h200 = square(228, 227);
    let launch = |psf, maps, side| {
        let launch = FitLaunch::new(psf, false, maps, side, h200);
        (launch.tile, launch.shared_bytes)
    };
    let [xynb, xynbs, ..] = psfs();
    assert_eq!(launch(&xynb, false, 7), (64, 64 * 49 * 2 + 64 * 4 * 29));
    assert_eq!(launch(&xynbs, false, 11), (64, 64 * 121 * 2 + 64 * 4 * 67));
    assert_eq!(launch(&xynbs, true, 11), (32, 32 * 121 * 8 + 32 * 4 * 67));
}
