//! What to fit, how the camera counts, and what is a spot: from a model's manifest, with the changes of a request. Both use the same keys
//! ([`KEYS`]), which are parsed here.

mod keys;
mod told;

pub use keys::{KEYS, Section, agree};

use super::{
    options::{Columns, Words, number},
    schema::{self, Model, Schema, Score, Width},
};
use crate::engine::{
    Setting,
    kernels::{
        Astigmatism, Border, Camera, CameraValue, FinderOptions, FitModel, ITERATIONS_MAX, Invalid, Method,
        Psf, RADIUS, SIDE, SensorMap, SpotFinder, Threshold,
    },
};
use keys::{BOX, OF_Z};
use std::{fmt::Display, ops::RangeInclusive, str::FromStr, sync::Arc};

impl Words for Border {
    const ALL: &'static [(&'static str, Border)] = &[("shift", Border::Shift), ("drop", Border::Drop)];
}

/// What a spot must exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Least {
    Photons(f32),
    Noise(f32),
    Gradient(f32),
}

/// The values of all [`KEYS`].
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    psf: Model,
    sigma_px: [f32; 2],
    /// Its widths are replaced by `sigma_px`.
    astigmatism: Astigmatism,
    /// `None`: as the model of a spot needs.
    box_px: Option<usize>,
    iterations_max: u32,
    columns: Columns,
    pixel_nm: Option<[f64; 2]>,
    offset: CameraValue,
    gain: CameraValue,
    read_noise: CameraValue,
    /// The variance of a number of photo-electrons divided by its mean (F²).
    excess_noise: f32,
    /// Made from the four fields above; `None` until it is needed, and after a change.
    camera: Option<Arc<Camera>>,
    /// The column and row in the camera's maps at which frames begin, if set.
    corner_px: Option<[usize; 2]>,
    /// The names of the files that hold the camera's maps, by the keys that they stand for.
    maps: Vec<(String, String)>,
    least: Least,
    radius_px: usize,
    border: Border,
    /// `None`: as many as the area of the frame allows.
    spots_max: Option<usize>,
    /// Keys in a request that apply to frames only.
    of_frames: Vec<&'static str>,
}

/// The side of boxes unless a setting says it.
const BOX_PX: usize = 7;
/// The same for spots whose width tells z: 0.7 um out of focus they are some 2.5 times as wide. With 7 px, z scatters three times as much,
/// and more than is stated.
const BOX_PX_OUT_OF_FOCUS: usize = 13;
/// The range of F²: 1 without multiplication, 2 for multiplication in many steps, more for few steps.
const EXCESS_NOISE: RangeInclusive<f32> = 1.0..=4.0;
/// The width of the mean that estimates a spot's background, in widths of the spot.
const WIDE: f32 = 2.0;
/// The most spots that a setting may allow.
const SPOTS_MAX: usize = 65_536;
/// How many spots a frame may have unless a setting says it. A frame of more pixels than `FULL_PIXELS` may have in proportion, up to
/// `SPOTS_MAX`: in a large frame of usual density, the weakest would be missing otherwise, and with them the mean of photons would rise.
/// Memory does not depend on it: ROIs are handed out in chunks, however many a frame has.
const SPOTS_MAX_LEAST: usize = 10_000;
const FULL_PIXELS: usize = 512 * 512;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            psf: Model::Xynb,
            sigma_px: [1.3; 2],
            astigmatism: Astigmatism {
                sigma_px: [1.3; 2],
                a: [0.0; 2],
                b: [0.0; 2],
                gamma_um: 0.25,
                depth_um: 0.4,
                z_um: [-1.0, 1.0],
            },
            box_px: None,
            iterations_max: ITERATIONS_MAX,
            columns: Columns::All,
            pixel_nm: None,
            offset: CameraValue::Scalar(0.0),
            gain: CameraValue::Scalar(1.0),
            read_noise: CameraValue::Scalar(0.0),
            excess_noise: 1.0,
            camera: None,
            corner_px: None,
            maps: Vec::new(),
            least: Least::Noise(5.0),
            radius_px: 2,
            border: Border::Shift,
            spots_max: None,
            of_frames: Vec::new(),
        }
    }
}

