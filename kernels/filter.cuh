/*
filter: sums over a neighbourhood of pixels, for a lane per pixel along a row.

Planes are [height, pitch] f32, row-major, and stand in a larger piece of memory: what a lane reads beyond their edges by less
than the margin is memory, if not a pixel. Frames go on beyond their edges as in a mirror there: d c b a | a b c d | d c b a.
*/
#pragma once
#include "common.cuh"

LOCAL {

typedef long long i64;

// Pixels to either side that the widest kernel reaches. The same number stands in src/engine/kernels/spots/weights.rs.
constexpr int REACH_MAX = 45;

// Two kernels along one axis, each the same on both sides: weights by the distance.
struct Taps {
    int narrow_reach;
    int wide_reach;  // at least narrow_reach
    float narrow[REACH_MAX + 1];
    float wide[REACH_MAX + 1];
};

#if ON_DEVICE
template <class V> DEV V vload(const float* at) { return *at; }
template <class V> DEV void vstore(float* at, V value) { *at = value; }
DEV int vcolumns(int x) { return x; }
#else
// The same vector where it is not aligned.
typedef float LooseFloats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
template <class V> DEV V vload(const float* at) { return *(const LooseFloats*)at; }
template <class V> DEV void vstore(float* at, V value) { *(LooseFloats*)at = value; }
// The columns of all lanes, where that of the first is x.
DEV Ints vcolumns(int x) {
    Ints columns;
    for (int lane = 0; lane < LANES; ++lane) columns[lane] = x + lane;
    return columns;
}
#endif

// The pixel that stands at position i of an axis of `count`, which goes on as in a mirror.
DEV int mirrored(int i, int count) {
    while (i < 0 || i >= count) i = i < 0 ? -1 - i : 2 * count - 1 - i;
    return i;
}

// Both weighted sums along one axis, for N lots of lanes together: so many sums go on beside each other that none waits for the
// one before it. Sources give the values of lot n at a distance; for both kernels they may be one.
template <class V, int N, class Narrow, class Wide>
DEV void smooth(const Taps& taps, const Narrow& narrow_at, const Wide& wide_at, V (&narrow)[N], V (&wide)[N]) {
    UNROLL
    for (int n = 0; n < N; ++n) {
        narrow[n] = narrow_at(0, n) * taps.narrow[0];
        wide[n] = wide_at(0, n) * taps.wide[0];
    }
    for (int d = 1; d <= taps.narrow_reach; ++d) {
        const V narrow_tap = vset<V>(taps.narrow[d]), wide_tap = vset<V>(taps.wide[d]);
        UNROLL
        for (int n = 0; n < N; ++n) {
            narrow[n] = narrow[n] + (narrow_at(-d, n) + narrow_at(d, n)) * narrow_tap;
            wide[n] = wide[n] + (wide_at(-d, n) + wide_at(d, n)) * wide_tap;
        }
    }
    for (int d = taps.narrow_reach + 1; d <= taps.wide_reach; ++d) {
        const V wide_tap = vset<V>(taps.wide[d]);
        UNROLL
        for (int n = 0; n < N; ++n) wide[n] = wide[n] + (wide_at(-d, n) + wide_at(d, n)) * wide_tap;
    }
}

// Whether lanes are above all pixels before them (row by row) within `reach` rows and columns, and not below those after: of
// equal pixels the first counts. Pixels that are not numbers count as lower. `at` is where the lanes' own pixels stand.
template <class V> DEV Mask<V> above_neighbours(const float* at, int pitch, int reach, V centre, Mask<V> asked) {
    // A maximum gives its second operand where either is NaN, so what is collected is never one. Each row's is collected by
    // itself, so that rows need not wait for each other.
    const V lowest = vset<V>(-3e38f);
    V before = lowest, after = lowest;
    for (int dx = 1; dx <= reach; ++dx) {
        before = vmax(vload<V>(at - dx), before);
        after = vmax(vload<V>(at + dx), after);
    }
    asked = asked & !(before >= centre) & !(after > centre);
    // The nearest rows first: they tell most.
    for (int dy = 1; dy <= reach; ++dy) {
        if (!vany(asked)) return asked;
        const float *above = at - dy * (i64)pitch, *below = at + dy * (i64)pitch;
        before = vmax(vload<V>(above), lowest);
        after = vmax(vload<V>(below), lowest);
        for (int dx = 1; dx <= reach; ++dx) {
            before = vmax(vload<V>(above - dx), vmax(vload<V>(above + dx), before));
            after = vmax(vload<V>(below - dx), vmax(vload<V>(below + dx), after));
        }
        asked = asked & !(before >= centre) & !(after > centre);
    }
    return asked;
}

// The sum over a square of (2 reach + 1)^2 pixels about the lanes', weighted by `weights`, row-major.
template <class V> DEV V weighed(const float* at, int pitch, int reach, const float* weights) {
    V sum = vset<V>(0.f);
    for (int dy = -reach; dy <= reach; ++dy)
        for (int dx = -reach; dx <= reach; ++dx) sum = sum + vload<V>(at + dy * (i64)pitch + dx) * *weights++;
    return sum;
}

}  // LOCAL
