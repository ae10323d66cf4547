"""Replies that come item by item: lines of JSON and events."""

import io
import json
import re
import struct
import zlib

import numpy as np
import pytest
import reference
import requests
import tifffile
import wire
from server import ROOT, until


def lines(response):
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.iter_lines()]


def events(response):
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    blocks = [block.split("\n") for block in response.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def post(server, model, parts, accept, **options):
    files = [("data", (f"{i}", data)) for i, data in enumerate(parts)]
    url = f"{server.url}/predictions/{model}"
    return requests.post(url, files=files, headers={"Accept": accept}, timeout=wire.TIMEOUT, **options)


@pytest.mark.parametrize("form", ["lines", "events"])
def test_answers_for_images_come_in_order_with_errors_in_their_place(server, digits, form):
    images = [image for _, image, _ in digits] * 8
    images[3] = b"no image"
    if form == "lines":
        *answers, done = lines(post(server, "digits", images, "application/x-ndjson"))
    else:
        *named, (last, done) = events(post(server, "digits", images, "text/event-stream"))
        assert last == "done" and [name for name, _ in named].count("error") == 1
        answers = [answer for _, answer in named]
    assert [answer["index"] for answer in answers] == list(range(len(images)))
    assert "not an image" in answers[3]["error"] and answers[3]["status"] == 400
    got = [answer["classes"][0]["label"] for i, answer in enumerate(answers) if i != 3]
    assert got == [digit for i, (_, _, digit) in enumerate(digits * 8) if i != 3]
    assert done == {"done": {"answered": len(images) - 1, "failed": 1}}


def test_masks_are_streamed_where_that_is_liked_best_or_no_picture_can_be_the_reply(server):
    picture = reference.png(np.zeros((8, 8, 3), np.uint8))
    for pictures, accept in (
        ([picture], "application/x-ndjson, image/png"),
        ([picture] * 2, "image/png, application/x-ndjson"),
    ):
        *answers, done = lines(post(server, "segment", pictures, accept))
        assert [answer["mask"]["width"] for answer in answers] == [8] * len(pictures)
        assert done["done"] == {"answered": len(pictures), "failed": 0}


def test_the_frames_of_a_file_are_answers_of_their_own(server):
    pages = (ROOT / "examples" / "images" / "digits-3-7.tif").read_bytes()
    *answers, done = lines(post(server, "digits", [pages, pages], "application/x-ndjson"))
    assert [answer["classes"][0]["label"] for answer in answers] == ["3", "7", "3", "7"]
    assert done["done"]["answered"] == 4


def test_items_of_tensors_come_batch_by_batch(server):
    x = np.arange(100 * 16, dtype=np.float32).reshape(100, 16)
    head = {"name": "x", "shape": [100, 16], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    # The 40th item is in the third part, and has no form in JSON.
    bad = x.copy()
    bad[40, 3] = np.nan
    body = json.dumps({"id": "mine", "inputs": [head]}).encode()

    def ask(data):
        reply = requests.post(
            f"{server.url}/v2/models/identity/infer",
            data=body + data.tobytes(),
            headers={"Accept": "application/x-ndjson", "Inference-Header-Content-Length": str(len(body))},
            timeout=wire.TIMEOUT,
        )
        *parts, done = lines(reply)
        assert [part["first_item"] for part in parts] == list(range(0, 100, 16))
        assert [line["id"] for line in (*parts, done)] == ["mine"] * (len(parts) + 1)
        return parts, done["done"]

    parts, done = ask(x)
    got = np.concatenate([np.reshape(part["outputs"][0]["data"], part["outputs"][0]["shape"]) for part in parts])
    assert (got == x).all() and done == {"answered": len(parts), "failed": 0}
    parts, done = ask(bad)
    assert [part["first_item"] for part in parts if "error" in part] == [32] and done == {"answered": 6, "failed": 1}


def infer(server, model, inputs, accept):
    """Posts tensors as binary data, and asks for an answer in parts."""
    heads, data = [], b""
    for name, shape, datatype, content in inputs:
        heads.append({"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(content)}})
        data += content
    body = json.dumps({"inputs": heads}).encode()
    headers = {"Accept": accept, "Inference-Header-Content-Length": str(len(body))}
    return requests.post(f"{server.url}/v2/models/{model}/infer", data=body + data, headers=headers, timeout=wire.TIMEOUT)


@pytest.mark.parametrize("form", ["lines", "events"])
def test_encoded_images_in_a_tensor_come_one_by_one(server, digits, form):
    images = [image for _, image, _ in digits] * 3
    images[4] = b"no image"
    content = b"".join(len(image).to_bytes(4, "little") + image for image in images)
    given = [("image", [len(images), 1], "BYTES", content)]
    if form == "lines":
        *parts, done = lines(infer(server, "digits", given, "application/x-ndjson"))
    else:
        *named, (_, done) = events(infer(server, "digits", given, "text/event-stream"))
        parts = [part for _, part in named]
    assert "image 4: not an image" in parts[4]["error"] and parts[4]["index"] == 4
    good = [part for i, part in enumerate(parts) if i != 4]
    assert [part["first_item"] for part in parts] == list(range(len(images))) and "id" not in parts[0]
    assert all(part["outputs"][0]["shape"] == [1, 10] for part in good)
    got = [str(np.argmax(part["outputs"][0]["data"])) for part in good]
    assert got == [digit for i, (_, _, digit) in enumerate(digits * 3) if i != 4]
    assert done == {"done": {"answered": len(images) - 1, "failed": 1}}


def test_binary_outputs_are_not_streamed_and_who_likes_them_better_gets_them(server):
    x = np.float32([[np.nan] * 16])

    def ask(accept, **members):
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": ["NaN"] * 16}], **members})
        url = f"{server.url}/v2/models/identity/infer"
        return requests.post(url, data=body, headers={"Accept": accept}, timeout=wire.TIMEOUT)

    everything = {"parameters": {"binary_data_output": True}}
    for members in (everything, {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}):
        for accept in ("application/x-ndjson", "text/event-stream"):
            wire.problem(ask(accept, **members), 400, "binary data, but .* item by item")
        reply = ask("application/octet-stream, application/x-ndjson;q=0.1", **members)
        assert reply.status_code == 200 and reply.content.endswith(x.tobytes()), reply.text
    # What is asked for as text is, whatever the request's default.
    text = {**everything, "outputs": [{"name": "y", "parameters": {"binary_data": False}}]}
    error, done = lines(ask("application/x-ndjson", **text))
    assert "not a finite number" in error["error"] and done["done"] == {"answered": 0, "failed": 1}
    # A raw request is not one for binary outputs.
    headers = {"Accept": "application/x-ndjson", "Inference-Header-Content-Length": "0"}
    url, raw = f"{server.url}/v2/models/identity/infer", np.ones(16, np.float32).tobytes()
    part, done = lines(requests.post(url, data=raw, headers=headers, timeout=wire.TIMEOUT))
    assert part["outputs"][0]["data"] == [1] * 16 and done["done"]["answered"] == 1


def test_what_is_one_run_is_one_part(server):
    x = np.arange(4, dtype=np.float32)
    part, done = lines(infer(server, "fixed1", [("x", [1, 4], "FP32", x.tobytes())], "application/x-ndjson"))
    assert part["first_item"] == 0 and part["outputs"][0]["data"] == (2 * x).tolist() and done["done"]["answered"] == 1
    reply = infer(server, "fixed1", [("x", [1, 5], "FP32", np.zeros(5, np.float32).tobytes())], "application/x-ndjson")
    assert reply.status_code == 400 and reply.json()["error"], reply.text


def test_a_caller_who_does_not_read_is_not_worked_for(server, digits):
    """Each answer is more than a megabyte of text: a few fill the buffers between server and caller."""
    count = 120

    def done():
        reply = requests.get(f"{server.url}/v2/models/image-identity/stats", timeout=wire.TIMEOUT).json()
        return reply["model_stats"][0]["inference_count"]

    before = done()
    with post(server, "image-identity", [digits[0][1]] * count, "application/x-ndjson", stream=True) as reply:
        first = next(reply.iter_lines(chunk_size=1 << 16))
        assert json.loads(first)["index"] == 0
        seen = []

        def at_rest():
            seen.append(done())
            return len(seen) > 20 and len(set(seen[-20:])) == 1

        until(at_rest, 120, "the work comes to rest while nobody reads")
        assert done() - before < count, "everything was run although nobody reads"
    # Whoever goes away ends the work.
    pending = 'nv_inference_pending_request_count{model="image-identity",version="1"} 0'
    until(lambda: pending in requests.get(server.metrics_url, timeout=10).text, 60, "nothing waits any more")
    assert done() - before < count


def test_what_is_refused_at_once_is_an_error_as_ever(server, digits):
    reply = post(server, "nothing", [digits[0][1]], "application/x-ndjson")
    assert reply.status_code == 404 and reply.json()["error"]
    url = f"{server.url}/predictions/digits?top_k=x"
    reply = requests.post(url, data=digits[0][1], headers={"Accept": "text/event-stream"}, timeout=wire.TIMEOUT)
    assert reply.status_code == 400 and reply.json()["error"]


@pytest.mark.parametrize("path", ["predictions", "infer"])
def test_images_that_are_decoded_ahead_keep_no_memory_from_those_before_them(start_server, only_digits, path):
    # The first has a header that takes long to read; those behind it would have taken what there is by then.
    server = start_server(only_digits, image_pixels_max=40_000, decode_bytes_max=256_000, decode_threads=4)
    file = reference.png(np.zeros((200, 200, 3), np.uint8))
    filler = struct.pack(">I", 1 << 20) + b"prIv" + bytes(1 << 20)
    filler += struct.pack(">I", zlib.crc32(filler[4:]))
    files = [file[:33] + 40 * filler + file[33:], *[file] * 4]
    headers = {"Accept": "application/x-ndjson"}
    if path == "predictions":
        parts = [("data", (f"{index}.png", data)) for index, data in enumerate(files)]
        response = requests.post(f"{server.url}/predictions/digits", files=parts, headers=headers, timeout=wire.TIMEOUT)
    else:
        data = b"".join(struct.pack("<I", len(file)) + file for file in files)
        given = {"name": "image", "shape": [5], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [given]}).encode()
        headers["Inference-Header-Content-Length"] = str(len(head))
        url = f"{server.url}/v2/models/digits/infer"
        response = requests.post(url, data=head + data, headers=headers, timeout=wire.TIMEOUT)
    last = json.loads(response.text.splitlines()[-1])
    assert last == {"done": {"answered": 5, "failed": 0}}, response.text
    assert server.stop() == 0


def test_frames_that_wait_for_a_caller_who_does_not_read_keep_no_memory_from_other_decodes(start_server, models):
    # What the frames become is nearly all that may be decoded at once, and more than the buffers on the way take as answers.
    server = start_server(models, image_pixels_max=1_000_000, decode_bytes_max=15_600_000)
    pages = io.BytesIO()
    tifffile.imwrite(pages, np.zeros((100, 8, 8), np.uint8), photometric="minisblack")
    other = reference.png(np.zeros((1000, 1000, 3), np.uint8))
    parts = [pages.getvalue()] * 2
    with post(server, "image-identity", parts, "application/x-ndjson", stream=True) as reply:
        rows = reply.iter_lines(chunk_size=1 << 16)
        assert json.loads(next(rows))["index"] == 0
        for _ in range(3):
            answer = requests.post(f"{server.url}/predictions/digits", data=other, timeout=wire.TIMEOUT)
            assert answer.status_code == 200, answer.text
        *_, last = rows
    assert json.loads(last) == {"done": {"answered": 200, "failed": 0}}
    assert server.stop() == 0


def outcomes(server, model):
    """How requests for a model ended so far."""
    text = requests.get(f"{server.admin_url}/metrics", timeout=wire.TIMEOUT).text
    found = re.findall(rf'^ocelli_outcomes_total{{model="{model}",outcome="(\w+)"}} (\d+)$', text, re.MULTILINE)
    return {name: int(count) for name, count in found}


def test_a_reply_counts_as_what_it_ends_as(start_server):
    server = start_server(ROOT / "examples/models")
    stack = (ROOT / "examples/images/spots.tif").read_bytes()
    good, bad = next((ROOT / "examples/images/digits").glob("*.png")).read_bytes(), b"no image"
    spots = f"{server.url}/predictions/spots?format=csv"

    def counts(model, act, **expected):
        before = outcomes(server, model)
        act()

        def counted():
            now = outcomes(server, model)
            return {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)} == expected

        until(counted, 60, f"{model}: {expected} after {before}")

    def broken():
        response = requests.post(spots, stack[: len(stack) * 2 // 3], timeout=wire.TIMEOUT)
        assert response.status_code == 200 and response.text.splitlines()[-1].startswith("# error: "), response.text[-500:]

    counts("spots", lambda: requests.post(spots, stack, timeout=wire.TIMEOUT), ok=1)
    counts("spots", broken, decode=1)
    # Of several images each may fail by itself: where all do, so does the request.
    counts("digits", lambda: post(server, "digits", [good, bad], "application/x-ndjson"), ok=1)
    counts("digits", lambda: post(server, "digits", [bad, bad], "application/x-ndjson"), decode=1)
    # A version that there is not is asked for by mistake.
    counts("digits", lambda: requests.post(f"{server.url}/predictions/digits/99", good, timeout=wire.TIMEOUT), bad_request=1)


def test_an_image_in_a_tensor_without_an_axis_is_refused(server):
    name = requests.get(f"{server.url}/v2/models/digits", timeout=wire.TIMEOUT).json()["inputs"][0]["name"]
    body = {"inputs": [{"name": name, "datatype": "BYTES", "shape": [], "data": ["x"]}]}
    for accept in ("application/x-ndjson", "application/json"):
        url = f"{server.url}/v2/models/digits/infer"
        response = requests.post(url, json=body, headers={"Accept": accept}, timeout=wire.TIMEOUT)
        assert response.status_code == 400, response.text
