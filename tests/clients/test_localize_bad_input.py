"""What a fitter says of stacks, ROIs and settings that are wrong; after each of them it serves on."""

import gzip
import io
import json
import shutil
import struct
import zlib

import localize
import numpy as np
import pyarrow
import pytest
import requests
import tifffile
import wire
from conftest import EXAMPLES

STATUS = {"converged": 0, "iteration_limit": 1, "at_bound": 2, "singular": 3, "bad_input": 4}


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    """A server with the example's fitter, and with one whose camera is mapped pixel by pixel."""
    folder = tmp_path_factory.mktemp("spots")
    shutil.copytree(EXAMPLES / "models" / "spots", folder / "spots")
    shutil.copytree(folder / "spots", folder / "mapped")
    text = (folder / "mapped" / "model.toml").read_text()
    assert "offset = 100" in text and "gain = 0.5" in text
    text = text.replace("offset = 100", 'offset = "offset.npy"').replace("gain = 0.5", 'gain = "gain.npy"')
    (folder / "mapped" / "model.toml").write_text(text)
    np.save(folder / "mapped" / "offset.npy", np.full((40, 96), 100, np.float32))
    np.save(folder / "mapped" / "gain.npy", np.full((40, 96), 0.5, np.float32))
    # One that cannot be served: maps of two sizes.
    shutil.copytree(folder / "mapped", folder / "torn")
    np.save(folder / "torn" / "gain.npy", np.full((40, 95), 0.5, np.float32))
    return start_server(folder)


@pytest.fixture(autouse=True)
def serves_on(server):
    """After each test the server gives what it gave before."""
    roi = localize.npy(localize.movie()[:1, :7, :7])
    before = localize.rows(server, roi).tobytes()
    yield
    assert server.process.poll() is None, "the server died"
    assert localize.rows(server, roi).tobytes() == before


def flat(count=3, height=40, width=40, kind=np.uint16):
    return np.full((count, height, width), 120, kind)


def tiff(*pages, **options):
    file = io.BytesIO()
    with tifffile.TiffWriter(file, byteorder="<") as writer:
        for page in pages:
            writer.write(page, photometric="minisblack", metadata=None, **options)
    return file.getvalue()


def linked(data, index, target):
    """A TIFF whose directory of that index points to another one as the next."""
    data, offset, directories = bytearray(data), struct.unpack_from("<I", data, 4)[0], []
    while offset:
        entries = struct.unpack_from("<H", data, offset)[0]
        directories.append((offset, offset + 2 + 12 * entries))
        offset = struct.unpack_from("<I", data, directories[-1][1])[0]
    struct.pack_into("<I", data, directories[index][1], directories[target][0])
    return bytes(data)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("box_px=8", "box_px .*odd number from 3 to 21"),
        ("box_px=23", "box_px .*odd number from 3 to 21"),
        ("gain=0", "gain: 0 is not above 0"),
        ("gain=nan", "gain: NaN"),
        ("offset=inf", "offset: inf"),
        ("read_noise=-1", "read_noise: -1"),
        ("sigma_px=0", "sigma_px: 0 is not between"),
        ("psf=xynbs&sigma_px=9", "sigma_px: 9 is not between"),
        ("psf=gauss", "psf .*xynbsxsy"),
        ("psf=xyznb&z_um=1,-1", "z_um"),
        ("psf=xyznb&depth_um=0", "depth_um"),
        ("iterations_max=0", "iterations_max"),
        ("noise_min=0", "noise_min: 0 is not above 0"),
        ("photons_min=-5", "photons_min: -5 is not above 0"),
        ("gradient_min=nan", "gradient_min: NaN is not above 0"),
        ("radius_px=99", "radius_px .*1 to 16"),
        ("spots_max=0", "spots_max .*1 to 65536"),
        ("sigma=1.3", "unknown key .*sigma_px"),
        ("format=xml", "format .*thunderstorm"),
        ("format=png&white_percentile=0", "white_percentile"),
        ("format=png&scale=100000", "picture"),
        ("format=hdf5&units=nm", "units"),
        ("format=hdf5&preset=gaussmle", "hdf5 has columns of its own"),
        ("scale=4", "scale is of pictures, but the format is ndjson"),
        ("format=csv&colormap=gray", "colormap is of pictures, but the format is csv"),
        ("gradient_min=300&radius_px=3", "radius_px is of the method contrast"),
        ("dtype=u16", "shape"),
        ("dtype=i32&shape=40,40", "dtype .*u16, f32 or u8"),
        ("shape=0,40", "shape"),
    ],
)
def test_settings_that_cannot_be_are_named(server, query, says):
    data = localize.npy(flat())
    wire.problem(localize.post(server, data, **dict(pair.split("=", 1) for pair in query.split("&"))), 400, says)


