"""What the server should compute, done with Pillow, numpy and ONNX Runtime in Python."""

import io

import numpy as np
import onnxruntime
from PIL import Image

MEAN = np.reshape([0.485, 0.456, 0.406], (3, 1, 1))
STD = np.reshape([0.229, 0.224, 0.225], (3, 1, 1))


def session(path):
    """An ONNX Runtime session on the CPU."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def torchvision_pixels(data, resize=256, crop=224):
    """Resize(256) and CenterCrop(224) as torchvision does them on a Pillow image: `[3, 224, 224]` in 0..255."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    if w <= h:
        size = resize, int(resize * h / w)
    else:
        size = int(resize * w / h), resize
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = int(round((size[0] - crop) / 2)), int(round((size[1] - crop) / 2))
    return np.asarray(image.crop((left, top, left + crop, top + crop)), np.float32).transpose(2, 0, 1)


def normalised(pixels):
    """ToTensor and Normalize: 0..255 to the network's input."""
    return ((pixels / 255 - MEAN) / STD).astype(np.float32)


def pixels_of(normalised_input):
    """The way back: the network's input to 0..255."""
    return (normalised_input * STD + MEAN) * 255


def stretched(data, side, mode):
    """A picture stretched to `side` x `side` in 0..1: `[channels, side, side]`."""
    image = Image.open(io.BytesIO(data)).convert(mode).resize((side, side), Image.Resampling.BILINEAR)
    array = np.asarray(image, np.float32) / 255
    return array[None] if mode == "L" else array.transpose(2, 0, 1)


def iou(a, b):
    """IoU of two boxes `x0, y0, x1, y1`."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    inner = max(w, 0) * max(h, 0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return inner / (area - inner)


def png(array):
    """An array `[h, w]` or `[h, w, 3]` uint8 as the bytes of a PNG file."""
    return encoded(array, "PNG")


def encoded(array, form, **options):
    """An array as the bytes of an image file."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, form, **options)
    return out.getvalue()
