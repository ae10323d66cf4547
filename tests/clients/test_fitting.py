"""Whether a model's outputs are what its manifest says is known when it is loaded; and detectors of forms that few have."""

from pathlib import Path

import make_models
import numpy as np
import onnx
import pytest
import reference
import requests
import wire
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
IMAGE = ("image", FLOAT, ["batch", 3, 64, 64])
FLAT = ("image", FLOAT, ["batch", 3, 32, 64])
SCORES = [[0.75, 0.5, 0.1]]
LABELS = [[1, 0, 1]]
CENTRES = [[[0.25, 0.5, 0.25, 0.5], [0.5, 0.5, 1, 1], [0.5, 0.5, 1, 1]]]  # parts of the picture


def of_items(g, array, image="image", to=FLOAT, output=None):
    """The same for every item."""
    mean = g.node("ReduceMean", image, axes=[1, 2, 3], keepdims=0)
    deep = g.node("Cast", g.node("Mul", mean, g.constant(make_models.floats(0))), to=to)
    for axis in range(1, np.ndim(array)):
        deep = g.node("Unsqueeze", deep, g.constant(np.array([axis])))
    return g.node("Add", deep, g.constant(np.asarray(array, helper.tensor_dtype_to_np_dtype(to))), output=output)


def open_shape(array, axes="abc"):
    """Numbers whose shape nobody knows before a run, as exports have that make it as they go; the file may tell some extents."""
    g = make_models.Graph()
    numbers = of_items(g, array)
    zero = g.node("ReduceSum", g.node("Mul", "image", g.constant(make_models.floats(0))), keepdims=0)
    shape = g.node("Cast", g.node("Add", zero, g.constant(make_models.floats([-1, *np.shape(array)[1:]]))), to=INT64)
    g.node("Reshape", numbers, shape, output="y")
    return g.bytes("open", [IMAGE], [("y", FLOAT, ["batch", *axes[: np.ndim(array) - 1]])])


def dark():
    """NaN for a picture without light."""
    g = make_models.Graph()
    mean = g.node("ReduceMean", "image", axes=[2, 3], keepdims=0)
    g.node("Div", mean, mean, output="y")
    return g.bytes("dark", [IMAGE], [("y", FLOAT, ["batch", "classes"])])


def shapeless():
    """`y = 2 x` of any shape."""
    g = make_models.Graph()
    g.node("Add", "x", "x", output="y")
    model = onnx.load_from_string(g.bytes("shapeless", [("x", FLOAT, [])], [("y", FLOAT, [])]))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def scalar():
    """`y = 2 x` of a single number."""
    g = make_models.Graph()
    g.node("Add", "x", "x", output="y")
    return g.bytes("scalar", [("x", FLOAT, [])], [("y", FLOAT, [])])


def sized(image=IMAGE, size_input="orig_target_sizes", order=(0, 1)):
    """Boxes in pixels of the size that is asked for, as RT-DETR and D-FINE export them; `order` says where its width and height are."""
    g = make_models.Graph()
    of_items(g, SCORES, output="scores")
    of_items(g, LABELS, to=INT64, output="labels")
    x, y, w, h = (of_items(g, np.take(CENTRES, [i], axis=2)) for i in range(4))
    half = g.constant(make_models.floats(0.5))
    half_w, half_h = g.node("Mul", w, half), g.node("Mul", h, half)
    corners = [g.node("Sub", x, half_w), g.node("Sub", y, half_h), g.node("Add", x, half_w), g.node("Add", y, half_h)]
    size = g.node("Unsqueeze", g.node("Cast", size_input, to=FLOAT), g.constant(np.array([1])))
    size = g.node("Gather", g.node("Concat", size, size, axis=2), g.constant(np.array([*order, *order])), axis=2)
    g.node("Mul", g.node("Concat", *corners, axis=2), size, output="boxes")
    outputs = [("labels", INT64, ["batch", 3]), ("boxes", FLOAT, ["batch", 3, 4]), ("scores", FLOAT, ["batch", 3])]
    return g.bytes("sized", [image, (size_input, INT64, ["batch", 2])], outputs)


def mmdeploy(labels=LABELS):
    """Boxes with their scores, in pixels of the input, and class numbers."""
    g = make_models.Graph()
    x, y, w, h = np.moveaxis(np.array(CENTRES) * 64, 2, 0)
    of_items(g, np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, np.array(SCORES)], axis=2), output="dets")
    of_items(g, labels, to=INT64, output="labels")
    return g.bytes("mmdeploy", [IMAGE], [("dets", FLOAT, ["batch", "n", 5]), ("labels", INT64, ["batch", "n"])])


