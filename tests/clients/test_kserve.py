"""KServe's first protocol and TorchServe's forms, as their clients post them."""

import sys

import numpy as np
import pytest
import requests
import wire
from server import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_models  # noqa: E402


def predict(server, model, body, version=None):
    path = f"/v1/models/{model}" + (f"/versions/{version}" if version else "")
    return requests.post(f"{server.url}{path}:predict", json=body, timeout=wire.TIMEOUT)


def test_models_and_their_readiness_are_told(server):
    models = wire.ok(requests.get(server.url + "/v1/models", timeout=wire.TIMEOUT))["models"]
    assert {"digits", "identity"} <= set(models) and "broken" not in models, models
    version = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/digits", "/v1/models/digits/versions/1"):
        reply = requests.get(server.url + path, timeout=wire.TIMEOUT)
        assert wire.ok(reply) == {"name": "digits", "ready": True, "model_version_status": [version]}
    for model, status in (("broken", 503), ("nothing", 404)):
        reply = requests.get(f"{server.url}/v1/models/{model}", timeout=wire.TIMEOUT)
        assert reply.status_code == status and reply.json()["error"], reply.text


def test_the_folder_of_one_model_is_served_by_the_name_of_the_service(start_server, digits):
    """What a runtime's `--model_name={{.Name}}` and a storageUri of one model are."""
    server = start_server(ROOT / "examples" / "models" / "digits", model_name="flowers")
    assert wire.ok(requests.get(server.url + "/v1/models", timeout=wire.TIMEOUT)) == {"models": ["flowers"]}
    _, image, digit = digits[0]
    (answer,) = wire.ok(predict(server, "flowers", {"instances": [{"b64": wire.b64(image)}]}))["predictions"]
    assert answer["classes"][0]["label"] == digit


def test_images_are_predicted_as_rows_and_as_columns(server, digits):
    images = [{"b64": wire.b64(image)} for _, image, _ in digits]
    forms = {
        "rows": ({"instances": images}, "predictions"),
        "rows with keys": ({"instances": [{"image_bytes": i, "key": "1"} for i in images]}, "predictions"),
        "rows by the input's name": ({"instances": [{"image": i} for i in images]}, "predictions"),
        "columns": ({"inputs": images}, "outputs"),
        "rows as in TorchServe's request": ({"instances": [{"body": i["b64"]} for i in images]}, "predictions"),
        "named columns": ({"inputs": {"image": images}}, "outputs"),
    }
    for name, (body, member) in forms.items():
        answers = wire.ok(predict(server, "digits", body, version="1"))[member]
        assert [a["classes"][0]["label"] for a in answers] == [digit for _, _, digit in digits], name


def test_numbers_are_predicted_as_rows_and_as_columns(server):
    x = np.arange(32, dtype=np.float32).reshape(2, 16).tolist()
    assert wire.ok(predict(server, "identity", {"instances": x})) == {"predictions": x}
    assert wire.ok(predict(server, "identity", {"inputs": x})) == {"outputs": x}
    for name in ("x", "data", "body"):
        assert wire.ok(predict(server, "identity", {"instances": [{name: row, "target": 0} for row in x]})) == {"predictions": x}
    rows = [{"a": [1, 2, 3, 4], "b": [10, 20, 30, 40]}, {"a": [0, 0, 0, 0], "b": [1, 1, 1, 1]}]
    expected = [[11, 22, 33, 44], [1, 1, 1, 1]]
    assert wire.ok(predict(server, "add", {"instances": rows})) == {"predictions": expected}
    columns = {name: [row[name] for row in rows] for name in ("a", "b")}
    assert wire.ok(predict(server, "add", {"inputs": columns})) == {"outputs": expected}
    pixels = np.zeros((2, 1, 32, 32)).tolist()
    (first, second) = wire.ok(predict(server, "digits", {"instances": pixels}))["predictions"]
    assert len(first) == 10 and first == second


