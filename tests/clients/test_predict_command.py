"""`ocelli predict`: on a server and in its own process, whatever the model's task."""

import csv
import io
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import localize
import numpy as np
import pytest
import requests
import tifffile
from server import BINARY, LIBRARY, ROOT, Server, free_ports, until

IMAGES = ROOT / "examples" / "images"


def command(*arguments, models=None, seconds_max=300, input=None):
    """What `ocelli predict` does with these arguments."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCELLI_")}
    environment.setdefault("ORT_DYLIB_PATH", str(LIBRARY))
    if models:
        environment |= {"OCELLI_MODELS": str(models), "OCELLI_BACKEND": "cpu"}
    return subprocess.run(
        [BINARY, "predict", *map(str, arguments)], env=environment, capture_output=True, timeout=seconds_max, cwd=ROOT, input=input
    )


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    """An array that a model of tensors takes."""
    path = tmp_path_factory.mktemp("arrays") / "x.npy"
    np.save(path, np.arange(32, dtype=np.float32).reshape(2, 16))
    return path


@pytest.fixture(scope="module")
def described(server):
    """What the server says of a model."""
    return lambda model: requests.get(f"{server.url}/v2/models/{model}", timeout=60).json()


@pytest.fixture(scope="module")
def spots(start_server):
    """A server that has the fitter."""
    return start_server(ROOT / "examples" / "models")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize("model", ["digits", "digits-detector", "digits-embedder", "digits-segmenter", "segment", "enlarge", "embed", "identity"])
def test_a_server_and_the_own_process_print_the_same_bytes(server, models, described, model, form, array):
    files = [IMAGES / "digits", IMAGES / "digits-3-7.tif"] if described(model)["images"] else [array]
    there = command(model, *files, "--format", form, "--url", server.url)
    here = command(model, *files, "--format", form, models=models)
    assert (there.returncode, here.returncode) == (0, 0), there.stderr + here.stderr
    assert there.stdout == here.stdout and there.stdout


def test_lines_of_json_are_the_replies_in_the_order_of_the_files(server, digits):
    done = command("digits", IMAGES / "digits", "--format", "json", "--set", "top_k=1", "--url", server.url)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["file"].rsplit("/", 1)[1] for line in lines] == [name for name, _, _ in digits]
    assert [line["classes"][0]["label"] for line in lines] == [digit for _, _, digit in digits]


def test_a_file_whose_name_is_no_text_is_asked_about(server, tmp_path):
    first = sorted((IMAGES / "digits").iterdir())[0]
    name = os.fsencode(tmp_path) + b"/a\xff.png"
    Path(os.fsdecode(name)).write_bytes(first.read_bytes())
    done = command("digits", os.fsdecode(name), "--format", "json", "--url", server.url)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["file"] == f"{tmp_path}/a\ufffd.png"


@pytest.fixture(scope="module")
def as_torchserve(start_server):
    """A server that answers as TorchServe does whoever asks for nothing."""
    return start_server(ROOT / "examples" / "models", torchserve_answers="on")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_server_that_answers_as_torchserve_prints_the_same_bytes(server, as_torchserve, form):
    files = [IMAGES / "digits", IMAGES / "digits-3-7.tif"]
    expected = command("digits", *files, "--format", form, "--url", server.url)
    done = command("digits", *files, "--format", form, "--url", as_torchserve.url)
    assert (expected.returncode, done.returncode) == (0, 0), done.stderr
    assert done.stdout == expected.stdout and done.stdout


def test_an_answer_in_a_form_that_was_asked_for_is_a_line_of_json_and_no_row(server):
    picture = IMAGES / "digits" / "3-0.png"
    asked = ("digits", picture, "--set", "format=torchserve", "--set", "top_k=1", "--url", server.url)
    done = command(*asked, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["file", "3"]
    for form in ("table", "csv"):
        done = command(*asked, "--format", form)
        assert done.returncode == 1 and b"none of classes" in done.stderr, done


def test_a_file_that_fails_leaves_the_others_and_shows_in_the_exit_code(server, tmp_path):
    bad = tmp_path / "bad, \"file\".png"
    bad.write_bytes(b"no image")
    done = command("digits", bad, IMAGES / "digits" / "3-0.png", "--format", "csv", "--url", server.url)
    assert done.returncode == 1 and b"not an image" in done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode())))
    assert rows[0]["file"] == str(bad) and "not an image" in rows[0]["error"]
    assert rows[1]["label"] == "3" and rows[1]["error"] == ""


def test_what_is_wrong_with_the_command_has_its_exit_code(server, models):
    def check(code, says, *arguments, **options):
        done = command(*arguments, **options)
        assert (done.returncode, done.stdout) == (code, b""), done
        assert says in done.stderr.decode(), done.stderr

    picture = IMAGES / "digits" / "3-0.png"
    url = ("--url", server.url)
    check(66, "there is no file none.png", "digits", "none.png", *url)
    check(66, "no file fits", "digits", "none*.png", *url)
    check(1, "nothing", "nothing", picture, *url)
    check(1, "there is no model", "nothing", picture, models=models)
    check(64, "leave out --models", "digits", picture, *url, "--models", "x")
    check(64, "expected table, json or csv", "digits", picture, *url, "--format", "hdf5")
    check(64, "known are csv, json, jsonl, ndjson, txt", "digits", picture, *url, "-o", "out.xlsx")
    check(64, "- is named twice", "digits", "-", picture, "-", *url)
    check(64, "--raw is for stacks", "digits", picture, *url, "--raw", "2x2")
    check(69, "no server answers", "digits", picture, "--url", "http://127.0.0.1:1", "--retries", "0")


@pytest.mark.parametrize("form", ["csv", "ndjson", "thunderstorm", "hdf5", "picasso", "arrow", "npy", "png"])
def test_stacks_give_the_same_files_both_ways(spots, tmp_path, form):
    written = []
    for name, options in (("there", ["--url", spots.url]), ("here", [])):
        folder = tmp_path / name
        folder.mkdir()
        done = command("spots", localize.MOVIE, "-o", folder, "--format", form, *options, models=None if options else ROOT / "examples" / "models")
        assert done.returncode == 0, done.stderr
        assert b"spots in 160 frames" in done.stdout and b"converged" in done.stdout, done.stdout
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    there, here = written
    assert there.keys() == here.keys() and (form != "hdf5" or len(there) == 2)
    assert there == here


def test_raw_samples_are_told_by_their_sides(spots, tmp_path):
    frames = localize.movie()
    raw = tmp_path / "movie.raw"
    raw.write_bytes(frames.astype("<u2").tobytes())
    sides = f"{frames.shape[2]}x{frames.shape[1]}x{frames.shape[0]}"
    done = command("spots", raw, "--raw", sides, "--format", "npy", "-o", tmp_path / "raw.npy", "--url", spots.url)
    assert done.returncode == 0, done.stderr
    done = command("spots", localize.MOVIE, "--set", "units=px", "-o", tmp_path / "tif.npy", "--url", spots.url)
    assert done.returncode == 0, done.stderr
    raw, tif = np.load(tmp_path / "raw.npy"), np.load(tmp_path / "tif.npy")
    assert len(raw) == len(tif) and (raw["photons"] == tif["photons"]).all()


def test_a_stack_that_is_refused_leaves_no_file(spots, tmp_path):
    stack = tmp_path / "short.tif"
    stack.write_bytes(localize.MOVIE.read_bytes()[:100])
    for name in ("x.csv", "x.hdf5"):
        done = command("spots", stack, "-o", tmp_path / name, "--url", spots.url)
        assert done.returncode == 1 and str(stack).encode() in done.stderr, done
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.hdf5"])
def test_what_was_there_stays_until_all_of_a_stack_is_answered(spots, tmp_path, name):
    stack, before = tmp_path / "short.tif", tmp_path / name
    stack.write_bytes(localize.MOVIE.read_bytes()[:100])
    before.write_bytes(b"before")
    done = command("spots", stack, "-o", before, "--url", spots.url)
    assert done.returncode == 1, done
    assert before.read_bytes() == b"before" and sorted(tmp_path.iterdir()) == sorted([stack, before])
    done = command("spots", localize.MOVIE, "-o", before, "--url", spots.url)
    assert done.returncode == 0 and len(before.read_bytes()) > 100, done


def test_a_device_that_takes_no_more_is_said_and_stays(spots, server, tmp_path):
    # Whoever may make one: a device that a command must not replace or remove.
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        full.open("wb").close()
    except PermissionError:
        full = Path("/dev/full")
    told = f"{full}: No space left on device".encode()
    for arguments in (
        ["digits", IMAGES / "digits", "--format", "table", "--url", server.url],
        *(["spots", localize.MOVIE, "--url", spots.url, "--format", form] for form in ("csv", "npy", "hdf5")),
    ):
        done = command(*arguments, "-o", full)
        assert done.returncode == 1 and told in done.stderr, done
        assert stat.S_ISCHR(full.stat().st_mode)
    assert set(tmp_path.iterdir()) <= {full}


def test_files_that_are_asked_about_are_not_written_over(spots, server, tmp_path):
    picture, stack = tmp_path / "3.png", tmp_path / "movie.npy"
    shutil.copy(IMAGES / "digits" / "3-0.png", picture)
    np.save(stack, localize.movie())
    before = [picture.read_bytes(), stack.read_bytes()]
    for arguments in (
        ["digits", picture, "-o", picture, "--url", server.url],
        ["spots", stack, "-o", stack, "--url", spots.url],
        ["spots", stack, "-o", tmp_path, "--format", "npy", "--url", spots.url],
    ):
        done = command(*arguments)
        assert done.returncode == 64 and done.stdout == b"", done
    assert [picture.read_bytes(), stack.read_bytes()] == before


@pytest.mark.parametrize("output", [".", "movie.hdf5", "other.yaml"])
def test_the_yaml_beside_a_raw_movie_stays(spots, tmp_path, output):
    frames = localize.movie()
    raw, yaml = tmp_path / "movie.raw", tmp_path / "movie.yaml"
    raw.write_bytes(frames.astype("<u2").tobytes())
    yaml.write_text("Camera: of the microscope\n")
    sides = f"{frames.shape[2]}x{frames.shape[1]}x{frames.shape[0]}"
    done = command("spots", raw, "--raw", sides, "--format", "hdf5", "-o", tmp_path / output, "--url", spots.url)
    assert done.returncode == 64 and b".yaml" in done.stderr and done.stdout == b"", done
    assert sorted(tmp_path.iterdir()) == [raw, yaml] and yaml.read_text() == "Camera: of the microscope\n"
    for _ in range(2):
        done = command("spots", raw, "--raw", sides, "-o", tmp_path / "spots.hdf5", "--url", spots.url)
        assert done.returncode == 0 and (tmp_path / "spots.yaml").exists(), done


def test_a_dash_is_the_standard_output_and_the_standard_input(spots, server, tmp_path):
    picture = IMAGES / "digits" / "3-0.png"
    written = command("digits", picture, "--url", server.url, "-o", tmp_path / "out.txt")
    there = command("digits", picture, "--url", server.url, "-o", "-")
    assert there.stdout == (tmp_path / "out.txt").read_bytes() and written.stdout == b""
    read = command("digits", "-", "--url", server.url, input=picture.read_bytes())
    assert read.stdout.split()[4:] == [word.replace(str(picture).encode(), b"/dev/stdin") for word in there.stdout.split()[4:]]


@pytest.mark.parametrize("name, form", [("x.csv", "csv"), ("x.json", "json"), ("x.txt", "table")])
def test_answers_are_written_as_the_extension_says(server, tmp_path, name, form):
    picture = IMAGES / "digits" / "3-0.png"
    done = command("digits", picture, "--url", server.url, "-o", tmp_path / name)
    assert (done.returncode, done.stdout) == (0, b""), done
    assert (tmp_path / name).read_bytes() == command("digits", picture, "--url", server.url, "--format", form).stdout


@pytest.mark.parametrize(
    "model, name, media",
    [
        ("digits-segmenter", "mask.png", "image/png"),
        ("digits-segmenter", "mask.tif", "image/tiff"),
        ("enlarge", "large.PNG", "image/png"),
        ("enlarge", "large.tif", "image/tiff"),
    ],
)
def test_pictures_are_the_servers_own_both_ways(server, models, tmp_path, model, name, media):
    photo = IMAGES / "digits" / "3-0.png"
    asked = requests.post(f"{server.url}/predictions/{model}", data=photo.read_bytes(), headers={"Accept": media}, timeout=60)
    assert (asked.status_code, asked.headers["Content-Type"]) == (200, media)
    for index, options in enumerate([{"models": models}, {}]):
        file = tmp_path / f"{index}-{name}"
        url = [] if options else ["--url", server.url]
        done = command(model, photo, "-o", file, *url, **options)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode() == f"{photo}: written to {file}, {len(asked.content)} bytes\n"
        assert file.read_bytes() == asked.content
    done = command(model, photo, "--format", media.removeprefix("image/"), "--url", server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, asked.content, b"")


def test_pictures_of_several_files_go_to_a_folder_and_a_file_that_fails_leaves_the_others(server, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not a picture")
    url = ("--url", server.url)
    photos = sorted((IMAGES / "digits").glob("*.png"))
    done = command("digits-segmenter", IMAGES / "digits", bad, "--format", "png", "-o", tmp_path / "masks", *url)
    assert done.returncode == 1 and done.stderr.decode().startswith(f"ocelli: {bad}: "), done.stderr
    assert {file.name for file in (tmp_path / "masks").iterdir()} == {photo.name for photo in photos}
    assert all(file.read_bytes()[1:4] == b"PNG" for file in (tmp_path / "masks").iterdir())

    def refused(says, *arguments):
        done = command("digits-segmenter", *arguments, *url)
        assert (done.returncode, done.stdout) == (64, b"") and says in done.stderr.decode(), done.stderr

    refused("2 pictures do not go to one file", *photos[:2], "-o", tmp_path / "x.png")
    refused("2 pictures do not go to one output", *photos[:2], "--format", "png")
    refused("two pictures would be written to", photos[0], bad.parent / "masks" / photos[0].name, "--format", "png", "-o", tmp_path)
    refused("would be written over", photos[0], "--format", "png", "-o", photos[0].parent)
    refused("leave out one of the two", photos[0], "--set", "mask=rle", "--format", "png")
    done = command("digits-segmenter", IMAGES / "digits-3-7.tif", "--format", "png", *url)
    assert done.returncode == 1 and b"it has several pages, and one picture is written as png; --format tiff" in done.stderr, done.stderr
    stack = tmp_path / "masks.tif"
    done = command("digits-segmenter", IMAGES / "digits-3-7.tif", "-o", stack, *url)
    assert (done.returncode, done.stderr) == (0, b"") and tifffile.imread(stack).shape == (2, 64, 64), done


def test_requests_come_as_json_with_binary_tensors_and_through_pipes(server, array, tmp_path):
    expected = command("identity", array, "--url", server.url, "--format", "csv").stdout.split(b"\n")[1:]
    values = np.load(array)
    described = requests.get(f"{server.url}/v2/models/identity", timeout=60).json()["inputs"][0]
    head = {"name": described["name"], "shape": list(values.shape), "datatype": described["datatype"]}
    data = values.tobytes()
    plain = json.dumps({"inputs": [head | {"data": values.ravel().tolist()}]}).encode()
    binary = json.dumps({"inputs": [head | {"parameters": {"binary_data_size": len(data)}}]}).encode() + b"\n" + data
    for name, request in (("plain.json", plain), ("binary.json", binary)):
        (tmp_path / name).write_bytes(request)
        for source, sent in ((tmp_path / name, None), ("-", request)):
            done = command("identity", source, "--url", server.url, "--format", "csv", input=sent)
            assert done.returncode == 0, done.stderr
            rows = [row.replace(str(source).encode(), str(array).encode()).replace(b"/dev/stdin", str(array).encode()) for row in done.stdout.split(b"\n")[1:]]
            assert rows == expected
    (tmp_path / "short.json").write_bytes(binary[:-2])
    done = command("identity", tmp_path / "short.json", "--url", server.url)
    assert done.returncode == 1 and f"is {len(data)} bytes in all, and {len(data) - 1} bytes follow".encode() in done.stderr, done
    asked = json.dumps({"inputs": [head | {"data": values.ravel().tolist()}], "parameters": {"binary_data_output": True}}).encode()
    done = command("identity", "-", "--url", server.url, input=asked)
    assert (done.returncode, done.stdout) == (1, b"") and b"would come as binary data" in done.stderr, done


def test_the_format_of_localizations_is_said_once(spots, tmp_path):
    done = command("spots", localize.MOVIE, "--set", "format=csv", "-o", tmp_path / "x.csv", "--url", spots.url)
    assert done.returncode == 64 and b"--format or the extension of -o decides the format" in done.stderr, done


@pytest.mark.parametrize("there", [True, False])
def test_stacks_come_through_pipes(spots, tmp_path, there):
    where = {"models": ROOT / "examples" / "models"} if not there else {}
    url = ["--url", spots.url] if there else []
    expected = command("spots", localize.MOVIE, "--format", "csv", "--url", spots.url).stdout
    movie = localize.MOVIE.read_bytes()
    for name in ("-", "/dev/stdin"):
        done = command("spots", name, "--format", "csv", *url, input=movie, **where)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    fifo = tmp_path / "movie.tif"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(movie,))
    writer.start()
    done = command("spots", fifo, "--format", "csv", *url, **where)
    writer.join()
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_a_pipe_is_not_asked_about_again(moody):
    moody.refusals, moody.after, moody.task = 9, "0", "localize"
    done = command("m", "-", "--url", f"http://127.0.0.1:{moody.server_port}", input=b"a stack")
    assert done.returncode == 1 and b"busy; a pipe cannot be read again" in done.stderr, done
    assert moody.asked == 1


def test_a_reader_that_goes_is_no_failure(spots, server):
    for arguments in (["digits", IMAGES / "digits", "--url", server.url], ["spots", localize.MOVIE, "--format", "csv", "--url", spots.url]):
        line = " ".join(map(shlex.quote, map(str, [BINARY, "predict", *arguments])))
        done = subprocess.run(["bash", "-c", f"{line} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 1, done


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_hangs_up_and_leaves_no_half_of_a_file(spots, tmp_path, ends):
    out = tmp_path / "out.csv"
    out.write_text("before")
    with in_progress(spots, "spots", "-", "-o", out, "--url", spots.url) as asking:
        asking.send_signal(ends)
        # Its input is still open.
        # Shells count it as 130 or 143, and only because the signal itself ends it do they end their loops.
        assert asking.wait(timeout=60) == -ends, asking.stderr.read()
        assert asking.stderr.read() == b""
    assert out.read_text() == "before" and list(tmp_path.iterdir()) == [out]
    until(lambda: requests_in_flight(spots) == 0, 60, "the server has given the request up")


def test_a_reply_that_breaks_off_is_left_beside_under_another_name(start_server, tmp_path):
    server = start_server(ROOT / "examples" / "models")
    out = tmp_path / "out.csv"
    out.write_text("before")
    with in_progress(server, "spots", "-", "-o", out, "--url", server.url) as asking:
        until(lambda: any(path.stat().st_size > 0 for path in tmp_path.glob(".*")), 60, "results have come")
        server.kill()
        assert asking.wait(timeout=60) == 1
        assert f"what came before is in {out}.part".encode() in asking.stderr.read()
    assert out.read_text() == "before"
    assert (tmp_path / "out.csv.part").read_text().startswith("# localizations")


@contextmanager
def in_progress(server, *arguments):
    """The command while the server works at the stack that it has begun to read from its standard input."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCELLI_")}
    asking = subprocess.Popen(
        [BINARY, "predict", *map(str, arguments)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        movie = localize.MOVIE.read_bytes()
        asking.stdin.write(movie[: len(movie) // 2])
        asking.stdin.flush()
        until(lambda: requests_in_flight(server) == 1, 60, "the server has the request")
        yield asking
    finally:
        asking.kill()
        asking.wait()
        for pipe in (asking.stdin, asking.stdout, asking.stderr):
            pipe.close()


def requests_in_flight(server):
    """What the server says."""
    text = requests.get(server.admin_url + "/metrics", timeout=60).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("ocelli_requests_in_flight "))


class Moody(BaseHTTPRequestHandler):
    """Describes a model, and refuses to answer for it as often as it is told to."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.looked_up += 1
        if self.server.looked_up <= self.server.absences:
            return self.reply(503, b'{"error":"it is being loaded"}', Retry_After="0")
        model = {"task": self.server.task, "images": True, "inputs": []}
        self.reply(200, json.dumps(model).encode())

    def do_POST(self):
        if self.headers["Transfer-Encoding"] == "chunked":
            while length := int(self.rfile.readline(), 16):
                self.rfile.read(length + 2)
            self.rfile.readline()
        else:
            self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.asked <= self.server.refusals:
            after = {"Retry_After": self.server.after} if self.server.after is not None else {}
            return self.reply(503, b'{"error":"busy"}', **after)
        self.reply(200, b'{"classes":[{"label":"a","index":0,"score":1}]}')


@pytest.fixture
def moody():
    """A server that is busy at first."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    server.asked, server.refusals, server.after = 0, 0, None
    server.looked_up, server.absences = 0, 0
    server.task = "classify"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "refusals, after, options, code, asked",
    [
        (3, "0", [], 0, 4),
        (1, None, [], 0, 2),
        (9, "0", ["--retries", "2"], 1, 3),
        (1, "31", [], 1, 1),
        (1, "2", ["--wait-ms-max", "1999"], 1, 1),
    ],
)
def test_a_busy_server_is_asked_again_within_bounds(moody, refusals, after, options, code, asked):
    moody.refusals, moody.after = refusals, after
    url = f"http://127.0.0.1:{moody.server_port}"
    done = command("m", IMAGES / "digits" / "3-0.png", "--url", url, *options)
    assert (done.returncode, moody.asked) == (code, asked), done
    assert (b"busy" in done.stderr) == (code == 1)


def test_a_server_that_asks_for_too_long_a_wait_is_said_to(moody):
    moody.refusals, moody.after, moody.task = 1, "31", "localize"
    url = f"http://127.0.0.1:{moody.server_port}"
    done = command("m", localize.MOVIE, "--url", url)
    assert done.returncode == 1 and b"busy; it asks to wait 31 s, more than --wait-ms-max" in done.stderr, done


ANSWERS = {
    "garbage": (b"\0\1\r\n\r\n", 69, "invalid HTTP version"),
    "nothing": (b"", 69, "connection closed"),
    "half": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", 69, "end of file before message length reached"),
    "page": (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", 1, "is not JSON: is it Ocelli?"),
    "other": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", 1, "it does not describe models as Ocelli does"),
    "redirect": (b"HTTP/1.1 301 Moved\r\nlocation: https://a.example/\r\ncontent-length: 0\r\n\r\n", 1, "it sends callers to https://a.example/"),
}


@pytest.mark.parametrize("answer, code, says", ANSWERS.values(), ids=ANSWERS)
def test_whoever_is_no_ocelli_is_named(answer, code, says):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = command("m", localize.MOVIE, "--url", url, "--retries", "0")
        thread.join()
    told = done.stderr.decode()
    assert done.returncode == code and says in told and url in told, done


@pytest.mark.parametrize("absences, retries, code, looked_up", [(2, "3", 0, 3), (9, "2", 1, 3), (1, "0", 1, 1)])
def test_a_model_that_is_being_loaded_is_looked_up_again_within_bounds(moody, absences, retries, code, looked_up):
    moody.absences = absences
    url = f"http://127.0.0.1:{moody.server_port}"
    done = command("m", IMAGES / "digits" / "3-0.png", "--url", url, "--retries", retries)
    assert (done.returncode, moody.looked_up) == (code, looked_up), done
    assert b"it is being loaded" in done.stderr
    assert (b"asking again, up to" in done.stderr) == (retries != "0")


def test_a_server_that_is_about_to_start_is_waited_for(only_digits, tmp_path):
    (port,) = free_ports(1)
    arguments = ["digits", IMAGES / "digits" / "3-0.png", "--url", f"http://127.0.0.1:{port}", "--retries", "60"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCELLI_")}
    asking = subprocess.Popen([BINARY, "predict", *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told = asking.stderr.readline()
    assert b"no server answers" in told and b"asking again" in told, told
    server = Server(only_digits, tmp_path / "late.log", port=port)
    try:
        out, _ = asking.communicate(timeout=120)
    finally:
        server.kill()
    assert asking.returncode == 0 and b"3" in out, out
