"""The guide's way from a calibration of beads to a fitter's settings."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
Z = np.linspace(-0.6, 0.7, 131)


def guide():
    """`calibration` of docs/localize.md."""
    text = (ROOT / "docs" / "localize.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def calibration" in block]
    names = {}
    exec(block, names)  # noqa: S102
    return names["calibration"]


def usual(z, w0, g, d, a, b):
    """A width as most programs write it."""
    t = (z - g) / d
    return w0 * np.sqrt(1 + t**2 + a * t**3 + b * t**4)


def ours(z, axis, settings):
    """A width as the manual writes it."""
    t = (z + (-1, 1)[axis] * settings["gamma_um"]) / settings["depth_um"]
    return settings["sigma_px"][axis] * np.sqrt(1 + t**2 + settings["a"][axis] * t**3 + settings["b"][axis] * t**4)


def test_curves_of_one_depth_are_told_as_the_table_says():
    curves = usual(Z, 1.3, 0.32, 0.45, 0.1, 0.02), usual(Z, 1.2, -0.2, 0.45, -0.05, 0.03)
    settings, middle = guide()(Z, *curves)
    assert middle == pytest.approx(0.06, abs=1e-4)
    told = {"sigma_px": [1.3, 1.2], "gamma_um": 0.26, "depth_um": 0.45, "a": [0.1, -0.05], "b": [0.02, 0.03]}
    for name, value in told.items():
        assert settings[name] == pytest.approx(value, abs=1e-3), name
    for axis, curve in enumerate(curves):
        np.testing.assert_allclose(ours(Z - middle, axis, settings), curve, rtol=1e-4)


def test_curves_of_two_depths_are_met_closely():
    curves = usual(Z, 1.3, 0.3, 0.42, 0.1, 0.0), usual(Z, 1.2, -0.2, 0.48, 0.0, 0.1)
    settings, middle = guide()(Z, *curves)
    for axis, curve in enumerate(curves):
        np.testing.assert_allclose(ours(Z - middle, axis, settings), curve, rtol=0.03)
