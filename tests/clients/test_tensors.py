"""The Open Inference Protocol: metadata, health, and tensors against ONNX Runtime in Python."""

import json
from concurrent.futures import ThreadPoolExecutor

import by_triton
import grpc
import make_models
import numpy as np
import pytest
import reference
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import wire
from tritonclient.grpc import service_pb2, service_pb2_grpc

SEED = 7


def get(server, path):
    return requests.get(server.url + path, timeout=wire.TIMEOUT)


def test_health_says_live_and_ready(server):
    for path in ("/v2/health/live", "/v2/health/ready", "/ping", "/v2/models/digits/ready"):
        assert get(server, path).status_code == 200, path
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
        assert requests.get(server.admin_url + path, timeout=wire.TIMEOUT).status_code == 200, path


def test_the_server_describes_itself(server):
    reply = wire.ok(get(server, "/v2"))
    assert reply["name"] == "ocelli" and reply["version"] and isinstance(reply["extensions"], list), reply


def test_a_model_describes_its_tensors(server):
    reply = wire.ok(get(server, "/v2/models/digits"))
    assert reply["name"] == "digits" and reply["versions"] and reply["platform"], reply
    assert reply["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 32, 32]}], reply
    assert reply["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}], reply


def test_a_bare_model_is_served_from_its_own_metadata(server):
    reply = wire.ok(get(server, "/v2/models/add"))
    assert [i["name"] for i in reply["inputs"]] == ["a", "b"] and reply["outputs"][0]["name"] == "sum", reply


def test_metrics_are_counted_per_model(server, digits):
    wire.ok(wire.post_image(server, "digits", digits[0][1]))
    text = get(server, "/metrics").text
    assert any(line.startswith("ocelli_") and 'model="digits"' in line for line in text.splitlines()), text[:2000]


def test_json_tensors_agree_with_onnx_runtime(server, models):
    rng = np.random.default_rng(SEED)
    worst = 0.0
    for model, output, shape in (
        ("digits", "logits", (1, 32, 32)),
        ("digits-detector", "detections", (1, 128, 128)),
        ("digits-embedder", "embedding", (1, 32, 32)),
        ("digits-segmenter", "scores", (1, 96, 96)),
        ("embed", "embedding", (3, 32, 32)),
        ("segment-any", "scores", (3, 20, 33)),
    ):
        session = reference.session(models / model / "model.onnx")
        for count in (1, 3, 5):
            x = rng.random((count, *shape), np.float32)
            expected = session.run([output], {"image": x})[0]
            got = wire.infer(server, model, {"image": x})[output]
            assert got.shape == expected.shape
            # Batches are padded and kernels chosen by size, so sums may round differently.
            largest = float((np.abs(got - expected) / np.maximum(1, np.abs(expected))).max())
            worst = max(worst, largest)
            assert largest < 1e-4, (model, count, largest)
    print(f"seed {SEED}: largest difference from ONNX Runtime in Python {worst:.2e}, relative where above 1")


def test_more_items_than_a_batch_holds_come_back_whole_and_in_order(server):
    x = np.arange(1000 * 16, dtype=np.float32).reshape(1000, 16)
    assert (wire.infer(server, "identity", {"x": x})["y"] == x).all()


def test_callers_at_once_each_get_their_own_answer(server):
    """Eight callers whose requests share batches, with one to twenty rows each."""
    failures = []

    def call(seed):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            x = rng.random((rng.integers(1, 21), 16), np.float32)
            if not (wire.infer(server, "identity", {"x": x})["y"] == x).all():
                failures.append(f"seed {seed}: the answer of another request")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(SEED, SEED + 8)))  # raises what a caller raised
    assert not failures, failures


def test_binary_tensors_agree_with_json_tensors(server):
    """The binary extension, byte by byte: 1.0 and 2.0 are `0000803f 00000040`."""
    x = np.zeros((1, 16), np.float32)
    x[0, :2] = 1, 2
    assert x.tobytes()[:8].hex() == "0000803f00000040"
    head, got = wire.infer_binary(server, "identity", "x", x, "y")
    assert head["outputs"][0]["datatype"] == "FP32" and (got == x).all()
    assert (wire.infer(server, "identity", {"x": x})["y"] == got).all()


