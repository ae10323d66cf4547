#!/usr/bin/env python3
"""What the server costs over the engine it runs: the same ONNX Runtime session, through HTTP and called in-process.

    make bench-overhead                                    # ResNet-18 on all cores
    make bench-overhead BENCH="--model resnet50 --threads 1 --seconds 20"

Two numbers, each a ratio or a difference within this one run, because absolute figures drift:

- throughput at saturation: images/s through the server (many callers, one image each, binary tensors) over images/s
  of the session in-process, in batches of the size that the server ran;
- added latency at concurrency 1: the median of a request minus the median of a call. `--model cnn` has the same
  input of 602 kB and a forward pass of 0.1 ms, so that what is added does not drown in the noise of the pass;
  `--model identity` copies 64 bytes: what a request costs beside its data.

With `--shared-memory` the tensor lies in a region of shared memory instead of in the request. Latency is then measured twice:
with the tensor in the region before the clock starts, as where whoever makes it makes it there, and with a caller that copies
it there each time.

With `--pixels` the image is posted as pixels of 8 bits (151 kB), which the server normalises; the session in-process gets the
numbers all the same.

In-process is measured twice: with the settings of the server's session (intra-op threads spin for 10 us), which tells what
the server adds, and with ONNX Runtime's defaults (for long), which tells what a caller gives up who changes from one to
the other. A bare socket that takes the same bytes and gives as many back shows which part of the added latency is the
kernel's and the client's.

All sides take turns in blocks. A round in which other programs took more than 5 % of the cores in any of its blocks is not
counted for throughput; CPU seconds per image are compared in all rounds, since they hardly depend on the neighbours. The
client posts ready-made bytes from processes of its own; its CPU time is printed,
and where it is not small against the server's, the cores are what limits, not the server.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
import requests

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "clients")]
import make_models  # noqa: E402
from cputime import busy_seconds, cpu_seconds  # noqa: E402
from rawhttp import Connection, infer, unpaced  # noqa: E402
from server import Server  # noqa: E402

BATCHES = (1, 4, 16)
SEED = 1
# A model's input, the shape of one item of it, and its output.
IMAGE = ("image", (3, 224, 224), "logits")
TENSORS = {"resnet18": IMAGE, "resnet50": IMAGE, "cnn": IMAGE, "identity": ("x", (16,), "y")}
# What src/engine/onnx sets beside the number of threads.
AS_SERVED = {"session.intra_op.spin_duration_us": "10", "session.force_spinning_stop": "1"}
REGION = "overhead"
SPIN_SECONDS = 0.05  # spinning threads are left alone until they sleep, so that they do not disturb the next side


def session_of(path, threads, settings):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Block:
    """One side's turn: images/s, CPU seconds per image, and which share of the cores went to neither side."""

    def __init__(self):
        self.started, self.busy_before, self.own_before = time.perf_counter(), busy_seconds(), time.process_time()

    def end(self, images, others=()):
        """`others` are CPU seconds of other processes of this benchmark: the server's first."""
        self.seconds, self.images = time.perf_counter() - self.started, images
        own = time.process_time() - self.own_before
        self.cpu = others[0] if others else own
        ours = own + sum(others)
        self.foreign = max(0.0, busy_seconds() - self.busy_before - ours) / (self.seconds * os.cpu_count())
        return self

    @property
    def rate(self):
        return self.images / self.seconds

    @property
    def cpu_per_image(self):
        return self.cpu / self.images


def in_process(session, x, seconds):
    """The session called in a loop."""
    session.run(None, {session.get_inputs()[0].name: x})
    block, count = Block(), 0
    while time.perf_counter() - block.started < seconds:
        session.run(None, {session.get_inputs()[0].name: x})
        count += len(x)
    return block.end(count)


