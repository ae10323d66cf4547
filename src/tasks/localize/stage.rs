//! From the bytes of a stack to ROIs that an engine fits, chunk by chunk, in memory that does not grow with the stack.
//!
//! A stack holds frames, in which spots are looked for and cut out, or it holds the ROIs themselves. What an engine gave
//! for a chunk becomes rows of a [`Table`] again ([`Origins::table`]).

use super::{Schema, Settings, Table};
use crate::{
    engine::{
        DataType, Setting, Tensor,
        gauss_mle::Columns,
        kernels::{Adu, RoiBuffer, SIDE, SpotFinder},
        tensor::bytes_of,
    },
    error::InferError,
    image::stack::{Format, Frames, Options, Samples, StackInfo, StackReader},
};
use bytes::Bytes;

/// ROIs after which a chunk is handed on: those of the largest batch, where the manifest does not say otherwise, so that a chunk is
/// a batch and is not copied into one.
const ROIS: usize = 10_000;
/// Pixels looked at after which [`Stager::step`] returns, whatever it found: about 10 ms of work.
const PIXELS: usize = 1 << 22;

/// Why ROIs alone are refused where a camera has maps.
pub const CORNERS_NEEDED: &str = "the camera has a value for each pixel of its sensor, so ROIs need to say where they lie on it: \
                                  send them as the tensors rois and corners to /v2/models/{model}/infer, or give offset, \
                                  gain and read_noise as numbers";

/// What a stack's frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holds {
    /// ROIs if they are as small and square as ROIs are, else camera frames.
    #[default]
    Auto,
    /// Camera frames.
    Frames,
    /// One ROI each.
    Rois,
}

impl Holds {
    /// By the names `auto`, `frames` and `rois`.
    pub fn from_name(name: &str) -> Option<Holds> {
        match name {
            "auto" => Some(Holds::Auto),
            "frames" => Some(Holds::Frames),
            "rois" => Some(Holds::Rois),
            _ => None,
        }
    }
}

/// ROIs to fit: inputs of the engine in its order, and where they come from.
#[derive(Debug)]
pub struct Chunk {
    /// `rois` and `corners`.
    pub inputs: Vec<Tensor>,
    /// How many.
    pub items: usize,
    /// What is fitted.
    pub setting: Setting,
    /// Where each comes from.
    pub origins: Origins,
}

/// Where the ROIs of a chunk come from.
#[derive(Debug)]
pub struct Origins {
    frames: Vec<u32>,
    corners: Vec<[u32; 2]>,
    scores: Vec<f32>,
}

/// What came of a [step](Stager::step).
#[derive(Debug)]
pub enum Step {
    /// ROIs to fit.
    Chunk(Chunk),
    /// Nothing to fit yet; ask again.
    Busy,
    /// Nothing before more bytes are there.
    Wait,
    /// That was all.
    End,
}

/// Where ROIs are found.
enum Source {
    /// Not known before the first frame.
    Open,
    Frames(Box<SpotFinder>, RoiBuffer),
    Rois,
}

/// Turns the bytes of one stack into chunks.
pub struct Stager {
    reader: StackReader,
    settings: Settings,
    holds: Holds,
    source: Source,
    setting: Option<Setting>,
    finished: bool,
}

