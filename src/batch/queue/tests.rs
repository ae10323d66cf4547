//! Callers and workers on threads of their own.
#![allow(clippy::unwrap_used)] // a test may panic

use super::*;
use crate::{
    batch::{Fallback, Ran, patience::Wait, rows},
    engine::{DataType, Tensor},
    telemetry::metrics::Metrics,
};
use bytes::Bytes;
use futures_util::FutureExt;
use std::thread;

const A: ModelKey = ModelKey(1);
const B: ModelKey = ModelKey(2);

fn queue(wait_max: Duration) -> Arc<Queue> {
    let queue = Queue::new(QueueLimits { items_max: 100, bytes_max: 10_000 });
    for (model, wait_max) in [(A, wait_max), (B, Duration::ZERO)] {
        let rules = Rules { wait_max, ..Rules::plain(&[1, 2, 4]) };
        queue.register(model, "digits", rules);
    }
    queue
}

fn device(name: &str) -> Arc<str> {
    name.into()
}

fn job(model: ModelKey, items: usize, first: u8) -> Job {
    let data: Vec<u8> = (0..items as u8).map(|i| first.wrapping_add(i)).collect();
    let input = Tensor { datatype: DataType::Uint8, shape: vec![items, 1], data: data.into() };
    Job::plain(model, vec![input], items, Instant::now())
}

#[test]
fn a_batch_is_counted_before_its_answers_are_there() {
    let queue = queue(Duration::ZERO);
    let worker = queue.attach(&device("cpu"));
    let mut ticket = queue.push(job(A, 2, 7)).unwrap();
    let running = worker.try_take(&[A]).unwrap();
    let (result, mut answered) = (echo(&running), None);
    let _ = running.finish_counted(result, || answered = Some((&mut ticket).now_or_never().is_some()));
    assert_eq!(answered, Some(false));
    assert!((&mut ticket).now_or_never().is_some());
}

/// The engine: gives back its input.
fn echo(batch: &Batch) -> RunResult {
    let inputs: Vec<&Tensor> = batch.parts.iter().map(|part| &part.inputs[0]).collect();
    let mut output = rows::join(&inputs).unwrap();
    let mut data = output.data.to_vec();
    data.resize(batch.size, 0xff);
    (output.shape[0], output.data) = (batch.size, data.into());
    Ok(Ran {
        outputs: vec![output],
        stage: Duration::ZERO,
        waited: Duration::ZERO,
        compute: Duration::from_micros(100),
    })
}

/// A worker thread that echoes until it is sent home.
fn worker(queue: &Arc<Queue>, serves: &'static [ModelKey]) -> thread::JoinHandle<()> {
    let worker = queue.attach(&device("cpu"));
    thread::spawn(move || {
        loop {
            match worker.take(serves, None) {
                Taken::Batch(running) => {
                    let result = echo(&running);
                    running.finish(result);
                }
                Taken::Woken | Taken::Idle => {}
                Taken::Closed => return,
            }
        }
    })
}

/// Lets so much time pass: what is measured is a time.
fn pass(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        thread::yield_now();
    }
}

/// The answer. The limit is there to turn a hang into a failure; nothing depends on its length.
fn wait(ticket: Ticket) -> Reply {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let answer = async { tokio::time::timeout(Duration::from_secs(60), ticket).await };
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(answer).expect("an answer within a minute")
}

fn bytes(reply: Reply) -> Vec<u8> {
    reply.unwrap().outputs[0].data.to_vec()
}

/// Returns when so many workers sleep.
fn until_parked(queue: &Queue, workers: usize) {
    while queue.state.lock().parked.len() != workers {
        thread::yield_now();
    }
}

