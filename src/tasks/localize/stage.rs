//! From the bytes of a stack to ROIs for an engine to fit, chunk by chunk, in memory that does not grow with the stack.
//!
//! A stack holds frames, in which spots are found and cut out, or it holds the ROIs themselves. If a GPU fits, it gets whole frames
//! ([`Stager::whole`]): they are copied once, and the GPU finds the spots itself.

mod search;

use super::{
    Schema, Settings,
    chunk::{Chunk, Posted, ROIS, Whole},
    options::Words,
};
use crate::{
    engine::{
        Setting,
        gauss_mle::frames::{FrameMemory, PIXELS_MAX},
        kernels::SIDE,
    },
    error::InferError,
    image::stack::{Charge, Format, Frames, MayHold, Options, Received, StackInfo, StackReader, Tried},
};
use bytes::Bytes;
use search::Search;

/// How many pixels are examined before [`Stager::step`] returns, whatever it found.
const PIXELS: usize = PIXELS_MAX;

/// Every frame counts as at least this many pixels of work, however small it is.
const FRAME_PIXELS_MIN: usize = 256;

/// The longest side in px of frames that are passed whole to the fitting device: that of cameras.
const WHOLE_SIDE_MAX: usize = 8192;

/// Why ROIs without positions are refused if a camera has maps.
pub const CORNERS_NEEDED: &str = "the camera has a value for each pixel of its sensor, so ROIs need to say where they lie on it: \
                                  send them as the tensors rois and corners to /v2/models/{model}/infer, or give offset, \
                                  gain and read_noise as numbers";

/// What a stack's frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holds {
    /// ROIs, if the frames are as small and square as ROIs are; else camera frames.
    #[default]
    Auto,
    /// Camera frames.
    Frames,
    /// One ROI each.
    Rois,
}

impl Words for Holds {
    const ALL: &'static [(&'static str, Holds)] =
        &[("auto", Holds::Auto), ("frames", Holds::Frames), ("rois", Holds::Rois)];
}

/// The outcome of a [step](Stager::step).
#[derive(Debug)]
pub enum Step {
    /// ROIs to fit.
    Chunk(Chunk),
    /// Nothing to fit yet; ask again.
    Busy,
    /// Nothing to do until more bytes arrive.
    Wait,
    /// Everything has been handed out.
    End,
}

/// The source of ROIs, with those that were found and not yet handed out.
enum Source {
    /// Unknown before the first frame.
    Open,
    Frames(Box<Search>),
    Whole(Whole),
    /// The reader holds the ROIs.
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
    charge: Charge,
    /// Whether some of the last frames, which the reader still holds, have not been examined.
    unseen: bool,
    setting: Option<Setting>,
    finished: bool,
}

