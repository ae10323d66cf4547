//! Camera frames on the device: they are copied in, and spots are found, cut out and fitted there.
//!
//! The number of spots is only known once the device has found them. So a batch starts with places for a likely number of spots. The
//! number is copied back first, then that many rows are fetched. A batch with more spots than places is processed on the host, and
//! later batches get more places: up to a bound, if there is memory for them, and until the engine is idle.
//!
//! The first batch allocates memory for a whole chunk ([`PIXELS_MAX`]) of either type, however few frames it has, so that later batches
//! allocate none. Only frames that are larger than a chunk, or so small that the margins of their planes matter, take more.

use super::{
    super::{
        Buffer, Context, CudaError, Fault, Heap, Kernel, Module, Streams,
        context::synchronize,
        memory::{address, room},
    },
    CODE_BYTES, Columns, GaussMle, Maps, Place, Room, Taken, row_bytes,
};
use crate::engine::{
    Airborne, EngineError, Flight, Setting, Tensor, TensorView,
    gauss_mle::frames::{Fitted, Frames, PIXELS_MAX, answer},
    kernels::{
        Adu, FinderOptions, FitCall, InstructionSet, Spot, SpotFinder,
        fit::device::FitAddresses,
        spots::device::{CONSTANTS, CUT_THREADS, LOWEST, SpotAddresses, THREADS},
    },
    staging::{Blocks, Lent},
};
use cudarc::driver::CudaStream;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

const KERNELS: &str = include_str!("../../../../kernels/generated/spots.ptx");

/// Searches whose constants stay on the device.
const KNOWN_MAX: usize = 2;
/// Least number of values of a plane: a third more than the pixels, for the margins of frames of 448 px or more.
const PLANE_VALUES_MIN: usize = PIXELS_MAX / 3 * 4;
/// A batch has at least this many places for spots, and at least one per [`PIXELS_PER_PLACE`] pixels.
const PLACES_MIN: usize = 4096;
const PIXELS_PER_PLACE: usize = 128;
/// The same for the most places that spots in earlier batches can lead to. Spots that are closer lie in each other's boxes. Noise has a
/// spot for 31 pixels where it is searched with the least radius and threshold. For a whole chunk, each batch in flight then has 48 MB
/// for boxes of 7 px, and 322 MB for boxes of 21 px.
const PLACES_GROWN: usize = 65_536;
const PIXELS_PER_PLACE_GROWN: usize = 24;
/// Most blocks of a grid along y and z.
const BLOCKS_MAX: usize = 65_535;
/// Bytes of a pixel of the wider type.
const SAMPLE_BYTES: usize = size_of::<f32>();
/// Index of the plane with the contrast.
const CONTRAST: usize = 3;
/// Bytes of the number of spots.
const COUNT_BYTES: usize = size_of::<u64>();

/// What finding spots needs beside the memory of a batch.
#[derive(Debug, Default)]
pub(super) struct Search {
    module: Option<Module>,
    kernels: HashMap<&'static str, Kernel>,
    /// The newest last.
    known: Vec<Arc<Known>>,
    /// Working planes. Batches on one stream share them, since they run there in order.
    work: [Option<Buffer>; 5],
    /// The search for which the margins of the planes are set.
    margins: Option<Arc<Known>>,
    /// The most spots that a batch has had.
    most: Arc<AtomicUsize>,
    /// Whether there was no memory for that many places.
    cramped: bool,
}

/// The places for spots of so many pixels after a batch that had `most` spots.
fn grown(most: usize, pixels: usize) -> usize {
    most.saturating_add(most / 4).min(PLACES_GROWN.max(pixels / PIXELS_PER_PLACE_GROWN))
}

/// Numbers of places for spots.
#[derive(Debug, Clone, Copy)]
struct Places {
    /// The batch's places.
    count: usize,
    /// The places to allocate memory for.
    room: usize,
    /// Whether earlier batches have increased these.
    grown: bool,
}

