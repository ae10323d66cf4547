"""The steps that build the images, as far as they can be run without a registry, and the command that pins the base images.

Each runs as the Dockerfile has it, on a root that holds what its stage copies and the machine's own programs. What a step
fetches is put there beforehand, or by stand-ins for the programs that fetch: gigabytes, for CUDA.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import common
import pytest
from common import ROOT, run
from server import LIBRARY
from test_container import DOCKERFILE, copied

TOOL = ROOT / "tools" / "pin_images.py"
LINES = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()


def steps(stage, instruction):
    """What a stage does by this instruction."""
    found, name = [], None
    for line in LINES:
        if line.startswith("FROM "):
            name = line.split(" AS ")[1]
        elif name == stage and line.startswith(f"{instruction} "):
            found.append(line.partition(" ")[2].strip())
    assert found, f"{stage} has no {instruction}"
    return found


def step(stage, folder, programs=()):
    """Runs the only step of a stage on a root in `folder`, with its files and with programs that stand in for those of its image."""
    bwrap = common.tool("bwrap")
    may = subprocess.run([bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, timeout=60)
    if may.returncode != 0:
        pytest.skip(f"this machine lets nobody make namespaces, so no step of the images is run: {may.stderr}")
    (command,), (work,) = steps(stage, "RUN"), steps(stage, "WORKDIR")
    (folder / work.strip("/")).mkdir(parents=True)
    for copy in steps(stage, "COPY"):
        for source in copy.split()[:-1]:
            shutil.copy(ROOT / source, folder / work.strip("/"))
    stands_in = folder / "stands-in"
    stands_in.mkdir()
    for name, script in dict(programs).items():
        (stands_in / name).write_text(f"#!/bin/sh -e\n{script}\n")
        (stands_in / name).chmod(0o755)
    # The interpreter of the checks stands for that of the image.
    python = Path(sys.base_prefix).resolve()
    elsewhere = () if python.is_relative_to("/usr") else ("--ro-bind", python, python)
    inside = [
        *(bwrap, "--unshare-all", "--die-with-parent", "--clearenv", "--bind", folder, "/", "--ro-bind", "/usr", "/usr"),
        *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives", *elsewhere, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", work),
        # There is no network in there.
        *("--setenv", "PIP_RETRIES", "0"),
        *("--setenv", "PATH", f"/stands-in:{python}/bin:/usr/bin:/bin", "sh", "-c", command),
    ]
    return subprocess.run([str(word) for word in inside], capture_output=True, text=True, timeout=120)


def test_the_manifest_is_whole_with_what_the_build_copies(tmp_path):
    for source in copied():
        to = tmp_path / source
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, to, dirs_exist_ok=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, to)
    # Unlike `cargo metadata`, this looks for the file of each target that has no `path`, as the build does.
    (host,) = re.findall(r"^host: (.+)$", run("rustc", "-vV"), re.MULTILINE)
    run("cargo", "fetch", "--locked", "--offline", "--target", host, cwd=tmp_path)


def test_onnx_runtime_is_put_where_the_image_looks_for_it(tmp_path):
    (tmp_path / "libraries").mkdir()
    shutil.copy(LIBRARY, tmp_path / "libraries")
    done = step("libraries", tmp_path)
    assert done.returncode == 0 and "there" in done.stdout, done


def test_a_damaged_onnx_runtime_gets_into_no_image(tmp_path):
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / LIBRARY.name).write_bytes(b"damaged")
    done = step("libraries", tmp_path)
    assert done.returncode != 0 and "damaged or not ours" in done.stdout, done


def library(folder, name, needs=()):
    """A library that does nothing, and those that it needs."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = [f"-l:{other.name}" for other in needs]
    places = {f"-L{other.parent}" for other in needs}
    flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", *places, *needed]
    run("cc", "-x", "c", "/dev/null", *flags, "-o", path)
    return path


@pytest.mark.parametrize("complete", [True, False])
def test_the_libraries_of_cuda_are_gathered_and_one_that_is_missing_ends_the_build(tmp_path, complete):
    root = tmp_path / "root"
    root.mkdir()
    wheels, ours = root / "fetched", root / "runtime"
    driver = library(tmp_path / "driver", "libcuda.so.1")
    needed = [
        library(wheels / "nvidia" / "cu13" / "lib", "libcublas.so.13"),
        library(wheels / "nvidia" / "cudnn" / "lib", "libcudnn.so.9"),
    ]
    library(ours, "libonnxruntime_providers_cuda.so", [*needed, driver])
    library(ours, "libonnxruntime_providers_tensorrt.so")
    licence = Path("nvidia_cudnn_cu13-9.0.dist-info") / "licenses" / "License.txt"
    (wheels / licence).parent.mkdir(parents=True)
    (wheels / licence).write_text("do not lose this")
    if not complete:
        needed[1].unlink()
    done = step(
        "cuda-libraries",
        root,
        {
            "pip": 'case "$*" in *"--require-hashes"*"--target /wheels -r cuda.txt") ;; *) exit 64 ;; esac\n'
            "grep -q sha256 cuda.txt && cp -r /fetched /wheels",
            "python3": 'test "$*" = "fetch_onnxruntime.py --gpu /libraries" && cp /runtime/* /libraries',
        },
    )
    gathered = {path.name for path in (root / "libraries").iterdir()}
    if complete:
        assert done.returncode == 0, done
        assert gathered == {"libcublas.so.13", "libcudnn.so.9", "libonnxruntime_providers_cuda.so", licence.parts[0]}
        assert (root / "libraries" / licence).read_text() == "do not lose this"
        assert not (root / "wheels").exists(), "the wheels would be a layer of gigabytes"
    else:
        assert done.returncode != 0 and "libcudnn.so.9" in done.stdout, done


def pinned(tmp_path, answer):
    """The Dockerfile after the command, with a `docker` that answers like this for `$image`."""
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "docker").write_text(
        '#!/bin/sh\ntest "$1 $2 $3 $4" = "buildx imagetools inspect --format" || exit 64\n'
        f'for image; do :; done\n{answer}\n'
    )
    (programs / "docker").chmod(0o755)
    path = tmp_path / "Dockerfile"
    if not path.exists():
        path.write_text(DOCKERFILE)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run([sys.executable, TOOL, path], env=environment, capture_output=True, text=True, timeout=60)
    return done, path.read_text()


def test_one_command_pins_the_bases_by_digest(tmp_path):
    by_name = 'echo "sha256:$(printf %s "$image" | sha256sum | cut -d" " -f1)"'
    done, text = pinned(tmp_path, by_name)
    assert done.returncode == 0, done
    bases = re.findall(r"^ARG \w+=\S+:\d+\.\d+\S*@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert len(bases) == len(set(bases)) == 3, text[:600]
    assert re.sub("@sha256:[0-9a-f]{64}", "", text) == re.sub("@sha256:[0-9a-f]{64}", "", DOCKERFILE)
    run(Path(sys.executable).with_name("hadolint"), tmp_path / "Dockerfile")
    # Again, when the tags stand for something else.
    done, again = pinned(tmp_path, f'image="$image newer"; {by_name}')
    assert done.returncode == 0 and again != text and len(again) == len(text)


@pytest.mark.parametrize("answer", ["echo not found >&2; exit 1", "echo latest"])
def test_a_base_without_an_answer_changes_nothing(tmp_path, answer):
    done, text = pinned(tmp_path, answer)
    assert done.returncode != 0 and "gave no digest" in done.stderr, done
    assert text == DOCKERFILE
