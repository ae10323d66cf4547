//! What a whole server makes of signals, as a process of its own.

use crate::support::config;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

/// Whatever whoever runs the tests has ignored.
const DEFAULT: &str = "--default-signal=HUP,QUIT,XFSZ";

/// Starts a server without models, by `env` with this option, sends it these signals once it listens, and gives its log; it must have
/// ended in order.
fn log_of_a_server_that_gets(disposition: &str, signals: &[Signal]) -> String {
    let models = tempfile::tempdir().unwrap();
    let free = "127.0.0.1:0";
    let mut server = Command::new("env");
    server.arg(disposition).arg(env!("CARGO_BIN_EXE_ocelli")).arg("serve");
    server.args(["--listen", free, "--admin-listen", free, "--backend", "cpu", "--drain-delay-ms", "0"]);
    server.arg("--models").arg(models.path()).arg("--onnx-runtime").arg(config().onnx_runtime);
    server.env_remove("OCELLI_CONFIG").stderr(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("listening") {
        assert_ne!(stderr.read_line(&mut log).unwrap(), 0, "it ended: {log}");
    }
    for signal in signals {
        kill_process(Pid::from_child(&server), *signal).unwrap();
    }
    stderr.read_to_string(&mut log).unwrap();
    let status = server.wait().unwrap();
    assert!(status.success(), "{status}: {log}");
    log
}

#[test]
fn a_terminal_that_is_closed_or_told_to_quit_begins_a_drain() {
    for (signal, name) in [
        (Signal::HUP, "SIGHUP"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::INT, "SIGINT"),
        (Signal::TERM, "SIGTERM"),
    ] {
        let log = log_of_a_server_that_gets(DEFAULT, &[signal]);
        assert!(log.contains("draining") && log.contains(name), "{log}");
    }
}

#[test]
fn a_signal_that_whoever_starts_the_server_has_ignored_stays_so() {
    let log = log_of_a_server_that_gets("--ignore-signal=HUP", &[Signal::HUP, Signal::TERM]);
    assert!(log.contains("SIGTERM") && !log.contains("SIGHUP"), "{log}");
}

#[test]
fn a_file_that_reaches_its_limit_does_not_end_the_server() {
    log_of_a_server_that_gets(DEFAULT, &[Signal::XFSZ, Signal::TERM]);
}
