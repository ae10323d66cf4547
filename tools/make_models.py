#!/usr/bin/env python3
"""Writes models for tests and benchmarks: what a test needs and no folder should have to carry.

    python tools/make_models.py FOLDER [NAME...]      # all of them without names

Needs numpy, onnx and Pillow (tests/clients/requirements.txt). Weights come from fixed seeds: the same script gives the same
files. None of these models knows anything about the world.
"""

import argparse
import zlib
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from PIL import Image

OPSET = 17
IR_VERSION = 8
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]

# How torchvision's classifiers take their images: Resize(256), CenterCrop(224), ToTensor, Normalize.
TORCHVISION_INPUT = f"""\
[input]
resize = "shorter"
size = 256
filter = "bilinear"
color = "rgb"
scale = {1 / 255!r}
mean = {IMAGENET_MEAN}
std = {IMAGENET_STD}
"""
PLAIN_INPUT = f"""\
[input]
resize = "stretch"
color = "rgb"
scale = {1 / 255!r}
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]
"""


class Graph:
    """Collects the nodes and weights of a graph."""

    def __init__(self):
        self.nodes, self.weights, self.count = [], [], 0

    def node(self, op, *inputs, output=None, **attributes):
        """Adds a node with one output; returns the output's name."""
        self.count += 1
        output = output or f"{op.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, array):
        """Adds a constant; returns its name."""
        self.count += 1
        name = f"constant_{self.count}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def conv(self, x, w, b=None, stride=1, pad=0):
        """A convolution with weights `[out, in, height, width]`."""
        inputs = [x, self.constant(w)] + ([] if b is None else [self.constant(b)])
        return self.node("Conv", *inputs, kernel_shape=w.shape[2:], strides=[stride] * 2, pads=[pad] * 4)

    def bytes(self, name, inputs, outputs):
        """The checked model; `inputs` and `outputs` are `(name, type, shape)`."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(*value) for value in inputs],
            [helper.make_tensor_value_info(*value) for value in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        checker.check_model(model)
        return model.SerializeToString(deterministic=True)


def floats(array):
    return np.asarray(array, np.float32)


# --- Pictures -------------------------------------------------------------------------------------------------------


def picture(rng, width, height):
    """A picture `[height, width, 3]` uint8 with what photos have: smooth ground, texture at all scales, sharp edges."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    out = np.empty((height, width, 3), np.float32)
    out[:] = rng.uniform(40, 215, 3)
    for cells in (2, 5, 12, 30, 75):  # value noise: its strength falls with its scale, and little of it is colour
        grid = rng.standard_normal((cells + 2, cells + 2, 1)) + 0.4 * rng.standard_normal((cells + 2, cells + 2, 3))
        strength = rng.uniform(40, 110) / cells**0.6
        for channel in range(3):
            plane = Image.fromarray(floats(grid[..., channel] * strength))
            out[..., channel] += np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC))
    for _ in range(int(rng.integers(2, 7))):  # discs and stripes
        cx, cy, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.05, 0.3) * min(width, height)
        inside = (x - cx) ** 2 + (y - cy) ** 2 < r * r
        if rng.random() < 0.5:
            out[inside] = 0.3 * out[inside] + 0.7 * rng.uniform(0, 255, 3)
        else:
            angle, period = rng.uniform(0, np.pi), rng.uniform(4, 40)
            wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / period))
            out[inside] += wave[inside][:, None] * floats(rng.uniform(-60, 60, 3))
    return out.clip(0, 255).round().astype(np.uint8)


# --- Networks -------------------------------------------------------------------------------------------------------


