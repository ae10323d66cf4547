"""What comes back for detectors, segmenters and embedders: in pixels of the picture that was posted."""

import base64
import io
import json

import make_models
import numpy as np
import reference
import requests
import wire
from conftest import EXAMPLES
from onnx import TensorProto
from PIL import Image

RED, GREEN, BLUE, DARK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 0, 0)


def test_the_example_detector_finds_the_digits_where_they_are(server):
    folder = EXAMPLES / "images" / "digits-detector"
    true_boxes, hits, found = 0, 0, 0
    for file, truths in json.loads((folder / "truth.json").read_text()).items():
        data = (folder / file).read_bytes()
        detections, reply = wire.one(wire.post_image(server, "digits-detector", data), "detect")
        width, height = Image.open(io.BytesIO(data)).size
        assert reply["image"] == {"width": width, "height": height}
        for d in detections:
            x0, y0, x1, y1 = d["box"]
            assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height and 0.4 <= d["score"] <= 1, d
        scores = [d["score"] for d in detections]
        assert scores == sorted(scores, reverse=True)
        true_boxes, found = true_boxes + len(truths), found + len(detections)
        hits += sum(
            any(d["label"] == t["label"] and reference.iou(d["box"], t["box"]) >= 0.5 for d in detections)
            for t in truths
        )
    print(f"{hits} of {true_boxes} digits found, {found} detections")
    assert hits >= 0.9 * true_boxes and hits >= 0.9 * found


def test_boxes_are_in_pixels_of_the_posted_picture(server):
    white = reference.png(np.full((320, 640, 3), 255, np.uint8))  # ten times 64 wide, five times 64 high
    detections, _ = wire.one(wire.post_image(server, "boxes", white), "detect")
    # The second box hides behind the first of its class; the fourth overlaps another class only and stays.
    expected = [
        ("cat", 0.9, [80, 40, 240, 120]),
        ("dog", 0.7, [400, 20, 600, 180]),
        ("cat", 0.6, [410, 25, 590, 185]),
        ("floor", 0.5, [0, 240, 640, 320]),
    ]
    assert [d["label"] for d in detections] == [label for label, _, _ in expected], detections
    for d, (_, score, box) in zip(detections, expected):
        assert abs(d["score"] - score) < 1e-3 and np.abs(np.subtract(d["box"], box)).max() < 0.1, (d, box)


def test_nothing_found_is_an_empty_list(server):
    black = reference.png(np.zeros((100, 50, 3), np.uint8))
    detections, _ = wire.one(wire.post_image(server, "boxes", black), "detect")
    assert detections == []
    assert wire.ok(wire.post_image(server, "boxes", black, query={"format": "torchserve"})) == []


def white(width, height):
    return reference.png(np.full((height, width, 3), 255, np.uint8))


