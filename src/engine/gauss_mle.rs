//! The fitter of Gaussian spots as an engine: ROIs in, parameters and their errors out.
//!
//! | tensor | type and shape | |
//! |---|---|---|
//! | `rois` | UINT16 or FP32 `[n, b, b]` | ADU; rows are y |
//! | `corners` | UINT32 `[n, 2]` | x and y of each ROI's first pixel on the sensor |
//! | `fits` | FP32 `[n, k]` | the columns of [`Columns`] |
//! | `codes` | UINT8 `[n, 2]` | iterations, and the code of [`FitStatus`](super::kernels::FitStatus) |
//!
//! The model to fit comes with the batch ([`Setting`]), so that requests may ask for another one than the default. A batch may also
//! consist of camera frames, in which the engine finds the spots itself: [`frames`].

mod batch;
mod crew;
pub mod frames;

pub use super::kernels::Columns;
use super::{
    DataType, Dim, Engine, EngineError, Flight, Signature, Tensor, TensorSpec, TensorView,
    kernels::{Adu, Camera, FinderOptions, FitModel, InstructionSet, Rois, on_sensor},
};
use batch::RoiParts;
use bytemuck::AnyBitPattern;
use bytes::Bytes;
use crew::Crew;
use frames::FrameParts;
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

/// The fewest ROIs that a thread fits in one go: enough to refill its lanes many times. Parts of 64 take up to a third longer.
const PART_MIN: usize = 128;

/// The most: what a part reads and writes then fits the core's first or second cache.
const PART_MAX: usize = 512;

/// Parts per thread of a batch, unless they would be too small: a thread that is done then waits for no more than one part.
const PARTS_EACH: usize = 4;

/// ROIs for which it is worth waking a thread: 200 ROIs took 244 µs through HTTP on a virtual machine with two threads, and 211 µs
/// with one.
const WORTH_WAKING: usize = 256;

/// From this many ROIs on, the next batch may overlap a batch: the time to wake whoever waits for it is then negligible.
const WORTH_OVERLAPPING: usize = 4096;

/// ROIs of a part, if threads share `count` ROIs.
fn part_of(count: usize, threads: usize) -> usize {
    const LANES_MAX: usize = 16;
    match threads.min(count / WORTH_WAKING) {
        0 | 1 => PART_MAX,
        threads => count.div_ceil(PARTS_EACH * threads).next_multiple_of(LANES_MAX).clamp(PART_MIN, PART_MAX),
    }
}

/// A request's parameters for a fit: the model, the camera and, if spots are to be found first, the finder's options. Two settings
/// are equal if all of these are; cameras with maps must be the same object.
#[derive(Debug, Clone)]
pub struct Setting {
    name: Arc<str>,
    model: FitModel,
    camera: Arc<Camera>,
    finder: Option<Box<FinderOptions>>,
}

impl Setting {
    /// A setting with this model and camera.
    pub fn new(model: FitModel, camera: Arc<Camera>) -> Setting {
        let camera_name = match camera.sensor() {
            // Maps belong to a model: a camera is identified by its address.
            Some(_) => format!("maps at {:p}", Arc::as_ptr(&camera)),
            None => format!("{camera:?}"),
        };
        Setting { name: format!("{model:?} {camera_name}").into(), model, camera, finder: None }
    }

    /// The same for batches of whole frames ([`frames`]), with these options for finding spots.
    #[must_use]
    pub fn finding(self, options: FinderOptions) -> Setting {
        Setting { name: format!("{} {options:?}", self.name).into(), finder: Some(Box::new(options)), ..self }
    }

    /// The model to fit.
    pub fn model(&self) -> &FitModel {
        &self.model
    }

    /// The camera that took the picture.
    pub fn camera(&self) -> &Arc<Camera> {
        &self.camera
    }

    /// The options for finding spots, if batches are whole frames.
    pub fn finder(&self) -> Option<&FinderOptions> {
        self.finder.as_deref()
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.name == other.name
    }
}

impl Eq for Setting {}

impl Hash for Setting {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// The fitter on the CPU.
pub struct GaussMle {
    signature: Signature,
    set: InstructionSet,
    crew: Crew,
}

impl GaussMle {
    /// A fitter on `threads` threads, with the widest instructions that the machine has.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> Result<GaussMle, String> {
        Ok(GaussMle { signature: signature(), set: InstructionSet::detect(), crew: Crew::new(threads)? })
    }
}

