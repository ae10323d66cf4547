//! What the server makes of signals.

use signal_hook::{consts::SIGXFSZ, flag};
use std::{
    fs,
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the server, by their names. A terminal sends the last two as it is closed, or at a key; `nohup` and the like say
/// that they are not meant for us.
fn that_end() -> impl Iterator<Item = (&'static str, SignalKind)> {
    let of_terminals = [("SIGHUP", SignalKind::hangup()), ("SIGQUIT", SignalKind::quit())];
    [("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())]
        .into_iter()
        .chain(of_terminals.into_iter().filter(|(_, kind)| !is_ignored(*kind)))
}

/// While this lives, they end the process at once and well: a server that starts has nothing to finish, and may take long over a file or
/// a library without a look at anything else.
pub(super) struct Starting(Arc<AtomicBool>);

impl Starting {
    /// From now on.
    pub(super) fn begin() -> io::Result<Starting> {
        let starting = Arc::new(AtomicBool::new(true));
        for (_, kind) in that_end() {
            flag::register_conditional_shutdown(kind.as_raw_value(), 0, Arc::clone(&starting))?;
        }
        Ok(Starting(starting))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The signals that end the server, with their names.
pub(super) struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// Listens from now on.
    pub(super) fn new() -> io::Result<Signals> {
        let signals = that_end().map(|(name, kind)| signal(kind).map(|signal| (name, signal)));
        Ok(Signals(signals.collect::<io::Result<_>>()?))
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
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}
