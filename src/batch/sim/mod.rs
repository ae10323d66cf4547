//! The real book, lanes, shares and policy on a virtual clock, through thousands of seeds.
//!
//! Each seed makes a small world: models, workers, limits, and a stream of jobs with bursts, deadlines, priorities,
//! cancels, poisoned inputs, workers that have several batches on their way, wake late, fail and vanish, retired models and a
//! close ([`world`]). Beside it stands [`truth`], which keeps its own and much simpler account of every job and checks each step
//! against it. [`fairness`] saturates models and compares the device time they got. A failing seed is printed;
//! `OCELLI_SIM_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used)] // a test may panic

mod fairness;
pub(crate) mod tally;
mod truth;
mod world;

use crate::random::Random;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const SEEDS: u64 = 20_000;
/// Saturated runs are longer; this many show the same.
const SEEDS_FAIRNESS: u64 = 1_000;

/// Runs a world for each of so many seeds, or for the one that `OCELLI_SIM_SEED` names; says which one fails.
pub(crate) fn run(seeds: u64, world: impl Fn(u64)) {
    let one = std::env::var("OCELLI_SIM_SEED").ok();
    let range = match one.map(|seed| seed.parse::<u64>().expect("OCELLI_SIM_SEED is a number")) {
        Some(seed) => seed..seed + 1,
        None => 0..seeds,
    };
    for seed in range {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world(seed))) {
            eprintln!("the simulation fails with OCELLI_SIM_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn every_job_is_answered_once_and_rightly_whatever_happens() {
    let total = std::cell::RefCell::new(tally::Tally::default());
    run(SEEDS, |seed| total.borrow_mut().add(&world::run(seed)));
    let total = total.into_inner();
    println!("{total:?}");
    if std::env::var_os("OCELLI_SIM_SEED").is_none() {
        total.assert_everything_happened();
    }
}

#[test]
fn saturated_models_share_the_devices_by_weight() {
    let worst = std::cell::Cell::new(0.0_f64);
    run(SEEDS_FAIRNESS, |seed| {
        worst.set(worst.get().max(fairness::run(seed)));
    });
    println!("largest difference, as a part of what is allowed: {:.2}", worst.get());
}
