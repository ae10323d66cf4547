//! The fitter of Gaussian spots on a GPU. It has the inputs and outputs of [`GaussMle`](crate::engine::gauss_mle::GaussMle), and three
//! batches in flight. One is copied in, one is fitted and one is copied out, each on a stream of its own.
//!
//! The kernels write the outputs in their final form, so the reply uses the copied bytes directly. Memory for a batch is allocated
//! with the first batch of its size, and kept. If three batches do not fit, fewer are in flight.
#![allow(unsafe_code)]

mod rounds;
mod search;

use super::{
    Buffer, Context, CudaError, Event, Fault, Heap, HostMemory, Streams,
    context::synchronize,
    memory::{address, room},
};
use crate::engine::{
    Airborne, Engine, EngineError, Flight, Setting, Signature, Tensor, TensorView,
    gauss_mle::{Columns, asked, outputs, signature},
    kernels::{
        Adu, Camera, FitCall, Rois,
        fit::device::{FitAddresses, MapAddresses},
    },
    staging::{Blocks, Lent, Memory},
};
use bytes::Bytes;
use rounds::Rounds;
use search::Search;
use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

/// Batches in flight, if memory allows.
const DEPTH: usize = 3;
/// Bytes of the codes of a fit.
const CODE_BYTES: usize = 2;
/// Cameras whose maps stay on the device.
const CAMERAS_MAX: usize = 2;

/// The fitter on a GPU.
#[derive(Debug)]
pub struct GaussMle {
    signature: Signature,
    heap: Arc<Heap>,
    streams: Arc<Streams>,
    rounds: Rounds,
    search: Search,
    /// The newest last.
    cameras: Vec<Maps>,
    results: Blocks,
    /// Free places for batches, the channel by which they come back, and the number of places in all.
    free: Receiver<Place>,
    back: Sender<Place>,
    places: usize,
    /// Declared last, so that it is dropped last: what was made in the context keeps the GPU's, too.
    context: Arc<Context>,
}

/// The maps of a camera on the device.
#[derive(Debug, Clone)]
struct Maps {
    camera: Arc<Camera>,
    buffers: Arc<[Buffer; 3]>,
}

/// The device resources of a batch.
#[derive(Debug)]
struct Place {
    buffers: Buffers,
    uploaded: Event,
    computed: Event,
    landed: Event,
}

#[derive(Debug, Default)]
struct Buffers {
    /// Whole frames, for finding spots; with the spots found and their number.
    frames: Option<Buffer>,
    spots: Option<Buffer>,
    count: Option<Buffer>,
    rois: Option<Buffer>,
    corners: Option<Buffer>,
    /// Rows, then codes.
    results: Option<Buffer>,
}

/// Bytes that a batch needs of each buffer of its place.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    frames: usize,
    spots: usize,
    count: usize,
    rois: usize,
    corners: usize,
    results: usize,
    /// Whether the caller can do with less: lack of memory is then no reason for fewer batches in flight.
    more_than_needed: bool,
}

impl Buffers {
    fn make(&mut self, heap: &Arc<Heap>, wanted: &Room) -> Result<(), CudaError> {
        room(heap, &mut self.frames, wanted.frames)?;
        room(heap, &mut self.spots, wanted.spots)?;
        room(heap, &mut self.count, wanted.count)?;
        room(heap, &mut self.rois, wanted.rois)?;
        room(heap, &mut self.corners, wanted.corners)?;
        room(heap, &mut self.results, wanted.results)
    }
}

impl GaussMle {
    /// A fitter on this GPU, with streams of its own.
    ///
    /// # Errors
    /// If the GPU or its driver cannot run the kernels, or has no memory for them.
    pub fn new(context: &Arc<Context>) -> Result<GaussMle, CudaError> {
        let heap = Heap::new(context);
        let (back, free) = channel();
        let mut fitter = GaussMle {
            signature: signature(),
            context: Arc::clone(context),
            rounds: Rounds::new(context, &heap),
            heap,
            streams: Arc::new(context.streams()?),
            search: Search::default(),
            cameras: Vec::new(),
            results: Blocks::new(context.landing()),
            free,
            back,
            places: 0,
        };
        fitter.fill()?;
        Ok(fitter)
    }

    /// Creates places until there are [`DEPTH`].
    fn fill(&mut self) -> Result<(), CudaError> {
        while self.places < DEPTH {
            let place = Place {
                buffers: Buffers::default(),
                uploaded: self.context.mark()?,
                computed: self.context.mark()?,
                landed: self.context.event()?,
            };
            self.put_back(place);
            self.places += 1;
        }
        Ok(())
    }

