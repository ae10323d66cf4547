//! A whole server with a GPU: the same answers, and what it does when the GPU fails.

use crate::{
    fakes::cuda::FakeCuda,
    http::{Server, config, root},
};
use futures_util::future::join_all;
use ocelli::config::{Backend, Config};
use std::time::Duration;

const GPU: &str = "GPU-fa000000-0000-0000-0000-000000000001";

/// A folder with the example's fitter, placed as this says.
fn models(placement: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let spots = folder.path().join("spots");
    std::fs::create_dir(&spots).unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::write(spots.join("model.toml"), format!("{manifest}\n[placement]\n{placement}\n")).unwrap();
    folder
}

async fn start(placement: &str, backend: Backend) -> Server {
    // No request is late, on however slow a machine.
    Server::start_with(
        models(placement),
        Config { backend, timeout_ms: Duration::from_secs(600), ..config() },
    )
    .await
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

/// Fails unless the rows are the same but for their last digits: where more spots are found than a batch has places for, which depends on
/// how many frames came together, the host fits them.
fn agree(rows: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(rows.len(), expected.len());
    for (row, expected) in rows.iter().zip(expected) {
        let off = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
        // As between GPU and CPU elsewhere.
        assert!(row.iter().zip(expected).take(5).all(|cells| off(cells) < 0.02), "{row:?} and {expected:?}");
    }
}

/// Operations of a kind that have ended.
fn count(fake: &FakeCuda, kind: &str) -> usize {
    fake.log().iter().filter(|operation| operation.kind == kind).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_gives_the_same_localizations_on_the_gpu_and_on_the_cpu() {
    let fake = FakeCuda::start("count=2");
    let server = start("devices = \"gpu\"", Backend::Auto).await;
    let on_gpu = localize(&server).await;
    let launches = fake.books().devices.iter().map(|device| device.launches).collect::<Vec<_>>();
    assert!(launches.iter().sum::<u64>() > 0, "{launches:?}");
    let log = fake.log();
    assert!(log.iter().any(|launch| launch.kernel == "spots_select"), "spots are found there too");
    assert_eq!(server.end().await.jobs, 0);
    fake.books().assert_empty();
    drop(fake);

    let server = start("devices = \"cpu\"", Backend::Cpu).await;
    let on_cpu = localize(&server).await;
    server.end().await;
    assert!(on_cpu.len() > 100 && on_cpu.len() == on_gpu.len(), "{} and {}", on_cpu.len(), on_gpu.len());
    for (row, (gpu, cpu)) in on_gpu.iter().zip(&on_cpu).enumerate() {
        let off = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
        // Positions, photons and background; what follows from their spread may turn with the last digit.
        let worst = gpu.iter().zip(cpu).take(5).map(off).fold(0.0, f64::max);
        assert!(worst < 0.02, "row {row}: {gpu:?} and {cpu:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_gpu_fails_in_the_middle_the_cpu_answers_and_the_gpu_comes_back() {
    let fake = FakeCuda::start("");
    // Batches of a few ROIs, and several requests at once: no one device is quick enough to take them all.
    let server = start("devices = \"all\"\n[batch]\nitems_max = 8", Backend::Auto).await;
    let expected = localize(&server).await;
    assert_eq!(fake.books().devices[0].contexts_made, 1);
    fake.tell("poison device=0 code=700");
    let back = format!("ocelli_device_state{{device=\"{GPU}\",state=\"serving\"}} 1");
    // Every request is answered, until the GPU was found out, while it is away, and when it is back.
    loop {
        for rows in join_all((0..8).map(|_| localize(&server))).await {
            assert_eq!(rows.len(), expected.len());
        }
        let metrics = server.get("/metrics").await.body;
        if fake.books().devices[0].contexts_made >= 2 && String::from_utf8_lossy(&metrics).contains(&back) {
            break;
        }
    }
    let before = fake.books().devices[0].launches;
    while fake.books().devices[0].launches == before {
        assert_eq!(localize(&server).await.len(), expected.len());
    }
    assert_eq!(server.end().await.jobs, 0);
    fake.books().assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_one_request_are_three_deep_on_a_gpu() {
    let fake = FakeCuda::start("");
    let server = start("devices = \"gpu\"\n[batch]\nitems_max = 64", Backend::Auto).await;
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
    agree(&rows, &expected);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_a_model_run_on_streams_of_their_own() {
    let fake = FakeCuda::start("");
    let placement = "devices = \"gpu\"\ninstances = 2\n[batch]\nitems_max = 16";
    let server = start(placement, Backend::Auto).await;
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
    agree(&rows, &expected);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_driver_that_works_auto_serves_on_the_cpu() {
    let _fake = FakeCuda::start("count=0");
    let server = start("devices = \"all\"", Backend::Auto).await;
    assert!(!localize(&server).await.is_empty());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_whose_memory_is_taken_is_left_out_and_says_so() {
    let fake = FakeCuda::start("count=2 memory=2GiB");
    fake.tell("foreign device=0 bytes=1900MiB");
    let server = start("devices = [\"gpu:0\", \"gpu:1\"]", Backend::Gpu).await;
    assert!(!localize(&server).await.is_empty());
    let launches = fake.books().devices.iter().map(|device| device.launches).collect::<Vec<_>>();
    assert!(launches[1] > 0, "{launches:?}");
    server.end().await;
}
