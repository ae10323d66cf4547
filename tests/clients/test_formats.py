"""Every image format that is taken, against Pillow: the same picture, whatever it came in."""

import io

import make_models
import numpy as np
import pytest
import reference
import wire
from PIL import Image, ImageOps

SEED = 13
MEAN_MAX = 1.0  # of 255
WIDTH, HEIGHT = 320, 270


@pytest.fixture(scope="module")
def picture():
    return make_models.picture(np.random.default_rng(SEED), WIDTH, HEIGHT)


def check(server, data, expected, mean_max=MEAN_MAX):
    """What preprocessing makes of `data` is what Pillow makes of the `expected` `[h, w, 3]` uint8 picture."""
    outputs, reply = wire.one(wire.post_image(server, "image-identity", data), "tensors")
    assert reply["image"] == {"width": expected.shape[1], "height": expected.shape[0]}, reply["image"]
    difference = np.abs(pixels(outputs) - reference.torchvision_pixels(reference.png(expected)))
    print(f"mean difference {difference.mean():.3f} of 255, largest {difference.max():.1f}")
    assert difference.mean() <= mean_max


def pixels(outputs):
    return reference.pixels_of(wire.arrays(outputs)["pixels"].reshape(3, 224, 224))


def grey_of(picture):
    return np.asarray(Image.fromarray(picture).convert("L"))


def deep(samples):
    """The same in 16 bits, to a third of an 8-bit step; its two bytes differ, so that their order matters."""
    return (samples.astype(np.uint16) * 257) ^ 0x55


def rgb(image):
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["uint8", "<u2", ">u2"])
def test_a_numpy_array_is_the_picture_as_saved(server, picture, kind, order):
    array = np.asarray(picture if kind == "uint8" else deep(picture), dtype=kind, order=order)
    check(server, npy(array), picture)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_netpbm_file_is_the_picture(server, picture, bits):
    samples = deep(picture).astype(">u2") if bits == 16 else picture
    check(server, f"P6\n# a comment\n{WIDTH} {HEIGHT}\n{2**bits - 1}\n".encode() + samples.tobytes(), picture)
    check(server, reference.encoded(picture, "PPM"), picture)


def test_each_image_of_an_array_has_an_answer(server, picture):
    reply = wire.post_image(server, "image-identity", npy(np.stack([picture, picture[:, ::-1]])))
    assert reply.status_code == 200, reply.text
    pages = [(entry["file"], entry["page"]) for entry in reply.json()["predictions"]]
    assert pages == [(0, 0), (0, 1)]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("TIFF", {"compression": "packbits"}),
        ("TIFF", {"compression": "zstd"}),
        ("JPEG2000", {}),
        ("JPEG2000", {"tile_size": (128, 128)}),
        ("JPEG2000", {"no_jp2": True}),
    ],
)
def test_a_lossless_format_gives_the_picture(server, picture, form, options):
    check(server, reference.encoded(picture, form, **options), picture)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 90}),
        ("JPEG", {"quality": 90, "progressive": True}),
        ("JPEG", {"quality": 90, "subsampling": 0}),
        ("JPEG", {"quality": 90, "subsampling": 1}),
        ("WEBP", {"quality": 90}),
        ("JPEG2000", {"irreversible": True, "quality_mode": "rates", "quality_layers": [20]}),
        ("GIF", {}),
    ],
)
def test_a_lossy_format_gives_what_pillow_reads(server, picture, form, options):
    data = reference.encoded(picture, form, **options)
    check(server, data, rgb(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP", "JPEG2000"])
def test_grey_becomes_three_equal_channels(server, picture, form):
    data = reference.encoded(grey_of(picture), form)
    check(server, data, rgb(Image.open(io.BytesIO(data))))


def test_a_palette_is_looked_up(server, picture):
    image = Image.fromarray(picture).quantize(64)
    for form in ("PNG", "GIF", "BMP", "TIFF"):
        out = io.BytesIO()
        image.save(out, form)
        check(server, out.getvalue(), rgb(image))


def test_a_picture_of_one_bit_is_black_and_white(server, picture):
    image = Image.fromarray(picture).convert("1")
    for form in ("PNG", "TIFF"):
        out = io.BytesIO()
        image.save(out, form)
        check(server, out.getvalue(), rgb(image))


def test_an_opaque_alpha_channel_changes_nothing(server, picture):
    opaque = np.dstack([picture, np.full((HEIGHT, WIDTH), 255, np.uint8)])
    for form, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("JPEG2000", {})):
        check(server, reference.encoded(opaque, form, **options), picture)


def test_sixteen_bits_are_scaled_to_the_same_range(server, picture):
    grey = grey_of(picture)
    for form in ("PNG", "TIFF", "JPEG2000"):
        check(server, reference.encoded(deep(grey), form), np.dstack([grey] * 3))


def test_cmyk_is_converted(server, picture):
    out = io.BytesIO()
    Image.fromarray(picture).convert("CMYK").save(out, "JPEG", quality=95)
    check(server, out.getvalue(), rgb(Image.open(out)), mean_max=2.0)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(server, picture, form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(form, {})
    data = reference.encoded(picture, form, exif=exif.tobytes(), **options)
    check(server, data, rgb(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))


def test_the_pages_of_a_tiff_are_answered_in_order(server, digits):
    pages = [Image.open(io.BytesIO(data)) for _, data, _ in digits]
    out = io.BytesIO()
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    entries = wire.many(wire.post_image(server, "digits", out.getvalue()), "classify", len(digits))
    assert [wire.best(e["classes"]) for e in entries] == [digit for _, _, digit in digits]


def test_the_first_frame_of_a_gif_is_taken(server, digits):
    frames = [Image.open(io.BytesIO(data)) for _, data, _ in digits]
    out = io.BytesIO()
    frames[4].save(out, "GIF", save_all=True, append_images=frames[5:], duration=100)
    classes, _ = wire.one(wire.post_image(server, "digits", out.getvalue()), "classify")
    assert wire.best(classes) == digits[4][2]
