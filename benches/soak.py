#!/usr/bin/env python3
"""Whether memory stays flat: many mixed requests, good and bad, with the server's resident memory sampled.

    make soak                                    # or make soak SOAK="--requests 10000"

Images raw, in multipart and in JSON, tensors as JSON and binary, bytes that are no image, wrong names, and callers that
hang up in mid-request or before the reply. Fails when a reply has a status that its request does not deserve, when the
server dies, or when its resident memory at the end is more than 5 % above that after the warm-up (a tenth of the run).
"""

import argparse
import collections
import io
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from base64 import b64encode
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "clients")]
import make_models  # noqa: E402
from rawhttp import Connection, infer, request  # noqa: E402
from server import Server  # noqa: E402

SEED = 5
GROWTH_MAX = 0.05
REPLY, HANG_UP_HALF_WAY, HANG_UP_BEFORE_REPLY = "reply", "hang up half-way", "hang up before the reply"


def multipart(files):
    boundary = "soak-boundary"
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="f"; filename="{i}"\r\n\r\n'.encode() + data + b"\r\n"
        for i, data in enumerate(files)
    )
    return body + f"--{boundary}--\r\n".encode(), [("Content-Type", f"multipart/form-data; boundary={boundary}")]


def kinds():
    """`(name, request bytes, expected status, what the caller does)`, ready made."""
    rng = np.random.default_rng(SEED)
    images = []
    for i in range(24):
        w, h = rng.integers(40, 400, 2)
        out = io.BytesIO()
        picture = Image.fromarray(make_models.picture(rng, int(w), int(h)))
        picture.save(out, ("JPEG", "PNG")[i % 2])
        images.append(out.getvalue())
    as_json = [("Content-Type", "application/json")]
    out = []
    for i, data in enumerate(images):
        for model in ("digits", "digits-detector", "segment", "embed", "cnn"):
            out.append((f"image to {model}", request("POST", f"/predictions/{model}", data), 200, REPLY))
        body, headers = multipart(images[i : i + 5] + [b"no image"])
        out.append(("multipart", request("POST", "/predictions/digits", body, headers), 200, REPLY))
        body = json.dumps({"instances": [{"b64": b64encode(data).decode()}]}).encode()
        out.append(("base64", request("POST", "/predictions/digits", body, as_json), 200, REPLY))
        x = rng.standard_normal((1 + i, 16)).astype(np.float32)
        out.append(("binary tensor", infer("identity", "x", x, "y"), 200, REPLY))
        body = json.dumps(
            {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
        ).encode()
        out.append(("JSON tensor", request("POST", "/v2/models/identity/infer", body, as_json), 200, REPLY))
        wrong = body.replace(b'"x"', b'"z"')
        out.append(("wrong tensor name", request("POST", "/v2/models/identity/infer", wrong, as_json), 400, REPLY))
        out.append(("broken JSON", request("POST", "/v2/models/identity/infer", body[: 50 + i], as_json), 400, REPLY))
        out.append(("no image", request("POST", "/predictions/digits", rng.bytes(2000)), 400, REPLY))
        out.append(("truncated image", request("POST", "/predictions/digits", data[: len(data) // 2]), 400, REPLY))
        out.append(("unknown model", request("POST", f"/predictions/nothing-{i}", data), 404, REPLY))
        whole = request("POST", "/predictions/digits", data)
        out.append((HANG_UP_HALF_WAY, whole[: len(whole) // 2], None, HANG_UP_HALF_WAY))
        out.append((HANG_UP_BEFORE_REPLY, whole, None, HANG_UP_BEFORE_REPLY))
        out.append(("metrics", request("GET", "/metrics"), 200, REPLY))
        out.append(("health", request("GET", "/v2/health/ready"), 200, REPLY))
    return out


def rss(pid):
    """Resident memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def caller(server, work, tickets, requests, counts, wrong, lock, seed):
    """One caller: takes tickets until they are used up."""
    choose, connection = random.Random(seed), None
    while next(tickets) < requests and len(wrong) < 20:
        name, data, expected, act = choose.choice(work)
        try:
            connection = connection or Connection(server.port)
            if act == REPLY:
                status, head, body = connection.roundtrip(data)
                if status != expected:
                    wrong.append(f"{name}: {status}, expected {expected}: {body[:300]!r}")
                if b"\r\nconnection: close" in head:
                    connection.close()
                    connection = None
            else:
                connection.send(data)
                connection.close()
                connection, status = None, "-"
        except OSError as error:
            # A server that closes an idle or refused connection is right to; one that does it often is not.
            connection, status = None, type(error).__name__
        with lock:
            counts[name, status] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--callers", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for example in ("digits", "digits-detector"):
            shutil.copytree(ROOT / "examples" / "models" / example, folder / "models" / example)
        make_models.write(folder / "models", ["segment", "embed", "identity", "cnn"])
        server = Server(folder / "models", folder / "server.log", log_filter="error")
        try:
            sys.exit(soak(given, server.wait_ready()))
        finally:
            server.kill()


def soak(given, server):
    work, tickets, counts, wrong, lock = kinds(), itertools.count(), collections.Counter(), [], threading.Lock()
    print(f"seed {SEED}: {given.requests} requests out of {len(work)} kinds, {given.callers} callers", flush=True)
    threads = [
        threading.Thread(
            target=caller, args=(server, work, tickets, given.requests, counts, wrong, lock, SEED + i), daemon=True
        )
        for i in range(given.callers)
    ]
    started, samples, shown = time.monotonic(), [], 0
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        if server.process.poll() is not None:
            print(f"soak: the server ended with {server.process.returncode}\n{server.log_text()}")
            return 1
        done = counts.total()
        samples.append((done, rss(server.process.pid)))
        if done >= shown + given.requests // 20:
            shown = done
            seconds, mib = time.monotonic() - started, samples[-1][1] / 2**20
            print(f"{done:7} requests, {seconds:5.0f} s, {mib:7.1f} MiB", flush=True)
        time.sleep(0.1)  # the interval of the samples
    samples.append((counts.total(), rss(server.process.pid)))

    for (name, status), count in sorted(counts.items(), key=str):
        print(f"{count:7} {name}: {status}")
    for line in wrong:
        print(f"wrong: {line}")
    closed = sum(c for (name, status), c in counts.items() if isinstance(status, str) and status != "-")
    after = [m for n, m in samples if 0.1 * given.requests <= n <= 0.2 * given.requests] or [samples[0][1]]
    end = [m for n, m in samples if n >= 0.95 * given.requests]
    after, end = statistics.median(after), statistics.median(end)
    growth = end / after - 1
    print(
        f"resident after warm-up {after / 2**20:.1f} MiB, at the end {end / 2**20:.1f} MiB: {growth:+.1%} "
        f"over {counts.total()} requests; {closed} connections were closed on a caller"
    )
    if wrong or closed > 0.001 * given.requests:
        print("soak: replies were wrong or connections were lost")
        return 1
    if growth > GROWTH_MAX:
        print(f"soak: memory grew by more than {GROWTH_MAX:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    main()
