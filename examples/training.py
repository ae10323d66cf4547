"""What the training scripts do alike: the loop, the comparison with ONNX Runtime, and the folder that is written."""

import itertools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

STARTED = time.monotonic()
TOLD = 20  # times that the loop says how it goes


def say(text):
    """A line with the time since the script started."""
    print(f"{time.monotonic() - STARTED:5.0f} s  {text}", flush=True)


# --- Training -------------------------------------------------------------------------------------------------------


def shuffled(count, batch, rng):
    """Endlessly the indices of a batch out of `count` items: all in a new order, then all in another one."""
    while True:
        order = rng.permutation(count)
        for i in range(count // batch):
            yield order[i * batch : (i + 1) * batch]


def adam(parameters, gradients, state, step, rate, decay):
    """One step of Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019); `step` from 1."""
    first, second = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)

    def update(p, m, v):
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        return p - rate * (m_hat / (jnp.sqrt(v_hat) + 1e-8) + decay * p)

    return jax.tree.map(update, parameters, first, second), (first, second)


def cosine(step, steps, peak, warm_up):
    """Learning rate: a linear start over `warm_up` steps, then half a cosine down to zero."""
    rising = step / warm_up
    falling = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((step - warm_up) / (steps - warm_up), 0, 1)))
    return peak * jnp.where(step < warm_up, rising, falling)


def train(parameters, loss, batches, steps, rate, warm_up=100, decay=1e-4, norm_max=None):
    """The parameters after `steps` batches, with which `loss(parameters, *batch)` is small.

    `rate` is the largest learning rate, and `norm_max` what longer gradients are shortened to.
    """

    @jax.jit
    def one(parameters, state, step, batch):
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        if norm_max is not None:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, norm_max / (norm + 1e-6)), gradients)
        now = cosine(step, steps, rate, warm_up)
        parameters, state = adam(parameters, gradients, state, step, now, decay)
        return parameters, state, value

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state, values = (zeros, zeros), []
    for step, batch in enumerate(itertools.islice(batches, steps), 1):
        parameters, state, value = one(parameters, state, step, batch)
        values.append(float(value))
        if len(values) == max(1, steps // TOLD) or step == steps:
            say(f"step {step} of {steps}: loss {np.mean(values):.4f}")
            values.clear()
    return parameters


# --- What is written ----------------------------------------------------------------------------------------------------

INPUT = """\
[input]
resize = "{resize}"
filter = "bilinear"
color = "gray"
scale = 0.00392156862745098 # 1/255
mean = [0.0]
std = [1.0]
"""


def session(folder):
    """The model of a folder, in ONNX Runtime."""
    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def agreement(got, expected, most):
    """The largest difference of ONNX Runtime from JAX, which may be `most`."""
    largest = float(np.abs(got - np.asarray(expected)).max())
    say(f"ONNX against JAX: largest difference {largest:.2e}")
    assert largest < most, "the exported graph is not the trained network"
    return largest


def write(folder, script, manifest, labels, readme, training, largest):
    """Writes all of a model's folder but the model: manifest, labels if there are any, and how it was trained."""
    (folder / "model.toml").write_text(manifest)
    if labels:
        (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (folder / "README.md").write_text(readme)
    training = {
        "script": f"examples/{script}",
        **training,
        "onnx_against_jax_largest_difference": float(f"{largest:.2e}"),
        "seconds": round(time.monotonic() - STARTED),
    }
    (folder / "training.json").write_text(json.dumps(training, indent=2) + "\n")


def write_pictures(folder, files):
    """Puts these files, bytes by their names, in place of the pictures of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
