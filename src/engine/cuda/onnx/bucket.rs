//! The device memory of batches of one size: for inputs and outputs, bound to the session once.

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

/// The memory for one batch size in one place.
pub(super) struct Bucket {
    /// The shapes of the inputs.
    pub(super) shapes: Vec<Vec<usize>>,
    /// In the order of the signature.
    pub(super) outputs: Vec<Output>,
    /// Binds all that stays the same from run to run. Declared, and so dropped, before the buffers that it uses.
    pub(super) binding: Binding,
    /// The options of its runs.
    pub(super) options: RunOptions,
    /// Whether its runs replay a graph, and whether it is still to be found out if they may.
    pub(super) recorded: bool,
    pub(super) untried: bool,
    inputs: Vec<Input>,
    /// The pixels of the first input, once pixels have come for it.
    pixels: Option<Pixels>,
    /// The reduced output, if an output can be reduced.
    pub(super) reduced: Option<Reduced>,
    /// When it was last used.
    pub(super) used: u64,
}

/// Where an input is read.
enum Input {
    /// On the device.
    Device(Arc<Buffer>),
    /// On the host, where it was assembled.
    Host,
}

/// Where an output is written.
pub(super) enum Output {
    /// To our own memory on the device.
    Ours {
        /// That memory.
        buffer: Arc<Buffer>,
        /// Its extents.
        shape: Vec<usize>,
        /// Whether the output is an input, which no run writes.
        is_input: bool,
    },
    /// To memory that ONNX Runtime allocates on the host, since the size is not known before a run.
    Open,
}

impl Output {
    /// Whether a run produces it.
    pub(super) fn comes_of_a_run(&self) -> bool {
        !matches!(self, Output::Ours { is_input: true, .. })
    }
}

/// The bytes that a tensor takes.
fn bytes_of(datatype: DataType, shape: &[usize]) -> Result<usize, EngineError> {
    let size = datatype.size().unwrap_or(0);
    let bytes = shape.iter().try_fold(size, |bytes, extent| bytes.checked_mul(*extent));
    bytes.ok_or_else(|| EngineError::Input(format!("a tensor of {shape:?} does not fit in memory")))
}

impl Bucket {
    /// Frees our own memory, but leaks what belongs to ONNX Runtime.
    pub(super) fn leak(self) {
        std::mem::forget(self.binding);
    }

    /// Allocates memory for inputs of these shapes that the session reads on the device, and for outputs whose shapes are known.
    ///
    /// # Errors
    /// If too little memory is free, or ONNX Runtime refuses.
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
            // SAFETY: the buffer has room for the tensor, and is dropped after the binding; whoever drops a bucket has waited for
            // its runs.
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
                // Not copied by ONNX Runtime: it would do so outside our stream, and on an H100 the copy came before the upload.
                let (buffer, shape) = (Arc::clone(buffer), shapes[input].clone());
                outputs.push(Output::Ours { buffer, shape, is_input: true });
                continue;
            }
            let Some(shape) = shape else {
                // Bound in the order of the outputs, since a run returns its values in this order.
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
            untried: true,
            inputs,
            pixels: None,
            reduced: None,
            used: 0,
        })
    }

    /// Whether a run produces any output: a run with no outputs bound is not allowed.
    pub(super) fn runs(&self) -> bool {
        self.outputs.iter().any(Output::comes_of_a_run)
    }

    /// Whether all that runs read and write is on the device, at fixed addresses.
    pub(super) fn is_fixed(&self) -> bool {
        self.runs()
            && !self.reads_host()
            && self.outputs.iter().all(|output| matches!(output, Output::Ours { .. }))
    }

    /// Whether outputs are in our own memory.
    pub(super) fn binds_outputs(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Ours { .. }))
    }

    /// Whether a run reads host memory.
    pub(super) fn reads_host(&self) -> bool {
        self.inputs.iter().any(|input| matches!(input, Input::Host))
    }

    /// Zeros for each input that runs read from the host, with the input's index.
    pub(super) fn zeros_of_host(&self, signature: &Signature) -> Vec<(usize, Tensor)> {
        let inputs = self.inputs.iter().zip(&signature.inputs).zip(&self.shapes).enumerate();
        let of_host = inputs.filter(|(_, ((input, _), _))| matches!(input, Input::Host));
        of_host.map(|(index, ((_, spec), shape))| (index, Tensor::zeros(spec.datatype, shape))).collect()
    }

    /// Device memory of the inputs, in bytes.
    pub(super) fn input_bytes(&self) -> usize {
        let bytes = |input: &Input| if let Input::Device(buffer) = input { buffer.bytes() } else { 0 };
        self.inputs.iter().map(bytes).sum()
    }

    /// Allocates memory for pixels of the first input, unless there is some.
    ///
    /// # Errors
    /// If too little is free.
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

    /// Enqueues the copy of a batch's pixels.
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

    /// Enqueues the conversion of pixels to the first input's numbers; pixels have 16 bits if `wide`.
    #[allow(unsafe_code, reason = "a kernel is launched")]
    pub(super) fn normalize(
        &self,
        normalizer: &Normalizer,
        wide: bool,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        match &self.pixels {
            // SAFETY: the first input's buffer has room for the numbers and lives as long as this; whoever drops it has waited for runs.
            Some(pixels) => unsafe { normalizer.launch(pixels, wide, stream) },
            None => Ok(()),
        }
    }

    /// Enqueues the copy of an input to where runs read it, or has runs read it in place.
    ///
    /// # Safety
    /// The tensor must stay unchanged until the stream and the next run have passed this.
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

    /// Has the next run allocate memory for outputs whose shapes are not known.
    pub(super) fn open(&mut self, signature: &Signature, place: Where) -> Result<(), EngineError> {
        for (output, spec) in self.outputs.iter().zip(&signature.outputs) {
            if matches!(output, Output::Open) {
                self.binding.open_output(&spec.name, place).map_err(EngineError::Device)?;
            }
        }
        Ok(())
    }
}
