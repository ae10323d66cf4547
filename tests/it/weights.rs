//! A model's files that change while it is served: what was loaded is what answers, or nothing does.

use crate::{
    graph::{Extent, FLOAT, bytes, number, value},
    support::{Server, config, send},
};
use axum::body::Body;
use ocelli::{
    config::{Config, RepositoryMode},
    status::DeviceState,
};
use std::{fs, io::Write, path::Path};

/// Weights of the model; many, so that they are worth a look from where they lie.
const COUNT: usize = 4096;

/// `y = x * w`, FP32, as ONNX; `w` lies in `model.onnx.data`.
fn scaling() -> Vec<u8> {
    let shape = [Extent::Named("n"), Extent::Fixed(COUNT as u64)];
    let node = [bytes(1, b"x"), bytes(1, b"w"), bytes(2, b"y"), bytes(4, b"Mul")].concat();
    let beside = [bytes(1, b"location"), bytes(2, b"model.onnx.data")].concat();
    let extent = number(1, COUNT as u64);
    let weights = [extent, number(2, FLOAT), bytes(8, b"w"), bytes(13, &beside), number(14, 1)].concat();
    let graph = [bytes(1, &node), bytes(2, b"g"), bytes(5, &weights)].concat();
    let graph = [graph, value(11, &("x", FLOAT, &shape)), value(12, &("y", FLOAT, &shape))].concat();
    [number(1, 8), bytes(7, &graph), bytes(8, &number(2, 13))].concat()
}

/// The weights, all of this value.
fn weights(value: f32) -> Vec<u8> {
    value.to_le_bytes().repeat(COUNT)
}

/// A folder with the model, which doubles.
fn doubling() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("lin");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("model.onnx"), scaling()).unwrap();
    fs::write(model.join("model.onnx.data"), weights(2.0)).unwrap();
    folder
}

/// Puts a file in another's place in one step.
fn replace(file: &Path, bytes: &[u8]) {
    let new = file.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, file).unwrap();
}

/// What the model makes of ones, or why it has no answer.
async fn ask(server: &Server) -> Result<f64, String> {
    let data = vec!["1"; COUNT].join(",");
    let input =
        format!("{{\"name\": \"x\", \"datatype\": \"FP32\", \"shape\": [1, {COUNT}], \"data\": [{data}]}}");
    let body = format!("{{\"inputs\": [{input}]}}");
    let reply = server.send("POST", "/v2/models/lin/infer", &[], body).await;
    if reply.status != 200 {
        return Err(reply.json().to_string());
    }
    let numbers = reply.json()["outputs"][0]["data"].as_array().unwrap().clone();
    assert!(numbers.iter().all(|number| *number == numbers[0]));
    Ok(numbers[0].as_f64().unwrap())
}

/// Has the CPU drained and taken again, and waits until it serves or says of which file it does not.
async fn drain_and_resume(server: &Server) {
    let tell = async |what: &str| {
        let reply = send(server.admin, "POST", &format!("/v2/devices/cpu/{what}"), &[], Body::empty()).await;
        assert_eq!(reply.status, 200);
    };
    tell("drain").await;
    server.wait_until(|server| server.devices()[0].state == DeviceState::Fenced).await;
    tell("resume").await;
    server.wait_until(|server| serves(server) || says(server, "model.onnx")).await;
}

fn serves(server: &Server) -> bool {
    server.devices()[0].state == DeviceState::Serving
}

