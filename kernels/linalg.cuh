/*
linalg: small symmetric positive definite systems, one per lane.

A symmetric matrix of SIZE rows is packed by rows of its lower triangle: element (i, j), j <= i, stands at
i (i + 1) / 2 + j.
*/
#pragma once
#include "common.cuh"

LOCAL {

// Of a matrix scaled to a unit diagonal: below it is singular.
constexpr float PIVOT_MIN = 1e-6f;

DEV constexpr int packed(int i, int j) { return i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i; }
DEV constexpr int packed_size(int size) { return size * (size + 1) / 2; }

// The Cholesky factor L of a matrix with a diagonal near 1, in place, with 1 / L_ii on the diagonal. Pivots are held
// above `pivot_min`. Returns where all pivots were above it.
template <int SIZE, class V> DEV Mask<V> cholesky(V (&a)[packed_size(SIZE)], float pivot_min) {
    V smallest = vset<V>(1.f);
    UNROLL
    for (int j = 0; j < SIZE; ++j) {
        V pivot = a[packed(j, j)];
        UNROLL
        for (int k = 0; k < j; ++k) pivot = pivot - a[packed(j, k)] * a[packed(j, k)];
        smallest = vmin(pivot, smallest);
        const V per_root = vrsqrt(vmax(pivot, vset<V>(pivot_min)));
        a[packed(j, j)] = per_root;
        UNROLL
        for (int i = j + 1; i < SIZE; ++i) {
            V sum = a[packed(i, j)];
            UNROLL
            for (int k = 0; k < j; ++k) sum = sum - a[packed(i, k)] * a[packed(j, k)];
            a[packed(i, j)] = sum * per_root;
        }
    }
    return smallest > pivot_min;
}

// Solves L L^T x = b in place; `l` as `cholesky` leaves it.
template <int SIZE, class V> DEV void solve(const V (&l)[packed_size(SIZE)], V (&b)[SIZE]) {
    UNROLL
    for (int i = 0; i < SIZE; ++i) {
        UNROLL
        for (int k = 0; k < i; ++k) b[i] = b[i] - l[packed(i, k)] * b[k];
        b[i] = b[i] * l[packed(i, i)];
    }
    UNROLL
    for (int i = SIZE - 1; i >= 0; --i) {
        UNROLL
        for (int k = i + 1; k < SIZE; ++k) b[i] = b[i] - l[packed(k, i)] * b[k];
        b[i] = b[i] * l[packed(i, i)];
    }
}

// The inverse of L L^T, packed, in place of L.
template <int SIZE, class V> DEV void inverse(V (&l)[packed_size(SIZE)]) {
    // First L^-1, column by column: its diagonal is there already.
    UNROLL
    for (int j = 0; j < SIZE; ++j) {
        UNROLL
        for (int i = j + 1; i < SIZE; ++i) {
            V sum = l[packed(i, j)] * l[packed(j, j)];
            UNROLL
            for (int k = j + 1; k < i; ++k) sum = sum + l[packed(i, k)] * l[packed(k, j)];
            l[packed(i, j)] = -sum * l[packed(i, i)];
        }
    }
    // Then L^-T L^-1: element (i, j) takes rows i and below, which are still those of L^-1.
    UNROLL
    for (int i = 0; i < SIZE; ++i) {
        UNROLL
        for (int j = 0; j <= i; ++j) {
            V sum = l[packed(i, i)] * l[packed(i, j)];
            UNROLL
            for (int k = i + 1; k < SIZE; ++k) sum = sum + l[packed(k, i)] * l[packed(k, j)];
            l[packed(i, j)] = sum;
        }
    }
}

}  // LOCAL
