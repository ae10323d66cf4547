//! Several servers on one machine on a virtual clock, through many seeds: for each GPU of each the real claim (lease and health
//! together), and for each server the real book of jobs, which takes and batches them.
//!
//! The machine ([`machine`]) is numbers: memory, utilisation, faults. A [`server`] does to it what a GPU's keeper does to a real one, in
//! the same order. A take lasts any time, while others act. For two minutes everything goes wrong; after that nothing does for a long
//! time. What must hold at each step is checked separately, by simple arithmetic:
//!
//! - every job is answered once and correctly, and fails only after two devices have failed under it;
//! - memory is never held twice, and a server that has lost a GPU holds nothing of it;
//! - no GPU is taken that others need by the rule, that was tried or failed a moment ago, or that is drained or off the bus;
//! - when all is quiet, GPUs are with servers that have room there, they stay where they are, and nothing waits.
//!
//! A failing seed is printed; `OCELLI_SIM_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used)] // a test may panic

mod jobs;
mod machine;
mod server;

use crate::{
    batch::sim::{run, tally::tally},
    random::Random,
};
use machine::Machine;
use server::Server;
use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

const SEEDS: u64 = 200;
/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(120);
/// The mean step during that time.
const STEP_MS: u64 = 100;
/// How long nothing goes wrong afterwards: longer than all pauses together.
const QUIET: Duration = Duration::from_secs(1200);
const QUIET_STEP_MS: u64 = 500;
/// For how long nothing may have changed at the end.
const STILL: Duration = Duration::from_secs(60);

tally! {
    taken,
    too_full,
    contended,
    raced,
    faults,
    lost,
    canaries,
    drained,
    turns,
    on_gpu,
    on_cpu,
    again,
    twice_failed,
}

struct World {
    random: Random,
    machine: Machine,
    servers: Vec<Server>,
    /// Servers queue for a GPU.
    queue: bool,
    now: Instant,
    tally: Tally,
}

fn world(seed: u64) -> Tally {
    let mut random = Random::new(seed);
    let now = Instant::now();
    let machine = Machine::new(&mut random);
    let queue = random.percent(50);
    let count = random.between(1, if queue { 3 } else { 2 });
    let servers = (0..count).map(|_| Server::new(&mut random, machine.gpus.len(), now)).collect();
    let mut world = World { random, machine, servers, queue, now, tally: Tally::default() };
    let end = now + TROUBLE;
    while world.now < end {
        world.machine.trouble(&mut world.random);
        world.drain_or_resume();
        world.step(STEP_MS, true);
    }
    world.machine.quiet();
    for server in &mut world.servers {
        server.resume_all(world.now);
    }
    let end = world.now + QUIET;
    while world.now < end {
        world.step(QUIET_STEP_MS, false);
    }
    world.check_end();
    world.tally
}

impl World {
    /// Every server takes its turn, in a random order.
    fn step(&mut self, millis: u64, busy: bool) {
        self.now += Duration::from_millis(self.random.between(millis / 2, millis * 3 / 2));
        let World { random, machine, servers, queue, now, tally } = self;
        let start = random.below(servers.len());
        for at in 0..servers.len() {
            let index = (start + at) % servers.len();
            let (before, rest) = servers.split_at_mut(index);
            let (server, after) = rest.split_first_mut().unwrap();
            // The earliest start among the others that wait for each GPU.
            let first = |gpu: usize| {
                let others = before.iter().chain(after.iter());
                others.filter_map(|other| other.waits_since(gpu)).filter(|_| *queue).min()
            };
            let firsts: Vec<_> = (0..machine.gpus.len()).map(first).collect();
            let taking =
                |gpu: usize| *queue && before.iter().chain(after.iter()).any(|other| other.is_taking(gpu));
            let takings: Vec<bool> = (0..machine.gpus.len()).map(taking).collect();
            if busy {
                server.arrive(random, *now);
            }
            server.turn(random, machine, index, &firsts, &takings, *now, tally);
        }
        machine.check();
        for (index, server) in servers.iter().enumerate() {
            server.check(machine, index);
        }
    }

    fn drain_or_resume(&mut self) {
        let World { random, servers, now, tally, .. } = self;
        if random.bits() % 1000 < 3 {
            let (server, gpus) = (random.below(servers.len()), self.machine.gpus.len());
            let gpu = random.below(gpus);
            servers[server].drain(gpu, random.percent(50), &mut self.machine, server, *now);
            tally.drained += 1;
        }
    }

    fn check_end(&self) {
        for server in &self.servers {
            server.check_end(self.now);
        }
        for gpu in 0..self.machine.gpus.len() {
            for (index, server) in self.servers.iter().enumerate() {
                if server.has(gpu) {
                    assert!(
                        self.now >= server.changed(gpu) + STILL,
                        "server {index} has just taken GPU {gpu}"
                    );
                    continue;
                }
                let room = self.machine.gpus[gpu].has_room(index, server.required);
                assert!(
                    !room,
                    "server {index} does not have GPU {gpu}, where there is room: {:?} {:?}",
                    self.machine.gpus[gpu],
                    server.claim(gpu)
                );
            }
        }
    }
}

#[test]
fn servers_that_share_gpus_lose_no_job_and_hold_nothing_twice_whatever_happens() {
    let total = RefCell::new(Tally::default());
    run(SEEDS, |seed| total.borrow_mut().add(&world(seed)));
    let total = total.into_inner();
    println!("{total:?}");
    if std::env::var_os("OCELLI_SIM_SEED").is_none() {
        total.assert_everything_happened();
    }
}
