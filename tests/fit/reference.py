"""Poisson maximum likelihood in float64, written from the formulas alone, to hold the kernels against.

All functions work on n ROIs at once. A model is a name and what it needs fixed:

    xynb       x y photons background                    sigma = (sigma_x, sigma_y)
    xynbs      x y photons background sigma
    xynbsxsy   x y photons background sigma_x sigma_y
    xyznb      x y z photons background                  astigmatism = Astigmatism(...)

Lengths are in pixels, with the centre of the first pixel at 0; z is in micrometres.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, xlogy

NAMES = {
    "xynb": ("x", "y", "photons", "background"),
    "xynbs": ("x", "y", "photons", "background", "sigma"),
    "xynbsxsy": ("x", "y", "photons", "background", "sigma_x", "sigma_y"),
    "xyznb": ("x", "y", "z", "photons", "background"),
}


@dataclass(frozen=True)
class Astigmatism:
    """How the widths depend on z: sigma0 sqrt(1 + t^2 + a t^3 + b t^4), t = (z -+ gamma) / depth."""

    sigma_x: float = 1.3
    sigma_y: float = 1.3
    gamma: float = 0.25
    depth: float = 0.4
    a_x: float = 0.0
    a_y: float = 0.0
    b_x: float = 0.0
    b_y: float = 0.0

    def widths(self, z):
        """sigma_x, sigma_y and their derivatives by z."""
        found = []
        for focus, shift, a, b in (
            (self.sigma_x, self.gamma, self.a_x, self.b_x),
            (self.sigma_y, -self.gamma, self.a_y, self.b_y),
        ):
            t = (z - shift) / self.depth
            alpha = 1 + t**2 + a * t**3 + b * t**4
            slope = (2 * t + 3 * a * t**2 + 4 * b * t**3) / self.depth
            found.append((focus * np.sqrt(alpha), focus * slope / (2 * np.sqrt(alpha))))
        return found[0][0], found[1][0], found[0][1], found[1][1]


@dataclass(frozen=True)
class Model:
    """A model by its name, with what it holds fixed."""

    name: str
    sigma: tuple = (1.3, 1.3)
    astigmatism: Astigmatism = Astigmatism()

    @property
    def names(self):
        """The parameters in order."""
        return NAMES[self.name]

    def axis(self, side, position, sigma):
        """The share of each pixel of an axis [n, side], and its derivatives by position and width."""
        edges = np.arange(side + 1) - 0.5
        u = (edges - position[:, None]) / sigma[:, None]
        density = np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi) / sigma[:, None]
        return np.diff(ndtr(u)), -np.diff(density), -np.diff(density * u)

    def expect(self, theta, side, derivatives=True):
        """Expected photo-electrons [n, side, side], and their derivatives [n, parameters, side, side]."""
        value = dict(zip(self.names, theta.T))
        slopes = None
        if self.name == "xynb":
            sigma_x, sigma_y = (np.full(len(theta), float(sigma)) for sigma in self.sigma)
        elif self.name == "xyznb":
            sigma_x, sigma_y, *slopes = self.astigmatism.widths(value["z"])
        elif self.name == "xynbs":
            sigma_x = sigma_y = value["sigma"]
        else:
            sigma_x, sigma_y = value["sigma_x"], value["sigma_y"]
        column, column_x, column_s = self.axis(side, value["x"], sigma_x)
        row, row_y, row_s = self.axis(side, value["y"], sigma_y)

        def outer(of_row, of_column):
            return of_row[:, :, None] * of_column[:, None, :]

        shape = outer(row, column)
        photons = value["photons"][:, None, None]
        mean = value["background"][:, None, None] + photons * shape
        if not derivatives:
            return mean
        by_sigma_x, by_sigma_y = photons * outer(row, column_s), photons * outer(row_s, column)
        by = {
            "x": photons * outer(row, column_x),
            "y": photons * outer(row_y, column),
            "photons": shape,
            "background": np.ones_like(shape),
            "sigma": by_sigma_x + by_sigma_y,
            "sigma_x": by_sigma_x,
            "sigma_y": by_sigma_y,
        }
        if slopes is not None:
            by["z"] = by_sigma_x * slopes[0][:, None, None] + by_sigma_y * slopes[1][:, None, None]
        return mean, np.stack([by[name] for name in self.names], axis=1)


def half_deviance(data, mean):
    """Half the Poisson deviance of each ROI; both with the read variance added."""
    return (xlogy(data, data / mean) - data + mean).sum(axis=(1, 2))


def bounds(model, side):
    """The smallest and largest values that a fit may take."""
    limits = {
        "x": (-1.0, side),
        "y": (-1.0, side),
        "z": (-1.0, 1.0),
        "photons": (1.0, 1e9),
        "background": (0.01, 1e9),
        "sigma": (0.3, 5.0),
        "sigma_x": (0.3, 5.0),
        "sigma_y": (0.3, 5.0),
    }
    return np.array([limits[name] for name in model.names]).T


def fit(model, electrons, variance, start, iterations=200):
    """The maximum likelihood estimate reached from `start` [n, parameters].

    `electrons` [n, side, side] and `variance` (broadcast to it). Returns theta, half the deviance, and the Fisher
    matrix at theta.
    """
    side = electrons.shape[-1]
    low, high = bounds(model, side)
    theta = np.clip(start, low, high)
    data = np.maximum(electrons + variance, 0.0)

    def state(theta):
        mean, derivatives = model.expect(theta, side)
        mean = mean + variance
        flat = derivatives.reshape(*derivatives.shape[:2], -1)
        gradient = np.einsum("nkj,nj->nk", flat, (data / mean - 1).reshape(len(data), -1))
        weighted = flat / mean.reshape(len(data), 1, -1)
        return half_deviance(data, mean), gradient, np.einsum("nkj,nlj->nkl", weighted, flat)

    best, gradient, fisher = state(theta)
    damping = np.full(len(theta), 1e-3)
    open_ = np.ones(len(theta), bool)
    for _ in range(iterations):
        scale = 1 / np.sqrt(np.maximum(np.einsum("nkk->nk", fisher), 1e-300))
        held = ((theta <= low) & (gradient < 0)) | ((theta >= high) & (gradient > 0))
        matrix = fisher * scale[:, :, None] * scale[:, None, :]
        either = held[:, :, None] | held[:, None, :]
        matrix = np.where(either, 0.0, matrix)
        matrix += np.eye(theta.shape[1]) * (damping[:, None, None] + held[:, :, None])
        right = np.where(held, 0.0, gradient * scale)
        step = np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
        reach = np.where(np.array(model.names) == "z", 0.2, np.inf)
        trial = np.clip(theta + np.clip(step * scale, -reach, reach), low, high)
        new, new_gradient, new_fisher = state(trial)
        better = (new <= best + 1e-9) & open_
        theta = np.where(better[:, None], trial, theta)
        gradient = np.where(better[:, None], new_gradient, gradient)
        fisher = np.where(better[:, None, None], new_fisher, fisher)
        best = np.where(better, new, best)
        damping = np.where(better, damping / 10, np.minimum(damping * 10, 1e6))
        open_ &= ~(np.abs(step).max(axis=1) < 1e-7)
        if not open_.any():
            break
    return theta, best, fisher


def fit_from(model, electrons, variance, starts):
    """The best of the fits from several starts."""
    best = None
    for start in starts:
        found = fit(model, electrons, variance, start)
        if best is None:
            best = found
            continue
        closer = found[1] < best[1]
        best = tuple(
            np.where(closer.reshape(-1, *[1] * (new.ndim - 1)), new, old) for new, old in zip(found, best)
        )
    return best


def errors(fisher):
    """Cramer-Rao standard deviations [n, parameters], and the covariance matrices."""
    scale = 1 / np.sqrt(np.einsum("nkk->nk", fisher))
    covariance = np.linalg.inv(fisher * scale[:, :, None] * scale[:, None, :])
    covariance = covariance * scale[:, :, None] * scale[:, None, :]
    return np.sqrt(np.einsum("nkk->nk", covariance)), covariance
