"""KServe's server in Python: the Open Inference Protocol with binary tensors. It forms no batches (its agent would)."""

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from engine import MODELS, PORT, Engine, classes, pixels
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

runner = ThreadPoolExecutor(1)


class Tensors(Model):
    """A model of tensors."""

    def __init__(self, name, engine):
        super().__init__(name)
        self.engine, self.ready = engine, True

    async def run(self, x):
        return await asyncio.get_running_loop().run_in_executor(runner, self.engine.run, x)

    async def predict(self, payload: InferRequest, headers=None, response_headers=None):
        y = await self.run(payload.inputs[0].as_numpy())
        output = InferOutput(self.engine.output, list(y.shape), "FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return self.reply(payload, output)

    def reply(self, payload, output):
        wanted = {"use_binary_outputs": True, "requested_outputs": payload.request_outputs}
        return InferResponse(payload.id or "", self.name, [output], **wanted)


class Images(Tensors):
    """The same for pictures: JSON out, a row for each."""

    async def predict(self, payload: InferRequest, headers=None, response_headers=None):
        x = await asyncio.to_thread(pixels, payload.inputs[0].as_numpy().tobytes())
        text = json.dumps(classes((await self.run(x))[0]))
        output = InferOutput("classes", [1], "BYTES")
        output.set_data_from_numpy(np.array([text.encode()], object), binary_data=True)
        return self.reply(payload, output)


if __name__ == "__main__":
    engines = {name: Engine(name) for name in MODELS}
    served = [Tensors(name, engine) for name, engine in engines.items()] + [Images("image", engines["resnet18"])]
    logging.disable(logging.INFO)
    ModelServer(http_port=PORT, enable_grpc=False, workers=1, enable_latency_logging=False).start(served)