#[test]
fn a_job_is_split_over_devices_and_put_together_whichever_ends_first() {
    let queue = queue(Duration::ZERO);
    let ticket = queue.push(job(A, 6, 10)).unwrap();
    let first = queue.attach(&device("gpu-0"));
    let second = queue.attach(&device("gpu-1"));
    let (one, two) = (first.try_take(&[A]).unwrap(), second.try_take(&[A]).unwrap());
    assert_eq!((one.items, two.items), (4, 2));
    for running in [two, one] {
        let result = echo(&running);
        running.finish(result);
    }
    let answer = wait(ticket).unwrap();
    assert_eq!(answer.outputs[0].data[..], [10, 11, 12, 13, 14, 15]);
    assert_eq!((&*answer.device, answer.batch_items), ("gpu-0", 4));
}

#[test]
fn what_a_worker_serves_no_more_wakes_one_that_stands_by() {
    let queue = queue(Duration::ZERO);
    queue.stand_by(A, &device("cpu"));
    let (gpu, cpu) = (queue.attach(&device("gpu")), queue.attach(&device("cpu")));
    assert!(gpu.try_take(&[A]).is_none());
    let ticket = queue.push(job(A, 1, 7)).unwrap();
    let stands_by = thread::spawn(move || match cpu.take(&[A], None) {
        Taken::Batch(running) => {
            let result = echo(&running);
            running.finish(result);
        }
        other => panic!("{other:?}"),
    });
    until_parked(&queue, 1);
    let serves_nothing = thread::spawn(move || gpu.take(&[], None));
    assert_eq!(bytes(wait(ticket)), [7]);
    stands_by.join().unwrap();
    queue.close();
    assert!(matches!(serves_nothing.join().unwrap(), Taken::Closed));
}

#[test]
fn whoever_has_waited_as_long_as_the_model_lets_it_is_told_though_no_worker_is_there_to_look() {
    let (queue, max) = (queue(Duration::ZERO), Duration::from_millis(5));
    // A device that serves the model, and is busy for ever.
    let worker = queue.attach(&device("cpu"));
    let busy = queue.push(job(A, 4, 0)).unwrap();
    let _running = worker.try_take(&[A]).unwrap();
    let waits = |then| queue.push(Job { wait: Some(Wait { max, then }), ..job(A, 1, 9) }).unwrap();
    let (refused, delayed) = (waits(OnTimeout::Refuse), waits(OnTimeout::Delay));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let answer = runtime.block_on(async {
        // The bound is for a test that would hang.
        tokio::time::timeout(Duration::from_secs(120), refused).await.expect("it is told")
    });
    let why = answer.unwrap_err().to_string();
    assert!(why.contains("waited for 5 ms, which is as long as its model's queue lets it"), "{why}");
    assert!(delayed.now_or_never().is_none(), "another is answered as long as its deadline lasts");
    drop(busy);
}

#[test]
fn dropping_a_ticket_takes_its_job_out_and_gives_back_its_bounds() {
    let queue = queue(Duration::ZERO);
    let ticket = queue.push(job(A, 100, 0)).unwrap();
    assert!(matches!(queue.push(job(A, 1, 0)), Err(InferError::Full { .. })));
    drop(ticket);
    assert_eq!((queue.load().items, queue.load().waiting), (0, 0));
    let place = queue.attach(&device("cpu"));
    assert!(place.try_take(&[A]).is_none());
    assert!(queue.push(job(A, 100, 0)).is_ok());
    assert!(queue.state.lock().replies.is_empty());
}

#[test]
fn who_is_refused_leaves_nobody_waiting_whose_time_was_over() {
    let queue = queue(Duration::ZERO);
    let _held = queue.push(job(A, 50, 0)).unwrap();
    let deadline = Instant::now() + Duration::from_millis(5);
    let late = queue.push(Job { deadline: Some(deadline), ..job(B, 1, 0) }).unwrap();
    pass(deadline.saturating_duration_since(Instant::now()));
    assert!(matches!(queue.push(job(A, 51, 0)), Err(InferError::Full { .. })));
    let answer = late.now_or_never().expect("it is answered at once");
    assert!(matches!(answer, Err(InferError::Late(_))), "{answer:?}");
    assert!(queue.state.lock().book.is_settled(), "and what was refused is not kept");
}

