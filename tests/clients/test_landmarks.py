"""Points of what a picture shows, from coordinates, heatmaps and bins, against NumPy's own reading of the same numbers."""

import make_models
import numpy as np
import pytest
import reference
import wire
from onnx import TensorProto

SEED = 20
WIDTH, HEIGHT = 96, 128  # of the input
PLAIN = '\n[input]\nresize = "{}"\nmean = 0\nstd = 1\n'
TOLERANCE = 1e-3  # of a pixel


def network(*outputs, names=("y",)):
    """Gives these outputs `[1, ...]`, whatever the picture is."""
    g = make_models.Graph()
    mean = g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)
    nothing = g.node("Mul", mean, g.constant(np.float32(0)))
    for name, output in zip(names, outputs, strict=True):
        none = g.node("Reshape", nothing, g.constant(np.int64([-1] + [1] * (output.ndim - 1))))
        g.node("Add", none, g.constant(output), output=name)
    inputs = [("image", TensorProto.FLOAT, ["N", 3, HEIGHT, WIDTH])]
    shapes = [(name, TensorProto.FLOAT, ["N", *output.shape[1:]]) for name, output in zip(names, outputs, strict=True)]
    return g.bytes("landmarks", inputs, shapes)


RANDOM = np.random.default_rng(SEED)
PARTS = RANDOM.random((1, 5, 2), np.float32)
SCORED = np.concatenate([PARTS[..., ::-1], RANDOM.random((1, 5, 1), np.float32)], axis=2)
HEAT = RANDOM.random((1, 17, 32, 24), np.float32)
BINS = [RANDOM.normal(size=(1, 17, 2 * side)).astype(np.float32) for side in (WIDTH, HEIGHT)]
BINS[1][0, 3] -= 10  # A point that is not there: no row has a score above 0.
NAMES = "left eye\nright eye\nnose\nleft corner\nright corner\n"
MODELS = {
    "flat": (network((PARTS * [WIDTH, HEIGHT]).astype(np.float32).reshape(1, 10)), "stretch", 'unit = "pixels"\n'),
    "centred": (network(PARTS * 2 - 1), "letterbox", 'unit = "centred"\n'),
    "movenet": (network(SCORED.reshape(1, 1, 5, 3)), "letterbox", 'unit = "parts"\norder = "yx"\n'),
    "cut": (network(PARTS), "shorter", 'unit = "parts"\n'),
    "heat": (network(HEAT), "letterbox", ""),
    "heat-last": (network(np.ascontiguousarray(HEAT.transpose(0, 2, 3, 1))), "stretch", ""),
    "heat-simcc": (network(*BINS, names=("simcc_x", "simcc_y")), "letterbox", ""),
    "heat-bins": (network(*BINS, names=("across", "down")), "stretch", 'x = "across"\ny = "down"\n'),
    "heat-swapped": (network(*BINS, names=("across", "down")), "stretch", 'x = "down"\ny = "across"\n'),
    "unsaid": (network(PARTS), "stretch", ""),
}


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("landmarks")
    for name, (model, resize, keys) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(model)
        labels = "" if name.startswith("heat") else 'labels = "labels.txt"\n'
        (folder / name / "model.toml").write_text(f'task = "landmarks"\n{labels}{PLAIN.format(resize)}\n[landmarks]\n{keys}')
        (folder / name / "labels.txt").write_text(NAMES)
    return start_server(folder)


def points_of(server, name, width, height):
    image = reference.png(np.full((height, width, 3), 99, np.uint8))
    points, _ = wire.one(wire.post_image(server, name, image), "landmarks")
    return points, np.array([[point["x"], point["y"]] for point in points])


def near(found, expected):
    difference = np.abs(found - expected).max()
    print(f"largest difference {difference:.2e} pixels")
    assert found.shape == expected.shape and difference < TOLERANCE, (found, expected)


def from_letterbox(at):
    """Pixels of the input to those of 480 x 320: five times larger, with 32 rows of padding above."""
    return (at - [0, 32]) * 5


def test_coordinates_are_in_pixels_of_the_posted_picture_and_have_their_names(served):
    points, found = points_of(served, "flat", 480, 320)
    near(found, PARTS[0] * [480, 320])
    assert [point["label"] for point in points] == NAMES.split("\n")[:-1] and "score" not in points[0]
    near(points_of(served, "centred", 480, 320)[1], from_letterbox(PARTS[0] * [WIDTH, HEIGHT]))


def test_rows_of_y_x_and_score_are_read_as_the_manifest_says(served):
    points, found = points_of(served, "movenet", 480, 320)
    near(found, from_letterbox(PARTS[0] * [WIDTH, HEIGHT]))
    assert np.abs([point["score"] for point in points] - SCORED[0, :, 2]).max() < 1e-6


def test_what_was_cut_away_is_counted(served):
    # The default size, 256 / 224 of the input's longer side, is that of the shorter side; the middle is cut out.
    scale = round(HEIGHT * 256 / 224) / 300
    cut = (np.array([600, 300]) * scale - [WIDTH, HEIGHT]) / 2
    near(points_of(served, "cut", 600, 300)[1], (PARTS[0] * [WIDTH, HEIGHT] + cut) / scale)


def peaks():
    """The highest places and what they are worth, in pixels of the heatmaps: the quarter offset as it is published with "Simple Baselines
    for Human Pose Estimation and Tracking" (Xiao, Wu and Wei 2018)."""
    places = np.zeros((17, 2))
    for place, heat in zip(places, HEAT[0]):
        y, x = np.unravel_index(heat.argmax(), heat.shape)
        place[:] = x, y
        if 1 < x < heat.shape[1] - 1 and 1 < y < heat.shape[0] - 1:
            place += 0.25 * np.sign([heat[y, x + 1] - heat[y, x - 1], heat[y + 1, x] - heat[y - 1, x]])
    return places, HEAT[0].max((1, 2))


def test_heatmaps_are_read_as_they_are_published(served):
    places, scores = peaks()
    assert (places % 1 > 0).any(), "some are moved"
    points, found = points_of(served, "heat", 480, 320)
    near(found, from_letterbox(places * 4))
    assert np.abs([point["score"] for point in points] - scores).max() < 1e-6 and "label" not in points[0]
    near(points_of(served, "heat-last", 480, 320)[1], places * [480 / 24, 320 / 32])


def test_bins_are_read_as_mmpose_reads_them(served):
    """Its `get_simcc_maximum` and the division by the split ratio, but for points without a score above 0, which it puts at -1."""
    places = np.stack([bins[0].argmax(1) for bins in BINS], axis=1) / 2
    scores = np.minimum(*(bins[0].max(1) for bins in BINS))
    assert scores[3] < 0 < np.delete(scores, 3).min()
    points, found = points_of(served, "heat-simcc", 480, 320)
    near(found, from_letterbox(places))
    assert np.abs([point["score"] for point in points] - scores).max() < 1e-6
    near(points_of(served, "heat-bins", 480, 320)[1], places * [480 / WIDTH, 320 / HEIGHT])
    state, reason = wire.stands(served, "heat-swapped")
    assert state == "UNAVAILABLE" and "set landmarks.x and landmarks.y to the outputs across and down" in reason


def test_a_unit_must_be_said(served):
    state, reason = wire.stands(served, "unsaid")
    assert state == "UNAVAILABLE" and 'set landmarks.unit = "pixels"' in reason
