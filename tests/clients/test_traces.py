"""Traces at a collector: one that takes OTLP over HTTP, as far as the protocol asks."""

import base64
import gzip
import io
import json
import os
import queue
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import make_models
import numpy as np
import pytest
import requests
import tifffile
import tritonclient.grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from server import ROOT, until

SECONDS_MAX = 60
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-00"
MILLISECOND = 1_000_000


class Take(BaseHTTPRequestHandler):
    """Takes spans."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.posts.append((self.path, self.headers["Content-Type"]))
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append({a.key: a.value.string_value for a in of_resource.resource.attributes})
            for of_scope in of_resource.scope_spans:
                self.server.spans.extend(of_scope.spans)
        reply = ExportTraceServiceResponse()
        if self.server.rejects:
            reply.partial_success.rejected_spans = self.server.rejects
            reply.partial_success.error_message = "over quota"
        reply = reply.SerializeToString()
        self.send_response(200 if self.server.statuses is None else self.server.statuses.pop(0))
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


@pytest.fixture
def collector():
    """A collector that keeps what it gets."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    server.daemon_threads = True
    server.spans, server.resources, server.posts = [], [], []
    server.rejects, server.statuses = 0, None
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hanging():
    """A collector that takes connections and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server_url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield SimpleNamespace(url=server_url)


@pytest.fixture
def start(start_server, only_digits, collector):
    """Starts a server that sends its traces; they are all there once it has ended."""

    def start(**options):
        return start_server(only_digits, otlp_endpoint=collector.url, **{"trace_sample_ratio": 1, **options})

    return start


def attributes(span):
    """What a span says of itself."""
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def of_trace(collector, trace):
    """The spans of a trace by their names, the request's own first."""
    spans = [span for span in collector.spans if span.trace_id.hex() == trace]
    return sorted(spans, key=lambda span: (span.kind != Span.SPAN_KIND_SERVER, span.start_time_unix_nano))


def post(server, picture, **headers):
    return requests.post(f"{server.url}/predictions/digits", data=picture, headers=headers, timeout=SECONDS_MAX)


def test_a_request_is_a_span_under_the_caller_with_its_stages_below(start, collector, digits):
    server = start()
    reply = post(server, digits[3][1], traceparent=PARENT, tracestate="vendor=1", **{"x-request-id": "mine"})
    assert server.stop() == 0

    request, *stages = of_trace(collector, TRACE)
    assert [stage.name for stage in stages] == ["decode", "queue", "stage", "compute", "encode"]
    assert request.parent_span_id.hex() == CALLER and request.trace_state == "vendor=1"
    assert request.name == "POST /predictions/{model}" and request.kind == Span.SPAN_KIND_SERVER
    said = attributes(request)
    assert said["http.response.status_code"] == 200 and said["ocelli.request.id"] == "mine"
    assert said["http.route"] == "/predictions/{model}" and said["http.request.method"] == "POST"
    assert said["url.path"] == "/predictions/digits" and said["url.scheme"] == "http"
    # What the reply's header says is this span, marked as sent.
    assert reply.headers["traceparent"] == f"00-{TRACE}-{request.span_id.hex()}-01"

    end = request.start_time_unix_nano
    for stage in stages:
        assert stage.parent_span_id == request.span_id
        assert request.start_time_unix_nano <= stage.start_time_unix_nano <= stage.end_time_unix_nano
        assert stage.end_time_unix_nano <= request.end_time_unix_nano
        # One after the other; the clocks of two are one.
        assert stage.start_time_unix_nano >= end - MILLISECOND
        end = stage.end_time_unix_nano
    timing = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    for stage in stages[:4]:
        took = (stage.end_time_unix_nano - stage.start_time_unix_nano) / MILLISECOND
        assert abs(took - float(timing[stage.name])) < 0.01, (stage.name, took, timing)
    assert attributes(stages[3]) == {"ocelli.device": "cpu", "ocelli.model": "digits", "ocelli.batch.items": 1}

    (link,) = request.links
    (batch,) = [span for span in collector.spans if span.span_id == link.span_id]
    assert batch.name == "batch" and batch.trace_id == link.trace_id
    assert (batch.start_time_unix_nano, batch.end_time_unix_nano) == (
        stages[2].start_time_unix_nano,
        stages[3].end_time_unix_nano,
    )
    assert {path for path, _ in collector.posts} == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "ocelli" and collector.resources[0]["service.version"]
    assert collector.resources[0]["telemetry.sdk.language"] == "rust" and collector.resources[0]["telemetry.sdk.version"]


