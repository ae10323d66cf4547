/*
math_check: the functions of common.cuh on arrays, so that tests can hold each instruction set against double
precision.

  function   0 exp, 1 ln, 2 erf, 3 1/x, 4 sqrt
  in   x     [count]  f32
  out  y     [count]  f32
*/
#include "common.cuh"

LOCAL {

template <class V> DEV V apply(int function, V x) {
    switch (function) {
        case 0: return vexp(x);
        case 1: return vlog(x);
        case 2: return verf(x, vexp(-x * x));
        case 3: return vrcp(x);
        default: return vsqrt(x);
    }
}

}  // LOCAL

#if ON_DEVICE

KERNEL(math_check, (int function, const float* x, float* y, unsigned long long count)) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = apply<float>(function, x[i]);
}

#else

HOST_ENTRY(math_check)(int function, const float* x, float* y, size_t count) {
    for (size_t start = 0; start < count; start += LANES) {
        Floats lanes = vset<Floats>(1.f);
        const size_t filled = count - start < LANES ? count - start : LANES;
        for (size_t lane = 0; lane < filled; ++lane) lanes[lane] = x[start + lane];
        const Floats results = apply<Floats>(function, lanes);
        for (size_t lane = 0; lane < filled; ++lane) y[start + lane] = results[lane];
    }
}

#endif
