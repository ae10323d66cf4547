//! What a worker does with minimal engines.
#![allow(clippy::unwrap_used)] // a test may panic

use super::{
    super::bounded::testing::{Endless, Told},
    *,
};
use crate::{
    batch::{Job, QueueLimits},
    engine::{
        DataType, Habits, Setting, Signature, Tensor, TensorSpec,
        staging::{Memory, testing::Refusing},
    },
    models::{
        Model,
        testing::{model_of, source},
    },
    tasks::testing::{floats, signature, spec},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ThreadId},
};

/// An engine that always gives the same output, and that panics when a batch is put together if it has no memory for it.
struct Constant {
    signature: Signature,
    memory: Option<Memory>,
}

impl Engine for Constant {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        Ok(Flight::Landed(vec![floats(&[2], &[1.0, 2.0])]))
    }

    fn memory(&self) -> Memory {
        self.memory.clone().expect("no memory for anybody")
    }
}

/// An engine that reports at each batch how it takes batches from then on, and how large that one was.
struct Turning {
    signature: Signature,
    turns: Vec<Habits>,
    sizes: mpsc::Sender<usize>,
}

impl Engine for Turning {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn start(&mut self, mut inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        self.turns.remove(0);
        self.sizes.send(inputs[0].shape[0]).unwrap();
        inputs.truncate(1);
        Ok(Flight::Landed(inputs))
    }

    fn habits(&self) -> Habits {
        self.turns[0]
    }
}

