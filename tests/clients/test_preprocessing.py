"""The default pipeline of a classifier against Pillow and numpy, over a generated set of pictures."""

import re
import shutil
from pathlib import Path

import make_models
import numpy as np
import pytest
import reference
import wire

SEED = 11
COUNT = 240
SIDES = (64, 1600)
MEAN_MAX = 1.0  # of 255, per picture: the mean difference that we promise


@pytest.fixture(scope="module")
def pictures():
    """`(description, file)`: sides from 64 to 1600, JPEG of three chroma samplings and PNG, photo-like content."""
    rng = np.random.default_rng(SEED)
    out = []
    # Large pictures are cut out of a few that are drawn once; every cut shows another part at another size.
    sources = [make_models.picture(rng, SIDES[1], SIDES[1]) for _ in range(12)]
    for i in range(COUNT):
        w, h = np.exp(rng.uniform(*np.log(SIDES), 2)).astype(int)
        if max(w, h) > 4 * min(w, h):
            w = h = min(w, h)
        if i % 2:
            array = make_models.picture(rng, w, h) if w * h < 400 * 400 else sources[i % 12][:h, :w]
        else:
            x, y = rng.integers(0, SIDES[1] - w + 1), rng.integers(0, SIDES[1] - h + 1)
            array = sources[i % 12][y : y + h, x : x + w]
        if i % 4 == 3:
            out.append((f"{i}: {w}x{h} PNG", reference.encoded(array, "PNG", compress_level=1)))
        else:
            quality, subsampling, progressive = int(rng.integers(75, 96)), (2, 0, 1)[i // 4 % 3], i % 8 == 1
            data = reference.encoded(array, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
            name = f"{i}: {w}x{h} JPEG q{quality} {('4:4:4', '4:2:2', '4:2:0')[subsampling]}"
            out.append((name + (" progressive" if progressive else ""), data))
    return out


def test_what_the_log_tells_of_an_input_can_stand_in_the_manifest(server, models, start_server, tmp_path):
    told = re.compile(r'a picture becomes its input by: (.*) model="([^"]*)"')
    lines = {name: line for line, name in told.findall(Path(server.log).read_text())}
    assert {"digits", "digits-segmenter", "cnn", "pose", "segment-any"} <= lines.keys(), lines
    for name, line in lines.items():
        shutil.copytree(models / name, tmp_path / name)
        manifest = (models / name / "model.toml").read_text()
        # Its table, up to the next one.
        rest = re.sub(r"^\[input\]\n([^\[\n].*\n|\n)*", "", manifest, flags=re.MULTILINE)
        (tmp_path / name / "model.toml").write_text(f"{line}\n{rest}")
    again = start_server(tmp_path)
    assert {name: line for line, name in told.findall(Path(again.log).read_text())} == lines
    assert again.stop() == 0


def test_preprocessing_agrees_with_torchvision(server, pictures):
    rows = []
    for name, data in pictures:
        outputs, _ = wire.one(wire.post_image(server, "image-identity", data), "tensors")
        got = reference.pixels_of(wire.arrays(outputs)["pixels"].reshape(3, 224, 224))
        difference = np.abs(got - reference.torchvision_pixels(data))
        rows.append((difference.mean(), difference.max(), name))
    rows.sort(reverse=True)
    print(f"seed {SEED}, {len(rows)} pictures: mean |d| {np.mean([r[0] for r in rows]):.3f} of 255; the worst:")
    for mean, largest, name in rows[:8]:
        print(f"  mean {mean:.3f}, largest {largest:.1f}: {name}")
    assert rows[0][0] <= MEAN_MAX, rows[0]


def test_the_class_is_the_one_that_pillow_leads_to(server, models, pictures):
    session = reference.session(models / "cnn" / "model.onnx")
    expected, wrong = [], []
    for name, data in pictures:
        x = reference.normalised(reference.torchvision_pixels(data))
        logits = session.run(None, {"image": x[None]})[0][0]
        classes, _ = wire.one(wire.post_image(server, "cnn", data), "classify")
        expected.append(int(logits.argmax()))
        if classes[0]["index"] != expected[-1]:
            first, second = np.sort(logits)[:-3:-1]
            wrong.append(f"{name}: margin of the reference {first - second:.4f}")
    counts = np.bincount(expected, minlength=20)
    print(f"seed {SEED}: {len(pictures) - len(wrong)} of {len(pictures)} agree; classes occur {counts.tolist()} times")
    print("\n".join(wrong))
    # Agreement on one class that is always right would mean nothing.
    assert (counts > 0).sum() >= 8 and counts.max() <= len(pictures) / 2, counts
    assert len(wrong) <= 0.005 * len(pictures), wrong
