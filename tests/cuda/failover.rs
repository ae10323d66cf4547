//! What becomes of requests when a GPU fails under them: nobody's is lost, and replies and metrics say what happened; with GPUs
//! on threads of the server and in processes of their own.

use crate::{
    fakes::cuda::FakeCuda,
    http::{self, Reply, Server, config, root, until_metrics},
    machine::{MODES, Machine, PATIENCE, Running, id, until},
};
use axum::body::Body;
use futures_util::future::join_all;
use ocelli::config::{Backend, Config};
use serde_json::json;
use std::{net::SocketAddr, time::Instant};

/// Kernels of the first GPU fail from now on, in whatever process has it: it does not come back while somebody looks.
async fn breaks(machine: &Machine) {
    machine.tell(&format!("cuda@{}", id(0)), "still fault on=kernel code=700 device=0 times=always").await;
}

/// A server with fitters of these names, each placed as the second word says, when these GPUs serve.
async fn start(machine: &Machine, isolation: &str, models: &[(&str, &str)], gpus: usize) -> Running {
    let tails: Vec<String> = models
        .iter()
        .map(|(_, placed)| format!("[placement]\n{placed}\n[batch]\nitems_max = 16\n"))
        .collect();
    let models: Vec<(&str, &str)> =
        models.iter().zip(&tails).map(|((name, _), tail)| (*name, tail.as_str())).collect();
    let server = machine.start(isolation, &models, &[]).await;
    server.until_ready().await;
    for gpu in 0..gpus {
        let serves = async || server.device(&id(gpu)).await["state"] == "serving";
        until(&format!("GPU {gpu} serves"), serves).await;
    }
    server
}

/// Fits so many spots, which differ in brightness.
async fn fit(address: SocketAddr, model: &str, spots: usize) -> Reply {
    fit_within(address, model, spots, &PATIENCE.as_millis().to_string()).await
}

/// The same, within so many milliseconds.
pub(crate) async fn fit_within(address: SocketAddr, model: &str, spots: usize, timeout: &str) -> Reply {
    let pixel = |spot: usize, i: usize| {
        let (x, y) = ((i % 7) as f64 - 3.0, (i / 7) as f64 - 3.0);
        10.0 + 100.0 * (spot + 1) as f64 * (-(x * x + y * y) / 3.4).exp()
    };
    let data: Vec<f64> = (0..spots).flat_map(|spot| (0..49).map(move |i| pixel(spot, i))).collect();
    let rois = json!({ "name": "rois", "datatype": "FP32", "shape": [spots, 7, 7], "data": data });
    let body = json!({ "inputs": [rois] }).to_string();
    let json = [("content-type", "application/json"), ("timeout", timeout)];
    http::send(address, "POST", &format!("/v2/models/{model}/infer"), &json, Body::from(body)).await
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

/// Ends it, and checks that it has left nothing on a GPU.
fn end(machine: &Machine, server: Running) {
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn the_cpu_takes_over_within_the_request_when_the_only_gpu_fails() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = start(&machine, isolation, &[("spots", "devices = \"gpu\"")], 1).await;
        let expected = fit(server.address, "spots", 3).await;
        assert_eq!(by(&expected), (id(0), None));
        breaks(&machine).await;
        let taken_over = fit(server.address, "spots", 3).await;
        assert_eq!(by(&taken_over), because("cpu", "device_failed"));
        assert_eq!(taken_over.json()["outputs"][0]["shape"], expected.json()["outputs"][0]["shape"]);
        let of_gpu = format!("{{device=\"{}\",model=\"spots\",reason=\"device\"}} 1", id(0));
        until_metrics(
            server.address,
            &[
                &format!("ocelli_failed_batches_total{of_gpu}"),
                &format!("ocelli_retried_jobs_total{of_gpu}"),
                "ocelli_fallbacks_total{device=\"cpu\",model=\"spots\",reason=\"device_failed\"} 1",
            ],
        )
        .await;
        assert_eq!(by(&fit(server.address, "spots", 3).await), because("cpu", "device_away"));
        end(&machine, server);
    }
}

