//! What an engine that has nothing to do gives back.

use super::{OnnxOnGpu, options};
use crate::engine::{EngineError, onnx::binding::Where};

impl OnnxOnGpu {
    /// What can be had again goes. No batch is on its way.
    pub(super) fn let_go(&mut self) {
        // There may be memory for them by now: the next batches find out.
        for place in std::mem::take(&mut self.given_up) {
            self.put_back(place);
            self.in_use += 1;
        }
        // Graphs have the addresses of the arena and of the buckets in them.
        if !self.graphs.are_there() {
            match self.shrink() {
                // What is taken again is counted again.
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

    /// Has ONNX Runtime give back what its arena does not need, with a run of what was run last, but for inputs that the CPU reads:
    /// those are zeros. False where there is no memory to run anything in.
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
                // SAFETY: they stay until the streams have settled.
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
