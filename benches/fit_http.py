#!/usr/bin/env python3
"""Fits per second through HTTP over those of the fitter alone, on the same cores and the same ROIs.

    make bench-fit-http
    make bench-fit-http BENCH="--psf xynbs --box 11 --rounds 10"
    make bench-fit-http BENCH="--client-beside"

ROIs are posted as they are (u16, little-endian, `application/octet-stream`) in one request, and come back as Arrow with all
columns. The fitter alone runs in a process for each core, without reading or writing anything. Both sides take turns, on the same
cores: all but the last, which the client has. With --client-beside both have all cores, and the client takes its time from the
server's: how much, is what the kernel needs to copy what is sent, whoever serves. A round in which other programs took more than
10 % of the cores is not counted. There, each round also has a server that reads and answers as many bytes, and fits nothing: what
its and its client's CPU time leave to a fitter is the most that any server can reach. The client chooses its congestion control of TCP as the server does on loopback, so that results do
not depend on the machine's (bbr paces streams there as well, which takes a tenth of the time); --congestion-control has another
one. The last line names both.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "fit"), str(ROOT / "tests" / "clients")]
import simulate  # noqa: E402
from cputime import busy_seconds, cpu_seconds  # noqa: E402
from reference import Model  # noqa: E402
from server import Server  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
SIGMA = 1.3
OK = b"HTTP/1.1 200"
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def alone(binary, folder, given, count, cores):
    """Fits per second of the fitter in a process for each of the cores; the seconds that the slowest took count."""
    job = {
        "psf": given.psf,
        "sigma_px": [SIGMA, SIGMA],
        "side": given.box,
        "data_type": "u16",
        "rois": str(folder / "rois.raw"),
        "offset": 0.0,
        "gain": 1.0,
        "read_noise": 0.0,
        "repeat": given.repeat,
        "out": "/dev/null",
    }
    (folder / "job.json").write_text(json.dumps(job))
    runs = [
        subprocess.Popen(["taskset", "-c", str(core), binary, folder / "job.json"], stdout=subprocess.PIPE, text=True)
        for core in cores
    ]
    seconds = [json.loads(run.communicate()[0])["wall_seconds"] for run in runs]
    return len(cores) * count * given.repeat / max(seconds)


def sink(listener, asked, answered):
    """Takes a request with so many bytes and answers with so many, as they come: a server that does nothing. Ends its process."""
    connection, _ = listener.accept()
    buffer, reply, got, sent = bytearray(256 << 10), memoryview(bytes(4 << 20)), 0, 0
    connection.sendall(OK)
    while got < asked:
        count = connection.recv_into(buffer)
        if count == 0:
            os._exit(1)
        got += count
        due = answered * min(got, asked) // asked
        while sent < due:
            sent += connection.send(reply[: due - sent])
    connection.close()
    os._exit(0)


def bare(folder, given, count, answered):
    """CPU seconds per fit of a client and a server that move the bytes of a request and its answer, and do nothing else."""
    listener = socket.socket()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    child = os.fork()
    if child == 0:
        sink(listener, count * given.repeat * given.box**2 * 2, answered)
    before = time.process_time()
    through(listener.getsockname()[1], folder, given, count)
    client = time.process_time() - before
    used = os.wait4(child, 0)[2]
    listener.close()
    return (client + used.ru_utime + used.ru_stime) / (count * given.repeat)


def through(port, folder, given, count):
    """Fits per second of one request, from its first byte to the last of its answer, and the bytes of that."""
    size = (folder / "rois.raw").stat().st_size
    query = f"dtype=u16&shape={count},{given.box},{given.box}&format=arrow&psf={given.psf}&sigma_px={SIGMA}"
    head = f"POST /predictions/spots?{query} HTTP/1.1\r\nHost: bench\r\nContent-Length: {size * given.repeat}\r\n"
    head = head.replace(f"shape={count},", f"shape={count * given.repeat},")
    head += "Content-Type: application/octet-stream\r\nConnection: close\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, given.congestion_control.encode())
    connection.connect(("127.0.0.1", port))
    started = time.perf_counter()

    def send():
        connection.sendall(head.encode())
        for _ in range(given.repeat):
            with open(folder / "rois.raw", "rb") as file:
                connection.sendfile(file)

    sender = threading.Thread(target=send)
    sender.start()
    buffer, got, first = bytearray(1 << 20), 0, b""
    while read := connection.recv_into(buffer):
        first = first or bytes(buffer[: len(OK)])
        got += read
    seconds = time.perf_counter() - started
    sender.join()
    connection.close()
    if first != OK or got < count * given.repeat * 8:
        sys.exit(f"fit_http: the server answered {first!r} and {got} bytes")
    return count * given.repeat / seconds, got


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--psf", choices=["xynb", "xynbs"], default="xynb")
    parser.add_argument("--box", type=int, default=7)
    parser.add_argument("--rois", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=10, help="how often they are sent in a request")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--foreign-max", type=float, default=0.1, help="share of the cores that others may take")
    parser.add_argument("--client-beside", action="store_true", help="have the client on the server's cores as well")
    parser.add_argument("--congestion-control", default="reno", help="of the client; the machine's may be another")
    given = parser.parse_args()
    binary = os.environ["FIT_BINARY"]
    cores, client_cores = (CORES, CORES) if given.client_beside else (CORES[:-1], CORES[-1:])
    if not cores:
        sys.exit("fit_http: one core is all there is, which leaves none to the server; --client-beside shares it")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rng = np.random.default_rng(1)
        model = Model(given.psf, (SIGMA, SIGMA))
        truth = simulate.draw(model, given.rois, given.box, rng)
        adu = simulate.simulate(model, truth, given.box, rng).adu
        np.clip(np.rint(adu), 0, 65535).astype("<u2").tofile(folder / "rois.raw")
        models = folder / "models" / "spots"
        models.mkdir(parents=True)
        (models / "model.toml").write_text('engine = "gauss-mle"\n')
        os.sched_setaffinity(0, cores)  # which the server inherits, and makes its threads by
        server = Server(models.parent, folder / "server.log", log_filter="warn")
        os.sched_setaffinity(0, client_cores)
        try:
            server.wait_ready()
            _, answered = through(server.port, folder, given, given.rois)
            ratios, ceilings = [], []
            for number in range(given.rounds):
                fitter = alone(binary, folder, given, given.rois, cores)
                busy, own, before = busy_seconds(), cpu_seconds(server.process.pid), time.process_time()
                started = time.perf_counter()
                http, _ = through(server.port, folder, given, given.rois)
                seconds = time.perf_counter() - started
                used = cpu_seconds(server.process.pid) - own
                client = time.process_time() - before
                foreign = max(0.0, busy_seconds() - busy - used - client) / (seconds * len(CORES))
                kept = foreign <= given.foreign_max
                ratios += [http / fitter] * kept
                if given.client_beside:
                    fit = len(cores) / fitter
                    ceilings += [fit / (fit + bare(folder, given, given.rois, answered))]
                print(
                    f"round {number + 1}: alone {fitter / 1e6:.2f} M/s, through HTTP {http / 1e6:.2f} M/s, {http / fitter:.1%}; "
                    f"CPU of the server {used / seconds:.2f} cores, of the client {client / seconds:.2f}; others {foreign:.1%}"
                    + ("" if kept else ": not counted"),
                    flush=True,
                )
        finally:
            server.kill()
    where = "on all cores, with the client" if given.client_beside else f"on {len(cores)} of {len(CORES)} cores"
    name = f"{given.box} x {given.box} {given.psf} {where}, {CONGESTION_CONTROL} and in the client {given.congestion_control}"
    if ratios:
        print(f"{name}: {statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%}, {len(ratios)} rounds)")
    else:
        print(f"{name}: the machine was never quiet")
    if ceilings:
        print(f"sockets alone leave {statistics.median(ceilings):.1%} ({min(ceilings):.1%} to {max(ceilings):.1%})")


if __name__ == "__main__":
    main()
