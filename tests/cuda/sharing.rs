//! GPUs that others use too, that hang, and that come back: a whole server on the fakes of the driver and of NVML, with its GPU on
//! threads of its own and in a process of its own.

use crate::{
    fakes::cuda::FakeCuda,
    http::{Server, config, root},
    machine::{BLIND, GPU, MODES, Machine, ON_GPU, Running, id, until},
    scenarios::end,
};
use ocelli::{
    config::{Backend, Config},
    status::{Cause, DeviceState},
};
use std::time::Duration;

/// What is looked at here is how often the context was made while a call hangs, and that is in the books of a fake in this
/// process. A process of its own is ended with the call that hangs in it, and has no context after that: that it is
/// so, and all else of a call that hangs, is in [`scenarios`](crate::scenarios) for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_of_the_server_itself_is_not_taken_anew_beside_a_call_that_hangs() {
    let fake = FakeCuda::start("");
    let contexts_made = || fake.books().devices[0].contexts_made;
    let models = tempfile::tempdir().unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::create_dir(models.path().join("spots")).unwrap();
    std::fs::write(models.path().join("spots/model.toml"), format!("{manifest}\n{ON_GPU}")).unwrap();
    // Longer than a batch on the emulator takes, and no deadline: only the watchdog ends this.
    let (hangs, hour) = (Duration::from_secs(5), Duration::from_secs(3600));
    let config = Config { gpu_stuck_ms: hangs, timeout_ms: hour, timeout_ms_max: hour, ..config() };
    let server = Server::start_with(models, Config { backend: Backend::Auto, ..config }).await;
    let gpu = |server: &Server| server.devices().into_iter().find(|device| device.id == GPU).unwrap();
    let until = async |state: DeviceState, cause: Cause| {
        server.wait_until(|server| (gpu(server).state, gpu(server).cause) == (state, cause)).await;
    };
    let localize = async || {
        let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
        let reply = server.send("POST", "/predictions/spots?format=csv", &[], movie).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        // Rows, and lines that are none.
        reply.body.iter().filter(|byte| **byte == b'\n').count()
    };
    let found = localize().await;
    assert!(found > 100);
    // In the call that waits for a batch, and in the one that begins it.
    for call in ["kernel", "cuLaunchKernel"] {
        until(DeviceState::Serving, Cause::Proved).await;
        let contexts = contexts_made();
        fake.tell(&format!("fault on={call} hang times=always"));
        // The GPU has it or, where the watchdog has just taken it for stuck on a slow machine, the CPU.
        assert_eq!(localize().await, found, "the CPU answers what {call} has");
        until(DeviceState::Fenced, Cause::Stuck).await;
        assert!(gpu(&server).reason.contains("has not come back"), "{}", gpu(&server).reason);
        assert_eq!(localize().await, found);
        assert_eq!(contexts_made(), contexts, "not taken anew beside the call that hangs");
        fake.tell("clear");
        server.wait_until(|_| contexts_made() > contexts).await;
    }
    assert_eq!(server.end().await.jobs, 0);
    fake.books().assert_empty();
}

#[tokio::test]
async fn two_servers_that_want_one_gpu_take_it_one_after_the_other() {
    for isolation in MODES {
        // There is room for both.
        let machine = Machine::new("");
        let spots = [("spots", ON_GPU)];
        let (one, other) =
            tokio::join!(machine.start(isolation, &spots, &[]), machine.start(isolation, &spots, &[]));
        for server in [&one, &other] {
            server.until_ready().await;
            assert!(server.localize().await.len() > 100);
        }
        for server in [&one, &other] {
            server.until_state("serving", "proved").await;
        }
        assert_eq!(machine.held().len(), 2, "each has its own: {:?}", machine.held());
        one.end();
        assert!(other.localize().await.len() > 100);
        assert_eq!(other.localize_on().await.1, GPU);
        end(&machine, other);
    }
}

