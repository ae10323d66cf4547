//! Forward passes at load, with zeros and with the inputs that the model's author asks for. A model is served once passes have worked at
//! every batch size on its device. They also allocate what each size needs, and show how much that is.

use super::{
    bounded::{RUN_MAX, bounded},
    company,
    health::Health,
    plan::{Buffers, Footprint},
    probabilities::{self, Seen},
    refusal::Refusal,
    trial::Trial,
    warm::{GUESS, guessed, warm_shapes, zeros},
};
use crate::{
    engine::{
        DataType, Engine, EngineError, Flight, Signature, Tensor, TensorView, child::Executor,
        staging::Blocks,
    },
    models::{Model, Source},
    tasks::localize::Settings,
    telemetry::host,
};
use std::time::{Duration, Instant};

/// The result of the forward passes.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// Time of the last pass at the smallest size, with everything warm.
    pub(super) canary: Duration,
    /// Memory held on a device with memory of its own.
    pub(super) footprint: Option<Footprint>,
    /// Whether the first axis of the model's outputs counts items, as that of its inputs does; if not, how that showed. A model whose
    /// axis does not would answer one caller with rows of another, so it may not be served in batches.
    pub(super) counts: Result<(), String>,
    /// The largest batch that it was tried with, in items, where that is not the model's largest.
    pub(super) largest: Option<usize>,
    /// What the numbers of a classifier seem to be whose activation is a default.
    pub(super) seen: Option<Seen>,
}

/// Why a model may not be served in batches, by the proofs of all its devices: its first axis does not count items, or no device was
/// tried with more than one item, and its author has not `said` that it does.
pub(super) fn not_counted<'a>(proofs: impl Iterator<Item = &'a Proof> + Clone, said: bool) -> Option<String> {
    let seen = proofs.clone().find_map(|proof| proof.counts.clone().err());
    seen.or_else(|| {
        let unseen = proofs.clone().count() > 0 && proofs.into_iter().all(|proof| proof.largest == Some(1));
        (unseen && !said).then(|| "batches take too much memory to be tried".to_owned())
    })
}

impl Proof {
    /// Adds the proof of one more instance: the first one tells what each takes, the last one what is left with all of them loaded.
    pub(super) fn and(self, last: Proof) -> Proof {
        let footprint = self.footprint.zip(last.footprint).map(|(first, Footprint { free, total, .. })| {
            Footprint { instances: first.instances + 1, free, total, ..first }
        });
        let largest = self.largest.into_iter().chain(last.largest).min();
        Proof { footprint, largest, ..last }
    }
}

/// Warm-up runs that a model's author asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    name: String,
    runs: usize,
    inputs: Vec<Tensor>,
}

impl Asked {
    /// All runs of a model.
    ///
    /// # Errors
    /// Files that cannot be read, or do not fit the model.
    pub(super) fn of(source: &Source, model: &Model) -> Result<Vec<Asked>, String> {
        let asked = source.manifest.warmups.iter().map(|warmup| {
            let inputs = warmup.tensors(model, &source.folder)?;
            Ok(Asked { name: warmup.name.clone(), runs: warmup.runs, inputs })
        });
        asked.collect()
    }

    fn run(&self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let views: Vec<TensorView<'_>> = self.inputs.iter().map(Tensor::view).collect();
        for _ in 0..self.runs {
            let ran = engine.run(&views, None);
            ran.map_err(|error| failed(&format!("warm-up {:?}", self.name), error))?;
        }
        Ok(())
    }
}

