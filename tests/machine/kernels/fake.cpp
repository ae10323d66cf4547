// Kernels for the checks of the fake itself.
#include "../entries.h"
#include "../machine.h"

static void fake_scale(const float* in, float* out, float factor, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * factor;
}

// The sum of each block's values, by shuffles within warps and shared memory between them.
static void fake_block_sums(const float* in, float* out, unsigned count) {
    __shared__ float of_warps[32];
    float* copied = (float*)dynamic_shared();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    copied[threadIdx.x] = i < count ? in[i] : 0.f;
    __syncthreads();
    // Another thread's value, so that the barrier matters.
    float sum = copied[blockDim.x - 1 - threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(~0u, sum, (unsigned)by);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (unsigned warp = 1; warp < (blockDim.x + 31) / 32; ++warp) sum += of_warps[warp];
    out[blockIdx.x] = sum;
}

// What no device takes: one thread ends before the barrier, or waits at one of its own.
static void fake_early_end(float*) {
    if (threadIdx.x == 1) return;
    __syncthreads();
}

static void fake_two_barriers(float*) {
    if (threadIdx.x == 1) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

static void fake_trap(float*) { __trap(); }

static void fake_twin(unsigned* out) { *out = gridDim.x * blockDim.x; }

ENTRY(fake_scale)
ENTRY(fake_block_sums)
ENTRY(fake_early_end)
ENTRY(fake_two_barriers)
ENTRY(fake_trap)
TWIN(fake_whole_grid, fake_twin)
