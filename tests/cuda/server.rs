//! A whole server with a GPU: the same answers as by the CPU, and how much of it a GPU is given at once.
//!
//! How many batches are on their way is in the log of a fake in this process, and nowhere outside of it: those tests are on GPUs
//! on threads of this process. That a GPU in a process of its own is given as many is in [`isolated`](crate::isolated), whose engine
//! is what the same worker has there.

use crate::{
    fakes::cuda::FakeCuda,
    http::{Server, config, root},
    machine::{MODES, Machine, ON_GPU, PATIENCE, id, near, until},
    process::on_cpu,
    scenarios::end,
};
use ocelli::config::{Backend, Config};
use std::time::{Duration, Instant};

/// A folder with the example's fitter, placed as this says.
fn models(placement: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let spots = folder.path().join("spots");
    std::fs::create_dir(&spots).unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::write(spots.join("model.toml"), format!("{manifest}\n[placement]\n{placement}\n")).unwrap();
    folder
}

/// A server whose GPU has the fitter. No request is late there, and no call counts as stuck, on however slow a machine.
async fn start(fake: &FakeCuda, placement: &str) -> Server {
    let hour = Duration::from_secs(3600);
    let config = Config { backend: Backend::Auto, timeout_ms: hour, timeout_ms_max: hour, ..config() };
    let config = Config { gpu_stuck_ms: Duration::ZERO, ..config };
    let server = Server::start_with(models(placement), config).await;
    // Who looks for the spots of a request is decided when it begins: until the GPU has the fitter, that is the host, whose sums
    // are others in their last digit.
    let patience = Instant::now() + PATIENCE;
    while !fake.log().iter().any(|launch| launch.kernel == "spots_select") {
        assert!(Instant::now() < patience, "no spots are found there within {PATIENCE:?}");
        assert!(!localize(&server).await.is_empty());
    }
    server
}

/// What is found in the example's movie, as CSV.
async fn localize(server: &Server) -> Vec<Vec<f64>> {
    let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
    let reply = server.send("POST", "/predictions/spots?format=csv", &[], movie).await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert_eq!(reply.status, 200, "{text}");
    let numbers = |line: &str| line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
    text.lines().filter(|line| !line.starts_with('#')).skip(1).map(numbers).collect()
}

/// Operations of a kind that have ended.
fn count(fake: &FakeCuda, kind: &str) -> usize {
    fake.log().iter().filter(|operation| operation.kind == kind).count()
}

#[tokio::test]
async fn a_stack_gives_the_same_localizations_on_the_gpu_and_on_the_cpu_and_spots_are_found_there_too() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("count=2");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        until("both serve", async || server.device(&id(1)).await["state"] == "serving").await;
        let (rows, devices) = server.localize_on().await;
        assert!(devices.contains("GPU-") && !devices.contains("cpu"), "{devices}");
        assert!(rows.len() > 100);
        near(&rows, &expected);
        // Nothing but the search for spots has this kernel: it is run there if its fault is met. One GPU meets it.
        let other = format!("/v2/devices/{}/drain", id(1));
        assert_eq!(server.send("POST", &other, &[], "").await.status, 200);
        until("it is drained", async || server.device(&id(1)).await["state"] == "fenced").await;
        machine.tell("cuda", "fault on=kernel:spots_select code=700").await;
        near(&server.localize().await, &expected);
        server.until_said("the GPU is taken out").await;
        end(&machine, server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_one_request_are_three_deep_on_a_gpu() {
    let fake = FakeCuda::start("");
    let server = start(&fake, "devices = \"gpu\"\n[batch]\nitems_max = 64").await;
    let expected = localize(&server).await;
    let before = count(&fake, "copy_in");
    fake.tell("fault on=kernel hang");
    let three_deep = async {
        // Nothing is fitted meanwhile, so this many can only be on their way at once.
        while count(&fake, "copy_in") < before + 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(count(&fake, "copy_in"), before + 3);
        fake.tell("release");
    };
    let (rows, ()) = tokio::join!(localize(&server), three_deep);
    assert_eq!(rows, expected);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_a_model_run_on_streams_of_their_own() {
    let fake = FakeCuda::start("");
    let placement = "devices = \"gpu\"\ninstances = 2\n[batch]\nitems_max = 16";
    let server = start(&fake, placement).await;
    let expected = localize(&server).await;
    let before = count(&fake, "copy_in");
    fake.tell("fault on=kernel times=2 hang");
    let both = async {
        while count(&fake, "copy_in") < before + 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fake.tell("release");
    };
    let (rows, ()) = tokio::join!(localize(&server), both);
    assert_eq!(rows, expected);
    server.end().await;
}
