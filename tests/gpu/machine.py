"""The machine: its driver and GPU, NVML, the libraries of Python packages, and what was carried to it."""

import ctypes
import functools
import glob
import json
import lzma
import os
import shutil
import site
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CARRIED = HERE / "carried"


class Machine:
    """What was found: a GPU, or in `why_not` why there is none."""

    def __init__(self):
        self.why_not, self.fake, self.name, self.cuda = None, False, "", 0
        self.libraries = {}

    def words(self):
        kind = "the fake driver" if self.fake else self.name
        return f"{kind}, CUDA {self.cuda // 1000}.{self.cuda % 1000 // 10}"


def look():
    """Looks for a driver with a GPU."""
    found = Machine()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        found.why_not = "no CUDA driver (libcuda.so.1) is found"
        return found
    found.fake = hasattr(driver, "fake_cuda_tell")
    code, count, version = driver.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if code == 0:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0 or count.value == 0:
        found.why_not = f"the driver shows none (code {code})" if code else "the driver shows none"
        return found
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    found.name, found.cuda = name.value.decode(), version.value
    found.libraries = libraries(found.fake)
    return found


def gpus():
    """How many GPUs the driver shows."""
    count = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    return count.value


def libraries(fake):
    """Variables with which CUDA's libraries are found, and ONNX Runtime."""
    variables = {}
    folders = [os.environ.get("LD_LIBRARY_PATH", ""), str(unpacked())]
    if not fake:
        # After the system's own. Python packages (PyTorch's, for one) have them here.
        packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
        for package in dict.fromkeys(packages):
            folders += sorted(glob.glob(f"{package}/nvidia/*/lib"))
    variables["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(folder for folder in folders if folder))
    library = onnx_runtime()
    if library:
        variables["ORT_DYLIB_PATH"] = str(library)
        if (library.parent / "libonnxruntime_providers_cuda.so").exists() and not fake:
            variables["GPU_CHECKS_NETWORKS"] = "1"
    return variables


def onnx_runtime():
    """The library that was packed, or that the environment names, or that `make gpu` or `make ort` has fetched."""
    named = os.environ.get("ORT_DYLIB_PATH")
    places = [unpacked() / "libonnxruntime.so.*", HERE.parents[1] / ".lib/gpu/libonnxruntime.so.*", HERE.parents[1] / ".lib/libonnxruntime.so.*"]
    for place in [named, *places] if named else places:
        found = sorted(glob.glob(str(place)))
        if found:
            return Path(found[0])
    return None


def unpacked():
    return Path(os.environ.get("GPU_CHECKS_UNPACKED") or CARRIED)


def unpack(out):
    """Unpacks what was packed, once; where nothing was, there is nothing to do."""
    if not CARRIED.is_dir():
        return
    target = out / "unpacked"
    target.mkdir(parents=True, exist_ok=True)
    for packed in CARRIED.iterdir():
        to = target / packed.name.removesuffix(".xz")
        if to.exists():
            continue
        # What is there under its name is whole, whenever the last run was cut off.
        part = to.with_name(f"{to.name}.part")
        if packed.suffix == ".xz":
            with lzma.open(packed) as source, open(part, "wb") as unfinished:
                shutil.copyfileobj(source, unfinished, 1 << 22)
        else:
            shutil.copy(packed, part)
        part.chmod(0o755)
        part.rename(to)
    os.environ["GPU_CHECKS_UNPACKED"] = str(target)


def carried(name, variable):
    """A file that was carried, or that a variable names."""
    named = os.environ.get(variable)
    found = Path(named) if named else unpacked() / name
    if not found.exists():
        raise FileNotFoundError(f"{found} is not there: `make pack-gpu-checks` makes it, or {variable} names it")
    return found


def program():
    return carried("gpu_checks", "GPU_CHECKS_PROGRAM")


def root():
    """Where examples/ is."""
    return HERE if (HERE / "examples").is_dir() else HERE.parents[1]


# ---- NVML ------------------------------------------------------------------------------------------------------------------


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """The management library's view of the GPU that the driver shows first."""

    def __init__(self):
        # On the fake, NVML follows the driver of the process.
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.asked("nvmlInit_v2")
        bus = ctypes.create_string_buffer(32)
        self.driver.cuInit(0)
        self.driver.cuDeviceGetPCIBusId(bus, 32, 0)
        self.device = ctypes.c_void_p()
        self.asked("nvmlDeviceGetHandleByPciBusId_v2", bus, ctypes.byref(self.device))

    def asked(self, call, *arguments):
        code = getattr(self.library, call)(*arguments)
        if code != 0:
            raise OSError(f"{call} gives {code}")

    def memory(self):
        """Bytes: total, free, used."""
        seen = Memory()
        self.asked("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(seen))
        return seen

    def busy(self):
        """Per cent of the last sample's time in which a kernel ran."""
        rates = Utilization()
        self.asked("nvmlDeviceGetUtilizationRates", self.device, ctypes.byref(rates))
        return rates.gpu

    def mig(self):
        """Whether the GPU is divided, now and after the next reset; None where it cannot be."""
        now, then = ctypes.c_uint(), ctypes.c_uint()
        code = self.library.nvmlDeviceGetMigMode(self.device, ctypes.byref(now), ctypes.byref(then))
        return [now.value, then.value] if code == 0 else None


@functools.lru_cache(maxsize=1)
def nvml():
    """NVML, or None where it is not there."""
    try:
        return Nvml()
    except OSError as missing:
        print(f"no NVML: {missing}", flush=True)
        return None


def state():
    """What must be as it was when all is over."""
    seen = nvml()
    return {"mig": seen.mig()} if seen else None


def remember(out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "before.json").write_text(json.dumps(state()))