impl std::fmt::Debug for Stager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stager").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl Stager {
    /// A stager for a stack of the given format, or of the format that its first bytes show.
    pub fn new(settings: Settings, holds: Holds, format: Option<Format>, options: Options) -> Stager {
        Stager {
            reader: StackReader::new(format, options),
            settings,
            holds,
            whole: false,
            memory: None,
            source: Source::Open,
            charge: Box::new(|_| Ok(())),
            unseen: false,
            setting: None,
            finished: false,
        }
    }

    /// If `whole` is set, the engine finds the spots: chunks are whole frames, unless these are larger than any camera's. They are gathered
    /// in `memory`, as far as it has room for frames of their size.
    #[must_use]
    pub fn whole(self, whole: bool, memory: Option<FrameMemory>) -> Stager {
        Stager { whole, memory, ..self }
    }

    /// Sets the function that says how much memory the stack may hold ([`StackReader::within`]).
    #[must_use]
    pub fn within(self, may_hold: MayHold) -> Stager {
        Stager { reader: self.reader.within(may_hold), ..self }
    }

    /// Sets the functions that are called before memory is allocated. `frames` is for the memory of decoded frames
    /// ([`StackReader::charging`]). `beside` is for the rest: what finding spots needs, the chunk that is being made, and one that was
    /// handed out.
    #[must_use]
    pub fn charging(self, frames: Charge, beside: Charge) -> Stager {
        Stager { reader: self.reader.charging(frames), charge: beside, ..self }
    }

    /// For a stack that somebody posted, which may be another file than it is stated to be ([`StackReader::suspecting_files`]).
    #[must_use]
    pub fn posted(self) -> Stager {
        Stager { reader: self.reader.suspecting_files(), ..self }
    }

    /// For a stack in a packed body ([`StackReader::packed`]).
    #[must_use]
    pub fn packed(self, came: Received) -> Stager {
        Stager { reader: self.reader.packed(came), ..self }
    }

    /// Takes the next bytes of the stack.
    ///
    /// # Errors
    /// The bytes cannot be kept.
    pub fn push(&mut self, bytes: Bytes) -> Result<(), InferError> {
        Ok(self.reader.push(bytes)?)
    }

    /// Says that there are no more bytes.
    pub fn finish(&mut self) {
        self.finished = true;
        self.reader.finish();
    }

    /// What the stack says about itself, once its first frame has been read.
    pub fn info(&self) -> Option<StackInfo> {
        self.reader.info()
    }

    /// Frames that have been read.
    pub fn frames(&self) -> u64 {
        self.reader.frames()
    }

    /// The schema of this stack's tables; final with the first chunk at the latest, or at the end.
    ///
    /// # Errors
    /// Inconsistent settings.
    pub fn schema(&self) -> Result<Schema, String> {
        let found = !matches!(self.source, Source::Rois(_));
        let mut schema = self.settings.schema(found)?;
        if let Some(info) = self.info() {
            schema.settings = self.settings.told([info.width as usize, info.height as usize], found);
            if matches!(self.source, Source::Frames(..) | Source::Whole(_)) {
                schema.frame_size = Some([info.width, info.height]);
            }
            schema.frames = info.frames.and_then(|frames| u32::try_from(frames).ok());
            (schema.axes, schema.images) = (info.dimensions, info.images);
        }
        Ok(schema)
    }

    /// The pixel size in nm that the file has stated so far. A size that comes after the first frame is not in the schema, because units
    /// would otherwise depend on how fast bytes arrive.
    pub fn pixel_nm(&self) -> Option<[f64; 2]> {
        self.info()?.pixel_nm
    }

    /// Reads on, but only so long that other work is not delayed. With `hurry`, results are handed out even if they do not fill a chunk.
    ///
    /// # Errors
    /// What is wrong with the rest of the stack, or with the settings. Everything found before has been handed out.
    pub fn step(&mut self, hurry: bool) -> Result<Step, InferError> {
        let mut looked = 0;
        loop {
            if self.source.is_full() {
                return Ok(self.rest());
            }
            if self.unseen
                && let Some(frames) = self.reader.last_frames()
            {
                self.unseen = !self.source.look(&frames, &mut self.charge)?;
                continue;
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
            let frames = match self.reader.try_frames(wanted) {
                Ok(Tried::Frames(frames)) => frames,
                Ok(Tried::Busy) => return Ok(Step::Busy),
                Ok(Tried::Nothing) if hurry || self.finished => return Ok(self.rest()),
                Ok(Tried::Nothing) => return Ok(Step::Wait),
                // First hand out what was found before the error; the reader will return the same error again.
                Err(error) => {
                    return match self.rest() {
                        Step::Chunk(chunk) => Ok(Step::Chunk(chunk)),
                        _ => Err(error.into()),
                    };
                }
            };
            looked += (frames.width as usize * frames.height as usize).max(FRAME_PIXELS_MIN) * frames.count;
            if opening {
                self.begin()?;
            }
            self.unseen = true;
        }
    }

    /// Decides what the frames are, once the first has been read.
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
            let size = if info.sample.is_u16() { size_of::<u16>() } else { size_of::<f32>() };
            (self.charge)(ROIS * width * height * size)?;
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
            Source::Frames(Box::new(Search::new(finder, self.settings.box_px(), &mut self.charge)?))
        };
        self.setting = Some(setting);
        Ok(())
    }

    /// A chunk of what was found and not yet handed out.
    fn rest(&mut self) -> Step {
        let Some(setting) = self.setting.as_ref().filter(|_| self.source.found() > 0) else {
            return if self.finished { Step::End } else { Step::Wait };
        };
        Step::Chunk(match &mut self.source {
            Source::Frames(search) => search.chunk(setting),
            Source::Whole(whole) => whole.chunk(setting),
            Source::Rois(posted) => posted.chunk(self.reader.take(), setting),
            Source::Open => unreachable!("nothing is found before it is known where"),
        })
    }
}

