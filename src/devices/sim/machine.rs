//! A machine with simulated GPUs: what servers hold of them, what other processes do there, and their faults.

use super::super::health::states::Evidence;
use crate::random::Random;

const GIB: u64 = 1 << 30;
/// Bytes that loading leaves free on each GPU.
pub(super) const HEADROOM: u64 = GIB;

/// A GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) total: u64,
    /// What servers hold, by the servers' numbers.
    pub(super) held: Vec<(usize, u64)>,
    /// What other processes hold; these never wait for anybody.
    pub(super) foreign: u64,
    pub(super) utilization: u32,
    /// Kernels fail.
    pub(super) sick: bool,
    pub(super) on_bus: bool,
    /// The driver's reports, oldest first; never removed.
    pub(super) events: Vec<Evidence>,
    /// Its readings of memory errors.
    pub(super) uncorrected: u64,
    pub(super) advice: u64,
    /// Servers are not told of other processes.
    pub(super) blind: bool,
}

/// What a server sees of a GPU when it looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    pub(super) others: bool,
    pub(super) free: u64,
    pub(super) utilization: u32,
    pub(super) on_bus: bool,
    pub(super) uncorrected: u64,
    pub(super) advice: u64,
}

impl Gpu {
    pub(super) fn free(&self) -> u64 {
        self.total - self.foreign - self.held.iter().map(|(_, held)| held).sum::<u64>()
    }

    /// Whether server `me` is told of others.
    fn others(&self, me: usize) -> bool {
        !self.blind && (self.foreign > 0 || self.held.iter().any(|(server, _)| *server != me))
    }

    /// As server `me` sees it.
    pub(super) fn sight(&self, me: usize) -> Sight {
        Sight {
            others: self.others(me),
            free: self.free(),
            utilization: self.utilization,
            on_bus: self.on_bus,
            uncorrected: self.uncorrected,
            advice: self.advice,
        }
    }

    /// The rule of sharing, restated simply, for server `me`, which does not have the GPU.
    pub(super) fn has_room(&self, me: usize, required: u64) -> bool {
        let free = self.free();
        let enough = free >= required + HEADROOM;
        let polite = 2 * free >= 3 * required && self.utilization <= 90;
        enough && (polite || !self.others(me))
    }
}

/// All GPUs.
pub(super) struct Machine {
    pub(super) gpus: Vec<Gpu>,
}

impl Machine {
    pub(super) fn new(random: &mut Random) -> Machine {
        let blind = random.percent(20);
        let gpu = |total| Gpu {
            total: total * GIB,
            held: Vec::new(),
            foreign: 0,
            utilization: 0,
            sick: false,
            on_bus: true,
            events: Vec::new(),
            uncorrected: 0,
            advice: 0,
            blind,
        };
        let count = random.between(1, 2);
        Machine { gpus: (0..count).map(|_| gpu(*random.of(&[8, 16, 24]))).collect() }
    }

    /// Changes some of them at random.
    pub(super) fn trouble(&mut self, random: &mut Random) {
        for gpu in &mut self.gpus {
            let mut now_and_then = |per_mille: u64| random.bits() % 1000 < per_mille;
            let (memory, leaves, noise) = (now_and_then(12), now_and_then(12), now_and_then(100));
            let (sickens, heals) = (now_and_then(4), now_and_then(60));
            let (falls, returns) = (now_and_then(1), now_and_then(20));
            let (xid, ecc, advice, none) =
                (now_and_then(4), now_and_then(1), now_and_then(1), now_and_then(30));
            if memory {
                gpu.foreign += random.between(0, gpu.free());
            }
            if leaves {
                gpu.foreign = 0;
            }
            if noise {
                gpu.utilization = *random.of(&[0, 85, 89, 90, 91, 92, 99]);
            }
            gpu.sick = (gpu.sick || sickens) && !heals;
            gpu.on_bus = (gpu.on_bus && !falls) || returns;
            gpu.uncorrected += u64::from(ecc);
            gpu.advice = if none { 0 } else { gpu.advice.max(u64::from(advice)) };
            if xid {
                gpu.events.push(Evidence::Xid(*random.of(&[13, 31, 43, 48, 63, 64, 74, 79])));
            }
        }
    }

    /// No faults from now on, and other processes take no more than they have.
    pub(super) fn quiet(&mut self) {
        for gpu in &mut self.gpus {
            (gpu.sick, gpu.on_bus, gpu.advice, gpu.utilization) = (false, true, 0, 0);
        }
    }

    /// What a server has there is given back.
    pub(super) fn give_back(&mut self, gpu: usize, server: usize) {
        self.gpus[gpu].held.retain(|(holder, _)| *holder != server);
    }

    pub(super) fn check(&self) {
        for gpu in &self.gpus {
            let held: u64 = gpu.held.iter().map(|(_, held)| held).sum();
            assert!(held + gpu.foreign <= gpu.total, "more is held than there is: {gpu:?}");
            let mut holders: Vec<usize> = gpu.held.iter().map(|(holder, _)| *holder).collect();
            holders.sort_unstable();
            holders.dedup();
            assert_eq!(holders.len(), gpu.held.len(), "a server holds it twice: {gpu:?}");
        }
    }
}
