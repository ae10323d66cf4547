#!/usr/bin/env python3
"""What traces cost: CPU time per request of servers that send none, none of those they could, and all of them.

    make bench-tracing
    make bench-tracing BENCH="--rounds 60 --requests 1000"

The cheapest request that there is (a tensor of 64 bytes to a model that copies it), so that what is added weighs most. All servers run
at once and take turns; a second one without traces says how far two servers differ that are the same. CPU time is that of all of a
server's threads, by the kernel's own count, which other programs on the machine disturb less than they do the clock on the wall.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "tools"), str(ROOT / "benches")]
import make_models  # noqa: E402
import rawhttp  # noqa: E402
from server import Server  # noqa: E402


class Take(BaseHTTPRequestHandler):
    """A collector that takes everything and keeps nothing."""

    protocol_version = "HTTP/1.1"
    posts = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Take.posts += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


def cpu_us(pid):
    """Time on a core, of all threads."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / task / "schedstat").read_text().split()[0]) for task in os.listdir(tasks)) / 1e3


def block(server, connection, message, requests):
    """Microseconds of CPU per request."""
    before = cpu_us(server.process.pid)
    for _ in range(requests):
        status, _, _ = connection.roundtrip(message)
        assert status == 200, status
    return (cpu_us(server.process.pid) - before) / requests


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1000, help="of each server and round")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    collector.daemon_threads = True
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    kinds = {
        "off": {},
        "off, again": {},
        "on, none sent": {"otlp_endpoint": endpoint, "trace_sample_ratio": 0},
        "on, 1 % sent": {"otlp_endpoint": endpoint, "trace_sample_ratio": 0.01},
        "on, all sent": {"otlp_endpoint": endpoint, "trace_sample_ratio": 1},
    }
    message = rawhttp.infer("identity", "x", np.zeros((1, 16), np.float32), "y")
    with tempfile.TemporaryDirectory() as folder:
        make_models.write(Path(folder) / "models", ["identity"])
        binary = os.environ["SERVER_BINARY"]
        servers = {
            name: Server(Path(folder) / "models", Path(folder) / f"{index}.log", binary=binary, **options)
            for index, (name, options) in enumerate(kinds.items())
        }
        try:
            connections = {name: rawhttp.Connection(server.wait_ready().port) for name, server in servers.items()}
            for name, server in servers.items():
                block(server, connections[name], message, wanted.requests)
            measured = {name: [] for name in kinds}
            order, shuffle = list(kinds), random.Random(wanted.seed)
            for _ in range(wanted.rounds):
                shuffle.shuffle(order)
                for name in order:
                    measured[name].append(block(servers[name], connections[name], message, wanted.requests))
        finally:
            for server in servers.values():
                server.kill()
    print(f"{wanted.rounds} rounds of {wanted.requests} requests each; {Take.posts} posts to the collector")
    print(f"{'':16} {'µs of CPU per request':>24} {'over off, round by round':>28}")
    for name, values in measured.items():
        low, half, high = statistics.quantiles(values, n=4)
        ratios = [value / off for value, off in zip(values, measured["off"])]
        below, middle, above = statistics.quantiles(ratios, n=4)
        print(f"{name:16} {half:9.2f} ({low:.2f} to {high:.2f}) {middle:12.3f} ({below:.3f} to {above:.3f})")


if __name__ == "__main__":
    main()
