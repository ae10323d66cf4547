/*
machine: makes this compiler take the device side of a kernel, one float per lane, and runs it as a device would.

Included before a kernel's source, and after what there is of the library. Tests launch kernels on it, by their names (entries.h)
alone or through the fake driver. The threads of a block take turns on one OS thread and change only where they wait for each
other, so a block is deterministic; blocks follow each other, and every second one takes its threads backwards. A barrier that
not all threads of a block reach fails the launch, as does an address that is not aligned for what is read or written there, and
shared memory begins as garbage. What a kernel may use is what stands here. Bounds are not checked, but the fake driver's memory is
memory of its own: AddressSanitizer finds what leaves it.

    __shared__ float tile[64];              static shared memory
    dynamic_shared()                        the bytes that the launch asked for (`extern __shared__` cannot be had)
    __syncthreads, __syncwarp, __shfl_*     meet the threads that take part
    atomicAdd and its like                  one thread at a time, in blocks of all streams

Code in PTX (`asm`) has no meaning here: kernels give another path where MACHINE_IS_HOST is defined, or an entry gets a twin
(entries.h).
*/
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MACHINE_IS_HOST 1
#define __CUDACC__ 1

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
// A block runs on one OS thread. The general model, since there may be much of it.
#define __shared__ static thread_local __attribute__((tls_model("global-dynamic")))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
constexpr int warpSize = 32;

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

// ---- how threads meet ---------------------------------------------------------------------------------------------------

void machine_meet_block(int line);
// Each lane of `mask` gives a word and gets those of all lanes.
const uint64_t* machine_meet_warp(unsigned mask, uint64_t word);
int machine_lane();
unsigned char* dynamic_shared();
// Ends the grid: the launch fails with this code.
[[noreturn]] void machine_trap(int code);

#define __syncthreads() machine_meet_block(__LINE__)
static inline void __syncwarp(unsigned mask = ~0u) { machine_meet_warp(mask, 0); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __threadfence(); }
static inline void __trap() { machine_trap(719); }

template <class T> static inline T machine_shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves a word");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    const uint64_t* words = machine_meet_warp(mask, word);
    memcpy(&value, &words[from & 31], sizeof value);
    return value;
}
// Lanes are taken from within groups of `width`; one that would be outside gives the lane's own.
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return machine_shuffle(mask, value, (machine_lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = machine_lane(), from = lane ^ bits;
    return machine_shuffle(mask, value, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = machine_lane(), from = lane + (int)by;
    return machine_shuffle(mask, value, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = machine_lane(), from = lane - (int)by;
    return machine_shuffle(mask, value, from >= (lane & ~(width - 1)) ? from : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int holds) {
    const uint64_t* words = machine_meet_warp(mask, holds != 0);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) votes |= (unsigned)words[lane] << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
static inline int __all_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) == mask; }
static inline unsigned __activemask() { return 1u << machine_lane(); }

// ---- atomics ------------------------------------------------------------------------------------------------------------

template <class T, class Change> static inline T machine_atomic(T* at, Change change) {
    T before, after;
    __atomic_load(at, &before, __ATOMIC_SEQ_CST);
    do after = change(before);
    while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}
template <class T, class V> static inline T atomicAdd(T* at, V by) { return machine_atomic(at, [=](T x) { return (T)(x + (T)by); }); }
template <class T, class V> static inline T atomicSub(T* at, V by) { return machine_atomic(at, [=](T x) { return (T)(x - (T)by); }); }
template <class T, class V> static inline T atomicMax(T* at, V to) { return machine_atomic(at, [=](T x) { return x < (T)to ? (T)to : x; }); }
template <class T, class V> static inline T atomicMin(T* at, V to) { return machine_atomic(at, [=](T x) { return (T)to < x ? (T)to : x; }); }
template <class T, class V> static inline T atomicOr(T* at, V bits) { return machine_atomic(at, [=](T x) { return (T)(x | (T)bits); }); }
template <class T, class V> static inline T atomicAnd(T* at, V bits) { return machine_atomic(at, [=](T x) { return (T)(x & (T)bits); }); }
template <class T, class V> static inline T atomicExch(T* at, V to) { return machine_atomic(at, [=](T) { return (T)to; }); }
template <class T, class V, class W> static inline T atomicCAS(T* at, V compare, W to) {
    return machine_atomic(at, [=](T x) { return x == (T)compare ? (T)to : x; });
}

// ---- numbers ------------------------------------------------------------------------------------------------------------

static inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
static inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float __fdividef(float a, float b) { return a / b; }
// The library has functions of these names, of its own use.
#define __expf expf
#define __logf logf
static inline float __frcp_rn(float x) { return 1.f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline float __saturatef(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
// The lower word of both, moved right.
static inline unsigned __funnelshift_r(unsigned lower, unsigned upper, unsigned by) {
    return (unsigned)(((uint64_t)upper << 32 | lower) >> (by & 31));
}
// Four of the eight bytes of both words, each named by a digit.
static inline unsigned __byte_perm(unsigned lower, unsigned upper, unsigned which) {
    const uint64_t both = (uint64_t)upper << 32 | lower;
    unsigned bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= (unsigned)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return bytes;
}
template <class T> static inline T __ldg(const T* at) { return *at; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
