//! The server as a process, with its GPU on threads of its own and in a process of its own: the same answers, and what becomes
//! of requests and processes when one of them ends.

use crate::machine::{GPU, MODES, Machine, ON_GPU, Running, is_alive, near, put, signal, until};
use axum::body::Body;
use futures_util::future::join_all;
use std::process::Command;

const ON_CPU: &str = "[placement]\ndevices = \"cpu\"\n";
const EVERYWHERE: &str = "[placement]\ndevices = \"all\"\n[batch]\nitems_max = 8\n";

/// What the CPU finds in the example's movie.
pub(crate) async fn on_cpu() -> Vec<Vec<f64>> {
    let machine = Machine::new("");
    let server = machine.start("thread", &[("spots", ON_CPU)], &[]).await;
    server.until_ready().await;
    let found = server.localize().await;
    server.end();
    found
}

#[tokio::test]
async fn both_ways_give_the_same_and_a_server_whose_gpu_is_apart_makes_no_context() {
    let mut found: Vec<Vec<Vec<f64>>> = Vec::new();
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        found.push(server.localize().await);
        let children = server.children();
        assert_eq!(children.len(), usize::from(isolation == "process"), "{isolation}: {children:?}");
        let id = server.id();
        server.end();
        machine.assert_empty();
        let contexts = machine.books_of(id).devices[0].contexts_made;
        assert_eq!(contexts, u64::from(isolation == "thread"), "{isolation}");
        assert!(!children.iter().any(|id| is_alive(*id)), "no process is left");
    }
    assert!(found[0].len() > 100);
    near(&found[1], &found[0]);
}

/// What is given back is whole only where a process goes: by itself that is where GPUs are given back at all.
#[tokio::test]
async fn by_itself_a_gpu_has_a_process_of_its_own_where_it_is_given_back_and_decodes_no_jpegs() {
    let given_back = ("idle-release-ms", "60000");
    let cases: [(&[_], usize); 3] = [(&[], 0), (&[given_back], 1), (&[given_back, ("gpu-jpeg", "on")], 0)];
    for (options, processes) in cases {
        let machine = Machine::new("");
        let server = machine.serving("auto", ON_GPU, options).await;
        assert_eq!(server.children().len(), processes, "{options:?}");
        server.end();
        machine.assert_empty();
    }
}

/// Nobody asked for the process: that there can be none is no reason not to serve.
#[tokio::test]
async fn where_no_memory_can_be_shared_a_gpu_that_is_given_back_has_threads_by_itself() {
    let (machine, models) = (Machine::new(""), tempfile::tempdir().unwrap());
    put(models.path(), "spots", ON_GPU);
    // Files of shared memory are as long as others may be.
    let folder = tempfile::tempdir().unwrap();
    let limited = folder.path().join("limited");
    let text = format!("#!/bin/sh\nulimit -f 8192\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_ocelli"));
    // By another process: what this one writes, others that it starts meanwhile have open as well, and then it cannot be run.
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(&limited).arg(text).status();
    assert!(written.unwrap().success());
    let server = machine.run(&limited, "auto", models, &[("idle-release-ms", "60000")]).await;
    server.until_ready().await;
    server.until_state("serving", "proved").await;
    assert!(server.children().is_empty());
    assert_eq!(server.said("memory cannot be shared with processes of GPUs (isolation_bytes)").len(), 1);
    server.end();
    machine.assert_empty();
}