def faces(scores=SCORES):
    """Boxes in pixels of the input, and a score of each, since there is one class."""
    g = make_models.Graph()
    x, y, w, h = np.moveaxis(np.array(CENTRES) * 64, 2, 0)
    of_items(g, np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=2), output="boxes")
    of_items(g, scores, output="scores")
    return g.bytes("faces", [IMAGE], [("boxes", FLOAT, ["batch", 3, 4]), ("scores", FLOAT, ["batch", len(scores[0])])])


def listed():
    """A list for all pictures: of which each box is, the box, its class and its score, as YOLOv7 has them end to end."""
    g = make_models.Graph()
    x, y, w, h = np.array(CENTRES[0]).T * 64
    rows = np.stack([np.zeros(3), x - w / 2, y - h / 2, x + w / 2, y + h / 2, LABELS[0], SCORES[0]], axis=1)
    zero = g.node("ReduceSum", g.node("Mul", "image", g.constant(make_models.floats(0))), keepdims=0)
    g.node("Add", g.constant(make_models.floats(rows)), zero, output="output")
    return g.bytes("listed", [IMAGE], [("output", FLOAT, ["n", 7])])


def half():
    """Four numbers of half precision."""
    g = make_models.Graph()
    of_items(g, [[0.5, -1.5, 2, 3]], to=HALF, output="y")
    return g.bytes("half", [IMAGE], [("y", HALF, ["batch", 4])])


def numbers_of_classes(to):
    """A number for each item, and no axis for classes."""
    g = make_models.Graph()
    of_items(g, [1], to=to, output="y")
    return g.bytes("numbers", [IMAGE], [("y", to, ["batch"])])


def colours(*last):
    """A network of the mean of each colour, with these nodes behind it. The last gives `y`."""
    g = make_models.Graph()
    g.node("ReduceMean", "image", axes=[2, 3], keepdims=0, output="means")
    g.nodes += [helper.make_node(operator, inputs, outputs) for operator, inputs, outputs in last]
    g.weights += [numpy_helper.from_array(np.float32([0.5]), "half"), numpy_helper.from_array(np.int64([2]), "two")]
    return g.bytes("colours", [IMAGE], [("y", FLOAT, ["batch", "n"])])


# Two softmaxes and their mean, as of a picture and its mirror image.
MEAN_OF_TWO = [
    ("Softmax", ["means"], ["one"]),
    ("Softmax", ["one"], ["other"]),
    ("Add", ["one", "other"], ["both"]),
    ("Mul", ["both", "half"], ["y"]),
]
CUT = [("Sigmoid", ["means"], ["parts"]), ("Min", ["parts", "half"], ["y"])]
ORDERED = [("TopK", ["means", "two"], ["values", "places"]), ("Softmax", ["values"], ["y"])]


def detr():
    """Logits, the last of no class, and boxes as parts of the input, as transformers' DETR has them."""
    g = make_models.Graph()
    of_items(g, np.log([[[0.1, 0.75, 0.15], [0.5, 0.1, 0.4], [0.05, 0.1, 0.85]]]), output="logits")
    of_items(g, CENTRES, output="pred_boxes")
    return g.bytes("detr", [IMAGE], [("logits", FLOAT, ["batch", 3, 3]), ("pred_boxes", FLOAT, ["batch", 3, 4])])


def rt_detr():
    """Logits of two classes, both of which the first box is of, and boxes as parts of the input, as transformers' RT-DETR has them."""
    g = make_models.Graph()
    of_items(g, np.log([[[1, 3], [1, 1 / 9], [1 / 9, 1 / 9]]]), output="logits")
    of_items(g, CENTRES, output="pred_boxes")
    return g.bytes("rt_detr", [IMAGE], [("logits", FLOAT, ["batch", 3, 2]), ("pred_boxes", FLOAT, ["batch", 3, 4])])


def suppressing():
    """Rows that are sorted out by NonMaxSuppression."""
    g = make_models.Graph()
    box, score = g.constant(make_models.floats([[[0, 0, 1, 1]]])), g.constant(make_models.floats([[[0.5]]]))
    kept = g.node("ReduceSum", g.node("Cast", g.node("NonMaxSuppression", box, score), to=FLOAT), keepdims=0)
    rows = of_items(g, np.zeros((1, 3, 6)))
    g.node("Add", rows, g.node("Mul", kept, g.constant(make_models.floats(0))), output="y")
    return g.bytes("suppressing", [IMAGE], [("y", FLOAT, ["batch", 3, 6])])


