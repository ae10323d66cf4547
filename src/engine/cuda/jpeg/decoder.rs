//! Batches of JPEGs on a GPU: decoded by nvJPEG where a kernel then resizes them, so that no more than what a model takes comes back.
//!
//! A photo of 500 × 375 is 562,500 bytes decoded and 150,528 as an input of 224 × 224; one of 1920 × 1080 is 6,220,800: 41 times
//! as much. So pixels stay on the device, which also spares the host the resizing, and the turn that EXIF asks for.
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

/// What decoded images of one batch may take on the device; a larger one is a batch of its own.
pub(super) const PIXEL_BYTES_MAX: usize = 256 << 20;

/// What the library takes for itself, and items and descriptions beside it, as far as one can say: it allocates where it likes.
const BESIDE_BYTES: u64 = 128 << 20;

/// What a decoder may take of a GPU, bytes: what is asked for before one is taken. Who finds less decodes fewer files there.
pub(super) const DEVICE_BYTES: u64 = PIXEL_BYTES_MAX as u64 + BESIDE_BYTES;

/// Where rows and images begin on the device.
const ALIGNED: usize = 256;

/// A file and what is to become of it.
pub(super) struct File<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) jpeg: PlainJpeg,
    /// Of bytes.
    pub(super) to: &'a Preprocess,
}

/// Why a batch was not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// One of its files is not to be decoded.
    File(String),
    /// Too little memory was free.
    Memory(String),
    /// The decoder is not to be trusted any more.
    Broken(String),
}

impl From<CudaError> for Failed {
    fn from(error: CudaError) -> Failed {
        match error.fault() {
            Fault::OutOfMemory => Failed::Memory(error.to_string()),
            Fault::Input | Fault::Sticky => Failed::Broken(error.to_string()),
        }
    }
}

/// Bytes that an image takes on the device.
pub(super) fn pixel_bytes(jpeg: &PlainJpeg) -> usize {
    (jpeg.width as usize * jpeg.height as usize * 3).next_multiple_of(ALIGNED)
}

/// A decoder in a GPU's context. For one thread, to which that is bound.
pub(super) struct Decoder {
    /// Before the stream that it works on.
    session: Session,
    context: Arc<Context>,
    heap: Arc<Heap>,
    stream: Arc<CudaStream>,
    preprocessor: Preprocessor,
    landed: Event,
    pixels: Option<Buffer>,
    told: Option<Buffer>,
    /// What was uploaded there last, which the device may still read.
    telling: Vec<u8>,
    items: Option<Buffer>,
    results: Blocks,
}

impl Decoder {
    /// In this context, which it keeps.
    ///
    /// # Errors
    /// What the library or the driver refuses.
    pub(super) fn new(library: &Arc<Library>, context: &Arc<Context>) -> Result<Decoder, Failed> {
        context.bind()?;
        let session = Session::new(library).map_err(|status| {
            Failed::Broken(format!("{} makes no decoder on {}: {status}", library.name(), context.gpu().id))
        })?;
        Ok(Decoder {
            session,
            heap: Heap::new(context),
            // One of three is enough: who waits for a file waits for all of its batch.
            stream: context.streams()?.compute,
            preprocessor: Preprocessor::new(context)?,
            landed: context.event()?,
            pixels: None,
            told: None,
            telling: Vec::new(),
            items: None,
            results: Blocks::new(Memory::Pinned(Arc::new(HostMemory::of(context)))),
            context: Arc::clone(context),
        })
    }

    /// Whether the GPU has engines for it.
    pub(super) fn hardware(&self) -> bool {
        self.session.hardware()
    }

    /// Decodes files of a batch and resizes each as it asks: the item of each, in their order.
    ///
    /// # Errors
    /// Why there are none. Where the decoder is broken, it is only to be dropped.
    pub(super) fn decode(&mut self, files: &[File<'_>]) -> Result<Vec<Vec<u8>>, Failed> {
        let failed = match self.begin(files) {
            Ok(items) => return Ok(items),
            Err(failed) => failed,
        };
        // What was begun may still read and write. And what the library says may come of a context that is broken.
        match synchronize(&self.stream) {
            Ok(()) => Err(failed),
            Err(error) => {
                self.session.abandon();
                let (Failed::File(reason) | Failed::Memory(reason) | Failed::Broken(reason)) = failed;
                Err(Failed::Broken(format!("{reason}; {error}")))
            }
        }
    }

    fn begin(&mut self, files: &[File<'_>]) -> Result<Vec<Vec<u8>>, Failed> {
        // Where each image lies on the device, and each item.
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
        // The library tells one status of all files: one that it leaves out is to be black, not somebody's picture of before. It is waited for,
        // since decoders in hardware write before what else is on the stream.
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
        // SAFETY: each has as many bytes as its rows take (`pixel_bytes`); files and targets are there until the end of this,
        // which waits for the stream, as does whoever calls it where it fails.
        unsafe { self.session.decode(&sources, &mut targets, self.stream.cu_stream()) }.map_err(
            |status| {
                let reason = status.to_string();
                match (status.is_of_file(), status.is_of_memory()) {
                    (true, _) => Failed::File(reason),
                    (_, true) => Failed::Memory(reason),
                    _ => Failed::Broken(reason),
                }
            },
        )?;

        // Descriptions of images and tables of weights, of all groups one behind the other.
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
        // SAFETY: it stays until the next batch, before which the stream was waited for.
        unsafe { buffer.upload(&self.telling, &self.stream) }?;
        let (told_address, items_address) = (address(&self.told), address(&self.items));
        for ((batch, (images, tables)), item) in batches.iter().zip(told_at).zip(&items) {
            let call = batch.call(told_address + images, told_address + tables, items_address + *item as u64);
            // SAFETY: descriptions and tables were copied there, images were decoded where they say, and there is room for the
            // items; all of it is ours until the end of this.
            unsafe { self.preprocessor.launch(&batch.launches(), &call, &self.stream) }?;
        }
        let mut results = self.results.lend(item_bytes);
        // SAFETY: looked at when the stream is past it.
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

    /// Gives back what the next batch can get again.
    pub(super) fn rest(&mut self) {
        (self.pixels, self.told, self.items) = (None, None, None);
        self.results.clear();
        if let Err(error) = self.context.trim() {
            tracing::debug!(%error, "an idle decoder keeps its memory");
        }
    }
}

/// Files that become items of one kind: one launch.
struct Group<'a> {
    to: &'a Preprocess,
    /// By their number in the batch.
    files: Vec<usize>,
    jpegs: Vec<PlainJpeg>,
}

impl Group<'_> {
    /// What the launch takes, with images where they lie from `at` on.
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

/// The groups of a batch.
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

/// The next place for so many bytes.
fn place(end: &mut usize, bytes: usize) -> usize {
    let begin = end.next_multiple_of(ALIGNED);
    *end = begin + bytes;
    begin
}
