//! From frames to rows with the CPU engine, whether spots are found here or by the engine: the parts of camera handling and of full frames
//! that are not in the kernels.

use super::*;
use crate::{
    engine::{Engine, Tensor, TensorView, gauss_mle::GaussMle, kernels::SensorMap},
    image::stack::{Limits, Raw, SampleType},
    tasks::localize::Table,
};

const SIZE: [usize; 2] = [40, 30];

/// Frames of three spots each, the third the weakest, on a background of 10, as counted by a camera without offset.
fn frames(count: usize) -> Vec<u16> {
    let [width, height] = SIZE;
    let mut values = vec![10_u16; count * width * height];
    for frame in values.chunks_exact_mut(width * height) {
        for (x, y, peak) in [(8_usize, 9_usize, 300.0_f32), (20, 18, 200.0), (32, 10, 100.0)] {
            for (dy, dx) in (0..9).flat_map(|dy| (0..9).map(move |dx| (dy, dx))) {
                let squared = (dx as f32 - 4.0).powi(2) + (dy as f32 - 4.0).powi(2);
                frame[(y + dy - 4) * width + x + dx - 4] += (peak * (-squared / 3.38).exp()) as u16;
            }
        }
    }
    values
}

/// The rows of a stack with these settings; with `whole`, the engine finds the spots itself.
fn rows(settings: &Settings, values: &[u16], whole: bool) -> Result<Table, String> {
    let [width, height] = SIZE;
    let frames = (values.len() / (width * height)) as u64;
    let raw =
        Raw { width: width as u32, height: height as u32, sample: SampleType::U16, frames: Some(frames) };
    let limits = Limits {
        side_max: 4096,
        frame_pixels_max: 1 << 24,
        frames_max: 100,
        memory_bytes_max: 1 << 26,
        spill_bytes_max: 0,
    };
    let options = Options { limits, spill_folder: None, file_alone: true };
    let stager = Stager::new(settings.clone(), Holds::Frames, Some(Format::Raw(raw)), options);
    let mut stager = stager.whole(whole, None);
    let said = |error: InferError| error.to_string();
    stager.push(bytemuck::cast_slice(values).to_vec().into()).map_err(said)?;
    stager.finish();
    let mut engine = GaussMle::new(2)?;
    let mut table = None::<Table>;
    loop {
        match stager.step(false).map_err(said)? {
            Step::Chunk(Chunk { inputs, setting, origins, .. }) => {
                let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
                let outputs = engine.run(&views, Some(&setting)).map_err(|error| error.to_string())?;
                let schema = stager.schema()?;
                let more = origins.table(&outputs, &schema, &setting)?;
                more.check(&schema)?;
                table.get_or_insert_with(|| Table::new(&schema)).append(more);
            }
            Step::Busy => {}
            Step::Wait | Step::End => return table.ok_or_else(|| "no spot was found".to_owned()),
        }
    }
}

/// The rows in both ways, which must agree.
fn both(settings: &Settings, values: &[u16]) -> Result<Table, String> {
    let here = rows(settings, values, false);
    assert_eq!(here, rows(settings, values, true));
    here
}

fn set(said: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    said.iter().for_each(|(key, value)| settings.set(key, value).expect("a setting"));
    settings
}

#[test]
fn spots_beyond_spots_max_are_counted_wherever_spots_are_looked_for() {
    let values = frames(5);
    for (spots_max, found, over) in [("1", 5, 10), ("2", 10, 5), ("3", 15, 0)] {
        let table = both(&set(&[("spots_max", spots_max)]), &values).expect("spots");
        assert_eq!((table.rows(), table.over_spots_max), (found, over), "{spots_max}");
    }
}

