//! Which device runs what waits, which model's turn it is, and what is left for later.

use super::*;

const OTHER: ModelKey = ModelKey(2);

/// A desk with a second model of single items, whose jobs do not wait for company.
fn beside(wait_max: Duration) -> Desk {
    let mut desk = Desk::new(false);
    let rules = desk.book.models[&MODEL].rules.clone();
    desk.book.register(OTHER, "other", Rules { sizes: vec![1], ..rules });
    desk.book.models.get_mut(&MODEL).unwrap().rules.wait_max = wait_max;
    desk
}

#[test]
fn a_device_that_stands_by_runs_a_model_only_while_no_other_serves_it() {
    let mut desk = Desk::new(false);
    desk.book.stand_by(MODEL, &"cpu".into());
    let gpu = desk.book.attach(&"gpu".into());
    assert!(matches!(desk.book.pick(gpu, &[MODEL], desk.now), Pick::Sleep));
    desk.push(1, 1);
    desk.pass(60_000);
    assert!(matches!(desk.book.pick(desk.worker, &[MODEL], desk.now), Pick::Sleep));
    desk.book.detach(gpu, desk.now);
    desk.run(1);
    let done = desk.book.settle().done.pop().unwrap();
    assert_eq!(done.result.unwrap().join().unwrap().fallback, Some(Fallback::DeviceAway));
}

#[test]
fn a_slower_device_leaves_single_jobs_to_a_faster_one_and_helps_with_a_long_queue() {
    let mut desk = Desk::new(false);
    let gpu = desk.book.attach(&"gpu".into());
    // Both are measured: 50 ms on the CPU, 5 ms on the GPU.
    desk.push(1, 1);
    desk.run(50);
    for worker in [desk.worker, gpu] {
        assert!(matches!(desk.book.pick(worker, &[MODEL], desk.now), Pick::Sleep));
    }
    desk.push(1, 1);
    let Pick::Run(batch, receipt) = desk.book.pick(gpu, &[MODEL], desk.now) else { panic!() };
    desk.end(&(batch, receipt), 5, Ok(bytes(1, 1)));
    desk.push(1, 1);
    let left = desk.book.pick(desk.worker, &[MODEL], desk.now);
    let until = desk.now + Duration::from_millis(50);
    assert!(matches!(left, Pick::SleepUntil(at) if at == until), "{left:?}");
    assert_eq!(desk.book.best_of(&[gpu, desk.worker], MODEL, desk.now), Some(0), "the GPU is woken");
    // 15 items take the GPU 75 ms.
    desk.push(14, 1);
    assert_eq!(desk.run(50).len(), 1);
}

#[test]
fn of_devices_that_are_as_fast_the_one_is_woken_that_has_nothing_on_its_way() {
    let mut desk = Desk::new(false);
    let gpus = ["gpu-0", "gpu-1"].map(|name| {
        let gpu = desk.book.attach(&name.into());
        desk.book.measured(MODEL, &name.into(), 1, Duration::from_millis(100), desk.now);
        assert!(matches!(desk.book.pick(gpu, &[MODEL], desk.now), Pick::Sleep));
        gpu
    });
    for busy in [0, 1] {
        desk.push(1, 1);
        let Pick::Run(batch, receipt) = desk.book.pick(gpus[busy], &[MODEL], desk.now) else { panic!() };
        desk.push(1, 1);
        assert_eq!(desk.book.best_of(&gpus, MODEL, desk.now), Some(1 - busy), "gpu-{busy} has a batch");
        let Pick::Run(other, its) = desk.book.pick(gpus[1 - busy], &[MODEL], desk.now) else { panic!() };
        desk.end(&(batch, receipt), 100, Ok(bytes(1, 1)));
        desk.end(&(other, its), 100, Ok(bytes(1, 1)));
    }
    // Being a little faster is no reason to wait behind a batch.
    desk.book.measured(MODEL, &"gpu-0".into(), 1, Duration::from_millis(90), desk.now);
    desk.push(1, 1);
    assert_eq!(desk.book.best_of(&gpus, MODEL, desk.now), Some(0));
    let Pick::Run(..) = desk.book.pick(gpus[0], &[MODEL], desk.now) else { panic!() };
    desk.push(1, 1);
    assert_eq!(desk.book.best_of(&gpus, MODEL, desk.now), Some(1));
    let Pick::Run(..) = desk.book.pick(gpus[1], &[MODEL], desk.now) else { panic!("it leaves it to nobody") };
}

#[test]
fn of_gpus_that_were_not_measured_lately_the_one_is_woken_that_was_the_faster() {
    let mut desk = Desk::new(false);
    let gpus = ["gpu-0", "gpu-1"].map(|name| desk.book.attach(&name.into()));
    for gpu in gpus {
        assert!(matches!(desk.book.pick(gpu, &[MODEL], desk.now), Pick::Sleep));
    }
    for faster in [0, 1] {
        for (gpu, name) in ["gpu-0", "gpu-1"].into_iter().enumerate() {
            let took = if gpu == faster { 5 * MS } else { 100 * MS };
            desk.book.measured(MODEL, &name.into(), 1, took, desk.now);
        }
        desk.pass(3_600_000);
        let job = desk.push(1, 1);
        assert_eq!(desk.book.best_of(&gpus, MODEL, desk.now), Some(faster));
        desk.book.cancel(job, desk.now);
    }
}