/// A search on the device.
#[derive(Debug)]
struct Known {
    setting: Setting,
    finder: SpotFinder,
    constants: [Option<Buffer>; CONSTANTS],
}

impl Search {
    pub(super) fn rest(&mut self) {
        self.known.clear();
        (self.work, self.margins) = ([const { None }; 5], None);
        self.most.store(0, Ordering::Relaxed);
        self.cramped = false;
    }

    fn kernel(&mut self, context: &Context, name: &'static str) -> Result<Kernel, CudaError> {
        if let Some(known) = self.kernels.get(name) {
            return Ok(known.clone());
        }
        let module = match self.module.take() {
            Some(module) => module,
            None => Module::load(context, "spots", KERNELS)?,
        };
        let kernel = self.module.insert(module).kernel(name)?;
        self.kernels.insert(name, kernel.clone());
        Ok(kernel)
    }

    /// The search for spots in frames of this size. Its constants are copied to the device the first time.
    fn known(
        &mut self,
        heap: &Arc<Heap>,
        streams: &Streams,
        setting: &Setting,
        options: &FinderOptions,
        frames: &Frames<'_>,
    ) -> Result<Arc<Known>, EngineError> {
        let size = (frames.width, frames.height);
        let same = |known: &Arc<Known>| known.setting == *setting && known.finder.size() == size;
        if let Some(at) = self.known.iter().position(same) {
            let known = self.known.remove(at);
            self.known.push(Arc::clone(&known));
            return Ok(known);
        }
        // A batch in flight holds its own reference.
        if self.known.len() == KNOWN_MAX {
            self.known.remove(0);
        }
        let finder = SpotFinder::new(options, setting.camera(), frames.width, frames.height);
        let finder = finder.map_err(|error| EngineError::Input(error.to_string()))?;
        let known = Known::new(heap, streams, setting, finder)?;
        self.known.push(Arc::clone(&known));
        Ok(known)
    }

    /// Allocates the working planes for a batch of frames.
    fn make_room(
        &mut self,
        heap: &Arc<Heap>,
        known: &Arc<Known>,
        frames: usize,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let bytes = (known.finder.plane_values() * frames).max(PLANE_VALUES_MIN) * size_of::<f32>();
        let wanted = known.finder.works_in().map(|works| if works { bytes } else { 0 });
        let has = |plane: &Option<Buffer>| plane.as_ref().map_or(0, Buffer::bytes);
        if self.work.iter().zip(wanted).any(|(plane, wanted)| has(plane) < wanted) {
            // The previous batch may still use the planes.
            synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
            self.margins = None;
            for (plane, wanted) in self.work.iter_mut().zip(wanted) {
                room(heap, plane, wanted)?;
            }
        }
        if self.margins.as_ref().is_none_or(|margins| !Arc::ptr_eq(margins, known)) {
            self.margins = None;
            if let Some(contrast) = &mut self.work[CONTRAST] {
                contrast.fill(LOWEST, stream)?;
            }
            self.margins = Some(Arc::clone(known));
        }
        Ok(())
    }

    /// Places for the spots of a batch.
    fn places(&self, known: &Known, frames: &Frames<'_>) -> Places {
        let pixels = frames.count * frames.width * frames.height;
        let most = if self.cramped { 0 } else { self.most.load(Ordering::Relaxed) };
        let first = |pixels: usize| PLACES_MIN.max(pixels / PIXELS_PER_PLACE);
        let likely = |pixels: usize| first(pixels).max(grown(most, pixels));
        let count = likely(pixels).min(frames.count * known.finder.spots_possible()).max(1);
        let pixels = pixels.max(PIXELS_MAX);
        Places { count, room: likely(pixels), grown: likely(pixels) > first(pixels) }
    }
}

