"""Networks whose output is a picture: what is decoded of the answer is what numpy and Pillow make of the same image."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
import reference
import requests
import tifffile
import wire
from make_models import FLOAT, Graph, picture
from PIL import Image

WIDTH, HEIGHT = 200, 120


@pytest.fixture(scope="module")
def photo():
    """Something like a photograph, `[HEIGHT, WIDTH, 3]` uint8."""
    return picture(np.random.default_rng(7), WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def site(start_server, models, tmp_path_factory):
    """`enlarge` as it is made, and under other manifests; and one that gives grey depths without bounds."""
    folder = tmp_path_factory.mktemp("images") / "models"
    shutil.copytree(models / "enlarge", folder / "enlarge")
    sized = 'task = "image"\n[input]\nresize = "{}"\nwidth = 64\nheight = 64\n'
    manifests = {
        "letterbox": sized.format("letterbox"),
        "stretch": sized.format("stretch"),
        "cropped": sized.format("shorter") + "size = 64\n",
        "as-given": sized.format("letterbox") + '[image]\nsize = "output"\n',
        "turned": 'task = "image"\n[input]\nresize = "none"\n[image]\ncolor = "bgr"\ndepth = 16\nrange = [-1, 1]\n',
        "wrong-layout": 'task = "image"\n[input]\nresize = "none"\n[image]\nlayout = "nhwc"\n',
    }
    for name, manifest in manifests.items():
        shutil.copytree(models / "enlarge", folder / name)
        (folder / name / "model.toml").write_text(manifest)
    g = Graph()
    mean = g.node("ReduceMean", "image", axes=[1], keepdims=0)
    g.node("Mul", mean, g.constant(np.float32(-30)), output="depth")
    (folder / "depth").mkdir()
    shapes = [("image", FLOAT, ["N", 3, "H", "W"])], [("depth", FLOAT, ["N", "H", "W"])]
    (folder / "depth" / "model.onnx").write_bytes(g.bytes("depth", *shapes))
    (folder / "depth" / "model.toml").write_text('task = "image"\n[input]\nresize = "none"\n[image]\nrange = "auto"\n')
    for name, task in {"halving": "image", "halving-mask": "segment"}.items():
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(halving(task == "segment"))
        keys = "mean = 0\nstd = 1\n" if task == "segment" else ""
        (folder / name / "model.toml").write_text(f'task = "{task}"\n[input]\nresize = "none"\nmultiple = 8\n{keys}')
    server = start_server(folder)
    yield server
    assert server.stop() == 0


def halving(has_classes):
    """Of each pixel, the mean of its 8 x 8 pixels beside it, as a U-Net has it: other sides than multiples of 8 are refused.

    A picture twice as large, or which of the two is larger."""
    by_corner = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    g = Graph()
    coarse = g.node("AveragePool", "image", kernel_shape=[8, 8], strides=[8, 8])
    wide = g.node("Resize", coarse, "", g.constant(np.float32([1, 1, 8, 8])), **by_corner)
    beside = g.node("Concat", "image", wide, axis=1)
    halves = np.zeros((2, 6, 1, 1), np.float32)
    halves[0, :3], halves[1, 3:] = 1 / 3, 1 / 3
    two = g.node("Conv", beside, g.constant(halves))
    if has_classes:
        g.node("Identity", two, output="y")
    else:
        least = g.node("ReduceMin", two, axes=[1], keepdims=1)
        g.node("Resize", least, "", g.constant(np.float32([1, 1, 2, 2])), **by_corner, output="y")
    return g.bytes("halving", [("image", FLOAT, ["N", 3, "H", "W"])], [("y", FLOAT, ["N", 2 if has_classes else 1, None, None])])


def halved(array):
    """The same of an image of any size, by NumPy: the image filled up with its mirror image, and the answer cut."""
    height, width = array.shape[:2]
    filled = np.pad(array, [(0, -height % 8), (0, -width % 8), (0, 0)], mode="reflect").mean(2) / 255
    blocks = filled.reshape(filled.shape[0] // 8, 8, -1, 8).mean((1, 3))
    return filled[:height, :width], blocks.repeat(8, 0).repeat(8, 1)[:height, :width]


def opened(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def asked(site, model, array):
    """What JSON says of a picture, and its pixels."""
    found, reply = wire.one(wire.post_image(site, model, reference.png(array)), "image")
    assert reply["image"] == {"width": array.shape[1], "height": array.shape[0]}
    pixels = opened(base64.b64decode(found["png"]))
    assert pixels.shape[:2] == (found["height"], found["width"])
    return found, pixels


def file(site, model, array, media):
    response = wire.post_image(site, model, reference.png(array), headers={"Accept": media})
    assert response.status_code == 200 and response.headers["Content-Type"] == media, response.text[:500]
    return response.content


def twice(array):
    return array.repeat(2, 0).repeat(2, 1)


def resized(array, width, height):
    """A float array `[h, w, c]` as Pillow resizes each of its channels bilinearly."""
    planes = [Image.fromarray(np.float32(array[..., c])).resize((width, height), Image.Resampling.BILINEAR) for c in range(array.shape[2])]
    return np.stack([np.asarray(plane) for plane in planes], -1)


def test_a_picture_is_what_the_network_makes_of_the_image(site, photo):
    found, pixels = asked(site, "enlarge", photo)
    assert (found["channels"], found["depth"], found["range"]) == (3, 8, [0, 1])
    assert (pixels == twice(photo)).all()
    assert (opened(file(site, "enlarge", photo, "image/png")) == twice(photo)).all()


def test_a_tiff_has_the_values_of_the_network(site, photo):
    values = tifffile.imread(io.BytesIO(file(site, "enlarge", photo, "image/tiff")))
    assert values.dtype == np.float32 and values.shape == (2 * HEIGHT, 2 * WIDTH, 3)
    assert np.abs(values - twice(photo) / 255).max() < 1e-6
    depth = tifffile.imread(io.BytesIO(file(site, "depth", photo, "image/tiff")))
    assert depth.shape == (HEIGHT, WIDTH) and np.abs(depth + 30 * photo.mean(2) / 255).max() < 1e-4


@pytest.mark.parametrize("size", [(120, 200), (117, 83), (9, 15), (8, 8)])
def test_an_image_whose_sides_the_network_does_not_take_is_filled_up_and_the_answer_cut(site, photo, size):
    array = photo[: size[0], : size[1]]
    values = tifffile.imread(io.BytesIO(file(site, "halving", array, "image/tiff")))
    own, beside = halved(array)
    assert values.shape == (2 * size[0], 2 * size[1])
    difference = np.abs(values - twice(np.minimum(own, beside))).max()
    print(f"largest difference {difference:.1e}")
    assert difference < 1e-6
    mask = opened(wire.post_image(site, "halving-mask", reference.png(array), headers={"Accept": "image/png"}).content)
    assert mask.shape == size
    clear = np.abs(own - beside) > 1e-6
    assert clear.mean() > 0.9 and (mask == (beside > own))[clear].all()


def test_depths_are_shown_from_the_least_to_the_greatest(site, photo):
    found, pixels = asked(site, "depth", photo)
    depth = -30 * photo.mean(2) / 255
    assert found["channels"] == 1 and np.abs(np.subtract(found["range"], [depth.min(), depth.max()])).max() < 1e-4
    expected = (depth - depth.min()) / (depth.max() - depth.min()) * 255
    assert pixels.min() == 0 and pixels.max() == 255 and np.abs(pixels - expected).max() < 0.51


def test_order_of_channels_depth_and_range_are_the_manifests(site, photo):
    tall = photo[:, :100]
    png = file(site, "turned", tall, "image/png")
    assert png[24:26] == bytes([16, 2]), "16 bits, red, green and blue"
    # Pillow has no colours of 16 bits: a grey of the same values tells them.
    grey = np.full((4, 4, 3), 51, np.uint8)
    found, _ = asked(site, "turned", grey)
    assert (found["depth"], found["range"]) == (16, [-1, 1])
    high = opened(png).astype(int)
    # Of 16 bits Pillow keeps the upper 8.
    expected = (twice(tall[..., ::-1]) / 255 + 1) / 2 * 65535
    assert np.abs(high - expected // 256).max() <= 1


def test_a_letterboxed_picture_comes_back_to_its_place(site, photo):
    _, pixels = asked(site, "letterbox", photo)
    assert pixels.shape == photo.shape
    height = round(64 * HEIGHT / WIDTH)
    seen = np.asarray(Image.fromarray(photo).resize((64, height), Image.Resampling.BILINEAR))
    expected = resized(twice(seen), WIDTH, HEIGHT)
    difference = np.abs(pixels - expected).max()
    print(f"largest difference {difference:.2f} of 255")
    assert difference < 2.5
    _, given = asked(site, "as-given", photo)
    assert given.shape == (128, 128, 3) and (given[0] == 114).all()


def test_a_stretched_picture_comes_back_in_its_proportions(site, photo):
    _, pixels = asked(site, "stretch", photo)
    seen = np.asarray(Image.fromarray(photo).resize((64, 64), Image.Resampling.BILINEAR))
    difference = np.abs(pixels - resized(twice(seen), WIDTH, HEIGHT)).max()
    print(f"largest difference {difference:.2f} of 255")
    assert pixels.shape == photo.shape and difference < 2.5


def test_where_an_image_was_cut_off_the_edge_goes_on(site, photo):
    _, pixels = asked(site, "cropped", photo)
    assert pixels.shape == photo.shape
    width = 64 * WIDTH // HEIGHT
    whole = np.asarray(Image.fromarray(photo).resize((width, 64), Image.Resampling.BILINEAR))
    left = round((width - 64) / 2)
    # The pixels of the image that the network saw whole.
    first, last = int(np.ceil(left / width * WIDTH)), int((left + 64) / width * WIDTH)
    expected = resized(twice(whole), WIDTH, HEIGHT)
    inner = np.abs(pixels - expected)[:, first + 2 : last - 2].max()
    print(f"largest difference {inner:.2f} of 255")
    assert inner < 2.5
    assert (pixels[:, :first] == pixels[:, first : first + 1]).all()
    assert (pixels[:, last:] == pixels[:, last - 1 : last]).all()


def test_several_images_are_answered_as_json_and_as_they_come(site, photo):
    small = photo[:40, :60]
    arrays = [photo, small]
    files = [("image", (f"{i}.png", reference.png(array), "image/png")) for i, array in enumerate(arrays)]
    url = wire.prediction_url(site, "enlarge")
    for number, answer in enumerate(wire.many(wire.post_files(site, "enlarge", [(f[1][0], f[1][1]) for f in files]), "image", 2)):
        assert (opened(base64.b64decode(answer["picture"]["png"])) == twice(arrays[number])).all()
    streamed = requests.post(url, files=files, headers={"Accept": "image/png, application/x-ndjson"}, timeout=wire.TIMEOUT)
    *answers, done = [json.loads(line) for line in streamed.text.splitlines()]
    assert [answer["picture"]["width"] for answer in answers] == [2 * WIDTH, 120] and done["done"]["failed"] == 0
    refused = requests.post(url, files=files, headers={"Accept": "image/png"}, timeout=wire.TIMEOUT)
    wire.problem(refused, 406, "image/png for several images.*image/tiff")
    # A picture alone would be a PNG, which has no pages.
    for accept in ("image/*", "image/png, image/tiff;q=0.5, application/json;q=0.1"):
        several = requests.post(url, files=files, headers={"Accept": accept}, timeout=wire.TIMEOUT)
        assert [page.shape[:2] for page in stack_of(several)] == [(2 * HEIGHT, 2 * WIDTH), (80, 120)]
        alone = requests.post(url, data=reference.png(small), headers={"Accept": accept}, timeout=wire.TIMEOUT)
        assert alone.headers["Content-Type"] == "image/png"


def tiff(pages):
    file = io.BytesIO()
    tifffile.imwrite(file, pages, photometric="rgb")
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def stack_of(reply):
    """The pages of a TIFF, which may differ in size."""
    assert reply.status_code == 200 and reply.headers["Content-Type"] == "image/tiff", reply.text
    with tifffile.TiffFile(io.BytesIO(reply.content)) as stack:
        return [page.asarray() for page in stack.pages]


def test_the_pages_of_a_stack_are_answered_as_those_of_a_tiff(site, photo):
    posted = np.stack([photo, photo[::-1], photo[:, ::-1]])
    for data in (tiff(posted), npy(posted)):
        pages = stack_of(wire.post_image(site, "enlarge", data, headers={"Accept": "image/tiff"}))
        difference = max(np.abs(page - twice(array) / 255).max() for page, array in zip(pages, posted, strict=True))
        print(f"largest difference {difference:.1e}")
        assert difference < 1e-6
    # So are several files, of whatever sizes; with one among them that has pages.
    small, grey = photo[:40, :60], photo[:30, :20]
    files = [("a", reference.png(small)), ("b", tiff(posted)), ("c", reference.png(grey))]
    pages = stack_of(wire.post_files(site, "enlarge", files, headers={"Accept": "image/tiff"}))
    assert [page.shape[:2] for page in pages] == [(80, 120), *[(2 * HEIGHT, 2 * WIDTH)] * 3, (60, 40)]
    assert np.abs(pages[4] - twice(grey) / 255).max() < 1e-6


def test_a_page_that_fails_is_named_where_the_reply_has_no_place_for_it(site, photo):
    files = [("a", reference.png(photo)), ("b", b"no picture"), ("c", reference.png(photo))]
    refused = wire.post_files(site, "enlarge", files, headers={"Accept": "image/tiff"})
    wire.problem(refused, 400, "^image 1: ")
    # By its place among the files, not among the images.
    files = [("a", tiff(np.stack([photo, photo]))), ("b", b"no picture")]
    wire.problem(wire.post_files(site, "enlarge", files, headers={"Accept": "image/tiff"}), 400, "^image 1: ")


def test_pages_that_wait_for_each_other_are_counted_and_refused_before_they_are_many(start_server, models, tmp_path):
    shutil.copytree(models / "digits-segmenter", tmp_path / "models" / "digits-segmenter")
    server = start_server(tmp_path / "models", in_flight_bytes_max="8MiB", body_bytes_max="4MiB")
    # A page has a byte for each pixel: beside the file that is made of them, four find room.
    image, headers = reference.png(np.zeros((1000, 1000), np.uint8)), {"Accept": "image/tiff"}
    few, many = ([("image", image)] * count for count in (3, 200))
    masks = stack_of(wire.post_files(server, "digits-segmenter", few, headers=headers))
    assert [mask.shape for mask in masks] == [(1000, 1000)] * 3
    wire.problem(wire.post_files(server, "digits-segmenter", many, headers=headers), 413, "in_flight_bytes_max")
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    written = re.findall(r'^ocelli_stage_duration_seconds_count\{.*stage="reply".*\} (\d+)$', text, re.M)
    print(f"{written} of {len(many)} pages were written")
    assert 3 < sum(map(int, written)) < 100
    assert server.stop() == 0


def test_the_first_protocol_of_kserve_has_pictures_too(site, photo):
    body = {"instances": [{"b64": wire.b64(reference.png(photo))}]}
    reply = wire.ok(requests.post(f"{site.url}/v1/models/enlarge:predict", json=body, timeout=wire.TIMEOUT))
    (answer,) = reply["predictions"]
    assert (opened(base64.b64decode(answer["picture"]["png"])) == twice(photo)).all()


def test_a_layout_that_does_not_fit_is_told_where_it_is_asked_for(site, photo):
    told = wire.ok(requests.get(f"{site.url}/v2/models", timeout=wire.TIMEOUT))["models"]
    assert {model["name"]: model["task"] for model in told}["enlarge"] == "image"
    refused = wire.post_image(site, "wrong-layout", reference.png(photo))
    assert refused.status_code >= 400 and "with 1, 3 or 4 channels" in refused.text, refused.text


def test_options_of_other_tasks_are_refused(site, photo):
    for query, told in ({"mask": "png"}, "mask is .png., .*segment"), ({"top_k": 1}, "top_k is .1., .*classify"):
        wire.problem(wire.post_image(site, "enlarge", reference.png(photo), query=query), 400, told)


def test_a_picture_takes_its_share_of_memory(start_server, models, photo, tmp_path):
    shutil.copytree(models / "enlarge", tmp_path / "enlarge")
    server = start_server(tmp_path, image_pixels_max=250_000, decode_bytes_max=1_000_000)
    small = photo[:50, :90]
    assert wire.post_image(server, "enlarge", reference.png(small)).status_code == 200
    for headers in ({}, {"Accept": "image/png"}, {"Accept": "image/tiff"}):
        reply = wire.post_image(server, "enlarge", reference.png(photo), headers=headers)
        told = f"memory to write the picture in bytes is {10 * 3 * 4 * WIDTH * HEIGHT}, more than the limit of 1000000"
        assert reply.status_code == 413 and told in reply.json()["error"], reply.text
    assert server.stop() == 0