@pytest.mark.parametrize(
    ("method", "path", "name", "route", "known"),
    [
        ("GET", "/nowhere/x", "GET", None, "GET"),
        ("FROBNICATE", "/predictions/digits", "HTTP /predictions/{model}", "/predictions/{model}", "_OTHER"),
        ("OTHER", "/nowhere", "HTTP", None, "_OTHER"),
    ],
)
def test_nothing_that_a_caller_chose_names_a_span(start, collector, method, path, name, route, known):
    server = start()
    requests.request(method, server.url + path, headers={"traceparent": PARENT}, timeout=SECONDS_MAX)
    assert server.stop() == 0
    (request,) = of_trace(collector, TRACE)
    said = attributes(request)
    assert (request.name, said.get("http.route"), said["http.request.method"]) == (name, route, known)
    assert said.get("http.request.method_original") == (None if known == method else method)
    assert said["url.path"] == path


def test_requests_of_one_batch_link_to_one_span(start, collector, digits):
    server = start()
    files = [("data", (name, picture)) for name, picture, _ in digits]
    reply = requests.post(f"{server.url}/predictions/digits", files=files, timeout=SECONDS_MAX)
    assert reply.status_code == 200 and server.stop() == 0
    (request,) = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER and "predictions" in span.name]
    batches = {span.span_id: attributes(span)["ocelli.batch.items"] for span in collector.spans if span.name == "batch"}
    linked = [link.span_id for link in request.links]
    assert sorted(linked) == sorted(batches), "each batch is sent once and linked once"
    assert sum(batches.values()) == len(digits)


