#!/usr/bin/env python3
"""Restarts two replicas in turn behind nginx and behind HAProxy, under load, and fails when a request is lost.

    make rolling-restart                                    # or make rolling-restart RESTART="--requests 2000"

The proxies run with the files of `deploy/`, the replicas with the drain of `deploy/kubernetes/base/ocelli.env`. Callers send
through both proxies at the same time, each request once: whatever is not answered with 200 is lost. A replica gets SIGTERM,
ends in order, and starts again; the other follows once it has been ready for as long as the Deployment asks, and so on until
there were enough requests. Replicas have none of root's capabilities, as in their container: a listener that closes is then less
gentle to newcomers.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import common
import server
import yaml
from common import DEPLOY, ROOT
from load import Load
from proxies import Proxy
from server import free_ports


def shipped():
    """The drain's options, and how long a replica must be ready before the next one goes, in seconds."""
    text = (DEPLOY / "kubernetes" / "base" / "ocelli.env").read_text()
    drain = {name.lower(): value for name, value in re.findall(r"^OCELLI_(DRAIN_\w+)=(\d+)$", text, re.MULTILINE)}
    deployment = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "deployment.yaml").read_text())
    return drain, deployment["spec"]["minReadySeconds"]


def without_capabilities(folder):
    """The server's binary, or for root a script that starts it with nothing of root but its files."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return server.BINARY
    script = folder / "ocelli"
    script.write_text(
        f'#!/bin/sh\nexec setpriv --bounding-set -all --inh-caps -all --no-new-privs "{server.BINARY}" "$@"\n'
    )
    script.chmod(0o755)
    return script


def restart_in_turn(folder, requests, callers, rate, settle, proxies=("nginx", "haproxy")):
    """Runs it; the loads by the name of their proxy, after the last answer. `settle`: as the second of `shipped`."""
    drain, _ = shipped()
    binary = without_capabilities(folder)
    ports = free_ports(2 + len(proxies))
    began = time.monotonic()

    def tell(line):
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    def start(index):
        log = folder / f"replica-{index}.log"
        return server.Server(
            ROOT / "examples" / "models", log, port=ports[index], binary=binary, log_filter="warn,ocelli=info", **drain
        )

    replicas = [start(0), start(1)]
    running, loads = [], {}
    try:
        for replica in replicas:
            replica.wait_ready()
        for name, port in zip(proxies, ports[2:]):
            running.append(Proxy(name, folder / name, port, ports[:2]).wait())
        # Until HAProxy has asked its replicas.
        time.sleep(3)
        tell("two replicas are ready")
        loads = {proxy.name: Load(proxy.port, callers, rate) for proxy in running}
        time.sleep(2)
        restarts = 0
        while restarts < 2 or any(load.sent < requests for load in loads.values()):
            index = restarts % 2
            tell(f"replica {index + 1}: SIGTERM, after {counted(loads)}")
            replicas[index].terminate()
            code = replicas[index].wait_exit()
            tell(f"replica {index + 1}: ended with {code}, after {counted(loads)}")
            assert code == 0, f"work was dropped:\n{replicas[index].log_text()}"
            replicas[index] = start(index).wait_ready()
            tell(f"replica {index + 1}: ready again, after {counted(loads)}")
            time.sleep(settle)
            restarts += 1
    finally:
        for load in loads.values():
            load.end()
        tell(f"the end, after {counted(loads)}")
        for one in [*running, *replicas]:
            one.stop()
    return loads


def counted(loads):
    return " and ".join(f"{load.sent} through {name}" for name, load in loads.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="through each proxy, at least")
    parser.add_argument("--callers", type=int, default=8, help="through each proxy")
    parser.add_argument("--rate", type=float, default=300, help="requests a second through each proxy, at most")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loads = restart_in_turn(Path(folder), given.requests, given.callers, given.rate, shipped()[1])
    for name, load in loads.items():
        print(f"{name}: {load.sent} requests, {len(load.lost)} lost, answers {dict(load.answers)}")
        for line in load.lost[:20]:
            print(f"    {line}")
    sys.exit(any(load.lost for load in loads.values()))


if __name__ == "__main__":
    main()
