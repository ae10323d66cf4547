"""What the checks of `deploy/` share: where things are, what the options are, and tools that may be missing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests" / "clients"))

# Only bounds a program that hangs: promtool takes minutes for the rules where others want the machine too.
SECONDS_MAX = 900
# Tools that whoever runs the checks says are there, with spaces between them: one that is missing then fails.
PROMISED = os.environ.get("PROMISED_TOOLS", "").split()
PACKAGES = {
    "promtool": "prometheus",
    "nginx": "nginx-light",
    "bwrap": "bubblewrap",
    "kubectl": "kubernetes-client 1.32 or newer",
    "systemd-analyze": "systemd",
}


def tool(name):
    """The path of a program; skips the test where it is missing, unless it was promised."""
    # Servers are in a folder that is not on everybody's path.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        what = f"{name} is missing (Debian, Ubuntu: apt-get install {PACKAGES.get(name, name)})"
        assert name not in PROMISED, f"{what}, and PROMISED_TOOLS says that it is there"
        pytest.skip(what)
    return found


def run(*command, **more):
    """The output of a program that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS_MAX, **more)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def documents(text):
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(text) if document]


class Options:
    """The server's options, from `docs/options.md`, which a test of the code keeps true."""

    def __init__(self):
        text = (ROOT / "docs" / "options.md").read_text()
        self.defaults, self.flags, self.variables = {}, {}, {}
        pattern = r"^### `(\w+)`$.*?- flag `--([\w-]+)`, variable `(\w+)`$.*?^- default: (.*?)$"
        for name, flag, variable, default in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
            self.defaults[name] = default.strip("`") if default != "empty" else ""
            self.flags[flag], self.variables[variable] = name, name
        assert len(self.defaults) > 30, "docs/options.md has changed its form"

    def given(self, arguments=(), variables=()):
        """The options in effect: those of the arguments over those of the variables over the defaults."""
        options = dict(self.defaults)
        for variable, value in dict(variables).items():
            if variable.startswith("OCELLI_"):
                assert variable in self.variables, f"{variable} is no variable of docs/options.md"
                options[self.variables[variable]] = value
        for argument in arguments:
            flag, equals, value = argument.removeprefix("--").partition("=")
            assert argument.startswith("--") and equals, f"{argument} is not --flag=value"
            assert flag in self.flags, f"--{flag} is no flag of docs/options.md"
            options[self.flags[flag]] = value
        return options


def size(text):
    """Bytes of a size, as options (`256MiB`) and Kubernetes (`8Gi`) write it."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    units = {"": 1}
    for power, letter in enumerate("KMGT", 1):
        units |= {f"{letter}iB": 1024**power, f"{letter}i": 1024**power, f"{letter}B": 1000**power}
    return int(number) * units[unit]


def port(address):
    """The port of `127.0.0.1:8000`."""
    return int(address.rpartition(":")[2])


def assert_threads_follow_requests(container):
    """Without a limit, a container sees all processors of its machine, of which it is sure to have those that it requests."""
    given = {entry["name"]: entry.get("valueFrom", {}).get("resourceFieldRef") for entry in container["env"]}
    for name in ("OCELLI_HTTP_THREADS", "OCELLI_DECODE_THREADS", "OCELLI_COMPUTE_THREADS"):
        # By whole processors, rounded up.
        assert given.get(name) == {"resource": "requests.cpu"}, name
