//! Batches of JPEGs on a GPU: nvJPEG decodes them, and a kernel resizes them there, so that only a model's input is copied back.
//!
//! A photo of 500 × 375 is 562,500 bytes decoded and 150,528 as an input of 224 × 224; one of 1920 × 1080 is 6,220,800: 41 times
//! as much. So pixels stay on the device. That also spares the host the resizing, and the rotation that EXIF asks for.
#![allow(unsafe_code)]

use super::library::{Library, Session, Target};
use crate::{
    engine::{
        cuda::{
            Buffer, Context, CudaError, Event, Fault, Heap, HostMemory,
            context::synchronize,
            memory::{address, room},
            preprocess::Preprocessor,
        },
        kernels::preprocess::{Batch, Pixels},
        staging::{Blocks, Memory},
    },
    image::{PlainJpeg, Preprocess, Region},
};
use cudarc::driver::CudaStream;
use std::{ptr, sync::Arc};

/// Bytes that the decoded images of one batch may take on the device; a larger image is a batch of its own.
pub(super) const PIXEL_BYTES_MAX: usize = 256 << 20;

/// An estimate of what the library allocates for itself, and of items and descriptions. The library's allocations cannot be bounded.
const BESIDE_BYTES: u64 = 128 << 20;

/// Bytes of a GPU that a decoder may take, to be free before it is created. With less, it decodes fewer files at once.
pub(super) const DEVICE_BYTES: u64 = PIXEL_BYTES_MAX as u64 + BESIDE_BYTES;

/// Alignment of rows and images on the device.
const ALIGNED: usize = 256;

/// A file, and the item that it is to become.
pub(super) struct File<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) jpeg: PlainJpeg,
    /// An item of bytes.
    pub(super) to: &'a Preprocess,
}

/// Why a batch was not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// One of its files cannot be decoded.
    File(String),
    /// Too little memory was free, or something else was in the way, for now.
    Memory(String),
    /// The decoder cannot be trusted any more.
    Broken(String),
}

impl From<CudaError> for Failed {
    fn from(error: CudaError) -> Failed {
        match error.fault() {
            Fault::OutOfMemory | Fault::Passing => Failed::Memory(error.to_string()),
            Fault::Input | Fault::Sticky => Failed::Broken(error.to_string()),
        }
    }
}

/// Bytes that an image takes on the device.
pub(super) fn pixel_bytes(jpeg: &PlainJpeg) -> usize {
    (jpeg.width as usize * jpeg.height as usize * 3).next_multiple_of(ALIGNED)
}

/// A decoder in a GPU's context. For one thread, to which the context is bound.
pub(super) struct Decoder {
    /// Made anew for the next batch after it has failed.
    session: Option<Session>,
    library: Arc<Library>,
    /// Whether it has just failed: it may go on with what it has begun.
    doubted: bool,
    heap: Arc<Heap>,
    stream: Arc<CudaStream>,
    preprocessor: Preprocessor,
    landed: Event,
    pixels: Option<Buffer>,
    told: Option<Buffer>,
    /// The last upload, which the device may still read.
    telling: Vec<u8>,
    items: Option<Buffer>,
    results: Blocks,
    /// Declared last, so that it is dropped last: what was made in the context keeps the GPU's, too.
    context: Arc<Context>,
}

impl Decoder {
    /// A decoder in this context, which it keeps alive.
    ///
    /// # Errors
    /// If the library or the driver refuses.
    pub(super) fn new(library: &Arc<Library>, context: &Arc<Context>) -> Result<Decoder, Failed> {
        context.bind()?;
        let mut decoder = Decoder {
            session: None,
            library: Arc::clone(library),
            doubted: false,
            heap: Heap::new(context),
            // One stream is enough: whoever waits for a file waits for its whole batch.
            stream: context.streams()?.compute,
            preprocessor: Preprocessor::new(context)?,
            landed: context.event()?,
            pixels: None,
            told: None,
            telling: Vec::new(),
            items: None,
            results: Blocks::new(Memory::Pinned(Arc::new(HostMemory::of(context)))),
            context: Arc::clone(context),
        };
        decoder.session = Some(make(library, context)?);
        Ok(decoder)
    }