def test_tensors_grpc_and_streams_have_the_same_stages(start, collector, digits):
    server = start()
    x = np.zeros((1, 1, 32, 32), np.float32)
    body = {"inputs": [{"name": "image", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
    traces = []

    def sent(reply):
        assert reply.status_code == 200, reply.text
        traces.append(reply.headers["traceparent"].split("-")[1])

    sent(requests.post(f"{server.url}/v2/models/digits/infer", json=body, timeout=SECONDS_MAX))
    rows = {"instances": x.tolist()}
    sent(requests.post(f"{server.url}/v1/models/digits:predict", json=rows, timeout=SECONDS_MAX))
    files = [("data", (name, picture)) for name, picture, _ in digits[:2]]
    sent(
        requests.post(
            f"{server.url}/predictions/digits", files=files, headers={"Accept": "application/x-ndjson"}, timeout=SECONDS_MAX
        )
    )
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        tensor = tritonclient.grpc.InferInput("image", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        client.infer("digits", [tensor], headers={"traceparent": PARENT})
    assert server.stop() == 0

    stages = ["decode", "queue", "stage", "compute", "encode"]
    for trace, times in zip([*traces, TRACE], [1, 1, 2, 1]):
        request, *rest = of_trace(collector, trace)
        assert sorted(span.name for span in rest) == sorted(stages * times), trace
        assert all(span.end_time_unix_nano <= request.end_time_unix_nano for span in rest)
    call = of_trace(collector, TRACE)[0]
    assert call.name == "inference.GRPCInferenceService/ModelInfer" and call.parent_span_id.hex() == CALLER
    # By OpenTelemetry's conventions for RPC.
    said = {a.key: a.value for a in call.attributes}
    assert said["rpc.grpc.status_code"].WhichOneof("value") == "int_value" and said["rpc.grpc.status_code"].int_value == 0
    assert said["rpc.service"].string_value == "inference.GRPCInferenceService"
    assert said["rpc.method"].string_value == "ModelInfer" and said["rpc.system"].string_value == "grpc"
    assert not any(key.startswith("http.") for key in said), said


ROUND = ["decode", "queue", "stage", "compute", "encode"]


def test_every_way_to_a_model_has_its_stages(start_server, collector, models, digits):
    """The others: TorchServe's form, pictures in tensors, streams of tensors and of gRPC, masks as pictures."""
    server = start_server(models, otlp_endpoint=collector.url, trace_sample_ratio=1, torchserve_answers="on")
    picture = digits[3][1]
    expected = {}

    def sent(reply, *stages):
        assert reply.status_code == 200, reply.text
        expected[reply.headers["traceparent"].split("-")[1]] = sorted(stages)

    sent(post(server, picture), *ROUND)
    sent(requests.post(f"{server.url}/predictions/segment", data=picture, headers={"Accept": "image/png"}, timeout=SECONDS_MAX), *ROUND)
    encoded = {"instances": [{"b64": base64.b64encode(picture).decode()}] * 2}
    sent(requests.post(f"{server.url}/v1/models/digits:predict", json=encoded, timeout=SECONDS_MAX), *ROUND, *ROUND)
    x = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
    infer = f"{server.url}/v2/models/identity/infer"
    sent(requests.post(infer, json={"inputs": [x]}, headers={"Accept": "text/event-stream"}, timeout=SECONDS_MAX), *ROUND)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result), headers={"traceparent": PARENT})
        tensor = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
        for _ in range(3):
            client.async_stream_infer("identity", [tensor])
            assert isinstance(answers.get(timeout=SECONDS_MAX), tritonclient.grpc.InferResult)
        client.stop_stream()
    expected[TRACE] = sorted(ROUND * 3)
    assert server.stop() == 0
    for trace, stages in expected.items():
        request, *rest = of_trace(collector, trace)
        assert sorted(span.name for span in rest) == stages, request.name
        assert all(span.parent_span_id == request.span_id for span in rest)


def test_a_stack_has_its_stages_too_and_the_span_lasts_as_long_as_its_reply(start_server, collector):
    server = start_server(ROOT / "examples" / "models", otlp_endpoint=collector.url, trace_sample_ratio=1)
    movie = (ROOT / "examples" / "images" / "spots.tif").read_bytes()
    traces = []
    for path in ("/predictions/spots?format=csv", "/predictions/spots?format=png", "/v2/models/spots/infer"):
        body = movie
        headers = {}
        if "infer" in path:
            frames = tifffile.imread(io.BytesIO(movie))[:20]
            body = {"inputs": [{"name": "frames", "shape": frames.shape, "datatype": "UINT16", "data": frames.ravel().tolist()}]}
            body = json.dumps(body).encode()
        reply = requests.post(server.url + path, data=body, headers=headers, timeout=SECONDS_MAX)
        assert reply.status_code == 200, reply.text
        traces.append((reply.headers["traceparent"].split("-")[1], reply))
    assert server.stop() == 0
    for trace, reply in traces:
        request, *rest = of_trace(collector, trace)
        assert {span.name for span in rest} == set(ROUND), request.name
        spent = {name: [s for s in rest if s.name == name] for name in ROUND}
        assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in spent["decode"] + spent["encode"])
        assert all(span.end_time_unix_nano <= request.end_time_unix_nano for span in rest), "what follows the head counts"
        # Batches are looked for before they run, and told after.
        assert min(s.end_time_unix_nano for s in spent["decode"]) <= min(s.end_time_unix_nano for s in spent["queue"])
        assert max(s.end_time_unix_nano for s in spent["encode"]) >= max(s.end_time_unix_nano for s in spent["compute"])
    timing = dict(part.split(";dur=") for part in traces[1][1].headers["server-timing"].split(", "))
    assert float(timing["decode"]) > 0, timing


def test_only_the_sampled_part_is_sent_and_every_failure_of_ours(start_server, collector, tmp_path):
    make_models.write(tmp_path, ["slow"])
    server = start_server(tmp_path, otlp_endpoint=collector.url, trace_sample_ratio=0)

    def post(products, **headers):
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [products]}]}
        return requests.post(f"{server.url}/v2/models/slow/infer", json=body, headers=headers, timeout=SECONDS_MAX)

    reply = post(1, traceparent=PARENT.removesuffix("00") + "01")
    assert reply.status_code == 200 and reply.headers["traceparent"].endswith("-00"), "we decide, not the caller"
    assert requests.post(f"{server.url}/v2/models/slow/infer", data=b"{", timeout=SECONDS_MAX).status_code == 400
    assert post(1000, timeout="1").status_code == 504
    assert server.stop() == 0
    requested = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [attributes(span)["http.response.status_code"] for span in requested] == [504]
    assert requested[0].status.code == Status.STATUS_CODE_ERROR


