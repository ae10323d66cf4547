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

/// Where ROIs are found, and those that are found and not handed out.
enum Source {
    /// Not known before the first frame.
    Open,
    Frames(Box<SpotFinder>, RoiBuffer),
    Rois(Gathered),
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
        let mut schema = self.settings.schema(!matches!(self.source, Source::Rois(_)))?;
        if let Some(info) = self.info() {
            if matches!(self.source, Source::Frames(..)) {
                schema.frame_size = Some([info.width, info.height]);
            }
            schema.frames = info.frames.and_then(|frames| u32::try_from(frames).ok());
        }
        Ok(schema)
    }

    /// Reads on. With `hurry`, what was found is handed out although it does not fill a chunk.
    ///
    /// # Errors
    /// What is wrong with the stack from here on, or with the settings. What was found before it has been handed out.
    pub fn step(&mut self, hurry: bool) -> Result<Step, InferError> {
        let mut looked = 0;
        loop {
            let opening = matches!(self.source, Source::Open);
            let wanted = match &self.source {
                Source::Open => 1,
                Source::Frames(..) => ROIS,
                Source::Rois(gathered) => ROIS - gathered.count,
            };
            let frames = match self.reader.next_frames(wanted) {
                Ok(Some(frames)) => frames,
                Ok(None) if hurry || self.finished => return Ok(self.rest()),
                Ok(None) => return Ok(Step::Wait),
                // First what was found before the stack went wrong: the reader says the same again.
                Err(error) => {
                    return match self.rest() {
                        Step::Chunk(chunk) => Ok(Step::Chunk(chunk)),
                        _ => Err(error.into()),
                    };
                }
            };
            looked += frames.width as usize * frames.height as usize * frames.count;
            if opening {
                // What the stack is can be asked for when its first frame was read, and that frame is the reader's.
                let first = Owned::of(&frames);
                self.begin()?;
                look(&mut self.source, &first.frames())?;
            } else {
                look(&mut self.source, &frames)?;
            }
            if self.source.found() >= ROIS {
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
            Source::Rois(Gathered::default())
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
        let Some(setting) = self.setting.as_ref().filter(|_| self.source.found() > 0) else {
            return if self.finished { Step::End } else { Step::Wait };
        };
        Step::Chunk(match &mut self.source {
            Source::Frames(_, found) => cut_out(found, setting),
            Source::Rois(gathered) => std::mem::take(gathered).chunk(setting),
            Source::Open => unreachable!("nothing is found before it is known where"),
        })
    }
}

impl Source {
    /// ROIs that were not handed out.
    fn found(&self) -> usize {
        match self {
            Source::Open => 0,
            Source::Frames(_, found) => found.len(),
            Source::Rois(gathered) => gathered.count,
        }
    }
}

/// The ROIs that were found in frames, of which there are some.
fn cut_out(found: &mut RoiBuffer, setting: &Setting) -> Chunk {
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
    chunk(datatype, side, data, origins, setting)
}

/// ROIs that were posted as such: each is a frame of its own.
#[derive(Default)]
struct Gathered {
    first: u64,
    side: usize,
    count: usize,
    values: Values,
}

impl Gathered {
    fn add(&mut self, frames: &Frames<'_>) {
        if self.count == 0 {
            (self.first, self.side) = (frames.first, frames.width as usize);
            self.values = match frames.samples {
                Samples::U16(_) => Values::U16(Vec::with_capacity(ROIS * self.side * self.side)),
                Samples::F32(_) => Values::F32(Vec::with_capacity(ROIS * self.side * self.side)),
            };
        }
        match (&mut self.values, frames.samples) {
            (Values::U16(values), Samples::U16(more)) => values.extend_from_slice(more),
            (Values::F32(values), Samples::F32(more)) => values.extend_from_slice(more),
            _ => unreachable!("all frames of a stack are of one type"),
        }
        self.count += frames.count;
    }

    fn chunk(self, setting: &Setting) -> Chunk {
        let (datatype, data) = match self.values {
            Values::U16(values) => (DataType::Uint16, bytes_of(values)),
            Values::F32(values) => (DataType::Fp32, bytes_of(values)),
        };
        let number = |index: usize| u32::try_from(self.first + index as u64).unwrap_or(u32::MAX);
        let origins = Origins {
            frames: (0..self.count).map(number).collect(),
            corners: vec![[0; 2]; self.count],
            scores: Vec::new(),
        };
        chunk(datatype, self.side, data, origins, setting)
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

impl Default for Values {
    fn default() -> Values {
        Values::U16(Vec::new())
    }
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

/// Looks for spots in frames; gathers ROIs as they are.
fn look(source: &mut Source, frames: &Frames<'_>) -> Result<(), InferError> {
    let (finder, found) = match source {
        Source::Frames(finder, found) => (finder, found),
        Source::Rois(gathered) => {
            gathered.add(frames);
            return Ok(());
        }
        Source::Open => return Err(InferError::Internal("frames came before what they are".into())),
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
    Ok(())
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
        let (Some(fits), Some(codes)) = (outputs.first(), outputs.get(1)) else {
            return Err("the fitter gave no results".into());
        };
        let fits = fits.as_f32().ok_or("the fitter gave no numbers")?;
        if fits.len() != items * columns.count() || codes.data.len() != 2 * items {
            return Err(format!("the fitter gave {} numbers for {items} ROIs", fits.len()));
        }
        let mut turned = turn(&fits, columns.count(), items).into_iter();
        let mut take = |count: usize| turned.by_ref().take(count).collect::<Vec<_>>();
        let mut table = Table::new(schema);
        let Columns { parameters, covariances } = columns;
        table.theta = take(parameters);
        table.errors = take(parameters);
        table.covariances = take(covariances);
        [table.log_likelihood_ratio, table.p_value] =
            [turned.next(), turned.next()].map(Option::unwrap_or_default);
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

/// Rows of numbers as columns; a few rows at a time, so that each is read from memory once.
fn turn(rows: &[f32], columns: usize, items: usize) -> Vec<Vec<f32>> {
    const ROWS: usize = 64;
    let mut turned: Vec<Vec<f32>> = (0..columns).map(|_| Vec::with_capacity(items)).collect();
    for rows in rows.chunks(ROWS * columns) {
        for (index, column) in turned.iter_mut().enumerate() {
            column.extend(rows.iter().skip(index).step_by(columns));
        }
    }
    turned
}