@pytest.mark.parametrize("name", ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"])
def test_the_least_and_the_largest_numbers_of_a_type_go_both_ways_as_text_and_those_beyond_are_refused(server, name):
    kind = np.dtype(name.lower().replace("fp", "float"))
    whole = kind.kind in "iu"
    ends = np.iinfo(kind) if whole else np.finfo(kind)
    # And one whose bytes all differ.
    array = np.array([ends.min, ends.max, *np.frombuffer(bytes(range(18, 18 + kind.itemsize)), kind)], kind)

    def post(data, binary_data):
        """The reply to this array as text, or in binary form where it is bytes, beside zeros of all other types."""
        inputs, after = [], b""
        for other in make_models.TYPES:
            given = {"name": f"x_{other}", "datatype": other, "shape": [3]}
            values = data if other == name else {"BOOL": "[false,false,false]", "BYTES": '["","",""]'}.get(other, "[0,0,0]")
            if other in ("FP16", "BF16"):  # which JSON does not carry
                values = bytes(6)
            if isinstance(values, bytes):
                after += values
                inputs.append(json.dumps({**given, "parameters": {"binary_data_size": len(values)}}))
            else:
                inputs.append(json.dumps(given)[:-1] + f', "data": {values}}}')
        wanted = json.dumps([{"name": f"y_{name}", "parameters": {"binary_data": binary_data}}])
        head = f'{{"inputs": [{",".join(inputs)}], "outputs": {wanted}}}'.encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return requests.post(f"{server.url}/v2/models/types/infer", data=head + after, headers=headers, timeout=wire.TIMEOUT)

    reply = post(str(array.tolist()), True)
    assert reply.status_code == 200, reply.text
    assert reply.content[int(reply.headers["Inference-Header-Content-Length"]) :] == array.tobytes()
    # Text is the shortest that means the number: as its type has it, it is the same to the bit.
    (output,) = wire.ok(post(array.tobytes(), False))["outputs"]
    assert output["datatype"] == name and np.array(output["data"], kind).tobytes() == array.tobytes(), output
    large = {"FP32": "1e39", "FP64": "1e309"}.get(name)
    for beyond in (ends.min - 1, ends.max + 1) if whole else (large, f"-{large}"):
        wire.problem(post(f"[0,{beyond},0]", False), 400, f"element 1 is {beyond}, expected {name}: ")


def test_several_inputs_are_matched_by_name(server):
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[10, 20, 30, 40]])
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}):
        assert (wire.infer(server, "add", inputs)["sum"] == a + b).all()


def test_a_model_of_a_static_batch_is_served(server):
    x = np.float32([[1, -2, 3, 0.5]])
    assert (wire.infer(server, "fixed1", {"x": x})["y"] == 2 * x).all()


def test_nested_data_and_an_id_are_taken(server):
    given = {"name": "x", "shape": [2, 16], "datatype": "FP32", "data": [list(range(16)), list(range(16, 32))]}
    reply = wire.ok(wire.post_infer(server, "identity", [given], id="mine", outputs=[{"name": "y"}]))
    assert reply["id"] == "mine" and np.ravel(reply["outputs"][0]["data"]).tolist() == list(range(32))


def test_lists_may_be_nested_otherwise_than_the_shape(server):
    for data in (np.arange(32).reshape(4, 2, 4), np.arange(32).reshape(1, 32), np.arange(32)):
        given = {"name": "x", "shape": [2, 16], "datatype": "FP32", "data": data.tolist()}
        (y,) = wire.ok(wire.post_infer(server, "identity", [given]))["outputs"]
        assert y["shape"] == [2, 16] and y["data"] == list(range(32))


@pytest.fixture(scope="module")
def growing(start_server, tmp_path_factory):
    """A server with a decoder, whose past grows from nothing, and a model whose first axis counts whatever comes."""
    folder = tmp_path_factory.mktemp("growing")
    graph = make_models.Graph()
    graph.node("Concat", "past", "new", output="present", axis=2)
    graph.node("ReduceSum", "boxes", graph.constant(np.int64([1])), output="sum", keepdims=0)
    kind = make_models.TYPES["FP32"]
    inputs = [("past", kind, ["N", 2, "P", 4]), ("new", kind, ["N", 2, 1, 4]), ("boxes", kind, ["N", "B", 2])]
    file = graph.bytes("decoder", inputs, [("present", kind, ["N", 2, "T", 4]), ("sum", kind, ["N", 2])])
    (folder / "decoder.onnx").write_bytes(file)
    (folder / "rows" / "1").mkdir(parents=True)
    (folder / "rows" / "1" / "model.onnx").write_bytes(make_models.one_node("Neg", ["N", 4]))
    (folder / "rows" / "config.pbtxt").write_text("max_batch_size: 0\n")
    server = start_server(folder)
    server.decoder = reference.session(file)
    yield server
    assert server.stop() == 0