impl Settings {
    /// Sets the value of a key. Lists are separated by commas.
    ///
    /// # Errors
    /// What is wrong with the value, beginning with the key; for an unknown key, all known ones.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let value = value.trim();
        let wrong = |expected: &dyn Display| format!("{key} is {value:?}, expected {expected}");
        match key {
            "psf" => {
                let names = Model::ALL.map(Model::name).join(", ");
                self.psf = Model::from_name(value).ok_or_else(|| wrong(&names))?;
            }
            "sigma_px" => self.sigma_px = pair(key, value)?,
            "gamma_um" => self.astigmatism.gamma_um = number(key, value)?,
            "depth_um" => self.astigmatism.depth_um = number(key, value)?,
            "a" => self.astigmatism.a = pair(key, value)?,
            "b" => self.astigmatism.b = pair(key, value)?,
            "z_um" => {
                self.astigmatism.z_um = match numbers(key, value)?[..] {
                    [low, high] => [low, high],
                    _ => return Err(wrong(&"the lowest and the highest z, such as -0.8,0.8")),
                }
            }
            "box_px" => {
                let side = value.parse().ok().filter(|side: &usize| SIDE.contains(side) && side % 2 == 1);
                let range = format!("an odd number from {} to {}", SIDE.start(), SIDE.end());
                self.box_px = Some(side.ok_or_else(|| wrong(&range))?);
            }
            "iterations_max" => self.iterations_max = number(key, value)?,
            "preset" => self.columns = Columns::read(key, value)?,
            "pixel_nm" => self.pixel_nm = Some(self.pixel(key, value)?),
            "offset" | "gain" | "read_noise" => {
                let number = value.parse().map_err(|_| {
                    wrong(&"a number, or in model.toml the name of a .npy file with a number for each pixel of the sensor")
                })?;
                self.set_camera(key, CameraValue::Scalar(number))?;
            }
            "excess_noise" => {
                self.excess_noise = within(key, value, EXCESS_NOISE)?;
                self.camera = None;
            }
            "corner_px" => {
                let both = value.split_once(',');
                let corner = both.and_then(|(x, y)| Some([x.trim().parse().ok()?, y.trim().parse().ok()?]));
                let expected =
                    "the column and the row of the camera's maps in which frames begin, such as 512,256";
                self.corner_px = Some(corner.ok_or_else(|| wrong(&expected))?);
            }
            "method" => {
                self.least = match (value, self.least) {
                    ("contrast", least @ (Least::Photons(_) | Least::Noise(_))) => least,
                    ("contrast", Least::Gradient(_)) => Least::Noise(5.0),
                    ("net-gradient", least @ Least::Gradient(_)) => least,
                    ("net-gradient", _) => Least::Gradient(400.0),
                    _ => return Err(wrong(&"contrast or net-gradient")),
                }
            }
            "photons_min" => self.least = Least::Photons(number(key, value)?),
            "noise_min" => self.least = Least::Noise(number(key, value)?),
            "gradient_min" => self.least = Least::Gradient(number(key, value)?),
            "radius_px" => self.radius_px = within(key, value, RADIUS)?,
            "border" => self.border = Border::read(key, value)?,
            "spots_max" => self.spots_max = Some(within(key, value, 1..=SPOTS_MAX)?),
            _ => {
                let keys = KEYS.map(|(_, key)| key).join(", ");
                return Err(format!("unknown setting {key:?}; there are {keys}"));
            }
        }
        Ok(())
    }

    /// Sets one of `offset`, `gain` and `read_noise` to a value for each pixel of the sensor, from the file of that name.
    pub fn set_map(&mut self, key: &str, map: SensorMap, file: &str) -> Result<(), String> {
        self.set_camera(key, CameraValue::Map(map))?;
        self.maps.push((key.to_owned(), file.to_owned()));
        Ok(())
    }

    fn set_camera(&mut self, key: &str, value: CameraValue) -> Result<(), String> {
        match key {
            "offset" => self.offset = value,
            "gain" => self.gain = value,
            "read_noise" => self.read_noise = value,
            _ => return Err(format!("{key} cannot be a map")),
        }
        self.maps.retain(|(of, _)| of != key);
        self.camera = None;
        Ok(())
    }

    fn has_maps(&self) -> bool {
        [&self.offset, &self.gain, &self.read_noise].iter().any(|value| matches!(value, CameraValue::Map(_)))
    }

    /// Takes the pixel size that a file states, unless one is set.
    pub fn suggest_pixel_nm(&mut self, pixel_nm: [f64; 2]) {
        self.pixel_nm.get_or_insert(pixel_nm);
    }

    fn pixel(&self, key: &str, value: &str) -> Result<[f64; 2], String> {
        let sizes = pair::<f64>(key, value)?;
        let fits = sizes.iter().all(|size| (0.1..=100_000.0).contains(size));
        fits.then_some(sizes).ok_or_else(|| format!("{key} is {value:?}, expected 0.1 to 100000 nm"))
    }

    /// Side of the boxes that are cut out around spots, in px.
    pub fn box_px(&self) -> usize {
        self.box_px.unwrap_or(if self.psf == Model::Xyznb { BOX_PX_OUT_OF_FOCUS } else { BOX_PX })
    }

    /// Which columns replies have.
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// Checks that what one request said, which is already set, has an effect in combination with everything else that is set. A manifest
    /// is not checked: its values may be meant for requests that choose another model, or another way to find spots. Keys for frames are
    /// left to [`Settings::suit_rois`], once it is known whether there are frames.
    ///
    /// # Errors
    /// The key that has no effect, first in the message.
    pub fn heeds(&mut self, said: &[(impl AsRef<str>, impl AsRef<str>)]) -> Result<(), String> {
        let by_gradient = matches!(self.least, Least::Gradient(_));
        for (key, value) in said.iter().map(|(key, value)| (key.as_ref(), value.as_ref().trim())) {
            match key {
                "border" if by_gradient && value == "shift" => {
                    return Err("border is shift, but the method is net-gradient, which finds no spot whose box, with one pixel around it, would leave \
                                the frame: leave border out, or give method=contrast"
                        .into());
                }
                "radius_px" if by_gradient => {
                    return Err("radius_px is of the method contrast, but the method is net-gradient: leave radius_px out, or give \
                                method=contrast"
                        .into());
                }
                "corner_px" if !self.has_maps() => {
                    return Err("corner_px is of a camera with maps, but offset, gain and read_noise are numbers, the same for all \
                                pixels: leave corner_px out"
                        .into());
                }
                "sigma_px" if self.psf == Model::Xynbs && self.sigma_px[0] != self.sigma_px[1] => {
                    return Err(format!(
                        "sigma_px is {value:?}, but the fit of psf=xynbs starts from one width: give one number, or psf=xynbsxsy"
                    ));
                }
                key if OF_Z.contains(&key) && self.psf != Model::Xyznb => {
                    return Err(format!(
                        "{key} is of the psf xyznb, but the psf is {}: leave {key} out, or give psf=xyznb",
                        self.psf.name()
                    ));
                }
                _ => {}
            }
        }
        let of_frames = KEYS.into_iter().filter(|(section, key)| *section == Section::Detect || *key == BOX);
        let of_frames = of_frames.filter(|(_, key)| said.iter().any(|(said, _)| said.as_ref() == *key));
        self.of_frames = of_frames.map(|(_, key)| key).collect();
        Ok(())
    }

    /// Checks that everything in the request has an effect on ROIs of this side, in which no spots are looked for.
    ///
    /// # Errors
    /// The key that has no effect, first in the message.
    pub fn suit_rois(&self, side: usize) -> Result<(), String> {
        let of_frames = self.of_frames.iter().find(|key| **key != BOX || self.box_px() != side);
        of_frames.map_or(Ok(()), |key| {
            Err(format!(
                "{key} is of finding spots in frames, but these are ROIs of {side} x {side} px, which are fitted as they are: leave {key} \
                 out, or send frames (input=frames)"
            ))
        })
    }

    /// The checked setting for the engine. What is taken for a spot is checked as well. The camera is made once, and again after a change.
    ///
    /// # Errors
    /// Values that are out of range or inconsistent, beginning with the key.
    pub fn setting(&mut self) -> Result<Setting, String> {
        let said = |error: Invalid| error.to_string();
        let psf = match self.psf {
            Model::Xynb => Psf::Xynb { sigma_px: self.sigma_px },
            Model::Xynbs => Psf::Xynbs { sigma_start_px: self.sigma_px[0] },
            Model::Xynbsxsy => Psf::Xynbsxsy { sigma_start_px: self.sigma_px },
            Model::Xyznb => Psf::Xyznb(Astigmatism { sigma_px: self.sigma_px, ..self.astigmatism }),
        };
        let pixel_um = self.pixel_nm.map_or([1.0; 2], |nm| nm.map(|side| (side / 1000.0) as f32));
        let model = FitModel::new(psf, pixel_um)
            .and_then(|model| model.with_iterations_max(self.iterations_max))
            .map_err(said)?;
        let camera = match &self.camera {
            Some(camera) => Arc::clone(camera),
            None => {
                let (offset, gain, noise) = (&self.offset, &self.gain, &self.read_noise);
                let camera = Camera::multiplying(offset, gain, noise, self.excess_noise).map_err(said)?;
                Arc::clone(self.camera.insert(Arc::new(camera)))
            }
        };
        // The number of spots depends on the frame, but is never out of range.
        self.spots([1; 2]).check().map_err(said)?;
        Ok(Setting::new(model, camera))
    }

    /// Like [`Settings::setting`], for frames of this width and height, or for ROIs of unknown frames. A camera with maps is reduced to the
    /// part of its sensor that the frames show. Positions in that part count from the frame's first pixel.
    ///
    /// # Errors
    /// As [`Settings::setting`], and frames that extend beyond the maps.
    pub fn setting_of(&mut self, frame: Option<[usize; 2]>) -> Result<Setting, String> {
        let setting = self.setting()?;
        let (Some((rows, columns)), Some(corner)) = (setting.camera().sensor(), self.corner_px) else {
            return Ok(setting);
        };
        let size = frame.unwrap_or([columns.saturating_sub(corner[0]), rows.saturating_sub(corner[1])]);
        if corner == [0; 2] && size == [columns, rows] {
            return Ok(setting);
        }
        let part = setting.camera().part(corner, size).ok_or_else(|| {
            let what = frame.map_or("ROIs".to_owned(), |[width, height]| format!("frames of {width} x {height} px"));
            let [x, y] = corner;
            format!("corner_px is \"{x},{y}\", but {what} from there leave the camera's maps of {columns} x {rows} px")
        })?;
        Ok(Setting::new(*setting.model(), Arc::new(part)))
    }

    /// The spot finder for frames of this size.
    ///
    /// # Errors
    /// Inconsistent values, by their keys.
    pub fn finder(&self, camera: &Camera, width: usize, height: usize) -> Result<SpotFinder, String> {
        let mut options = self.spots([width, height]);
        // The finder works in units that the camera counts; a multiple of the noise is the same in both.
        match &mut options.method {
            Method::Contrast { threshold: Threshold::Photons(electrons), .. }
            | Method::NetGradient { minimum: electrons } => *electrons /= self.excess_noise,
            Method::Contrast { threshold: Threshold::Noise(_), .. } => {}
        }
        SpotFinder::new(&options, camera, width, height).map_err(|error| error.to_string())
    }

    /// How many spots a frame of this width and height may have.
    fn spots_max(&self, [width, height]: [usize; 2]) -> usize {
        let in_proportion = width.saturating_mul(height).saturating_mul(SPOTS_MAX_LEAST) / FULL_PIXELS;
        self.spots_max.unwrap_or_else(|| in_proportion.clamp(SPOTS_MAX_LEAST, SPOTS_MAX))
    }

    /// What is taken for a spot in frames of this width and height; not checked.
    fn spots(&self, size: [usize; 2]) -> FinderOptions {
        let contrast = |threshold| Method::Contrast {
            sigma_px: self.sigma_px,
            wide: WIDE,
            threshold,
            radius: self.radius_px,
        };
        let method = match self.least {
            Least::Photons(photons) => contrast(Threshold::Photons(photons)),
            Least::Noise(multiple) => contrast(Threshold::Noise(multiple)),
            Least::Gradient(minimum) => Method::NetGradient { minimum },
        };
        let spots_max = self.spots_max(size);
        FinderOptions { method, box_side: self.box_px(), border: self.border, spots_max }
    }

    /// The schema of the results. `found` says that spots were looked for.
    pub fn schema(&self, found: bool) -> Result<Schema, String> {
        let width = match self.psf {
            Model::Xynb => Width::Fixed(self.sigma_px),
            Model::Xynbs | Model::Xynbsxsy => Width::Fitted,
            Model::Xyznb => Width::Astigmatic(schema::Astigmatism {
                sigma_px: self.sigma_px,
                gamma_um: self.astigmatism.gamma_um,
                depth_um: self.astigmatism.depth_um,
                a: self.astigmatism.a,
                b: self.astigmatism.b,
            }),
        };
        let mut schema = Schema::new(self.psf, width)?;
        schema.pixel_nm = self.pixel_nm;
        schema.excess_noise = self.excess_noise;
        schema.score = found.then_some(match self.least {
            Least::Gradient(_) => Score::NetGradient,
            Least::Photons(_) => Score::DifferenceOfGaussians,
            Least::Noise(_) => Score::MultipleOfNoise,
        });
        Ok(schema)
    }
}