#[test]
fn how_an_engine_takes_batches_is_known_before_the_next_one_whenever_it_changes() {
    let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
    let health = Health::new("gpu-0".into(), Arc::clone(&queue), false, None);
    let signature =
        Signature { inputs: vec![spec("x", DataType::Fp32, &[-1, 2])], ..signature(&[("y", &[-1, 2])]) };
    let source = source("m", "1", "");
    let model = model_of(&source, signature.clone()).unwrap();
    queue.register(model.key, "m", model.rules.clone());
    let metrics = Arc::new(Metrics::new(&[], "0", "none"));
    metrics.add_model("m");
    let post = Post { name: "test".into(), health, queue: Arc::clone(&queue), metrics: Arc::clone(&metrics) };
    let worker = Worker::start(post).unwrap();
    let (sizes, ran) = mpsc::channel();
    let habits = |plans_anew, unrecorded| Habits { plans_anew, unrecorded };
    let turns = vec![
        habits(false, 1),
        habits(false, 1),
        habits(true, 3),
        habits(true, 3),
        habits(false, 3),
        habits(false, 3),
        habits(false, 3),
    ];
    worker.serve(Arc::new(Arc::new(model)), Box::new(Turning { signature, turns, sizes }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (items, size) in [(3, 4), (1, 1), (3, 4), (1, 4), (3, 4), (1, 1)] {
        let values = vec![0.0; 2 * items];
        let job = Job::plain(ModelKey(1), vec![floats(&[items, 2], &values)], items, Instant::now());
        runtime.block_on(queue.push(job).unwrap()).unwrap();
        assert_eq!(ran.recv(), Ok(size));
    }
    queue.close();
    worker.join();
    let counted = "ocelli_unrecorded_sizes_total{device=\"gpu-0\",model=\"m\"} 3";
    assert!(metrics.render().contains(counted), "{}", metrics.render());
}

#[test]
fn a_long_batch_is_ended_once_nobody_waits_for_it_and_not_before() {
    let metrics = Arc::new(Metrics::new(&[], "0", "none"));
    metrics.add_model("endless");
    let (worker, queue, _) = worker_counted(Vec::new(), |_| Some(Memory::Plain), Arc::clone(&metrics));
    let signature = Signature { inputs: Vec::new(), ..signature(&[("y", &[2])]) };
    let (source, time) = (source("endless", "1", ""), Duration::from_secs(60));
    let model = Model::resolve(ModelKey(2), &source, signature.clone(), time, &Memory::Plain).unwrap();
    queue.register(model.key, "endless", model.rules.clone());
    let (begun, began) = mpsc::channel();
    let told = Arc::new(Told::default());
    let engine = Endless { signature, told: Arc::clone(&told), begun };
    worker.serve(Arc::new(Arc::new(model)), Box::new(engine));
    let push = |model| queue.push(Job::plain(ModelKey(model), Vec::new(), 1, Instant::now())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..2 {
        let endless = push(2);
        began.recv().unwrap();
        let soon = Instant::now();
        let later = soon + UNWANTED_AFTER;
        worker.end_unwanted(later);
        assert!(told.goes_on(), "somebody waits for it");
        drop(endless);
        worker.end_unwanted(soon);
        assert!(told.goes_on(), "it is not long");
        let behind = push(1);
        worker.end_unwanted(later);
        runtime.block_on(behind).unwrap();
    }
    // A batch that was ended because nobody waits for it is no failure; one that the engine refuses is.
    let failed = |count: usize| {
        let line = "ocelli_failed_batches_total{device=\"cpu\",model=\"endless\",reason=\"input\"}";
        metrics.render().contains(&format!("{line} {count}"))
    };
    assert!(failed(0), "{}", metrics.render());
    let refused = push(2);
    began.recv().unwrap();
    assert!(told.interrupt(&|| true));
    assert!(runtime.block_on(refused).is_err());
    queue.close();
    worker.join();
    assert!(failed(1), "{}", metrics.render());
}

/// A worker of the CPU with such an engine, without inputs, and its queue.
fn worker(breaks: bool) -> (Worker, Arc<Queue>, Health) {
    worker_with(Vec::new(), |_| (!breaks).then_some(Memory::Plain))
}

/// The same with these inputs, and with memory chosen by the health of the device.
fn worker_with(
    inputs: Vec<TensorSpec>,
    memory: impl FnOnce(&Health) -> Option<Memory>,
) -> (Worker, Arc<Queue>, Health) {
    worker_counted(inputs, memory, Arc::new(Metrics::new(&[], "0", "none")))
}

/// The same, with these metrics.
fn worker_counted(
    inputs: Vec<TensorSpec>,
    memory: impl FnOnce(&Health) -> Option<Memory>,
    metrics: Arc<Metrics>,
) -> (Worker, Arc<Queue>, Health) {
    let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
    let health = Health::new(batch::roster::CPU.into(), Arc::clone(&queue), false, None);
    let mut signature = signature(&[("y", &[2])]);
    signature.inputs = inputs;
    let source = source("m", "1", "");
    let model = model_of(&source, signature.clone()).unwrap();
    queue.register(model.key, "m", model.rules.clone());
    let (name, queue_of, health_of) = ("test".into(), Arc::clone(&queue), health.clone());
    let post = Post { name, health: health_of, queue: queue_of, metrics };
    let worker = Worker::start(post).unwrap();
    worker.serve(Arc::new(Arc::new(model)), Box::new(Constant { signature, memory: memory(&health) }));
    (worker, queue, health)
}

#[test]
fn a_model_without_inputs_is_answered() {
    let (worker, queue, health) = worker(false);
    let ticket = queue.push(Job::plain(ModelKey(1), Vec::new(), 1, Instant::now())).unwrap();
    let answer = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket);
    assert_eq!(answer.unwrap().outputs[0].shape, [2]);
    queue.close();
    worker.join();
    assert_eq!(health.over(), None);
}

#[test]
fn a_device_is_about_a_batch_from_when_it_is_put_together() {
    let told = Arc::new(AtomicUsize::new(0));
    let watch = |health: &Health| {
        let (told, health) = (Arc::clone(&told), health.clone());
        let refuse = move || {
            assert!(health.busy_for(Instant::now()).is_some(), "nobody would see that it hangs here");
            told.fetch_add(1, Ordering::SeqCst);
        };
        Some(Memory::Pinned(Arc::new(Refusing(Box::new(refuse)))))
    };
    let (worker, queue, health) = worker_with(vec![spec("x", DataType::Fp32, &[-1, 2])], watch);
    let job = Job::plain(ModelKey(1), vec![floats(&[1, 2], &[1.0, 2.0])], 1, Instant::now());
    let ticket = queue.push(job).unwrap();
    let answer = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket);
    assert_eq!(answer.map(|answer| answer.outputs.len()), Ok(1));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    queue.close();
    worker.join();
    assert_eq!(health.over(), None);
}

/// An engine that reports on which thread it runs, and whether its batches all take equally long.
struct Placed {
    signature: Signature,
    even: bool,
    ran: mpsc::Sender<ThreadId>,
}

impl Engine for Placed {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        self.ran.send(thread::current().id()).unwrap();
        Ok(Flight::Landed(vec![floats(&[2], &[1.0, 2.0])]))
    }

    fn is_even(&self) -> bool {
        self.even
    }
}

