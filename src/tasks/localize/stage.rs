//! From the bytes of a stack to ROIs that an engine fits, chunk by chunk, in memory that does not grow with the stack.
//!
//! A stack holds frames, in which spots are looked for and cut out, or it holds the ROIs themselves. Where a GPU fits, frames go
//! there as they are ([`Stager::whole`]): they are copied once, and the GPU looks for spots itself.

use super::{
    Schema, Settings,
    chunk::{Chunk, Posted, ROIS, Whole, cut_out},
};
use crate::{
    engine::{
        Setting,
        gauss_mle::frames::{FrameMemory, PIXELS_MAX},
        kernels::{Adu, RoiBuffer, SIDE, SpotFinder},
    },
    error::InferError,
    image::stack::{Charge, Format, Frames, MayHold, Options, Samples, StackInfo, StackReader},
};
use bytes::Bytes;

/// Pixels looked at after which [`Stager::step`] returns, whatever it found.
const PIXELS: usize = PIXELS_MAX;

/// Sides of frames that go whole to where they are fitted, px: what cameras have.
const WHOLE_SIDE_MAX: usize = 8192;

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
    /// With the number of spots that were left out of frames with too many, since ROIs were handed out last.
    Frames(Box<SpotFinder>, RoiBuffer, u64),
    Whole(Whole),
    /// The reader has them.
    Rois(Posted),
}

/// Turns the bytes of one stack into chunks.
pub struct Stager {
    reader: StackReader,
    settings: Settings,
    holds: Holds,
    whole: bool,
    memory: Option<FrameMemory>,
    source: Source,
    /// Only what it is has been seen of the first frame, which is still the reader's.
    opened: bool,
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
            whole: false,
            memory: None,
            source: Source::Open,
            opened: false,
            setting: None,
            finished: false,
        }
    }

    /// With `whole`, the engine looks for spots: chunks are whole frames, unless these are larger than any camera's.
    /// They are gathered in `memory`, as far as it has room for frames of their size.
    #[must_use]
    pub fn whole(self, whole: bool, memory: Option<FrameMemory>) -> Stager {
        Stager { whole, memory, ..self }
    }

    /// Has somebody say how much memory the stack may hold ([`StackReader::within`]).
    #[must_use]
    pub fn within(self, may_hold: MayHold) -> Stager {
        Stager { reader: self.reader.within(may_hold), ..self }
    }

    /// Has somebody asked for the memory in which frames come out ([`StackReader::charging`]).
    #[must_use]
    pub fn charging(self, charge: Charge) -> Stager {
        Stager { reader: self.reader.charging(charge), ..self }
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

    /// Memory that looking for spots takes, in bytes: known before the first frame is looked at, and the same from then on.
    pub fn bytes(&self) -> usize {
        match &self.source {
            Source::Frames(finder, ..) => finder.bytes(),
            Source::Open | Source::Whole(_) | Source::Rois(_) => 0,
        }
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
            if matches!(self.source, Source::Frames(..) | Source::Whole(_)) {
                schema.frame_size = Some([info.width, info.height]);
            }
            schema.frames = info.frames.and_then(|frames| u32::try_from(frames).ok());
            schema.axes = info.dimensions;
        }
        Ok(schema)
    }

    /// The size of a pixel that the file has stated so far, nm. What it states behind its first frame is not in the schema: units
    /// would be others where bytes come faster.
    pub fn pixel_nm(&self) -> Option<[f64; 2]> {
        self.info()?.pixel_size.map(|size| [size.x_nm, size.y_nm])
    }

    /// Reads on, as far as to the first frame the first time. With `hurry`, what was found is handed out although it does not fill a chunk.
    ///
    /// # Errors
    /// What is wrong with the stack from here on, or with the settings. What was found before it has been handed out.
    pub fn step(&mut self, hurry: bool) -> Result<Step, InferError> {
        let mut looked = 0;
        if std::mem::take(&mut self.opened)
            && let Some(first) = self.reader.last_frames()
        {
            look(&mut self.source, &first)?;
        }
        loop {
            if self.source.is_full() {
                return Ok(self.rest());
            }
            if looked >= PIXELS {
                return Ok(Step::Busy);
            }
            let opening = matches!(self.source, Source::Open);
            let wanted = match &self.source {
                Source::Open => 1,
                Source::Frames(..) => ROIS,
                Source::Whole(whole) => whole.room(),
                Source::Rois(posted) => ROIS - posted.count,
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
                // What the stack is can be asked for when its first frame was read, and that frame stays where it is: it may be large.
                self.begin()?;
                self.opened = true;
                // Whoever asks may see first whether there is memory for it.
                return Ok(Step::Busy);
            }
            look(&mut self.source, &frames)?;
        }
    }

    /// Decides what the frames are, when the first was read.
    fn begin(&mut self) -> Result<(), InferError> {
        let info = self.reader.info();
        let info = info.ok_or_else(|| InferError::Internal("a frame came without its size".into()))?;
        if let Some(size) = self.pixel_nm() {
            self.settings.suggest_pixel_nm(size);
        }
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
        let frame = (!is_rois).then_some([width, height]);
        let setting = self.settings.setting_of(frame).map_err(InferError::BadRequest)?;
        if is_rois && setting.camera().sensor().is_some() {
            return Err(InferError::BadRequest(CORNERS_NEEDED.into()));
        }
        self.source = if is_rois {
            self.settings.suit_rois(width).map_err(InferError::BadRequest)?;
            self.reader.gather(ROIS * width * height);
            Source::Rois(Posted { side: width, first: 0, count: 0 })
        } else {
            let finder =
                self.settings.finder(setting.camera(), width, height).map_err(InferError::BadRequest)?;
            if self.whole && width.max(height) <= WHOLE_SIDE_MAX {
                let frames_max = (PIXELS_MAX / (width * height)).clamp(1, ROIS);
                self.source = Source::Whole(Whole::new([width, height], frames_max, self.memory.take()));
                self.setting = Some(setting.finding(*finder.options()));
                return Ok(());
            }
            let found = RoiBuffer::new(self.settings.box_px());
            Source::Frames(
                Box::new(finder),
                found.map_err(|error| InferError::BadRequest(error.to_string()))?,
                0,
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
            Source::Frames(_, found, over) => cut_out(found, std::mem::take(over), setting),
            Source::Whole(whole) => whole.chunk(setting),
            Source::Rois(posted) => posted.chunk(self.reader.take(), setting),
            Source::Open => unreachable!("nothing is found before it is known where"),
        })
    }
}

