#!/usr/bin/env python3
"""Makes PTX of kernels/*.cu and holds what is committed against it. Neither a GPU nor a driver nor a toolkit is needed.

    check_kernels.py generate NVRTC-FOLDER          writes kernels/generated/*.ptx
    check_kernels.py compare NVRTC-FOLDER           fails where those are not what the sources give
    check_kernels.py assemble PTXAS-FOLDER [SM...]  makes machine code of those for each GPU (all that we support, if none is
                                                    given), and fails where a kernel spills registers

The folders are virtual environments with the wheels of tools/nvrtc.txt and tools/ptxas.txt in them.
"""

import ctypes
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
GENERATED = KERNELS / "generated"
# PTX for the oldest GPU that we support runs on all later ones.
TARGET = "compute_75"
# Sources that are several texts, since a driver compiles a text as a whole: the end of each one's name, and what it is made with.
PARTS = {
    "gauss_mle": {
        f"_{model}": f"--define-macro=FIT_MODELS=FIT_KERNELS({model}, {model.upper()})"
        for model in ("xynb", "xynbs", "xynbsxsy", "xyznb")
    }
}
SMS = ("75", "80", "86", "89", "90", "100", "120")


def found_in(folder, pattern):
    """The one file under a folder that a wheel brought."""
    found = sorted(Path(folder).rglob(pattern))
    if not found:
        sys.exit(f"check_kernels: there is no {pattern} under {folder}")
    return found[0]


class Nvrtc:
    """The compiler, as a library."""

    def __init__(self, folder):
        # The compiler opens this one by name only; once loaded it is found.
        ctypes.CDLL(str(found_in(folder, "libnvrtc-builtins.so.*")), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(found_in(folder, "libnvrtc.so.*")))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        # Headers are given by name, so that no path of this machine can get into what is made.
        headers = sorted(KERNELS.glob("*.cuh"))
        self.names = (ctypes.c_char_p * len(headers))(*(header.name.encode() for header in headers))
        self.texts = (ctypes.c_char_p * len(headers))(*(header.read_bytes() for header in headers))

    def text(self, program, what):
        """One of the program's outputs: its size first, then itself."""
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, held)
        return held.raw.rstrip(b"\0").decode()

    def ptx(self, source, *more):
        """The PTX of a source, made with more options. Ends the script where it does not compile."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), source.name.encode(), len(self.names), self.texts, self.names
        )
        options = (f"--gpu-architecture={TARGET}", "--std=c++17", *more)
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self.library.nvrtcCompileProgram(program, len(options), given)
        log = self.text(program, "ProgramLog")
        if failed:
            sys.exit(f"check_kernels: {source.name} does not compile for {TARGET} with NVRTC {self.version}:\n{log}")
        if log:
            print(log)
        text = self.text(program, "PTX")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return text.rstrip() + "\n"


def compile_all(folder, keep):
    """Compiles all sources. `keep` takes the place of each one's PTX and its text, and says what became of it."""
    nvrtc = Nvrtc(folder)
    places = []
    sources = sorted(KERNELS.glob("*.cu"))
    parts = [(source, part) for source in sources for part in PARTS.get(source.stem, {"": None}).items()]
    for source, (ending, option) in parts:
        began = time.monotonic()
        text = nvrtc.ptx(source, *filter(None, [option]))
        seconds = time.monotonic() - began
        place = GENERATED / f"{source.stem}{ending}.ptx"
        places.append(place)
        print(
            f"{place.name}: PTX {re.search(r'^.version (.+)', text, re.MULTILINE)[1]} for {TARGET} by NVRTC "
            f"{nvrtc.version}, {len(entries(text))} kernels, {len(text) // 1024} KiB, {seconds:.1f} s: {keep(place, text)}",
            flush=True,
        )
    return [place for place in GENERATED.glob("*.ptx") if place not in places]


def entries(text):
    """The kernels in a PTX text."""
    return re.findall(r"\.entry (\w+)", text)


def generate(folder):
    """Writes what is to be committed."""
    GENERATED.mkdir(exist_ok=True)

    def keep(place, text):
        if place.is_file() and place.read_text() == text:
            return "as it was"
        place.write_text(text)
        return "written"

    for place in compile_all(folder, keep):
        print(f"{place.name}: has no source and goes")
        place.unlink()


def compare(folder):
    """Holds what is committed against what the sources give."""
    wrong = []

    def keep(place, text):
        if place.is_file() and place.read_text() == text:
            return "as committed"
        wrong.append(place)
        return "NOT as committed"

    wrong += compile_all(folder, keep)
    if wrong:
        names = ", ".join(sorted(place.name for place in wrong))
        sys.exit(f"check_kernels: kernels/generated is not what the sources give ({names}): run `make kernels`")


def assembled(assembler, place, sm):
    """What the assembler says of one text for one GPU: kernels with registers, shared memory, stack and spilled bytes."""
    began = time.monotonic()
    done = subprocess.run(
        [assembler, "-v", f"-arch=sm_{sm}", str(place), "-o", os.devnull], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"check_kernels: {place.name} cannot be assembled for sm_{sm}:\n{said}")
    kernels = {}
    for part in said.split("Compiling entry function ")[1:]:

        def number(pattern):
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        kernels[re.match(r"'(\w+)'", part)[1]] = (
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes smem"),
            number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        )
    return kernels, time.monotonic() - began


def assemble(folder, sms):
    """Prints what each kernel takes of each GPU; fails where registers do not suffice."""
    assembler = found_in(folder, "ptxas")
    assembler.chmod(0o755)
    spilling = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for place in sorted(GENERATED.glob("*.ptx")):
            results = list(pool.map(lambda sm, place=place: assembled(assembler, place, sm), sms))
            seconds = sum(result[1] for result in results)
            print(f"{place.name}: assembled for {', '.join(f'sm_{sm}' for sm in sms)} in {seconds:.1f} s of one core")
            for name in entries(place.read_text()):
                registers, shared, stack, spilled = zip(*(result[0][name] for result in results))
                print(
                    f"  {name}: registers {' '.join(map(str, registers))}; {max(shared)} B of static shared memory, "
                    f"{max(stack)} B of stack, {max(spilled)} B spilled",
                    flush=True,
                )
                spilling += [f"{name} on sm_{sm}" for sm, bytes_spilled in zip(sms, spilled) if bytes_spilled]
    if spilling:
        sys.exit(f"check_kernels: registers do not suffice: {', '.join(spilling)}")


def main():
    match sys.argv[1:]:
        # A folder would be made of what asks for help.
        case arguments if any(argument.startswith("-") for argument in arguments):
            sys.exit(__doc__)
        case ["generate", folder]:
            generate(folder)
        case ["compare", folder]:
            compare(folder)
        case ["assemble", folder, *sms]:
            assemble(folder, sms or SMS)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