def test_numbers_nested_as_pixels_are_pixels(server):
    pixels = np.random.default_rng(4).integers(0, 256, (2, 32, 32, 1))
    numbers = (pixels / 255).transpose(0, 3, 1, 2)
    expected = wire.ok(predict(server, "digits", {"instances": numbers.tolist()}))["predictions"]
    for body, member in (
        ({"instances": pixels.tolist()}, "predictions"),
        ({"instances": [{"image": image} for image in pixels.tolist()]}, "predictions"),
        ({"inputs": {"image": pixels.tolist()}}, "outputs"),
    ):
        got = wire.ok(predict(server, "digits", body))[member]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    pixels[0, 3, 3, 0] = 256
    reply = predict(server, "digits", {"instances": pixels.tolist()})
    assert reply.status_code == 400 and "from 0 to 255" in reply.json()["error"], reply.text


def test_text_is_predicted_in_the_shape_of_its_lists(start_server, tmp_path):
    graph = make_models.Graph()
    graph.node("Identity", "t", output="u")
    pairs = graph.bytes("pairs", [("t", make_models.TYPES["BYTES"], ["N", 2])], [("u", make_models.TYPES["BYTES"], ["N", 2])])
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "model.onnx").write_bytes(pairs)
    server = start_server(tmp_path)
    given = [["a", {"b64": wire.b64(b"b")}], ["c", ""], ["\u00e9", "f"]]
    text = [["a", "b"], ["c", ""], ["\u00e9", "f"]]
    for body, expected in (
        ({"instances": given}, {"predictions": text}),
        ({"instances": [{"t": row} for row in given]}, {"predictions": text}),
        ({"inputs": given}, {"outputs": text}),
        ({"inputs": {"t": given}}, {"outputs": text}),
    ):
        assert wire.ok(predict(server, "pairs", body)) == expected, body
    reply = predict(server, "pairs", {"instances": ["a", "b"]})
    assert reply.status_code == 400 and "shape [2]" in reply.json()["error"], reply.text


@pytest.mark.parametrize(
    ("model", "body", "status", "told"),
    [
        ("identity", {}, 400, "either instances"),
        ("identity", [[[1, 2]], None, None], 400, "expected an object"),
        ("identity", {"instances": []}, 400, "is empty"),
        ("identity", {"instances": [[1, 2]]}, 400, "shape [1, 2]"),
        ("identity", {"instances": [[1, "x"]]}, 400, "expected"),
        ("add", {"instances": [[1, 2, 3, 4]]}, 400, "must be an object"),
        ("digits", {"instances": [{"b64": "?"}]}, 400, "not base64"),
        ("nothing", {"instances": [[1]]}, 404, "unknown model"),
        ("broken", {"instances": [[1]]}, 503, "unavailable"),
    ],
)
def test_what_is_wrong_is_said(server, model, body, status, told):
    reply = predict(server, model, body)
    assert reply.status_code == status and told in reply.json()["error"], reply.text


def test_options_of_predictions_are_refused_where_they_would_not_be_heard(server, digits):
    image = {"instances": [{"b64": wire.b64(digits[0][1])}]}
    url = f"{server.url}/v1/models/digits:predict"
    wire.problem(requests.post(f"{url}?top_k=1", json=image, timeout=wire.TIMEOUT), 400, "top_k in the query")
    (answer,) = wire.ok(requests.post(f"{url}?by=gateway", json=image, timeout=wire.TIMEOUT))["predictions"]
    assert len(answer["classes"]) == 3, answer
    (answer,) = wire.ok(predict(server, "digits", {**image, "parameters": {"top_k": 1}}))["predictions"]
    assert len(answer["classes"]) == 1, answer
    wire.problem(predict(server, "embed", {**image, "parameters": {"top_k": 1}}), 400, "top_k is .1., .*classify")
    numbers = {"instances": np.zeros((1, 1, 32, 32)).tolist(), "parameters": {"top_k": 1}}
    wire.problem(predict(server, "digits", numbers), 400, "top_k is for images")


def test_a_data_url_is_its_file_and_other_urls_are_not_fetched(server, digits):
    _, image, digit = digits[0]
    urls = [f"data:{kind};base64,{wire.b64(image)}" for kind in ("image/png", "image/jpeg", "")]
    rows = {"instances": [*urls, {"b64": urls[0]}, {"data": urls[0]}, {"image": {"b64": urls[0]}}]}
    for reply in (predict(server, "digits", rows), requests.post(wire.prediction_url(server, "digits"), json=rows, timeout=wire.TIMEOUT)):
        assert [row["classes"][0]["label"] for row in wire.ok(reply)["predictions"]] == [digit] * 6
    for scheme in ("http", "https"):
        reply = predict(server, "digits", {"instances": [{"b64": f"{scheme}://example.org/a.png"}]})
        wire.problem(reply, 400, "URLs are not fetched: send the file itself, in base64")