#[test]
fn a_device_takes_no_long_batch_ahead_of_what_may_come() {
    for (ms, ahead) in [(100, 1), (30, 2), (20, 3)] {
        let mut desk = Desk::new(false);
        desk.book.measured(MODEL, &"cpu".into(), 1, MS * ms, desk.now);
        for _ in 0..ahead {
            desk.push(1, 1);
            desk.take();
        }
        desk.push(1, 1);
        let busy = MS * ms * ahead;
        let picked = desk.book.pick(desk.worker, &[MODEL], desk.now);
        let until = desk.now + busy - 50 * MS;
        assert!(matches!(picked, Pick::SleepUntil(at) if at == until), "{ms} ms: {picked:?}");
        desk.now = until;
        desk.take();
    }
}

#[test]
fn who_waits_for_company_waits_for_no_long_batch_of_another_model_as_well() {
    // The duration of the other model's batch, and the model whose batch is started.
    for (ms, first) in [(500, MODEL), (20, OTHER)] {
        let mut desk = beside(100 * MS);
        desk.book.measured(MODEL, &"cpu".into(), 1, MS, desk.now);
        desk.book.measured(OTHER, &"cpu".into(), 1, MS * ms, desk.now);
        desk.push(1, 1);
        desk.book.push(Job::plain(OTHER, vec![bytes(1, 1)], 1, desk.now), desk.now).unwrap();
        let Pick::Run(batch, _) = desk.book.pick(desk.worker, &[MODEL, OTHER], desk.now) else { panic!() };
        assert_eq!(batch.model, first, "{ms} ms");
    }
}

#[test]
fn a_model_that_a_slower_device_has_as_well_keeps_its_share_of_the_faster_one() {
    let mut desk = beside(Duration::ZERO);
    let push = |desk: &mut Desk, model| {
        desk.book.push(Job::plain(model, vec![bytes(1, 1)], 1, desk.now), desk.now).unwrap();
    };
    let gpu = desk.book.attach(&"gpu".into());
    for (model, device, ms) in [(MODEL, "gpu", 10), (OTHER, "gpu", 10), (MODEL, "cpu", 1000)] {
        desk.book.measured(model, &device.into(), 1, MS * ms, desk.now);
    }
    assert!(matches!(desk.book.pick(gpu, &[MODEL, OTHER], desk.now), Pick::Sleep));
    push(&mut desk, MODEL);
    desk.pass(1000);
    let on_cpu = desk.take();
    let turns = |desk: &mut Desk, count: usize| {
        let turn = |_| {
            for model in [MODEL, OTHER] {
                if desk.book.models[&model].lanes.is_empty() {
                    push(desk, model);
                }
            }
            let Pick::Run(batch, receipt) = desk.book.pick(gpu, &[MODEL, OTHER], desk.now) else { panic!() };
            let model = batch.model;
            desk.end(&(batch, receipt), 10, Ok(bytes(1, 1)));
            model
        };
        (0..count).map(turn).filter(|model| *model == MODEL).count()
    };
    assert_eq!(turns(&mut desk, 40), 20);
    let (batch, receipt) = on_cpu;
    let ran =
        Ran { outputs: vec![bytes(1, 1)], stage: Duration::ZERO, waited: Duration::ZERO, compute: 2000 * MS };
    desk.book.finish(&batch, &receipt, Ok(ran), desk.now).unwrap();
    // It owes one or two batches of 10 ms, not 2 s.
    let had = turns(&mut desk, 40);
    assert!((18..=20).contains(&had), "{had} of 40");
}

#[test]
fn a_device_that_was_held_up_once_has_work_again_when_it_is_measured_anew() {
    let mut desk = Desk::new(false);
    let devices = ["gpu-0", "gpu-1"].map(|name| desk.book.attach(&name.into()));
    let run_on = |desk: &mut Desk, device: usize, ms: u64| {
        desk.push(1, 1);
        let picked = desk.book.pick(devices[device], &[MODEL], desk.now);
        let Pick::Run(batch, receipt) = picked else { panic!("gpu-{device}: {picked:?}") };
        desk.end(&(batch, receipt), ms, Ok(bytes(1, 1)));
    };
    // Other work occupied the first one for a while.
    run_on(&mut desk, 0, 5000);
    run_on(&mut desk, 1, 5);
    desk.pass(60_000);
    // The other one is known to be quick, and is asked first.
    for _ in 0..3 {
        run_on(&mut desk, 1, 5);
        run_on(&mut desk, 0, 5);
    }
}
