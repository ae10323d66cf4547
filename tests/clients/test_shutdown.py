"""SIGTERM: readiness goes first, requests are answered until the end, and the exit code is 0."""

import contextlib
import io
import json
import re
import signal
import socket
import threading
import time

import make_models
import numpy as np
import requests
import wire
from PIL import Image
from server import ROOT, until


def test_a_drained_server_says_so_first_and_loses_no_request(start_server, only_digits, digits):
    _, data, digit = digits[5]

    def drained(delay_ms):
        """Whether all of it happened before the listener closed."""
        server = start_server(only_digits, drain_delay_ms=delay_ms, drain_timeout_ms=20_000)
        kept_alive = requests.Session()
        wire.one(wire.post_image(server, "digits", data, session=kept_alive), "classify")
        began, answered = time.monotonic(), 0
        server.terminate()
        try:
            until(lambda: server.status("/v2/health/ready") == 503, 20, "ready is 503")
            # The listener stays open for the delay: neither the live probe nor a caller that has not looked yet is refused.
            assert server.status("/v2/health/live") == 200
            # Whoever balances requests for one model may ask for that one alone.
            assert server.status("/v2/models/digits/ready") == 400
            for session in (kept_alive, requests):
                classes, _ = wire.one(wire.post_image(server, "digits", data, session=session), "classify")
                assert wire.best(classes) == digit
        except (AssertionError, requests.ConnectionError):
            # Where this process is held up for so long, the delay is over: it begins again, with a longer one.
            if time.monotonic() - began < delay_ms / 1000:
                raise
            return False
        # Until the listener closes, every answer is a full one.
        while server.process.poll() is None:
            try:
                response = wire.post_image(server, "digits", data, headers={"Connection": "close"})
            except requests.ConnectionError:
                break
            wire.one(response, "classify")
            answered += 1
        print(f"{answered} more requests were answered before the listener closed")
        assert server.wait_exit() == 0, server.log_text()
        return answered > 0

    assert any(map(drained, (3000, 12_000, 48_000)))


def test_what_comes_while_the_process_stands_still_is_answered(start_server, only_digits, digits):
    data = digits[5][1]
    head = f"POST /predictions/digits HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    alive = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    # What was sent before, and what is sent while it stands still.
    parts = [(b"", head + data), (head[:20], head[20:] + data), (head + data[:50], data[50:]), (alive, head + data)] * 8

    def answered(clock):
        """Whether it stood still before one of its clocks, of so many seconds, could run out."""
        # Shorter than the time for which it stands still, which is the caller's: of idle connections, heads and bodies alike.
        clocks = {"header_timeout_ms": 1000 * clock, "idle_timeout_ms": 1250 * clock, "body_timeout_ms": 1500 * clock}
        server = start_server(only_digits, **clocks)
        metrics = lambda: requests.get(f"{server.admin_url}/metrics", timeout=wire.TIMEOUT).text
        seen = lambda: float(re.search(r"^ocelli_http_connections (\S+)", metrics(), re.MULTILINE)[1])
        began = time.monotonic()
        late = lambda: time.monotonic() - began > clock
        try:
            connections = [socket.create_connection(("127.0.0.1", server.port), timeout=wire.TIMEOUT) for _ in parts]
            for connection, (before, _) in zip(connections, parts, strict=True):
                connection.sendall(before)
                assert before != alive or connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
            until(lambda: late() or seen() >= len(connections), 60, "all are seen")
        except (AssertionError, OSError):
            if not late():
                raise
        server.process.send_signal(signal.SIGSTOP)
        if late():
            # This process was held up: it begins again, with longer clocks.
            server.kill()
            return False
        for connection, (_, rest) in zip(connections, parts, strict=True):
            connection.sendall(rest)
        # Longer than any two of the clocks together.
        time.sleep(3 * clock)
        server.process.send_signal(signal.SIGCONT)
        answers = [connection.recv(1 << 16)[:15] for connection in connections]
        assert answers == [b"HTTP/1.1 200 OK"] * len(answers), answers
        return True

    assert any(map(answered, (1, 4, 16)))


def test_an_idle_connection_does_not_hold_the_server_up(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=0, drain_timeout_ms=600_000)
    idle = requests.Session()
    assert idle.get(server.url + "/v2/health/live", timeout=wire.TIMEOUT).status_code == 200
    server.terminate()
    assert server.wait_exit() == 0, server.log_text()
    idle.close()