@pytest.mark.parametrize("query", ["noise_min=-5", "noise_min=nan", "photons_min=0", "radius_px=99"])
def test_what_spots_are_is_checked_where_none_are_looked_for(server, query):
    data, (key, value) = localize.npy(flat(3, 7, 7)), query.split("=")
    wire.problem(localize.post(server, data, input="rois", **{key: value}), 400, key)


@pytest.mark.parametrize(
    ("array", "query", "says"),
    [
        (flat(3, 8, 8), {"input": "rois"}, "8 x 8 px.*odd side from 3 to 21"),
        (flat(3, 23, 23), {"input": "rois"}, "23 x 23 px.*odd side from 3 to 21"),
        (flat(3, 7, 9), {"input": "rois"}, "9 x 7 px"),
        (flat(3, 5, 40), {}, "smaller than the box"),
        (flat(0, 7, 7), {}, "no frames"),
        (flat(3, 0, 7), {}, "no pixels"),
        (flat().astype(complex), {}, "complex|c16"),
        (flat(3, 7, 7), {"format": "png"}, "picture"),
    ],
)
def test_arrays_that_are_no_stack_are_refused(server, array, query, says):
    wire.problem(localize.post(server, localize.npy(array), **query), 400, says)


def test_files_of_other_kinds_are_named_and_not_taken_for_the_samples_that_a_request_states(server):
    export = "export it as OME-TIFF.*Fiji"
    for begins, what, says in [
        (b"DCIMG\0\0\0", "DCIMG", export),
        (b"\xda\xce\xbe\x0a\x20\0\0\0\x40\0\0\0\0\0\0\0ND2 FILE SIGNATURE CHUNK NAME01!Ver3.0", "ND2", export),
        (b"ZISRAWFILE", "CZI", export),
        (b"Andor Technology Multi-Channel File\n65538 1\n", "SIF", export),
        (b"\x89HDF\r\n\x1a\n", "HDF5", export),
        (b"PK\x03\x04\x14\0\0\0", "ZIP", "unpack it"),
        (gzip.compress(bytes(90)), "gzip", "Content-Encoding: gzip"),
    ]:
        data = begins + bytes(2 * 40 * 40)
        wire.problem(localize.post(server, data), 400, f"not a stack: the body is .*{what}.*{says}")
        for headers, query in [(None, {"shape": "40,40"}), ({"Ocelli-Shape": "40,40"}, {"format": "csv"})]:
            wire.problem(localize.post(server, data, headers=headers, **query), 400, f"{what}.*by its shape it would be raw samples.*{says}")
    for data in (tiff(*flat()), localize.npy(flat())):
        wire.problem(localize.post(server, data, shape="40,40"), 400, "leave shape and dtype out")
    # Counts that begin as gzip does, by one pixel; and those of a TIFF, behind a head that says what they are.
    frames = flat()
    frames[0, 0, :2] = 0x8B1F, 0x8B1F
    assert localize.post(server, frames.tobytes(), shape="40,40").status_code == 200
    frames[0, 0, :2] = np.frombuffer(b"II*\0", "<u2")
    wire.problem(localize.post(server, frames.tobytes(), shape="40,40"), 400, "TIFF")
    found = localize.rows(server, localize.npy(frames))
    assert (localize.infer(server, {"frames": frames})["frame"] == found["frame"]).all()


def test_positions_in_one_file_are_merged_only_where_that_is_asked_for(server):
    pixels = "SizeT='2' SizeZ='1' SizeC='1' PhysicalSizeX='{size}' PhysicalSizeXUnit='nm'"
    images = "".join(f"<Image ID='Image:{at}'><Pixels {pixels.format(size=size)}/></Image>" for at, size in enumerate((108, 118)))
    file = io.BytesIO()
    text = f"<?xml version='1.0'?><OME xmlns='http://www.openmicroscopy.org/Schemas/OME/2016-06'>{images}</OME>"
    tifffile.imwrite(file, localize.movie()[:4], photometric="minisblack", description=text, metadata=None)
    data = file.getvalue()
    for asked in ({}, {"planes": "all"}):
        wire.problem(localize.post(server, data, **asked), 400, "several images.*OME-XML has 2.*planes=here")
    _, head, tail = localize.read_ndjson(localize.post(server, data, planes="here").content)
    assert (head["images"], tail["frames"]) == (2, 4)


