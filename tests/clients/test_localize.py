"""Single molecules: what a fitter finds, in every form that it can be asked in, and that it comes while the rest is sent."""

import contextlib
import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor

import localize
import numpy as np
import pyarrow
import pytest
import requests
import tifffile
import wire
import yaml
from conftest import EXAMPLES
from server import BINARY, LIBRARY, ROOT, until

FIELDS = ["x", "y", "photons", "background"]


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    """A server with the example's fitter."""
    folder = tmp_path_factory.mktemp("spots")
    shutil.copytree(EXAMPLES / "models" / "spots", folder / "spots")
    return start_server(folder)


@pytest.fixture(scope="module")
def data():
    """The example's file."""
    return localize.MOVIE.read_bytes()


@pytest.fixture(scope="module")
def found(server, data):
    """What is found in the example."""
    return localize.rows(server, data)


@pytest.fixture(scope="module")
def rois(found):
    """ROIs of the example's spots, [n, 7, 7], with corners and frames."""
    frames, place = localize.movie(), [np.rint(found[name]).astype(int) for name in ("x_px", "y_px")]
    corners = np.stack([place[0].clip(3, 92) - 3, place[1].clip(3, 36) - 3], axis=1).astype("<u4")
    cut = [frames[f, y : y + 7, x : x + 7] for f, (x, y) in zip(found["frame"], corners)]
    return np.stack(cut), corners, found["frame"].astype("<u4")


def in_flight(server, gauge="ocelli_in_flight_bytes"):
    lines = requests.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{gauge} "))


def same_rows(got, expected, suffix="_px"):
    """Asserts that tensors are the rows of a table in pixels, to the last bit."""
    for name, column in got.items():
        for field in (name, name + suffix, name + suffix + "2"):
            if field in expected.dtype.names:
                np.testing.assert_array_equal(column, expected[field], err_msg=name)
                break
        else:
            raise AssertionError(f"no column {name} among {expected.dtype.names}")


def test_what_a_reply_holds_until_its_end_counts_as_bytes_in_flight(start_server, tmp_path, data):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    limits = {"in_flight_bytes_max": "40MiB", "body_bytes_max": "1MiB", "stack_memory_bytes_max": "1MiB"}
    server = start_server(tmp_path / "models", **limits)
    frames, height, width = localize.movie().shape
    assert localize.post(server, data, format="png", scale=16).status_code == 200
    # Densities of four bytes and pixels of one, of a picture that a few kilobytes ask for.
    bytes_held = 5 * 64 * width * 64 * height
    reply = localize.post(server, data, format="png", scale=64)
    told = f"what is held beside the body in bytes is {bytes_held}, more than the limit of {40 << 20}; raise it with in_flight_bytes_max"
    assert (reply.status_code, reply.json()["error"]) == (413, told)
    for form in ["npy", "picasso", "hdf5"]:
        assert localize.post(server, data, format=form).status_code == 200
    # What a form holds counts as a whole, what a body is does not.
    movie = np.zeros((100, 100, 100), "<u2").tobytes()
    form = requests.post(f"{server.url}/predictions/spots", files={"f": ("movie.raw", movie)}, params={"shape": "100,100"}, timeout=60)
    wire.problem(form, 413, "held as a whole.*send it as the body itself, such as by curl -T FILE", "raise it with body_bytes_max")
    assert localize.post(server, movie, shape="100,100").status_code == 200

    # So does what spots are looked for in, of a frame that a few kilobytes bring.
    for side, status in [(1024, 200), (2048, 413)]:
        packed = io.BytesIO()
        tifffile.imwrite(packed, np.full((side, side), 100, np.uint16), compression="zlib")
        reply = localize.post(server, packed.getvalue(), format="csv")
        assert reply.status_code == status, reply.text
    assert "what is held beside the body in bytes" in reply.json()["error"]

    def given_back():
        return "\nocelli_in_flight_bytes 0\n" in requests.get(f"{server.url}/metrics", timeout=10).text

    until(given_back, 60, "nothing is set aside any more")
    assert server.stop() == 0


