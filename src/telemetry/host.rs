//! The load of the machine, processors and memory, as Linux reports it.

use parking_lot::Mutex;
use rustix::thread::sched_getaffinity;
use std::{fs, path::Path};

/// The machine's load at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Fraction of all processors' time that was not idle since the last look, 0 to 1.
    pub utilization: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of memory that are not available without swapping.
    pub memory_used_bytes: u64,
}

/// Reads the machine's load. It keeps the last counters, to which the next ones are compared.
#[derive(Debug, Default)]
pub struct Host {
    last: Mutex<Ticks>,
}

/// Processor time since the machine started, in clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Host {
    /// The load now; `None` if the system does not tell. The first look returns the mean since the machine started.
    pub fn look(&self) -> Option<Load> {
        let now = ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let (memory_bytes, available) = memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let mut last = self.last.lock();
        let utilization = utilization(*last, now);
        *last = now;
        Some(Load { utilization, memory_bytes, memory_used_bytes: memory_bytes.saturating_sub(available) })
    }
}

/// Bytes of memory that this process may use: the smallest limit of its control groups, at most the machine's memory. `None` if the
/// system does not tell.
pub fn memory_limit() -> Option<u64> {
    let (machine, _) = memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // Without a limit, version 1 of control groups reports a number beyond any machine.
    Some(least(&limit_files(&groups())).map_or(machine, |limit| limit.min(machine)))
}

/// Bytes of memory that count against [`memory_limit`] now, where that is the limit of a control group: of all processes in the group, and
/// of files that they use, but not of file pages that are given back first (what Kubernetes calls the working set). `None` where the
/// machine's memory is the limit, or the system does not tell.
pub fn memory_used() -> Option<u64> {
    let (machine, _) = memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
    used(limit_files(&groups()), machine)
}

/// What is used in the group with the smallest of the limits in these files, if it is below `machine`.
fn used(files: Vec<String>, machine: u64) -> Option<u64> {
    let limit = |file: String| Some((number(&file)?, file));
    let (limit, file) = files.into_iter().filter_map(limit).min()?;
    let (folder, name) = file.rsplit_once('/').filter(|_| limit < machine)?;
    let (now, idle) = match name {
        "memory.max" => ("memory.current", "inactive_file "),
        _ => ("memory.usage_in_bytes", "total_inactive_file "),
    };
    let counts = fs::read_to_string(format!("{folder}/memory.stat")).unwrap_or_default();
    let idle = counts.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse().ok());
    Some(number(&format!("{folder}/{now}"))?.saturating_sub(idle.unwrap_or(0)))
}

/// Bytes of memory above which the system throttles this process and reclaims memory from it: the smallest `memory.high` of its
/// control groups. `None` if there is no such limit.
pub fn memory_high() -> Option<u64> {
    least(&high_files(&groups()))
}

/// Whether a CPU limit leaves this process fewer cores (`cores`) than its threads may run on. `false` if the system does not tell.
pub fn has_cpu_limit(cores: usize) -> bool {
    sched_getaffinity(None).is_ok_and(|allowed| cores < allowed.count() as usize)
}

fn groups() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The smallest limit in these files. Files that say `max` or do not exist set none.
fn least(files: &[String]) -> Option<u64> {
    files.iter().filter_map(|file| number(file)).min()
}

/// The number that is all of a file.
fn number(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Resident memory of this process in bytes; `None` if the system does not tell.
pub fn resident() -> Option<u64> {
    bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Bytes of memory that this process could use in addition.
pub fn free() -> Option<u64> {
    let (_, available) = memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(memory_limit()?.saturating_sub(resident()?).min(available))
}

/// The files with the memory limits of the control groups in `/proc/self/cgroup`, from each group up to the root. In a container, the
/// root is the container's own (cgroups(7)).
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let folders = Path::new(path).ancestors();
        files
            .extend(folders.map(|folder| {
                format!("{root}{}/{file}", folder.display().to_string().trim_end_matches('/'))
            }));
    }
    files
}

/// The same for `memory.high`, which only version 2 has.
fn high_files(groups: &str) -> Vec<String> {
    let high = |file: String| file.strip_suffix("memory.max").map(|folder| format!("{folder}memory.high"));
    limit_files(groups).into_iter().filter_map(high).collect()
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. The further columns are included in user.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().take(8).map_while(|text| text.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4).unwrap_or(&0);
    let all: u64 = numbers.iter().sum();
    Some(Ticks { busy: all - idle, all })
}