def resnet(rng, depths, bottleneck):
    """ResNet as torchvision builds it (He et al. 2015; stride in the 3x3 convolution), batch norm folded."""
    g = Graph()

    def conv(x, channels_in, channels_out, size, stride, gain):
        scale = np.sqrt(gain / (channels_in * size * size))
        w = floats(rng.standard_normal((channels_out, channels_in, size, size)) * scale)
        return g.conv(x, w, floats(rng.standard_normal(channels_out) * 0.01), stride, size // 2)

    x = g.node("Relu", conv("image", 3, 64, 7, 2, 2.0))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels, expansion = 64, 4 if bottleneck else 1
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            if bottleneck:
                y = g.node("Relu", conv(x, channels, width, 1, 1, 2.0))
                y = g.node("Relu", conv(y, width, width, 3, stride, 2.0))
                y = conv(y, width, width * expansion, 1, 1, 0.2)
            else:
                y = g.node("Relu", conv(x, channels, width, 3, stride, 2.0))
                y = conv(y, width, width, 3, 1, 0.2)
            if stride != 1 or channels != width * expansion:
                x = conv(x, channels, width * expansion, 1, stride, 1.0)
            channels = width * expansion
            x = g.node("Relu", g.node("Add", x, y))
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    w = g.constant(floats(rng.standard_normal((1000, channels)) / np.sqrt(channels)))
    g.node("Gemm", x, w, g.constant(np.zeros(1000, np.float32)), output="logits", transB=1)
    return g.bytes("resnet", [("image", FLOAT, ["N", 3, 224, 224])], [("logits", FLOAT, ["N", 1000])])


def resnet18(rng):
    manifest = f'task = "classify"\n\n{TORCHVISION_INPUT}\n[batch]\nitems_max = 16\n'
    return {"model.onnx": resnet(rng, [2, 2, 2, 2], False), "model.toml": manifest}


def resnet50(rng):
    manifest = f'task = "classify"\n\n{TORCHVISION_INPUT}\n[batch]\nitems_max = 16\n'
    return {"model.onnx": resnet(rng, [3, 4, 6, 3], True), "model.toml": manifest}


def features(pixels, filters):
    """What `cnn` sees: `filters` on 8-pixel tiles of `[n, 3, 224, 224]`, rectified, averaged over a grid of 4 x 4."""
    n = len(pixels)
    tiles = pixels.reshape(n, 3, 28, 8, 28, 8).transpose(0, 2, 4, 1, 3, 5).reshape(n, 28, 28, -1)
    answers = np.maximum(tiles @ filters.reshape(len(filters), -1).T, 0)
    return answers.reshape(n, 4, 7, 4, 7, -1).mean((2, 4)).transpose(0, 3, 1, 2).reshape(n, -1)


def cnn(rng):
    """A small classifier whose random answers differ from picture to picture.

    A random network alone gives nearly every picture the same class, so that agreement on the class says nothing.
    Here the last layer looks at the directions in which the features of random pictures differ most.
    """
    filters = rng.standard_normal((24, 3, 8, 8))
    filters = floats((filters - filters.mean((2, 3), keepdims=True) * rng.uniform(0, 1, (24, 1, 1, 1))) / 14)
    samples = np.stack([picture(rng, 224, 224) for _ in range(192)]).transpose(0, 3, 1, 2) / 255
    mean, std = (np.reshape(v, (1, 3, 1, 1)) for v in (IMAGENET_MEAN, IMAGENET_STD))
    seen = features((samples - mean) / std, filters)
    middle = seen.mean(0)
    values, vectors = np.linalg.eigh(np.cov((seen - middle).T))
    best = vectors[:, -12:] / np.sqrt(values[-12:])
    best *= np.sign(best[np.abs(best).argmax(0), np.arange(12)])  # eigenvectors have no sign of their own
    w = rng.standard_normal((20, 12)) @ best.T
    g = Graph()
    x = g.node("Relu", g.conv("image", filters, None, 8, 0))
    x = g.node("Flatten", g.node("AveragePool", x, kernel_shape=[7, 7], strides=[7, 7]), axis=1)
    g.node("Gemm", x, g.constant(floats(w)), g.constant(floats(-w @ middle)), output="logits", transB=1)
    model = g.bytes("cnn", [("image", FLOAT, ["N", 3, 224, 224])], [("logits", FLOAT, ["N", 20])])
    return {"model.onnx": model, "model.toml": f'task = "classify"\n\n{TORCHVISION_INPUT}'}


# --- Small ones that show one thing each ----------------------------------------------------------------------------


def one_node(op, shape, *constants, name="x", output="y"):
    g = Graph()
    g.node(op, name, *[g.constant(c) for c in constants], output=output)
    return g.bytes(op.lower(), [(name, FLOAT, shape)], [(output, FLOAT, shape)])


def identity(_):
    """`y = x`, `[N, 16]`; a bare model without a manifest."""
    return {"model.onnx": one_node("Identity", ["N", 16])}


def image_identity(_):
    """Gives back its input `[N, 3, 224, 224]`: shows what preprocessing made of a posted image."""
    model = one_node("Identity", ["N", 3, 224, 224], name="image", output="pixels")
    return {"model.onnx": model, "model.toml": f'task = "tensors"\n\n{TORCHVISION_INPUT}'}


def add(_):
    """`sum = a + b`, both `[N, 4]`."""
    g = Graph()
    g.node("Add", "a", "b", output="sum")
    inputs = [("a", FLOAT, ["N", 4]), ("b", FLOAT, ["N", 4])]
    return {"model.onnx": g.bytes("add", inputs, [("sum", FLOAT, ["N", 4])])}


def broken(rng):
    """Bytes that are no model."""
    return {"model.onnx": rng.bytes(4096)}


def fixed1(_):
    """`y = 2 x` of the static shape `[1, 4]`: cannot batch."""
    return {"model.onnx": one_node("Mul", [1, 4], np.float32(2))}


def nan(_):
    """`y = log(x)`, `[N, 4]`: NaN below zero, infinite at zero."""
    return {"model.onnx": one_node("Log", ["N", 4])}


def refuse(_):
    """Looks `index` `[N, 1]` (INT64) up in a table of 8 rows: an index out of range fails the batch it is in."""
    g = Graph()
    table = floats(np.arange(32).reshape(8, 4))
    g.node("Squeeze", g.node("Gather", g.constant(table), "index", axis=0), g.constant(np.array([1])), output="row")
    return {"model.onnx": g.bytes("refuse", [("index", INT64, ["N", 1])], [("row", FLOAT, ["N", 4])])}


def strongest_colour(height, width, resize):
    g = Graph()
    w = np.zeros((4, 3, 1, 1), np.float32)
    w[1:, :, 0, 0] = np.eye(3)
    g.node("Conv", "image", g.constant(w), g.constant(floats([0.25, 0, 0, 0])), output="scores", kernel_shape=[1, 1])
    shapes = [("image", FLOAT, ["N", 3, height, width])], [("scores", FLOAT, ["N", 4, height, width])]
    return {
        "model.onnx": g.bytes("segment", *shapes),
        "model.toml": f'task = "segment"\nlabels = "labels.txt"\n\n{PLAIN_INPUT}'.replace("stretch", resize),
        "labels.txt": "dark\nred\ngreen\nblue\n",
    }


def segment(_):
    """The class of each pixel is its strongest colour: 0 dark, 1 red, 2 green, 3 blue; to `[N, 4, 64, 64]`."""
    return strongest_colour(64, 64, "stretch")


def segment_any(_):
    """`segment` for pictures of any size: `[N, 3, H, W]` to `[N, 4, H, W]`."""
    return strongest_colour("H", "W", "none")


def enlarge(_):
    """Each pixel four times, for pictures of any size: `[N, 3, H, W]` to `[N, 3, 2H, 2W]`."""
    g = Graph()
    scales = g.constant(floats([1, 1, 2, 2]))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    g.node("Resize", "image", "", scales, output="larger", **how)
    shapes = [("image", FLOAT, ["N", 3, "H", "W"])], [("larger", FLOAT, ["N", 3, "H2", "W2"])]
    manifest = 'task = "image"\n\n[input]\nresize = "none"\n'
    return {"model.onnx": g.bytes("enlarge", *shapes), "model.toml": manifest}


def embed(rng):
    """Mean colour of each quarter, mixed into 8 numbers: `[N, 3, 32, 32]` to `[N, 8]`."""
    g = Graph()
    x = g.node("Flatten", g.node("AveragePool", "image", kernel_shape=[16, 16], strides=[16, 16]), axis=1)
    g.node("MatMul", x, g.constant(floats(rng.standard_normal((12, 8)))), output="embedding")
    model = g.bytes("embed", [("image", FLOAT, ["N", 3, 32, 32])], [("embedding", FLOAT, ["N", 8])])
    return {"model.onnx": model, "model.toml": f'task = "embed"\n\n{PLAIN_INPUT}'}


BOXES = [[8, 8, 24, 24], [9, 9, 25, 25], [40, 4, 60, 36], [41, 5, 59, 37], [0, 48, 64, 64]]  # x0, y0, x1, y1 of 64 x 64
BOX_LABELS = [1, 1, 2, 1, 0]
BOX_SCORES = [0.9, 0.8, 0.7, 0.6, 0.5]


def boxes(_):
    """Outputs as torchvision's detectors name them: `boxes`, `labels`, `scores`, here with a batch axis.

    The boxes are always the same; their scores are multiplied with the picture's mean brightness, so that white shows
    all of them (with NMS: the second hides behind the first) and black none.
    """
    g = Graph()
    mean = g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)  # [N]
    column = g.node("Unsqueeze", mean, g.constant(np.array([1])))  # [N, 1]
    g.node("Mul", column, g.constant(floats([BOX_SCORES])), output="scores")
    zeros = g.node("Mul", column, g.constant(np.zeros((1, 5), np.float32)))  # [N, 5]
    g.node("Add", g.node("Cast", zeros, to=INT64), g.constant(np.array([BOX_LABELS])), output="labels")
    deep = g.node("Unsqueeze", zeros, g.constant(np.array([2])))  # [N, 5, 1]
    g.node("Add", deep, g.constant(floats([BOXES])), output="boxes")
    outputs = [("boxes", FLOAT, ["N", 5, 4]), ("labels", INT64, ["N", 5]), ("scores", FLOAT, ["N", 5])]
    model = g.bytes("boxes", [("image", FLOAT, ["N", 3, 64, 64])], outputs)
    detect = '[detect]\nformat = "boxes"\nscore_min = 0.3\niou_max = 0.5\n'
    manifest = f'task = "detect"\nlabels = "labels.txt"\n\n{PLAIN_INPUT}\n{detect}'
    return {"model.onnx": model, "model.toml": manifest, "labels.txt": "floor\ncat\ndog\n"}


