"""What a fitter makes of cameras that multiply, of maps of more than the frames, and of what a file says late or of several channels."""

import io
import json
import shutil
import subprocess
import zipfile
from math import erf, sqrt

import localize
import numpy as np
import pyarrow.ipc
import pytest
import requests
import tifffile
import tritonclient.grpc as triton
import wire
import yaml
from conftest import EXAMPLES
from server import BINARY, until

# An EMCCD: electrons are multiplied by 300, read with a noise of 60, and 10 of them are a count.
GAIN, READ, PER_COUNT, OFFSET = 300, 60, 10, 200
EMCCD = {"offset": OFFSET, "gain": PER_COUNT / GAIN, "read_noise": READ / GAIN}
SIGMA, SIDE, CORNER = 1.3, 9, (37, 21)


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    """A server with a fitter of ideal cameras that knows no pixel size, and one whose maps are of 160 x 90 pixels."""
    folder = tmp_path_factory.mktemp("cameras")
    for name in ("plain", "mapped"):
        (folder / name).mkdir()
        (folder / name / "model.toml").write_text('engine = "gauss-mle"\n')
    shutil.copytree(EXAMPLES / "models" / "spots", folder / "spots")
    manifest = folder / "mapped" / "model.toml"
    manifest.write_text(manifest.read_text() + '[camera]\noffset = "offset.npy"\ngain = 0.5\nread_noise = 1.0\n')
    rows, columns = np.mgrid[:90, :160]
    np.save(folder / "mapped" / "offset.npy", (100 + (rows * 7 + columns * 3) % 40).astype("f4"))
    return start_server(folder)


def light(x, y, photons, height, width):
    """Expected photo-electrons of a spot."""
    def along(center, count):
        edges = np.arange(count + 1) - 0.5 - center
        return np.diff([0.5 * (1 + erf(edge / SIGMA / sqrt(2))) for edge in edges])
    return photons * np.outer(along(y, height), along(x, width))


def multiplied(expected, random):
    """Counts of an EMCCD: a Poisson number of electrons, each multiplied by an exponential one."""
    electrons = random.poisson(expected)
    out = np.where(electrons > 0, random.gamma(np.maximum(electrons, 1), GAIN), 0)
    counts = np.rint((out + random.normal(0, READ, out.shape)) / PER_COUNT + OFFSET)
    return counts.clip(0, 65535).astype("<u2")


@pytest.fixture(scope="module")
def rois():
    """ROIs of an EMCCD with what they are of."""
    random = np.random.default_rng(3)
    truth = np.column_stack([random.uniform(3.5, 4.5, (3000, 2)), np.full(3000, 800.0)])
    expected = np.stack([10 + light(x, y, photons, SIDE, SIDE) for x, y, photons in truth])
    return multiplied(expected, random), truth


def scaled(found, truth):
    """Errors over stated errors of x, y and photons, of what converged."""
    good = found["status"] == 0
    assert good.mean() > 0.98
    names = ("x_px", "y_px", "photons") if "x_px" in (found.dtype.names or ()) else ("x", "y", "photons")
    errors = [name.replace("_px", "") + "_error" + "_px" * name.endswith("_px") for name in names]
    return np.stack([(found[n] - t)[good] / found[e][good] for n, e, t in zip(names, errors, truth.T)])


def test_errors_of_multiplied_electrons_are_as_large_as_they_are_said_to_be(server, rois):
    adu, truth = rois
    found = localize.rows(server, localize.npy(adu), "plain", psf="xynb", sigma_px=SIGMA, excess_noise=2, **EMCCD)
    over, good = scaled(found, truth), found["status"] == 0
    spread, bias = over.std(axis=1), found["photons"][good].mean() / 800 - 1
    rejected = (found["p_value"][good] < 0.01).mean()
    background = found["background"][good].mean()
    print(f"errors over stated ones {spread}, photons {bias:+.4f}, background {background:.2f}, p below 0.01: {rejected:.4f}")
    assert (abs(spread - 1) < 0.06).all() and abs(bias) < 0.01 and abs(background - 10) < 0.3
    assert rejected < 0.05
    plain = localize.rows(server, localize.npy(adu), "plain", psf="xynb", sigma_px=SIGMA, **EMCCD)
    without = scaled(plain, truth).std(axis=1)
    print(f"without excess_noise {without}, p below 0.01: {(plain['p_value'] < 0.01).mean():.3f}")
    assert (without > 1.3).all() and (plain["p_value"] < 0.01).mean() > 0.5


