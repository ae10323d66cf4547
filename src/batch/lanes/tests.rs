//! The order of lanes, and what comes out of them.

use super::*;
use crate::batch::{
    patience::{OnTimeout, Patience},
    roster::{DeviceKey, Roster, WorkerKey},
};
use std::time::Duration;

const ALL: Admits<'static> = &|_| true;

fn back(job: u64, rows: Range<usize>, alone: bool, now: Instant) -> Back {
    Back { job: JobKey(job), urgency: plain(now), of: rows.end, rows, alone, avoid: None }
}

fn shape(extent: usize) -> Arc<ItemShape> {
    let item = Tensor { datatype: DataType::Fp32, shape: vec![1, extent], data: vec![0; 4 * extent].into() };
    Arc::new(ItemShape::of(&[item], None, false))
}

/// Jobs of one item, as (priority, deadline in s, arrival in s); at `now_s` they leave in this order.
fn check(jobs: &[(u8, Option<u64>, u64)], now_s: u64, order: &[u64]) {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut lanes = Lanes::default();
    for (key, &(priority, deadline, arrived)) in jobs.iter().enumerate() {
        let urgency = Urgency { priority, deadline: deadline.map(at), arrived: at(arrived), patience: None };
        lanes.push(&shape(1), JobKey(key as u64), urgency, 1, at(arrived));
    }
    assert_eq!(lanes.refresh(at(now_s)), []);
    let pieces = lanes.take(&shape(1), jobs.len(), ALL, at(now_s));
    let got: Vec<u64> = pieces.iter().map(|piece| piece.job.0).collect();
    assert_eq!(got, order);
    assert!(lanes.is_empty() && lanes.iter().next().is_none());
}

#[test]
fn jobs_of_one_priority_and_no_deadline_leave_as_they_came() {
    check(&[(0, None, 0), (0, None, 1), (0, None, 2)], 2, &[0, 1, 2]);
}

#[test]
fn priority_goes_before_deadline_and_deadline_before_arrival() {
    let jobs = [(1, Some(9), 0), (0, None, 1), (0, Some(8), 2), (0, Some(7), 3)];
    check(&jobs, 3, &[3, 2, 1, 0]);
}

#[test]
fn a_job_climbs_one_level_for_each_age_step() {
    check(&[(2, None, 0), (0, None, 9)], 9, &[1, 0]);
    // Twice five seconds: from level 2 to level 0.
    check(&[(2, None, 0), (0, None, 9)], 10, &[0, 1]);
}

#[test]
fn a_job_without_a_deadline_does_not_wait_for_ever_behind_those_with_one() {
    check(&[(0, None, 0), (0, Some(90), 4)], 4, &[1, 0]);
    check(&[(0, None, 0), (0, Some(90), 4)], 5, &[0, 1]);
}

fn plain(arrived: Instant) -> Urgency {
    Urgency { priority: 1, deadline: None, arrived, patience: None }
}

#[test]
fn rows_that_come_back_go_first_and_join_what_is_left() {
    let now = Instant::now();
    let (lane, mut lanes) = (shape(1), Lanes::default());
    for key in 0..2 {
        let urgency = Urgency { priority: 1 - key as u8, ..plain(now) };
        lanes.push(&lane, JobKey(key), urgency, 5, now);
    }
    let taken = lanes.take(&lane, 7, ALL, now);
    let rows: Vec<_> = taken.iter().map(|p| (p.job.0, p.rows.clone(), p.last)).collect();
    assert_eq!(rows, [(1, 0..5, true), (0, 0..2, false)]);
    assert_eq!(lanes.items(), 3);
    lanes.put_back(&lane, back(0, 0..2, false, now), now);
    assert_eq!(lanes.len(), 1);
    lanes.put_back(&lane, back(1, 0..5, true, now), now);
    assert_eq!(lanes.len(), 2);
    // Job 0 is whole again; job 1 stands behind it, and shares no batch.
    let taken = lanes.take(&lane, 8, ALL, now);
    assert_eq!(taken, [Piece { job: JobKey(0), rows: 0..5, last: true }]);
    assert_eq!(lanes.take(&lane, 8, ALL, now).len(), 1);
    assert_eq!((lanes.len(), lanes.items()), (0, 0));
}

