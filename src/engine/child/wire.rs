//! The contents that messages point to: JSON text, preceded by the tensors that were copied for it. Numbers that affect results
//! are sent as their [`bits`](crate::bits).

use super::{link::Message, recipe::Recipe};
use crate::{
    engine::{
        DataType, Ends, Engine, Habits, Setting, Signature, Tensor,
        kernels::{Camera, FinderOptions, FitModel},
        staging::region::{Region, aligned},
    },
    telemetry::{COMMIT, VERSION},
};
use serde::{Deserialize, Serialize};
use std::{io, ops::Range, os::fd::OwnedFd, path::PathBuf, sync::Arc};

/// Identifies the build: parent and child must be the same one.
pub(super) fn build() -> String {
    format!("{VERSION} {COMMIT}")
}

/// A command from the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The first ask, which comes with the handle of the region.
    Open(Open),
    /// Creates an engine, which has this number from then on.
    Load { engine: u64, recipe: Recipe },
    /// Sets the work before and after an engine's network.
    Equip { engine: u64, ends: Ends },
    /// Sends a camera to an engine: three maps of `height` by `width` pixels.
    Camera { engine: u64, camera: u64, height: usize, width: usize, maps: Vec<TensorAt> },
    /// Runs a batch.
    Start { engine: u64, inputs: Vec<TensorAt>, setting: Option<Fitted>, reduced: bool },
    /// The engine frees memory and, if it `forgets`, also what it has set up for the batches so far.
    Rest { engine: u64, forgets: bool },
    /// Drops the engine.
    Unload { engine: u64 },
    /// Reports the device's free memory.
    Memory,
    /// Gives free memory back to the system.
    Trim,
    /// Checks that the device computes correctly.
    Canary,
}

/// What a child needs to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) build: String,
    /// The range of the region that it allocates for results that it copies,
    pub(super) results: Range<usize>,
    /// and the one for results that its device writes.
    pub(super) landing: Range<usize>,
    /// The ranges to pin for its device.
    pub(super) pinned: [Range<usize>; 2],
    /// The UUID of a GPU; none for the CPU.
    pub(super) gpu: Option<String>,
    /// The path of ONNX Runtime.
    pub(super) onnx_runtime: Option<PathBuf>,
}

/// A child's answer, unless it is an error.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Rested(Standing),
    Loaded { signature: Signature, depth: usize, standing: Standing },
    Landed { outputs: Vec<TensorAt>, standing: Standing },
    Memory { free: u64, total: u64 },
}

/// The properties of an engine that change while it runs.
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

/// Where data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// This many bytes after the start of the region.
    At(usize),
    /// This many bytes before the text.
    Before(usize),
}

/// The JSON text of a message, and the memory that holds it and the tensors copied in front of it.
#[derive(Debug)]
pub(super) struct Words {
    /// The memory that holds the text.
    region: Region,
    at: usize,
    bytes: usize,
}

impl Words {
    /// The text of a message: in `region`, or in the sheet that came with the message.
    ///
    /// # Errors
    /// If the sheet cannot be mapped.
    pub(super) fn of(message: &Message, sheet: Option<OwnedFd>, region: &Region) -> io::Result<Words> {
        let region = sheet.map_or_else(|| Ok(region.clone()), Region::open)?;
        Ok(Words { region, at: message.offset as usize, bytes: message.bytes as usize })
    }

    /// A copy of the text.
    ///
    /// # Errors
    /// If the text does not lie in that memory.
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        self.region.read(self.at, self.bytes)
    }

    /// Where a tensor lies that the text refers to: in the `common` region, or in the memory that holds the text.
    ///
    /// # Errors
    /// If that is before the start of the memory.
    pub(super) fn find<'a>(
        &'a self,
        place: Place,
        common: &'a Region,
    ) -> Result<(&'a Region, usize), String> {
        match place {
            Place::At(offset) => Ok((common, offset)),
            Place::Before(distance) => {
                let offset = self.at.checked_sub(distance);
                let offset = offset.ok_or_else(|| format!("{distance} bytes before byte {}", self.at))?;
                Ok((&self.region, offset))
            }
        }
    }
}

/// A tensor in shared memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TensorAt {
    pub(super) datatype: DataType,
    pub(super) shape: Vec<usize>,
    pub(super) place: Place,
    pub(super) bytes: usize,
}

/// Tensors to copy in front of the text, each at an offset that is aligned for any type.
#[derive(Debug, Default)]
pub(super) struct Copies<'a> {
    parts: Vec<(usize, &'a [u8])>,
    bytes: usize,
}

impl<'a> Copies<'a> {
    /// Where the receiver finds these tensors: in place if `lies` finds them in the region, in a copy otherwise.
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
                TensorAt { datatype, shape: shape.to_vec(), place, bytes: data.len() }
            })
            .collect();
        for tensor in &mut told {
            if let Place::Before(distance) = &mut tensor.place {
                *distance = copies.bytes - *distance;
            }
        }
        (copies, told)
    }

    /// Bytes that the copies take: the text follows them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the copies, then the text.
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

/// A request's parameters for a fit: a [`Setting`] with its camera replaced by an [`Eye`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fitted {
    model: FitModel,
    finder: Option<FinderOptions>,
    pub(super) eye: Eye,
}

/// Cameras with maps that a child keeps per engine. Beyond that, both sides forget the oldest.
pub(super) const CAMERAS_MAX: usize = 4;

