"""The unit of systemd in docs/operations.md: systemd takes it, and what it says agrees with the server's options."""

import re

import common
from common import ROOT, tool

OPTIONS = common.Options()
(UNIT,) = re.findall(r"```ini\n(\[Unit\].*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)


def values(key):
    return " ".join(re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)).split()


def test_systemd_takes_it(tmp_path):
    path = tmp_path / "ocelli.service"
    path.write_text(UNIT.replace("/usr/local/bin/ocelli", "/bin/true"))
    common.run(tool("systemd-analyze"), "verify", path)


def test_its_variables_are_options_and_folders_that_systemd_makes():
    variables = [variable.partition("=")[::2] for variable in values("Environment")]
    options = OPTIONS.given((), variables)
    assert options["kernel_cache_folder"] == f"/var/cache/{values('CacheDirectory')[0]}"
    assert options["gpu_state_folder"] == f"/var/lib/{values('StateDirectory')[0]}"
    drain = int(options["drain_delay_ms"]) + int(options["drain_timeout_ms"])
    assert int(values("TimeoutStopSec")[0]) * 1000 > drain


def test_it_is_started_again_for_as_long_as_it_takes():
    assert values("StartLimitIntervalSec") == ["0"] and values("Restart") == ["always"]