impl Known {
    fn new(
        heap: &Arc<Heap>,
        streams: &Streams,
        setting: &Setting,
        finder: SpotFinder,
    ) -> Result<Arc<Known>, CudaError> {
        let upload = |values: &[f32]| {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let buffer = Buffer::new(heap, bytes.len())?;
            // SAFETY: waited for below; until then, the finder is alive.
            unsafe { buffer.upload(bytes, &streams.upload) }?;
            Ok::<_, CudaError>(buffer)
        };
        let uploads = finder.constants().map(|values| (!values.is_empty()).then(|| upload(values)));
        // Once for each search, so this may wait, only for copies. It waits even if one of them failed.
        let copied = synchronize(&streams.upload);
        copied.map_err(CudaError::when("cannot copy what spots are found with to the GPU"))?;
        let mut constants = [const { None }; CONSTANTS];
        for (constant, uploaded) in constants.iter_mut().zip(uploads) {
            *constant = uploaded.transpose()?;
        }
        Ok(Arc::new(Known { setting: setting.clone(), finder, constants }))
    }
}

impl GaussMle {
    /// Starts a batch of frames.
    pub(super) fn start_search(
        &mut self,
        inputs: Vec<Tensor>,
        setting: &Setting,
        options: &FinderOptions,
    ) -> Result<Flight, EngineError> {
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let frames = Frames::of(&views)?;
        if frames.count == 0 {
            return Ok(Flight::Landed(answer(0, options.spots_max, (&[], &[]), &[], &[])));
        }
        if frames.count > BLOCKS_MAX || frames.height.div_ceil(THREADS[1] as usize) > BLOCKS_MAX {
            let (count, rows) = (frames.count, frames.height);
            return Err(EngineError::Input(format!(
                "{count} frames of {rows} rows are more than a GPU takes at once: {BLOCKS_MAX} of {} rows",
                BLOCKS_MAX * THREADS[1] as usize
            )));
        }
        let known = self.search.known(&self.heap, &self.streams, setting, options, &frames)?;
        let maps = self.maps(setting.camera())?;
        self.search.make_room(&self.heap, &known, frames.count, &self.streams.compute)?;
        let mut counted = self.results.lend(COUNT_BYTES);
        let (mut places, data) = (self.search.places(&known, &frames), views[0].data);
        let mut begun = self.try_search(&frames, data, &known, maps.as_ref(), places, &mut counted);
        if let Err(error) = &begun
            && places.grown
            && error.fault() == Fault::OutOfMemory
        {
            tracing::debug!(%error, "places for as many spots as there were do not fit: the host finds them");
            self.search.cramped = true;
            self.empty();
            places = self.search.places(&known, &frames);
            begun = self.try_search(&frames, data, &known, maps.as_ref(), places, &mut counted);
        }
        let place = begun?;
        drop(views);
        Ok(Flight::Airborne(Box::new(Searching {
            taken: self.taken(place),
            context: Arc::clone(&self.context),
            download: Arc::clone(&self.streams.download),
            places: places.count,
            most: Arc::clone(&self.search.most),
            counted,
            results: self.results.clone(),
            inputs,
            known,
            _maps: maps,
        })))
    }

    /// Starts a batch in a place with room for `places` spots.
    fn try_search(
        &mut self,
        frames: &Frames<'_>,
        bytes: &[u8],
        known: &Known,
        maps: Option<&Maps>,
        places: Places,
        counted: &mut Lent,
    ) -> Result<Place, CudaError> {
        let (setting, side, room) = (&known.setting, known.finder.options().box_side, places.room);
        let mut place = self.place(&Room {
            frames: bytes.len().max(PIXELS_MAX * SAMPLE_BYTES),
            spots: room * size_of::<Spot>(),
            count: COUNT_BYTES,
            rois: room * side.pow(2) * SAMPLE_BYTES,
            corners: if maps.is_some() { room * size_of::<[u32; 2]>() } else { 0 },
            results: room * (row_bytes(setting) + CODE_BYTES),
            more_than_needed: places.grown,
        })?;
        match self.begin_search(&mut place, frames, bytes, known, maps, (places.count, room), counted) {
            Ok(()) => Ok(place),
            Err(error) => {
                // Work that was enqueued may still read and write.
                self.streams.settle();
                self.put_back(place);
                Err(error)
            }
        }
    }