impl Source {
    /// Whether what has not been handed out fills a chunk.
    fn is_full(&self) -> bool {
        match self {
            Source::Frames(search) => search.is_full(),
            Source::Whole(whole) => whole.room() == 0,
            Source::Open | Source::Rois(_) => self.found() >= ROIS,
        }
    }

    /// The number of ROIs, or frames, that have not been handed out.
    fn found(&self) -> usize {
        match self {
            Source::Open => 0,
            Source::Frames(search) => search.len(),
            Source::Whole(whole) => whole.count,
            Source::Rois(posted) => posted.count,
        }
    }

    /// Looks for spots in frames. ROIs are only counted: their reader holds them. Returns whether all frames have been examined.
    fn look(&mut self, frames: &Frames<'_>, charge: &mut Charge) -> Result<bool, InferError> {
        match self {
            Source::Frames(search) => return search.look(frames, charge),
            Source::Whole(whole) => whole.add(frames, charge)?,
            Source::Rois(posted) => posted.count += frames.count,
            Source::Open => return Err(InferError::Internal("frames came before what they are".into())),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod rows;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            DataType,
            kernels::{Adu, RoiBuffer},
            staging::Memory,
        },
        image::stack::{Limits, Raw, SampleType},
    };
    use parking_lot::Mutex;
    use std::sync::Arc;

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

    /// Settings by which every pixel that stands out is a spot.
    fn all_spots() -> Settings {
        let mut settings = Settings::default();
        let said = [
            ("box_px", "3"),
            ("sigma_px", "0.3"),
            ("radius_px", "1"),
            ("noise_min", "1"),
            ("spots_max", "65536"),
        ];
        said.iter().for_each(|(key, value)| settings.set(key, value).unwrap());
        settings
    }

