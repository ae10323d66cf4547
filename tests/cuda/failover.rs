//! What becomes of requests when a GPU fails under them: nobody's is lost, and replies and metrics say what happened.

use crate::{
    fakes::cuda::FakeCuda,
    http::{Reply, Server, config, root, until_metrics},
};
use futures_util::future::join_all;
use ocelli::config::{Backend, Config};
use serde_json::json;

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
    let pixel = |spot: usize, i: usize| {
        let (x, y) = ((i % 7) as f64 - 3.0, (i / 7) as f64 - 3.0);
        10.0 + 100.0 * (spot + 1) as f64 * (-(x * x + y * y) / 3.4).exp()
    };
    let data: Vec<f64> = (0..spots).flat_map(|spot| (0..49).map(move |i| pixel(spot, i))).collect();
    let rois = json!({ "name": "rois", "datatype": "FP32", "shape": [spots, 7, 7], "data": data });
    let body = json!({ "inputs": [rois] }).to_string();
    let json = [("content-type", "application/json")];
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
async fn another_gpu_takes_over_where_the_manifest_wants_that() {
    let fake = FakeCuda::start("count=2");
    let server = start(&[("spots", "devices = \"0\"\nfallback = \"other-gpu\"")]).await;
    assert_eq!(by(&fit(&server, "spots", 3).await), (gpu(0), None));
    fake.tell("fault on=kernel code=700 device=0");
    assert_eq!(by(&fit(&server, "spots", 3).await), because(&gpu(1), "device_failed"));
    assert_eq!(by(&fit(&server, "spots", 3).await), because(&gpu(1), "device_away"));
    server.end().await;
}

#[tokio::test]
async fn a_model_with_a_gpu_of_its_own_goes_on_untouched_while_that_of_another_fails() {
    let fake = FakeCuda::start("count=2");
    let placed = |device: &str| format!("devices = \"{device}\"\nfallback = \"never\"");
    let server = start(&[("sick", &placed(&gpu(0))), ("well", &placed("1"))]).await;
    fake.tell("fault on=kernel code=700 device=0");
    for _ in 0..5 {
        let (sick, well) = tokio::join!(
            join_all((0..4).map(|_| fit(&server, "sick", 2))),
            join_all((0..4).map(|_| fit(&server, "well", 2)))
        );
        assert!(well.iter().all(|reply| by(reply) == (gpu(1), None)));
        for reply in sick {
            // At once, with the reason and when to come back.
            assert_eq!(reply.status, 503);
            let error = reply.json()["error"].as_str().unwrap().to_owned();
            assert!(error.contains("is away") && error.contains("700"), "{error}");
            assert!(reply.headers.contains_key("retry-after"));
        }
    }
    let untouched =
        format!("ocelli_failed_batches_total{{device=\"{}\",model=\"well\",reason=\"device\"}} 0", gpu(1));
    until_metrics(server.address, &[&untouched]).await;
    server.end().await;
}

#[tokio::test]
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

#[tokio::test]
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
