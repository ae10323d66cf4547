#!/usr/bin/env python3
"""Recall, precision and root mean square error of the whole way from frames to positions, on simulated movies.

    make bench-pipeline
    make bench-pipeline BENCH="--frames 1000 --photons 500"

`ocelli predict` finds and fits; a position is right within 1 px of a true one in its frame, each taken once, the nearest first. The
error is told beside the one that the fits state of themselves (root mean square, over the same ones): at high density spots lie
in each other's boxes, which a fit of one spot cannot know.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "fit"))
import movies  # noqa: E402

DENSITIES = (0.001, 0.01, 0.03)
SEED = 11


def match(movie, rows, within=1.0):
    """Rows and true spots that belong together."""
    pairs = []
    for t in range(len(movie.adu)):
        found, true = np.flatnonzero(rows["frame"] == t), np.flatnonzero(movie.frame == t)
        dx = rows["x_px"][found][:, None] - movie.x[true]
        dy = rows["y_px"][found][:, None] - movie.y[true]
        distance = np.hypot(dx, dy)
        order = np.argsort(distance, axis=None)
        order = order[distance.ravel()[order] <= within]
        taken_rows, taken_true = set(), set()
        for row, column in zip(*np.unravel_index(order, distance.shape)):
            if row not in taken_rows and column not in taken_true:
                taken_rows.add(row)
                taken_true.add(column)
                pairs.append((found[row], true[column]))
    return np.array(pairs, int).reshape(-1, 2).T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--photons", type=float, default=1000)
    parser.add_argument("--set", action="append", default=[], help="settings of the fitter, as ocelli predict takes them")
    given = parser.parse_args()
    binary = os.environ["SERVER_BINARY"]
    print(f"photons about {given.photons:.0f} with 50 % spread, background 10, width 1.3 px, {given.frames} frames, seed {SEED}")
    print("| spots per pixel | per frame | recall | precision | error, px | stated, px | frames/s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "models" / "spots").mkdir(parents=True)
        (folder / "models" / "spots" / "model.toml").write_text('engine = "gauss-mle"\n')
        for density in DENSITIES:
            random = np.random.default_rng(SEED)
            movie = movies.blinking(random, (given.frames, given.size, given.size), density, given.photons)
            np.save(folder / "movie.npy", movie.adu)
            settings = [word for pair in given.set for word in ("--set", pair)]
            command = [binary, "predict", "--models", folder / "models", "spots", folder / "movie.npy", "-o"]
            started = time.perf_counter()
            subprocess.run([*command, folder / "spots.npy", *settings], check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            rows = np.load(folder / "spots.npy")
            found, true = match(movie, rows)
            error = np.hypot(rows["x_px"][found] - movie.x[true], rows["y_px"][found] - movie.y[true])
            stated = np.hypot(rows["x_error_px"][found], rows["y_error_px"][found])

            def rms(values):
                return np.sqrt(np.mean(values[np.isfinite(values)] ** 2))

            print(
                f"| {density} | {len(movie.x) / given.frames:.0f} | {len(found) / len(movie.x):.3f} | "
                f"{len(found) / len(rows):.3f} | {rms(error):.3f} | {rms(stated):.3f} | {given.frames / seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