#[test]
fn a_short_batch_is_run_by_whoever_pushes_it_while_the_worker_sleeps_if_all_take_as_long() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for even in [true, false] {
        let (worker, queue, health) = worker(false);
        let signature = Signature { inputs: Vec::new(), ..signature(&[("y", &[2])]) };
        let (source, time) = (source("placed", "1", ""), Duration::from_secs(60));
        let model = Model::resolve(ModelKey(2), &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(model.key, "placed", model.rules.clone());
        let (ran, runs) = mpsc::channel();
        worker.serve(Arc::new(Arc::new(model)), Box::new(Placed { signature, even, ran }));
        worker.complete();
        // A job that arrives while the worker is awake goes to the worker.
        let (end, mut here) = (Instant::now() + Duration::from_secs(60), 0);
        for round in 0.. {
            (0..4).for_each(|_| queue.measured(ModelKey(2), &health.device, 1, Duration::from_micros(10)));
            let pushed = Instant::now();
            let answer = queue.push(Job::plain(ModelKey(2), Vec::new(), 1, pushed)).unwrap();
            runtime.block_on(answer).unwrap();
            here += usize::from(runs.recv().unwrap() == thread::current().id());
            if here > 0 && even || round == 20 && !even {
                break;
            }
            assert!(Instant::now() < end, "the worker is always awake");
            // Jobs in quick succession go to the worker, too.
            while pushed.elapsed() < Duration::from_millis(1) {
                thread::yield_now();
            }
        }
        assert_eq!(here, usize::from(even));
        queue.close();
        worker.join();
    }
}

/// The queue of a CPU, and a model of pairs on it.
fn of_pairs() -> (Arc<Queue>, Health, Lent, Signature) {
    let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100_000 });
    let health = Health::new(batch::roster::CPU.into(), Arc::clone(&queue), false, None);
    let signature =
        Signature { inputs: vec![spec("x", DataType::Fp32, &[-1, 2])], ..signature(&[("y", &[2])]) };
    let source = source("m", "1", "");
    let model = model_of(&source, signature.clone()).unwrap();
    queue.register(model.key, "m", model.rules.clone());
    (queue, health, Arc::new(Arc::new(model)), signature)
}

#[test]
fn a_batch_that_panics_where_it_was_pushed_ends_the_hold_on_the_device_and_not_whoever_pushed_it() {
    let (queue, health, model, signature) = of_pairs();
    let metrics = Metrics::new(&[], "0", "none");
    metrics.add_model("m");
    let metrics = metrics.model("m").device("cpu");
    let memory = Some(Memory::Pinned(Arc::new(Refusing(Box::new(|| panic!("no memory for anybody"))))));
    let engine = Box::new(Constant { signature, memory });
    let seat = Seat::new(model, engine, health.clone(), metrics);
    let place = queue.attach(&health.device);
    let input = floats(&[1, 2], &[1.0, 2.0]);
    let ticket = queue.push(Job::plain(ModelKey(1), vec![input], 1, Instant::now())).unwrap();
    seat.run(place.try_take(&[ModelKey(1)]).unwrap());
    let why = "a batch that was run in a worker's name panicked: no memory for anybody";
    assert_eq!(health.over(), Some(&Over::Failed(why.into())));
    // It runs elsewhere, once another device is there.
    assert_eq!(queue.load().waiting, 1);
    drop(ticket);
}