    fn put_back(&self, place: Place) {
        self.back.send(place).expect("its receiver is ours");
    }

    /// Waits for a place with room for a batch. If there is too little memory, there is one place less from now on.
    fn place(&mut self, wanted: &Room) -> Result<Place, CudaError> {
        loop {
            let mut place = self.free.recv().expect("its sender is ours");
            match place.buffers.make(&self.heap, wanted) {
                Ok(()) => return Ok(place),
                Err(error)
                    if error.fault() == Fault::OutOfMemory && !wanted.more_than_needed && self.places > 1 =>
                {
                    self.places -= 1;
                    tracing::warn!(places = self.places, %error, "fewer batches at once from now on");
                }
                Err(error) => {
                    self.put_back(place);
                    return Err(error);
                }
            }
        }
    }

    /// Frees the memory of free places.
    fn empty(&self) {
        let idle: Vec<Place> = self.free.try_iter().collect();
        for place in idle {
            self.put_back(Place { buffers: Buffers::default(), ..place });
        }
    }

    /// The maps of the camera on the device, if it has any; uploaded the first time.
    fn maps(&mut self, camera: &Arc<Camera>) -> Result<Option<Maps>, CudaError> {
        let Some(values) = camera.map_values() else { return Ok(None) };
        if let Some(known) = self.cameras.iter().position(|maps| Arc::ptr_eq(&maps.camera, camera)) {
            let maps = self.cameras.remove(known);
            self.cameras.push(maps.clone());
            return Ok(Some(maps));
        }
        let upload = |values: &[f32]| {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let buffer = Buffer::new(&self.heap, bytes.len())?;
            // SAFETY: waited for below; until then, the camera is alive.
            unsafe { buffer.upload(bytes, &self.streams.upload) }?;
            Ok::<_, CudaError>(buffer)
        };
        let buffers = values.map(upload);
        // Once for each camera, so this may wait, only for copies.
        let copied =
            synchronize(&self.streams.upload).map_err(CudaError::when("cannot copy maps to the GPU"));
        let [gain, bias, variance] = buffers;
        copied?;
        let maps = Maps { camera: Arc::clone(camera), buffers: Arc::new([gain?, bias?, variance?]) };
        if self.cameras.len() == CAMERAS_MAX {
            self.cameras.remove(0);
        }
        self.cameras.push(maps.clone());
        Ok(Some(maps))
    }

    /// Has the device copy the ROIs in, fit them and copy the results back.
    fn begin(
        &mut self,
        place: &mut Place,
        rois: &Rois<'_>,
        corners: &[u8],
        setting: &Setting,
        maps: Option<&Maps>,
        results: &mut Lent,
    ) -> Result<(), CudaError> {
        let psf = setting.model().psf();
        let wide = matches!(rois.adu(), Adu::F32(_));
        let launch = self.rounds.plan(psf, wide, maps.is_some(), rois.side());
        let in_rounds = self.rounds.prepare(&launch, psf, (rois.len(), 0), &self.streams.compute)?;
        let Streams { upload, compute, download } = &*self.streams;
        let roi_bytes: &[u8] = match rois.adu() {
            Adu::U16(values) => bytemuck::cast_slice(values),
            Adu::F32(values) => bytemuck::cast_slice(values),
        };
        let buffer = place.buffers.rois.as_mut().expect("room was made");
        // SAFETY: the flight, or the caller if this fails, holds the tensors until the device is done with them.
        unsafe { buffer.upload(roi_bytes, upload) }?;
        if let (Some(buffer), Some(_)) = (&mut place.buffers.corners, maps) {
            // SAFETY: as above.
            unsafe { buffer.upload(corners, upload) }?;
        }
        place.uploaded.record(upload)?;
        place.uploaded.before(compute)?;
        let at = FitAddresses {
            rois: address(&place.buffers.rois),
            maps: maps.map(|maps| maps.addresses(address(&place.buffers.corners))),
            fits: address(&place.buffers.results),
            codes: address(&place.buffers.results) + (rois.len() * row_bytes(setting)) as u64,
        };
        let call = FitCall::on_device(setting.model(), setting.camera(), rois.side(), rois.len() as u64, &at);
        // SAFETY: planned for this model, type and camera; the buffers have room for what `call` says (`place`), ROIs lie on the
        // maps (`asked`), and all of it belongs to the flight until it has landed.
        unsafe { self.rounds.launch(&launch, &call, (rois.len(), 0), in_rounds, compute) }?;
        place.computed.record(compute)?;
        place.computed.before(download)?;
        let made = place.buffers.results.as_ref().expect("room was made");
        // SAFETY: the flight holds the results and reads them when it has landed.
        unsafe { made.download(results, download) }?;
        place.landed.record(download)
    }
}

