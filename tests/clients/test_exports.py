"""Forms of exports that need few lines in a manifest, or none."""

import make_models
import numpy as np
import onnx
import pytest
import reference
import requests
import wire
from onnx import TensorProto, helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
PLAIN = "\n[input]\nmean = 0\nstd = 1\n"


def warmed():
    """The mean of each colour times a temperature, which is the first input."""
    g = make_models.Graph()
    g.node("Mul", g.node("ReduceMean", "image", axes=[2, 3], keepdims=0), "temperature", output="y")
    inputs = [("temperature", FLOAT, ["batch", 1]), ("image", FLOAT, ["batch", 3, 8, 8])]
    return g.bytes("warmed", inputs, [("y", FLOAT, ["batch", 3])])


def masked():
    """The mean of each colour, of which a mask of the picture's open sides counts, and more than a threshold in half precision."""
    g = make_models.Graph()
    mask = g.node("Unsqueeze", g.node("Cast", "pixel_mask", to=FLOAT), g.constant(np.array([1])))
    mean = g.node("ReduceMean", g.node("Mul", "image", mask), axes=[2, 3], keepdims=0)
    g.node("Sub", mean, g.node("Cast", "threshold", to=FLOAT), output="y")
    inputs = [
        ("image", FLOAT, ["batch", 3, "height", "width"]), ("pixel_mask", INT64, ["batch", "height", "width"]),
        ("threshold", TensorProto.FLOAT16, ["batch", 1]),
    ]
    return g.bytes("masked", inputs, [("y", FLOAT, ["batch", 3])])


def beside():
    """The mean of one picture less that of another."""
    g = make_models.Graph()
    one, other = (g.node("ReduceMean", image, axes=[2, 3], keepdims=0) for image in ("before", "after"))
    g.node("Sub", other, one, output="y")
    inputs = [(name, FLOAT, ["batch", 3, 8, 8]) for name in ("before", "after")]
    return g.bytes("beside", inputs, [("y", FLOAT, ["batch", 3])])


def saying(model, **entries):
    """The same with entries in its metadata."""
    model = onnx.load_from_string(model)
    helper.set_model_props(model, entries)
    return model.SerializeToString()


def yolo(channels, **entries):
    """Three anchors of so many channels: a box in the middle, then numbers that fall from 0.9."""
    g = make_models.Graph()
    numbers = np.zeros((1, channels, 3), np.float32)
    numbers[0, :4] = [[32], [32], [16], [16]]
    numbers[0, 4:, 0] = np.linspace(0.9, 0.1, channels - 4)
    zero = g.node("Mul", g.node("ReduceMean", "image", axes=[2, 3], keepdims=0), g.constant(make_models.floats(0)))
    zero = g.node("ReduceSum", zero, g.constant(np.array([1])), keepdims=1)
    zero = g.node("Unsqueeze", zero, g.constant(np.array([2])))
    g.node("Add", zero, g.constant(numbers), output="output0")
    model = g.bytes("yolo", [("image", FLOAT, ["batch", 3, 64, 64])], [("output0", FLOAT, ["batch", channels, 3])])
    return saying(model, **entries) if entries else model


def sorted_out(*rows, **entries):
    """Two rows that the network has sorted out itself, whatever the picture is."""
    g = make_models.Graph()
    zero = g.node("Mul", g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=0), g.constant(make_models.floats(0)))
    zero = g.node("Unsqueeze", zero, g.constant(np.array([1, 2])))
    g.node("Add", zero, g.constant(make_models.floats([rows])), output="output0")
    shape = ["batch", len(rows), len(rows[0])]
    model = g.bytes("sorted-out", [("image", FLOAT, ["batch", 3, 64, 64])], [("output0", FLOAT, shape)])
    return saying(model, **entries)


def semantic(**entries):
    """The brightest channel of each pixel, as the network has it: its number."""
    g = make_models.Graph()
    g.node("ArgMax", "image", axis=1, keepdims=0, output="output0")
    model = g.bytes("semantic", [("image", FLOAT, ["batch", 3, 8, 8])], [("output0", INT64, ["batch", 8, 8])])
    return saying(model, **entries)