#[test]
fn memory_is_let_go_each_time_that_nothing_comes_and_used_again_until_then() {
    let (queue, health, model, signature) = of_pairs();
    let (_mail, mailbox) = mpsc::channel();
    let mut work = Work {
        health: health.clone(),
        place: queue.attach(&health.device),
        metrics: Arc::new(Metrics::new(&[], "0", "none")),
        queue: Arc::clone(&queue),
        mailbox,
        served: Vec::new(),
        landing: Landing::new("test", health),
        seats: HashMap::new(),
        interrupts: Interrupts::default(),
        rested: false,
    };
    let blocks = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&blocks);
    let count = move || _ = taken.fetch_add(1, Ordering::SeqCst);
    let memory = Some(Memory::Pinned(Arc::new(Refusing(Box::new(count)))));
    work.accept(model, Box::new(Constant { signature, memory }));
    let push_and_serve = |work: &mut Work| {
        let job = Job::plain(ModelKey(1), vec![floats(&[1, 2], &[1.0, 2.0])], 1, Instant::now());
        let _ticket = queue.push(job).unwrap();
        let batch = work.place.try_take(&work.served).unwrap();
        work.serve(batch);
    };
    for rests in 0..2 {
        assert_eq!(blocks.load(Ordering::SeqCst), rests);
        (0..2).for_each(|_| push_and_serve(&mut work));
        assert_eq!(blocks.load(Ordering::SeqCst), rests + 1);
        // A thread that pushes a job may have run one meanwhile.
        work.rest(Instant::now());
        push_and_serve(&mut work);
        assert_eq!(blocks.load(Ordering::SeqCst), rests + 1, "it is in use");
        assert_eq!(work.patience(), Some(REST_AFTER));
        work.rest(Instant::now() + REST_AFTER);
        assert_eq!(work.patience(), None, "there is no more to let go");
    }
}

#[test]
fn a_model_that_is_retired_before_its_engine_is_taken_in_leaves_nothing_behind() {
    let (worker, queue, _) = worker(false);
    let (signature, source) = (signature(&[("y", &[2])]), source("m", "1", ""));
    let signature = Signature { inputs: Vec::new(), ..signature };
    for key in (2..100).map(ModelKey) {
        let time = Duration::from_secs(60);
        let model = Model::resolve(key, &source, signature.clone(), time, &Memory::Plain).unwrap();
        queue.register(key, "m", model.rules.clone());
        let (model, memory) = (Arc::new(Arc::new(model)), Some(Memory::Plain));
        let lent = Arc::downgrade(&model);
        // It sleeps, and wakes when both have happened.
        worker.complete();
        worker.serve(model, Box::new(Constant { signature: signature.clone(), memory }));
        queue.retire(key);
        let end = Instant::now() + Duration::from_secs(60);
        while lent.strong_count() > 0 {
            assert!(Instant::now() < end, "the device still has model {key:?}");
            thread::yield_now();
        }
    }
    queue.close();
    worker.join();
}

#[test]
fn a_worker_that_leaves_does_not_outdo_what_its_keeper_has_said() {
    for why in [Over::Left, Over::Failed("it broke".into())] {
        let (worker, queue, health) = worker(false);
        let push = || queue.push(Job::plain(ModelKey(1), Vec::new(), 1, Instant::now()));
        let answer = push().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(answer).unwrap();
        queue.expect(&health.device, Absence { reason: "drained by request".into(), back: None });
        health.end(why);
        worker.join();
        let refused = push().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("cpu is away: drained by request"), "{refused}");
    }
}

#[test]
fn a_call_of_the_device_that_waits_for_its_turn_does_not_count_as_one_that_takes_long() {
    let (worker, queue, health) = worker(false);
    let (release, released) = mpsc::channel::<()>();
    // The work before it takes long, in many calls that are each short.
    let first = worker.post(move || released.recv().map(|()| Instant::now())).unwrap();
    let of_device = health.clone();
    let call = as_busy(&health, move || of_device.busy_for(Instant::now()).map(|busy| Instant::now() - busy));
    let second = worker.post(call).unwrap();
    assert_eq!(health.busy_for(Instant::now()), None, "it has not begun");
    release.send(()).unwrap();
    let first_ended = worker.wait(&first).unwrap().unwrap().unwrap();
    let second_began = worker.wait(&second).unwrap().unwrap().unwrap();
    assert!(second_began >= first_ended);
    let (seven, within) = worker.call_device(|| (7, Instant::now())).unwrap();
    assert_eq!(seven, 7);
    // By then it may be checking whether it can release memory, which begins after that call.
    let now = Instant::now();
    assert!(health.busy_for(now).is_none_or(|busy| now - busy >= within), "that call goes on");
    queue.close();
    worker.join();
}

#[test]
fn a_thread_that_panics_ends_its_hold_on_the_device() {
    let (worker, _, health) = worker(true);
    worker.join();
    let why = "a worker's thread panicked: no memory for anybody";
    assert_eq!(health.over(), Some(&Over::Failed(why.into())));
}