#[test]
fn a_job_of_many_batches_lets_shorter_ones_pass_in_every_second() {
    let now = Instant::now();
    let (lane, mut lanes) = (shape(1), Lanes::default());
    let push = |lanes: &mut Lanes, key, priority, items| {
        lanes.push(&lane, JobKey(key), Urgency { priority, ..plain(now) }, items, now);
    };
    push(&mut lanes, 0, 1, 20);
    let take = |lanes: &mut Lanes| {
        let taken = lanes.take(&lane, 4, ALL, now);
        taken.iter().map(|piece| (piece.job.0, piece.rows.len())).collect::<Vec<_>>()
    };
    assert_eq!(take(&mut lanes), [(0, 4)]);
    // It has 16 left. One is as long, and one is less urgent.
    for (key, priority, items) in [(1, 1, 9), (2, 1, 1), (3, 2, 1), (4, 1, 2), (5, 1, 3)] {
        push(&mut lanes, key, priority, items);
    }
    assert_eq!(take(&mut lanes), [(2, 1), (4, 2), (5, 1)]);
    assert_eq!(take(&mut lanes), [(0, 4)]);
    assert_eq!(take(&mut lanes), [(5, 2), (0, 2)]);
    push(&mut lanes, 6, 1, 1);
    assert_eq!(take(&mut lanes), [(0, 4)], "nobody passes it twice in a row");
    assert_eq!(take(&mut lanes), [(6, 1), (0, 3)]);
    // What comes behind it is in order, and nobody keeps it waiting for others.
    assert_eq!([take(&mut lanes), take(&mut lanes)], [vec![(0, 3), (1, 1)], vec![(1, 4)]]);
    assert_eq!([take(&mut lanes), take(&mut lanes)], [vec![(1, 4)], vec![(3, 1)]]);
}

/// A job of so many batches in a lane where others wait at any time. Each batch takes one of the units of time; the deadline is after
/// `units`. Returns when the job is done, and how many batches of others passed it.
fn beside_others(batches: usize, units: u32, others: Option<u32>) -> (u32, usize) {
    const BATCH: usize = 4;
    let now = Instant::now();
    let at = |units| now + Duration::from_millis(10) * units;
    let (lane, mut lanes) = (shape(1), Lanes::default());
    let due = |units: Option<u32>| Urgency { deadline: units.map(at), ..plain(now) };
    lanes.push(&lane, JobKey(0), due(Some(units)), batches * BATCH, now);
    let (mut time, mut passed) = (0, 0);
    loop {
        let new = JobKey(u64::from(time) + 1);
        lanes.push(&lane, new, due(others.map(|units| units + time)), BATCH, at(time));
        let pieces = lanes.take(&lane, BATCH, ALL, at(time));
        time += 1;
        passed += usize::from(pieces[0].job != JobKey(0));
        if pieces.iter().any(|piece| piece.job == JobKey(0) && piece.last) {
            return (time, passed);
        }
    }
}

#[test]
fn a_job_that_is_in_time_alone_is_not_made_late_by_those_that_pass_it() {
    for batches in 3..40 {
        let alone = batches as u32;
        for units in alone..5 * alone {
            for others in [None, Some(units + 1), Some(9 * units)] {
                let (done, passed) = beside_others(batches, units, others);
                assert!(done <= units, "{batches} batches are done after {done} of {units}");
                // With so much time, they pass in every second.
                let most = if 3 * units >= 8 * alone { batches - 2 } else { 0 };
                assert!(passed >= most, "{passed} pass {batches} batches in {units}");
            }
        }
    }
    // Those that must be done before it pass, however little time it has.
    let (now, lane, mut lanes) = (Instant::now(), shape(1), Lanes::default());
    let at = |seconds| now + Duration::from_secs(seconds);
    let due = |priority, seconds| Urgency { priority, deadline: Some(at(seconds)), ..plain(now) };
    lanes.push(&lane, JobKey(0), due(1, 10), 20, now);
    assert_eq!(lanes.take(&lane, 4, ALL, now)[0].job, JobKey(0));
    lanes.put_back(&lane, Back { urgency: due(1, 10), of: 20, ..back(0, 0..1, false, now) }, now);
    for (job, seconds) in [(1, 11), (2, 9)] {
        lanes.push(&lane, JobKey(job), due(1, seconds), 1, now);
    }
    let taken = lanes.take(&lane, 1, ALL, at(8));
    assert_eq!(taken[0].job, JobKey(2));
}

#[test]
fn whoever_may_not_have_a_job_passes_it_over() {
    let now = Instant::now();
    let mut roster = Roster::default();
    let devices = ["one", "two"].map(|name| {
        let worker = WorkerKey(name.len() as u64);
        roster.attach(worker, &name.into());
        roster.device_of(worker).unwrap()
    });
    let (lane, mut lanes) = (shape(1), Lanes::default());
    for key in 0..2 {
        lanes.push(&lane, JobKey(key), plain(now), 1, now);
    }
    let taken = lanes.take(&lane, 1, ALL, now);
    assert_eq!(taken[0].job, JobKey(0));
    lanes.put_back(&lane, Back { avoid: Some(Avoid::One(devices[0])), ..back(0, 0..1, false, now) }, now);
    let not_on = |device: DeviceKey| move |avoid: Option<Avoid>| avoid != Some(Avoid::One(device));
    assert_eq!(lanes.take(&lane, 1, &not_on(devices[0]), now)[0].job, JobKey(1));
    assert!(!lanes.any(&not_on(devices[0])) && lanes.any(&not_on(devices[1])));
    assert_eq!(lanes.take(&lane, 1, &|avoid| avoid.is_some(), now)[0].job, JobKey(0));
}

