"""Triton's load generator, unmodified: it reads metadata, configuration and statistics, and believes them."""

import json
import os
import re
import subprocess

import pytest
import requests
from conftest import ROOT
from fakes import Machine
from server import free_ports

FOLDER = ROOT / ".venv" / "perf-analyzer"
BINARY = FOLDER / "bin" / "perf_analyzer"
# Windows that end with their requests, and no quarrel with a busy machine about how stable it is.
WINDOWS = ["--stability-percentage", "999", "--measurement-mode", "count_windows", "--measurement-request-count", "50"]


def environment():
    libraries = sorted({str(file.parent) for file in FOLDER.glob("lib/python*/site-packages/nvidia/*/lib/*.so*")})
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def missing():
    """Why it cannot be run here, or None."""
    if not BINARY.exists():
        return f"{BINARY} is missing: make test-clients fetches it"
    BINARY.chmod(0o755)  # packages lose the bit on some systems
    done = subprocess.run([BINARY, "--version"], env=environment(), capture_output=True, text=True)
    return None if done.returncode == 0 else f"perf_analyzer does not start: {done.stderr.strip()}"


@pytest.fixture(scope="session")
def analyze():
    """Runs it and gives what it printed."""
    if (why := missing()) is not None:
        assert "perf_analyzer" not in os.environ.get("PROMISED_TOOLS", "").split(), why
        pytest.skip(why)

    def run(*arguments):
        command = [BINARY, *WINDOWS, *arguments]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


def count(printed, what):
    """The number that it gives for something, added up over its levels of load."""
    numbers = re.findall(rf"^\s*{what}: ([\d.]+)", printed, re.MULTILINE)
    assert numbers, f"no {what!r} in:\n{printed}"
    return sum(float(number) for number in numbers)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency-range", "1:2"],
        ["-a", "--concurrency-range", "4"],
        ["-b", "4"],
        ["--input-tensor-format", "json", "--output-tensor-format", "json"],
        ["--request-rate-range", "50"],
        ["-i", "grpc"],
        ["-i", "grpc", "--streaming", "-a", "--concurrency-range", "4"],
        ["-i", "grpc", "--grpc-compression-algorithm", "gzip"],
    ],
    ids=" ".join,
)
def test_it_loads_a_model_and_reads_our_statistics(server, analyze, arguments):
    port = server.grpc_port if "grpc" in arguments else server.port
    printed = analyze("-m", "identity", "-u", f"127.0.0.1:{port}", *arguments)
    assert count(printed, "Throughput") > 0
    # What the server says it did, by its statistics.
    assert count(printed, "Successful request count") > 0, printed
    items = 4 if "-b" in arguments else 1
    inferences, runs = count(printed, "Inference count"), count(printed, "Execution count")
    assert 0 < runs <= inferences and inferences >= items * runs, printed
    assert "compute infer" in printed and "queue" in printed, printed


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_hands_tensors_over_in_shared_memory(start_server, analyze, protocol):
    server = start_server(shared_memory_regions_max=64)
    port = server.grpc_port if protocol == "grpc" else server.port
    shared = ["--shared-memory", "system", "--output-shared-memory-size", "4096", "--concurrency-range", "2"]
    printed = analyze("-m", "identity", "-u", f"127.0.0.1:{port}", "-i", protocol, *shared)
    assert count(printed, "Throughput") > 0 and count(printed, "Successful request count") > 0, printed
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    for way in ("read", "written"):
        assert re.search(rf"^ocelli_shared_memory_{way}_bytes_total [1-9]", text, re.MULTILINE), text
    # It takes back what it has registered.
    assert "\nocelli_shared_memory_regions 0\n" in text
    assert server.stop() == 0


def test_it_reads_our_metrics_of_gpus(start_server, analyze, models, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "identity").symlink_to(models / "identity")
    machine = Machine(tmp_path / "shared", "devices memory=8GiB", "set gpu=0 utilization=37 power_mw=181500")
    (port,) = free_ports(1)
    server = start_server(
        tmp_path / "models", environment=machine.environment, backend="auto", metrics_listen=f"127.0.0.1:{port}"
    )
    metrics = ["--collect-metrics", "--metrics-url", f"127.0.0.1:{port}/metrics"]
    printed = analyze("-m", "identity", "-u", f"127.0.0.1:{server.port}", *metrics)
    assert re.search(r"Avg GPU Utilization:\s+GPU-\S+ : 37%", printed), printed
    assert server.stop() == 0


def test_it_posts_files_as_to_torchserve(server, analyze, digits, tmp_path):
    name, image, _ = digits[0]
    (tmp_path / name).write_bytes(image)
    data = {"data": [{"TORCHSERVE_INPUT": [str(tmp_path / name)]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    kind = ["--service-kind", "torchserve", "--input-data", str(tmp_path / "data.json")]
    assert count(analyze("-m", "digits", "-u", f"127.0.0.1:{server.port}", *kind), "Throughput") > 0
