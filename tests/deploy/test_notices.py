"""What the images say of the libraries in them, as their licences ask for."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT, run
from test_container import instructions

TOOL = ROOT / "tools" / "notices.py"
REGISTRY = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "src"
VENDOR = ROOT / "src" / "http" / "handlers" / "page" / "vendor"


def notices(crates, *folders):
    command = [sys.executable, TOOL, crates, *folders]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def crates(tmp_path_factory):
    """The crates of the binary, as the Dockerfile lists them."""
    (command,) = re.findall(r"cargo tree [^>]*", "\n".join(instructions("RUN")))
    path = tmp_path_factory.mktemp("notices") / "crates.txt"
    path.write_text(run(*shlex.split(command), cwd=ROOT))
    return path


def test_everything_in_the_binary_is_named_with_its_licence_and_the_words_that_come_with_it(crates):
    done = notices(crates, REGISTRY, VENDOR)
    assert done.returncode == 0, done.stderr
    head = done.stdout.split("-" * 80)[0].splitlines()
    built_in = set(re.findall(r"^([\w-]+) v([^\s|]+)(?: \(proc-macro\))?\|", crates.read_text(), re.MULTILINE))
    named = set(re.findall(r"^([\w-]+) (\S+): \S", "\n".join(head), re.MULTILINE))
    assert named == built_in and len(named) > 100
    # Crates that leave it out are of projects whose words are there already.
    without = {re.match(r"[\w-]+?(?=[-_ ]|$)", line)[0] for line in head if line.endswith("(it brings no text of it)")}
    assert without <= {"flatbuffers", "opentelemetry", "tonic"}, without
    for words in [
        "zstd/COPYING",  # libraries in C
        "jemalloc/COPYING",
        "libjpeg-turbo/LICENSE.md",
        "vendor: NOTICE",  # the viewer of the API
        "vendor: swagger-ui-bundle.js.LICENSE.txt",
        "Permission is hereby granted, free of charge",
        "Redistributions in binary form must reproduce the above copyright",
    ]:
        assert words in done.stdout, words


def test_a_library_of_which_nothing_is_known_ends_the_build(tmp_path):
    listing = tmp_path / "crates.txt"
    listing.write_text("ours v1.0.0 (/here)|MIT|\nsomebodys v1.2.3|MIT|\n")
    done = notices(listing, tmp_path)
    assert done.returncode == 1 and "the source of somebodys 1.2.3 is not in" in done.stderr, done
    folder = tmp_path / "index" / "somebodys-1.2.3"
    folder.mkdir(parents=True)
    done = notices(listing, tmp_path)
    assert done.returncode == 0 and "somebodys 1.2.3: MIT (it brings no text of it)" in done.stdout, done
    assert "ours" not in done.stdout
    (folder / "LICENSE").write_text("words")
    assert "somebodys 1.2.3: LICENSE\n\nwords" in notices(listing, tmp_path).stdout
    listing.write_text("somebodys v1.2.3||\n")
    assert "does not say its licence" in notices(listing, tmp_path).stderr
    done = notices(listing, tmp_path, tmp_path / "nowhere")
    assert done.returncode == 1
