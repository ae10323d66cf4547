"""What bad input and a full server get: a clear error, and nothing else is lost."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest
import reference
import requests
import wire
from server import until

GARBAGE = b"this is no image" * 20


def test_bytes_that_are_no_image_are_400(server):
    wire.problem(wire.post_image(server, "digits", GARBAGE), 400, "jpeg", "png")


def test_an_empty_body_is_400(server):
    wire.problem(wire.post_image(server, "digits", b""), 400)


def test_a_truncated_image_is_400(server, digits):
    data = reference.encoded(np.full((200, 300, 3), 90, np.uint8), "JPEG")
    wire.problem(wire.post_image(server, "digits", data[: len(data) // 2]), 400)
    wire.problem(wire.post_image(server, "digits", digits[0][1][:300]), 400)


def test_an_unknown_model_is_404_with_the_nearest_names(server, digits):
    wire.problem(wire.post_image(server, "digit", digits[0][1]), 404, "digit\\b", "digits")
    wire.problem(wire.post_image(server, "digits", digits[0][1], version="77"), 404, "77")
    wire.problem(wire.post_infer(server, "identty", {"x": np.zeros((1, 16), np.float32)}), 404, "identity")


@pytest.mark.parametrize("name", ["..%2f..%2fetc", "%2e%2e", "a%00b", "x" * 5000, "%F0%9F%91%81", "%ff"])
def test_a_hostile_model_name_is_an_error_in_our_form(server, digits, name):
    # Not through requests, which would tidy the path up first.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=wire.TIMEOUT)
    connection.request("POST", f"/predictions/{name}", digits[0][1])
    response = connection.getresponse()
    assert response.status in (400, 404, 414), response.status
    assert json.loads(response.read())["error"]


def test_an_unknown_path_and_a_wrong_method_are_errors_in_our_form(server):
    wire.problem(requests.get(server.url + "/no/such/path", timeout=wire.TIMEOUT), 404)
    response = requests.delete(server.url + "/predictions/digits", timeout=wire.TIMEOUT)
    wire.problem(response, 405)
    assert "POST" in response.headers["Allow"]


def test_a_deadline_ends_the_reading_of_a_body_that_has_not_come(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=wire.TIMEOUT) as connection:
        # The rest never comes; without the deadline, it is waited for.
        head = "POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\ntimeout: 500\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b"{")
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        assert reply.status == 504, reply.status
        told = json.loads(reply.read())["detail"]
        assert told == "the body had not been read to its end when the deadline of 500 ms passed", told


@pytest.mark.parametrize("bytes_sent", [100_000, 20_000_000])
def test_a_refusal_over_http2_reaches_curl_while_it_sends_its_body(server, tmp_path, bytes_sent):
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True) if shutil.which("curl") else None
    if version is None or "HTTP2" not in version.stdout:
        pytest.skip("there is no curl that speaks HTTP/2: install one (apt-get install curl)")
    file = tmp_path / "zeros"
    file.write_bytes(bytes(bytes_sent))
    url = f"{server.url}/predictions/nothing"
    command = ["curl", "-sS", "--http2-prior-knowledge", "-T", file, url, "-w", "\n%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=wire.TIMEOUT)
    assert done.returncode == 0 and done.stdout.endswith("\n404"), (done.returncode, done.stdout, done.stderr)
    assert "unknown model" in done.stdout


def test_an_unsupported_media_type_is_415_unless_the_body_is_an_image(server, digits):
    response = wire.post_image(server, "digits", b"<html>", headers={"Content-Type": "text/html"})
    wire.problem(response, 415, "text/html", "image/")
    for kind in ("text/html", "application/json", "application/png", "multipart/form-data"):
        reply = wire.ok(wire.post_image(server, "digits", digits[0][1], headers={"Content-Type": kind}))
        assert reply["classes"][0]["label"] == digits[0][2], kind


def test_a_model_that_cannot_be_loaded_is_503_and_the_others_are_served(server, digits):
    wire.problem(wire.post_infer(server, "broken", {"x": np.zeros((1, 16), np.float32)}), 503, "broken")
    wire.ok(wire.post_image(server, "digits", digits[0][1]))


def test_one_bad_image_among_many_fails_alone(server, digits):
    (_, first, a), (_, last, b) = digits[1], digits[2]
    response = wire.post_files(server, "digits", [("a.png", first), ("bad.jpg", GARBAGE), ("b.png", last)])
    entries = wire.many(response, "classify", 3)
    assert wire.best(entries[0]["classes"]) == a and wire.best(entries[2]["classes"]) == b
    wire.failed_entry(entries[1], 400)
    response = wire.post_instances(server, "digits", [GARBAGE, first], "b64")
    entries = wire.many(response, "classify", 2)
    wire.failed_entry(entries[0], 400)
    assert wire.best(entries[1]["classes"]) == a


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"instances":7}', b'{"instances":[]}', b'{"instances":[{"b64":7}]}', b'{"instances":[{}]}'],
)
def test_malformed_instances_are_400(server, body):
    url = wire.prediction_url(server, "digits")
    wire.problem(requests.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=wire.TIMEOUT), 400)


def test_an_instance_that_is_not_base64_is_400(server):
    body = {"instances": [{"b64": "?!?!"}]}
    response = requests.post(wire.prediction_url(server, "digits"), json=body, timeout=wire.TIMEOUT)
    if response.status_code == 200:
        [entry] = wire.many(response, "classify", 1)
        wire.failed_entry(entry, 400)
    else:
        wire.problem(response, 400)


def test_wrong_tensors_are_400_with_expected_and_got(server):
    x = np.zeros((1, 16), np.float32)
    good = wire.tensor("x", x)
    for bad, *says in (
        ({**good, "name": "z"}, "z", "x"),
        ({**good, "datatype": "INT32"}, "INT32", "FP32"),
        ({**good, "datatype": "FP99"}, "FP99"),
        ({**good, "shape": [1, 15], "data": [0.0] * 15}, "15", "16"),
        ({**good, "shape": [16]}, "16"),
        ({**good, "shape": [2, 16]}, "16", "32"),
        ({**good, "shape": [-1, 16]}, "-1"),
        ({**good, "shape": [2**40, 2**40]}, "shape"),
        ({**good, "data": ["one"] * 16},),
        ({k: v for k, v in good.items() if k != "data"}, "data"),
    ):
        wire.problem(wire.post_infer(server, "identity", [bad]), 400, *says)
    wire.problem(wire.post_infer(server, "add", {"a": np.zeros((1, 4), np.float32)}), 400, "b")
    wire.problem(wire.post_infer(server, "identity", [good, good]), 400, "x")
    wire.problem(wire.post_infer(server, "identity", [good], outputs=[{"name": "nope"}]), 400, "nope", "y")
    wire.problem(wire.post_infer(server, "fixed1", {"x": np.zeros((2, 4), np.float32)}), 400, "2", "1")


def test_an_input_that_the_model_refuses_fails_alone(server):
    """Sixteen callers at once, whose items share batches; every fourth asks for a row that is not there."""
    replies = [None] * 16

    def ask(i):
        index = 99 if i % 4 == 0 else i % 8
        replies[i] = wire.post_infer(server, "refuse", {"index": np.int64([[index]])})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, reply in enumerate(replies):
        if i % 4 == 0:
            wire.problem(reply, 400)
        else:
            row = wire.arrays(wire.ok(reply)["outputs"])["row"]
            assert row.tolist() == [[4.0 * (i % 8) + k for k in range(4)]], (i, row)


def test_results_that_json_cannot_hold_are_the_words_of_triton_where_its_clients_ask(server):
    response = wire.post_infer(server, "nan", {"x": np.float32([[-1, 0, 1, 2]])})
    assert response.status_code == 200, response.text
    (output,) = json.loads(response.text)["outputs"]
    assert np.isnan(output["data"]).any(), output
    predicted = requests.post(f"{server.url}/v1/models/nan:predict", json={"instances": [[-1, 0, 1, 2]]}, timeout=wire.TIMEOUT)
    assert None in wire.ok(predicted)["predictions"][0]


def test_a_late_answer_is_504(server):
    picture = reference.png(np.full((224, 224, 3), 100, np.uint8))
    # A forward pass of this model takes tens of milliseconds on any CPU.
    wire.problem(wire.post_image(server, "resnet18", picture, headers={"timeout": "1"}), 504)
    for bad in ("soon", "-5", "1e3"):
        wire.problem(wire.post_image(server, "digits", picture, headers={"timeout": bad}), 400, "timeout")


def test_a_deadline_of_the_callers_own_is_no_failure_of_the_server(server):
    def counted(model):
        text = requests.get(f"{server.url}/metrics", timeout=10).text
        found = re.findall(rf'^ocelli_outcomes_total{{model="{model}",outcome="(late|hasty)"}} (\d+)$', text, re.MULTILINE)
        return {outcome: int(count) for outcome, count in found}

    picture = reference.png(np.full((224, 224, 3), 100, np.uint8))
    before = counted("resnet18")
    wire.problem(wire.post_image(server, "resnet18", picture, headers={"timeout": "1"}), 504)
    assert counted("resnet18") == before | {"hasty": before["hasty"] + 1}
    endless = {"x": np.float32([[1e12]])}
    before = counted("slow")
    wire.problem(wire.post_infer(server, "slow", endless, parameters={"timeout": 200_000}), 504)
    assert counted("slow") == before | {"hasty": before["hasty"] + 1}


def test_a_run_without_end_is_ended_once_nobody_waits_for_it(server):
    # Weeks of work on the thread that all models of the CPU share.
    endless = {"x": np.float32([[1e12]])}
    wire.problem(wire.post_infer(server, "slow", endless, parameters={"timeout": 200_000}), 504)
    one = np.ones((1, 16), np.float32)
    assert np.array_equal(wire.infer(server, "identity", {"x": one})["y"], one)


def test_the_server_is_sound_after_all_this(server, digits):
    for _, data, digit in digits:
        classes, _ = wire.one(wire.post_image(server, "digits", data), "classify")
        assert wire.best(classes) == digit


# --- Limits: a server of its own, with small ones -------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(start_server, only_digits):
    options = {"body_bytes_max": "1MiB", "image_pixels_max": 100_000, "requests_in_flight_max": 1, "parts_max": 4}
    return start_server(only_digits, **options)


def test_a_large_body_is_413_with_the_limit_and_the_option(small):
    wire.problem(wire.post_image(small, "digits", bytes(2 << 20)), 413, "1048576", "body_bytes_max")


def test_a_large_body_is_refused_before_it_is_sent(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=wire.TIMEOUT) as connection:
        head = "POST /predictions/digits HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


def test_a_large_image_is_413_before_it_is_decoded(small):
    data = reference.png(np.zeros((400, 400, 3), np.uint8))
    wire.problem(wire.post_image(small, "digits", data), 413, "160000", "100000", "image_pixels_max")


def test_images_of_one_tensor_that_need_more_memory_than_there_is_are_decoded_in_turn(start_server, only_digits):
    # Each takes nearly half of it: those that are decoded must not wait for the others before they let go of theirs.
    server = start_server(only_digits, image_pixels_max=40_000, decode_bytes_max=256_000)
    file = reference.png(np.zeros((200, 200, 3), np.uint8))
    data = (len(file).to_bytes(4, "little") + file) * 8
    given = {"name": "image", "shape": [8], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    response = requests.post(
        f"{server.url}/v2/models/digits/infer", data=head + data, headers=headers, timeout=wire.TIMEOUT
    )
    assert response.status_code == 200, response.text
    assert response.json()["outputs"][0]["shape"] == [8, 10]
    assert server.stop() == 0


def test_too_many_parts_are_413(small, digits):
    response = wire.post_files(small, "digits", [(name, data) for name, data, _ in digits])
    wire.problem(response, 413, "parts_max")


def test_a_full_server_is_429_with_retry_after(small, digits):
    data = digits[0][1]
    def taken(places):
        return f"\nocelli_requests_in_flight {places}\n" in requests.get(f"{small.url}/metrics", timeout=wire.TIMEOUT).text

    # A place is given back after the reply went out: the one that holds it here must not meet the request before it.
    until(lambda: taken(0), 20, "all places are free")
    # Holds the only place: the headers are there, most of the body is not.
    with socket.create_connection(("127.0.0.1", small.port), timeout=wire.TIMEOUT) as connection:
        head = f"POST /predictions/digits HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[:10])
        # Nor the requests after it, one of which could take the place first.
        until(lambda: taken(1), 20, "the place is taken")
        wire.problem(wire.post_image(small, "digits", data), 429)
        assert small.status("/v2/health/ready") == 200, "a full server is still ready"
        connection.sendall(data[10:])
        assert connection.recv(64).startswith(b"HTTP/1.1 200"), "the one that held the place is answered"
    until(lambda: wire.post_image(small, "digits", data).status_code == 200, 20, "there is room again")
