//! CUDA graphs: ONNX Runtime records the GPU work of a batch size once, and replays it for later batches of that size.
//!
//! Not every network can be recorded. And a replay may give other results than a run: what the host decided in the recorded run, such
//! as random numbers, stays fixed. So a batch of a new size first runs without a graph. Then ONNX Runtime gets the graph's number,
//! records, and replays. If a replay fails or gives other results, the engine stops using graphs. The order matters: the very first run
//! with a number may already end in a replay, and comparing two replays would show nothing. Before the replay that is compared, the
//! outputs are overwritten, so that a replay which writes nothing is noticed.
//!
//! Nothing is recorded while somebody makes or ends what waits for the whole device, such as a session ([`Context::recording`]): a later
//! batch of the size is recorded instead. A recording that such a call has broken all the same is tried once more.
//!
//! [`Context::recording`]: super::super::Context::recording
//!
//! This comparison is made only once. ONNX Runtime has to keep the memory of a recorded size in place, whatever runs later. Version 1.31
//! does, except for convolutions that it fuses with what follows (`Session::load` disables that). With older versions nothing is
//! recorded ([`Runtime::check_replays`](crate::engine::onnx::Runtime::check_replays)).
#![allow(unsafe_code)]

use super::{
    super::{CudaError, context::synchronize},
    OnnxOnGpu,
    bucket::Output,
    place::BUCKETS_MAX,
};
use crate::engine::{
    DataType, EngineError, Tensor,
    onnx::{binding::Where, gpu::CudaGraph},
};
use ort::session::RunOptions;
use std::sync::Arc;

/// Most graphs that are recorded. ONNX Runtime keeps each as long as the session, whatever happens to the memory that it was recorded
/// with: if callers choose extents, their number would grow without limit. A number cannot be reused either: a run with it is always a
/// replay. ONNX Runtime's call to release a graph (`SessionReleaseCapturedGraph`, since 1.27) does nothing in the CUDA provider of
/// 1.31, and reports success.
const GRAPHS_MAX: usize = super::DEPTH * BUCKETS_MAX;

/// Bytes of each output that are compared, from its start: all items are processed alike.
const COMPARED_MAX: usize = 16 << 20;

/// How often a batch is tried to be recorded, if something else has broken the recording.
const TRIES: usize = 2;

/// How far floats may differ, relative to the largest of their output: other algorithms may round differently, and wrong results are
/// mostly further off.
const APART_MAX: f32 = 0.05;

/// The graphs of an engine.
pub(super) struct Graphs {
    /// The model's name, for the log.
    model: String,
    asked: CudaGraph,
    /// Whether batches are recorded if possible.
    records: bool,
    /// The last number that was given to a graph.
    last: usize,
    /// Whether there are graphs to replay.
    there: bool,
    /// Whether there are batches that are not recorded.
    plain: bool,
    /// How often no number was left.
    unrecorded: u64,
}

impl Graphs {
    /// No graphs yet.
    pub(super) fn new(model: String, asked: CudaGraph, records: bool) -> Graphs {
        Graphs { model, asked, records, last: 0, there: false, plain: false, unrecorded: 0 }
    }

    /// Whether there are graphs to replay: these contain memory addresses.
    pub(super) fn are_there(&self) -> bool {
        self.records && self.there
    }

    /// Whether all batches so far have a graph.
    pub(super) fn are_for_all(&self) -> bool {
        self.are_there() && !self.plain
    }

    /// How often no number was left.
    pub(super) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    /// No graph so far is replayed any more, and the batches so far, with or without a graph, do not come again.
    pub(super) fn forget(&mut self) {
        (self.there, self.plain) = (false, false);
    }

    /// The number of the next graph, if one may be recorded. `is_fixed`: the batch reads and writes only fixed addresses.
    fn next(&mut self, is_fixed: bool) -> Option<usize> {
        if !self.records {
            return None;
        }
        if is_fixed && self.last < GRAPHS_MAX {
            self.last += 1;
            self.there = true;
            return Some(self.last);
        }
        let is_first = !std::mem::replace(&mut self.plain, true);
        if is_fixed {
            self.unrecorded += 1;
            if self.unrecorded == 1 {
                let why = format!(
                    "this copy of the model has recorded {GRAPHS_MAX}, which is all there may be: batches of further shapes, and of those whose \
                     memory is lost in an error, are run without, and the GPU keeps to one batch size for a while. Loaded anew, it begins \
                     again with none"
                );
                self.tell("the CUDA graphs are used up", &why);
            }
        } else if is_first {
            let why = "the shape of an output is known only after a run, the CPU gives it, or reads an input";
            self.tell("some batches are not recorded as CUDA graphs", why);
        }
        None
    }

    /// Logs why an engine does without graphs: as a warning if the model asked for them.
    pub(super) fn tell(&self, what: &str, why: &str) {
        let model = &self.model;
        match self.asked {
            CudaGraph::Always => tracing::warn!(model, why, "{what}"),
            CudaGraph::Auto | CudaGraph::Never => tracing::info!(model, why, "{what}"),
        }
    }
}

