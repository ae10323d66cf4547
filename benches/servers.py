#!/usr/bin/env python3
"""Ocelli beside other model servers, on the CPU: the same models, the same threads of the same ONNX Runtime, the same client.

    make bench-servers                                     # about ten minutes, once the environments are made
    make bench-servers BENCH="--only triton-python,fastapi --rounds 5"
    make bench-servers TRITON_ONNXRUNTIME=FOLDER           # with Triton's own backend for ONNX, where one has been built

Each server has a virtual environment of its own (benches/servers/NAME.txt) and a page of code that runs in it
(benches/servers/NAME_*.py): the least that its documents ask for, which calls ONNX Runtime on the batch that the server has
formed. What cannot be installed or started is left out, with its reason.

Requests are one item: FP32 [1, 3, 224, 224] to ResNet-18 with random weights, FP32 [1, 16] to a model that copies it, a JPEG of
500 x 375 to ResNet-18. They travel as each server takes them best over HTTP/1.1: as binary tensors of the Open Inference
Protocol where it has them, else as raw bytes, a file of a form, or base64. Ocelli and Triton get the tensors by gRPC, too, each
connection with one call at a time. Batches of at most 16 are formed wherever the server can; requests that wait for company do so
for a millisecond where some time has to be given, and not at all where none has.

Before anything is timed, each server's answers, asked for one by one and many at once, are compared with those of a session in this
process: a wrong one ends the run. All servers then run at once and take turns, the others stopped (SIGSTOP), so that they cost nothing. A
figure is the median of the rounds; ratios are taken within each round, and rounds in which other programs took more than 5 % of the
cores are left out where there are others. Nothing is asserted about time.
"""

import argparse
import concurrent.futures
import contextlib
import io
import json
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np
import requests
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benches" / "servers"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "clients"), str(HERE)]
import engine  # noqa: E402
import make_models  # noqa: E402
from cputime import busy_seconds, cpu_seconds  # noqa: E402
from rawhttp import Connection, infer, infer_message, request  # noqa: E402
from server import BINARY, LIBRARY, free_ports  # noqa: E402

CLIENT = os.environ["FRONT_BINARY"]
START_SECONDS_MAX = 120
BATCH, DELAY_MS = 16, 1
# Where the time is spent: what is posted, over how many connections.
TENSORS = ("resnet18", "identity", "resnet18-grpc", "identity-grpc")
LOADS = [(what, n) for what in TENSORS for n in (1, 8, 32)] + [("image", n) for n in (1, 8)]
# How much longer or shorter than the others: a second of the copy is thousands of requests, and 32 wait long for ResNet-18.
LENGTHS = {(what, n): 2 if what.startswith("resnet18") else 0.5 for what, n in LOADS if what.startswith("identity") or n == 32}
TITLES = {
    "resnet18": "ResNet-18, FP32 [1, 3, 224, 224]",
    "identity": "A copy of FP32 [1, 16]",
    "resnet18-grpc": "ResNet-18, FP32 [1, 3, 224, 224], by gRPC",
    "identity-grpc": "A copy of FP32 [1, 16], by gRPC",
    "image": "JPEG 500 x 375, decoded and classified by ResNet-18",
}
FORM = "a-boundary-that-no-file-has"


class Missing(Exception):
    """A server that is not to be had here, and why."""


def form(field, file):
    """The body of a form with one file, and its header."""
    head = f'--{FORM}\r\nContent-Disposition: form-data; name="{field}"; filename="{field}"\r\n'
    body = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + file + f"\r\n--{FORM}--\r\n".encode()
    return body, [("Content-Type", f"multipart/form-data; boundary={FORM}")]


RAW = [("Content-Type", "application/octet-stream")]