/// The inputs and outputs of every fitter. ROIs may also be UINT16.
pub fn signature() -> Signature {
    let spec = |name: &str, datatype, shape: &[Dim]| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: shape.to_vec(),
    };
    Signature {
        platform: "ocelli_gauss_mle".into(),
        defaulted: Vec::new(),
        unshaped: Vec::new(),
        left_out: Vec::new(),
        inputs: vec![
            spec("rois", DataType::Fp32, &[Dim::Free; 3]),
            spec("corners", DataType::Uint32, &[Dim::Free, Dim::Fixed(2)]),
        ],
        outputs: vec![
            spec("fits", DataType::Fp32, &[Dim::Free; 2]),
            spec("codes", DataType::Uint8, &[Dim::Free, Dim::Fixed(2)]),
        ],
    }
}

impl Engine for GaussMle {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn depth(&self) -> usize {
        Crew::DEPTH
    }

    fn start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError> {
        if let Some((setting, options)) = setting.and_then(|setting| Some((setting, setting.finder()?))) {
            let frames = FrameParts::new(inputs, setting, options, self.set, self.crew.threads())?;
            return self.crew.begin(frames, true);
        }
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let (rois, setting) = asked(&views, setting)?;
        let (count, part) = (rois.len(), part_of(rois.len(), self.crew.threads()));
        let parts = RoiParts::new(inputs, setting.clone(), self.set, count, part);
        self.crew.begin(parts, count >= WORTH_OVERLAPPING)
    }
}

/// Checks a batch: returns its ROIs and its setting.
pub(super) fn asked<'a, 's>(
    inputs: &[TensorView<'a>],
    setting: Option<&'s Setting>,
) -> Result<(Rois<'a>, &'s Setting), EngineError> {
    let wrong = |what: String| EngineError::Input(what);
    let Some(setting) = setting else {
        return Err(wrong("no setting says what is to be fitted".to_owned()));
    };
    let rois = rois_of(inputs)?;
    // Checked for the whole batch, so that a message numbers the ROI correctly.
    on_sensor(&setting.camera, rois).map_err(|error| wrong(error.to_string()))?;
    Ok((rois, setting))
}

/// The ROIs of a batch; not checked against the sensor.
fn rois_of<'a>(inputs: &[TensorView<'a>]) -> Result<Rois<'a>, EngineError> {
    let wrong = |what: String| EngineError::Input(what);
    let [rois, corners] = inputs else {
        return Err(wrong(format!("{} inputs, expected rois and corners", inputs.len())));
    };
    let [_, side, width] = rois.shape[..] else {
        return Err(wrong(format!("rois have shape {:?}, expected [n, b, b]", rois.shape)));
    };
    if side != width {
        return Err(wrong(format!("rois are {width} x {side} px, expected squares")));
    }
    let adu = match rois.datatype {
        DataType::Uint16 => Adu::U16(values(rois.data)?),
        DataType::Fp32 => Adu::F32(values(rois.data)?),
        other => return Err(wrong(format!("rois are {other}, expected UINT16 or FP32"))),
    };
    Rois::new(adu, side, Some(values(corners.data)?)).map_err(|error| wrong(error.to_string()))
}

/// The values of a batch. Empty data need not be aligned.
fn values<T: AnyBitPattern>(data: &[u8]) -> Result<&[T], EngineError> {
    let values = if data.is_empty() { Ok(&[][..]) } else { bytemuck::try_cast_slice(data) };
    values.map_err(|_| EngineError::Device("a batch that is not aligned".to_owned()))
}

