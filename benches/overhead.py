#!/usr/bin/env python3
"""What the server costs over the engine it runs: the same ONNX Runtime session, through HTTP and called in-process.

    make bench                                   # ResNet-18 on all cores
    make bench BENCH="--model resnet50 --threads 1 --seconds 20"

Two numbers, each a ratio or a difference within this one run, because absolute figures drift:

- throughput at saturation: images/s through the server (many callers, one image each, binary tensors) over images/s
  of the session in-process at its best batch size;
- added latency at concurrency 1: the median of a request minus the median of a call. `--model cnn` has the same
  input of 602 kB and a forward pass of a millisecond, so that what is added does not drown in the noise of the pass.

Server and session take turns in blocks. The client posts ready-made bytes from processes of its own; its CPU time is
printed, and where it is not small against the server's, the cores are what limits, not the server.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "clients")]
import make_models  # noqa: E402
from rawhttp import Connection, infer  # noqa: E402
from server import Server  # noqa: E402

BATCHES = (1, 2, 4, 8, 16)
SEED = 1


def session_of(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def in_process(session, x, seconds):
    """Images/s of the session called in a loop."""
    session.run(None, {"image": x})
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        session.run(None, {"image": x})
        count += len(x)
    return count / elapsed


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


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def served(server, data, concurrency, processes, seconds):
    """Images/s through the server, and the CPU seconds of the client and of the server."""
    context = multiprocessing.get_context("fork")
    start, stop, results = context.Event(), context.Event(), context.Queue()
    shares = [concurrency // processes + (i < concurrency % processes) for i in range(processes)]
    clients = [
        context.Process(target=callers, args=(server.port, data, share, start, stop, results)) for share in shares
    ]
    for c in clients:
        c.start()
    before = cpu_seconds(server.process.pid)
    started = time.perf_counter()
    start.set()
    stop.wait(seconds)
    stop.set()
    totals = [results.get(timeout=120) for _ in clients]
    elapsed = time.perf_counter() - started  # until the last answer: nothing is counted that was not waited for
    used = cpu_seconds(server.process.pid) - before
    for c in clients:
        c.join()
    for _, _, failed in totals:
        if failed:
            sys.exit(f"overhead: the server answered {failed[0]}")
    return sum(t[0] for t in totals) / elapsed, sum(t[1] for t in totals), used


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
    parser.add_argument("--model", choices=["resnet18", "resnet50", "cnn"], default="resnet18")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="compute threads of both sides")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2, help="client processes")
    parser.add_argument("--seconds", type=float, default=10, help="of each block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks in which latency is compared")
    parser.add_argument("--calls", type=int, default=10, help="calls in each such block")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make_models.write(folder / "models", [given.model])
        session = session_of(folder / "models" / given.model / "model.onnx", given.threads)
        rng = np.random.default_rng(SEED)
        x = rng.standard_normal((max(BATCHES), 3, 224, 224)).astype(np.float32)
        data = infer(given.model, "image", x[:1], "logits")
        server = Server(folder / "models", folder / "server.log", compute_threads=given.threads, log_filter="warn")
        try:
            report(given, server.wait_ready(), session, x, data)
        finally:
            server.kill()


def report(given, server, session, x, data):
    connection = Connection(server.port)
    status, head, body = connection.roundtrip(data)
    if status != 200:
        sys.exit(f"overhead: the server answered {status}: {body[:500]!r}")
    expected = session.run(None, {"image": x[:1]})[0]
    got = np.frombuffer(body[-expected.nbytes :], np.float32)
    largest = float(np.abs(got - expected.ravel()).max())
    print(f"{given.model}, {given.threads} compute threads; answers differ by at most {largest:.1e}", flush=True)
    assert largest < 1e-3, "the two sides do not compute the same"

    by_batch = {b: in_process(session, x[:b], given.seconds / 4) for b in BATCHES}
    best = max(by_batch, key=by_batch.get)
    print("in-process: " + ", ".join(f"batch {b}: {v:.1f}/s" for b, v in by_batch.items()), flush=True)

    alone, through, client_cpu, server_cpu = [], [], 0.0, 0.0
    for i in range(given.rounds):
        alone.append(in_process(session, x[:best], given.seconds))
        rate, client, used = served(server, data, given.concurrency, given.processes, given.seconds)
        through.append(rate)
        client_cpu, server_cpu = client_cpu + client, server_cpu + used
        print(f"round {i + 1}: in-process {alone[-1]:.1f}/s, server {rate:.1f}/s, {rate / alone[-1]:.1%}", flush=True)
    ratio = statistics.median(t / a for t, a in zip(through, alone))

    # Short blocks in turn, compared pair by pair: whatever else runs on the machine hits both sides alike.
    calls, requests, added = [], [], []
    for _ in range(given.pairs):
        call = latencies(lambda: session.run(None, {"image": x[:1]}), given.calls)
        ask = latencies(lambda: connection.roundtrip(data), given.calls)
        calls, requests = calls + call, requests + ask
        added.append(statistics.median(ask) - statistics.median(call))
    call, ask = statistics.median(calls), statistics.median(requests)
    low, middle, high = statistics.quantiles(added, n=4)
    result = {
        "model": given.model,
        "compute_threads": given.threads,
        "concurrency": given.concurrency,
        "in_process_images_per_second": round(statistics.median(alone), 2),
        "in_process_batch": best,
        "server_images_per_second": round(statistics.median(through), 2),
        "throughput_ratio": round(ratio, 4),
        "client_cpu_share": round(client_cpu / (client_cpu + server_cpu), 4),
        "in_process_p50_ms": round(call * 1e3, 3),
        "server_p50_ms": round(ask * 1e3, 3),
        "added_p50_us": round(middle * 1e6, 1),
        "added_p50_us_quartiles": [round(low * 1e6, 1), round(high * 1e6, 1)],
    }
    print("\n| model | threads | in-process images/s | server images/s | ratio | p50 in-process | p50 server | added (quartiles) |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {given.model} | {given.threads} | {result['in_process_images_per_second']} (batch {best}) "
        f"| {result['server_images_per_second']} (concurrency {given.concurrency}) | {ratio:.1%} "
        f"| {call * 1e3:.2f} ms | {ask * 1e3:.2f} ms | {middle * 1e6:.0f} µs "
        f"({low * 1e6:.0f} to {high * 1e6:.0f}) |"
    )
    print(f"The client took {result['client_cpu_share']:.1%} of the CPU time of client and server together.")
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
