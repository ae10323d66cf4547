//! What becomes of requests when a GPU fails under them: nobody's is lost, and replies and metrics say what happened.

use crate::{
    fakes::cuda::FakeCuda,
    http::{Reply, Server, config, root, until_metrics},
};
use futures_util::future::join_all;
use ocelli::config::{Backend, Config};
use serde_json::json;
use std::time::Instant;

/// The name of a GPU of the fake.
fn gpu(number: usize) -> String {
    format!("GPU-fa000000-0000-0000-0000-{:012x}", number + 1)
}

/// A server with fitters of these names, each placed as the second word says.
async fn start(models: &[(&str, &str)]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    for (name, placement) in models {
        let model = folder.path().join(name);
        std::fs::create_dir(&model).unwrap();
        let text = format!("{manifest}\n[placement]\n{placement}\n[batch]\nitems_max = 16\n");
        std::fs::write(model.join("model.toml"), text).unwrap();
    }
    Server::start_with(folder, Config { backend: Backend::Auto, ..config() }).await
}

/// Fits so many spots, which differ in brightness.
async fn fit(server: &Server, model: &str, spots: usize) -> Reply {
    fit_within(server, model, spots, "30000").await
}

/// The same, within so many milliseconds.
async fn fit_within(server: &Server, model: &str, spots: usize, timeout: &str) -> Reply {
    let pixel = |spot: usize, i: usize| {
        let (x, y) = ((i % 7) as f64 - 3.0, (i / 7) as f64 - 3.0);
        10.0 + 100.0 * (spot + 1) as f64 * (-(x * x + y * y) / 3.4).exp()
    };
    let data: Vec<f64> = (0..spots).flat_map(|spot| (0..49).map(move |i| pixel(spot, i))).collect();
    let rois = json!({ "name": "rois", "datatype": "FP32", "shape": [spots, 7, 7], "data": data });
    let body = json!({ "inputs": [rois] }).to_string();
    let json = [("content-type", "application/json"), ("timeout", timeout)];
    server.send("POST", &format!("/v2/models/{model}/infer"), &json, body).await
}

/// Which device answered, and the reason if it was not meant to.
fn by(reply: &Reply) -> (String, Option<String>) {
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    assert!(reply.headers.contains_key("server-timing"));
    let header = |name| reply.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    (header("ocelli-device").unwrap(), header("ocelli-fallback"))
}

