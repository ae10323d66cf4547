"""Every command in every document: what does not run here is held against what it names.

`test_docs` runs the commands with output that is always the same. What is left is, by its program:

- `curl` in the READMEs of the example models is run; elsewhere its path must be one of `openapi.yaml`.
- `ocelli` must have the command and the flags, `make` the target, `python3` and `cargo` what they name, `docker` and `kubectl` the
  files. They are not run: builds and measurements take minutes, a container and a cluster are not here. What they do has tests
  of its own (`test_measuring_commands`, `test_predict_command`, `tests/deploy`, `tests/gpu`, `tests/guide`).
- Whatever else is there is an error: a document must not show what nothing looks at.
"""

import functools
import os
import re
import shlex
import subprocess
from dataclasses import dataclass

import pytest
import wire
import yaml
from server import BINARY, LIBRARY, ROOT

DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for pattern in ("README.md", "docs/*.md", "examples/**/README.md") for path in ROOT.glob(pattern)
)
PROGRAMS = ("cargo", "curl", "docker", "gzip", "kubectl", "make", "nvidia-smi", "ocelli", "pip", "python3", "target/release/ocelli")
# What belongs to the machine: nothing of ours can make it wrong.
FOREIGN = ("apt-get", "gdb", "nvidia-smi", "pip")
# What takes the output of another, to show a part of it.
FILTERS = ("cut", "grep", "gzip", "head", "sed")
# Names that a document stands in for the reader's own.
OWN = ("rose.jpg", "street.jpg", "cat.jpg", "stack.tif", "models", "FILE", "NAME", "STACKS…", "NAME...", ".gpu/run.py")


@dataclass
class Command:
    """A command of a document, without `$`, and whether it stands by itself or within a sentence."""

    where: str
    text: str
    block: bool


def commands(name):
    """The commands of a document: after a `$`, in a block of `sh`, or beginning with a program that we know."""
    found, inside, language, going_on = [], False, "", False
    text = (ROOT / name).read_text()
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}:{number}"
        if line.startswith("```"):
            inside, language, going_on = not inside, line[3:], False
            continue
        plain = line.removeprefix("    ") if not inside else line
        begins = plain.startswith(tuple(f"{program} " for program in PROGRAMS)) and (inside or plain != line)
        prompt = plain.startswith("$ ") and (inside or plain != line)
        script = inside and language == "sh" and plain.strip()
        # A variable for one command.
        variable = inside and language == "text" and re.match(r"[A-Z_]+=\S+ (\S+)", plain)
        if going_on:
            found[-1].text += f"\n{plain}"
        elif prompt or script or begins or variable:
            found.append(Command(where, plain.removeprefix("$ "), True))
        elif not inside:
            spoken = re.findall(r"`([^`]+)`", line)
            found += [Command(where, each, False) for each in spoken if re.match(rf"({'|'.join(PROGRAMS)}) [\w./-]", each)]
        going_on = bool(found) and (prompt or script or begins or going_on) and unfinished(found[-1].text)
    return found


def unfinished(text):
    text = re.sub(r"\s#.*", "", text)
    return text.endswith("\\") or text.count("'") % 2 == 1 or (text.count('"') % 2 == 1 and "'" not in text)


