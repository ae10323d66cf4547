//! What the server makes of signals.

use signal_hook::consts::SIGXFSZ;
use std::{fs, future::poll_fn, io, sync::Arc, task::Poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the server, with their names.
pub(super) struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// Listens from now on.
    pub(super) fn new() -> io::Result<Signals> {
        let mut signals =
            vec![("SIGTERM", signal(SignalKind::terminate())?), ("SIGINT", signal(SignalKind::interrupt())?)];
        // A terminal sends these as it is closed, or at a key. `nohup` and the like say that they are not meant for us.
        for (name, kind) in [("SIGHUP", SignalKind::hangup()), ("SIGQUIT", SignalKind::quit())] {
            if !is_ignored(kind) {
                signals.push((name, signal(kind)?));
            }
        }
        Ok(Signals(signals))
    }

    /// The name of the next that comes.
    pub(super) async fn next(&mut self) -> &'static str {
        poll_fn(|context| {
            let came = self.0.iter_mut().find_map(|(name, signal)| {
                let came = signal.poll_recv(context).is_ready();
                came.then_some(*name)
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether a signal is ignored since we were started.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    (ignored >> (kind.as_raw_value() - 1)) & 1 == 1
}

/// From now on a file that would be longer than it may (`ulimit -f`) is an error for whoever writes it, as on a full disk, and not the
/// end of the process.
pub(super) fn survive_full_files() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}