def test_one_bad_image_fails_the_request(server, digits):
    body = {"instances": [{"b64": wire.b64(digits[0][1])}, {"b64": wire.b64(b"no image")}]}
    reply = predict(server, "digits", body)
    assert reply.status_code == 400 and "not an image" in reply.json()["error"], reply.text


def test_other_verbs_are_refused(server):
    for verb, status in (("explain", 501), ("classify", 501), ("guess", 400)):
        reply = requests.post(f"{server.url}/v1/models/digits:{verb}", json={}, timeout=wire.TIMEOUT)
        assert reply.status_code == status and verb in reply.json()["error"], reply.text


def test_numbers_that_json_lacks_are_taken_as_words_and_given_as_null(server):
    body = b'{"instances": [[NaN, Infinity, -Infinity, 1' + b", 0" * 12 + b"]]}"
    reply = requests.post(f"{server.url}/v1/models/identity:predict", data=body, timeout=wire.TIMEOUT)
    (row,) = wire.ok(reply)["predictions"]
    assert row == [None, None, None, 1.0] + [0.0] * 12, row


def test_half_precision_and_whole_floats_are_numbers_of_a_row(start_server, tmp_path):
    for name, kind in (("half", "FP16"), ("whole", "INT64")):
        graph = make_models.Graph()
        graph.node("Identity", "x", output="y")
        shape = ["N", 2]
        model = graph.bytes(name, [("x", make_models.TYPES[kind], shape)], [("y", make_models.TYPES[kind], shape)])
        (tmp_path / f"{name}.onnx").write_bytes(model)
    server = start_server(tmp_path)
    assert wire.ok(predict(server, "half", {"instances": [[0.5, 1]]}))["predictions"] == [[0.5, 1.0]]
    assert wire.ok(predict(server, "whole", {"instances": [[7.0, -1]]}))["predictions"] == [[7, -1]]
    given = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [7.0, -1.00]}
    assert wire.ok(wire.post_infer(server, "whole", [given]))["outputs"][0]["data"] == [7, -1]
    assert predict(server, "whole", {"instances": [[7.5, 1]]}).status_code == 400
    assert server.stop() == 0


def test_a_version_of_torchserve_and_the_types_of_s3_and_sagemaker_are_taken(server, digits):
    _, image, digit = digits[0]
    for version, kind in (("1.0", "image/png"), ("1", "binary/octet-stream"), ("1.0", "application/x-image")):
        url = f"{server.url}/predictions/digits/{version}"
        reply = wire.ok(requests.post(url, data=image, headers={"Content-Type": kind}, timeout=wire.TIMEOUT))
        assert reply["version"] == "1" and reply["classes"][0]["label"] == digit
    (row,) = wire.ok(predict(server, "digits", {"instances": [{"b64": wire.b64(image)}]}, "1.0"))["predictions"]
    assert row["classes"][0]["label"] == digit
    for version in ("1.1", "1.0.0"):
        reply = requests.post(f"{server.url}/predictions/digits/{version}", data=image, timeout=wire.TIMEOUT)
        wire.problem(reply, 404, f"'digits/{version}'")
        assert predict(server, "digits", {"instances": [{"b64": wire.b64(image)}]}, version).status_code == 404


def test_predictions_are_counted_for_the_model(server, digits):
    def counted():
        text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
        (line,) = [li for li in text.splitlines() if li.startswith('ocelli_outcomes_total{model="digits",outcome="ok"}')]
        return int(line.rsplit(" ", 1)[1])

    before = counted()
    wire.ok(predict(server, "digits", {"instances": [{"b64": wire.b64(digits[0][1])}]}))
    assert counted() == before + 1


def test_torchserves_form_is_the_five_best_by_label(server, digits):
    name, image, digit = digits[0]
    best = wire.ok(wire.post_image(server, "digits", image, query={"format": "torchserve"}))
    assert len(best) == 5 and list(best)[0] == digit and best[digit] == max(best.values()), best
    assert sum(best.values()) <= 1 + 1e-6 and all(isinstance(p, float) for p in best.values()), best
    # `data`, repeated, is how its clients send several.
    parts = [("data", image), ("data", image)]
    url = f"{server.url}/predictions/digits?format=torchserve&top_k=2"
    several = wire.ok(requests.post(url, files=parts, timeout=wire.TIMEOUT))
    assert [list(one)[0] for one in several] == [digit, digit] and len(several[0]) == 2, several
    reply = wire.post_image(server, "embed", image, query={"format": "torchserve"})
    assert reply.status_code == 400 and "classify" in reply.json()["error"], reply.text


