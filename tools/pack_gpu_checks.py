#!/usr/bin/env python3
"""Packs the checks on GPUs into one folder for a machine without Rust.

    python3 tools/pack_gpu_checks.py pack PROGRAM FAULT FOLDER [--sm 90] [--onnx-runtime .lib/gpu] [--nvjpeg FILE] [--mib-max 64]
    python3 tools/pack_gpu_checks.py prune FROM TO 90

FOLDER then has the script with all it needs: `python3 FOLDER/run.py`. PROGRAM is the example `gpu_checks`, FAULT the library made of
tests/gpu/fault.c. ONNX Runtime's library for CUDA is 284 MB, most of it the same code for several kinds of GPU: of these, only
those of `--sm` are kept (compute capabilities without the dot, such as 80,90, or `all`). That is for carrying to a known machine,
not for shipping: on another GPU it has no code. Says how to carry a folder of more than `--mib-max` at two times, and fails where
a file, or all beside the largest, is more than that.
"""

import argparse
import lzma
import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ROOT / "tests" / "gpu"
PROVIDER = "libonnxruntime_providers_cuda.so"
BESIDE = "libonnxruntime_providers_shared.so"

# A fat binary: this magic, a version, the header's and the content's length; then entries of kind, version, the header's and
# the payload's length, and at byte 28 the compute capability that it is for. Kind 2 is machine code.
MAGIC = struct.pack("<I", 0xBA55ED50)
MACHINE_CODE = 2


def fail(why):
    sys.exit(f"pack_gpu_checks: {why}")


def entries(data):
    """Where the payloads of machine code are: begin, length and compute capability."""
    at = data.find(MAGIC)
    while at >= 0:
        version, header, length = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + length
        if version == 1 and header == 16 and end <= len(data):
            entry = at + header
            while entry + 64 <= end:
                kind, _, head, payload = struct.unpack_from("<HHIQ", data, entry)
                if kind not in (1, 2) or not 64 <= head <= 1024 or entry + head + payload > end:
                    break
                if kind == MACHINE_CODE:
                    yield entry + head, payload, struct.unpack_from("<I", data, entry + 28)[0]
                entry += head + payload
            at = data.find(MAGIC, max(entry, at + 4))
        else:
            at = data.find(MAGIC, at + 4)


def prune(source, target, kept):
    """Copies a library, with zeros instead of the code for other GPUs: headers stay, so that the driver finds its way."""
    shutil.copyfile(source, target)
    emptied, found = 0, set()
    with open(target, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for begin, length, capability in list(entries(data)):
            found.add(capability)
            if capability not in kept:
                data[begin : begin + length] = bytes(length)
                emptied += length
    missing = sorted(set(kept) - found)
    if missing:
        fail(f"{source.name} has no code for {missing}, only for {sorted(found)}")
    print(f"pack_gpu_checks: {emptied >> 20} MiB of code for other GPUs left out of {source.name}", flush=True)


def packed(source, folder, fast, name=None):
    """Compresses a file into the folder."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 27}]
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}] if fast else filters
    target = folder / f"{name or source.name}.xz"
    with open(source, "rb") as content, lzma.open(target, "wb", filters=filters) as out:
        shutil.copyfileobj(content, out, 1 << 22)
    print(f"pack_gpu_checks: {target.name}: {target.stat().st_size / (1 << 20):.1f} MiB", flush=True)


def stripped(program, target):
    """The program without what only a debugger reads, where there is the tool for that."""
    shutil.copyfile(program, target)
    if shutil.which("strip"):
        subprocess.run(["strip", str(target)], check=True)


def pack(given):
    folder = given.folder
    if folder.exists():
        shutil.rmtree(folder)
    carried = folder / "carried"
    carried.mkdir(parents=True)
    for file in sorted(CHECKS.glob("*.py")) + [CHECKS / "symbols.txt", CHECKS / "illegal_address.ptx"]:
        shutil.copy(file, folder)
    shutil.copytree(ROOT / "examples" / "models", folder / "examples" / "models")
    shutil.copytree(ROOT / "examples" / "images", folder / "examples" / "images")
    with tempfile.TemporaryDirectory() as temporary:
        program = Path(temporary) / "gpu_checks"
        stripped(given.program, program)
        packed(program, carried, given.fast)
        packed(given.fault, carried, given.fast, "libfault.so")
        if given.nvjpeg:
            packed(given.nvjpeg, carried, given.fast)
        if given.onnx_runtime:
            (main,) = given.onnx_runtime.glob("libonnxruntime.so.*")
            packed(main, carried, given.fast)
            packed(given.onnx_runtime / BESIDE, carried, given.fast)
            provider = given.onnx_runtime / PROVIDER
            if given.sm != "all":
                pruned = Path(temporary) / PROVIDER
                prune(provider, pruned, capabilities(given.sm))
                provider = pruned
            packed(provider, carried, given.fast)
    sizes = {file: file.stat().st_size / (1 << 20) for file in folder.rglob("*") if file.is_file()}
    size, largest = sum(sizes.values()), max(sizes, key=sizes.get)
    print(f"pack_gpu_checks: {folder} has {size:.1f} MiB; there: python3 {folder.name}/run.py", flush=True)
    alone, rest = sizes[largest], size - sizes[largest]
    if max(alone, rest) > given.mib_max:
        fail(
            f"{largest} has {alone:.1f} MiB and all else {rest:.1f}, more than {given.mib_max:g}: name one kind of GPU (--sm), "
            "or leave ONNX Runtime out"
        )
    if size > given.mib_max:
        print(f"pack_gpu_checks: more than {given.mib_max:g} MiB: carry {largest} ({alone:.1f} MiB) first, then all else ({rest:.1f} MiB)")


def capabilities(text):
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        fail(f"--sm is {text!r}; expected compute capabilities such as 80,90, or all")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="make the folder")
    packing.add_argument("program", type=Path)
    packing.add_argument("fault", type=Path)
    packing.add_argument("folder", type=Path)
    packing.add_argument("--sm", default="90", help="compute capabilities to keep code for, or all; default: 90")
    packing.add_argument("--onnx-runtime", type=Path, help="the folder with ONNX Runtime's libraries for CUDA; without it, none")
    packing.add_argument("--nvjpeg", type=Path, help="nvJPEG's library (libnvjpeg.so.13), where the other machine has none")
    packing.add_argument("--mib-max", type=float, default=64, help="what can be carried at a time; default: 64")
    packing.add_argument("--fast", action="store_true", help="compress little, for a try")
    packing.set_defaults(run=pack)
    pruning = commands.add_parser("prune", help="only leave out code for other GPUs")
    pruning.add_argument("source", type=Path)
    pruning.add_argument("target", type=Path)
    pruning.add_argument("sm")
    pruning.set_defaults(run=lambda given: prune(given.source, given.target, capabilities(given.sm)))
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
