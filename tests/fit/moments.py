#!/usr/bin/env python3
"""The moments of one pixel's deviance, and the polynomials of them that stand in kernels/goodness.cuh.

    python3 tests/fit/moments.py     prints the polynomials
"""

import re
from pathlib import Path

import numpy as np
from numpy.polynomial import chebyshev, polynomial
from scipy.special import xlogy
from scipy.stats import poisson

SOURCE = Path(__file__).resolve().parent.parent.parent / "kernels" / "goodness.cuh"

# Powers of 1 / (1 + 2 M), and of R / (1 + R) in their coefficients.
ORDERS = (8, 4)


def distribution(light, noise):
    """The values of D = max(Poisson(light) + Normal(0, noise^2) + noise^2, 0), and how likely they are."""
    count = np.arange(int(light + 12 * np.sqrt(light) + 25))
    share = poisson.pmf(count, light)
    count, share = count[share > 1e-14], share[share > 1e-14]
    if noise == 0:
        return count.astype(float), share
    z = np.linspace(-7.5, 7.5, 1001)
    density = np.exp(-(z**2) / 2)
    data = np.maximum(count[:, None] + noise**2 + noise * z, 0)
    return data.ravel(), (share[:, None] * density / density.sum()).ravel()


def moments(light, noise):
    """The mean M of D, which is what a fit makes of it, the mean and the variance of its deviance from M, the covariance of
    that with D, and the variance of D."""
    data, share = distribution(light, noise)
    mean = share @ data
    deviance = 2 * (xlogy(data, data / mean) - data + mean)
    expectation = share @ deviance
    off = deviance - expectation
    return mean, expectation, share @ off**2, share @ (off * (data - mean)), share @ (data - mean) ** 2


def judged(light, noise):
    """M, the expected deviance, and its variance about what is expected at a background that was fitted to the same data."""
    mean, expectation, variance, covariance, spread = moments(light, noise)
    below, above = moments(light * 0.995, noise), moments(light * 1.005, noise)
    slope = (above[1] - below[1]) / (above[0] - below[0])
    return mean, expectation, variance - 2 * slope * covariance + slope**2 * spread


def table(noises, lights):
    """`judged` of all of them: three arrays, and the noises beside them."""
    values = np.array([[judged(light, noise) for light in lights] for noise in noises])
    return values[..., 0].ravel(), values[..., 1].ravel(), values[..., 2].ravel(), np.repeat(noises, len(lights))


def in_powers(coefficients, order):
    """Chebyshev polynomials on 0 to 1 as powers."""
    rows = []
    for k in range(order + 1):
        power = np.zeros(1)
        for factor in chebyshev.cheb2poly(np.eye(order + 1)[k])[::-1]:
            power = polynomial.polyadd(polynomial.polymul(power, [-1, 2]), [factor])
        rows.append(np.pad(power, (0, order + 1 - len(power))))
    return np.array(rows).T @ coefficients


def fit(mean, noise, values, rounds=150):
    """Coefficients [power of t, power of u] with the smallest largest error, nearly, and that error."""
    t, u = 1 / (1 + 2 * mean), noise / (1 + noise)
    along_t = chebyshev.chebvander(2 * t - 1, ORDERS[0])
    along_u = chebyshev.chebvander(2 * u - 1, ORDERS[1])
    matrix = (along_t[:, :, None] * along_u[:, None, :]).reshape(len(t), -1)
    weight, best, least = np.ones(len(t)), None, np.inf
    for _ in range(rounds):
        found = np.linalg.lstsq(matrix * weight[:, None], values * weight, rcond=None)[0]
        off = np.abs(matrix @ found - values)
        if off.max() < least:
            best, least = found.reshape(ORDERS[0] + 1, ORDERS[1] + 1), off.max()
        # What is furthest off weighs more in the next round.
        weight *= np.sqrt(off / off.max() + 0.05)
        weight /= weight.max()
    return in_powers(in_powers(best, ORDERS[0]).T, ORDERS[1]).T, least


def in_source():
    """The coefficients that the kernels have, by name."""
    found = {}
    for name, power, numbers in re.findall(r"(\w+)\[(\d)\] = quartic\(u, ([^)]*)\);", SOURCE.read_text()):
        rows = found.setdefault(name, np.zeros((ORDERS[0] + 1, ORDERS[1] + 1), np.float32))
        rows[int(power)] = [float(number.rstrip("f")) for number in numbers.split(", ")]
    return found


def evaluate(coefficients, mean, noise):
    """A polynomial as the kernels evaluate it, in float32."""
    t = np.float32(1) / (1 + 2 * np.asarray(mean, np.float32))
    u = np.asarray(noise, np.float32) / (1 + np.asarray(noise, np.float32))
    return polynomial.polyval(t, polynomial.polyval(u, np.float32(coefficients).T), tensor=False)


def main():
    noises = np.concatenate([[0, 0.02, 0.04, 0.07, 0.1, 0.14, 0.2, 0.25], np.arange(0.3, 2.05, 0.1), [2.5, 3, 4, 5, 6, 8]])
    lights = np.concatenate([np.geomspace(0.008, 30, 48), [50, 100, 300]])
    mean, expectation, variance, noise = table(noises, lights)
    for name, values in (("expectation", expectation), ("variance", variance)):
        found, off = fit(mean, noise, values)
        print(f"        // to {off:.4f}")
        for power in range(ORDERS[0], -1, -1):
            numbers = ", ".join(f"{np.float32(value):.8e}f" for value in found[power])
            print(f"        {name}[{power}] = quartic(u, {numbers});")


if __name__ == "__main__":
    main()