PETS = "cat\ndog\n"
# Three anchors as a YOLO gives them, with the channels first.
YOLO = [[*(np.array(CENTRES[0]).T * 64), [0.1, 0.5, 0.1], [0.75, 0.2, 0.0]]]
DETECT = 'task = "detect"\nlabels = "labels.txt"\n\n[detect]\n'
CLASSIFY = 'task = "classify"\nlabels = "labels.txt"\n'
READY = {
    "mean-of-two": (colours(*MEAN_OF_TWO), f"{CLASSIFY}\n[input]\nmean = 0\nstd = 1\n", PETS + "cow\n"),
    "cut": (colours(*CUT), CLASSIFY, PETS + "cow\n"),
    "cut-said": (colours(*CUT), f'{CLASSIFY}\n[classify]\nactivation = "none"\n', PETS + "cow\n"),
    "channels": (open_shape(YOLO, ["c", 3]), f'{DETECT}iou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS),
    "channels-said": (
        open_shape(YOLO, ["c", 3]),
        f'{DETECT}orientation = "channels_first"\niou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS,
    ),
    "background": (mmdeploy([[2, 0, 1]]), f'{DETECT}first_class = 1\niou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS),
    "fits": (open_shape(np.zeros((1, 6, 50))), DETECT, PETS),
    "dark": (dark(), f"{CLASSIFY}\n[input]\nmean = 0\nstd = 1\n", PETS + "cow\n"),
    "scalar": (scalar(), "", None),
    "letterboxed": (sized(), f'{DETECT}size_input = "orig_target_sizes"\n', PETS),
    "stretched": (sized(), f'{DETECT}size_input = "orig_target_sizes"\n\n[input]\nresize = "stretch"\n', PETS),
    "height-first": (
        sized(FLAT, "im_shape", (1, 0)),
        f'{DETECT}size_input = "im_shape"\nsize_order = "hw"\n\n[input]\nresize = "stretch"\n', PETS,
    ),
    "mmdeploy": (mmdeploy(), f'{DETECT}iou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS),
    "one-class": (faces(), f'{DETECT}iou_max = 1.0\n\n[input]\nresize = "stretch"\n', "face\n"),
    "listed": (listed(), f'{DETECT}columns = ["image", "box", "class", "score"]\n\n[input]\nresize = "stretch"\n', PETS),
    "half": (half(), "[input]\n", None),
    "untold": (open_shape(np.zeros((1, 3, 32, 48))), 'task = "segment"\nlabels = "labels.txt"\n', PETS + "cow\n"),
    "detr": (detr(), f'{DETECT}activation = "softmax"\nbackground = "last"\niou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS),
    "rt-detr": (
        rt_detr(),
        f'{DETECT}activation = "sigmoid"\nmulti_label = true\niou_max = 1.0\n\n[input]\nresize = "stretch"\n', PETS,
    ),
    "suppressed": (suppressing(), f'{DETECT}format = "end2end"\n', PETS),
    "suppressed-each": (suppressing(), f'{DETECT}format = "end2end"\n\n[batch]\naxis = "items"\n', PETS),
}
REFUSED = {
    "misfit": (
        open_shape(np.zeros((1, 85, 50))), DETECT, PETS,
        'task "detect" cannot read what a forward pass gave: output "y" has shape [?, 85, 50], expected 6 channels for 2 labels',
    ),
    "ambiguous": (open_shape(np.zeros((1, 300, 6))), DETECT, PETS, 'output "y" of shape [?, 300, 6] can be read both ways'),
    "rotated": (open_shape(np.zeros((1, 300, 7))), DETECT, PETS + "cow\n", 'output "y" of shape [?, 300, 7] can be read both ways'),
    "ordered": (colours(*ORDERED), CLASSIFY, PETS, 'output "y" comes from TopK, by which the network has chosen'),
    "channels-misfit": (
        open_shape(YOLO, ["c", 3]), DETECT, PETS + "cow\n",
        'task "detect" cannot read what a forward pass gave: output "y" has shape [?, 6, 3], expected 7 channels for 3 labels',
    ),
    "argmax": (numbers_of_classes(INT64), CLASSIFY, PETS, "which is the number of a class and no score"),
    "squeezed": (numbers_of_classes(FLOAT), CLASSIFY, PETS + "cow\n", 'the labels file has 3 labels, output "y" has 1 classes'),
    "unsorted": (detr(), f'{DETECT}activation = "softmax"\n', PETS, "set detect.background"),
    "mislabelled": (open_shape(np.zeros((1, 10))), CLASSIFY, PETS, 'the labels file has 2 labels, output "y" has 10 classes'),
    "one-of-two-classes": (faces(), DETECT, PETS, "if another output has class numbers, name it with detect.classes"),
    "fewer-scores": (
        faces([[0.75, 0.5]]), DETECT, "face\n",
        'output "scores" has shape [?, 2], expected [1, 3, classes], or [1, 3] of one class',
    ),
    "unsure": (mmdeploy(), f"{DETECT}multi_label = true\n", PETS, 'output "labels" has a class number for each box'),
    "unsized": (sized(), DETECT, PETS, "detect.size_input may name a second"),
    "unordered": (
        sized(FLAT, "im_shape", (1, 0)), f'{DETECT}size_input = "im_shape"\n', PETS,
        "seems to take the height before the width: set detect.size_order",
    ),
    "order-of-nothing": (mmdeploy(), f'{DETECT}size_order = "hw"\n', PETS, "detect.size_order is for detect.size_input"),
    "shapeless": (shapeless(), "", None, 'input "x" has no shape in the file'),
}


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitting")
    for name, (model, manifest, labels, *_) in (READY | REFUSED).items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(model)
        (folder / name / "model.toml").write_text(manifest)
        if labels:
            (folder / name / "labels.txt").write_text(labels)
    return start_server(folder)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_request_could_be_answered_by_is_refused_at_load(served, name):
    state, reason = wire.stands(served, name)
    assert state == "UNAVAILABLE" and REFUSED[name][-1] in reason, reason
    reply = wire.post_image(served, name, reference.png(np.zeros((8, 8, 3), np.uint8)))
    assert reply.status_code == 503 and REFUSED[name][-1] in reply.json()["detail"], reply.text


@pytest.mark.parametrize("name", READY)
def test_what_another_picture_may_be_answered_by_is_served(served, name):
    assert wire.stands(served, name) == ("READY", "")


def test_a_network_that_sorts_boxes_out_runs_a_picture_at_a_time_unless_it_is_said_to_take_more(served):
    config = {name: requests.get(f"{served.url}/v2/models/{name}/config", timeout=60).json() for name in ("suppressed", "suppressed-each")}
    assert config["suppressed"]["max_batch_size"] == 0 and config["suppressed-each"]["max_batch_size"] > 1, config
    assert "sorts out boxes itself" in served.log_text()


def test_zeros_that_give_no_numbers_tell_nothing_of_other_pictures(served):
    assert wire.post_image(served, "dark", reference.png(np.zeros((8, 8, 3), np.uint8))).status_code == 400
    classes, _ = wire.one(wire.post_image(served, "dark", reference.png(np.full((8, 8, 3), 255, np.uint8))), "classify")
    assert len(classes) == 3


def test_a_classifier_that_gives_probabilities_is_answered_as_it_is_also_where_only_passes_show_it(served):
    picture = reference.png(np.full((8, 8, 3), [255, 0, 0], np.uint8))
    one = np.exp([1, 0, 0]) / np.exp([1, 0, 0]).sum()
    other = np.exp(one) / np.exp(one).sum()
    classes, _ = wire.one(wire.post_image(served, "mean-of-two", picture), "classify")
    assert np.abs(np.subtract([c["score"] for c in classes], (one + other) / 2)).max() < 1e-6, classes
    said = {name: [] for name in ("mean-of-two", "cut", "cut-said")}
    for line in Path(served.log).read_text().splitlines():
        for name in said:
            if f"model={name} " in line.replace('"', "") + " " and "activation" in line:
                said[name].append(line)
    assert {name: len(lines) for name, lines in said.items()} == {"mean-of-two": 1, "cut": 2, "cut-said": 1}, said
    assert 'activation = "none"' in said["mean-of-two"][0] and "sums to 1 each time" in said["mean-of-two"][0], said
    assert 'activation = "softmax"' in said["cut"][0] and "the default" in said["cut"][0], said
    assert "WARN" in said["cut"][1] and 'add the lines [classify] and activation = "none"' in said["cut"][1], said
    assert 'activation = "none"' in said["cut-said"][0] and "its author says so" in said["cut-said"][0], said


def test_a_single_number_is_an_input_as_any(served):
    inputs = [{"name": "x", "datatype": "FP32", "shape": [], "data": [21]}]
    reply = requests.post(f"{served.url}/v2/models/scalar/infer", json={"inputs": inputs}, timeout=60)
    assert reply.json()["outputs"][0]["data"] == [42], reply.text


@pytest.mark.parametrize(
    "name, expected",
    [
        ("stretched", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        # The input is as high as the picture is wide: 30 pixels of padding above and below.
        ("letterboxed", [("dog", [20, 10, 60, 90]), ("cat", [0, 0, 160, 100])]),
        ("height-first", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        ("mmdeploy", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        ("listed", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        ("one-class", [("face", [20, 25, 60, 75]), ("face", [0, 0, 160, 100])]),
        ("detr", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        ("channels", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        ("channels-said", [("dog", [20, 25, 60, 75]), ("cat", [0, 0, 160, 100])]),
        # The other is of the background.
        ("background", [("dog", [20, 25, 60, 75])]),
    ],
)
def test_boxes_in_a_size_that_is_asked_for_are_in_pixels_of_the_posted_picture(served, name, expected):
    picture = reference.png(np.full((100, 160, 3), 255, np.uint8))
    detections, _ = wire.one(wire.post_image(served, name, picture), "detect")
    assert [d["label"] for d in detections] == [label for label, _ in expected]
    # Those of logits are as exact as softmax is.
    tolerance = 1e-6 if name == "detr" else 0
    assert np.abs(np.subtract([d["score"] for d in detections], [0.75, 0.5][: len(expected)])).max() <= tolerance, detections
    for d, (_, box) in zip(detections, expected):
        assert np.abs(np.subtract(d["box"], box)).max() < 0.01, (d, box)


def test_every_class_of_a_box_is_answered_where_the_manifest_says_so(served):
    picture = reference.png(np.full((100, 160, 3), 255, np.uint8))
    detections, _ = wire.one(wire.post_image(served, "rt-detr", picture), "detect")
    expected = [("dog", 0.75, [20, 25, 60, 75]), ("cat", 0.5, [20, 25, 60, 75]), ("cat", 0.5, [0, 0, 160, 100])]
    assert [d["label"] for d in detections] == [label for label, *_ in expected], detections
    for d, (_, score, box) in zip(detections, expected):
        assert abs(d["score"] - score) < 1e-6 and np.abs(np.subtract(d["box"], box)).max() < 0.01, d


def test_a_model_that_asks_for_a_size_takes_pictures_by_every_way(served):
    picture = reference.png(np.full((100, 160, 3), 255, np.uint8))
    url = f"{served.url}/v2/models/letterboxed/infer"
    raw = requests.post(url, data=picture, headers={"Inference-Header-Content-Length": "0"}, timeout=60)
    numbers = np.frombuffer(raw.content[int(raw.headers["inference-header-content-length"]) + 24 :], np.float32)
    assert numbers[:4].tolist() == [8, 16, 24, 48], "in pixels of the input"
    body = {"instances": [{"b64": wire.b64(picture)}]}
    reply = requests.post(f"{served.url}/v1/models/letterboxed:predict", json=body, timeout=60).json()
    box = reply["predictions"][0]["detections"][0]["box"]
    assert np.abs(np.subtract(box, [20, 10, 60, 90])).max() < 0.01, reply
    # Several, which run together: each is told its own.
    tall = reference.png(np.full((160, 80, 3), 255, np.uint8))
    replies = wire.many(wire.post_files(served, "stretched", [("a", picture), ("b", tall), ("c", picture)]), "detect", 3)
    boxes = [reply["detections"][0]["box"] for reply in replies]
    assert np.abs(np.subtract(boxes, [[20, 25, 60, 75], [10, 40, 30, 120], [20, 25, 60, 75]])).max() < 0.01, boxes
    tensors = {"image": np.zeros((2, 3, 64, 64), np.float32), "orig_target_sizes": np.array([[100, 10], [10, 100]])}
    outputs = wire.infer(served, "letterboxed", tensors)
    assert outputs["boxes"][:, 0].tolist() == [[12.5, 2.5, 37.5, 7.5], [1.25, 25, 3.75, 75]]


def test_half_precision_is_told_as_numbers_where_there_is_no_binary_form(served):
    picture = reference.png(np.zeros((64, 64, 3), np.uint8))
    outputs, _ = wire.one(wire.post_image(served, "half", picture), "tensors")
    assert outputs == [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [0.5, -1.5, 2, 3]}]
    body = {"instances": np.zeros((1, 3, 64, 64)).tolist()}
    reply = requests.post(f"{served.url}/v1/models/half:predict", json=body, timeout=60)
    assert reply.json() == {"predictions": [[0.5, -1.5, 2, 3]]}, reply.text
    inputs = [{"name": "image", "datatype": "FP32", "shape": [1, 3, 64, 64], "data": [0] * 3 * 64 * 64}]
    reply = requests.post(f"{served.url}/v2/models/half/infer", json={"inputs": inputs}, timeout=60)
    assert reply.status_code == 400 and "is FP16, which JSON does not carry" in reply.text, reply.text