def test_what_is_no_stack_is_told_so(server):
    wire.problem(localize.post(server, b"what is this"), 400, "neither TIFF nor .npy")
    wire.problem(localize.post(server, b""), 400, "it is empty; send the bytes of a TIFF or .npy file")
    files = [("a", ("a.npy", localize.npy(flat()))), ("b", ("b.npy", localize.npy(flat())))]
    two = requests.post(f"{server.url}/predictions/spots", files=files, timeout=wire.TIMEOUT)
    wire.problem(two, 400, "2 files, expected one stack")
    one = requests.post(f"{server.url}/predictions/spots", files=files[:1], timeout=wire.TIMEOUT)
    assert one.status_code == 200 and b'"end":true' in one.content


def test_pixels_that_are_no_numbers_are_a_status_of_their_fit_alone(server):
    rois = np.full((7, 7, 7), 120, np.float32)
    rois[:, 3, 3] = 400
    rois[1, 2, 2], rois[2, 0, 0], rois[3, 6, 6] = np.nan, np.inf, -np.inf
    rois[4] = -1e6  # far below the offset
    rois[5, 1, 1] = 3e38
    got = localize.rows(server, localize.npy(rois))
    assert [int(status) for status in got["status"][[1, 2, 3, 5]]] == [STATUS["bad_input"]] * 4
    assert np.isnan(got["x_px"][1]) and np.isnan(got["p_value"][1])
    assert got["status"][0] == got["status"][6] == 0
    assert got["status"][4] in (STATUS["at_bound"], STATUS["singular"], STATUS["bad_input"])
    good = localize.rows(server, localize.npy(rois[:1]))
    assert got[0] == good[0], "a neighbour changed it"
    # In JSON lines they are null; a format without a status leaves them out.
    text = localize.post(server, localize.npy(rois)).text
    tail = json.loads(text.splitlines()[-1])
    assert "null" in text and tail["status"]["bad_input"] == 4 and tail["localizations"] == 7
    assert len(localize.read_csv(localize.post(server, localize.npy(rois), format="thunderstorm").content)["id"]) < 4
    assert len(localize.rows(server, localize.npy(rois), keep="converged")) == 2


def test_constant_and_saturated_rois_have_a_status_and_no_false_certainty(server):
    rois = np.stack([np.full((7, 7), value, np.uint16) for value in (0, 100, 101, 4095, 65535)])
    for psf in ("xynb", "xynbs", "xynbsxsy", "xyznb"):
        got = localize.rows(server, localize.npy(rois), psf=psf)
        failed = ~np.isfinite(got["x_px"]) | ~np.isfinite(got["x_error_px"])
        assert np.isin(got["status"][failed], [STATUS["singular"], STATUS["bad_input"]]).all()
        for row in got[~failed]:
            # Nothing is there: where it is said to be must be said to be unknown, or that a parameter is at its bound.
            assert row["x_error_px"] > 1 or row["status"] != 0, (psf, row)


def test_one_roi_is_fitted_like_many(server):
    rois = localize.movie()[:50, 8:15, 8:15]
    many = localize.rows(server, localize.npy(rois))
    for index in (0, 17, 49):
        one = localize.rows(server, localize.npy(rois[index : index + 1]))
        assert len(one) == 1 and all(one[name][0] == many[name][index] for name in one.dtype.names if name != "frame")


def test_no_rois_give_no_rows(server):
    got = localize.infer(server, {"rois": np.zeros((0, 7, 7), "<f4")})
    assert {"x", "x_error", "status"} <= got.keys() and all(len(column) == 0 for column in got.values())


def test_no_frames_give_no_rows(server):
    got = localize.infer(server, {"frames": np.zeros((0, 40, 96), "<f4")})
    assert {"x", "x_error", "status", "detection_score"} <= got.keys() and all(len(column) == 0 for column in got.values())


