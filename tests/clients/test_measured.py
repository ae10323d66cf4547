"""Pictures whose samples are measured values (floating-point, signed, 32 bits): what a network makes of them is what ONNX Runtime makes of
the array, posted in whatever form."""

import io

import numpy as np
import onnxruntime
import pytest
import requests
import tifffile
import tritonclient.http as triton
import wire
from make_models import FLOAT, Graph, floats
from PIL import Image

WIDTH, HEIGHT = 83, 61
MEAN, STD = 100.0, 20.0
TYPES = ["<f2", "<f4", ">f4", "<f8", ">f8", "|i1", "<i2", ">i2", "<i4", ">i4", "<u4", "<i8"]
TOLERANCE = 1e-5  # of values of up to 30: single precision, summed in another order


def restoring(channels):
    """As CARE has it: the picture at half its size, twice as large again, beside itself; `[N, C, H, W]` to `[N, 1, H, W]`."""
    rng = np.random.default_rng(3)
    g = Graph()
    wide = g.conv("image", floats(rng.standard_normal((4, channels, 3, 3))) / 3, floats(rng.standard_normal(4)), pad=1)
    coarse = g.node("MaxPool", g.node("Relu", wide), kernel_shape=[2, 2], strides=[2, 2])
    scales = g.constant(floats([1, 1, 2, 2]))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    both = g.node("Concat", g.node("Resize", coarse, "", scales, **how), "image", axis=1)
    last = g.conv(both, floats(rng.standard_normal((1, 4 + channels, 1, 1))))
    g.node("Identity", last, output="restored")
    return g.bytes("restoring", [("image", FLOAT, ["N", channels, "H", "W"])], [("restored", FLOAT, ["N", 1, "H", "W"])])


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "models"
    measured = f"mean = {MEAN}\nstd = {STD}\nscale = 257\n"
    manifests = {
        "grey": (1, f'task = "image"\n[input]\nresize = "none"\nmultiple = 2\n{measured}'),
        "colour": (3, f'task = "image"\n[input]\nresize = "none"\nmultiple = 2\n{measured}'),
        "stretched": (1, f'task = "tensors"\n[input]\nresize = "stretch"\nwidth = 40\nheight = 32\n{measured}'),
    }
    for name, (channels, manifest) in manifests.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "model.onnx").write_bytes(restoring(channels))
        (folder / name / "model.toml").write_text(manifest)
    return folder


@pytest.fixture(scope="module")
def site(start_server, networks):
    server = start_server(networks)
    yield server
    assert server.stop() == 0


def values(kind, channels=None, seed=5):
    """Counts with noise, `[h, w]` or `[h, w, c]`, negative ones where the type has them."""
    shape = (HEIGHT, WIDTH) if channels is None else (HEIGHT, WIDTH, channels)
    noise = np.random.default_rng(seed).normal(40 if kind == "|i1" else 160, 30, shape)
    signed = noise if np.dtype(kind).kind == "u" else noise - 50
    return np.clip(signed, *((-128, 127) if kind == "|i1" else (0, 4e9) if np.dtype(kind).kind == "u" else (-1e4, 1e4))).astype(kind)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def tiff(array, **options):
    file = io.BytesIO()
    order = ">" if array.dtype.byteorder == ">" else "<"
    photometric = "rgb" if array.ndim == 3 else "minisblack"
    tifffile.imwrite(file, array, byteorder=order, photometric=photometric, metadata=None, **options)
    return file.getvalue()


def expected(networks, name, planes):
    """What ONNX Runtime makes of `[C, h, w]`, filled up with its mirror image to even sides."""
    session = onnxruntime.InferenceSession(networks / name / "model.onnx", providers=["CPUExecutionProvider"])
    height, width = planes.shape[1:]
    filled = np.pad(np.float32(planes), [(0, 0), (0, height % 2), (0, width % 2)], mode="reflect")
    x = (filled - np.float32(MEAN)) / np.float32(STD)
    return session.run(None, {"image": x[None]})[0][0, 0, :height, :width]


def restored(response):
    assert response.status_code == 200, response.text[:500]
    return tifffile.imread(io.BytesIO(response.content))


def agree(got, want):
    assert got.shape == want.shape and got.dtype == np.float32
    largest = np.abs(got - want).max()
    print(f"largest difference {largest:.1e} of {np.abs(want).max():.1f}")
    assert np.abs(want).max() > 1 and largest < TOLERANCE


AS_TIFF = {"Accept": "image/tiff"}


