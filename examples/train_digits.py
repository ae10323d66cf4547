"""Trains the example classifier `models/digits` and writes its whole folder, with pictures to post.

    pip install -r examples/requirements.txt
    python examples/train_digits.py            # about a minute on one core

The network sees what the server will give it: the accuracy is measured with ONNX Runtime on held-out PNG files,
decoded and resized by Pillow as `model.toml` says.
"""

import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from digits import SIDE, Graph, adam, adam_init, as_served, conv, conv_init, cosine, posted, split, vary

SEED = 20
EPOCHS = 40
BATCH = 64
RATE = 2e-3
HERE = Path(__file__).parent
FOLDER = HERE / "models" / "digits"
IMAGES = HERE / "images" / "digits"

MANIFEST = """\
# Handwritten digits, bright ink on black. Trained by examples/train_digits.py; how well: training.json.
task = "classify"
labels = "labels.txt"

[input]
resize = "stretch"
filter = "bilinear"
color = "gray"
scale = 0.00392156862745098 # 1/255
mean = [0.0]
std = [1.0]

[classify]
activation = "softmax"
top_k = 3

[batch]
items_max = 32
"""

README = """\
# digits

Tells which handwritten digit a picture shows. A small convolutional network, trained from scratch by
`examples/train_digits.py` (seed {seed}) on scikit-learn's bundled handwritten digits: {train} pictures to train on,
{held_out} held out.

**{accuracy:.2%} of the held-out pictures are named correctly** ({right} of {held_out}), measured with ONNX Runtime on
PNG files that are decoded and resized as `model.toml` says. The split is random, so the same hands wrote both parts.

Bright ink on black paper, as in the data: invert a photo of ink on white paper before you post it. The digit should
fill most of the picture.

    curl -T examples/images/digits/7-0.png http://127.0.0.1:8000/predictions/digits

The number before the dash in a file name of `examples/images/digits` is the true digit. Those files are all held out,
and chosen from the ones that are named correctly: they are there to try the server with, not to measure it.
"""


LAYERS = [("c1", 3, 1, 16, 1, 1), ("c2", 3, 16, 32, 2, 1), ("c3", 3, 32, 48, 2, 1), ("c4", 3, 48, 64, 2, 1)]
HEAD = ("head", 4, 64, 10, 1, 0)  # name, size, channels in, channels out, stride, padding


def init(key):
    keys = jax.random.split(key, len(LAYERS) + 1)
    return {
        name: conv_init(k, size, channels_in, channels_out, 1.0 if name == "head" else 2.0)
        for k, (name, size, channels_in, channels_out, _, _) in zip(keys, [*LAYERS, HEAD])
    }


def forward(parameters, x, dropout_key=None):
    """`[n, SIDE, SIDE]` in 0..1 to logits `[n, 10]`."""
    x = x[..., None]
    for name, _, _, _, stride, pad in LAYERS:
        x = jax.nn.relu(conv(x, parameters[name], stride, pad))
    if dropout_key is not None:
        x = jnp.where(jax.random.bernoulli(dropout_key, 0.7, x.shape), x / 0.7, 0)
    return conv(x, parameters["head"], 1, 0)[:, 0, 0, :]


@partial(jax.jit, static_argnums=(6,))
def train_step(parameters, state, step, x, y, key, steps):
    def loss(p):
        target = jax.nn.one_hot(y, 10) * 0.95 + 0.005
        return -(target * jax.nn.log_softmax(forward(p, x, key))).sum(-1).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    parameters, state = adam(parameters, gradients, state, step, cosine(step, steps, RATE, 50), decay=1e-3)
    return parameters, state, value


def export(parameters, path):
    graph = Graph()
    x = "image"
    for name, _, _, _, stride, pad in LAYERS:
        x = graph.conv_relu(x, parameters[name], name, stride, pad)
    x = graph.conv(x, parameters["head"], "head", 1, 0)
    graph.node("Flatten", [x], "logits", axis=1)
    graph.save(
        path, {"image": ["N", 1, SIDE, SIDE]}, {"logits": ["N", 10]}, "Handwritten digits; see examples/train_digits.py"
    )


def main():
    started = time.monotonic()
    pictures, digits, held_out, held_out_digits = split(SEED)
    train = np.stack([as_served(posted(p)) for p in pictures])
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    key, init_key = jax.random.split(key)
    parameters = init(init_key)
    state, step = adam_init(parameters), 0
    steps = EPOCHS * (len(train) // BATCH)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(train))
        losses = []
        for i in range(len(train) // BATCH):
            chosen = order[i * BATCH : (i + 1) * BATCH]
            step += 1
            key, dropout_key = jax.random.split(key)
            parameters, state, value = train_step(
                parameters, state, step, vary(train[chosen], rng), digits[chosen], dropout_key, steps
            )
            losses.append(float(value))
        print(f"epoch {epoch + 1:2}/{EPOCHS}: loss {np.mean(losses):.4f}", flush=True)

    FOLDER.mkdir(parents=True, exist_ok=True)
    export(parameters, FOLDER / "model.onnx")
    session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
    files = [posted(p) for p in held_out]
    x = np.stack([as_served(f) for f in files])[:, None]
    logits = session.run(None, {"image": x})[0]
    largest = np.abs(logits - np.asarray(forward(parameters, x[:, 0]))).max()
    right = int((logits.argmax(1) == held_out_digits).sum())
    accuracy = right / len(files)
    print(f"held out: {right} of {len(files)} right, {accuracy:.2%}; ONNX against JAX: largest difference {largest:.2e}")
    assert largest < 1e-3, "the exported graph is not the trained network"
    assert accuracy >= 0.97, "not good enough to ship"

    (FOLDER / "model.toml").write_text(MANIFEST)
    (FOLDER / "labels.txt").write_text("".join(f"{d}\n" for d in range(10)))
    training = {
        "script": "examples/train_digits.py",
        "seed": SEED,
        "epochs": EPOCHS,
        "train_images": len(train),
        "held_out_images": len(files),
        "held_out_right": right,
        "held_out_accuracy": round(accuracy, 4),
        "onnx_against_jax_largest_difference": float(f"{largest:.2e}"),
        "seconds": round(time.monotonic() - started),
    }
    (FOLDER / "training.json").write_text(json.dumps(training, indent=2) + "\n")
    (FOLDER / "README.md").write_text(
        README.format(seed=SEED, train=len(train), held_out=len(files), accuracy=accuracy, right=right)
    )
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in IMAGES.glob("*.png"):
        old.unlink()
    for digit in range(10):  # the first of each kind that is named correctly: pictures to try the server with
        first = int(np.flatnonzero((held_out_digits == digit) & (logits.argmax(1) == digit))[0])
        (IMAGES / f"{digit}-0.png").write_bytes(files[first])


if __name__ == "__main__":
    main()
