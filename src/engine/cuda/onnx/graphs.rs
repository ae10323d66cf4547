//! CUDA graphs: what a batch of a size has the GPU do is recorded once by ONNX Runtime, and replayed for those that follow.
//!
//! Not every network can be recorded, and not every one that can be gives in a replay what a run gives: what the host decided in the
//! recorded run, such as numbers drawn at random, stays as it was then. So a batch of a new size is run without a graph first. Then
//! ONNX Runtime is given the graph's number, records, and replays; a replay that fails, or gives something else, ends all graphs of
//! the engine. It has to be in this order: the very first run with a number may end in a replay already, to which the next one would be
//! equal. Before the replay that is compared the outputs are filled with something else, which one that writes nothing would leave there.
//!
//! What is seen so is seen once. That the memory of a recorded size stays where it is, whatever runs after it, is ONNX Runtime's to see
//! to: 1.31 does, but for convolutions that it fuses with what follows ([`Session::load`] has that left out). With older ones nothing is
//! recorded ([`Runtime::check_replays`](crate::engine::onnx::Runtime::check_replays)).
#![allow(unsafe_code)]

use super::{
    super::{CudaError, Fault, context::synchronize},
    OnnxOnGpu,
    bucket::Output,
    place::BUCKETS_MAX,
};
use crate::engine::{
    DataType, EngineError, Tensor,
    onnx::{binding::Where, gpu::CudaGraph},
};
use ort::session::RunOptions;

/// Graphs that are recorded. ONNX Runtime keeps each as long as the session, whatever becomes of the memory that it was recorded with:
/// of a model whose callers choose extents there would be ever more. Nor is a number free again: a run with it is a replay for ever. What
/// ONNX Runtime has to let go of a graph (`SessionReleaseCapturedGraph`, since 1.27) does nothing in the CUDA provider of 1.31, and says
/// that it went well.
const GRAPHS_MAX: usize = super::DEPTH * BUCKETS_MAX;

/// Bytes of each output that are compared, from its start: items are all treated alike.
const COMPARED_MAX: usize = 16 << 20;

/// How far floats may be apart, relative to the largest of their output: other algorithms may round otherwise, and what is not the
/// same at all is mostly further off.
const APART_MAX: f32 = 0.05;

/// Graphs of an engine.
pub(super) struct Graphs {
    /// For the log.
    model: String,
    asked: CudaGraph,
    /// Whether batches are recorded, where that can be.
    records: bool,
    /// The last number that was given to one.
    last: usize,
    /// Whether any is to be replayed.
    there: bool,
    /// Whether there are batches that are not recorded.
    plain: bool,
    /// How often no number was left.
    unrecorded: u64,
}

impl Graphs {
    /// None yet.
    pub(super) fn new(model: String, asked: CudaGraph, records: bool) -> Graphs {
        Graphs { model, asked, records, last: 0, there: false, plain: false, unrecorded: 0 }
    }

    /// Whether there are any, which have addresses in them.
    pub(super) fn are_there(&self) -> bool {
        self.records && self.there
    }

    /// Whether all batches so far have one.
    pub(super) fn are_for_all(&self) -> bool {
        self.are_there() && !self.plain
    }

    /// How often no number was left.
    pub(super) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    /// None of those so far is replayed any more, and the batches that had them, or none, do not come again.
    pub(super) fn forget(&mut self) {
        (self.there, self.plain) = (false, false);
    }

    /// The number of the next one, for a batch that reads and writes only what stays where it is, or does not.
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

    /// Why an engine goes without what it was to have: a warning where that was asked for.
    pub(super) fn tell(&self, what: &str, why: &str) {
        let model = &self.model;
        match self.asked {
            CudaGraph::Always => tracing::warn!(model, why, "{what}"),
            CudaGraph::Auto | CudaGraph::Never => tracing::info!(model, why, "{what}"),
        }
    }
}

/// Has runs be recorded and replayed under a number, or, without one, neither.
pub(super) fn number(options: &mut RunOptions, graph: Option<usize>) -> Result<(), EngineError> {
    let number = graph.map_or_else(|| "-1".to_owned(), |graph| graph.to_string());
    let set = options.set("gpu_graph_id", number);
    set.map_err(|error| EngineError::Device(error.message().to_owned()))
}