#[test]
fn late_jobs_are_taken_out_wherever_they_stand() {
    let now = Instant::now();
    let mut lanes = Lanes::default();
    for key in 0..4 {
        let urgency = Urgency {
            priority: 9,
            deadline: (key % 2 == 1).then_some(now + Duration::from_secs(key)),
            arrived: now,
            patience: None,
        };
        lanes.push(&shape(key as usize % 3), JobKey(key), urgency, 1, now);
    }
    assert_eq!(lanes.refresh(now), []);
    assert_eq!(lanes.refresh(now + Duration::from_secs(1)), [JobKey(1)]);
    assert_eq!(lanes.refresh(now + Duration::from_secs(9)), [JobKey(3)]);
    assert_eq!((lanes.len(), lanes.iter().count()), (2, 2));
}

#[test]
fn the_front_of_a_lane_ends_with_the_largest_batch_and_before_a_job_that_runs_alone() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    let (lane, mut lanes) = (shape(1), Lanes::default());
    lanes.push(&lane, JobKey(1), plain(now + second), 3, now + second);
    lanes.push(&lane, JobKey(2), plain(now), 3, now + second);
    let front = |lanes: &Lanes, items| lanes.lanes[&lane].front(items, ALL);
    let expected = Front {
        items: 4,
        jobs: 2,
        oldest: now,
        pushed: now + second,
        again: false,
        deadline: None,
        patience: None,
        shut: false,
    };
    assert_eq!(front(&lanes, 4), Some(expected));
    lanes.remove(&lane, JobKey(1));
    lanes.put_back(&lane, back(1, 0..3, true, now), now);
    let alone = Front { items: 3, jobs: 1, pushed: now, again: true, shut: true, ..expected };
    assert_eq!(front(&lanes, 9), Some(alone));
}

#[test]
fn rows_ahead_of_a_new_job_are_those_more_urgent() {
    let now = Instant::now();
    let (lane, mut lanes) = (shape(1), Lanes::default());
    for priority in 0..4 {
        let urgency = Urgency { priority, ..plain(now) };
        lanes.push(&lane, JobKey(priority.into()), urgency, 10, now);
    }
    let ahead = |of: &_, items, batch| lanes.ahead(of, plain(now), (items, batch), now);
    assert_eq!([ahead(&lane, 10, 4), ahead(&shape(2), 10, 4)], [20, 0]);
    // One of its own priority is twice as long: it may be passed, unless it is no longer than a batch.
    assert_eq!([ahead(&lane, 5, 4), ahead(&lane, 5, 10)], [10, 20]);
}

/// Jobs of one item by their priority and how long they wait, in seconds, all there at once.
fn impatient(lanes: &mut Lanes, now: Instant, then: OnTimeout, jobs: &[(u8, Option<u64>)]) {
    for (key, &(priority, seconds)) in jobs.iter().enumerate() {
        let until = seconds.map(|seconds| now + Duration::from_secs(seconds));
        let patience = until.map(|until| Patience { until, then });
        let urgency = Urgency { priority, patience, ..plain(now) };
        lanes.push(&shape(1), JobKey(key as u64), urgency, 2, now);
    }
}

#[test]
fn who_has_waited_too_long_stands_behind_its_own_level_and_before_the_next() {
    let (now, mut lanes) = (Instant::now(), Lanes::default());
    impatient(
        &mut lanes,
        now,
        OnTimeout::Delay,
        &[(0, Some(1)), (0, Some(3)), (0, None), (1, None), (0, Some(1))],
    );
    assert_eq!(lanes.refresh(now + Duration::from_secs(2)), []);
    let order: Vec<u64> = lanes.take(&shape(1), 10, ALL, now).iter().map(|piece| piece.job.0).collect();
    assert_eq!(order, [1, 2, 0, 4, 3]);
}

#[test]
fn who_is_refused_for_having_waited_is_taken_out_unless_it_was_begun() {
    let (now, mut lanes) = (Instant::now(), Lanes::default());
    impatient(&mut lanes, now, OnTimeout::Refuse, &[(0, Some(1)), (1, Some(1)), (2, Some(9)), (2, Some(1))]);
    assert_eq!([0, 1, 2, 3].map(|priority| lanes.of_priority(priority)), [1, 1, 2, 0]);
    // One row of the first, and all of the second, which come back.
    assert_eq!(lanes.take(&shape(1), 1, ALL, now)[0].job, JobKey(0));
    lanes.remove(&shape(1), JobKey(1));
    assert_eq!(lanes.len(), 3);
    lanes.put_back(&shape(1), back(1, 0..2, false, now), now);
    assert_eq!(lanes.refresh(now + Duration::from_secs(1)), [JobKey(3)]);
    assert_eq!([0, 1, 2].map(|priority| lanes.of_priority(priority)), [1, 1, 1]);
    assert_eq!(lanes.items(), 1 + 2 + 2);
}

#[test]
fn the_front_of_a_lane_has_the_patience_of_whoever_has_the_least() {
    let (now, mut lanes) = (Instant::now(), Lanes::default());
    impatient(&mut lanes, now, OnTimeout::Refuse, &[(0, Some(9)), (1, None), (2, Some(3)), (3, Some(1))]);
    let front = |items| lanes.lanes[&shape(1)].front(items, ALL).unwrap();
    assert_eq!([2, 6].map(|items| front(items).patience), [9, 3].map(|s| Some(now + Duration::from_secs(s))));
}