    /// Has the device copy the frames, find, cut out and fit spots, and copy back how many there are.
    #[allow(clippy::too_many_arguments, reason = "all that a batch has")]
    fn begin_search(
        &mut self,
        place: &mut Place,
        frames: &Frames<'_>,
        bytes: &[u8],
        known: &Known,
        maps: Option<&Maps>,
        (places, room): (usize, usize),
        counted: &mut Lent,
    ) -> Result<(), CudaError> {
        let (setting, finder) = (&known.setting, &known.finder);
        let (wide, side) = (matches!(frames.adu, Adu::F32(_)), finder.options().box_side);
        let psf = setting.model().psf();
        let launch = self.rounds.plan(psf, wide, maps.is_some(), side);
        let in_rounds = self.rounds.prepare(&launch, psf, (places, room), &self.streams.compute)?;
        let names = finder.launches(wide).iter();
        let finding: Result<Vec<Kernel>, CudaError> =
            names.map(|name| self.search.kernel(&self.context, name)).collect();
        let cutter =
            self.search.kernel(&self.context, if wide { "spots_cut_f32" } else { "spots_cut_u16" })?;
        let cutting = self.rounds.resident(&cutter, CUT_THREADS)?.min(places as u32);

        let Streams { upload, compute, .. } = &*self.streams;
        let (Some(buffer), Some(count)) = (&mut place.buffers.frames, &mut place.buffers.count) else {
            unreachable!("room was made");
        };
        // SAFETY: the flight, or the caller if this fails, holds the tensors until the device is done with them.
        unsafe { buffer.upload(bytes, upload) }?;
        place.uploaded.record(upload)?;
        place.uploaded.before(compute)?;
        count.clear(compute)?;
        let at = SpotAddresses {
            frame: address(&place.buffers.frames),
            constants: known.constants.each_ref().map(address),
            work: self.search.work.each_ref().map(address),
            spots: address(&place.buffers.spots),
            spots_max: places as u64,
            count: address(&place.buffers.count),
        };
        let (call, blocks) = (finder.on_device(&at), finder.blocks(frames.count as u32));
        for kernel in &finding? {
            // SAFETY: a kernel of this search and type; there are planes for these frames and places for what `call` says, which
            // belong to the flight until it has landed.
            unsafe { kernel.launch_grid(compute, blocks, THREADS, &call) }?;
        }
        let cut = finder.cut_on_device(&at, address(&place.buffers.rois), address(&place.buffers.corners));
        // SAFETY: as above; boxes of spots lie in their frames.
        unsafe { cutter.launch_grid(compute, [cutting, 1, 1], [CUT_THREADS, 1, 1], &cut) }?;
        let fits = FitAddresses {
            rois: address(&place.buffers.rois),
            maps: maps.map(|maps| maps.addresses(address(&place.buffers.corners))),
            fits: address(&place.buffers.results),
            codes: address(&place.buffers.results) + (places * row_bytes(setting)) as u64,
        };
        let call = FitCall::on_device(setting.model(), setting.camera(), side, places as u64, &fits);
        // SAFETY: planned for this model, type and camera; there are places for all ROIs, which lie on the maps since these have
        // the frame's size (checked by the finder); all of it belongs to the flight until it has landed.
        unsafe { self.rounds.launch(&launch, &call, (places, at.count), in_rounds, compute) }?;
        let count = place.buffers.count.as_ref().expect("room was made");
        // SAFETY: the flight holds `counted` and reads it when it has landed.
        unsafe { count.download(counted, compute) }?;
        // On the compute stream, although it is a copy. Rows are fetched afterwards, on a stream that does not wait for later batches.
        place.landed.record(compute)
    }
}

