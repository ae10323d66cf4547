"""Trains the example classifier `models/digits` and writes its whole folder, with pictures to post.

    pip install -r examples/requirements.txt
    python examples/train_digits.py            # about a minute on one core

The network sees what the server will give it: the accuracy is measured with ONNX Runtime on held-out PNG files,
decoded and resized by Pillow as `model.toml` says.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import training
from digits import SIDE, Graph, as_served, conv, conv_init, posted, split, vary

SEED = 20
EPOCHS = 40
BATCH = 64
RATE = 2e-3
HERE = Path(__file__).parent
FOLDER = HERE / "models" / "digits"
IMAGES = HERE / "images" / "digits"

MANIFEST = f"""\
# Handwritten digits, bright ink on black. Trained by examples/train_digits.py; how well: training.json.
task = "classify"
labels = "labels.txt"

{training.INPUT.format(resize="stretch")}
[classify]
activation = "softmax"
top_k = 3

[batch]
items_max = 32
"""

README = """\
# digits

Tells which handwritten digit a picture shows. It is a small convolutional network, trained from scratch by
`examples/train_digits.py` (seed {seed}) on scikit-learn's bundled handwritten digits: {train} pictures to train on,
{held_out} held out.

**{accuracy:.2%} of the held-out pictures are classified correctly** ({right} of {held_out}), measured with ONNX Runtime on PNG files that
are decoded and resized as `model.toml` says. The split is random, so the same hands wrote both parts.

The model expects bright ink on black paper, as in the data: invert a photo of ink on white paper before you post it.
The digit should fill most of the picture.

    curl -T examples/images/digits/7-0.png http://127.0.0.1:8000/predictions/digits

The number before the dash in a file name of `examples/images/digits` is the true digit. Those files are all held out,
and chosen from the ones that are classified correctly: use them to try the server, not to measure it.
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


def loss(p, x, y, dropout_key):
    target = jax.nn.one_hot(y, 10) * 0.95 + 0.005
    return -(target * jax.nn.log_softmax(forward(p, x, dropout_key))).sum(-1).mean()


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
    pictures, digits, held_out, held_out_digits = split(SEED)
    train = np.stack([as_served(posted(p)) for p in pictures])
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    key, init_key = jax.random.split(key)

    def batches(key):
        for chosen in training.shuffled(len(train), BATCH, rng):
            key, dropout_key = jax.random.split(key)
            yield vary(train[chosen], rng), digits[chosen], dropout_key

    steps = EPOCHS * (len(train) // BATCH)
    parameters = training.train(init(init_key), loss, batches(key), steps, RATE, warm_up=50, decay=1e-3)

    FOLDER.mkdir(parents=True, exist_ok=True)
    export(parameters, FOLDER / "model.onnx")
    files = [posted(p) for p in held_out]
    x = np.stack([as_served(f) for f in files])
    logits = training.session(FOLDER).run(None, {"image": x[:, None]})[0]
    largest = training.agreement(logits, forward(parameters, x), 1e-3)
    right = int((logits.argmax(1) == held_out_digits).sum())
    accuracy = right / len(files)
    training.say(f"held out: {right} of {len(files)} right, {accuracy:.2%}")
    assert accuracy >= 0.97, "not good enough to ship"

    readme = README.format(seed=SEED, train=len(train), held_out=len(files), accuracy=accuracy, right=right)
    report = {
        "seed": SEED,
        "epochs": EPOCHS,
        "train_images": len(train),
        "held_out_images": len(files),
        "held_out_right": right,
        "held_out_accuracy": round(accuracy, 4),
    }
    training.write(FOLDER, "train_digits.py", MANIFEST, range(10), readme, report, largest)
    # The first of each kind that is named correctly: pictures to try the server with.
    named = [np.flatnonzero((held_out_digits == d) & (logits.argmax(1) == d))[0] for d in range(10)]
    training.write_pictures(IMAGES, {f"{digit}-0.png": files[first] for digit, first in enumerate(named)})


if __name__ == "__main__":
    main()
