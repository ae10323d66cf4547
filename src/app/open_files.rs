//! How many files the process may have open, sockets among them, and how many of them connections of the API may take.

use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most that is left to everything but the API's connections: probes, scrapers, models, temporary files.
const LEFT_MAX: u64 = 1024;

/// Raises the limit on open files to what the process may have, and tells that; none where there is no limit. A shell's and
/// systemd's 1024 are for programs that use `select`.
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

/// The most connections that an address of the API may have: as many as asked for, or as there may be open files. With more, those
/// that rest would leave none to the probes of a server that has nothing to do.
pub(super) fn connections_max(config: &Config, limit: Option<u64>) -> usize {
    let wanted = config.connections_max;
    let addresses = config.listen.len() + usize::from(config.grpc_listen.is_some());
    let max = limit.map_or(wanted, |limit| wanted.min(share(limit, addresses)));
    if max < wanted {
        let limit = limit.unwrap_or_default();
        tracing::warn!(
            "connections_max is {wanted}, and {max} fit on each address: the process may have {limit} files open; raise \
             that (ulimit -n, LimitNOFILE), or lower connections_max"
        );
    }
    max
}

/// Connections that each of `addresses` listeners may have when `limit` files may be open.
fn share(limit: u64, addresses: usize) -> usize {
    let left = (limit / 2).min(LEFT_MAX);
    let each = (limit - left) / addresses.max(1) as u64;
    usize::try_from(each).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_everything_else() {
        assert_eq!(share(1024, 1), 512);
        assert_eq!(share(1024, 2), 256);
        assert_eq!(share(20_000, 1), 18_976);
        assert_eq!(share(2, 3), 1);
        let config = Config { connections_max: 8192, ..Config::default() };
        assert_eq!(connections_max(&config, None), 8192);
        assert_eq!(connections_max(&config, Some(1 << 20)), 8192);
        assert_eq!(connections_max(&config, Some(1024)), 512);
    }
}