/// Sets the number under which runs are recorded and replayed; without one, they are neither.
pub(super) fn number(options: &mut RunOptions, graph: Option<usize>) -> Result<(), EngineError> {
    let number = graph.map_or_else(|| "-1".to_owned(), |graph| graph.to_string());
    let set = options.set("gpu_graph_id", number);
    set.map_err(|error| EngineError::Device(error.message().to_owned()))
}

impl OnnxOnGpu {
    /// Records a batch that was run, if possible and if nobody is in the way. Afterwards the outputs on the device are those of a run,
    /// whether it could be recorded or not.
    ///
    /// # Errors
    /// If nothing can be run any more.
    pub(super) fn record(&mut self, (place, bucket): (usize, usize)) -> Result<(), EngineError> {
        let context = Arc::clone(&self.context);
        let Some(_alone) = context.recording() else { return Ok(()) };
        self.places[place].buckets[bucket].untried = false;
        let is_fixed = self.places[place].buckets[bucket].is_fixed();
        let mut tries = 0;
        let why = loop {
            let Some(graph) = self.graphs.next(is_fixed) else { return Ok(()) };
            tries += 1;
            match self.replay((place, bucket), graph) {
                Ok(None) => return Ok(()),
                Ok(Some(difference)) => break difference,
                Err(error) => {
                    self.streams.end_recording();
                    self.streams.settle();
                    if self.context.broken().is_some() {
                        return Err(error);
                    }
                    if tries == TRIES || !matches!(error, EngineError::Passing(_)) {
                        break error.to_string();
                    }
                    tracing::debug!(%error, "a CUDA graph is recorded again");
                    self.run_plainly((place, bucket))?;
                }
            }
        };
        self.graphs.records = false;
        for bucket in self.places.iter_mut().flat_map(|place| &mut place.buckets) {
            bucket.recorded = false;
            number(&mut bucket.options, None)?;
        }
        self.graphs.tell("no CUDA graphs are recorded for the model any more", &why);
        self.run_plainly((place, bucket))
    }

    /// Runs a batch again after a recording of it has failed, as no part of a graph.
    fn run_plainly(&mut self, (place, bucket): (usize, usize)) -> Result<(), EngineError> {
        let bucket = &mut self.places[place].buckets[bucket];
        bucket.recorded = false;
        number(&mut bucket.options, None)?;
        // The CUDA runtime may report the earlier failure to the next run, so a failed run is repeated once.
        let ran = self.session.run(&bucket.binding, &bucket.options);
        ran.or_else(|_| self.session.run(&bucket.binding, &bucket.options))?;
        Ok(synchronize(&self.streams.compute).map_err(CudaError::when("work on the GPU failed"))?)
    }

    /// Records a batch that was run, and replays it. Returns how the replay differs from the run, if it does.
    fn replay(
        &mut self,
        (place, bucket): (usize, usize),
        graph: usize,
    ) -> Result<Option<String>, EngineError> {
        // The first batch of a size has ended. Of a later one, which is recorded since the first could not be, not even its uploads have.
        self.streams.settle();
        let ran = self.outputs((place, bucket))?;
        let bucket_of = &mut self.places[place].buckets[bucket];
        number(&mut bucket_of.options, Some(graph))?;
        bucket_of.recorded = true;
        // ONNX Runtime decides whether the first run records or only prepares for it. The CPU leaves nothing to record, but while it stands
        // in for a GPU, the stream is recorded as one's is.
        if self.device == Where::Host {
            self.streams.begin_recording()?;
            let ran = self.session.run(&bucket_of.binding, &bucket_of.options);
            self.streams.finish_recording()?;
            ran?;
        } else {
            self.session.run(&bucket_of.binding, &bucket_of.options)?;
        }
        for output in &bucket_of.outputs {
            if let Output::Ours { buffer, is_input: false, .. } = output {
                buffer.fill(0xa5, &self.streams.compute)?;
            }
        }
        if self.device == Where::Host {
            // The CPU computes here, which is not ordered by the stream.
            synchronize(&self.streams.compute).map_err(CudaError::when("work on the GPU failed"))?;
        }
        self.session.run(&bucket_of.binding, &bucket_of.options)?;
        synchronize(&self.streams.compute).map_err(CudaError::when("a CUDA graph failed"))?;
        let replayed = self.outputs((place, bucket))?;
        let specs = &self.session.signature().outputs;
        let differs = specs.iter().zip(ran).zip(replayed).find_map(|((spec, ran), replayed)| {
            let difference = difference(spec.datatype, ran, replayed)?;
            Some(format!("a replay gives another output {:?} than a run: {difference}", spec.name))
        });
        Ok(differs)
    }