#[test]
fn a_job_without_an_answer_has_waited_in_the_queue_all_the_same() {
    let (queue, all) = (queue(Duration::ZERO), Metrics::new(&[], "0", "none"));
    queue.count_waits(A, all.add_model("digits"));
    let counted = |of: &str| {
        let text = all.render();
        let series =
            format!("ocelli_stage_duration_seconds_{of}{{device=\"\",model=\"digits\",stage=\"queue\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
        found.unwrap_or_default()
    };
    let worker = queue.attach(&device("cpu"));
    let answered = queue.push(job(A, 1, 0)).unwrap();
    let running = worker.try_take(&[A]).unwrap();
    let result = echo(&running);
    let _ = running.finish(result);
    assert!(answered.now_or_never().is_some_and(|answer| answer.is_ok()));
    assert_eq!(counted("count"), 0.0, "who gets an answer is told its wait");
    // It runs until its caller goes, for longer than it has waited: what counts is the time before.
    let pushed = Instant::now();
    let runs = queue.push(job(A, 1, 0)).unwrap();
    let running = worker.try_take(&[A]).unwrap();
    let taken = pushed.elapsed();
    pass(2 * taken);
    drop(runs);
    assert_eq!(counted("count"), 1.0);
    let before = counted("sum");
    assert!(before <= taken.as_secs_f64(), "{before}, taken after {taken:?}");
    drop(running);
    let deadline = Instant::now() + Duration::from_millis(5);
    let late = queue.push(Job { deadline: Some(deadline), ..job(A, 1, 0) }).unwrap();
    let given_up = queue.push(job(A, 1, 0)).unwrap();
    let both = Instant::now();
    pass(deadline.saturating_duration_since(both));
    let waited = both.elapsed();
    drop(given_up);
    queue.expire(A);
    assert!(matches!(late.now_or_never(), Some(Err(InferError::Late(_)))));
    assert_eq!(counted("count"), 3.0);
    let sum = counted("sum") - before;
    assert!(sum > 2.0 * waited.as_secs_f64(), "{sum}, of two that waited {waited:?}");
    // A model that is gone leaves nothing behind.
    queue.retire(A);
    assert!(queue.state.lock().metrics.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_is_woken_when_a_job_leaves_and_by_no_refusal() {
    let queue = queue(Duration::ZERO);
    let ticket = queue.push(job(A, 100, 0)).unwrap();
    let mut waits = std::pin::pin!(queue.room());
    assert!((&mut waits).now_or_never().is_none());
    assert!(queue.push(job(A, 1, 0)).is_err());
    assert!((&mut waits).now_or_never().is_none(), "a refusal makes no room");
    drop(ticket);
    assert!((&mut waits).now_or_never().is_some());
    // Where nothing leaves it is tried again all the same.
    let before = tokio::time::Instant::now();
    queue.room().await;
    assert_eq!(before.elapsed(), ROOM_PAUSE);
}

#[test]
fn what_a_hung_worker_has_is_run_elsewhere_at_once_and_its_late_results_are_thrown_away() {
    let queue = queue(Duration::ZERO);
    let (hangs, other) = (queue.attach(&device("gpu-0")), queue.attach(&device("cpu")));
    queue.stand_by(A, &device("cpu"));
    assert!(other.try_take(&[A]).is_none() && hangs.try_take(&[A]).is_none());
    let tickets = [queue.push(job(A, 4, 10)).unwrap(), queue.push(job(A, 2, 20)).unwrap()];
    let begun = [hangs.try_take(&[A]).unwrap(), hangs.try_take(&[A]).unwrap()];
    let waits = queue.push(job(A, 1, 30)).unwrap();
    assert!(other.try_take(&[A]).is_none(), "it only stands by");

    let recalled = queue.recall(hangs.key(), "it hangs");
    assert_eq!(
        recalled.iter().map(|one| (&*one.model, one.items)).collect::<Vec<_>>(),
        [("digits", 4), ("digits", 2)]
    );
    assert!(recalled.iter().all(|one| one.aftermath.again == 1));
    assert!(queue.recall(hangs.key(), "it hangs").is_empty(), "once");
    assert!(matches!(hangs.take(&[A], None), Taken::Closed), "it gets nothing more");
    // One comes back while others have its jobs, one when they are answered; both with nonsense.
    let nonsense =
        |batch: &Batch| echo(batch).map(|ran| Ran { outputs: vec![ran.outputs[0].clone(); 2], ..ran });
    let [first, second] = begun;
    let result = nonsense(&first);
    assert!(first.finish_counted(result, || panic!("others have its jobs")).is_none());
    while let Some(running) = other.try_take(&[A]) {
        let result = echo(&running);
        assert!(running.finish(result).is_some());
    }
    drop(second);
    for (ticket, (expected, why)) in tickets.into_iter().chain([waits]).zip([
        (vec![10, 11, 12, 13], Fallback::DeviceFailed),
        (vec![20, 21], Fallback::DeviceFailed),
        (vec![30], Fallback::DeviceAway),
    ]) {
        let answer = wait(ticket).unwrap();
        assert_eq!((answer.outputs[0].data.to_vec(), &*answer.device), (expected, "cpu"));
        assert_eq!((answer.outputs.len(), answer.fallback), (1, Some(why)));
    }
    drop(hangs);
    let load = queue.load();
    assert_eq!((load.items, load.bytes, load.waiting, load.running), (0, 0, 0, 0));
}

#[test]
fn what_a_hung_worker_reads_is_kept_as_long_as_it_has_it() {
    let queue = queue(Duration::ZERO);
    let hangs = queue.attach(&device("gpu-0"));
    assert!(hangs.try_take(&[A]).is_none());
    let memory: Arc<[u8]> = [1, 2].into();
    let input =
        Tensor { datatype: DataType::Uint8, shape: vec![2, 1], data: Bytes::from_owner(Arc::clone(&memory)) };
    let ticket = queue.push(Job { inputs: vec![input], ..job(A, 2, 0) }).unwrap();
    let running = hangs.try_take(&[A]).unwrap();
    assert_eq!(queue.recall(hangs.key(), "it hangs").len(), 1);
    drop(ticket);
    assert_eq!(queue.load().bytes, 0, "the bounds are for what others wait for");
    assert!(Arc::strong_count(&memory) > 1, "the device may be reading it");
    drop(running);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn a_worker_that_panics_loses_no_job() {
    let queue = queue(Duration::ZERO);
    let other = queue.attach(&device("cpu"));
    assert!(other.try_take(&[A]).is_none());
    let ticket = queue.push(job(A, 2, 7)).unwrap();
    let dies = |worker: Worker| {
        let thread = thread::spawn(move || {
            let _running = worker.try_take(&[A]).unwrap();
            std::panic::resume_unwind(Box::new("the driver went away"));
        });
        assert!(thread.join().is_err());
    };
    dies(queue.attach(&device("gpu-3")));
    let running = other.try_take(&[A]).unwrap();
    let result = echo(&running);
    running.finish(result);
    let answer = wait(ticket).unwrap();
    assert_eq!((&*answer.device, answer.fallback), ("cpu", Some(Fallback::DeviceFailed)));
    assert_eq!(answer.outputs[0].data[..], [7, 8]);

    let ticket = queue.push(job(A, 2, 7)).unwrap();
    dies(queue.attach(&device("gpu-3")));
    dies(queue.attach(&device("gpu-4")));
    // Which is for the CPU now.
    dies(other);
    let error = wait(ticket).unwrap_err().to_string();
    let stopped = ["gpu-3", "gpu-4", "cpu"]
        .map(|name| format!("{name}: the worker on {name} stopped in the middle of it"));
    assert!(error.ends_with(&stopped.join(", and then ")), "{error}");
}

#[test]
fn closing_finishes_what_is_queued_and_sends_the_workers_home() {
    let queue = queue(Duration::from_secs(3600));
    let workers = [worker(&queue, &[A, B]), worker(&queue, &[A])];
    let tickets: Vec<_> = (0..9).map(|i| queue.push(job(A, 3, i)).unwrap()).collect();
    // 27 items in batches of 4: the last 3 wait for company until then.
    queue.close();
    assert!(matches!(queue.push(job(A, 1, 0)), Err(InferError::Draining)));
    for (i, ticket) in tickets.into_iter().enumerate() {
        let i = i as u8;
        assert_eq!(bytes(wait(ticket)), [i, i + 1, i + 2]);
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(queue.load().items, 0);
}

#[test]
fn closing_answers_what_no_worker_serves() {
    let queue = queue(Duration::ZERO);
    let workers = [worker(&queue, &[A])];
    until_parked(&queue, 1);
    let ticket = queue.push(job(B, 1, 0)).unwrap();
    queue.close();
    assert!(matches!(wait(ticket), Err(InferError::Device(_))));
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn aborting_answers_what_waits_and_runs_and_counts_it() {
    let queue = queue(Duration::ZERO);
    let tickets: Vec<_> = (0..3).map(|_| queue.push(job(A, 4, 0)).unwrap()).collect();
    let place = queue.attach(&device("cpu"));
    let running = place.try_take(&[A]).unwrap();
    let error = InferError::Device("the drain took too long".into());
    assert_eq!(queue.abort(&error), 3);
    for ticket in tickets {
        assert_eq!(wait(ticket).unwrap_err(), error);
    }
    assert!(matches!(place.take(&[A], None), Taken::Closed));
    // A result after that finds nobody.
    let result = echo(&running);
    running.finish(result);
    assert_eq!(queue.load().items, 0);
    assert_eq!(queue.abort(&error), 0);
}

#[test]
fn a_sleeping_worker_can_be_told_to_look_at_its_own_mail() {
    let queue = queue(Duration::ZERO);
    let place = queue.attach(&device("cpu"));
    let thread = thread::spawn(move || matches!(place.take(&[A], None), Taken::Woken));
    until_parked(&queue, 1);
    queue.wake();
    assert!(thread.join().unwrap());
}

#[test]
fn a_letter_to_one_worker_wakes_no_other() {
    let queue = queue(Duration::ZERO);
    let sleep = || {
        let place = queue.attach(&device("cpu"));
        let key = place.key();
        (key, thread::spawn(move || matches!(place.take(&[A], None), Taken::Woken)))
    };
    let ((_, other), (key, one)) = (sleep(), sleep());
    until_parked(&queue, 2);
    queue.wake_one(key);
    assert!(one.join().unwrap());
    assert!(!other.is_finished());
    assert_eq!(queue.state.lock().parked.len(), 1, "the other sleeps on");
    queue.close();
    assert!(!other.join().unwrap());
}

#[test]
fn workers_hear_of_it_when_a_retired_model_is_empty() {
    let queue = queue(Duration::ZERO);
    let place = queue.attach(&device("cpu"));
    let thread = thread::spawn(move || matches!(place.take(&[A], None), Taken::Woken));
    until_parked(&queue, 1);
    queue.retire(A);
    assert!(thread.join().unwrap());
    assert!(!queue.knows(A) && queue.knows(B));
    assert!(matches!(queue.push(job(A, 1, 0)), Err(InferError::ModelUnavailable { .. })));
}

#[test]
fn a_push_wakes_a_worker_that_serves_the_model_though_others_wait_for_company() {
    // The worker of A sleeps with work in its window; that must not swallow the bell for B.
    for a_first in [true, false] {
        let queue = queue(Duration::from_secs(3600));
        let company = queue.push(job(A, 1, 0)).unwrap();
        let order: [&'static [ModelKey]; 2] = if a_first { [&[A], &[B]] } else { [&[B], &[A]] };
        let mut workers = Vec::new();
        for (i, serves) in order.into_iter().enumerate() {
            workers.push(worker(&queue, serves));
            until_parked(&queue, i + 1);
        }
        assert_eq!(bytes(wait(queue.push(job(B, 1, 5)).unwrap())), [5]);
        // A full batch ends the window.
        let full = queue.push(job(A, 3, 1)).unwrap();
        assert_eq!(bytes(wait(full)), [1, 2, 3]);
        assert_eq!(bytes(wait(company)), [0]);
        queue.close();
        for worker in workers {
            worker.join().unwrap();
        }
    }
}

#[test]
fn one_large_job_wakes_every_worker_that_can_help() {
    let queue = queue(Duration::ZERO);
    let barrier = Arc::new(std::sync::Barrier::new(3));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let place = queue.attach(&device("gpu"));
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                let Taken::Batch(running) = place.take(&[A], None) else {
                    panic!("woken without work");
                };
                // Nobody gets past this before all three have a batch.
                barrier.wait();
                let result = echo(&running);
                running.finish(result);
            })
        })
        .collect();
    until_parked(&queue, 3);
    let ticket = queue.push(job(A, 12, 0)).unwrap();
    assert_eq!(bytes(wait(ticket)), (0..12).collect::<Vec<u8>>());
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn many_callers_and_failing_workers_end_with_every_answer_right_and_nothing_left() {
    let queue = queue(Duration::from_micros(50));
    let workers = [worker(&queue, &[A, B]), worker(&queue, &[B]), worker(&queue, &[A])];
    // One worker drops every batch it gets: each of its jobs needs a second chance.
    let place = queue.attach(&device("sick"));
    let sick = thread::spawn(move || {
        let mut dropped = 0;
        loop {
            match place.take(&[A, B], None) {
                Taken::Batch(running) => {
                    drop(running);
                    dropped += 1;
                    if dropped == 20 {
                        return;
                    }
                }
                Taken::Woken | Taken::Idle => {}
                Taken::Closed => return,
            }
        }
    });
    let callers: Vec<_> = (0..4_u8)
        .map(|caller| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let (mut ok, mut failed) = (0, 0);
                for i in 0..200_u8 {
                    let model = if i % 3 == 0 { A } else { B };
                    let items = usize::from(i % 9) + 1;
                    let first = i.wrapping_mul(caller);
                    let ticket = queue.push(job(model, items, first)).unwrap();
                    if i % 5 == 4 {
                        drop(ticket);
                        continue;
                    }
                    match wait(ticket) {
                        Ok(answer) => {
                            let expected = (0..items as u8).map(|i| first.wrapping_add(i));
                            let expected: Vec<u8> = expected.collect();
                            assert_eq!(answer.outputs[0].data[..], expected);
                            ok += 1;
                        }
                        Err(InferError::Device(_)) => failed += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                (ok, failed)
            })
        })
        .collect();
    let mut answered = 0;
    for caller in callers {
        let (ok, failed) = caller.join().unwrap();
        println!("{ok} answers, {failed} twice on the sick worker");
        answered += ok + failed;
    }
    assert_eq!(answered, 4 * 160);
    queue.close();
    sick.join().unwrap();
    for worker in workers {
        worker.join().unwrap();
    }
    let load = queue.load();
    assert_eq!((load.items, load.bytes, load.waiting, load.running), (0, 0, 0, 0));
    assert!(queue.state.lock().replies.is_empty());
}

#[test]
fn what_is_supposed_of_a_device_that_is_away_does_not_outdo_what_was_said_since_it_served() {
    let (queue, gpu) = (queue(Duration::ZERO), device("gpu-0"));
    let now = Instant::now();
    let absence = |reason: &str, back| Absence { reason: reason.into(), back };
    let refusal = || queue.push(job(A, 1, 0)).err().map(|error| error.to_string());
    for (said, refused) in [(Some(None), true), (Some(Some(now)), false), (None, false)] {
        let worker = queue.attach(&gpu);
        assert!(worker.try_take(&[A]).is_none(), "it serves, and what was said before is over");
        if let Some(back) = said {
            queue.expect(&gpu, absence("drained", back));
        }
        queue.suppose(&gpu, absence("it was given back", Some(now)));
        drop(worker);
        let why = refusal();
        assert_eq!(why.is_some(), refused, "{said:?}");
        assert!(why.is_none_or(|why| why.contains("gpu-0 is away: drained")));
    }
    queue.expect(&gpu, absence("lost", None));
    assert!(refusal().unwrap().contains("lost"), "who knows may say something else at any time");
}

#[test]
fn what_is_said_anew_of_a_device_that_is_away_is_heard_by_who_waits_for_it() {
    let (queue, gpu) = (queue(Duration::ZERO), device("gpu-0"));
    let worker = queue.attach(&gpu);
    assert!(worker.try_take(&[A]).is_none());
    let paused = Absence { reason: "it failed".into(), back: Some(Instant::now()) };
    queue.expect(&gpu, paused.clone());
    drop(worker);
    let mut ticket = queue.push(job(A, 1, 0)).unwrap();
    queue.expect(&gpu, paused);
    assert!((&mut ticket).now_or_never().is_none(), "that is no news");
    queue.expect(&gpu, Absence { reason: "others have it".into(), back: None });
    let error = wait(ticket).unwrap_err();
    assert!(error.to_string().contains("gpu-0 is away: others have it"), "{error}");
}

/// Runs batches on the thread that it is called on, and keeps count of them by thread.
#[derive(Default)]
struct Here(Mutex<Vec<thread::ThreadId>>);

impl Inline for Here {
    fn run(&self, batch: Running) {
        self.0.lock().push(thread::current().id());
        let result = echo(&batch);
        batch.finish(result);
    }
}

#[test]
fn a_short_batch_of_a_worker_that_sleeps_is_run_where_it_is_pushed_and_any_other_by_the_worker() {
    let queue = queue(Duration::ZERO);
    let place = queue.attach(&device("cpu"));
    let here = Arc::new(Here::default());
    let (tell, told) = std::sync::mpsc::channel();
    place.lend(A, Some(Arc::clone(&here) as Arc<dyn Inline>));
    let thread = thread::spawn(move || {
        loop {
            match place.take(&[A, B], None) {
                Taken::Batch(running) => {
                    let result = echo(&running);
                    running.finish(result);
                }
                // What is lent is taken back.
                Taken::Woken => {
                    place.lend(A, None);
                    tell.send(()).unwrap();
                }
                Taken::Idle => {}
                Taken::Closed => return,
            }
        }
    });
    let took = |model, micros| {
        let took = Duration::from_micros(micros);
        (0..8).for_each(|i| queue.measured(model, &device("cpu"), if i % 2 == 0 { 1 } else { 4 }, took));
    };
    // What a push gives, and whether it was run there.
    let push = |job: Job| {
        until_parked(&queue, 1);
        let before = here.0.lock().len();
        let mut ticket = queue.push(job).unwrap();
        let ran = here.0.lock().len() - before;
        let at_once = (ran == 1).then(|| (&mut ticket).now_or_never().expect("it is answered by then"));
        (bytes(at_once.unwrap_or_else(|| wait(ticket))), ran)
    };
    assert_eq!(push(job(A, 1, 7)), (vec![7], 0), "nobody knows how long it takes");
    took(A, 10);
    assert_eq!(push(job(A, 1, 8)), (vec![8], 1));
    assert_eq!(queue.state.lock().parked.len(), 1, "nobody was woken");
    assert_eq!(here.0.lock()[..], [thread::current().id()]);
    assert_eq!(push(job(A, 4, 1)), (vec![1, 2, 3, 4], 1));
    assert_eq!(push(job(A, 5, 1)), (vec![1, 2, 3, 4, 5], 0), "it takes two batches");
    took(B, 10);
    assert_eq!(push(job(B, 1, 9)), (vec![9], 0), "it is not lent");
    took(A, 401);
    assert_eq!(push(job(A, 1, 10)), (vec![10], 0), "it takes too long");
    took(A, 10);
    assert_eq!(push(job(A, 1, 11)), (vec![11], 1));
    until_parked(&queue, 1);
    queue.wake();
    told.recv().unwrap();
    took(A, 10);
    assert_eq!(push(job(A, 1, 12)), (vec![12], 0), "it is lent no more");
    assert_eq!(queue.load().items, 0);
    queue.close();
    thread.join().unwrap();
}

/// Runs a batch when it is told to.
struct When(Mutex<std::sync::mpsc::Receiver<()>>, std::sync::mpsc::Sender<()>);

impl Inline for When {
    fn run(&self, batch: Running) {
        self.1.send(()).unwrap();
        if batch.items == 2 {
            self.0.lock().recv().unwrap();
        }
        let result = echo(&batch);
        batch.finish(result);
    }
}

#[test]
fn jobs_that_gain_nothing_from_company_run_at_once_until_something_waits_for_the_worker() {
    let queue = queue(Duration::ZERO);
    let place = queue.attach(&device("cpu"));
    let (go, told) = std::sync::mpsc::channel();
    let (tell, ran) = std::sync::mpsc::channel();
    place.lend(A, Some(Arc::new(When(Mutex::new(told), tell))));
    let (took, taken) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        while let Taken::Batch(running) = place.take(&[A, B], None) {
            took.send(running.model).unwrap();
            let result = echo(&running);
            running.finish(result);
        }
    });
    for size in [1, 2, 4, 8] {
        (0..4).for_each(|_| queue.measured(A, &device("cpu"), size, Duration::from_micros(10 * size as u64)));
    }
    until_parked(&queue, 1);
    let held = thread::spawn({
        let queue = Arc::clone(&queue);
        move || bytes(wait(queue.push(job(A, 2, 1)).unwrap()))
    });
    ran.recv().unwrap();
    assert_eq!(bytes(wait(queue.push(job(A, 1, 3)).unwrap())), [3], "one runs, and it waits for nobody");
    ran.try_recv().unwrap();
    let (other, behind) = (queue.push(job(B, 1, 4)).unwrap(), queue.push(job(A, 1, 5)).unwrap());
    assert!(ran.try_recv().is_err(), "the other model has its turn");
    assert!(taken.try_recv().is_err(), "which comes when what runs has ended");
    go.send(()).unwrap();
    assert_eq!(held.join().unwrap(), [1, 2]);
    assert_eq!((bytes(wait(other)), bytes(wait(behind))), (vec![4], vec![5]));
    let mut by_worker = [taken.recv().unwrap(), taken.recv().unwrap()];
    by_worker.sort();
    assert_eq!(by_worker, [A, B]);
    queue.close();
    thread.join().unwrap();
}

/// Breaks.
struct Broken;

impl Inline for Broken {
    fn run(&self, _: Running) {}
}

#[test]
fn a_job_whose_batch_is_dropped_where_it_was_pushed_runs_on_another_device() {
    let queue = queue(Duration::ZERO);
    let first = queue.attach(&device("cpu"));
    let sleeps = Arc::clone(&queue);
    first.lend(A, Some(Arc::new(Broken)));
    let thread = thread::spawn(move || {
        while let Taken::Batch(running) = first.take(&[A], None) {
            let result = echo(&running);
            running.finish(result);
        }
    });
    until_parked(&sleeps, 1);
    (0..4).for_each(|_| queue.measured(A, &device("cpu"), 1, Duration::from_micros(10)));
    let other = queue.attach(&device("gpu-0"));
    other.serves(&[A]);
    queue.measured(A, &device("gpu-0"), 1, Duration::from_secs(1));
    let ticket = queue.push(job(A, 1, 7)).unwrap();
    let running = other.try_take(&[A]).unwrap();
    let result = echo(&running);
    running.finish(result);
    let answer = wait(ticket).unwrap();
    assert_eq!((&*answer.device, answer.fallback), ("gpu-0", Some(Fallback::DeviceFailed)));
    queue.close();
    thread.join().unwrap();
}
