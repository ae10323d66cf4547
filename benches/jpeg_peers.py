#!/usr/bin/env python3
"""Images/s per core of JPEG decode, resize, crop and normalise in Pillow and OpenCV: what ours is compared with.

    .venv/test/bin/python benches/jpeg_peers.py [--folder FOLDER]

The pictures are generated (500 x 375, quality 90, 4:2:0); `--folder` keeps the files, so that another program can be
measured on the same bytes. All run on one thread, in turns, with the median of the rounds shown. OpenCV is left out
where it is not installed (pip install opencv-python-headless).
"""

import argparse
import io
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image, features

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import make_models  # noqa: E402

try:
    import cv2
except ImportError:
    cv2 = None

SEED = 3
SIDE = 224
SHORTER = 256
MEAN = np.float32(make_models.IMAGENET_MEAN)
STD = np.float32(make_models.IMAGENET_STD)
# x / 255, minus mean, over std, as one multiplication and one addition per channel.
FACTOR, OFFSET = 1 / (255 * STD), -MEAN / STD


def normalised(cropped):
    """`[SIDE, SIDE, 3]` uint8 to `[3, SIDE, SIDE]` float32."""
    return np.ascontiguousarray((cropped * FACTOR + OFFSET).transpose(2, 0, 1))


def sizes(w, h):
    """The size with the shorter side of 256, and the corner of the centre crop."""
    w, h = (SHORTER, SHORTER * h // w) if w <= h else (SHORTER * w // h, SHORTER)
    return w, h, round((w - SIDE) / 2), round((h - SIDE) / 2)


def pillow(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h, left, top = sizes(*image.size)
    image = image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + SIDE, top + SIDE))
    return normalised(np.asarray(image))


def pillow_draft(data):
    """With the decoder's own scaling, to at least twice the target, where the picture is that large."""
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (2 * SHORTER, 2 * SHORTER))
    w, h, left, top = sizes(*image.size)
    image = image.convert("RGB").resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + SIDE, top + SIDE))
    return normalised(np.asarray(image))


def opencv(data):
    """INTER_AREA: OpenCV's bilinear resize does not antialias, so it would do less work and give another picture."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    w, h, left, top = sizes(image.shape[1], image.shape[0])
    image = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)[top : top + SIDE, left : left + SIDE]
    return normalised(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="keep the generated files here")
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--count", type=int, default=32, help="different pictures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1, help="of each round and program")
    given = parser.parse_args()

    rng, files = np.random.default_rng(SEED), []
    for _ in range(given.count):
        out = io.BytesIO()
        Image.fromarray(make_models.picture(rng, given.width, given.height)).save(out, "JPEG", quality=90, subsampling=2)
        files.append(out.getvalue())
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(files):
            (given.folder / f"{i:03}.jpg").write_bytes(data)
        print(f"wrote {len(files)} files to {given.folder}")

    programs = {"Pillow": pillow, "Pillow, scaled decoding": pillow_draft}
    if cv2:
        cv2.setNumThreads(1)
        programs["OpenCV"] = opencv
    else:
        print("OpenCV is not installed and left out: pip install opencv-python-headless")
    rates = {name: [] for name in programs}
    for _ in range(given.rounds):
        for name, program in programs.items():
            started, done = time.perf_counter(), 0
            while time.perf_counter() - started < given.seconds:
                program(files[done % len(files)])
                done += 1
            rates[name].append(done / (time.perf_counter() - started))
    kilobytes = statistics.mean(map(len, files)) / 1000
    turbo = features.version_feature("libjpeg_turbo")
    print(f"\n{given.width} x {given.height} JPEG of {kilobytes:.0f} kB, seed {SEED}, one thread, libjpeg-turbo {turbo}\n")
    print("| program | images/s per core |\n|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {statistics.median(values):.0f} |")


if __name__ == "__main__":
    main()