def test_tensors_that_do_not_fit_are_refused_by_name(server):
    roi = np.full((2, 7, 7), 120, "<f4")
    corners = np.zeros((2, 2), "<u4")
    for inputs, says in (
        ({"rois": np.full((2, 8, 8), 120, "<f4")}, "8 is not an odd number between 3 and 21"),
        ({"rois": roi[:, :, :5]}, r"rois.*\[n, b, b\]"),
        ({"rois": roi, "corners": corners[:1]}, "corners"),
        ({"rois": roi, "frame": np.zeros(3, "<u4")}, "frame"),
        ({"rois": roi, "corner": corners}, "corner"),
        ({"frames": np.zeros((3, 40, 40), "<f4"), "corners": corners}, "corners"),
        ({"rois": roi, "frames": np.zeros((3, 40, 40), "<f4")}, "either"),
    ):
        wire.problem(localize.post_infer(server, inputs), 400, says)
    for parameters, says in (
        ({"gain": 0}, "gain"),
        ({"box_px": 8}, "box_px"),
        ({"psf": "x"}, "psf"),
        ({"preset": "gaussmle"}, "preset.*columns of their own"),
        ({"gian": 2}, 'unknown parameter "gian"; there are psf.*nearest: gain'),
    ):
        wire.problem(localize.post_infer(server, {"rois": roi}, parameters), 400, says)
    # NaN is a word in JSON, as of Triton; it comes with its status.
    roi[1] = np.nan
    reply = localize.post_infer(server, {"rois": roi}, binary=False)
    assert reply.status_code == 200 and '"name":"x","datatype":"FP32","shape":[2],"data":[3.0,NaN]' in reply.text, reply.text
    assert localize.infer(server, {"rois": roi})["status"][1] == STATUS["bad_input"]


def test_maps_hold_for_frames_of_their_sensor_only(server):
    data = localize.MOVIE.read_bytes()
    # Maps that say the same everywhere change nothing but the last digits.
    mapped, plain = localize.rows(server, data, "mapped"), localize.rows(server, data)
    assert len(mapped) == len(plain)
    apart = np.abs(mapped["x_px"] - plain["x_px"])
    print(f"largest difference {apart.max():.1e} px, {(apart / plain['x_error_px']).max():.1e} standard errors")
    assert (apart < 1e-3).mean() >= 0.99 and (apart < 0.05 * plain["x_error_px"]).all()
    says = "40 x 40 pixels, but the camera's maps are 96 x 40"
    wire.problem(localize.post(server, localize.npy(flat()), "mapped"), 400, says)
    roi = np.full((1, 7, 7), 120, "<f4")
    not_there = "does not lie on the sensor of 96 x 40 pixels"
    for corner, why in (([90, 0], not_there), ([0, 34], not_there), ([60_000, 0], not_there), ([4_000_000_000, 0], "at most 65536")):
        response = localize.post_infer(server, {"rois": roi, "corners": np.array([corner], "<u4")}, model="mapped")
        wire.problem(response, 400, why)
    # ROIs without their place would be taken for the first pixels of the sensor.
    wire.problem(localize.post(server, localize.npy(roi), "mapped"), 400, "corners")
    wire.problem(localize.post_infer(server, {"rois": roi}, model="mapped"), 400, "corners")
    numbers = {"offset": 100, "gain": 0.5, "read_noise": 1}
    assert len(localize.rows(server, localize.npy(roi), "mapped", **numbers)) == 1
    assert len(localize.infer(server, {"rois": roi, "corners": np.array([[89, 33]], "<u4")}, model="mapped")["x"]) == 1
    wire.problem(localize.post(server, data, "torn"), 503, "gain")


def test_pages_of_another_size_end_the_reply_after_what_was_found(server):
    frames = localize.movie()[:4]
    data = tiff(*frames, flat(1, 40, 44)[0])
    *found, last = localize.post(server, data).text.splitlines()
    assert json.loads(last)["error"].startswith("frame 4 is 44 x 40 px") and len(found) > 3
    # Nothing was found before: then it is the reply's own error.
    wire.problem(localize.post(server, tiff(flat(1)[0], flat(1, 40, 44)[0])), 400, "frame 1 is 44 x 40 px")


@pytest.mark.parametrize(("index", "target"), [(0, 0), (1, 0), (3, 2)])
def test_directories_in_a_circle_are_no_stack_without_end(server, index, target):
    data = linked(tiff(*flat(4)), index, target)
    wire.problem(localize.post(server, data), 400, "circle")


