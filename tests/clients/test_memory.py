"""Memory that a burst took is given back while the server lives on."""

import base64
import contextlib
import resource
import shutil
import socket

import make_models
import numpy as np
import pytest
import requests
import wire
from onnx import TensorProto
from server import ROOT, until

CONNECTIONS = 1500
# Of what the burst took, what may be left once all of it is closed.
LEFT_MAX = 0.4
GIVEN_BACK_SECONDS_MAX = 60
BODY = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1], "data": [0.5]}]}'
REQUEST = b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.fixture
def many_files():
    """Open files for a burst, here and in the servers that are started meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# What a request of images in base64 may take, of its body: the body, and the three quarters of it that it says.
OF_THE_BODY_MAX = 2.0
IMAGE_BYTES = 75_000_000


@pytest.mark.parametrize("path", ["/v1/models/digits:predict", "/predictions/digits"])
@pytest.mark.parametrize("rows", [1, 4])
def test_images_in_base64_are_in_memory_once_as_text_and_once_as_bytes(start_server, only_digits, path, rows):
    server = start_server(only_digits)

    def most():
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024

    def post(image):
        body = b'{"instances": [' + b",".join([b'{"b64": "' + image + b'"}'] * rows) + b"]}"
        reply = requests.post(server.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=wire.TIMEOUT)
        assert reply.status_code == 400 and "not an image" in reply.json()["error"], reply.text
        return len(body)

    post(base64.b64encode(bytes(30_000)))
    before = most()
    body = post(base64.b64encode(bytes(IMAGE_BYTES // rows)))
    took = (most() - before) / body
    print(f"{took:.2f} bytes for each of a body of {body / 1e6:.0f} MB")
    assert took > 1, "it was not in memory at all"
    assert took < OF_THE_BODY_MAX


def test_what_is_decoded_from_base64_counts_beside_the_body(start_server, only_digits):
    server = start_server(only_digits, body_bytes_max="1MiB", in_flight_bytes_max="1MiB")
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/models/digits:predict", "/predictions/digits"):
        for image, status in ((bytes(400_000), 400), (bytes(500_000), 413)):
            body = b'{"instances": ["' + base64.b64encode(image) + b'"]}'
            reply = requests.post(server.url + path, data=body, headers=headers, timeout=wire.TIMEOUT)
            assert reply.status_code == status, (path, reply.text)
        assert "in_flight_bytes_max" in reply.json()["error"], reply.text

    def nothing_left():
        return "\nocelli_in_flight_bytes 0\n" in requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text

    until(nothing_left, GIVEN_BACK_SECONDS_MAX, "what was set aside is given back")


def test_an_input_that_asks_for_more_than_models_may_take_fails_alone(start_server, tmp_path, digits):
    """`as-long` gives as many numbers as its input says; `folded` has a constant of 4 GiB, told in 100 bytes."""
    shutil.copytree(ROOT / "examples/models/digits", tmp_path / "digits")

    def write(name, graph, inputs):
        (tmp_path / name).mkdir()
        outputs = [("y", TensorProto.FLOAT, ["n"])]
        (tmp_path / name / "model.onnx").write_bytes(graph.bytes(name, inputs, outputs))
        (tmp_path / name / "model.toml").write_text('task = "tensors"\n[batch]\naxis = "none"\n')

    as_long, folded = make_models.Graph(), make_models.Graph()
    as_long.node("ConstantOfShape", "x", output="y")
    write("as-long", as_long, [("x", TensorProto.INT64, [1])])
    many = folded.node("ConstantOfShape", folded.constant(np.array([1 << 30], np.int64)))
    folded.node("Add", folded.node("ReduceSum", many, keepdims=0), "x", output="y")
    write("folded", folded, [("x", TensorProto.FLOAT, [1])])
    server = start_server(tmp_path, compute_bytes_max="64MiB")

    def numbers(count):
        tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [count]}
        return requests.post(server.url + "/v2/models/as-long/infer", json={"inputs": [tensor]}, timeout=wire.TIMEOUT)

    (listed,) = (model for model in wire.ok(requests.get(server.url + "/v2/models"))["models"] if model["name"] == "folded")
    assert listed["state"] == "UNAVAILABLE" and "out of memory" in listed["reason"], listed
    for count in (1 << 40, 1 << 33, 1 << 25):
        wire.problem(numbers(count), 413, f"out of memory: ConstantOfShape 'y' needs {4 * count} bytes")
        assert wire.ok(numbers(3))["outputs"][0]["data"] == [0.0] * 3
    _, image, digit = digits[0]
    assert wire.ok(wire.post_image(server, "digits", image))["classes"][0]["label"] == digit


def test_what_a_burst_of_connections_took_goes_back_to_the_system(start_server, only_digits, many_files):
    server = start_server(only_digits)

    def resident():
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024

    def burst(connections):
        with contextlib.ExitStack() as opened:
            sockets = [
                opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                for _ in range(connections)
            ]
            for one in sockets:
                one.sendall(REQUEST)
                assert one.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
            return resident()

    burst(10)
    before = resident()
    peak = burst(CONNECTIONS)
    print(f"{before:.1f} MiB before, {peak:.1f} with {CONNECTIONS} connections")
    assert peak > before + 10, "the burst is too small to show anything"
    until(lambda: resident() < before + LEFT_MAX * (peak - before), GIVEN_BACK_SECONDS_MAX, "the memory is given back")
    print(f"{resident():.1f} MiB in the end")