fn utilization(last: Ticks, now: Ticks) -> f64 {
    match now.all.saturating_sub(last.all) {
        0 => 0.0,
        all => (now.busy.saturating_sub(last.busy) as f64 / all as f64).clamp(0.0, 1.0),
    }
}

/// Total bytes, and bytes that a new process could use.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    Some((bytes(meminfo, "MemTotal:")?, bytes(meminfo, "MemAvailable:")?))
}

/// A number of KiB in a line that begins with this name.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_what_was_not_idle_between_two_looks() {
        let first = ticks("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").expect("a line");
        assert_eq!(first, Ticks { busy: 150, all: 1000 });
        let second = ticks("cpu  160 0 90 880 70 0 0 0 0 0\n").expect("a line");
        assert_eq!(utilization(first, second), 0.5);
        assert_eq!(utilization(second, second), 0.0);
        assert_eq!(ticks("intr 5"), None);
    }

    #[test]
    fn memory_in_use_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n";
        assert_eq!(memory(text), Some((1_024_000, 409_600)));
        assert_eq!(memory("MemTotal: 5 kB"), None);
    }

    #[test]
    fn fewer_cores_than_a_process_may_run_on_are_a_limit() {
        let allowed = sched_getaffinity(None).expect("Linux tells").count() as usize;
        assert_eq!((has_cpu_limit(allowed), has_cpu_limit(allowed - 1)), (false, true));
    }

    #[test]
    fn limits_are_looked_for_in_all_groups_up_to_the_root_of_both_versions() {
        let v2 = limit_files("0::/system.slice/ocelli.service\n");
        let root = "/sys/fs/cgroup";
        let expected = ["/system.slice/ocelli.service/memory.max", "/system.slice/memory.max", "/memory.max"];
        assert_eq!(v2, expected.map(|file| format!("{root}{file}")));
        let v1 = limit_files("12:cpu,cpuacct:/a\n4:memory:/docker/7\n1:name=systemd:/b\n");
        let expected =
            ["/docker/7", "/docker", ""].map(|at| format!("{root}/memory{at}/memory.limit_in_bytes"));
        assert_eq!(v1, expected);
        assert_eq!(limit_files("nothing of the kind"), [""; 0]);
    }

    #[test]
    fn memory_is_high_by_groups_of_version_2_alone() {
        let root = "/sys/fs/cgroup";
        let expected = ["/a.slice/b/memory.high", "/a.slice/memory.high", "/memory.high"];
        assert_eq!(
            high_files("4:memory:/docker/7\n0::/a.slice/b\n"),
            expected.map(|file| format!("{root}{file}"))
        );
    }

    #[test]
    fn the_least_limit_of_all_groups_holds() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let (none, more, less) = (file("a", "max\n"), file("b", "900\n"), file("c", "70\n"));
        let absent = folder.path().join("d").display().to_string();
        assert_eq!(least(&[none.clone(), more, less, absent.clone()]), Some(70));
        assert_eq!(least(&[none, absent]), None);
    }

    #[test]
    fn what_is_used_is_that_of_the_group_whose_limit_is_met_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        // The outer group has others beside this process, and less room.
        let inner = write("outer/inner/memory.max", "900\n");
        write("outer/inner/memory.current", "10\n");
        let outer = write("outer/memory.max", "700\n");
        write("outer/memory.current", "600\n");
        write("outer/memory.stat", "anon 300\nfile 250\ninactive_file 250\nactive_file 40\n");
        let files = vec![inner.clone(), outer];
        assert_eq!(used(files.clone(), 1000), Some(350));
        assert_eq!(used(files, 700), None, "the machine has no more");
        assert_eq!(used(vec![inner], 1000), Some(10), "without counts, all counts");
        let first = write("first/memory.limit_in_bytes", "500\n");
        write("first/memory.usage_in_bytes", "400\n");
        write("first/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
        assert_eq!(used(vec![first], 1000), Some(300));
        assert_eq!(used(vec![write("none/memory.max", "max\n")], 1000), None);
    }

    #[test]
    fn a_process_may_have_no_more_than_the_machine_has() {
        let all = Host::default().look().expect("Linux tells").memory_bytes;
        let limit = memory_limit().expect("Linux tells");
        assert!(0 < limit && limit <= all, "{limit} of {all}");
    }

    #[test]
    fn the_machine_that_runs_this_can_be_looked_at() {
        let load = Host::default().look().expect("Linux tells");
        assert!((0.0..=1.0).contains(&load.utilization), "{load:?}");
        assert!(load.memory_used_bytes > 0 && load.memory_used_bytes < load.memory_bytes, "{load:?}");
    }
}
