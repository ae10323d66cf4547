//! Whether the system lets the process start the fewest threads that a server or a command needs. Some libraries panic when they are
//! refused a thread, or report no more than that a resource is missing; so this is tried before any of them starts.

use super::AppError;
use crate::{
    config::{Config, RepositoryMode},
    telemetry::thread_limits::{advice, told},
};
use std::{
    error::Error,
    io,
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
};

/// Threads besides those of the options: they write the log, load models, keep a device and run its batches. Others, such as the heap's
/// own and those of further models, which report a failure themselves, are not counted, so that no server is refused that could start.
const OTHERS: usize = 4;
/// The threads of the model folder's watcher, and of the system's file notifications.
const WATCHING: usize = 2;
/// The thread for a command's blocking work, such as reading a file.
const READING: usize = 1;

/// Tries it for a server.
///
/// # Errors
/// How many threads there may be, how many there must be, and which limits apply.
pub(super) fn check(config: &Config) -> Result<(), AppError> {
    let Config { http_threads: http, decode_threads: decode, compute_threads: compute, .. } = *config;
    let apart = usize::from(config.admin_listen.is_some()) + usize::from(config.metrics_listen.is_some());
    let watching = if config.repository_mode == RepositoryMode::Watch { WATCHING } else { 0 };
    let options = named([http, decode, compute]);
    try_for(&options, OTHERS + apart + watching)
}

/// The same for a command that loads models and serves nothing: it needs no thread of its own for loading.
///
/// # Errors
/// Those of [`check`].
pub(super) fn check_to_load(config: &Config) -> Result<(), AppError> {
    try_for(&[("compute_threads", config.compute_threads)], OTHERS - 1)
}

/// The same for a command that runs a model in its own process with `http_threads`, and logs nothing.
///
/// # Errors
/// As for a server.
pub fn check_to_ask_here(config: &Config) -> Result<(), AppError> {
    let Config { http_threads: http, decode_threads: decode, compute_threads: compute, .. } = *config;
    let options = named([http, decode, compute]);
    try_for(&options, OTHERS - 2 + READING)
}

/// The same for a command that sends requests to a server with this many threads.
///
/// # Errors
/// As for a server.
pub fn check_to_ask(threads: usize) -> Result<(), AppError> {
    try_for(&[], threads + READING)
}

/// The options that say how many threads a server starts, with how many.
fn named(counts: [usize; 3]) -> Vec<(&'static str, usize)> {
    OPTIONS.into_iter().zip(counts).collect()
}

/// Tries as many threads as these options say, plus `others`.
fn try_for(options: &[(&str, usize)], others: usize) -> Result<(), AppError> {
    let needed = options.iter().map(|(_, count)| count).sum::<usize>() + others;
    let spawn = |end: Receiver<()>| {
        // The other end is dropped once all have been tried.
        thread::Builder::new().spawn(move || end.recv().unwrap_or_default())
    };
    let (allowed, Some(error)) = try_all(needed, spawn) else { return Ok(()) };
    let parts: Vec<_> = options.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let parts = match &parts[..] {
        [] => String::new(),
        parts => format!(" ({}, and {others})", parts.join(", ")),
    };
    Err(AppError::Failed(format!(
        "the system lets the process start {allowed} threads, and it needs {needed} or more{parts}: {error}; {}",
        advice(&options.iter().map(|(name, _)| *name).collect::<Vec<_>>())
    )))
}

/// The options that say how many threads a server starts.
const OPTIONS: [&str; 3] = ["http_threads", "decode_threads", "compute_threads"];

/// Why something with threads did not start. Even if the trial succeeded, a thread may be refused later, as the user's other processes
/// have started threads since.
pub(super) fn not_started<E: Error + 'static>(what: &str) -> impl FnOnce(E) -> AppError {
    move |error| AppError::Failed(format!("cannot start {what}: {}", told(&error, &OPTIONS)))
}

/// Starts this many threads at once, and ends them. Returns how many started, and why no more did.
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
    fn a_thread_that_is_refused_after_all_is_told_with_what_to_do() {
        let told = |kind: io::ErrorKind| not_started("the admin thread")(io::Error::from(kind)).to_string();
        let (refused, other) = (told(io::ErrorKind::WouldBlock), told(io::ErrorKind::PermissionDenied));
        assert!(refused.starts_with("cannot start the admin thread: "), "{refused}");
        for words in ["ulimit -u: ", "pids.max", "http_threads"] {
            assert!(refused.contains(words) && !other.contains(words), "{refused}, {other}");
        }
    }

    #[test]
    fn a_machine_that_runs_tests_lets_a_server_and_the_commands_have_their_threads() {
        let config = Config::default();
        assert!(check(&config).is_ok() && check_to_load(&config).is_ok());
        assert!(check_to_ask_here(&config).is_ok() && check_to_ask(1).is_ok());
    }
}
