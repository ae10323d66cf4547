//! Starting a batch: it is copied in, computed and copied out, each on a stream of its own.
#![allow(unsafe_code)]

use super::{
    super::{CudaError, Streams, context::synchronize},
    OnnxOnGpu, WAITED_EVERY,
    bucket::Output,
    flight::{Arrival, Running, Whole},
    free,
    place::Place,
};
use crate::engine::{
    DataType, EngineError, Flight, Tensor, ends::Reading, onnx::binding::Where, staging::Lent,
};
use ort::value::DynValue;
use std::sync::Arc;

impl OnnxOnGpu {
    /// Has the device copy the inputs, compute and copy the outputs back.
    fn begin(
        &mut self,
        (place, bucket): (usize, usize),
        (inputs, pixels): (&[Tensor], bool),
        arrivals: &mut [Arrival],
        mut faults: Option<&mut Lent>,
    ) -> Result<Vec<DynValue>, EngineError> {
        let Streams { upload, compute, download } = &*self.streams;
        let Place { buckets, uploaded, computed, landed } = &mut self.places[place];
        let bucket = &mut buckets[bucket];
        bucket.used = self.batches;
        let specs = &self.session.signature().inputs;
        let normalizer = self.normalizer.as_ref().filter(|_| pixels);
        for (index, tensor) in inputs.iter().enumerate() {
            // The flight, or the caller if this fails, holds the tensors until the device is done with them.
            if index == 0 && normalizer.is_some() {
                // SAFETY: as said.
                unsafe { bucket.fill_pixels(tensor, upload) }?;
            } else {
                // SAFETY: as said.
                unsafe { bucket.fill(index, &specs[index].name, tensor, upload) }?;
            }
        }
        uploaded.record(upload)?;
        uploaded.before(compute)?;
        if let Some(normalizer) = normalizer {
            let wide = inputs.first().is_some_and(|pixels| pixels.datatype == DataType::Uint16);
            bucket.normalize(normalizer, wide, compute)?;
        }
        // If no output is written to our own memory although some could be, constants among the outputs are copied outside our stream,
        // to memory that an earlier batch may still use.
        let constants_are_copied = !bucket.binds_outputs() && self.session.outputs().any_known();
        if self.device == Where::Host || constants_are_copied {
            // The CPU computes or copies here, which is not ordered by the stream.
            synchronize(compute).map_err(CudaError::when("work on the GPU failed"))?;
        }
        let pinned = match self.device {
            Where::Device(ordinal) => Where::Pinned(ordinal),
            host => host,
        };
        bucket.open(self.session.signature(), pinned)?;
        // A replay does not call ONNX Runtime's kernels, so there is nothing to free.
        let waits = !bucket.recorded && self.batches.is_multiple_of(WAITED_EVERY);
        let options = if waits { &self.waited } else { &bucket.options };
        let mut values = if bucket.runs() { self.session.run(&bucket.binding, options)? } else { Vec::new() };
        let reduced = bucket.reduced.as_mut().filter(|_| faults.is_some());
        if let (Some(reducer), Some(reduced)) = (&self.reducer, reduced) {
            // SAFETY: the output's buffer is the bucket's own.
            unsafe { reducer.launch(reduced, compute) }?;
        }
        computed.record(compute)?;
        computed.before(download)?;
        for (index, (output, arrival)) in bucket.outputs.iter().zip(arrivals).enumerate() {
            let (Output::Ours { buffer, .. }, Arrival::Copied { result, .. }) = (output, arrival) else {
                continue;
            };
            // The flight holds the results and reads them when it has landed.
            match (&bucket.reduced, &mut faults) {
                _ if result.is_empty() => {}
                (Some(reduced), Some(faults)) if reduced.output == index => {
                    // SAFETY: as said.
                    unsafe { reduced.download(result, faults, download) }?;
                }
                // SAFETY: as said.
                _ => unsafe { buffer.download(result, download) }?,
            }
        }
        landed.record(download)?;
        // Outputs in our own memory are read from the results instead.
        let run = bucket.outputs.iter().filter(|output| output.comes_of_a_run());
        let mut ours = run.map(|output| matches!(output, Output::Ours { .. }));
        values.retain(|_| !ours.next().unwrap_or(false));
        Ok(values)
    }

    /// Has work begun while nobody records a graph: the first of an engine, since what it makes for it, such as handles of libraries, may
    /// wait for the whole device, and work that a recording was in the way of.
    fn beside_no_recording<T>(&mut self, begin: impl FnOnce(&mut OnnxOnGpu) -> T) -> T {
        let context = Arc::clone(&self.context);
        let _unrecorded = context.no_recording();
        begin(self)
    }

    /// Allocates the memory that a bucket's outputs are copied to, for as many batches as may be in flight: whole outputs or, for an
    /// output that can be reduced, the reduced one, which most requests need.
    fn ready(&self, (place, bucket): (usize, usize)) {
        let bucket = &self.places[place].buckets[bucket];
        let (outputs, reduced) = (&bucket.outputs, bucket.reduced.as_ref());
        for bytes in Arrival::sizes(outputs, self.session.signature(), reduced) {
            self.results.ready(bytes, self.in_use);
        }
    }

