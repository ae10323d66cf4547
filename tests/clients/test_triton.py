"""Triton's own HTTP client against the live server: what its users call, unchanged."""

import json

import numpy as np
import pytest
import requests
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import wire
from tritonclient.utils import InferenceServerException

DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss".split()


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as client:
        yield client


def tensor(name, array, datatype="FP32", binary=True):
    """An input as the client has it."""
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def refuses(call, *told):
    with pytest.raises(InferenceServerException) as caught:
        call()
    for words in told:
        assert words in str(caught.value), caught.value
    return caught.value


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
        assert all(isinstance(duration[member], int) and duration[member] >= 0 for member in ("count", "ns")), entry
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
    parts = sum(stats[step]["ns"] for step in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < stats["compute_infer"]["ns"] and parts <= stats["success"]["ns"], after
    (batch,) = [batch for batch in after["batch_stats"] if batch["batch_size"] == 3]
    assert batch["compute_infer"]["count"] >= 5 and batch["compute_infer"]["ns"] > 0, after
    # A deadline that nobody can meet is a failure.
    refuses(lambda: client.infer("identity", [tensor("x", x)], timeout=1))
    assert counts(client, "identity")["inference_stats"]["fail"]["count"] == stats["fail"]["count"] + 1


def test_statistics_of_all_models_come_at_once(client):
    entries = client.get_inference_statistics()["model_stats"]
    assert {"digits", "identity", "add"} <= {entry["name"] for entry in entries}
    assert all(sorted(entry["inference_stats"]) == sorted(DURATIONS) for entry in entries)


@pytest.mark.parametrize("sends_binary", [True, False])
@pytest.mark.parametrize("wants_binary", [True, False])
def test_tensors_go_both_ways_in_both_forms(client, sends_binary, wants_binary):
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[10, 20, 30, 40]])
    inputs = [tensor("a", a, binary=sends_binary), tensor("b", b, binary=sends_binary)]
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


def test_priority_timeout_and_other_parameters_are_taken(client):
    x = np.ones((1, 16), np.float32)
    reply = client.infer(
        "identity", [tensor("x", x)], priority=1, timeout=20_000_000, parameters={"mine": "is ignored", "flag": True}
    )
    assert (reply.as_numpy("y") == x).all()
    refuses(lambda: client.infer("identity", [tensor("x", x)], parameters={"triton_x": 1}))


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
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_"))
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
