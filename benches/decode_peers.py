"""The same work as benches/decode.rs, by Pillow and by OpenCV, one thread.

    pip install pillow numpy opencv-python-headless
    python benches/decode_peers.py target/bench-images

Pillow is what torchvision's transforms use on images: decode, resize the shorter side to 256 with antialiasing, cut 224,
normalise. `draft` lets it decode at a fraction of the size, as we do. OpenCV's INTER_AREA is its antialiased reduction.
"""

import io
import pathlib
import sys
import time

import cv2
import numpy as np
from PIL import Image

MEASURED, ROUNDS = 2.0, 3
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
cv2.setNumThreads(1)


def size(width: int, height: int) -> tuple[int, int]:
    return (256, 256 * height // width) if width <= height else (256 * width // height, 256)


def normalise(pixels: np.ndarray) -> np.ndarray:
    scaled = (pixels.astype(np.float32) * np.float32(1 / 255) - MEAN) / STD
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def pillow(data: bytes, draft: bool = False) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    wanted = size(*image.size)
    if draft:
        image.draft("RGB", (2 * wanted[0], 2 * wanted[1]))
    image = image.convert("RGB").resize(wanted, Image.Resampling.BILINEAR)
    left, top = round((wanted[0] - 224) / 2), round((wanted[1] - 224) / 2)
    return normalise(np.asarray(image.crop((left, top, left + 224, top + 224))))


def opencv(data: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    wanted = size(image.shape[1], image.shape[0])
    image = cv2.resize(image, wanted, interpolation=cv2.INTER_AREA)
    left, top = round((wanted[0] - 224) / 2), round((wanted[1] - 224) / 2)
    cut = cv2.cvtColor(image[top : top + 224, left : left + 224], cv2.COLOR_BGR2RGB)
    # The fastest way that OpenCV has: one call that scales, subtracts and transposes, then the deviation.
    blob = cv2.dnn.blobFromImage(cut, 1 / 255, mean=tuple(float(m) * 255 for m in MEAN))
    return blob[0] / STD[:, None, None]


def rate(work, data: bytes) -> float:
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < MEASURED:
        work(data)
        calls += 1
    return calls / elapsed


peers = {
    "Pillow": pillow,
    "Pillow, draft": lambda data: pillow(data, draft=True),
    "OpenCV": opencv,
}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"), key=lambda path: path.stat().st_size):
    data = path.read_bytes()
    best = {name: max(rate(work, data) for _ in range(ROUNDS)) for name, work in peers.items()}
    for name, images in best.items():
        print(f"{path.stem:12} {len(data):9} {name:>24} {images:10.0f}")
