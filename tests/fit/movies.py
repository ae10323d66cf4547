"""Simulated movies of blinking spots with known truth, and the search for them by the kernels."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import erf
from simulate import IDEAL

BINARY = Path(os.environ.get("SPOTS_BINARY", "target/debug/examples/find_spots"))

SPOT = np.dtype(
    [("frame", "<u4"), ("x", "<u4"), ("y", "<u4"), ("corner_x", "<u4"), ("corner_y", "<u4"), ("score", "<f4")]
)


@dataclass(frozen=True)
class Options:
    """What to look for: as in the kernels' options."""

    method: str = "contrast"
    sigma_px: tuple = (1.3, 1.3)
    wide: float = 2.0
    threshold_in: str = "noise"
    threshold: float = 5.0
    radius: int = 2
    side: int = 7
    drop: bool = False
    spots_max: int = 100_000


@dataclass
class Movie:
    """Frames with the truth in them."""

    adu: np.ndarray  # [frames, height, width]
    camera: object = IDEAL
    expected: np.ndarray | None = None  # photo-electrons without noise
    frame: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    x: np.ndarray = field(default_factory=lambda: np.empty(0))
    y: np.ndarray = field(default_factory=lambda: np.empty(0))
    photons: np.ndarray = field(default_factory=lambda: np.empty(0))


def shares(count, place, sigma):
    """The share of light that each of `count` pixels along an axis has, [spots, count]."""
    edges = (np.arange(count + 1) - 0.5 - place[:, None]) / (sigma * np.sqrt(2))
    return np.diff(erf(edges), axis=1) / 2


def expose(expected, camera, random):
    """What the camera makes of expected photo-electrons [frames, height, width], u16."""
    electrons = random.poisson(expected).astype(float)
    electrons += random.normal(0, 1, electrons.shape) * camera.read_noise
    return np.clip(np.rint(electrons / camera.gain + camera.offset), 0, 65535).astype(np.uint16)


def simulate(random, shape, frame, x, y, photons, background=10.0, sigma=1.3, camera=IDEAL):
    """A movie of the given spots."""
    frames, height, width = shape
    expected = np.full(shape, float(background))
    for t in range(frames):
        here = frame == t
        light = photons[here, None] * shares(height, y[here], sigma)
        expected[t] += light.T @ shares(width, x[here], sigma)
    return Movie(expose(expected, camera, random), camera, expected, frame, x, y, photons)


def blinking(random, shape, per_px, photons=1000.0, **given):
    """A movie with so many spots per pixel and frame at any place, photons spread about their mean by half of it."""
    frames, height, width = shape
    count = random.poisson(per_px * frames * height * width)
    spread = np.sqrt(np.log(1.25))
    return simulate(
        random,
        shape,
        random.integers(0, frames, count),
        random.uniform(-0.5, width - 0.5, count),
        random.uniform(-0.5, height - 0.5, count),
        photons * np.exp(random.normal(-(spread**2) / 2, spread, count)),
        **given,
    )


def find(movie, options=Options(), instructions=None, repeat=1):
    """The spots, their ROIs, and what else is known: seconds, and the contrast of each frame."""
    frames, height, width = movie.adu.shape
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)

        def saved(name, values, kind):
            if not isinstance(values, np.ndarray):
                return values
            np.ascontiguousarray(values, kind).tofile(folder / name)
            return str(folder / name)

        kind = "u16" if movie.adu.dtype == np.uint16 else "f32"
        job = vars(options) | {
            "shape": movie.adu.shape,
            "data_type": kind,
            "movie": saved("movie", movie.adu, "<u2" if kind == "u16" else "<f4"),
            "offset": saved("offset", movie.camera.offset, "<f4"),
            "gain": saved("gain", movie.camera.gain, "<f4"),
            "read_noise": saved("read_noise", movie.camera.read_noise, "<f4"),
            "instructions": instructions,
            "repeat": repeat,
            "out_spots": str(folder / "spots"),
            "out_rois": str(folder / "rois"),
            "out_contrast": str(folder / "contrast") if repeat == 1 else None,
        }
        (folder / "job.json").write_text(json.dumps(job))
        done = subprocess.run([BINARY, folder / "job.json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        report = json.loads(done.stdout)
        spots = np.fromfile(folder / "spots", SPOT)
        side = options.side
        report["rois"] = np.fromfile(folder / "rois", "<u2" if kind == "u16" else "<f4").reshape(-1, side, side)
        if options.method == "contrast" and repeat == 1:
            report["contrast"] = np.fromfile(folder / "contrast", "<f4").reshape(movie.adu.shape)
    return spots, report


def match(movie, spots, within=2.0):
    """How many of the spots are true ones, each of the truth's taken once, the nearest first."""
    matched = 0
    for t in range(len(movie.adu)):
        found, true = spots[spots["frame"] == t], movie.frame == t
        dx = found["x"][:, None].astype(float) - movie.x[true]
        dy = found["y"][:, None].astype(float) - movie.y[true]
        distance = np.hypot(dx, dy)
        order = np.argsort(distance, axis=None)
        order = order[distance.ravel()[order] <= within]
        rows, columns = np.unravel_index(order, distance.shape)
        free_rows, free_columns = np.ones(len(found), bool), np.ones(true.sum(), bool)
        for row, column in zip(rows, columns):
            if free_rows[row] and free_columns[column]:
                free_rows[row] = free_columns[column] = False
                matched += 1
    return matched


def supported():
    """The instruction sets of this machine that the kernels are compiled for."""
    movie = Movie(np.zeros((1, 9, 9), np.uint16))
    found = []
    for name in ("baseline", "avx2", "avx512"):
        try:
            find(movie, instructions=name)
            found.append(name)
        except RuntimeError as error:
            if "has no" not in str(error):
                raise
    return found