def words(command):
    """Its words, up to where another program takes over; without comments."""
    lexer = shlex.shlex(command.text.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found = list(lexer)
    return [list(part) for part in split(found)]


def split(found):
    """The programs of a line, each with its arguments."""
    part, redirected = [], False
    for word in found:
        if word in ("|", "&&", ";", "||"):
            yield part
            part = []
        elif re.fullmatch(r"\d?[<>]+", word):
            redirected = True
        elif redirected:
            redirected = False
        else:
            part.append(word)
    yield part


@functools.cache
def openapi():
    return list(yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"])


def curl(arguments):
    """A path that there is, with files that there are."""
    urls = [word for word in arguments if re.match(r"(https?://)?[\w.]+(:\d+)?/", word) and not word.startswith("examples/")]
    for url in urls:
        path = re.sub(r"^(https?://)?[^/]+", "", url).partition("?")[0]
        known = [re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(each)) for each in openapi()]
        assert any(re.fullmatch(each, path) for each in known), f"{path} is not in openapi.yaml"
    for before, word in zip(arguments, arguments[1:]):
        if before in ("-T", "--upload-file") or (before == "-F" and "@" in word):
            exists(word.partition("@")[2] or word)


def exists(path):
    # `-` is the standard input; what begins elsewhere is the reader's.
    if path not in (*OWN, "-") and not path.startswith(("/", "$")):
        assert (ROOT / path.split(";")[0]).exists(), f"{path}: there is no such file"


@functools.cache
def help_of(*command):
    done = subprocess.run(
        [BINARY, *command, "--help"], env={**os.environ, "ORT_DYLIB_PATH": str(LIBRARY)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"there is no ocelli {' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@functools.cache
def option_flags():
    return set(re.findall(r"^- flag `(--[\w-]+)`", (ROOT / "docs" / "options.md").read_text(), re.MULTILINE))


def ocelli(arguments):
    """A command that there is, with flags that it has."""
    flags = [word.partition("=")[0] for word in arguments if re.match(r"--\w", word)]
    subcommand = next((word for word in arguments if not word.startswith("-")), None)
    text = help_of(*[subcommand] if subcommand else [])
    for flag in flags:
        # Commands that take the server's options say so, and list only their own.
        assert flag in ("--help", "--version") or flag in text or flag in option_flags(), f"ocelli {subcommand} has no {flag}"


@functools.cache
def makefile():
    return (ROOT / "Makefile").read_text()


def make(arguments):
    """Targets that there are, with variables that something reads."""
    sources = makefile() + (ROOT / "docs" / "options.md").read_text()
    for word in arguments:
        name, equals, _ = word.partition("=")
        if equals:
            assert re.search(rf"\b{name}\b", sources), f"nothing reads {name}"
        else:
            assert re.search(rf"^{re.escape(name)}:", makefile(), re.MULTILINE), f"there is no make {name}"


def python3(arguments):
    """A script that there is, with options that it reads."""
    if arguments[0] == "-c":
        compile(arguments[1], "document", "exec")
        return
    exists(arguments[0])
    if (ROOT / arguments[0]).exists():
        text = (ROOT / arguments[0]).read_text()
        for flag in filter(lambda word: word.startswith("--"), arguments):
            assert flag in text, f"{arguments[0]} has no {flag}"
        if arguments[0] == "tools/make_models.py":
            for name in arguments[2:]:
                assert f'"{name}": ' in text, f"{arguments[0]} makes no {name}"


def cargo(arguments):
    """A test or a bench that there is."""
    named = dict(zip(arguments, arguments[1:]))
    if name := named.get("--test"):
        sources = "".join(path.read_text() for path in (ROOT / "tests" / name).rglob("*.rs"))
        for wanted in arguments[arguments.index("--") + 1 :] if "--" in arguments else ():
            for part in [] if wanted.startswith("--") else wanted.split("::"):
                assert re.search(rf"\b(fn|mod) \w*{part}", sources), f"{part} is not in tests/{name}"
    if name := named.get("--bench"):
        assert (ROOT / "benches" / f"{name}.rs").exists() or (ROOT / "benches" / name).exists(), f"there is no bench {name}"
    assert arguments[0] in ("bench", "build", "test"), arguments


def files(arguments):
    """Of `docker` and `kubectl`: the files of ours that it names."""
    for word in arguments:
        if word.startswith(("deploy/", "Dockerfile")):
            exists(word)
    if "--target" in arguments:
        stage = arguments[arguments.index("--target") + 1]
        assert re.search(rf"^FROM \S+ AS {stage}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE), f"no stage {stage}"


CHECKS = {"curl": curl, "ocelli": ocelli, "make": make, "python3": python3, "cargo": cargo, "docker": files, "kubectl": files}


def check(command):
    for part in words(command):
        while part and re.match(r"[A-Z_]+=", part[0]):
            part.pop(0)
        program = os.path.basename(part[0]) if part else ""
        if program in FOREIGN or program in FILTERS:
            continue
        assert program in CHECKS, f"nothing looks at commands of {program}"
        CHECKS[program](part[1:])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_of_a_document_names_what_there_is(name):
    wrong = []
    for command in commands(name):
        try:
            check(command)
        except AssertionError as error:
            wrong.append(f"{command.where}: {command.text}\n    {error}")
    assert wrong == [], "\n".join(wrong)


def test_the_commands_are_found():
    """Nothing would be wrong with documents whose commands are not recognised."""
    found = {name: commands(name) for name in DOCUMENTS}
    blocks = {name: sum(command.block for command in those) for name, those in found.items()}
    for name, least in (("README.md", 10), ("docs/operations.md", 9), ("docs/benchmarks.md", 10), ("docs/cli.md", 5), ("docs/api.md", 15)):
        assert blocks[name] >= least, f"{blocks[name]} in {name}"
    assert sum(map(len, found.values())) > 120, {name: len(those) for name, those in found.items()}


@pytest.mark.parametrize(
    "text, told",
    [
        ("make serv", "there is no make serv"),
        ("make serve OCELLI_MODLES=models", "nothing reads OCELLI_MODLES"),
        ("ocelli predit x", "there is no ocelli predit"),
        ("ocelli bench URL digits --slo 5 --p98-ms 3", "has no --p98-ms"),
        ("curl -T examples/images/none.png http://127.0.0.1:8000/predictions/digits", "no such file"),
        ("curl http://127.0.0.1:8000/v2/healthy", "not in openapi.yaml"),
        ("kubectl kustomize deploy/kubernetes/overlays/none | kubectl apply -f -", "no such file"),
        ("docker build --target none .", "no stage none"),
        ("cargo test --test cuda -- --ignored contention::none_such", "none_such is not in"),
        ("python3 tools/none.py", "no such file"),
        ("rm -rf /", "nothing looks at commands of rm"),
    ],
)
def test_a_command_that_is_wrong_is_told(text, told):
    with pytest.raises(AssertionError, match=re.escape(told)):
        check(Command("here", text, True))


@pytest.fixture(scope="module")
def examples(start_server):
    server = start_server(ROOT / "examples" / "models")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith("examples/models/")])
def test_what_an_example_says_of_itself_works(examples, tmp_path, name):
    found = [command for command in commands(name) if command.text.startswith("curl ")]
    assert found, f"{name} has no command"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    for command in found:
        text = command.text.replace("127.0.0.1:8000", f"127.0.0.1:{examples.port}").replace("curl ", "curl --fail-with-body -sS ")
        done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, timeout=wire.TIMEOUT)
        assert done.returncode == 0, f"{command.where}: {text}\n{done.stdout[:500]}{done.stderr}"
        saved = re.search(r"-o (\S+)", text)
        assert (tmp_path / saved[1]).stat().st_size > 0 if saved else done.stdout.startswith(b"{"), text


def test_the_readme_fits_a_movie_without_a_server(tmp_path):
    (command,) = [command for command in commands("README.md") if "ocelli predict" in command.text]
    shown = (ROOT / "README.md").read_text().split(f"$ {command.text}\n")[1].splitlines()[0]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = command.text.replace("target/release/ocelli", shlex.quote(str(BINARY)))
    environment = {"ORT_DYLIB_PATH": str(LIBRARY), **os.environ}
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=wire.TIMEOUT)
    assert done.returncode == 0, done

    def form(line):
        return re.sub(r"in [\d.]+ s", "in s", line)

    assert form(shown) in [form(line.split("\r")[-1]) for line in (done.stdout + done.stderr).splitlines()], done