def instances():
    """Boxes and prototypes of masks, as an Ultralytics file says of them."""
    g = make_models.Graph()
    g.node("ReduceMean", "image", axes=[3], keepdims=0, output="output0")
    g.node("Identity", "image", output="output1")
    outputs = [("output0", FLOAT, ["batch", 3, 8]), ("output1", FLOAT, ["batch", 3, 8, 8])]
    return saying(g.bytes("instances", [("image", FLOAT, ["batch", 3, 8, 8])], outputs), task="segment", names=PETS)


def lines():
    """The mean of each column of a line of text, whose width is open."""
    g = make_models.Graph()
    g.node("ReduceMean", "line", axes=[1, 2], keepdims=0, output="y")
    return g.bytes("lines", [("line", FLOAT, ["batch", 1, 32, "width"])], [("y", FLOAT, ["batch", "width"])])


def with_others(integers=False):
    """The mean of each colour (or whole numbers), and outputs that are no tensors: a sequence, and an optional one that is empty."""
    g = make_models.Graph()
    g.node("ReduceMean", "image", axes=[2, 3], keepdims=0, output="y")
    g.node("Cast", "y", to=INT64, output="label")
    g.nodes.append(helper.make_node("SequenceConstruct", ["y", "y"], ["parts"]))
    g.nodes.append(helper.make_node("Optional", [], ["none"], type=helper.make_tensor_type_proto(FLOAT, [1])))
    y = ("label", INT64, ["batch", 3]) if integers else ("y", FLOAT, ["batch", 3])
    model = onnx.load_from_string(g.bytes("with-others", [("image", FLOAT, ["batch", 3, 8, 8])], [y]))
    model.graph.output.insert(0, helper.make_tensor_sequence_value_info("parts", FLOAT, None))
    of_optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [1]))
    model.graph.output.append(helper.make_value_info("none", of_optional))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def by_eight(mixed=False):
    """The mean of each colour in batches of eight, for each picture or (mixed) less that of all."""
    g = make_models.Graph()
    mean = g.node("ReduceMean", "image", axes=[2, 3], keepdims=0, output=None if mixed else "y")
    if mixed:
        g.node("Sub", mean, g.node("ReduceMean", mean, axes=[0], keepdims=1), output="y")
    return g.bytes("by-eight", [("image", FLOAT, [8, 3, 8, 8])], [("y", FLOAT, [8, 3])])


PETS = "{0: 'cat', 1: \"dog's\"}"
# One over the other, and of one class: nothing but the network may sort these out.
ROWS = [8, 8, 40, 40, 0.9, 1], [8, 8, 40, 41, 0.8, 1]
READY = {
    "others": (with_others(), f'task = "embed"\n{PLAIN}'),
    "others-tensors": (with_others(), ""),
    "lines": (lines(), '[input]\nresize = "height"\n'),
    "yolo": (yolo(6, task="detect", names=PETS, stride="32"), 'task = "detect"\n'),
    "yolo-pose": (yolo(11, task="pose", names="{0: 'fish'}", kpt_shape="[2, 3]"), 'task = "detect"\n'),
    "yolo-obb": (yolo(7, task="obb", names=PETS), 'task = "detect"\n'),
    "sorted": (sorted_out(*ROWS, task="detect", names=PETS, end2end="True"), 'task = "detect"\n'),
    "sorted-nms": (sorted_out(*ROWS, task="detect", names=PETS, end2end="False", args="{'batch': 1, 'nms': True}"), 'task = "detect"\n'),
    "sorted-pose": (sorted_out(*(row + [9, 9, 1] for row in ROWS), task="pose", names=PETS, kpt_shape="[1, 3]", end2end="True"), 'task = "detect"\n'),
    "yolo-bare": (yolo(6, task="detect", names=PETS), None),
    "yolo-odd": (yolo(6, task="detect", names="{0: 'cat', 1: open('x')}"), 'task = "detect"\n\n[detect]\nobjectness = false\n'),
    "semantic": (semantic(task="semantic", names="{0: 'road', 1: 'tree', 2: 'sky'}"), 'task = "segment"\n'),
    "by-eight": (by_eight(), f'task = "embed"\n{PLAIN}'),
    "by-eight-tensors": (by_eight(), ""),
    "warmed": (warmed(), f'task = "embed"\n{PLAIN}constants = {{ temperature = 2 }}\n'),
    "masked": (masked(), f'task = "embed"\n{PLAIN}width = 9\nheight = 8\nconstants = {{ pixel_mask = 2, threshold = 0.25 }}\n'),
    "after": (beside(), f'task = "embed"\n{PLAIN}name = "after"\nconstants = {{ before = 0.25 }}\n'),
}
REFUSED = {
    "others-named": (
        with_others(), 'task = "embed"\n\n[embed]\noutput = "parts"\n',
        'has no output "parts"; it has "y"; outputs that are no tensors are left out: "parts", "none" (to have them, export them as tensors;',
    ),
    "rtdetr": (
        sorted_out(*ROWS, task="detect", names=PETS, description="Ultralytics rtdetr-l model"), 'task = "detect"\n',
        "can be read both ways, as YOLO's anchors",
    ),
    "obb-upright": (
        yolo(7, task="obb", names=PETS), 'task = "detect"\n\n[detect]\nangle = false\n',
        "detect.angle is false, but the file says that it is a YOLO for obb",
    ),
    "instances": (instances(), 'task = "segment"\n', 'neither a class of each pixel; serve it with task = "detect"'),
    "others-labels": (with_others(integers=True), 'task = "classify"\n', "of scikit-learn with zipmap=False"),
    "by-eight-mixed": (by_eight(mixed=True), 'task = "embed"\n', "changes with what is in the others, so they are not computed each for itself"),
    "beside": (beside(), 'task = "embed"\n', 'an image can become each of "before", "after": say which by input.name = "before"'),
}


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    for name, (model, manifest, *_) in (READY | REFUSED).items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(model)
        if manifest is not None:
            (folder / name / "model.toml").write_text(manifest)
    return start_server(folder)