def test_tensors_and_every_format_give_multiplied_photons_as_photo_electrons(server, rois):
    adu = rois[0][:200]
    asked = {"psf": "xynb", "sigma_px": SIGMA, "excess_noise": 2, **EMCCD}
    expected = localize.rows(server, localize.npy(adu), "plain", **asked)
    tensors = localize.infer(server, {"rois": adu}, asked, "plain")
    for name in ("photons", "background", "photons_error", "background_error", "p_value"):
        assert (tensors[name] == expected[name]).all(), name
    readers = {"csv": localize.read_csv, "arrow": localize.read_arrow, "ndjson": lambda content: localize.read_ndjson(content)[0]}
    for form, reader in readers.items():
        got = reader(localize.post(server, localize.npy(adu), "plain", format=form, **asked).content)
        for name in ("photons", "background", "photons_error", "background_error"):
            assert np.allclose(got[name], expected[name], rtol=1e-6), (form, name)
    got = localize.read_hdf5(localize.post(server, localize.npy(adu), "plain", format="hdf5", keep="all", pixel_nm=100, **asked).content)
    for name, ours in (("photons", "photons"), ("bg", "background"), ("photons_unc", "photons_error"), ("bg_unc", "background_error"), ("p_value", "p_value")):
        assert (got[name] == expected[ours]).all(), name
    storm = localize.post(server, localize.npy(adu), "plain", format="thunderstorm", keep="all", pixel_nm=100, **asked)
    got = {name.strip('"'): column for name, column in localize.read_csv(storm.content).items()}
    assert np.allclose(got["intensity [photon]"], expected["photons"], rtol=1e-6)
    assert np.allclose(got["bkgstd [photon]"], np.sqrt(2 * expected["background"]), rtol=1e-5)
    assert np.allclose(got["p_value"], expected["p_value"], rtol=1e-6)


def test_noise_of_an_emccd_is_taken_for_no_more_spots_than_it_should_be(server):
    random = np.random.default_rng(5)
    places = [(x, y) for x in range(12, 90, 16) for y in range(12, 60, 16)]
    expected = 10 + sum(light(x, y, 900, 64, 96) for x, y in places)
    # And as many frames without a spot that what is taken for one is counted.
    frames = multiplied(np.concatenate([np.broadcast_to(expected, (20, 64, 96)), np.full((120, 64, 96), 10.0)]), random)
    asked = {"sigma_px": SIGMA, "noise_min": 5, **EMCCD}
    found = localize.rows(server, localize.npy(frames), "plain", excess_noise=2, **asked)
    plain = localize.rows(server, localize.npy(frames), "plain", **asked)
    true = 20 * len(places)
    print(f"{len(found)} spots of {true}; without excess_noise {len(plain)}")
    assert true <= len(found) < true + 10 < true + 30 < len(plain)
    photons = localize.rows(server, localize.npy(frames), "plain", excess_noise=2, photons_min=450, **{**asked, "noise_min": None})
    assert len(photons) == true and abs(np.median(photons["detection_score"]) / 900 - 1) < 0.1


