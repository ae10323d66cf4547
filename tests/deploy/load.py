"""Callers that keep a server or a proxy busy, and count what they get."""

import collections
import itertools
import json
import sys
import threading
import time

from common import ROOT

sys.path.insert(0, str(ROOT / "benches"))
from rawhttp import Connection, request  # noqa: E402

IMAGES = ROOT / "examples" / "images"


def work():
    """`(name, request bytes)` of the examples: small and large bodies, tensors, a stack."""
    out = []
    for path in sorted((IMAGES / "digits").glob("*.png")):
        out.append((f"image {path.name}", request("POST", "/predictions/digits", path.read_bytes())))
    for path in sorted((IMAGES / "digits-detector").glob("*.png"))[:2]:
        out.append((f"large image {path.name}", request("POST", "/predictions/digits-detector", path.read_bytes())))
    tensor = {"name": "image", "shape": [1, 1, 32, 32], "datatype": "FP32", "data": [0.5] * 1024}
    out.append(("tensor", request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [tensor]}).encode())))
    return out


class Load:
    """Callers that each send one request after the other, at `rate` a second in all, until they are told to end."""

    def __init__(self, port, callers, rate, kinds=None):
        self.port, self.gap, self.kinds = port, 1 / rate, kinds or work()
        self.answers, self.lost, self.first = collections.Counter(), [], time.monotonic()
        self.tickets, self.ended = itertools.count(), threading.Event()
        self.threads = [threading.Thread(target=self.call, daemon=True) for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    @property
    def sent(self):
        return sum(self.answers.values())

    def call(self):
        connection = None
        while not self.ended.is_set():
            ticket = next(self.tickets)
            # Each request has its time; who is late does not wait.
            time.sleep(max(0.0, self.first + ticket * self.gap - time.monotonic()))
            name, data = self.kinds[ticket % len(self.kinds)]
            at = time.monotonic() - self.first
            try:
                connection = connection or Connection(self.port)
                status, head, body = connection.roundtrip(data)
                if status != 200:
                    self.lost.append(f"at {at:.2f} s: {name}: {status} {body[:200]!r}")
                if b"\r\nconnection: close" in head:
                    connection.close()
                    connection = None
            except OSError as error:
                connection, status = None, type(error).__name__
                self.lost.append(f"at {at:.2f} s: {name}: {error!r} after {time.monotonic() - self.first - at:.2f} s")
            self.answers[status] += 1

    def end(self):
        """Lets each caller have its last answer."""
        self.ended.set()
        for thread in self.threads:
            thread.join(timeout=90)
        assert not any(thread.is_alive() for thread in self.threads), "a caller still waits for an answer"
        return self