HEADERS = ["Transfer-Encoding: chunked", "Content-Encoding: gzip\r\nContent-Length: 100000"]


@pytest.mark.parametrize("header", [*HEADERS, "Content-Length: 100000000"])
def test_a_stack_counts_as_what_may_be_held_of_it_whatever_its_length(start_server, tmp_path, header):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    server = start_server(tmp_path / "models", stack_memory_bytes_max="8MiB", body_bytes_max="2MiB")

    # Frames of zeros, which are looked at and forgotten.
    came = bytes(20 << 20)
    if "gzip" in header:
        came = gzip.compress(came)
        header = f"Content-Encoding: gzip\r\nContent-Length: {len(came) + 1}"
    elif "chunked" in header:
        came = b"%x\r\n" % len(came) + came
    query = "dtype=u16&shape=64,64"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"POST /predictions/spots?{query} HTTP/1.1\r\nHost: t\r\n{header}\r\n\r\n".encode())
        until(lambda: in_flight(server, "ocelli_requests_in_flight") == 1, 30, "its head has come")
        assert in_flight(server) == 0, "nothing has come"
        connection.sendall(came)
        # And what spots are looked for in.
        until(lambda: 8 << 20 <= in_flight(server) < 9 << 20, 30, "what every stack takes is set aside")
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    assert server.stop() == 0


def test_what_the_first_strip_of_a_frame_is_unpacked_to_counts_while_the_next_is_waited_for(start_server, tmp_path):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    server = start_server(tmp_path / "models", in_flight_bytes_max="16MiB", body_bytes_max="6MiB")

    def packed(side):
        file = io.BytesIO()
        tifffile.imwrite(file, np.zeros((side, side)), compression="zlib", rowsperstrip=side - 1)
        return file.getvalue()

    side, first = 1024, packed(1024)
    assert len(first) < 20_000
    head = f"POST /predictions/spots HTTP/1.1\r\nHost: t\r\nContent-Length: {len(first)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + first[:-8])
        # The frame in single precision, and all of its rows but one as they are stored.
        held = 4 * side * side + 8 * side * (side - 1)
        until(lambda: in_flight(server) >= held, 30, "what it was unpacked to is set aside")
        assert in_flight(server) < held + 2 * len(first)
        reply = localize.post(server, first, format="csv")
        assert reply.status_code == 429, reply.text
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    # More than there ever is, as it comes and as a file of a form.
    large = packed(1500)
    url = f"{server.url}/predictions/spots"
    for body in ({"data": large}, {"files": {"stack": ("stack.tif", large)}}):
        reply = requests.post(url, **body, timeout=wire.TIMEOUT)
        assert reply.status_code == 413, reply.text
        assert "what is held beside the body in bytes" in reply.json()["error"]
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    assert server.stop() == 0


def test_what_a_whole_reply_takes_is_set_aside_until_it_was_read(start_server, tmp_path):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    server = start_server(tmp_path / "models")
    rois = np.random.default_rng(0).poisson(20, (300_000, 7, 7)).astype("<u2").tobytes()
    head = "POST /predictions/spots?format=npy&dtype=u16&shape=7,7 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(f"{head}Content-Length: {len(rois)}\r\n\r\n".encode() + rois)
        got = connection.recv(1 << 12)
        assert got.startswith(b"HTTP/1.1 200")
        assert in_flight(server) >= (8 << 20) + 15_000_000, "it has been written, and nothing else is set aside"
        length = len(got)
        while more := connection.recv(1 << 20):
            length += len(more)
    assert length > 15_000_000
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    assert server.stop() == 0