class Peer:
    """A server under comparison. One of another kind has a virtual environment, and a command that starts it."""

    name = protocol = batches = ""
    images, grpc = True, False
    # What is pinned in the requirements and has the server's version.
    package = None

    def __init__(self, folder, models, threads):
        self.folder, self.models, self.threads = folder / self.name, models, threads
        self.folder.mkdir()
        (self.folder / "counts").mkdir()
        self.log = self.folder / "log"
        self.port, self.grpc_port, *self.ports = free_ports(5)
        self.process = None

    @property
    def venv(self):
        return ROOT / ".venv" / f"servers-{self.name.split('-')[0]}"

    @property
    def requirements(self):
        return HERE / f"{self.name.split('-')[0]}.txt"

    @property
    def version(self):
        return re.search(rf"^({self.package or self.name}==\S+)", self.requirements.read_text(), re.M)[1].replace("==", " ")

    def install(self):
        """Makes the environment."""
        # An interpreter with pip, which that of this environment has not.
        python = os.environ.get("PYTHON", "python3")
        if subprocess.run([python, ROOT / "tools" / "make_venv.py", self.venv, self.requirements]).returncode != 0:
            raise Missing("its packages could not be installed")

    def command(self):
        return [self.venv / "bin" / "python", HERE / f"{self.name}_app.py"]

    def environment(self):
        return {}

    def start(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OCELLI_", "PYTHON", "MAKEFLAGS"))}
        environment |= {
            "PATH": f"{self.venv / 'bin'}:{environment['PATH']}",
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PEER_MODELS": str(self.models),
            "PEER_THREADS": str(self.threads),
            "PEER_COUNTS": str(self.folder / "counts"),
            "PEER_PORT": str(self.port),
            "PEER_BATCH": str(BATCH),
            "PEER_DELAY_MS": str(DELAY_MS),
            # Nothing but ONNX Runtime computes in these processes.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        environment |= self.environment()
        with open(self.log, "ab") as out:
            # In a session of its own: a group with stopped processes in it is hung up on when the shell that began it ends.
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait_ready(self, picture):
        """Returns once every load is answered with 200."""
        deadline, last = time.monotonic() + START_SECONDS_MAX, "no answer"
        waited_for = [self.tensor(name, np.zeros((1, *shape), np.float32)) for name, shape in engine.MODELS.items()]
        waited_for += [self.image(picture)] if self.images else []
        while waited_for:
            if self.process.poll() is not None:
                raise Missing(f"it ended with {self.process.returncode}: {self.last_words()}")
            try:
                connection = Connection(self.port, timeout=20)
                status, _, body = connection.roundtrip(waited_for[0])
                connection.close()
                if status == 200:
                    waited_for.pop(0)
                    continue
                last = f"{status} {body[:200]!r}"
            except OSError as error:
                last = str(error)
            if time.monotonic() > deadline:
                raise Missing(f"not ready after {START_SECONDS_MAX} s ({last}): {self.last_words()}")
            time.sleep(0.1)

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])[-600:]

    def tensor(self, name, x):
        """The bytes of a request with one item."""
        return infer(name, *NAMES[name][:1], x, NAMES[name][1])

    def answer(self, name, body, like):
        """The output that a reply has, which is to be as long as `like`."""
        assert len(body) >= like.nbytes, f"{body[:300]!r}"
        return np.frombuffer(body[-like.nbytes :], np.float32)

    def message(self, name, x):
        """The message of the same request by gRPC."""
        return infer_message(name, NAMES[name][0], x, NAMES[name][1])

    def image(self, file):
        """The bytes of a request with a picture."""
        raise NotImplementedError

    def takes(self, what):
        """Whether it is asked in this way."""
        return self.images if what == "image" else self.grpc or not what.endswith("-grpc")

    def best(self, body):
        """The class that a reply to a picture names first, and its score."""
        first = json.loads(body)["classes"][0]
        return first["index"], first["score"]

    def counts(self, name):
        """Items and batches that it ran so far."""
        return struct.unpack("<QQ", (self.folder / "counts" / name).read_bytes())

    def kill(self):
        if self.process is not None:
            send(self, signal.SIGKILL)
            self.process.wait()


def statistics_of(port, name):
    """Items and batches as Triton's protocol tells them."""
    stats = requests.get(f"http://127.0.0.1:{port}/v2/models/{name}/stats", timeout=10).json()["model_stats"][0]
    return int(stats["inference_count"]), int(stats["execution_count"])


class Ocelli(Peer):
    name, protocol, grpc = "ocelli", "Open Inference Protocol, binary", True
    batches = f"at most {BATCH}, of what waits while another runs"

    version = property(lambda self: subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout.strip())

    def install(self):
        pass

    def command(self):
        return [BINARY, "serve"]

    def environment(self):
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "grpc_listen": f"127.0.0.1:{self.grpc_port}",
            "admin_listen": f"127.0.0.1:{self.ports[0]}",
            "models": self.models,
            "backend": "cpu",
            "compute_threads": self.threads,
            "log_filter": "warn",
        }
        library = {"ORT_DYLIB_PATH": os.environ.get("ORT_DYLIB_PATH", str(LIBRARY))}
        return library | {f"OCELLI_{name.upper()}": str(value) for name, value in settings.items()}

    def image(self, file):
        return request("POST", "/predictions/resnet18", file, [("Content-Type", "image/jpeg")])

    def counts(self, name):
        return statistics_of(self.port, name)