def callers(port, data, count, start, stop, results):
    """A client process: `count` callers, each waiting for its answer before it asks again."""
    answered = [0] * count
    failed = []

    def call(i):
        connection = Connection(port)
        start.wait()
        while not stop.is_set():
            status, _, body = connection.roundtrip(data)
            if status != 200:
                failed.append((status, body[:300]))
                return
            answered[i] += 1

    threads = [threading.Thread(target=call, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    results.put((sum(answered), usage.ru_utime + usage.ru_stime, failed[:1]))


def served(server, data, concurrency, processes, seconds):
    """The server asked by `concurrency` callers; also the CPU seconds of the client."""
    context = multiprocessing.get_context("fork")
    start, stop, results = context.Event(), context.Event(), context.Queue()
    shares = [concurrency // processes + (i < concurrency % processes) for i in range(processes)]
    clients = [
        context.Process(target=callers, args=(server.port, data, share, start, stop, results)) for share in shares
    ]
    for c in clients:
        c.start()
    block, before = Block(), cpu_seconds(server.process.pid)
    start.set()
    stop.wait(seconds)
    stop.set()
    totals = [results.get(timeout=120) for _ in clients]
    used, client = cpu_seconds(server.process.pid) - before, sum(t[1] for t in totals)
    block.end(sum(t[0] for t in totals), (used, client))  # until the last answer: all that is counted was waited for
    for c in clients:
        c.join()
    for _, _, failed in totals:
        if failed:
            sys.exit(f"overhead: the server answered {failed[0]}")
    return block, client


def sink(listener, size, reply):
    """Takes `size` bytes and gives `reply`, for ever: a server that does nothing."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(size))
    while True:
        got = 0
        while got < size:
            count = connection.recv_into(buffer[got:])
            if count == 0:
                return
            got += count
        connection.sendall(reply)


def latencies(call, count):
    """Seconds of each of `count` calls, after a few that are not counted."""
    out = []
    for i in range(count + 3):
        started = time.perf_counter()
        call()
        if i >= 3:
            out.append(time.perf_counter() - started)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["resnet18", "resnet50", "cnn", "identity"], default="resnet18")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--pixels", action="store_true", help="post UINT8 [1, 224, 224, 3] to a model of images")
    parser.add_argument("--shared-memory", action="store_true", help="hand the tensor over in shared memory")
    parser.add_argument("--threads", type=int, default=cores, help="compute threads of both sides")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2, help="client processes")
    parser.add_argument("--seconds", type=float, default=10, help="of each block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=15, help="rounds at most, where some were not quiet")
    parser.add_argument("--foreign-max", type=float, default=0.05, help="share of the cores that others may take")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks in which latency is compared")
    parser.add_argument("--calls", type=int, default=10, help="calls in each such block")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make_models.write(folder / "models", [given.model])
        path = folder / "models" / given.model / "model.onnx"
        sessions = session_of(path, given.threads, AS_SERVED), session_of(path, given.threads, {})
        rng = np.random.default_rng(SEED)
        name, shape, output = TENSORS[given.model]
        x = rng.standard_normal((max(BATCHES), *shape)).astype(np.float32)
        posted = x[:1]
        if given.pixels:
            if len(shape) != 3:
                parser.error(f"--pixels is for models of images, which {given.model} is not")
            pixels = rng.integers(0, 256, (len(x), *shape[1:], shape[0]), np.uint8)
            numbers = (pixels / 255 - make_models.IMAGENET_MEAN) / make_models.IMAGENET_STD
            x = np.ascontiguousarray(numbers.transpose(0, 3, 1, 2), np.float32)
            posted = pixels[:1]
        options = {"compute_threads": given.threads, "log_filter": "warn"}
        if given.shared_memory:
            options["shared_memory_regions_max"] = 1
        server = Server(folder / "models", folder / "server.log", **options)
        try:
            server.wait_ready()
            if given.shared_memory:
                with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="overhead-") as memory:
                    region = share(server, memory, posted.nbytes)
                    data = infer(given.model, name, posted, output, REGION)
                    tensor = posted.tobytes()
                    report(given, server, *sessions, x, data, lambda: region.__setitem__(slice(None), tensor))
            else:
                report(given, server, *sessions, x, infer(given.model, name, posted, output))
        finally:
            server.kill()


def share(server, memory, size):
    """A mapping of so many bytes of shared memory, which the server has been told of."""
    memory.truncate(size)
    what = {"key": Path(memory.name).name, "byte_size": size}
    reply = requests.post(f"{server.url}/v2/systemsharedmemory/region/{REGION}/register", json=what, timeout=10)
    reply.raise_for_status()
    return mmap.mmap(memory.fileno(), size)


def batch_of(server):
    """Items and batches that the server ran so far."""
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    values = {}
    for line in text.splitlines():
        for name in ("ocelli_batch_items_sum{", "ocelli_batch_items_count{"):
            if line.startswith(name):
                values[name] = values.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return np.array(list(values.values()))


def report(given, server, session, spinning, x, data, fill=None):
    """`fill` puts the tensor where the server takes it from, if that is not the request."""
    if fill is not None:
        fill()
    connection = Connection(server.port)
    status, head, body = connection.roundtrip(data)
    if status != 200:
        sys.exit(f"overhead: the server answered {status}: {body[:500]!r}")
    expected = session.run(None, {session.get_inputs()[0].name: x[:1]})[0]
    got = np.frombuffer(body[-expected.nbytes :], np.float32)
    largest = float(np.abs(got - expected.ravel()).max())
    print(f"{given.model}, {given.threads} compute threads; answers differ by at most {largest:.1e}", flush=True)
    assert largest < 1e-3, "the two sides do not compute the same"

    by_batch = {b: in_process(session, x[:b], given.seconds / 4).rate for b in BATCHES}
    print("in-process: " + ", ".join(f"batch {b}: {v:.1f}/s" for b, v in by_batch.items()), flush=True)

    batch = max(BATCHES)
    ratios, ratios_spinning, cpu_ratios, cpu_ratios_spinning = [], [], [], []
    rates, client_cpu, server_cpu = [], 0.0, 0.0
    before, tries = batch_of(server), 0
    while len(ratios) < given.rounds and tries < given.tries:
        tries += 1
        # One block on each side of the server's: a drift of the machine cancels.
        first = in_process(session, x[:batch], given.seconds / 2)
        through, client = served(server, data, given.concurrency, given.processes, given.seconds)
        second = in_process(session, x[:batch], given.seconds / 2)
        default = in_process(spinning, x[:batch], given.seconds)
        time.sleep(SPIN_SECONDS)
        alone = (first.images + second.images) / (first.seconds + second.seconds)
        cpu = (first.cpu + second.cpu) / (first.images + second.images)
        client_cpu, server_cpu = client_cpu + client, server_cpu + through.cpu
        foreign = max(block.foreign for block in (first, second, through, default))
        cpu_ratios.append(cpu / through.cpu_per_image)
        cpu_ratios_spinning.append(default.cpu_per_image / through.cpu_per_image)
        kept = foreign <= given.foreign_max
        if kept:
            ratios.append(through.rate / alone)
            ratios_spinning.append(through.rate / default.rate)
            rates.append((alone, default.rate, through.rate))
        print(
            f"round {tries}: in-process {alone:.2f}/s, spinning {default.rate:.2f}/s, server {through.rate:.2f}/s, "
            f"{through.rate / alone:.1%}; CPU {cpu_ratios[-1]:.1%}; others took up to {foreign:.1%} of the cores"
            + ("" if kept else ": not counted"),
            flush=True,
        )
    items, batches = batch_of(server) - before
    client_share = client_cpu / (client_cpu + server_cpu or 1)

    listener = socket.create_server(("127.0.0.1", 0))
    unpaced(listener)
    echo = multiprocessing.get_context("fork").Process(
        target=sink, args=(listener, len(data), b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body), daemon=True
    )
    echo.start()
    bare = Connection(listener.getsockname()[1])
    connection = Connection(server.port)  # the first one has been idle for too long
    # Short blocks in turn, compared pair by pair: whatever else runs on the machine hits all sides alike.
    sides = {
        "in-process": lambda: session.run(None, {session.get_inputs()[0].name: x[:1]}),
        "server": lambda: connection.roundtrip(data),
        "bare socket": lambda: bare.roundtrip(data),
        "in-process, spinning": lambda: spinning.run(None, {session.get_inputs()[0].name: x[:1]}),
    }
    if fill is not None:
        sides["server, copied in"] = lambda: (fill(), connection.roundtrip(data))
    every, medians = {name: [] for name in sides}, {name: [] for name in sides}
    for _ in range(given.pairs):
        for name, call in sides.items():
            seconds = latencies(call, given.calls)
            every[name] += seconds
            medians[name].append(statistics.median(seconds))
        time.sleep(SPIN_SECONDS)
    echo.kill()
    added = statistics.quantiles([s - c for s, c in zip(medians["server"], medians["in-process"])], n=4)
    added_spinning = statistics.median(
        s - c for s, c in zip(medians["server"], medians["in-process, spinning"])
    )
    added_copied = None
    if fill is not None:
        added_copied = statistics.median(s - c for s, c in zip(medians["server, copied in"], medians["in-process"]))
    result = {
        "model": given.model,
        "shared_memory": given.shared_memory,
        "compute_threads": given.threads,
        "concurrency": given.concurrency,
        "batch": batch,
        "batch_of_the_server": round(items / (batches or 1), 2),
        "images_per_second": [[round(v, 2) for v in row] for row in rates],
        "throughput_ratios": [round(r, 4) for r in sorted(ratios)],
        "throughput_ratios_to_spinning": [round(r, 4) for r in sorted(ratios_spinning)],
        "cpu_ratios": [round(r, 4) for r in sorted(cpu_ratios)],
        "cpu_ratios_to_spinning": [round(r, 4) for r in sorted(cpu_ratios_spinning)],
        "client_cpu_share": round(client_share, 4),
        "p50_us": {name: round(statistics.median(seconds) * 1e6, 1) for name, seconds in every.items()},
        "added_p50_us": round(added[1] * 1e6, 1),
        "added_p50_us_quartiles": [round(added[0] * 1e6, 1), round(added[2] * 1e6, 1)],
        "added_p50_us_to_spinning": round(added_spinning * 1e6, 1),
        "added_p50_us_copied_in": added_copied and round(added_copied * 1e6, 1),
    }
    def spread(values):
        if not values:
            return "none: the machine was never quiet"
        return f"{statistics.median(values):.1%} ({min(values):.1%} to {max(values):.1%}, {len(values)} rounds)"

    print("\n| model | threads | against | throughput ratio | CPU per image, in-process over server |")
    print("|---|---|---|---|---|")
    print(f"| {given.model} | {given.threads} | as served | {spread(ratios)} | {spread(cpu_ratios)} |")
    print(
        f"| {given.model} | {given.threads} | defaults, spinning | {spread(ratios_spinning)} | {spread(cpu_ratios_spinning)} |"
    )
    print(
        f"Batches of {batch} in-process, {items / (batches or 1):.1f} in the server at concurrency {given.concurrency}. "
        f"The client took {client_share:.1%} of the CPU time of client and server together."
    )
    names = list(sides)
    print("\n| model | p50 " + " | p50 ".join(names) + " | added (quartiles) | added to spinning |")
    print("|---|" + "---|" * (len(names) + 2))
    print(
        f"| {given.model} | " + " | ".join(f"{result['p50_us'][name]:.0f} µs" for name in names)
        + f" | {added[1] * 1e6:.0f} µs ({added[0] * 1e6:.0f} to {added[2] * 1e6:.0f}) | {added_spinning * 1e6:.0f} µs |"
    )
    if added_copied is not None:
        print(f"With the tensor copied into shared memory for each request: {added_copied * 1e6:.0f} µs added.")
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