def anchors(g, rows, classes):
    """As YOLO has them: `output0` `[N, numbers, anchors]` from a row of numbers for each, whose scores are multiplied with the
    picture's mean brightness."""
    shines = np.zeros((1, len(rows[0]), 1), np.float32)
    shines[:, 4 : 4 + classes] = 1
    mean = g.node("ReduceMean", "image", axes=[1, 2, 3], keepdims=0)  # [N]
    deep = g.node("Unsqueeze", mean, g.constant(np.array([1, 2])))  # [N, 1, 1]
    factor = g.node("Add", g.node("Mul", deep, g.constant(shines)), g.constant(1 - shines))
    g.node("Mul", factor, g.constant(floats([rows]).transpose(0, 2, 1)), output="output0")
    return "output0", FLOAT, ["N", len(rows[0]), len(rows)]


def detector(g, outputs, labels, detect):
    """Its files, of an input of 64 x 64."""
    model = g.bytes("detector", [("image", FLOAT, ["N", 3, 64, 64])], outputs)
    manifest = f'task = "detect"\nlabels = "labels.txt"\n\n{PLAIN_INPUT}\n[detect]\n{detect}'
    return {"model.onnx": model, "model.toml": manifest, "labels.txt": labels}


def pose(_):
    """Two fish with three keypoints each, always in the same places; white shows both of them."""
    g = Graph()
    rows = [
        [20, 20, 24, 12, 0.9, 10, 20, 0.75, 20, 18, 0.5, 32, 20, 0.25],
        [48, 44, 16, 24, 0.8, 48, 34, 0.7, 46, 44, 0.6, 48, 56, 0.5],
        [20, 21, 24, 12, 0.7, 10, 21, 0.7, 20, 19, 0.6, 32, 21, 0.5],  # Hides behind the first.
    ]
    return detector(g, [anchors(g, rows, 1)], "fish\n", 'keypoints = ["nose", "fin", "tail"]\n')