/// The outputs for `count` ROIs: rows of [`Columns`], and codes.
pub(super) fn outputs(columns: Columns, count: usize, rows: Bytes, codes: Bytes) -> Vec<Tensor> {
    vec![
        Tensor { datatype: DataType::Fp32, shape: vec![count, columns.count()], data: rows },
        Tensor { datatype: DataType::Uint8, shape: vec![count, 2], data: codes },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::Psf;

    /// A spot of `photons` on background 2, in the centre of 7 x 7 px, without noise.
    fn spot(photons: f32) -> Vec<f32> {
        let mean = |edge: f32| 0.5 * (1.0 + libm_erf(edge / (1.3 * std::f32::consts::SQRT_2)));
        let axis: Vec<f32> = (-3..=3).map(|c| mean(c as f32 + 0.5) - mean(c as f32 - 0.5)).collect();
        axis.iter().flat_map(|y| axis.iter().map(move |x| 2.0 + photons * x * y)).collect()
    }

    /// erf by its Maclaurin series: slow, exact, and independent of the kernels.
    fn libm_erf(x: f32) -> f32 {
        let x = f64::from(x);
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        (sum * 2.0 / std::f64::consts::PI.sqrt()) as f32
    }

    fn setting(psf: Psf) -> Setting {
        Setting::new(FitModel::new(psf, [1.0; 2]).unwrap(), Arc::new(Camera::ideal()))
    }

    fn run(threads: usize, count: usize, setting: &Setting) -> (Vec<f32>, Vec<u8>) {
        let rois: Vec<f32> = (0..count).flat_map(|i| spot(1000.0 + i as f32)).collect();
        let corners = vec![[0_u32; 2]; count];
        let inputs = [
            TensorView {
                datatype: DataType::Fp32,
                shape: vec![count, 7, 7],
                data: bytemuck::cast_slice(&rois),
            },
            TensorView {
                datatype: DataType::Uint32,
                shape: vec![count, 2],
                data: bytemuck::cast_slice(&corners),
            },
        ];
        let outputs = GaussMle::new(threads).unwrap().run(&inputs, Some(setting)).unwrap();
        (outputs[0].to_f32().unwrap(), outputs[1].data.to_vec())
    }

    #[test]
    fn rows_come_back_in_order_whatever_the_number_of_threads() {
        let setting = setting(Psf::Xynb { sigma_px: [1.3; 2] });
        let columns = Columns::of(setting.model().psf());
        let (one, codes) = run(1, 2000, &setting);
        assert_eq!(one, run(3, 2000, &setting).0);
        let worst = one
            .chunks(columns.count())
            .enumerate()
            .map(|(i, row)| (row[2] - 1000.0 - i as f32).abs())
            .fold(0.0, f32::max);
        println!("largest difference {worst} photons");
        assert!(worst < 0.5, "{worst}");
        assert!(codes.chunks(2).all(|code| code[1] == 0), "all converge");
    }

    #[test]
    fn a_batch_is_shared_evenly_by_however_many_threads_there_are() {
        for (count, threads, part) in [
            (10_000, 1, 512),
            (10_000, 2, 512),
            (10_000, 16, 160),
            (10_000, 64, 128),
            (1000, 2, 128),
            (300, 8, 512),
        ] {
            assert_eq!(part_of(count, threads), part, "{count} by {threads}");
        }
    }

    #[test]
    fn each_model_has_its_own_columns() {
        let fitted = setting(Psf::Xynbs { sigma_start_px: 1.0 });
        let (rows, _) = run(1, 1, &fitted);
        assert_eq!(rows.len(), 2 * 5 + 1 + 2);
        assert!((rows[4] - 1.3).abs() < 1e-3, "sigma {}", rows[4]);
    }

    #[test]
    fn nothing_to_fit_is_aligned_wherever_it_lies() {
        let bytes = [0_u64; 1];
        let nowhere = &bytemuck::cast_slice::<u64, u8>(&bytes)[1..1];
        let view = |datatype, shape: &[usize]| TensorView { datatype, shape: shape.to_vec(), data: nowhere };
        let fitted = setting(Psf::Xynb { sigma_px: [1.3; 2] });
        for datatype in [DataType::Uint16, DataType::Fp32] {
            let inputs = [view(datatype, &[0, 7, 7]), view(DataType::Uint32, &[0, 2])];
            let outputs = GaussMle::new(1).unwrap().run(&inputs, Some(&fitted)).unwrap();
            assert_eq!((outputs[0].shape[0], outputs[1].shape[0]), (0, 0));
            assert_eq!(frames::Frames::of(&inputs).unwrap().count, 0);
        }
    }

    #[test]
    fn settings_are_equal_when_they_say_the_same() {
        let of = |sigma| setting(Psf::Xynb { sigma_px: [sigma; 2] });
        assert_eq!(of(1.3), of(1.3));
        assert_ne!(of(1.3), of(1.2));
        assert_ne!(of(1.3), setting(Psf::Xynbs { sigma_start_px: 1.3 }));
    }

    #[test]
    fn what_cannot_be_fitted_is_an_error_that_names_the_field() {
        let mut engine = GaussMle::new(1).unwrap();
        let zeros = [0_u32; 64];
        let view = |shape: &[usize], datatype, bytes: usize| TensorView {
            datatype,
            shape: shape.to_vec(),
            data: &bytemuck::cast_slice(&zeros)[..bytes],
        };
        let corners = view(&[1, 2], DataType::Uint32, 8);
        let setting = setting(Psf::Xynb { sigma_px: [1.3; 2] });
        let mut check = |rois: TensorView<'_>, expected: &str| {
            let error = engine.run(&[rois, corners.clone()], Some(&setting)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(view(&[1, 4, 4], DataType::Uint16, 32), "box: 4 is not an odd number");
        check(view(&[1, 5, 3], DataType::Uint16, 30), "expected squares");
        check(view(&[1, 5, 5], DataType::Uint8, 25), "expected UINT16 or FP32");
    }
}