/// A batch of frames in flight. Holds all that the device reads and writes for it.
struct Searching {
    /// Declared before the memory that the device uses, so that it is dropped first and waits.
    taken: Taken,
    context: Arc<Context>,
    download: Arc<CudaStream>,
    places: usize,
    most: Arc<AtomicUsize>,
    counted: Lent,
    results: Blocks,
    inputs: Vec<Tensor>,
    known: Arc<Known>,
    _maps: Option<Maps>,
}

impl Searching {
    /// Fetches the results: spots, then rows, then codes.
    fn fetch(&mut self, found: usize) -> Result<Lent, CudaError> {
        let row_bytes = row_bytes(&self.known.setting);
        let mut results = self.results.lend(found * (size_of::<Spot>() + row_bytes + CODE_BYTES));
        let place = self.taken.place.as_ref().expect("it lands once");
        let (Some(spots_made), Some(results_made)) = (&place.buffers.spots, &place.buffers.results) else {
            unreachable!("room was made");
        };
        let begun = {
            let (spots, rest) = results.split_at_mut(found * size_of::<Spot>());
            let (rows, codes) = rest.split_at_mut(found * row_bytes);
            let mut begin = || {
                // SAFETY: nobody reads them before the wait below, which happens even after an error.
                unsafe {
                    spots_made.download(spots, &self.download)?;
                    results_made.download(rows, &self.download)?;
                    results_made.download_from(self.places * row_bytes, codes, &self.download)?;
                }
                place.landed.record(&self.download)
            };
            begin()
        };
        if begun.is_err() {
            let _ = synchronize(&self.download);
        }
        begun.and_then(|()| self.taken.wait())?;
        Ok(results)
    }
}

impl Airborne for Searching {
    fn land(mut self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        let place = self.taken.place.as_ref().expect("it lands once");
        place.landed.wait()?;
        let found = u64::from_ne_bytes(self.counted[..].try_into().expect("so many bytes were lent"));
        let found = usize::try_from(found).unwrap_or(usize::MAX);
        self.most.fetch_max(found, Ordering::Relaxed);
        let setting = &self.known.setting;
        let columns = Columns::of(setting.model().psf()).count();
        let options = *self.known.finder.options();
        let views: Vec<TensorView<'_>> = self.inputs.iter().map(Tensor::view).collect();
        let frames = Frames::of(&views)?;
        let count = frames.count;
        if found > self.places {
            tracing::debug!(found, places = self.places, "more spots than places: the host finds them");
            let set = InstructionSet::detect();
            let fitted = Fitted::search(set, setting, &options, &frames, 0..count);
            let fitted = fitted.map_err(|error| EngineError::Input(error.to_string()))?;
            return Ok(fitted.answer(count, options.spots_max));
        }
        drop(views);
        // This may be any thread.
        self.context.bind()?;
        let results = self.fetch(found)?;
        let (spots, rest) = results.split_at(found * size_of::<Spot>());
        let (rows, codes) = rest.split_at(found * columns * size_of::<f32>());
        let (spots, rows) = (bytemuck::cast_slice(spots), bytemuck::cast_slice(rows));
        Ok(answer(count, options.spots_max, (spots, &[]), rows, bytemuck::cast_slice(codes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_that_is_searched_for_the_faintest_spots_has_places_on_the_device() {
        let noise = PIXELS_MAX / 31;
        assert!(
            grown(noise, PIXELS_MAX) > noise + noise / 8,
            "a batch may have some more than the one before"
        );
        assert_eq!(grown(PIXELS_MAX, PIXELS_MAX), PIXELS_MAX / 24, "and there is a bound");
        assert_eq!([grown(0, PIXELS_MAX), grown(usize::MAX, 1)], [0, PLACES_GROWN]);
    }
}