/// Runs an engine at every batch size (on the CPU only as far as [`Trial`] goes), and as its author asks. Stops once `ending` says so,
/// between two sizes or, where the engine can be interrupted, within a pass.
///
/// # Errors
/// What failed at which size.
pub(super) fn prove(
    engine: &mut dyn Engine,
    model: &Model,
    asked: &[Asked],
    gpu: Option<(&Executor, &Health)>,
    ending: &(dyn Fn() -> bool + Sync),
) -> Result<Proof, Refusal> {
    let mut proving = Proving { engine, model, gpu, ending };
    proving.call(|engine| {
        // It may have been proved for batches before, and turned out not to batch: what it allocated then must not count.
        engine.forget();
        engine.equip(&model.ends)
    })?;
    let weights = proving.engine.device_bytes();
    let Sizes { counts, buffers, largest } = proving.sizes(weights)?;
    if counts.is_err() {
        // It is proved again without batches, and its memory is measured then.
        return Ok(Proof { canary: Duration::ZERO, footprint: None, counts, largest, seen: None });
    }
    let frames = proving.frames()?;
    for asked in asked {
        proving.call(|engine| asked.run(engine))?;
    }
    let canary = proving.canary()?;
    let seen = proving.seen()?;
    let memory = proving.memory()?;
    let footprint =
        memory.map(|(free, total)| Footprint { instances: 1, weights, buffers, frames, free, total });
    Ok(Proof { canary, footprint, counts, largest, seen })
}

/// An engine that has to prove a model on its device.
struct Proving<'a> {
    engine: &'a mut dyn Engine,
    model: &'a Model,
    gpu: Option<(&'a Executor, &'a Health)>,
    ending: &'a (dyn Fn() -> bool + Sync),
}

/// The result of forward passes at each size.
struct Sizes {
    /// As [`Proof`] has it.
    counts: Result<(), String>,
    /// Memory for each size on a device of its own.
    buffers: Vec<Buffers>,
    /// As [`Proof`] has it.
    largest: Option<usize>,
}

