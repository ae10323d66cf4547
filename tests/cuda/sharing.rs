//! GPUs that others use too, that fall ill, and that come back: a whole server on the fakes of the driver and of NVML.

use crate::{
    fakes::{
        cuda::FakeCuda,
        nvml::{self, FakeNvml},
    },
    http::{Server, config, root},
    machine::{self, MODES, Machine, ON_GPU, Running},
};
use ocelli::{
    config::{Backend, Config},
    status::{Cause, Device, DeviceState},
};
use std::time::Duration;

const GPU: &str = "GPU-fa000000-0000-0000-0000-000000000001";

/// Both fakes, NVML last: what is dropped first is the driver, whose books are then empty.
struct Fakes {
    cuda: FakeCuda,
    nvml: FakeNvml,
}

impl Fakes {
    fn start(devices: &str) -> Fakes {
        let cuda = FakeCuda::start(devices);
        Fakes { cuda, nvml: FakeNvml::start("follow") }
    }

    /// How often the context of the first GPU was made.
    fn contexts_made(&self) -> u64 {
        self.cuda.books().devices[0].contexts_made
    }
}

/// A folder with the example's fitter, placed as this says.
fn models(placement: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let spots = folder.path().join("spots");
    std::fs::create_dir(&spots).unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::write(spots.join("model.toml"), format!("{manifest}\n[placement]\n{placement}\n")).unwrap();
    folder
}

/// No request is late, on however slow a machine.
fn sharing() -> Config {
    let late = Duration::from_secs(600);
    Config { backend: Backend::Auto, nvml_library: Some(nvml::library()), timeout_ms: late, ..config() }
}

async fn start(placement: &str, config: Config) -> Server {
    Server::start_with(models(placement), config).await
}

fn gpu(server: &Server) -> Device {
    server.devices().into_iter().find(|device| device.id == GPU).unwrap()
}

async fn until(server: &Server, state: DeviceState, cause: Cause) {
    server
        .wait_until(|server| {
            let gpu = gpu(server);
            (gpu.state, gpu.cause) == (state, cause)
        })
        .await;
}

/// The number of spots found, and the device that found them last.
async fn localize(server: &Server, model: &str) -> usize {
    let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
    let reply = server.send("POST", &format!("/predictions/{model}?format=csv"), &[], movie).await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert_eq!(reply.status, 200, "{text}");
    text.lines().filter(|line| !line.starts_with('#')).count() - 1
}

