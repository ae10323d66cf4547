"""Pictures with several handwritten digits of any size and place on a noisy grey ground, and where the digits are."""

import numpy as np
from PIL import Image

PADDING = 114  # grey of the bars that letterboxing adds
DIGITS_MAX = 6


def draw_digit(picture, height, rng):
    """One digit `[h, w]` in 0..1, about `height` pixels high, turned a little and cut to its ink."""
    width = max(4, round(height * rng.uniform(0.85, 1.15)))
    image = Image.fromarray(np.pad(picture, 1)).resize((width, round(height)), Image.Resampling.BICUBIC)
    image = image.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)
    ink = np.asarray(image, np.float32) / 255
    rows, columns = np.flatnonzero(ink.max(1) > 0.25), np.flatnonzero(ink.max(0) > 0.25)
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def compose(pictures, digits, rng):
    """A grey picture `[h, w]` uint8; its digits as rows of `x0, y0, x1, y1, digit`, in pixels; and the class of each pixel.

    Class 0 is the ground, `digit + 1` the ink of a digit.
    """
    longer = int(rng.integers(96, 401))
    shorter = longer if rng.random() < 0.4 else int(longer * rng.uniform(0.6, 1))
    height, width = (longer, shorter) if rng.random() < 0.5 else (shorter, longer)
    ground = rng.uniform(0, 70)
    slope = rng.uniform(-25, 25, 2)
    canvas = ground + slope[0] * np.linspace(-1, 1, height)[:, None] + slope[1] * np.linspace(-1, 1, width)[None]
    truths, classes = [], np.zeros((height, width), np.uint8)
    for _ in range(int(rng.integers(1, DIGITS_MAX + 1))):
        chosen = int(rng.integers(len(pictures)))
        ink = draw_digit(pictures[chosen], longer * rng.uniform(0.17, 0.45) * 1.25, rng)
        h, w = ink.shape
        if h >= height or w >= width:
            continue
        for _ in range(20):  # a free place, or none
            x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            gap = 0.02 * longer
            if all(x > t[2] + gap or x + w + gap < t[0] or y > t[3] + gap or y + h + gap < t[1] for t in truths):
                patch = canvas[y : y + h, x : x + w]
                patch += ink * (rng.uniform(170, 255) - patch)
                classes[y : y + h, x : x + w][ink >= 0.5] = digits[chosen] + 1
                truths.append((x, y, x + w, y + h, int(digits[chosen])))
                break
    canvas = canvas + rng.standard_normal(canvas.shape, np.float32) * rng.uniform(0, 12)
    return canvas.clip(0, 255).astype(np.uint8), np.array(truths, np.float32).reshape(-1, 5), classes


def letterbox(image, side):
    """A grey Pillow image to network input `[side, side]` in 0..1, with the scale and the offsets that were used."""
    scale = min(side / image.width, side / image.height)
    w, h = round(image.width * scale), round(image.height * scale)
    left, top = (side - w) // 2, (side - h) // 2
    out = np.full((side, side), PADDING, np.uint8)
    out[top : top + h, left : left + w] = np.asarray(image.resize((w, h), Image.Resampling.BILINEAR))
    return out.astype(np.float32) / 255, scale, left, top
