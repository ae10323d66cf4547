"""Trains the example detector `models/digits-detector` and writes its whole folder, with pictures to post.

    pip install -r examples/requirements.txt
    python examples/train_detector.py          # about ten minutes on one core

The pictures are composed from the same handwritten digits as the classifier's: one to six digits of any size and
place on a noisy grey background. The digits in the held-out pictures are held out too. What is reported is measured
with ONNX Runtime on pictures of many sizes, letterboxed by Pillow as `model.toml` says, in pixels of the picture.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import training
from composed import compose, letterbox
from digits import Graph, conv, conv_init, png, read_grey, split
from PIL import Image

SEED = 20
PICTURES = 8000
EPOCHS = 8
BATCH = 32
RATE = 1.5e-3
SIDE = 128  # pixels: side of the network's input
STRIDE = 8  # pixels of input per cell of the grid
CELLS = SIDE // STRIDE
SCORE_MIN = 0.4
IOU_MAX = 0.5
HELD_OUT_PICTURES = 400
HERE = Path(__file__).parent
FOLDER = HERE / "models" / "digits-detector"
IMAGES = HERE / "images" / "digits-detector"

MANIFEST = f"""\
# Finds handwritten digits, bright ink on darker ground. Trained by examples/train_detector.py; how well: training.json.
task = "detect"
labels = "labels.txt"

{training.INPUT.format(resize="letterbox")}
[detect]
format = "yolo"
score_min = {SCORE_MIN}
iou_max = {IOU_MAX}

[batch]
items_max = 16
"""

README = """\
# digits-detector

Finds handwritten digits in a picture. It has one output `[N, 4 + 10, 256]`, as YOLO v8 exports it: centre, width and
height in pixels of the 128x128 input, then one score for each digit. It was trained from scratch by
`examples/train_detector.py` (seed {seed}) on {pictures} pictures composed from scikit-learn's bundled handwritten digits.

Measured on {held_out} held-out pictures with {truths} digits, none of which was seen in training. Their sides are 96 to 400
pixels, and they are letterboxed. Boxes are compared in pixels of the picture at an IoU of 0.5:

| precision | recall | mAP@0.5 |
|---|---|---|
| {precision:.1%} | {recall:.1%} | {map50:.1%} |

Precision and recall are measured at `score_min = {score_min}`, after class-wise NMS at `iou_max = {iou_max}`.

    curl -T examples/images/digits-detector/0.png http://127.0.0.1:8000/predictions/digits-detector