/// A camera: its numbers as the kernels take them, or the id of one whose maps the child has.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Eye {
    Uniform(#[serde(with = "crate::bits")] [f32; 3]),
    Known(u64),
}

impl Eye {
    /// A camera without maps.
    pub(super) fn uniform(camera: &Camera) -> Eye {
        Eye::Uniform(camera.uniform_values())
    }

    /// The camera, or the id with which to look it up.
    pub(super) fn camera(self) -> Result<Arc<Camera>, u64> {
        match self {
            Eye::Uniform(values) => Ok(Arc::new(Camera::of_values(values))),
            Eye::Known(id) => Err(id),
        }
    }
}

impl Fitted {
    pub(super) fn of(setting: &Setting, eye: Eye) -> Fitted {
        Fitted { model: *setting.model(), finder: setting.finder().copied(), eye }
    }

    pub(super) fn setting(&self, camera: Arc<Camera>) -> Setting {
        let setting = Setting::new(self.model, camera);
        match self.finder {
            Some(options) => setting.finding(options),
            None => setting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::link::Kind, *};
    use crate::{
        engine::{
            Anchors, Best, ClassMap, PixelInput, Reduction,
            kernels::{
                Astigmatism, Border, Method, Psf, Threshold,
                postprocess::{BoxNumbers, ScoreActivation},
            },
        },
        image::{Color, Layout, Preprocess},
    };
    use serde::de::DeserializeOwned;

    /// The value as the other side receives it. Its JSON is the same again, so every bit has been kept.
    fn crossed<T: Serialize + DeserializeOwned>(said: &T) -> T {
        let words = serde_json::to_vec(said).expect("JSON");
        let heard = serde_json::from_slice(&words).expect("what was said");
        assert_eq!(serde_json::to_vec(&heard).expect("JSON"), words);
        heard
    }

    #[test]
    fn settings_come_back_as_they_went() {
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
            for strange in [0.1 + 0.2, f32::NAN, f32::INFINITY, -0.0] {
                let plain = Setting::new(model, Arc::new(Camera::of_values([0.3, strange, 1e-9])));
                let contrast = |threshold| Method::Contrast {
                    sigma_px: [1.3, strange],
                    wide: strange,
                    threshold,
                    radius: 3,
                };
                let methods = [
                    contrast(Threshold::Photons(strange)),
                    contrast(Threshold::Noise(strange)),
                    Method::NetGradient { minimum: strange },
                ];
                let finding = methods.into_iter().zip([Border::Drop, Border::Shift, Border::Shift]).map(
                    |(method, border)| {
                        plain.clone().finding(FinderOptions { method, box_side: 9, border, spots_max: 77 })
                    },
                );
                for setting in finding.chain([plain.clone()]) {
                    let heard = crossed(&Fitted::of(&setting, Eye::uniform(setting.camera())));
                    let camera = heard.eye.camera().expect("no maps");
                    assert_eq!(heard.setting(camera), setting);
                }
            }
        }
    }

    #[test]
    fn ends_and_signatures_come_back_as_they_went() {
        for strange in [0.1 + 0.2, f32::NAN, f32::NEG_INFINITY, -0.0] {
            let to = Preprocess {
                color: Color::Bgr,
                layout: Layout::Nhwc,
                scale: strange,
                mean: [1e-9, strange, -7.1],
                std: [0.229, 3.0, strange],
                ..Preprocess::new(1, 1)
            };
            let best = Best { output: 2, activation: ScoreActivation::Sigmoid, top: 7 };
            let map = ClassMap { output: 3, last: true, threshold: strange };
            let anchors = Anchors {
                output: 1,
                channels_first: true,
                objectness: false,
                format: BoxNumbers::Cxcywh,
                size: Some([640, 480]),
                score_min: strange,
            };
            for reduction in [Reduction::Classify(best), Reduction::Segment(map), Reduction::Detect(anchors)]
            {
                let (first, left_out) = (Some("x".to_owned()), vec!["loss".to_owned()]);
                let pixels = PixelInput::new(&to, true, false);
                let ends = Ends { pixels, reduction: Some(reduction), first, left_out };
                assert_eq!(format!("{:?}", crossed(&ends)), format!("{ends:?}"));
            }
        }
        assert_eq!(crossed(&Ends::default()), Ends::default());
        let signature = crate::engine::gauss_mle::signature();
        assert_eq!(crossed(&signature), signature);
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
        // As the receiver finds them, here in a sheet.
        let common = Region::new(1 << 16, 1).expect("memory");
        let (sheet, mut part) = Region::sheet(memory.len()).expect("memory");
        part[..memory.len()].copy_from_slice(&memory);
        let offset = (part.offset() + copies.bytes()) as u64;
        let message = Message { kind: Kind::Ask, id: 1, offset, bytes: 2 };
        let file = sheet.file().try_clone_to_owned().expect("a handle");
        let words = Words::of(&message, Some(file), &common).expect("mapped");
        assert_eq!(words.read().expect("in the sheet"), b"{}");
        for (tensor, data) in [(&told[0], &one[..]), (&told[2], &three)] {
            let (region, offset) = words.find(tensor.place, &common).expect("before the words");
            assert_eq!(region.read(offset, tensor.bytes).expect("in the sheet"), data);
        }
        let (region, offset) = words.find(told[1].place, &common).expect("there");
        assert!(std::ptr::eq(region, &raw const common) && offset == 4096);
        assert!(words.find(Place::Before(usize::MAX), &common).is_err());
    }
}
