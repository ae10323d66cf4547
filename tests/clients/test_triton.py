"""Triton's own HTTP client against the live server: what its users call, unchanged."""

import base64
import functools
import gzip
import json
import re
import zlib
from urllib.parse import urljoin

import by_triton
import numpy as np
import pytest
import requests
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import wire
from by_triton import refuses
from server import free_ports

DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss".split()
tensor = functools.partial(by_triton.tensor, triton)


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "9") and not client.is_model_ready("nothing")
    assert client.get_server_metadata()["name"] == "ocelli"
    metadata = client.get_model_metadata("digits")
    assert metadata["versions"] == ["1"] and metadata["inputs"][0]["shape"] == [-1, 1, 32, 32], metadata


def test_the_configuration_says_what_perf_analyzer_looks_for(client):
    config = client.get_model_config("digits")
    assert config["name"] == "digits" and config["platform"] == "onnxruntime_onnx", config
    assert config["max_batch_size"] == 32, config
    image = config["input"][0]
    assert (image["name"], image["data_type"], image["dims"]) == ("image", "TYPE_FP32", [1, 32, 32]), config
    assert image["is_shape_tensor"] is False and image["optional"] is False, config
    assert image["format"] == "FORMAT_NCHW" and config["output"][0]["label_filename"] == "labels.txt", config
    assert config["output"][0]["name"] == "logits" and config["output"][0]["dims"] == [10], config
    assert config["model_transaction_policy"]["decoupled"] is False, config
    assert config["dynamic_batching"]["preferred_batch_size"][-1] == 32, config
    # Dimensions are whole where no axis is for batches.
    fixed = client.get_model_config("fixed1", "1")
    assert fixed["max_batch_size"] == 0 and fixed["input"][0]["dims"] == [1, 4], fixed
    assert "dynamic_batching" not in fixed, fixed


def counts(client, model, version=""):
    (entry,) = client.get_inference_statistics(model, version)["model_stats"]
    assert sorted(entry["inference_stats"]) == sorted(DURATIONS), entry
    for duration in entry["inference_stats"].values():
        # Time is that of what was counted; nothing is cached.
        assert all(type(duration[member]) is int for member in ("count", "ns")) and (duration["count"] or not duration["ns"]), entry
    assert all(entry["inference_stats"][cache] == {"count": 0, "ns": 0} for cache in ("cache_hit", "cache_miss")), entry
    return entry


def test_statistics_count_requests_items_batches_and_failures(client):
    before = counts(client, "identity")
    x = np.ones((3, 16), np.float32)
    for _ in range(5):
        client.infer("identity", [tensor("x", x)])
    after = counts(client, "identity", "1")
    assert after["inference_count"] - before["inference_count"] == 15, after
    assert after["execution_count"] - before["execution_count"] == 5, after
    assert after["last_inference"] > 1_700_000_000_000, after
    stats, old = after["inference_stats"], before["inference_stats"]
    for step in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert stats[step]["count"] - old[step]["count"] == 5, (step, after)
    # Of these requests alone: parts of a stream, say, wait side by side.
    took = {step: stats[step]["ns"] - old[step]["ns"] for step in old}
    parts = sum(took[step] for step in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < took["compute_infer"] and parts <= took["success"], (before, after)
    (batch,) = [batch for batch in after["batch_stats"] if batch["batch_size"] == 3]
    assert batch["compute_infer"]["count"] >= 5 and batch["compute_infer"]["ns"] > 0, after
    # A deadline that nobody can meet is a failure.
    failed = counts(client, "slow")["inference_stats"]["fail"]["count"]
    refuses(lambda: client.infer("slow", [tensor("x", np.full((1, 1), 200, np.float32))], timeout=1000))
    assert counts(client, "slow")["inference_stats"]["fail"]["count"] == failed + 1
    # Nobody means 30 microseconds.
    assert client.infer("identity", [tensor("x", x)], timeout=30).as_numpy("y").tolist() == x.tolist()


def test_statistics_of_all_models_come_at_once(client):
    entries = client.get_inference_statistics()["model_stats"]
    assert {"digits", "identity", "add"} <= {entry["name"] for entry in entries}
    assert all(sorted(entry["inference_stats"]) == sorted(DURATIONS) for entry in entries)


@pytest.mark.parametrize("sends_binary", [True, False])
@pytest.mark.parametrize("wants_binary", [True, False])
def test_tensors_go_both_ways_in_both_forms(client, sends_binary, wants_binary):
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[10, 20, 30, 40]])
    inputs = [tensor("a", a, binary_data=sends_binary), tensor("b", b, binary_data=sends_binary)]
    outputs = [triton.InferRequestedOutput("sum", binary_data=wants_binary)]
    reply = client.infer("add", inputs, outputs=outputs, request_id="mine")
    assert (reply.as_numpy("sum") == a + b).all()
    assert reply.get_response()["id"] == "mine" and reply.get_response()["model_version"] == "1"