impl<'a> Proving<'a> {
    /// The watch for calls that hang, if the engine is under it. TensorRT builds for minutes at the first use of each shape, which is no
    /// hang.
    fn watch(&self) -> Option<&'a Health> {
        let (_, health) = self.gpu.filter(|_| !self.model.manifest.gpu.provider.builds())?;
        Some(health)
    }

    /// Calls the engine, under the watch for calls that hang.
    fn call<T>(
        &mut self,
        what: impl FnOnce(&mut dyn Engine) -> Result<T, EngineError>,
    ) -> Result<T, Refusal> {
        let done = {
            let _busy = self.watch().map(Health::busy);
            what(self.engine)
        };
        done.map_err(|error| self.noted(error))
    }

    fn noted(&self, error: EngineError) -> Refusal {
        if let Some((_, health)) = self.gpu {
            health.note(&error);
        }
        Refusal::from(error)
    }

    fn pass(&mut self, size: usize) -> Result<Passed, Refusal> {
        let (model, ending) = (self.model, self.ending);
        self.call(|engine| forward(engine, model, size, ending))
    }

    /// Runs passes at each size. `weights`: bytes that the engine holds for its weights.
    fn sizes(&mut self, weights: u64) -> Result<Sizes, Refusal> {
        let model = self.model;
        let trial = Trial::of(model).filter(|_| self.gpu.is_none());
        let mut axis = Axis::default();
        let mut last: Option<(usize, Duration)> = None;
        let mut sizes = Sizes { counts: Ok(()), buffers: Vec::new(), largest: None };
        for &size in &model.rules.sizes {
            if (self.ending)() {
                return Err(Refusal::Failed("the server is ending".to_owned()));
            }
            if let (Some(trial), Some(last)) = (&trial, last)
                && let Err(why) = trial.goes_on(last, size)
            {
                let (model, items, otherwise) = (&*model.name, last.0, Trial::otherwise(model));
                tracing::info!(model, "batches on the CPU have up to {items} items: {why} ({otherwise})");
                sizes.largest = Some(items);
                break;
            }
            let mut refused = false;
            // Each batch in flight has memory of its own, so as many passes as may be in flight.
            for _ in 0..self.engine.depth() {
                let passed = self.pass(size)?;
                last = Some((size, passed.took));
                match passed.shapes {
                    Ok(_) if model.rules.whole => {}
                    Ok(shapes) => sizes.counts = axis.see(&model.signature, size, &shapes),
                    Err(error) => {
                        tracing::warn!(
                            model = &*model.name, size, %error,
                            "no forward pass at load: free shapes or strings, and a guess was refused"
                        );
                        refused = true;
                    }
                }
                if sizes.counts.is_err() {
                    return Ok(sizes);
                }
                if refused {
                    break;
                }
            }
            let bytes = self.engine.device_bytes().saturating_sub(weights);
            sizes.buffers.push(Buffers { items: size, bytes, staging: self.engine.staging_bytes() });
            if refused {
                // It would be refused at other sizes, too.
                break;
            }
        }
        sizes.counts = self.counts(&axis, sizes.largest)?;
        Ok(sizes)
    }

    /// Whether items are computed independently, as far as the passes with zeros cannot tell.
    fn counts(&mut self, axis: &Axis, largest: Option<usize>) -> Result<Result<(), String>, Refusal> {
        // What its author says about batches is trusted.
        if self.model.rules.whole || self.model.manifest.batch.is_said() {
            return Ok(Ok(()));
        }
        // If this device was tried with one item only, another device may tell.
        if largest != Some(1) {
            let watch = self.watch();
            let busy = || watch.map(Health::busy);
            let mixed = company::mixed(self.engine, self.model, self.ending, busy);
            if let Some(why) = mixed.map_err(|error| self.noted(error))? {
                return Ok(Err(why));
            }
        }
        // Without a pass, batching is not trusted.
        Ok(axis.first.as_ref().map(|_| ()).ok_or_else(|| {
            "no forward pass worked at load, so that nobody has seen whether the first axis counts items \
             (batch.axis = \"items\" says that it does)"
                .to_owned()
        }))
    }

    /// Bytes that batches of whole frames take. Only GPUs are given frames; elsewhere spots are found before the engine runs.
    fn frames(&mut self) -> Result<u64, Refusal> {
        let held = self.engine.device_bytes();
        if let (Some(fit), Some(_)) = (&self.model.fit, self.gpu) {
            for _ in 0..self.engine.depth() {
                self.call(|engine| look(engine, fit))?;
            }
        }
        Ok(self.engine.device_bytes().saturating_sub(held))
    }

    /// Time of a pass at the smallest size. Its outputs must be readable by the model's task.
    fn canary(&mut self) -> Result<Duration, Refusal> {
        let model = self.model;
        let passed = self.pass(model.rules.sizes.first().copied().unwrap_or(1))?;
        // With a guessed extent, shapes may match by chance.
        if let (Ok(shapes), false) = (passed.shapes, guessed(model)) {
            let unread =
                |why| format!("task {:?} cannot read what a forward pass gave: {why}", model.task.name());
            model.check_outputs(&shapes).map_err(unread)?;
        }
        Ok(passed.took)
    }

    /// What a classifier's numbers seem to be, if nothing else tells.
    fn seen(&mut self) -> Result<Option<Seen>, Refusal> {
        let watch = self.watch();
        let busy = || watch.map(Health::busy);
        let seen = probabilities::seen(self.engine, self.model, self.ending, busy);
        seen.map_err(|error| self.noted(error))
    }

    /// Free and total bytes of a device with memory of its own.
    fn memory(&mut self) -> Result<Option<(u64, u64)>, Refusal> {
        let Some((gpu, _)) = self.gpu else { return Ok(None) };
        let _busy = self.watch().map(Health::busy);
        // Memory freed while buffers grew is returned to the driver first, so that it counts as free.
        let memory = gpu.trim().and_then(|()| gpu.memory()).map_err(|error| self.noted(error))?;
        Ok(Some((memory.free, memory.total)))
    }
}

/// The result of a forward pass.
struct Passed {
    took: Duration,
    /// The shapes of its outputs, or why it was refused.
    shapes: Result<Vec<Vec<usize>>, EngineError>,
}

