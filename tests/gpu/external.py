"""Writes an ONNX file again with its weights in a file beside it, without any package.

As in resnet.py: fields of the protocol buffer are numbered, and are numbers or pieces of bytes. Those that hold no weights are copied
as they are.
"""

from resnet import number, piece

GRAPH, INITIALIZER = 7, 5  # of a model, of its graph
RAW_DATA, ENTRY, LOCATION, EXTERNAL = 9, 13, 14, 1  # of a tensor
PAGE = 4096  # where a tensor may begin, as exporters align them


def fields(data):
    """The fields of a message: number, all of its bytes, and what a piece has in it."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        began = at
        key = varint()
        inner, kind = None, key & 7
        if kind == 0:
            varint()
        elif kind == 2:
            length = varint()
            inner = data[at : at + length]
            at += length
        else:
            at += 8 if kind == 1 else 4
        yield key >> 3, data[began:at], inner


def apart(source, folder):
    """Writes `model.onnx` and `weights.bin` into the folder; gives the number of tensors that went into the latter."""
    weights, count = bytearray(), 0

    def tensor(data):
        nonlocal count
        raw = next((inner for field, _, inner in fields(data) if field == RAW_DATA), None)
        if not raw:
            return data
        weights.extend(bytes(-len(weights) % PAGE))
        told = {"location": "weights.bin", "offset": len(weights), "length": len(raw)}
        weights.extend(raw)
        count += 1
        entries = b"".join(piece(ENTRY, piece(1, key) + piece(2, str(value))) for key, value in told.items())
        return b"".join(whole for field, whole, _ in fields(data) if field != RAW_DATA) + entries + number(LOCATION, EXTERNAL)

    def graph(data):
        return b"".join(piece(field, tensor(inner)) if field == INITIALIZER else whole for field, whole, inner in fields(data))

    model = b"".join(piece(field, graph(inner)) if field == GRAPH else whole for field, whole, inner in fields(source.read_bytes()))
    (folder / "model.onnx").write_bytes(model)
    (folder / "weights.bin").write_bytes(weights)
    return count