def masked_detector():
    """TensorFlow's outputs with its names, of one box a picture that is as large as its mask is full."""
    g = make_models.Graph()
    mask = g.node("ReduceMean", g.node("Cast", "mask", to=TensorProto.FLOAT), axes=[1, 2], keepdims=1)
    nothing = g.node("Mul", g.node("ReduceMean", "image", axes=[1, 2], keepdims=1), g.constant(np.float32(0)))
    full = g.node("Add", mask, g.node("ReduceMean", nothing, axes=[3], keepdims=0))  # [N, 1, 1]
    g.node("Mul", full, g.constant(np.float32([0.25, 0.125, 0.5, 0.75])), output="detection_boxes:0")
    one = g.node("Squeeze", full, g.constant(np.int64([2])))  # [N, 1]
    g.node("Mul", one, g.constant(np.float32(0.9)), output="detection_scores:0")
    g.node("Mul", one, g.constant(np.float32(1)), output="detection_classes:0")
    inputs = [("image", TensorProto.FLOAT, ["n", 32, 32, 3]), ("mask", TensorProto.INT64, ["n", 4, 4])]
    shapes = {"boxes": ["n", 1, 4], "scores": ["n", 1], "classes": ["n", 1]}
    outputs = [(f"detection_{name}:0", TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    return g.bytes("masked", inputs, outputs)


def test_an_input_that_is_always_the_same_is_filled_for_each_picture(start_server, tmp_path):
    folder = tmp_path / "masked"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(masked_detector())
    manifest = 'task = "detect"\nlabels = "labels.txt"\n[input]\nresize = "stretch"\nconstants = { mask = 1 }\n'
    (folder / "model.toml").write_text(manifest)
    (folder / "labels.txt").write_text("person\nbicycle\n")
    server = start_server(tmp_path)
    sizes = [(400, 200), (80, 40), (16, 16), (64, 128)]
    replies = wire.many(wire.post_files(server, "masked", [("p", white(*size)) for size in sizes]), "detect", len(sizes))
    for (width, height), reply in zip(sizes, replies):
        [found] = reply["detections"]
        assert found["label"] == "person" and abs(found["score"] - 0.9) < 1e-3, found
        expected = [0.125 * width, 0.25 * height, 0.75 * width, 0.5 * height]
        assert np.abs(np.subtract(found["box"], expected)).max() < 0.1, (found, expected)
    assert "a picture becomes its input by: input = {" in server.log_text()


def test_keypoints_are_in_pixels_of_the_posted_picture_and_have_their_names(server):
    fish, _ = wire.one(wire.post_image(server, "pose", white(640, 320)), "detect")  # ten times 64 wide, five times 64 high
    expected = [
        ([80, 70, 320, 130], [("nose", 100, 100, 0.75), ("fin", 200, 90, 0.5), ("tail", 320, 100, 0.25)]),
        ([400, 160, 560, 280], [("nose", 480, 170, 0.7), ("fin", 460, 220, 0.6), ("tail", 480, 280, 0.5)]),
    ]
    assert len(fish) == len(expected), fish
    for found, (box, points) in zip(fish, expected):
        assert np.abs(np.subtract(found["box"], box)).max() < 0.1, found
        assert [point["label"] for point in found["keypoints"]] == [name for name, *_ in points]
        got = [[point["x"], point["y"], point["score"]] for point in found["keypoints"]]
        assert np.abs(np.subtract(got, [numbers for _, *numbers in points])).max() < 0.1, (got, points)
        assert "mask" not in found and "corners" not in found


def test_a_box_that_is_turned_has_its_corners_and_covers_what_it_shares_itself(server):
    ships, _ = wire.one(wire.post_image(server, "turned", white(128, 128)), "detect")
    assert [round(ship["score"], 2) for ship in ships] == [0.9, 0.8], "the third lies over the first"
    along, across = 20 / np.sqrt(2), 2 / np.sqrt(2)
    for ship, centre in zip(ships, [(30, 30), (24, 36)]):
        ends = [(along - across, along + across), (-along - across, across - along)]
        expected = [*ends, *np.negative(ends)]
        assert np.abs(np.subtract(ship["corners"], 2 * np.add(expected, centre))).max() < 0.05, ship
        around = np.concatenate([np.min(ship["corners"], axis=0), np.max(ship["corners"], axis=0)])
        assert np.abs(np.clip(around, 0, 128) - ship["box"]).max() < 1e-3, ship


def unrolled(mask):
    """The pixels `[height, width]` of run lengths, by pycocotools' rule: down the columns, beginning outside."""
    inside = np.repeat(np.arange(len(mask["counts"])) % 2, mask["counts"])
    assert inside.sum() == mask["pixels"]
    return inside.reshape(mask["width"], mask["height"]).T.astype(bool)


def test_masks_of_things_are_the_pixels_that_their_prototypes_tell_within_their_boxes(server):
    """Where a colour is brighter than half, by Pillow's bilinear enlargement of the network's own prototypes."""
    rng = np.random.default_rng(7)
    small = rng.integers(0, 256, (8, 8, 3), np.uint8)
    picture = Image.fromarray(small).resize((320, 192), Image.Resampling.BICUBIC)
    things, _ = wire.one(wire.post_image(server, "instances", reference.png(np.asarray(picture))), "detect")
    assert [thing["label"] for thing in things] == ["red", "blue"], things
    tiles = reference.stretched(reference.png(np.asarray(picture)), 64, "RGB").reshape(3, 32, 2, 32, 2).mean((2, 4)) - 0.5
    for thing, channel in zip(things, [0, 2]):
        values = Image.fromarray(tiles[channel].astype(np.float32)).resize((320, 192), Image.Resampling.BILINEAR)
        expected = np.asarray(values) > 0
        left, top, right, bottom = (round(edge) for edge in thing["box"])
        expected[:top], expected[bottom:], expected[:, :left], expected[:, right:] = False, False, False, False
        mask = unrolled(thing["mask"])
        differ = (mask != expected).sum()
        print(f"{thing['label']}: {expected.sum()} pixels, {differ} differ")
        assert expected.sum() > 1000 and mask.shape == (192, 320) and differ <= 0.005 * expected.sum(), thing["box"]


def test_masks_take_their_share_of_memory_by_the_width_of_the_posted_picture(start_server, models):
    server = start_server(models, image_pixels_max=1_000_000, decode_bytes_max=4_000_000)
    things, _ = wire.one(wire.post_image(server, "instances", white(200, 200)), "detect")
    assert len(things) == 2
    reply = wire.post_image(server, "instances", white(1000, 10))
    # 300 masks, 64 bytes for each of their columns.
    told = "memory to write masks in bytes is 19200000, more than the limit of 4000000; raise it with decode_bytes_max"
    assert (reply.status_code, reply.json()["error"]) == (413, told)
    assert server.stop() == 0


def quarters(width=200, height=120):
    """Four colours, one in each quarter, and the class of each pixel."""
    image = np.zeros((height, width, 3), np.uint8)
    classes = np.zeros((height, width), np.uint8)
    for (y, x), colour, index in (((0, 0), DARK, 0), ((0, 1), RED, 1), ((1, 0), GREEN, 2), ((1, 1), BLUE, 3)):
        part = np.s_[y * height // 2 : (y + 1) * height // 2, x * width // 2 : (x + 1) * width // 2]
        image[part], classes[part] = colour, index
    return reference.png(image), classes


def check_mask(server, model, pixels_min):
    data, classes = quarters()
    mask, _ = wire.one(wire.post_image(server, model, data), "segment")
    assert (mask["width"], mask["height"]) == (200, 120), mask
    got = np.asarray(Image.open(io.BytesIO(base64.b64decode(mask["png"]))))
    assert got.shape == classes.shape
    agree = (got == classes).mean()
    print(f"{agree:.2%} of the pixels agree")
    assert agree >= pixels_min


def test_a_mask_has_the_size_of_the_posted_picture_and_its_classes(server):
    check_mask(server, "segment", 0.97)  # through an input of 64 x 64: the edges move by a pixel or two


def test_a_model_of_any_size_takes_the_picture_as_it_is(server):
    check_mask(server, "segment-any", 1)


def test_a_mask_comes_as_a_picture_or_as_runs(server):
    data, classes = quarters()
    response = wire.post_image(server, "segment", data, headers={"Accept": "image/png"})
    assert response.status_code == 200 and response.headers["Content-Type"] == "image/png"
    assert (np.asarray(Image.open(io.BytesIO(response.content))) == classes).mean() > 0.97
    mask, _ = wire.one(wire.post_image(server, "segment", data, query={"mask": "rle"}), "segment")
    got = wire.class_map(mask)
    # A class whose pixels are the ground may be left out of the runs.
    assert "png" not in mask and (np.maximum(got, 0) == classes).mean() > 0.97


def test_options_are_refused_by_models_whose_task_has_no_such_thing(server, digits):
    image = digits[0][1]
    for model, query, told in (
        ("digits", {"mask": "rle"}, "mask is .rle., .*segment"),
        ("embed", {"mask": "png"}, "mask is .png., .*segment"),
        ("embed", {"top_k": 1}, "top_k is .1., .*classify"),
        ("segment", {"top_k": 1}, "top_k is .1., .*classify"),
        ("digits-detector", {"top_k": 1}, "top_k is .1., .*classify"),
    ):
        wire.problem(wire.post_image(server, model, image, query=query), 400, told)
    instances = {"instances": [{"b64": wire.b64(image)}], "parameters": {"top_k": 1}}
    reply = requests.post(wire.prediction_url(server, "embed"), json=instances, timeout=wire.TIMEOUT)
    wire.problem(reply, 400, "top_k is .1., .*classify")


def test_a_mask_takes_its_share_of_memory_by_the_size_of_the_posted_picture(start_server, models):
    # The photo is decoded at an eighth of its size, for an input of 64 x 64, and its mask has all of it.
    server = start_server(models, image_pixels_max=1_000_000, decode_bytes_max=4_000_000)
    small, large = (reference.encoded(np.zeros((side, side, 3), np.uint8), "JPEG") for side in (400, 900))
    for form in ["png", "rle"]:
        assert wire.post_image(server, "segment", small, query={"mask": form}).status_code == 200
    for options, each in [({}, 8), ({"query": {"mask": "rle"}}, 24), ({"headers": {"Accept": "image/png"}}, 8)]:
        reply = wire.post_image(server, "segment", large, **options)
        told = f"memory to write the mask in bytes is {each * 900 * 900}, more than the limit of 4000000; raise it with decode_bytes_max"
        assert (reply.status_code, reply.json()["error"]) == (413, told)
    assert server.stop() == 0


def test_the_example_segmenter_says_which_pixels_are_ink_and_of_which_digit(server):
    folder = EXAMPLES / "images" / "digits-segmenter"
    true, found = [], []
    for truth in sorted(folder.glob("*-truth.png")):
        data = (folder / truth.name.replace("-truth", "")).read_bytes()
        mask, reply = wire.one(wire.post_image(server, "digits-segmenter", data, query={"mask": "rle"}), "segment")
        classes = np.asarray(Image.open(truth))
        assert reply["image"] == {"width": classes.shape[1], "height": classes.shape[0]}
        assert all(c["label"] == ("ground" if c["index"] == 0 else str(c["index"] - 1)) for c in mask["classes"]), mask["classes"]
        true.append(classes.ravel())
        found.append(wire.class_map(mask).ravel())
    true, found = np.concatenate(true), np.concatenate(found)
    ink = ((true > 0) & (found > 0)).sum() / ((true > 0) | (found > 0)).sum()
    print(f"{(true == found).mean():.2%} of the pixels right; IoU of ink {ink:.3f}")
    assert len(np.unique(true)) > 4 and (true == found).mean() >= 0.94 and ink >= 0.75


def test_the_example_embedder_puts_pictures_of_the_same_digit_side_by_side(server):
    files = sorted((EXAMPLES / "images" / "digits-embedder").glob("*.png"))
    response = wire.post_files(server, "digits-embedder", [(file.name, file.read_bytes()) for file in files])
    vectors = np.array([entry["vector"] for entry in wire.many(response, "embed", len(files))])
    assert vectors.shape == (20, 16) and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    alike = vectors @ vectors.T - 2 * np.eye(len(files))
    right = sum(files[i].name[0] == files[j].name[0] for i, j in enumerate(alike.argmax(1)))
    print(f"the nearest of {right} of {len(files)} pictures shows the same digit")
    assert right >= 18


def test_an_embedding_agrees_with_onnx_runtime(server, models):
    session = reference.session(models / "embed" / "model.onnx")
    data, _ = quarters(32, 32)
    vector, _ = wire.one(wire.post_image(server, "embed", data), "embed")
    expected = session.run(None, {"image": reference.stretched(data, 32, "RGB")[None]})[0][0]
    largest = np.abs(np.subtract(vector, expected)).max()
    print(f"largest difference {largest:.2e}")
    assert len(vector) == 8 and largest < 1e-4


def test_the_interface_is_described(server):
    response = requests.get(server.url + "/openapi.yaml", timeout=wire.TIMEOUT)
    assert response.status_code == 200 and response.text.lstrip().startswith("openapi: 3.1"), response.text[:100]
