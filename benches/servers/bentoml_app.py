"""BentoML: numbers and pictures as files of a form, small tensors as JSON; its dispatcher forms batches."""

from pathlib import Path

import bentoml
import numpy as np
from engine import BATCH, Engine, classes, pixels

# The longest that a request may wait before it is refused; how long one does wait, the dispatcher finds out by itself.
BATCHED = {"batchable": True, "max_batch_size": BATCH, "max_latency_ms": 60_000}


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1000}, threads=4)
class Models:
    def __init__(self):
        self.resnet, self.copy = Engine("resnet18"), Engine("identity")

    @bentoml.api(**BATCHED)
    def resnet18(self, files: list[Path]) -> np.ndarray:
        return np.concatenate(self.resnet.run_all([self.resnet.tensor(file.read_bytes()) for file in files]))

    @bentoml.api(**BATCHED)
    def identity(self, x: np.ndarray) -> np.ndarray:
        return self.copy.run(x.astype(np.float32))

    @bentoml.api(**BATCHED)
    def image(self, files: list[Path]) -> list[dict]:
        return [classes(row[0]) for row in self.resnet.run_all([pixels(file.read_bytes()) for file in files])]