@pytest.mark.parametrize("form", [npy, tiff])
@pytest.mark.parametrize("kind", TYPES)
def test_a_network_gets_the_values_of_every_type(site, networks, kind, form):
    grey = values(kind)
    want = expected(networks, "grey", grey[None])
    agree(restored(wire.post_image(site, "grey", form(grey), headers=AS_TIFF)), want)
    colour = values(kind, 3)
    want = expected(networks, "colour", np.moveaxis(colour, -1, 0))
    agree(restored(wire.post_image(site, "colour", form(colour), headers=AS_TIFF)), want)


def test_grey_is_repeated_and_colour_is_weighted(site, networks):
    grey, colour = values("<f4"), values("<f4", 3)
    agree(restored(wire.post_image(site, "colour", npy(grey), headers=AS_TIFF)), expected(networks, "colour", np.stack([grey] * 3)))
    luma = colour @ np.float32([0.299, 0.587, 0.114])
    got = restored(wire.post_image(site, "grey", tiff(colour), headers=AS_TIFF))
    want = expected(networks, "grey", luma[None])
    print(f"largest difference {np.abs(got - want).max():.1e}")
    assert np.abs(got - want).max() < 1e-3  # the weights are those of Pillow's L, in 16 bits


def test_channels_may_come_first(site, networks):
    planes = np.ascontiguousarray(np.moveaxis(values("<f4", 3), -1, 0))
    agree(restored(wire.post_image(site, "colour", npy(planes), headers=AS_TIFF)), expected(networks, "colour", planes))


@pytest.mark.parametrize("options", [{"tile": (16, 32)}, {"rowsperstrip": 7}, {"compression": "zlib"}, {"bigtiff": True}])
def test_a_tiff_may_be_stored_in_any_way(site, networks, options):
    grey = values("<f4")
    agree(restored(wire.post_image(site, "grey", tiff(grey, **options), headers=AS_TIFF)), expected(networks, "grey", grey[None]))


def test_the_counts_of_16_bit_files_are_the_same_counts_as_floats(site):
    counts = values("<u2")
    whole, real = (restored(wire.post_image(site, "grey", npy(counts.astype(kind)), headers=AS_TIFF)) for kind in ("<u2", "<f4"))
    agree(real, whole)


def test_values_are_resized_as_pillow_resizes_floats(site, networks):
    grey = values("<f8")
    outputs, reply = wire.one(wire.post_image(site, "stretched", npy(grey)), "tensors")
    assert reply["image"] == {"width": WIDTH, "height": HEIGHT}
    small = np.asarray(Image.fromarray(np.float32(grey)).resize((40, 32), Image.Resampling.BILINEAR))
    agree(np.float32(wire.arrays(outputs)["restored"].reshape(32, 40)), expected(networks, "stretched", small[None]))


def test_values_come_in_every_way_in_which_pictures_do(site):
    grey = values("<f4")
    (alone,) = wire.ok(wire.post_image(site, "stretched", npy(grey)))["outputs"]
    for data in (npy(grey), tiff(grey)):
        replies = [
            wire.post_files(site, "stretched", [("a.tif", data)]),
            *(wire.post_instances(site, "stretched", [data], form) for form in wire.INSTANCE_FORMS),
            requests.post(
                wire.prediction_url(site, "stretched"),
                json={"instances": [{"b64": f"data:image/tiff;base64,{wire.b64(data)}"}]},
                timeout=wire.TIMEOUT,
            ),
        ]
        for reply in replies:
            assert wire.single_or_only(reply, "tensors") == [alone]
        with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
            tensor = triton.InferInput("image", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([data], dtype=object))
            result = client.infer("stretched", [tensor]).as_numpy("restored")
        assert (result.ravel() == np.float32(alone["data"])).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("form", [npy, tiff])
def test_a_value_that_is_no_number_is_refused_with_its_place(site, form, bad):
    grey = values("<f8")
    grey[17, 5], grey[40, 3] = bad, bad
    response = wire.post_image(site, "grey", form(grey))
    assert response.status_code == 400 and "column 5, row 17," in response.json()["error"], response.text


def test_more_than_the_budget_is_refused_before_it_takes_memory(start_server, networks):
    # 4 bytes a value: 61 * 83 of them do not fit, of which there are two copies, and the network's input.
    server = start_server(networks, image_pixels_max=10_000, decode_bytes_max=50_000)
    response = wire.post_image(server, "grey", npy(values("<f4")))
    assert response.status_code == 413 and "decode_bytes_max" in response.json()["error"], response.text
    assert wire.post_image(server, "grey", npy(values("<f4")[:40, :40])).status_code == 200
    assert server.stop() == 0


