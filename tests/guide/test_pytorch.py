"""docs/pytorch.md, from top to bottom: its Python blocks make the models, its TOML blocks are their manifests, its commands check
and ask them, and PyTorch computes the same picture the way that the page says."""

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SERVER_BINARY", ROOT / "target" / "debug" / "ocelli")).resolve()
GUIDE = (ROOT / "docs" / "pytorch.md").read_text()
SEED = 20261122
LABELS = {"flowers": 5, "shop": 3, "street": 3}  # how many each has
SECONDS_MAX = 300
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def blocks(language):
    """The fenced blocks of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def run(folder, *command):
    environment = os.environ | {"PATH": f"{BINARY.parent}{os.pathsep}{os.environ['PATH']}", "OCELLI_BACKEND": "cpu"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the page takes as given (weights, labels, a photograph), after its blocks were run there."""
    folder = tmp_path_factory.mktemp("guide")
    print("seed", SEED)
    torch.manual_seed(SEED)
    with torch.no_grad():
        flowers = torchvision.models.resnet18(num_classes=5)
        shop = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
        street = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
        awake(flowers, flowers, 224)
        awake(shop, lambda image: shop.head(list(shop.backbone(image).values())), 320)
        awake(street, street, 256)
        flowers.fc.weight *= 5
    for name, model in {"flowers": flowers, "shop": shop, "street": street, "clean": cleaner()}.items():
        torch.save(model.state_dict(), folder / f"{name}.pt")
        (folder / "models" / name).mkdir(parents=True)
    for name in LABELS:
        (folder / "models" / name / "labels.txt").write_text("".join(f"{name} {n}\n" for n in range(LABELS[name])))
    (folder / "models" / "likeness").mkdir()
    Image.fromarray(photograph()).save(folder / "rose.jpg", quality=95)
    for code in blocks("python"):
        run(folder, sys.executable, "-c", code)
    for manifest in blocks("toml"):
        (folder / manifest.splitlines()[0].removeprefix("# ")).write_text(manifest)
    return folder


def cleaner():
    """The network of the page that makes pictures."""
    return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 3, 3, padding=1))


def awake(model, forward, side):
    """Gives random weights something to say: statistics of batch normalisation as they are for a picture, not those of no training."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    picture = torch.nn.functional.interpolate(torch.tensor(photograph()).permute(2, 0, 1)[None] / 127.5 - 1, (side, side))
    model.train()
    forward(torch.cat([picture, picture.flip(3)]))
    model.eval()


def photograph():
    """Something smooth with edges, 400 x 300."""
    y, x = np.mgrid[:300, :400].astype(np.float64)
    colors = [128 + 90 * np.sin(x / 37 + k) * np.cos(y / 29 - k) + 40 * ((x - 200) ** 2 + (y - 150) ** 2 < 80**2) for k in range(3)]
    return np.clip(np.stack(colors, -1), 0, 255).astype(np.uint8)


def exact(folder, side):
    """The photograph in the input's own size: random weights make so much of a little noise that resizing must not add any."""
    Image.open(folder / "rose.jpg").resize((side, side)).save(folder / f"{side}.png")
    return f"{side}.png"


def prepared(folder, *steps, image="rose.jpg"):
    """The photograph through torchvision's transforms, as a batch of one."""
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    resize = [step for step in steps if not isinstance(step, v2.Normalize)]
    normalize = [step for step in steps if isinstance(step, v2.Normalize)]
    return v2.Compose(resize + to_tensor + normalize)(Image.open(folder / image))[None]


def load(folder, model, name):
    model.load_state_dict(torch.load(folder / f"{name}.pt"))
    return model.eval()


def answer(folder, model, image="rose.jpg"):
    return json.loads(run(folder, "ocelli", "predict", "--models", "models", "--format", "json", model, image))


def test_the_commands_of_the_page_succeed(folder):
    commands = [line[2:] for text in blocks("console") for line in text.splitlines()]
    assert len(commands) == 10, commands
    for command in commands:
        printed = run(folder, "bash", "-c", command)
        print(f"$ {command}\n{printed}")
        if " check " in command:
            assert re.findall(r"^(\S+) .* ok$", printed, re.MULTILINE) == ["clean", "flowers", "likeness", "shop", "street"], printed
            assert printed.count("1,2,4,8") == 5, f"every model batches\n{printed}"


