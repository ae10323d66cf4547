"""GPUs for a server that has none: the fake CUDA driver and the fake NVML of `tests/fake_cuda` and `tests/fake_nvml`.

`cargo test --test cuda` compiles them, beside the server's binary. Without them, tests are skipped and say so.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from server import BINARY, ROOT

# What both hold, as another process on the same machine would; it keeps it until its input ends.
TENANT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
device, size = int(sys.argv[1]), int(sys.argv[2])
for code in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)),
):
    assert code == 0, code
print("held", flush=True)
sys.stdin.read()
"""


def libraries():
    """The folders of both."""
    found = []
    for name, library in (("fake_cuda", "libcuda.so.1"), ("fake_nvml", "libnvidia-ml.so.1")):
        places = [BINARY.parent / "fakes" / name, ROOT / "target" / "debug" / "fakes" / name]
        folder = next((place.resolve() for place in places if (place / library).exists()), None)
        if folder is None:
            pytest.skip(f"{name} is missing, so GPUs are NOT checked here: cargo test --test cuda compiles it")
        found.append(str(folder))
    return found


class Machine:
    """A machine with GPUs, as this script (`tests/fake_cuda/script.cpp`) and these readings (`tests/fake_nvml/script.cpp`) say."""

    def __init__(self, shared: Path, script, readings=""):
        # Nothing of a real driver's own settings.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "FAKE_"))}
        self.environment = kept | {
            "LD_LIBRARY_PATH": ":".join(libraries()),
            "FAKE_CUDA": script,
            "FAKE_CUDA_SHARED": str(shared),
            # Turns are taken with those on the same machine.
            "OCELLI_GPU_QUEUE_FOLDER": f"{shared}.queue",
            "FAKE_NVML": f"gpus follow;{readings}",
        }

    def tenant(self, ordinal, size):
        """Another process that holds so many bytes of a GPU, and is to be killed."""
        process = subprocess.Popen(
            [sys.executable, "-c", TENANT, str(ordinal), str(size)],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "held\n", "the other process has no memory"
        return process
