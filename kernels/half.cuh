/*
half: numbers of 16 bits (IEEE binary16), as bits, and products; the same on every machine.
*/
#pragma once
#include "common.cuh"

LOCAL {

// Two numbers multiplied and rounded, whatever is done with them next: what goes into a network, or is compared with a
// limit, is to be the same everywhere.
#if defined(MACHINE_IS_HOST)
DEV float product(float a, float b) {
    volatile float rounded = a * b;
    return rounded;
}
#else
DEV float product(float a, float b) { return __fmul_rn(a, b); }
#endif

// A place in memory that holds one: not to be mixed up with an integer.
struct Half {
    u16 bits;
};

// To the nearest, ties to even; what is beyond 65504, the largest, becomes that.
DEV Half half_of(float x) {
    u32 bits = (u32)vbits(x);
    const u32 sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x477fe000) bits = 0x477fe000;
    u32 half;
    if (bits < 0x38800000) {
        // Next to 0.5 a float has the steps of the smallest halves: the sum rounds to them.
        half = (u32)vbits(vfloat_from_bits((int)bits) + 0.5f) - 0x3f000000;
    } else {
        half = (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
    }
    return {(u16)(sign | half)};
}

DEV float float_of(Half half) {
    const u32 sign = (u32)(half.bits & 0x8000) << 16, rest = half.bits & 0x7fff;
    // 2^-14 and smaller steps: as an integer times 2^-24.
    if (rest < 0x400) return vfloat_from_bits((int)(sign | (u32)vbits((float)rest * 5.9604644775390625e-8f)));
    const u32 exponent = rest >= 0x7c00 ? 0x70000000u : 0x38000000u;
    return vfloat_from_bits((int)(sign | ((rest << 13) + exponent)));
}
DEV float float_of(float x) { return x; }

}  // LOCAL
