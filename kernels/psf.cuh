/*
psf: a Gaussian spot integrated over square or oblong pixels, separable in columns and rows.

  expected photo-electrons in pixel (row r, column c), which spans +-1/2 around its centre:
    mu = background + photons E_c(x, sigma_x) E_r(y, sigma_y),   E_j(x, s) = Phi((j + 1/2 - x) / s) - Phi((j - 1/2 - x) / s)

Lengths are in pixels of the axis, z and what belongs to it in micrometres. Each edge of a pixel is evaluated once.
*/
#pragma once
#include "common.cuh"

LOCAL {

// The longest side of a ROI.
constexpr int SIDE_MAX = 21;

// The models, and the order of their parameters in memory.
enum Model {
    XYNB = 0,      // x y photons background
    XYNBS = 1,     // x y photons background sigma
    XYNBSXSY = 2,  // x y photons background sigma_x sigma_y
    XYZNB = 3,     // x y z photons background
};

template <int MODEL> struct Parameters;
template <> struct Parameters<XYNB> {
    enum { COUNT = 4, X = 0, Y = 1, PHOTONS = 2, BACKGROUND = 3, SHAPE = 3, SHAPES = 0 };
};
template <> struct Parameters<XYNBS> {
    enum { COUNT = 5, X = 0, Y = 1, PHOTONS = 2, BACKGROUND = 3, SHAPE = 4, SHAPES = 1 };
};
template <> struct Parameters<XYNBSXSY> {
    enum { COUNT = 6, X = 0, Y = 1, PHOTONS = 2, BACKGROUND = 3, SHAPE = 4, SHAPES = 2 };
};
template <> struct Parameters<XYZNB> {
    enum { COUNT = 5, X = 0, Y = 1, PHOTONS = 3, BACKGROUND = 4, SHAPE = 2, SHAPES = 1 };
};

// How the width of one axis depends on z: sigma(z) = focus sqrt(1 + t^2 + a t^3 + b t^4), t = (z - shift) / depth.
struct Defocus {
    float focus;  // px, the width in focus
    float shift;  // um
    float depth;  // um
    float a, b;
};

// sigma(z) in px and its derivative in px/um.
template <class V> DEV void defocus(const Defocus& axis, V z, V& sigma, V& slope) {
    const float per_depth = 1.f / axis.depth;
    V t = (z - axis.shift) * per_depth;
    V square = t * t * (t * (t * axis.b + axis.a) + 1.f) + 1.f;
    V square_slope = t * (t * (t * (4.f * axis.b) + 3.f * axis.a) + 2.f) * per_depth;
    // A calibration is checked to stay above this where z may go.
    square = vmax(square, vset<V>(1e-2f));
    V per_root = vrsqrt(square);
    sigma = square * per_root * axis.focus;
    slope = square_slope * per_root * (0.5f * axis.focus);
}

// Where the factors of an axis are kept, FACTORS for each column or row. On the host they are an array; a thread on the device has
// no array whose place is computed that would not lie in slow memory, so they are kept in what its block shares.
template <class V, int FACTORS> struct Own {
    V values[SIDE_MAX * FACTORS];
    MEMBER V& at(int j, int factor) { return values[j * FACTORS + factor]; }
    MEMBER const V& at(int j, int factor) const { return values[j * FACTORS + factor]; }
};
template <class V, int FACTORS> struct Placed {
    V* values;
    MEMBER V& at(int j, int factor) const { return values[j * FACTORS + factor]; }
};

DEV constexpr int factors_of(bool widths) { return widths ? 3 : 2; }

// The factors of one axis: of column or row j, E, and its derivatives by the position and by the width.
template <class V, bool WIDTHS, template <class, int> class Kept = Own> struct Axis {
    Kept<V, factors_of(WIDTHS)> factors;
    MEMBER V& e(int j) { return factors.at(j, 0); }
    MEMBER const V& e(int j) const { return factors.at(j, 0); }
    MEMBER V& by_position(int j) { return factors.at(j, 1); }
    MEMBER const V& by_position(int j) const { return factors.at(j, 1); }
    MEMBER V& by_width(int j) { return factors.at(j, WIDTHS ? 2 : 0); }
    MEMBER const V& by_width(int j) const { return factors.at(j, WIDTHS ? 2 : 0); }

    MEMBER void evaluate(int side, V position, V sigma) {
        const V per_sigma = vrcp(sigma);
        const V scale = per_sigma * 0.70710678f;         // 1 / (sqrt(2) sigma)
        const V height = per_sigma * 0.39894228f;        // 1 / (sqrt(2 pi) sigma)
        const V height_by_width = per_sigma * 0.56418958f;  // 1 / (sqrt(pi) sigma)
        V a = (-0.5f - position) * scale;
        V gauss = vexp(-a * a);
        V phi = verf(a, gauss) * 0.5f;
        for (int j = 0; j < side; ++j) {
            V a_next = (j + 0.5f - position) * scale;
            V gauss_next = vexp(-a_next * a_next);
            V phi_next = verf(a_next, gauss_next) * 0.5f;
            e(j) = vmax(phi_next - phi, vset<V>(0.f));  // far out its rounding has a sign
            by_position(j) = (gauss - gauss_next) * height;
            if (WIDTHS) by_width(j) = (a * gauss - a_next * gauss_next) * height_by_width;
            a = a_next;
            gauss = gauss_next;
            phi = phi_next;
        }
    }

    // Only E, and only as exact as a sum over pixels needs.
    MEMBER void evaluate_only(int side, V position, V sigma) {
        const V scale = vrcp(sigma) * 0.70710678f;
        V a = (-0.5f - position) * scale;
        V phi = verf(a, vexp(-a * a)) * 0.5f;
        for (int j = 0; j < side; ++j) {
            a = (j + 0.5f - position) * scale;
            V phi_next = verf(a, vexp(-a * a)) * 0.5f;
            e(j) = vmax(phi_next - phi, vset<V>(0.f));  // far out its rounding has a sign
            phi = phi_next;
        }
    }
};

}  // LOCAL