def instances(_):
    """What is red in one box, and what is blue in another: as prototypes, how much brighter than half each colour is."""
    g = Graph()
    tiles = g.node("AveragePool", "image", kernel_shape=[2, 2], strides=[2, 2])
    g.node("Sub", tiles, g.constant(np.float32(0.5)), output="output1")
    rows = [
        [32, 32, 64, 64, 0.9, 0, 1, 0, 0],
        [40, 40, 40, 40, 0, 0.9, 0, 0, 1],
    ]
    outputs = [anchors(g, rows, 2), ("output1", FLOAT, ["N", 3, 32, 32])]
    return detector(g, outputs, "red\nblue\n", 'masks = "output1"\nscore_min = 0.1\n')


def turned(_):
    """Two thin ships side by side on the diagonal, and one over the first; always the same, and white shows them."""
    g = Graph()
    eighth = np.pi / 4
    rows = [[30, 30, 40, 4, 0.9, eighth], [24, 36, 40, 4, 0.8, eighth], [31, 31, 40, 4, 0.7, eighth]]
    return detector(g, [anchors(g, rows, 1)], "ship\n", 'format = "yolo"\nangle = true\n')


def brightest(_):
    """Where each colour is brightest: heatmaps `[N, 3, 16, 16]` of tiles of 4 x 4 pixels."""
    g = Graph()
    g.node("AveragePool", "image", kernel_shape=[4, 4], strides=[4, 4], output="heatmaps")
    shapes = [("image", FLOAT, ["N", 3, 64, 64])], [("heatmaps", FLOAT, ["N", 3, 16, 16])]
    return {
        "model.onnx": g.bytes("brightest", *shapes),
        "model.toml": f'task = "landmarks"\nlabels = "labels.txt"\n\n{PLAIN_INPUT}',
        "labels.txt": "red\ngreen\nblue\n",
    }


