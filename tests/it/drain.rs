//! The end of a server: ready turns, callers are still served, what was accepted is finished. And that of a device.

use crate::support::{Server, config, send, three, until_metrics};
use axum::body::Body;
use ocelli::{app::Undone, config::Config, status::DeviceState};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_is_live_not_ready_and_still_answers() {
    let server = Server::start(Config { drain_delay_ms: Duration::from_secs(3), ..config() }).await;
    let (address, admin) = (server.address, server.admin);
    let ending = tokio::spawn(server.end());
    let get = async |path| send(admin, "GET", path, &[], Body::empty()).await;
    while get("/v2/health/ready").await.status == 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(get("/v2/health/live").await.status, 200, "alive all the same");
    assert_eq!(get("/ping").await.status, 503);
    let reply = send(address, "POST", "/predictions/digits", &[], three().into()).await;
    assert_eq!(reply.status, 200, "whoever still routes to us is answered");
    assert_eq!(reply.headers["connection"], "close", "and told to go elsewhere next time");
    assert_eq!(ending.await.unwrap(), Undone::default());
    tokio::net::TcpStream::connect(address).await.expect_err("the listener is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_when_the_listener_closes_is_answered() {
    // The job waits for company for ten seconds, longer than the end may take: the end lets it run alone.
    let (drain_delay_ms, drain_timeout_ms) = (Duration::from_millis(1), Duration::from_secs(6));
    let server = Server::start_slow(Config { drain_delay_ms, drain_timeout_ms, ..config() }).await;
    let waiting = tokio::spawn(send(
        server.address,
        "POST",
        "/predictions/slow",
        &[("timeout", "60000")],
        three().into(),
    ));
    until_metrics(server.admin, &["ocelli_queue_items{model=\"slow\"} 1"]).await;
    assert_eq!(server.end().await, Undone::default());
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_now_whatever_the_delay() {
    let server = Server::start(Config { drain_delay_ms: Duration::from_secs(3600), ..config() }).await;
    // Nothing is asked on it: nothing of it is dropped.
    let silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    until_metrics(server.admin, &["ocelli_http_connections 1"]).await;
    let now = tokio_util::sync::CancellationToken::new();
    let second = now.clone();
    let ending = tokio::spawn(async move { server.end_at(&second).await });
    now.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(60), ending).await.expect("not an hour").unwrap();
    assert_eq!(ended, Undone { told: true, ..Undone::default() });
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_only_device_is_drained_requests_are_refused_with_the_reason() {
    let server = Server::start(config()).await;
    let post = async |path: &str, body: Vec<u8>| {
        let timeout = [("timeout", "20000")];
        send(server.address, "POST", path, &timeout, body.into()).await
    };
    let stands = |state: DeviceState| {
        let state = move |server: &Server| server.devices().iter().all(|device| device.state == state);
        server.wait_until(state)
    };
    assert_eq!(post("/predictions/digits", three()).await.status, 200);
    for _ in 0..3 {
        // The replies to orders show what came of them.
        let drained = post("/v2/devices/cpu/drain", Vec::new()).await.json();
        assert_eq!(
            [&drained["state"], &drained["cause"], &drained["drained"]],
            [&json!("fenced"), &json!("drain"), &json!(true)]
        );
        let reply = post("/predictions/digits", three()).await;
        assert_eq!(reply.status, 503, "{:?}", reply.body);
        assert!(reply.headers.contains_key("retry-after"));
        let error = reply.json()["error"].to_string();
        assert!(error.contains("cpu is away: drained by request"), "{error}");
        let get = async |path: &str| send(server.address, "GET", path, &[], Body::empty()).await;
        let version = get("/v1/models/digits/versions/1").await;
        assert_eq!(version.status, 503, "{:?}", version.body);
        assert_eq!(get("/v1/models/digits").await.status, 503);
        assert_eq!(get("/v1/models").await.json(), json!({ "models": [] }));
        let index = post("/v2/repository/index", br#"{"ready": true}"#.to_vec()).await;
        assert_eq!(index.json(), json!([]), "nothing takes requests");
        let resumed = post("/v2/devices/cpu/resume", Vec::new()).await.json();
        assert!(resumed["drained"] == false && resumed["state"] != "fenced", "{resumed}");
        // It is on its way back: requests wait for it.
        assert_eq!(post("/predictions/digits", three()).await.status, 200);
        stands(DeviceState::Serving).await;
    }
    server.end().await;
}
