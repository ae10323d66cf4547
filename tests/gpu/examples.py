"""Every example through HTTP, on the GPU."""

import csv
import json
import math

import machine
from registry import Skipped, check, need
from served import Server

ON_GPU = '\n[placement]\ndevices = "gpu"\nfallback = "never"\n'


def serve(run, name, **options):
    source = run.root() / "examples/models" / name
    return Server(run, {name: (source, ON_GPU)}, backend="gpu", **options)


def rows_of(reply):
    """The rows of CSV as dictionaries."""
    lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def localize(run, server, query="format=csv&units=px", model="spots"):
    movie = (run.root() / "examples/images/spots.tif").read_bytes()
    reply = server.ask("POST", f"/predictions/{model}?{query}", movie)
    need(reply.status == 200, f"status {reply.status}: {reply.body[:200]!r}")
    return reply


def against_truth(run, rows):
    """Of the true spots, the part that has a found one within 1 px; and how far those are off along one axis, px."""
    found = {}
    for row in rows:
        found.setdefault(int(row["frame"]), []).append((float(row["x_px"]), float(row["y_px"])))
    with open(run.root() / "examples/images/spots-truth.csv") as file:
        truth = [(int(row["frame"]), float(row["x_px"]), float(row["y_px"])) for row in csv.DictReader(file)]
    nearest = [min((math.hypot(x - fx, y - fy) for fx, fy in found.get(frame, [])), default=9.0) for frame, x, y in truth]
    near = [distance for distance in nearest if distance < 1]
    need(near, "no true spot was found")
    return len(near) / len(truth), math.sqrt(sum(distance**2 for distance in near) / len(near) / 2)


@check("example-spots", "the movie of single molecules through HTTP, against where they are and what the CPU finds")
def example_spots(run):
    server = serve(run, "spots")
    reply = localize(run, server)
    need(reply.device().startswith(("GPU-", "MIG-")), f"answered by {reply.device()!r}")
    rows = rows_of(reply)
    server.need_pinned()
    server.stop()
    found, off = against_truth(run, rows)
    run.number("spots_found", found)
    run.number("spots_rms_px", off)
    source = run.root() / "examples/models/spots"
    on_cpu = Server(run, {"spots": (source, "")}, name="on-cpu", backend="cpu")
    expected_rows = rows_of(localize(run, on_cpu))
    on_cpu.stop()
    expected_found, expected_off = against_truth(run, expected_rows)
    need(len(rows) == len(expected_rows), f"{len(rows)} spots, and {len(expected_rows)} on the CPU")
    need(abs(found - expected_found) < 0.002, f"{found} of the true spots were found, and {expected_found} on the CPU")
    need(abs(off - expected_off) < 0.005, f"spots are {off:.3f} px off, and {expected_off:.3f} on the CPU")
    need(found > 0.6 and off < 0.3, f"{100 * found:.0f} % were found, {off:.3f} px off")


def need_networks(run):
    """Skips the check where no network can run on the GPU."""
    if machine.onnx_runtime() is None:
        raise Skipped("there is no ONNX Runtime: ORT_DYLIB_PATH names one")
    if not run.rehearsal and "GPU_CHECKS_NETWORKS" not in run.machine.libraries:
        raise Skipped(f"{machine.onnx_runtime()} is a build for the CPU: ORT_DYLIB_PATH names one for CUDA")


@check("example-digits", "pictures of digits through HTTP")
def example_digits(run):
    need_networks(run)
    read_digits(run)


@check("example-digits-process", "the same, the engine in a process of its own")
def example_digits_of_a_process(run):
    need_networks(run)
    read_digits(run, isolation="process", isolation_bytes="16MiB")


def read_digits(run, **options):
    server = serve(run, "digits", **options)
    right, pictures = 0, sorted((run.root() / "examples/images/digits").glob("*.png"))
    for picture in pictures:
        reply = server.ask("POST", "/predictions/digits", picture.read_bytes())
        need(reply.status == 200, f"{picture.name}: status {reply.status}: {reply.body[:200]!r}")
        need(reply.device().startswith(("GPU-", "MIG-")), f"answered by {reply.device()!r}")
        right += reply.json()["classes"][0]["label"] == picture.name[0]
    run.number("digits_right", right / len(pictures))
    need(right == len(pictures), f"{right} of {len(pictures)} digits were read rightly")
    server.need_pinned()
    server.stop()


