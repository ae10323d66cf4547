/*
start: where a fit begins.

A spot in the middle of the ROI, linearised: data = background + photons E E' + shifts times the derivatives of E E'.
Its least squares solution needs one inner product of the data with each of these templates. A spot far from the middle
escapes them; then border and centroid serve.
*/
#pragma once
#include "likelihood.cuh"

LOCAL {

template <int MODEL, class V> struct Start {
    typedef Parameters<MODEL> Is;
    static constexpr bool SHAPED = Is::SHAPES > 0;
    // Templates that are not orthogonal by symmetry: 1, E, and the changes of width.
    static constexpr int TEMPLATES = MODEL == XYNB ? 2 : MODEL == XYNBS ? 3 : 4;

    Axis<V, SHAPED> columns, rows;
    V factor[packed_size(TEMPLATES)];
    V scale[TEMPLATES];
    V per_shift_x, per_shift_y;
    V sigma_x, sigma_y;

    // What is the same for all ROIs.
    MEMBER void prepare(const FitSetup& setup) {
        const int side = setup.side;
        sigma_x = vset<V>(setup.sigma_x);
        sigma_y = vset<V>(setup.sigma_y);
        if (MODEL == XYZNB) {
            V slope;
            defocus(setup.defocus_x, vset<V>(0.f), sigma_x, slope);
            defocus(setup.defocus_y, vset<V>(0.f), sigma_y, slope);
        }
        const V middle = vset<V>(0.5f * (side - 1));
        columns.evaluate(side, middle, sigma_x);
        rows.evaluate(side, middle, sigma_y);
        const V zero = vset<V>(0.f);
        // Sums over the axis of 1, e, s and their products, and of the square of the derivative by position.
        V ce = zero, cs = zero, cee = zero, ces = zero, css = zero, cxx = zero;
        V re = zero, rs = zero, ree = zero, res = zero, rss = zero, rxx = zero;
        for (int j = 0; j < side; ++j) {
            ce = ce + columns.e(j);
            cee = cee + columns.e(j) * columns.e(j);
            cxx = cxx + columns.by_position(j) * columns.by_position(j);
            re = re + rows.e(j);
            ree = ree + rows.e(j) * rows.e(j);
            rxx = rxx + rows.by_position(j) * rows.by_position(j);
            if (SHAPED) {
                cs = cs + columns.by_width(j);
                ces = ces + columns.e(j) * columns.by_width(j);
                css = css + columns.by_width(j) * columns.by_width(j);
                rs = rs + rows.by_width(j);
                res = res + rows.e(j) * rows.by_width(j);
                rss = rss + rows.by_width(j) * rows.by_width(j);
            }
        }
        per_shift_x = 1.f / (cxx * ree);
        per_shift_y = 1.f / (cee * rxx);
        V gram[packed_size(4)];
        gram[packed(0, 0)] = vset<V>((float)(side * side));
        gram[packed(1, 0)] = ce * re;
        gram[packed(1, 1)] = cee * ree;
        gram[packed(2, 0)] = cs * re;
        gram[packed(2, 1)] = ces * ree;
        gram[packed(2, 2)] = css * ree;
        gram[packed(3, 0)] = ce * rs;
        gram[packed(3, 1)] = cee * res;
        gram[packed(3, 2)] = ces * res;
        gram[packed(3, 3)] = cee * rss;
        if (MODEL == XYNBS) {
            gram[packed(2, 0)] = gram[packed(2, 0)] + gram[packed(3, 0)];
            gram[packed(2, 1)] = gram[packed(2, 1)] + gram[packed(3, 1)];
            gram[packed(2, 2)] = gram[packed(2, 2)] + 2.f * gram[packed(3, 2)] + gram[packed(3, 3)];
        }
        for (int i = 0; i < TEMPLATES; ++i) scale[i] = vrsqrt(gram[packed(i, i)]);
        for (int i = 0; i < TEMPLATES; ++i)
            for (int j = 0; j <= i; ++j) factor[packed(i, j)] = gram[packed(i, j)] * scale[i] * scale[j];
        cholesky<TEMPLATES>(factor, PIVOT_MIN);
    }

    // An estimate of theta from the data alone.
    template <class Pixels> MEMBER void estimate(const FitSetup& setup, const Pixels& pixels, V* theta) const {
        const int side = setup.side;
        const V zero = vset<V>(0.f);
        const float middle = 0.5f * (side - 1);
        V sum = zero, border = zero, moment_x = zero, moment_y = zero;
        V product[TEMPLATES], shift_x = zero, shift_y = zero;
        for (int i = 0; i < TEMPLATES; ++i) product[i] = zero;
        for (int r = 0; r < side; ++r) {
            V row = zero, row_e = zero, row_x = zero, row_s = zero, row_moment = zero;
            for (int c = 0; c < side; ++c) {
                const V data = pixels.electrons(r * side + c);
                row = row + data;
                row_e = row_e + data * columns.e(c);
                row_x = row_x + data * columns.by_position(c);
                if (SHAPED) row_s = row_s + data * columns.by_width(c);
                row_moment = row_moment + data * (c - middle);
            }
            sum = sum + row;
            const bool edge = r == 0 || r == side - 1;
            border = border + (edge ? row : pixels.electrons(r * side) + pixels.electrons(r * side + side - 1));
            moment_x = moment_x + row_moment;
            moment_y = moment_y + row * (r - middle);
            product[1] = product[1] + rows.e(r) * row_e;
            shift_x = shift_x + rows.e(r) * row_x;
            shift_y = shift_y + rows.by_position(r) * row_e;
            if (SHAPED) {
                const V along_x = rows.e(r) * row_s, along_y = rows.by_width(r) * row_e;
                if (MODEL == XYNBS) {
                    product[2] = product[2] + (along_x + along_y);
                } else {
                    product[2] = product[2] + along_x;
                    product[TEMPLATES - 1] = product[TEMPLATES - 1] + along_y;
                }
            }
        }
        product[0] = sum;
        for (int i = 0; i < TEMPLATES; ++i) product[i] = product[i] * scale[i];
        solve<TEMPLATES>(factor, product);
        for (int i = 0; i < TEMPLATES; ++i) product[i] = product[i] * scale[i];

        // By the border and the centroid; too few photons give no centroid.
        const V outside = border * (1.f / (4 * (side - 1)));
        const V inside = vmax(sum - outside * (float)(side * side), vset<V>(PHOTONS_MIN));
        const Mask<V> bright = inside > 10.f;
        const V per_photon = vsel(bright, 1.f / inside, zero);

        V photons = product[1];
        V x = shift_x * per_shift_x / vmax(photons, vset<V>(PHOTONS_MIN));
        V y = shift_y * per_shift_y / vmax(photons, vset<V>(PHOTONS_MIN));
        const Mask<V> near = (photons > inside * 0.5f) & (vabs(x) < sigma_x * 1.5f) & (vabs(y) < sigma_y * 1.5f);
        photons = vsel(near, photons, inside);
        const V reach = vset<V>(middle - 0.5f);
        x = vsel(near, x, vmin(vmax(moment_x * per_photon, -reach), reach));
        y = vsel(near, y, vmin(vmax(moment_y * per_photon, -reach), reach));
        const V readout = vset<V>(setup.variance);
        theta[Is::X] = x + middle;
        theta[Is::Y] = y + middle;
        theta[Is::PHOTONS] = vmax(photons, vset<V>(10.f));
        theta[Is::BACKGROUND] = vmax(vsel(near, product[0], outside) - readout, vset<V>(0.1f));
        if (SHAPED) {
            // Changes of the widths, relative to them and not beyond what the linear model means.
            const V per_found = 1.f / vmax(product[1], vset<V>(PHOTONS_MIN));
            V wider_x = vclamp(product[2] * per_found / sigma_x, -0.4f, 0.6f);
            V wider_y = vclamp(product[TEMPLATES - 1] * per_found / sigma_y, -0.4f, 0.6f);
            wider_x = vsel(near, wider_x, zero);
            wider_y = vsel(near, wider_y, zero);
            if (MODEL == XYZNB) {
                // From the difference of the squared widths, as if a and b were 0.
                const float gamma = 0.5f * (setup.defocus_x.shift - setup.defocus_y.shift);
                const float depth = setup.defocus_x.depth;
                const float wide = gamma > 1e-3f || gamma < -1e-3f ? depth * depth / (4.f * gamma) : 0.f;
                const V rest = (gamma * gamma) / (depth * depth) + vset<V>(1.f);
                const V z = ((1.f + wider_y) * (1.f + wider_y) - (1.f + wider_x) * (1.f + wider_x)) * rest * wide;
                theta[Is::SHAPE] = vclamp(vclamp(z, -0.7f * depth, 0.7f * depth), setup.z_min, setup.z_max);
            } else {
                theta[Is::SHAPE] = vclamp(sigma_x * (1.f + wider_x), setup.sigma_min, setup.sigma_max);
                const V along_y = vclamp(sigma_y * (1.f + wider_y), setup.sigma_min, setup.sigma_max);
                if (Is::SHAPES == 2) theta[Is::SHAPE + Is::SHAPES - 1] = along_y;
            }
        }
    }
};

}  // LOCAL
