"""Trains the example segmenter `models/digits-segmenter` and writes its whole folder, with pictures to post.

    pip install -r examples/requirements.txt
    python examples/train_segmenter.py         # some minutes on two cores

The pictures are those of the detector: one to six handwritten digits of any size and place on a noisy grey ground. The
digits in the held-out pictures are held out too. What is reported is measured with ONNX Runtime on pictures of many
sizes, letterboxed by Pillow as `model.toml` says, in pixels of the picture.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import training
from composed import compose, letterbox
from digits import Graph, conv, conv_init, png, read_grey, split
from PIL import Image

SEED = 20
PICTURES = 16000
EPOCHS = 4
BATCH = 16
RATE = 3e-3
SIDE = 96  # pixels: side of the network's input
CLASSES = 11  # the ground, and the ten digits
HELD_OUT_PICTURES = 400
HERE = Path(__file__).parent
FOLDER = HERE / "models" / "digits-segmenter"
IMAGES = HERE / "images" / "digits-segmenter"

MANIFEST = f"""\
# Which pixels are ink, and of which digit. Trained by examples/train_segmenter.py; how well: training.json.
task = "segment"
labels = "labels.txt"

{training.INPUT.format(resize="letterbox")}
[segment]
output = "scores"

[batch]
items_max = 16
"""

README = """\
# digits-segmenter

Says for each pixel of a picture whether it is ground or ink, and of which digit. It has one output `[N, 11, {side}, {side}]`: a
score for the ground and for each digit. It was trained from scratch by `examples/train_segmenter.py` (seed {seed}) on {pictures}
pictures composed from scikit-learn's bundled handwritten digits.

Measured on {held_out} held-out pictures, none of whose digits was seen in training. Their sides are 96 to 400 pixels, and they
are letterboxed. Masks are compared in pixels of the picture:

| pixels named correctly | IoU of ink, whatever digit | IoU, mean of the ten digits |
|---|---|---|
| {pixels:.1%} | {ink:.1%} | {digits:.1%} |

The network sees {side} x {side} pixels, so the edges of a mask are a pixel or two off in a large picture.

    curl -T examples/images/digits-segmenter/0.png -H 'Accept: image/png' http://127.0.0.1:8000/predictions/digits-segmenter -o mask.png

Beside each picture in `examples/images/digits-segmenter` (also held out) is the true class of each pixel, `0-truth.png`
for `0.png`: 0 is the ground, 1 the ink of a zero, and so on. The model expects bright ink on darker ground, at least a
seventh of the picture's longer side high.
"""


def classes_letterboxed(classes):
    """The class of each pixel of a picture as that of each pixel of the network's input; the bars are ground."""
    image = Image.fromarray(classes)
    scale = min(SIDE / image.width, SIDE / image.height)
    w, h = round(image.width * scale), round(image.height * scale)
    left, top = (SIDE - w) // 2, (SIDE - h) // 2
    out = np.zeros((SIDE, SIDE), np.uint8)
    out[top : top + h, left : left + w] = np.asarray(image.resize((w, h), Image.Resampling.NEAREST))
    return out


# --- Network: down to a sixteenth, and up again with what the way down saw -------------------------------------------

LAYERS = {  # name: size, channels in, channels out, stride
    "half.a": (3, 1, 12, 2),
    "half.b": (3, 12, 12, 1),
    "quarter.a": (3, 12, 24, 2),
    "quarter.b": (3, 24, 24, 1),
    "eighth.a": (3, 24, 36, 2),
    "eighth.b": (3, 36, 36, 1),
    "sixteenth.a": (3, 36, 64, 2),
    "sixteenth.b": (3, 64, 64, 1),
    "sixteenth.c": (3, 64, 64, 1),
    "eighth.up": (3, 64 + 36, 36, 1),
    "quarter.up": (3, 36 + 24, 24, 1),
    "half.up": (3, 24 + 12, 12, 1),
    "scores": (3, 12, CLASSES, 1),
}


def init(key):
    keys = jax.random.split(key, len(LAYERS))
    return {
        name: conv_init(k, size, channels_in, channels_out, 1.0 if name == "scores" else 2.0)
        for k, (name, (size, channels_in, channels_out, _)) in zip(keys, LAYERS.items())
    }


def forward(p, x):
    """`[n, SIDE, SIDE]` in 0..1 to scores `[n, SIDE, SIDE, CLASSES]`."""

    def layer(x, name):
        return jax.nn.relu(conv(x, p[name], LAYERS[name][3]))

    def twice(x):
        return x.repeat(2, 1).repeat(2, 2)

    half = layer(layer(x[..., None], "half.a"), "half.b")
    quarter = layer(layer(half, "quarter.a"), "quarter.b")
    eighth = layer(layer(quarter, "eighth.a"), "eighth.b")
    x = eighth
    for name in ("sixteenth.a", "sixteenth.b", "sixteenth.c"):
        x = layer(x, name)
    x = layer(jnp.concatenate([twice(x), eighth], -1), "eighth.up")
    x = layer(jnp.concatenate([twice(x), quarter], -1), "quarter.up")
    x = layer(jnp.concatenate([twice(x), half], -1), "half.up")
    x = conv(x, p["scores"])
    return jax.image.resize(x, (len(x), SIDE, SIDE, CLASSES), "bilinear")