fn within<T: FromStr + PartialOrd + Display>(
    key: &str,
    value: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    let (low, high) = range.into_inner();
    number.ok_or_else(|| format!("{key} is {value:?}, expected a number from {low} to {high}"))
}

fn numbers<T: FromStr>(key: &str, value: &str) -> Result<Vec<T>, String> {
    value.split(',').map(|part| number(key, part.trim())).collect()
}

/// One number for both axes, or one for x and one for y.
fn pair<T: FromStr + Copy>(key: &str, value: &str) -> Result<[T; 2], String> {
    match numbers(key, value)?[..] {
        [both] => Ok([both; 2]),
        [x, y] => Ok([x, y]),
        _ => Err(format!(
            "{key} is {value:?}, expected one number, or one for x and one for y, such as 1.3,1.4"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_frames_may_have_more_spots_unless_a_setting_says_how_many() {
        let mut settings = Settings::default();
        let most = |settings: &Settings, size| {
            let finder = settings.finder(&Camera::ideal(), size, size).expect("a finder");
            finder.options().spots_max
        };
        let by_area =
            [(64, 10_000), (512, 10_000), (724, 19_995), (1024, 40_000), (1310, 65_464), (2048, 65_536)];
        for (side, spots) in by_area {
            assert_eq!(most(&settings, side), spots, "{side} px");
        }
        settings.set("spots_max", "300").expect("a number");
        assert_eq!([64, 2048].map(|side| most(&settings, side)), [300; 2]);
    }

    #[test]
    fn a_value_out_of_range_is_told_by_its_key() {
        for (_, key) in KEYS {
            // Values far out of range, some of which make another key's range impossible instead.
            let values: &[_] = if ["a", "b"].contains(&key) { &["nan"] } else { &["-1e30", "0", "nan"] };
            let bad = values.iter().map(|value| {
                let mut settings = Settings::default();
                let psf =
                    if ["gamma_um", "depth_um", "a", "b", "z_um"].contains(&key) { "xyznb" } else { "xynbs" };
                settings.set("psf", psf).expect("known");
                let said = if key == "z_um" { format!("0,{value}") } else { (*value).to_owned() };
                settings.set(key, &said).and_then(|()| settings.setting().map(|_| ()))
            });
            let refused: Vec<_> = bad.filter_map(Result::err).collect();
            assert!(!refused.is_empty(), "{key} takes anything");
            for why in refused {
                let rest = why.strip_prefix(key).unwrap_or_else(|| panic!("{key}: {why}"));
                assert!(rest.starts_with([':', ' ']), "{key}: {why}");
            }
        }
    }
}
