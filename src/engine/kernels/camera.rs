//! The camera model: `electrons = (ADU - offset) * gain`, with normally distributed read noise.

use super::Invalid;

/// One value per pixel of the sensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorMap {
    /// Rows of the sensor.
    pub height: usize,
    /// Columns of the sensor.
    pub width: usize,
    /// `height * width` values.
    pub values: Vec<f32>,
}

/// A property of the camera: one value for all pixels, or one for each.
#[derive(Debug, Clone, PartialEq)]
pub enum CameraValue {
    /// The same everywhere.
    Scalar(f32),
    /// One value for each pixel of the sensor.
    Map(SensorMap),
}

impl CameraValue {
    fn values(&self) -> &[f32] {
        match self {
            CameraValue::Scalar(value) => std::slice::from_ref(value),
            CameraValue::Map(map) => &map.values,
        }
    }

    fn at(&self, pixel: usize) -> f32 {
        match self {
            CameraValue::Scalar(value) => *value,
            CameraValue::Map(map) => map.values[pixel],
        }
    }
}

/// A checked camera in the form that the kernels take: `electrons + variance = ADU * gain + bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct Camera {
    pub(super) uniform: Pixel,
    pub(super) maps: Option<Maps>,
}

/// The numbers of one pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pixel {
    pub(super) gain: f32,
    pub(super) bias: f32,
    pub(super) variance: f32,
}

/// The same numbers of each pixel of the sensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Maps {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) gain: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) variance: Vec<f32>,
}

impl Camera {
    /// A camera that counts photo-electrons.
    pub fn ideal() -> Camera {
        Camera { uniform: Pixel { gain: 1.0, bias: 0.0, variance: 0.0 }, maps: None }
    }

    /// A camera of `offset` (ADU), `gain` (photo-electrons per ADU) and `read_noise` (photo-electrons rms).
    ///
    /// # Errors
    /// If a gain is not positive, a noise is negative, a value is not finite, or maps differ in size.
    pub fn new(
        offset: &CameraValue,
        gain: &CameraValue,
        read_noise: &CameraValue,
    ) -> Result<Camera, Invalid> {
        Camera::multiplying(offset, gain, read_noise, 1.0)
    }

    /// The same for a camera that multiplies electrons before readout: the variance of their number is `excess_noise` (F²) times the
    /// mean. This camera counts in units of F² photo-electrons, in which variance and mean are equal again, as the fit assumes. To get
    /// photo-electrons, multiply results by F².
    ///
    /// # Errors
    /// As for [`Camera::new`].
    pub fn multiplying(
        offset: &CameraValue,
        gain: &CameraValue,
        read_noise: &CameraValue,
        excess_noise: f32,
    ) -> Result<Camera, Invalid> {
        let size = map_size(&[("offset", offset), ("gain", gain), ("read_noise", read_noise)])?;
        check("offset", offset, |value| value.abs() <= 1e6, "is not between -1000000 and 1000000")?;
        check("gain", gain, |value| value > 0.0 && value <= 1e6, "is not above 0 and up to 1000000")?;
        check("read_noise", read_noise, |value| (0.0..=1e4).contains(&value), "is not between 0 and 10000")?;
        let pixel = |i: usize| {
            let (offset, gain, noise) =
                (offset.at(i), gain.at(i) / excess_noise, read_noise.at(i) / excess_noise);
            let variance = noise * noise;
            // In double precision: a large offset must not cost digits twice.
            let bias = f64::from(variance) - f64::from(offset) * f64::from(gain);
            Pixel { gain, bias: bias as f32, variance }
        };
        let Some((height, width)) = size else {
            return Ok(Camera { uniform: pixel(0), maps: None });
        };
        let pixels: Vec<Pixel> = (0..height * width).map(pixel).collect();
        let maps = Maps {
            height,
            width,
            gain: pixels.iter().map(|pixel| pixel.gain).collect(),
            bias: pixels.iter().map(|pixel| pixel.bias).collect(),
            variance: pixels.iter().map(|pixel| pixel.variance).collect(),
        };
        Ok(Camera { uniform: Camera::ideal().uniform, maps: Some(maps) })
    }

