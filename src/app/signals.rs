//! How the server reacts to signals.

use signal_hook::{
    consts::{SIGUSR1, SIGUSR2, SIGXFSZ},
    flag,
};
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

/// The signals that end the server, with their names. A terminal sends the last two when it is closed, or at a key press; `nohup` and the
/// like make the process ignore them.
fn that_end() -> impl Iterator<Item = (&'static str, SignalKind)> {
    let of_terminals = [("SIGHUP", SignalKind::hangup()), ("SIGQUIT", SignalKind::quit())];
    [("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())]
        .into_iter()
        .chain(of_terminals.into_iter().filter(|(_, kind)| !is_ignored(*kind)))
}

/// While this lives, these signals end the process at once, with success: a server that is starting has nothing to finish, and may spend
/// long on a file or a library without checking anything else.
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

    /// The name of the next signal.
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

/// Whether a signal has been ignored since the process was started.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    (ignored >> (kind.as_raw_value() - 1)) & 1 == 1
}

/// From now on, writing a file beyond the size limit (`ulimit -f`) is an error of the write, as on a full disk, and does not end the
/// process. Nor do the signals by which others reopen their logs: a log file that was moved away is made anew without them.
pub(super) fn survive() -> io::Result<()> {
    [SIGXFSZ, SIGUSR1, SIGUSR2]
        .into_iter()
        .try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}
