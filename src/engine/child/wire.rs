//! What messages point to: words in JSON, behind the tensors that were copied for them. Numbers that a fit depends on go as
//! their bits.

use super::{ends::EndsText, recipe::Recipe, region::aligned};
use crate::{
    engine::{
        DataType, Dim, Engine, EngineError, Habits, Setting, Signature, Tensor, TensorSpec,
        kernels::{Astigmatism, Border, Camera, FinderOptions, FitModel, Method, Psf, Threshold},
    },
    telemetry::{COMMIT, VERSION},
};
use serde::{Deserialize, Serialize};
use std::{ops::Range, path::PathBuf, sync::Arc};

/// Which build this is: parent and child must be one.
pub(super) fn build() -> String {
    format!("{VERSION} {COMMIT}")
}

/// What a parent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Comes first, with the handle of the region.
    Open(Open),
    /// Makes an engine, which has this number from then on.
    Load { engine: u64, recipe: Recipe },
    /// Tells an engine what it does beside running its network.
    Equip { engine: u64, ends: EndsText },
    /// Makes a camera known to an engine: three maps of so many pixels.
    Camera { engine: u64, camera: u64, height: usize, width: usize, maps: Vec<TensorAt> },
    /// Runs a batch.
    Start { engine: u64, inputs: Vec<TensorAt>, setting: Option<Fitted>, reduced: bool },
    /// The engine lets go of memory, or also of what it has made for the batches so far.
    Rest { engine: u64, forgets: bool },
    /// The engine goes.
    Unload { engine: u64 },
    /// What of the device's memory is free.
    Memory,
    /// Gives free memory back to the system.
    Trim,
    /// Shows that the device answers as it should.
    Canary,
}

/// What a child needs to begin.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) build: String,
    /// What it lends of the region for results that it copies,
    pub(super) results: Range<usize>,
    /// and for those that its device writes there.
    pub(super) landing: Range<usize>,
    /// What its device copies from and to by itself.
    pub(super) pinned: [Range<usize>; 2],
    /// The UUID of a GPU; the CPU otherwise.
    pub(super) gpu: Option<String>,
    /// Where ONNX Runtime is.
    pub(super) onnx_runtime: Option<PathBuf>,
}

/// What a child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done { device_bytes: u64 },
    Loaded { signature: SignatureText, depth: usize, standing: Standing },
    Landed { outputs: Vec<TensorAt>, standing: Standing },
    Memory { free: u64, total: u64 },
    Input(String),
    OutOfMemory(String),
    Device(String),
}

/// What changes about an engine while it runs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) device_bytes: u64,
    pub(super) habits: Habits,
}

impl Standing {
    pub(super) fn of(engine: &dyn Engine) -> Standing {
        Standing { device_bytes: engine.device_bytes(), habits: engine.habits() }
    }
}

impl From<EngineError> for Answer {
    fn from(error: EngineError) -> Answer {
        match error {
            EngineError::Input(text) => Answer::Input(text),
            EngineError::OutOfMemory(text) => Answer::OutOfMemory(text),
            EngineError::Device(text) => Answer::Device(text),
        }
    }
}

/// Where data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// So many bytes from the start of the region.
    At(usize),
    /// So many bytes before the words.
    Before(usize),
}

impl Place {
    /// From the start of the region, for words that begin at `words`.
    pub(super) fn offset(self, words: usize) -> Result<usize, String> {
        match self {
            Place::At(offset) => Ok(offset),
            Place::Before(distance) => {
                words.checked_sub(distance).ok_or_else(|| format!("{distance} bytes before byte {words}"))
            }
        }
    }
}

/// A tensor in the region.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TensorAt {
    pub(super) datatype: String,
    pub(super) shape: Vec<usize>,
    pub(super) place: Place,
    pub(super) bytes: usize,
}

impl TensorAt {
    pub(super) fn datatype(&self) -> Result<DataType, String> {
        DataType::from_name(&self.datatype)
            .ok_or_else(|| format!("no data type is called {:?}", self.datatype))
    }
}