/// Runs requests while the GPU ends in the way of `fault` or `end`: all of them are answered, with the same numbers.
/// The fault befalls the process that is there, and none of those that take its place: each of them would end at its own
/// fortieth kernel, and the waits between them grow from one to the next.
async fn check(isolation: &str, fault: &str, end: impl AsyncFn(&Running), told: &str) {
    let expected = on_cpu().await;
    let machine = Machine::new("");
    let server = machine.serving(isolation, EVERYWHERE, &[]).await;
    let before = server.children();
    machine.tell("cuda", fault).await;
    let requests = async {
        for _ in 0..6 {
            for rows in join_all((0..8).map(|_| server.localize())).await {
                near(&rows, &expected);
            }
        }
    };
    tokio::join!(requests, end(&server));
    let line = server.until_said(told).await;
    assert!(line.contains(GPU), "{line}");
    // Taken anew: in the place of the process, there is another.
    if isolation == "process" {
        until("another process", async || matches!(server.children()[..], [id] if before != [id])).await;
    }
    server.until_state("serving", "proved").await;
    // And it does its part again, of what is more than the CPU has time for.
    let part = async || {
        let answers = join_all((0..4).map(|_| server.localize_on())).await;
        answers.iter().for_each(|(rows, _)| near(rows, &expected));
        answers.iter().any(|(_, devices)| devices.contains(GPU))
    };
    until("the GPU answers", part).await;
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn no_request_is_lost_when_a_kernel_breaks_the_context_in_either_way() {
    for isolation in MODES {
        check(isolation, "fault on=kernel after=40 code=700", async |_| {}, "illegal").await;
    }
}

#[tokio::test]
async fn no_request_is_lost_when_the_process_of_the_gpu_is_killed() {
    let kill = async |server: &Running| {
        let before = server.children();
        signal("-KILL", before[0]);
    };
    check("process", "fault on=kernel times=always sleep_us=500", kill, "was ended by signal 9").await;
}

#[tokio::test]
async fn no_request_is_lost_when_a_library_aborts_or_reads_where_nothing_is() {
    for number in [6, 11] {
        let fault = format!("fault on=kernel after=40 signal={number}");
        check("process", &fault, async |_| {}, &format!("was ended by signal {number}")).await;
    }
}

#[tokio::test]
async fn an_idle_process_that_dies_is_seen_and_another_comes_in_its_place() {
    let machine = Machine::new("");
    let server = machine.serving("process", ON_GPU, &[]).await;
    let found = server.localize().await;
    let [first] = server.children()[..] else { panic!("one child") };
    signal("-KILL", first);
    // Nobody asks it for anything.
    server.until_said("was ended by signal 9").await;
    until("another process", async || matches!(server.children()[..], [id] if id != first)).await;
    server.until_state("serving", "proved").await;
    let (again, device) = server.localize_on().await;
    near(&again, &found);
    assert_eq!(device, GPU);
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn the_gpus_own_process_is_not_one_of_the_others() {
    for isolation in MODES {
        // More than half of the memory is ours: if it counted as another's, the GPU would be given up as contended.
        let machine = Machine::new("memory=2GiB context=1500MiB");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        let told = async || {
            let gpu = server.device(GPU).await;
            gpu["other_processes"].as_array().is_some_and(Vec::is_empty)
                && gpu["memory"]["own_bytes"].as_u64() >= Some(1500 << 20)
        };
        until("what is ours is known", told).await;
        assert_eq!(server.device(GPU).await["verdict"], "ours");
        // Somebody else's is, and ours still is not.
        machine.tell("nvml", "process gpu=0 pid=4242 memory=100MiB").await;
        let told = async || {
            let gpu = server.device(GPU).await;
            let others = gpu["other_processes"].as_array().cloned().unwrap_or_default();
            matches!(&others[..], [one] if one["pid"] == 4242) && gpu["memory"]["others_bytes"] == 100 << 20
        };
        until("the other is seen", told).await;
        assert_eq!(server.localize_on().await.1, GPU);
        server.end();
        machine.assert_empty();
    }
}

#[tokio::test]
async fn without_onnx_runtime_a_fitter_serves_and_a_network_that_is_loaded_says_why_it_is_not() {
    const NOWHERE: (&str, &str) = ("onnx-runtime", "/nowhere/libonnxruntime.so");
    for isolation in MODES {
        let machine = Machine::new("");
        let options =
            [NOWHERE, ("backend", "gpu"), ("repository-mode", "explicit"), ("startup-models", "spots")];
        let server = machine.serving(isolation, ON_GPU, &options).await;
        assert_eq!(server.localize_on().await.1, GPU);
        assert_eq!(server.said("no ONNX model can be loaded").len(), 1);
        server.add_digits();
        let refused = server.send("POST", "/v2/repository/models/digits/load", &[], Body::empty()).await;
        let why = String::from_utf8_lossy(&refused.body);
        assert!(refused.status >= 400 && why.contains("cannot load ONNX Runtime from /nowhere"), "{why}");
        assert_eq!(server.localize_on().await.1, GPU);
        server.end();
        machine.assert_empty();
    }
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_no_process_behind() {
    let machine = Machine::new("");
    let server = machine.serving("process", ON_GPU, &[]).await;
    let [child] = server.children()[..] else { panic!("one child") };
    signal("-KILL", server.id());
    until("the child has ended", async || !is_alive(child)).await;
    assert_eq!(machine.held(), []);
}
