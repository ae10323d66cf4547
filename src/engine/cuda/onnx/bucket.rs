//! What batches of one size have on the device: memory for what goes in and comes out, bound to the session once.

use super::{
    super::{Buffer, CudaError, Heap},
    pixels::{Normalizer, Pixels},
    reduced::Reduced,
};
use crate::engine::{
    DataType, EngineError, Signature, Tensor,
    ends::Reading,
    onnx::{
        binding::{Binding, Bound, Where},
        session::Session,
    },
};
use cudarc::driver::CudaStream;
use ort::session::RunOptions;
use std::sync::Arc;

/// One batch size, of one place.
pub(super) struct Bucket {
    /// Of the inputs.
    pub(super) shapes: Vec<Vec<usize>>,
    /// In the order of the signature.
    pub(super) outputs: Vec<Output>,
    /// Has all that stays the same from run to run. Before the buffers: nobody else may use them.
    pub(super) binding: Binding,
    /// How it is run.
    pub(super) options: RunOptions,
    /// Whether that is a graph's replay.
    pub(super) recorded: bool,
    inputs: Vec<Input>,
    /// Of the first input, once pixels came for it.
    pixels: Option<Pixels>,
    /// What is made of an output, where that can be reduced.
    pub(super) reduced: Option<Reduced>,
    /// When it was used last.
    pub(super) used: u64,
}

/// Where an input is read.
enum Input {
    /// On the device.
    Device(Arc<Buffer>),
    /// On the host, where it was put together.
    Host,
}

/// Where an output is written.
pub(super) enum Output {
    /// To memory on the device that is ours.
    Ours {
        /// There.
        buffer: Arc<Buffer>,
        /// Its extents.
        shape: Vec<usize>,
        /// Whether it is an input, which no run writes.
        is_input: bool,
    },
    /// To memory that ONNX Runtime makes, on the host: nobody knows how much before a run.
    Open,
}

impl Output {
    /// Whether it comes of a run.
    pub(super) fn comes_of_a_run(&self) -> bool {
        !matches!(self, Output::Ours { is_input: true, .. })
    }
}

/// So many bytes does a tensor take.
fn bytes_of(datatype: DataType, shape: &[usize]) -> Result<usize, EngineError> {
    let size = datatype.size().unwrap_or(0);
    let bytes = shape.iter().try_fold(size, |bytes, extent| bytes.checked_mul(*extent));
    bytes.ok_or_else(|| EngineError::Input(format!("a tensor of {shape:?} does not fit in memory")))
}

impl Bucket {
    /// Gives back what is ours, and leaves what is ONNX Runtime's.
    pub(super) fn leak(self) {
        std::mem::forget(self.binding);
    }

    /// Memory for inputs of these shapes, and for the outputs whose shapes are known; on the device where the session reads them
    /// there.
    ///
    /// # Errors
    /// Where too little is free, or ONNX Runtime refuses.
    pub(super) fn new(
        session: &Session,
        heap: &Arc<Heap>,
        shapes: &[Vec<usize>],
        known: Vec<Option<Vec<usize>>>,
        device: Where,
        on_gpu: &[bool],
        options: RunOptions,
    ) -> Result<Bucket, EngineError> {
        let signature = session.signature();
        let mut binding = session.binding().map_err(EngineError::Device)?;
        let mut inputs = Vec::with_capacity(shapes.len());
        for ((spec, shape), on_gpu) in signature.inputs.iter().zip(shapes).zip(on_gpu) {
            if !on_gpu {
                inputs.push(Input::Host);
                continue;
            }
            let buffer = Arc::new(Buffer::new(heap, bytes_of(spec.datatype, shape)?)?);
            let tensor = Bound {
                name: &spec.name,
                datatype: spec.datatype,
                shape,
                address: buffer.address(),
                place: device,
            };
            // SAFETY: the buffer has room for the tensor, and goes after the binding; whoever drops a bucket has waited for its
            // runs.
            #[allow(unsafe_code, reason = "memory is lent to ONNX Runtime")]
            unsafe { binding.input(tensor) }.map_err(EngineError::Input)?;
            inputs.push(Input::Device(buffer));
        }
        let mut outputs = Vec::with_capacity(known.len());
        for (spec, shape) in signature.outputs.iter().zip(known) {
            let input = signature.inputs.iter().position(|input| input.name == spec.name);
            if let Some(input) = input
                && let Input::Device(buffer) = &inputs[input]
            {
                // Not by ONNX Runtime: what it copies so is not on our stream, and it had come before the upload on an H100.
                let (buffer, shape) = (Arc::clone(buffer), shapes[input].clone());
                outputs.push(Output::Ours { buffer, shape, is_input: true });
                continue;
            }
            let Some(shape) = shape else {
                // In its place among the others, which is that of the values of a run.
                binding.open_output(&spec.name, Where::Host).map_err(EngineError::Device)?;
                outputs.push(Output::Open);
                continue;
            };
            let bytes = bytes_of(spec.datatype, &shape)?;
            let buffer = Buffer::new(heap, bytes)?;
            let tensor = Bound {
                name: &spec.name,
                datatype: spec.datatype,
                shape: &shape,
                address: buffer.address(),
                place: device,
            };
            // SAFETY: as above.
            #[allow(unsafe_code, reason = "memory is lent to ONNX Runtime")]
            unsafe { binding.output(tensor) }.map_err(EngineError::Input)?;
            outputs.push(Output::Ours { buffer: Arc::new(buffer), shape, is_input: false });
        }
        Ok(Bucket {
            shapes: shapes.to_vec(),
            outputs,
            binding,
            options,
            recorded: false,
            inputs,
            pixels: None,
            reduced: None,
            used: 0,
        })
    }