    #[test]
    fn a_frame_of_more_spots_than_a_chunk_has_comes_in_parts_and_no_other_is_torn() {
        const SIDE: usize = 512;
        // A frame with this many rows of spots.
        let frame = |rows: usize| {
            let lit = move |at: usize| at / SIDE < rows && (at / SIDE % 4, at % SIDE % 4) == (2, 2);
            (0..SIDE * SIDE).map(move |at| if lit(at) { 6000_u16 } else { 5 })
        };
        let values: Vec<u16> = [SIDE, 8, 128].into_iter().flat_map(frame).collect();
        let mut settings = all_spots();
        let setting = settings.setting_of(Some([SIDE, SIDE])).unwrap();
        let mut finder = settings.finder(setting.camera(), SIDE, SIDE).unwrap();
        let mut expected = RoiBuffer::new(3).unwrap();
        let spots = values.chunks(SIDE * SIDE).map(|frame| {
            let spots = finder.find(Adu::U16(frame)).unwrap().to_vec();
            expected.cut(Adu::U16(frame), SIDE, 0, &spots).unwrap();
            spots.len()
        });
        let spots: Vec<usize> = spots.collect();
        assert!(spots[0] > ROIS && spots[0] % ROIS + spots[1] + spots[2] > ROIS - ROIS / 8, "{spots:?}");

        let raw = Raw { width: SIDE as u32, height: SIDE as u32, sample: SampleType::U16, frames: Some(3) };
        let options = Options { limits: LIMITS, spill_folder: None, file_alone: true };
        let asked = Arc::new(Mutex::new(0));
        let asking = Arc::clone(&asked);
        let beside = Box::new(move |bytes| {
            assert!(bytes > *asking.lock(), "asked for {bytes} again");
            *asking.lock() = bytes;
            Ok(())
        });
        let stager = Stager::new(settings, Holds::Frames, Some(Format::Raw(raw)), options);
        let mut stager = stager.charging(Box::new(|_| Ok(())), beside);
        stager.push(bytemuck::cast_slice(&values).to_vec().into()).unwrap();
        stager.finish();
        let (mut counts, mut got) = (Vec::new(), Vec::new());
        loop {
            match stager.step(false).unwrap() {
                Step::Chunk(chunk) => {
                    // The chunk, and the memory that it was copied from.
                    let asked = *asked.lock();
                    assert!(asked >= finder.bytes() + 2 * chunk.items * (3 * 3 * 2 + 16), "{asked}");
                    counts.push(chunk.items);
                    got.extend(chunk.inputs[0].data.to_vec());
                }
                Step::Busy => {}
                Step::Wait | Step::End => break,
            }
        }
        let rest = spots[0] - ROIS + spots[1];
        let expected_counts =
            if rest + spots[2] > ROIS { vec![ROIS, rest, spots[2]] } else { vec![ROIS, rest + spots[2]] };
        assert_eq!(counts, expected_counts);
        assert!(got == expected.to_le_bytes(), "the ROIs of all frames, in their order");
        let asked = *asked.lock();
        assert!(asked <= finder.bytes() + 2 * 2 * ROIS * (3 * 3 * 2 + 16), "{asked}");
    }

    #[test]
    fn others_have_their_turn_while_very_many_small_pages_are_read() {
        const PAGES: u64 = 20_000;
        const PAGE_BYTES: u32 = 2 + 6 * 12 + 4 + 64;
        let mut bytes = b"II*\0\x08\0\0\0".to_vec();
        for page in 0..PAGES as u32 {
            let at = 8 + page * PAGE_BYTES;
            bytes.extend(6_u16.to_le_bytes());
            let tags = [(256_u16, 8), (257, 8), (258, 8), (273, at + PAGE_BYTES - 64), (278, 8), (279, 64)];
            for (tag, value) in tags {
                bytes.extend([tag, 4].map(u16::to_le_bytes).concat());
                bytes.extend([1, value].map(u32::to_le_bytes).concat());
            }
            let next = if u64::from(page) + 1 < PAGES { at + PAGE_BYTES } else { 0 };
            bytes.extend(next.to_le_bytes());
            bytes.extend([9; 64]);
        }
        let limits = Limits { frames_max: PAGES, ..LIMITS };
        let options = Options { limits, spill_folder: None, file_alone: true };
        let mut stager = Stager::new(Settings::default(), Holds::Frames, None, options);
        stager.push(bytes.into()).unwrap();
        stager.finish();
        let mut turns = 0;
        while let Step::Busy = stager.step(false).unwrap() {
            turns += 1;
        }
        assert_eq!((stager.frames(), turns), (PAGES, 3));
    }

    #[test]
    fn others_have_their_turn_while_very_many_small_frames_are_looked_at() {
        const FRAMES: usize = 20_000;
        let raw = Raw { width: 8, height: 8, sample: SampleType::U16, frames: None };
        let limits = Limits { frames_max: FRAMES as u64, ..LIMITS };
        let options = Options { limits, spill_folder: None, file_alone: true };
        let mut stager = Stager::new(Settings::default(), Holds::Frames, Some(Format::Raw(raw)), options);
        stager.push(vec![9; 2 * 64 * FRAMES].into()).unwrap();
        stager.finish();
        assert!(matches!(stager.step(false).unwrap(), Step::Busy));
        assert!(matches!(stager.step(false).unwrap(), Step::End));
        assert_eq!(stager.frames(), FRAMES as u64);
    }
}
