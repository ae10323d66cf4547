#!/usr/bin/env python3
"""Images/s per core of JPEG decode, resize, crop and normalise: ours, Pillow's and OpenCV's, in turns on one core.

    make bench-decode                                      # 500 x 375 and 1920 x 1080
    make bench-decode DECODE="--size 4000x3000 --rounds 3"

The pictures are generated (quality 90, 4:2:0). All do what torchvision's classifiers expect: the shorter side to 256
with antialiasing, the centre 224 x 224, normalised, channels first, float32. All are held to one core and one thread;
the table shows the median of the rounds and, for each round, how often ours is done in the time of the other.
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, features

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import make_models  # noqa: E402

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


def pillow(data, draft=False):
    """With `draft`, the decoder scales by itself to no less than twice the target, as ours does."""
    image = Image.open(io.BytesIO(data))
    w, h, left, top = sizes(*image.size)
    if draft:
        image.draft("RGB", (2 * w, 2 * h))
    image = image.convert("RGB").resize((w, h), Image.Resampling.BILINEAR)
    return normalised(np.asarray(image.crop((left, top, left + SIDE, top + SIDE))))


def opencv(data):
    """INTER_AREA: OpenCV's bilinear resize does not antialias, so it would do less work and give another picture."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    w, h, left, top = sizes(image.shape[1], image.shape[0])
    image = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)[top : top + SIDE, left : left + SIDE]
    # Its own fastest way: `split` gives planes, each scaled in place of the broadcast over three channels.
    out = np.empty((3, SIDE, SIDE), np.float32)
    for channel, plane in enumerate(reversed(cv2.split(image))):
        np.multiply(plane, FACTOR[channel], out=out[channel])
        out[channel] += OFFSET[channel]
    return out


PEERS = {"Pillow": pillow, "Pillow, scaled decoding": lambda data: pillow(data, draft=True), "OpenCV": opencv}


def rate(work, files, seconds):
    for data in files:
        work(data)
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        work(files[done % len(files)])
        done += 1
    return done / elapsed


def ours(binary, folder, seconds):
    """Images/s of each part, as benches/decode.rs prints them."""
    done = subprocess.run([binary, folder, str(seconds)], capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split("\t") for line in done.stdout.splitlines())}


def measure(given, width, height):
    rng, files = np.random.default_rng(SEED), []
    for _ in range(given.count):
        out = io.BytesIO()
        Image.fromarray(make_models.picture(rng, width, height)).save(out, "JPEG", quality=90, subsampling=2)
        files.append(out.getvalue())
    rates, ratios = {}, {name: [] for name in PEERS}
    with tempfile.TemporaryDirectory() as folder:
        for i, data in enumerate(files):
            (Path(folder) / f"{i:03}.jpg").write_bytes(data)
        for _ in range(given.rounds):
            parts = ours(given.binary, folder, given.seconds)
            for name, value in parts.items():
                rates.setdefault(name, []).append(value)
            for name, work in PEERS.items():
                value = rate(work, files, given.seconds)
                rates.setdefault(name, []).append(value)
                ratios[name].append(parts["all"] / value)
    kilobytes = statistics.mean(map(len, files)) / 1000
    print(f"\n{width} x {height}, {kilobytes:.0f} kB, {given.count} pictures, load {os.getloadavg()[0]:.1f}\n")
    print("| program | images/s per core | ours is faster by |\n|---|---|---|")
    for name, values in rates.items():
        against = f"{statistics.median(ratios[name]):.2f} ({min(ratios[name]):.2f} to {max(ratios[name]):.2f})" if name in ratios else ""
        print(f"| {name if name in ratios else 'ours: ' + name} | {statistics.median(values):.0f} | {against} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="what benches/decode.rs was built to")
    parser.add_argument("--size", action="append", help="WIDTHxHEIGHT; may be repeated")
    parser.add_argument("--count", type=int, default=16, help="different pictures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each round and program")
    given = parser.parse_args()
    # One core for all of them, the same one.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cv2.setNumThreads(1)
    turbo = features.version_feature("libjpeg_turbo")
    print(f"seed {SEED}; Pillow {Image.__version__} with libjpeg-turbo {turbo}, OpenCV {cv2.__version__}")
    for size in given.size or ["500x375", "1920x1080"]:
        measure(given, *map(int, size.split("x")))


if __name__ == "__main__":
    main()