#[tokio::test]
async fn without_a_driver_that_works_auto_serves_on_the_cpu() {
    for isolation in MODES {
        let machine = Machine::new("count=0");
        let server = machine.start(isolation, &[("spots", "[placement]\ndevices = \"all\"\n")], &[]).await;
        server.until_ready().await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len() > 100, &*device), (true, "cpu"));
        assert!(server.children().is_empty(), "no GPU, no process for one");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_whose_memory_is_taken_is_left_out_and_says_so() {
    for isolation in MODES {
        let machine = Machine::new("count=2 memory=2GiB");
        machine.tell("cuda", "foreign device=0 bytes=1900MiB").await;
        let both = "[placement]\ndevices = [\"gpu:0\", \"gpu:1\"]\n";
        let server = machine.start(isolation, &[("spots", both)], &[("backend", "gpu"), BLIND]).await;
        server.until_ready().await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len() > 100, &*device), (true, &*id(1)));
        // Of the model as long as the GPU is ours, and of the GPU when it has been given back.
        let says = async || {
            let told = server.device(&id(0)).await;
            let model = told["refused_models"][0]["reason"].as_str().unwrap_or_default();
            let gpu = told["reason"].as_str().unwrap_or_default();
            [model, gpu].iter().any(|why| why.contains("of 2147483648") && why.contains("free"))
        };
        until("the arithmetic is told", says).await;
        end(&machine, server);
    }
}

/// The end of a test in which the GPU hangs.
async fn the_cpu_serves_until_it_hangs_no_more(machine: &Machine, server: Running) {
    server.until_ready().await;
    let (found, device) = server.localize_on().await;
    assert_eq!((found.len() > 100, &*device), (true, "cpu"));
    machine.tell("cuda", "still clear").await;
    assert_eq!(server.until_on_gpu().await.len(), found.len());
    end(machine, server);
}

#[tokio::test]
async fn a_gpu_that_hangs_while_it_is_taken_holds_up_nobody() {
    for isolation in MODES {
        let machine = Machine::new("");
        machine.tell("cuda", "still fault on=kernel hang times=always").await;
        let options = [("gpu-stuck-ms", "8000")];
        let server = machine.start(isolation, &[("spots", ON_GPU)], &options).await;
        server.until_state("fenced", "stuck").await;
        the_cpu_serves_until_it_hangs_no_more(&machine, server).await;
    }
}

#[tokio::test]
async fn a_process_that_hangs_while_it_takes_its_gpu_is_ended_and_the_gpu_is_tried_again() {
    let machine = Machine::new("");
    machine.tell("cuda", "still fault on=cuDevicePrimaryCtxRetain hang times=always").await;
    let server = machine.start("process", &[("spots", ON_GPU)], &[("gpu-stuck-ms", "8000")]).await;
    server.until_state("fenced", "stuck").await;
    until("its process is ended", async || server.children().is_empty()).await;
    the_cpu_serves_until_it_hangs_no_more(&machine, server).await;
}

#[tokio::test]
async fn a_drained_gpu_is_given_back_and_has_all_models_when_it_is_resumed() {
    for isolation in MODES {
        let machine = Machine::new("");
        let explicit = [("repository-mode", "explicit")];
        let server = machine.serving(isolation, ON_GPU, &explicit).await;
        let found = server.localize().await.len();

        let reply = server.send("POST", &format!("/v2/devices/{GPU}/drain"), &[], "").await;
        assert_eq!((reply.status, &reply.json()["drained"]), (200, &serde_json::json!(true)));
        server.until_state("fenced", "drain").await;
        until("it is given back", async || machine.held().is_empty()).await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len(), &*device), (found, "cpu"));
        let models = async || server.device(GPU).await["models"].as_array().unwrap().clone();
        until("no model is told to be there", async || models().await.is_empty()).await;

        // One comes and one goes while the GPU is away.
        server.add("more", ON_GPU);
        for path in [
            "repository/models/more/load",
            "repository/models/spots/unload",
            &format!("devices/{GPU}/resume"),
        ] {
            assert_eq!(server.send("POST", &format!("/v2/{path}"), &[], "").await.status, 200, "{path}");
        }
        server.until_state("serving", "proved").await;
        let (rows, reply) = server.localize_by("more", &[]).await;
        assert_eq!((rows.len(), &reply.headers["ocelli-device"]), (found, &GPU.parse().unwrap()));
        until("what is there is told", async || !models().await.is_empty()).await;
        let [more] = &models().await[..] else { panic!("one model") };
        assert_eq!(
            (&more["model"], &more["version"], &more["instances"]),
            (&"more".into(), &"1".into(), &1.into())
        );
        assert!(
            more["instances_max"].as_u64() > Some(1) && more["frames_bytes"].as_u64() > Some(1 << 20),
            "{more}"
        );
        let bytes: Vec<_> =
            more["batches"].as_array().unwrap().iter().map(|batch| batch["bytes"].as_u64()).collect();
        assert!(bytes.is_sorted() && bytes.last() > bytes.first(), "{more}");
        assert!(server.devices().lines().any(|line| line.starts_with("more") && line.contains(GPU)));

        assert_eq!(server.send("POST", "/v2/devices/GPU-7/drain", &[], "").await.status, 404);
        assert_eq!(server.device(GPU).await["state"], "serving");
        end(&machine, server);
    }
}