def test_a_second_signal_means_now(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=3_600_000)
    server.terminate()
    until(lambda: server.status("/v2/health/ready") == 503, 20, "ready is 503")
    server.insist()


def test_a_batch_that_runs_does_not_hold_up_the_end(start_server, tmp_path):
    make_models.write(tmp_path, ["slow"])
    server = start_server(tmp_path, drain_delay_ms=0, drain_timeout_ms=500)
    replies = []
    ask = threading.Thread(
        target=lambda: replies.append(wire.post_infer(server, "slow", {"x": np.float32([[1e9]])}))
    )
    ask.start()
    running = 'ocelli_queue_items{model="slow"} 1'
    until(lambda: running in requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text, 20, "the job runs")
    server.terminate()
    # The pass would take weeks.
    assert server.wait_exit() == 75, server.log_text()
    # No scrape sees it any more: the log says whose work it was.
    dropped = [line for line in server.log_text().splitlines() if "the model's work is dropped" in line]
    assert len(dropped) == 1 and "slow" in dropped[0], server.log_text()
    ask.join(wire.TIMEOUT)
    wire.problem(replies[0], 503, "draining")


def test_a_stack_that_still_comes_is_broken_off_with_what_was_found_and_an_error_at_its_end(start_server):
    server = start_server(ROOT / "examples/models", drain_delay_ms=0, drain_timeout_ms=500)
    stack = (ROOT / "examples/images/spots.tif").read_bytes()
    head = f"POST /predictions/spots?format=csv HTTP/1.1\r\nHost: a\r\nContent-Length: {len(stack)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=wire.TIMEOUT) as caller:
        caller.sendall(head.encode() + stack[: len(stack) // 2])
        # It has begun to be answered, and waits for the rest.
        assert caller.recv(15) == b"HTTP/1.1 200 OK"
        server.terminate()
        reply = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := caller.recv(1 << 16):
                reply += piece
        assert server.wait_exit() == 75, server.log_text()
    last = [line for line in reply.decode().splitlines() if line.startswith("#")]
    assert last and "draining" in last[-1], reply[-500:]
    cut = [line for line in server.log_text().splitlines() if "requests of the model are cut" in line]
    assert len(cut) == 1 and "spots" in cut[0] and "1" in cut[0], server.log_text()


def test_a_stream_of_files_that_are_still_decoded_at_the_end_has_an_error_for_each_and_its_last_line(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=0, drain_timeout_ms=200)
    picture = make_models.picture(np.random.default_rng(3), 6000, 5000)
    file = io.BytesIO()
    # Decoding all of them takes many times as long as there is.
    Image.fromarray(picture).save(file, "JPEG", quality=80, progressive=True)
    files = [("data", ("a.jpg", file.getvalue(), "image/jpeg"))] * 24
    headers = {"Accept": "application/x-ndjson"}
    url = f"{server.url}/predictions/digits"
    with requests.post(url, files=files, headers=headers, stream=True, timeout=wire.TIMEOUT) as reply:
        lines = reply.iter_lines()
        first = next(lines)
        server.terminate()
        entries = [json.loads(line) for line in [first, *lines]]
    assert server.wait_exit() == 75, server.log_text()
    done = entries.pop()["done"]
    told = [entry for entry in entries if entry.get("type", "").endswith("#draining")]
    assert len(entries) == 24 and len(told) == done["failed"] > 0 and done["answered"] + done["failed"] == 24, (done, entries)


def test_a_request_that_still_comes_at_the_end_is_told_and_in_the_log_as_the_servers_doing(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=0, drain_timeout_ms=300)
    head = "POST /predictions/digits HTTP/1.1\r\nHost: a\r\nX-Request-Id: cut-off\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=wire.TIMEOUT) as caller:
        caller.sendall(head.encode() + b"abc")
        open_now = 'ocelli_requests_in_flight 1'
        until(lambda: open_now in requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text, 20, "it has come")
        server.terminate()
        reply = caller.recv(1 << 16).decode()
        assert server.wait_exit() == 75, server.log_text()
    assert reply.startswith("HTTP/1.1 503 ") and '"/docs/errors#draining"' in reply and "retry-after:" in reply.lower(), reply
    lines = [line for line in server.log_text().splitlines() if "cut-off" in line]
    assert len(lines) == 1 and "503" in lines[0] and "answered" in lines[0], server.log_text()
    cut = [line for line in server.log_text().splitlines() if "requests of the model are cut" in line]
    assert len(cut) == 1 and "digits" in cut[0], server.log_text()
