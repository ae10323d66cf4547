#!/usr/bin/env python3
"""Runs parsers under libFuzzer: it looks for files that take a parser where none has been, and for one that makes it panic, hold
more than a gigabyte, or think for ten seconds.

    make fuzz                                   # all parsers of tests/fuzz/parsers.rs, a minute each
    make fuzz FUZZ="image stack --seconds 600"

What was found to lead somewhere new is kept in target/fuzz/corpus and taken up again the next time; what fails is in
target/fuzz/found, and `cargo run --example fuzz -- PARSER FILE` shows it again.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "fuzz"
# What rustc must put into the code for libFuzzer to see where it goes; `cargo fuzz` has the same.
FLAGS = [
    *("--cfg", "fuzzing", "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4"),
    *("-Cllvm-args=-sanitizer-coverage-inline-8bit-counters", "-Cllvm-args=-sanitizer-coverage-pc-table"),
    *("-Cllvm-args=-sanitizer-coverage-trace-compares", "-Cdebug-assertions", "-Coverflow-checks", "-Ccodegen-units=4"),
]
LIMITS = ["-rss_limit_mb=1024", "-timeout=10", "-max_len=32768"]


def build():
    """The program, built apart from everything else."""
    (host,) = re.findall(r"^host: (.+)$", subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout, re.M)
    # With a target, build scripts and macros are spared the flags.
    command = ["cargo", "build", "--locked", "--example", "fuzz", "--target", host, "--target-dir", FOLDER / "build"]
    command += ["--config", "profile.dev.package.ocelli.opt-level=2"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "RUSTFLAGS": " ".join(FLAGS)})
    return FOLDER / "build" / host / "debug" / "examples" / "fuzz"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("parsers", nargs="*", help="all, if none is named")
    options.add_argument("--seconds", type=int, default=60, help="of each parser")
    options = options.parse_args()
    program = build()
    listed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    files = dict(line.split() for line in listed.splitlines())
    if unknown := set(options.parsers) - set(files):
        sys.exit(f"fuzz: {', '.join(sorted(unknown))}: no such parser; there are {', '.join(files)}")
    failed = []
    for folder in ("found", "logs"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    for parser in options.parsers or files:
        corpus, log = FOLDER / "corpus" / parser, FOLDER / "logs" / parser
        corpus.mkdir(parents=True, exist_ok=True)
        command = [program, *LIMITS, f"-max_total_time={options.seconds}", f"-artifact_prefix={FOLDER}/found/{parser}-"]
        with open(log, "w", encoding="utf-8") as out:
            ended = subprocess.run(
                [*command, corpus, ROOT / files[parser]], env={**os.environ, "FUZZ_PARSER": parser}, stdout=out, stderr=out
            )
        text = log.read_text(errors="replace")
        if ended.returncode == 0:
            files_run, reached = re.search(r"^#(\d+)\s+DONE\s+cov: (\d+)", text, re.M).groups()
            print(f"{parser:13} {int(files_run):>12,} files, {reached} places reached", flush=True)
        else:
            failed.append(parser)
            print(f"{parser:13} FAILED: {log}\n{text[-3000:]}", flush=True)
    if failed:
        sys.exit(f"fuzz: {', '.join(failed)} failed; the files are in {FOLDER / 'found'}")


if __name__ == "__main__":
    main()