class TritonPython(Peer):
    name, protocol = "triton-python", "Open Inference Protocol, binary"
    batches = f"at most {BATCH}, of what waits while another runs"
    images, grpc, package = False, True, "nvidia-pytriton"

    def repository(self, name):
        """Writes what Triton wants for a model; the text of its configuration beside inputs and outputs."""
        (self.folder / "models" / name / "1").mkdir(parents=True)
        shutil.copy(HERE / "triton_model.py", self.folder / "models" / name / "1" / "model.py")
        return 'backend: "python"\n'

    def start(self):
        site = next((self.venv / "lib").glob("python3*")) / "site-packages"
        packed = site / "pytriton" / "tritonserver"
        backends = self.folder / "backends"
        shutil.copytree(packed / "backends", backends)
        version = site.parent.name.removeprefix("python")
        stub = backends / "python" / "triton_python_backend_stub"
        shutil.copy(packed / "python_backend_stubs" / version / stub.name, stub)
        stub.chmod(0o755)
        # The interpreter in that program looks for modules there, and not where PYTHONPATH says.
        for module in [HERE / "engine.py", *site.iterdir()]:
            if not (backends / "python" / module.name).exists():
                (backends / "python" / module.name).symlink_to(module)
        self.add_backends(backends)
        for name, shape in engine.MODELS.items():
            text = self.repository(name) + f"max_batch_size: {BATCH}\n"
            text += "instance_group [ { kind: KIND_CPU count: 1 } ]\ndynamic_batching { max_queue_delay_microseconds: 0 }\n"
            outputs = NAMES[name][2]
            text += f'input [ {{ name: "{NAMES[name][0]}" data_type: TYPE_FP32 dims: {list(shape)} }} ]\n'
            text += f'output [ {{ name: "{NAMES[name][1]}" data_type: TYPE_FP32 dims: {list(outputs)} }} ]\n'
            (self.folder / "models" / name / "config.pbtxt").write_text(text)
        self.binary, self.site = self.folder / "tritonserver", site
        shutil.copy(packed / "bin" / "tritonserver", self.binary)
        self.binary.chmod(0o755)
        super().start()

    def add_backends(self, backends):
        pass

    def command(self):
        return [
            self.binary,
            f"--model-repository={self.folder / 'models'}",
            f"--backend-directory={self.folder / 'backends'}",
            f"--http-port={self.port}",
            "--http-address=127.0.0.1",
            f"--grpc-port={self.grpc_port}",
            "--grpc-address=127.0.0.1",
            "--allow-metrics=false",
            "--log-info=false",
        ]

    def environment(self):
        return {"LD_LIBRARY_PATH": str(self.site / "nvidia_pytriton.libs")}

    def counts(self, name):
        return statistics_of(self.port, name)


class TritonOnnx(TritonPython):
    """The same program with its backend for ONNX, which benches/servers/triton_onnxruntime.sh builds from its sources. This
    one gives no way to keep idle threads from spinning for long."""

    name = "triton-onnxruntime"

    def install(self):
        if not os.environ.get("TRITON_ONNXRUNTIME"):
            raise Missing("no package has its backend; TRITON_ONNXRUNTIME names a folder with libtriton_onnxruntime.so")
        super().install()

    def add_backends(self, backends):
        shutil.copytree(os.environ["TRITON_ONNXRUNTIME"], backends / "onnxruntime")

    def repository(self, name):
        (self.folder / "models" / name / "1").mkdir(parents=True)
        shutil.copy(self.models / name / "model.onnx", self.folder / "models" / name / "1")
        threads = f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{self.threads}" }} }}\n'
        return 'backend: "onnxruntime"\n' + threads


