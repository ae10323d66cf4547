//! What of a batch is on its way.

use super::super::{CudaError, Event, Streams};
use crate::engine::{Airborne, DataType, EngineError, Tensor, onnx::value, staging::Lent};
use bytes::Bytes;
use ort::value::DynValue;
use std::sync::{Arc, mpsc::Sender};

/// A batch on its way. Holds all that the device reads and writes for it, beside what its place has.
pub(super) struct Running {
    pub(super) place: Option<usize>,
    pub(super) back: Sender<usize>,
    pub(super) landed: Arc<Event>,
    pub(super) results: Vec<Option<Lent>>,
    pub(super) described: Vec<Option<(DataType, Vec<usize>)>>,
    /// Outputs that ONNX Runtime made memory for, in their order.
    pub(super) values: Vec<DynValue>,
    pub(super) _inputs: Vec<Tensor>,
    /// Until the values are gone.
    pub(super) _streams: Arc<Streams>,
}

impl Running {
    /// Waits for the device, and gives the place to the next batch.
    fn wait(&mut self) -> Result<(), CudaError> {
        let Some(place) = self.place.take() else { return Ok(()) };
        let landed = self.landed.wait();
        // Nobody takes it where the engine has gone.
        let _ = self.back.send(place);
        landed
    }
}

impl Airborne for Running {
    fn land(mut self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        self.wait()?;
        let mut values = std::mem::take(&mut self.values).into_iter();
        let results = std::mem::take(&mut self.results).into_iter().zip(std::mem::take(&mut self.described));
        let tensor = |(result, described): (Option<Lent>, Option<(DataType, Vec<usize>)>)| {
            if let (Some(result), Some((datatype, shape))) = (result, described) {
                return Ok(Tensor { datatype, shape, data: result.freeze() });
            }
            let value = values.next().expect("a run gives all of its outputs");
            // Copied, so that what ONNX Runtime has to copy to is free again, and no reply holds the session.
            let tensor = value::take(value)?;
            Ok(Tensor { data: Bytes::copy_from_slice(&tensor.data), ..tensor })
        };
        results.map(tensor).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::debug!(%error, "a batch that nobody waits for failed");
        }
    }
}
