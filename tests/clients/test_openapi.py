"""The live server against its own description: schemathesis posts what openapi.yaml allows, and what it does not."""

import os
import subprocess
import sys

from server import ROOT

SEED = 3
EXAMPLES_MAX = 10  # cases per operation and phase
SECONDS_MAX = 600  # only bounds a run that hangs


def test_the_server_keeps_to_its_description(start_server, only_digits, tmp_path):
    server = start_server(only_digits)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(ROOT / "openapi.yaml"), "--url", server.url),
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