def test_in_torchserves_form_one_file_has_an_object_however_it_is_posted(server, digits):
    _, image, digit = digits[0]
    url = f"{server.url}/predictions/digits?format=torchserve&top_k=1"
    raw = wire.ok(requests.post(url, data=image, timeout=wire.TIMEOUT))
    assert list(raw) == [digit], raw
    assert wire.ok(requests.post(url, files=[("data", image)], timeout=wire.TIMEOUT)) == raw
    # Its envelope has one for the reply as well.
    instances = {"instances": [{"b64": wire.b64(image)}]}
    assert wire.ok(requests.post(url, json=instances, timeout=wire.TIMEOUT)) == {"predictions": [raw]}
    own = requests.post(url.replace("=torchserve", "=ocelli"), files=[("data", image)], timeout=wire.TIMEOUT)
    wire.many(own, "classify", 1)
    # Without the option, what TorchServe alone takes is refused.
    for status, sent in (
        (400, {"json": wire.b64(image)}),
        (415, {"data": wire.b64(image), "headers": {"Content-Type": "text/plain"}}),
        (400, {"data": {"data": image}}),
        (400, {"files": {"data": image}, "data": {"target": "0"}}),
        (400, {"data": image, "params": {"foo": "1"}}),
    ):
        wire.problem(requests.post(url, timeout=wire.TIMEOUT, **sent), status)


def test_torchserves_form_may_be_asked_for_by_accept(server, digits):
    headers = {"Accept": "application/json; format=torchserve"}
    reply = requests.post(f"{server.url}/predictions/digits", data=digits[3][1], headers=headers, timeout=wire.TIMEOUT)
    best = wire.ok(reply)
    assert len(best) == 5 and max(best, key=best.get) == digits[3][2], best
    # The address goes first.
    reply = requests.post(f"{server.url}/predictions/digits?format=ocelli", data=digits[3][1], headers=headers, timeout=wire.TIMEOUT)
    assert "classes" in wire.ok(reply)


def test_torchserves_form_may_be_asked_for_where_its_envelope_is_posted(server, digits):
    body = {"instances": [{"data": wire.b64(image), "target": 0} for _, image, _ in digits[:2]]}
    url = f"{server.url}/v1/models/digits:predict"
    expected = wire.ok(requests.post(f"{server.url}/predictions/digits?format=torchserve", json=body, timeout=wire.TIMEOUT))
    assert [list(one)[0] for one in expected["predictions"]] == [digit for _, _, digit in digits[:2]]
    assert wire.ok(requests.post(url + "?format=torchserve&debug", json=body, timeout=wire.TIMEOUT)) == expected
    headers = {"Accept": "application/json; format=torchserve"}
    assert wire.ok(requests.post(url, json=body, headers=headers, timeout=wire.TIMEOUT)) == expected
    columns = {"inputs": body["instances"], "parameters": {"top_k": 1}}
    (first, _) = wire.ok(requests.post(url, json=columns, headers=headers, timeout=wire.TIMEOUT))["outputs"]
    assert list(first) == [digits[0][2]]
    own = requests.post(url + "?format=ocelli", json=body, headers=headers, timeout=wire.TIMEOUT)
    assert "classes" in wire.ok(own)["predictions"][0]
    wire.problem(requests.post(url + "?format=numpy", json=body, timeout=wire.TIMEOUT), 400, "ocelli or torchserve")
    numbers = {"instances": np.zeros((1, 1, 32, 32)).tolist()}
    wire.problem(requests.post(url + "?format=torchserve", json=numbers, timeout=wire.TIMEOUT), 400, "format is for images")
    assert len(wire.ok(requests.post(url, json=numbers, headers=headers, timeout=wire.TIMEOUT))["predictions"][0]) == 10


