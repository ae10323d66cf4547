#!/usr/bin/env python3
"""Fits per second on one core: ours with each instruction set, Picasso's and SMAPpy's, on the same ROIs.

    make bench-fit                                  # 7 x 7 and 11 x 11
    make bench-fit FIT="--boxes 9 --rounds 20"

The ROIs are simulated (photons 300 to 10,000, background 1 to 50, widths 1 to 1.8 px). Ours: u16 in; parameters,
standard errors, likelihood ratio and p-value out. Picasso (maximum likelihood, Levenberg-Marquardt): f32 in,
parameters out, its start values included. SMAPpy: f32 in, parameters and standard errors out. All are held to one core;
ROIs are timed in parts, and of each part the fastest round counts, since other work on the machine only ever adds to it.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "fit"))
import simulate  # noqa: E402
from reference import Model  # noqa: E402

# What peers fit, and at a time; they compile or warm up on the first.
PEER_ROIS = 2000
PEER_PART = 200


def picasso(elliptic):
    """A function that fits `[n, side, side]` photo-electrons; None where Picasso is not installed."""
    try:
        from picasso.fitting import gaussfit, seeds
    except ImportError as error:
        print(f"without Picasso: {error}")
        return None
    model = gaussfit.ELLIPTIC if elliptic else gaussfit.SPHERICAL

    def fit(rois):
        start = seeds.initial_parameters_gauss(rois, rois.shape[1], spherical=not elliptic)
        return gaussfit.fit_spots(model, rois, start, mle=True)

    return fit


def smappy(elliptic):
    """A function that fits `[n, side, side]` photo-electrons; None where SMAPpy is not installed."""
    try:
        from smappy.psf import GaussianPSF
    except ImportError as error:
        print(f"without SMAPpy: {error}")
        return None
    psf = GaussianPSF(1.3, elliptic)
    return lambda rois: psf.fit(rois, 50, 1)


def shortest(fit, rois, rounds):
    """Seconds for all ROIs, of each part those of the fastest round."""
    fit(rois[:PEER_PART])
    total = 0.0
    for first in range(0, len(rois), PEER_PART):
        some = rois[first : first + PEER_PART]
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            fit(some)
            seconds.append(time.perf_counter() - began)
        total += min(seconds)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, nargs="*", default=[7, 11])
    parser.add_argument("--models", nargs="*", default=["xynb", "xynbs", "xynbsxsy", "xyznb"])
    parser.add_argument("--rois", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=50, help="of ours; peers take a fifth")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sets = simulate.supported()
    peers = {
        "xynbs": {"picasso": picasso(False), "smappy": smappy(False)},
        "xynbsxsy": {"picasso": picasso(True), "smappy": smappy(True)},
    }
    print(f"fits/s on one core; seed 2, {given.rois} ROIs ({PEER_ROIS} for peers), of each part the fastest of {given.rounds} rounds")
    for name in given.models:
        for side in given.boxes:
            random = np.random.default_rng(2)
            model = Model(name)
            rois = simulate.simulate(model, simulate.draw(model, given.rois, side, random), side, random)
            ours = {}
            for instructions in sets:
                found, seconds = simulate.fit(rois, instructions, given.rounds)
                ours[instructions] = given.rois / seconds
            cells = [f"{key} {value / 1e6:.2f} M" for key, value in ours.items()]
            best = max(ours.values())
            some = np.ascontiguousarray(rois.adu[:PEER_ROIS], np.float32)
            for peer, fit in peers.get(name, {}).items():
                if fit is not None:
                    rate = len(some) / shortest(fit, some, max(1, given.rounds // 5))
                    cells.append(f"{peer} {rate / 1e3:.1f} k (ours x {best / rate:.0f})")
            mean = found["iterations"].mean()
            print(f"{name:9} {side:2} x {side:2}  {'  '.join(cells)}  ({mean:.2f} evaluations)", flush=True)


if __name__ == "__main__":
    main()
