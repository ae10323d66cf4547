//! What a model's statistics count as a request, and how it ended.

use crate::support::{Reply, Server, config, three};
use serde_json::{Value, json};

/// Successes, failures, items and batches of the classifier so far.
async fn counts(server: &Server) -> [u64; 4] {
    let told = server.get("/v2/models/digits/stats").await.json();
    let of = &told["model_stats"][0];
    let requests = ["success", "fail"].map(|end| &of["inference_stats"][end]["count"]);
    [requests[0], requests[1], &of["inference_count"], &of["execution_count"]]
        .map(|count| count.as_u64().unwrap())
}

/// By how much these grow with a request, which is looked at as well.
async fn check(server: &Server, request: impl Future<Output = Reply>, status: u16, grown: [u64; 4]) -> Reply {
    let before = counts(server).await;
    let reply = request.await;
    assert_eq!(reply.status, status, "{:?}", reply.body);
    let after = counts(server).await;
    let each: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(each, grown, "successes, failures, items, batches");
    reply
}

async fn infer(server: &Server, accept: &str, inputs: Value) -> Reply {
    let body = json!({ "inputs": inputs }).to_string();
    server.send("POST", "/v2/models/digits/infer", &[("accept", accept)], body).await
}

const LINES: &str = "application/x-ndjson";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_request_however_many_batches_it_takes_and_however_its_reply_comes() {
    let server = Server::start(config()).await;
    let input = server.get("/v2/models/digits").await.json()["inputs"][0].clone();
    let item: Vec<i64> =
        input["shape"].as_array().unwrap()[1..].iter().map(|n| n.as_i64().unwrap()).collect();
    let numbers = |items: i64| {
        let shape = [&[items][..], &item].concat();
        let data = vec![0.5; shape.iter().product::<i64>() as usize];
        json!([{ "name": input["name"], "datatype": "FP32", "shape": shape, "data": data }])
    };
    // Its largest batch has 32.
    let reply = check(&server, infer(&server, LINES, numbers(70)), 200, [1, 0, 70, 3]).await;
    assert_eq!(reply.body.iter().filter(|byte| **byte == b'\n').count(), 4);
    check(&server, infer(&server, "*/*", numbers(32)), 200, [1, 0, 32, 1]).await;

    // Files, each behind its length.
    let file = three();
    let files = [&(file.len() as u32).to_le_bytes()[..], &file].concat().repeat(3);
    let head = json!({ "inputs": [{ "name": input["name"], "datatype": "BYTES", "shape": [3],
                                     "parameters": { "binary_data_size": files.len() } }] });
    for accept in [LINES, "*/*"] {
        let before = counts(&server).await;
        let reply = server.infer_binary(&head, &files, accept).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let after = counts(&server).await;
        assert_eq!(after[..3], [before[0] + 1, before[1], before[2] + 3], "{accept}");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_be_written_is_a_failure_of_its_request() {
    let server = Server::start(config()).await;
    let input = server.get("/v2/models/digits").await.json()["inputs"][0].clone();
    let elements: i64 = input["shape"].as_array().unwrap()[1..].iter().map(|n| n.as_i64().unwrap()).product();
    let mut shape = input["shape"].clone();
    shape[0] = 1.into();
    let head = |binary: bool| {
        let mut head = json!({
            "inputs": [{ "name": input["name"], "datatype": "FP32", "shape": shape,
                         "parameters": { "binary_data_size": 4 * elements } }],
            "parameters": { "binary_data_output": binary },
        });
        if !binary {
            // Nothing is best where there is no number.
            head["outputs"] = json!([{ "name": "logits", "parameters": { "classification": 1 } }]);
        }
        head
    };
    let nan = f32::NAN.to_le_bytes().repeat(elements as usize);
    for (binary, status, grown) in [(true, 200, [1, 0, 1, 1]), (false, 400, [0, 1, 1, 1])] {
        let head = head(binary);
        let request = server.infer_binary(&head, &nan, "*/*");
        let reply = check(&server, request, status, grown).await;
        assert!(binary || reply.json()["detail"].as_str().unwrap().contains("is not a number (NaN)"));
    }
    let text = server.get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text);
    for line in [
        "ocelli_outcomes_total{model=\"digits\",outcome=\"ok\"} 1",
        "ocelli_outcomes_total{model=\"digits\",outcome=\"bad_request\"} 1",
    ] {
        assert!(text.lines().any(|there| there == line), "{line} is not in\n{text}");
    }
    server.end().await;
}
