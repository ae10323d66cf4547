//! What the log says, for tests.

use std::{fs, sync::OnceLock};
use tracing::{Dispatch, Subscriber, subscriber::NoSubscriber};

/// Does something with a log of this thread's own.
///
/// While there is at most one log in the process, `tracing` asks only the thread that reaches an event first whether anybody wants it,
/// and keeps that answer for all threads. If a thread without a log is first, the event is lost here. Hence two further logs, which want
/// nothing.
pub(crate) fn with_log<R>(log: impl Subscriber + Send + Sync + 'static, what: impl FnOnce() -> R) -> R {
    static FURTHER: OnceLock<[Dispatch; 2]> = OnceLock::new();
    FURTHER.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
    tracing::subscriber::with_default(log, what)
}

/// The lines that this thread logs meanwhile, as people read them.
pub(crate) fn logged(what: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let lines = file.reopen().expect("the file");
    let log = tracing_subscriber::fmt().with_ansi(false);
    let log = log.with_writer(move || lines.try_clone().expect("the file")).finish();
    with_log(log, what);
    fs::read_to_string(file.path()).expect("the file")
}