def test_more_stacks_are_read_at_once_than_could_be_held(start_server, tmp_path, data):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    server = start_server(tmp_path / "models", in_flight_bytes_max="40MiB", body_bytes_max="1MiB")
    head = b"POST /predictions/spots HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n"
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(head + data[:1000])
        until(lambda: in_flight(server) == 20 * 2 * 1000, 30, "twenty stacks have begun, each with twice what has come")
        assert localize.post(server, data, format="csv").status_code == 200
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    assert server.stop() == 0


def test_a_stack_of_no_length_is_let_in_where_less_may_be_in_flight_than_held_of_one(start_server, tmp_path, data):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    server = start_server(tmp_path / "models", in_flight_bytes_max="14MiB", body_bytes_max="6MiB")
    reply = localize.post(server, iter([data]), format="csv")
    assert reply.status_code == 200, reply.text
    assert reply.content == localize.post(server, data, format="csv").content
    until(lambda: in_flight(server) == 0, 30, "nothing is set aside any more")
    assert server.stop() == 0


def test_what_spots_of_tensors_are_looked_for_in_counts_as_bytes_in_flight(start_server, tmp_path):
    shutil.copytree(EXAMPLES / "models" / "spots", tmp_path / "models" / "spots")
    limits = {"in_flight_bytes_max": "4MiB", "body_bytes_max": "1MiB", "stack_memory_bytes_max": "1MiB"}
    server = start_server(tmp_path / "models", **limits)
    for side, status in [(256, 200), (512, 413)]:
        reply = localize.post_infer(server, {"frames": np.full((1, side, side), 100, np.uint16)})
        assert reply.status_code == status, reply.text
    assert "what is held beside the body in bytes" in reply.json()["error"]
    assert "\nocelli_in_flight_bytes 0\n" in requests.get(f"{server.url}/metrics", timeout=10).text
    assert server.stop() == 0


def test_the_molecules_of_the_example_are_found_where_they_are(found):
    true = localize.truth()
    true = true[true["photons"] >= 100]
    i, j = localize.pair_up(true["frame"], true["x_px"], true["y_px"], found)
    errors = np.stack([found["x_px"][j] - true["x_px"][i], found["y_px"][j] - true["y_px"][i]])
    recall, precision, rmse = len(i) / len(true), len(i) / len(found), np.sqrt((errors**2).mean())
    # Those that no other molecule disturbs reach the errors that they are said to have.
    near = (true["frame"][:, None] == true["frame"]) & (
        np.hypot(true["x_px"][:, None] - true["x_px"], true["y_px"][:, None] - true["y_px"]) < 8
    )
    alone = near.sum(axis=1)[i] == 1
    said = np.stack([found["x_error_px"][j], found["y_error_px"][j]])
    ratio = np.sqrt(((errors / said)[:, alone] ** 2).mean())
    alone_recall = alone.sum() / (near.sum(axis=1) == 1).sum()
    print(f"recall {recall:.3f}, precision {precision:.3f}, RMSE {rmse:.3f} px; of {alone.sum()} alone: recall")
    print(f"{alone_recall:.3f}, RMSE {np.sqrt((errors[:, alone] ** 2).mean()):.3f} px, error / stated error {ratio:.3f}")
    assert recall >= 0.70 and precision >= 0.95 and rmse <= 0.22
    assert alone_recall >= 0.95 and 0.85 <= ratio <= 1.25
    assert (found["status"] == 0).all()


@pytest.mark.parametrize("name", ["csv", "ndjson", "arrow", "npy", "thunderstorm", "hdf5", "picasso"])
def test_every_format_has_the_same_positions(server, data, found, name):
    response = localize.post(server, data, format=name)
    assert response.status_code == 200, response.text[:500]
    assert "first pixel" in response.headers["ocelli-conventions"]
    columns = getattr(localize, f"read_{'csv' if name == 'thunderstorm' else name}")(response.content)
    if name == "ndjson":
        columns, head, tail = columns
        assert head["units"]["x_nm"] == "nm" and head["frames"] == 160
        assert tail["end"] is True and tail["localizations"] == len(found)
    x, frame = {"thunderstorm": ("x [nm]", 1), "hdf5": ("x", 0), "picasso": ("x", 0)}.get(name, ("x_nm", 0))
    scale, offset = {"x [nm]": (100, 0.5), "x": (1, 0)}.get(x, (100, 0))
    np.testing.assert_allclose(columns[x], (found["x_px"] + offset) * scale, rtol=1e-5)
    np.testing.assert_array_equal(columns["frame"], found["frame"] + frame)