/// What forward passes at several sizes tell of the first axis: whether it counts items, as far as zeros can tell. If so, each output has
/// a row for each item, and rows have the same shape in any batch. The names that a file gives to its extents do not tell: exporters give
/// different names to the same axis, and the same name to different ones.
#[derive(Default)]
struct Axis {
    /// The shapes of the first pass, with its size.
    first: Option<(usize, Vec<Vec<usize>>)>,
}

impl Axis {
    /// Takes in a pass of so many items.
    ///
    /// # Errors
    /// How it shows that the axis counts something else.
    fn see(&mut self, signature: &Signature, items: usize, shapes: &[Vec<usize>]) -> Result<(), String> {
        let (before, known) = self.first.get_or_insert_with(|| (items, shapes.to_vec()));
        for ((spec, shape), known) in signature.outputs.iter().zip(shapes).zip(known) {
            let name = &spec.name;
            if shape.first() != Some(&items) {
                return Err(format!(
                    "output {name:?} has shape {shape:?} for {items} items, so its first axis does not count them"
                ));
            }
            if shape[1..] != known[1..] {
                return Err(format!(
                    "output {name:?} has shape {known:?} for {before} items and {shape:?} for {items}, so they are \
                     not computed each for itself"
                ));
            }
        }
        Ok(())
    }
}

/// Whether zeros of these shapes fit into `free` bytes twice: as they are, and put together in a batch. Otherwise the allocation would
/// end the process.
fn there_is_room(shapes: &[(DataType, Vec<usize>)], free: Option<u64>) -> Result<(), String> {
    let bytes = |(datatype, shape): &(DataType, Vec<usize>)| {
        let each = datatype.size().unwrap_or(size_of::<u32>());
        shape.iter().try_fold(each, |bytes, extent| bytes.checked_mul(*extent))
    };
    let taken = shapes.iter().try_fold(0_usize, |sum, input| sum.checked_add(bytes(input)?));
    let free = free.unwrap_or(isize::MAX as u64);
    match taken.map(|taken| (taken as u64).saturating_mul(2)) {
        Some(taken) if taken <= free => Ok(()),
        Some(taken) => {
            Err(format!("its inputs take {} MB, and {} MB are free", taken / 1_000_000, free / 1_000_000))
        }
        None => Err(format!("its inputs have more elements than a number can count: {shapes:?}")),
    }
}

/// One forward pass with zeros at a batch size: allocates the memory for that size, and proves that the model runs.
fn forward(
    engine: &mut dyn Engine,
    model: &Model,
    size: usize,
    ending: &(dyn Fn() -> bool + Sync),
) -> Result<Passed, EngineError> {
    let setting = model.fit.clone().map(|mut fit| fit.setting()).transpose().map_err(EngineError::Input)?;
    let shapes = warm_shapes(model, size);
    there_is_room(&shapes, host::free()).map_err(|why| {
        failed(&format!("a forward pass with zeros at batch size {size}"), EngineError::Input(why))
    })?;
    // As a worker would put it together.
    let blocks = Blocks::new(engine.memory());
    let zeros = zeros(shapes, model);
    let inputs = zeros.iter().map(|zeros| blocks.assemble(&[zeros], size, true, None)).collect();
    let started = Instant::now();
    let pass = |engine: &mut dyn Engine| engine.start(inputs, setting.as_ref()).and_then(Flight::land);
    match bounded(engine, RUN_MAX, ending, pass) {
        Ok(outputs) => {
            let took = started.elapsed();
            let shapes = Ok(outputs.into_iter().map(|output| output.shape).collect());
            Ok(Passed { took, shapes })
        }
        // Free extents and strings are guesses, which the model may rightly refuse.
        Err(error @ EngineError::Input(_)) if guessed(model) => {
            Ok(Passed { took: started.elapsed(), shapes: Err(error) })
        }
        Err(error) => {
            let smallest = model.rules.sizes.first().is_none_or(|smallest| *smallest == size);
            let hint = match (smallest, &model.manifest.declared) {
                (true, _) if model.rules.whole => "",
                (true, None) => {
                    " (where one run takes all that its first axis counts, batch.axis = \"none\" says so)"
                }
                (true, Some(_)) => {
                    " (where one run takes all that its first axis counts, max_batch_size: 0 says so)"
                }
                (false, None) => " (where it takes no more than fewer, batch.items_max says so)",
                (false, Some(_)) => " (where it takes no more than fewer, max_batch_size says so)",
            };
            Err(failed(&format!("a forward pass with zeros at batch size {size}{hint}"), error))
        }
    }
}