def export(p, path):
    graph = Graph()
    scales = graph.weight("twice", np.array([1, 1, 2, 2], np.float32))

    def layer(x, name):
        return graph.conv_relu(x, p[name], name, LAYERS[name][3])

    def joined(x, skip, name):
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        x = graph.node("Resize", [x, "", scales], f"{name}.twice", **nearest)
        return graph.node("Concat", [x, skip], f"{name}.joined", axis=1)

    half = layer(layer("image", "half.a"), "half.b")
    quarter = layer(layer(half, "quarter.a"), "quarter.b")
    eighth = layer(layer(quarter, "eighth.a"), "eighth.b")
    x = eighth
    for name in ("sixteenth.a", "sixteenth.b", "sixteenth.c"):
        x = layer(x, name)
    x = layer(joined(x, eighth, "eighth.up"), "eighth.up")
    x = layer(joined(x, quarter, "quarter.up"), "quarter.up")
    x = layer(joined(x, half, "half.up"), "half.up")
    x = graph.conv(x, p["scores"], "scores.half")
    linear = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    graph.node("Resize", [x, "", scales], "scores", **linear)
    graph.save(
        path,
        {"image": ["N", 1, SIDE, SIDE]},
        {"scores": ["N", CLASSES, SIDE, SIDE]},
        "The ink of handwritten digits; see examples/train_segmenter.py",
    )


# --- Training -------------------------------------------------------------------------------------------------------


def loss(p, x, classes):
    return -(jax.nn.one_hot(classes, CLASSES) * jax.nn.log_softmax(forward(p, x))).sum(-1).mean()


# --- Measuring ------------------------------------------------------------------------------------------------------


def segmented(session, file):
    """The class of each pixel of a picture, as the server gives it."""
    image = read_grey(file)
    x, scale, left, top = letterbox(image, SIDE)
    classes = session.run(None, {"image": x[None, None]})[0][0].argmax(0)
    columns = (left + (np.arange(image.width) + 0.5) * scale).astype(int).clip(0, SIDE - 1)
    rows = (top + (np.arange(image.height) + 0.5) * scale).astype(int).clip(0, SIDE - 1)
    return classes[rows][:, columns]


def measure(session, held_out):
    """The part of pixels named correctly, the IoU of ink, and the mean of the digits' IoU; over all pictures together."""
    both = np.zeros((CLASSES, CLASSES), np.int64)  # true class, found class
    for file, true in held_out:
        np.add.at(both, (true.ravel(), segmented(session, file).ravel()), 1)
    inner = np.diag(both)
    digits = inner / (both.sum(0) + both.sum(1) - inner)
    ink = both[1:, 1:].sum() / (both.sum() - both[0, 0])
    return inner.sum() / both.sum(), ink, digits[1:].mean()


def main():
    pictures, digits, held_out_pictures, held_out_digits = split(SEED)
    rng = np.random.default_rng(SEED)
    x = np.zeros((PICTURES, SIDE, SIDE), np.float32)
    classes = np.zeros((PICTURES, SIDE, SIDE), np.uint8)
    for i in range(PICTURES):
        picture, _, true = compose(pictures, digits, rng)
        x[i], classes[i] = letterbox(Image.fromarray(picture), SIDE)[0], classes_letterboxed(true)
    held_out = [
        (png(picture), true)
        for picture, _, true in (compose(held_out_pictures, held_out_digits, rng) for _ in range(HELD_OUT_PICTURES))
    ]
    training.say(f"composed {PICTURES} pictures")

    batches = ((x[chosen], classes[chosen]) for chosen in training.shuffled(PICTURES, BATCH, rng))
    steps = EPOCHS * (PICTURES // BATCH)
    parameters = training.train(init(jax.random.key(SEED)), loss, batches, steps, RATE, norm_max=1.0)

    FOLDER.mkdir(parents=True, exist_ok=True)
    export(parameters, FOLDER / "model.onnx")
    session = training.session(FOLDER)
    sample = np.stack([letterbox(read_grey(file), SIDE)[0] for file, _ in held_out[:16]])
    got = session.run(None, {"image": sample[:, None]})[0].transpose(0, 2, 3, 1)
    largest = training.agreement(got, forward(parameters, sample), 1e-3)
    right, ink, mean = measure(session, held_out)
    training.say(f"held out: {right:.2%} of the pixels right, IoU of ink {ink:.3f}, of digits {mean:.3f}")
    assert right >= 0.95 and mean >= 0.7, "not good enough to ship"

    readme = README.format(
        seed=SEED, side=SIDE, pictures=PICTURES, held_out=len(held_out), pixels=right, ink=ink, digits=mean
    )
    report = {
        "seed": SEED,
        "epochs": EPOCHS,
        "train_pictures": PICTURES,
        "held_out_pictures": len(held_out),
        "held_out_pixels_right": round(float(right), 4),
        "iou_of_ink": round(float(ink), 4),
        "iou_of_digits_mean": round(float(mean), 4),
    }
    labels = ["ground", *range(10)]
    training.write(FOLDER, "train_segmenter.py", MANIFEST, labels, readme, report, largest)
    # The first large ones that show several digits and are no large files: pictures to try the server with.
    several = [
        (file, true)
        for file, true in held_out
        if len(np.unique(true)) >= 4 and min(true.shape) >= 180 and len(file) < 60_000
    ][:4]
    files = {}
    for i, (file, true) in enumerate(several):
        files |= {f"{i}.png": file, f"{i}-truth.png": png(true)}
    training.write_pictures(IMAGES, files)


if __name__ == "__main__":
    main()
