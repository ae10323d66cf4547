/*
common: what every kernel stands on. One source, two machines.

A kernel is written once, as templates over the lane type V. On the device V is `float`: one thread, one lane. On the
host V is a vector of 4, 8 or 16 floats in the compiler's vector extension, and every operation acts on all lanes.
So kernels have no branch that depends on a lane: they compare (which gives a mask), select, and may ask whether any
lane still needs something.

  V             float, or a vector of WIDTH floats
  Int<V>        the same number of 32-bit integers
  Mask<V>       bool, or integers that are 0 or -1; combined with &, | and !
  LOCAL { }     around everything that is not an entry
  HOST_ENTRY    names a host entry after the instruction set this object is compiled for
  KERNEL        an entry for the device: KERNEL(name, (arguments)) { }

There is a third way to compile: on a host that plays the device (MACHINE_IS_HOST, tests/machine), thread by thread, so that tests can
hold what no GPU is needed for: memory, barriers and counters. There is no PTX in the sources, but for a few instructions (preprocess_plain.cuh).

Everything stands in LOCAL, on the host an anonymous namespace: the same template in objects of different instruction sets must
never become one symbol, or the linker may keep the copy that the machine at hand cannot run.
No math library is called, and no flag that breaks IEEE rules is needed: the results are the same with every compiler
to a few units in the last place.
*/
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ON_DEVICE 1
#else
#define ON_DEVICE 0
#endif

#if ON_DEVICE
#define DEV static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
// Blocks have at most so many threads, so the compiler may give each as many registers as that leaves.
#define KERNEL_OF(name, threads, arguments) extern "C" __global__ void __launch_bounds__(threads) name arguments
#define KERNEL(name, arguments) KERNEL_OF(name, 128, arguments)
// All the shared memory that the launch asked for; aligned to 16 bytes.
#if defined(MACHINE_IS_HOST)
#define SHARED_BYTES(name) u8* const name = dynamic_shared()
#else
#define SHARED_BYTES(name) extern __shared__ __align__(16) u8 name[]
#endif
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
// An anonymous namespace would put a number of its own into the PTX of every run.
#define LOCAL namespace local
namespace local {}
using namespace local;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
// What one thread moves at once, at most.
struct alignas(16) Piece {
    u32 words[4];
};
#else
#include <stddef.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#define DEV static inline __attribute__((always_inline))
#define MEMBER inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define LOCAL namespace
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
// `ISA` is set by build.rs: avx512, avx2 or baseline.
#define HOST_NAME_OF(name, isa) ocelli_##name##_##isa
#define HOST_NAME(name, isa) HOST_NAME_OF(name, isa)
#define HOST_ENTRY(name) extern "C" void HOST_NAME(name, ISA)
#endif

LOCAL {

// ---- lane types -----------------------------------------------------------------------------------------------

template <class V> struct Lane;

#if ON_DEVICE
template <> struct Lane<float> {
    static constexpr int WIDTH = 1;
    typedef int Int;
    typedef bool Mask;
};
#else
// The widest vector of floats that one register of this instruction set holds.
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int Ints __attribute__((vector_size(4 * LANES)));
template <> struct Lane<Floats> {
    static constexpr int WIDTH = LANES;
    typedef Ints Int;
    typedef Ints Mask;
};
#endif

template <class V> using Int = typename Lane<V>::Int;
template <class V> using Mask = typename Lane<V>::Mask;

// ---- what differs between the machines -------------------------------------------------------------------------

#if ON_DEVICE

template <class V> DEV V vset(float x) { return x; }
template <class V> DEV Int<V> vseti(int x) { return x; }
DEV float vmin(float a, float b) { return fminf(a, b); }
DEV float vmax(float a, float b) { return fmaxf(a, b); }
DEV float vabs(float a) { return fabsf(a); }
template <class T> DEV T vsel(bool mask, T a, T b) { return mask ? a : b; }
DEV bool vany(bool mask) { return mask; }
DEV bool vall(bool mask) { return mask; }
DEV int vbits(float x) { return __float_as_int(x); }
DEV float vfloat_from_bits(int x) { return __int_as_float(x); }
DEV float vfloat(int x) { return (float)x; }
DEV int vint(float x) { return (int)x; }
// 1/x within 1 unit in the last place; 2^-126 <= |x| < 2^126.
DEV float vrcp(float x) { return __fdividef(1.f, x); }

#else

// x - 0 is x for every x, so this folds to a broadcast; 0 + x would not, because of -0.
template <class V> DEV V vset(float x) { return x - V{}; }
template <class V> DEV Int<V> vseti(int x) { return x + Int<V>{}; }
// Like the instruction: the second operand where either is NaN.
DEV Floats vmin(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (Floats)_mm_min_ps((__m128)a, (__m128)b);
#else
    return a < b ? a : b;
#endif
}
DEV Floats vmax(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}
DEV Floats vabs(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }
DEV Floats vsel(Ints mask, Floats a, Floats b) { return mask ? a : b; }
DEV Ints vsel(Ints mask, Ints a, Ints b) { return mask ? a : b; }
DEV bool vany(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int any = 0;
    for (int lane = 0; lane < LANES; ++lane) any |= mask[lane];
    return any != 0;
#endif
}
DEV bool vall(Ints mask) { return !vany(!mask); }
DEV Ints vbits(Floats x) { return (Ints)x; }
DEV Floats vfloat_from_bits(Ints x) { return (Floats)x; }
DEV Floats vfloat(Ints x) { return __builtin_convertvector(x, Floats); }
DEV Ints vint(Floats x) { return __builtin_convertvector(x, Ints); }
// 1/x within 2 units in the last place; 2^-126 <= |x| < 2^126. An estimate and one Newton step where the machine has
// the estimate: a division costs as much as the rest of a pixel.
DEV Floats vrcp(Floats x) {
#if defined(__AVX512F__)
    Floats y = (Floats)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.f - x * y);
#elif defined(__AVX__)
    Floats y = (Floats)_mm256_rcp_ps((__m256)x);
    return y + y * (1.f - x * y);
#else
    return 1.f / x;
#endif
}

