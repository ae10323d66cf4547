//! How many files the process may have open, including sockets, and how many of them API connections and shared memory may take.

use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// The most that is reserved for everything but the API's connections: probes, scrapers, models, temporary files.
const LEFT_MAX: u64 = 1024;
/// The least of that, besides the files that are open before the first connection: what serves probes and watches the model folder, a few
/// probes, and a model that is being loaded.
const LEFT_MIN: u64 = 12;
/// Regions of shared memory, each of which is a file, may take one part in this many.
const REGIONS_PART: u64 = 4;

/// Raises the limit on open files to the most that the process may have, and returns it; `None` without a limit. The 1024 of a shell or
/// of systemd is meant for programs that use `select`.
pub(super) fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit on open files stays");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// The most regions of shared memory: as many as configured, if the limit on open files allows it.
pub(super) fn regions_max(config: &Config, limit: Option<u64>) -> usize {
    let wanted = config.shared_memory_regions_max;
    let Some(limit) = limit else { return wanted };
    let max = wanted.min(usize::try_from(limit / REGIONS_PART).unwrap_or(usize::MAX));
    if max < wanted {
        tracing::warn!(
            "shared_memory_regions_max is {wanted}, and {max} fit: the process may have {limit} files open; raise that (ulimit -n, \
             LimitNOFILE), or lower shared_memory_regions_max"
        );
    }
    max
}

/// The most connections of each API address: as many as configured, if the limit on open files allows it. Otherwise idle connections
/// could leave the probes no file, though the server has nothing to do.
pub(super) fn connections_max(config: &Config, limit: Option<u64>) -> usize {
    let wanted = config.connections_max;
    let addresses = config.listen.len() + usize::from(config.grpc_listen.is_some());
    let taken = open_now() + config.shared_memory_regions_max as u64;
    let max = limit.map_or(wanted, |limit| wanted.min(share(limit, taken, addresses)));
    if max < wanted {
        let limit = limit.unwrap_or_default();
        tracing::warn!(
            "connections_max is {wanted}, and {max} fit on each address: the process may have {limit} files open; raise \
             that (ulimit -n, LimitNOFILE), or lower connections_max"
        );
    }
    max
}

/// Files that the process has open; 0 where the system does not tell.
fn open_now() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

/// Connections that each of `addresses` listeners may have if `limit` files may be open, of which `taken` are open or may become regions.
fn share(limit: u64, taken: u64, addresses: usize) -> usize {
    let left = (limit / 2).min(LEFT_MAX).max(taken + LEFT_MIN);
    let each = limit.saturating_sub(left) / addresses.max(1) as u64;
    usize::try_from(each).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_everything_else() {
        assert_eq!(share(1024, 20, 1), 512);
        assert_eq!(share(1024, 20, 2), 256);
        assert_eq!(share(20_000, 20, 1), 18_976);
        assert_eq!(share(20_000, 2_000, 1), 17_988, "models that lie in files");
        assert_eq!(share(60, 20, 2), 14, "all that is open and some more is left");
        assert_eq!(share(30, 20, 2), 1);
        assert_eq!(share(2, 20, 3), 1);
        assert!(open_now() >= 3, "{}", open_now());
        let config = Config { connections_max: 8192, ..Config::default() };
        assert_eq!(connections_max(&config, None), 8192);
        assert_eq!(connections_max(&config, Some(1 << 20)), 8192);
        assert_eq!(connections_max(&config, Some(1024)), 512);
    }

    #[test]
    fn regions_of_shared_memory_leave_files_to_connections() {
        let config = Config { shared_memory_regions_max: 1000, connections_max: 8192, ..Config::default() };
        assert_eq!(regions_max(&config, None), 1000);
        assert_eq!(regions_max(&config, Some(1 << 20)), 1000);
        assert_eq!(regions_max(&config, Some(128)), 32);
        let hundred = Config { shared_memory_regions_max: 100, ..config };
        let connections = connections_max(&hundred, Some(128));
        assert!(connections <= 128 - 100 - LEFT_MIN as usize, "{connections}");
    }
}