#[tokio::test]
async fn the_reply_of_a_stack_names_the_devices_that_fitted_it() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = start(&machine, isolation, &[("spots", "devices = \"gpu\"")], 1).await;
        let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
        let post = || server.send("POST", "/predictions/spots", &[], movie.clone());
        let on_gpu = post().await;
        assert_eq!(by(&on_gpu), (id(0), None));
        breaks(&machine).await;
        let taken_over = post().await;
        assert_eq!(by(&taken_over), because("cpu", "device_failed"));
        let text = String::from_utf8(taken_over.body.to_vec()).unwrap();
        let tail: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(tail["fallbacks"][0], "device_failed", "{tail}");
        assert_eq!(text.lines().count(), String::from_utf8_lossy(&on_gpu.body).lines().count());
        end(&machine, server);
    }
}

#[tokio::test]
async fn another_gpu_takes_over_where_the_manifest_wants_that() {
    for isolation in MODES {
        let machine = Machine::new("count=2");
        let placed = "devices = \"0\"\nfallback = \"other-gpu\"";
        let server = start(&machine, isolation, &[("spots", placed)], 2).await;
        assert_eq!(by(&fit(server.address, "spots", 3).await), (id(0), None));
        breaks(&machine).await;
        assert_eq!(by(&fit(server.address, "spots", 3).await), because(&id(1), "device_failed"));
        assert_eq!(by(&fit(server.address, "spots", 3).await), because(&id(1), "device_away"));
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_with_a_gpu_of_its_own_goes_on_untouched_while_that_of_another_fails() {
    for isolation in MODES {
        let machine = Machine::new("count=2");
        let placed = |device: &str| format!("devices = \"{device}\"\nfallback = \"never\"");
        let models = [("sick", &*placed(&id(0))), ("well", &*placed("1"))];
        let server = start(&machine, isolation, &models, 2).await;
        breaks(&machine).await;
        for _ in 0..5 {
            let (sick, well) = tokio::join!(
                join_all((0..4).map(|_| fit_within(server.address, "sick", 2, "300"))),
                join_all((0..4).map(|_| fit(server.address, "well", 2)))
            );
            assert!(well.iter().all(|reply| by(reply) == (id(1), None)));
            for reply in sick {
                // At once where the GPU will not be back in time, else when it was not.
                let error = reply.json()["error"].as_str().unwrap().to_owned();
                assert!(reply.status == 503 || reply.status == 504, "{} {error}", reply.status);
                assert_eq!(reply.headers.contains_key("retry-after"), reply.status == 503);
                assert!(error.contains(&id(0)) || reply.status == 504, "{error}");
            }
        }
        let untouched =
            format!("ocelli_failed_batches_total{{device=\"{}\",model=\"well\",reason=\"device\"}} 0", id(1));
        until_metrics(server.address, &[&untouched]).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_for_the_memory_is_run_in_halves_on_the_same_gpu() {
    for isolation in MODES {
        let machine = Machine::new("");
        let placed = "devices = \"gpu\"\nfallback = \"never\"";
        let server = start(&machine, isolation, &[("spots", placed)], 1).await;
        let expected = fit(server.address, "spots", 16).await;
        // Batches of 16 and of 8 do not fit; those of 4 do.
        machine.tell("cuda", "fault on=cuMemcpyHtoDAsync* code=2 times=2").await;
        let halved = fit(server.address, "spots", 16).await;
        assert_eq!(by(&halved), (id(0), None));
        assert_eq!(halved.json()["outputs"], expected.json()["outputs"]);
        let line =
            |metric: &str, labels: &str| format!("{metric}{{device=\"{}\",model=\"spots\"{labels}}}", id(0));
        until_metrics(
            server.address,
            &[
                &(line("ocelli_failed_batches_total", ",reason=\"out_of_memory\"") + " 2"),
                &(line("ocelli_batch_ceiling_items", "") + " 4"),
            ],
        )
        .await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn single_requests_go_to_the_faster_device() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = start(&machine, isolation, &[("spots", "devices = \"all\"")], 1).await;
        // The CPU is by far the faster one, on however slow a machine, as soon as the GPU has shown how long a spot takes there now:
        // if its canary was the quicker one, by as many batches as its best is taken of.
        machine.tell("cuda", "fault on=kernel times=always sleep_us=1000000").await;
        let five = async || {
            let mut replies = Vec::new();
            for _ in 0..5 {
                replies.push(by(&fit(server.address, "spots", 1).await));
            }
            replies
        };
        let at_first = five().await;
        let slow = at_first.iter().filter(|(device, _)| device.contains(&id(0))).count();
        assert!(slow <= 4, "{at_first:?}");
        assert_eq!(five().await, vec![("cpu".to_owned(), None); 5], "after {at_first:?}");
        machine.tell("cuda", "clear").await;
        end(&machine, server);
    }
}

/// A server in this process.
async fn start_here(placement: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::create_dir(folder.path().join("spots")).unwrap();
    let text = format!("{manifest}\n[placement]\n{placement}\n[batch]\nitems_max = 16\n");
    std::fs::write(folder.path().join("spots/model.toml"), text).unwrap();
    Server::start_with(folder, Config { backend: Backend::Auto, ..config() }).await
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
        let server = start_here("devices = \"gpu\"\nfallback = \"never\"").await;
        for _ in 1..GPUS {
            for fault in [false, true] {
                if fault {
                    fake.tell("fault on=kernel code=700");
                }
                let began = Instant::now();
                let reply = fit(server.address, "spots", 4).await;
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

/// In both ways, by `cargo test --test cuda -- --ignored --nocapture first_answer_of_the_cpu`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn the_time_from_a_fault_to_the_first_answer_of_the_cpu_on_threads() {
    first_answer_of_the_cpu("thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn the_time_from_a_fault_to_the_first_answer_of_the_cpu_in_processes() {
    first_answer_of_the_cpu("process").await;
}

/// One GPU of several after the other breaks under a request for its own model, and the CPU answers it.
async fn first_answer_of_the_cpu(isolation: &str) {
    const FAULTS: usize = 1000;
    const GPUS: usize = 4;
    let machine = Machine::new(&format!("count={GPUS} memory=4GiB"));
    let names: Vec<String> = (0..GPUS).map(|gpu| format!("spots{gpu}")).collect();
    let placed: Vec<String> = (0..GPUS).map(|gpu| format!("devices = \"{gpu}\"")).collect();
    let models: Vec<(&str, &str)> =
        names.iter().zip(&placed).map(|(name, placed)| (name.as_str(), placed.as_str())).collect();
    let server = start(&machine, isolation, &models, GPUS).await;
    let (mut plain, mut faulty) = (Vec::new(), Vec::new());
    for round in 0..FAULTS / GPUS {
        for (gpu, name) in names.iter().enumerate() {
            let on_gpu = async || {
                let began = Instant::now();
                let reply = fit(server.address, name, 4).await;
                (began.elapsed(), by(&reply))
            };
            let on = || if isolation == "thread" { gpu } else { 0 };
            // It serves again, as its next answer shows: after a drain that forgets its faults.
            let (took, _) = loop {
                let (took, by) = on_gpu().await;
                if by == (id(gpu), None) {
                    break (took, by);
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            };
            plain.push(took);
            machine
                .tell(&format!("cuda@{}", id(gpu)), &format!("fault on=kernel code=700 device={}", on()))
                .await;
            let (took, by) = on_gpu().await;
            assert_eq!(by, because("cpu", "device_failed"), "round {round}, GPU {gpu}");
            faulty.push(took);
        }
        for what in ["drain", "resume"] {
            for gpu in 0..GPUS {
                let path = format!("/v2/devices/{}/{what}", id(gpu));
                assert_eq!(server.send("POST", &path, &[], "").await.status, 200);
            }
            for gpu in 0..GPUS {
                // The keeper has heard of it.
                let heard = async || (server.device(&id(gpu)).await["cause"] == "drain") == (what == "drain");
                until(what, heard).await;
            }
        }
    }
    for (what, mut times) in [("without a fault", plain), ("with a fault on its way", faulty)] {
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!("{isolation}, {what}: {} requests, p50 {:?}, p99 {:?}, lost 0", times.len(), at(50), at(99));
    }
    end(&machine, server);
}
