/*
goodness: how often a perfect fit would have a deviance as large as this one.

With few photons per pixel the deviance is not chi-squared: a Poisson pixel of mean mu adds a mean and a variance of its
own instead of 1 and 2. Their sums over the pixels, less what the parameters take, give the chi-squared distribution
(scaled, of any real number of degrees) that has the same mean and variance. The mean is taken at the fitted background,
which goes with the data: that takes its part of the variance too.

Read noise counts as Poisson noise of the same variance. From 1.5 photo-electrons rms on that holds; with less noise and
a background below 2, p-values are too large.
*/
#pragma once
#include "likelihood.cuh"

LOCAL {

// The mean (to 0.003) and the variance (to 0.03) of one pixel's deviance, and the change of the mean with M (to 0.03 over
// the root of M), for M > 0.008: polynomials in 1 / (1 + 2 M), fitted to sums over the Poisson distribution.
template <class V> DEV void deviance_moments(V mean, V& expectation, V& variance, V& slope) {
    const V t = vrcp(mean * 2.f + 1.f);
    V sum = t * -108.9805f + 399.5977f;
    sum = sum * t - 574.4469f;
    sum = sum * t + 393.2653f;
    sum = sum * t - 112.0609f;
    sum = sum * t - 4.616725f;
    sum = sum * t + 6.199467f;
    sum = sum * t + 0.04768907f;
    expectation = sum * t + 1.002146f;
    sum = t * 695.4289f - 3509.711f;
    sum = sum * t + 7100.414f;
    sum = sum * t - 7432.949f;
    sum = sum * t + 4265.983f;
    sum = sum * t - 1274.108f;
    sum = sum * t + 156.8118f;
    sum = sum * t - 3.643929f;
    variance = sum * t + 2.025442f;
    sum = t * 265.4328f - 663.6763f;
    sum = sum * t + 627.2034f;
    sum = sum * t - 284.4434f;
    sum = sum * t + 71.43121f;
    sum = sum * t - 7.576573f;
    slope = sum * t * t;
}

// The upper tail of the normal distribution, to 1e-5 of its value down to 1e-38.
template <class V> DEV V normal_tail(V z) {
    const V a = vabs(z) * 0.70710678f;
    const V t = vrcp(a * 0.35f + 1.f);
    V sum = t * -0.142864102f + 0.5546896717f;
    sum = sum * t - 0.3330890861f;
    sum = sum * t + 0.3985558655f;
    sum = sum * t + 0.1188495573f;
    sum = sum * t + 0.2069201848f;
    sum = sum * t + 0.1969401323f;
    const V tail = sum * t * vexp(-a * a) * 0.5f;
    return vsel(z < 0.f, 1.f - tail, tail);
}

// The p-value of a fit that ended at theta with half the deviance `half`. `pixels.variance(j)` as in `evaluate`.
template <int MODEL, bool MAPS, class V, class Pixels>
DEV V p_value(const FitSetup& setup, const Pixels& pixels, const V* theta, V half) {
    typedef Parameters<MODEL> Is;
    const int side = setup.side;
    V sigma_x, sigma_y, slope_x, slope_y;
    widths<MODEL>(setup, theta, sigma_x, sigma_y, slope_x, slope_y);
    auto columns = pixels.template axis<false>(0), rows = pixels.template axis<false>(1);
    columns.evaluate_only(side, theta[Is::X], sigma_x);
    rows.evaluate_only(side, theta[Is::Y], sigma_y);
    const V base = theta[Is::BACKGROUND] + setup.variance;
    V expectation = vset<V>(-(float)Is::COUNT), variance = vset<V>(-2.f * Is::COUNT);
    V slope = vset<V>(0.f), information = vset<V>(0.f);  // of the background
    for (int r = 0; r < side; ++r) {
        const V height = theta[Is::PHOTONS] * rows.e(r);
        for (int c = 0; c < side; ++c) {
            V mean = height * columns.e(c) + base;
            if (MAPS) mean = mean + pixels.variance(r * side + c);
            V pixel_expectation, pixel_variance, pixel_slope;
            deviance_moments(mean, pixel_expectation, pixel_variance, pixel_slope);
            expectation = expectation + pixel_expectation;
            variance = variance + pixel_variance;
            slope = slope + pixel_slope;
            information = information + vrcp(mean);
        }
    }
    // Fewer pixels than parameters can explain leave nothing to test.
    expectation = vmax(expectation, vset<V>(0.05f));
    variance = vmax(variance - slope * slope / information, variance * 0.25f);
    variance = vmax(variance, vset<V>(0.01f));
    // Wilson and Hilferty: the cube root of a chi-squared variable over its mean is nearly normal.
    const V spread = variance / (expectation * expectation) * (1.f / 9.f);  // 2 / (9 degrees)
    const V ratio = vmax(2.f * half, vset<V>(1e-6f)) / expectation;
    const V root = vexp(vlog(ratio) * (1.f / 3.f));
    return normal_tail((root - (1.f - spread)) * vrsqrt(spread));
}

}  // LOCAL
