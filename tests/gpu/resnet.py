"""Writes ResNet-50 as an ONNX file, without any package: nothing of 100 MB has to be carried.

Weights are random and of the size that keeps values in range, from a fixed seed; batch norm is folded into the convolutions, as
exporters do (He et al. 2015; stride in the 3 x 3 convolution). Images come as bytes, as a client would send them.

The file is a protocol buffer (onnx.proto): fields are numbered, and are numbers or pieces of bytes.
"""

import array
import random
import struct

FLOAT, UINT8, INT64, FLOAT16 = 1, 2, 7, 10
WHOLE, TEXT, WHOLES = 2, 3, 7  # kinds of attributes
NORMALS = 1 << 16


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def piece(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


class Graph:
    """Collects nodes and weights of one type."""

    def __init__(self, half, seed=1):
        self.half, self.count, self.parts = half, 0, []
        source = random.Random(seed)
        self.normals = [source.gauss(0, 1) for _ in range(NORMALS)]
        self.source = source

    def name(self, what):
        self.count += 1
        return f"{what.lower()}_{self.count}"

    def node(self, kind, *inputs, output=None, **attributes):
        output = output or self.name(kind)
        data = b"".join(piece(1, one) for one in inputs) + piece(2, output) + piece(3, output) + piece(4, kind)
        for key, value in attributes.items():
            text = piece(1, key)
            if isinstance(value, int):
                text += number(3, value) + number(20, WHOLE)
            else:
                text += b"".join(number(8, one) for one in value) + number(20, WHOLES)
            data += piece(5, text)
        self.parts.append(piece(1, data))
        return output

    def packed(self, values):
        return struct.pack(f"<{len(values)}e", *values) if self.half else array.array("f", values).tobytes()

    def tensor(self, shape, data):
        name = self.name("weight")
        text = b"".join(number(1, side) for side in shape)
        text += number(2, FLOAT16 if self.half else FLOAT) + piece(8, name) + piece(9, data)
        self.parts.append(piece(5, text))
        return name

    def wholes(self, *values):
        name = self.name("wholes")
        text = number(1, len(values)) + number(2, INT64) + piece(8, name) + piece(9, struct.pack(f"<{len(values)}q", *values))
        self.parts.append(piece(5, text))
        return name

    def weights(self, shape, gain):
        """Random ones, of the spread that keeps the size of values behind a ReLU, times `gain`."""
        inputs = 1
        for side in shape[1:]:
            inputs *= side
        spread = gain * (2 / inputs) ** 0.5
        table = self.packed([spread * value for value in self.normals])
        size = (2 if self.half else 4) * inputs * shape[0]
        begin = self.source.randrange(NORMALS) * (2 if self.half else 4)
        return self.tensor(shape, (table[begin:] + table * (size // len(table) + 1))[:size])

    def conv(self, x, inputs, outputs, side, stride=1, gain=1.0):
        weights = self.weights([outputs, inputs, side, side], gain)
        bias = self.tensor([outputs], self.packed([0.0] * outputs))
        pad = side // 2
        return self.node("Conv", x, weights, bias, kernel_shape=[side] * 2, strides=[stride] * 2, pads=[pad] * 4)


def value(name, kind, shape):
    """A description of an input or output; sides may be names."""
    sides = b"".join(piece(1, piece(2, side) if isinstance(side, str) else number(1, side)) for side in shape)
    return piece(1, name) + piece(2, piece(1, number(1, kind) + piece(2, sides)))


def model(g, inputs, outputs):
    """The file's bytes, of what a graph has collected and of descriptions of what goes in and out."""
    graph = b"".join(g.parts) + piece(2, "made")
    graph += b"".join(piece(11, one) for one in inputs) + b"".join(piece(12, one) for one in outputs)
    return number(1, 8) + piece(2, "ocelli") + piece(7, graph) + piece(8, piece(1, "") + number(2, 17))


def resnet(half, blocks=(3, 4, 6, 3), width=64, side=224, classes=1000):
    """The file's bytes; its input is `image`, UINT8 `[n, 3, side, side]`, its output `scores`, FP32 `[n, classes]`."""
    g = Graph(half)
    kind = FLOAT16 if half else FLOAT
    x = g.node("Cast", "image", to=kind)
    x = g.node("Mul", x, g.tensor([1], g.packed([1 / 64])))
    x = g.node("Sub", x, g.tensor([1], g.packed([2.0])))
    x = g.node("Relu", g.conv(x, 3, width, 7, 2))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inputs = width
    for stage, count in enumerate(blocks):
        middle = width << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            y = g.node("Relu", g.conv(x, inputs, middle, 1))
            y = g.node("Relu", g.conv(y, middle, middle, 3, stride))
            # Small beside what it is added to, so that sixteen of them stay in the range of halves.
            y = g.conv(y, middle, 4 * middle, 1, gain=0.3)
            if block == 0:
                x = g.conv(x, inputs, 4 * middle, 1, stride, gain=0.7)
            x, inputs = g.node("Relu", g.node("Add", x, y)), 4 * middle
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    x = g.node("Gemm", x, g.weights([classes, inputs], 0.7), g.tensor([classes], g.packed([0.0] * classes)), transB=1)
    g.node("Cast", x, output="scores", to=FLOAT)
    return model(g, [value("image", UINT8, ["n", 3, side, side])], [value("scores", FLOAT, ["n", classes])])
