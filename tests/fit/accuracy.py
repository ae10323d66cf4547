#!/usr/bin/env python3
"""Holds the kernels against the float64 reference, and their standard errors against what estimates do.

Prints two tables over models, boxes and cameras (`make bench-accuracy`); the tests use the same functions on fewer.
"""

import argparse
import sys
import time

import numpy as np
import reference
import simulate
from reference import Astigmatism, Model
from simulate import IDEAL, Camera

MODELS = ("xynb", "xynbs", "xynbsxsy", "xyznb")
ASTIGMATISM = Astigmatism(1.3, 1.25, 0.25, 0.4, 0.05, -0.03, 0.1, 0.05)


def model_of(name):
    """A model with calibrations that are not symmetric."""
    return Model(name, (1.3, 1.3), ASTIGMATISM)


def scmos(random, size=(64, 96)):
    """A camera whose every pixel has an offset, a gain and a read noise of its own."""
    return Camera(
        offset=random.normal(100, 3, size).astype("f4"),
        gain=random.normal(0.5, 0.03, size).astype("f4"),
        read_noise=(1 + random.gamma(2, 1, size)).astype("f4"),
    )


def estimate(rois):
    """The float64 maximum likelihood estimates, half their deviance, and their Fisher matrices."""
    starts = [rois.theta]
    if rois.model.name == "xyznb":
        for z in (-rois.theta[:, 2], 0.0, 0.4, -0.4):
            starts.append(rois.theta.copy())
            starts[-1][:, 2] = z
    return reference.fit_from(rois.model, rois.electrons, rois.variance, starts)


def compare(rois, found):
    """How the kernels' fits differ from the float64 maximum likelihood estimates of the same ROIs."""
    model = rois.model
    theta, deviance, fisher = estimate(rois)
    errors, covariance = reference.errors(fisher)
    off = np.abs(found["theta"] - theta)
    allowed = 0.01 * errors
    allowed[:, :2] = np.maximum(allowed[:, :2], 1e-3)
    ratio = np.abs(found["errors"] / errors - 1).max(axis=1)
    # xy, and with z xz and yz, as shares of the two standard errors.
    pairs = [(0, 1), (0, 2), (1, 2)] if model.name == "xyznb" else [(0, 1)]
    shares = [
        np.abs(found["covariance"][:, pair] - covariance[:, i, j]) / (errors[:, i] * errors[:, j])
        for pair, (i, j) in enumerate(pairs)
    ]
    return {
        "within": (off <= allowed).all(axis=1).mean(),
        "position_p99": np.quantile(off[:, :2].max(axis=1), 0.99),
        "worst_p99": np.quantile((off / errors).max(axis=1), 0.99),
        "errors_within": (ratio <= 0.01).mean(),
        "covariance_p98": np.nanquantile(np.max(shares, axis=0), 0.98),
        "ratio_p99": np.quantile(np.abs(found["log_likelihood_ratio"] + deviance), 0.99),
    }


def spread(rois, found):
    """For each parameter: the spread of the estimates over the standard error, and the bias in standard errors.

    Estimates at a bound or not converged are left out, and counted.
    """
    good = found["status"] == 0
    off = (found["theta"] - rois.theta)[good] / found["errors"][good]
    names = rois.model.names
    return {
        "spread": dict(zip(names, off.std(axis=0))),
        "bias": dict(zip(names, off.mean(axis=0))),
        "left_out": 1 - good.mean(),
    }


def preset(name, side, count, random):
    """The parameters of GaussMLE's own benchmark."""
    model = Model(name, (1.3, 1.3), Astigmatism())
    middle = (side - 1) / 2
    given = {
        "x": middle + random.normal(0, 0.3, count),
        "y": middle + random.normal(0, 0.3, count),
        "z": random.normal(0, 0.2, count),
        "photons": random.normal(1000, 100, count),
        "background": np.maximum(random.normal(10, 1, count), 1),
    }
    given |= {width: random.normal(1.3, 0.1, count) for width in ("sigma", "sigma_x", "sigma_y")}
    return model, simulate.draw(model, count, side, random, **given)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rois", type=int, default=2000, help="ROIs to compare with the reference, each row")
    parser.add_argument("--spread", type=int, default=100_000, help="ROIs for the spread of estimates, each row")
    parser.add_argument("--boxes", type=int, nargs="*", default=[7, 9, 11, 15])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"seed {given.seed}; {given.rois} ROIs with 300 to 10000 photons, background 1 to 50, widths 1 to 1.8 px")
    print(
        "model     box camera  within  errors  dx p99 px  worst p99 se  cov p98  llr p99   it    s  "
        "status 0/1/2/3/4"
    )
    failed = False
    for name in given.models:
        for side in given.boxes:
            for camera_name in ("ideal", "scmos"):
                random = np.random.default_rng(given.seed)
                camera = IDEAL if camera_name == "ideal" else scmos(random)
                model = model_of(name)
                theta = simulate.draw(model, given.rois, side, random)
                rois = simulate.simulate(model, theta, side, random, camera)
                found, _ = simulate.fit(rois)
                began = time.monotonic()
                row = compare(rois, found)
                status = "/".join(str(n) for n in np.bincount(found["status"], minlength=5))
                failed |= row["within"] < 0.99
                print(
                    f"{name:9} {side:3} {camera_name:6} {row['within']:7.4f} {row['errors_within']:7.4f}"
                    f"  {row['position_p99']:9.1e}  {row['worst_p99']:12.4f}  {row['covariance_p98']:7.5f}"
                    f"  {row['ratio_p99']:7.4f} {found['iterations'].mean():4.1f} {time.monotonic() - began:4.0f}"
                    f"  {status}",
                    flush=True,
                )
    print(f"\nspread over standard error of {given.spread} estimates each, preset of GaussMLE (bias in standard errors)")
    for name in given.models:
        for side in given.boxes:
            for camera_name in ("ideal", "scmos"):
                random = np.random.default_rng(given.seed)
                camera = IDEAL if camera_name == "ideal" else Camera(100.0, 0.5, 5.0)
                model, theta = preset(name, side, given.spread, random)
                rois = simulate.simulate(model, theta, side, random, camera)
                found, _ = simulate.fit(rois)
                row = spread(rois, found)
                each = "  ".join(f"{key} {value:.3f} ({row['bias'][key]:+.3f})" for key, value in row["spread"].items())
                print(f"{name:9} {side:3} {camera_name:6} {each}  left out {row['left_out']:.5f}", flush=True)
    if failed:
        sys.exit("fewer than 99 % of the fits are within the tolerance")


if __name__ == "__main__":
    main()
