"""Files of localizations, read by the libraries that people read them with.

The Rust test `localizations` has written them; both sides know the rows by the same formulas."""

import csv
import io
import json
import math
import os
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
import yaml
from PIL import Image
from server import ROOT

FOLDER = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "tmp" / "localizations"
MODELS = {
    "xynb": ["x", "y", "photons", "background"],
    "xynbs": ["x", "y", "photons", "background", "sigma"],
    "xynbsxsy": ["x", "y", "photons", "background", "sigma_x", "sigma_y"],
    "xyznb": ["x", "y", "z", "photons", "background"],
}
LATERAL = {"x", "y", "sigma", "sigma_x", "sigma_y"}
PIXEL_NM = 108
ROWS = 2500


def file(name):
    path = FOLDER / name
    assert path.exists(), f"{path} is missing: run `cargo test --test it localizations` first"
    return path


def truth(model):
    """The rows of a model in the units of the fitter: px and um, from the centre of the first pixel, frames from 0."""
    row = np.arange(ROWS, dtype=np.float64)
    values = {
        "x": row * 37 % 601 / 10 + 5.25,
        "y": row * 53 % 401 / 10 + 5.5,
        "z": row * 7 % 101 / 101 - 0.5,
        "photons": 500 + row * 11 % 997,
        "background": 5 + row % 7,
        "sigma": 1.1 + row % 5 / 10,
        "sigma_x": 1.1 + row % 5 / 10,
        "sigma_y": 1.0 + row % 3 / 10,
    }
    errors = {"x": 0.05 + row % 9 / 100, "y": 0.06 + row % 8 / 100}
    failed = row % 50 == 49
    rows = {"frame": row // 5}
    for name in MODELS[model]:
        rows[name] = values[name]
    for name in MODELS[model]:
        rows[f"{name}_error"] = np.where(failed, np.nan, errors.get(name, 0.5 + row % 4 / 10))
    for pair in ["xy", "xz", "yz"] if model == "xyznb" else ["xy"]:
        rows[f"{pair}_covariance"] = np.where(failed, np.nan, row / 1e6)
    rows["log_likelihood_ratio"] = -10 - row % 31
    rows["p_value"] = row % 100 / 100
    rows["iterations"] = 3 + row % 6
    rows["status"] = np.where(failed, 3, np.where(row % 10 == 9, 1, 0))
    if model != "xyznb":
        rows["net_gradient"] = 300 + row
    return rows


def in_nm(model):
    """The same under the names and in the units of our own columns."""
    named = {}
    for name, values in truth(model).items():
        parameter = name.removesuffix("_error")
        if parameter in LATERAL:
            named[f"{name}_nm"] = values * PIXEL_NM
        elif parameter == "z":
            named[f"{name}_nm"] = values * 1000
        elif name.endswith("_covariance"):
            named[f"{name}_nm2"] = values * PIXEL_NM * (1000 if "z" in name[:2] else PIXEL_NM)
        else:
            named[name] = values
    return named


def gaussmle(model):
    """The same as fields of GaussMLE.jl: um from the corner of the first pixel, frames from 1."""
    rows = truth(model)
    um = PIXEL_NM / 1000
    width = {"sigma": "σ", "sigma_x": "σx", "sigma_y": "σy"}
    short = {"background": "bg", **width}
    factor = {name: um if name in LATERAL else 1 for name in MODELS[model]}
    named = {}
    for name in MODELS[model]:
        named[short.get(name, name)] = (rows[name] + (0.5 if name in "xy" else 0)) * factor[name]
    positions = [name for name in MODELS[model] if name in ("x", "y", "z")]
    for name in positions:
        named[f"σ_{name}"] = rows[f"{name}_error"] * factor[name]
    for pair in ["xy", "xz", "yz"] if model == "xyznb" else ["xy"]:
        named[f"σ_{pair}"] = rows[f"{pair}_covariance"] * factor[pair[0]] * factor[pair[1]]
    for name in MODELS[model]:
        if name not in positions:
            named[f"σ_{short.get(name, name)}"] = rows[f"{name}_error"] * factor[name]
    named["pvalue"] = rows["p_value"]
    named["frame"] = rows["frame"] + 1
    named["dataset"] = np.ones(ROWS)
    named["track_id"] = np.zeros(ROWS)
    named["id"] = np.arange(ROWS) + 1
    named["status"] = rows["status"]
    return named


def converged(model):
    rows = truth(model)
    kept = rows["status"] == 0
    return {name: values[kept] for name, values in rows.items()}


def check(found, expected):
    """The same names in the same order, and the same numbers within the digits of a 32-bit float."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[name], float), values, rtol=3e-7, err_msg=name)


def read_csv(path):
    """Names and columns of a file with comments."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    names, *rows = csv.reader(lines)
    columns = np.array([[float(value) for value in row] for row in rows]).reshape(-1, len(names)).T
    return dict(zip(names, columns, strict=True))


def read_ndjson(path):
    """Head, columns and last line; the columns are put together from the lines of the frames."""
    head, *frames, tail = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    columns = {}
    for line in frames:
        count = line.pop("count")
        columns.setdefault("frame", []).extend([line.pop("frame")] * count)
        for name, values in line.items():
            assert len(values) == count
            columns.setdefault(name, []).extend(np.nan if value is None else value for value in values)
    return head, columns, tail


def read_arrow(path):
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        return stream.read_all()


def records(array):
    return {name: array[name] for name in array.dtype.names}


@pytest.mark.parametrize("model", MODELS)
def test_csv_has_the_rows(model):
    path = file(f"{model}.csv.csv")
    check(read_csv(path), in_nm(model))
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert "the center of the first pixel is (0, 0); frames count from 0" in comments[1]
    assert read_csv(file(f"{model}-empty.csv.csv")).keys() == in_nm(model).keys()


@pytest.mark.parametrize("model", MODELS)
def test_csv_is_read_by_numpy_alone(model):
    array = np.genfromtxt(file(f"{model}.csv.csv"), delimiter=",", skip_header=3, names=True, encoding="utf-8")
    np.testing.assert_allclose(array["y_nm"], truth(model)["y"] * PIXEL_NM, rtol=3e-7)
    assert np.isnan(array["x_error_nm"]).sum() == ROWS // 50


@pytest.mark.parametrize("model", MODELS)
def test_ndjson_has_the_rows(model):
    head, columns, tail = read_ndjson(file(f"{model}.ndjson.ndjson"))
    check(columns, in_nm(model))
    assert head["model"] == model
    assert head["frame_base"] == 0
    assert head["units"]["x_nm"] == "nm"
    assert head["pixel_size_nm"] == [PIXEL_NM, PIXEL_NM]
    assert head["camera"] == "a camera, µ"
    assert tail["end"] is True
    assert tail["frames"] == 600
    assert tail["localizations"] == ROWS
    assert tail["status"]["singular"] == 50
    assert tail["status"]["iteration_limit"] == 200


@pytest.mark.parametrize("model", MODELS)
def test_arrow_has_the_rows(model):
    table = read_arrow(file(f"{model}.arrow.arrows"))
    check({name: table[name].to_numpy() for name in table.column_names}, in_nm(model))
    assert table.schema.field("frame").type == pa.uint32()
    assert table.schema.field("x_nm").type == pa.float32()
    assert table.schema.field("x_nm").metadata[b"unit"] == b"nm"
    assert table.schema.metadata[b"frame_base"] == b"0"
    assert table.schema.metadata[b"pixel_origin"] == b"the center of the first pixel is (0, 0)"
    assert read_arrow(file(f"{model}-empty.arrow.arrows")).num_rows == 0


@pytest.mark.parametrize("model", MODELS)
def test_npy_has_the_rows(model):
    array = np.load(file(f"{model}.npy.npy"), allow_pickle=False)
    assert array.shape == (ROWS,)
    assert array.dtype["status"] == np.uint8
    check(records(array), in_nm(model))
    empty = np.load(file(f"{model}-empty.npy.npy"), allow_pickle=False)
    assert empty.shape == (0,)
    assert empty.dtype == array.dtype


@pytest.mark.parametrize("model", MODELS)
def test_gaussmle_columns_are_those_of_its_emitters(model):
    expected = gaussmle(model)
    check(read_csv(file(f"{model}-gaussmle.csv.csv")), expected)
    array = np.load(file(f"{model}-gaussmle.npy.npy"), allow_pickle=False)
    check(records(array), expected)
    table = read_arrow(file(f"{model}-gaussmle.arrow.arrows"))
    check({name: table[name].to_numpy() for name in table.column_names}, expected)
    head, columns, _ = read_ndjson(file(f"{model}-gaussmle.ndjson.ndjson"))
    assert head["pixel_origin"] == "the outer corner of the first pixel is (0, 0)"
    check({name: columns[name] for name in expected}, expected)


@pytest.mark.parametrize("model", MODELS)
def test_thunderstorm_counts_from_the_corner_and_from_1(model):
    path = file(f"{model}.thunderstorm.csv")
    rows = converged(model)
    found = read_csv(path)
    assert path.read_text().startswith('"id","frame","x [nm]","y [nm]",')
    np.testing.assert_allclose(found["frame"], rows["frame"] + 1)
    np.testing.assert_allclose(found["id"], np.arange(len(rows["x"])) + 1)
    np.testing.assert_allclose(found["x [nm]"], (rows["x"] + 0.5) * PIXEL_NM, rtol=3e-7)
    np.testing.assert_allclose(found["y [nm]"], (rows["y"] + 0.5) * PIXEL_NM, rtol=3e-7)
    np.testing.assert_allclose(found["intensity [photon]"], rows["photons"], rtol=3e-7)
    error = PIXEL_NM * np.sqrt((rows["x_error"] ** 2 + rows["y_error"] ** 2) / 2)
    np.testing.assert_allclose(found["uncertainty_xy [nm]"], error, rtol=1e-6)
    if model == "xyznb":
        np.testing.assert_allclose(found["z [nm]"], rows["z"] * 1000, rtol=3e-7)
        np.testing.assert_allclose(found["sigma1 [nm]"], widths(rows)[0] * PIXEL_NM, rtol=1e-5)


def widths(rows):
    """The widths of an astigmatic spot, px: the calibration of the Rust test."""

    def width(u):
        t = u / 0.4
        return 1.3 * np.sqrt(1 + t**2 + 0.05 * t**3 + 0.01 * t**4)

    return width(rows["z"] - 0.25), width(rows["z"] + 0.25)


def picasso_columns(model):
    rows = converged(model)
    if model == "xyznb":
        sx, sy = widths(rows)
    elif model == "xynb":
        sx = sy = np.full(len(rows["x"]), 1.3)
    else:
        sx = rows.get("sigma", rows.get("sigma_x"))
        sy = rows.get("sigma", rows.get("sigma_y"))
    columns = {"frame": rows["frame"], "x": rows["x"], "y": rows["y"], "photons": rows["photons"], "sx": sx, "sy": sy}
    columns |= {"bg": rows["background"], "lpx": rows["x_error"], "lpy": rows["y_error"]}
    if model in ("xynbsxsy", "xyznb"):
        columns["ellipticity"] = abs(sx - sy) / np.maximum(sx, sy)
    if model == "xyznb":
        columns |= {"z": rows["z"] * 1000, "lpz": rows["z_error"] * 1000}
    else:
        columns["net_gradient"] = rows["net_gradient"]
    columns |= {"log_likelihood": rows["log_likelihood_ratio"], "iterations": rows["iterations"]}
    return columns


def check_picasso(found, model):
    for name, values in picasso_columns(model).items():
        np.testing.assert_allclose(np.asarray(found[name], float), values, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_picasso_files_are_read_by_hdf5(model):
    with zipfile.ZipFile(file(f"{model}.picasso.zip")) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"spots-{model}.hdf5", f"spots-{model}.yaml"]
        hdf5, text = (archive.read(name) for name in archive.namelist())
    assert hdf5 == file(f"{model}.hdf5.hdf5").read_bytes()
    with h5py.File(io.BytesIO(hdf5), "r") as found:
        assert list(found) == ["locs", "metadata"]
        locs = found["locs"]
        assert locs.dtype["frame"] == np.uint32
        assert locs.dtype["x"] == np.float32
        check_picasso(records(locs[:]), model)
        assert "x in px" in locs.attrs["conventions"].decode()
        metadata = json.loads(found["metadata"][()].decode())
    documents = list(yaml.safe_load_all(text))
    assert documents == metadata
    assert documents[0]["Width"] == 80
    assert documents[0]["Height"] == 60
    assert documents[0]["Frames"] == 600
    assert documents[0]["Pixelsize"] == PIXEL_NM
    with h5py.File(file(f"{model}-empty.hdf5.hdf5"), "r") as found:
        assert found["locs"].shape == (0,)
        assert found["locs"].dtype == locs_dtype(model)


def locs_dtype(model):
    with h5py.File(file(f"{model}.hdf5.hdf5"), "r") as found:
        return found["locs"].dtype


@pytest.mark.parametrize("model", MODELS)
def test_picasso_itself_reads_its_files(model, tmp_path):
    picasso = pytest.importorskip("picasso.io", reason="Picasso (picassosr) is not installed: it is large")
    alone = tmp_path / "alone.hdf5"
    alone.write_bytes(file(f"{model}.hdf5.hdf5").read_bytes())
    with zipfile.ZipFile(file(f"{model}.picasso.zip")) as archive:
        archive.extractall(tmp_path)
    for path in [alone, tmp_path / f"spots-{model}.hdf5"]:
        locs, info = picasso.load_locs(str(path))
        assert len(locs) == len(picasso_columns(model)["x"])
        check_picasso(locs, model)
        assert info[0]["Pixelsize"] == PIXEL_NM
    if model in ("xynb", "xyznb"):
        imported, _ = picasso.import_ts(str(file(f"{model}.thunderstorm.csv")), PIXEL_NM)
        assert len(imported) == len(locs)


def test_outputs_that_break_off_say_so():
    message = "page 161 of the stack is cut off"
    assert file("broken.csv.csv").read_text(encoding="utf-8").splitlines()[-1] == f"# error: {message}"
    assert len(read_csv(file("broken.csv.csv"))["frame"]) == 800
    _, columns, last = read_ndjson(file("broken.ndjson.ndjson"))
    assert last["error"] == message
    assert len(columns["frame"]) == last["localizations"] == 800
    with pa.ipc.open_stream(file("broken.arrow.arrows").read_bytes()) as stream:
        assert sum(stream.read_next_batch().num_rows for _ in range(2)) == 800
        with pytest.raises(pa.ArrowInvalid):
            stream.read_next_batch()


def test_a_histogram_counts_the_localizations():
    with Image.open(file("picture-histogram.png")) as image:
        assert image.mode == "L"
        assert image.size == (80, 60)
        assert "localizations per pixel" in image.text["Description"]
        found = np.asarray(image, float)
    rows = converged("xyznb")
    bins = [np.arange(61) - 0.5, np.arange(81) - 0.5]
    counts, _, _ = np.histogram2d(rows["y"], rows["x"], bins=bins)
    assert counts.sum() == 2250
    np.testing.assert_array_equal(found, np.floor(counts / counts.max() * 255 + 0.5))


def test_a_blurred_picture_is_a_sum_of_gaussians():
    """Against the sum of their integrals over each pixel in double precision."""
    with Image.open(file("picture-blur.png")) as image:
        found = np.asarray(image, float)
        # Dots per inch of 27 nm.
        assert image.info["dpi"][0] == pytest.approx(0.0254 / 27e-9, rel=1e-6)
    rows = converged("xyznb")
    assert found.shape == (240, 320)

    def along(axis, side):
        sigma = rows[f"{axis}_error"][:, None] * 4
        edges = (np.arange(side + 1) - (rows[axis][:, None] + 0.5) * 4) / sigma
        return np.diff(np.vectorize(math.erf)(edges / math.sqrt(2)) / 2)

    expected = along("y", 240).T @ along("x", 320)
    difference = abs(found - expected / expected.max() * 255).max()
    print(f"largest difference: {difference:.3f} of 255")
    # Values are rounded to bytes, and Gaussians end at four standard deviations.
    assert difference < 0.55


@pytest.mark.parametrize(("name", "mode"), [("hot", "P"), ("viridis", "P"), ("z", "RGB")])
def test_pictures_in_color_are_read(name, mode):
    with Image.open(file(f"picture-{name}.png")) as image:
        assert image.mode == mode
        pixels = np.asarray(image.convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
