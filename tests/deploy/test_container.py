"""The container: the Dockerfile as far as it can be checked without building it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import common
import pytest
from common import ROOT, run
from server import BINARY

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Lines that end in a backslash go on.
INSTRUCTIONS = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()


def instructions(name):
    return [line.partition(" ")[2].strip() for line in INSTRUCTIONS if line.startswith(f"{name} ")]


def copied():
    """What is copied out of the repository."""
    sources = []
    for copy in instructions("COPY"):
        words = [word for word in copy.split() if not word.startswith("--")]
        if "--from=" not in copy:
            sources += words[:-1]
    assert len(sources) > 5
    return sources


def ignored(path):
    """Whether `.dockerignore` leaves a path out: the last line that matches it or a folder above it decides."""
    left_out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps, pattern = pattern.startswith("!"), pattern.removeprefix("!").strip("/")
        form = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{form}(/.*)?", path):
            left_out = not keeps
    return left_out


def environment():
    """`ENV`, all stages together."""
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV"))))


def test_is_lint_clean():
    run(Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile")


def test_every_copied_path_exists_and_reaches_the_build():
    for source in copied():
        assert (ROOT / source).exists(), f"COPY {source}: there is no such path"
        assert not ignored(source), f"COPY {source}: .dockerignore leaves it out"
    for name in run("git", "ls-files", "src", "kernels", "examples/models", cwd=ROOT).splitlines():
        assert not ignored(name), f"{name}: .dockerignore leaves it out"
    for name in (".git/config", "target/release/ocelli", ".lib/libonnxruntime.so.1.31.1", "tests/it/main.rs"):
        assert ignored(name), f"{name} goes into the build's context"


def test_the_binary_is_laid_out_by_the_profile_as_make_dist_does_it():
    def flags(text):
        return {flag for flag in re.findall(r"-C[\w-]+=[^\s\"]+", text) if "profile-use" not in flag}

    (build,) = (step for step in instructions("RUN") if "cargo build" in step)
    made = re.search(r"^LAID_OUT := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert flags(build) == flags(made) != set()
    assert "profile-use" in build and "profile-use" in made


def test_whatever_the_binary_is_made_of_is_copied():
    """The compiler's own list: sources, and files that are compiled in."""
    made_from = BINARY.with_name(f"{BINARY.name}.d")
    if not made_from.exists():
        pytest.skip(f"{made_from} is missing: the binary was not built here")
    paths = [Path(path) for path in re.split(r"(?<!\\) ", made_from.read_text().partition(":")[2].strip())]
    inside = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
    assert len(inside) > 100, f"{made_from} has another form"
    for path in inside:
        made_here = path.parts[0] == "target"
        assert made_here or any(path.is_relative_to(source) for source in copied()), f"{path} is not copied"


def test_stages_copy_from_earlier_ones_on_pinned_bases():
    bases = dict(argument.split("=", 1) for argument in instructions("ARG") if re.match(r"(DEBIAN|RUST|PYTHON)=", argument))
    known = []
    for stage in instructions("FROM"):
        base, _, name = stage.partition(" AS ")
        variable = re.fullmatch(r"\$\{(\w+)\}", base)
        if variable:
            pinned = re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", bases[variable[1]])
            assert pinned, f"{base} is {bases[variable[1]]}: not pinned"
        else:
            assert base in known, f"{base} is no earlier stage"
        known.append(name)
    for name in re.findall(r"--from=(\S+)", DOCKERFILE):
        assert name in known
    assert known[-1] == "cpu" and "cuda" in known, "the CPU image is what is built when no target is named"


def test_the_binary_is_the_one_that_is_built():
    (profile,) = re.findall(r"cargo build .*--profile (\w+)", "\n".join(instructions("RUN")))
    tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"][profile]
    assert f"--from=build /build/target/{profile}/ocelli /usr/local/bin/ocelli" in instructions("COPY")


def test_runs_as_a_user_without_rights():
    assert instructions("USER") == ["10001:10001"]


def test_images_say_what_they_are_and_under_which_licences():
    """What lists of the parts of an image are made from."""
    of_both, of_cuda = instructions("LABEL")
    names = ("title", "description", "licenses", "version", "revision")
    assert re.findall(r"org\.opencontainers\.image\.(\w+)=", of_both) == list(names)
    licence = re.search(r'^license = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert f'licenses="{licence}"' in of_both and f'licenses="{licence} AND LicenseRef-NVIDIA' in of_cuda


def test_versions_are_those_of_the_repository():
    cargo = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.+)"', cargo, re.MULTILINE)[1]
    minimum = re.search(r'^rust-version = "(.+)"', cargo, re.MULTILINE)[1]
    assert f"VERSION={version}" in instructions("ARG")
    assert f"RUST=rust:{minimum}" in DOCKERFILE
    library = re.search(r'^VERSION = "(.+)"', (ROOT / "tools" / "fetch_onnxruntime.py").read_text(), re.MULTILINE)[1]
    assert environment()["ORT_DYLIB_PATH"].endswith(f"/libonnxruntime.so.{library}")


def test_the_libraries_of_cuda_are_all_that_onnx_runtime_needs():
    tool = (ROOT / "tools" / "fetch_onnxruntime.py").read_text()
    needed = set(re.findall(r'": "(nvidia-[\w-]+)",', tool))
    pinned = set(re.findall(r"^([\w-]+)==\S+ --hash=sha256:[0-9a-f]{64}$", (ROOT / "deploy/container/cuda.txt").read_text(), re.M))
    assert needed and needed <= pinned, f"{needed - pinned} are not in deploy/container/cuda.txt"


def test_what_is_set_are_options_of_the_server():
    options = common.Options().given(variables=environment())
    assert options["listen"] == f"0.0.0.0:{instructions('EXPOSE')[0]}"
    assert options["admin_listen"].startswith("127.0.0.1:"), "the admin listener is not for others"


def test_the_commands_are_commands_of_the_server(tmp_path):
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is missing")
    assert instructions("ENTRYPOINT") == ['["ocelli"]'] and instructions("CMD") == ['["serve"]']
    help_text = run(BINARY, "serve", "--help")
    for variable in environment():
        if variable.startswith("OCELLI_"):
            assert f"--{variable.removeprefix('OCELLI_').lower().replace('_', '-')}" in help_text
    health = re.search(r"CMD (\[.+\])$", instructions("HEALTHCHECK")[0])[1]
    assert health == '["ocelli", "health", "ready"]'
    done = subprocess.run([BINARY, "health", "ready", "--url", "http://127.0.0.1:9"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "not ready" in done.stdout + done.stderr