@pytest.fixture(scope="module")
def many(start_server, tmp_path_factory):
    """Networks of five channels, which the pages of a file become: `[N, 5, H, W]`, and `[N, 48, 64, 5]`."""
    folder = tmp_path_factory.mktemp("channels") / "models"
    rng = np.random.default_rng(8)
    weights = floats(rng.standard_normal((1, 5, 3, 3)))
    g = Graph()
    g.node("Identity", g.conv("image", weights, pad=1), output="restored")
    first = g.bytes("first", [("image", FLOAT, ["N", 5, "H", "W"])], [("restored", FLOAT, ["N", 1, "H", "W"])])
    g = Graph()
    g.node("Identity", g.conv(g.node("Transpose", "image", perm=[0, 3, 1, 2]), weights, pad=1), output="restored")
    last = g.bytes("last", [("image", FLOAT, ["N", 48, 64, 5])], [("restored", FLOAT, ["N", 1, 48, 64])])
    rules = {"first": 'resize = "none"\n', "last": 'resize = "stretch"\n'}
    for name, model in {"first": first, "last": last}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "model.onnx").write_bytes(model)
        keys = f'pages = "channels"\n{rules[name]}scale = 257\nmean = {MEANS.tolist()}\nstd = {STD}\n'
        (folder / name / "model.toml").write_text(f'task = "image"\n[input]\n{keys}')
    server = start_server(folder)
    yield server, folder
    assert server.stop() == 0


MEANS = np.float32([100, 50, 0, -50, 200])


def of_channels(folder, name, planes):
    session = onnxruntime.InferenceSession(folder / name / "model.onnx", providers=["CPUExecutionProvider"])
    x = (np.float32(planes) - MEANS[:, None, None]) / np.float32(STD)
    return session.run(None, {"image": x[None] if name == "first" else np.moveaxis(x, 0, -1)[None]})[0][0, 0]


def pages(planes, **options):
    file = io.BytesIO()
    tifffile.imwrite(file, planes, photometric="minisblack", **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["<u2", "<f4", ">f8", "<i2"])
def test_pages_are_the_channels_of_one_picture(many, kind):
    server, folder = many
    planes = np.stack([values(kind, seed=seed)[:48, :64] for seed in range(5)])
    hyperstack = {"imagej": True, "metadata": {"axes": "CYX"}}
    files = [npy(planes), pages(planes, metadata=None), pages(planes, ome=True, metadata={"axes": "CYX"})]
    files += [pages(planes.astype(kind), **hyperstack)] if kind in ("<u2", "<f4") else []
    # An only page with five samples for each pixel.
    files += [pages(np.moveaxis(planes, 0, -1), planarconfig="contig", metadata=None)]
    files += [pages(planes, planarconfig="separate", metadata=None)]
    for name in ("first", "last"):
        want = of_channels(folder, name, planes)
        for data in files:
            agree(restored(wire.post_image(server, name, data, headers=AS_TIFF)), want)
    outputs, reply = wire.one(wire.post_image(server, "first", npy(planes)), "image")
    assert reply["image"] == {"width": 64, "height": 48} and "page" not in reply and outputs["channels"] == 1


def test_channels_are_resized_each_by_itself(many):
    server, folder = many
    planes = np.stack([values("<f4", seed=seed) for seed in range(5)])
    small = np.stack([np.asarray(Image.fromarray(plane).resize((64, 48), Image.Resampling.BILINEAR)) for plane in planes])
    got = restored(wire.post_image(server, "last", npy(planes), headers={**AS_TIFF}))
    # The answer is brought back to the posted size, so it is compared there.
    want = np.asarray(Image.fromarray(of_channels(folder, "last", small)).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))
    print(f"largest difference {np.abs(got - want).max():.1e}")
    assert got.shape == want.shape and np.abs(got - want).max() < 1e-3


def test_a_file_of_other_pages_is_refused_with_both_numbers(many):
    server, _ = many
    planes = np.stack([values("<f4", seed=seed) for seed in range(4)])
    for data in (npy(planes), pages(planes, metadata=None)):
        response = wire.post_image(server, "first", data)
        assert response.status_code == 400, response.text
        assert "the number of pages is 4, but the model takes 5" in response.json()["error"], response.text
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for rows in (9, 9, 9, 8, 9):
            writer.write(values("<f4")[:rows], photometric="minisblack", metadata=None)
    response = wire.post_image(server, "first", file.getvalue())
    assert response.status_code == 400 and "page 3" in response.json()["error"] and "one size" in response.json()["error"]
