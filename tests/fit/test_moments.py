"""The kernels' moments of the deviance against sums over the distribution of a pixel."""

import moments
import numpy as np


def test_the_kernels_have_the_moments_of_a_pixel():
    lights = np.geomspace(0.01, 60, 14)
    noises = np.array([0, 0.1, 0.3, 0.45, 0.7, 1.0, 1.55, 2.2, 3.0, 6.0])
    mean, expectation, variance, noise = moments.table(noises, lights)
    kernels = moments.in_source()
    for name, values, allowed in (("expectation", expectation, 0.004), ("variance", variance, 0.05)):
        off = np.abs(moments.evaluate(kernels[name], mean, noise) - values).max()
        print(name, off)
        assert off < allowed, name


def test_without_read_noise_the_moments_are_those_of_a_poisson_number():
    # At a mean of 100 they are those of a chi-squared variable but for 1 in 6 times the mean.
    mean, expectation, variance, covariance, spread = moments.moments(100.0, 0)
    assert np.allclose([mean, spread], 100) and abs(expectation - 1 - 1 / 600) < 1e-4
    assert abs(variance - 2) < 0.02 and abs(covariance) < 0.2
