"""TorchServe: one handler for tensors and pictures, of which the name of the model says which. It gets a batch and answers one."""

import json

from engine import Engine, classes, pixels


class Handler:
    def initialize(self, context):
        self.images = context.manifest["model"]["modelName"] == "image"
        self.engine = Engine("resnet18" if self.images else context.manifest["model"]["modelName"])

    def handle(self, data, context):
        read = pixels if self.images else self.engine.tensor
        rows = self.engine.run_all([read(item["body"]) for item in data])
        return [json.dumps(classes(row[0])) if self.images else row.tobytes() for row in rows]
