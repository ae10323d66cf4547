"""What the training scripts share: the data, the pictures, layers and the way to ONNX.

The data are scikit-learn's bundled handwritten digits: 1797 pictures of 8x8 pixels with 17 grey levels, part of
"Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, UCI Machine Learning Repository). Their
polarity is kept: ink is bright (16), paper is black (0).
"""

import io

import jax
import jax.numpy as jnp
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits

OPSET = 17
IR_VERSION = 8
POSTED = 64  # pixels: side of the PNG files of one digit, large enough to look at
SIDE = 32  # pixels: side of the input of the networks for one digit
HELD_OUT = 360  # of 1797 pictures, the same ones in all scripts


def split(seed):
    """The pictures as 8x8 uint8 (0..255) and their digits: `(train, train_digits, held_out, held_out_digits)`."""
    bunch = load_digits()
    pictures = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(pictures))
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return pictures[train], bunch.target[train], pictures[held_out], bunch.target[held_out]


def png(array):
    """A grey `[height, width]` uint8 array as the bytes of a PNG file."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG", optimize=True)
    return out.getvalue()


def read_grey(data):
    """The bytes of an image file as a Pillow image of one 8-bit grey channel."""
    return Image.open(io.BytesIO(data)).convert("L")


# --- Pictures of one digit ---------------------------------------------------------------------------------------------


def posted(picture):
    """An 8x8 picture as the file that a client would post."""
    return png(np.asarray(Image.fromarray(picture).resize((POSTED, POSTED), Image.Resampling.BILINEAR)))


def as_served(data):
    """File bytes to network input `[SIDE, SIDE]`, as the server prepares it."""
    grey = read_grey(data).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(grey, np.float32) / 255


def vary(batch, rng):
    """Turns, scales, shears and shifts each picture a little and changes its contrast: more hands than the data have."""
    n, side = len(batch), SIDE
    angle = rng.uniform(-0.2, 0.2, n)
    scale_x, scale_y = rng.uniform(0.85, 1.25, (2, n))
    shear = rng.uniform(-0.2, 0.2, n)
    shift = rng.uniform(-2.5, 2.5, (2, n))
    axis = np.arange(side) - (side - 1) / 2
    y, x = np.meshgrid(axis, axis, indexing="ij")

    def per_item(v):
        return v[:, None, None]

    cos, sin = per_item(np.cos(angle)), per_item(np.sin(angle))
    from_x = (cos * x - sin * y) * per_item(scale_x) + per_item(shear) * y + per_item(shift[0]) + (side - 1) / 2
    from_y = (sin * x + cos * y) * per_item(scale_y) + per_item(shift[1]) + (side - 1) / 2
    x0, y0 = np.floor(from_x).astype(int), np.floor(from_y).astype(int)
    item = per_item(np.arange(n))
    out = np.zeros_like(batch)
    for dy in (0, 1):
        for dx in (0, 1):
            xi, yi = x0 + dx, y0 + dy
            inside = (xi >= 0) & (xi < side) & (yi >= 0) & (yi < side)
            weight = (1 - np.abs(from_x - xi)) * (1 - np.abs(from_y - yi))
            out += batch[item, yi.clip(0, side - 1), xi.clip(0, side - 1)] * (weight * inside).astype(np.float32)
    return out * per_item(rng.uniform(0.6, 1.0, n)).astype(np.float32)


# --- Layers ---------------------------------------------------------------------------------------------------------


def conv_init(key, size, channels_in, channels_out, gain=2.0):
    """He initialisation: weights `[height, width, in, out]` and zero biases."""
    scale = np.sqrt(gain / (size * size * channels_in))
    return {
        "w": jax.random.normal(key, (size, size, channels_in, channels_out)) * scale,
        "b": jnp.zeros(channels_out),
    }


def conv(x, layer, stride=1, pad=1):
    """A convolution of `x` `[n, height, width, channels]` with the same padding on all four sides, as ONNX writes it."""
    y = jax.lax.conv_general_dilated(
        x, layer["w"], (stride, stride), [(pad, pad), (pad, pad)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + layer["b"]


# --- ONNX -----------------------------------------------------------------------------------------------------------


class Graph:
    """Collects nodes and weights of an ONNX graph whose tensors are named as they are made."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def node(self, op, inputs, output, **attributes):
        """Adds a node; returns the name of its output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name, array):
        """Adds a constant; returns its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def conv(self, x, layer, output, stride=1, pad=1):
        """Adds a convolution with the weights of one of our layers (`[height, width, in, out]` there)."""
        w = np.ascontiguousarray(np.asarray(layer["w"], np.float32).transpose(3, 2, 0, 1))
        inputs = [x, self.weight(f"{output}.w", w), self.weight(f"{output}.b", np.asarray(layer["b"], np.float32))]
        return self.node("Conv", inputs, output, strides=[stride, stride], pads=[pad] * 4, kernel_shape=list(w.shape[2:]))

    def conv_relu(self, x, layer, output, stride=1, pad=1):
        """A convolution and its activation."""
        return self.node("Relu", [self.conv(x, layer, f"{output}.conv", stride, pad)], output)

    def save(self, path, inputs, outputs, doc):
        """Writes the model; `inputs` and `outputs` map names to shapes, all float32."""
        from onnx import checker

        def values(named):
            return [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in named.items()]

        graph = helper.make_graph(self.nodes, path.parent.name, values(inputs), values(outputs), self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, doc_string=doc
        )
        checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString())
