#!/usr/bin/env python3
"""What the front alone can do: models that copy their input, by the Open Inference Protocol, against a bare echo.

    make bench-front
    make bench-front BENCH="--seconds 10"

Small: requests of FP32 [1, 16], as JSON and binary, over 1 to 64 connections. Large: one image as FP32 (602 kB) and as UINT8
(150 kB), binary, against bare axum which sends the same bytes back, and against the same where another thread copies them, which is
the least that a server with a thread for each device can do; the three take turns. Client and servers share the cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients")]
from server import Server  # noqa: E402

CLIENT = os.environ["FRONT_BINARY"]
# Copies go into memory that is there, not into pages that are asked for each time.
KEEP = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456"}
TYPES = {"FP32": (TensorProto.FLOAT, np.float32), "UINT8": (TensorProto.UINT8, np.uint8)}


def model(folder, name, datatype, item):
    """A model that copies its input of `[n, *item]`."""
    shape, kind = ["n", *item], TYPES[datatype][0]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / name).mkdir(parents=True)
    (folder / name / "model.onnx").write_bytes(made.SerializeToString())


def request(path, body, headers=()):
    """All bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def infer(name, datatype, item, binary):
    """An inference request with one item of seeded numbers."""
    values = np.random.default_rng(1).integers(0, 200, item).astype(TYPES[datatype][1])
    given = {"name": "x", "datatype": datatype, "shape": [1, *item]}
    path = f"/v2/models/{name}/infer"
    if not binary:
        return request(path, json.dumps({"inputs": [{**given, "data": values.ravel().tolist()}]}).encode())
    given["parameters"] = {"binary_data_size": values.nbytes}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    return request(path, head + values.tobytes(), [f"Inference-Header-Content-Length: {len(head)}"])


def load(address, folder, bytes_of, connections, seconds):
    """What a load of one request over and over gives."""
    (folder / "request").write_bytes(bytes_of)
    command = [CLIENT, "load", address, folder / "request", str(connections), str(seconds)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def of_the_echo(turns, which):
    """The rate of one of the servers over that of the echo: median, lowest and highest."""
    ratios = sorted(turn[which]["rate"] / turn[1]["rate"] for turn in turns)
    return f"{statistics.median(ratios):.1%} ({ratios[0]:.1%} to {ratios[-1]:.1%})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="turns of server and echo")
    parser.add_argument("--beside", type=int, default=0, help="models that are served and never asked")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        models = folder / "models"
        model(models, "small", "FP32", [16])
        model(models, "image-fp32", "FP32", [3, 224, 224])
        model(models, "image-uint8", "UINT8", [3, 224, 224])
        for number in range(given.beside):
            model(models, f"beside-{number}", "FP32", [16])
        echo = subprocess.Popen([CLIENT, "echo"], stdout=subprocess.PIPE, text=True)
        handed = subprocess.Popen([CLIENT, "handed"], stdout=subprocess.PIPE, text=True, env={**os.environ, **KEEP})
        server = Server(models, folder / "server.log", log_filter="warn")
        try:
            server.wait_ready()
            address = f"127.0.0.1:{server.port}"
            others = [process.stdout.readline().strip() for process in (echo, handed)]
            print("| request | connections | requests/s | p50 us | p99 us |\n|---|---|---|---|---|")
            for form in ["binary", "JSON"]:
                small = infer("small", "FP32", [16], form == "binary")
                for connections in [1, 8, 32, 64]:
                    got = load(address, folder, small, connections, given.seconds)
                    cells = f"{got['rate']:,.0f} | {got['p50_us']:,.0f} | {got['p99_us']:,.0f}"
                    print(f"| FP32 [1, 16], {form} | {connections} | {cells} |", flush=True)
            print("\n| request | connections | MB/s in | bare echo, MB/s in | ratio | handed over, of the echo |\n|---|---|---|---|---|---|")
            for datatype in ["FP32", "UINT8"]:
                image = infer(f"image-{datatype.lower()}", datatype, [3, 224, 224], True)
                plain = request("/", image.split(b"\r\n\r\n", 1)[1])
                for connections in [1, 8, 32, 64]:
                    places = [(address, image), *((other, plain) for other in others)]
                    turns = [
                        [load(place, folder, sent, connections, given.seconds / 2) for place, sent in places]
                        for _ in range(given.rounds)
                    ]
                    speed = [statistics.median(got["rate"] * got["bytes"] / 1e6 for got in side) for side in zip(*turns)]
                    ours, least = (of_the_echo(turns, which) for which in (0, 2))
                    size = f"{len(image) / 1000:.0f} kB"
                    print(f"| {datatype}, {size} | {connections} | {speed[0]:,.0f} | {speed[1]:,.0f} | {ours} | {least} |", flush=True)
        finally:
            server.kill()
            echo.kill()
            handed.kill()


if __name__ == "__main__":
    main()