def test_headers_have_no_letters_that_clients_read_differently(server, data):
    response = localize.post(server, data, format="csv", preset="gaussmle")
    assert response.status_code == 200, response.text[:500]
    conventions = response.headers["ocelli-conventions"]
    assert conventions.isascii() and "sigma_x in um" in conventions, conventions


def chunked(body):
    """The data of a body in chunks, and its trailers."""
    data, at = b"", 0
    while True:
        end = body.index(b"\r\n", at)
        size, at = int(body[at:end], 16), end + 2
        if size == 0:
            break
        data, at = data + body[at : at + size], at + size + 2
    lines = body[at:].decode().split("\r\n")
    assert lines[-2:] == ["", ""], lines
    return data, dict(line.split(": ", 1) for line in lines if line)


@pytest.mark.parametrize("coding", ["identity", "gzip", "zstd"])
def test_trailers_come_behind_a_reply_however_it_is_packed(server, data, found, coding):
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /predictions/spots?format=csv HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTE: trailers\r\n"
    head += f"Accept-Encoding: {coding}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=wire.TIMEOUT) as stream:
        stream.sendall(head.encode() + data)
        with stream.makefile("rb") as file:
            reply = file.read()
    head, body = reply.split(b"\r\n\r\n", 1)
    body, trailers = chunked(body)
    assert f"localizations={len(found)}" in trailers["ocelli-counts"]
    assert trailers["server-timing"] and trailers["ocelli-device"]
    assert (coding == "identity") == (b"content-encoding" not in head.lower()), head
    if coding != "identity":
        body = pyarrow.input_stream(io.BytesIO(body), compression=coding).read()
    assert len(localize.read_csv(body)["frame"]) == len(found)


def test_a_picture_shows_the_molecules_where_they_are(server, data, found):
    response = localize.post(server, data, format="png", render="histogram", scale=5, white_percentile=100, colormap="gray")
    assert response.headers["Content-Type"] == "image/png"
    picture = localize.read_png(response.content)
    assert picture.shape == (200, 480)
    column, row = [np.floor((found[name] + 0.5) * 5).astype(int) for name in ("x_px", "y_px")]
    seen = np.zeros_like(picture, bool)
    inside = (column >= 0) & (column < 480) & (row >= 0) & (row < 200)
    seen[row[inside], column[inside]] = True
    # A molecule on the line between two pixels may be drawn in the other.
    assert ((picture > 0) != seen).sum() <= 3


def test_the_form_of_a_reply_follows_accept(server, data):
    for accept, media in (("text/csv", "text/csv; charset=utf-8"), ("image/png", "image/png"), (None, "application/x-ndjson")):
        response = localize.post(server, data, headers={"Accept": accept} if accept else None)
        assert response.headers["Content-Type"] == media
    response = localize.post(server, data, headers={"Accept": "text/html"})
    assert response.status_code == 406 and "application/x-ndjson" in response.json()["error"]


