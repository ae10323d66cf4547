#!/usr/bin/env python3
"""Makes a virtual environment from a requirements file, or does nothing when it is there and up to date.

    python3 tools/make_venv.py FOLDER REQUIREMENTS

Works without ensurepip (Debian without python3-venv): the environment is made without pip and filled from outside, by uv
where pip can get it (five to ten times as fast: what the clients' tests need is 820 MB), else by the pip of this Python.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON_MIN = (3, 11)
UV = "uv==0.13.9"
# What pip is told of packages' places, the variable as which uv takes it, and what is between two of them.
PLACES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "cert": ("SSL_CERT_FILE", " "),
}


def fail(why):
    """Ends the script with one line."""
    sys.exit(f"make_venv: {why}")


def pip_version():
    """Major and minor version of pip, or None where there is none."""
    done = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True)
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def with_uv(folder, python, requirements):
    """Fills an environment by uv, which is put beside it; whether that went well."""
    home = folder.parent / UV.replace("==", "-")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if not (home / "bin" / "uv").exists():
        only = ("--quiet", "--retries", "1", "--only-binary", ":all:", "--no-deps", "--no-compile")
        if subprocess.run([*pip, "install", *only, "--target", str(home), UV], capture_output=True).returncode != 0:
            return False
    told = subprocess.run([*pip, "config", "list"], capture_output=True, text=True).stdout
    options = dict(re.findall(r"^.*\.([a-z-]+)='(.*)'$", told, re.MULTILINE))
    # Packages are to come from these places alone, of which uv may not read each as pip does.
    if "no-index" in options:
        return False
    places = {}
    for option, (name, between) in PLACES.items():
        if option in options:
            places[name] = between.join(options[option].replace("\\n", " ").split())
    install = [str(home / "bin" / "uv"), "--no-config", "pip", "install", "--quiet", "--python", str(python)]
    # As pip does, which knows no order of its indexes.
    install += ["--index-strategy", "unsafe-best-match", "-r", str(requirements)]
    return subprocess.run(install, env={**places, **os.environ}).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("requirements", type=Path)
    options = parser.parse_args()
    folder, requirements = options.folder, options.requirements
    if sys.version_info < PYTHON_MIN:
        fail(f"Python {sys.version.split()[0]} is too old; run make with PYTHON=python3.11 or newer")
    # The interpreter is part of the stamp: an environment does not survive the removal of its Python.
    text = f"{os.path.realpath(sys.executable)} {sys.version}\n".encode() + requirements.read_bytes()
    stamp, wanted = folder / "made-from.sha256", hashlib.sha256(text).hexdigest()
    python = folder / "bin" / "python"
    # Two at once would each remove what the other has made. The lock ends with the process.
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = open(folder.parent / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if python.exists() and stamp.is_file() and stamp.read_text() == wanted:
        print(f"make_venv: {folder} is up to date", flush=True)
        return

    print(f"make_venv: making {folder} from {requirements} (the first time needs a network)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    version = pip_version()
    if version is None:
        fail("pip is missing; install it (Debian, Ubuntu: apt-get install python3-pip) and run again")
    without_pip = version >= (22, 3)  # the first that can install into another environment
    made = subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if without_pip else []), str(folder)])
    if made.returncode != 0:
        fail("cannot make a virtual environment; apt-get install python3-venv (or its like) and run again")
    pip = [sys.executable, "-m", "pip", "--python", str(python)] if without_pip else [str(python), "-m", "pip"]
    install = [*pip, "install", *quiet, "--no-compile", "-r", str(requirements)]
    if not with_uv(folder, python, requirements) and subprocess.run(install).returncode != 0:
        fail(f"pip could not install {requirements} (see above); check the network and run again")
    stamp.write_text(wanted)
    print(f"make_venv: {folder} is ready", flush=True)


if __name__ == "__main__":
    main()
