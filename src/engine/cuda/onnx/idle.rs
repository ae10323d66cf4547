//! Releasing the memory of an idle engine.

use super::{OnnxOnGpu, options};
use crate::engine::{EngineError, onnx::binding::Where};

impl OnnxOnGpu {
    /// Frees what can be allocated again. No batch is in flight.
    pub(super) fn let_go(&mut self) {
        // There may be memory for the given-up places by now: the next batches find out.
        for place in std::mem::take(&mut self.given_up) {
            self.put_back(place);
            self.in_use += 1;
        }
        // Graphs contain addresses in the arena and in the buckets.
        if !self.graphs.are_there() {
            match self.shrink() {
                // The arena is counted again as it grows.
                Ok(true) => self.arena = 0,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "the arena of an idle model keeps its memory"),
            }
            let idle: Vec<usize> = self.free.try_iter().collect();
            for place in idle {
                self.places[place].buckets.clear();
                self.put_back(place);
            }
        }
        self.results.clear();
        self.inputs.clear();
        if let Err(error) = self.context.trim() {
            tracing::warn!(%error, "an idle GPU keeps its memory");
        }
    }

    /// Has ONNX Runtime release unused memory of its arena, by repeating the last run; inputs that the CPU reads are zeros. False if there
    /// is no memory to run anything in.
    fn shrink(&mut self) -> Result<bool, EngineError> {
        let arena = match self.device {
            Where::Device(ordinal) | Where::Pinned(ordinal) => format!("gpu:{ordinal}"),
            Where::Host => "cpu:0".to_owned(),
        };
        let idle: Vec<usize> = self.free.try_iter().collect();
        let smallest = idle
            .iter()
            .flat_map(|place| (0..self.places[*place].buckets.len()).map(|bucket| (*place, bucket)))
            .filter(|(place, bucket)| self.places[*place].buckets[*bucket].runs())
            .min_by_key(|(place, bucket)| self.places[*place].buckets[*bucket].input_bytes());
        let mut zeros = Vec::new();
        let ran = smallest.map_or(Ok(false), |(place, bucket)| {
            let mut options = options(true)?;
            let set = options.set("memory.enable_memory_arena_shrinkage", &arena);
            set.map_err(|error| EngineError::Device(error.message().to_owned()))?;
            let bucket = &mut self.places[place].buckets[bucket];
            let signature = self.session.signature();
            zeros = bucket.zeros_of_host(signature);
            for (index, tensor) in &zeros {
                // SAFETY: the tensors live until the streams have settled.
                unsafe { bucket.fill(*index, &signature.inputs[*index].name, tensor, &self.streams.upload) }?;
            }
            bucket.open(signature, Where::Host)?;
            self.session.run(&bucket.binding, &options).map(|_| true)
        });
        self.streams.settle();
        drop(zeros);
        for place in idle {
            self.put_back(place);
        }
        ran
    }
}