    /// Whether there is anything that a run gives: it has to be asked for something.
    pub(super) fn runs(&self) -> bool {
        self.outputs.iter().any(Output::comes_of_a_run)
    }

    /// Whether all that runs read and write is on the device, at addresses that stay.
    pub(super) fn is_fixed(&self) -> bool {
        self.runs()
            && !self.reads_host()
            && self.outputs.iter().all(|output| matches!(output, Output::Ours { .. }))
    }

    /// Whether a run writes an output to memory of ours.
    pub(super) fn binds_outputs(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Ours { .. }))
    }

    /// Whether a run reads memory of the host.
    pub(super) fn reads_host(&self) -> bool {
        self.inputs.iter().any(|input| matches!(input, Input::Host))
    }

    /// Zeros for each input that runs read from the host, with its number.
    pub(super) fn zeros_of_host(&self, signature: &Signature) -> Vec<(usize, Tensor)> {
        let inputs = self.inputs.iter().zip(&signature.inputs).zip(&self.shapes).enumerate();
        let of_host = inputs.filter(|(_, ((input, _), _))| matches!(input, Input::Host));
        of_host.map(|(index, ((_, spec), shape))| (index, Tensor::zeros(spec.datatype, shape))).collect()
    }

    /// What the inputs take on the device.
    pub(super) fn input_bytes(&self) -> usize {
        let bytes = |input: &Input| if let Input::Device(buffer) = input { buffer.bytes() } else { 0 };
        self.inputs.iter().map(bytes).sum()
    }

    /// Makes memory for pixels of the first input, where there is none.
    ///
    /// # Errors
    /// Where too little is free.
    pub(super) fn expect_pixels(
        &mut self,
        heap: &Arc<Heap>,
        reading: &Reading,
        stream: &CudaStream,
    ) -> Result<(), EngineError> {
        if self.pixels.is_some() {
            return Ok(());
        }
        let Some(Input::Device(numbers)) = self.inputs.first() else {
            return Err(EngineError::Input("the GPU does not read the pixels".to_owned()));
        };
        self.pixels = Some(Normalizer::make(heap, reading, numbers.address(), stream)?);
        Ok(())
    }

    /// Begins to copy the pixels of a batch.
    ///
    /// # Safety
    /// As [`Bucket::fill`].
    #[allow(unsafe_code, reason = "the device copies by itself")]
    pub(super) unsafe fn fill_pixels(
        &mut self,
        tensor: &Tensor,
        stream: &CudaStream,
    ) -> Result<(), EngineError> {
        match &mut self.pixels {
            // SAFETY: the caller's promise.
            Some(pixels) => Ok(unsafe { pixels.upload(tensor, stream) }?),
            None => Err(EngineError::Device("there is no memory for pixels".to_owned())),
        }
    }

    /// Begins to make the first input's numbers of its pixels, of 16 bits if they are `wide`.
    #[allow(unsafe_code, reason = "a kernel is launched")]
    pub(super) fn normalize(
        &self,
        normalizer: &Normalizer,
        wide: bool,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        match &self.pixels {
            // SAFETY: the first input's buffer has room for them and goes with this; whoever drops it has waited for its runs.
            Some(pixels) => unsafe { normalizer.launch(pixels, wide, stream) },
            None => Ok(()),
        }
    }

    /// Begins to copy an input to where runs read it, or has them read it where it is.
    ///
    /// # Safety
    /// The tensor stays as it is until the stream and the next run have come past this.
    #[allow(unsafe_code, reason = "the device copies by itself")]
    pub(super) unsafe fn fill(
        &mut self,
        index: usize,
        name: &str,
        tensor: &Tensor,
        stream: &CudaStream,
    ) -> Result<(), EngineError> {
        match &mut self.inputs[index] {
            Input::Device(_) if tensor.data.is_empty() => Ok(()),
            // SAFETY: the caller's promise.
            Input::Device(buffer) => Ok(unsafe { buffer.upload(&tensor.data, stream) }?),
            Input::Host => {
                let tensor = Bound {
                    name,
                    datatype: tensor.datatype,
                    shape: &tensor.shape,
                    address: tensor.data.as_ptr() as u64,
                    place: Where::Host,
                };
                // SAFETY: as above; the data are aligned for their type, as a worker assembles them.
                unsafe { self.binding.input(tensor) }.map_err(EngineError::Input)
            }
        }
    }

    /// Has the next run make memory anew for outputs that are not known.
    pub(super) fn open(&mut self, signature: &Signature, place: Where) -> Result<(), EngineError> {
        for (output, spec) in self.outputs.iter().zip(&signature.outputs) {
            if matches!(output, Output::Open) {
                self.binding.open_output(&spec.name, place).map_err(EngineError::Device)?;
            }
        }
        Ok(())
    }
}
