"""Classifiers whose scores are bytes, against NumPy's own rounding and softmax of the same logits."""

import make_models
import numpy as np
import pytest
import reference
import wire
from onnx import TensorProto

SCALE = np.float32(0.13)
LOGITS = np.random.default_rng(20).normal(0, 4, 40).astype(np.float32)
PLAIN = "\n[input]\nmean = 0\nstd = 1\n"


def network(zero, softmax=False, constant=True):
    """Gives these logits (or their softmax) for every picture, rounded to steps."""
    g = make_models.Graph()
    mean = g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)
    nothing = g.node("Mul", g.node("Unsqueeze", mean, g.constant(np.int64([1]))), g.constant(np.float32(0)))
    y = g.node("Add", nothing, g.constant(LOGITS))
    if softmax:
        y = g.node("Softmax", y, axis=1)
    scale = g.constant(np.float32(1 / 256) if softmax else SCALE)
    if not constant:  # one that is computed, from what is the same for all pictures
        scale = g.node("ReduceMax", g.constant(SCALE.reshape(1)), keepdims=0)
    y = g.node("QuantizeLinear", y, scale, g.constant(zero))
    g.node("Reshape", y, g.constant(np.int64([-1, len(LOGITS)])), output="scores")
    kind = TensorProto.INT8 if zero.dtype == np.int8 else TensorProto.UINT8
    shapes = [("image", TensorProto.FLOAT, ["N", 3, 8, 8])], [("scores", kind, ["N", len(LOGITS)])]
    return g.bytes("quantized", *shapes)


SIGNED, UNSIGNED = np.int8(-20), np.uint8(101)
MODELS = {
    "unsigned": (network(UNSIGNED), ""),
    "signed": (network(SIGNED), ""),
    "sigmoid": (network(SIGNED), 'activation = "sigmoid"\n'),
    "softmax": (network(np.uint8(0), softmax=True), ""),
    "computed": (network(UNSIGNED, constant=False), ""),
    "as-they-are": (network(UNSIGNED, constant=False), 'activation = "none"\n'),
}


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    for name, (model, keys) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(model)
        (folder / name / "model.toml").write_text(f'task = "classify"\n{PLAIN}[classify]\ntop_k = 40\n{keys}')
    return start_server(folder)


def scores_of(server, name):
    classes, _ = wire.one(wire.post_image(server, name, reference.png(np.full((8, 8, 3), 99, np.uint8))), "classify")
    wire.best(classes)
    scores = np.zeros(len(LOGITS))
    scores[[c["index"] for c in classes]] = [c["score"] for c in classes]
    return scores


def rounded(numbers, scale, zero):
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(numbers / scale) + float(zero), limits.min, limits.max)


def softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


@pytest.mark.parametrize("name, zero", [("unsigned", UNSIGNED), ("signed", SIGNED), ("sigmoid", SIGNED)])
def test_bytes_are_logits_by_the_scale_that_the_file_has(served, name, zero):
    logits = (rounded(LOGITS, SCALE, zero) - float(zero)) * float(SCALE)
    expected = 1 / (1 + np.exp(-logits)) if name == "sigmoid" else softmax(logits)
    difference = np.abs(scores_of(served, name) - expected).max()
    print(f"largest difference {difference:.2e}")
    assert difference < 1e-6
    assert "is quantized by QuantizeLinear" in served.log_text()


def test_bytes_of_a_softmax_are_probabilities(served):
    expected = rounded(softmax(LOGITS.astype(float)), 1 / 256, np.uint8(0)) / 256
    difference = np.abs(scores_of(served, "softmax") - expected).max()
    print(f"largest difference {difference:.2e}")
    assert difference <= 1 / 256 and np.abs(scores_of(served, "softmax") * 256 % 1).max() == 0


def test_bytes_of_which_the_file_says_nothing_are_scores_only_if_the_author_says_so(served):
    state, reason = wire.stands(served, "computed")
    assert state == "UNAVAILABLE" and "has 40 UINT8s for an image, and the file does not say what they stand for" in reason
    assert (scores_of(served, "as-they-are") == rounded(LOGITS, SCALE, UNSIGNED)).all()
