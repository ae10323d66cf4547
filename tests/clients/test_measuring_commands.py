"""`ocelli bench` and `ocelli tune`: what they send, what they print, what they write. Never how fast anything is."""

import json
import os
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree

import pytest
import requests
from server import BINARY, LIBRARY, ROOT, until

QUICK = ["--seconds", "0.3", "--warm-up-seconds", "0.1", "--slo-ms", "60000", "--timeout-ms", "120000"]


def command(*arguments, models=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCELLI_")}
    environment.setdefault("ORT_DYLIB_PATH", str(LIBRARY))
    if models:
        environment |= {"OCELLI_MODELS": str(models), "OCELLI_BACKEND": "cpu"}
    return subprocess.run(
        [BINARY, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT
    )


def bench(server, folder, *arguments):
    """The report of a bench."""
    report, picture = folder / "report.json", folder / "curve.svg"
    done = command("bench", server.url, *arguments, *QUICK, "--json", report, "--picture", picture)
    assert done.returncode == 0, done.stderr
    xml.etree.ElementTree.parse(picture)
    report = json.loads(report.read_text())
    assert len(done.stdout.splitlines()) == len(report["points"]) + 2
    return report


@pytest.mark.parametrize("form", ["images", "tensors"])
def test_an_open_loop_sends_at_the_rates_it_is_given(server, tmp_path, form):
    report = bench(server, tmp_path, "digits", "--rate", "20,40", "--arrivals", "constant", "--as", form)
    assert (report["loop"], report["arrivals"], report["model"]) == ("open", "constant", "digits")
    for point, rate in zip(report["points"], (20, 40)):
        assert point["rate"] == rate and point["statuses"] == {"200": round(rate * 0.3)}, point
        assert set(point["server_ms"]) == {"decode", "queue", "stage", "compute"}
        latency = point["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99_9"] <= latency["max"] * 1.01
    assert report["best"] == 40


def test_a_closed_loop_has_so_many_callers(server, tmp_path):
    report = bench(server, tmp_path, "digits", "--concurrency", "1,3", "--input", ROOT / "examples" / "images" / "digits")
    assert report["loop"] == "closed" and [point["concurrency"] for point in report["points"]] == [1, 3]
    assert report["messages"] == 10 and all(point["answered"] > 0 and point["failed"] == 0 for point in report["points"])


def test_a_dash_is_the_standard_output(server):
    done = command("bench", server.url, "digits", "--rate", "20", *QUICK, "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)["points"][0]["rate"] == 20, done
    assert not (ROOT / "-").exists()


def test_a_sweep_ends_when_the_bound_breaks(server):
    done = command("bench", server.url, "digits", "--rate-from", "5", "--seconds", "0.5", "--warm-up-seconds", "0", "--slo-ms", "0.001")
    assert done.returncode == 0, done.stderr
    header, point, verdict = done.stdout.splitlines()
    assert header.startswith("RATE") and point.endswith("p99 over 0.001 ms") and "none of these loads" in verdict


def test_the_ceiling_is_measured_without_a_model(server, tmp_path):
    report = bench(server, tmp_path, "--live", "--rate", "50")
    assert report["model"] is None and set(report["points"][0]["statuses"]) == {"200"}


def test_what_cannot_be_measured_is_said(server, tmp_path):
    def check(code, says, *arguments):
        done = command("bench", *arguments)
        assert (done.returncode, done.stdout) == (code, "") and says in done.stderr, done

    check(69, "no server answers", "http://127.0.0.1:1", "digits")
    check(1, "nothing", server.url, "nothing")
    check(66, "there is no file", server.url, "digits", "--input", "none.png")
    check(64, "takes no images", server.url, "add", "--as", "images")
    check(64, "the model has the inputs a, b", server.url, "add", "--shape", "c=1,4")
    check(64, "leave them out, or have bench send tensors", server.url, "digits", "--items", "2")
    check(64, "cannot be used with", server.url, "digits", "--concurrency", "1", "--arrivals", "constant")
    # Before anything is measured, however long that would take.
    check(1, "cannot write /nowhere/picture.svg", server.url, "digits", "--seconds", "86400", "--picture", "/nowhere/picture.svg")
    check(1, "answered with status 400: ", server.url, "digits", "--input", ROOT / "README.md")
    check(66, "holds no file", server.url, "digits", "--input", tmp_path)


def test_tuning_prints_a_manifest_that_is_one(only_digits, tmp_path):
    done = command("tune", "digits", "--seconds", "1", "--p99-ms", "60000", "--concurrency", "1,2", models=only_digits)
    assert done.returncode == 0, done.stderr
    table, manifest = done.stdout.split("\n\n", 1)
    assert len(table.splitlines()) >= 9 and "[batch]" in manifest and "[placement]" in manifest, done.stdout
    (tmp_path / "digits").mkdir()
    for file in (only_digits / "digits").iterdir():
        (tmp_path / "digits" / file.name).write_bytes(file.read_bytes())
    own = (tmp_path / "digits" / "model.toml").read_text().split("[batch]")[0]
    (tmp_path / "digits" / "model.toml").write_text(f"{own}\n{manifest}")
    checked = command("check", models=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["bench", "tune"])
def test_what_failed_is_told_with_what_the_server_says(server, only_digits, tmp_path, name):
    shutil.copy(ROOT / "examples" / "images" / "digits" / "3-0.png", tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    there = ["bench", server.url, "digits", "--concurrency", "1", *QUICK]
    here = ["tune", "digits", "--seconds", "1", "--concurrency", "1"]
    done = command(*(there if name == "bench" else here), "--input", tmp_path, models=only_digits)
    told = re.findall(r"(\d+) of (\d+) requests failed, the first with status 400: .*not an image", done.stderr)
    assert told and all(0 < int(failed) < int(of) for failed, of in told), done
    assert done.returncode == (0 if name == "bench" else 1), done


def test_a_fitter_is_tuned_with_rois(tmp_path):
    shutil.copytree(ROOT / "examples" / "models" / "spots", tmp_path / "spots")
    done = command("tune", "spots", "--seconds", "1", "--p99-ms", "60000", "--concurrency", "1", "--items", "50", models=tmp_path)
    assert done.returncode == 0, done.stderr
    table, manifest = done.stdout.split("\n\n", 1)
    assert [int(line.split()[0]) for line in table.splitlines()[1:6]] == [1000, 3000, 10_000, 30_000, 100_000]
    with open(tmp_path / "spots" / "model.toml", "a") as own:
        own.write(f"\n{manifest}")
    checked = command("check", models=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["bench", "tune"])
def test_an_interrupted_measurement_ends_at_once_and_writes_nothing(server, only_digits, tmp_path, name):
    there = [server.url, "digits", "--rate", "20", "--seconds", "600", "--json", tmp_path / "x.json", "--picture", tmp_path / "x.svg"]
    arguments = there if name == "bench" else ["digits", "--seconds", "600"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCELLI_")}
    environment |= {"ORT_DYLIB_PATH": str(LIBRARY), "OCELLI_MODELS": str(only_digits), "OCELLI_BACKEND": "cpu"} if name == "tune" else {}
    before = requests_of(server)
    # A shell has what it starts in the background, the tests as well, ignore the signal.
    measuring = subprocess.Popen(
        [BINARY, name, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        if name == "bench":
            until(lambda: requests_of(server) >= before + 3, 60, "requests come")
        else:
            assert measuring.stderr.readline().startswith(b"at most")
        measuring.send_signal(signal.SIGINT)
        # As shells count it, 130.
        assert measuring.wait(timeout=60) == -signal.SIGINT
        assert measuring.stdout.read() == b"" and b"panicked" not in measuring.stderr.read()
        assert list(tmp_path.iterdir()) == []
    finally:
        measuring.kill()
        measuring.wait()
        measuring.stdout.close()
        measuring.stderr.close()


def requests_of(server):
    """How many requests the model has had."""
    return requests.get(f"{server.url}/v2/models/digits/stats", timeout=60).json()["model_stats"][0]["inference_count"]
