//! What the book promises, without a clock. Sequences of events and their checks are in `sim`.
#![allow(clippy::unwrap_used)] // a test may panic

mod dividing;

use super::*;
use crate::{
    batch::{
        Batch, Fallback, Job, OnTimeout, Padding, QueuePolicies, QueuePolicy, Ran, Timing, Wait,
        roster::Absence,
    },
    engine::{
        DataType, EngineError, Setting, Tensor,
        kernels::{Border, Camera, FinderOptions, FitModel, Method, Psf},
    },
};

const MODEL: ModelKey = ModelKey(1);
const MS: Duration = Duration::from_millis(1);

/// One model with sizes 1, 2 and 4, one worker, and a clock that is set by hand.
struct Desk {
    book: Book,
    worker: WorkerKey,
    now: Instant,
}

impl Desk {
    fn new(whole: bool) -> Desk {
        Desk::of(whole, QueuePolicies::default())
    }

    fn of(whole: bool, queue: QueuePolicies) -> Desk {
        let mut book = Book::new(QueueLimits { items_max: 20, bytes_max: 40 });
        let sizes: &[usize] = if whole { &[1] } else { &[1, 2, 4] };
        let rules = Rules { whole, queue, ..Rules::plain(sizes) };
        book.register(MODEL, "digits", rules);
        let worker = book.attach(&"cpu".into());
        let now = Instant::now();
        Desk { book, worker, now }
    }

