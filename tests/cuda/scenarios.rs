//! What can befall a shared GPU, by the same tests for both ways in which GPUs are kept apart from the server. In each: every
//! request is answered once and rightly, the state says what happened, and nothing is left on the GPU at the end.

use crate::{
    failover::fit_within,
    machine::{GPU, MODES, Machine, ON_GPU, Running, id, near, until},
    process::on_cpu,
};
use futures_util::future::join_all;
use std::time::{Duration, Instant};

/// Small batches, so that a movie has many.
const SMALL: &str = "[placement]\ndevices = \"gpu\"\n[batch]\nitems_max = 32\n";
/// The watchdog bites soon; on a slow machine also what is only slow.
const WATCHED: [(&str, &str); 1] = [("gpu-stuck-ms", "5000")];
/// How long a GPU has to be calm, of which a slow machine may take more between two lines of a test.
const CALM: Duration = Duration::from_secs(2);

/// Sends movies while `befall` happens, and checks all answers. Tells how long the first and the last took from when it began
/// to: how long work takes to be done elsewhere.
async fn answered(server: &Running, expected: &[Vec<f64>], befall: impl Future<Output = ()>) {
    let began = Instant::now();
    let request = async || {
        let rows = server.localize().await;
        (rows, began.elapsed())
    };
    let (answers, ()) = tokio::join!(join_all((0..4).map(|_| request())), befall);
    let times = answers.iter().map(|(_, took)| *took);
    println!("answered after {:?} to {:?}", times.clone().min().unwrap(), times.max().unwrap());
    for (rows, _) in &answers {
        near(rows, expected);
    }
}

pub(crate) async fn on_gpu(server: &Running, expected: &[Vec<f64>]) {
    let (rows, device) = server.localize_on().await;
    near(&rows, expected);
    assert_eq!(device, GPU);
}

pub(crate) async fn on_the_cpu(server: &Running, expected: &[Vec<f64>]) {
    let (rows, device) = server.localize_on().await;
    near(&rows, expected);
    assert_eq!(device, "cpu");
}

pub(crate) fn end(machine: &Machine, server: Running) {
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn a_call_that_hangs_is_answered_elsewhere_and_the_gpu_comes_back() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, SMALL, &WATCHED).await;
        // Where a batch is waited for, and where it is begun.
        for call in ["kernel", "cuLaunchKernel"] {
            machine.tell("cuda", &format!("fault on={call} hang times=always")).await;
            let reason = async {
                server.until_state("fenced", "stuck").await;
                let said = server.device(GPU).await["reason"].as_str().unwrap().to_owned();
                assert!(said.contains("a call has not come back"), "{said}");
                machine.tell("cuda", "clear").await;
            };
            answered(&server, &expected, reason).await;
            near(&server.until_on_gpu().await, &expected);
        }
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_driver_that_hangs_where_memory_is_pinned_too_holds_up_neither_requests_nor_the_end() {
    let expected = on_cpu().await;
    let machine = Machine::new("");
    let server = machine.serving("thread", SMALL, &WATCHED).await;
    for call in ["cuMemHostRegister*", "kernel"] {
        machine.tell("cuda", &format!("fault on={call} hang times=always")).await;
    }
    answered(&server, &expected, server.until_state("fenced", "stuck")).await;
    // What comes now needs more such memory than there is.
    answered(&server, &expected, async {}).await;
    server.until_said("the driver hangs where memory is pinned").await;
    on_the_cpu(&server, &expected).await;
    let tensors = fit_within(server.address, "spots", 3, "120000").await;
    assert_eq!(tensors.status, 200, "{:?}", tensors.body);
    assert_eq!(server.device(GPU).await["state"], "fenced");
    server.end();
}

