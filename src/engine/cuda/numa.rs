//! The processors near a GPU. On machines with several NUMA nodes, copies between the device and memory of another node are slower,
//! and so is every driver call from there.
//!
//! The threads of a device are bound to the processors of its node ([`Near::bind`]). Memory belongs to the node whose processor
//! touches it first. For pinned memory that is the driver's pinning call, so it is made on the device's node ([`Near::within`]),
//! whichever thread asked.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::{fmt, path::Path};

/// Where the system describes PCI devices and NUMA nodes.
pub(super) const SYSTEM: &str = "/sys";

/// Processors near a GPU that this process may use.
#[derive(Clone)]
pub struct Near {
    /// The NUMA node.
    pub node: u32,
    cpus: CpuSet,
}

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} processors of node {}", self.cpus.count(), self.node)
    }
}

/// The NUMA node of the PCI device with this address, according to `system`. `-1` stands for a machine with one node.
pub(super) fn node(system: &Path, pci: &str) -> Option<u32> {
    let path = system.join("bus/pci/devices").join(pci).join("numa_node");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Near {
    /// The processors near a device; `None` if the system does not say, or there is no choice: a single node, or none of its
    /// processors is allowed for this process.
    pub(super) fn find(system: &Path, node: Option<u32>) -> Option<Near> {
        let node = node?;
        let path = system.join(format!("devices/system/node/node{node}/cpulist"));
        let listed = std::fs::read_to_string(path).ok()?;
        Near::among(node, &listed, &sched_getaffinity(None).ok()?)
    }

    /// The processors of a list that are allowed.
    fn among(node: u32, listed: &str, allowed: &CpuSet) -> Option<Near> {
        let mut cpus = CpuSet::new();
        for cpu in numbers(listed)?.filter(|cpu| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu)) {
            cpus.set(cpu);
        }
        (cpus.count() > 0 && cpus.count() < allowed.count()).then_some(Near { node, cpus })
    }

    /// Has the calling thread, and those that it starts, run on these processors from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn bind(&self) -> std::io::Result<()> {
        Ok(sched_setaffinity(None, &self.cpus)?)
    }

    /// Runs `work` on these processors; afterwards the thread has its previous ones again.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = sched_getaffinity(None).ok().filter(|_| self.bind().is_ok());
        let done = work();
        if let Some(before) = before
            && let Err(error) = sched_setaffinity(None, &before)
        {
            tracing::debug!(%error, "a thread stays near a GPU");
        }
        done
    }
}

/// The numbers of a list such as `0-3,8`; `None` if it is not such a list.
fn numbers(list: &str) -> Option<impl Iterator<Item = usize>> {
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    let ranges = parts.map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    let ranges: Vec<_> = ranges.collect::<Option<_>>()?;
    Some(ranges.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    }

    fn near(listed: &str, allowed: &[usize]) -> Option<Vec<usize>> {
        let near = Near::among(1, listed, &set(allowed))?;
        Some((0..CpuSet::MAX_CPU).filter(|cpu| near.cpus.is_set(*cpu)).collect())
    }

    #[test]
    fn processors_of_the_node_that_the_process_may_use_are_near() {
        assert_eq!(near("2-3,6\n", &[0, 1, 2, 3, 6, 7]), Some(vec![2, 3, 6]));
        assert_eq!(near("2-3", &[0, 3]), Some(vec![3]));
        assert_eq!(near("2-3", &[0, 1]), None, "none of them is ours");
        assert_eq!(near("0-3", &[0, 1]), None, "all that are ours are near");
        for list in ["", "a", "1-", "-1"] {
            assert_eq!(near(list, &[0, 1]), None, "{list:?}");
        }
        assert_eq!(near("0-99999", &[0, 1]), None, "more than there can be");
    }

    #[test]
    fn the_node_of_a_gpu_is_read_where_the_system_tells() {
        let system = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("bus/pci/devices/0000:01:00.0/numa_node", "1\n");
        write("bus/pci/devices/0000:02:00.0/numa_node", "-1\n");
        assert_eq!(node(system.path(), "0000:01:00.0"), Some(1));
        assert_eq!(node(system.path(), "0000:02:00.0"), None);
        assert_eq!(node(system.path(), "0000:03:00.0"), None);
        assert!(Near::find(system.path(), Some(1)).is_none(), "it does not say which processors");
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        write("devices/system/node/node1/cpulist", &format!("{first}\n"));
        let near = Near::find(system.path(), Some(1));
        // On a machine with one processor there is no choice.
        assert_eq!(near.is_some(), allowed.count() > 1);
    }

    #[test]
    fn a_thread_is_bound_for_good_or_for_a_while() {
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        let near = Near { node: 0, cpus: set(&[first]) };
        std::thread::spawn(move || {
            let here = || sched_getaffinity(None).unwrap();
            assert_eq!(near.within(here), near.cpus);
            assert_eq!(here(), allowed, "afterwards it runs where it ran before");
            near.bind().unwrap();
            assert_eq!(std::thread::spawn(here).join().unwrap(), near.cpus, "as do threads that it starts");
        })
        .join()
        .unwrap();
    }
}
