"""Every `$ curl` and `$ ocelli` line of the documents, run as it is written: what stands below it is what comes back.

Numbers may differ by a thousandth (kernels differ by machine), and what differs each time (ids, timings, dates, counts)
is compared by its form only. `…` stands for whatever follows.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest
from server import BINARY, LIBRARY, ROOT

TOLERANCE = 1e-3  # absolute up to 1, relative above
SECONDS_MAX = 120  # only bounds a command that hangs
# Whom a document's commands are meant for: `make serve`, or a server that also has the models of tools/make_models.py.
DOCUMENTS = {
    "README.md": "examples",
    "docs/api.md": "examples",
    "docs/cli.md": "examples",
    "docs/coming-from-kserve.md": "examples",
    "docs/coming-from-torchserve.md": "examples",
    "docs/coming-from-triton.md": "examples",
    "docs/models.md": "generated",
}
VARIES = {"request_id", "count", "ns", "last_inference", "inference_count", "execution_count"}
COMMANDS_MIN = {
    "README.md": 3,
    "docs/api.md": 15,
    "docs/cli.md": 5,
    "docs/coming-from-kserve.md": 4,
    "docs/coming-from-torchserve.md": 4,
    "docs/coming-from-triton.md": 3,
    "docs/models.md": 4,
}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({"0": "cat", "1": ["n01", "dog"]}, ["cat", "dog"]),
        ({"1": "cat", "3": "dog"}, ["0", "cat", "2", "dog"]),
        ({"object_type_names": ["cat", "dog"]}, ["cat", "dog"]),
        ({"object_type_names": {"1": "cat"}}, ["0", "cat"]),
    ],
)
def test_the_labels_of_an_archive_become_ours(tmp_path, given, labels):
    text = (ROOT / "docs/coming-from-torchserve.md").read_text()
    script = re.search(r"python3 -c '(import json;.*?)'", text, re.DOTALL)[1]
    (tmp_path / "index_to_name.json").write_text(json.dumps(given))
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == labels


@dataclass
class Command:
    """A command of a document, the line that it begins at, and what the document says it prints."""

    line: int
    text: str
    printed: str


def commands(name):
    """The `$ curl` and `$ ocelli` commands of a document's ```console blocks; a backslash or an open quote continues a line."""
    found, inside, continues = [], False, False
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        if line.startswith("```"):
            inside, continues = line == "```console", False
        elif inside and (continues or line.startswith("$ ")):
            if not continues:
                found.append(Command(number, "", ""))
            found[-1].text += ("\n" if continues else "") + (line if continues else line[2:])
            continues = line.endswith("\\") or found[-1].text.count("'") % 2 == 1
        elif inside and found:
            found[-1].printed += line + "\n"
    return [command for command in found if command.text.startswith(("curl ", "ocelli "))]


def same(got, expected, where="reply"):
    """Asserts that JSON is what the document shows."""
    if isinstance(expected, dict):
        assert isinstance(got, dict) and got.keys() == expected.keys(), f"{where}: {got}, documented {expected}"
        for key in expected.keys() - VARIES:
            same(got[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(got, list), f"{where}: {got}, documented {expected}"
        if expected and expected[-1] == "…":
            expected = expected[:-1]
            got = got[: len(expected)]
        assert len(got) == len(expected), f"{where}: {got}, documented {expected}"
        for index, pair in enumerate(zip(got, expected)):
            same(*pair, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert abs(got - expected) <= TOLERANCE * max(1, abs(expected)), f"{where}: {got}, documented {expected}"
    elif isinstance(expected, str) and (of_class := re.fullmatch(r"(-?\d+\.\d+)(:.+)", expected)):
        # A score, as Triton's classes have it.
        score, _, rest = str(got).partition(":")
        same([float(score), f":{rest}"], [float(of_class[1]), of_class[2]], where)
    elif isinstance(expected, str) and expected.endswith("…"):
        assert got.startswith(expected[:-1]), f"{where}: {got}, documented {expected}"
    else:
        assert got == expected, f"{where}: {got!r}, documented {expected!r}"


def same_text(got, expected):
    """Asserts that headers or metrics have the documented form: their names, and words where there are no numbers."""
    def form(text):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        lines = [re.sub(r"^(traceparent|date|content-length|x-request-id): .*", r"\1", line) for line in lines]
        return [re.sub(r"\d+(\.\d+)?", "0", line) for line in lines]

    assert form(got) == form(expected), f"{got}\ndocumented:\n{expected}"


@pytest.fixture(scope="module")
def servers(start_server, server, tmp_path_factory):
    """The servers that the documents mean."""
    folder = tmp_path_factory.mktemp("examples")
    for example in (ROOT / "examples" / "models").iterdir():
        shutil.copytree(example, folder / example.name)
    return {"examples": start_server(folder), "generated": server}


def run(command, server, home):
    """What a command prints and the status of its reply, with the server under test in the place of the documented."""
    text = command.text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    text = text.replace("127.0.0.1:8002", f"127.0.0.1:{server.admin_port}")
    # Tells the status beside what it prints; in a file, so that the command stays as it is written.
    (home / ".curlrc").write_text(f'silent\nshow-error\nmax-time = {SECONDS_MAX}\nwrite-out = "%{{stderr}}%{{http_code}}"\n')
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {"CURL_HOME": str(home)}
    # Commands of ours stand for what `make serve` built, with the models that it serves.
    environment["PATH"] = f"{BINARY.parent}{os.pathsep}{environment['PATH']}"
    environment["OCELLI_MODELS"] = "examples/models"
    environment.setdefault("ORT_DYLIB_PATH", str(LIBRARY))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, f"{text}\nexit code {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout, int(done.stderr.strip()[-3:]) if "curl " in text else 200


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_commands_of_a_document_do_what_it_says(servers, tmp_path, name):
    if shutil.which("curl") is None:
        pytest.skip("curl is missing, so the documents' commands are NOT checked: install it (apt-get install curl)")
    found = commands(name)
    # A document whose commands are not recognised would pass without being read.
    assert len(found) >= COMMANDS_MIN[name], f"{len(found)} commands found in {name}"
    for command in found:
        printed, status = run(command, servers[DOCUMENTS[name]], tmp_path)
        try:
            if command.printed.startswith(("{", "[{")):
                expected = json.loads(command.printed)
                documented = expected["status"] if "error" in expected else 200
                assert status == documented, f"status {status}: {printed[:500]}"
                same(json.loads(printed), expected)
            else:
                assert status == 200, f"status {status}: {printed[:500]}"
                same_text(printed, command.printed)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{name}:{command.line}: {command.text}\n{error}") from error