/// Tensors to be copied in front of the words, each at a place where any type can be read.
#[derive(Debug, Default)]
pub(super) struct Copies<'a> {
    parts: Vec<(usize, &'a [u8])>,
    bytes: usize,
}

impl<'a> Copies<'a> {
    /// Says where these tensors are: where they lie, if that is in the region, and in a copy otherwise.
    pub(super) fn of(
        tensors: impl Iterator<Item = (DataType, &'a [usize], &'a [u8])>,
        lies: impl Fn(&[u8]) -> Option<usize>,
    ) -> (Copies<'a>, Vec<TensorAt>) {
        let mut copies = Copies::default();
        let mut told: Vec<TensorAt> = tensors
            .map(|(datatype, shape, data)| {
                let place = lies(data).filter(|_| !data.is_empty()).map_or_else(
                    || {
                        let start = copies.bytes;
                        copies.parts.push((start, data));
                        copies.bytes = aligned(start + data.len());
                        Place::Before(start)
                    },
                    Place::At,
                );
                TensorAt {
                    datatype: datatype.name().to_owned(),
                    shape: shape.to_vec(),
                    place,
                    bytes: data.len(),
                }
            })
            .collect();
        for tensor in &mut told {
            if let Place::Before(distance) = &mut tensor.place {
                *distance = copies.bytes - *distance;
            }
        }
        (copies, told)
    }

    /// Bytes that the copies take: the words begin behind them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes copies and words.
    pub(super) fn write(&self, words: &[u8], to: &mut [u8]) {
        for (start, data) in &self.parts {
            to[*start..start + data.len()].copy_from_slice(data);
        }
        to[self.bytes..self.bytes + words.len()].copy_from_slice(words);
    }
}

/// The parts of a tensor that [`Copies`] need.
pub(super) fn parts(tensor: &Tensor) -> (DataType, &[usize], &[u8]) {
    (tensor.datatype, &tensor.shape, &tensor.data)
}

/// A signature.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SignatureText {
    platform: String,
    inputs: Vec<(String, String, Vec<i64>)>,
    outputs: Vec<(String, String, Vec<i64>)>,
    defaulted: Vec<String>,
    unshaped: Vec<String>,
}

impl From<&Signature> for SignatureText {
    fn from(signature: &Signature) -> SignatureText {
        let texts = |specs: &[TensorSpec]| {
            let text = |spec: &TensorSpec| {
                let shape = spec.shape.iter().map(|dim| dim.number()).collect();
                (spec.name.clone(), spec.datatype.name().to_owned(), shape)
            };
            specs.iter().map(text).collect()
        };
        SignatureText {
            platform: signature.platform.to_owned(),
            inputs: texts(&signature.inputs),
            outputs: texts(&signature.outputs),
            defaulted: signature.defaulted.clone(),
            unshaped: signature.unshaped.clone(),
        }
    }
}

impl SignatureText {
    pub(super) fn read(self) -> Result<Signature, String> {
        let specs = |texts: Vec<(String, String, Vec<i64>)>| {
            let spec = |(name, datatype, shape): (String, String, Vec<i64>)| {
                let datatype = DataType::from_name(&datatype)
                    .ok_or_else(|| format!("no data type is called {datatype:?}"))?;
                let shape = shape.iter().map(|&n| usize::try_from(n).map_or(Dim::Free, Dim::Fixed)).collect();
                Ok(TensorSpec { name, datatype, shape })
            };
            texts.into_iter().map(spec).collect::<Result<Vec<_>, String>>()
        };
        let known = Signature::PLATFORMS.into_iter().find(|known| **known == self.platform);
        Ok(Signature {
            platform: known.ok_or_else(|| format!("no platform is called {:?}", self.platform))?,
            inputs: specs(self.inputs)?,
            outputs: specs(self.outputs)?,
            defaulted: self.defaulted,
            unshaped: self.unshaped,
        })
    }
}

/// What a request asks of a fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fitted {
    psf: String,
    /// Bits of `f32`, in the order in which [`Psf`] has them.
    numbers: Vec<u32>,
    iterations_max: u32,
    pub(super) eye: Eye,
    sought: Option<Sought>,
}

