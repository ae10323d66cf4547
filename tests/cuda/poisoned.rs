//! A GPU that the driver does not give to this process again after a fault, as NVIDIA's does with an illegal address: what people,
//! probes and requests are told, and that it serves again as soon as the driver does give it.

use crate::{
    http::send,
    machine::{GPU, Machine, ON_GPU, Running, near, until},
    process::on_cpu,
    scenarios::{end, on_gpu, on_the_cpu},
};
use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use std::net::SocketAddr;

/// The next kernel fails, and whoever takes a GPU afterwards meets its error.
async fn poison(machine: &Machine) {
    machine.tell("cuda", "still fault on=cuDevicePrimaryCtxRetain code=700 times=always").await;
    machine.tell("cuda", "fault on=kernel code=700").await;
}

async fn has_been_tried(server: &Running, times: u64) {
    let tries =
        format!("ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"poisoned\",state=\"fenced\"}} ");
    let count = |text: &str| text.lines().find_map(|line| line.strip_prefix(&tries)?.parse::<u64>().ok());
    until("it is tried", async || count(&server.get("/metrics").await.1) >= Some(times)).await;
}

/// A server whose GPU serves, and which can be asked in all ways.
async fn serving(machine: &Machine, isolation: &str, backend: &str) -> Running {
    let ways = [("backend", backend), ("admin-listen", "127.0.0.1:0"), ("grpc-listen", "127.0.0.1:0")];
    machine.serving(isolation, ON_GPU, &ways).await
}

/// Whether it is live, by all that answer that, and what they say.
async fn live(server: &Running) -> (bool, String) {
    let listening: Value = serde_json::from_str(&server.until_said("\"listening\"").await).unwrap();
    let address = |of: &str| listening["fields"][of].as_str().unwrap().parse::<SocketAddr>().unwrap();
    let asked = async |address| {
        let reply = send(address, "GET", "/v2/health/live", &[], Body::empty()).await;
        let told = reply.json();
        assert_eq!(told["live"], reply.status == 200, "{told}");
        (reply.status, told["error"].as_str().unwrap_or_default().to_owned())
    };
    let (status, why) = asked(server.address).await;
    assert_eq!(asked(address("admin")).await, (status, why.clone()));
    let live = status == 200;
    assert!(live || status == 503, "{status}");
    let home = server.send("GET", "/", &[], Body::empty()).await;
    assert_eq!((home.status, home.json()["status"] == "alive"), (status, live), "{home:?}");
    assert_eq!(live_by_grpc(address("grpc")).await, live);
    (live, why)
}

/// The same of gRPC: a message is a byte, its length in four, and its fields, of which only those are there that are not zero.
async fn live_by_grpc(address: SocketAddr) -> bool {
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let url = format!("http://{address}/inference.GRPCInferenceService/ServerLive");
    let request =
        http::Request::post(url).header("content-type", "application/grpc").header("te", "trailers");
    let reply = client.request(request.body(Body::from(vec![0; 5])).unwrap()).await.unwrap();
    let message = reply.into_body().collect().await.unwrap().to_bytes();
    match &message[..] {
        [0, 0, 0, 0, 2, 8, 1] => true,
        [0, 0, 0, 0, 0] => false,
        other => panic!("no answer to whether it is live: {other:?}"),
    }
}

fn says_what_to_do(text: &str) {
    for part in ["restart the server", "isolation = ", "process", "CUDA_ERROR_ILLEGAL_ADDRESS, code 700"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn what_to_do_about_a_gpu_that_a_fault_has_lost_is_said_and_the_cpu_serves_on() {
    let expected = on_cpu().await;
    let machine = Machine::new("");
    let server = serving(&machine, "thread", "auto").await;
    on_gpu(&server, &expected).await;
    poison(&machine).await;
    near(&server.localize().await, &expected);
    has_been_tried(&server, 3).await;
    let gpu = server.device(GPU).await;
    assert_eq!(gpu["cause"], "poisoned", "{gpu}");
    says_what_to_do(gpu["reason"].as_str().unwrap());
    says_what_to_do(&server.devices());
    says_what_to_do(&server.until_said("waiting for the GPU").await);
    // Loudly once, however often it is tried.
    let errors = server.said("\"ERROR\"");
    let lost: Vec<&String> = errors.iter().filter(|line| !line.contains("the GPU is taken out")).collect();
    assert_eq!(lost.len(), 1, "{errors:#?}");
    says_what_to_do(lost[0]);
    // That it is being tried is no news either.
    let moves = server.said("the GPU's state changed");
    assert!(moves.iter().all(|line| line.contains("taking it, and loading models")), "{moves:#?}");
    on_the_cpu(&server, &expected).await;
    assert_eq!(server.get("/v2/health/ready").await.0, 200);
    assert!(live(&server).await.0);
    machine.tell("cuda", "still clear").await;
    server.until_state("serving", "proved").await;
    on_gpu(&server, &expected).await;
    end(&machine, server);
}

#[tokio::test]
async fn a_server_for_gpus_alone_is_not_live_once_this_process_can_use_none_of_them() {
    let expected = on_cpu().await;
    let machine = Machine::new("");
    let server = serving(&machine, "thread", "gpu").await;
    assert!(live(&server).await.0);
    poison(&machine).await;
    // It meets the fault, and then nothing can answer it: it is told so at once, and need not wait for its time to be over.
    let (_, reply) = server.localize_with(&[]).await;
    assert_eq!(reply.status, 503, "{:?}", reply.body);
    says_what_to_do(&reply.json()["error"].to_string());
    has_been_tried(&server, 1).await;
    for tries in 2..4 {
        let (live, why) = live(&server).await;
        assert!(!live && why.contains(GPU), "{why}");
        says_what_to_do(&why);
        has_been_tried(&server, tries).await;
    }
    machine.tell("cuda", "still clear").await;
    server.until_state("serving", "proved").await;
    assert!(live(&server).await.0);
    on_gpu(&server, &expected).await;
    end(&machine, server);
}

#[tokio::test]
async fn a_server_whose_gpu_has_processes_of_its_own_is_never_told_to_be_restarted() {
    let expected = on_cpu().await;
    let machine = Machine::new("");
    let server = serving(&machine, "process", "gpu").await;
    poison(&machine).await;
    let befall = async {
        // Each is another process, of which none has had a fault: something else is wrong, and may pass.
        let thrice = format!(
            "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"fault\",state=\"fenced\"}} 3"
        );
        server.until_metric(&thrice).await;
        assert!(live(&server).await.0);
        machine.tell("cuda", "still clear").await;
    };
    let (rows, ()) = tokio::join!(server.localize(), befall);
    near(&rows, &expected);
    end(&machine, server);
}

/// CUDA's runtime keeps the context that ONNX Runtime and nvJPEG work in: taken anew, the GPU has that one again.
#[tokio::test]
async fn a_gpu_whose_broken_context_a_library_keeps_is_lost_to_the_process_whatever_broke_it() {
    for code in [214, 999] {
        let machine = Machine::new("");
        let server = serving(&machine, "thread", "gpu").await;
        machine.tell("cuda", "retain device=0").await;
        machine.tell("cuda", &format!("fault on=kernel code={code}")).await;
        let (_, reply) = server.localize_with(&[]).await;
        assert_eq!(reply.status, 503, "{:?}", reply.body);
        has_been_tried(&server, 1).await;
        let (live, why) = live(&server).await;
        assert!(!live && why.contains(GPU) && why.contains(&format!("code {code}")), "{why}");
        server.end();
    }
}