#[test]
fn of_a_camera_that_multiplies_photons_come_back_as_photons_and_thresholds_are_of_photons() {
    let values = frames(2);
    // In units of four photo-electrons, so that no rounding differs.
    for (threshold, least, of_units) in
        [("noise_min", "5", "5"), ("photons_min", "400", "100"), ("gradient_min", "400", "100")]
    {
        let multiplied = [("gain", "0.5"), ("read_noise", "2"), ("excess_noise", "4"), (threshold, least)];
        let plain = [("gain", "0.125"), ("read_noise", "0.5"), (threshold, of_units)];
        let [multiplied, plain] =
            [&multiplied[..], &plain].map(|said| both(&set(said), &values).expect("spots"));
        let four = |column: &[f32]| column.iter().map(|value| 4.0 * value).collect::<Vec<f32>>();
        for (at, parameter) in ["x", "y", "photons", "background"].into_iter().enumerate() {
            let times = |column: &[f32]| if at < 2 { column.to_vec() } else { four(column) };
            assert_eq!(multiplied.theta[at], times(&plain.theta[at]), "{threshold} {parameter}");
            assert_eq!(multiplied.errors[at], times(&plain.errors[at]), "{threshold} {parameter}");
        }
        let score = if threshold == "noise_min" { plain.score.clone() } else { four(&plain.score) };
        assert_eq!(multiplied.score, score, "{threshold}");
        assert_eq!((multiplied.p_value, multiplied.status), (plain.p_value, plain.status));
    }
}

/// A map that differs from pixel to pixel.
fn map([width, height]: [usize; 2], [x, y]: [usize; 2]) -> SensorMap {
    let values = (0..width * height).map(|at| {
        let (column, row) = (x + at % width, y + at / width);
        1.0 + ((7 * column + 13 * row) % 31) as f32 / 100.0
    });
    SensorMap { height, width, values: values.collect() }
}

#[test]
fn frames_of_a_part_of_the_sensor_have_the_values_of_that_part_and_positions_of_their_own() {
    let values = frames(2);
    let mapped = |size, corner, said: &[(&str, &str)]| {
        let mut settings = set(said);
        for key in ["gain", "read_noise"] {
            settings.set_map(key, map(size, corner), "a.npy").expect("a map");
        }
        settings
    };
    let expected = both(&mapped(SIZE, [17, 9], &[]), &values).expect("spots");
    let sensor = [80, 50];
    let part = both(&mapped(sensor, [0, 0], &[("corner_px", "17,9")]), &values).expect("spots");
    assert_eq!(part, expected);
    let elsewhere = both(&mapped(sensor, [0, 0], &[("corner_px", "0,0")]), &values).expect("spots");
    assert_ne!(elsewhere, expected);
    let same = both(&mapped(SIZE, [17, 9], &[("corner_px", "0,0")]), &values).expect("spots");
    assert_eq!(same, expected);

    let unsaid = both(&mapped(sensor, [0, 0], &[]), &values).expect_err("it is not known which part");
    assert!(unsaid.contains("40 x 30 pixels, but the camera's maps are 80 x 50: give corner_px"), "{unsaid}");
    for corner in ["41,9", "17,21", "18446744073709551615,0"] {
        let beyond = both(&mapped(sensor, [0, 0], &[("corner_px", corner)]), &values).expect_err("beyond");
        let says =
            format!("corner_px is \"{corner}\", but frames of 40 x 30 px from there leave the camera's maps");
        assert!(beyond.contains(&says), "{beyond}");
    }
}

#[test]
fn rois_lie_on_the_maps_from_the_corner_of_their_frames_on() {
    let mut settings = set(&[("corner_px", "17,9")]);
    settings.set_map("gain", map([80, 50], [0, 0]), "a.npy").expect("a map");
    let setting = settings.setting_of(None).expect("it is on the sensor");
    let mut expected = Settings::default();
    expected.set_map("gain", map([63, 41], [17, 9]), "a.npy").expect("a map");
    let expected = expected.setting().expect("a camera");
    assert_eq!(setting.camera().map_values(), expected.camera().map_values());
    settings.set("corner_px", "80,0").expect("numbers");
    let told = settings.setting_of(None).expect_err("there is nothing");
    assert!(
        told.contains("corner_px is \"80,0\", but ROIs from there leave the camera's maps of 80 x 50"),
        "{told}"
    );
}

#[test]
fn a_corner_of_no_maps_is_refused() {
    let said = [("corner_px", "1,2")];
    let told = set(&said).heeds(&said).expect_err("nothing is mapped");
    assert!(told.starts_with("corner_px is of a camera with maps"), "{told}");
}
