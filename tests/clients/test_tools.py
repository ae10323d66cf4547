"""The scripts under tools/: what writes a folder makes none of a word that asks for help."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--help", "add"], ["-x", "add"]])
@pytest.mark.parametrize("script", ["make_models.py", "make_venv.py"])
def test_an_option_is_not_taken_for_a_folder(script, arguments, tmp_path):
    done = subprocess.run([sys.executable, TOOLS / script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert f"usage: {script}" in done.stdout + done.stderr, done
    assert (done.returncode == 0) == (arguments[0] != "-x"), done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["generate", "-x"]])
def test_neither_by_the_tool_of_kernels(arguments, tmp_path):
    done = subprocess.run([sys.executable, TOOLS / "check_kernels.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert "check_kernels.py generate" in done.stderr, done
    assert list(tmp_path.iterdir()) == []