#[tokio::test]
async fn xids_fence_suspect_or_do_nothing_as_they_should() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, SMALL, &[]).await;
        for (xid, state) in [(13, "serving"), (63, "suspect"), (48, "fenced"), (74, "fenced"), (64, "fenced")]
        {
            let counted = format!("ocelli_device_xids_total{{device=\"{GPU}\",xid=\"{xid}\"}} 1");
            let happens = async {
                machine.tell("nvml", &format!("xid gpu=0 code={xid}")).await;
                server.until_metric(&counted).await;
                // A minute later it is trusted again: on a slow machine, the answers take longer.
                if state == "suspect" {
                    let suspect = async || {
                        let gpu = server.device(GPU).await;
                        gpu["state"] == "suspect" && gpu["cause"] == "xid" && gpu["reason"] == "Xid 63"
                    };
                    until("it is suspect, and says why", suspect).await;
                }
            };
            answered(&server, &expected, happens).await;
            match state {
                "serving" => assert_eq!(server.device(GPU).await["state"], "serving", "{xid}"),
                "suspect" => {}
                // It may be back already.
                _ => {
                    let seen = format!(
                        "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"xid\",state=\"fenced\"}}"
                    );
                    server.until_metric(&seen).await;
                }
            }
            if xid == 64 {
                let said = server.device(GPU).await["reason"].as_str().unwrap().to_owned();
                assert!(said.contains("needs a reset"), "{said}");
                on_the_cpu(&server, &expected).await;
            } else if state == "fenced" {
                server.until_state("serving", "proved").await;
                on_gpu(&server, &expected).await;
            }
        }
        end(&machine, server);
    }
}

#[tokio::test]
async fn memory_that_fails_fences_and_rows_that_wait_for_a_reset_are_suspicious() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, SMALL, &[]).await;
        let seen = |state: &str| {
            format!("ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"ecc\",state=\"{state}\"}}")
        };
        let happens = async {
            machine.tell("nvml", "set gpu=0 ecc_uncorrected=1").await;
            server.until_metric(&seen("fenced")).await;
        };
        answered(&server, &expected, happens).await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        machine.tell("nvml", "set gpu=0 rows_pending=1").await;
        server.until_metric(&seen("suspect")).await;
        on_gpu(&server, &expected).await;
        let happens = async {
            machine.tell("nvml", "set gpu=0 rows_failed=1").await;
            server.until_state("fenced", "ecc").await;
            let said = server.device(GPU).await["reason"].as_str().unwrap().to_owned();
            assert!(said.contains("needs service"), "{said}");
        };
        answered(&server, &expected, happens).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_falls_off_the_bus_is_lost_and_given_back() {
    let expected = on_cpu().await;
    for isolation in MODES {
        for xid in [true, false] {
            let machine = Machine::new("");
            let server = machine.serving(isolation, SMALL, &WATCHED).await;
            let happens = async {
                if xid {
                    machine.tell("nvml", "xid gpu=0 code=79").await;
                } else {
                    machine.tell("cuda", "lose device=0").await;
                    machine.tell("nvml", "lose gpu=0").await;
                }
                server.until_state("lost", "bus").await;
            };
            answered(&server, &expected, happens).await;
            on_the_cpu(&server, &expected).await;
            until("nothing is held", async || machine.held().is_empty()).await;
            end(&machine, server);
        }
    }
}

#[tokio::test]
async fn memory_that_runs_out_in_mid_batch_halves_the_batch_on_the_same_gpu() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, SMALL, &[]).await;
        machine.tell("cuda", "fault on=cuMemcpyHtoDAsync* code=2 times=2").await;
        on_gpu(&server, &expected).await;
        let failed = "ocelli_failed_batches_total";
        server
            .until_metric(&format!("{failed}{{device=\"{GPU}\",model=\"spots\",reason=\"out_of_memory\"}}"))
            .await;
        server.until_metric(&format!("ocelli_batch_ceiling_items{{device=\"{GPU}\",model=\"spots\"}}")).await;
        assert_eq!(server.device(GPU).await["state"], "serving", "too little memory is no sickness");
        end(&machine, server);
    }
}

