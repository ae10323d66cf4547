/*
goodness: how often a perfect fit would have a deviance as large as this one.

With few photons per pixel the deviance is not chi-squared: a pixel adds a mean and a variance of its own instead of 1 and 2.
Their sums over the pixels, less what the parameters take, give the chi-squared distribution (scaled, of any real number of
degrees) that has the same mean and variance. The mean is taken at the fitted background, which goes with the data: that changes
the variance too, as if each pixel had a background of its own.

A pixel's D is a Poisson number, a normal one of the read variance, and that variance, but not below 0. So its moments depend on
the read noise as well as on M, most of all below 2 photo-electrons; and M, being fitted, is the mean of such a D, never
below that of a pixel without light.
*/
#pragma once
#include "likelihood.cuh"

LOCAL {

// c0 + c1 x + ... + c4 x^4
template <class V> DEV V quartic(V x, float c0, float c1, float c2, float c3, float c4) {
    return (((x * c4 + c3) * x + c2) * x + c1) * x + c0;
}

// The mean (to 0.003) of one pixel's deviance, and its variance about that mean (to 0.04): polynomials in 1 / (1 + 2 M) whose
// coefficients are polynomials in R / (1 + R), with R the read noise. Fitted to sums over the distribution of D, for R from 0 to
// 8 and light from 0.008 on, by tests/fit/moments.py.
template <class V> struct DevianceMoments {
    V expectation[9], variance[9];
    V mean_min;  // of a pixel without light

    // What is the same for all pixels of one read variance.
    MEMBER explicit DevianceMoments(V read_variance) {
        const V noise = vsqrt(read_variance);
        const V u = noise * vrcp(noise + 1.f);
        expectation[8] = quartic(u, -7.86198883e+01f, 1.23513550e+03f, -1.97398108e+03f, 3.80698755e+03f, -1.80861387e+04f);
        expectation[7] = quartic(u, 2.75392212e+02f, -4.88453760e+03f, 8.21050977e+03f, -5.06381738e+03f, 3.27967656e+04f);
        expectation[6] = quartic(u, -3.68634125e+02f, 7.84778906e+03f, -1.45155205e+04f, 1.29563953e+03f, -1.13427432e+04f);
        expectation[5] = quartic(u, 2.16516235e+02f, -6.52547070e+03f, 1.36129102e+04f, -1.85643042e+03f, -8.48413672e+03f);
        expectation[4] = quartic(u, -2.86373119e+01f, 2.93365259e+03f, -7.02645410e+03f, 3.35609229e+03f, 6.55432422e+03f);
        expectation[3] = quartic(u, -2.56880951e+01f, -6.55429932e+02f, 1.92500806e+03f, -2.02596130e+03f, -9.62864319e+02f);
        expectation[2] = quartic(u, 8.74410057e+00f, 4.64433517e+01f, -2.19594559e+02f, 3.98798187e+02f, -7.97902298e+01f);
        expectation[1] = quartic(u, -6.95176944e-02f, -1.07424748e+00f, 1.09170113e+01f, -2.86549168e+01f, 1.94261189e+01f);
        expectation[0] = quartic(u, 1.00332391e+00f, 1.32962177e-03f, -1.59532335e-02f, 4.38068658e-02f, -3.05496454e-02f);
        variance[8] = quartic(u, 5.03678528e+02f, 7.48217334e+03f, 7.58088906e+04f, -3.14224883e+04f, 1.32418328e+05f);
        variance[7] = quartic(u, -2.61234668e+03f, -2.63143711e+04f, -3.23670625e+05f, 5.86618812e+05f, -8.24415250e+05f);
        variance[6] = quartic(u, 5.43837061e+03f, 3.93346367e+04f, 5.00877375e+05f, -1.37097900e+06f, 1.72137388e+06f);
        variance[5] = quartic(u, -5.85075342e+03f, -3.25112832e+04f, -3.49850625e+05f, 1.21582800e+06f, -1.54969538e+06f);
        variance[4] = quartic(u, 3.44248242e+03f, 1.58461885e+04f, 1.03724172e+05f, -4.59831688e+05f, 6.35899000e+05f);
        variance[3] = quartic(u, -1.04952014e+03f, -4.44293457e+03f, -4.37786914e+03f, 5.72937422e+04f, -1.05289141e+05f);
        variance[2] = quartic(u, 1.28551712e+02f, 6.72685547e+02f, -3.08424268e+03f, 3.61078589e+03f, 2.67056689e+03f);
        variance[1] = quartic(u, -2.60389614e+00f, -5.37628899e+01f, 3.71117859e+02f, -7.76351501e+02f, 4.55709259e+02f);
        variance[0] = quartic(u, 2.04314446e+00f, 5.92963733e-02f, -4.96195108e-01f, 1.13695562e+00f, -7.06543982e-01f);
        // R phi(R) + R^2 Phi(R) for R < 1; beyond it is what M is above anyway.
        const V less = vmin(noise, vset<V>(1.f));
        mean_min = ((less * 0.1830f + 0.5f) * less + 0.3989f) * less;
    }

    MEMBER void at(V mean, V& of_expectation, V& of_variance) const {
        const V t = vrcp(vmax(mean, mean_min) * 2.f + 1.f);
        of_expectation = expectation[8];
        of_variance = variance[8];
        UNROLL
        for (int k = 7; k >= 0; --k) {
            of_expectation = of_expectation * t + expectation[k];
            of_variance = of_variance * t + variance[k];
        }
    }
};

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
    V expectation = vset<V>(-(float)Is::COUNT), variance = vset<V>(0.f);
    DevianceMoments<V> moments(vset<V>(setup.variance));
    for (int r = 0; r < side; ++r) {
        const V height = theta[Is::PHOTONS] * rows.e(r);
        for (int c = 0; c < side; ++c) {
            V mean = height * columns.e(c) + base;
            if (MAPS) {
                const V readout = pixels.variance(r * side + c);
                mean = mean + readout;
                moments = DevianceMoments<V>(readout);
            }
            V pixel_expectation, pixel_variance;
            moments.at(mean, pixel_expectation, pixel_variance);
            expectation = expectation + pixel_expectation;
            variance = variance + pixel_variance;
        }
    }
    // Fewer pixels than parameters can explain leave nothing to test.
    expectation = vmax(expectation, vset<V>(0.05f));
    variance = vmax(variance - 2.f * Is::COUNT, variance * 0.25f);
    variance = vmax(variance, vset<V>(0.01f));
    // Wilson and Hilferty: the cube root of a chi-squared variable over its mean is nearly normal.
    const V spread = variance / (expectation * expectation) * (1.f / 9.f);  // 2 / (9 degrees)
    const V ratio = vmax(2.f * half, vset<V>(1e-6f)) / expectation;
    const V root = vexp(vlog(ratio) * (1.f / 3.f));
    return normal_tail((root - (1.f - spread)) * vrsqrt(spread));
}

}  // LOCAL
