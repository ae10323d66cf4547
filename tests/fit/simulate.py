"""Simulated ROIs of known truth, and the fit of them by the kernels."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from reference import Model

BINARY = Path(os.environ.get("FIT_BINARY", "target/debug/examples/fit_rois"))


@dataclass(frozen=True)
class Camera:
    """electrons = (ADU - offset) * gain; each a number or a map [height, width]."""

    offset: object = 0.0
    gain: object = 1.0
    read_noise: object = 0.0

    @property
    def sensor(self):
        """Height and width of the maps; None without."""
        for value in (self.offset, self.gain, self.read_noise):
            if isinstance(value, np.ndarray):
                return value.shape
        return None

    def at(self, value, corners, side):
        """A property at the pixels of each ROI, or the one number."""
        if not isinstance(value, np.ndarray):
            return value
        r, c = np.mgrid[:side, :side]
        return value[corners[:, 1, None, None] + r, corners[:, 0, None, None] + c].astype(float)


@dataclass
class Rois:
    """ROIs with their truth."""

    model: Model
    camera: Camera
    theta: np.ndarray  # [n, parameters]
    adu: np.ndarray  # [n, side, side]
    corners: np.ndarray | None = None
    electrons: np.ndarray = field(default=None)
    variance: object = 0.0

    @property
    def side(self):
        """Pixels along each edge."""
        return self.adu.shape[-1]


IDEAL = Camera()


def draw(model, count, side, random, **given):
    """Parameters [count, parameters] over the range that fits are accepted on; `given` are held."""
    middle = (side - 1) / 2
    drawn = {
        "x": middle + random.uniform(-0.5, 0.5, count),
        "y": middle + random.uniform(-0.5, 0.5, count),
        "z": random.uniform(-0.5, 0.5, count),
        "photons": np.exp(random.uniform(np.log(300), np.log(10_000), count)),
        "background": np.exp(random.uniform(0, np.log(50), count)),
        "sigma": random.uniform(1.0, 1.8, count),
        "sigma_x": random.uniform(1.0, 1.8, count),
        "sigma_y": random.uniform(1.0, 1.8, count),
    }
    drawn.update({name: np.broadcast_to(value, count) for name, value in given.items()})
    return np.column_stack([drawn[name] for name in model.names])


def simulate(model, theta, side, random, camera=IDEAL):
    """ROIs with photon noise, and where the camera has read noise with that, as ADU."""
    expected = model.expect(theta, side, derivatives=False)
    electrons = random.poisson(expected).astype(float)
    if camera is IDEAL:
        return Rois(model, camera, theta, electrons.astype(np.uint16), electrons=electrons)
    corners = None
    if camera.sensor is not None:
        height, width = camera.sensor
        corners = np.column_stack(
            [random.integers(0, width - side, len(theta)), random.integers(0, height - side, len(theta))]
        ).astype(np.uint32)
    offset, gain, noise = (
        camera.at(value, corners, side) for value in (camera.offset, camera.gain, camera.read_noise)
    )
    electrons += random.normal(0, 1, electrons.shape) * noise
    adu = np.clip(np.rint(electrons / gain + offset), 0, 65535).astype(np.uint16)
    # What the fit sees is rounded to whole ADU.
    electrons = (adu - offset) * gain
    return Rois(model, camera, theta, adu, corners, electrons, np.square(noise))


def fit(rois, instructions=None, repeat=1, z_um=(-1, 1)):
    """The kernels' results as a structured array, and the seconds of the shortest run. `z_um`: where z may be."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)

        def saved(name, values, kind):
            if values is None or not isinstance(values, np.ndarray):
                return values
            np.ascontiguousarray(values, kind).tofile(folder / name)
            return str(folder / name)

        model, camera, astigmatism = rois.model, rois.camera, rois.model.astigmatism
        kind = "u16" if rois.adu.dtype == np.uint16 else "f32"
        job = {
            "psf": model.name,
            "sigma_px": model.sigma if model.name != "xyznb" else (astigmatism.sigma_x, astigmatism.sigma_y),
            "astigmatism": {
                "gamma_um": astigmatism.gamma,
                "depth_um": astigmatism.depth,
                "a_x": astigmatism.a_x,
                "a_y": astigmatism.a_y,
                "b_x": astigmatism.b_x,
                "b_y": astigmatism.b_y,
            },
            "z_um": z_um,
            "side": rois.side,
            "data_type": kind,
            "rois": saved("rois", rois.adu, "<u2" if kind == "u16" else "<f4"),
            "corners": saved("corners", rois.corners, "<u4"),
            "sensor": camera.sensor or (0, 0),
            "offset": saved("offset", camera.offset, "<f4"),
            "gain": saved("gain", camera.gain, "<f4"),
            "read_noise": saved("read_noise", camera.read_noise, "<f4"),
            "instructions": instructions,
            "repeat": repeat,
            "out": str(folder / "out"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        done = subprocess.run([BINARY, folder / "job.json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        values = np.fromfile(folder / "out", "<f4").reshape(-1, 19)
    count = len(model.names)
    found = {
        "theta": values[:, :count].astype(float),
        "errors": values[:, 6 : 6 + count].astype(float),
        "covariance": values[:, 12:15].astype(float),
        "log_likelihood_ratio": values[:, 15].astype(float),
        "p_value": values[:, 16].astype(float),
        "iterations": values[:, 17].astype(int),
        "status": values[:, 18].astype(int),
    }
    return found, json.loads(done.stdout)["seconds"]


def supported():
    """The instruction sets of this machine that the kernels are compiled for."""
    model = Model("xynb")
    rois = simulate(model, draw(model, 1, 7, np.random.default_rng(0)), 7, np.random.default_rng(0))
    found = []
    for name in ("baseline", "avx2", "avx512"):
        try:
            fit(rois, name)
            found.append(name)
        except RuntimeError as error:
            if "has no" not in str(error):
                raise
    return found
