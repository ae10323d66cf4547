"""What every server in Python runs: the same sessions of ONNX Runtime, the same preprocessing of images.

The driver says by environment what is wanted: PEER_MODELS, a folder with NAME/model.onnx; PEER_THREADS; PEER_COUNTS, a folder
for the counts below; PEER_PORT, PEER_BATCH and PEER_DELAY_MS for whoever starts a server.
"""

import io
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import onnxruntime

MODELS = {"resnet18": (3, 224, 224), "identity": (16,)}
PORT = int(os.environ.get("PEER_PORT", 0))
BATCH = int(os.environ.get("PEER_BATCH", 1))
DELAY_MS = float(os.environ.get("PEER_DELAY_MS", 0))
# As torchvision's classifiers take their images, which is also what resnet18/model.toml says.
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)


class Engine:
    """One model. How many items it ran in how many calls stands in a file, as two numbers of 64 bits."""

    def __init__(self, name, folder=None, threads=None):
        folder = Path(folder or os.environ["PEER_MODELS"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads or os.environ["PEER_THREADS"])
        options.inter_op_num_threads = 1
        # As Ocelli has it: idle threads sleep soon, since the front needs the same cores.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "10")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        path = folder / name / "model.onnx"
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input, self.output = self.session.get_inputs()[0].name, self.session.get_outputs()[0].name
        self.shape, self.counts = MODELS[name], None
        if "PEER_COUNTS" in os.environ:
            with open(Path(os.environ["PEER_COUNTS"]) / name, "w+b") as file:
                file.truncate(16)
                self.counts = mmap.mmap(file.fileno(), 16)

    def run(self, x):
        """The output for `[n, *shape]`."""
        if self.counts is not None:
            items, calls = struct.unpack("<QQ", self.counts[:])
            self.counts[:] = struct.pack("<QQ", items + len(x), calls + 1)
        return self.session.run([self.output], {self.input: x})[0]

    def tensor(self, data):
        """One item of raw numbers as `[1, *shape]`."""
        return np.frombuffer(data, np.float32).reshape(1, *self.shape)

    def run_all(self, items):
        """Outputs of several `[1, *shape]`, one each."""
        return np.split(self.run(np.concatenate(items) if len(items) > 1 else items[0]), len(items))


def pixels(file):
    """A picture as `[1, 3, 224, 224]`: shorter side to 256, bilinear, the centre cut out, normalised."""
    from PIL import Image

    picture = Image.open(io.BytesIO(file))
    scale = 256 / min(picture.size)
    picture = picture.convert("RGB").resize([round(side * scale) for side in picture.size], Image.Resampling.BILINEAR)
    left, top = [round((side - 224) / 2) for side in picture.size]
    x = np.asarray(picture.crop((left, top, left + 224, top + 224)), np.float32).transpose(2, 0, 1) / 255
    return ((x - MEAN) / STD)[None]


def classes(logits):
    """The five best classes of one row, as Ocelli's answer has them."""
    scores = np.exp(logits - logits.max())
    scores /= scores.sum()
    return {"classes": [{"index": int(i), "score": float(scores[i])} for i in np.argsort(-scores)[:5]]}