def overlap(a, b):
    """Intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / area


@check("example-digits-detector", "pictures with several digits through HTTP")
def example_detector(run):
    need_networks(run)
    server = serve(run, "digits-detector")
    folder = run.root() / "examples/images/digits-detector"
    found = all_boxes = 0
    for picture, boxes in json.loads((folder / "truth.json").read_text()).items():
        reply = server.ask("POST", "/predictions/digits-detector", (folder / picture).read_bytes())
        need(reply.status == 200, f"{picture}: status {reply.status}: {reply.body[:200]!r}")
        need(reply.device().startswith(("GPU-", "MIG-")), f"answered by {reply.device()!r}")
        seen = reply.json()["detections"]
        for truth in boxes:
            all_boxes += 1
            found += any(d["label"] == truth["label"] and overlap(d["box"], truth["box"]) >= 0.5 for d in seen)
    run.number("boxes_found", found / all_boxes)
    need(found >= 0.9 * all_boxes, f"{found} of {all_boxes} digits were found")
    server.stop()


def answers(run, model, query="", gpu=True):
    """What a model answers on its example's pictures, by their names, on the GPU or on the CPU."""
    source = run.root() / "examples/models" / model
    server = serve(run, model) if gpu else Server(run, {model: (source, "")}, name="on-cpu", backend="cpu")
    found = {}
    for picture in sorted((run.root() / "examples/images" / model).glob("*.png")):
        if picture.stem.endswith("truth"):
            continue
        reply = server.ask("POST", f"/predictions/{model}{query}", picture.read_bytes())
        need(reply.status == 200, f"{picture.name}: status {reply.status}: {reply.body[:200]!r}")
        need(reply.device().startswith(("GPU-", "MIG-")) == gpu, f"answered by {reply.device()!r}")
        found[picture.name] = reply.json()
    server.stop()
    return found


def classes_of(mask):
    """The class of each pixel, column by column, by the run lengths of each class."""
    pixels = bytearray(mask["width"] * mask["height"])
    for runs in mask["rle"]:
        at = 0
        for number, length in enumerate(runs["counts"]):
            if number % 2:
                pixels[at : at + length] = bytes([runs["index"]]) * length
            at += length
    return pixels


@check("example-digits-segmenter", "the classes of pixels through HTTP, against those that the CPU finds")
def example_segmenter(run):
    need_networks(run)
    on_cpu = answers(run, "digits-segmenter", "?mask=rle", gpu=False)
    same = pixels = 0
    for name, reply in answers(run, "digits-segmenter", "?mask=rle").items():
        found, expected = classes_of(reply["mask"]), classes_of(on_cpu[name]["mask"])
        need(len(found) == len(expected) and any(expected), f"{name}: {len(found)} pixels, and {len(expected)} on the CPU")
        same += sum(a == b for a, b in zip(found, expected))
        pixels += len(expected)
    run.number("pixels_same", same / pixels)
    # Where two classes are as likely, rounding decides.
    need(same >= 0.999 * pixels, f"{pixels - same} of {pixels} pixels have another class than on the CPU")


@check("example-digits-embedder", "vectors of digits through HTTP, against those of the CPU")
def example_embedder(run):
    need_networks(run)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))  # noqa: E731
    on_cpu = {name: reply["vector"] for name, reply in answers(run, "digits-embedder", gpu=False).items()}
    found = {name: reply["vector"] for name, reply in answers(run, "digits-embedder").items()}
    least = min(dot(vector, on_cpu[name]) for name, vector in found.items())
    run.number("cosine_least", least)
    # TF32 has 10 bits of mantissa.
    need(least > 0.999, f"a vector and the CPU's have a cosine of {least}")
    nearest = {a: max((b for b in found if b != a), key=lambda b: dot(found[a], found[b])) for a in found}
    right = sum(a[0] == b[0] for a, b in nearest.items())
    need(right >= 0.9 * len(found), f"{right} of {len(found)} pictures are nearest to one of the same digit")