/// Runs one dark frame: makes a fitter allocate the memory for whole frames, which does not depend on their number, and proves that it
/// finds spots.
fn look(engine: &mut dyn Engine, fit: &Settings) -> Result<(), EngineError> {
    let mut fit = fit.clone();
    let setting = fit.setting().map_err(EngineError::Input)?;
    let (height, width) = setting.camera().sensor().unwrap_or((GUESS, GUESS));
    let Ok(finder) = fit.finder(setting.camera(), width, height) else {
        // Callers that send frames are told why.
        return Ok(());
    };
    let options = *finder.options();
    let setting = setting.finding(options);
    let (frame, corner) = (vec![0_f32; width * height], [0_u32; 2]);
    let views = [
        TensorView {
            datatype: DataType::Fp32,
            shape: vec![1, height, width],
            data: bytemuck::cast_slice(&frame),
        },
        TensorView { datatype: DataType::Uint32, shape: vec![1, 2], data: bytemuck::cast_slice(&corner) },
    ];
    engine
        .run(&views, Some(&setting))
        .map_err(|error| failed("the search for spots in a dark frame", error))?;
    Ok(())
}

/// The same error, naming what failed.
fn failed(what: &str, error: EngineError) -> EngineError {
    let with = |reason: String| format!("{what} failed: {reason}");
    match error {
        EngineError::Input(reason) => EngineError::Input(with(reason)),
        EngineError::OutOfMemory(reason) => EngineError::OutOfMemory(with(reason)),
        EngineError::Passing(reason) => EngineError::Passing(with(reason)),
        EngineError::Device(reason) => EngineError::Device(with(reason)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        engine::{Setting, TensorSpec},
        models::testing::{model_of, source},
        tasks::testing::{signature, spec},
    };
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An engine that always fails like this.
    struct Failing(Signature, EngineError);

    impl Engine for Failing {
        fn signature(&self) -> &Signature {
            &self.0
        }

        fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            Err(self.1.clone())
        }
    }

    #[test]
    fn inputs_that_no_memory_holds_are_a_reason_and_not_the_end_of_the_process() {
        let told = |extents: &[usize], free| there_is_room(&[(DataType::Fp32, extents.to_vec())], free);
        assert_eq!(told(&[1, 1000], Some(8000)), Ok(()));
        assert_eq!(
            told(&[1, 1_000_000], Some(7_999_999)),
            Err("its inputs take 8 MB, and 7 MB are free".to_owned())
        );
        for extents in [&[1, 1 << 40][..], &[1 << 40, 1 << 40]] {
            assert!(told(extents, Some(1 << 40)).is_err(), "{extents:?}");
        }
        // Where free memory is unknown, no number is given.
        assert_eq!(told(&[1, 1000], None), Ok(()));
        let two = [(DataType::Fp64, vec![1 << 60]), (DataType::Fp64, vec![1 << 60])];
        assert!(there_is_room(&two, None).is_err_and(|why| why.contains("can count")));
    }

    #[test]
    fn only_a_guess_that_the_model_refuses_is_not_held_against_it() {
        let proved = |input: TensorSpec, error: EngineError| {
            let said = if input.datatype == DataType::Bytes { "" } else { "[batch]\nitems_max = 2" };
            let mut signature = signature(&[("y", &[-1, 2])]);
            signature.inputs = vec![input];
            let source = source("m", "1", said);
            let model = model_of(&source, signature.clone()).unwrap();
            prove(&mut Failing(signature, error), &model, &[], None, &|| false).map(|proof| proof.counts)
        };
        let refused = || EngineError::Input("of 64?".into());
        let fixed = proved(spec("x", DataType::Fp32, &[-1, 2]), refused());
        assert!(matches!(fixed, Err(Refusal::Failed(_))), "{fixed:?}");
        // An empty string is a guess, too.
        assert_eq!(proved(spec("x", DataType::Bytes, &[2]), refused()).unwrap(), Ok(()));
        let proved = |error| proved(spec("x", DataType::Fp32, &[-1, -1]), error);
        assert_eq!(proved(refused()).unwrap(), Ok(()));
        let memory = proved(EngineError::OutOfMemory("full".into()));
        assert!(
            matches!(memory, Err(Refusal::Memory(_))),
            "it is tried again when there is some: {memory:?}"
        );
        let device = proved(EngineError::Device("gone".into()));
        assert!(matches!(device, Err(Refusal::Failed(_))), "{device:?}");
    }

    #[test]
    fn on_the_cpu_a_server_that_ends_does_not_try_further_sizes() {
        let mut signature = signature(&[("y", &[-1, 2])]);
        signature.inputs = vec![spec("x", DataType::Fp32, &[-1, -1])];
        let source = source("m", "1", "");
        let model = model_of(&source, signature.clone()).unwrap();
        let mut engine = Failing(signature, EngineError::Input("of 64?".into()));
        let asked = AtomicUsize::new(0);
        let ending = || asked.fetch_add(1, Ordering::Relaxed) == 0;
        let refused = prove(&mut engine, &model, &[], None, &ending).err();
        assert!(
            matches!(&refused, Some(Refusal::Failed(why)) if why == "the server is ending"),
            "{refused:?}"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_one_device_has_no_memory_to_try_another_may_have_seen() {
        let proof = |counts: Result<(), &str>, largest| Proof {
            canary: Duration::ZERO,
            footprint: None,
            counts: counts.map_err(str::to_owned),
            largest,
            seen: None,
        };
        let (small, whole, mixes) =
            (proof(Ok(()), Some(1)), proof(Ok(()), None), proof(Err("it mixes"), Some(2)));
        let told = |proofs: &[&Proof]| not_counted(proofs.iter().copied(), false);
        assert_eq!(told(&[&small, &whole]), None);
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[&small, &small]).as_deref(), Some("batches take too much memory to be tried"));
        assert_eq!(told(&[&small, &mixes]).as_deref(), Some("it mixes"));
        assert_eq!(not_counted([&small].into_iter(), true), None);
    }

    /// What is told of outputs of these shapes, at the size before each.
    fn see(passes: &[(usize, &[usize])]) -> Result<(), String> {
        let mut axis = Axis::default();
        let signature = signature(&[("y", &[-1, 4])]);
        passes.iter().try_for_each(|(items, shape)| axis.see(&signature, *items, &[shape.to_vec()]))
    }

    #[test]
    fn an_axis_counts_items_if_each_has_a_row_that_does_not_depend_on_its_company() {
        assert_eq!(see(&[(1, &[1, 4]), (2, &[2, 4]), (16, &[16, 4])]), Ok(()));
        let told = |passes| see(passes).unwrap_err();
        let counted = "so its first axis does not count them";
        assert_eq!(told(&[(1, &[0, 4])]), format!("output \"y\" has shape [0, 4] for 1 items, {counted}"));
        let more = told(&[(1, &[1, 4]), (2, &[4, 4])]);
        assert_eq!(more, format!("output \"y\" has shape [4, 4] for 2 items, {counted}"));
        let mixed = told(&[(1, &[1, 1]), (2, &[2, 2])]);
        let shapes = "output \"y\" has shape [1, 1] for 1 items and [2, 2] for 2";
        assert_eq!(mixed, format!("{shapes}, so they are not computed each for itself"));
        assert!(see(&[(1, &[])]).is_err(), "no axis at all");
    }
}
