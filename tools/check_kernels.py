#!/usr/bin/env python3
"""Compiles kernels/*.cu for the device with NVRTC. Neither a GPU nor a driver nor a toolkit is needed.

    check_kernels.py ptx NVRTC-FOLDER [CC...]    PTX for each compute capability (75 if none is given); for the first twice,
                                                 and both the same
    check_kernels.py cubin NVRTC-FOLDER [SM...]  machine code for each GPU, with what the assembler says of it

NVRTC-FOLDER is a virtual environment with the wheel nvidia-cuda-nvrtc-cu12 in it.
"""

import ctypes
import re
import sys
import time
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
SMS = ("75", "80", "86", "89", "90", "100", "120")


class Nvrtc:
    """The compiler, as a library."""

    def __init__(self, folder):
        found = sorted(Path(folder).rglob("libnvrtc.so.*"))
        found = [path for path in found if "builtins" not in path.name and "alt" not in path.name]
        if not found:
            sys.exit(f"check_kernels: there is no libnvrtc under {folder}")
        # The compiler opens this one by name only; once loaded it is found.
        for builtins in found[0].parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(found[0]))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def text(self, program, what):
        """One of the program's outputs: its size first, then itself."""
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, held)
        return held.raw

    def compile(self, source, target, what, *options):
        """`what` ("PTX" or "CUBIN") of a source for a target, and the log. Ends the script where it does not compile."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
        )
        options = (f"--gpu-architecture={target}", "--std=c++17", f"--include-path={KERNELS}", *options)
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self.library.nvrtcCompileProgram(program, len(options), given)
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            sys.exit(f"check_kernels: {source.name} does not compile for {target} with NVRTC {self.version}:\n{log}")
        output = self.text(program, what)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return output, log


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("ptx", "cubin"):
        sys.exit(__doc__)
    nvrtc = Nvrtc(sys.argv[2])
    sources = sorted(KERNELS.glob("*.cu"))
    spilled = False
    for source in sources:
        if sys.argv[1] == "ptx":
            for number, capability in enumerate(sys.argv[3:] or ["75"]):
                target = f"compute_{capability}"
                began = time.monotonic()
                ptx, _ = nvrtc.compile(source, target, "PTX")
                seconds = time.monotonic() - began
                text = ptx.decode()
                entries = re.findall(r"\.entry (\w+)", text)
                version = re.search(r"^\.version (\S+)", text, re.MULTILINE)[1]
                if number == 0 and nvrtc.compile(source, target, "PTX")[0] != ptx:
                    sys.exit(f"check_kernels: {source.name} gives another PTX each time")
                print(
                    f"{source.name}: PTX {version} for {target} by NVRTC {nvrtc.version}, {len(entries)} kernels, "
                    f"{len(ptx) // 1024} KiB, {seconds:.1f} s",
                    flush=True,
                )
            continue
        for sm in sys.argv[3:] or SMS:
            began = time.monotonic()
            _, log = nvrtc.compile(source, f"sm_{sm}", "CUBIN", "--ptxas-options=-v")
            registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
            stores = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
            stacks = [int(n) for n in re.findall(r"(\d+) bytes stack frame", log)]
            spilled |= any(stores)
            print(
                f"{source.name}: sm_{sm} by NVRTC {nvrtc.version}, {len(registers)} kernels, up to "
                f"{max(registers, default=0)} registers, {max(stacks, default=0)} bytes of stack, "
                f"{max(stores, default=0)} spilled, {time.monotonic() - began:.1f} s",
                flush=True,
            )
    if spilled:
        print("check_kernels: a kernel spills registers: see above")


if __name__ == "__main__":
    main()
