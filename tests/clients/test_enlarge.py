"""Masks of networks whose output is smaller than the posted picture, against NumPy's own enlargement of the same scores."""

import make_models
import numpy as np
import pytest
import reference
import wire
from onnx import TensorProto

SEED = 20
HEIGHT, WIDTH = 9, 12
INPUT = '[input]\nresize = "{}"\nmean = 0\nstd = 1\n'


def network(output, kind=TensorProto.FLOAT):
    """Gives this output `[1, ...]`, whatever the picture of 48 x 36 is."""
    g = make_models.Graph()
    mean = g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=output.ndim == 4)
    nothing = g.node("Mul", mean, g.constant(np.float32(0)))
    if output.ndim == 3:
        nothing = g.node("Unsqueeze", nothing, g.constant(np.int64([1, 2])))
    if kind != TensorProto.FLOAT:
        nothing = g.node("Cast", nothing, to=kind)
    g.node("Add", nothing, g.constant(output), output="scores")
    shapes = [("image", TensorProto.FLOAT, ["N", 3, 36, 48])], [("scores", kind, ["N", *output.shape[1:]])]
    return g.bytes("map", *shapes)


RANDOM = np.random.default_rng(SEED)
SCORES = RANDOM.normal(0, 3, (1, 21, HEIGHT, WIDTH)).astype(np.float32)
ONE = RANDOM.normal(0, 1, (1, 1, HEIGHT, WIDTH)).astype(np.float32)
CLASSES = RANDOM.integers(0, 5, (1, HEIGHT, WIDTH))
MODELS = {
    "planes": (network(SCORES), ""),
    "last": (network(np.ascontiguousarray(SCORES.transpose(0, 2, 3, 1))), 'layout = "nhwc"\n'),
    "one": (network(ONE), "threshold = 0.25\n"),
    "blocks": (network(SCORES), 'enlarge = "nearest"\n'),
    "given": (network(CLASSES, TensorProto.INT64), ""),
    "mixed": (network(CLASSES, TensorProto.INT64), 'enlarge = "bilinear"\n'),
    "boxed": (network(SCORES), ""),
}


@pytest.fixture(scope="module")
def enlarging(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("enlarging")
    for name, (model, keys) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(model)
        resize = INPUT.format("letterbox" if name == "boxed" else "stretch")
        (folder / name / "model.toml").write_text(f'task = "segment"\n{resize}[segment]\n{keys}')
    return start_server(folder)


def mixing(pixels, texels):
    """The matrix `[pixels, texels]` of torch's `interpolate(mode="bilinear", align_corners=False)` along one axis."""
    at = np.maximum((np.arange(pixels) + 0.5) * texels / pixels - 0.5, 0)
    low = np.minimum(at.astype(int), texels - 1)
    rows = np.zeros((pixels, texels))
    rows[np.arange(pixels), low] = 1 - (at - low)
    rows[np.arange(pixels), np.minimum(low + 1, texels - 1)] += at - low
    return rows


def enlarged(scores, width, height):
    rows, columns = mixing(height, scores.shape[-2]), mixing(width, scores.shape[-1])
    return np.einsum("yh,chw,xw->cyx", rows, scores.astype(float), columns)


def mask_of(server, model, width, height):
    image = reference.png(np.full((height, width, 3), 128, np.uint8))
    mask, _ = wire.one(wire.post_image(server, model, image, query={"mask": "rle"}), "segment")
    assert (mask["width"], mask["height"]) == (width, height)
    return wire.class_map(mask)


def check(found, scores):
    """That each pixel has the class of the highest score, by 1e-4 at most."""
    behind = scores.max(0) - np.take_along_axis(scores, found[None], 0)[0]
    print(f"{(found != scores.argmax(0)).sum()} of {found.size} pixels differ; largest difference of scores {behind.max():.2e}")
    assert behind.max() < 1e-4


@pytest.mark.parametrize("width, height", [(200, 120), (37, 301), (12, 9), (7, 5), (48, 36)])
@pytest.mark.parametrize("model", ["planes", "last"])
def test_each_pixel_has_the_class_of_the_highest_enlarged_score(enlarging, model, width, height):
    check(mask_of(enlarging, model, width, height), enlarged(SCORES[0], width, height))


def test_one_channel_is_enlarged_before_it_is_compared(enlarging):
    found, scores = mask_of(enlarging, "one", 200, 120), enlarged(ONE[0], 200, 120)[0]
    wrong = np.abs(scores[found != (scores >= 0.25)] - 0.25)
    print(f"{wrong.size} of {found.size} pixels differ; largest difference from the threshold {wrong.max(initial=0):.2e}")
    assert wrong.max(initial=0) < 1e-4 and 0.1 < found.mean() < 0.9


def test_padding_is_not_blended_in(enlarging):
    # 96 x 24 in 48 x 36: twice as small, 12 rows of padding above and below, which are 3 of 9 rows of the output.
    check(mask_of(enlarging, "boxed", 96, 24), enlarged(SCORES[0, :, 3:6], 96, 24))


def test_blocks_can_be_asked_for_and_are_what_classes_get(enlarging):
    for model, classes in (("blocks", SCORES[0].argmax(0)), ("given", CLASSES[0])):
        expected = classes.repeat(10, axis=0).repeat(10, axis=1)
        assert (mask_of(enlarging, model, WIDTH * 10, HEIGHT * 10) == expected).all(), model


def test_classes_are_not_mixed(enlarging):
    state, reason = wire.stands(enlarging, "mixed")
    assert state == "UNAVAILABLE" and 'segment.enlarge = "bilinear" is for scores: output "scores" is INT64' in reason