def test_the_classifier_answers_as_pytorch_does(folder):
    image = prepared(folder, v2.Resize(256), v2.CenterCrop(224), v2.Normalize(*IMAGENET))
    with torch.no_grad():
        expected = load(folder, torchvision.models.resnet18(num_classes=5), "flowers")(image).softmax(1)[0].numpy()
    got = {c["index"]: c["score"] for c in answer(folder, "flowers")["classes"]}
    worst = max(abs(got[i] - expected[i]) for i in range(5))
    print("probabilities", expected, "largest difference", worst)
    assert np.ptp(expected) > 0.1, "classes that say nothing prove nothing"
    assert worst < 0.02 and max(got, key=got.get) == int(expected.argmax())


def test_the_detector_finds_what_torchvision_finds(folder):
    detector = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4, score_thresh=0.01
    )
    image = exact(folder, 320)
    # It normalises, stretches and suppresses by itself, and gives its 300 best.
    with torch.no_grad():
        expected = load(folder, detector, "shop")(list(prepared(folder, image=image)))[0]
    got = answer(folder, "shop", image)["detections"]
    # The weakest of the 300 differ: each side cuts off what the other has just before the end.
    best = range(min(100, len(expected["scores"])))
    boxes, scores = [], []
    for i in best:
        box, label, score = expected["boxes"][i].numpy(), int(expected["labels"][i]) - 1, float(expected["scores"][i])
        same = min((d for d in got if d["index"] == label), key=lambda d: np.abs(np.array(d["box"]) - box).max())
        boxes.append(np.abs(np.array(same["box"]) - box).max())
        scores.append(abs(same["score"] - score))
    # Of NumPy: what is no number is the largest.
    worst_box, worst_score = np.max(boxes), np.max(scores)
    print(f"{len(best)} boxes, largest differences {worst_box} pixels, {worst_score} of the score")
    assert len(best) == 100 and worst_box < 0.05 and worst_score < 0.001


def test_the_segmenter_masks_as_pytorch_does(folder):
    image = exact(folder, 256)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    with torch.no_grad():
        scores = load(folder, model, "street")(prepared(folder, v2.Normalize(*IMAGENET), image=image))["out"]
    expected = scores.argmax(1)[0].numpy()
    png = base64.b64decode(answer(folder, "street", image)["mask"]["png"])
    got = np.array(Image.open(io.BytesIO(png)))
    differ = (got != expected).mean()
    print("shares of the classes", np.bincount(expected.ravel(), minlength=3) / expected.size, "differ", differ)
    assert (np.bincount(expected.ravel(), minlength=3) > 0.01 * expected.size).sum() >= 2
    assert differ < 0.001


def test_the_picture_is_what_pytorch_makes_of_the_image(folder):
    Image.fromarray(photograph()).save(folder / "rose.png")
    with torch.no_grad():
        made = load(folder, cleaner(), "clean")(prepared(folder, image="rose.png"))[0]
    expected = (made.clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    picture = answer(folder, "clean", "rose.png")["picture"]
    got = np.array(Image.open(io.BytesIO(base64.b64decode(picture["png"]))), float)
    print("largest difference", np.abs(got - expected).max())
    assert got.shape == (300, 400, 3) and np.abs(got - expected).max() <= 1


def test_the_vector_is_what_stands_before_the_last_layer(folder):
    image = prepared(folder, v2.Resize(256), v2.CenterCrop(224), v2.Normalize(*IMAGENET))
    model = load(folder, torchvision.models.resnet18(num_classes=5), "flowers")
    model.fc = torch.nn.Identity()
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model(image))[0].numpy()
    got = np.array(answer(folder, "likeness")["vector"])
    print("cosine", got @ expected)
    assert got @ expected > 0.999 and abs(np.linalg.norm(got) - 1) < 1e-4