impl Source {
    /// Whether what was not handed out is a chunk.
    fn is_full(&self) -> bool {
        match self {
            Source::Whole(whole) => whole.room() == 0,
            other => other.found() >= ROIS,
        }
    }

    /// What was not handed out: ROIs, or frames.
    fn found(&self) -> usize {
        match self {
            Source::Open => 0,
            Source::Frames(_, found, _) => found.len(),
            Source::Whole(whole) => whole.count,
            Source::Rois(posted) => posted.count,
        }
    }
}

/// Looks for spots in frames; counts ROIs, which lie with their reader as they are.
fn look(source: &mut Source, frames: &Frames<'_>) -> Result<(), InferError> {
    let (finder, found, over) = match source {
        Source::Frames(finder, found, over) => (finder, found, over),
        Source::Whole(whole) => {
            whole.add(frames);
            return Ok(());
        }
        Source::Rois(posted) => {
            posted.count += frames.count;
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
        *over += finder.over_max() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod rows;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{DataType, staging::Memory},
        image::stack::{Limits, Raw, SampleType},
    };

    const LIMITS: Limits = Limits {
        side_max: 4096,
        frame_pixels_max: 1 << 24,
        frames_max: 10,
        memory_bytes_max: 1 << 26,
        spill_bytes_max: 0,
    };

    #[test]
    fn what_is_of_frames_alone_is_refused_where_a_stack_holds_rois() {
        let first = |said: &[(&str, &str)], side: u32| {
            let mut settings = Settings::default();
            said.iter().for_each(|(key, value)| settings.set(key, value).unwrap());
            settings.heeds(said).unwrap();
            let raw = Raw { width: side, height: side, sample: SampleType::U16, frames: Some(2) };
            let options = Options { limits: LIMITS, spill_folder: None, file_alone: true };
            let mut stager = Stager::new(settings, Holds::Auto, Some(Format::Raw(raw)), options);
            stager.push(vec![1; 4 * (side * side) as usize].into()).unwrap();
            stager.finish();
            stager.step(false).map(drop).map_err(|error| error.to_string())
        };
        for (key, value) in [("noise_min", "8"), ("spots_max", "1"), ("method", "contrast"), ("box_px", "9")]
        {
            let told = first(&[("box_px", "7"), ("sigma_px", "1.2"), (key, value)], 7).unwrap_err();
            assert!(
                told.starts_with(&format!(
                    "{key} is of finding spots in frames, but these are ROIs of 7 x 7 px"
                )),
                "{told}"
            );
            assert_eq!(first(&[(key, value)], 64), Ok(()), "{key} of frames");
        }
        assert_eq!(first(&[("box_px", "7"), ("psf", "xynbs")], 7), Ok(()));
    }

    #[test]
    fn frames_are_gathered_where_a_device_copies_from_unless_one_is_too_large_for_that() {
        let memory = FrameMemory::new(Memory::Plain).unwrap();
        let check = |[width, height]: [u32; 2], count: usize, pieces: &[usize], gathered: bool| {
            let raw = Raw { width, height, sample: SampleType::U16, frames: Some(count as u64) };
            let options = Options { limits: LIMITS, spill_folder: None, file_alone: true };
            let stager = Stager::new(Settings::default(), Holds::Frames, Some(Format::Raw(raw)), options);
            let mut stager = stager.whole(true, Some(memory.clone()));
            let values: Vec<u16> = (0..width as usize * height as usize * count).map(|i| i as u16).collect();
            stager.push(Bytes::from(bytemuck::cast_slice(&values).to_vec())).unwrap();
            stager.finish();
            let mut chunks = Vec::new();
            loop {
                match stager.step(false).unwrap() {
                    Step::Chunk(chunk) => chunks.push(chunk),
                    Step::Busy => {}
                    Step::Wait | Step::End => break,
                }
            }
            let counts: Vec<usize> = chunks.iter().map(|chunk| chunk.items).collect();
            assert_eq!(counts, pieces);
            let got: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.inputs[0].data.to_vec()).collect();
            assert!(got == bytemuck::cast_slice::<_, u8>(&values), "the frames, in their order");
            let low = memory.of(DataType::Uint16).unwrap();
            for chunk in &chunks {
                assert_eq!(low.has(&chunk.inputs[0]), gathered);
            }
        };
        check([1024, 1024], 6, &[4, 2], true);
        check([2048, 2049], 1, &[1], false);
    }
}
