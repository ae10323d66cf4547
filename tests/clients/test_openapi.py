"""The live server against its own description: schemathesis posts what openapi.yaml allows, and what it does not."""

import os
import re
import shutil
import subprocess
import sys

import described
import jsonschema_rs
import pytest
import requests
import wire
import yaml
from server import ROOT

SEED = 3
EXAMPLES_MAX = 10  # cases per operation and phase
SECONDS_MAX = 600  # only bounds a run that hangs


@pytest.mark.parametrize("model", ["digits", "spots"])
def test_the_server_keeps_to_its_description(start_server, only_digits, tmp_path, model):
    description = (ROOT / "openapi.yaml").read_text()
    assert description.count("example: digits") == description.count("example: spots") == 1
    description = yaml.safe_load(re.sub("example: (digits|spots)", f"example: {model}", description))
    # With a body that is answered, a header that nobody knows would have to be refused; those of HTTP are passed over.
    for body in description["components"]["requestBodies"].values():
        for media in body["content"].values():
            media.pop("example", None)
    (tmp_path / "openapi.yaml").write_text(yaml.safe_dump(description, sort_keys=False, allow_unicode=True))
    if model == "spots":
        shutil.copytree(ROOT / "examples" / "models" / model, tmp_path / "models" / model)
    # 504 only tells that the millisecond which a header gave was over: by itself, this server waits longer than --request-timeout.
    expected = 'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]'
    (tmp_path / "schemathesis.toml").write_text(f"[checks]\n{expected}\n")
    server = start_server(only_digits if model == "digits" else tmp_path / "models", timeout_ms=60_000)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.yaml", "--url", server.url),
        # What is the same for all models is tried once.
        *(("--include-path-regex", "predictions|infer") if model == "spots" else ()),
        # Bounded by cases; its own time limit would be used up to the end every time.
        *("--seed", str(SEED), "--max-examples", str(EXAMPLES_MAX)),
        # One worker: CPython 3.11 miscounts recursion when two threads parse source, as hypothesis does.
        *("--phases", "examples,coverage,fuzzing", "--workers", "1", "--request-timeout", "30"),
        *("--suppress-health-check", "all", "--warnings", "off"),
        # A schema cannot say that bytes are an image, nor that data fill a shape: refusing such a request is right.
        *("--exclude-checks", "positive_data_acceptance"),
    ]
    # In a folder of its own, so that neither examples nor reports of earlier runs change this one.
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    print(done.stdout[-15_000:], done.stderr[-3_000:])
    assert done.returncode == 0, "schemathesis found a difference between openapi.yaml and the server (see above)"
    assert server.process.poll() is None, "the server died"


def test_every_key_of_a_fitters_query_is_described(start_server, tmp_path):
    shutil.copytree(ROOT / "examples" / "models" / "spots", tmp_path / "spots")
    server = start_server(tmp_path)
    refused = requests.post(f"{server.url}/predictions/spots?nothing=1", data=b"", timeout=60).json()["error"]
    known = set(refused.split("there are ")[1].split(", "))
    described = yaml.safe_load((ROOT / "openapi.yaml").read_text())["components"]["schemas"]["LocalizationQuery"]
    assert known == described["properties"].keys()
    guide = (ROOT / "docs" / "localize.md").read_text()
    # As a key of a query, of a manifest, or of one that is commented out.
    assert [key for key in sorted(known) if not re.search(rf"`{key}[`=]|^(# )?{key} = ", guide, re.MULTILINE)] == []


def members(schema, reply):
    """Which members of a union a reply fits, by their names or places. A generated client takes the first, or wants only one."""
    fits = []
    for at, member in enumerate(schema.get("oneOf", schema.get("anyOf"))):
        if jsonschema_rs.validator_for({**member, "components": described.DOCUMENT["components"]}).is_valid(reply):
            fits.append(member.get("$ref", str(at)).rpartition("/")[2])
    return fits


def test_a_reply_fits_one_member_of_its_union(server, digits):
    """Whatever fits two is an answer of which a generated client shows only what both have in common."""
    union = described.DOCUMENT["components"]["responses"]["Predicted"]["content"]["application/json"]["schema"]
    file, broken = digits[0][1], b"\x89PNG\r\n\x1a\nnothing"
    torchserve = {"format": "torchserve"}

    def post_all(files, query=None):
        return wire.post_files(server, "digits", [("a.png", file) for file in files], query)

    body = {"instances": [{"b64": wire.b64(file)}] * 2}
    instances = requests.post(wire.prediction_url(server, "digits"), json=body, params=torchserve, timeout=wire.TIMEOUT)
    detected = (ROOT / "examples" / "images" / "digits-detector" / "0.png").read_bytes()
    replies = {
        "Prediction": [
            wire.post_image(server, "digits", file),
            wire.post_image(server, "digits-detector", detected),
            wire.post_image(server, "digits-segmenter", file),
            wire.post_image(server, "digits-embedder", file),
        ],
        "Predictions": [post_all(files) for files in ([file] * 2, [file, broken], [broken, file])],
        "Probabilities": [wire.post_image(server, "digits", file, query=torchserve)],
        "LabelledBoxes": [wire.post_image(server, "digits-detector", detected, query=torchserve)],
        "ProbabilitiesOfSeveral": [post_all(files, torchserve) for files in ([file] * 2, [file, broken])],
        "5": [instances],
    }
    for name, answers in replies.items():
        for answer in answers:
            assert members(union, wire.ok(answer)) == [name], answer.text
    entries = described.DOCUMENT["components"]["schemas"]["Predictions"]["allOf"][1]["properties"]["predictions"]["items"]
    of = [members(entries, entry) for entry in wire.ok(replies["Predictions"][1])["predictions"]]
    assert of == [["1"], ["0"]], "an answer, and a problem"


def test_what_is_required_is_described_beside_it():
    """Generators pass over a requirement that has no property beside it, and then take any object for it."""
    schemas = list(described.DOCUMENT["components"]["schemas"].items())
    while schemas:
        name, schema = schemas.pop()
        if isinstance(schema, dict):
            if isinstance(schema.get("required"), list):
                known = schema.get("properties", {}).keys()
                assert set(schema["required"]) <= known or "additionalProperties" in schema, name
            schemas += [(f"{name}/{key}", value) for key, value in schema.items()]
        elif isinstance(schema, list):
            schemas += [(f"{name}/{at}", value) for at, value in enumerate(schema)]