def slow(_):
    """`y = x` after as many products of matrices as the largest `x` says, `[N, 1]`: runs as long as a test wants."""
    body = Graph()
    body.node("Identity", "again", output="go_on")
    body.node("MatMul", "a", "a", output="product")
    body = helper.make_graph(
        body.nodes,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [512, 512]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("product", TensorProto.FLOAT, [512, 512]),
        ],
    )
    g = Graph()
    times = g.node("Cast", g.node("ReduceMax", "x", keepdims=0), to=TensorProto.INT64)
    eye = g.constant(np.eye(512, dtype=np.float32))
    last = g.node("Loop", times, g.constant(True), eye, body=body)
    one = g.node("Mul", g.node("ReduceMean", last, keepdims=0), g.constant(np.float32(512)))
    g.node("Mul", "x", one, output="y")
    shapes = [("x", TensorProto.FLOAT, ["N", 1])], [("y", TensorProto.FLOAT, ["N", 1])]
    return {"model.onnx": g.bytes("slow", *shapes)}


# --- Repositories made for Triton -----------------------------------------------------------------------------------

SCALE_CONFIG = """\
# y = factor * x, one factor a version.
name: "scale"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "classes.txt" } ]
version_policy { specific { versions: [ 1, 3 ] } }
dynamic_batching {
  preferred_batch_size: [ 3, 6 ]
  max_queue_delay_microseconds: 200
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 20000000 }
}
instance_group [ { kind: KIND_CPU count: 1 } ]
model_warmup [
  { name: "by chance" batch_size: 3 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } },
  { name: "a file" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "x" } } }
]
optimization { graph { level: 1 } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def scale(_):
    """`y = 2 x`, `3 x`, `5 x` in versions 1, 2 and 3, of which the second is not served; `[N, 4]`."""
    files = {"config.pbtxt": SCALE_CONFIG, "classes.txt": "a\nb\nc\nd\n", "warmup/x": floats([1, 2, 3, 4]).tobytes()}
    for version, factor in (("1", 2), ("2", 3), ("3", 5)):
        files[f"{version}/model.onnx"] = one_node("Mul", ["N", 4], np.float32(factor))
    return files


def reshaped(_):
    """`difference = a - b`, both `[N]` inside and `[N, 1]` to requests, which have them in the other order; `sum` is hidden."""
    g = Graph()
    g.node("Sub", "a", "b", output="difference")
    g.node("Add", "a", "b", output="sum")
    inputs = [("a", FLOAT, ["N"]), ("b", FLOAT, ["N"])]
    model = g.bytes("reshaped", inputs, [("sum", FLOAT, ["N"]), ("difference", FLOAT, ["N"])])
    one = "data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] }"
    config = f'max_batch_size: 4\ninput [ {{ name: "b" {one} }}, {{ name: "a" {one} }} ]\n'
    return {"config.pbtxt": config + f'output [ {{ name: "difference" {one} }} ]\n', "7/model.onnx": model}


# All types that the protocol has, by their names there and in ONNX.
TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def types(_):
    """Each type gives back what it gets, `x_TYPE` to `y_TYPE`, `[-1]`; no batch axis."""
    g = Graph()
    config = "max_batch_size: 0\n"
    for name in TYPES:
        g.node("Identity", f"x_{name}", output=f"y_{name}")
        kind = "STRING" if name == "BYTES" else name
        config += f'input {{ name: "x_{name}" data_type: TYPE_{kind} dims: [ -1 ] }}\n'
        config += f'output {{ name: "y_{name}" data_type: TYPE_{kind} dims: [ -1 ] }}\n'
    model = g.bytes(
        "types",
        [(f"x_{name}", kind, ["N"]) for name, kind in TYPES.items()],
        [(f"y_{name}", kind, ["N"]) for name, kind in TYPES.items()],
    )
    return {"config.pbtxt": config, "1/model.onnx": model}


MODELS = {
    "scale": scale,
    "reshaped": reshaped,
    "types": types,
    "slow": slow,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "cnn": cnn,
    "identity": identity,
    "image-identity": image_identity,
    "add": add,
    "broken": broken,
    "fixed1": fixed1,
    "nan": nan,
    "refuse": refuse,
    "segment": segment,
    "segment-any": segment_any,
    "enlarge": enlarge,
    "embed": embed,
    "boxes": boxes,
    "pose": pose,
    "instances": instances,
    "turned": turned,
    "brightest": brightest,
}


def write(folder, names=tuple(MODELS)):
    """Writes the named models into `folder`, one folder each."""
    for name in names:
        files = MODELS[name](np.random.default_rng(zlib.crc32(name.encode())))
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all without any; there are {', '.join(MODELS)}")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"there is no {', '.join(unknown)}, only {', '.join(MODELS)}")
    names = options.names or list(MODELS)
    write(options.folder, names)
    print(f"make_models: wrote {', '.join(names)} to {options.folder}")


if __name__ == "__main__":
    main()
