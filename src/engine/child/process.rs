//! The operating-system process of a child: how it is started, what it prints, how it ends.
//!
//! It runs this program again, with the socket as its standard input, so that no handle is open in it unintentionally. What it
//! and its libraries print comes through a pipe into this process's log, line by line, with the device's name. So lines of
//! different processes do not mix, a JSON log stays JSON, and the last line of an aborted process is available.

use super::link::Link;
use rustix::process::Signal;
use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, PipeReader, Read},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::Duration,
};

/// The exit code after a fault of the device or of an engine.
const FAULT: i32 = 86;

/// Longer lines are split at this many bytes.
const LINE_MAX: u64 = 4096;
/// How long to wait for the last line of a process that is gone: it is in the pipe already.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// What to run as a child.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Arguments that come before our own.
    pub arguments: Vec<OsString>,
    /// Environment variables in addition to this process's own.
    pub environment: Vec<(OsString, OsString)>,
}

impl Program {
    /// This program, even where its file has been replaced since it was started.
    pub fn own() -> Program {
        Program { path: "/proc/self/exe".into(), arguments: Vec::new(), environment: Vec::new() }
    }
}

/// A process that was started.
pub(super) struct Running {
    process: Child,
    last_words: mpsc::Receiver<Option<String>>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Normally.
    Done,
    /// By a fault of its device, which it reported.
    Fault,
    /// In any other way.
    Other(ExitStatus),
    /// It has not ended so far.
    Hangs,
}

impl Running {
    /// Starts the process, and a thread that reads its output. The system kills the process when the calling thread ends.
    pub(super) fn start(program: &Program, device: &str, gpu: Option<&str>) -> io::Result<(Running, Link)> {
        let (link, theirs): (Link, OwnedFd) = Link::pair()?;
        let (said, say) = io::pipe()?;
        let mut command = Command::new(&program.path);
        command.arg0("ocelli").args(&program.arguments).args(["worker", "--level"]);
        command.arg(tracing::level_filters::LevelFilter::current().to_string().to_lowercase());
        command.stdin(theirs).stdout(say.try_clone()?).stderr(Stdio::from(say));
        // In its own process group: Ctrl-C in the terminal of this process does not reach it.
        command.process_group(0).envs(program.environment.iter().map(|(name, value)| (name, value)));
        if let Some(gpu) = gpu {
            command.env("CUDA_VISIBLE_DEVICES", gpu);
        }
        let process = command.spawn()?;
        // Closes our copies of the child's ends of the socket and the pipe, so that these close when the process ends.
        drop(command);
        let (tell, last_words) = mpsc::channel();
        let name = device.to_owned();
        std::thread::Builder::new().name("ocelli-child-log".into()).spawn(move || {
            // An error: nobody waits for it any more.
            let _ = tell.send(log(said, &name));
        })?;
        Ok((Running { process, last_words }, link))
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the process at once.
    pub(super) fn kill(&mut self) {
        if let Err(error) = self.process.kill() {
            tracing::debug!(%error, "a child could not be killed");
        }
    }

    /// How the process has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<End> {
        match self.process.try_wait() {
            Ok(Some(status)) if status.success() => Some(End::Done),
            Ok(Some(status)) if status.code() == Some(FAULT) => Some(End::Fault),
            Ok(status) => status.map(End::Other),
            Err(error) => {
                tracing::error!(%error, "cannot ask how a child ended");
                Some(End::Hangs)
            }
        }
    }

    /// The last line that an ended process printed outside its log.
    pub(super) fn last_words(&self) -> Option<String> {
        self.last_words.recv_timeout(LAST_WORDS).ok().flatten()
    }
}

impl End {
    /// Whether it was killed (SIGKILL), by anybody.
    pub(super) fn is_kill(self) -> bool {
        matches!(self, End::Other(status) if status.signal() == Some(Signal::KILL.as_raw()))
    }

    /// The end in words; `fault` is what the process reported about its device.
    pub(super) fn words(self, fault: Option<&str>, last_words: Option<&str>) -> String {
        let words = match self {
            End::Done => "ended".to_owned(),
            End::Fault => match fault {
                Some(fault) => format!("ended with exit code {FAULT}, after a fault of its device: {fault}"),
                None => format!("ended with exit code {FAULT}, after a fault of its device or of an engine"),
            },
            End::Hangs => "does not answer any more, and does not end".to_owned(),
            End::Other(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => format!("was ended by signal {signal}{}", name(signal)),
                (None, Some(code)) => format!("ended with exit code {code}"),
                (None, None) => "ended".to_owned(),
            },
        };
        match (self, last_words) {
            (End::Other(_), Some(last)) => format!("{words}; its last words: {last}"),
            (End::Fault, Some(last)) if fault.is_none() => format!("{words}; its last words: {last}"),
            _ => words,
        }
    }
}

/// Ends this process, a child, now, without releasing anything.
#[allow(unsafe_code, reason = "destructors would call into a broken context")]
pub(super) fn leave() -> ! {
    // SAFETY: no destructor runs, which is intended; the system closes and frees everything.
    unsafe { libc::_exit(FAULT) }
}

/// The name of a fatal signal.
fn name(signal: i32) -> &'static str {
    let known = [
        (Signal::ABORT, " (SIGABRT)"),
        (Signal::BUS, " (SIGBUS)"),
        (Signal::FPE, " (SIGFPE)"),
        (Signal::ILL, " (SIGILL)"),
        (Signal::INT, " (SIGINT)"),
        (Signal::KILL, " (SIGKILL, as when memory runs out)"),
        (Signal::SEGV, " (SIGSEGV)"),
        (Signal::TERM, " (SIGTERM)"),
    ];
    known.iter().find(|(known, _)| known.as_raw() == signal).map_or("", |(_, name)| name)
}

/// Logs what a process prints, until it is gone. Returns its last line that was not a log line.
fn log(said: PipeReader, device: &str) -> Option<String> {
    let mut said = BufReader::new(said);
    let mut last = None;
    loop {
        let mut line = Vec::new();
        match said.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        let (level, text) = line.trim_start().split_once(' ').unwrap_or(("", line));
        match level {
            "ERROR" => tracing::error!(device, "{text}"),
            "WARN" => tracing::warn!(device, "{text}"),
            "INFO" => tracing::info!(device, "{text}"),
            "DEBUG" => tracing::debug!(device, "{text}"),
            "TRACE" => tracing::trace!(device, "{text}"),
            // From a library, or from a panic.
            _ => {
                tracing::warn!(device, "{line}");
                last = Some(line.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_tell_signals_and_exit_codes() {
        let check = |raw: i32, expected: &str| {
            assert_eq!(End::Other(ExitStatus::from_raw(raw)).words(None, Some("what(): bad")), expected);
        };
        check(11, "was ended by signal 11 (SIGSEGV); its last words: what(): bad");
        check(6, "was ended by signal 6 (SIGABRT); its last words: what(): bad");
        check(3 << 8, "ended with exit code 3; its last words: what(): bad");
        let fault = End::Fault.words(Some("illegal address"), Some("ignored"));
        assert_eq!(fault, "ended with exit code 86, after a fault of its device: illegal address");
    }
}
