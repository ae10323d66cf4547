"""Both images as they run, put together without Docker: what the Dockerfile copies into its last stages, on a root that holds nothing
else but the machine's own libraries, cannot be written, and is entered by a user without rights.

Base images and the libraries of CUDA are not part of it: the first cannot be fetched here, the second are gigabytes.
"""

import json
import re
import shutil
import subprocess

import common
import pytest
from common import ROOT
from fakes import libraries
from server import BINARY, LIBRARY
from test_container import instructions

# Starts the image's command, asks as its health check does until the device that is waited for serves, and ends it as `docker stop`
# does.
LIFE = """
ocelli serve &
server=$!
until ocelli health ready && ocelli devices --url http://127.0.0.1:8000 > /tmp/devices && grep -q "^$DEVICE.* serving " /tmp/devices
do kill -0 $server || exit 1; sleep 0.2; done
cat /tmp/devices
touch /usr/local/bin/new /models/new 2>/dev/null && exit 2
id -u
kill -TERM $server
wait $server
"""


def stage(target):
    """`ENV` of a target, with that of the stage that it is made from."""
    found, name = {}, None
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith("FROM "):
            name = line.split(" AS ")[1]
        elif line.startswith("ENV ") and name in ("base", target):
            found |= dict(pair.split("=", 1) for pair in line.split()[1:])
    return found


def life(target, device, tmp_path, more=(), environment=()):
    """What an image prints while it lives, once that device serves."""
    bwrap = common.tool("bwrap")
    (user,) = {entry.split(":")[0] for entry in instructions("USER")}
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "DEVICE": device, "OCELLI_DRAIN_DELAY_MS": "0", **stage(target), **dict(environment)}
    library = variables["ORT_DYLIB_PATH"]
    command = [
        *(bwrap, "--unshare-all", "--die-with-parent", "--uid", user, "--gid", user, "--clearenv"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--tmpfs", "/usr/local", "--ro-bind", BINARY, "/usr/local/bin/ocelli", "--ro-bind", LIBRARY, library),
        *("--ro-bind", ROOT / "examples" / "models", "/models"),
        *more,
        *("--tmpfs", "/tmp", "--remount-ro", "/usr/local", "--remount-ro", "/"),
        *(word for pair in variables.items() for word in ("--setenv", *pair)),
        *("sh", "-c", LIFE),
    ]
    command = [str(word) for word in command]
    may = subprocess.run([bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, timeout=60)
    if may.returncode != 0:
        pytest.skip(f"this machine lets nobody make namespaces, so the images are NOT run: {may.stderr}")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    *devices, user_within = done.stdout.splitlines()
    assert user_within == user
    return "\n".join(devices), [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def test_the_image_for_the_cpu_serves_its_models_and_ends_in_order(tmp_path):
    devices, log = life("cpu", "cpu", tmp_path)
    assert re.search("^cpu .* serving ", devices, re.MULTILINE), devices
    said = [line["message"] for line in log]
    assert said.count("model is ready") == len(list((ROOT / "examples" / "models").iterdir())), said
    # "answered" is the health check before the models are loaded.
    assert [line for line in log if line["level"] in ("WARN", "ERROR") and line["message"] != "answered"] == []


def test_the_image_for_gpus_takes_the_gpu_that_the_host_puts_in(tmp_path):
    driver = tmp_path / "driver"
    for folder in libraries():
        shutil.copytree(folder, driver, dirs_exist_ok=True)
    variables = stage("cuda")
    # The container toolkit puts the driver's libraries where the system looks for them; here that is next to the others.
    path = f"{variables['LD_LIBRARY_PATH']}:/driver"
    devices, _ = life(
        "cuda",
        "GPU-fa000000",
        tmp_path,
        more=("--ro-bind", driver, "/driver"),
        environment={"LD_LIBRARY_PATH": path, "FAKE_CUDA": "devices", "FAKE_NVML": "gpus follow"}.items(),
    )
    assert re.search("^GPU-fa000000.* serving ", devices, re.MULTILINE), devices