    /// Starts a batch in our own memory. If `reduce` is set and the outputs can be reduced, only the reduced output comes back.
    fn launch(
        &mut self,
        inputs: Vec<Tensor>,
        (shapes, pixels): (&[Vec<usize>], Option<&Reading>),
        reduce: bool,
    ) -> Result<Flight, EngineError> {
        let (place, bucket, first) =
            self.place(shapes, pixels).map_err(|error| self.context.judged(error))?;
        self.batches += 1;
        let before = if first { Some(free(&self.context).unwrap_or(0)) } else { None };
        let (bucket_of, signature) = (&self.places[place].buckets[bucket], self.session.signature());
        let reduced = bucket_of.reduced.as_ref().filter(|_| reduce);
        let (outputs, results) = (&bucket_of.outputs, &self.results);
        let mut arrivals = Arrival::all(outputs, signature, reduced, results);
        let mut whole =
            reduced.map(|reduced| Whole::of(outputs, signature, reduced.faults(results), results));
        let mut begin = |engine: &mut OnnxOnGpu| {
            let faults = whole.as_mut().map(|whole| &mut whole.faults);
            engine.begin((place, bucket), (&inputs, pixels.is_some()), &mut arrivals, faults)
        };
        let mut begun = match self.has_run {
            true => begin(self),
            false => self.beside_no_recording(&mut begin),
        };
        if let Err(EngineError::Passing(reason)) = &begun {
            tracing::debug!(reason, "a batch is begun again when nobody records");
            self.streams.settle();
            begun = self.beside_no_recording(&mut begin);
        }
        self.has_run |= begun.is_ok();
        let begun = begun.and_then(|values| {
            if first {
                // Once for each size: how much memory ONNX Runtime has taken is known when the batch is done.
                self.streams.settle();
            }
            if self.places[place].buckets[bucket].untried {
                self.record((place, bucket))?;
            }
            Ok(values)
        });
        let values = match begun {
            Ok(values) => values,
            Err(error) => {
                // Work that was enqueued may still read and write; where a recording is left open, it cannot be waited for.
                self.streams.end_recording();
                self.streams.settle();
                self.places[place].buckets.remove(bucket);
                self.put_back(place);
                return Err(self.context.judged(error));
            }
        };
        if self.met.only_others_ran(shapes) || first {
            self.met.ran(shapes);
        }
        if let Some(before) = before {
            self.ready((place, bucket));
            self.arena += before.saturating_sub(free(&self.context).unwrap_or(before));
        }
        Ok(Flight::Airborne(Box::new(Running {
            landed: Arc::clone(&self.places[place].landed),
            place: Some(place),
            back: self.back.clone(),
            arrivals,
            whole,
            values,
            _inputs: inputs,
            streams: Arc::clone(&self.streams),
        })))
    }

    /// Starts a batch, a second time without bound outputs if these do not have the shapes that the model file says. That may happen with
    /// any batch, since the names of extents may hold for some inputs and not for others.
    pub(super) fn try_twice(&mut self, mut inputs: Vec<Tensor>, reduce: bool) -> Result<Flight, EngineError> {
        if let (Some(pixels), None, Some(first)) = (&self.ends.pixels, &self.normalizer, inputs.first_mut())
            && let Some(numbers) = pixels.normalize(&first.view(), &self.inputs)
        {
            *first = numbers?;
        }
        let pixels =
            self.normalizer.as_ref().and_then(|normalizer| normalizer.reading(&inputs)).transpose()?;
        let mut shapes: Vec<Vec<usize>> = inputs.iter().map(|input| input.shape.clone()).collect();
        if let Some(reading) = &pixels {
            shapes[0].clone_from(&reading.shape);
        }
        let again = self.binds_outputs(&shapes).then(|| inputs.clone());
        let begun = match (self.launch(inputs, (&shapes, pixels.as_ref()), reduce), again) {
            // If the batch works without bound outputs, a run allocates the outputs of such inputs from now on.
            (Err(EngineError::Input(reason)), Some(inputs)) => {
                self.met.unlike(&shapes, true);
                let flight = self.launch(inputs, (&shapes, pixels.as_ref()), reduce);
                match &flight {
                    Ok(_) => tracing::warn!(
                        reason,
                        inputs = ?shapes,
                        "the shapes of outputs are not those that the model file says"
                    ),
                    Err(_) => self.met.unlike(&shapes, false),
                }
                flight
            }
            (launched, _) => launched,
        };
        begun.map_err(|error| match error {
            // A library does not support these extents, which callers choose: other extents ran, and the context is intact.
            EngineError::Device(reason)
                if self.met.only_others_ran(&shapes) && self.context.memory().is_ok() =>
            {
                EngineError::Input(format!("the GPU's libraries fail for inputs of {shapes:?}: {reason}"))
            }
            error => error,
        })
    }
}