#[tokio::test]
async fn memory_that_another_grabs_between_the_look_and_the_context_is_waited_for() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        // The look shows a free GPU; the context does not come.
        machine.tell("cuda", "still fault on=cuDevicePrimaryCtxRetain code=2 times=always").await;
        let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
        let seen = format!(
            "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"memory\",state=\"waiting\"}}"
        );
        server.until_metric(&seen).await;
        server.until_ready().await;
        on_the_cpu(&server, &expected).await;
        machine.tell("cuda", "still clear").await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_others_fill_is_waited_for_and_taken_when_they_leave() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("memory=2GiB");
        machine.occupy(0, "1800MiB").await;
        let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
        server.until_state("waiting", "contended").await;
        server.until_ready().await;
        on_the_cpu(&server, &expected).await;
        assert_eq!(machine.held(), [], "no context beside somebody who needs the memory");
        let gpu = server.device(GPU).await;
        assert_eq!(gpu["verdict"], "contended", "{gpu}");
        assert!(gpu["reason"].as_str().unwrap().contains("other processes compute on it"), "{gpu}");
        let others = gpu["other_processes"].as_array().unwrap();
        assert_eq!(others.len(), 1, "{gpu}");
        assert_eq!((&others[0]["pid"], &others[0]["memory_bytes"]), (&4242.into(), &(1800_u64 << 20).into()));
        answered(&server, &expected, machine.vacate(0)).await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn use_that_swings_around_the_limit_does_not_let_a_gpu_change_hands() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("memory=16GiB context=100MiB");
        machine.tell("nvml", "process gpu=0 pid=4242 memory=100MiB").await;
        machine.tell("nvml", "set gpu=0 utilization=95").await;
        let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
        server.until_state("waiting", "contended").await;
        server.until_ready().await;
        // Never below for the two seconds without a break that it takes: looks are half a second apart.
        let mut below = Instant::now();
        for step in 0..12 {
            let percent = if step % 3 == 2 { 95 } else { 85 };
            if step % 3 == 0 {
                below = Instant::now();
            }
            machine.tell("nvml", &format!("set gpu=0 utilization={percent}")).await;
            let told = async || server.device(GPU).await["utilization_percent"] == percent;
            until("the look has been taken", told).await;
            let (held, state) = (machine.held(), server.device(GPU).await["state"].clone());
            // On a machine so slow that it was calm for long enough, it has been taken rightly.
            if below.elapsed() < CALM {
                assert_eq!((&held[..], &state), (&[][..], &"waiting".into()), "after {step} steps");
            } else if state != "waiting" {
                break;
            }
        }
        machine.tell("nvml", "set gpu=0 utilization=85").await;
        server.until_state("serving", "proved").await;
        // Once it is ours, noise takes it from nobody.
        for percent in [95, 85, 97] {
            machine.tell("nvml", &format!("set gpu=0 utilization={percent}")).await;
            let told = async || server.device(GPU).await["utilization_percent"] == percent;
            until("the look has been taken", told).await;
            on_gpu(&server, &expected).await;
        }
        end(&machine, server);
    }
}