@pytest.mark.parametrize("part", [0.2, 0.5, 0.999])
def test_a_truncated_stack_ends_with_an_error_after_the_results_so_far(server, part):
    data = localize.MOVIE.read_bytes()
    cut = data[: int(len(data) * part)]
    says = "truncated: frame"
    whole = localize.rows(server, data)
    *found, last = localize.post(server, cut).text.splitlines()
    told = json.loads(last)
    assert says in told["error"] and told["type"] == "/docs/errors#not-an-image"
    frame = int(told["error"].split("frame ")[1].split()[0])
    assert told["localizations"] == (whole["frame"] < frame).sum() == sum(json.loads(f).get("count", 0) for f in found)
    *_, last = localize.post(server, cut, format="csv").text.splitlines()
    assert last.startswith("# error: ") and says in last
    *_, last = localize.post(server, cut, format="thunderstorm").text.splitlines()
    assert last.startswith("# error: ")
    with pytest.raises(Exception, match="(?i)expected|invalid|message|metadata|eof"):
        localize.read_arrow(localize.post(server, cut, format="arrow").content)
    for whole_only in ("hdf5", "picasso", "npy", "png"):
        wire.problem(localize.post(server, cut, format=whole_only), 400, says)


def test_a_stack_becomes_as_much_as_deflate_unpacks_to_and_no_more(server):
    """What zstd packs of zeros would be hours of work in a few megabytes."""
    zeros, asked = bytes(80 << 20), {"shape": "512,512"}
    refused = "at most 64 MiB and 1032 times what has come of it"
    packed = pyarrow.compress(zeros, codec="zstd", asbytes=True)
    wire.problem(localize.post(server, packed, headers={"Content-Encoding": "zstd"}, **asked), 413, refused)
    packed = zlib.compress(zeros, 9)
    response = localize.post(server, packed, headers={"Content-Encoding": "deflate"}, **asked)
    assert response.status_code == 200 and json.loads(response.text.splitlines()[-1])["frames"] == 160, response.text
    # Pages that are packed, of a file that is packed again.
    pages = tiff(*np.zeros((20, 2048, 2048), np.uint16), compression="zlib", compressionargs={"level": 9})
    assert localize.post(server, pages).status_code == 200
    packed = zlib.compress(pages, 9)
    assert len(packed) * 1032 < 80 << 20, "the test is about less"
    wire.problem(localize.post(server, packed, headers={"Content-Encoding": "deflate"}), 413, refused)
    form = {"file": ("stack.tif", pages)}
    body = requests.Request("POST", server.url, files=form).prepare()
    headers = {"Content-Type": body.headers["Content-Type"], "Content-Encoding": "deflate"}
    wire.problem(localize.post(server, zlib.compress(body.body, 9), headers=headers), 413, refused)


def test_a_stack_of_60000_pages_is_read_to_its_end(server):
    """One directory for each page, written one after another."""
    page = np.full((9, 9), 120, np.uint16)
    first = tiff(page)
    data = bytearray(first)
    # By hand: tifffile takes minutes for so many.
    offset = struct.unpack_from("<I", first, 4)[0]
    entries = struct.unpack_from("<H", first, offset)[0]
    link = offset + 2 + 12 * entries
    directory = first[offset:link]
    for _ in range(59_999):
        data += b"\0" * (len(data) % 2)
        struct.pack_into("<I", data, link, len(data))
        start = len(data)
        pixels = start + len(directory) + 4
        entry = bytearray(directory)
        for at in range(2, len(entry), 12):
            if struct.unpack_from("<H", entry, at)[0] == 273:
                struct.pack_into("<I", entry, at + 8, pixels)
        data += entry + b"\0\0\0\0" + page.tobytes()
        link = start + len(directory)
    response = localize.post(server, bytes(data), input="frames", noise_min=20)
    assert response.status_code == 200, response.text[:500]
    tail = json.loads(response.text.splitlines()[-1])
    assert tail.get("end") and tail["frames"] == 60_000, tail


@pytest.mark.parametrize("name", ["rois", "frames"])
@pytest.mark.parametrize(
    ("shape", "why"), [([1 << 40, 0, 0], "without elements"), ([1 << 62, 0, 7], "without elements"), ([3, 7, 0], "no pixels")]
)
def test_planes_without_a_pixel_are_refused_however_many_they_are_said_to_be(server, name, shape, why):
    inputs = [{"name": name, "shape": shape, "datatype": "FP32", "data": []}]
    response = requests.post(f"{server.url}/v2/models/spots/infer", json={"inputs": inputs}, timeout=wire.TIMEOUT)
    wire.problem(response, 400, name, str(shape[0]), why)