def steps(past, boxes, items=1):
    rng = np.random.default_rng(SEED + past)
    shapes = {"past": (items, 2, past, 4), "new": (items, 2, 1, 4), "boxes": (items, boxes, 2)}
    return {name: rng.random(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("form", ["json", "binary", "v1", "raw", "typed"])
def test_inputs_may_be_empty_where_their_extent_is_free(growing, form):
    def infer(given):
        if form == "json":
            return wire.infer(growing, "decoder", given)
        if form == "v1":
            body = {"inputs": {name: array.tolist() for name, array in given.items()}}
            reply = wire.ok(requests.post(f"{growing.url}/v1/models/decoder:predict", json=body, timeout=wire.TIMEOUT))
            return {name: np.float32(values) for name, values in reply["outputs"].items()}
        if form == "binary":
            with triton.InferenceServerClient(growing.url.removeprefix("http://")) as client:
                reply = client.infer("decoder", [by_triton.tensor(triton, name, array) for name, array in given.items()])
        if form == "raw":
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{growing.grpc_port}") as client:
                reply = client.infer("decoder", [by_triton.tensor(triton_grpc, name, array) for name, array in given.items()])
        if form == "typed":
            request = service_pb2.ModelInferRequest(model_name="decoder")
            for name, array in given.items():
                tensor = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
                tensor.contents.fp32_contents.extend(array.ravel().tolist())
            with grpc.insecure_channel(f"127.0.0.1:{growing.grpc_port}") as channel:
                reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
            raw = zip(reply.outputs, reply.raw_output_contents)
            return {output.name: np.frombuffer(data, np.float32).reshape(output.shape) for output, data in raw}
        return {name: reply.as_numpy(name) for name in ("present", "sum")}

    def agrees(past, boxes, items):
        given = steps(past, boxes, items)
        expected = dict(zip(("present", "sum"), growing.decoder.run(["present", "sum"], given)))
        got = infer(given)
        for name in expected:
            assert got[name].shape == expected[name].shape and np.allclose(got[name], expected[name], atol=1e-6), (name, got)

    of_all = [(0, 3, 1), (2, 0, 1), (0, 0, 1), (0, 0, 5), (3, 2, 2)]
    for of in of_all:
        agrees(*of)
    # Such requests share batches with their like.
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(lambda of: agrees(*of), 8 * of_all))


def test_a_request_of_no_items_is_refused_and_rows_of_no_batch_may_be_none(growing):
    given = [{"name": name, "shape": list(array.shape), "datatype": "FP32", "data": []} for name, array in steps(1, 1, 0).items()]
    reply = wire.post_infer(growing, "decoder", given)
    assert reply.status_code == 400 and "has shape [0, 2, 1, 4]: it has no elements" in reply.text, reply.text
    (y,) = wire.ok(wire.post_infer(growing, "rows", [{"name": "x", "shape": [0, 4], "datatype": "FP32", "data": []}]))["outputs"]
    assert (y["shape"], y["data"]) == ([0, 4], [])
    far = [{"name": "x", "shape": [0, 10**12], "datatype": "FP32", "data": []}]
    assert wire.post_infer(growing, "rows", far).status_code == 400


def test_numbers_that_are_not_finite_are_words_in_and_out(server):
    text = "[NaN,Infinity,-Infinity,1.0" + ",0.0" * 12 + "]"
    body = '{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":%s}]}'
    for data in (text, text.replace("NaN,Infinity,-Infinity", '"NaN","Infinity","-Infinity"')):
        reply = requests.post(f"{server.url}/v2/models/identity/infer", data=body % data, timeout=wire.TIMEOUT)
        assert reply.status_code == 200 and f'"data":{text}' in reply.text, reply.text


def test_a_tensors_task_gives_the_outputs_of_a_posted_image(server, digits):
    outputs, _ = wire.one(wire.post_image(server, "image-identity", digits[0][1]), "tensors")
    assert wire.arrays(outputs)["pixels"].size == 3 * 224 * 224