def test_outputs_that_nobody_names_come_back_all_and_binary(client):
    x = np.arange(32, dtype=np.float32).reshape(2, 16)
    reply = client.infer("identity", [tensor("x", x)])
    assert (reply.as_numpy("y") == x).all()
    assert reply.get_output("y")["parameters"]["binary_data_size"] == x.nbytes


@pytest.mark.parametrize("binary", [True, False])
def test_classes_instead_of_values(client, binary):
    x = np.zeros((2, 16), np.float32)
    x[0, [3, 5]], x[1, 7] = (2, 9), 0.25
    outputs = [triton.InferRequestedOutput("y", binary_data=binary, class_count=2)]
    got = client.infer("identity", [tensor("x", x)], outputs=outputs).as_numpy("y")
    assert got.shape == (2, 2) and got.dtype == np.object_, got
    texts = [[t.decode() if isinstance(t, bytes) else t for t in row] for row in got]
    assert texts == [["9.000000:5", "2.000000:3"], ["0.250000:7", "0.000000:0"]]


def test_classes_of_a_network_for_one_item_have_no_axis_for_items(client):
    """As its configuration says it: `max_batch_size` is 0."""
    x = np.array([[1, 3, 2, 0]], np.float32)
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    assert client.get_model_config("fixed1")["max_batch_size"] == 0
    best = client.infer("fixed1", [tensor("x", x)], outputs=outputs).as_numpy("y")
    assert best.shape == (2,) and [row.split(b":")[1] for row in best] == [b"1", b"2"], best


def test_classes_have_the_labels_of_the_model(client, server, models, digits):
    image = np.zeros((1, 1, 32, 32), np.float32)
    outputs = [triton.InferRequestedOutput("logits", class_count=1)]
    (best,) = client.infer("digits", [tensor("image", image)], outputs=outputs).as_numpy("logits")[0]
    value, index, label = best.decode().split(":")
    labels = (models / "digits" / "labels.txt").read_text().split()
    assert label == labels[int(index)], best
    values = client.infer("digits", [tensor("image", image)]).as_numpy("logits")[0]
    assert int(index) == values.argmax() and abs(float(value) - values.max()) < 1e-5, best


def test_asynchronous_calls(client):
    xs = [np.full((1, 16), i, np.float32) for i in range(8)]
    calls = [client.async_infer("identity", [tensor("x", x)]) for x in xs]
    for x, call in zip(xs, calls):
        assert (call.get_result().as_numpy("y") == x).all()


def test_the_asyncio_client(server):
    import asyncio

    async def ask():
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            assert await client.is_server_ready() and await client.is_model_ready("identity")
            x = np.ones((2, 16), np.float32)
            reply = await client.infer("identity", [tensor("x", x)])
            assert (reply.as_numpy("y") == x).all()
            (entry,) = (await client.get_inference_statistics("identity"))["model_stats"]
            assert entry["name"] == "identity"

    asyncio.run(ask())


@pytest.mark.parametrize("path", ["/docs/", "/docs/errors/", "/docs/options/?a=b"])
def test_documents_whose_path_ends_in_a_slash_find_their_parts(server, path):
    first = requests.get(server.url + path, timeout=wire.TIMEOUT, allow_redirects=False)
    # Relative, so that it holds behind a proxy that serves below a path.
    assert first.status_code == 308 and first.headers["Location"].startswith("../"), first.headers
    page = requests.get(server.url + path, timeout=wire.TIMEOUT)
    assert page.status_code == 200 and page.url == server.url + path.replace("/?", "?").rstrip("/"), page.url
    parts = re.findall(r'<(?:link|script|img)\b[^>]*?(?:href|src)="([^"]+)"', page.text)
    assert len(parts) >= 4, parts
    for part in parts:
        reply = requests.get(urljoin(page.url, part), timeout=wire.TIMEOUT)
        assert reply.status_code == 200, (part, reply.url, reply.text)
    assert requests.get(server.url + "/docs/nothing/", timeout=wire.TIMEOUT).status_code == 404