impl OnnxOnGpu {
    /// Has a batch recorded that was run for the first time and has ended, where that can be. What is on the device afterwards is what
    /// a run gives, whatever came of it.
    ///
    /// # Errors
    /// Where nothing can be run any more.
    pub(super) fn record(&mut self, (place, bucket): (usize, usize)) -> Result<(), EngineError> {
        let is_fixed = self.places[place].buckets[bucket].is_fixed();
        let Some(graph) = self.graphs.next(is_fixed) else { return Ok(()) };
        let why = match self.replay((place, bucket), graph) {
            Ok(None) => return Ok(()),
            Ok(Some(difference)) => difference,
            Err(error) => {
                self.streams.end_recording();
                self.streams.settle();
                if self.context.memory().is_err_and(|broken| broken.fault() == Fault::Sticky) {
                    return Err(error);
                }
                error.to_string()
            }
        };
        self.graphs.records = false;
        for bucket in self.places.iter_mut().flat_map(|place| &mut place.buckets) {
            bucket.recorded = false;
            number(&mut bucket.options, None)?;
        }
        self.graphs.tell("no CUDA graphs are recorded for the model any more", &why);
        let bucket = &self.places[place].buckets[bucket];
        // CUDA's runtime may tell the next one of what failed.
        let ran = self.session.run(&bucket.binding, &bucket.options);
        ran.or_else(|_| self.session.run(&bucket.binding, &bucket.options))?;
        Ok(synchronize(&self.streams.compute).map_err(CudaError::when("work on the GPU failed"))?)
    }

    /// Records a batch that was run, and replays it; how that differs from the run, if it does.
    fn replay(
        &mut self,
        (place, bucket): (usize, usize),
        graph: usize,
    ) -> Result<Option<String>, EngineError> {
        let ran = self.outputs((place, bucket))?;
        let bucket_of = &mut self.places[place].buckets[bucket];
        number(&mut bucket_of.options, Some(graph))?;
        bucket_of.recorded = true;
        // Whether the first one records or only makes ready for it is ONNX Runtime's choice.
        self.session.run(&bucket_of.binding, &bucket_of.options)?;
        for output in &bucket_of.outputs {
            if let Output::Ours { buffer, is_input: false, .. } = output {
                buffer.fill(0xa5, &self.streams.compute)?;
            }
        }
        if self.device == Where::Host {
            // Who computes is not on the stream.
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

    /// What is in the outputs on the device, as much of it as is compared.
    fn outputs(&self, (place, bucket): (usize, usize)) -> Result<Vec<Vec<u8>>, EngineError> {
        let download = &self.streams.download;
        let copy = |output: &Output| {
            let Output::Ours { buffer, .. } = output else { return Ok(Vec::new()) };
            let mut bytes = vec![0; buffer.bytes().min(COMPARED_MAX)];
            if !bytes.is_empty() {
                // SAFETY: it is waited for, whether all of them could be begun or not.
                let copied = unsafe { buffer.download(&mut bytes, download) };
                let ended = synchronize(download).map_err(CudaError::when("work on the GPU failed"));
                copied.and(ended)?;
            }
            Ok(bytes)
        };
        self.places[place].buckets[bucket].outputs.iter().map(copy).collect()
    }
}

/// How a replay differs from a run in an output, if it does by more than rounding: floats may be a little apart, nothing else may.
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
        // What is forgotten gives no number back.
        graphs.forget();
        assert_eq!((graphs.are_there(), graphs.next(true), graphs.unrecorded()), (false, None, 2));

        let mut open = Graphs::new("m".into(), CudaGraph::Auto, true);
        assert_eq!((open.next(false), open.are_there()), (None, false));
        assert_eq!((open.next(true), open.are_for_all()), (Some(1), false));
        let mut none = Graphs::new("m".into(), CudaGraph::Never, false);
        assert_eq!((none.next(true), none.are_for_all(), none.unrecorded()), (None, false, 0));
    }
}
