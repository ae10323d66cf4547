"""Runs the server under test: starts it on free ports, waits until it is ready, ends it, keeps its log."""

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SERVER_BINARY", ROOT / "target" / "debug" / "ocelli")).resolve()
LIBRARY = ROOT / ".lib" / "libonnxruntime.so.1.31.1"
READY_SECONDS_MAX = 120  # the dev profile loads and warms every model on a busy machine
STOP_SECONDS_MAX = 60


def until(holds, seconds_max, what):
    """Asks `holds` again and again until it gives something other than None or False, and returns that."""
    deadline = time.monotonic() + seconds_max
    while (result := holds()) is None or result is False:
        assert time.monotonic() < deadline, f"not after {seconds_max} s: {what}"
        time.sleep(0.02)
    return result


# Open until this process ends: ports that it has chosen, and that other runs of these tests leave to it.
CHOSEN = []


def chosen(port):
    """Whether a port is ours from now on, and not that of other tests that have chosen it and will soon listen on it."""
    folder = Path(tempfile.gettempdir()) / f"ocelli-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    file = open(folder / str(port), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    CHOSEN.append(file)
    return True


def free_ports(count):
    """Ports that nobody has now. They are below those that the system hands out, which any connection may take meanwhile."""
    try:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        end = 0
    candidates = list(range(10_000, end)) if end > 12_000 else [0] * 100
    # Of its own, so that whoever seeds the common one does not choose the same.
    random.Random().shuffle(candidates)
    sockets = []
    for port in candidates:
        try:
            found = socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
        if chosen(found.getsockname()[1]):
            sockets.append(found)
        else:
            found.close()
        if len(sockets) == count:
            break
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    assert len(ports) == count, "no free ports"
    return ports


class Server:
    """A running server. `options` are settings by their names in the configuration file, such as `queue_items_max`.

    `environment` stands in for that of the tests."""

    def __init__(self, models, log, port=None, binary=BINARY, environment=None, **options):
        self.log = log
        self.port, self.admin_port, self.grpc_port = free_ports(3)
        self.port = port or self.port
        self.url, self.admin_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "admin_listen": f"127.0.0.1:{self.admin_port}",
            "grpc_listen": f"127.0.0.1:{self.grpc_port}",
            "models": models,
            "backend": "cpu",
            "log_format": "human",
            "drain_delay_ms": 0,
            **options,
        }
        # Nothing of the caller's own settings reaches the server under test.
        environment = os.environ if environment is None else environment
        environment = {k: v for k, v in environment.items() if not k.startswith(("OCELLI_", "MAKEFLAGS"))}
        environment |= {f"OCELLI_{name.upper()}": str(value) for name, value in settings.items()}
        environment.setdefault("ORT_DYLIB_PATH", str(LIBRARY))
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [binary, "serve"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def wait_ready(self):
        """Returns once the server says that it is ready."""

        def ready():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log_text()}"
            return self.status("/v2/health/ready") == 200

        try:
            until(ready, READY_SECONDS_MAX, "the server is ready")
        except AssertionError:
            self.kill()
            print(self.log_text())
            raise
        return self

    def status(self, path):
        """The status of a GET over a connection of its own; None where there is no answer."""
        try:
            return requests.get(self.url + path, timeout=10, headers={"Connection": "close"}).status_code
        except requests.RequestException:
            return None

    def log_text(self):
        """What the server has logged so far, at most the last 20,000 characters."""
        return Path(self.log).read_text(errors="replace")[-20_000:]

    def terminate(self):
        """SIGTERM; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def insist(self, seconds_max=STOP_SECONDS_MAX):
        """SIGTERM again and again, until it has ended: one that comes within half a second of the first is taken for the same."""

        def ended():
            self.terminate()
            return self.process.poll() is not None

        until(ended, seconds_max, "the server has ended")

    def wait_exit(self, seconds_max=STOP_SECONDS_MAX):
        """The exit code."""
        return self.process.wait(timeout=seconds_max)

    def stop(self):
        """Ends the server in the orderly way; the exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.wait_exit()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self):
        """Ends the server at once, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
