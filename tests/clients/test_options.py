"""Options whose way from the configuration to what they do no other test goes: a server that has one, and what it does.

Where an option is a clock, what it ends is asked beside something that only a later clock would end: nothing is timed here.
"""

import json
import os
import select
import shutil
import socket
import struct
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import localize
import numpy as np
import pytest
import requests
import wire
from conftest import EXAMPLES
from fakes import Machine
from server import Server, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier and a fitter, which are quick to load."""
    folder = tmp_path_factory.mktemp("two-models")
    for name in ("digits", "spots"):
        shutil.copytree(EXAMPLES / "models" / name, folder / name)
    return folder


@pytest.fixture
def start(folder, tmp_path):
    """Starts servers that end with the test."""
    with ExitStack() as started:

        def start(**options):
            server = Server(folder, tmp_path / f"{len(os.listdir(tmp_path))}.log", **options)
            started.callback(server.kill)
            return server.wait_ready()

        yield start


def head(length):
    """The head of a request for a classifier with so many bytes to follow."""
    return f"POST /predictions/digits HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


# The clock under test, the same where it is late, and what a client sends before it falls silent. Other clocks are later still.
CLOCKS = {
    "header_timeout_ms": (300, 60_000, b"GET /v2 HTTP/1.1\r\nHos", b""),
    "body_timeout_ms": (300, 86_400_000, head(100_000) + bytes(50_000), b"HTTP/1.1 408 "),
    # The grace is 5 s, and the late one gives 50,000 s more for these bytes.
    "body_rate_bytes_min": ("1MiB", 1, head(100_000) + bytes(50_000), b"HTTP/1.1 408 "),
}


@pytest.mark.parametrize("option", CLOCKS)
def test_a_clock_is_the_one_that_is_configured(start, option):
    soon, late, sent, answer = CLOCKS[option]
    others = {"body_timeout_ms": 86_400_000, "body_rate_bytes_min": 0} if option != "header_timeout_ms" else {}
    with ExitStack() as opened:
        connections = []
        # The late one first: were both clocks the same, it would be the first to end.
        for value in (late, soon):
            server = start(**{**others, option: value})
            address = ("127.0.0.1", server.port)
            connection = opened.enter_context(socket.create_connection(address, timeout=wire.TIMEOUT))
            connection.sendall(sent)
            connections.append(connection)
        readable, _, _ = select.select(connections, [], [], wire.TIMEOUT)
        assert readable == connections[1:], "the one whose clock is over ends, and the other does not"
        assert connections[1].recv(64).startswith(answer)
        assert answer or connections[1].recv(64) == b""


def test_who_does_not_take_a_reply_is_cut_off_by_the_clock_that_is_configured(start):
    with ExitStack() as opened:
        connections = []
        # More than sockets hold: this document, asked for again and again by who reads none.
        ask = b"GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n" * 500
        for value in (86_400_000, 300):
            server = start(reply_stall_ms=value)
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(ask)
            connections.append(connection)

        def stalled():
            metrics = requests.get(f"{server.url}/metrics", timeout=wire.TIMEOUT).text
            return 'ocelli_http_connections_ended_total{reason="stalled"} 1\n' in metrics

        until(stalled, 60, "the second server has ended its connection")
        # What it had sent is followed by the end; of the other, everything comes.
        for connection, whole in zip(connections, (True, False), strict=True):
            connection.settimeout(wire.TIMEOUT)
            count = 0
            try:
                # One that is split between two reads is not counted.
                while count <= 400 and (piece := connection.recv(1 << 20)):
                    count += piece.count(b"HTTP/1.1 200 OK")
            except ConnectionResetError:
                pass
            assert (count > 400) == whole, count


def test_where_metrics_are_apart_is_in_the_log(start):
    server = start(metrics_listen="127.0.0.1:0", log_format="json")
    (line,) = (json.loads(line) for line in server.log_text().splitlines() if '"listening"' in line)
    address = (line.get("fields") or line)["metrics"]
    assert requests.get(f"http://{address}/metrics", timeout=wire.TIMEOUT).status_code == 200


def threads(server):
    """How many threads of the server have each name, without its number."""
    names = [task.joinpath("comm").read_text().strip() for task in Path(f"/proc/{server.process.pid}/task").iterdir()]
    return Counter(name.rstrip("0123456789") for name in names)


@pytest.mark.parametrize(
    # Of threads that compute, the one that has the batch is the first.
    ("option", "name", "less"),
    [("http_threads", "ocelli-http-", 0), ("compute_threads", "ocelli-fit-", 1), ("compute_threads", "ocelli-onnx", 1)],
)
def test_there_are_as_many_threads_as_configured(start, option, name, less):
    for count in (3, 6):
        assert threads(start(**{option: count}))[name] == count - less


def test_a_network_runs_on_as_many_threads_as_configured(start):
    # ONNX Runtime starts none beside those that it is given.
    few, many = (sum(threads(start(compute_threads=count)).values()) for count in (2, 7))
    of_fits = 5
    assert many - few == of_fits + 5, "five more that fit, and five more that run the classifier"


TIFF = (EXAMPLES / "images" / "digits-3-7.tif").read_bytes()
REFUSED = {
    "image_side_max": (63, "digits", (EXAMPLES / "images" / "digits" / "3-0.png").read_bytes(), "more than the limit of 63"),
    "image_frames_max": (1, "digits", TIFF, "more than the limit of 1"),
    "stack_frames_max": (3, "spots", localize.npy(np.zeros((4, 16, 16), np.uint16)), "is 4, more than the limit of 3"),
    "stack_bytes_max": (1024, "spots", localize.npy(np.zeros((1, 32, 32), np.uint16)), "limit of 1024"),
}  # fmt: skip


@pytest.mark.parametrize("option", REFUSED)
def test_what_is_over_a_limit_is_refused_by_its_option(start, option):
    limit, model, data, says = REFUSED[option]
    server = start(**{option: limit})
    wire.problem(wire.post_image(server, model, data), 413, says, option)
    # And the default lets it in.
    assert wire.post_image(start(), model, data).status_code == 200


def test_a_limit_of_stacks_is_none_of_other_bodies(start):
    server = start(stack_bytes_max=1024)
    assert len(TIFF) > 1024 and wire.post_image(server, "digits", TIFF).status_code == 200
    server = start(body_bytes_max=1024)
    wire.problem(wire.post_image(server, "digits", TIFF), 413, "limit of 1024", "body_bytes_max")
    assert wire.post_image(server, "spots", REFUSED["stack_bytes_max"][2]).status_code == 200


def test_a_folder_for_stacks_that_is_not_there_is_found_at_the_start(start, tmp_path):
    with pytest.raises(AssertionError, match="stack_spill_folder = .*/nowhere.*: cannot make a temporary file there"):
        start(stack_spill_folder=tmp_path / "nowhere")


def test_a_model_has_a_log_file_in_the_folder_that_is_configured(start, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    server = start(log_dir=logs)
    # Those that are answered in order are no line of their own.
    body = wire.problem(wire.post_image(server, "digits", b"no image"), 400)
    until(lambda: body["request_id"] in (logs / "digits.log").read_text(), 60, "the request is in the model's log")


def backwards(frames):
    """A TIFF whose first page is stored last: all of the file must be there before the first frame is."""
    count, height, width = frames.shape
    data = frames.astype("<u2").tobytes()
    size, tags = len(data) // count, 9
    # Frames in their order, then pages: the first page comes last.
    length = 2 + 12 * tags + 4
    places = [8 + len(data) + (count - 1 - page) * length for page in range(count)]
    file = bytearray(struct.pack("<2sHI", b"II", 42, places[0]) + data)
    for page in reversed(range(count)):
        assert len(file) == places[page]
        file += struct.pack("<H", tags)
        for tag, kind, value in (
            (256, 4, width), (257, 4, height), (258, 3, 16), (259, 3, 1), (262, 3, 1),
            (273, 4, 8 + page * size), (277, 3, 1), (278, 4, height), (279, 4, size),
        ):  # fmt: skip
            file += struct.pack("<HHII", tag, kind, 1, value)
        file += struct.pack("<I", places[page + 1] if page + 1 < count else 0)
    return bytes(file)


def test_a_stack_that_finds_no_room_on_the_disk_is_told_apart_from_a_fault_of_the_server(start, tmp_path):
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    server = start(stack_spill_folder=spilled, stack_memory_bytes_max="1MiB")
    spilled.rmdir()
    reply = wire.post_image(server, "spots", backwards(np.full((8, 512, 512), 120, np.uint16)))
    told = reply.json()
    assert (reply.status_code, told["type"]) == (507, "/docs/errors#insufficient-storage"), told
    assert "bytes of the stack" in told["detail"] and "stack_spill_folder" in told["detail"], told
    assert str(tmp_path) not in told["detail"], told
    counted = requests.get(f"{server.url}/metrics", timeout=wire.TIMEOUT).text
    for outcome, count in (("storage", 1), ("internal", 0)):
        assert f'ocelli_outcomes_total{{model="spots",outcome="{outcome}"}} {count}\n' in counted


def test_stacks_that_are_out_of_order_spill_into_the_folder_that_is_configured_and_share_its_room(start, tmp_path):
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    server = start(
        stack_spill_folder=spilled,
        stack_memory_bytes_max="256KiB",
        stack_spill_bytes_max="1280KiB",
        stack_spill_total_bytes_max="1280KiB",
    )
    stack = backwards(np.full((8, 256, 256), 120, np.uint16))
    files = Path(f"/proc/{server.process.pid}/fd")

    def is_there():
        for file in files.iterdir():
            try:
                # It has no name: the link says what it was, or would be, and where.
                if file.readlink().is_relative_to(spilled):
                    return True
            except FileNotFoundError:
                pass
        return False

    with socket.create_connection(("127.0.0.1", server.port), timeout=wire.TIMEOUT) as connection:
        connection.sendall(head(len(stack)).replace(b"digits", b"spots") + stack[:-10])
        until(is_there, 60, "a temporary file is in the folder")
        beside = wire.post_image(server, "spots", stack)
        assert beside.status_code == 429 and "stack_spill_total_bytes_max" in beside.text, beside.text
        assert int(beside.headers["retry-after"]) > 0
        connection.sendall(stack[-10:])
        assert connection.recv(64).startswith(b"HTTP/1.1 200 ")
        until(lambda: not is_there(), 60, "the temporary file has gone with its stack")
    assert wire.post_image(server, "spots", stack).status_code == 200


def test_the_driver_is_told_where_to_keep_kernels(start, tmp_path):
    machine = Machine(tmp_path / "shared", "devices count=1")
    cache = tmp_path / "kernels"
    # A GPU's own process has what the server has told the driver, and the system shows what it began with.
    options = {"backend": "auto", "isolation": "process", "kernel_cache_folder": cache}
    server = start(environment=machine.environment, **options)

    def children():
        return [int(child) for tasks in Path(f"/proc/{server.process.pid}/task").iterdir()
                for child in (tasks / "children").read_text().split()]  # fmt: skip

    until(children, 60, "the GPU has a process")
    told = f"CUDA_CACHE_PATH={cache}".encode()
    until(lambda: told in Path(f"/proc/{children()[0]}/environ").read_bytes().split(b"\0"), 60, "it has the variable")
    devices = requests.get(f"{server.url}/v2/devices", timeout=wire.TIMEOUT).json()["devices"]
    assert len(devices) == 2, devices