@pytest.mark.parametrize("kind", ["<u2", "<f4"])
def test_rois_give_the_same_numbers_in_every_form(server, rois, kind):
    cut, corners, frames = rois
    cut = cut.astype(kind)
    expected = localize.rows(server, localize.npy(cut))
    assert len(expected) == len(cut) and (expected["frame"] == np.arange(len(cut))).all()
    dtype, shape = {"<u2": "u16", "<f4": "f32"}[kind], f"{len(cut)},7,7"
    by_query = localize.rows(server, cut.tobytes(), dtype=dtype, shape=shape)
    by_header = localize.rows(server, cut.tobytes(), headers={"Ocelli-Dtype": dtype, "Ocelli-Shape": shape})
    open_ended = localize.rows(server, cut.tobytes(), dtype=dtype, shape="7,7")
    for got in (by_query, by_header, open_ended):
        assert got.tobytes() == expected.tobytes()
    got = localize.infer(server, {"rois": cut, "frame": np.arange(len(cut), dtype="<u4")})
    same_rows(got, expected)
    # With corners, positions are those in the frame, and frames are the caller's.
    placed = localize.infer(server, {"rois": cut, "corners": corners, "frame": frames})
    np.testing.assert_allclose(placed["x"] - corners[:, 0], got["x"], atol=1e-5)
    assert (placed["frame"] == frames).all()


def test_frames_as_a_tensor_give_what_the_stack_gives(server, found):
    same_rows(localize.infer(server, {"frames": localize.movie()}), found)


def test_settings_are_changed_by_query_and_by_parameters_alike(server, data, found):
    frames = localize.movie()
    for changed, differs in (
        ({"psf": "xynbs"}, "sigma"),
        ({"psf": "xynbsxsy", "sigma_px": "1.2,1.4"}, "sigma_x"),
        ({"psf": "xyznb", "gamma_um": 0.3, "depth_um": 0.5}, "z"),
        ({"noise_min": 12, "box_px": 9}, None),
        ({"method": "net-gradient", "gradient_min": 300}, None),
        ({"gain": 1, "offset": 90}, None),
    ):
        by_query = localize.rows(server, data, **changed)
        by_parameters = localize.infer(server, {"frames": frames}, changed)
        if differs:
            assert differs in by_parameters
        by_parameters.pop("detection_score")
        if "z" in by_parameters:
            for name in [name for name in by_parameters if name.startswith(("z", "xz", "yz"))]:
                by_parameters.pop(name)
        same_rows(by_parameters, by_query)
        assert by_query.tobytes() != found.tobytes()
    again = localize.rows(server, data)
    assert again.tobytes() == found.tobytes(), "the model's own settings were changed"


def test_the_query_of_an_inference_request_says_what_its_parameters_say(server, rois):
    given = {"rois": rois[0], "corners": rois[1]}
    own = localize.infer(server, given)
    expected = localize.infer(server, given, {"psf": "xynbs", "sigma_px": 1.4})
    assert "sigma" in expected and "sigma" not in own
    for query, parameters in (
        ({"psf": "xynbs", "sigma_px": "1.4"}, {}),
        ({"psf": "xynbs"}, {"sigma_px": 1.4}),
        ({"sigma_px": "1.40"}, {"psf": "xynbs", "sigma_px": 1.4}),
    ):
        got = localize.infer(server, given, parameters, query=query)
        assert got.keys() == expected.keys(), (query, parameters)
        for name, column in got.items():
            np.testing.assert_array_equal(column, expected[name], err_msg=name)
    for query, parameters, told in (
        ({"nonsense": "1"}, {}, 'unknown key "nonsense" in the query'),
        ({"top_k": "1"}, {}, 'unknown key "top_k" in the query'),
        ({"psf": "gauss"}, {}, "psf is .gauss., expected xynb"),
        ({"psf": "xynb"}, {"psf": "xynbs"}, 'psf is "xynb" in the query and "xynbs" in the parameters'),
    ):
        wire.problem(localize.post_infer(server, given, parameters, query=query), 400, told)


def test_requests_of_different_settings_do_not_mix(server, rois):
    cut = localize.npy(rois[0])
    settings = [{"sigma_px": s, "gain": g} for s in (1.0, 1.3, 1.7) for g in (0.5, 1.1)] + [{"psf": "xynbs"}]
    alone = [localize.rows(server, cut, **setting).tobytes() for setting in settings]
    assert len(set(alone)) == len(settings)
    with ThreadPoolExecutor(7) as pool:
        for _ in range(4):
            together = list(pool.map(lambda setting: localize.rows(server, cut, **setting).tobytes(), settings))
            assert together == alone