/// The device that finds spots now.
async fn device_of(server: &Server) -> String {
    let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
    let reply = server.send("POST", "/predictions/spots?format=csv", &[], movie).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    reply.headers["ocelli-device"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_that_has_the_gpu_is_waited_for_while_the_cpu_answers() {
    let fakes = Fakes::start("memory=2GiB");
    fakes.nvml.tell("process gpu=0 pid=4242 memory=1800MiB");
    let server = start("devices = \"gpu\"", sharing()).await;
    until(&server, DeviceState::Waiting, Cause::Contended).await;
    let on_cpu = localize(&server, "spots").await;
    assert_eq!(fakes.contexts_made(), 0, "no context is made beside somebody who needs the memory");
    let seen = gpu(&server);
    assert!(seen.reason.contains("other processes compute on it"), "{}", seen.reason);
    assert_eq!(seen.seen.processes, Some(vec![(4242, Some(1800 << 20))]));
    assert_eq!(seen.seen.verdict, "contended");

    fakes.nvml.tell("end gpu=0 pid=4242");
    until(&server, DeviceState::Serving, Cause::Proved).await;
    let before = fakes.cuda.books().devices[0].launches;
    assert_eq!(localize(&server, "spots").await, on_cpu);
    assert!(fakes.cuda.books().devices[0].launches > before, "the GPU has taken over");
    assert_eq!(server.end().await.jobs, 0);
    fakes.cuda.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_faster_between_the_look_and_the_context_is_waited_for() {
    let fakes = Fakes::start("");
    // The look shows a free GPU; the context does not come.
    fakes.cuda.tell("fault on=cuDevicePrimaryCtxRetain code=2 times=2");
    let server = start("devices = \"gpu\"", sharing()).await;
    assert!(localize(&server, "spots").await > 100);
    until(&server, DeviceState::Serving, Cause::Proved).await;
    assert!(localize(&server, "spots").await > 100);
    let metrics = server.get("/metrics").await.body;
    let text = String::from_utf8_lossy(&metrics).into_owned();
    let waited =
        format!("ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"memory\",state=\"waiting\"}}");
    assert!(text.lines().any(|line| line.starts_with(&waited)), "{text}");
    server.end().await;
    fakes.cuda.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_applications_are_ignored_and_fatal_ones_fence_until_the_gpu_is_proved_again() {
    let fakes = Fakes::start("");
    let server = start("devices = \"gpu\"", sharing()).await;
    until(&server, DeviceState::Serving, Cause::Proved).await;
    fakes.nvml.tell("xid gpu=0 code=13");
    server.wait_until(|server| gpu(server).seen.xids.contains_key(&13)).await;
    assert_eq!(gpu(&server).state, DeviceState::Serving);
    for (xid, contexts) in [(48, 2), (74, 3)] {
        let found = localize(&server, "spots").await;
        fakes.nvml.tell(&format!("xid gpu=0 code={xid}"));
        server.wait_until(|server| gpu(server).seen.xids.contains_key(&xid)).await;
        assert_eq!(localize(&server, "spots").await, found, "the CPU answers");
        server
            .wait_until(|server| {
                gpu(server).state == DeviceState::Serving && fakes.contexts_made() == contexts
            })
            .await;
        assert_eq!(localize(&server, "spots").await, found);
    }
    fakes.nvml.tell("xid gpu=0 code=79");
    until(&server, DeviceState::Lost, Cause::Bus).await;
    assert!(localize(&server, "spots").await > 100);
    server.wait_until(|_| fakes.cuda.books().devices[0].contexts == 0).await;
    fakes.cuda.books().assert_empty();
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_falls_off_the_bus_is_lost_and_no_request_is() {
    let fakes = Fakes::start("");
    let server = start("devices = \"all\"\n[batch]\nitems_max = 8", sharing()).await;
    let found = localize(&server, "spots").await;
    fakes.nvml.tell("lose gpu=0");
    for _ in 0..3 {
        assert_eq!(localize(&server, "spots").await, found);
    }
    until(&server, DeviceState::Lost, Cause::Bus).await;
    assert_eq!(localize(&server, "spots").await, found);
    server.end().await;
    fakes.nvml.tell("find gpu=0");
    fakes.cuda.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nvml_that_hangs_holds_up_nobody() {
    let fakes = Fakes::start("");
    let server = start("devices = \"gpu\"", sharing()).await;
    until(&server, DeviceState::Serving, Cause::Proved).await;
    fakes.nvml.tell("fault on=nvmlDeviceGetMemoryInfo_v2 hang times=always");
    let found = localize(&server, "spots").await;
    // A fault is seen all the same, and the GPU is given back.
    fakes.cuda.tell("fault on=kernel code=700 times=always");
    assert_eq!(localize(&server, "spots").await, found);
    until(&server, DeviceState::Fenced, Cause::Fault).await;
    fakes.nvml.tell("release");
    fakes.cuda.tell("clear");
    server.wait_until(|server| gpu(server).state == DeviceState::Serving && fakes.contexts_made() >= 2).await;
    assert_eq!(localize(&server, "spots").await, found);
    server.end().await;
    fakes.cuda.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hangs_in_a_call_is_answered_elsewhere_when_the_watchdog_sees_it_and_the_gpu_returns_with_the_call()
 {
    let fakes = Fakes::start("");
    // Longer than a batch on the emulator takes, however busy the machine is.
    let config = Config { gpu_stuck_ms: Duration::from_secs(5), ..sharing() };
    // No deadline: only the watchdog ends this.
    let config =
        Config { timeout_ms: Duration::from_secs(3600), timeout_ms_max: Duration::from_secs(3600), ..config };
    let server = start("devices = \"gpu\"\n[batch]\nitems_max = 64", config).await;
    until(&server, DeviceState::Serving, Cause::Proved).await;
    let found = localize(&server, "spots").await;
    // In the call that waits for a batch, and in the one that begins it.
    for call in ["kernel", "cuLaunchKernel"] {
        let contexts = fakes.contexts_made();
        fakes.cuda.tell(&format!("fault on={call} hang times=always"));
        assert_eq!(localize(&server, "spots").await, found, "the CPU answers what {call} has");
        until(&server, DeviceState::Fenced, Cause::Stuck).await;
        assert!(gpu(&server).reason.contains("has not come back"), "{}", gpu(&server).reason);
        assert_eq!(localize(&server, "spots").await, found);
        assert_eq!(fakes.contexts_made(), contexts, "not taken anew beside the call that hangs");
        fakes.cuda.tell("clear");
        server.wait_until(|_| fakes.contexts_made() > contexts).await;
        // On the GPU again: on a slow machine, the watchdog also takes it out for being slow.
        loop {
            until(&server, DeviceState::Serving, Cause::Proved).await;
            if device_of(&server).await == GPU {
                break;
            }
        }
    }
    assert_eq!(server.end().await.jobs, 0);
    fakes.cuda.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_that_want_one_gpu_take_it_one_after_the_other() {
    let fakes = Fakes::start("memory=1GiB");
    let queue = tempfile::tempdir().unwrap();
    let queued = || Config { gpu_queue_folder: Some(queue.path().to_owned()), ..sharing() };
    let (one, other) =
        tokio::join!(start("devices = \"gpu\"", queued()), start("devices = \"gpu\"", queued()));
    for server in [&one, &other] {
        assert!(localize(server, "spots").await > 100);
    }
    until(&one, DeviceState::Serving, Cause::Proved).await;
    until(&other, DeviceState::Serving, Cause::Proved).await;
    one.end().await;
    assert!(localize(&other, "spots").await > 100);
    other.end().await;
    fakes.cuda.books().assert_empty();
}

/// From here on on servers of their own, with GPUs on threads and in processes.
fn end(machine: &Machine, server: Running) {
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn a_gpu_that_hangs_while_it_is_taken_holds_up_nobody() {
    for isolation in MODES {
        let machine = Machine::new("");
        machine.tell("cuda", "still fault on=kernel hang times=always").await;
        let options = [("gpu-stuck-ms", "3000")];
        let server = machine.start(isolation, &[("spots", ON_GPU)], &options).await;
        server.until_state("fenced", "stuck").await;
        server.until_ready().await;
        let (found, device) = server.localize_on().await;
        assert_eq!((found.len() > 100, &*device), (true, "cpu"));
        machine.tell("cuda", "still clear").await;
        assert_eq!(server.until_on_gpu().await.len(), found.len());
        end(&machine, server);
    }
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
        machine::until("it is given back", async || machine.held().is_empty()).await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len(), &*device), (found, "cpu"));

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
        machine::until("it is given back", async || machine.held().is_empty()).await;
        let (rows, device) = server.localize_on().await;
        assert_eq!((rows.len() > 100, &*device), (true, GPU), "the first request waits");
        end(&machine, server);
    }
}
