//! Whether the system lets the process start as many threads as a server has at the least. Who is refused one panics, in some libraries,
//! or says no more than that a resource is not there: it is tried before any of them is started.

use super::AppError;
use crate::config::Config;
use rustix::process::{Resource, getrlimit};
use std::{
    io,
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
};

/// Beside those of the options: what writes the log, loads models and keeps the CPU. What else there may be, such as what serves probes,
/// is not counted: a server that could start is not refused.
const OTHERS: usize = 3;

/// Tries it.
///
/// # Errors
/// How many there may be, how many there must be, and which limits there are.
pub(super) fn check(config: &Config) -> Result<(), AppError> {
    let Config { http_threads: http, decode_threads: decode, compute_threads: compute, .. } = *config;
    let needed = http + decode + compute + OTHERS;
    let spawn = |end: Receiver<()>| {
        // The other end is dropped once all have been tried.
        thread::Builder::new().spawn(move || end.recv().unwrap_or_default())
    };
    let (allowed, Some(error)) = try_all(needed, spawn) else { return Ok(()) };
    let user = match getrlimit(Resource::Nproc).current {
        Some(limit) => format!("{limit} now, and all processes of the user count"),
        None => "none now".to_owned(),
    };
    Err(AppError::Failed(format!(
        "the system lets the process start {allowed} threads, and it needs {needed} or more (http_threads {http}, decode_threads \
         {decode}, compute_threads {compute}, and {OTHERS}): {error}; raise the limit of its user (ulimit -u: {user}) or of its \
         control group (pids.max, TasksMax), or lower these options"
    )))
}

/// Starts so many threads at once, and ends them; how many there were, and why not more.
fn try_all(
    count: usize,
    spawn: impl Fn(Receiver<()>) -> io::Result<JoinHandle<()>>,
) -> (usize, Option<io::Error>) {
    let (mut ends, mut threads, mut refused) = (Vec::new(), Vec::new(), None);
    while threads.len() < count && refused.is_none() {
        let (end, ended) = mpsc::channel();
        match spawn(ended) {
            Ok(thread) => (ends.push(end), threads.push(thread)).0,
            Err(error) => refused = Some(error),
        }
    }
    drop(ends);
    let started = threads.len();
    for thread in threads {
        // It does nothing that could panic.
        let _ = thread.join();
    }
    (started, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn threads_are_tried_all_at_once_until_one_is_refused() {
        let running = Cell::new(0);
        let up_to = |limit: usize| {
            running.set(0);
            try_all(5, |end| {
                if running.get() == limit {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                running.set(running.get() + 1);
                thread::Builder::new().spawn(move || end.recv().unwrap_or_default())
            })
        };
        let (started, refused) = up_to(3);
        assert_eq!((started, refused.map(|error| error.kind())), (3, Some(io::ErrorKind::WouldBlock)));
        let (started, refused) = up_to(5);
        assert!(started == 5 && refused.is_none(), "{started}: {refused:?}");
    }

    #[test]
    fn a_machine_that_runs_tests_lets_a_server_have_its_threads() {
        assert!(check(&Config::default()).is_ok());
    }
}
