"""Models whose free first axis counts no items: nobody gets what was computed of another's request."""

from concurrent.futures import ThreadPoolExecutor

import make_models
import numpy as np
import pytest
import requests
from onnx import TensorProto

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def detector():
    """`[n, 2]`: for each value above zero its image and its place, as exports that end in suppression give boxes."""
    g = make_models.Graph()
    found = g.node("NonZero", g.node("Relu", "x"))
    g.node("Transpose", found, output="y", perm=[1, 0])
    return g.bytes("detector", [("x", FLOAT, ["batch", 4])], [("y", INT64, ["batch", 2])])


def similarity():
    """`[n, n]`: each row with each, as a network of pictures and texts has them."""
    g = make_models.Graph()
    g.node("MatMul", "x", g.node("Transpose", "x", perm=[1, 0]), output="y")
    return g.bytes("similarity", [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", "m"])])


def total(datatype=FLOAT):
    """The sum of the rows so far: as many rows as there were."""
    g = make_models.Graph()
    g.node("CumSum", "x", g.constant(np.array(0, np.int64)), output="y")
    return g.bytes("total", [("x", datatype, ["steps", 4])], [("y", datatype, ["steps", 4])])


def carried():
    """What callers know a row by, an input that is an output as well, and its opposite."""
    g = make_models.Graph()
    g.node("Neg", "x", output="y")
    return g.bytes(
        "carried", [("x", FLOAT, ["n", 3]), ("id", INT64, ["n", "m"])], [("y", FLOAT, ["n", 3]), ("id", INT64, ["n", "m"])]
    )


MODELS = {
    "detector": (detector, "", lambda x: np.argwhere(x > 0)),
    "similarity": (similarity, "", lambda x: x @ x.T),
    "total": (total, "", lambda x: np.cumsum(x, axis=0)),
    # Whole numbers are not tried.
    "counted": (lambda: total(INT64), '[batch]\naxis = "none"\n', lambda x: np.cumsum(x, axis=0)),
}


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("axis")
    for name, (make, manifest, _) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(make())
        (folder / name / "model.toml").write_text(manifest)
    server = start_server(folder)
    yield f"{server.url}/v2/models"
    log = server.log_text()
    assert 'output "y" has shape [0, 2] for 1 items' in log and "[1, 1] for 1 items and [2, 2] for 2" in log
    assert 'row 1 of 2 of output "y" changes with what is in the others' in log


@pytest.mark.parametrize("name", MODELS)
def test_requests_at_once_are_answered_each_as_if_it_were_alone(served, name):
    expected = MODELS[name][2]
    datatype = "INT64" if name == "counted" else "FP32"
    assert requests.get(f"{served}/{name}/config", timeout=60).json()["max_batch_size"] == 0

    def ask(seed):
        # Small whole numbers, so that sums are exact; some requests have nothing above zero.
        x = np.random.default_rng(seed).integers(-3, 2, (seed % 5 + 1, 4))
        body = {"inputs": [{"name": "x", "shape": x.shape, "datatype": datatype, "data": x.tolist()}]}
        reply = requests.post(f"{served}/{name}/infer", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        (got,) = reply.json()["outputs"]
        assert np.array_equal(np.reshape(got["data"], got["shape"]), expected(x)), (x, got)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(200)))


@pytest.mark.parametrize("width", [2, 5000])
def test_an_input_that_is_an_output_comes_back_to_whoever_sent_it(start_server, tmp_path, width):
    (tmp_path / "carried").mkdir()
    (tmp_path / "carried" / "model.onnx").write_bytes(carried())
    server = start_server(tmp_path)

    def ask(caller):
        for turn in range(40):
            mark = 1000 * caller + turn
            id = {"name": "id", "shape": [1, width], "datatype": "INT64", "data": [mark] * width}
            x = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [mark, 0, -mark]}
            reply = requests.post(f"{server.url}/v2/models/carried/infer", json={"inputs": [x, id]}, timeout=60)
            assert reply.status_code == 200, reply.text
            outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
            assert outputs["id"] == [mark] * width and outputs["y"] == [-mark, 0, mark]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def by_eight():
    """Frames in groups of eight, as networks of moving pictures take them."""
    g = make_models.Graph()
    groups = g.node("Reshape", "x", g.constant(np.array([-1, 8, 4], np.int64)))
    g.node("Reshape", groups, g.constant(np.array([-1, 4], np.int64)), output="y")
    return g.bytes("by_eight", [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])])


def test_a_network_that_takes_no_single_row_is_told_what_to_write_and_served_with_that(start_server, tmp_path):
    for name, manifest in (("untold", ""), ("told", '[batch]\naxis = "none"\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(by_eight())
        (tmp_path / name / "model.toml").write_text(manifest)
    url = f"{start_server(tmp_path).url}/v2"
    models = {model["name"]: model for model in requests.post(f"{url}/repository/index", timeout=60).json()}
    assert 'batch.axis = "none" says so' in models["untold"]["reason"], models
    x = {"name": "x", "shape": [8, 4], "datatype": "FP32", "data": list(range(32))}
    reply = requests.post(f"{url}/models/told/infer", json={"inputs": [x]}, timeout=60).json()
    assert reply["outputs"][0]["data"] == list(range(32))
