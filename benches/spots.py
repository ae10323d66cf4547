"""Frames per second and core that spots are found in and cut out of, for each instruction set.

    SPOTS_BINARY=target/release/examples/find_spots python benches/spots.py [SECONDS]

One thread. Frames are u16 and as they come from a camera: background 10, and 0.001 spots of 1000 photons per pixel (in 512 x 512
about 260). A stack of 32 frames is gone through again and again for about SECONDS (2) per row, and of each frame the fastest time
counts: others may be at work on the machine. What could be had at most is how fast frames can be read from memory at all,
which is measured beside.
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fit"))

import movies  # noqa: E402
from simulate import Camera  # noqa: E402

METHODS = {
    "contrast, noise": movies.Options(),
    "contrast, photons": movies.Options(threshold_in="photons", threshold=250.0),
    "net gradient": movies.Options(method="net_gradient", threshold_in="net_gradient", threshold=150.0),
}


def read_rate(adu):
    """Pixels per second that a sum over the frames reads."""
    words = adu.view(np.uint64)
    best = min(timed(words.sum) for _ in range(50))
    return adu.size / best


def timed(work):
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    random = np.random.default_rng(1)
    print("| frame | camera | method | instructions | frames/s | Mpixel/s | with boxes cut: frames/s | spots per frame |")
    print("|---|---|---|---|---|---|---|---|")
    for size in (256, 512):
        shape = (32, size, size)
        maps = Camera(
            random.normal(100, 2, shape[1:]),
            random.normal(0.46, 0.01, shape[1:]),
            np.exp(random.normal(np.log(1.6), 0.3, shape[1:])),
        )
        for name, camera in (("scalars", Camera(100.0, 0.5, 1.6)), ("maps", maps)):
            movie = movies.blinking(random, shape, 0.001, camera=camera)
            for method, options in METHODS.items():
                for instructions in movies.supported():
                    _, first = movies.find(movie, options, instructions)
                    repeat = max(3, int(seconds / first["seconds"]))
                    spots, report = movies.find(movie, options, instructions, repeat)
                    rate = shape[0] / report["find_seconds"]
                    print(
                        f"| {size} x {size} | {name} | {method} | {instructions} | {rate:.0f} | {rate * size**2 / 1e6:.0f} "
                        f"| {shape[0] / report['seconds']:.0f} | {len(spots) / shape[0]:.0f} |",
                        flush=True,
                    )
        print(f"| {size} x {size} | | reading alone | NumPy's sum | | {read_rate(movie.adu) / 1e6:.0f} | | |", flush=True)


if __name__ == "__main__":
    main()
