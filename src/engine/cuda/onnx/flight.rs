//! A batch in flight.

use super::{
    super::{Buffer, CudaError, Event, Streams, context::synchronize},
    bucket::Output,
    reduced::Reduced,
};
use crate::engine::{
    Airborne, DataType, EngineError, Signature, Tensor, TensorSpec,
    onnx::value,
    staging::{Blocks, Lent},
};
use bytes::Bytes;
use cudarc::driver::CudaStream;
use ort::value::DynValue;
use std::sync::{Arc, mpsc::Sender};

/// How an output comes back.
pub(super) enum Arrival {
    /// Copied from our own device memory.
    Copied {
        /// The host memory that it is copied to.
        result: Lent,
        datatype: DataType,
        shape: Vec<usize>,
    },
    /// In memory that ONNX Runtime allocates.
    Open,
}

impl Arrival {
    /// How each output of a batch comes back: whole or reduced, to memory from these blocks. If an output is reduced, only the number of
    /// rows comes back for outputs that are then not read.
    pub(super) fn all(
        outputs: &[Output],
        signature: &Signature,
        reduced: Option<&Reduced>,
        blocks: &Blocks,
    ) -> Vec<Arrival> {
        let arrival = |form: Option<(DataType, Vec<usize>)>| {
            let Some((datatype, shape)) = form else { return Arrival::Open };
            Arrival::Copied { result: blocks.lend(bytes(datatype, &shape)), datatype, shape }
        };
        Arrival::forms(outputs, signature, reduced).map(arrival).collect()
    }

    /// Bytes of each output that is copied.
    pub(super) fn sizes(outputs: &[Output], signature: &Signature, reduced: Option<&Reduced>) -> Vec<usize> {
        let forms = Arrival::forms(outputs, signature, reduced).flatten();
        forms.map(|(datatype, shape)| bytes(datatype, &shape)).filter(|bytes| *bytes > 0).collect()
    }

    /// Type and shape of each output that is copied.
    fn forms<'a>(
        outputs: &'a [Output],
        signature: &'a Signature,
        reduced: Option<&'a Reduced>,
    ) -> impl Iterator<Item = Option<(DataType, Vec<usize>)>> + 'a {
        let form = move |(index, (output, spec)): (usize, (&'a Output, &'a TensorSpec))| {
            let Output::Ours { shape, .. } = output else { return None };
            Some(match reduced {
                None => (spec.datatype, shape.clone()),
                Some(reduced) if reduced.output == index => (reduced.datatype, reduced.shape.clone()),
                Some(_) => (spec.datatype, shape.first().copied().into_iter().chain([0]).collect()),
            })
        };
        outputs.iter().zip(&signature.outputs).enumerate().map(form)
    }
}

fn bytes(datatype: DataType, shape: &[usize]) -> usize {
    shape.iter().product::<usize>() * datatype.size().unwrap_or(0)
}

/// An output in our own memory, its element type and its shape.
type Kept = (Arc<Buffer>, DataType, Vec<usize>);

/// The whole outputs, which stay on the device in case a reduction fails.
pub(super) struct Whole {
    /// Per item: not 0 if the item could not be reduced.
    pub(super) faults: Lent,
    outputs: Vec<Option<Kept>>,
    blocks: Blocks,
}

impl Whole {
    /// All outputs in our own memory, which stay unchanged until the next batch takes the place.
    pub(super) fn of(outputs: &[Output], signature: &Signature, faults: Lent, blocks: &Blocks) -> Whole {
        let kept = outputs.iter().zip(&signature.outputs).map(|(output, spec)| match output {
            Output::Ours { buffer, shape, .. } => Some((Arc::clone(buffer), spec.datatype, shape.clone())),
            Output::Open => None,
        });
        Whole { faults, outputs: kept.collect(), blocks: blocks.clone() }
    }

    /// Copies the whole outputs, if an item could not be reduced.
    fn fetch(&self, stream: &CudaStream) -> Result<Option<Vec<Arrival>>, CudaError> {
        if self.faults.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let fetch = |output: &Option<Kept>| {
            let Some((buffer, datatype, shape)) = output else { return Ok(Arrival::Open) };
            let bytes = bytes(*datatype, shape);
            let mut result = self.blocks.lend(bytes);
            if bytes > 0 {
                // SAFETY: the copy is waited for before anybody reads it.
                #[allow(unsafe_code, reason = "the device copies by itself")]
                unsafe { buffer.download(&mut result, stream) }?;
            }
            Ok(Arrival::Copied { result, datatype: *datatype, shape: shape.clone() })
        };
        // Collected first, so that all buffers live until the wait, even if one copy failed: others are under way.
        let fetched: Vec<Result<Arrival, CudaError>> = self.outputs.iter().map(fetch).collect();
        synchronize(stream).map_err(CudaError::when("work on the GPU failed"))?;
        fetched.into_iter().collect::<Result<_, _>>().map(Some)
    }
}

/// A batch in flight. Holds all that the device reads and writes for it, besides what belongs to its place.
pub(super) struct Running {
    pub(super) place: Option<usize>,
    pub(super) back: Sender<usize>,
    pub(super) landed: Arc<Event>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) whole: Option<Whole>,
    /// Outputs that ONNX Runtime allocated memory for, in their order.
    pub(super) values: Vec<DynValue>,
    pub(super) _inputs: Vec<Tensor>,
    /// Held until the values are gone.
    pub(super) streams: Arc<Streams>,
}

impl Running {
    /// Waits for the device, and gives the place to the next batch.
    fn wait(&mut self) -> Result<(), CudaError> {
        let Some(place) = self.place.take() else { return Ok(()) };
        let mut landed = self.landed.wait();
        if let (Ok(()), Some(whole)) = (&landed, &self.whole) {
            // The task reads from the whole outputs why an item could not be reduced.
            landed = whole.fetch(&self.streams.download).map(|fetched| {
                if let Some(arrivals) = fetched {
                    self.arrivals = arrivals;
                }
            });
        }
        if landed.is_err() {
            // The device may still read and write.
            self.streams.settle();
        }
        // An error: the engine has been dropped.
        let _ = self.back.send(place);
        landed
    }
}

impl Airborne for Running {
    fn land(mut self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        self.wait()?;
        let mut values = std::mem::take(&mut self.values).into_iter();
        let tensor = |arrival| {
            if let Arrival::Copied { result, datatype, shape } = arrival {
                return Ok(Tensor { datatype, shape, data: result.freeze() });
            }
            let value = values.next().expect("a run gives all of its outputs");
            // Copied, so that ONNX Runtime gets its memory back, and no reply holds the session, or an input that is also an
            // output.
            let tensor = value::take(value, &[])?;
            Ok(Tensor { data: Bytes::copy_from_slice(&tensor.data), ..tensor })
        };
        std::mem::take(&mut self.arrivals).into_iter().map(tensor).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::debug!(%error, "a batch that nobody waits for failed");
        }
    }
}