#[tokio::test]
async fn an_idle_gpu_is_given_back_and_taken_again_on_demand() {
    for isolation in MODES {
        let machine = Machine::new("");
        let alone = "[placement]\ndevices = \"gpu\"\nfallback = \"never\"\n";
        let idle = [("idle-release-ms", "300")];
        let server = machine.start(isolation, &[("spots", alone)], &idle).await;
        server.until_state("waiting", "idle").await;
        until("it is given back", async || machine.held().is_empty()).await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len() > 100, &*device), (true, GPU), "the first request waits");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_server_for_gpus_alone_goes_on_where_one_is_away_and_another_is_only_drained_or_idle() {
    let machine = Machine::new("count=2 memory=2GiB");
    machine.occupy(0, "1900MiB").await;
    let limit = Duration::from_secs(4);
    let options = [("backend", "gpu"), ("gpu-timeout-ms", "4000"), ("idle-release-ms", "500")];
    let alone = "[placement]\ndevices = \"gpu\"\nfallback = \"never\"\n";
    let server = machine.start("thread", &[("spots", alone)], &options).await;
    let other = id(1);
    // The first one's wait is over all the time, in each of its turns.
    let waits = async || server.device(GPU).await["waited_s"].as_f64().unwrap();
    let on = async |state: &str, cause: &str| {
        let stands = async || {
            let gpu = server.device(&other).await;
            gpu["state"] == state && gpu["cause"] == cause
        };
        until(&format!("{state}, {cause}"), stands).await;
        let before = waits().await.max(limit.as_secs_f64());
        until("the first has had turns", async || waits().await > before + 0.5).await;
    };
    on("waiting", "idle").await;
    assert_eq!(server.localize_on().await.1, other, "the first request has it taken again");
    assert_eq!(server.send("POST", &format!("/v2/devices/{other}/drain"), &[], "").await.status, 200);
    on("fenced", "drain").await;
    server.end();
}

/// How often GPUs were taken for broken.
async fn fenced(server: &Running) -> usize {
    let (_, text) = server.get("/metrics").await;
    let of = |line: &&str| line.starts_with("ocelli_device_transitions_total") && line.contains("\"fenced\"");
    text.lines().filter(of).count()
}

#[tokio::test]
async fn a_gpu_whose_memory_others_have_when_it_is_to_show_that_it_works_is_waited_for_and_not_taken_for_broken()
 {
    for isolation in MODES {
        let machine = Machine::new("");
        machine.tell("cuda", "still fault on=cuMemAlloc* times=always code=2").await;
        let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
        server.until_state("waiting", "memory").await;
        machine.tell("cuda", "still clear").await;
        server.until_state("serving", "proved").await;
        assert_eq!(fenced(&server).await, 0);
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_is_in_doubt_while_others_have_its_memory_serves_on_and_is_asked_again() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        let found = server.localize().await.len();
        machine.tell("cuda", "fault on=cuMemAlloc* times=always code=2").await;
        machine.tell("nvml", "xid gpu=0 code=63").await;
        server.until_said("no memory is left to see whether the GPU works").await;
        let kernels = || machine.log().iter().filter(|operation| operation.kind == "kernel").count();
        let before = kernels();
        machine.tell("cuda", "clear").await;
        // Nobody else has anything computed.
        until("it is asked again", async || kernels() > before).await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len(), &*device), (found, GPU));
        assert_eq!(fenced(&server).await, 0);
        end(&machine, server);
    }
}