class TorchServe(Peer):
    name, protocol = "torchserve", "raw bytes"
    batches = f"at most {BATCH}, within {DELAY_MS} ms"

    def install(self):
        if shutil.which("java") is None:
            raise Missing("Java is missing: apt-get install default-jre-headless (or its like)")
        super().install()

    def start(self):
        store = self.folder / "store"
        store.mkdir()
        settings = {}
        for name in [*engine.MODELS, "image"]:
            archive = f"{name}.mar"
            about = {"modelName": name, "handler": "torchserve_handler.py", "modelVersion": "1.0"}
            with zipfile.ZipFile(store / archive, "w") as file:
                file.writestr("MAR-INF/MANIFEST.json", json.dumps({"runtime": "python", "model": about}))
                file.write(HERE / "torchserve_handler.py", "torchserve_handler.py")
            settings[name] = {
                "1.0": {
                    "defaultVersion": True,
                    "marName": archive,
                    "minWorkers": 1,
                    "maxWorkers": 1,
                    "batchSize": BATCH,
                    "maxBatchDelay": DELAY_MS,
                }
            }
        config = {
            "inference_address": f"http://127.0.0.1:{self.port}",
            "management_address": f"http://127.0.0.1:{self.ports[0]}",
            "metrics_address": f"http://127.0.0.1:{self.ports[1]}",
            "grpc_inference_port": self.ports[2],
            "grpc_management_port": free_ports(1)[0],
            "model_store": store,
            "load_models": "all",
            "models": json.dumps(settings),
            "disable_token_authorization": "true",
            "disable_system_metrics": "true",
            "number_of_gpu": 0,
        }
        (self.folder / "config.properties").write_text("".join(f"{k}={v}\n" for k, v in config.items()))
        (self.folder / "log4j2.xml").write_text(
            '<Configuration><Appenders><Console name="out"/></Appenders>'
            '<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>\n'
        )
        super().start()

    def command(self):
        return [
            self.venv / "bin" / "torchserve", "--foreground", "--ncs",
            "--ts-config", self.folder / "config.properties",
            "--log-config", self.folder / "log4j2.xml",
        ]  # fmt: skip

    def environment(self):
        return {"LOG_LOCATION": str(self.folder / "logs"), "METRICS_LOCATION": str(self.folder / "logs"), "TEMP": str(self.folder)}

    def tensor(self, name, x):
        return request("POST", f"/predictions/{name}", x.tobytes(), RAW)

    def image(self, file):
        return request("POST", "/predictions/image", file, RAW)