def test_frames_of_a_part_of_the_sensor_say_where_it_lies(server):
    (x, y), frames = CORNER, localize.movie()
    rows, columns = np.mgrid[y : y + 40, x : x + 96]
    frames = (frames + (rows * 7 + columns * 3) % 40).astype("<u2")
    camera = {"offset": 100, "gain": 0.5, "read_noise": 1}
    expected = localize.rows(server, localize.npy(localize.movie()), "plain", **camera)
    found = localize.rows(server, localize.npy(frames), "mapped", corner_px=f"{x},{y}")
    assert len(found) == len(expected)
    assert np.allclose(found["x_px"], expected["x_px"], atol=1e-2) and np.allclose(found["y_px"], expected["y_px"], atol=1e-2)
    tensors = localize.infer(server, {"frames": frames}, {"corner_px": [x, y]}, "mapped")
    assert (tensors["x"] == found["x_px"]).all()
    # ROIs of the same frames, whose corners count from their first pixel.
    corners = np.array([[5, 6], [60, 20]], "<u4")
    cut = np.stack([frames[0, v : v + 7, u : u + 7] for u, v in corners])
    plain = np.stack([localize.movie()[0, v : v + 7, u : u + 7] for u, v in corners])
    got = localize.infer(server, {"rois": cut, "corners": corners}, {"corner_px": [x, y]}, "mapped")
    same = localize.infer(server, {"rois": plain, "corners": corners}, camera, "plain")
    assert np.allclose(got["x"], same["x"], atol=1e-2) and np.allclose(got["photons"], same["photons"], rtol=1e-2)
    for query, says in (
        ({}, "96 x 40 pixels, but the camera's maps are 160 x 90: give corner_px"),
        ({"corner_px": "65,0"}, "corner_px is .*leave the camera's maps of 160 x 90 px"),
        ({"corner_px": "65"}, "corner_px is .*column and the row"),
    ):
        wire.problem(localize.post(server, localize.npy(frames), "mapped", **query), 400, says)
    wire.problem(localize.post(server, localize.npy(frames), "plain", corner_px="1,1"), 400, "corner_px is of a camera with maps")


def test_spots_beyond_those_allowed_are_told_beside_tensors(server):
    frames = localize.movie()
    everything = len(localize.infer(server, {"frames": frames})["x"])
    counts = []
    for binary in (True, False):
        response = localize.post_infer(server, {"frames": frames}, {"spots_max": 2}, binary=binary)
        length = int(response.headers.get("Inference-Header-Content-Length", len(response.content)))
        counts.append(json.loads(response.content[:length]))
    inputs = [{"name": "frames", "shape": frames.shape, "datatype": "UINT16", "data": frames.ravel().tolist()}]
    request = {"inputs": inputs, "parameters": {"spots_max": 2}}
    lines = requests.post(
        f"{server.url}/v2/models/spots/infer", json=request, headers={"Accept": "application/x-ndjson"}, timeout=wire.TIMEOUT
    ).text.splitlines()
    counts.append(json.loads(lines[0]))
    for reply in counts:
        rows = reply["outputs"][0]["shape"][0]
        assert reply["parameters"] == {"over_spots_max": everything - rows} and rows < everything - 1000, reply["parameters"]
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        given = triton.InferInput("frames", list(frames.shape), "UINT16")
        given.set_data_from_numpy(frames)
        reply = client.infer("spots", [given], parameters={"spots_max": 2}).get_response()
        assert reply.parameters["over_spots_max"].int64_param == everything - rows
        roi = triton.InferInput("rois", [1, 7, 7], "UINT16")
        roi.set_data_from_numpy(np.ascontiguousarray(frames[:1, :7, :7]))
        assert not client.infer("spots", [roi]).get_response().parameters


