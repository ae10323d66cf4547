"""The GPU by itself: kernels against the CPU and known truth, checkers of memory and races, loading, overlap, memory, faults."""

import ctypes
import glob
import os
import shutil
from pathlib import Path

import external
import machine
from registry import Failed, Skipped, check, folder_of, need

# The time of kernels and copies on the fake, so that there is something to overlap.
SLOW = "devices;fault on=copy_in times=always sleep_us=20000;fault on=kernel times=always sleep_us=20000"
KERNELS = ("fit", "spots", "preprocess", "postprocess", "math")


@check("symbols", "the driver has every function that we call", seconds=30)
def symbols(run):
    names = Path(__file__).resolve().with_name("symbols.txt").read_text().split()
    driver = ctypes.CDLL("libcuda.so.1")
    missing = [name for name in names if not hasattr(driver, name)]
    run.number("symbols", len(names) - len(missing))
    need(not missing, f"the driver has no {', '.join(missing)}")


@check("load", "the driver makes our kernels ready, first and again", seconds=300)
def load(run):
    cache = folder_of(run.out / "cache")
    for prefix in ("load", "again"):
        run.program("load", CUDA_CACHE_PATH=cache, GPU_CHECKS_PREFIX=prefix)


@check("fit", "the fitter against the CPU's, and against spots whose place is known", seconds=300)
def fit(run):
    run.program("fit")


@check("spots", "the finder of spots against the CPU's")
def spots(run):
    run.program("spots")


@check("preprocess", "from images to inputs, against the CPU's")
def preprocess(run):
    run.program("preprocess")


@check("postprocess", "from outputs to answers, against plain code")
def postprocess(run):
    run.program("postprocess")


@check("math", "the functions that kernels are made of, against double precision")
def math(run):
    run.program("math")


def sanitizer():
    """compute-sanitizer of CUDA's toolkit, wherever it is."""
    places = ["/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/cuda/bin"]
    folders = [folder for place in places for folder in sorted(glob.glob(place))]
    found = shutil.which("compute-sanitizer", path=":".join([os.environ.get("PATH", ""), *folders]))
    if not found:
        raise Skipped("compute-sanitizer is not there: it comes with CUDA's toolkit")
    return found


def sanitized(run, tool):
    command = [sanitizer(), "--tool", tool, "--error-exitcode", "86", "--print-limit", "20"]
    wrong = []
    for name in KERNELS:
        try:
            run.program(name, before=command)
        except Failed as failed:
            wrong.append(f"{name}: {failed}")
    # What kernels computed was looked at elsewhere.
    run.numbers.clear()
    need(not wrong, "; ".join(wrong))


@check("memcheck", "compute-sanitizer's memcheck over all kernels", seconds=1800, where="gpu")
def memcheck(run):
    sanitized(run, "memcheck")


@check("racecheck", "compute-sanitizer's racecheck over all kernels", seconds=3600, where="gpu")
def racecheck(run):
    sanitized(run, "racecheck")


@check("overlap", "copies go on while kernels run, by the times of events")
def overlap(run):
    run.program("overlap", **({"FAKE_CUDA": SLOW} if run.rehearsal else {}))


@check("memory", "memory that runs out is no fault, and all works when it is back")
def memory(run):
    run.program("memory", **({"FAKE_CUDA": "devices memory=256MiB"} if run.rehearsal else {}))


@check("fault-release", "after an illegal address: does a new context work in the same process?")
def fault_release(run):
    run.program("fault-release")


@check("fault-reset", "the same after a reset of the context")
def fault_reset(run):
    run.program("fault-reset")


@check("fault-network", "the same with a session of ONNX Runtime alive")
def fault_network(run):
    run.program("fault-network", GPU_CHECKS_MODELS=machine.root() / "examples/models/digits")


@check("jpeg", "JPEGs by nvJPEG against the CPU's decoder", where="gpu")
def jpeg(run):
    run.program("jpeg")


@check("network", "ONNX Runtime on CUDA, on our stream and memory, against the CPU", where="rehearsed", seconds=300)
def network(run):
    models = machine.root() / "examples/models"
    apart = folder_of(run.out / "digits-apart")
    need(external.apart(models / "digits/model.onnx", apart) > 0, "the file has no weights")
    run.program("network", GPU_CHECKS_MODELS=f"{models / 'digits'}:{models / 'digits-detector'}:{apart}")