def test_paths_may_end_in_a_slash_and_those_of_others_say_so(server):
    for path in ("/metrics/", "/v2/", "/v2/health/ready/", "/v2/models/digits/config/?a=b"):
        reply = requests.get(server.url + path, timeout=wire.TIMEOUT)
        assert reply.status_code == 200 and reply.content, (path, reply.text)
    for method, path, told in (
        ("POST", "/v2/cudasharedmemory/region/x/register", "binary data"),
        ("POST", "/v2/trace/setting", "options"),
        ("POST", "/v2/models/digits/generate", "text"),
        ("POST", "/v2/repository/mine/index", "one repository"),
        ("POST", "/v1/models/digits/labels/stable:predict", "labels"),
    ):
        reply = requests.request(method, server.url + path, timeout=wire.TIMEOUT)
        assert reply.status_code == 501 and told in reply.json()["error"], (path, reply.text)


def test_priority_timeout_and_other_parameters_are_taken(client):
    x = np.ones((1, 16), np.float32)
    reply = client.infer(
        "identity", [tensor("x", x)], priority=1, timeout=20_000_000, parameters={"mine": "is ignored", "flag": True}
    )
    assert (reply.as_numpy("y") == x).all()
    refuses(lambda: client.infer("identity", [tensor("x", x)], parameters={"triton_x": 1}))


def test_keys_of_the_query_are_passed_over_and_options_of_predictions_refused(client):
    x = np.ones((1, 16), np.float32)
    # As the client's own examples send them.
    reply = client.infer("identity", [tensor("x", x)], query_params={"test_1": 1, "test_2": 2})
    assert (reply.as_numpy("y") == x).all()
    for key, value in (("top_k", 1), ("mask", "rle"), ("format", "torchserve")):
        refuses(lambda: client.infer("identity", [tensor("x", x)], query_params={key: value}), f"{key} in the query")


def test_errors_say_what_is_wrong(client):
    x = np.ones((1, 16), np.float32)
    assert "unknown model" in str(refuses(lambda: client.infer("nothing", [tensor("x", x)])))
    refuses(lambda: client.infer("identity", [tensor("z", x)]), "no input", "\"z\"")
    refuses(lambda: client.infer("identity", [tensor("x", np.ones((1, 17), np.float32))]), "shape [1, 17]")
    refuses(lambda: client.infer("identity", [tensor("x", x.astype(np.float64), "FP64")]), "FP64, expected FP32")
    refuses(lambda: client.infer("identity", [tensor("x", x)], outputs=[triton.InferRequestedOutput("q")]), "no output")
    refuses(lambda: client.get_model_config("nothing"), "unknown model")
    refuses(lambda: client.get_inference_statistics("nothing"), "unknown model")


def test_reserved_parameters_are_refused_by_name(server):
    body = {
        "inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}],
        "parameters": {"triton_final_response": True},
    }
    reply = requests.post(f"{server.url}/v2/models/identity/infer", data=json.dumps(body), timeout=wire.TIMEOUT)
    assert reply.status_code == 400 and "triton_final_response" in reply.json()["error"], reply.text


def test_metrics_have_tritons_names_in_the_form_that_scrapers_read(server, client):
    client.infer("identity", [tensor("x", np.ones((2, 16), np.float32))])
    def named(url):
        text = requests.get(url, timeout=wire.TIMEOUT).text
        assert "ocelli_build_info" in text, "beside our own"
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_"))

    lines = named(server.metrics_url)
    of = '{model="identity",version="1"}'
    assert int(lines["nv_inference_request_success" + of]) >= 1
    assert int(lines["nv_inference_count" + of]) >= int(lines["nv_inference_exec_count" + of]) >= 1
    assert int(lines["nv_inference_request_duration_us" + of]) >= int(lines["nv_inference_queue_duration_us" + of])
    assert 'nv_inference_request_failure{model="identity",reason="REJECTED",version="1"}' in lines
    assert lines["nv_inference_pending_request_count" + of] == "0"
    assert 0 <= float(lines["nv_cpu_utilization"]) <= 1
    assert float(lines["nv_cpu_memory_used_bytes"]) < float(lines["nv_cpu_memory_total_bytes"])
    assert not any("e" in value.lower() for value in lines.values()), lines
    assert not any(name.startswith("nv_gpu") for name in lines), "there is no GPU here"
    assert named(f"http://127.0.0.1:{server.admin_port}/metrics").keys() == lines.keys()
    assert named(server.url + "/metrics") == {}