def test_spots_beyond_those_allowed_are_told(server, tmp_path):
    data = localize.MOVIE.read_bytes()
    every = len(localize.rows(server, data))
    reply = localize.post(server, data, spots_max=2, format="ndjson")
    tail = json.loads(reply.text.splitlines()[-1])
    assert tail["over_spots_max"] == every - tail["localizations"] > 1000 and tail["left_out"] == 0
    # A line in the log names the request, how many were left out, and what allows more.
    def told():
        lines = server.log_text().splitlines()
        return [line for line in lines if " WARN " in line and reply.headers["x-request-id"] in line] or None

    # The log is written beside the reply.
    (line,) = until(told, 30, "the log tells of them")
    assert f"over_spots_max={tail['over_spots_max']}" in line and "spots_max allows more" in line, line
    for name, options in (("a.csv", []), ("b.ndjson", ["--concurrency", "1"])):
        command = [BINARY, "predict", "spots", localize.MOVIE, "--url", server.url, "--set", "spots_max=2", "-o", tmp_path / name, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert f"; over_spots_max {tail['over_spots_max']}" in done.stdout, done.stdout + done.stderr
    command = [BINARY, "predict", "spots", localize.MOVIE, "--url", server.url, "--set", "spots_max=2"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout.splitlines()
    assert dict(zip(table[0].split(), table[1].split()))["OVER_SPOTS_MAX"] == str(tail["over_spots_max"])


def test_files_tell_of_spots_beyond_those_allowed_as_far_as_they_can(server):
    data = localize.MOVIE.read_bytes()
    every = len(localize.rows(server, data))
    for query in ({"spots_max": 2}, {}):
        reply = {name: localize.post(server, data, format=name, **query) for name in ("csv", "thunderstorm", "picasso", "npy", "hdf5", "png")}
        left = len(np.load(io.BytesIO(reply["npy"].content)))
        over = every - left
        assert (over > 1000) == bool(query)
        last = reply["csv"].text.splitlines()[-1]
        assert last.startswith(f"# over_spots_max: {over} spots") if over else last[0].isdigit(), last
        # NumPy passes over comments, and ThunderSTORM's reader knows none.
        assert len(np.genfromtxt(io.BytesIO(reply["csv"].content), delimiter=",", names=None, skip_header=0, comments="#")) == left + 1
        assert "#" not in reply["thunderstorm"].text
        with zipfile.ZipFile(io.BytesIO(reply["picasso"].content)) as files:
            assert yaml.safe_load(files.read("spots.yaml"))["over_spots_max"] == over
        localize.read_picasso(reply["picasso"].content)
        assert f'"over_spots_max":{over}'.encode() in reply["hdf5"].content
        for name in ("picasso", "npy", "hdf5", "png"):
            told = reply[name].headers["ocelli-counts"]
            assert told.startswith("frames=160, localizations=") and (f"over_spots_max={over}" in told) == bool(over), told


def test_a_large_frame_may_have_more_spots_than_a_small_one(server):
    side, grid = 1024, np.arange(4, 1020, 8)
    frame = np.full((1, side, side), 120, "<u2")
    frame[0][np.ix_(grid, grid)] = 4000
    spots = len(grid) ** 2
    assert spots > 16_000
    rows, head, tail = localize.read_ndjson(localize.post(server, localize.npy(frame), "plain", sigma_px=0.6, noise_min=5).content)
    assert (head["spots_max"], tail["over_spots_max"], len(rows["frame"])) == (40_000, 0, spots)
    _, head, tail = localize.read_ndjson(localize.post(server, localize.npy(frame), "plain", sigma_px=0.6, noise_min=5, spots_max=10_000).content)
    assert (head["spots_max"], tail["over_spots_max"]) == (10_000, spots - 10_000)


def test_heads_tell_all_settings_that_made_the_rows(server):
    data = localize.MOVIE.read_bytes()
    query = {"psf": "xynbs", "sigma_px": 1.2, "photons_min": 250, "gain": 0.46, "read_noise": 1.5, "p_min": 0.01, "border": "drop"}
    expected = {
        "model": "xynbs", "sigma_px": [1.2, 1.2], "box_px": 7, "iterations_max": 30, "offset": 100, "gain": 0.46, "read_noise": 1.5,
        "excess_noise": 1, "method": "contrast", "photons_min": 250, "radius_px": 3, "border": "drop", "spots_max": 10_000, "keep": "all",
        "p_min": 0.01,
    }  # fmt: skip
    _, head, _ = localize.read_ndjson(localize.post(server, data, **query).content)
    assert {key: head[key] for key in expected} == expected
    assert "noise_min" not in head
    words = {key: " ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in expected.items()}
    first = localize.post(server, data, format="csv", **query).text.splitlines()[0]
    assert all(f"{key} {value}" in first for key, value in words.items()), first
    with pyarrow.ipc.open_stream(localize.post(server, data, format="arrow", **query).content) as stream:
        told = {key.decode(): value.decode() for key, value in stream.schema.metadata.items()}
    assert {key: told[key] for key in words} == words
    with zipfile.ZipFile(io.BytesIO(localize.post(server, data, format="picasso", **query).content)) as files:
        described = yaml.safe_load(files.read("spots.yaml"))
    assert {key: str(described[key]) for key in words} == {**words, "keep": "converged"}
    # A map is told by the name of its file, and its place on the sensor with it.
    frames = localize.npy(np.full((1, 90, 100), 120, "<u2"))
    for query, offset in [({}, "offset.npy"), ({"offset": 5}, 5)]:
        asked = query or {"corner_px": "60,0"}
        _, head, _ = localize.read_ndjson(localize.post(server, frames, "mapped", **asked).content)
        assert (head["offset"], head.get("corner_px")) == (offset, None if query else [60, 0])


def test_fits_of_a_low_p_value_are_left_out_where_that_is_asked_for(server):
    data = localize.MOVIE.read_bytes()
    found = localize.rows(server, data)
    good = found[found["p_value"] >= 0.1]
    assert 0 < len(good) < len(found)
    assert (localize.rows(server, data, p_min=0.1) == good).all()
    tail = localize.read_ndjson(localize.post(server, data, p_min=0.1).content)[2]
    assert (tail["localizations"], tail["left_out"]) == (len(good), len(found) - len(good))
    wire.problem(localize.post(server, data, p_min=1.5), 400, "p_min is .*from 0 to 1")


def written(**options):
    """The example's frames as tifffile writes them."""
    file = io.BytesIO()
    tifffile.imwrite(file, localize.movie().reshape(options.pop("shape", (160, 40, 96))), photometric="minisblack", **options)
    return file.getvalue()


def test_the_head_tells_how_many_channels_are_mixed(server):
    for kind in ({"imagej": True}, {"ome": True}):
        data = written(shape=(80, 2, 40, 96), metadata={"axes": "TCYX"}, **kind)
        head = localize.read_ndjson(localize.post(server, data).content)[1]
        # What is at the end of a file is known when that is there.
        assert head.get("axes", "late" if "ome" in kind else None) in ("late", {"frames": 80, "slices": 1, "channels": 2}), head
    assert "axes" not in localize.read_ndjson(localize.post(server, localize.npy(localize.movie())).content)[1]


def test_a_pixel_size_at_the_end_of_a_file_is_in_what_is_written_last(server):
    sizes = {"PhysicalSizeX": 0.1075, "PhysicalSizeY": 0.1075}
    data = written(ome=True, metadata={"axes": "TYX", **sizes})
    assert b'"Pixelsize":107.5' in localize.post(server, data, "plain", format="hdf5", offset=100, gain=0.5).content
    oblong = written(ome=True, metadata={"axes": "TYX", **sizes, "PhysicalSizeY": 0.12})
    content = localize.post(server, oblong, "plain", format="hdf5", offset=100, gain=0.5).content
    assert b'"pixel_size_nm":"107.5 120"' in content and b"Pixelsize" not in content
    head = localize.read_ndjson(localize.post(server, data, "plain", offset=100, gain=0.5).content)[1]
    assert "pixel_size_nm" not in head, "it came too late"
    for query in ({"format": "thunderstorm"}, {"units": "nm"}, {"preset": "gaussmle"}, {"format": "png", "scale_nm": 10}):
        wire.problem(localize.post(server, data, "plain", **query), 400, "give pixel_nm, such as pixel_nm=100")
