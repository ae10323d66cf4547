//! Control as clients of other servers ask for it: models that are not loaded, packed bodies, memory of GPUs; and methods that a
//! path does not take.

use crate::support::{Reply, Server, config, three};
use ocelli::config::{Config, RepositoryMode};
use serde_json::{Value, json};
use std::io::Write;

async fn explicit() -> Server {
    Server::start(Config {
        repository_mode: RepositoryMode::Explicit,
        shared_memory_regions_max: 2,
        ..config()
    })
    .await
}

async fn post(server: &Server, path: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Reply {
    let body: Vec<u8> = body.into();
    server.send("POST", path, headers, body).await
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(body).unwrap();
    packer.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_loaded_is_unloaded_without_an_error_whether_there_is_one_or_not() {
    let server = explicit().await;
    let unload = async |name: &str| {
        let path = format!("/v2/repository/models/{name}/unload");
        post(&server, &path, &[], "").await
    };
    for _ in 0..2 {
        let reply = unload("digits").await;
        assert_eq!((reply.status, reply.json()), (200, json!({ "name": "digits", "unload": true })));
        let index = post(&server, "/v2/repository/index", &[], "").await.json();
        let listed = index.as_array().unwrap().iter().find(|entry| entry["name"] == "digits");
        assert_eq!(listed.unwrap()["state"], "UNAVAILABLE", "{index}");
    }
    for (nowhere, name) in
        [("nothing", "nothing"), ("digits.onnx", "digits.onnx"), ("%2e%2e", ".."), ("digits%2f1", "digits/1")]
    {
        let reply = unload(nowhere).await;
        assert_eq!((reply.status, reply.json()), (200, json!({ "name": name, "unload": true })));
    }
    server.end().await;
}

/// A server's own page may be open by a name, which may do no more than read.
#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_there_for_a_page_that_is_open_by_a_name_and_changes_are_not() {
    let server = explicit().await;
    let by_name = [("host", "ocelli.example:8000"), ("origin", "http://ocelli.example:8000")];
    let index = post(&server, "/v2/repository/index", &by_name, "").await;
    assert_eq!((index.status, &index.json()[0]["name"]), (200, &"digits".into()));
    for change in
        ["/v2/repository/models/digits/unload", "/v2/repository/models/digits/load", "/v2/devices/cpu/drain"]
    {
        let refused = post(&server, change, &by_name, "").await;
        assert_eq!(refused.status, 403, "{change}: {}", refused.json());
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_control_may_come_packed_and_other_codings_are_refused() {
    let server = explicit().await;
    let index = json!({ "ready": true }).to_string();
    let unload = json!({ "parameters": { "unload_dependents": true } }).to_string();
    let load = json!({ "parameters": { "config": r#"{"max_batch_size": 3}"# } }).to_string();
    // There is no such memory: the body has been read before that is found.
    let register = json!({ "key": "ocelli-test-nowhere", "byte_size": 8 }).to_string();
    for (path, body, expected) in [
        ("/v2/repository/index", index, (200, "")),
        ("/v2/repository/models/digits/unload", unload, (200, "")),
        ("/v2/repository/models/digits/load", load, (200, "")),
        ("/v2/systemsharedmemory/region/r/register", register, (400, "ocelli-test-nowhere")),
    ] {
        let packed = post(&server, path, &[("content-encoding", "gzip")], gzip(body.as_bytes())).await;
        let told = String::from_utf8_lossy(&packed.body);
        assert_eq!(packed.status, expected.0, "{path}: {told}");
        assert!(told.contains(expected.1), "{path}: {told}");
        let unknown = post(&server, path, &[("content-encoding", "br")], body).await;
        assert_eq!(unknown.status, 415, "{path}: {}", unknown.json());
        assert_eq!(unknown.headers["accept-encoding"], "gzip, deflate, zstd");
        let broken = post(&server, path, &[("content-encoding", "gzip")], "no gzip").await;
        assert_eq!(broken.status, 400, "{path}: {}", broken.json());
    }
    assert_eq!(server.get("/v2/models/digits/config").await.json()["max_batch_size"], 3);
    // What it unpacks to is what counts.
    let large = gzip(&vec![b' '; (64 << 10) + 1]);
    let reply = post(&server, "/v2/repository/index", &[("content-encoding", "gzip")], large).await;
    assert_eq!(reply.status, 413, "{}", reply.json());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_of_gpu_memory_are_none_and_forgotten_whatever_their_name() {
    let server = Server::start(config()).await;
    for region in ["", "/region/mine"] {
        let path = format!("/v2/cudasharedmemory{region}");
        let status = server.get(&format!("{path}/status")).await;
        assert_eq!((status.status, status.json()), (200, json!([])), "{path}");
        let reply = post(&server, &format!("{path}/unregister"), &[], "").await;
        assert_eq!((reply.status, &reply.body[..]), (200, &b""[..]), "{path}");
    }
    let register = post(&server, "/v2/cudasharedmemory/region/mine/register", &[], "{}").await;
    assert_eq!(register.status, 501, "{}", register.json());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_of_a_prediction_takes_post_and_says_so_to_who_gets_it() {
    let server = Server::start(config()).await;
    for model in ["digits", "nothing", "digits/versions/1"] {
        let reply = server.get(&format!("/v1/models/{model}:predict")).await;
        assert_eq!(reply.status, 405, "{model}: {}", reply.json());
        assert_eq!(reply.headers["allow"], "POST", "{model}");
        assert_eq!(reply.headers["content-type"], "application/json");
        let ready = server.get(&format!("/v1/models/{model}")).await;
        assert_eq!(ready.status, if model == "nothing" { 404 } else { 200 }, "{model}");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn base64_with_line_breaks_is_an_image_on_every_route() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let server = Server::start(config()).await;
    let text = BASE64_STANDARD.encode(three());
    let lines: String =
        text.as_bytes().chunks(76).flat_map(|line| [line, &b"\n"[..]].concat()).map(char::from).collect();
    let body = json!({ "instances": [{ "b64": lines }] }).to_string();
    for path in ["/predictions/digits", "/v1/models/digits:predict"] {
        let reply = post(&server, path, &[("content-type", "application/json")], body.clone()).await;
        let told: Value = reply.json();
        assert_eq!(reply.status, 200, "{path}: {told}");
        assert_eq!(told["predictions"][0]["classes"][0]["label"], "3", "{path}: {told}");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_model_says_how_it_comes_to_one() {
    for (repository_mode, how) in [
        (RepositoryMode::None, "at the start alone: put models into it and restart"),
        (RepositoryMode::Watch, "as soon as it is in the folder"),
    ] {
        let empty = tempfile::tempdir().expect("a temporary folder");
        let config = Config { models: empty.path().to_owned(), repository_mode, ..config() };
        let server = Server::start_without_waiting(config, Some(empty)).await;
        let says = |why: String| why.starts_with("no model is loaded: ") && why.contains(how);
        server.wait_until(|server| server.ready().is_err_and(says)).await;
        server.end().await;
    }
}

/// As Triton's and KServe's servers are, so that whoever loads the models may wait for readiness first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_models_callers_load_is_ready_without_any() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let repository_mode = RepositoryMode::Explicit;
    let config = Config { models: empty.path().to_owned(), repository_mode, ..config() };
    let server = Server::start_without_waiting(config, Some(empty)).await;
    server.wait_until(|server| server.ready().is_ok()).await;
    assert_eq!(server.get("/v2/health/ready").await.status, 200);
    server.end().await;

    let server = explicit().await;
    let models = server.get("/v1/models").await.json();
    for model in models["models"].as_array().unwrap() {
        let path = format!("/v2/repository/models/{}/unload", model.as_str().unwrap());
        assert_eq!(post(&server, &path, &[], "").await.status, 200, "{path}");
    }
    assert_eq!(server.get("/v1/models").await.json()["models"], json!([]));
    assert_eq!(server.get("/v2/health/ready").await.status, 200);
    server.end().await;
}