def test_lines_of_the_log_have_the_id_of_the_trace(start, collector):
    server = start(log_format="json")
    post(server, b"no image", traceparent=PARENT)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    spans = [span for line in lines if line["message"] == "answered" for span in line["spans"]]
    assert TRACE in [span["fields"]["trace"] for span in spans]


def test_lines_of_the_log_are_events_of_the_span(start, collector):
    """Whatever the log itself is made to show."""
    server = start(log_filter="error")
    assert post(server, b"no image", traceparent=PARENT).status_code == 400
    assert server.stop() == 0
    (request,) = of_trace(collector, TRACE)
    events = {event.name: attributes(event) for event in request.events}
    assert events["answered"]["status"] == 400 and "not an image" in events["answered"]["error"], events
    assert events["answered"]["level"] == "INFO"
    # A caller's mistake is none of the server's.
    assert request.status.code == Status.STATUS_CODE_UNSET
    assert "answered" not in server.log_text()


def test_a_collector_that_is_not_there_costs_no_request(start_server, only_digits, digits):
    server = start_server(only_digits, otlp_endpoint="http://127.0.0.1:1", trace_sample_ratio=1)
    assert post(server, digits[3][1]).status_code == 200
    assert server.stop() == 0
    assert until(lambda: "the collector takes no traces" in server.log_text(), SECONDS_MAX, "the log says so")
    assert server.log_text().count("the collector takes no traces") == 1


def test_without_a_collector_the_trace_goes_on_in_the_reply(server, digits):
    reply = post(server, digits[3][1], traceparent=PARENT)
    _, trace, span, flags = reply.headers["traceparent"].split("-")
    assert (trace, flags) == (TRACE, "00") and span != CALLER


def spans_lost(server):
    """How many, by the reason."""
    text = requests.get(f"{server.url}/metrics", timeout=SECONDS_MAX).text
    return {reason: int(count) for reason, count in re.findall(r'ocelli_trace_spans_lost_total{reason="(\w+)"} (\d+)', text)}


def test_spans_that_do_not_arrive_are_counted_and_told(start_server, only_digits, collector, digits):
    collector.rejects = 2
    often = os.environ | {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    server = start_server(only_digits, environment=often, otlp_endpoint=collector.url, trace_sample_ratio=1)
    assert spans_lost(server) == {"queue": 0, "collector": 0, "rejected": 0}
    assert post(server, digits[3][1]).status_code == 200
    until(lambda: spans_lost(server)["rejected"] >= 2, SECONDS_MAX, "they are counted")
    assert "the collector rejects spans" in server.log_text() and "over quota" in server.log_text()


def test_spans_that_find_no_place_are_counted(start_server, only_digits, collector, digits):
    none = os.environ | {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}
    server = start_server(only_digits, environment=none, otlp_endpoint=collector.url, trace_sample_ratio=1)
    assert post(server, digits[3][1]).status_code == 200
    until(lambda: spans_lost(server)["queue"] >= 7, SECONDS_MAX, "they are counted")


def test_a_batch_that_is_taken_when_it_is_sent_again_is_not_lost(start_server, only_digits, collector, digits):
    collector.statuses = [503] + [200] * 1000
    server = start_server(only_digits, otlp_endpoint=collector.url, trace_sample_ratio=1)
    assert post(server, digits[3][1], traceparent=PARENT).status_code == 200
    assert server.stop() == 0
    assert len(collector.statuses) < 1000, "it was sent again"
    assert of_trace(collector, TRACE) and "the collector" not in server.log_text()


def test_a_second_signal_does_not_wait_for_the_collector(start_server, only_digits, digits, hanging):
    server = start_server(only_digits, otlp_endpoint=hanging.url, trace_sample_ratio=1, drain_timeout_ms=3_600_000)
    for _ in range(3):
        assert post(server, digits[3][1]).status_code == 200
    server.terminate()
    server.insist()
    assert "ended while traces were on their way" in server.log_text()