`examples/images/digits-detector/truth.json` has the true boxes of the pictures beside it (also held out), as
`[x0, y0, x1, y1]` in pixels. The model expects bright ink on darker ground, at least a seventh of the picture's longer
side high.
"""


# --- Cells -------------------------------------------------------------------------------------------------------------

CENTRES = (np.arange(CELLS) + 0.5) * STRIDE
GRID_X = np.tile(CENTRES, CELLS).astype(np.float32)  # of each cell, row by row
GRID_Y = np.repeat(CENTRES, CELLS).astype(np.float32)


def targets(truths):
    """For each cell its digit (-1: none) and its box; cells near the middle of a box answer for it."""
    digit, box = np.full(CELLS * CELLS, -1, np.int32), np.zeros((CELLS * CELLS, 4), np.float32)
    for x0, y0, x1, y1, d in sorted(truths.tolist(), key=lambda t: -(t[2] - t[0]) * (t[3] - t[1])):
        cx, cy, w, h = (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0
        near = (np.abs(GRID_X - cx) <= max(w / 4, 4.01)) & (np.abs(GRID_Y - cy) <= max(h / 4, 4.01))
        digit[near], box[near] = d, (x0, y0, x1, y1)
    return digit, box


# --- Network --------------------------------------------------------------------------------------------------------

BACKBONE = [("c1", 3, 1, 16, 2), ("c2", 3, 16, 32, 2), ("c3", 3, 32, 32, 1), ("c4", 3, 32, 48, 2)]
BLOCKS = ["b1", "b2", "b3"]  # each: x + two convolutions of 48 channels


def init(key):
    keys = iter(jax.random.split(key, 16))
    p = {name: conv_init(next(keys), size, i, o) for name, size, i, o, _ in BACKBONE}
    for name in BLOCKS:
        p[f"{name}.a"] = conv_init(next(keys), 3, 48, 48)
        p[f"{name}.b"] = conv_init(next(keys), 3, 48, 48, gain=0.3)
    p["neck"] = conv_init(next(keys), 3, 48, 64)
    p["score"] = conv_init(next(keys), 1, 64, 10, gain=0.1)
    p["score"]["b"] = p["score"]["b"] - 4.0  # digits are rare: start from scores near 0.02
    p["box"] = conv_init(next(keys), 1, 64, 4, gain=0.1)
    p["box"]["b"] = jnp.array([0.0, 0.0, 1.2, 1.5])
    return p


def forward(p, x):
    """`[n, SIDE, SIDE]` to score logits `[n, cells, 10]` and boxes `[n, cells, 4]` (centre, size, in pixels)."""
    x = x[..., None]
    for name, _, _, _, stride in BACKBONE:
        x = jax.nn.relu(conv(x, p[name], stride))
    for name in BLOCKS:
        x = jax.nn.relu(x + conv(jax.nn.relu(conv(x, p[f"{name}.a"])), p[f"{name}.b"]))
    x = jax.nn.relu(conv(x, p["neck"]))
    score = conv(x, p["score"], 1, 0).reshape(-1, CELLS * CELLS, 10)
    raw = conv(x, p["box"], 1, 0).reshape(-1, CELLS * CELLS, 4)
    centre = raw[..., :2] * STRIDE + jnp.stack([GRID_X, GRID_Y], -1)
    return score, jnp.concatenate([centre, jnp.exp(raw[..., 2:]) * STRIDE], -1)


def export(p, path):
    graph = Graph()
    x = "image"
    for name, _, _, _, stride in BACKBONE:
        x = graph.conv_relu(x, p[name], name, stride)
    for name in BLOCKS:
        y = graph.conv(graph.conv_relu(x, p[f"{name}.a"], f"{name}.a"), p[f"{name}.b"], f"{name}.b")
        x = graph.node("Relu", [graph.node("Add", [x, y], f"{name}.sum")], name)
    x = graph.conv_relu(x, p["neck"], "neck")

    def flat(layer, channels):
        y = graph.conv(x, p[layer], layer, 1, 0)
        shape = graph.weight(f"{layer}.shape", np.array([0, channels, CELLS * CELLS], np.int64))
        return graph.node("Reshape", [y, shape], f"{layer}.flat")

    scores = graph.node("Sigmoid", [flat("score", 10)], "scores")
    halves = graph.weight("halves", np.array([2, 2], np.int64))
    graph.nodes.append(_split(flat("box", 4), halves))
    stride = graph.weight("stride", np.float32(STRIDE))
    grid = graph.weight("grid", np.stack([GRID_X, GRID_Y])[None])
    centre = graph.node("Add", [graph.node("Mul", ["box.centre", stride], "centre.cells"), grid], "centre")
    size = graph.node("Mul", [graph.node("Exp", ["box.size"], "size.cells"), stride], "size")
    graph.node("Concat", [centre, size, scores], "detections", axis=1)
    graph.save(
        path,
        {"image": ["N", 1, SIDE, SIDE]},
        {"detections": ["N", 14, CELLS * CELLS]},
        "Handwritten digits in a picture; see examples/train_detector.py",
    )


def _split(x, sizes):
    from onnx import helper

    return helper.make_node("Split", [x, sizes], ["box.centre", "box.size"], name="split", axis=1)


# --- Training -------------------------------------------------------------------------------------------------------


def giou(a, b):
    """Generalised IoU (Rezatofighi et al. 2019) of boxes given by their corners."""

    def area(box):
        return (box[..., 2] - box[..., 0]).clip(0) * (box[..., 3] - box[..., 1]).clip(0)

    inner = jnp.concatenate([jnp.maximum(a[..., :2], b[..., :2]), jnp.minimum(a[..., 2:], b[..., 2:])], -1)
    outer = jnp.concatenate([jnp.minimum(a[..., :2], b[..., :2]), jnp.maximum(a[..., 2:], b[..., 2:])], -1)
    union = area(a) + area(b) - area(inner)
    hull = area(outer) + 1e-6
    return area(inner) / (union + 1e-6) - (hull - union) / hull


def loss(p, x, digit, box):
    """Of each cell which digit it answers for, if any, and of those that do where its box is."""
    score, predicted = forward(p, x)
    found = digit >= 0
    count = found.sum().clip(1)
    truth = jax.nn.one_hot(digit, 10)  # all zero where there is none
    probability = jax.nn.sigmoid(score)
    entropy = -(truth * jax.nn.log_sigmoid(score) + (1 - truth) * jax.nn.log_sigmoid(-score))
    focal = (entropy * jnp.abs(truth - probability) ** 1.5).sum() / count  # Lin et al. 2017
    half = predicted[..., 2:] / 2
    corners = jnp.concatenate([predicted[..., :2] - half, predicted[..., :2] + half], -1)
    boxes = jnp.where(found, 1 - giou(corners, box), 0).sum() / count
    return focal + 1.5 * boxes


# --- Measuring ------------------------------------------------------------------------------------------------------


def iou(box, boxes):
    """IoU of one box with each of `boxes`, corners in pixels."""
    w = (np.minimum(box[2], boxes[:, 2]) - np.maximum(box[0], boxes[:, 0])).clip(0)
    h = (np.minimum(box[3], boxes[:, 3]) - np.maximum(box[1], boxes[:, 1])).clip(0)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return w * h / ((box[2] - box[0]) * (box[3] - box[1]) + area - w * h)


def detections(output, scale, left, top, score_min):
    """One picture's output `[14, cells]` to rows `x0, y0, x1, y1, digit, score` in its pixels, after class-wise NMS."""
    rows = []
    for digit in range(10):
        scores = output[4 + digit]
        for i in np.argsort(-scores):
            if scores[i] < score_min:
                break
            cx, cy, w, h = output[:4, i]
            box = (np.array([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]) - [left, top, left, top]) / scale
            kept = np.array([r[:4] for r in rows if r[4] == digit]).reshape(-1, 4)
            if not (iou(box, kept) > IOU_MAX).any():
                rows.append([*box, digit, scores[i]])
    return np.array(rows).reshape(-1, 6)