def test_files_are_sent_where_they_are_taken(server, digits):
    for path in ("/v1/models/digits:predict", "/v2/models/digits/infer"):
        for what, sent in {"an image": {"data": digits[0][1]}, "a form": {"files": {"data": digits[0][1]}}}.items():
            reply = requests.post(server.url + path, timeout=wire.TIMEOUT, **sent)
            wire.problem(reply, 400, f"the body is {what}", "/predictions/digits")
        wire.problem(requests.post(server.url + path, data=b"{", timeout=wire.TIMEOUT), 400, "cannot be read")
    reply = requests.post(f"{server.url}/v1/models/identity:predict", data=digits[0][1], timeout=wire.TIMEOUT)
    wire.problem(reply, 400, "the body cannot be read")


def test_a_detector_answers_as_torchserves_does(server, start_server):
    scene = (ROOT / "examples/images/digits-detector/0.png").read_bytes()
    own, _ = wire.one(wire.post_image(server, "digits-detector", scene), "detect")
    expected = [{d["label"]: d["box"], "score": d["score"]} for d in own if d["score"] >= 0.5]
    assert expected
    form = {"format": "torchserve"}
    assert wire.ok(wire.post_image(server, "digits-detector", scene, query=form)) == expected
    url = f"{server.url}/predictions/digits-detector"
    parts = [("data", scene), ("data", b"no image"), ("data", scene)]
    (first, failed, last) = wire.ok(requests.post(url, files=parts, params=form, timeout=wire.TIMEOUT))
    assert first == last == expected and failed["status"] == 400
    always = start_server(torchserve_answers="on")
    rows = {"instances": [{"data": wire.b64(scene)}] * 2}
    assert wire.ok(wire.post_image(always, "digits-detector", scene)) == expected
    assert wire.ok(predict(always, "digits-detector", rows)) == {"predictions": [expected] * 2}
    segmenter = wire.post_image(always, "digits-segmenter", scene)
    assert "mask" in wire.ok(segmenter)
    wire.problem(wire.post_image(always, "digits-segmenter", scene, query=form), 400, "classify or detect")
    assert always.stop() == 0


def test_a_server_can_answer_as_torchserve_whoever_asks_for_nothing(start_server, digits):
    server = start_server(torchserve_answers="on")
    _, image, digit = digits[0]
    best = wire.ok(wire.post_image(server, "digits", image))
    assert len(best) == 5 and list(best)[0] == digit, best
    own = wire.ok(wire.post_image(server, "digits", image, query={"format": "ocelli"}))
    assert own["classes"][0]["label"] == digit, own
    assert "vector" in wire.ok(wire.post_image(server, "embed", image))
    url, text = f"{server.url}/predictions/digits", wire.b64(image)
    for name, sent in {
        "a lone string": {"json": text},
        "text": {"data": text, "headers": {"Content-Type": "text/plain"}},
        "text in a form": {"files": {"data": ("b64.txt", text, "text/plain")}},
        "an urlencoded form": {"data": {"data": image}},
        "a field beside the file": {"files": {"data": image}, "data": {"target": "0"}},
        "unknown keys": {"data": image, "params": {"foo": "1", "top_k": "5"}},
    }.items():
        reply = requests.post(url, timeout=wire.TIMEOUT, **sent)
        assert wire.ok(reply) == best, name
    # TorchServe's handlers look for `data`, then for `body`.
    other = digits[-1][1]
    for names in (["image", "body"], ["body", "data"], ["file", "body", "data"]):
        parts = [(name, (name, other)) for name in names[:-1]] + [(names[-1], ("last", image))]
        assert wire.ok(requests.post(url, files=parts, timeout=wire.TIMEOUT)) == best, names
        own = wire.ok(requests.post(url, files=parts, params={"format": "ocelli"}, timeout=wire.TIMEOUT))
        assert len(own["predictions"]) == len(names), "all of them in the own form"
    rows = {"instances": [{"data": wire.b64(image), "target": 0}]}
    assert wire.ok(predict(server, "digits", rows)) == {"predictions": [best]}
    numbers = {"instances": np.zeros((1, 1, 32, 32)).tolist()}
    assert len(wire.ok(predict(server, "digits", numbers))["predictions"][0]) == 10
    reply = wire.post_image(server, "digits", image, query={"format": "numpy"})
    assert reply.status_code == 400 and "ocelli or torchserve" in reply.json()["error"], reply.text
