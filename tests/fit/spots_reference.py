"""How spots are found, in float64 and without regard to speed: what the kernels are held against.

Nothing of it is taken from them. Means are SciPy's, windows are looked at one by one, and the noise of a contrast is summed over
what SciPy's means make of each pixel by itself.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.ndimage import gaussian_filter, gaussian_filter1d
from scipy.special import erf


def electrons(movie):
    """Photo-electrons, NaN where that is no measurement."""
    values = (movie.adu.astype(float) - movie.camera.offset) * movie.camera.gain
    return np.where(np.abs(values) <= 1e9, values, np.nan)


def pixel_weights(camera):
    """By the read noise; 1 where that is the same everywhere."""
    noise = camera.read_noise
    if not isinstance(noise, np.ndarray) or (noise == noise.flat[0]).all():
        return 1.0
    variance = noise**2
    typical = max(np.sort(variance, axis=None)[variance.size // 2], 1.0)
    return typical / (variance + typical)


def reach(sigma):
    """Pixels to either side."""
    return [int(np.ceil(3 * s)) for s in sigma]


def gauss(sigma):
    """Weights of a truncated mean over y and x, [2 ry + 1, 2 rx + 1]."""
    axes = []
    for s, r in zip(sigma, reach(sigma)):
        axis = np.exp(-0.5 * (np.arange(-r, r + 1) / s) ** 2)
        axes.append(axis / axis.sum())
    return np.outer(*axes)


def widths(options):
    """Of both means, along y and x."""
    narrow = np.array(options.sigma_px[::-1])
    return narrow, narrow * options.wide


def mean(plane, sigma):
    """A truncated Gaussian mean, mirrored at the edges."""
    return gaussian_filter(plane, sigma, mode="reflect", radius=reach(sigma))


def both_means(plane, weights, options):
    """Narrow and wide, weighted."""
    weights = np.broadcast_to(weights, plane.shape).astype(float)
    return [mean(plane * weights, sigma) / mean(weights, sigma) for sigma in widths(options)]


def difference(plane_weights, options):
    """The weights that make the contrast at each pixel, [height, width, 2 ry + 1, 2 rx + 1]."""
    narrow, wide = widths(options)
    ry, rx = reach(wide)
    inner = np.zeros((2 * ry + 1, 2 * rx + 1))
    ny, nx = reach(narrow)
    inner[ry - ny : ry + ny + 1, rx - nx : rx + nx + 1] = gauss(narrow)
    windows = sliding_window_view(
        np.pad(plane_weights, ((ry, ry), (rx, rx)), mode="symmetric"), (2 * ry + 1, 2 * rx + 1)
    )
    parts = []
    for kernel in (inner, gauss(wide)):
        part = windows * kernel
        parts.append(part / part.sum(axis=(2, 3), keepdims=True))
    return parts[0] - parts[1]


def responses(count, sigma):
    """What a mean along an axis of `count` pixels has of each, [count, count]: of one that is mirrored, all that it counts for."""
    return gaussian_filter1d(np.eye(count), sigma, axis=0, mode="reflect", radius=int(np.ceil(3 * sigma)))


def noise(plane, camera, options):
    """Standard deviation of the contrast where there is no spot, [height, width]."""
    weights = np.broadcast_to(pixel_weights(camera), plane.shape).astype(float)
    variance = np.broadcast_to(np.square(camera.read_noise), plane.shape).astype(float)
    by_axis = [[responses(n, s) for n, s in zip(plane.shape, sigma)] for sigma in widths(options)]
    totals = [mean(weights, sigma) for sigma in widths(options)]

    def spread(of_pixel):
        """The sum over pixels of (narrow response - wide response)² times what a pixel has, at each pixel."""
        parts = 0
        for i, sign in ((0, 0), 1), ((0, 1), -2), ((1, 1), 1):
            (ya, xa), (yb, xb) = (by_axis[k] for k in i)
            parts += sign * ((ya * yb) @ (weights**2 * of_pixel) @ (xa * xb).T) / (totals[i[0]] * totals[i[1]])
        return parts

    background = np.maximum(both_means(plane, weights, options)[1], gauss(widths(options)[1]).max())
    return np.sqrt(spread(1.0) * background + spread(variance))


def spot_share(sigma, at):
    """The share of a spot's light in pixels at distances `at` from the one that it is in the middle of."""
    return (erf((at + 0.5) / sigma / np.sqrt(2)) - erf((at - 0.5) / sigma / np.sqrt(2))) / 2


def per_photon(shape, camera, options):
    """What the contrast of one photon in the middle of a pixel is, [height, width]."""
    weights = np.broadcast_to(pixel_weights(camera), shape).astype(float)
    kernels = difference(weights, options)
    narrow, wide = widths(options)
    ry, rx = reach(wide)
    spot = np.outer(
        spot_share(narrow[0], np.arange(-ry, ry + 1)), spot_share(narrow[1], np.arange(-rx, rx + 1))
    )
    return (kernels * spot).sum(axis=(2, 3))


def highest(plane, radius):
    """Which pixels are the highest of their window, the first of equals."""
    size = 2 * radius + 1
    padded = np.pad(plane, radius, constant_values=-np.inf)
    windows = sliding_window_view(padded, (size, size)).reshape(*plane.shape, -1)
    return windows.argmax(axis=2) == size * size // 2


def net_gradient(plane, side):
    """The sum over the box of differences towards its middle, NaN where the box or a gradient leaves the frame."""
    half = side // 2
    dy, dx = np.full(plane.shape, np.nan), np.full(plane.shape, np.nan)
    dy[1:-1] = plane[2:] - plane[:-2]
    dx[:, 1:-1] = plane[:, 2:] - plane[:, :-2]
    total = np.full(plane.shape, np.nan)
    ys, xs = np.mgrid[-half : half + 1, -half : half + 1]
    away = np.hypot(ys, xs)
    away[half, half] = 1
    for y in range(half, plane.shape[0] - half):
        for x in range(half, plane.shape[1] - half):
            box = np.s_[y - half : y + half + 1, x - half : x + half + 1]
            parts = -(dy[box] * ys + dx[box] * xs) / away
            parts[half, half] = 0
            total[y, x] = parts.sum()
    return total


def score(plane, camera, options):
    """What is compared with the threshold at each pixel, and what is highest where there is a spot."""
    if options.method == "net_gradient":
        return net_gradient(plane, options.side), plane
    narrow, wide = both_means(plane, pixel_weights(camera), options)
    contrast = narrow - wide
    if options.threshold_in == "photons":
        return contrast / per_photon(plane.shape, camera, options), contrast
    return contrast / noise(plane, camera, options), contrast
