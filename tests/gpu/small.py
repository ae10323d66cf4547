"""Small networks as ONNX files: such as can be recorded as CUDA graphs, and such as cannot, each for another reason."""

from resnet import FLOAT, INT64, Graph, model, value


def noisy():
    """Adds numbers to its input that it draws: a replay would give the same again."""
    g = Graph(half=False)
    g.node("Add", "x", g.node("RandomNormalLike", "x"), output="y")
    return model(g, [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])])


def gathering():
    """The sum of what is not zero in its input plus one: how many these are the host has to know, which no recording can tell it."""
    g = Graph(half=False)
    z = g.node("Add", "x", g.tensor([1], g.packed([1.0])))
    found = g.node("GatherND", z, g.node("Transpose", g.node("NonZero", z), perm=[1, 0]))
    g.node("ReduceSum", found, output="y", keepdims=1)
    return model(g, [value("x", FLOAT, [1, 16])], [value("y", FLOAT, [1])])


def convolving():
    """Two convolutions, which can be recorded."""
    g = Graph(half=False)
    x = g.node("Relu", g.conv("x", 3, 8, 3))
    x = g.node("GlobalAveragePool", g.node("Relu", g.conv(x, 8, 8, 3)))
    g.node("Flatten", x, output="y", axis=1)
    return model(g, [value("x", FLOAT, ["n", 3, 16, 16])], [value("y", FLOAT, ["n", 8])])


def attending():
    """Convolutions, and attention over what they find: most of the operators that are recorded by themselves, each output of use."""
    g = Graph(half=False)

    def normal(x):
        ones, zeros = (g.tensor([32], g.packed([value] * 32)) for value in (1.0, 0.0))
        return g.node("LayerNormalization", x, ones, zeros, axis=-1)

    def times(x, factor):
        return g.node("Mul", x, g.tensor([1], g.packed([factor])))

    def within(x, begin, end):
        return g.node("Slice", x, g.wholes(begin), g.wholes(end), g.wholes(1))

    x = g.node("Relu", g.conv("x", 3, 32, 3, 2))
    x = g.node("Add", x, g.conv(g.node("Relu", g.conv(x, 32, 32, 3)), 32, 32, 3, gain=0.3))
    x = g.node("Concat", within(x, 16, 32), within(x, 0, 16), axis=1)
    x = g.node("Transpose", g.node("Reshape", x, g.wholes(0, 32, 256)), perm=[0, 2, 1])
    y = normal(x)
    q, k, v = (g.node("MatMul", y, g.weights([32, 32], 0.7)) for _ in range(3))
    scores = g.node("Softmax", times(g.node("MatMul", q, g.node("Transpose", k, perm=[0, 2, 1])), 0.18), axis=-1)
    x = g.node("Add", x, g.node("MatMul", g.node("MatMul", scores, v), g.weights([32, 32], 0.7)))
    y = g.node("MatMul", normal(x), g.weights([32, 64], 0.7))
    y = g.node("Mul", times(y, 0.5), g.node("Add", g.node("Erf", times(y, 0.7071)), g.tensor([1], g.packed([1.0]))))
    x = g.node("Add", x, g.node("MatMul", y, g.weights([64, 32], 0.7)))
    x = g.node("ReduceMean", x, output="vector", axes=[1], keepdims=0)
    g.node("Gemm", x, g.weights([10, 32], 0.7), g.tensor([10], g.packed([0.0] * 10)), output="y", transB=1)
    outputs = [value("y", FLOAT, ["n", 10]), value("vector", FLOAT, ["n", 32])]
    return model(g, [value("x", FLOAT, ["n", 3, 32, 32])], outputs)


def passing():
    """Gives its input back beside what it makes of it."""
    g = Graph(half=False)
    g.node("Relu", "x", output="y")
    return model(g, [value("x", FLOAT, ["n", 64])], [value("x", FLOAT, ["n", 64]), value("y", FLOAT, ["n", 64])])


def finding():
    """Where its input is above zero: nobody knows before a run in how many places."""
    g = Graph(half=False)
    g.node("NonZero", g.node("Relu", "x"), output="at")
    return model(g, [value("x", FLOAT, ["n", 64])], [value("at", INT64, [2, "found"])])


def shaped():
    """The shape of its input, too, which a node of the GPU leaves in the host's memory."""
    g = Graph(half=False)
    g.node("Relu", "x", output="y")
    g.node("Shape", "x", output="shape")
    return model(g, [value("x", FLOAT, ["n", 64])], [value("y", FLOAT, ["n", 64]), value("shape", INT64, [2])])


def unlike():
    """The numbers in its input that differ, by a node of the CPU; the file says that there are as many as in the input."""
    g = Graph(half=False)
    g.node("Unique", "x", output="y")
    return model(g, [value("x", FLOAT, ["n"])], [value("y", FLOAT, ["n"])])