def test_tritons_metrics_are_where_they_are_asked_for(start_server, only_digits):
    for where, expected in (("on", (True, True)), ("off", (False, False))):
        (port,) = free_ports(1)
        server = start_server(only_digits, metrics_listen=f"127.0.0.1:{port}", triton_metrics=where)
        urls = (server.url, f"http://127.0.0.1:{port}")
        texts = [requests.get(f"{url}/metrics", timeout=wire.TIMEOUT).text for url in urls]
        assert tuple("\nnv_inference_count{" in text for text in texts) == expected, where
        assert server.stop() == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_are_packed_both_ways(client, coding):
    x = np.tile(np.arange(16, dtype=np.float32), (500, 1))
    for binary in (True, False):
        reply = client.infer(
            "identity",
            [tensor("x", x, binary_data=binary)],
            outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        assert (reply.as_numpy("y") == x).all()


def test_the_length_of_the_json_is_that_before_packing(server):
    x = np.zeros((500, 16), np.float32)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [500, 16], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    reply = requests.post(
        f"{server.url}/v2/models/identity/infer",
        data=gzip.compress(head + x.tobytes()),
        headers={
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Encoding": "gzip",
            "Accept-Encoding": "br, deflate;q=0.5, gzip;q=0.4",
        },
        timeout=wire.TIMEOUT,
        stream=True,
    )
    assert reply.headers["Content-Encoding"] == "deflate" and reply.headers["Vary"] == "accept-encoding"
    sent = reply.raw.read(decode_content=False)
    body = zlib.decompress(sent)
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"]["binary_data_size"] == x.nbytes
    assert body[length:] == x.tobytes() and len(sent) < len(body) // 10


def test_images_may_come_packed(server, digits):
    name, image, digit = digits[0]
    packed = gzip.compress(image)
    reply = wire.post_image(server, "digits", packed, headers={"Content-Encoding": "gzip"})
    assert wire.one(reply, "classify")[0][0]["label"] == digit, name


@pytest.mark.parametrize("path", ["/v2/models/identity/infer", "/predictions/digits"])
def test_an_encoding_that_is_not_known_is_refused_with_those_that_are(server, path):
    reply = requests.post(
        server.url + path, data=b"x", headers={"Content-Encoding": "br"}, timeout=wire.TIMEOUT
    )
    assert reply.status_code == 415 and reply.headers["Accept-Encoding"] == "gzip, deflate, zstd"
    assert "br" in reply.json()["error"] and "gzip, deflate, zstd" in reply.json()["error"]


def test_what_unpacks_to_too_much_or_not_at_all_is_refused(start_server, only_digits):
    server = start_server(only_digits, body_bytes_max="1MiB")
    headers = {"Content-Encoding": "gzip"}
    url = f"{server.url}/v2/models/digits/infer"
    bomb = requests.post(url, data=gzip.compress(bytes(64 << 20)), headers=headers, timeout=wire.TIMEOUT)
    assert bomb.status_code == 413 and "body_bytes_max" in bomb.json()["error"], bomb.text
    plain = requests.post(url, data=b"{}", headers=headers, timeout=wire.TIMEOUT)
    assert plain.status_code == 400 and "unpacked as gzip" in plain.json()["error"], plain.text
    assert server.status("/v2/health/ready") == 200


@pytest.mark.parametrize("column", [False, True])
def test_encoded_images_are_decoded_like_posted_files(client, server, digits, column):
    files = [image for _, image, _ in digits]
    given = np.array(files, dtype=np.object_)
    given = given.reshape(-1, 1) if column else given
    outputs = [triton.InferRequestedOutput("logits", class_count=1)]
    (rows,) = [client.infer("digits", [tensor("image", given, "BYTES")], outputs=outputs).as_numpy("logits")]
    assert [row[0].decode().split(":")[2] for row in rows] == [digit for _, _, digit in digits]
    logits = client.infer("digits", [tensor("image", given, "BYTES")]).as_numpy("logits")
    assert logits.shape == (len(files), 10), logits.shape


def test_an_image_in_json_is_in_base64(server, digits):
    texts = [base64.b64encode(image).decode() for _, image, _ in digits]
    given = {"name": "image", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    (logits,) = wire.ok(wire.post_infer(server, "digits", [given]))["outputs"]
    best = np.reshape(logits["data"], logits["shape"]).argmax(axis=1)
    assert [str(label) for label in best] == [digit for _, _, digit in digits]
    # By lines of a few, and item by item.
    given.update(shape=[1], data=[base64.encodebytes(digits[0][1]).decode()])
    url, lines = f"{server.url}/v2/models/digits/infer", {"Accept": "application/x-ndjson"}
    part, done = requests.post(url, json={"inputs": [given]}, headers=lines, timeout=wire.TIMEOUT).text.splitlines()
    assert str(np.argmax(json.loads(part)["outputs"][0]["data"])) == digits[0][2], part
    given["data"] = [texts[0][:100] + "?" + texts[0][100:]]
    wire.problem(wire.post_infer(server, "digits", [given]), 400, "image 0 is not base64")
    given["data"] = [base64.b64encode(b"no image").decode()]
    wire.problem(wire.post_infer(server, "digits", [given]), 400, "image 0: not an image")


def test_a_raw_request_may_be_an_image_or_a_tensor(server, digits):
    name, image, digit = digits[0]
    url = f"{server.url}/v2/models/digits/infer"
    headers = {"Inference-Header-Content-Length": "0"}
    for body, shape in ((image, [1, 10]), (np.zeros((2, 1, 32, 32), np.float32).tobytes(), [2, 10])):
        reply = requests.post(url, data=body, headers=headers, timeout=wire.TIMEOUT)
        assert reply.status_code == 200, reply.text
        length = int(reply.headers["Inference-Header-Content-Length"])
        (output,) = json.loads(reply.content[:length])["outputs"]
        assert output["shape"] == shape, output
        values = np.frombuffer(reply.content[length:], np.float32).reshape(shape)
        if body is image:
            assert str(values[0].argmax()) == digit, name


@pytest.mark.parametrize(("datatype", "bits"), [("UINT8", 8), ("UINT16", 16)])
def test_a_raw_request_may_be_the_pixels_of_an_image(server, client, datatype, bits):
    pixels = np.random.default_rng(bits).integers(0, 2**bits, (1, 32, 32, 1)).astype(datatype.lower())
    expected = client.infer("digits", [tensor("image", pixels, datatype)]).as_numpy("logits")
    headers = {"Inference-Header-Content-Length": "0"}
    url = f"{server.url}/v2/models/digits/infer"
    reply = requests.post(url, data=pixels.tobytes(), headers=headers, timeout=wire.TIMEOUT)
    assert reply.status_code == 200, reply.text
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert (np.frombuffer(reply.content[length:], np.float32) == expected[0]).all()
    reply = requests.post(url, data=pixels.tobytes()[1:], headers=headers, timeout=wire.TIMEOUT)
    assert reply.status_code == 400 and "1024 for UINT8, or 2048 for UINT16" in reply.json()["error"], reply.text


def test_a_client_may_be_given_a_path(start_server, only_digits, digits):
    server = start_server(only_digits, base_path="/teams/vision")
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}/teams/vision") as client:
        assert client.is_server_ready() and client.is_model_ready("digits")
        image = np.array([digits[0][1]], dtype=np.object_)
        assert str(client.infer("digits", [tensor("image", image, "BYTES")]).as_numpy("logits")[0].argmax()) == digits[0][2]
        (entry,) = client.get_inference_statistics("digits")["model_stats"]
        assert entry["inference_stats"]["success"]["count"] == 1 and entry["memory_usage"] == [], entry
    assert server.stop() == 0


def test_encoded_images_that_cannot_be_are_refused(client, digits):
    image = digits[0][1]

    def of(*files, shape=None):
        array = np.array(files, dtype=np.object_)
        return [tensor("image", array.reshape(shape) if shape else array, "BYTES")]

    refuses(lambda: client.infer("digits", of(image, b"not an image")), "image 1", "not an image")
    refuses(lambda: client.infer("digits", of(image, image, shape=(1, 2))), "expected [n] or [n, 1]")
    # An input of another name is another input, whatever it holds.
    (misnamed,) = [tensor("photo", np.array([image], dtype=np.object_), "BYTES")]
    refuses(lambda: client.infer("digits", [misnamed]), 'model \"digits\" has no input \"photo\"')
    refuses(lambda: client.infer("identity", [tensor("x", np.array([b"a"], dtype=np.object_), "BYTES")]), "is BYTES")


def test_json_that_is_too_deep_is_refused(server):
    url = f"{server.url}/v2/models/identity/infer"
    deep = "[" * 100_000
    for body in (
        '{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":' + deep,
        '{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":' + deep + "]" * 100_000 + "}]}",
        '{"parameters":{"p":' + deep + "]" * 100_000 + "}}",
        '{"inputs":' + deep,
    ):
        reply = requests.post(url, data=body, timeout=wire.TIMEOUT)
        assert reply.status_code == 400 and reply.json()["error"], reply.text[:300]
    count = {"inputs": [{"name": "x", "shape": [2, 16], "datatype": "FP32", "data": [0] * 31}]}
    reply = requests.post(url, json=count, timeout=wire.TIMEOUT)
    assert reply.status_code == 400 and "31 elements, expected 32" in reply.json()["error"], reply.text
