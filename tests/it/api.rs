//! The API by example: images in each of their forms, tensors, metadata, and what bad requests get.

use crate::support::{
    DIGITS, Reply, Server, config, digits_with, root, three, until_metrics, until_metrics_are,
};
use ocelli::config::{Config, RepositoryMode};
use serde_json::{Value, json};

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(bytes)
}

/// A multipart body with these files.
fn form(files: &[(&str, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, bytes) in files {
        body.extend_from_slice(
            format!("--x\r\nContent-Disposition: form-data; name=\"data\"; filename=\"{name}\"\r\n\r\n")
                .as_bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--x--\r\n");
    ("multipart/form-data; boundary=x".into(), body)
}

fn check_problem(reply: &Reply, status: u16, words: &[&str]) {
    let body = reply.json();
    assert_eq!(reply.status, status, "{body}");
    assert_eq!(body["status"], status);
    assert_eq!(body["error"], body["detail"]);
    assert!(
        body["request_id"].is_string() && body["type"].is_string() && body["title"].is_string(),
        "{body}"
    );
    let error = body["error"].as_str().unwrap_or_default();
    for word in words {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_image_is_answered_in_every_form_it_can_come_in() {
    let server = Server::start(config()).await;
    for method in ["POST", "PUT"] {
        let reply = server.send(method, "/predictions/digits", &[], three()).await;
        let body = reply.json();
        assert_eq!(reply.status, 200, "{body}");
        assert_eq!(
            (&body["model"], &body["version"], &body["task"]),
            (&json!("digits"), &json!("1"), &json!("classify"))
        );
        assert_eq!(body["classes"][0]["label"], "3", "{body}");
        let scores: f64 =
            body["classes"].as_array().unwrap().iter().map(|c| c["score"].as_f64().unwrap()).sum();
        assert!((0.9..=1.0001).contains(&scores), "softmax scores of the best five sum to {scores}");
        assert!(reply.headers["server-timing"].to_str().unwrap().contains("compute;dur="));
        assert_eq!(reply.headers["ocelli-device"], "cpu");
    }
    let versioned =
        server.send("POST", "/predictions/digits/1?top_k=2", &[("content-type", "image/png")], three()).await;
    assert_eq!(versioned.json()["classes"].as_array().unwrap().len(), 2);

    let (kind, body) = form(&[("a.png", &three()), ("b.png", &three())]);
    let reply = server.send("POST", "/predictions/digits", &[("content-type", &kind)], body).await;
    let labels: Vec<_> = reply.json()["predictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["classes"][0]["label"].clone())
        .collect();
    assert_eq!(labels, ["3", "3"]);

    let image = base64(&three());
    for instance in [
        json!({"b64": image}),
        json!({"data": image}),
        json!({"image_bytes": {"b64": image}, "key": "1"}),
        json!({"image": {"b64": image}}),
    ] {
        let body = json!({"instances": [instance, {"b64": image}], "parameters": {"top_k": 1}}).to_string();
        let reply =
            server.send("POST", "/predictions/digits", &[("content-type", "application/json")], body).await;
        let predictions = reply.json()["predictions"].clone();
        assert_eq!(predictions.as_array().map(Vec::len), Some(2), "base64 of the image: {predictions}");
        assert_eq!(predictions[0]["classes"], json!([predictions[1]["classes"][0]]));
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_file_of_several_pages_say_which_and_what_has_a_place_for_one_refuses_it() {
    let server = Server::start(config()).await;
    let pages = std::fs::read(root().join("examples/images/digits-3-7.tif")).unwrap();
    let (kind, body) = form(&[("a", &three()), ("b", b"no image"), ("c", &pages), ("d", &three())]);
    let place = |entry: &Value| [entry["file"].clone(), entry["page"].clone()].map(|place| place.as_u64());
    let expected = [[None; 2], [None; 2], [Some(2), Some(0)], [Some(2), Some(1)], [None; 2]];
    let json = server.send("POST", "/predictions/digits", &[("content-type", &kind)], body.clone()).await;
    let entries = json.json()["predictions"].as_array().unwrap().iter().map(place).collect::<Vec<_>>();
    assert_eq!(entries, expected);
    let headers = [("content-type", &*kind), ("accept", "application/x-ndjson")];
    let lines = server.send("POST", "/predictions/digits", &headers, body.clone()).await.body;
    let lines: Vec<Value> =
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(lines[..5].iter().map(place).collect::<Vec<_>>(), expected);
    let path = "/predictions/digits?format=torchserve";
    let bare = server.send("POST", path, &[("content-type", &kind)], body).await;
    assert!(bare.json().as_array().unwrap().iter().all(|entry| place(entry) == [None; 2]), "{bare:?}");

    for given in [
        json!({"instances": [{"b64": base64(&three())}, {"b64": base64(&pages)}]}),
        json!({"inputs": [base64(&three()), base64(&pages)]}),
    ] {
        let reply = server.send("POST", "/v1/models/digits:predict", &[], given.to_string()).await;
        check_problem(&reply, 400, &["image 1 has several frames", "post it to /predictions/digits"]);
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_images_a_bad_one_is_told_by_its_number() {
    let server = Server::start(config()).await;
    // 40,000 pixels wide, as its header says.
    let large = b"GIF89a\x40\x9c\x01\0\0\0\0,\0\0\0\0\x40\x9c\x01\0\0\x02\0;";
    for (bad, status, words) in [
        (&b"no image"[..], 400, "image 1: not an image: tried JPEG"),
        (&large[..], 413, "image 1: image width in pixels is 40000, more than the limit of "),
    ] {
        let v1 = json!({"instances": [base64(&three()), base64(bad)]}).to_string();
        let reply = server.send("POST", "/v1/models/digits:predict", &[], v1).await;
        check_problem(&reply, status, &[words]);
        let input = json!({"name": "image", "datatype": "BYTES", "shape": [2], "data": [base64(&three()), base64(bad)]});
        let v2 = json!({ "inputs": [input] }).to_string();
        let reply = server.send("POST", "/v2/models/digits/infer", &[], v2).await;
        // What is no image in base64 either is taken as it is.
        let told = if status == 400 { "image 1: not a" } else { words };
        check_problem(&reply, status, &[told]);
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_cannot_be_decoded_is_an_error_in_its_place() {
    let server = Server::start(config()).await;
    let mut pages = std::fs::read(root().join("examples/images/digits-3-7.tif")).unwrap();
    // The first says that its samples are of 8 bits, which then are of 9.
    let bits = pages.windows(8).position(|entry| entry == [2, 1, 3, 0, 1, 0, 0, 0]).unwrap();
    pages[bits + 8] = 9;
    let check = |entries: &[Value]| {
        let place = |page: u64| [json!(0), json!(page)];
        let [bad, good] = entries else { panic!("{entries:?}") };
        assert_eq!([&bad["file"], &bad["page"]], place(0).each_ref());
        assert_eq!(
            bad["detail"],
            "TIFF with 9 bits per sample in page 0 (they count from 0) is not supported; \
            post it as grey or RGB with 8 or 16 bits per sample"
        );
        assert_eq!([&good["file"], &good["page"]], place(1).each_ref());
        assert_eq!(good["classes"][0]["label"], "7");
    };
    let reply = server.send("POST", "/predictions/digits", &[], pages.clone()).await;
    check(reply.json()["predictions"].as_array().unwrap());
    let headers = [("accept", "application/x-ndjson")];
    let lines = server.send("POST", "/predictions/digits", &headers, pages.clone()).await.body;
    let lines: Vec<Value> =
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    check(&lines[..2]);
    assert_eq!(lines[2]["done"], json!({"answered": 1, "failed": 1}));
    // Several pages still, though one can be answered.
    let given = json!({"instances": [base64(&three()), base64(&pages)]}).to_string();
    let reply = server.send("POST", "/v1/models/digits:predict", &[], given).await;
    check_problem(&reply, 400, &["image 1 has several frames"]);
    // All of them: the first error is the reply's own.
    let second =
        bits + 8 + pages[bits + 8..].windows(8).position(|at| at == [2, 1, 3, 0, 1, 0, 0, 0]).unwrap();
    pages[second + 8] = 9;
    let reply = server.send("POST", "/predictions/digits", &[], pages).await;
    check_problem(&reply, 400, &["9 bits per sample in page 0"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mask_is_a_picture_where_that_is_liked_best_and_can_be_the_reply() {
    let server = Server::start(config()).await;
    let pages = std::fs::read(root().join("examples/images/digits-3-7.tif")).unwrap();
    let (multipart, two) = form(&[("a", &three()), ("b", &three())]);
    let bodies = [("image/png", three()), (&*multipart, two), ("image/tiff", pages)];
    let (json, lines) = ("application/json", "application/x-ndjson");
    let refused = "application/problem+json";
    for (query, accept, expected) in [
        ("", "*/*", [json; 3]),
        ("", "image/png", ["image/png", refused, refused]),
        ("", "image/png, */*", ["image/png", json, json]),
        ("", "image/avif,image/webp,image/png,*/*;q=0.8", ["image/png", json, json]),
        ("", "image/png, application/x-ndjson", ["image/png", lines, lines]),
        ("?mask=png", "image/png", ["image/png", refused, refused]),
        ("?mask=rle", "image/png, application/json", [json; 3]),
    ] {
        for ((content, body), expected) in bodies.iter().zip(expected) {
            let headers = [("content-type", *content), ("accept", accept)];
            let path = format!("/predictions/digits-segmenter{query}");
            let reply = server.send("POST", &path, &headers, body.clone()).await;
            assert_eq!(reply.headers["content-type"], expected, "{content} {query} {accept}");
            if expected == refused {
                check_problem(&reply, 406, &["image/png", json]);
            }
        }
    }
    let (rle, png) = ("/predictions/digits-segmenter?mask=rle", [("accept", "image/png")]);
    check_problem(&server.send("POST", rle, &png, three()).await, 400, &["mask=rle", "image/png"]);
    let bad = server.send("POST", "/predictions/digits-segmenter", &png, b"no image".to_vec()).await;
    check_problem(&bad, 400, &["not an image"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_image_among_many_is_its_own_entrys_error() {
    let server = Server::start(config()).await;
    let image = three();
    let (kind, body) =
        form(&[("good", &image), ("bad", b"not an image"), ("cut", &image[..60]), ("good", &image)]);
    let reply = server.send("POST", "/predictions/digits", &[("content-type", &kind)], body).await;
    assert_eq!(reply.status, 200);
    let entries = reply.json()["predictions"].as_array().unwrap().clone();
    assert_eq!(entries.len(), 4);
    assert_eq!(
        (&entries[0]["classes"][0]["label"], &entries[3]["classes"][0]["label"]),
        (&json!("3"), &json!("3"))
    );
    for bad in [1, 2] {
        assert_eq!(entries[bad]["status"], 400, "{}", entries[bad]);
        assert!(entries[bad]["error"].is_string());
    }
    let (kind, body) = form(&[("bad", b"not an image"), ("bad", b"nor this")]);
    let reply = server.send("POST", "/predictions/digits", &[("content-type", &kind)], body).await;
    check_problem(&reply, 400, &["JPEG", "PNG", "TIFF"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_clear_error_of_the_right_kind() {
    let server = Server::start(Config { body_bytes_max: 100_000, ..config() }).await;
    let post = async |path: &str, headers: &[(&str, &str)], body: &[u8]| {
        server.send("POST", path, headers, body.to_vec()).await
    };
    check_problem(&post("/predictions/digits", &[], b"nothing like an image").await, 400, &["JPEG", "WebP"]);
    check_problem(&post("/predictions/digits", &[], b"").await, 400, &["empty"]);
    check_problem(&post("/predictions/digit", &[], &three()).await, 404, &["'digit'", "nearest: digits"]);
    check_problem(&post("/predictions/digits/7", &[], &three()).await, 404, &["7"]);
    check_problem(
        &post("/predictions/digits", &[("content-type", "text/html")], b"<html>").await,
        415,
        &["text/html"],
    );
    check_problem(&post("/predictions/digits?top_k=none", &[], &three()).await, 400, &["top_k", "none"]);
    check_problem(
        &post("/predictions/digits", &[("timeout", "soon")], &three()).await,
        400,
        &["timeout", "soon"],
    );
    check_problem(
        &post("/predictions/digits", &[("priority", "77")], &three()).await,
        400,
        &["priority", "77"],
    );
    let large = post("/predictions/digits", &[], &vec![0; 100_001]).await;
    check_problem(&large, 413, &["100001", "100000", "body_bytes_max"]);
    check_problem(&server.get("/nothing/here").await, 404, &["/nothing/here"]);
    check_problem(&server.get("/predictions/digits").await, 405, &["GET"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tensors_are_checked_against_the_model_and_say_expected_and_got() {
    let server = Server::start(config()).await;
    let zeros = vec![0.0; 1024];
    let infer = async |input: Value| {
        let body = json!({"id": "a", "inputs": [input]}).to_string();
        server.send("POST", "/v2/models/digits/infer", &[], body).await
    };
    let reply =
        infer(json!({"name": "image", "shape": [1, 1, 32, 32], "datatype": "FP32", "data": zeros})).await;
    let body = reply.json();
    assert_eq!(reply.status, 200, "{body}");
    assert_eq!(
        (&body["id"], &body["model_name"], &body["model_version"]),
        (&json!("a"), &json!("digits"), &json!("1"))
    );
    let output = &body["outputs"][0];
    assert_eq!((&output["shape"], &output["datatype"]), (&json!([1, 10]), &json!("FP32")));
    assert_eq!(output["data"].as_array().unwrap().len(), 10);

    let bad =
        infer(json!({"name": "picture", "shape": [1, 1, 32, 32], "datatype": "FP32", "data": zeros})).await;
    check_problem(&bad, 400, &["\"picture\"", "\"image\""]);
    let bad =
        infer(json!({"name": "image", "shape": [1, 1, 32, 31], "datatype": "FP32", "data": &zeros[..992]}))
            .await;
    check_problem(&bad, 400, &["[1, 1, 32, 31]", "[-1, 1, 32, 32]"]);
    let bad =
        infer(json!({"name": "image", "shape": [1, 1, 32, 32], "datatype": "INT64", "data": vec![0; 1024]}))
            .await;
    check_problem(&bad, 400, &["INT64", "FP32"]);
    let bad =
        infer(json!({"name": "image", "shape": [1, 1, 32, 32], "datatype": "FP32", "data": [1.0]})).await;
    check_problem(&bad, 400, &["1024"]);
    server.end().await;
}

/// A grey PNG of 32 x 32 pixels with samples of 8 or 16 bits, big-endian.
fn png(depth: png::BitDepth, samples: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 32, 32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(depth);
    encoder.write_header().unwrap().write_image_data(samples).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn pixels_and_the_networks_own_numbers_give_what_their_image_gives_also_side_by_side() {
    let models = digits_with(&[("digits", &format!("{DIGITS}[batch]\nitems_max = 8\nwait_ms_max = 20\n"))]);
    let server = Server::start_with(models, config()).await;
    let infer = async |datatype: &str, shape: &[usize], data: Vec<u8>| {
        let head = json!({"inputs": [{"name": "image", "shape": shape, "datatype": datatype,
            "parameters": {"binary_data_size": data.len()}}]});
        server.infer_binary(&head, &data, "*/*").await
    };
    let number = |value: f32| (value * (1.0 / 255.0)).to_le_bytes();
    let one = async |seed: usize| {
        // Values of 16 bits that no 8 bits could give back.
        let deep: Vec<u16> = (0..1024).map(|i| ((i * 2_654_435 + seed * 977) % 65_521) as u16).collect();
        let low: Vec<u8> = deep.iter().map(|v| (v >> 8) as u8).collect();
        let file = |bytes: Vec<u8>| [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
        let big: Vec<u8> = deep.iter().flat_map(|v| v.to_be_bytes()).collect();
        let little = deep.iter().flat_map(|v| v.to_le_bytes()).collect();
        let of_low = low.iter().flat_map(|v| number(f32::from(*v))).collect();
        let of_deep = deep.iter().flat_map(|v| number(f32::from(*v) / 257.0)).collect();
        let asked = [
            infer("BYTES", &[1], file(png(png::BitDepth::Eight, &low))),
            infer("UINT8", &[1, 32, 32, 1], low.clone()),
            infer("FP32", &[1, 1, 32, 32], of_low),
            infer("BYTES", &[1], file(png(png::BitDepth::Sixteen, &big))),
            infer("UINT16", &[1, 32, 32, 1], little),
            infer("FP32", &[1, 1, 32, 32], of_deep),
        ];
        let scores: Vec<Vec<f64>> = futures_util::future::join_all(asked)
            .await
            .iter()
            .map(|reply| {
                let body = reply.json();
                assert_eq!(reply.status, 200, "{body}");
                serde_json::from_value(body["outputs"][0]["data"].clone()).unwrap()
            })
            .collect();
        let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // The same numbers in batches of other sizes, whose sums may go another way.
        for three in scores.chunks(3) {
            assert!(apart(&three[0], &three[1]) < 1e-4 && apart(&three[0], &three[2]) < 1e-4, "{three:?}");
        }
        assert!(apart(&scores[0], &scores[3]) > 1e-3, "the low bits were lost");
    };
    futures_util::future::join_all((0..6).map(one)).await;
    let pixels = server.get("/v2/models/digits").await.json()["pixels"].clone();
    assert_eq!(pixels, json!({"datatypes": ["UINT8", "UINT16"], "shape": [-1, 32, 32, 1]}));
    let bad = infer("UINT8", &[1, 1, 32, 32], vec![0; 1024]).await;
    check_problem(&bad, 400, &["[1, 1, 32, 32]", "[-1, 32, 32, 1]", "UINT8"]);
    let bad = infer("INT8", &[1, 32, 32, 1], vec![0; 1024]).await;
    check_problem(&bad, 400, &["INT8", "expected FP32, UINT8, UINT16"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_larger_than_a_batch_is_split_and_comes_back_in_order() {
    let models = digits_with(&[("digits", &format!("{DIGITS}[batch]\nitems_max = 4\n"))]);
    let server = Server::start_with(models, config()).await;
    // Item n has n pixels lit, so that each has an output of its own.
    let items = 11;
    let mut pixels = vec![0f32; items * 1024];
    for n in 0..items {
        pixels[n * 1024..n * 1024 + n * 40].fill(1.0);
    }
    let send = async |pixels: &[f32]| {
        let data: Vec<u8> = pixels.iter().flat_map(|p| p.to_le_bytes()).collect();
        let n = pixels.len() / 1024;
        let head = json!({"inputs": [{"name": "image", "shape": [n, 1, 32, 32], "datatype": "FP32",
            "parameters": {"binary_data_size": data.len()}}]});
        let reply = server.infer_binary(&head, &data, "*/*").await;
        let body = reply.json();
        assert_eq!(reply.status, 200, "{body}");
        let data: Vec<f64> =
            body["outputs"][0]["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        data
    };
    let together = send(&pixels).await;
    assert_eq!(together.len(), items * 10);
    let mut largest: f64 = 0.0;
    for n in 0..items {
        let alone = send(&pixels[n * 1024..(n + 1) * 1024]).await;
        for (a, b) in alone.iter().zip(&together[n * 10..]) {
            largest = largest.max((a - b).abs());
        }
    }
    println!("largest difference between alone and in a batch: {largest:e}");
    assert!(largest < 1e-4, "rows came back out of order or wrong: {largest}");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_model_never_stops_the_others() {
    let models = digits_with(&[("good", DIGITS), ("typo", "taks = \"classify\"\n"), ("garbage", DIGITS)]);
    std::fs::write(models.path().join("garbage/model.onnx"), b"no model").unwrap();
    let server = Server::start_with(models, config()).await;
    assert_eq!(server.send("POST", "/predictions/good", &[], three()).await.status, 200);
    let reply = server.send("POST", "/predictions/typo", &[], three()).await;
    check_problem(&reply, 503, &["typo", "taks", "task"]);
    check_problem(&server.send("POST", "/predictions/garbage", &[], three()).await, 503, &["garbage"]);
    let list = server.get("/v2/models").await.json();
    let states: Vec<_> =
        list["models"].as_array().unwrap().iter().map(|m| (m["name"].clone(), m["state"].clone())).collect();
    let expected = [("garbage", "UNAVAILABLE"), ("good", "READY"), ("typo", "UNAVAILABLE")];
    assert_eq!(states, expected.map(|(name, state)| (json!(name), json!(state))));
    assert_eq!(server.get("/v2/models/typo/ready").await.status, 400);
    assert_eq!(server.get("/v2/models/good/ready").await.json()["ready"], true);
    assert_eq!(
        server.get("/v2/health/ready").await.status,
        200,
        "ready is about the models that can be served"
    );
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_429_and_when_to_come_back() {
    let server = Server::start_slow(Config { requests_in_flight_max: 1, ..config() }).await;
    let waits = server.send("POST", "/predictions/slow", &[("timeout", "50000")], three());
    let second = async {
        until_metrics(server.address, &["ocelli_queue_items{model=\"slow\"} 1"]).await;
        server.send("POST", "/predictions/slow", &[], three()).await
    };
    let second = tokio::select! {
        reply = waits => panic!("answered without waiting: {reply:?}"),
        second = second => second,
    };
    check_problem(&second, 429, &["in flight", "1"]);
    assert!(second.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    until_metrics(server.address, &["ocelli_outcomes_total{model=\"slow\",outcome=\"full\"} 1"]).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_is_504() {
    let server = Server::start(config()).await;
    // Decoding nine megapixels takes longer than a millisecond.
    let mut body = Vec::new();
    let mut encoder = png::Encoder::new(&mut body, 3000, 3000);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&vec![7; 9_000_000]).unwrap();
    let reply = server.send("POST", "/predictions/digits", &[("timeout", "1")], body).await;
    check_problem(&reply, 504, &["deadline"]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_health_and_metrics_answer_on_both_listeners() {
    let server = Server::start(config()).await;
    let about = server.get("/v2").await.json();
    assert_eq!(about["name"], "ocelli");
    let model = server.get("/v2/models/digits").await.json();
    assert_eq!(model["versions"], json!(["1"]));
    assert_eq!(model["inputs"], json!([{"name": "image", "datatype": "FP32", "shape": [-1, 1, 32, 32]}]));
    assert_eq!(server.get("/v2/models/digits/versions/1").await.json(), model);
    assert_eq!(server.get("/ping").await.json(), json!({"status": "Healthy"}));
    assert!(server.get("/openapi.yaml").await.body.starts_with(b"openapi: 3.1"));
    server.send("POST", "/predictions/digits", &[], three()).await;
    for address in [server.address, server.admin] {
        let get =
            async |path| crate::support::send(address, "GET", path, &[], axum::body::Body::empty()).await;
        assert_eq!(get("/v2/health/live").await.json()["live"], true);
        assert_eq!(get("/v2/health/ready").await.json()["ready"], true);
        let metrics = get("/metrics").await;
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        for line in [
            "ocelli_outcomes_total{model=\"digits\",outcome=\"ok\"} 1",
            "ocelli_items_total{device=\"cpu\",model=\"digits\"} 1",
            "ocelli_queue_items{model=\"digits\"} 0",
            "ocelli_device_state{device=\"cpu\",state=\"serving\"} 1",
            "ocelli_stage_duration_seconds_count{device=\"cpu\",model=\"digits\",stage=\"queue\"} 1",
            "ocelli_stage_duration_seconds_count{device=\"cpu\",model=\"digits\",stage=\"reply\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_and_a_request_id_are_honoured() {
    let server = Server::start(config()).await;
    let headers = [
        ("x-request-id", "mine-1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    let reply = server.send("POST", "/predictions/none", &headers, three()).await;
    assert_eq!(reply.headers["x-request-id"], "mine-1");
    assert_eq!(reply.json()["request_id"], "mine-1");
    let trace = reply.headers["traceparent"].to_str().unwrap();
    assert!(
        trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && !trace.contains("b7ad6b7169203331"),
        "{trace}"
    );
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_a_model_that_is_unloaded_is_told_until_it_is_empty() {
    let server = Server::start_slow(Config { repository_mode: RepositoryMode::Explicit, ..config() }).await;
    let waits = server.send("POST", "/predictions/slow", &[("timeout", "50000")], three());
    let unloaded = async {
        until_metrics(server.address, &["ocelli_queue_items{model=\"slow\"} 1"]).await;
        server.send("POST", "/v2/repository/models/slow/unload", &[], "").await
    };
    let reply = tokio::select! {
        reply = waits => panic!("answered without waiting: {reply:?}"),
        reply = unloaded => reply,
    };
    assert_eq!(reply.status, 200, "{reply:?}");
    // The caller has gone away; when the queue is empty, its gauge says so at the same time, where it is still there.
    until_metrics(server.address, &["ocelli_queue_bytes 0"]).await;
    let text = server.get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text);
    assert!(!text.lines().any(|line| line == "ocelli_queue_items{model=\"slow\"} 1"), "{text}");
    // Nobody has the model any more: all that was counted for it goes.
    let gone = |text: &str| !text.contains("model=\"slow\"");
    until_metrics_are(server.address, "nothing is told of the model", gone).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_takes_its_job_with_it() {
    let server = Server::start_slow(config()).await;
    let waits = server.send("POST", "/predictions/slow", &[("timeout", "50000")], three());
    let queued = until_metrics(server.address, &["ocelli_queue_items{model=\"slow\"} 1"]);
    tokio::select! {
        reply = waits => panic!("answered without waiting: {reply:?}"),
        () = queued => (),
    }
    let lines = [
        "ocelli_queue_items{model=\"slow\"} 0",
        "ocelli_queue_bytes 0",
        "ocelli_requests_in_flight 0",
        "ocelli_outcomes_total{model=\"slow\",outcome=\"cancelled\"} 1",
        "ocelli_http_requests_total{code=\"499\",method=\"POST\",route=\"/predictions/{model}\"} 1",
        // Beside the one that was answered before.
        "ocelli_http_request_duration_seconds_count{class=\"abandoned\",route=\"/predictions/{model}\"} 1",
        "ocelli_http_request_duration_seconds_count{class=\"answered\",route=\"/predictions/{model}\"} 1",
        "ocelli_items_total{device=\"cpu\",model=\"slow\"} 1",
    ];
    until_metrics(server.address, &lines).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_the_same_below_the_base_path_and_without_it() {
    let server = Server::start(Config { base_path: "/teams/eye".into(), ..config() }).await;
    for path in ["/v2/models/digits", "/v2/models/digits/", "/openapi.yaml"] {
        let (plain, below) = (server.get(path).await, server.get(&format!("/teams/eye{path}")).await);
        assert_eq!((plain.status, below.status), (200, 200), "{path}");
        assert_eq!(plain.body, below.body, "{path}");
    }
    let posted = server.send("POST", "/teams/eye/predictions/digits?top_k=1", &[], three()).await;
    assert_eq!((posted.status, &posted.json()["classes"][0]["label"]), (200, &"3".into()), "{posted:?}");
    for path in ["/teams/eyes/v2", "/teams/v2", "/eye/v2", "/teams/eye/teams/eye/v2"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    let page = server.get("/teams/eye/").await;
    assert_eq!((page.status, page.body), (200, server.get("/").await.body));
    let version = env!("CARGO_PKG_VERSION");
    assert!(server.get("/teams/eye/v2").await.json()["version"] == version);
    // Counted by the route, which has no base.
    let text = server.get("/teams/eye/metrics").await.body;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("route=\"/predictions/{model}\"") && !text.contains("/teams"), "{text}");
    server.end().await;
}

/// As browsers ask for it, which resolve what it names against its address.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_at_the_base_path_with_a_slash_to_which_that_without_leads() {
    let server = Server::start(Config { base_path: "/teams/eye".into(), ..config() }).await;
    let open = async |path: &str| {
        let reply = server.send("GET", path, &[("accept", "text/html,*/*;q=0.8")], "").await;
        let to = reply.headers.get("location").map(|to| to.to_str().unwrap().to_owned());
        (reply.status, to, reply.body)
    };
    let (status, _, page) = open("/").await;
    assert!(status == 200 && page.starts_with(b"<!doctype html>"));
    assert_eq!(open("/teams/eye/").await, (200, None, page.clone()));
    assert_eq!(open("/teams/eye/?a=/b").await, (200, None, page.clone()));
    for (path, to) in [
        ("/teams/eye", "./eye/"),
        ("/teams/eye?a=/b", "./eye/?a=/b"),
        ("/teams/eye//", "../"),
        ("/teams/eye/docs/", "../docs"),
    ] {
        let (status, location, _) = open(path).await;
        assert_eq!((status, location.as_deref()), (308, Some(to)), "{path}");
    }
    assert_eq!(open("/teams/eye/docs").await.0, 200);
    // Whoever wants no page is led nowhere.
    assert_eq!(server.get("/teams/eye").await.json(), json!({ "status": "alive" }));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predictions_of_kserves_first_protocol_are_counted_apart_from_its_probes() {
    let server = Server::start(config()).await;
    let body = json!({ "instances": [{ "image_bytes": { "b64": base64(&three()) } }] }).to_string();
    for path in ["/v1/models/digits", "/v1/models/digits/versions/1"] {
        assert_eq!(server.get(path).await.status, 200);
        let headers = [("content-type", "application/json")];
        let reply = server.send("POST", &format!("{path}:predict"), &headers, body.clone()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        // What is asked with another verb is no prediction.
        let reply = server.send("POST", &format!("{path}:explain"), &headers, body.clone()).await;
        assert_eq!(reply.status, 501, "{reply:?}");
    }
    let text = server.get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text);
    for route in ["/v1/models/{model}", "/v1/models/{model}/versions/{version}"] {
        let predictions = format!("{route}:predict");
        for (route, class) in [(&*predictions, "answered"), (route, "answered"), (route, "failed")] {
            let labels = format!("{{class=\"{class}\",route=\"{route}\"}}");
            let line = format!("ocelli_http_request_duration_seconds_count{labels} 1");
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
    }
    server.end().await;
}