fn because(device: &str, reason: &str) -> (String, Option<String>) {
    (device.to_owned(), Some(reason.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_takes_over_within_the_request_when_the_only_gpu_fails() {
    let fake = FakeCuda::start("");
    let server = start(&[("spots", "devices = \"gpu\"")]).await;
    let expected = fit(&server, "spots", 3).await;
    assert_eq!(by(&expected), (gpu(0), None));
    fake.tell("fault on=kernel code=700");
    let taken_over = fit(&server, "spots", 3).await;
    assert_eq!(by(&taken_over), because("cpu", "device_failed"));
    assert_eq!(taken_over.json()["outputs"][0]["shape"], expected.json()["outputs"][0]["shape"]);
    until_metrics(
        server.address,
        &[
            &format!(
                "ocelli_failed_batches_total{{device=\"{}\",model=\"spots\",reason=\"device\"}} 1",
                gpu(0)
            ),
            &format!(
                "ocelli_retried_jobs_total{{device=\"{}\",model=\"spots\",reason=\"device\"}} 1",
                gpu(0)
            ),
            "ocelli_fallbacks_total{device=\"cpu\",model=\"spots\",reason=\"device_failed\"} 1",
        ],
    )
    .await;
    assert_eq!(by(&fit(&server, "spots", 3).await), because("cpu", "device_away"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_of_a_stack_names_the_devices_that_fitted_it() {
    let fake = FakeCuda::start("");
    let server = start(&[("spots", "devices = \"gpu\"")]).await;
    let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
    let post = || server.send("POST", "/predictions/spots", &[], movie.clone());
    let on_gpu = post().await;
    assert_eq!(by(&on_gpu), (gpu(0), None));
    fake.tell("fault on=kernel code=700");
    let taken_over = post().await;
    assert_eq!(by(&taken_over), because("cpu", "device_failed"));
    let text = String::from_utf8(taken_over.body.to_vec()).unwrap();
    let tail: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(tail["fallbacks"][0], "device_failed", "{tail}");
    assert_eq!(text.lines().count(), String::from_utf8_lossy(&on_gpu.body).lines().count());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_gpu_takes_over_where_the_manifest_wants_that() {
    let fake = FakeCuda::start("count=2");
    let server = start(&[("spots", "devices = \"0\"\nfallback = \"other-gpu\"")]).await;
    assert_eq!(by(&fit(&server, "spots", 3).await), (gpu(0), None));
    fake.tell("fault on=kernel code=700 device=0");
    assert_eq!(by(&fit(&server, "spots", 3).await), because(&gpu(1), "device_failed"));
    assert_eq!(by(&fit(&server, "spots", 3).await), because(&gpu(1), "device_away"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_with_a_gpu_of_its_own_goes_on_untouched_while_that_of_another_fails() {
    let fake = FakeCuda::start("count=2");
    let placed = |device: &str| format!("devices = \"{device}\"\nfallback = \"never\"");
    let server = start(&[("sick", &placed(&gpu(0))), ("well", &placed("1"))]).await;
    fake.tell("fault on=kernel code=700 device=0 times=always");
    for _ in 0..5 {
        let (sick, well) = tokio::join!(
            join_all((0..4).map(|_| fit_within(&server, "sick", 2, "300"))),
            join_all((0..4).map(|_| fit(&server, "well", 2)))
        );
        assert!(well.iter().all(|reply| by(reply) == (gpu(1), None)));
        for reply in sick {
            // At once where the GPU will not be back in time, else when it was not.
            let error = reply.json()["error"].as_str().unwrap().to_owned();
            assert!(reply.status == 503 || reply.status == 504, "{} {error}", reply.status);
            assert_eq!(reply.headers.contains_key("retry-after"), reply.status == 503);
            assert!(error.contains(&gpu(0)) || reply.status == 504, "{error}");
        }
    }
    let untouched =
        format!("ocelli_failed_batches_total{{device=\"{}\",model=\"well\",reason=\"device\"}} 0", gpu(1));
    until_metrics(server.address, &[&untouched]).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_too_large_for_the_memory_is_run_in_halves_on_the_same_gpu() {
    let fake = FakeCuda::start("");
    let server = start(&[("spots", "devices = \"gpu\"\nfallback = \"never\"")]).await;
    let expected = fit(&server, "spots", 16).await;
    // Batches of 16 and of 8 do not fit; those of 4 do.
    fake.tell("fault on=cuMemcpyHtoDAsync* code=2 times=2");
    let halved = fit(&server, "spots", 16).await;
    assert_eq!(by(&halved), (gpu(0), None));
    assert_eq!(halved.json()["outputs"], expected.json()["outputs"]);
    let line =
        |metric: &str, labels: &str| format!("{metric}{{device=\"{}\",model=\"spots\"{labels}}}", gpu(0));
    until_metrics(
        server.address,
        &[
            &(line("ocelli_failed_batches_total", ",reason=\"out_of_memory\"") + " 2"),
            &(line("ocelli_batch_ceiling_items", "") + " 4"),
        ],
    )
    .await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_requests_go_to_the_faster_device() {
    let fake = FakeCuda::start("");
    let server = start(&[("spots", "devices = \"all\"")]).await;
    // The CPU is by far the faster one; if the GPU was taken for that at first, a batch shows it.
    fake.tell("fault on=kernel times=always sleep_us=300000");
    fit(&server, "spots", 1).await;
    for _ in 0..5 {
        assert_eq!(by(&fit(&server, "spots", 1).await), ("cpu".to_owned(), None));
    }
    server.end().await;
}

/// Requests one at a time, each second one with a fault on its way. By `cargo test --test cuda -- --ignored --nocapture
/// first_good_answer`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn the_time_from_a_fault_to_the_first_good_answer_elsewhere() {
    const FAULTS: usize = 1000;
    // Each fault takes a GPU out for a second or more; the last of a server is left.
    const GPUS: usize = 26;
    let (mut plain, mut faulty) = (Vec::new(), Vec::new());
    while faulty.len() < FAULTS {
        let fake = FakeCuda::start(&format!("count={GPUS} memory=4GiB"));
        let server = start(&[("spots", "devices = \"gpu\"\nfallback = \"never\"")]).await;
        for _ in 1..GPUS {
            for fault in [false, true] {
                if fault {
                    fake.tell("fault on=kernel code=700");
                }
                let began = Instant::now();
                let reply = fit(&server, "spots", 4).await;
                let took = began.elapsed();
                // A GPU that is proved again may meet the fault in the place of the request.
                match by(&reply).1.as_deref() {
                    None => plain.push(took),
                    Some(reason) => {
                        assert_eq!(reason, "device_failed");
                        faulty.push(took);
                    }
                }
            }
        }
        eprintln!("{} faults", faulty.len());
        server.end().await;
    }
    for (what, mut times) in [("without a fault", plain), ("with a fault on its way", faulty)] {
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!("{what}: {} requests, p50 {:?}, p99 {:?}, lost 0", times.len(), at(50), at(99));
    }
}
