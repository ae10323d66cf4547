"""Memory that a burst took is given back while the server lives on."""

import contextlib
import resource
import socket

import pytest
from server import until

CONNECTIONS = 1500
# Of what the burst took, what may be left once all of it is closed.
LEFT_MAX = 0.4
GIVEN_BACK_SECONDS_MAX = 60
BODY = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1], "data": [0.5]}]}'
REQUEST = b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.fixture
def many_files():
    """Open files for a burst, here and in the servers that are started meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_burst_of_connections_took_goes_back_to_the_system(start_server, only_digits, many_files):
    server = start_server(only_digits)

    def resident():
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024

    def burst(connections):
        with contextlib.ExitStack() as opened:
            sockets = [
                opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                for _ in range(connections)
            ]
            for one in sockets:
                one.sendall(REQUEST)
                assert one.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
            return resident()

    burst(10)
    before = resident()
    peak = burst(CONNECTIONS)
    print(f"{before:.1f} MiB before, {peak:.1f} with {CONNECTIONS} connections")
    assert peak > before + 10, "the burst is too small to show anything"
    until(lambda: resident() < before + LEFT_MAX * (peak - before), GIVEN_BACK_SECONDS_MAX, "the memory is given back")
    print(f"{resident():.1f} MiB in the end")