    fn pad(&mut self, padding: Padding) {
        self.book.models.get_mut(&MODEL).unwrap().rules.padding = padding;
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    fn job(&self, items: usize, first: u8) -> Job {
        Job::plain(MODEL, vec![bytes(items, first)], items, self.now)
    }

    fn push(&mut self, items: usize, first: u8) -> JobKey {
        let job = self.job(items, first);
        self.book.push(job, self.now).unwrap()
    }

    fn push_due(&mut self, items: usize, ms: u64) -> Result<JobKey, InferError> {
        let deadline = Some(self.now + Duration::from_millis(ms));
        let job = Job { deadline, ..self.job(items, 0) };
        self.book.push(job, self.now)
    }

    fn push_with(&mut self, setting: Setting) -> JobKey {
        let job = Job { setting: Some(setting), ..self.job(1, 0) };
        self.book.push(job, self.now).unwrap()
    }

    fn take(&mut self) -> (Arc<Batch>, Receipt) {
        match self.book.pick(self.worker, &[MODEL], self.now) {
            Pick::Run(batch, receipt) => (batch, receipt),
            other => panic!("nothing to run: {other:?}"),
        }
    }

    /// Ends a batch after `ms`.
    fn end(
        &mut self,
        (batch, receipt): &(Arc<Batch>, Receipt),
        ms: u64,
        result: Result<Tensor, EngineError>,
    ) -> Aftermath {
        self.pass(ms);
        let result = result.map(|output| Ran {
            outputs: vec![output],
            stage: Duration::ZERO,
            waited: Duration::ZERO,
            compute: Duration::from_millis(ms),
        });
        self.book.finish(batch, receipt, result, self.now).expect("nobody recalled it")
    }

    /// Takes a batch, and returns its rows unchanged, padded.
    fn run(&mut self, ms: u64) -> Vec<(usize, usize)> {
        self.run_timed(|_| ms)
    }

    /// The same, after the time for its number of items.
    fn run_timed(&mut self, ms: impl Fn(usize) -> u64) -> Vec<(usize, usize)> {
        let taken = self.take();
        let shares = taken.0.parts.iter().map(|p| (p.rows.start, p.rows.end)).collect();
        let inputs: Vec<_> = taken.0.parts.iter().map(|part| &part.inputs[0]).collect();
        let mut output = rows::join(&inputs).unwrap();
        let mut data = output.data.to_vec();
        data.resize(taken.0.size, 0xff);
        (output.shape[0], output.data) = (taken.0.size, data.into());
        self.end(&taken, ms(taken.0.items), Ok(output));
        shares
    }

    fn answers(&mut self) -> Vec<(JobKey, Result<Vec<u8>, InferError>)> {
        let done = self.book.settle().done.into_iter();
        done.map(|done| {
            let bytes = |pieces: Pieces| Ok(pieces.join()?.outputs[0].data.to_vec());
            (done.job, done.result.and_then(bytes))
        })
        .collect()
    }

    fn held(&self) -> (usize, usize) {
        let load = self.book.load(self.now);
        (load.items, load.bytes)
    }
}

use crate::batch::rows;

/// One byte per item, counting up.
fn bytes(items: usize, first: u8) -> Tensor {
    Tensor {
        datatype: DataType::Uint8,
        shape: vec![items, 1],
        data: (0..items as u8).map(|i| first + i).collect::<Vec<_>>().into(),
    }
}

#[test]
fn outputs_may_be_reduced_where_all_jobs_of_a_batch_want_no_more_and_are_whole_in_it() {
    let mut desk = Desk::new(false);
    let push = |desk: &mut Desk, items, reduced| {
        let job = Job { reduced, ..desk.job(items, 0) };
        desk.book.push(job, desk.now).unwrap()
    };
    for (jobs, expected) in [
        (&[(1, true), (1, true)][..], vec![true]),
        (&[(1, true), (1, false)], vec![false]),
        (&[(2, true), (1, true), (1, true)], vec![true]),
        // The second job is split: its first half runs with the first job.
        (&[(3, true), (2, true)], vec![false, false]),
    ] {
        for (items, reduced) in jobs {
            push(&mut desk, *items, *reduced);
        }
        let taken: Vec<_> = expected.iter().map(|_| desk.take()).collect();
        assert_eq!(taken.iter().map(|(batch, _)| batch.reduced).collect::<Vec<_>>(), expected, "{jobs:?}");
        for batch in &taken {
            desk.end(batch, 1, Ok(bytes(batch.0.size, 0)));
        }
        assert_eq!(desk.held(), (0, 0));
    }
}

#[test]
fn jobs_of_different_settings_are_not_run_together() {
    let mut desk = Desk::new(false);
    let setting = |sigma| {
        let model = FitModel::new(Psf::Xynb { sigma_px: [sigma; 2] }, [1.0; 2]).unwrap();
        Setting::new(model, Arc::new(Camera::ideal()))
    };
    let [a, b, c] = [1.3, 1.5, 1.3].map(|sigma| desk.push_with(setting(sigma)));
    let jobs = |batch: &Batch| batch.parts.iter().map(|part| part.job).collect::<Vec<_>>();
    let (first, _) = desk.take();
    assert_eq!((jobs(&first), first.setting.as_ref()), (vec![a, c], Some(&setting(1.3))));
    let (second, _) = desk.take();
    assert_eq!((jobs(&second), second.setting.as_ref()), (vec![b], Some(&setting(1.5))));
}

/// The fit of frames in which spots are searched for.
fn finding() -> Setting {
    let model = FitModel::new(Psf::Xynb { sigma_px: [1.3; 2] }, [1.0; 2]).unwrap();
    Setting::new(model, Arc::new(Camera::ideal())).finding(FinderOptions {
        method: Method::NetGradient { minimum: 400.0 },
        box_side: 7,
        border: Border::Shift,
        spots_max: 10,
    })
}

#[test]
fn jobs_of_whole_frames_share_no_batch() {
    let (mut desk, setting) = (Desk::new(false), finding());
    let jobs = [(); 2].map(|()| desk.push_with(setting.clone()));
    let taken = jobs.map(|_| desk.take().0);
    let alone = |batch: &Arc<Batch>| batch.parts.iter().map(|part| part.job).collect::<Vec<_>>();
    assert_eq!(taken.each_ref().map(alone), jobs.map(|job| vec![job]));
}

#[test]
fn a_job_larger_than_a_batch_is_split_and_put_together_in_order() {
    let mut desk = Desk::new(false);
    let (large, small) = (desk.push(6, 10), desk.push(1, 90));
    assert_eq!(desk.run(1), [(0, 4)]);
    assert_eq!(desk.answers(), []);
    assert_eq!(desk.run(1), [(4, 6), (0, 1)], "another job shares the last batch");
    let expected = [(large, Ok(vec![10, 11, 12, 13, 14, 15])), (small, Ok(vec![90]))];
    assert_eq!(desk.answers(), expected);
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn outputs_of_a_job_that_ran_in_one_batch_are_slices_of_its_output() {
    let mut desk = Desk::new(false);
    desk.push(1, 1);
    desk.push(2, 5);
    let taken = desk.take();
    let output = bytes(4, 5);
    desk.end(&taken, 1, Ok(output.clone()));
    for (done, start) in desk.book.settle().done.into_iter().zip([0, 1]) {
        let answer = done.result.unwrap().join().unwrap();
        assert_eq!(answer.outputs[0].data.as_ptr(), output.data[start..].as_ptr());
        assert_eq!((answer.batch_items, &*answer.device), (3, "cpu"));
    }
}

#[test]
fn times_of_a_split_job_are_its_first_wait_and_the_sum_of_its_runs() {
    let mut desk = Desk::new(false);
    desk.push(6, 0);
    desk.pass(7);
    desk.run(20);
    desk.run(30);
    let done = desk.book.settle().done.remove(0);
    let timing = done.result.unwrap().join().unwrap().timing;
    let ms = Duration::from_millis;
    assert_eq!((timing.queue, timing.compute), (ms(7), ms(50)));
}

#[test]
fn what_a_split_job_waits_behind_its_own_first_batch_is_no_queue() {
    let mut desk = Desk::new(false);
    desk.push(6, 0);
    desk.pass(7);
    let ms = Duration::from_millis;
    let taken = [desk.take(), desk.take()];
    for ((batch, receipt), waited) in taken.iter().zip([3, 23]) {
        let (stage, waited, compute) = (ms(1), ms(waited), ms(20));
        let ran = Ran { outputs: vec![bytes(batch.size, 0)], stage, waited, compute };
        desk.book.finish(batch, receipt, Ok(ran), desk.now).unwrap();
    }
    let done = desk.book.settle().done.remove(0);
    let timing = done.result.unwrap().join().unwrap().timing;
    let expected = Timing { queue: ms(7 + 3), behind: ms(3), stage: ms(1 + 1), compute: ms(20 + 20) };
    assert_eq!(timing, expected);
}

#[test]
fn a_model_without_a_batch_axis_takes_and_gives_tensors_whole() {
    let mut desk = Desk::new(true);
    let mut job = desk.job(1, 0);
    job.inputs = vec![bytes(3, 7)];
    let key = desk.book.push(job, desk.now).unwrap();
    let taken = desk.take();
    assert_eq!(taken.0.parts[0].inputs[0].shape, [3, 1]);
    desk.end(&taken, 1, Ok(bytes(5, 1)));
    assert_eq!(desk.answers(), [(key, Ok(vec![1, 2, 3, 4, 5]))]);
}

#[test]
fn outputs_that_do_not_count_items_are_an_error_that_names_the_shape() {
    let mut desk = Desk::new(false);
    desk.push(2, 0);
    let taken = desk.take();
    desk.end(&taken, 1, Ok(bytes(1, 0)));
    let answers = desk.answers();
    let error = answers[0].1.as_ref().unwrap_err().to_string();
    assert!(error.contains("[1, 1] for a batch of 2 items"), "{error}");
}

#[test]
fn a_bad_input_is_found_by_running_its_companions_alone() {
    let mut desk = Desk::new(false);
    let (good, bad) = (desk.push(1, 1), desk.push(1, 2));
    let taken = desk.take();
    desk.end(&taken, 1, Err(EngineError::Input("bad".into())));
    assert_eq!(desk.answers(), []);
    let later = desk.push(1, 3);
    assert_eq!(desk.run(1).len(), 1);
    let taken = desk.take();
    assert_eq!(taken.0.parts.len(), 1);
    desk.end(&taken, 1, Err(EngineError::Input("bad".into())));
    desk.run(1);
    let expected = [(good, Ok(vec![1])), (bad, Err(InferError::Input("bad".into()))), (later, Ok(vec![3]))];
    assert_eq!(desk.answers(), expected);
}

#[test]
fn nobody_gets_a_row_of_a_batch_whose_rows_are_not_its_items() {
    for rows in [0, 1, 3] {
        let mut desk = Desk::new(false);
        let (one, other) = (desk.push(1, 1), desk.push(1, 2));
        let taken = desk.take();
        desk.end(&taken, 1, Ok(bytes(rows, 7)));
        assert_eq!(desk.answers(), [], "{rows} rows for two items");
        // Alone, a single row's owner is not in doubt.
        let taken = desk.take();
        assert_eq!(taken.0.parts.len(), 1);
        desk.end(&taken, 1, Ok(bytes(rows, 7)));
        let answers = desk.answers();
        match rows {
            1 => assert_eq!(answers, [(one, Ok(vec![7]))]),
            _ => assert!(
                matches!(&answers[..], [(key, Err(InferError::Internal(why)))] if *key == one && why.contains("axis = \"none\"")),
                "{answers:?}"
            ),
        }
        desk.run(1);
        assert_eq!(desk.answers(), [(other, Ok(vec![2]))]);
        assert_eq!(desk.held(), (0, 0));
    }
}

#[test]
fn outputs_of_fewer_bytes_than_their_shape_has_are_an_error_and_nobodys_answer() {
    let mut desk = Desk::new(false);
    let key = desk.push(2, 1);
    let taken = desk.take();
    desk.end(&taken, 1, Ok(Tensor { shape: vec![2, 1], ..bytes(1, 7) }));
    let answers = desk.answers();
    let why = |error: &InferError| error.to_string().contains("1 bytes for UINT8 of shape [2, 1]");
    assert!(matches!(&answers[..], [(job, Err(error))] if *job == key && why(error)), "{answers:?}");
}

#[test]
fn a_failed_device_gives_its_jobs_a_second_chance_but_no_third() {
    let mut desk = Desk::new(false);
    let broken = || Err(EngineError::Device("xid 79".into()));
    let key = desk.push(3, 1);
    let taken = desk.take();
    desk.end(&taken, 1, broken());
    assert_eq!(desk.answers(), []);
    assert_eq!(desk.held(), (3, 3));
    let urgent = desk.push(4, 1);
    let taken = desk.take();
    assert_eq!(taken.0.parts[0].job, key, "ahead of what never ran");
    desk.end(&taken, 1, broken());
    let twice = "cpu: xid 79, and then cpu: xid 79";
    assert_eq!(desk.answers(), [(key, Err(InferError::Device(twice.into())))]);
    assert_eq!(desk.run(1), [(0, 4)]);
    assert_eq!(desk.answers(), [(urgent, Ok(vec![1, 2, 3, 4]))]);
}

#[test]
fn what_something_was_in_the_way_of_is_run_once_more_on_a_device_that_goes_on() {
    let mut desk = Desk::new(false);
    let passing = || Err(EngineError::Passing("a recording".into()));
    let key = desk.push(3, 1);
    let taken = desk.take();
    desk.end(&taken, 1, passing());
    assert_eq!((desk.answers(), desk.run(1)), (Vec::new(), vec![(0, 3)]));
    assert_eq!(desk.answers(), [(key, Ok(vec![1, 2, 3]))]);
    let key = desk.push(3, 1);
    for _ in 0..2 {
        let taken = desk.take();
        desk.end(&taken, 1, passing());
    }
    let twice = "cpu: a recording, and then cpu: a recording";
    assert_eq!(desk.answers(), [(key, Err(InferError::Device(twice.into())))]);
}

#[test]
fn batches_of_one_job_that_were_on_their_way_together_fail_it_once() {
    let mut desk = Desk::new(false);
    let broken = || Err(EngineError::Device("xid 79".into()));
    let key = desk.push(8, 1);
    let together = [desk.take(), desk.take()];
    for taken in &together {
        desk.end(taken, 1, broken());
        assert_eq!(desk.answers(), [], "the same failure, seen twice");
    }
    let (first, second) = (desk.take(), desk.take());
    desk.end(&first, 1, broken());
    let twice = "cpu: xid 79, and then cpu: xid 79";
    assert_eq!(desk.answers(), [(key, Err(InferError::Device(twice.into())))]);
    desk.end(&second, 1, broken());
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn too_little_memory_halves_a_batch_and_what_comes_after_it() {
    let mut desk = Desk::new(false);
    let full = || Err(EngineError::OutOfMemory("no room".into()));
    let key = desk.push(4, 1);
    let taken = desk.take();
    assert_eq!(desk.end(&taken, 1, full()), Aftermath { again: 1, ceiling: Some(2) });
    assert_eq!([desk.run(1), desk.run(1)], [[(0, 2)], [(2, 4)]]);
    assert_eq!(desk.answers(), [(key, Ok(vec![1, 2, 3, 4]))], "in order, and no error was anybody's");
    desk.push(4, 1);
    assert_eq!(desk.run(1), [(0, 2)]);
    // The next sizes are tried after good batches and time.
    desk.pass(10_000);
    for _ in 3..32 {
        desk.push(2, 1);
        desk.run(1);
    }
    desk.run(1);
    desk.push(4, 1);
    assert_eq!(desk.run(1), [(0, 4)]);
}

#[test]
fn a_batch_that_does_not_fit_again_is_tried_after_twice_the_time_though_it_is_the_largest() {
    let mut desk = Desk::new(false);
    let mut waits = 10_000;
    for _ in 0..4 {
        desk.push(4, 1);
        let taken = desk.take();
        assert_eq!(taken.0.items, 4);
        desk.end(&taken, 0, Err(EngineError::OutOfMemory("no room".into())));
        desk.pass(waits - 1);
        for _ in 0..40 {
            desk.push(2, 1);
            desk.run(0);
        }
        desk.push(4, 1);
        assert_eq!(desk.run(0), [(0, 2)], "not before {waits} ms");
        desk.run(0);
        desk.pass(1);
        desk.push(2, 1);
        desk.run(0);
        waits *= 2;
        desk.answers();
    }
    // The ceiling is forgotten when the largest size has worked for long.
    desk.push(4, 1);
    desk.run(0);
    desk.pass(640_000);
    desk.push(4, 1);
    desk.run(0);
    assert!(desk.book.models[&MODEL].ceilings.is_empty());
}

#[test]
fn want_of_memory_for_frames_makes_batches_of_rois_no_smaller() {
    let mut desk = Desk::new(false);
    let frames = Job { setting: Some(finding()), ..desk.job(4, 0) };
    desk.book.push(frames, desk.now).unwrap();
    let taken = desk.take();
    desk.end(&taken, 1, Err(EngineError::OutOfMemory("no room".into())));
    assert_eq!([desk.run(1), desk.run(1)], [[(0, 2)], [(2, 4)]]);
    desk.push(4, 1);
    assert_eq!(desk.run(1), [(0, 4)]);
}

#[test]
fn a_long_job_with_many_batches_on_their_way_is_halved_as_often_as_a_short_one() {
    let mut desk = Desk::new(false);
    desk.book.limits = QueueLimits { items_max: 40, bytes_max: 40 };
    // Short batches: there are not so many long ones.
    desk.book.measured(MODEL, &"cpu".into(), 4, MS, desk.now);
    let key = desk.push(40, 0);
    for size in [4, 2] {
        let together: Vec<_> = (0..40 / size).map(|_| desk.take()).collect();
        for taken in &together {
            assert_eq!(taken.0.items, size);
            desk.end(taken, 1, Err(EngineError::OutOfMemory("no room".into())));
        }
        assert_eq!(desk.answers(), [], "there is a smaller size");
    }
    for _ in 0..40 {
        desk.run(1);
    }
    assert_eq!(desk.answers(), [(key, Ok((0..40).collect()))]);
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn too_little_memory_for_a_single_item_is_an_error_that_says_so() {
    let mut desk = Desk::new(false);
    let key = desk.push(2, 1);
    for again in [1, 1, 0] {
        let taken = desk.take();
        let full = Err(EngineError::OutOfMemory("no room".into()));
        assert_eq!(desk.end(&taken, 1, full).again, again);
    }
    let once = "cpu: too little memory for a batch of 1: no room";
    let error = InferError::Outsized(format!("{once}, and then {once}"));
    assert_eq!(desk.answers(), [(key, Err(error))]);
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn who_had_no_memory_beside_others_or_on_a_gpu_may_try_again_later() {
    for device in ["cpu", "gpu0"] {
        let mut desk = Desk::new(false);
        desk.worker = desk.book.attach(&device.into());
        let (key, first) = (desk.push(1, 0), desk.take());
        let beside = (device == "cpu").then(|| (desk.push(1, 9), desk.take()));
        desk.end(&first, 1, Err(EngineError::OutOfMemory("no room".into())));
        let second = desk.take();
        desk.end(&second, 1, Err(EngineError::OutOfMemory("no room".into())));
        let answers = desk.answers();
        assert!(matches!(&answers[..], [(of, Err(InferError::Device(_)))] if *of == key), "{answers:?}");
        if let Some((other, taken)) = beside {
            desk.end(&taken, 1, Ok(bytes(1, 9)));
            assert_eq!(desk.answers(), [(other, Ok(vec![9]))]);
        }
        assert_eq!(desk.held(), (0, 0));
    }
}

#[test]
fn a_failed_job_avoids_the_device_that_failed_it_and_its_answer_says_so() {
    let mut desk = Desk::new(false);
    let (first, taken) = (desk.push(1, 1), desk.take());
    let other = desk.book.attach(&"gpu".into());
    assert!(matches!(desk.book.pick(other, &[MODEL], desk.now), Pick::Sleep));
    desk.end(&taken, 1, Err(EngineError::Device("xid 79".into())));
    let second = desk.push(1, 9);
    // The device that failed takes the job behind it, once it has left the job to others for as long as it would take itself.
    desk.pass(20);
    let behind = desk.take();
    assert_eq!(behind.0.parts[0].job, second);
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Sleep));
    let Pick::Run(batch, receipt) = desk.book.pick(other, &[MODEL], desk.now) else { panic!() };
    desk.end(&(batch, receipt), 1, Ok(bytes(1, 1)));
    let done = desk.book.settle().done.pop().unwrap();
    let answer = done.result.unwrap().join().unwrap();
    assert_eq!(done.job, first);
    assert_eq!((&*answer.device, answer.fallback), ("gpu", Some(Fallback::DeviceFailed)));
}

#[test]
fn what_the_device_that_failed_it_runs_after_all_is_no_fallback() {
    let mut desk = Desk::new(false);
    desk.push(1, 1);
    let taken = desk.take();
    desk.end(&taken, 1, Err(EngineError::Device("xid 79".into())));
    desk.run(1);
    let answer = desk.book.settle().done.pop().unwrap().result.unwrap().join().unwrap();
    assert_eq!((&*answer.device, answer.fallback), ("cpu", None));
}

#[test]
fn a_model_does_not_pay_for_the_time_that_a_device_hung_under_it() {
    let mut desk = Desk::new(false);
    let serves @ [_, other] = [MODEL, ModelKey(2)];
    desk.book.register(other, "letters", desk.book.models[&MODEL].rules.clone());
    for (model, items) in [(MODEL, 12), (other, 8)] {
        let job = Job { model, ..desk.job(items, 0) };
        desk.book.push(job, desk.now).unwrap();
    }
    let pick = |desk: &mut Desk, model| match desk.book.pick(desk.worker, &serves, desk.now) {
        Pick::Run(batch, receipt) if batch.model == model => (batch, receipt),
        other => panic!("{other:?} instead of a batch of {model:?}"),
    };
    for (model, ms) in [(MODEL, 10), (other, 100)] {
        let taken = pick(&mut desk, model);
        desk.end(&taken, ms, Ok(bytes(4, 0)));
    }
    let (_, receipt) = pick(&mut desk, MODEL);
    desk.pass(60_000);
    desk.book.attach(&"gpu".into());
    assert_eq!(desk.book.recall(desk.worker, "it hangs", desk.now).len(), 1);
    assert_eq!(desk.book.shares.order(receipt.device, &serves, |_| true), serves);
}

#[test]
fn a_burst_of_one_model_takes_turns_with_another_that_was_between_two_requests_when_it_came() {
    let mut desk = Desk::new(false);
    let serves @ [_, other] = [MODEL, ModelKey(2)];
    desk.book.register(other, "letters", desk.book.models[&MODEL].rules.clone());
    let push = |desk: &mut Desk, model| {
        let job = Job { model, ..desk.job(4, 0) };
        desk.book.push(job, desk.now).unwrap();
    };
    let turn = |desk: &mut Desk| match desk.book.pick(desk.worker, &serves, desk.now) {
        Pick::Run(batch, receipt) => (batch, receipt),
        other => panic!("{other:?} instead of a batch"),
    };
    for _ in 0..100 {
        push(&mut desk, MODEL);
        let taken = turn(&mut desk);
        desk.end(&taken, 100, Ok(bytes(4, 0)));
    }
    (0..4).for_each(|_| push(&mut desk, other));
    let first = turn(&mut desk);
    push(&mut desk, MODEL);
    desk.end(&first, 100, Ok(bytes(4, 0)));
    let second = turn(&mut desk);
    assert_eq!([first.0.model, second.0.model], [other, MODEL]);
}

#[test]
fn what_two_gpus_failed_is_run_by_the_cpu_that_stands_by_and_by_nobody_after_that() {
    for cpu_fails in [false, true] {
        let mut desk = Desk::new(false);
        desk.book.stand_by(MODEL, &"cpu".into());
        let gpus = ["gpu-0", "gpu-1"].map(|gpu| desk.book.attach(&gpu.into()));
        let pick = |desk: &mut Desk, worker| desk.book.pick(worker, &[MODEL], desk.now);
        for worker in [desk.worker, gpus[1]] {
            assert!(matches!(pick(&mut desk, worker), Pick::Sleep));
        }
        let job = desk.push(1, 1);
        for gpu in gpus {
            let Pick::Run(batch, receipt) = pick(&mut desk, gpu) else { panic!("it has not failed it") };
            let aftermath = desk.end(&(batch, receipt), 1, Err(EngineError::Device("it broke".into())));
            assert_eq!(aftermath.again, 1);
        }
        for gpu in gpus {
            assert!(!matches!(pick(&mut desk, gpu), Pick::Run(..)), "a fault may have taken both");
        }
        let taken = desk.take();
        if cpu_fails {
            desk.end(&taken, 1, Err(EngineError::Device("it broke, too".into())));
            let why = "gpu-0: it broke, and then gpu-1: it broke, and then cpu: it broke, too";
            assert_eq!(desk.answers(), [(job, Err(InferError::Device(why.into())))]);
        } else {
            desk.end(&taken, 1, Ok(bytes(1, 1)));
            let answer = desk.book.settle().done.pop().unwrap().result.unwrap().join().unwrap();
            assert_eq!((&*answer.device, answer.fallback), ("cpu", Some(Fallback::DeviceFailed)));
        }
        assert_eq!(desk.held(), (0, 0));
    }
}

#[test]
fn what_the_cpu_has_failed_before_a_gpu_is_not_run_by_it_again() {
    let mut desk = Desk::new(false);
    let (job, taken) = (desk.push(1, 1), desk.take());
    let gpu = desk.book.attach(&"gpu".into());
    assert!(matches!(desk.book.pick(gpu, &[MODEL], desk.now), Pick::Sleep));
    desk.end(&taken, 1, Err(EngineError::Device("it broke".into())));
    let Pick::Run(batch, receipt) = desk.book.pick(gpu, &[MODEL], desk.now) else { panic!("it may have it") };
    desk.end(&(batch, receipt), 1, Err(EngineError::Device("it broke, too".into())));
    let why = "cpu: it broke, and then gpu: it broke, too";
    assert_eq!(desk.answers(), [(job, Err(InferError::Device(why.into())))]);
}

#[test]
fn what_a_device_failed_wakes_another_that_may_have_it_and_runs_there_at_once() {
    let mut desk = Desk::new(false);
    desk.book.models.get_mut(&MODEL).unwrap().rules.wait_max = Duration::from_millis(200);
    let [first, second] = ["gpu-0", "gpu-1"].map(|gpu| desk.book.attach(&gpu.into()));
    let pick = |desk: &mut Desk, worker| desk.book.pick(worker, &[MODEL], desk.now);
    assert!(matches!(pick(&mut desk, second), Pick::Sleep));
    // Together they fill a batch; one of them goes while it runs.
    let companion = [desk.push(3, 0), desk.push(1, 9)][1];
    let Pick::Run(batch, receipt) = pick(&mut desk, first) else { panic!("it is full") };
    desk.book.cancel(companion, desk.now);
    desk.end(&(batch, receipt), 5, Err(EngineError::Device("it broke".into())));
    // This job waits for company; both workers may take it.
    let other = Tensor { datatype: DataType::Uint8, shape: vec![1, 2], data: vec![1, 2].into() };
    desk.book.push(Job::plain(MODEL, vec![other], 1, desk.now), desk.now).unwrap();
    for workers in [[first, second], [second, first]] {
        let woken = desk.book.best_of(&workers, MODEL, desk.now).map(|index| workers[index]);
        assert_eq!(woken, Some(second));
    }
    assert!(matches!(pick(&mut desk, first), Pick::SleepUntil(_)));
    let Pick::Run(batch, _) = pick(&mut desk, second) else { panic!("it has waited") };
    assert_eq!(batch.items, 3);
    let woken = desk.book.best_of(&[first], MODEL, desk.now);
    assert_eq!(woken, Some(0), "and wakes whoever may have the rest");
}

#[test]
fn a_full_queue_of_a_models_own_says_when_to_retry_by_its_own_work() {
    let queue = QueuePolicies { default: bounded(2), ..QueuePolicies::default() };
    let mut desk = Desk::of(false, queue);
    desk.book.measured(MODEL, &"cpu".into(), 4, 20_000 * MS, desk.now);
    // Quick work of another model says nothing about this one.
    desk.book.throughput.busy(true, desk.now);
    desk.pass(10);
    desk.book.throughput.record(1000, 1000, desk.now);
    desk.push(1, 1);
    desk.push(1, 1);
    let full = desk.book.push(desk.job(1, 1), desk.now);
    let after = Duration::from_secs(10);
    assert!(matches!(full, Err(InferError::Full { retry_after, .. }) if retry_after == after), "{full:?}");
}

#[test]
fn a_deadline_is_not_refused_for_what_was_slow_long_ago_or_once() {
    let mut desk = Desk::new(false);
    let fits = |desk: &mut Desk| {
        let let_in = (0..11).all(|_| desk.push_due(1, 1000).is_ok());
        let waiting: Vec<_> = desk.book.jobs.keys().copied().collect();
        waiting.into_iter().for_each(|job| desk.book.cancel(job, desk.now));
        let_in
    };
    desk.push(4, 1);
    desk.run(4000);
    assert!(!fits(&mut desk), "a second an item");
    desk.pass(60_000);
    assert!(fits(&mut desk), "that was a minute ago");
    for ms in [40, 4000] {
        desk.push(4, 1);
        desk.run(ms);
        assert!(fits(&mut desk), "{ms} ms, and others were quick");
    }
}

#[test]
fn jobs_of_a_model_whose_device_is_away_wait_only_if_it_is_back_in_time() {
    let mut desk = Desk::new(false);
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Sleep));
    let (soon, late) = (desk.push_due(1, 1000).unwrap(), desk.push_due(1, 5000).unwrap());
    let back = Some(desk.now + Duration::from_secs(2));
    let absence = Absence { reason: "it is being mended".into(), back };
    desk.book.expect(&"cpu".into(), absence, desk.now);
    assert_eq!(desk.answers(), [], "it is not gone yet");
    desk.book.detach(desk.worker, desk.now);
    let refused = InferError::Unserved {
        name: "digits".into(),
        reason: "cpu is away: it is being mended".into(),
        retry_after: Duration::from_secs(2),
    };
    assert_eq!(desk.answers(), [(soon, Err(refused.clone()))]);
    assert_eq!(desk.push_due(1, 2000), Err(refused));
    desk.worker = desk.book.attach(&"cpu".into());
    desk.run(1);
    assert_eq!(desk.answers(), [(late, Ok(vec![0]))]);
    // Without a time of return, no job waits.
    desk.book.detach(desk.worker, desk.now);
    assert!(matches!(desk.push_due(1, 60_000), Err(InferError::Unserved { .. })));
}

#[test]
fn a_device_that_comes_back_with_one_model_after_the_other_is_waited_for_until_it_has_all_that_it_gets() {
    const OTHER: ModelKey = ModelKey(2);
    for gets_it in [true, false] {
        let mut desk = Desk::new(false);
        let rules = desk.book.models[&MODEL].rules.clone();
        desk.book.register(OTHER, "letters", rules);
        assert!(matches!(desk.book.pick(desk.worker, &[MODEL, OTHER], desk.now), Pick::Sleep));
        let back = Some(desk.now + Duration::from_secs(2));
        desk.book.expect(&"cpu".into(), Absence { reason: "it is idle".into(), back }, desk.now);
        desk.book.detach(desk.worker, desk.now);
        let push = |desk: &mut Desk| {
            let job = Job { model: OTHER, ..desk.job(1, 7) };
            desk.book.push(job, desk.now)
        };
        let before = push(&mut desk).unwrap();
        desk.worker = desk.book.attach(&"cpu".into());
        for serves in [&[][..], &[MODEL]] {
            assert!(matches!(desk.book.pick(desk.worker, serves, desk.now), Pick::Sleep));
            assert_eq!(desk.answers(), [], "with {serves:?}");
        }
        let meanwhile = push(&mut desk).expect("it waits as well");
        if gets_it {
            desk.book.returned(desk.worker, &[MODEL, OTHER], desk.now);
            assert_eq!(desk.answers(), []);
            let picked = desk.book.pick(desk.worker, &[MODEL, OTHER], desk.now);
            let Pick::Run(batch, _) = picked else { panic!("{picked:?}") };
            assert_eq!((batch.model, batch.items), (OTHER, 2));
        } else {
            desk.book.returned(desk.worker, &[MODEL], desk.now);
            let refused = InferError::Unserved {
                name: "letters".into(),
                reason: "cpu is there, and does not serve it now".into(),
                retry_after: Duration::from_secs(5),
            };
            let answers = desk.answers();
            assert_eq!(answers.len(), 2);
            for waited in [before, meanwhile] {
                assert!(answers.contains(&(waited, Err(refused.clone()))), "{answers:?}");
            }
            assert_eq!(push(&mut desk), Err(refused));
        }
    }
}

#[test]
fn a_late_job_is_answered_when_a_batch_is_formed_and_never_runs() {
    let mut desk = Desk::new(false);
    let late = desk.push_due(1, 5).unwrap();
    desk.push(1, 1);
    desk.pass(5);
    assert_eq!(desk.run(1).len(), 1);
    let (key, answer) = desk.answers().remove(0);
    let error = answer.unwrap_err();
    assert_eq!(key, late);
    assert_eq!(error, InferError::Late("the deadline passed in the queue, after 5 ms".into()));
}

#[test]
fn a_deadline_that_has_passed_is_refused_at_the_door() {
    let mut desk = Desk::new(false);
    assert!(matches!(desk.push_due(1, 0), Err(InferError::Late(_))));
}

#[test]
fn a_deadline_that_the_work_ahead_makes_impossible_is_refused_once_speed_was_measured() {
    let mut desk = Desk::new(false);
    for _ in 0..4 {
        desk.push_due(4, 350).unwrap();
    }
    assert!(desk.push_due(1, 351).is_ok(), "nothing was measured");
    desk.run(100);
    // 12 rows ahead and one more take 325 ms, at 25 ms each.
    desk.pass(100);
    match desk.push_due(1, 200) {
        Err(InferError::Late(error)) => assert!(error.contains("200 ms are left"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(desk.push_due(1, 240).is_ok(), "not clearly too late");
    assert!(desk.push_due(1, 140).is_ok(), "goes before them");
}

#[test]
fn a_deadline_that_is_met_by_passing_a_long_job_is_not_refused() {
    let mut desk = Desk::new(false);
    desk.push_due(16, 1000).unwrap();
    desk.run(100);
    // 12 rows ahead take 300 ms.
    let short = desk.push_due(1, 160).unwrap();
    assert_eq!(desk.run(100), [(0, 1), (4, 7)]);
    assert_eq!(desk.answers(), [(short, Ok(vec![0]))]);
}

#[test]
fn devices_that_run_at_once_share_the_work_that_is_ahead_of_a_deadline_as_long_as_they_are_there() {
    let mut desk = Desk::new(false);
    let other = desk.book.attach(&"gpu-0".into());
    for _ in 0..4 {
        desk.push_due(4, 300).unwrap();
    }
    let taken = desk.take();
    let Pick::Run(batch, receipt) = desk.book.pick(other, &[MODEL], desk.now) else { panic!("it waits") };
    for taken in [taken, (batch, receipt)] {
        desk.end(&taken, 100, Ok(bytes(4, 0)));
    }
    // 8 rows ahead and one more take 225 ms on one, and half of that on two.
    assert!(desk.push_due(1, 140).is_ok());
    // Of the two, one is left.
    desk.book.detach(other, desk.now);
    assert!(matches!(desk.push_due(1, 140), Err(InferError::Late(_))));
}

#[test]
fn a_deadline_is_not_met_by_a_fast_device_that_has_gone() {
    let mut desk = Desk::new(false);
    let fast = desk.book.attach(&"gpu-0".into());
    for _ in 0..4 {
        desk.push_due(4, 300).unwrap();
    }
    let slow = desk.take();
    let Pick::Run(batch, receipt) = desk.book.pick(fast, &[MODEL], desk.now) else { panic!("it waits") };
    desk.end(&(batch, receipt), 1, Ok(bytes(4, 0)));
    desk.end(&slow, 100, Ok(bytes(4, 0)));
    desk.pass(99);
    // 8 rows ahead and one more take 225 ms on the slow one.
    assert!(desk.push_due(1, 140).is_ok());
    desk.book.detach(fast, desk.now);
    assert!(matches!(desk.push_due(1, 140), Err(InferError::Late(_))));
}

#[test]
fn what_whole_frames_took_says_nothing_of_rois() {
    let mut desk = Desk::new(false);
    desk.push_with(finding());
    desk.run(1000);
    desk.push(1, 0);
    desk.run(10);
    // If both were measured together, the jobs ahead would make it late.
    desk.push_due(2, 290).unwrap();
    desk.push_due(1, 300).unwrap();
    // This says nothing of frames: two take at least half a second.
    let mut push_frame = |ms| {
        let deadline = Some(desk.now + Duration::from_millis(ms));
        let job = Job { setting: Some(finding()), deadline, ..desk.job(1, 0) };
        desk.book.push(job, desk.now)
    };
    push_frame(290).unwrap();
    let refused = push_frame(300);
    assert!(matches!(&refused, Err(InferError::Late(why)) if why.contains("1 items ahead")), "{refused:?}");
}

#[test]
fn a_deadline_is_never_refused_for_slowness_when_nothing_is_ahead() {
    let mut desk = Desk::new(false);
    desk.push(4, 0);
    desk.run(60_000);
    assert!(desk.push_due(4, 1).is_ok());
}

#[test]
fn what_could_never_fit_names_the_option_to_raise() {
    let mut desk = Desk::new(false);
    let option = |error| match error {
        Err(InferError::TooLarge { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let job = desk.job(21, 0);
    assert_eq!(option(desk.book.push(job, desk.now)), "queue_items_max");
    let mut job = desk.job(1, 0);
    job.inputs[0].shape[1] = 41;
    job.inputs[0].data = vec![0; 41].into();
    assert_eq!(option(desk.book.push(job, desk.now)), "queue_bytes_max");
}

#[test]
fn a_full_queue_says_when_to_retry_and_that_grows_with_the_backlog() {
    let retry = |rows: u64| {
        let mut desk = Desk::new(false);
        desk.push(4, 0);
        desk.run(1000 * rows);
        // An idle hour says nothing of its speed.
        desk.pass(3_600_000);
        desk.push(20, 0);
        let job = desk.job(1, 0);
        match desk.book.push(job, desk.now) {
            Err(InferError::Full { retry_after, limit: 20, .. }) => retry_after.as_secs_f64(),
            other => panic!("{other:?}"),
        }
    };
    assert!((retry(1) - 5.0).abs() < 1e-6, "{}", retry(1));
    assert!((retry(3) - 15.0).abs() < 1e-6, "{}", retry(3));
}

#[test]
fn late_jobs_give_their_place_to_new_ones() {
    let mut desk = Desk::new(false);
    let late = desk.push_due(20, 5).unwrap();
    desk.pass(5);
    desk.push(20, 0);
    let answers = desk.answers();
    assert!(matches!(answers[..], [(k, Err(InferError::Late(_)))] if k == late), "{answers:?}");
}

#[test]
fn bytes_are_bounded_apart_from_items() {
    let mut desk = Desk::new(false);
    let mut job = desk.job(1, 0);
    job.inputs[0].shape[1] = 40;
    job.inputs[0].data = vec![0; 40].into();
    desk.book.push(job, desk.now).unwrap();
    let job = desk.job(1, 0);
    let full = desk.book.push(job, desk.now);
    assert!(matches!(full, Err(InferError::Full { limit: 40, .. })), "{full:?}");
}

#[test]
fn a_queue_full_of_bytes_says_when_to_retry_by_their_number() {
    let mut desk = Desk::new(false);
    let push = |desk: &mut Desk, bytes: usize| {
        let input = Tensor { datatype: DataType::Uint8, shape: vec![1, bytes], data: vec![0; bytes].into() };
        desk.book.push(Job::plain(MODEL, vec![input], 1, desk.now), desk.now)
    };
    push(&mut desk, 10).unwrap();
    let taken = desk.take();
    desk.end(&taken, 1000, Ok(bytes(1, 0)));
    push(&mut desk, 40).unwrap();
    // Ten bytes a second, at one item a second.
    let full = push(&mut desk, 1);
    let after = Duration::from_secs(4);
    assert!(matches!(full, Err(InferError::Full { retry_after, .. }) if retry_after == after), "{full:?}");
}

#[test]
fn the_oldest_job_is_that_of_all_models() {
    let mut desk = Desk::new(false);
    let newer = ModelKey(2);
    desk.book.register(newer, "letters", desk.book.models[&MODEL].rules.clone());
    desk.push(1, 0);
    desk.pass(5);
    let job = Job { model: newer, ..desk.job(1, 0) };
    desk.book.push(job, desk.now).unwrap();
    desk.pass(2);
    assert_eq!(desk.book.load(desk.now).oldest, Some(Duration::from_millis(7)));
}

#[test]
fn a_cancelled_job_gives_back_its_bounds_at_once_or_with_its_last_running_part() {
    let mut desk = Desk::new(false);
    let (first, second) = (desk.push(6, 0), desk.push(2, 0));
    let taken = desk.take();
    desk.book.cancel(second, desk.now);
    assert_eq!(desk.held(), (6, 6));
    desk.book.cancel(first, desk.now);
    assert_eq!(desk.held(), (6, 6), "part of it runs");
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Sleep));
    desk.end(&taken, 1, Ok(bytes(4, 0)));
    assert_eq!(desk.held(), (0, 0));
    assert_eq!(desk.answers(), []);
}

#[test]
fn items_of_different_shapes_share_no_batch_and_hold_up_nobody() {
    let mut desk = Desk::new(false);
    for extent in [1, 2, 1] {
        let mut job = desk.job(1, 0);
        job.inputs[0].shape[1] = extent;
        job.inputs[0].data = vec![0; extent].into();
        desk.book.push(job, desk.now).unwrap();
    }
    assert_eq!(desk.take().0.parts.len(), 2);
    assert_eq!(desk.take().0.parts.len(), 1);
}

#[test]
fn a_retired_model_takes_no_jobs_runs_what_waits_and_is_forgotten() {
    let mut desk = Desk::new(false);
    let key = desk.push(1, 1);
    desk.book.retire(MODEL, desk.now);
    let job = desk.job(1, 0);
    match desk.book.push(job, desk.now) {
        Err(InferError::ModelUnavailable { name, .. }) => assert_eq!(name, "digits"),
        other => panic!("{other:?}"),
    }
    assert!(desk.book.knows(MODEL));
    desk.run(1);
    assert!(!desk.book.knows(MODEL));
    assert_eq!(desk.answers(), [(key, Ok(vec![1]))]);
}

#[test]
fn jobs_of_a_retired_model_that_no_worker_serves_are_answered() {
    let mut desk = Desk::new(false);
    let key = desk.push(1, 1);
    assert!(matches!(desk.book.pick(desk.worker, &[], desk.now), Pick::Sleep));
    assert_eq!(desk.answers(), [], "a device may come");
    desk.book.retire(MODEL, desk.now);
    let answers = desk.answers();
    assert!(matches!(answers[..], [(k, Err(InferError::Device(_)))] if k == key), "{answers:?}");
    assert!(!desk.book.knows(MODEL));
}

#[test]
fn once_closed_workers_go_home_when_nothing_can_come_back_to_them() {
    let mut desk = Desk::new(false);
    let other = desk.book.attach(&"cpu".into());
    let key = desk.push(1, 1);
    let taken = desk.take();
    desk.book.close(desk.now);
    let job = desk.job(1, 0);
    let refused = desk.book.push(job, desk.now);
    assert!(matches!(refused, Err(InferError::Draining)));
    assert!(matches!(desk.book.pick(other, &[MODEL], desk.now), Pick::Sleep));
    desk.end(&taken, 1, Err(EngineError::Device("gone".into())));
    desk.run(1);
    assert_eq!(desk.answers(), [(key, Ok(vec![1]))]);
    for worker in [other, desk.worker] {
        assert!(matches!(desk.book.pick(worker, &[MODEL], desk.now), Pick::Closed));
    }
}

#[test]
fn what_comes_back_to_a_worker_after_the_close_is_run_though_it_asked_for_more_before() {
    let mut desk = Desk::new(false);
    let keys = [desk.push(1, 1), desk.push(1, 2)];
    let taken = desk.take();
    desk.book.close(desk.now);
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Closed));
    desk.end(&taken, 1, Err(EngineError::Input("one of them is bad".into())));
    desk.run(1);
    desk.run(1);
    assert_eq!(desk.answers(), [(keys[0], Ok(vec![1])), (keys[1], Ok(vec![2]))]);
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Closed));
}

#[test]
fn tensors_that_are_not_what_they_say_are_refused() {
    let mut desk = Desk::new(false);
    for change in [
        |job: &mut Job| job.items = 0,
        |job: &mut Job| job.items = 3,
        |job: &mut Job| job.inputs[0].shape = vec![],
        |job: &mut Job| job.inputs[0].shape[1] = 5,
    ] {
        let mut job = desk.job(2, 0);
        change(&mut job);
        let refused = check_tensors(&job).and_then(|()| desk.book.push(job, desk.now));
        assert!(matches!(refused, Err(InferError::Internal(_))), "{refused:?}");
    }
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn a_model_between_sizes_learns_to_fill_the_lower_one_first() {
    let mut desk = Desk::new(false);
    // One batch of each size may have been held up.
    for items in [1, 2, 4].repeat(4) {
        desk.push(items, 0);
        desk.run(10 * items as u64);
    }
    desk.push(3, 0);
    assert_eq!(desk.run(20), [(0, 2)]);
    assert_eq!(desk.run(10), [(2, 3)]);
    assert_eq!(desk.answers().pop().unwrap().1, Ok(vec![0, 1, 2]));
}

#[test]
fn a_cpu_takes_batches_as_they_come_where_nobody_chose_their_sizes() {
    for (padding, on_cpu) in [(Padding::OnGpus, 3), (Padding::Everywhere, 4), (Padding::Never, 3)] {
        let mut desk = Desk::new(false);
        desk.pad(padding);
        desk.push(3, 0);
        assert_eq!(desk.take().0.size, on_cpu, "{padding:?}");
        desk.worker = desk.book.attach(&"gpu-0".into());
        desk.push(3, 0);
        assert_eq!(desk.take().0.size, if padding == Padding::Never { 3 } else { 4 }, "{padding:?}");
    }
}

#[test]
fn where_nothing_is_padded_nothing_is_split_to_spare_it() {
    let mut desk = Desk::new(false);
    desk.pad(Padding::Never);
    for items in [1, 2, 4].repeat(4) {
        desk.push(items, 0);
        desk.run(10 * items as u64);
    }
    desk.push(3, 0);
    assert_eq!(desk.run(30), [(0, 3)]);
}

#[test]
fn a_cpu_takes_no_more_than_pays_and_a_gpu_all_that_waits() {
    let mut desk = Desk::new(false);
    desk.pad(Padding::OnGpus);
    let on_cpu = desk.worker;
    let on_gpu = desk.book.attach(&"gpu-0".into());
    for (worker, taken) in [(on_cpu, 1), (on_gpu, 4)] {
        desk.worker = worker;
        for _ in 0..12 {
            desk.push(4, 0);
            let mut left = 4;
            while left > 0 {
                let ran = desk.run_timed(|items| 10 * items as u64);
                left -= ran.iter().map(|(start, end)| end - start).sum::<usize>();
            }
        }
        desk.push(4, 0);
        assert_eq!(desk.take().0.items, taken);
    }
}

fn bounded(jobs_max: usize) -> QueuePolicy {
    QueuePolicy { jobs_max: Some(jobs_max), ..QueuePolicy::default() }
}

#[test]
fn a_model_has_room_for_so_many_waiting_jobs_of_each_priority_as_its_policies_say() {
    let queue = QueuePolicies { default: bounded(2), of_priority: [(3, bounded(1))].into() };
    let mut desk = Desk::of(false, queue);
    let mut push = |priority| desk.book.push(Job { priority, ..desk.job(1, 0) }, desk.now).map(|_| ());
    let full = |limit| {
        let what = "the model's own queue of requests of this priority";
        Err(InferError::Full { what, limit, retry_after: Duration::from_secs(1) })
    };
    assert_eq!([0, 0, 3].map(&mut push), [Ok(()), Ok(()), Ok(())]);
    assert_eq!([push(0), push(3), push(7)], [full(2), full(1), Ok(())]);
    // Running jobs do not wait.
    let batch = desk.take();
    assert!(desk.push_due(1, 1000).is_ok());
    drop(batch);
}

#[test]
fn a_job_that_waits_longer_than_its_model_lets_it_is_refused_or_stands_back() {
    for then in [OnTimeout::Refuse, OnTimeout::Delay] {
        let mut desk = Desk::new(false);
        let running = (desk.push(4, 0), desk.take());
        let wait = Some(Wait { max: Duration::from_millis(5), then });
        let mut push = |wait, first| desk.book.push(Job { wait, ..desk.job(4, first) }, desk.now).unwrap();
        let (late, patient) = (push(wait, 10), push(None, 20));
        desk.pass(5);
        let (batch, _) = desk.take();
        assert_eq!(batch.parts[0].job, patient, "{then:?}");
        let told = desk.answers();
        match then {
            OnTimeout::Refuse => {
                let why = "the request waited for 5 ms, which is as long as its model's queue lets it";
                assert_eq!(told, [(late, Err(InferError::Late(why.into())))]);
            }
            OnTimeout::Delay => {
                assert_eq!(told, []);
                let (batch, _) = desk.take();
                assert_eq!(batch.parts[0].job, late);
            }
        }
        drop(running);
    }
}

#[test]
fn a_device_gets_no_larger_batches_than_it_was_tried_with() {
    let mut desk = Desk::new(false);
    desk.book.tried(MODEL, &"cpu".into(), Some(2));
    desk.push(4, 0);
    assert_eq!((desk.take().0.items, desk.take().0.items), (2, 2));
    // Loaded there anew.
    desk.book.tried(MODEL, &"cpu".into(), None);
    desk.push(4, 0);
    assert_eq!(desk.take().0.items, 4);
}

#[test]
fn a_device_on_which_another_size_is_dear_keeps_to_one_and_others_do_not() {
    let mut desk = Desk::new(false);
    desk.pad(Padding::OnGpus);
    let taken = |desk: &mut Desk, worker, batches: &[(usize, usize)]| {
        desk.worker = worker;
        for (items, size) in batches {
            desk.push(*items, 0);
            assert_eq!(desk.take().0.size, *size, "{items} items");
        }
    };
    let [first, second] = [0; 2].map(|_| desk.book.attach(&"gpu-0".into()));
    desk.book.keep_size(first, MODEL, true);
    let on_cpu = desk.worker;
    taken(&mut desk, on_cpu, &[(1, 1), (3, 3), (1, 1)]);
    taken(&mut desk, first, &[(1, 1), (3, 4), (1, 4), (2, 4)]);
    // Another instance there has recorded all sizes, and later the first one has.
    taken(&mut desk, second, &[(3, 4), (1, 1)]);
    desk.book.keep_size(first, MODEL, false);
    taken(&mut desk, first, &[(3, 4), (1, 1)]);
}
