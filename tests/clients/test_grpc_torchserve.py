"""TorchServe's own gRPC service, with clients made from the definition that the server tells of."""

import json
import shutil

import grpc
import pytest
import requests
import test_grpc
import wire
from google.protobuf import descriptor_pool, message_factory
from server import ROOT

SECONDS = test_grpc.SECONDS
PACKAGE = "org.pytorch.serve.grpc.inference"
SERVICE = f"/{PACKAGE}.InferenceAPIsService"


class Client:
    """The calls of a channel to a server."""

    def __init__(self, channel):
        self.channel = channel
        pool = descriptor_pool.DescriptorPool()
        for symbol in ("google.protobuf.Empty", f"{PACKAGE}.InferenceAPIsService"):
            (file,) = test_grpc.reflected(channel, symbol).file
            pool.Add(file)
        self.messages = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name in ("PredictionsRequest", "PredictionResponse", "TorchServeHealthResponse")
        }

    def ping(self):
        call = self.channel.unary_unary(f"{SERVICE}/Ping")
        return json.loads(self.messages["TorchServeHealthResponse"].FromString(call(b"", timeout=SECONDS)).health)

    def ask(self, model, files, version="", streamed=False, **call):
        """What comes back: one message, or all that are streamed."""
        request = self.messages["PredictionsRequest"](model_name=model, model_version=version, input=files)
        kind = self.channel.unary_stream if streamed else self.channel.unary_unary
        send = kind(
            f"{SERVICE}/{'Stream' if streamed else ''}Predictions",
            type(request).SerializeToString,
            self.messages["PredictionResponse"].FromString,
        )
        reply = send(request, timeout=SECONDS, **call)
        return [json.loads(one.prediction) for one in reply] if streamed else json.loads(reply.prediction)


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


@pytest.fixture(scope="module")
def client(channel):
    return Client(channel)


def test_fields_have_the_numbers_and_types_of_torchserve(client):
    fields = {
        f"{name}.{field.name}": (field.number, field.type, field.is_repeated)
        for name, message in client.messages.items()
        for field in message.DESCRIPTOR.fields
    }
    string, data, message = 9, 12, 11
    assert fields == {
        "PredictionsRequest.model_name": (1, string, False),
        "PredictionsRequest.model_version": (2, string, False),
        "PredictionsRequest.input": (3, message, True),
        "PredictionResponse.prediction": (1, data, False),
        "TorchServeHealthResponse.health": (1, string, False),
    }
    entry = client.messages["PredictionsRequest"].DESCRIPTOR.fields_by_name["input"].message_type
    assert entry.GetOptions().map_entry and [field.type for field in entry.fields] == [string, data]


def test_a_file_is_answered_as_over_http_in_torchserves_form(server, client, digits):
    for _, image, digit in digits[:4]:
        best = wire.ok(wire.post_image(server, "digits", image, query={"format": "torchserve"}))
        assert list(best)[0] == digit
        for name in ("data", "body"):
            assert client.ask("digits", {name: image, "other": b"x"}) == best
        assert client.ask("digits", {"data": image}, version="1") == best
        assert client.ask("digits", {"data": image}, streamed=True) == [best]
    # What TorchServe has no form for is answered as over HTTP; where time went is told as well.
    image = digits[0][1]
    own = wire.ok(wire.post_image(server, "embed", image))
    assert client.ask("embed", {"data": image}) == own


def test_ping_says_whether_predictions_are_answered(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=20_000)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        client = Client(channel)
        assert client.ping() == {"status": "Healthy"}
        server.terminate()
        test_grpc.until(lambda: client.ping() == {"status": "Unhealthy"}, SECONDS, "it drains")
    server.kill()


def test_what_cannot_be_answered_says_why_and_is_counted(server, client, channel, digits):
    image = digits[0][1]
    fails, ask = test_grpc.fails, client.ask
    before = counts(server)
    fails(lambda: ask("digit", {"data": image}), "NOT_FOUND", "digits")
    fails(lambda: ask("digits", {"data": image}, version="7"), "NOT_FOUND", "7")
    fails(lambda: ask("digits", {}), "INVALID_ARGUMENT", "nothing", '"data" or "body"')
    fails(lambda: ask("digits", {"image": image}), "INVALID_ARGUMENT", '"image"')
    fails(lambda: ask("digits", {"data": b"no image"}, streamed=True), "INVALID_ARGUMENT", "image")
    fails(lambda: ask("identity", {"data": image}), "INVALID_ARGUMENT", "takes tensors", "/v2/models/identity/infer")
    fails(lambda: ask("digits", {str(i): b"" for i in range(5000)}), "INVALID_ARGUMENT", "5000", "4096")
    fails(lambda: ask("digits", {"data": image}, metadata=[("timeout", "0")]), "INVALID_ARGUMENT", "timeout")
    other = channel.stream_stream(f"{SERVICE}/StreamPredictions2")
    fails(lambda: list(other(iter([b""]), timeout=SECONDS)), "UNIMPLEMENTED", "StreamPredictions2")
    ask("digits", {"data": image})
    after = counts(server)
    # Too many entries are refused before the model is known.
    assert {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)} == {
        ("digits", "ok"): 1,
        ("digits", "bad_request"): 4,
        ("digits", "decode"): 1,
        ("identity", "bad_request"): 1,
    }


def counts(server):
    """Outcomes by model and reason."""
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    lines = [line for line in text.splitlines() if line.startswith("ocelli_outcomes_total{")]
    labels = lambda line: tuple(part.split('"')[1] for part in line.split("{")[1].split("}")[0].split(","))  # noqa: E731
    return {labels(line): int(line.rsplit(" ", 1)[1]) for line in lines}


def test_a_file_that_is_too_large_is_refused_by_its_length(start_server, only_digits, digits):
    server = start_server(only_digits, body_bytes_max=200_000)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        client = Client(channel)
        error = test_grpc.fails(lambda: client.ask("digits", {"data": bytes(300_000)}), "RESOURCE_EXHAUSTED", "200000")
        assert "body_bytes_max" in error.details()
        assert client.ask("digits", {"data": digits[0][1]})


def test_stacks_of_frames_are_sent_elsewhere(start_server, tmp_path):
    shutil.copytree(ROOT / "examples" / "models" / "spots", tmp_path / "spots")
    server = start_server(tmp_path)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        test_grpc.fails(lambda: Client(channel).ask("spots", {"data": b"II*"}), "INVALID_ARGUMENT", "over HTTP, to /predictions/spots")