    /// Height and width of the sensor, if the camera has maps.
    pub fn sensor(&self) -> Option<(usize, usize)> {
        self.maps.as_ref().map(|maps| (maps.height, maps.width))
    }

    /// The camera for frames of `width` by `height` pixels that begin at column `x` and row `y` of its maps. `None` if the frames exceed
    /// the maps, or there are none.
    pub fn part(&self, [x, y]: [usize; 2], [width, height]: [usize; 2]) -> Option<Camera> {
        let maps = self.maps.as_ref()?;
        let is_within = |first: usize, count: usize, all: usize| {
            count > 0 && first.checked_add(count).is_some_and(|end| end <= all)
        };
        if !(is_within(x, width, maps.width) && is_within(y, height, maps.height)) {
            return None;
        }
        let cut = |map: &[f32]| {
            let rows = map.chunks_exact(maps.width).skip(y).take(height);
            rows.flat_map(|row| &row[x..x + width]).copied().collect()
        };
        let of_part = [&maps.gain, &maps.bias, &maps.variance].map(|map| cut(map));
        Some(Camera::of_maps([height, width], of_part))
    }

    /// The numbers of a camera without maps, as kernels take them: gain, bias and variance.
    pub(in crate::engine) fn uniform_values(&self) -> [f32; 3] {
        let Pixel { gain, bias, variance } = self.uniform;
        [gain, bias, variance]
    }

    /// The camera with these [`Camera::uniform_values`].
    pub(in crate::engine) fn of_values([gain, bias, variance]: [f32; 3]) -> Camera {
        Camera { uniform: Pixel { gain, bias, variance }, maps: None }
    }

    /// The camera with these [`Camera::map_values`], for a sensor of this height and width.
    pub(in crate::engine) fn of_maps(
        [height, width]: [usize; 2],
        [gain, bias, variance]: [Vec<f32>; 3],
    ) -> Camera {
        Camera { uniform: Camera::ideal().uniform, maps: Some(Maps { height, width, gain, bias, variance }) }
    }

    /// The maps as kernels take them, each row-major: gain, bias and variance, with
    /// `photo-electrons + variance = gain * ADU + bias`.
    pub fn map_values(&self) -> Option<[&[f32]; 3]> {
        self.maps.as_ref().map(|maps| [&maps.gain[..], &maps.bias, &maps.variance])
    }
}

/// The one size that all maps have; `None` without a map.
fn map_size(values: &[(&'static str, &CameraValue)]) -> Result<Option<(usize, usize)>, Invalid> {
    let mut size = None;
    for (field, value) in values {
        let CameraValue::Map(map) = value else { continue };
        let (height, width) = (map.height, map.width);
        if height == 0 || width == 0 || height.checked_mul(width) != Some(map.values.len()) {
            let why = format!("a map of {height} x {width} pixels has {} values", map.values.len());
            return Err(Invalid::new(field, why));
        }
        match size {
            None => size = Some((height, width)),
            Some(other) if other != (height, width) => {
                let why =
                    format!("the map is {height} x {width} pixels, another one is {} x {}", other.0, other.1);
                return Err(Invalid::new(field, why));
            }
            Some(_) => (),
        }
    }
    Ok(size)
}

fn check(
    field: &'static str,
    value: &CameraValue,
    allowed: fn(f32) -> bool,
    why: &str,
) -> Result<(), Invalid> {
    let Some((at, bad)) = value.values().iter().enumerate().find(|(_, value)| !allowed(**value)) else {
        return Ok(());
    };
    let place = match value {
        CameraValue::Scalar(_) => String::new(),
        CameraValue::Map(map) => format!(" at row {}, column {}", at / map.width, at % map.width),
    };
    Err(Invalid::new(field, format!("{bad}{place} {why}")))
}
