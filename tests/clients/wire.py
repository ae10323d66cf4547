"""The HTTP contract as the tests know it: how things are posted, and what a reply must look like.

Everything that depends on the shape of requests and replies is here, so that the tests say only what they are about.
"""

import base64
import json
import re

import requests

TIMEOUT = 120  # seconds; only bounds a test that hangs
TASK_MEMBER = {
    "classify": "classes",
    "detect": "detections",
    "segment": "mask",
    "image": "picture",
    "landmarks": "landmarks",
    "embed": "vector",
    "tensors": "outputs",
}


def strict(response):
    """The reply as JSON; NaN and Infinity, which JSON has not, are errors."""

    def refuse(word):
        raise AssertionError(f"{word} in JSON")

    assert "json" in response.headers.get("Content-Type", ""), (response.headers, response.text[:500])
    return json.loads(response.content, parse_constant=refuse)


def ok(response):
    """The body of a reply that must be 200."""
    assert response.status_code == 200, f"{response.status_code}: {response.text[:1000]}"
    return strict(response)


def stands(server, model):
    """The state of a model's only version, and the reason of it."""
    index = requests.post(f"{server.url}/v2/repository/index", timeout=TIMEOUT).json()
    (entry,) = (entry for entry in index if entry["name"] == model)
    return entry["state"], entry["reason"]


# --- Posting images -------------------------------------------------------------------------------------------------


def prediction_url(server, model, version=None):
    return f"{server.url}/predictions/{model}" + (f"/{version}" if version else "")


def post_image(server, model, data, *, version=None, query=None, headers=None, session=requests):
    """The response to a raw image body, as `curl -T` sends it: without a content type."""
    url = prediction_url(server, model, version)
    return session.post(url, data=data, params=query, headers=headers, timeout=TIMEOUT)


def post_files(server, model, files, query=None, headers=None):
    """The response to a multipart body of `(name, bytes)`."""
    parts = [("image", (name, data, "application/octet-stream")) for name, data in files]
    return requests.post(prediction_url(server, model), files=parts, params=query, headers=headers, timeout=TIMEOUT)


def b64(data):
    return base64.b64encode(data).decode()


INSTANCE_FORMS = {
    "b64": lambda data: {"b64": b64(data)},
    "data": lambda data: {"data": b64(data)},
    "image_bytes": lambda data: {"image_bytes": {"b64": b64(data)}},
}


def post_instances(server, model, images, form):
    """The response to a JSON body of base64 images in one of `INSTANCE_FORMS`."""
    body = {"instances": [INSTANCE_FORMS[form](data) for data in images]}
    return requests.post(prediction_url(server, model), json=body, timeout=TIMEOUT)


# --- Reading predictions --------------------------------------------------------------------------------------------


def one(response, task):
    """The answer for one image: the member that the task fills, and the whole reply."""
    reply = ok(response)
    assert reply["task"] == task and isinstance(reply["model"], str) and isinstance(reply["version"], str), reply
    assert {"width", "height"} <= reply["image"].keys(), reply
    return reply[TASK_MEMBER[task]], reply


def many(response, task, count):
    """The entries of a reply for several images, failed ones included."""
    reply = ok(response)
    assert reply["task"] == task and isinstance(reply["model"], str) and isinstance(reply["version"], str), reply
    assert len(reply["predictions"]) == count, reply
    for entry in reply["predictions"]:
        assert ("error" in entry) != (TASK_MEMBER[task] in entry), entry
    return reply["predictions"]


def best(classes):
    """The label of the best class; classes come best first."""
    scores = [c["score"] for c in classes]
    assert scores == sorted(scores, reverse=True) and all(isinstance(c["index"], int) for c in classes), classes
    return classes[0]["label"]


def single_or_only(response, task):
    """The answer for the one image of a request whose form could carry several."""
    reply = ok(response)
    entries = reply["predictions"] if "predictions" in reply else [reply]
    assert len(entries) == 1, reply
    return entries[0][TASK_MEMBER[task]]


