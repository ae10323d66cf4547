"""What replies take counts as bytes in flight: their tensors and their text, from when they are made until they have been sent."""

import base64
import json
import re
import struct

import grpc
import http2
import pytest
import requests
import wire
from server import until
from tritonclient.grpc import service_pb2

INFER = "/inference.GRPCInferenceService/ModelInfer"
# What image-identity gives, in bytes, and the fewest that its pixels take as text.
PIXELS = 3 * 224 * 224 * 4
TEXT = 3 * 224 * 224 * 4
FORMS = ["binary", "text", "parts", "v1", "predictions", "predictions in parts", "gRPC"]


@pytest.fixture
def serve(start_server, models, tmp_path):
    (tmp_path / "image-identity").symlink_to(models / "image-identity")
    return lambda **options: start_server(tmp_path, **options)


def asked(server, form, image):
    """How the pixels of an image are asked for: port, path, headers and body."""
    if form == "gRPC":
        ask = service_pb2.ModelInferRequest(model_name="image-identity")
        ask.inputs.add(name="image", datatype="BYTES", shape=[1])
        ask.raw_input_contents.append(struct.pack("<I", len(image)) + image)
        body = ask.SerializeToString()
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
        return server.grpc_port, INFER, headers, struct.pack(">BI", 0, len(body)) + body
    text = base64.b64encode(image).decode()
    streamed = [("accept", "application/x-ndjson")] if form.endswith("parts") else []
    if form.startswith("predictions"):
        return server.port, "/predictions/image-identity", streamed, image
    if form == "v1":
        return server.port, "/v1/models/image-identity:predict", [], json.dumps({"instances": [{"b64": text}]}).encode()
    given = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    output = {"name": "pixels", "parameters": {"binary_data": form == "binary"}}
    body = json.dumps({"inputs": [given], "outputs": [output]}).encode()
    return server.port, "/v2/models/image-identity/infer", streamed, body


def in_flight(server):
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    return int(re.search(r"^ocelli_in_flight_bytes (\d+)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("form", FORMS)
def test_what_a_reply_takes_is_in_flight_until_it_has_been_taken(serve, digits, form):
    server = serve()
    port, path, headers, body = asked(server, form, digits[0][1])
    window, streams = 1000, [1, 3, 5]
    with http2.Connection(port, window) as connection:
        for stream in streams:
            connection.post(stream, path, headers, body)
        got = connection.begun(streams, window)
        least = PIXELS if form in ("binary", "gRPC") else TEXT
        assert in_flight(server) >= len(streams) * least
        for stream in [0, *streams]:
            connection.open(stream, 1 << 30)
        got = connection.ended(got)
    assert min(len(data) for data in got.values()) >= least
    until(lambda: in_flight(server) == 0, 60, "nothing is in flight")
    assert server.stop() == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_that_may_never_be_held_is_refused_and_the_next_request_is_answered(serve, digits, form):
    # Less than the tensor, or than it and the text beside it, or the bytes that are sent.
    room = "580KiB" if form == "binary" else "1MiB"
    server = serve(in_flight_bytes_max=room, body_bytes_max="512KiB")
    for _ in range(2):
        port, path, headers, body = asked(server, form, digits[0][1])
        if form == "gRPC":
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(body[5:], timeout=wire.TIMEOUT)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
            told = refused.value.details()
            assert "in_flight_bytes_max" in told, told
        else:
            with http2.Connection(port, 1 << 20) as connection:
                connection.post(1, path, headers, body)
                told = connection.answer()
            assert b"in_flight_bytes_max" in told and b'"status":413' in told, told
        assert len(told) < 2000
        until(lambda: in_flight(server) == 0, 60, "nothing is in flight")
    assert server.status("/v2/health/ready") == 200
    assert server.stop() == 0
