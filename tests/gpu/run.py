#!/usr/bin/env python3
"""Checks Ocelli on a machine with a GPU, and measures it. Needs Python 3.9 and the driver, neither Rust nor any package.

    python3 tests/gpu/run.py [NAME...]          # all of them without names; NAME may be a pattern such as 'bench-*'
    python3 tests/gpu/run.py --list

Runs one check after the other, each in processes of its own with a limit on its time: one that fails or hangs stops no other.
Prints one table, and what each number in it means. Exit codes: 0 all passed (or could not be had here, which is said), 1 one
failed, 64 wrong usage, 77 there is no GPU. docs/gpu-checks.md tells the rest.

The program that runs the checks and is the server lies beside this script where `make pack-gpu-checks` has put both, or is named
by GPU_CHECKS_PROGRAM. ORT_DYLIB_PATH names ONNX Runtime where none was packed.
"""

import argparse
import fnmatch
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine  # noqa: E402
import numbers_meant  # noqa: E402
from registry import CHECKS, Run, Skipped  # noqa: E402

# In the order in which their checks are run: what others stand on first, measurements late, and last what all of them may have changed.
for subject in ("onchip", "examples", "ongoing", "sharing", "contention", "benches", "division"):
    importlib.import_module(subject)

NO_GPU = 77
USAGE = 64


def limit(text):
    """The checks that a limit is for, and its seconds."""
    name, _, seconds = text.rpartition("=")
    return name or "*", float(seconds)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def wrong(why):
        parser.print_usage(sys.stderr)
        print(why, file=sys.stderr)
        sys.exit(USAGE)

    parser.error = wrong
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run; patterns such as 'bench-*' are taken")
    parser.add_argument("--list", action="store_true", help="print the checks with what each is about, and end")
    parser.add_argument(
        "--seconds",
        type=limit,
        action="append",
        default=[],
        metavar="[NAME=]SECONDS",
        help="the time that each check may take, or those of a name or pattern, instead of its own limit; the last that fits counts",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a check in a process of its own
    return parser.parse_args()


def chosen(names):
    """The checks of these names, in the order in which they are run; ends the script where there is no such check."""
    unknown = [name for name in names if not fnmatch.filter(CHECKS, name)]
    if unknown:
        print(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}", file=sys.stderr)
        sys.exit(USAGE)
    return [check for name, check in CHECKS.items() if not names or any(fnmatch.fnmatch(name, want) for want in names)]


def one(check, out):
    """Runs a check in this process, and leaves its result in a file."""
    run = Run(machine.look(), out)
    result = {"result": "passed", "why": ""}
    try:
        check.act(run)
        if run.rehearsal and check.where == "rehearsed":
            result = {"result": "skipped", "why": "not on the fake driver (rehearsed)"}
    except Skipped as skipped:
        result = {"result": "skipped", "why": str(skipped)}
    except Exception as failed:  # whatever it is, it is this check's
        result = {"result": "FAILED", "why": " ".join(str(failed).split()) or type(failed).__name__}
    finally:
        run.end()
    # Figures of a machine without a GPU are none.
    result["numbers"] = {} if result["result"] == "skipped" else run.numbers
    (out / "result.json").write_text(json.dumps(result))


def in_a_process(check, seconds, out):
    """The result of a check that has so many seconds, and how many it took."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").unlink(missing_ok=True)
    began = time.monotonic()
    with open(out / "log", "wb") as log:
        # A session of its own, so that whatever it starts can be ended with it.
        child = subprocess.Popen(
            [sys.executable, __file__, "--one", check.name],
            env={**os.environ, "GPU_CHECKS_OUT": str(out)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            child.wait(seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    took = time.monotonic() - began
    if late:
        return {"result": "FAILED", "why": f"not within {seconds:g} s; see {out / 'log'}", "numbers": {}}, took
    try:
        return json.loads((out / "result.json").read_text()), took
    except (OSError, ValueError):
        return {"result": "FAILED", "why": f"ended with {child.returncode}; see {out / 'log'}", "numbers": {}}, took


def table(rows):
    """Lines of columns: check, result, number, seconds, and why."""
    header = ("CHECK", "RESULT", "NUMBER", "SECONDS", "")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(4)]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].ljust(widths[2]), row[3].rjust(widths[3]), row[4]]
        yield "  ".join(cells).rstrip()


def main():
    given = arguments()
    if given.list:
        for check in CHECKS.values():
            print(f"{check.name:26} {check.about}")
        return 0
    if given.one:
        one(CHECKS[given.one], Path(os.environ["GPU_CHECKS_OUT"]))
        return 0
    checks = chosen(given.names)
    found = machine.look()
    if found.why_not:
        print(f"no GPU: {found.why_not}")
        return NO_GPU
    out = Path(os.environ.get("GPU_CHECKS_OUT") or tempfile.mkdtemp(prefix="gpu-checks-"))
    machine.unpack(out)
    print(f"{found.words()}; logs are in {out}", flush=True)
    machine.remember(out)
    results, rows = {}, []
    for check in checks:
        if found.fake and check.where == "gpu":
            result, took = {"result": "skipped", "why": "not on the fake driver", "numbers": {}}, 0.0
        else:
            print(f"{check.name} ...", file=sys.stderr, flush=True)
            seconds = [limit for name, limit in given.seconds if fnmatch.fnmatch(check.name, name)] or [check.seconds]
            result, took = in_a_process(check, seconds[-1], out / check.name)
        results[check.name] = {**result, "seconds": took}
        figures = [numbers_meant.written(name, value) for name, value in result["numbers"].items()]
        figures = figures or ["-"]
        rows.append((check.name, result["result"], figures[0], f"{took:.1f}", result["why"]))
        rows += [("", "", figure, "", "") for figure in figures[1:]]
    print()
    for line in table(rows):
        print(line)
    meant = numbers_meant.definitions(name for result in results.values() for name in result["numbers"])
    if meant:
        print("\nWhat the numbers mean:")
        for name, words in meant:
            print(f"  {name}: {words}")
    count = {kind: sum(result["result"] == kind for result in results.values()) for kind in ("passed", "FAILED", "skipped")}
    print(f"\n{count['passed']} passed, {count['FAILED']} failed, {count['skipped']} skipped")
    if given.json:
        given.json.write_text(json.dumps({"machine": found.words(), "checks": results}, indent=1) + "\n")
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