def test_the_preset_gaussmle_has_its_columns_units_and_origins(server, data, found):
    got = localize.rows(server, data, preset="gaussmle")
    names = ["x", "y", "photons", "bg", "σ_x", "σ_y", "σ_xy", "σ_photons", "σ_bg", "pvalue"]
    assert list(got.dtype.names) == [*names, "frame", "dataset", "track_id", "id", "status"]
    np.testing.assert_allclose(got["x"], (found["x_px"] + 0.5) * 0.1, rtol=1e-5)
    np.testing.assert_allclose(got["σ_y"], found["y_error_px"] * 0.1, rtol=1e-5)
    assert (got["frame"] == found["frame"] + 1).all() and (got["id"] == np.arange(len(got)) + 1).all()


def test_results_come_while_the_rest_is_still_sent(server, data, found):
    half = len(data) // 2
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"POST /predictions/spots HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[:half])
        got = b""
        while got.count(b'"count":') < 20:
            more = connection.recv(1 << 16)
            assert more, got[-1000:]
            got += more
        assert b'"end":true' not in got
        connection.sendall(data[half:])
        while more := connection.recv(1 << 16):
            got += more
    assert got.startswith(b"HTTP/1.1 200") and f'"localizations":{len(found)},'.encode() in got


def test_whoever_sends_everything_before_reading_gets_everything(server, found):
    """Some thousand frames in small pieces by a client that does not read before it has sent the last."""
    frames, times = localize.movie(), 40
    head = f"POST /predictions/spots?shape={len(frames) * times},40,96 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(f"{head}Content-Length: {frames.nbytes * times}\r\n\r\n".encode())
        piece = frames.tobytes()
        for _ in range(times):
            for start in range(0, len(piece), 1 << 14):
                connection.sendall(piece[start : start + (1 << 14)])
        got = bytearray()
        while more := connection.recv(1 << 20):
            got += more
    tail = got[-1000:].decode()
    assert f'"frames":{len(frames) * times},' in tail and f'"localizations":{len(found) * times},' in tail, tail