impl Maps {
    fn addresses(&self, corners: u64) -> MapAddresses {
        let [gain, bias, variance] = self.buffers.each_ref().map(Buffer::address);
        MapAddresses { corners, gain, bias, variance }
    }
}

/// Bytes of a row of results.
fn row_bytes(setting: &Setting) -> usize {
    Columns::of(setting.model().psf()).count() * size_of::<f32>()
}

impl Engine for GaussMle {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError> {
        self.try_start(inputs, setting).map_err(|error| self.context.judged(error))
    }

    fn memory(&self) -> Memory {
        Memory::Pinned(Arc::new(HostMemory::of(&self.context)))
    }

    fn device_bytes(&self) -> u64 {
        self.heap.held_bytes()
    }

    fn rest(&mut self) {
        self.free();
        if let Err(error) = self.context.trim() {
            tracing::warn!(%error, "an idle GPU keeps its memory");
        }
    }
}

impl GaussMle {
    /// Frees the memory of batches, for others in this process. No batch is in flight.
    pub(super) fn free(&mut self) {
        self.cameras.clear();
        self.rounds.rest();
        self.search.rest();
        self.empty();
        self.results.clear();
        if let Err(error) = self.fill() {
            tracing::warn!(%error, "fewer batches at once than there could be");
        }
    }

    /// Marks a place as taken by a batch in flight.
    fn taken(&self, place: Place) -> Taken {
        Taken { place: Some(place), back: self.back.clone(), streams: Arc::clone(&self.streams) }
    }

    fn try_start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError> {
        if let Some((setting, options)) = setting.and_then(|setting| Some((setting, setting.finder()?))) {
            return self.start_search(inputs, setting, options);
        }
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let (rois, setting) = asked(&views, setting)?;
        if rois.is_empty() {
            let none = outputs(Columns::of(setting.model().psf()), 0, Bytes::new(), Bytes::new());
            return Ok(Flight::Landed(none));
        }
        let maps = self.maps(setting.camera())?;
        let corners = views[1].data;
        let (count, row_bytes) = (rois.len(), row_bytes(setting));
        let result_bytes = count * (row_bytes + CODE_BYTES);
        let corner_bytes = if maps.is_some() { corners.len() } else { 0 };
        let mut place = self.place(&Room {
            rois: views[0].data.len(),
            corners: corner_bytes,
            results: result_bytes,
            ..Room::default()
        })?;
        let mut results = self.results.lend(result_bytes);
        let begun = self.begin(&mut place, &rois, corners, setting, maps.as_ref(), &mut results);
        if let Err(error) = begun {
            // Work that was enqueued may still read and write.
            self.streams.settle();
            self.put_back(place);
            return Err(error.into());
        }
        let columns = Columns::of(setting.model().psf());
        drop(views);
        Ok(Flight::Airborne(Box::new(Fitting {
            taken: self.taken(place),
            columns,
            count,
            results,
            _inputs: inputs,
            _maps: maps,
        })))
    }
}

/// The place of a batch in flight. Dropping it waits for the device.
struct Taken {
    place: Option<Place>,
    back: Sender<Place>,
    streams: Arc<Streams>,
}

impl Taken {
    /// Waits for the device, and gives the place to the next batch.
    fn wait(&mut self) -> Result<(), CudaError> {
        let Some(place) = self.place.take() else { return Ok(()) };
        let landed = place.landed.wait();
        if landed.is_err() {
            // The device may still read and write.
            self.streams.settle();
        }
        // An error: the engine has been dropped.
        let _ = self.back.send(place);
        landed
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::debug!(%error, "a batch that nobody waits for failed");
        }
    }
}

/// A batch in flight. Holds all that the device reads and writes for it.
struct Fitting {
    /// Declared before the memory that the device uses, so that it is dropped first and waits.
    taken: Taken,
    columns: Columns,
    count: usize,
    results: Lent,
    _inputs: Vec<Tensor>,
    _maps: Option<Maps>,
}

impl Airborne for Fitting {
    fn land(mut self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        self.taken.wait()?;
        let mut rows = self.results.freeze();
        let codes = rows.split_off(rows.len() - self.count * CODE_BYTES);
        Ok(outputs(self.columns, self.count, rows, codes))
    }
}
