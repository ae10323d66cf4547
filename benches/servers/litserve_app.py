"""LitServe: files of a form in, raw numbers out. It batches in the process that runs the models."""

import json
from typing import Annotated

import litserve
from engine import BATCH, DELAY_MS, MODELS, PORT, Engine, classes, pixels
from fastapi import File, Response


class Tensors(litserve.LitAPI):
    """A model of tensors at /NAME."""

    def __init__(self, name, path):
        super().__init__(max_batch_size=BATCH, batch_timeout=DELAY_MS / 1000, api_path=path)
        self.name = name

    def setup(self, device):
        self.engine = Engine(self.name)

    def decode_request(self, request: Annotated[bytes, File()]):
        return self.engine.tensor(request)

    def batch(self, inputs):
        return inputs

    def predict(self, x):
        return self.engine.run_all(x)

    def unbatch(self, output):
        return output

    def encode_response(self, output) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


class Images(Tensors):
    """The same for pictures."""

    def decode_request(self, request: Annotated[bytes, File()]):
        return pixels(request)

    def encode_response(self, output) -> Response:
        return Response(json.dumps(classes(output[0])), media_type="application/json")


if __name__ == "__main__":
    apis = [Tensors(name, f"/{name}") for name in MODELS] + [Images("resnet18", "/image")]
    server = litserve.LitServer(apis, accelerator="cpu", fast_queue=True)
    server.run(host="127.0.0.1", port=PORT, num_api_servers=1, log_level="warning", generate_client_file=False, access_log=False)
