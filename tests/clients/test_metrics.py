"""Metrics that are copied from elsewhere when they are asked for: each has the count that it names, and no other has it."""

import os
import re
import resource
import socket
import threading
from contextlib import ExitStack

import make_models
import numpy as np
import pytest
import requests
import wire
from server import BINARY, Server, until


@pytest.fixture
def start(only_digits, tmp_path):
    """Starts servers that end with the test."""
    with ExitStack() as started:

        def start(folder=None, log=None, **options):
            log = log or tmp_path / f"{len(os.listdir(tmp_path))}.log"
            server = Server(folder or only_digits, log, **options)
            started.callback(server.kill)
            return server.wait_ready()

        yield start


def numbers(server, session=requests):
    """All metrics by name and labels. From the admin listener, whose connections are not counted."""
    text = session.get(f"{server.admin_url}/metrics", timeout=wire.TIMEOUT).text
    return {name: float(value) for name, value in re.findall(r"^(ocelli_\S+) (\S+)$", text, re.MULTILINE)}


def until_numbers(server, session=requests, **wanted):
    """Waits for what `wanted` says, and returns all metrics of that moment."""

    def reached():
        found = numbers(server, session)
        return found if all(found[f"ocelli_{name}"] == value for name, value in wanted.items()) else None

    return until(reached, 60, f"metrics say {wanted}")


def connect(server, opened, count=1):
    """So many connections to the API."""
    address = ("127.0.0.1", server.port)
    return [opened.enter_context(socket.create_connection(address, timeout=wire.TIMEOUT)) for _ in range(count)]


def ended(server, session=requests):
    """What clocks have ended, and what else is counted of connections."""
    found = numbers(server, session)
    reasons = [found[f'ocelli_http_connections_ended_total{{reason="{reason}"}}'] for reason in ("idle", "header", "stalled")]
    return (*reasons, found["ocelli_http_connections_capped_total"], found["ocelli_http_accept_errors_total"])


def test_connections_that_clocks_end_are_counted_by_the_clock(start):
    server = start(idle_timeout_ms=1000, header_timeout_ms=300)
    with ExitStack() as opened:
        silent, begun = connect(server, opened, 2), connect(server, opened, 3)
        for connection in begun:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHos")
        assert [connection.recv(64) for connection in silent + begun] == [b""] * 5
        until(lambda: ended(server) == (2, 3, 0, 0, 0), 60, "two were idle, and three began a header")


def test_connections_that_find_no_room_are_counted_and_take_that_of_idle_ones(start):
    server = start(connections_max=6)
    until_numbers(server, http_connections=0)
    before = numbers(server)["ocelli_http_connections_total"]
    with ExitStack() as opened:
        connect(server, opened, 6)
        found = until_numbers(server, http_connections=6)
        assert found["ocelli_http_connections_total"] == before + 6
        assert ended(server) == (0, 0, 0, 0, 0), "and nobody waits"
        assert server.status("/v2/health/live") == 200
        assert ended(server) == (0, 0, 0, 1, 0)
        assert numbers(server)['ocelli_http_connections_ended_total{reason="evicted"}'] == 1
    until_numbers(server, http_connections=0)


def test_connections_that_cannot_be_accepted_are_counted(start):
    server = start()
    with requests.Session() as kept, ExitStack() as opened:
        # Its connection is there before there are no more.
        assert ended(server, kept) == (0, 0, 0, 0, 0)
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (1, limits[1]))
        connect(server, opened)
        *others, errors = until(lambda: (found := ended(server, kept))[-1] > 0 and found, 60, "an accept has failed")
        assert others == [0, 0, 0, 0] and errors > 0
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: server.status("/v2/health/ready") == 200, 60, "it accepts again")


def test_connections_leave_files_to_probes_where_few_may_be_open(start, tmp_path):
    binary = tmp_path / "few-files"
    binary.write_text(f"#!/bin/sh\nulimit -n 160 && exec '{BINARY}' \"$@\"\n")
    binary.chmod(0o755)
    server = start(binary=binary)
    with ExitStack() as opened:
        connect(server, opened, 150)
        until(lambda: ended(server)[3] > 0, 60, "no more are let in")
        for probe in ("live", "ready"):
            reply = requests.get(f"{server.admin_url}/v2/health/{probe}", timeout=wire.TIMEOUT)
            assert reply.status_code == 200, reply.text
        assert ended(server)[4] == 0, "none was tried in vain"
    assert "connections_max is 8192, and 40 fit" in server.log_text()


@pytest.mark.parametrize(
    ("reason", "other", "options"),
    [
        ("requests", "bytes", {"requests_in_flight_max": 1}),
        ("bytes", "requests", {"body_bytes_max": "64KiB", "in_flight_bytes_max": "64KiB", "stack_memory_bytes_max": "1KiB"}),
    ],
)
def test_refused_requests_are_counted_by_what_was_full(start, digits, reason, other, options):
    server = start(**options)
    with ExitStack() as opened:
        [holds] = connect(server, opened)
        # All of the requests or of the bytes that there may be: the end of its body does not come.
        holds.sendall(b"POST /predictions/digits HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" + bytes(65_000))
        until_numbers(server, requests_in_flight=1, in_flight_bytes=65_536)
        for _ in range(3):
            wire.problem(wire.post_image(server, "digits", digits[0][1]), 429)
        found = numbers(server)
        assert found[f'ocelli_refused_total{{reason="{reason}"}}'] == 3
        assert found[f'ocelli_refused_total{{reason="{other}"}}'] == 0


def test_the_age_of_the_oldest_job_grows_while_it_waits(start, tmp_path):
    make_models.write(tmp_path / "models", ["slow"])
    server = start(tmp_path / "models")
    assert numbers(server)["ocelli_queue_oldest_age_seconds"] == 0

    def ask():
        try:
            wire.post_infer(server, "slow", {"x": np.float32([[1e9]])})
        except requests.RequestException:
            pass  # The server ends with the test.

    asked = [threading.Thread(target=ask) for _ in range(2)]
    # The pass of the first would take weeks; the second waits for it.
    for number, thread in enumerate(asked, 1):
        thread.start()
        until_numbers(server, **{'queue_items{model="slow"}': number})
    age = until(lambda: numbers(server)["ocelli_queue_oldest_age_seconds"] or None, 60, "one waits")
    until(lambda: numbers(server)["ocelli_queue_oldest_age_seconds"] > age, 60, "it has waited longer")
    server.kill()
    for thread in asked:
        thread.join()