def of_colour(*colour):
    return reference.png(np.full((8, 8, 3), colour, np.uint8))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_says_which_line_settles_it(served, name):
    state, reason = wire.stands(served, name)
    assert state == "UNAVAILABLE" and REFUSED[name][-1] in reason, reason


def test_a_yolo_brings_its_labels_and_says_what_follows_a_box(served):
    picture = reference.png(np.zeros((64, 64, 3), np.uint8))
    found = {name: wire.one(wire.post_image(served, name, picture), "detect")[0] for name in READY if name.startswith("yolo") and READY[name][1]}
    assert [d["label"] for d in found["yolo"]] == ["cat"], found
    (fish,) = found["yolo-pose"]
    assert fish["label"] == "fish" and len(fish["keypoints"]) == 2, fish
    (turned,) = found["yolo-obb"]
    assert turned["label"] == "cat" and "corners" in turned, turned
    assert [d["label"] for d in found["yolo-odd"]] == [None], found
    log = served.log_text()
    assert "taken from the file, which says that it is a YOLO for pose: 1 labels, keypoints = 2" in log
    assert "the names of classes in the file's metadata are ignored" in log
    assert 'it is a YOLO for detect: it takes images with the line task = "detect" in its model.toml' in log.replace("\\", "")


def test_a_yolo_for_classes_of_pixels_brings_its_labels_and_takes_pixels_as_they_are(served):
    # A little more red than green. With ImageNet's mean and deviation, green would be more.
    mask, _ = wire.one(wire.post_image(served, "semantic", of_colour(128, 125, 0)), "segment")
    assert mask["classes"] == [{"index": 0, "label": "road", "pixels": 64}], mask
    taken = 'says that it is a YOLO for semantic: 3 labels, resize = "letterbox", mean = 0, std = 1'
    assert taken in served.log_text().replace("\\", "")


def test_a_yolo_that_says_so_has_sorted_out_its_boxes_itself(served):
    picture = reference.png(np.zeros((128, 64, 3), np.uint8))  # letterboxed: 16 columns of padding on either side
    for name in ("sorted", "sorted-nms", "sorted-pose"):
        found, _ = wire.one(wire.post_image(served, name, picture), "detect")
        assert [(d["label"], round(d["score"], 2)) for d in found] == [("dog's", 0.9), ("dog's", 0.8)], (name, found)
        assert np.abs(np.subtract(found[0]["box"], [0, 16, 48, 80])).max() < 1e-3, found
        assert ("keypoints" in found[0]) == (name == "sorted-pose"), found
    told = 'taken from the file, which says that it is a YOLO for detect: 2 labels, format = "end2end"'
    assert told in served.log_text().replace("\\", "")