/// What is a spot, where batches are whole frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sought {
    /// `photons`, `noise` or `gradient`, and then what is to be exceeded.
    by: String,
    /// Bits of `f32`: what is to be exceeded, and of means the width along both axes and how much wider the other is.
    numbers: Vec<u32>,
    radius: usize,
    box_side: usize,
    drop_at_border: bool,
    spots_max: usize,
}

impl Sought {
    fn of(options: &FinderOptions) -> Sought {
        let (by, numbers, radius) = match options.method {
            Method::NetGradient { minimum } => ("gradient", vec![minimum], 0),
            Method::Contrast { sigma_px: [x, y], wide, threshold, radius } => match threshold {
                Threshold::Photons(least) => ("photons", vec![least, x, y, wide], radius),
                Threshold::Noise(least) => ("noise", vec![least, x, y, wide], radius),
            },
        };
        Sought {
            by: by.to_owned(),
            numbers: numbers.into_iter().map(f32::to_bits).collect(),
            radius,
            box_side: options.box_side,
            drop_at_border: options.border == Border::Drop,
            spots_max: options.spots_max,
        }
    }

    fn read(&self) -> Result<FinderOptions, String> {
        let numbers: Vec<f32> = self.numbers.iter().map(|bits| f32::from_bits(*bits)).collect();
        let contrast =
            |sigma_px, wide, threshold| Method::Contrast { sigma_px, wide, threshold, radius: self.radius };
        let method = match (self.by.as_str(), &numbers[..]) {
            ("gradient", &[minimum]) => Method::NetGradient { minimum },
            ("photons", &[least, x, y, wide]) => contrast([x, y], wide, Threshold::Photons(least)),
            ("noise", &[least, x, y, wide]) => contrast([x, y], wide, Threshold::Noise(least)),
            (name, numbers) => return Err(format!("no spots {name:?} of {} numbers", numbers.len())),
        };
        let border = if self.drop_at_border { Border::Drop } else { Border::Shift };
        Ok(FinderOptions { method, box_side: self.box_side, border, spots_max: self.spots_max })
    }
}

/// A camera: its numbers as the kernels take them, or one whose maps are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Eye {
    Uniform([u32; 3]),
    Known(u64),
}

impl Eye {
    /// A camera without maps.
    pub(super) fn uniform(camera: &Camera) -> Eye {
        Eye::Uniform(camera.uniform_values().map(f32::to_bits))
    }

    /// The camera, if it is none that must be known.
    pub(super) fn camera(self) -> Result<Arc<Camera>, u64> {
        match self {
            Eye::Uniform(bits) => Ok(Arc::new(Camera::of_values(bits.map(f32::from_bits)))),
            Eye::Known(id) => Err(id),
        }
    }
}

impl Fitted {
    pub(super) fn of(setting: &Setting, eye: Eye) -> Fitted {
        let psf = setting.model().psf();
        let numbers: Vec<f32> = match psf {
            Psf::Xynb { sigma_px } => sigma_px.to_vec(),
            Psf::Xynbs { sigma_start_px } => vec![*sigma_start_px],
            Psf::Xynbsxsy { sigma_start_px } => sigma_start_px.to_vec(),
            Psf::Xyznb(Astigmatism { sigma_px, a, b, gamma_um, depth_um, z_um }) => {
                [&sigma_px[..], a, b, &[*gamma_um, *depth_um], z_um].concat()
            }
        };
        Fitted {
            psf: psf.name().to_owned(),
            numbers: numbers.into_iter().map(f32::to_bits).collect(),
            iterations_max: setting.model().iterations_max(),
            eye,
            sought: setting.finder().map(Sought::of),
        }
    }