def test_the_command_gives_the_rows_of_the_server(server, data, tmp_path):
    environment = {**os.environ, "OCELLI_MODELS": str(EXAMPLES / "models")}
    for name in ("csv", "npy", "hdf5", "png"):
        file = tmp_path / f"spots.{name}"
        command = [BINARY, "predict", "spots", localize.MOVIE, "-o", file, "--set", "noise_min=7"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        served = localize.post(server, data, format=name, noise_min=7).content
        written = file.read_bytes()
        if name == "hdf5":
            # Only the server says who served.
            served, written = localize.read_hdf5(served), localize.read_hdf5(written)
            assert all((served[column] == written[column]).all() for column in served)
            assert file.with_suffix(".yaml").exists()
        elif name == "csv":
            assert written.splitlines()[1:] == served.splitlines()[1:]
        else:
            assert written == served, name


def test_the_command_takes_the_keys_of_the_query(server, data, tmp_path):
    environment = {**os.environ, "OCELLI_MODELS": str(EXAMPLES / "models")}

    def run(name, *pairs):
        command = [BINARY, "predict", "spots", localize.MOVIE, "-o", tmp_path / name]
        command += [word for pair in pairs for word in ("--set", pair)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    for name, *pairs in (
        ("a.png", "scale=4", "colormap=viridis", "render=histogram"),
        ("b.png", "z_range_um=-0.5,0.5", "psf=xyznb", "color_by=z"),
        ("c.npy", "units=px", "keep=converged", "psf=xynbs", "input=frames"),
        ("d.npy", "preset=gaussmle"),
        ("e.zip", "psf=xynbs"),
    ):
        done = run(name, *pairs)
        assert done.returncode == 0, done.stderr
        form = {"zip": "picasso"}.get(name[2:], name[2:])
        served = localize.post(server, data, format=form, **dict(pair.split("=", 1) for pair in pairs))
        assert served.status_code == 200, served.text
        if form == "picasso":
            continue
        assert (tmp_path / name).read_bytes() == served.content, name
    wrong = (("scale=x", "scale is"), ("sigma=1", "unknown key"), ("units=m", "auto, px or nm"), ("preset=gaussmle", "png has columns"))
    for pair, says in wrong:
        done = run("x.png", pair)
        assert done.returncode != 0 and says in done.stderr and not (tmp_path / "x.png").exists(), done.stderr


def test_the_manifest_of_the_guide_is_one(tmp_path):
    """With each of the keys that are commented out in the place of the one before."""
    text = (ROOT / "docs" / "localize.md").read_text().split("```toml\n")[1].split("```")[0]
    texts = [text, text.replace("# photons_min", "photons_min").replace("noise_min = 5.0", "")]
    for number, manifest in enumerate(texts):
        (tmp_path / f"spots-{number}").mkdir()
        (tmp_path / f"spots-{number}" / "model.toml").write_text(manifest)
    command = [BINARY, "check", "--models", tmp_path]
    environment = {"ORT_DYLIB_PATH": str(LIBRARY), **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("localize") == len(texts), done.stdout + done.stderr


def test_metadata_tells_what_is_taken_and_given(server):
    described = requests.get(f"{server.url}/v2/models/spots", timeout=60).json()
    assert described["task"] == "localize"
    outputs = [output["name"] for output in described["outputs"]]
    got = localize.infer(server, {"rois": np.full((2, 7, 7), 110, "<f4")})
    assert list(got) == outputs, json.dumps(described)


def of_several_files(frames, first, metadata_file):
    """One of the files of a movie that Micro-Manager parted: its OME-XML points to another."""
    ome = (
        '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2013-06" '
        f'UUID="urn:uuid:{first:08}"><BinaryOnly MetadataFile="{metadata_file}" UUID="urn:uuid:0"/></OME>'
    )
    file = io.BytesIO()
    tifffile.imwrite(file, frames, photometric="minisblack", description=ome, metadata=None)
    return file.getvalue()


def test_a_movie_in_several_files_is_analysed_file_by_file_with_numbers_that_go_on(server):
    movie = localize.movie()
    whole = localize.rows(server, localize.npy(movie))
    first, second = (of_several_files(part, at, "movie_MMStack_Pos0.ome.tif") for at, part in [(0, movie[:100]), (100, movie[100:])])
    for data in (first, second):
        for asked in ({}, {"planes": "all"}):
            wire.problem(localize.post(server, data, **asked), 400, r'names "movie_MMStack_Pos0.ome.tif".*planes=here')
    parts = [localize.rows(server, data, planes="here", first_frame=at) for at, data in [(0, first), (100, second)]]
    assert len(parts[1]) > 100
    assert np.concatenate(parts).tobytes() == whole.tobytes()

    asked = {"planes": "here", "first_frame": 100}
    columns, head, tail = localize.read_ndjson(localize.post(server, second, **asked).content)
    assert (head["first_frame"], tail["frames"]) == (100, len(movie) - 100)
    assert (columns["frame"] == parts[1]["frame"]).all()
    storm = localize.read_csv(localize.post(server, second, format="thunderstorm", **asked).content)
    assert (storm["frame"].min(), storm["frame"].max()) == (parts[1]["frame"].min() + 1, parts[1]["frame"].max() + 1)
    # Picasso takes rows for wrong whose frame is not below the number of frames.
    archive = localize.post(server, second, format="picasso", **asked).content
    assert localize.read_picasso(archive)["frame"].min() >= 100
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        described = yaml.safe_load(files.read("spots.yaml"))
    assert described["Frames"] == len(movie)
    wire.problem(localize.post(server, second, format="png", **asked), 400, "first_frame numbers rows")
