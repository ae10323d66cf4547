//! What a whole server makes of signals, as a process of its own.

use crate::support::config;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Whatever whoever runs the tests has ignored.
const DEFAULT: &str = "--default-signal=HUP,QUIT,XFSZ,USR1,USR2";

/// Starts a server without models, by `env` with this option, sends it these signals once it listens, and gives its log; it must have
/// ended in order.
fn log_of_a_server_that_gets(disposition: &str, signals: &[Signal]) -> String {
    let models = tempfile::tempdir().unwrap();
    let mut server = server(disposition, models.path(), &config().onnx_runtime);
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

/// Starts it.
fn server(disposition: &str, models: &Path, onnx_runtime: &Path) -> Child {
    let free = "127.0.0.1:0";
    let mut server = Command::new("env");
    server.arg(disposition).arg(env!("CARGO_BIN_EXE_ocelli")).arg("serve");
    server.args(["--listen", free, "--admin-listen", free, "--backend", "cpu", "--drain-delay-ms", "0"]);
    server.arg("--models").arg(models).arg("--onnx-runtime").arg(onnx_runtime);
    server.env_remove("OCELLI_CONFIG").stderr(Stdio::piped());
    server.spawn().unwrap()
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
fn neither_a_file_that_reaches_its_limit_ends_the_server_nor_what_has_others_reopen_their_logs() {
    let log = log_of_a_server_that_gets(DEFAULT, &[Signal::XFSZ, Signal::USR1, Signal::USR2, Signal::TERM]);
    assert!(log.contains("SIGTERM"), "{log}");
}

#[test]
fn a_signal_while_the_server_starts_ends_it_at_once_and_well() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        // A library that is read for as long as its writer leaves it open.
        let library = folder.path().join("libonnxruntime.so");
        mknodat(CWD, &library, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let models = folder.path().join("models");
        fs::create_dir(&models).unwrap();
        let mut server = server(DEFAULT, &models, &library);
        let mut stderr = server.stderr.take().unwrap();
        let writer = File::options().write(true).open(&library).unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut log = String::new();
            tell.send(stderr.read_to_string(&mut log).map(|_| log)).unwrap();
        });
        let log = told.recv_timeout(Duration::from_secs(60)).expect("it ends").unwrap();
        let status = server.wait().unwrap();
        assert!(status.success() && !log.contains("draining"), "{signal:?}: {status}: {log}");
        drop(writer);
    }
}
