#!/usr/bin/env python3
"""Makes the example movie of single molecules, whose places are known.

    pip install -r requirements.txt
    python3 simulate_spots.py

Molecules sit on the outlines of the strokes of a word, closer together than a microscope resolves, and each blinks
once. Writes `images/spots.tif`, a stack as ImageJ writes it,
and `images/spots-truth.csv`, a line per frame that a molecule shone in: frame from 0, column and row in pixels (the
centre of the first pixel is 0, 0), and the photo-electrons that were expected of it.
"""

import math
from pathlib import Path

import numpy as np
import tifffile

SEED = 2026
FRAMES, HEIGHT, WIDTH = 160, 40, 96
PIXEL_UM = 0.1
SIGMA_PX = 1.3  # of a spot
BACKGROUND = 8.0  # photo-electrons per pixel and frame
# photo-electrons = (value - OFFSET) * GAIN
OFFSET, GAIN, READ_NOISE = 100, 0.5, 1.0
MOLECULES = 1100
PHOTONS = 1600.0  # per frame of a molecule that shines throughout, on average
PHOTONS_MIN = 50.0  # less than that is not listed as truth, though it is in the movie
FRAMES_ON = 1.0  # how long a molecule shines, on average

STROKE_PX = 2.0  # between the two lines that outline a stroke

# Strokes of the letters, in a box of 10 x 24 pixels: corners of lines, or centre, half axes and angles of arcs.
LETTERS = {
    "O": [("arc", (5, 12), (5, 12), (0, 360))],
    "C": [("arc", (6, 12), (6, 12), (55, 305))],
    "E": [("line", (9, 0), (0, 0)), ("line", (0, 0), (0, 24)), ("line", (0, 12), (7, 12)), ("line", (0, 24), (9, 24))],
    "L": [("line", (0, 0), (0, 24)), ("line", (0, 24), (9, 24))],
    "I": [("line", (3, 0), (3, 24))],
}
WORD, LEFT, TOP, ADVANCE = "OCELLI", 8.0, 8.0, 14.0


def along(stroke, steps=2000):
    """Points of a stroke, close together."""
    kind, *rest = stroke
    t = np.linspace(0, 1, steps)
    if kind == "line":
        (x0, y0), (x1, y1) = rest
        return np.stack([x0 + (x1 - x0) * t, y0 + (y1 - y0) * t], axis=1)
    (x, y), (a, b), (first, last) = rest
    angle = np.radians(first + (last - first) * t)
    return np.stack([x + a * np.cos(angle), y + b * np.sin(angle)], axis=1)


def places(random, count):
    """Places of molecules in pixels, spread evenly over the length of all strokes."""
    points, weights = [], []
    for index, letter in enumerate(WORD):
        for stroke in LETTERS[letter]:
            line = along(stroke) + (LEFT + ADVANCE * index, TOP)
            steps = np.diff(line, axis=0)
            lengths = np.linalg.norm(steps, axis=1)
            across = steps[:, ::-1] * (-1, 1) / lengths[:, None]
            for side in (-STROKE_PX / 2, STROKE_PX / 2):
                points.append(line[1:] + side * across)
                weights.append(lengths)
    points, weights = np.concatenate(points), np.concatenate(weights)
    return points[random.choice(len(points), count, p=weights / weights.sum())]


def shares(count, centre):
    """The share of a spot's light that each of `count` pixels along an axis gets."""
    erf = [math.erf((edge - 0.5 - centre) / (SIGMA_PX * math.sqrt(2))) for edge in range(count + 1)]
    return np.diff(erf) / 2


def main():
    random = np.random.default_rng(SEED)
    expected = np.full((FRAMES, HEIGHT, WIDTH), BACKGROUND)
    truth = []
    begins = random.uniform(0, FRAMES, MOLECULES)
    ends = begins + random.exponential(FRAMES_ON, MOLECULES)
    brightness = PHOTONS * random.gamma(8, 1 / 8, MOLECULES)
    for (x, y), begin, end, photons in zip(places(random, MOLECULES), begins, ends, brightness):
        light = np.outer(shares(HEIGHT, y), shares(WIDTH, x))
        for frame in range(int(begin), min(FRAMES, math.ceil(end))):
            seen = photons * (min(end, frame + 1) - max(begin, frame))
            expected[frame] += seen * light
            if seen >= PHOTONS_MIN:
                truth.append((frame, x, y, seen))

    electrons = random.poisson(expected) + random.normal(0, READ_NOISE, expected.shape)
    values = np.clip(np.rint(electrons / GAIN + OFFSET), 0, 65535).astype(np.uint16)
    folder = Path(__file__).resolve().parent / "images"
    per_um = 1 / PIXEL_UM
    tifffile.imwrite(
        folder / "spots.tif", values, imagej=True, resolution=(per_um, per_um), metadata={"axes": "TYX", "unit": "um"}
    )
    lines = [f"{frame},{x:.3f},{y:.3f},{photons:.0f}" for frame, x, y, photons in sorted(truth)]
    text = "\n".join(["frame,x_px,y_px,photons", *lines]) + "\n"
    (folder / "spots-truth.csv").write_text(text)
    print(f"{len(truth)} spots of {MOLECULES} molecules in {FRAMES} frames of {WIDTH} x {HEIGHT} px, seed {SEED}")


if __name__ == "__main__":
    main()
