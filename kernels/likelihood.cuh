/*
likelihood: the Poisson likelihood of a spot, its slopes and its Fisher matrix.

  D        a pixel's photo-electrons + read variance, at least DATA_MIN
  M        its expectation: background + photons E_c E_r + read variance
  half the deviance: sum D ln(D/M) - D + M

`Pixels` is where a lane's data come from: `electrons(j)` is D of pixel j (row-major), `variance(j)` its read variance
beyond `FitSetup::variance` (asked for with MAPS only), `axis<WIDTHS>(n)` a place for the factors of columns (0) or rows (1).
*/
#pragma once
#include "linalg.cuh"
#include "psf.cuh"

LOCAL {

constexpr float DATA_MIN = 1e-30f;  // a pixel without electrons: its logarithm stays finite, its term is 0
constexpr float PHOTONS_MIN = 1.f, PHOTONS_MAX = 1e9f;

// What holds for all ROIs of a call. The same struct stands in src/engine/kernels/fit.rs.
struct FitSetup {
    int side;              // px, odd, 3..21
    int evaluations_max;   // of the model, per start
    float gain;            // photo-electrons + variance = gain * ADU + bias
    float bias;
    float variance;        // photo-electrons^2, of the readout; 0 with maps
    float sigma_x;         // px, fixed (xynb) or where the fit begins
    float sigma_y;
    float sigma_min;
    float sigma_max;
    float z_min;           // um
    float z_max;
    Defocus defocus_x;     // xyznb
    Defocus defocus_y;
    u32 unused;            // fills a word; 0
};

// The widths along x and y at theta, and with XYZNB their derivatives by z.
template <int MODEL, class V>
DEV void widths(const FitSetup& setup, const V* theta, V& sigma_x, V& sigma_y, V& slope_x, V& slope_y) {
    typedef Parameters<MODEL> Is;
    slope_x = slope_y = vset<V>(1.f);
    if (MODEL == XYZNB) {
        defocus(setup.defocus_x, theta[Is::SHAPE], sigma_x, slope_x);
        defocus(setup.defocus_y, theta[Is::SHAPE], sigma_y, slope_y);
    } else if (MODEL == XYNB) {
        sigma_x = vset<V>(setup.sigma_x);
        sigma_y = vset<V>(setup.sigma_y);
    } else {
        sigma_x = theta[Is::SHAPE];
        sigma_y = theta[Is::SHAPE + Is::SHAPES - 1];
    }
}

// Half the deviance at theta, minus its gradient, and the Fisher matrix.
template <int MODEL, bool MAPS, class V, class Pixels>
DEV void evaluate(const FitSetup& setup, const Pixels& pixels, const V* theta,
                  V (&gradient)[Parameters<MODEL>::COUNT], V (&fisher)[packed_size(Parameters<MODEL>::COUNT)],
                  V& deviance) {
    typedef Parameters<MODEL> Is;
    constexpr bool SHAPED = Is::SHAPES > 0;
    constexpr int X = Is::X, Y = Is::Y, N = Is::PHOTONS, B = Is::BACKGROUND, S = Is::SHAPE;
    const int side = setup.side;
    V sigma_x, sigma_y, slope_x, slope_y;
    widths<MODEL>(setup, theta, sigma_x, sigma_y, slope_x, slope_y);
    auto columns = pixels.template axis<SHAPED>(0), rows = pixels.template axis<SHAPED>(1);
    columns.evaluate(side, theta[X], sigma_x);
    rows.evaluate(side, theta[Y], sigma_y);
    if (MODEL == XYZNB) {
        for (int j = 0; j < side; ++j) {
            columns.by_width(j) = columns.by_width(j) * slope_x;
            rows.by_width(j) = rows.by_width(j) * slope_y;
        }
    }
    const V photons = theta[N], base = theta[B] + setup.variance;
    const V zero = vset<V>(0.f);

    // Sums over all pixels, without their factors of photons.
    V g_x = zero, g_y = zero, g_n = zero, g_b = zero, g_s = zero, g_t = zero;
    V xx = zero, xy = zero, yy = zero, xn = zero, yn = zero, nn = zero, xb = zero, yb = zero, nb = zero, bb = zero;
    V xs = zero, ys = zero, ns = zero, sb = zero, ss = zero, xt = zero, yt = zero, nt = zero, tb = zero, st = zero,
      tt = zero;
    V half = zero;
    for (int r = 0; r < side; ++r) {
        const V e = rows.e(r), d = rows.by_position(r);
        const V height = photons * e;
        // Sums over the row: of the excess, and of the weights, each times factors of the columns.
        V q = zero, qe = zero, qx = zero, qs = zero;
        V w1 = zero, we = zero, wx = zero, wee = zero, wex = zero, wxx = zero;
        V ws = zero, wes = zero, wxs = zero, wss = zero;
        for (int c = 0; c < side; ++c) {
            const int j = r * side + c;
            const V column = columns.e(c), column_x = columns.by_position(c);
            const V data = pixels.electrons(j);
            V mean = height * column + base;
            if (MAPS) mean = mean + pixels.variance(j);
            const V weight = vrcp(mean);
            const V excess = data * weight - 1.f;
            half = half + data * ln_of_product(data, weight);
            half = half - mean * excess;
            const V weight_e = weight * column, weight_x = weight * column_x;
            q = q + excess;
            qe = qe + excess * column;
            qx = qx + excess * column_x;
            w1 = w1 + weight;
            we = we + weight_e;
            wx = wx + weight_x;
            wee = wee + weight_e * column;
            wex = wex + weight_e * column_x;
            wxx = wxx + weight_x * column_x;
            if (SHAPED) {
                const V column_s = columns.by_width(c);
                const V weight_s = weight * column_s;
                qs = qs + excess * column_s;
                ws = ws + weight_s;
                wes = wes + weight_s * column;
                wxs = wxs + weight_s * column_x;
                wss = wss + weight_s * column_s;
            }
        }
        g_x = g_x + e * qx;
        g_y = g_y + d * qe;
        g_n = g_n + e * qe;
        g_b = g_b + q;
        const V ee = e * e, ed = e * d, dd = d * d;
        xx = xx + ee * wxx;
        xy = xy + ed * wex;
        yy = yy + dd * wee;
        xn = xn + ee * wex;
        yn = yn + ed * wee;
        nn = nn + ee * wee;
        xb = xb + e * wx;
        yb = yb + d * we;
        nb = nb + e * we;
        bb = bb + w1;
        if (SHAPED) {
            const V s = rows.by_width(r);
            const V es = e * s, ds = d * s, s2 = s * s;
            if (Is::SHAPES == 1) {  // one parameter changes both widths
                g_s = g_s + (e * qs + s * qe);
                xs = xs + (ee * wxs + es * wex);
                ys = ys + (ed * wes + ds * wee);
                ns = ns + (ee * wes + es * wee);
                sb = sb + (e * ws + s * we);
                ss = ss + (ee * wss + 2.f * es * wes + s2 * wee);
            } else {
                g_s = g_s + e * qs;
                g_t = g_t + s * qe;
                xs = xs + ee * wxs;
                ys = ys + ed * wes;
                ns = ns + ee * wes;
                sb = sb + e * ws;
                ss = ss + ee * wss;
                xt = xt + es * wex;
                yt = yt + ds * wee;
                nt = nt + es * wee;
                tb = tb + s * we;
                st = st + es * wes;
                tt = tt + s2 * wee;
            }
        }
    }

    deviance = half;
    const V photons2 = photons * photons;
    gradient[X] = photons * g_x;
    gradient[Y] = photons * g_y;
    gradient[N] = g_n;
    gradient[B] = g_b;
    fisher[packed(X, X)] = photons2 * xx;
    fisher[packed(X, Y)] = photons2 * xy;
    fisher[packed(Y, Y)] = photons2 * yy;
    fisher[packed(X, N)] = photons * xn;
    fisher[packed(Y, N)] = photons * yn;
    fisher[packed(N, N)] = nn;
    fisher[packed(X, B)] = photons * xb;
    fisher[packed(Y, B)] = photons * yb;
    fisher[packed(N, B)] = nb;
    fisher[packed(B, B)] = bb;
    if (SHAPED) {
        gradient[S] = photons * g_s;
        fisher[packed(X, S)] = photons2 * xs;
        fisher[packed(Y, S)] = photons2 * ys;
        fisher[packed(N, S)] = photons * ns;
        fisher[packed(S, B)] = photons * sb;
        fisher[packed(S, S)] = photons2 * ss;
    }
    if constexpr (Is::SHAPES == 2) {
        constexpr int T = S + Is::SHAPES - 1;
        gradient[T] = photons * g_t;
        fisher[packed(X, T)] = photons2 * xt;
        fisher[packed(Y, T)] = photons2 * yt;
        fisher[packed(N, T)] = photons * nt;
        fisher[packed(T, B)] = photons * tb;
        fisher[packed(S, T)] = photons2 * st;
        fisher[packed(T, T)] = photons2 * tt;
    }
}

}  // LOCAL