#[tokio::test]
async fn nvml_that_hangs_holds_up_nobody_and_faults_are_seen_all_the_same() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, SMALL, &[]).await;
        machine.tell("nvml", "fault on=nvmlDeviceGetMemoryInfo_v2 hang times=always").await;
        answered(&server, &expected, async {}).await;
        let breaks = async {
            // A last look may still be young enough to take it again by.
            machine.tell("cuda", "still fault on=kernel code=700 times=always").await;
            server.until_said("the GPU is taken out").await;
        };
        answered(&server, &expected, breaks).await;
        on_the_cpu(&server, &expected).await;
        assert_eq!(server.get("/v2/health/ready").await.0, 200);
        machine.tell("cuda", "still clear").await;
        machine.tell("nvml", "clear").await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn requests_wait_for_the_gpu_where_that_is_wanted_and_the_cpu_answers_when_the_time_is_over() {
    let expected = on_cpu().await;
    for isolation in MODES {
        // It comes back in time.
        let machine = Machine::new("memory=2GiB");
        machine.occupy(0, "1800MiB").await;
        let wait = [("while-waiting", "wait")];
        let server = machine.start(isolation, &[("spots", ON_GPU)], &wait).await;
        server.until_state("waiting", "contended").await;
        machine.vacate(0).await;
        server.until_ready().await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        end(&machine, server);

        // It does not.
        let machine = Machine::new("memory=2GiB");
        machine.occupy(0, "1800MiB").await;
        let wait = [("while-waiting", "wait"), ("auto-timeout-ms", "1500")];
        let began = Instant::now();
        let server = machine.start(isolation, &[("spots", ON_GPU)], &wait).await;
        server.until_metric("ocelli_device_state{device=\"cpu\",state=\"serving\"} 1").await;
        assert!(
            began.elapsed() >= Duration::from_millis(1500),
            "the CPU waits for the GPU's time to be over"
        );
        on_the_cpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn where_nothing_else_may_answer_requests_wait_until_the_gpu_works_again() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let alone = "[placement]\ndevices = \"gpu\"\nfallback = \"never\"\n";
        let server = machine.serving(isolation, alone, &[]).await;
        machine.tell("cuda", "fault on=kernel code=700").await;
        on_gpu(&server, &expected).await;
        let seen = format!(
            "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"fault\",state=\"fenced\"}} 1"
        );
        server.until_metric(&seen).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_fails_while_nobody_uses_it_is_found_out_before_a_request_comes() {
    let machine = Machine::new("");
    let server = machine.serving(MODES[0], "", &[]).await;
    machine.tell("cuda", "fault on=kernel code=700").await;
    // No request: it takes as long as a GPU may go without a proof.
    server.until_said("the GPU is taken out").await;
    server.until_state("serving", "proved").await;
    let (_, text) = server.get("/metrics").await;
    let fenced =
        |line: &&str| line.starts_with("ocelli_device_transitions_total") && line.contains("\"fenced\"");
    assert_eq!(text.lines().filter(fenced).count(), 1, "{text}");
    end(&machine, server);
}

#[tokio::test]
async fn a_server_for_gpus_alone_ends_when_none_can_be_had_in_time() {
    for isolation in MODES {
        let machine = Machine::new("memory=2GiB");
        machine.occupy(0, "1800MiB").await;
        let options = [("backend", "gpu"), ("gpu-timeout-ms", "1000")];
        let mut server = machine.start(isolation, &[("spots", ON_GPU)], &options).await;
        assert_eq!(server.get("/v2/health/ready").await.0, 503);
        let line = server.until_said("gpu_timeout_ms").await;
        assert!(line.contains(GPU) && line.contains("other processes"), "{line}");
        assert_eq!(server.wait(), Some(69));
        machine.assert_empty();
    }
}

#[tokio::test]
async fn why_a_gpu_takes_no_networks_is_shown() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        let why = server.device(GPU).await["no_networks"].as_str().unwrap_or_default().to_owned();
        assert!(why.contains("is a build of ONNX Runtime for the CPU"), "{isolation}: {why}");
        let table = server.devices();
        assert!(table.contains(&format!("{GPU} takes no networks: {why}")), "{isolation}: {table}");
        let table = machine.devices();
        assert!(table.contains(&format!("gpu:0 takes no networks: {why}")), "{isolation}: {table}");
        end(&machine, server);
    }
}

/// By their UUIDs, NVML calls all GPUs lost then.
#[tokio::test]
async fn a_gpu_that_falls_off_the_bus_takes_no_other_along() {
    let expected = on_cpu().await;
    let machine = Machine::new("count=2");
    let server = machine.serving("thread", SMALL, &[]).await;
    let other = async || server.device(&id(1)).await["state"].as_str().unwrap().to_owned();
    until("both serve", async || other().await == "serving").await;
    machine.tell("nvml", "lose gpu=1").await;
    until("one is lost", async || other().await == "lost").await;
    // The other one is looked at as before.
    machine.tell("nvml", "set gpu=0 utilization=37").await;
    until("a look", async || server.device(GPU).await["utilization_percent"] == 37).await;
    on_gpu(&server, &expected).await;
    let (_, metrics) = server.get("/metrics").await;
    assert!(!metrics.contains(&format!("{{device=\"{GPU}\",reason=\"bus\"")), "{metrics}");
    server.end();
}