    /// The contents of the outputs on the device, up to the length that is compared.
    fn outputs(&self, (place, bucket): (usize, usize)) -> Result<Vec<Vec<u8>>, EngineError> {
        let download = &self.streams.download;
        let copy = |output: &Output| {
            let Output::Ours { buffer, .. } = output else { return Ok(Vec::new()) };
            let mut bytes = vec![0; buffer.bytes().min(COMPARED_MAX)];
            if !bytes.is_empty() {
                // SAFETY: the copy is waited for, even if enqueueing it failed.
                let copied = unsafe { buffer.download(&mut bytes, download) };
                let ended = synchronize(download).map_err(CudaError::when("work on the GPU failed"));
                copied.and(ended)?;
            }
            Ok(bytes)
        };
        self.places[place].buckets[bucket].outputs.iter().map(copy).collect()
    }
}

/// How an output of a replay differs from that of a run, if by more than rounding: floats may differ a little, nothing else may.
fn difference(datatype: DataType, ran: Vec<u8>, replayed: Vec<u8>) -> Option<String> {
    if ran == replayed {
        return None;
    }
    if !matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64) {
        return Some("it is not the same".to_owned());
    }
    let floats = |bytes: Vec<u8>| Tensor { datatype, shape: Vec::new(), data: bytes.into() }.to_f32();
    let (ran, replayed) = (floats(ran)?, floats(replayed)?);
    let finite = ran.iter().chain(&replayed).filter(|value| value.is_finite());
    let largest = finite.fold(0_f32, |largest, value| largest.max(value.abs()));
    let alike = |(one, other): &(&f32, &f32)| {
        one == other || (one.is_nan() && other.is_nan()) || (*one - *other).abs() <= APART_MAX * largest
    };
    let (one, other) = ran.iter().zip(&replayed).find(|pair| !alike(pair))?;
    Some(format!("{other} instead of {one}, where the largest is {largest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ<const N: usize>(ran: [f32; N], replayed: [f32; N]) -> bool {
        let bytes = |values: [f32; N]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        difference(DataType::Fp32, bytes(ran), bytes(replayed)).is_some()
    }

    #[test]
    fn what_rounding_makes_of_a_run_is_no_other_answer() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        assert!(!differ([100.0, 1.0, 0.0], [104.0, -3.0, 0.0]));
        assert!(differ([100.0, 1.0, 0.0], [100.0, 7.0, 0.0]));
        assert!(!differ([nan, infinite, -infinite], [nan, infinite, -infinite]));
        assert!(differ([nan, 1.0], [1.0, 1.0]) && differ([1.0, 1.0], [1.0, nan]));
        assert!(differ([infinite, 1.0], [-infinite, 1.0]) && differ([infinite, 1.0], [1.0, 1.0]));
        assert!(differ([0.0], [1e-30]), "nothing is small beside zero");
        assert!(!differ([0.0, 0.0], [-0.0, 0.0]) && !differ([], []));
    }

    #[test]
    fn halves_are_compared_as_numbers_and_whole_numbers_to_the_bit() {
        let halves =
            |values: [f32; 2]| values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
        assert_eq!(difference(DataType::Fp16, halves([8.0, 1.0]), halves([8.1, 1.0])), None);
        let why = difference(DataType::Fp16, halves([8.0, 1.0]), halves([8.0, 2.0]));
        assert_eq!(why.as_deref(), Some("2 instead of 1, where the largest is 8"));
        assert!(difference(DataType::Int64, vec![1; 8], vec![1; 8]).is_none());
        assert!(difference(DataType::Uint8, vec![100], vec![101]).is_some());
    }

    #[test]
    fn graphs_have_numbers_of_their_own_and_not_more_than_there_may_be() {
        let mut graphs = Graphs::new("m".into(), CudaGraph::Auto, true);
        assert!(!graphs.are_there() && !graphs.are_for_all());
        let numbers: Vec<usize> = (0..GRAPHS_MAX).filter_map(|_| graphs.next(true)).collect();
        assert_eq!(numbers, (1..=GRAPHS_MAX).collect::<Vec<_>>());
        assert!(graphs.are_there() && graphs.are_for_all());
        assert_eq!((graphs.unrecorded(), graphs.next(true)), (0, None));
        assert_eq!((graphs.unrecorded(), graphs.are_for_all()), (1, false));
        // Forgetting graphs does not free their numbers.
        graphs.forget();
        assert_eq!((graphs.are_there(), graphs.next(true), graphs.unrecorded()), (false, None, 2));

        let mut open = Graphs::new("m".into(), CudaGraph::Auto, true);
        assert_eq!((open.next(false), open.are_there()), (None, false));
        assert_eq!((open.next(true), open.are_for_all()), (Some(1), false));
        let mut none = Graphs::new("m".into(), CudaGraph::Never, false);
        assert_eq!((none.next(true), none.are_for_all(), none.unrecorded()), (None, false, 0));
    }
}