#endif

// ---- what is the same on both ------------------------------------------------------------------------------------

template <class V> DEV V vclamp(V x, float low, float high) { return vmin(vmax(x, vset<V>(low)), vset<V>(high)); }

// Where x is neither infinite nor NaN.
template <class V> DEV Mask<V> vfinite(V x) { return (vbits(x) & 0x7f800000) != 0x7f800000; }

// To the nearest integer, ties to even; |x| < 2^22.
template <class V> DEV V vround(V x) { return (x + 12582912.f) - 12582912.f; }

// 2^n; n an integer in [-126, 127].
template <class V> DEV V vpow2i(V n) { return vfloat_from_bits((vint(n) + 127) << 23); }

// exp(x) to 2e-7 of its value for x in [-10, 10], to 1.5e-6 further out; x is held to [-87, 88].
template <class V> DEV V vexp(V x) {
    x = vclamp(x, -87.f, 88.f);
    V whole = vround(x * 1.44269504f);
    // The rest of x / ln 2, with the product not rounded where there is a fused multiply-add.
    V rest = x * 1.44269504f - whole;
    V power = rest * 1.54614447e-4f + 1.340042818e-3f;
    power = power * rest + 9.618056679e-3f;
    power = power * rest + 5.550327227e-2f;
    power = power * rest + 2.402265092e-1f;
    power = power * rest + 6.931472067e-1f;
    power = power * rest + 1.f;
    return power * vpow2i(whole);
}

// ln(d w), to 2e-7 of its value; where d w is near 1 as exact as d w - 1 before it is rounded. d, w and d w normal
// positive numbers.
template <class V> DEV V ln_of_product(V d, V w) {
    // d w = (1 + f) 2^e with 1 + f in [2/3, 4/3).
    Int<V> exponent = (vbits(d * w) - 0x3f2aaaab) & (int)0xff800000;
    V f = d * vfloat_from_bits(vbits(w) - exponent) - 1.f;
    V series = f * 1.342574901e-1f - 1.504076372e-1f;
    series = series * f + 1.411832160e-1f;
    series = series * f - 1.648301753e-1f;
    series = series * f + 2.000378032e-1f;
    series = series * f - 2.500414619e-1f;
    series = series * f + 3.333332017e-1f;
    series = series * f - 4.999998556e-1f;
    return vfloat(exponent) * (6.931471806e-1f / 8388608.f) + (series * f * f + f);
}

// ln(x) to 2e-7 of its value; 1e-37 < x < 1e38.
template <class V> DEV V vlog(V x) { return ln_of_product(x, vset<V>(1.f)); }

// erf(x) to 7e-7 (Abramowitz and Stegun 7.1.26: 1.5e-7, and its rounding). `gauss` is exp(-x^2), which who asks has at hand.
template <class V> DEV V verf(V x, V gauss) {
    V size = vabs(x);
    V t = vrcp(size * 0.3275911f + 1.f);
    V tail = t * 1.061405429f - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - 0.284496736f;
    tail = tail * t + 0.254829592f;
    V value = 1.f - tail * t * gauss;
    return vsel(x < 0.f, -value, value);
}

// 1/sqrt(x) within 3 units in the last place; x a normal positive number.
template <class V> DEV V vrsqrt(V x) {
    V half = x * 0.5f;
    V y = vfloat_from_bits(0x5f3759df - (vbits(x) >> 1));
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    return y;
}

// sqrt(x); 0 where x is not a normal positive number.
template <class V> DEV V vsqrt(V x) {
    Mask<V> positive = x > 1.17549435e-38f;
    V safe = vsel(positive, x, vset<V>(1.f));
    return vsel(positive, safe * vrsqrt(safe), vset<V>(0.f));
}

}  // LOCAL
