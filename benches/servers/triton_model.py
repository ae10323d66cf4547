"""Triton's Python backend: gets the requests of a batch, runs them together, answers each."""

import json

import numpy as np
import triton_python_backend_utils as triton
from engine import Engine


class TritonPythonModel:
    def initialize(self, args):
        self.engine = Engine(json.loads(args["model_config"])["name"])

    def execute(self, requests):
        name, output = self.engine.input, self.engine.output
        items = [triton.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
        y = self.engine.run(np.concatenate(items) if len(items) > 1 else items[0])
        rows = np.split(y, np.cumsum([len(item) for item in items])[:-1])
        return [triton.InferenceResponse([triton.Tensor(output, row)]) for row in rows]
