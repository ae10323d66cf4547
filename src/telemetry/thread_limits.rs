//! Advice for when the system refuses to create a thread.

use rustix::process::{Resource, getrlimit};
use std::{error::Error, io};

/// What to do if it refuses a thread whose number these options set.
pub fn advice(options: &[&str]) -> String {
    let user = match getrlimit(Resource::Nproc).current {
        Some(limit) => format!("{limit} now, and all processes of the user count"),
        None => "none now".to_owned(),
    };
    let lower = match options {
        [] => String::new(),
        [option] => format!(", or lower {option}"),
        [first @ .., last] => format!(", or lower {} or {last}", first.join(", ")),
    };
    format!(
        "raise the limit of its user (ulimit -u: {user}) or of its control group (pids.max, TasksMax){lower}"
    )
}

/// Whether the system has refused a thread: it reports that as a resource that is temporarily unavailable.
fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    error.downcast_ref().is_some_and(refused) || error.source().is_some_and(is_refusal)
}

/// The error, with the advice if the system has refused a thread.
pub fn told(error: &(dyn Error + 'static), options: &[&str]) -> String {
    if is_refusal(error) { format!("{error}; {}", advice(options)) } else { error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_threads_are_there_by_are_to_be_lowered() {
        assert!(!advice(&[]).contains("lower"));
        assert!(advice(&["compute_threads"]).ends_with(", or lower compute_threads"));
        let options = ["http_threads", "decode_threads", "compute_threads"];
        assert!(advice(&options).ends_with(", or lower http_threads, decode_threads or compute_threads"));
    }

    #[test]
    fn an_error_of_another_kind_has_no_advice() {
        let of = |kind: io::ErrorKind| told(&io::Error::from(kind), &["compute_threads"]);
        let (refused, other) = (of(io::ErrorKind::WouldBlock), of(io::ErrorKind::PermissionDenied));
        for words in ["ulimit -u: ", "pids.max", "or lower compute_threads"] {
            assert!(refused.contains(words) && !other.contains(words), "{refused}, {other}");
        }
    }
}
