"""Divisions of whole numbers whose result does not fit, against NumPy: the processor's instruction would end the process."""

import make_models
import numpy as np
import pytest
import wire
from onnx import TensorProto

TYPES = {"INT32": (np.int32, TensorProto.INT32), "INT64": (np.int64, TensorProto.INT64)}


def network(operator, kind, constant=False):
    """`a / (b + 1)` or `a % (b + 1)`: what a warm-up of zeros divides by is no zero. `constant`: of constants, folded at load."""
    number, proto = TYPES[kind]
    g = make_models.Graph()
    if constant:
        a, b = g.constant(number([np.iinfo(number).min])), g.constant(number([-1]))
    else:
        a, b = "a", g.node("Add", "b", g.constant(number([1])))
    result = g.node(operator, a, b)
    g.node("Add", result, "a" if constant else g.constant(number([0])), output="y")
    inputs = [("a", proto, ["n", 4])] + ([] if constant else [("b", proto, ["n", 4])])
    return g.bytes("division", inputs, [("y", proto, ["n", 4])])


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("division")
    for operator in ("Div", "Mod"):
        for kind in TYPES:
            for constant in (False, True):
                place = folder / f"{operator}-{kind}{'-folded' if constant else ''}"
                place.mkdir()
                (place / "model.onnx").write_bytes(network(operator, kind, constant))
    return start_server(folder)


def ask(server, model, **inputs):
    answer = wire.infer(server, model, [wire.tensor(name, values) for name, values in inputs.items()])
    return answer["y"].ravel().tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_the_least_number_by_minus_one_wraps_around_and_the_server_goes_on(served, kind):
    number = TYPES[kind][0]
    least = np.iinfo(number).min
    a = np.array([[least, least, 7, -7]], number)
    b = np.array([[-1, 2, -1, 3]], number)
    quotients = [least, least // 2, -7, -2]  # ONNX divides towards zero.
    assert ask(served, f"Div-{kind}", a=a, b=b - 1) == quotients
    assert ask(served, f"Mod-{kind}", a=a, b=b - 1) == [0, 0, 0, 2]
    zeros = np.zeros((1, 4), number)
    assert ask(served, f"Div-{kind}-folded", a=zeros) == [least] * 4
    assert ask(served, f"Mod-{kind}-folded", a=zeros) == [0] * 4
    assert served.status("/v2/health/ready") == 200