impl std::fmt::Debug for Stager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stager").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl Stager {
    /// A stager for a stack of the given format, or of the one that its first bytes show.
    pub fn new(settings: Settings, holds: Holds, format: Option<Format>, options: Options) -> Stager {
        Stager {
            reader: StackReader::new(format, options),
            settings,
            holds,
            source: Source::Open,
            setting: None,
            finished: false,
        }
    }

    /// Takes the next bytes of the stack.
    ///
    /// # Errors
    /// They cannot be kept.
    pub fn push(&mut self, bytes: Bytes) -> Result<(), InferError> {
        Ok(self.reader.push(bytes)?)
    }

    /// There are no more bytes.
    pub fn finish(&mut self) {
        self.finished = true;
        self.reader.finish();
    }

    /// What the stack says of itself, once its first frame was read.
    pub fn info(&self) -> Option<StackInfo> {
        self.reader.info()
    }

    /// Frames that were read.
    pub fn frames(&self) -> u64 {
        self.reader.frames()
    }

    /// What the rows of this stack's tables are about; with the first chunk at the latest, or at the end.
    ///
    /// # Errors
    /// Settings that do not go together.
    pub fn schema(&self) -> Result<Schema, String> {
        let mut schema = self.settings.schema(!matches!(self.source, Source::Rois))?;
        if let Some(info) = self.info() {
            if matches!(self.source, Source::Frames(..)) {
                schema.frame_size = Some([info.width, info.height]);
            }
            schema.frames = info.frames.and_then(|frames| u32::try_from(frames).ok());
        }
        Ok(schema)
    }

    /// Reads on.
    ///
    /// # Errors
    /// What is wrong with the stack from here on, or with the settings. What was found before it has been handed out.
    pub fn step(&mut self) -> Result<Step, InferError> {
        let mut looked = 0;
        loop {
            let opening = matches!(self.source, Source::Open);
            let frames = match self.reader.next_frames(if opening { 1 } else { ROIS }) {
                Ok(Some(frames)) => frames,
                Ok(None) => return Ok(self.rest()),
                // First what was found before the stack went wrong: the reader says the same again.
                Err(error) => {
                    return match self.rest() {
                        Step::Chunk(chunk) => Ok(Step::Chunk(chunk)),
                        _ => Err(error.into()),
                    };
                }
            };
            looked += frames.width as usize * frames.height as usize * frames.count;
            let chunk = if opening {
                // What the stack is can be asked for when its first frame was read, and that frame is the reader's.
                let first = Owned::of(&frames);
                self.begin()?;
                look(&mut self.source, self.setting.as_ref(), &first.frames())?
            } else {
                look(&mut self.source, self.setting.as_ref(), &frames)?
            };
            if let Some(chunk) = chunk {
                return Ok(Step::Chunk(chunk));
            }
            if matches!(&self.source, Source::Frames(_, found) if found.len() >= ROIS) {
                return Ok(self.rest());
            }
            if looked >= PIXELS {
                return Ok(Step::Busy);
            }
        }
    }

    /// Decides what the frames are, when the first was read.
    fn begin(&mut self) -> Result<(), InferError> {
        let info = self.reader.info();
        let info = info.ok_or_else(|| InferError::Internal("a frame came without its size".into()))?;
        if let Some(size) = info.pixel_size {
            self.settings.suggest_pixel_nm([size.x_nm, size.y_nm]);
        }
        let setting = self.settings.setting().map_err(InferError::BadRequest)?;
        let (width, height) = (info.width as usize, info.height as usize);
        let small = width == height && SIDE.contains(&width) && width % 2 == 1;
        let is_rois = match self.holds {
            Holds::Rois if !small => {
                return Err(InferError::BadRequest(format!(
                    "ROIs of {width} x {height} px: they must be square with an odd side from {} to {}",
                    SIDE.start(),
                    SIDE.end()
                )));
            }
            Holds::Rois => true,
            Holds::Frames => false,
            Holds::Auto => small,
        };
        if is_rois && setting.camera().sensor().is_some() {
            return Err(InferError::BadRequest(CORNERS_NEEDED.into()));
        }
        self.source = if is_rois {
            Source::Rois
        } else {
            let finder =
                self.settings.finder(setting.camera(), width, height).map_err(InferError::BadRequest)?;
            let found = RoiBuffer::new(self.settings.box_px());
            Source::Frames(
                Box::new(finder),
                found.map_err(|error| InferError::BadRequest(error.to_string()))?,
            )
        };
        self.setting = Some(setting);
        Ok(())
    }

    /// What was found and not handed out.
    fn rest(&mut self) -> Step {
        if let (Source::Frames(_, found), Some(setting)) = (&mut self.source, &self.setting)
            && !found.is_empty()
        {
            let (side, items) = (found.rois().side(), found.len());
            let data: Bytes = found.to_le_bytes().into();
            let wide = data.len() / (side * side * items) == size_of::<f32>();
            let origins = Origins {
                frames: found.frames().to_vec(),
                corners: found.corners().to_vec(),
                scores: found.scores().to_vec(),
            };
            found.clear();
            let datatype = if wide { DataType::Fp32 } else { DataType::Uint16 };
            return Step::Chunk(chunk(datatype, side, data, origins, setting));
        }
        if self.finished { Step::End } else { Step::Wait }
    }
}

/// One frame apart from its reader.
struct Owned {
    first: u64,
    size: [u32; 2],
    values: Values,
}

enum Values {
    U16(Vec<u16>),
    F32(Vec<f32>),
}

impl Owned {
    fn of(frames: &Frames<'_>) -> Owned {
        let values = match frames.samples {
            Samples::U16(values) => Values::U16(values.to_vec()),
            Samples::F32(values) => Values::F32(values.to_vec()),
        };
        Owned { first: frames.first, size: [frames.width, frames.height], values }
    }

    fn frames(&self) -> Frames<'_> {
        let samples = match &self.values {
            Values::U16(values) => Samples::U16(values),
            Values::F32(values) => Samples::F32(values),
        };
        let [width, height] = self.size;
        Frames { first: self.first, count: 1, width, height, samples }
    }
}