def matches(found, truths):
    """For each detection, best score first, whether it hits a true box of its digit that is still free; IoU >= 0.5."""
    free, hits = np.ones(len(truths), bool), []
    found = found[np.argsort(-found[:, 5])]
    for row in found:
        overlap = np.where(free & (truths[:, 4] == row[4]), iou(row, truths), 0)
        best = overlap.argmax() if len(truths) else -1
        hits.append(len(truths) > 0 and overlap[best] >= 0.5)
        if hits[-1]:
            free[best] = False
    return found, np.array(hits, bool)


def average_precision(scores, hits, truths):
    """Area under the precision-recall curve, precision made monotone, all points."""
    order = np.argsort(-scores)
    true = np.cumsum(hits[order])
    precision = true / np.arange(1, len(true) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    recall = true / truths
    return float(np.sum(precision * np.diff(recall, prepend=0)))


def measure(session, held_out):
    """Precision and recall at `SCORE_MIN`, and the mean over the digits of the average precision at an IoU of 0.5."""
    found, hits, truths = [], [], []
    for file, true in held_out:
        x, scale, left, top = letterbox(read_grey(file), SIDE)
        output = session.run(None, {"image": x[None, None]})[0][0]
        rows, hit = matches(detections(output, scale, left, top, 0.01), true)
        found.append(rows)
        hits.append(hit)
        truths.append(true)
    found, hits, truths = np.concatenate(found), np.concatenate(hits), np.concatenate(truths)
    sure = found[:, 5] >= SCORE_MIN
    ap = [
        average_precision(found[found[:, 4] == d, 5], hits[found[:, 4] == d], (truths[:, 4] == d).sum())
        for d in range(10)
    ]
    return hits[sure].mean(), hits[sure].sum() / len(truths), float(np.mean(ap)), len(truths)


def main():
    pictures, digits, held_out_pictures, held_out_digits = split(SEED)
    rng = np.random.default_rng(SEED)
    x = np.zeros((PICTURES, SIDE, SIDE), np.float32)
    digit, box = np.zeros((PICTURES, CELLS * CELLS), np.int32), np.zeros((PICTURES, CELLS * CELLS, 4), np.float32)
    for i in range(PICTURES):
        picture, truths, _ = compose(pictures, digits, rng)
        x[i], scale, left, top = letterbox(Image.fromarray(picture), SIDE)
        truths[:, :4] = truths[:, :4] * scale + [left, top, left, top]
        digit[i], box[i] = targets(truths)
    held_out = [
        (png(picture), truths)
        for picture, truths, _ in (compose(held_out_pictures, held_out_digits, rng) for _ in range(HELD_OUT_PICTURES))
    ]
    training.say(f"composed {PICTURES} pictures")

    batches = ((x[chosen], digit[chosen], box[chosen]) for chosen in training.shuffled(PICTURES, BATCH, rng))
    steps = EPOCHS * (PICTURES // BATCH)
    parameters = training.train(init(jax.random.key(SEED)), loss, batches, steps, RATE, norm_max=5.0)

    FOLDER.mkdir(parents=True, exist_ok=True)
    export(parameters, FOLDER / "model.onnx")
    session = training.session(FOLDER)
    sample = np.stack([letterbox(read_grey(f), SIDE)[0] for f, _ in held_out[:16]])
    got = session.run(None, {"image": sample[:, None]})[0]
    score, expected = forward(parameters, sample)
    expected = np.concatenate([expected, jax.nn.sigmoid(score)], -1).transpose(0, 2, 1)
    largest = training.agreement(got, expected, 1e-2)  # of pixels and scores
    precision, recall, map50, truths = measure(session, held_out)
    training.say(f"{truths} held-out digits: precision {precision:.3f}, recall {recall:.3f}, mAP@0.5 {map50:.3f}")
    assert precision >= 0.9 and recall >= 0.9, "not good enough to ship"

    readme = README.format(
        seed=SEED, pictures=PICTURES, held_out=len(held_out), truths=truths, precision=precision, recall=recall,
        map50=map50, score_min=SCORE_MIN, iou_max=IOU_MAX,
    )  # fmt: skip
    report = {
        "seed": SEED,
        "epochs": EPOCHS,
        "train_pictures": PICTURES,
        "held_out_pictures": len(held_out),
        "held_out_digits": int(truths),
        "score_min": SCORE_MIN,
        "iou_max": IOU_MAX,
        "precision": round(float(precision), 4),
        "recall": round(float(recall), 4),
        "map_at_iou_0.5": round(map50, 4),
    }
    training.write(FOLDER, "train_detector.py", MANIFEST, range(10), readme, report, largest)
    several = [(file, true) for file, true in held_out if len(true) >= 3][:4]
    training.write_pictures(IMAGES, {f"{i}.png": file for i, (file, _) in enumerate(several)})
    boxes = {
        f"{i}.png": [{"box": [int(v) for v in row[:4]], "label": str(int(row[4]))} for row in true]
        for i, (_, true) in enumerate(several)
    }
    (IMAGES / "truth.json").write_text(json.dumps(boxes, indent=2) + "\n")


if __name__ == "__main__":
    main()