def class_map(mask):
    """A mask sent as runs, as the class of each pixel; pixels in no run are -1, pixels in two runs an error.

    Each run has a class's `index` and its `counts`, column by column: pixels outside, pixels inside, and so on.
    """
    import numpy

    flat = numpy.full(mask["width"] * mask["height"], -1)
    for run in mask["rle"]:
        inside = numpy.repeat(numpy.arange(len(run["counts"])) % 2 == 1, run["counts"])
        assert len(inside) == len(flat) and (flat[inside] == -1).all(), run["index"]
        flat[inside] = run["index"]
    return flat.reshape(mask["width"], mask["height"]).T


# --- Errors ---------------------------------------------------------------------------------------------------------


def problem(response, status, *says):
    """Checks that a reply is an error of this status in our form, and that it says these things; the body."""
    assert response.status_code == status, f"{response.status_code}, expected {status}: {response.text[:1000]}"
    theirs = re.match(r"https?://[^/]+/v[12](/|$)", response.request.url)
    assert response.headers["Content-Type"] == ("application/json" if theirs else "application/problem+json"), response.headers
    body = strict(response)
    missing = {"error", "type", "title", "status", "detail", "request_id"} - body.keys()
    assert not missing, f"no {missing} in {body}"
    assert body["status"] == status and body["error"] and body["request_id"], body
    for word in says:
        assert re.search(word, body["error"], re.IGNORECASE), f"{word!r} is not in {body['error']!r}"
    if status in (429, 503):
        after = int(response.headers["Retry-After"])
        said = re.search(r"retry after (\d+) s", body["error"])
        assert 1 <= after <= 60 and (said is None or int(said[1]) == after), (response.headers, body)
    return body


def failed_entry(entry, status):
    """Checks the entry of one failed image among several."""
    assert entry["status"] == status and entry["error"] and entry["title"] and entry["detail"], entry


# --- Tensors --------------------------------------------------------------------------------------------------------

NUMPY_TYPE = {"FP32": "float32", "FP64": "float64", "INT64": "int64", "INT32": "int32", "UINT8": "uint8", "BOOL": "bool"}
TYPE_NAME = {v: k for k, v in NUMPY_TYPE.items()}


def tensor(name, array):
    """An input of the Open Inference Protocol, its data as JSON numbers."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": TYPE_NAME[str(array.dtype)],
        "data": array.ravel().tolist(),
    }


def post_infer(server, model, inputs, **members):
    """The response to an inference request; `inputs` maps names to arrays, or is a list as it goes onto the wire."""
    if isinstance(inputs, dict):
        inputs = [tensor(name, array) for name, array in inputs.items()]
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, json={"inputs": inputs, **members}, timeout=TIMEOUT)


def arrays(outputs):
    """Outputs on the wire as numpy arrays by name."""
    import numpy

    return {o["name"]: numpy.array(o["data"], NUMPY_TYPE[o["datatype"]]).reshape(o["shape"]) for o in outputs}


def infer(server, model, inputs):
    """The outputs of an inference request that must succeed, as numpy arrays by name."""
    reply = ok(post_infer(server, model, inputs))
    assert reply["model_name"] == model, reply
    return arrays(reply["outputs"])


def infer_binary(server, model, name, array, output):
    """One binary input and one binary output: the JSON part of the reply, and the output as a numpy array."""
    import numpy

    data = array.tobytes()
    given = {"name": name, "shape": list(array.shape), "datatype": TYPE_NAME[str(array.dtype)]}
    given["parameters"] = {"binary_data_size": len(data)}
    head = {"inputs": [given], "outputs": [{"name": output, "parameters": {"binary_data": True}}]}
    head = json.dumps(head).encode()
    response = requests.post(
        f"{server.url}/v2/models/{model}/infer",
        data=head + data,
        headers={"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"},
        timeout=TIMEOUT,
    )
    assert response.status_code == 200, f"{response.status_code}: {response.text[:1000]}"
    length = int(response.headers["Inference-Header-Content-Length"])
    head, data = json.loads(response.content[:length]), response.content[length:]
    [described] = head["outputs"]
    assert described["name"] == output and described["parameters"]["binary_data_size"] == len(data), head
    return head, numpy.frombuffer(data, NUMPY_TYPE[described["datatype"]]).reshape(described["shape"])
