"""A running server, and how it is asked."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import machine
from registry import Failed, folder_of, need


def until(holds, what, seconds=300):
    """Asks again and again until it gives something other than None or False, and returns that. The limit is for what would hang:
    no machine is to be too slow for it."""
    deadline = time.monotonic() + seconds
    while (got := holds()) is None or got is False:
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)
    return got


class Reply:
    """What came back."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def device(self):
        return self.headers.get("ocelli-device", "")


class Server:
    """A server for these models: `{name: (source folder, lines below its manifest)}`. Options are settings by their names."""

    def __init__(self, run, models, name="server", environment=None, **options):
        self.run, self.folder = run, folder_of(run.out / name)
        folder = folder_of(self.folder / "models")
        for model, (source, more) in models.items():
            shutil.copytree(source, folder / model, dirs_exist_ok=True)
            if more:
                manifest = folder / model / "model.toml"
                manifest.write_text(manifest.read_text() + more if manifest.exists() else more)
        settings = {
            "listen": "127.0.0.1:0",
            "admin_listen": "",
            "models": folder,
            "log_format": "json",
            "drain_delay_ms": 0,
            "gpu_queue_folder": self.folder / "queue",
            **options,
        }
        variables = {f"OCELLI_{name.upper()}": value for name, value in settings.items()} | (environment or {})
        self.log = self.folder / "log"
        began = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [machine.program(), "serve"],
                env=run.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        run.at_end(self.kill)
        self.address = until(lambda: self.said("listening", began), "the server listens", 300)
        until(lambda: self.get("/v2/health/ready").status == 200 or None, "the server is ready", 300)

    def said(self, what, began):
        """The address in the line of the log that says this."""
        if self.process.poll() is not None:
            raise Failed(f"the server ended with {self.process.returncode}: {self.last_words()}")
        for line in self.log.read_bytes()[began:].decode(errors="replace").splitlines():
            if f'"{what}"' not in line:
                continue
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            address = fields.get("fields", fields).get("address") or fields.get("address")
            if address:
                host, port = address.rsplit(":", 1)
                return host, int(port)
        return None

    def last_words(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "nothing was said"

    def url(self):
        return f"http://{self.address[0]}:{self.address[1]}"

    def ask(self, method, path, body=None, headers=None, seconds=300):
        connection = http.client.HTTPConnection(*self.address, timeout=seconds)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path):
        return self.ask("GET", path)

    def gpus(self):
        """The GPUs, as the server lists them."""
        devices = self.get("/v2/devices").json()["devices"]
        return [device for device in devices if device["id"].startswith(("GPU-", "MIG-"))]

    def gpu(self):
        """The first of them."""
        return next(iter(self.gpus()), None)

    def seconds_of(self, thread):
        """Seconds that its thread of this name has run on a processor."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == thread:
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        raise Failed(f"the server has no thread {thread}")

    def until_gpu(self, state, seconds=300):
        def holds():
            gpu = self.gpu()
            return gpu is not None and gpu["state"] == state

        until(holds, f"the GPU is {state}", seconds)

    def need_pinned(self):
        """Fails where the driver does not know the memory that it copies from: answers are right all the same, and late."""
        said = self.log.read_text(errors="replace").splitlines()
        words = ("copies of this memory will wait", "copies will wait for each other")
        unpinned = [line for line in said if any(word in line for word in words)]
        need(not unpinned, f"memory is not pinned: {unpinned[:1]}")

    def stop(self):
        """Ends it in the orderly way."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(300)
        if code != 0:
            raise Failed(f"the server ended with {code}: {self.last_words()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def children(self):
        """Processes that it has started and that run."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                number, rest = stat.read_text().split(" (", 1)
            except OSError:
                continue
            state, parent = rest.rsplit(") ", 1)[1].split()[:2]
            if int(parent) == self.process.pid and state != "Z":
                found.append(int(number))
        return found


class Asking:
    """Keeps a server busy from several threads until it is told to stop; every answer is looked at."""

    def __init__(self, threads, ask):
        self.ask, self.wrong, self.answers = ask, [], []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.go_on) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def go_on(self):
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                device = self.ask()
                self.answers.append((began, time.monotonic(), device))
            except Exception as failed:  # any: it is a request that was lost
                self.wrong.append(f"{type(failed).__name__}: {failed}")

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        if self.wrong:
            raise Failed(f"{len(self.wrong)} of {len(self.wrong) + len(self.answers)} requests were lost, such as {self.wrong[0]}")
        return len(self.answers)


def holder(run, name, environment=None):
    """Another process on the GPU, once it has what it wants. It ends when its input is closed (`release`)."""
    process = subprocess.Popen(
        [machine.program(), "check", name],
        env=run.environment(**(environment or {})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end():
        if process.poll() is None:
            process.kill()
        process.wait()

    run.at_end(end)
    line = process.stdout.readline()
    if not line.startswith("holding"):
        raise Failed(f"the other process says {line!r}")
    print(line, flush=True)
    return process


def release(process):
    process.stdin.close()
    process.wait(300)


def environment_of_own(run):
    """Variables so that processes of one check share the fake driver's memory, and NVML sees it."""
    if not run.rehearsal:
        return {}
    return {
        "FAKE_CUDA": "devices memory=2GiB context=100MiB",
        "FAKE_CUDA_SHARED": str(run.out / "shared"),
        "FAKE_NVML": "gpus follow",
        "OCELLI_NVML_LIBRARY": os.environ.get("GPU_CHECKS_NVML", "libnvidia-ml.so.1"),
    }