    pub(super) fn read(&self, camera: Arc<Camera>) -> Result<Setting, String> {
        let numbers: Vec<f32> = self.numbers.iter().map(|bits| f32::from_bits(*bits)).collect();
        let psf = match (self.psf.as_str(), &numbers[..]) {
            ("xynb", &[x, y]) => Psf::Xynb { sigma_px: [x, y] },
            ("xynbs", &[sigma_start_px]) => Psf::Xynbs { sigma_start_px },
            ("xynbsxsy", &[x, y]) => Psf::Xynbsxsy { sigma_start_px: [x, y] },
            ("xyznb", &[sx, sy, ax, ay, bx, by, gamma_um, depth_um, low, high]) => Psf::Xyznb(Astigmatism {
                sigma_px: [sx, sy],
                a: [ax, ay],
                b: [bx, by],
                gamma_um,
                depth_um,
                z_um: [low, high],
            }),
            (name, numbers) => return Err(format!("no fit {name:?} of {} numbers", numbers.len())),
        };
        // The size of pixels only decides what may be fitted, and the parent has: it holds for square ones too.
        let model =
            FitModel::new(psf, [1.0; 2]).and_then(|model| model.with_iterations_max(self.iterations_max));
        let setting = Setting::new(model.map_err(|error| error.to_string())?, camera);
        match &self.sought {
            Some(sought) => Ok(setting.finding(sought.read()?)),
            None => Ok(setting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_signatures_come_back_as_they_went() {
        let astigmatism = Astigmatism {
            sigma_px: [1.2, 1.3],
            a: [0.05, -0.03],
            b: [0.1, 0.05],
            gamma_um: 0.25,
            depth_um: 0.4,
            z_um: [-1.0, 1.0],
        };
        let psfs = [
            Psf::Xynb { sigma_px: [1.3, 1.1] },
            Psf::Xynbs { sigma_start_px: 0.1 + 0.9 },
            Psf::Xynbsxsy { sigma_start_px: [1.3, 1.7] },
            Psf::Xyznb(astigmatism),
        ];
        for psf in psfs {
            let model = FitModel::new(psf, [1.0; 2])
                .and_then(|model| model.with_iterations_max(17))
                .expect("a model");
            let plain = Setting::new(model, Arc::new(Camera::of_values([0.3, -7.1, 1e-9])));
            let contrast =
                |threshold| Method::Contrast { sigma_px: [1.3, 1.4], wide: 2.1, threshold, radius: 3 };
            let methods = [
                contrast(Threshold::Photons(0.1 + 0.2)),
                contrast(Threshold::Noise(4.7)),
                Method::NetGradient { minimum: 1e-3 },
            ];
            let finding = methods.into_iter().zip([Border::Drop, Border::Shift, Border::Shift]).map(
                |(method, border)| {
                    plain.clone().finding(FinderOptions { method, box_side: 9, border, spots_max: 77 })
                },
            );
            for setting in finding.chain([plain.clone()]) {
                let told = Fitted::of(&setting, Eye::uniform(setting.camera()));
                let json = serde_json::to_vec(&told).expect("JSON");
                let heard: Fitted = serde_json::from_slice(&json).expect("JSON");
                let camera = heard.eye.camera().expect("no maps");
                assert_eq!(heard.read(camera).expect("a setting"), setting);
            }
        }
        let signature = crate::engine::gauss_mle::signature();
        assert_eq!(SignatureText::from(&signature).read().expect("known"), signature);
    }

    #[test]
    fn copies_stand_before_the_words_and_what_lies_in_the_region_stays() {
        let (one, two, three) = ([1_u8; 3], [2_u8; 70], [3_u8; 5]);
        let shape = [1];
        let tensors = [&one[..], &two, &three].map(|data| (DataType::Uint8, &shape[..], data));
        let (copies, told) = Copies::of(tensors.into_iter(), |data| (data.len() == 70).then_some(4096));
        let mut memory = vec![0; copies.bytes() + 2];
        copies.write(b"{}", &mut memory);
        assert_eq!(&memory[copies.bytes()..], b"{}");
        assert_eq!(told[1].place, Place::At(4096));
        for (tensor, data) in [(&told[0], &one[..]), (&told[2], &three)] {
            let offset = tensor.place.offset(copies.bytes()).expect("before the words");
            assert_eq!(&memory[offset..offset + tensor.bytes], data);
        }
    }
}