    /// Whether the GPU decodes in dedicated hardware.
    pub(super) fn hardware(&self) -> bool {
        self.session.as_ref().is_some_and(Session::hardware)
    }

    /// Decodes the files of a batch and resizes each as its `to` says. Returns the items in the files' order.
    ///
    /// # Errors
    /// Why there are none. A broken decoder must only be dropped.
    pub(super) fn decode(&mut self, files: &[File<'_>]) -> Result<Vec<Vec<u8>>, Failed> {
        let failed = match self.begin(files) {
            Ok(items) => return Ok(items),
            Err(failed) => failed,
        };
        // Work that was enqueued may still read and write. And the library's error may be due to a broken context.
        match synchronize(&self.stream) {
            Ok(()) => {
                if std::mem::take(&mut self.doubted) {
                    self.end_session();
                }
                Err(failed)
            }
            Err(error) => {
                if let Some(session) = &mut self.session {
                    session.abandon();
                }
                let (Failed::File(reason) | Failed::Memory(reason) | Failed::Broken(reason)) = failed;
                Err(Failed::Broken(format!("{reason}; {error}")))
            }
        }
    }

    /// Ends the session. The library then waits for its hardware decoders, which may write what they have begun after it has reported an
    /// error, whatever that was, and which no stream shows: only afterwards may our memory be used for something else.
    fn end_session(&mut self) {
        let _unrecorded = self.context.no_recording();
        self.session = None;
    }

    fn begin(&mut self, files: &[File<'_>]) -> Result<Vec<Vec<u8>>, Failed> {
        // The offsets of images and items on the device.
        let mut bytes = 0;
        let places: Vec<usize> =
            files.iter().map(|file| place(&mut bytes, pixel_bytes(&file.jpeg))).collect();
        let groups = grouped(files);
        let sizes: Vec<usize> = groups.iter().map(|group| group.to.out_bytes() * group.files.len()).collect();
        let mut item_bytes = 0;
        let items: Vec<usize> = sizes.iter().map(|size| place(&mut item_bytes, *size)).collect();
        room(&self.heap, &mut self.pixels, bytes)?;
        room(&self.heap, &mut self.items, item_bytes)?;
        let at = address(&self.pixels);
        // The library reports one status for all files. A file that it skips must become black, not the picture of an earlier request. The
        // fill is waited for, since hardware decoders write before earlier work on the stream is done.
        if let Some(pixels) = &self.pixels {
            pixels.fill(0, &self.stream)?;
            synchronize(&self.stream).map_err(CudaError::when("work on the GPU failed"))?;
        }

        let mut targets: Vec<Target> = (files.iter().zip(&places))
            .map(|(file, place)| Target {
                planes: [
                    ptr::with_exposed_provenance_mut((at + *place as u64) as usize),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                ],
                pitches: [file.jpeg.width as usize * 3, 0, 0, 0],
            })
            .collect();
        let sources: Vec<&[u8]> = files.iter().map(|file| file.bytes).collect();
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(make(&self.library, &self.context)?),
        };
        // SAFETY: each target has as many bytes as its rows take (`pixel_bytes`); files and targets live until the end of this, which
        // waits for the stream, as does the caller if this fails.
        if let Err(status) = unsafe { session.decode(&sources, &mut targets, self.stream.cu_stream()) } {
            self.doubted = true;
            let reason = status.to_string();
            return Err(match (status.is_of_file(), status.is_of_memory()) {
                (true, _) => Failed::File(reason),
                (_, true) => Failed::Memory(reason),
                _ => Failed::Broken(reason),
            });
        }

        // Descriptions of images and tables of weights, of all groups in succession.
        let batches = groups.iter().map(|group| group.batch(at, &places));
        let batches: Vec<Batch> = batches.collect::<Result<_, _>>()?;
        let mut told = Vec::new();
        let mut told_at = Vec::new();
        for batch in &batches {
            let mut put = |bytes: &[u8]| {
                told.resize(told.len().next_multiple_of(ALIGNED), 0);
                told.extend_from_slice(bytes);
                (told.len() - bytes.len()) as u64
            };
            told_at
                .push((put(bytemuck::cast_slice(batch.images())), put(bytemuck::cast_slice(batch.tables()))));
        }
        room(&self.heap, &mut self.told, told.len())?;
        self.telling = told;
        let buffer = self.told.as_ref().expect("room was made");
        // SAFETY: `telling` is unchanged until the next batch, before which the stream has been waited for.
        unsafe { buffer.upload(&self.telling, &self.stream) }?;
        let (told_address, items_address) = (address(&self.told), address(&self.items));
        for ((batch, (images, tables)), item) in batches.iter().zip(told_at).zip(&items) {
            let call = batch.call(told_address + images, told_address + tables, items_address + *item as u64);
            // SAFETY: descriptions and tables were copied there, images were decoded where they say, and there is room for the
            // items; all of it stays ours until the end of this.
            unsafe { self.preprocessor.launch(&batch.launches(), &call, &self.stream) }?;
        }
        let mut results = self.results.lend(item_bytes);
        // SAFETY: read only after the stream has passed this.
        unsafe { self.items.as_ref().expect("room was made").download(&mut results, &self.stream) }?;
        self.landed.record(&self.stream)?;
        self.landed.wait()?;
        let mut answers = vec![Vec::new(); files.len()];
        for (group, begin) in groups.iter().zip(items) {
            let of_group = results[begin..].chunks_exact(group.to.out_bytes());
            for (file, item) in group.files.iter().zip(of_group) {
                answers[*file] = item.to_vec();
            }
        }
        Ok(answers)
    }

    /// Frees memory that the next batch can allocate again.
    pub(super) fn rest(&mut self) {
        (self.pixels, self.told, self.items) = (None, None, None);
        self.results.clear();
        if let Err(error) = self.context.trim() {
            tracing::debug!(%error, "an idle decoder keeps its memory");
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // Before the stream that it works on.
        match (&mut self.session, self.context.broken()) {
            (Some(session), Some(_)) => session.abandon(),
            _ => self.end_session(),
        }
    }
}

/// A session, made while nobody records a CUDA graph there: its memory comes from allocators that may wait for the whole device.
fn make(library: &Arc<Library>, context: &Context) -> Result<Session, Failed> {
    let _unrecorded = context.no_recording();
    Session::new(library).map_err(|status| {
        let reason = format!("{} makes no decoder on {}: {status}", library.name(), context.gpu().id);
        if status.is_of_memory() { Failed::Memory(reason) } else { Failed::Broken(reason) }
    })
}

/// Files that become items of one kind, in one launch.
struct Group<'a> {
    to: &'a Preprocess,
    /// Indices in the batch.
    files: Vec<usize>,
    jpegs: Vec<PlainJpeg>,
}

impl Group<'_> {
    /// The descriptions for the launch; images lie at `places` from the address `at` on.
    fn batch(&self, at: u64, places: &[usize]) -> Result<Batch, Failed> {
        let mut batch = Batch::new(self.to);
        for (file, jpeg) in self.files.iter().zip(&self.jpegs) {
            let stored = (jpeg.width, jpeg.height);
            let pixels = Pixels::interleaved(at + places[*file] as u64, jpeg.width, 3, false)
                .turned(jpeg.orientation, stored);
            let seen = jpeg.seen();
            let covered = Region { left: 0.0, top: 0.0, width: f64::from(seen.0), height: f64::from(seen.1) };
            batch.push(pixels, seen, seen, covered).map_err(|error| Failed::File(error.to_string()))?;
        }
        Ok(batch)
    }
}

/// Groups a batch's files by the kind of their items.
fn grouped<'a>(files: &[File<'a>]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let known = groups.iter().position(|group| group.to == file.to);
        let index = known.unwrap_or_else(|| {
            groups.push(Group { to: file.to, files: Vec::new(), jpegs: Vec::new() });
            groups.len() - 1
        });
        groups[index].files.push(number);
        groups[index].jpegs.push(file.jpeg);
    }
    groups
}

/// Allocates the next aligned offset for `bytes` bytes.
fn place(end: &mut usize, bytes: usize) -> usize {
    let begin = end.next_multiple_of(ALIGNED);
    *end = begin + bytes;
    begin
}