fn says(server: &Server, what: &str) -> bool {
    server.devices()[0].reason.contains(what)
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_beside_a_model_may_be_written_over_and_cut_off_while_it_serves() {
    let folder = doubling();
    let data = folder.path().join("lin/model.onnx.data");
    let server = Server::start_with(folder, config()).await;
    assert_eq!(ask(&server).await, Ok(2.0));
    let mut file = fs::OpenOptions::new().write(true).open(&data).unwrap();
    file.write_all(&weights(7.0)).unwrap();
    assert_eq!(ask(&server).await, Ok(2.0));
    file.set_len(0).unwrap();
    assert_eq!(ask(&server).await, Ok(2.0));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_comes_back_does_not_serve_other_weights_than_it_had() {
    let folder = doubling();
    let data = folder.path().join("lin/model.onnx.data");
    let server = Server::start_with(folder, config()).await;
    assert_eq!(ask(&server).await, Ok(2.0));
    replace(&data, &weights(7.0));
    drain_and_resume(&server).await;
    let refused = ask(&server).await.unwrap_err();
    assert!(refused.contains("model.onnx.data is not what it was when the model was loaded"), "{refused}");
    // The same bytes in another file are what was loaded: it serves by itself.
    replace(&data, &weights(2.0));
    server.wait_until(serves).await;
    assert_eq!(ask(&server).await, Ok(2.0));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_comes_back_though_somebody_touched_its_models_files() {
    let folder = doubling();
    let files = ["lin/model.onnx", "lin/model.onnx.data"].map(|file| folder.path().join(file));
    let server = Server::start_with(folder, config()).await;
    for file in files {
        fs::write(&file, fs::read(&file).unwrap()).unwrap();
    }
    drain_and_resume(&server).await;
    assert!(serves(&server), "{:?}", server.devices());
    assert_eq!(ask(&server).await, Ok(2.0));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cpu_that_was_resumed_without_its_model_says_so_and_serves_it_once_it_can() {
    let folder = doubling();
    let model = folder.path().join("lin/model.onnx");
    let away = model.with_extension("away");
    let server = Server::start_with(folder, config()).await;
    fs::rename(&model, &away).unwrap();
    drain_and_resume(&server).await;
    assert!(says(&server, "lin: cannot read model.onnx"), "{:?}", server.devices());
    let get = async |path| send(server.admin, "GET", path, &[], Body::empty()).await;
    assert_eq!(get("/v2/health/ready").await.status, 503);
    let refused = ask(&server).await.unwrap_err();
    assert!(refused.contains("cpu is away: lin: cannot read model.onnx"), "{refused}");
    let ready = server.get("/v2/models/lin/ready").await;
    assert_eq!(ready.status, 400, "{}", ready.json());
    fs::rename(&away, &model).unwrap();
    server.wait_until(serves).await;
    assert_eq!(ask(&server).await, Ok(2.0));
    assert_eq!(get("/v2/health/ready").await.status, 200);
    assert_eq!(server.get("/v2/models/lin/ready").await.status, 200);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_failed_is_told_while_the_model_before_it_serves() {
    let folder = doubling();
    let model = folder.path().join("lin/model.onnx");
    let mode = Config { repository_mode: RepositoryMode::Explicit, ..config() };
    let server = Server::start_with(folder, mode).await;
    let load = async || server.send("POST", "/v2/repository/models/lin/load", &[], "{}").await.status;
    let told = async || {
        let models = server.get("/v2/models").await.json()["models"].clone();
        let metrics = server.get("/metrics").await.body;
        let metrics = String::from_utf8(metrics.to_vec()).unwrap();
        let failed = metrics.lines().find(|line| line.starts_with("ocelli_model_load_failed{"));
        assert_eq!(models[0]["state"], "READY");
        (models[0]["reason"].as_str().unwrap().to_owned(), failed.map(str::to_owned))
    };
    let line = |value: u8| Some(format!("ocelli_model_load_failed{{model=\"lin\",version=\"1\"}} {value}"));
    assert_eq!(told().await, (String::new(), line(0)));
    replace(&model, b"<html>");
    assert_ne!(load().await, 200);
    let (reason, failed) = told().await;
    assert!(reason.starts_with("the last load failed: model.onnx"), "{reason}");
    assert_eq!((ask(&server).await, failed), (Ok(2.0), line(1)));
    replace(&model, &scaling());
    assert_eq!(load().await, 200);
    assert_eq!(told().await, (String::new(), line(0)));
    server.end().await;
}
