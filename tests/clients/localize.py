"""Posts stacks to a fitter and reads what comes back, each format with the library that people read it with."""

import csv
import io
import json
import zipfile

import h5py
import numpy as np
import pyarrow.ipc
import requests
import tifffile
import wire
import yaml
from conftest import EXAMPLES
from PIL import Image

MOVIE = EXAMPLES / "images" / "spots.tif"
TYPES = {"UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4"}
NAMES = {np.dtype(code): name for name, code in TYPES.items()}


def movie():
    """The example's frames."""
    return tifffile.imread(MOVIE).astype("<u2")


def truth():
    """Who shone where in the example."""
    return np.genfromtxt(EXAMPLES / "images" / "spots-truth.csv", delimiter=",", names=True)


def npy(array):
    """An array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def post(server, data, model="spots", headers=None, **query):
    """The response to a stack."""
    url = f"{server.url}/predictions/{model}"
    return requests.post(url, data=data, params=query, headers=headers, timeout=wire.TIMEOUT)


def rows(server, data, model="spots", headers=None, units="px", **query):
    """The localizations of a stack as an array of records."""
    if "preset" not in query:
        query["units"] = units
    response = post(server, data, model, headers, format="npy", **query)
    assert response.status_code == 200, response.text[:1000]
    return np.load(io.BytesIO(response.content))


def post_infer(server, inputs, parameters=None, model="spots", binary=True, query=None):
    """The response to an inference request with arrays by name."""
    given = [
        {"name": name, "shape": list(a.shape), "datatype": NAMES[a.dtype], "parameters": {"binary_data_size": a.nbytes}}
        for name, a in inputs.items()
    ]
    head = json.dumps({"inputs": given, "parameters": {"binary_data_output": binary, **(parameters or {})}}).encode()
    body = head + b"".join(np.ascontiguousarray(a).tobytes() for a in inputs.values())
    headers = {"Inference-Header-Content-Length": str(len(head))}
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, data=body, params=query, headers=headers, timeout=wire.TIMEOUT)


def infer(server, inputs, parameters=None, model="spots", query=None):
    """The columns of an inference request that must succeed."""
    response = post_infer(server, inputs, parameters, model, query=query)
    assert response.status_code == 200, response.text[:1000]
    length = int(response.headers["Inference-Header-Content-Length"])
    data, columns = response.content[length:], {}
    for output in json.loads(response.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        columns[output["name"]] = np.frombuffer(data[:size], TYPES[output["datatype"]]).reshape(output["shape"])
        data = data[size:]
    return columns


# --- Formats --------------------------------------------------------------------------------------------------------


def read_csv(content):
    """Columns by name; comments are passed over."""
    lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
    table = list(csv.reader(lines))
    return {name: np.array(values, float) for name, *values in zip(*table)}


def read_ndjson(content):
    """Columns by name, and the head and the tail."""
    head, *frames, tail = [json.loads(line) for line in content.decode().splitlines()]
    names = [name for name in (frames[0] if frames else {}) if name not in ("frame", "count")]
    columns = {name: np.concatenate([np.array(f[name], float) for f in frames]) for name in names}
    columns["frame"] = np.concatenate([np.full(f["count"], f["frame"]) for f in frames] or [[]])
    return columns, head, tail


def read_hdf5(content):
    """The table of Picasso's file."""
    with h5py.File(io.BytesIO(content)) as file:
        table = file["locs"][:]
        assert b"Pixelsize" in np.bytes_(file["metadata"][()])
    return {name: table[name] for name in table.dtype.names}


def read_picasso(content):
    """The same out of its archive, whose YAML must agree."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.testzip() is None
    names = sorted(archive.namelist())
    assert [name.rsplit(".")[-1] for name in names] == ["hdf5", "yaml"], names
    described = yaml.safe_load(archive.read(names[1]))
    assert described["Pixelsize"] == 100 and (described["Width"], described["Height"]) == (96, 40)
    return read_hdf5(archive.read(names[0]))


def read_arrow(content):
    """Columns of an Arrow stream."""
    table = pyarrow.ipc.open_stream(content).read_all()
    return {name: table[name].to_numpy() for name in table.column_names}


def read_npy(content):
    """Fields of a record array."""
    table = np.load(io.BytesIO(content))
    return {name: table[name] for name in table.dtype.names}


def read_png(content):
    """Grey values."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("L"))


# --- Truth ----------------------------------------------------------------------------------------------------------


def pair_up(frame, x, y, found, within_px=1.0):
    """Pairs of true and found places, nearest first, each in one pair; indices into both."""
    pairs = []
    for number in np.unique(frame):
        true, got = np.flatnonzero(frame == number), np.flatnonzero(found["frame"] == number)
        apart = np.hypot(x[true][:, None] - found["x_px"][got], y[true][:, None] - found["y_px"][got])
        while apart.size and apart.min() < within_px:
            i, j = np.unravel_index(apart.argmin(), apart.shape)
            pairs.append((true[i], got[j]))
            apart[i], apart[:, j] = np.inf, np.inf
    return np.array(pairs).T