/// Looks for spots in frames; hands ROIs on as they are.
fn look(
    source: &mut Source,
    setting: Option<&Setting>,
    frames: &Frames<'_>,
) -> Result<Option<Chunk>, InferError> {
    let (finder, found) = match (source, setting) {
        (Source::Frames(finder, found), _) => (finder, found),
        (Source::Rois, Some(setting)) => return Ok(Some(rois(frames, setting))),
        _ => return Err(InferError::Internal("frames came before what they are".into())),
    };
    let pixels = frames.width as usize * frames.height as usize;
    for index in 0..frames.count {
        let adu = match frames.samples {
            Samples::U16(values) => Adu::U16(&values[index * pixels..][..pixels]),
            Samples::F32(values) => Adu::F32(&values[index * pixels..][..pixels]),
        };
        let number = u32::try_from(frames.first + index as u64).unwrap_or(u32::MAX);
        let spots = finder.find(adu);
        let cut = spots.and_then(|spots| found.cut(adu, frames.width as usize, number, spots));
        cut.map_err(|error| InferError::BadRequest(error.to_string()))?;
    }
    Ok(None)
}

/// ROIs that were posted as such: each is a frame of its own.
fn rois(frames: &Frames<'_>, setting: &Setting) -> Chunk {
    let (datatype, data) = match frames.samples {
        Samples::U16(values) => (DataType::Uint16, bytes_of(values.to_vec())),
        Samples::F32(values) => (DataType::Fp32, bytes_of(values.to_vec())),
    };
    let number = |index: usize| u32::try_from(frames.first + index as u64).unwrap_or(u32::MAX);
    let origins = Origins {
        frames: (0..frames.count).map(number).collect(),
        corners: vec![[0; 2]; frames.count],
        scores: Vec::new(),
    };
    chunk(datatype, frames.width as usize, data, origins, setting)
}

fn chunk(datatype: DataType, side: usize, data: Bytes, origins: Origins, setting: &Setting) -> Chunk {
    let items = origins.frames.len();
    let corners: Vec<u32> = origins.corners.as_flattened().to_vec();
    Chunk {
        inputs: vec![
            Tensor { datatype, shape: vec![items, side, side], data },
            Tensor { datatype: DataType::Uint32, shape: vec![items, 2], data: bytes_of(corners) },
        ],
        items,
        setting: setting.clone(),
        origins,
    }
}

impl Origins {
    /// Those of ROIs that a caller names: frames and corners are zeros where they are not given.
    ///
    /// # Panics
    /// If they are given and not one for each of `items`: to be checked before.
    pub fn of(items: usize, frames: Option<Vec<u32>>, corners: Option<Vec<[u32; 2]>>) -> Origins {
        let frames = frames.unwrap_or_else(|| vec![0; items]);
        let corners = corners.unwrap_or_else(|| vec![[0; 2]; items]);
        assert!(frames.len() == items && corners.len() == items, "one frame and one corner for each ROI");
        Origins { frames, corners, scores: Vec::new() }
    }

    /// What the engine gave for the chunk, as rows: positions count from the frame's first pixel.
    ///
    /// # Errors
    /// Outputs that are not those of the fitter: our own fault.
    pub fn table(self, outputs: &[Tensor], schema: &Schema, setting: &Setting) -> Result<Table, String> {
        let columns = Columns::of(setting.model().psf());
        let items = self.frames.len();
        let (Some(fits), Some(codes)) = (outputs.first().and_then(Tensor::to_f32), outputs.get(1)) else {
            return Err("the fitter gave no results".into());
        };
        if fits.len() != items * columns.count() || codes.data.len() != 2 * items {
            return Err(format!("the fitter gave {} numbers for {items} ROIs", fits.len()));
        }
        let column = |index: usize| {
            fits.get(index..)
                .unwrap_or_default()
                .iter()
                .step_by(columns.count())
                .copied()
                .collect::<Vec<f32>>()
        };
        let mut table = Table::new(schema);
        let Columns { parameters, covariances } = columns;
        table.theta = (0..parameters).map(column).collect();
        table.errors = (parameters..2 * parameters).map(column).collect();
        table.covariances = (2 * parameters..2 * parameters + covariances).map(column).collect();
        table.log_likelihood_ratio = column(2 * parameters + covariances);
        table.p_value = column(2 * parameters + covariances + 1);
        for (axis, positions) in table.theta.iter_mut().take(2).enumerate() {
            for (position, corner) in positions.iter_mut().zip(&self.corners) {
                *position += corner[axis] as f32;
            }
        }
        table.iterations = codes.data.iter().step_by(2).copied().collect();
        table.status = codes.data.iter().skip(1).step_by(2).copied().collect();
        table.frame = self.frames;
        if schema.score.is_some() {
            table.score = self.scores;
        }
        Ok(table)
    }
}
