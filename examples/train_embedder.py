"""Trains the example embedder `models/digits-embedder` and writes its whole folder, with pictures to post.

    pip install -r examples/requirements.txt
    python examples/train_embedder.py          # about a minute on one core

Pictures of one digit become directions, near each other for the same digit. What is reported is measured with ONNX Runtime
on held-out PNG files, decoded and resized by Pillow as `model.toml` says.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import training
from digits import SIDE, Graph, as_served, conv, conv_init, posted, split, vary

SEED = 20
EPOCHS = 30
BATCH = 64
RATE = 2e-3
LENGTH = 16  # numbers of a vector
SHARPNESS, MARGIN = 16.0, 0.2  # of cosines, in the loss
HERE = Path(__file__).parent
FOLDER = HERE / "models" / "digits-embedder"
IMAGES = HERE / "images" / "digits-embedder"

MANIFEST = f"""\
# A direction for each picture of a handwritten digit, bright ink on black: near each other for the same digit. Trained by
# examples/train_embedder.py; how well: training.json.
task = "embed"

{training.INPUT.format(resize="stretch")}
[embed]
output = "embedding"
normalize = true # the dot product of two vectors is the cosine of their angle

[batch]
items_max = 32
"""

README = """\
# digits-embedder

Turns a picture of a handwritten digit into {length} numbers, a vector of length 1. The dot product of two vectors tells how
similar the pictures are: near 1 for the same digit. It is a small convolutional network, trained from scratch by
`examples/train_embedder.py` (seed {seed}) on scikit-learn's bundled handwritten digits: {train} pictures to train on,
{held_out} held out.

| on the held-out pictures | |
|---|---|
| the nearest of the {train} training pictures shows the same digit | {nearest:.2%} |
| the nearest of the other held-out pictures shows the same digit | {among:.2%} |
| of two pairs, one of the same digit and one not, the first is nearer | {auc:.2%} |
| dot product of pairs of the same digit, mean | {same:.2f} |
| dot product of pairs of two digits, mean | {other:.2f} |

This was measured with ONNX Runtime on PNG files that are decoded and resized as `model.toml` says. The split is random,
so the same hands wrote both parts. The model expects bright ink on black paper; the digit should fill most of the picture.

    curl -F a=@examples/images/digits-embedder/3-0.png -F b=@examples/images/digits-embedder/3-1.png \\
        http://127.0.0.1:8000/predictions/digits-embedder

`examples/images/digits-embedder` has the first two held-out pictures of each digit. The number before the dash is the digit.
"""

LAYERS = [("c1", 3, 1, 16, 1), ("c2", 3, 16, 24, 2), ("c3", 3, 24, 32, 2), ("c4", 3, 32, 48, 2)]


def init(key):
    keys = jax.random.split(key, len(LAYERS) + 2)
    p = {name: conv_init(k, size, i, o) for k, (name, size, i, o, _) in zip(keys, LAYERS)}
    p["embedding"] = conv_init(keys[-2], 4, 48, LENGTH, 1.0)
    p["proxies"] = jax.random.normal(keys[-1], (10, LENGTH))  # a direction for each digit, for training alone
    return p


def forward(p, x):
    """`[n, SIDE, SIDE]` in 0..1 to vectors `[n, LENGTH]` of any length."""
    x = x[..., None]
    for name, _, _, _, stride in LAYERS:
        x = jax.nn.relu(conv(x, p[name], stride))
    return conv(x, p["embedding"], 1, 0)[:, 0, 0, :]


def directions(x):
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)


def loss(p, x, y):
    """Softmax of cosines with a margin (Wang et al. 2018): the right direction has to win clearly."""
    cosines = directions(forward(p, x)) @ directions(p["proxies"]).T
    truth = jax.nn.one_hot(y, 10)
    return -(truth * jax.nn.log_softmax(SHARPNESS * (cosines - MARGIN * truth))).sum(-1).mean()


def export(p, path):
    graph = Graph()
    x = "image"
    for name, _, _, _, stride in LAYERS:
        x = graph.conv_relu(x, p[name], name, stride)
    x = graph.conv(x, p["embedding"], "embedding.conv", 1, 0)
    graph.node("Flatten", [x], "embedding", axis=1)
    graph.save(
        path,
        {"image": ["N", 1, SIDE, SIDE]},
        {"embedding": ["N", LENGTH]},
        "A direction for a handwritten digit; see examples/train_embedder.py",
    )


def measure(train, train_digits, held_out, held_out_digits):
    """How vectors of length 1 tell digits apart: the rows of the table in `README`, from the first."""
    nearest = (train_digits[(held_out @ train.T).argmax(1)] == held_out_digits).mean()
    cosines = held_out @ held_out.T
    others = np.where(np.eye(len(cosines), dtype=bool), -2, cosines)
    among = (held_out_digits[others.argmax(1)] == held_out_digits).mean()
    above = np.triu_indices(len(cosines), 1)
    same = (held_out_digits[:, None] == held_out_digits)[above]
    cosines = cosines[above]
    ranks = np.empty(len(cosines))
    ranks[cosines.argsort()] = np.arange(len(cosines))
    pairs = same.sum() * (~same).sum()
    auc = (ranks[same].sum() - same.sum() * (same.sum() - 1) / 2) / pairs  # Mann and Whitney's U
    return nearest, among, auc, cosines[same].mean(), cosines[~same].mean()


def main():
    pictures, digits, held_out, held_out_digits = split(SEED)
    train = np.stack([as_served(posted(p)) for p in pictures])
    rng = np.random.default_rng(SEED)
    batches = ((vary(train[chosen], rng), digits[chosen]) for chosen in training.shuffled(len(train), BATCH, rng))
    steps = EPOCHS * (len(train) // BATCH)
    parameters = training.train(init(jax.random.key(SEED)), loss, batches, steps, RATE, warm_up=50, decay=1e-3)

    FOLDER.mkdir(parents=True, exist_ok=True)
    export(parameters, FOLDER / "model.onnx")
    session = training.session(FOLDER)
    files = [posted(p) for p in held_out]
    x = np.stack([as_served(f) for f in files])
    vectors = session.run(None, {"image": x[:, None]})[0]
    largest = training.agreement(vectors, forward(parameters, x), 1e-3)
    known = np.asarray(directions(session.run(None, {"image": train[:, None]})[0]))
    nearest, among, auc, same, other = measure(known, digits, np.asarray(directions(vectors)), held_out_digits)
    training.say(
        f"held out: nearest of training {nearest:.2%}, nearest of held out {among:.2%}, AUC {auc:.4f}, "
        f"same {same:.3f}, other {other:.3f}"
    )
    assert nearest >= 0.97 and among >= 0.97, "not good enough to ship"

    readme = README.format(
        length=LENGTH, seed=SEED, train=len(train), held_out=len(files), nearest=nearest, among=among, auc=auc,
        same=same, other=other,
    )  # fmt: skip
    report = {
        "seed": SEED,
        "epochs": EPOCHS,
        "train_images": len(train),
        "held_out_images": len(files),
        "held_out_nearest_of_training_right": round(float(nearest), 4),
        "held_out_nearest_of_held_out_right": round(float(among), 4),
        "held_out_pairs_auc": round(float(auc), 4),
    }
    training.write(FOLDER, "train_embedder.py", MANIFEST, (), readme, report, largest)
    first_two = {
        f"{digit}-{number}.png": files[which]
        for digit in range(10)
        for number, which in enumerate(np.flatnonzero(held_out_digits == digit)[:2])
    }
    training.write_pictures(IMAGES, first_two)


if __name__ == "__main__":
    main()