class KServe(Peer):
    name, protocol, batches = "kserve", "Open Inference Protocol, binary", "none"

    def image(self, file):
        # As bytes of a tensor: its strings (BYTES) have to be UTF-8.
        given = {"name": "image", "datatype": "UINT8", "shape": [len(file)], "parameters": {"binary_data_size": len(file)}}
        wanted = {"name": "classes", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
        return request("POST", "/v2/models/image/infer", head + file, [("Inference-Header-Content-Length", len(head)), *RAW])

    def best(self, body):
        return super().best(body[body.rindex(b"{\"classes") :])


class MLServer(Peer):
    name, protocol = "mlserver", "Open Inference Protocol, base64; JSON if small"
    batches = f"at most {BATCH}, within {DELAY_MS} ms"
    images = False

    def start(self):
        quiet = {"version": 1, "root": {"level": "WARNING"}, "loggers": {"mlserver": {"level": "WARNING"}}}
        (self.folder / "logging.json").write_text(json.dumps(quiet))
        settings = {
            "host": "127.0.0.1",
            "http_port": self.port,
            "grpc_port": self.ports[0],
            "metrics_port": self.ports[1],
            "debug": False,
            # In the server's own process: one of its workers would get each batch through a pipe.
            "parallel_workers": 0,
            "logging_settings": str(self.folder / "logging.json"),
        }
        (self.folder / "settings.json").write_text(json.dumps(settings))
        for name in engine.MODELS:
            (self.folder / name).mkdir()
            model = {"name": name, "implementation": "mlserver_runtime.Runtime"}
            model |= {"max_batch_size": BATCH, "max_batch_time": DELAY_MS / 1000}
            (self.folder / name / "model-settings.json").write_text(json.dumps(model))
        super().start()

    def command(self):
        return [self.venv / "bin" / "mlserver", "start", self.folder]

    def tensor(self, name, x):
        if x.nbytes > 1000:
            given = {"datatype": "BYTES", "shape": [1, 1], "data": [b64encode(x.tobytes()).decode()]}
        else:
            given = {"datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        body = json.dumps({"inputs": [{"name": NAMES[name][0], **given}]}).encode()
        return request("POST", f"/v2/models/{name}/infer", body, [("Content-Type", "application/json")])

    def answer(self, name, body, like):
        output = json.loads(body)["outputs"][0]
        if output["datatype"] == "BYTES":
            return np.frombuffer(b64decode(output["data"][0]), np.float32)
        return np.array(output["data"], np.float32)


class LitServe(Peer):
    name, protocol = "litserve", "a file of a form"
    batches = f"at most {BATCH}, within {DELAY_MS} ms"

    def tensor(self, name, x):
        body, headers = form("request", x.tobytes())
        return request("POST", f"/{name}", body, headers)

    def image(self, file):
        body, headers = form("request", file)
        return request("POST", "/image", body, headers)


class BentoML(Peer):
    name, protocol = "bentoml", "a file of a form; JSON if small"
    batches = f"at most {BATCH}, within what its dispatcher finds best"

    def command(self):
        start = [self.venv / "bin" / "bentoml", "serve", "bentoml_app:Models", "--working-dir", HERE]
        return [*start, "--host", "127.0.0.1", "--port", str(self.port)]

    def environment(self):
        (self.folder / "config.yaml").write_text("services:\n  Models:\n    logging:\n      access:\n        enabled: false\n")
        return {
            "BENTOML_HOME": str(self.folder / "home"),
            "BENTOML_CONFIG": str(self.folder / "config.yaml"),
            "BENTOML_DO_NOT_TRACK": "True",
            "TMPDIR": str(self.folder),
        }

    def tensor(self, name, x):
        if name == "identity":
            return request("POST", "/identity", json.dumps({"x": x.tolist()}).encode(), [("Content-Type", "application/json")])
        body, headers = form("files", x.tobytes())
        return request("POST", f"/{name}", body, headers)

    def answer(self, name, body, like):
        return np.array(json.loads(body), np.float32).ravel()

    def image(self, file):
        body, headers = form("files", file)
        return request("POST", "/image", body, headers)

    def best(self, body):
        return super().best(json.dumps(json.loads(body)[0]))


class FastAPI(Peer):
    name, protocol, batches = "fastapi", "raw bytes", "none"

    def tensor(self, name, x):
        return request("POST", f"/tensor/{name}", x.tobytes(), RAW)

    def image(self, file):
        return request("POST", "/image", file, RAW)


PEERS = [Ocelli, TritonOnnx, TritonPython, TorchServe, KServe, MLServer, LitServe, BentoML, FastAPI]
# Input, output and the output's shape.
NAMES = {"resnet18": ("image", "logits", (1000,)), "identity": ("x", "y", (16,))}


def family(pid):
    """A process and all that it has started, and those."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rsplit(") ", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except (OSError, IndexError):
            pass
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def spent_seconds(pids):
    """CPU time of those processes that there are."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


def send(peer, what):
    """Sends a signal to all processes of a server."""
    for pid in family(peer.process.pid):
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


def check(peer, models, threads, items, picture):
    """Compares the answers, one by one and many at once, with those of a session here."""
    for name, x in items.items():
        here = engine.Engine(name, models, threads)
        expected = here.run(x)
        asked = [peer.tensor(name, one[None]) for one in x]

        def ask(data):
            connection = Connection(peer.port)
            status, _, body = connection.roundtrip(data)
            connection.close()
            assert status == 200, f"{peer.name} answered {status}: {body[:500]!r}"
            return body

        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            for bodies in [map(ask, asked), pool.map(ask, asked)]:
                for body, right in zip(bodies, expected):
                    largest = float(np.abs(peer.answer(name, body, right) - right.ravel()).max())
                    assert largest < 1e-3, f"{peer.name}: {name} differs by {largest}"
        if peer.grpc:
            # The client gives the end of an answer, and the output is the last part of it.
            file = peer.folder / "message"
            file.write_bytes(peer.message(name, x[:1]))
            end = np.frombuffer(bytes.fromhex(call("grpc", peer, file, 1, 0.1)["end"]), np.float32)
            largest = float(np.abs(end - expected[0].ravel()[-len(end) :]).max())
            assert len(end) == 16 and largest < 1e-3, f"{peer.name}: {name} by gRPC differs by {largest}"
    if peer.images:
        right = engine.classes(engine.Engine("resnet18", models, threads).run(engine.pixels(picture))[0])["classes"][0]
        index, score = peer.best(ask(peer.image(picture)))
        assert index == right["index"] and abs(score - right["score"]) < 0.02, f"{peer.name}: {index} {score}, not {right}"


def call(how, peer, file, connections, seconds):
    """What the client prints, which sends the request in a file over and over by HTTP (`load`) or gRPC."""
    port = peer.grpc_port if how == "grpc" else peer.port
    command = [CLIENT, how, f"127.0.0.1:{port}", file, str(connections), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"servers: {peer.name} failed: {done.stderr[-500:]} {peer.last_words()}")
    return json.loads(done.stdout)


def load(how, peer, file, connections, seconds):
    """What a load of one request over and over gives; also the server's CPU time, and the share of the cores that others had."""
    pids = family(peer.process.pid)
    before, busy, started = spent_seconds(pids), busy_seconds(), time.perf_counter()
    own = os.times()
    got = call(how, peer, file, connections, seconds)
    elapsed, now = time.perf_counter() - started, os.times()
    if not got["rate"]:
        # Each connection waited through all of it for the answer to its first request.
        return load(how, peer, file, connections, seconds * 2)
    client = sum(now[:4]) - sum(own[:4])
    got["cpu_seconds"] = spent_seconds(pids) - before
    got["others"] = max(0.0, busy_seconds() - busy - got["cpu_seconds"] - client) / elapsed / os.cpu_count()
    return got


def spread(values, form):
    """The median, and the lowest and highest."""
    low, high = min(values), max(values)
    return f"{form(statistics.median(values))} ({form(low)} to {form(high)})"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def milliseconds(got, key):
    value = statistics.median(one[key] for one in got) / 1000
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(peers, results, what):
    """One table of a load, a row for each server and number of connections."""
    print(f"\n{TITLES[what]}:\n")
    print("| connections | server | requests/s | p50, ms | p99, ms | Ocelli's requests/s over it | CPU per request, ms | batch |")
    print("|---|---|---|---|---|---|---|---|")
    for connections in [n for name, n in LOADS if name == what]:
        ours = results.get(("ocelli", what, connections))
        for peer in peers:
            got = results.get((peer.name, what, connections))
            if not got:
                continue
            ratio = ""
            if ours and peer.name != "ocelli":
                ratio = spread([a["rate"] / b["rate"] for a, b in zip(ours, got)], lambda v: f"{v:.2f}")
            cells = [
                str(connections),
                peer.name,
                spread([one["rate"] for one in got], number),
                milliseconds(got, "p50_us"),
                milliseconds(got, "p99_us"),
                ratio,
                f"{statistics.median(one['cpu_ms'] for one in got):.3g}",
                f"{statistics.median(one['batch'] for one in got):.1f}",
            ]
            print("| " + " | ".join(cells) + " |")


def quiet(results, others_max):
    """Without the rounds of a load in which other programs had more of the cores than that while any of the servers was asked; all
    of them where there is no other. Says so."""
    kept = {}
    for what, connections in dict.fromkeys((what, n) for _, what, n in results):
        every = {key: got for key, got in results.items() if key[1:] == (what, connections)}
        rounds = range(min(map(len, every.values())))
        good = [i for i in rounds if all(got[i]["others"] <= others_max for got in every.values())]
        kept |= {key: [got[i] for i in good or rounds] for key, got in every.items()}
        if len(good) < len(rounds):
            counted = f"{len(good)} of {len(rounds)} rounds are counted" if good else "no round was quiet, all are counted"
            print(f"{what}, {connections} connections: {counted}; others took more than {others_max:.0%} in the rest")
    return kept


def slower(results):
    """Where Ocelli answers fewer requests than another, or later."""
    for (name, what, connections), got in results.items():
        ours = results.get(("ocelli", what, connections))
        if name == "ocelli" or not ours:
            continue
        for key, ratios in [
            ("requests/s", [a["rate"] / b["rate"] for a, b in zip(ours, got)]),
            ("p50", [b["p50_us"] / a["p50_us"] for a, b in zip(ours, got)]),
            ("p99", [b["p99_us"] / a["p99_us"] for a, b in zip(ours, got)]),
        ]:
            if statistics.median(ratios) < 0.995:
                certain = "in every round" if max(ratios) < 1 else "not in every round"
                how = spread(ratios, lambda v: f"{v:.2f}")
                print(f"- {what}, {connections} connections: behind {name} in {key}, {how} of it, {certain}")


def started(kinds, folder, models, threads, picture):
    """Those of the servers that run; the next one is started when this one is asked for it."""
    for kind in kinds:
        peer = kind(folder, models, threads)
        try:
            peer.install()
            peer.start()
            peer.wait_ready(picture)
        except Missing as why:
            peer.kill()
            print(f"{peer.name} is left out: {why}", flush=True)
            continue
        except BaseException:
            peer.kill()
            raise
        yield peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [kind.name for kind in PEERS]
    parser.add_argument("--only", help=f"these, with commas between them, of {', '.join(names)}; Ocelli is always there")
    parser.add_argument("--skip", default="", help="all but these")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads of each server")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, after a fifth of it as warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--others-max", type=float, default=0.05, help="share of the cores that others may take in a round")
    parser.add_argument("--loads", default=",".join(TITLES), help="which of these")
    parser.add_argument("--json", type=Path, help="also write all results here")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else names
    unknown = [name for name in [*only, *given.skip.split(",")] if name and name not in names]
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)}")
    kinds = [k for k in PEERS if k is Ocelli or k.name in only and k.name not in given.skip.split(",")]
    loads = [one for one in LOADS if one[0] in given.loads.split(",")]

    rng = np.random.default_rng(1)
    items = {name: rng.standard_normal((BATCH, *shape)).astype(np.float32) for name, shape in engine.MODELS.items()}
    encoded = io.BytesIO()
    Image.fromarray(make_models.picture(rng, 500, 375)).save(encoded, "JPEG", quality=90)
    picture = encoded.getvalue()

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        models = folder / "models"
        make_models.write(models, engine.MODELS)
        # What resnet18/model.toml says already.
        (models / "identity" / "model.toml").write_text(f'task = "tensors"\n\n[batch]\nitems_max = {BATCH}\n')
        peers, results = [], {}
        try:
            for peer in started(kinds, folder, models, given.threads, picture):
                peers.append(peer)
                check(peer, models, given.threads, items, picture)
                print(f"{peer.name}: answers are right", flush=True)
                for what in {what for what, _ in loads}:
                    if not peer.takes(what):
                        continue
                    name, _, way = what.partition("-")
                    ask = peer.message if way else peer.tensor
                    data = peer.image(picture) if what == "image" else ask(name, items[name][:1])
                    (peer.folder / f"request-{what}").write_bytes(data)
                send(peer, signal.SIGSTOP)
            for turn in range(given.rounds):
                # Each round begins with another server.
                order = peers[turn % len(peers) :] + peers[: turn % len(peers)]
                for what, connections in loads:
                    for peer in order:
                        if not peer.takes(what):
                            continue
                        send(peer, signal.SIGCONT)
                        name, _, way = what.partition("-")
                        model = "resnet18" if what == "image" else name
                        before = peer.counts(model)
                        seconds = given.seconds * LENGTHS.get((what, connections), 1)
                        got = load(way or "load", peer, peer.folder / f"request-{what}", connections, seconds)
                        ran, calls = (b - a for a, b in zip(before, peer.counts(model)))
                        # Of all that it ran, warm-up and what was still under way at the end included.
                        got["batch"], got["cpu_ms"] = ran / calls, got.pop("cpu_seconds") * 1000 / ran
                        send(peer, signal.SIGSTOP)
                        results.setdefault((peer.name, what, connections), []).append(got)
                others = max(one[-1]["others"] for one in results.values())
                print(f"round {turn + 1} of {given.rounds}: others took up to {others:.0%} of the cores", flush=True)
        finally:
            for peer in peers:
                peer.kill()
    if given.json:
        given.json.write_text(json.dumps({" ".join(map(str, key)): value for key, value in results.items()}, indent=1) + "\n")
    version = engine.onnxruntime.__version__
    print(f"\nONNX Runtime {version}, {given.threads} threads; {given.rounds} rounds of {given.seconds:g} s\n")
    print("| server | version | requests are | batches |\n|---|---|---|---|")
    for peer in peers:
        print(f"| {peer.name} | {peer.version} | {peer.protocol} | {peer.batches} |")
    print()
    results = quiet(results, given.others_max)
    for what in dict.fromkeys(what for what, _ in loads):
        table(peers, results, what)
    print("\nWhere Ocelli is behind:\n")
    slower(results)


if __name__ == "__main__":
    main()
