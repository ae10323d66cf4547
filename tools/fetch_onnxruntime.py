#!/usr/bin/env python3
"""Puts ONNX Runtime's CPU library into `.lib/`, out of the Python wheel of one pinned version.

    python3 tools/fetch_onnxruntime.py [FOLDER]

Wheel and library are checked against the checksums below. Does nothing when the right library is there already, so
only the first run needs a network. To use another build, set ORT_DYLIB_PATH to it and leave this script out.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "1.31.1"
MEMBER = f"onnxruntime/capi/libonnxruntime.so.{VERSION}"
# machine: (sha256 of the wheel, sha256 of the library)
CHECKSUMS = {
    "x86_64": (
        "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f",
        "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
    ),
    "aarch64": (
        "da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3",
        "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
    ),
}
REMEDY = f"or get ONNX Runtime {VERSION} yourself and set ORT_DYLIB_PATH to its libonnxruntime.so"


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


def download(machine, folder):
    """The wheel for `machine`, downloaded into `folder` by pip."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        fail(f"pip is missing; install it (Debian, Ubuntu: apt-get install python3-pip), {REMEDY}")
    # The library does not depend on the interpreter: one fixed wheel serves all, so one checksum does too.
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
        *("--platform", f"manylinux_2_28_{machine}", "--dest", str(folder), f"onnxruntime=={VERSION}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        fail(f"pip could not download it ({lines[-1].strip()}); check the network and run again, {REMEDY}")
    return wheels[0]


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / ".lib"
    machine = platform.machine()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine)
    if sys.platform != "linux" or machine not in CHECKSUMS:
        fail(f"no pinned library for {sys.platform} on {machine} (Linux on {', '.join(CHECKSUMS)} only); {REMEDY[3:]}")
    wheel_sha256, library_sha256 = CHECKSUMS[machine]
    library = folder / Path(MEMBER).name
    if library.is_file():
        if sha256(library) == library_sha256:
            say(f"{library.name} is there")
            return
        say(f"{library} is damaged or not ours; replacing it")

    folder.mkdir(parents=True, exist_ok=True)
    # Inside the target folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
        say(f"downloading ONNX Runtime {VERSION} for {machine} (about 20 MB)")
        wheel = download(machine, Path(temporary))
        if (got := sha256(wheel)) != wheel_sha256:
            fail(f"checksum of {wheel.name} is {got}, expected {wheel_sha256}; not used. Run again, {REMEDY}")
        say("checksum of the wheel is right; extracting")
        try:
            with zipfile.ZipFile(wheel) as archive:
                extracted = Path(archive.extract(MEMBER, temporary))
        except (KeyError, zipfile.BadZipFile) as error:
            fail(f"{wheel.name} holds no {MEMBER} ({error}); {REMEDY[3:]}")
        if (got := sha256(extracted)) != library_sha256:
            fail(f"checksum of {extracted.name} is {got}, expected {library_sha256}; not used. Run again, {REMEDY}")
        extracted.chmod(0o755)
        os.replace(extracted, library)
    say(f"{library} is ready")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(f"{error}; free some space or fix the permissions, {REMEDY}")
    except KeyboardInterrupt:
        fail("interrupted; nothing was changed")
