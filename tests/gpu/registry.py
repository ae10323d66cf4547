"""What a check is, and what it has at hand while it runs."""

import os
import subprocess
from collections import namedtuple
from pathlib import Path

import machine
import numbers_meant

# `where`: "any" driver; on the fake one only "rehearsed", as small as can be and without numbers; on a "gpu" only.
Check = namedtuple("Check", "name about seconds where act")
CHECKS = {}
SKIPPED = 77


class Skipped(Exception):
    """A check cannot be had here; the words say why."""


class Failed(Exception):
    """A check failed; the words say how."""


def check(name, about, seconds=300, where="any"):
    """Makes a check of a function that takes a `Run`."""

    def add(act):
        CHECKS[name] = Check(name, about, seconds, where, act)
        return act

    return add


def need(holds, what):
    """Fails the check unless it holds."""
    if not holds:
        raise Failed(what)


class Run:
    """One run of one check: the machine, a folder of its own, the program, and what was measured."""

    def __init__(self, found, out):
        self.machine, self.out = found, out
        self.numbers, self.ends = {}, []
        self.rehearsal = found.fake

    def number(self, name, value):
        """Notes what was measured."""
        numbers_meant.meaning(name)  # A number that nobody explains is a mistake.
        self.numbers[name] = value

    def at_end(self, act):
        """Has something done when the check is over, whatever became of it; the last first."""
        self.ends.append(act)

    def end(self):
        while self.ends:
            self.ends.pop()()

    def environment(self, **variables):
        """Of the processes that a check starts."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("OCELLI_")}
        if self.rehearsal:
            own["GPU_CHECKS_REHEARSAL"] = "1"
        own |= self.machine.libraries
        return own | {name: str(value) for name, value in variables.items()}

    def program(self, name, before=(), **variables):
        """Runs a check of the carried program and takes its numbers. What it says is in the log."""
        command = [*map(str, before), str(machine.program()), "check", name]
        done = subprocess.run(
            command, env=self.environment(**variables), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        print(done.stdout, done.stderr, sep="", flush=True)
        if done.returncode == SKIPPED:
            raise Skipped(next(line[5:] for line in done.stdout.splitlines() if line.startswith("skip ")))
        if done.returncode != 0:
            raise Failed(reason(done))
        for line in done.stdout.splitlines():
            if line.startswith("number "):
                _, number, value = line.split()
                self.number(number, float(value))
        return done

    def root(self):
        """The folder with examples/ and the script's own folder's parents."""
        return machine.root()


def reason(done):
    """The words of a program that failed: of a panic, what it said."""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    for at, line in enumerate(lines):
        if " panicked at " in line or line.startswith("panicked at"):
            return lines[at + 1] if at + 1 < len(lines) else line
    said = [line for line in lines if "ERROR SUMMARY" in line] or lines[-1:]
    return f"exit code {done.returncode}: {said[-1] if said else 'nothing was said'}"


def folder_of(path):
    """A folder, made."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    return path
