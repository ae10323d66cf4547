#!/usr/bin/env python3
"""Fits per second through HTTP over those of the fitter alone, on the same cores and the same ROIs.

    make bench-fit-http
    make bench-fit-http BENCH="--psf xynbs --box 11 --rounds 10"
    make bench-fit-http BENCH="--client-apart"

ROIs are posted as they are (u16, little-endian, `application/octet-stream`) in one request, and come back as Arrow with all
columns. The fitter alone runs in a process for each core, without reading or writing anything. Both sides take turns. The client
shares the cores with the server; with --client-apart it has the last core, and the server the others, as has the fitter alone. A
round in which other programs took more than 10 % of the cores is not counted. The client chooses its congestion control of TCP as
the server does on loopback, so that results do not depend on the machine's (bbr paces streams there as well, which takes a tenth of
the time); --congestion-control has another one. The last line names both.
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
from reference import Model  # noqa: E402
from server import Server  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
SIGMA = 1.3
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def busy_seconds():
    """CPU seconds that the machine has spent on anything, all cores together."""
    fields = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def through(server, folder, given, count):
    """Fits per second of one request, from its first byte to the last of its answer."""
    size = (folder / "rois.raw").stat().st_size
    query = f"dtype=u16&shape={count},{given.box},{given.box}&format=arrow&psf={given.psf}&sigma_px={SIGMA}"
    head = f"POST /predictions/spots?{query} HTTP/1.1\r\nHost: bench\r\nContent-Length: {size * given.repeat}\r\n"
    head = head.replace(f"shape={count},", f"shape={count * given.repeat},")
    head += "Content-Type: application/octet-stream\r\nConnection: close\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, given.congestion_control.encode())
    connection.connect(("127.0.0.1", server.port))
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
        first = first or bytes(buffer[:12])
        got += read
    seconds = time.perf_counter() - started
    sender.join()
    connection.close()
    if first != b"HTTP/1.1 200" or got < count * given.repeat * 8:
        sys.exit(f"fit_http: the server answered {first!r} and {got} bytes")
    return count * given.repeat / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--psf", choices=["xynb", "xynbs"], default="xynb")
    parser.add_argument("--box", type=int, default=7)
    parser.add_argument("--rois", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=10, help="how often they are sent in a request")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--foreign-max", type=float, default=0.1, help="share of the cores that others may take")
    parser.add_argument("--client-apart", action="store_true", help="give the client a core of its own")
    parser.add_argument("--congestion-control", default="reno", help="of the client; the machine's may be another")
    given = parser.parse_args()
    binary = os.environ["FIT_BINARY"]
    cores = CORES[:-1] if given.client_apart else CORES
    if not cores:
        sys.exit("fit_http: one core is all there is, which leaves none to the server")
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
        os.sched_setaffinity(0, CORES[-1:] if given.client_apart else CORES)
        try:
            server.wait_ready()
            through(server, folder, given, given.rois)
            ratios = []
            for number in range(given.rounds):
                fitter = alone(binary, folder, given, given.rois, cores)
                busy, own, before = busy_seconds(), cpu_seconds(server.process.pid), time.process_time()
                started = time.perf_counter()
                http = through(server, folder, given, given.rois)
                seconds = time.perf_counter() - started
                used = cpu_seconds(server.process.pid) - own
                client = time.process_time() - before
                foreign = max(0.0, busy_seconds() - busy - used - client) / (seconds * len(CORES))
                kept = foreign <= given.foreign_max
                ratios += [http / fitter] * kept
                print(
                    f"round {number + 1}: alone {fitter / 1e6:.2f} M/s, through HTTP {http / 1e6:.2f} M/s, {http / fitter:.1%}; "
                    f"CPU of the server {used / seconds:.2f} cores, of the client {client / seconds:.2f}; others {foreign:.1%}"
                    + ("" if kept else ": not counted"),
                    flush=True,
                )
        finally:
            server.kill()
    name = f"{given.box} x {given.box} {given.psf}, {CONGESTION_CONTROL} and in the client {given.congestion_control}"
    if ratios:
        print(f"{name}: {statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%}, {len(ratios)} rounds)")
    else:
        print(f"{name}: the machine was never quiet")


if __name__ == "__main__":
    main()