def test_a_line_of_text_is_as_wide_as_its_proportions_say(served):
    files = [(str(i), reference.png(np.full((height, width, 3), 51, np.uint8))) for i, (width, height) in enumerate([(100, 64), (31, 16), (5, 320)])]
    replies = wire.many(wire.post_files(served, "lines", files), "tensors", 3)
    widths = [reply["outputs"][0]["shape"] for reply in replies]
    assert widths == [[1, 50], [1, 62], [1, 1]], widths
    assert all(np.abs(np.subtract(reply["outputs"][0]["data"], 0.2)).max() < 1e-6 for reply in replies)
    reply = wire.post_image(served, "lines", reference.png(np.zeros((1, 600, 3), np.uint8)))
    assert reply.status_code == 400 and "wider than 16384" in reply.text, reply.text


def test_outputs_that_are_no_tensors_are_left_out(served):
    vector, _ = wire.one(wire.post_image(served, "others", of_colour(255, 51, 0)), "embed")
    assert np.abs(np.subtract(vector, [1, 0.2, 0])).max() < 1e-6, vector
    metadata = requests.get(f"{served.url}/v2/models/others-tensors", timeout=60).json()
    assert [output["name"] for output in metadata["outputs"]] == ["y"], metadata
    image = np.random.default_rng(1).random((2, 3, 8, 8), np.float32)
    outputs = wire.infer(served, "others-tensors", {"image": image})
    assert outputs.keys() == {"y"} and np.abs(outputs["y"] - image.mean((2, 3))).max() < 1e-6, outputs


@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_a_batch_that_the_file_fixes_is_filled_up_for_fewer_pictures(served, count):
    colours = np.random.default_rng(count).integers(0, 256, (count, 3))
    files = [(str(i), of_colour(*colour)) for i, colour in enumerate(colours)]
    replies = wire.many(wire.post_files(served, "by-eight", files), "embed", count)
    for reply, colour in zip(replies, colours):
        assert np.abs(np.subtract(reply["vector"], colour / 255)).max() < 1e-5, reply


def test_tensors_of_a_fixed_batch_are_as_many_as_wanted_where_pictures_are_taken(served):
    image = np.random.default_rng(1).random((8, 3, 8, 8), np.float32)
    for name, count in (("by-eight", 2), ("by-eight", 8), ("by-eight-tensors", 8)):
        outputs = wire.infer(served, name, {"image": image[:count]})
        assert np.abs(outputs["y"] - image[:count].mean((2, 3))).max() < 1e-5, outputs
    reply = wire.post_infer(served, "by-eight-tensors", {"image": image[:2]})
    assert reply.status_code == 400, reply.text
    assert "batch axis fixed at 8: up to 8 images share a pass" in served.log_text()


@pytest.mark.parametrize("name, expected", [("warmed", lambda x: 2 * x), ("masked", lambda x: 2 * x - 0.25), ("after", lambda x: x - 0.25)])
def test_a_picture_becomes_its_input_wherever_that_is_in_the_file(served, name, expected):
    colours = [(255, 0, 51), (0, 102, 0), (51, 51, 255)]
    files = [(str(i), of_colour(*colour)) for i, colour in enumerate(colours)]
    replies = wire.many(wire.post_files(served, name, files), "embed", 3)
    for reply, colour in zip(replies, colours):
        assert np.abs(np.subtract(reply["vector"], expected(np.array(colour) / 255))).max() < 1e-5, reply


def test_tensors_are_told_by_their_names_whatever_their_order(served):
    image, temperature = np.random.default_rng(1).random((2, 3, 8, 8), np.float32), np.float32([[2], [3]])
    for tensors in ({"image": image, "temperature": temperature}, {"temperature": temperature, "image": image}):
        outputs = wire.infer(served, "warmed", tensors)
        assert np.abs(outputs["y"] - image.mean((2, 3)) * temperature).max() < 1e-5, outputs
