"""Whether the GPU is divided as it was, after all other checks."""

import json
import os

import machine
from registry import Skipped, check, need


@check("mig", "how the GPU is divided is as it was at the start", seconds=30)
def mig(run):
    before = json.loads((run.out.parent / "before.json").read_text())
    if before is None:
        raise Skipped("without NVML nobody knows how a GPU is divided")
    now = machine.state()
    need(now == before, f"it was {before} and is {now}")
    print(now, os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
