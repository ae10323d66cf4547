#!/usr/bin/env python3
"""Makes tools/ocelli.profdata: which paths through the code a busy server takes, by which compilers lay it out.

    make profile

Builds a server that counts them (minutes), has it answer requests of all usual forms for a minute, and keeps the counts of what ran.
Functions are found by their names and forms: of one that has changed since, the counts are passed over without a word, and of all
of this package if any dependency or the compiler is another, for which tools/ocelli.profdata.of says what they were. So it is made
anew before a release, and after larger changes of what every request passes.

Needs rustup's component llvm-tools, and what the client tests need (tests/clients/requirements.txt).
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "tools" / "ocelli.profdata"
TARGET = ROOT / "target" / "counting"
sys.path[:0] = [str(ROOT / folder) for folder in ("tools", "benches", "tests/clients")]
import make_models  # noqa: E402
import tritonclient.grpc as grpc  # noqa: E402
from rawhttp import Connection, infer, request  # noqa: E402
from server import Server  # noqa: E402

IMAGES = ROOT / "examples" / "images"


def rustc(*what):
    """What the compiler says."""
    return subprocess.run(["rustc", *what], capture_output=True, text=True, check=True).stdout


def llvm_profdata():
    """The tool of the compiler's own LLVM: others may write another format."""
    host = next(line.split()[1] for line in rustc("-vV").splitlines() if line.startswith("host: "))
    tool = Path(rustc("--print", "sysroot").strip()) / "lib" / "rustlib" / host / "bin" / "llvm-profdata"
    if not tool.exists():
        sys.exit("make_profile: llvm-profdata is missing: rustup component add llvm-tools")
    return tool


def build(profile):
    """A server that writes what it counted as it ends, to where LLVM_PROFILE_FILE says."""
    # Not with --target, which would give all functions other names; so what runs at build time counts, too, and is thrown away.
    flags = {"RUSTFLAGS": "-Cprofile-generate", "LLVM_PROFILE_FILE": os.devnull}
    environment = {**os.environ, **flags, "CARGO_TARGET_DIR": str(TARGET)}
    subprocess.run(
        ["cargo", "build", "--locked", "--profile", profile, "--bin", "ocelli"], cwd=ROOT, env=environment, check=True
    )
    return TARGET / profile / "ocelli"


def models(folder):
    """The examples, and networks that only copy, so that little but the server's own code runs."""
    shutil.copytree(ROOT / "examples" / "models", folder)
    make_models.write(folder, ["identity", "image-identity", "boxes", "enlarge", "embed"])
    pixels = folder / "pixels"
    pixels.mkdir()
    graph = make_models.Graph()
    graph.node("Identity", "x", output="y")
    tensor = make_models.TensorProto.UINT8, ["n", 3, 224, 224]
    (pixels / "model.onnx").write_bytes(graph.bytes("pixels", [("x", *tensor)], [("y", *tensor)]))


def requests_of_all_forms():
    """Requests, and how often each is sent."""
    rng = np.random.default_rng(1)
    small = rng.random((1, 16), np.float32)
    floats = rng.random((1, 3, 224, 224), np.float32)
    pixels = rng.integers(0, 256, (1, 3, 224, 224), np.uint8)
    digit, scene, ink = (
        (IMAGES / name).read_bytes() for name in ("digits/7-0.png", "digits-detector/1.png", "digits-segmenter/1.png")
    )
    photo = make_models.picture(rng, 500, 375)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": small.ravel().tolist()}
    as_json = json.dumps({"inputs": [tensor]}).encode()
    rows = json.dumps({"instances": small.tolist()}).encode()
    encoded = json.dumps({"instances": [{"b64": b64encode(digit).decode()}] * 2}).encode()
    parts = b"".join(
        b'--part\r\nContent-Disposition: form-data; name="data"; filename="a.png"\r\n\r\n' + content + b"\r\n"
        for content in (digit, digit)
    )
    yield infer("identity", "x", small, "y"), 8000
    yield request("POST", "/v2/models/identity/infer", as_json, [("Content-Type", "application/json")]), 8000
    yield infer("pixels", "x", pixels, "y"), 6000
    yield infer("image-identity", "image", floats, "pixels"), 3000
    yield request("POST", "/v1/models/identity:predict", rows, [("Content-Type", "application/json")]), 2000
    yield request("POST", "/predictions/digits", digit), 6000
    yield request("POST", "/predictions/digits?format=torchserve", jpeg(photo)), 600
    yield request("POST", "/predictions/digits-detector", scene), 1000
    yield request("POST", "/predictions/digits-segmenter", ink), 500
    yield request("POST", "/predictions/digits-embedder", digit), 1000
    yield request("POST", "/predictions/boxes", jpeg(photo)), 500
    yield request("POST", "/predictions/enlarge", digit, [("Accept", "image/png")]), 200
    yield request("POST", "/predictions/digits", encoded, [("Content-Type", "application/json")]), 1000
    yield (
        request("POST", "/predictions/digits", parts + b"--part--\r\n", [("Content-Type", "multipart/form-data; boundary=part")]),
        1000,
    )
    yield request("POST", "/predictions/spots?format=csv", (IMAGES / "spots.tif").read_bytes()), 30
    yield request("GET", "/v2/models/identity"), 300
    yield request("GET", "/v2/health/ready"), 300
    yield request("GET", "/metrics"), 30


def jpeg(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=90)
    return file.getvalue()


def send(server, data, times):
    """Over a connection of its own."""
    connection = Connection(server.port)
    for _ in range(times):
        status, _, body = connection.roundtrip(data)
        assert status == 200, (data[:80], status, body[:300])
    connection.close()


def ask(server):
    """Sends each form over one connection, and over eight at once."""
    for data, times in requests_of_all_forms():
        for connections in (1, 8):
            with ThreadPoolExecutor(connections) as together:
                for sent in [together.submit(send, server, data, times // connections) for _ in range(connections)]:
                    sent.result()
        print(f"make_profile: {data.split(b' HTTP', 1)[0].decode()}", flush=True)


def ask_by_grpc(server):
    """The smallest of them by gRPC."""
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        tensor = grpc.InferInput("x", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
        for _ in range(3000):
            client.infer("identity", [tensor])


def main():
    tool = llvm_profdata()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for profile in ("release", "dist"):
            binary = build(profile)
            models(folder / profile)
            environment = {**os.environ, "LLVM_PROFILE_FILE": str(folder / "counts" / "%p-%m.profraw")}
            log = folder / f"{profile}.log"
            server = Server(folder / profile, log, binary=binary, environment=environment, log_filter="warn").wait_ready()
            ask(server)
            ask_by_grpc(server)
            assert server.stop() == 0, server.log_text()
        counts = [str(file) for file in (folder / "counts").glob("*.profraw")]
        subprocess.run([tool, "merge", "--sparse", "-o", PROFILE, *counts], check=True)
    lock = subprocess.run(["cksum", ROOT / "Cargo.lock"], capture_output=True, text=True, check=True).stdout
    Path(f"{PROFILE}.of").write_text(f"{lock.split()[0]} {rustc('-V')}")
    print(f"make_profile: wrote {PROFILE.relative_to(ROOT)}, {PROFILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
