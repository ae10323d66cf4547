//! Pixels on the device: they are copied there unchanged, and a kernel on the compute stream converts them to the numbers that the
//! network reads.
#![allow(unsafe_code)]

use super::super::{Buffer, Context, CudaError, Heap, context::synchronize, preprocess::Preprocessor};
use crate::engine::{
    EngineError, PixelInput, Tensor,
    ends::Reading,
    kernels::preprocess::{Batch, Launch, PreprocessCall},
};
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// The kernels, and the conversion that they do.
#[derive(Debug)]
pub(super) struct Normalizer {
    input: PixelInput,
    preprocessor: Preprocessor,
}

/// Memory for the pixels of one batch size, of either depth: a camera may send some images of 16 bits among many of 8, and that
/// must not allocate memory.
#[derive(Debug)]
pub(super) struct Pixels {
    samples: Buffer,
    /// Descriptions of where each image lies, without resizing: the same for every batch.
    _told: Buffer,
    /// The calls for 8 bits and for 16.
    calls: [(Vec<Launch>, PreprocessCall); 2],
}

impl Normalizer {
    /// Loads the kernels.
    pub(super) fn new(context: &Context, input: &PixelInput) -> Result<Normalizer, CudaError> {
        Ok(Normalizer { input: input.clone(), preprocessor: Preprocessor::new(context)? })
    }

    /// How the first input of a batch is read; `None` if it is of the network's own type.
    ///
    /// # Errors
    /// A shape that pixels do not have.
    pub(super) fn reading(&self, inputs: &[Tensor]) -> Option<Result<Reading, EngineError>> {
        let first = inputs.first()?;
        self.input.reading(first.datatype, &first.shape)
    }

    /// Allocates memory for pixels of either depth that are read as `reading` says and converted to the numbers at `numbers`.
    ///
    /// # Errors
    /// If too little is free.
    pub(super) fn make(
        heap: &Arc<Heap>,
        reading: &Reading,
        numbers: u64,
        stream: &CudaStream,
    ) -> Result<Pixels, CudaError> {
        let &Reading { ref to, items, .. } = reading;
        let values = items * to.pixels_shape().into_iter().product::<usize>();
        let samples = Buffer::new(heap, values * size_of::<u16>())?;
        let batches = [false, true].map(|wide| Batch::finished(to, samples.address(), items, wide));
        let [low, high] = batches.each_ref().map(|batch| {
            [bytemuck::cast_slice::<_, u8>(batch.images()), bytemuck::cast_slice(batch.tables())]
        });
        let told: Vec<u8> = [low, high].as_flattened().concat();
        let buffer = Buffer::new(heap, told.len())?;
        // SAFETY: the copy is waited for while both are alive.
        unsafe { buffer.upload(&told, stream) }?;
        synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
        let mut at = buffer.address();
        let calls = batches.map(|batch| {
            let tables = at + size_of_val(batch.images()) as u64;
            let call = batch.call(at, tables, numbers);
            at = tables + size_of_val(batch.tables()) as u64;
            (batch.launches(), call)
        });
        Ok(Pixels { samples, _told: buffer, calls })
    }

    /// Enqueues the conversion of the copied pixels, of 16 bits if `wide`.
    ///
    /// # Safety
    /// There is room for the numbers where [`Normalizer::make`] was told, until the stream has passed this.
    pub(super) unsafe fn launch(
        &self,
        pixels: &Pixels,
        wide: bool,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let (launches, call) = &pixels.calls[usize::from(wide)];
        // SAFETY: descriptions and samples live as long as `pixels`, which is dropped after its runs have ended.
        unsafe { self.preprocessor.launch(launches, call, stream) }
    }
}

impl Pixels {
    /// Enqueues the copy of a batch's pixels.
    ///
    /// # Safety
    /// The tensor must stay unchanged until the stream has passed this.
    pub(super) unsafe fn upload(&mut self, tensor: &Tensor, stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.samples.upload(&tensor.data, stream) }
    }
}
