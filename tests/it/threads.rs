//! What the binary makes of a system that lets it start no thread.

use crate::support::config;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// Nobody's number: limits do not hold for root.
const NOBODY: u32 = 61_234;
/// Another's: all processes of a user count.
const NOBODY_ELSE: u32 = 61_235;

/// The binary by a script with these arguments, as a user for whom limits hold. It comes by the standard input, since nobody else may be
/// allowed into its folder.
fn command(script: &str, arguments: &[&str]) -> Command {
    command_of(NOBODY, script, arguments)
}

fn command_of(user: u32, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    command.stdin(File::open(env!("CARGO_BIN_EXE_ocelli")).unwrap());
    if geteuid().is_root() {
        command.uid(user).gid(user);
    }
    command.env_remove("OCELLI_CONFIG").env_remove("TMPDIR");
    command
}

/// A folder without models, for all users.
fn no_models() -> TempDir {
    let models = tempfile::tempdir().unwrap();
    fs::set_permissions(models.path(), fs::Permissions::from_mode(0o755)).unwrap();
    models
}

#[test]
fn commands_say_that_they_may_start_no_thread_and_what_to_do() {
    let models = no_models();
    let models = models.path().to_str().unwrap();
    let url = "http://127.0.0.1:1";
    for arguments in [
        &["serve", "--models", models, "--listen", "127.0.0.1:0", "--admin-listen", ""][..],
        &["check", "--models", models],
        &["tune", "digits", "--models", models],
        &["predict", "digits", "a.png", "--models", models],
        &["predict", "digits", "a.png", "--url", url],
        &["bench", url, "digits"],
        &["health", "--url", "http://localhost:1"],
    ] {
        // As dash has it, or any other shell.
        let script = "(ulimit -p 1) 2> /dev/null && ulimit -p 1 || ulimit -u 1; exec /proc/self/fd/0 \"$@\"";
        let ended = command(script, arguments).output().unwrap();
        let told = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {told}");
        let told: Vec<_> = told.lines().filter(|line| !line.starts_with("<jemalloc>")).collect();
        let [told] = told[..] else { panic!("{arguments:?}: {told:?}") };
        match arguments[0] {
            "health" => assert!(told.starts_with("not ready: localhost:1: no thread to ask"), "{told}"),
            _ => {
                let begin = "ocelli: the system lets the process start 0 threads, and it needs ";
                assert!(told.starts_with(begin), "{arguments:?}: {told}");
                assert!(told.contains("; raise the limit of its user (ulimit -u: 1 now"), "{told}");
            }
        }
    }
}

#[test]
fn a_server_that_may_start_no_further_thread_ends_in_order() {
    let models = no_models();
    let free = "127.0.0.1:0";
    let mut server = command(
        "exec /proc/self/fd/0 \"$@\"",
        &["serve", "--listen", free, "--admin-listen", free, "--backend", "cpu", "--drain-delay-ms", "0"],
    );
    server.args(["--onnx-runtime", "/nowhere", "--otlp-endpoint", "http://127.0.0.1:1"]);
    server.arg("--models").arg(models.path()).stderr(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("listening") {
        assert_ne!(stderr.read_line(&mut log).unwrap(), 0, "it ended: {log}");
    }
    // As the same user: even root may lack the right to limit others.
    let lowered = command("exec prlimit --nproc=1:1 --pid \"$@\"", &[&server.id().to_string()]).status();
    assert!(lowered.unwrap().success());
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    stderr.read_to_string(&mut log).unwrap();
    let status = server.wait().unwrap();
    assert!(status.success(), "{status}: {log}");
}

#[test]
fn a_model_whose_threads_are_refused_is_told_and_those_before_it_are_loaded() {
    if !geteuid().is_root() {
        eprintln!("skipped: of another user than root, all that he runs counts");
        return;
    }
    let folder = no_models();
    let (models, library) = (folder.path().join("models"), folder.path().join("libonnxruntime.so"));
    for name in ["first", "second"] {
        fs::create_dir_all(models.join(name)).unwrap();
        for file in ["labels.txt", "model.onnx", "model.toml"] {
            let from = format!("{}/examples/models/digits/{file}", env!("CARGO_MANIFEST_DIR"));
            fs::copy(from, models.join(name).join(file)).unwrap();
        }
    }
    // Where others may be allowed to read.
    fs::copy(&config().onnx_runtime, &library).unwrap();
    let (models, library) = (models.to_str().unwrap(), library.to_str().unwrap());
    // 59 for the first and some for the command are fewer, and 59 more are more. It hung.
    let script = "(ulimit -p 100) 2> /dev/null && ulimit -p 100 || ulimit -u 100; exec timeout -s KILL 300 /proc/self/fd/0 \"$@\"";
    let arguments = [
        "check",
        "--models",
        models,
        "--onnx-runtime",
        library,
        "--backend",
        "cpu",
        "--compute-threads",
        "60",
    ];
    let ended = command_of(NOBODY_ELSE, script, &arguments).output().unwrap();
    let told = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    let of = |name: &str| told.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(of("first").trim_end().ends_with("ok"), "{told}");
    let refused = "it has 59 threads of its own on the CPU, and the system lets the process start ";
    assert!(of("second").contains(refused) && told.contains(", or lower compute_threads"), "{told}");
}
