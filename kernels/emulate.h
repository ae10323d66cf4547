/*
emulate: included before kernels, runs the code for the device on the host, as it is.

Each thread of a block is a fiber: it runs until a barrier, where all others come first. Blocks run one after the other. So what
a GPU does at the same time happens here in an order that is the same every time; every second block takes it backwards, so
that what depends on the order shows. A barrier that not all threads of a block reach ends the process with a message, and
shared memory begins as garbage for each block, with no byte more than the launch asked for.

Intrinsics within a warp are not here: kernels do without. Nothing of the C++ library is used.

  ocelli_emulated_launch   launches a kernel by its name, with arguments as cuLaunchKernel takes them
*/
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MACHINE_IS_HOST 1
#define __CUDACC__ 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __grid_constant__
#define __shared__ static thread_local
#define __syncthreads() emulate::barrier(__LINE__)

struct uint3 {
    unsigned x, y, z;
};
static thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

// ---- the kernels of this program ---------------------------------------------------------------------------------

typedef void (*Erased)();
typedef void (*Caller)(Erased, void**);

struct Kernel {
    const char* name;
    Erased function;
    Caller caller;
};

// Defined where all kernels are known; the last has no name.
extern const Kernel kernels[];

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct PlacesTo : PlacesTo<N - 1, N - 1, I...> {};
template <size_t... I> struct PlacesTo<0, I...> {
    typedef Places<I...> Type;
};

template <class... A, size_t... I> void call(void (*function)(A...), void** arguments, Places<I...>) {
    function(*(A*)arguments[I]...);
}
template <class... A> inline Kernel kernel_of(const char* name, void (*function)(A...)) {
    return {name, (Erased)function, [](Erased function, void** arguments) {
                call((void (*)(A...))function, arguments, typename PlacesTo<sizeof...(A)>::Type());
            }};
}

// ---- the threads of a block ----------------------------------------------------------------------------------------

constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned THREADS_MAX = 1024;

struct Fiber {
    ucontext_t context;
    unsigned char* stack = nullptr;
    bool running = false;
    int line = 0;  // of the barrier at which it waits
};

static thread_local Fiber fibers[THREADS_MAX];
static thread_local ucontext_t scheduler;
static thread_local Fiber* current;
static thread_local const Kernel* kernel;
static thread_local void** arguments;
static thread_local unsigned char* shared_bytes;

static void run_fiber() {
    kernel->caller(kernel->function, arguments);
    current->running = false;
    swapcontext(&current->context, &scheduler);
}

static inline void barrier(int line) {
    current->line = line;
    swapcontext(&current->context, &scheduler);
}

static void run_block(unsigned threads, bool backwards) {
    for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        if (!fiber.stack) fiber.stack = (unsigned char*)malloc(STACK_BYTES);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
        fiber.running = true;
    }
    for (bool any = true; any;) {
        any = false;
        int line = 0;
        bool ended = false;
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned t = backwards ? threads - 1 - i : i;
            Fiber& fiber = fibers[t];
            if (!fiber.running) continue;
            threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
            current = &fiber;
            swapcontext(&scheduler, &fiber.context);
            if (!fiber.running) {
                ended = true;
            } else {
                if (any && fiber.line != line) line = -1;
                else line = fiber.line;
                any = true;
            }
        }
        if (any && (ended || line < 0)) {
            fprintf(stderr, "emulate: the threads of a block of %s wait at different barriers, or not all do\n", kernel->name);
            abort();
        }
    }
}

}  // namespace emulate

static inline unsigned char* dynamic_shared() { return emulate::shared_bytes; }

// 0; 1 where there is no such kernel, 2 where its block or grid cannot be.
extern "C" int ocelli_emulated_launch(const char* name, const unsigned* grid, const unsigned* block, size_t shared,
                                             void** arguments) {
    using namespace emulate;
    kernel = kernels;
    while (kernel->name && strcmp(kernel->name, name) != 0) ++kernel;
    if (!kernel->name) return 1;
    const unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
    if (threads == 0 || threads > THREADS_MAX || shared > 227 * 1024) return 2;
    if ((unsigned long long)grid[0] * grid[1] * grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return 2;
    emulate::arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    bool backwards = false;
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                // Freed and taken anew for each block, so that checkers of memory know its end.
                shared_bytes = (unsigned char*)aligned_alloc(16, (shared + 15) & ~(size_t)15);
                memset(shared_bytes, 0xCD, shared);
                blockIdx = {x, y, z};
                run_block((unsigned)threads, backwards);
                free(shared_bytes);
                backwards = !backwards;
            }
        }
    }
    return 0;
}

// ---- what CUDA has ---------------------------------------------------------------------------------------------------

static inline int __float_as_int(float x) {
    int bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float __int_as_float(int bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline float __fdividef(float a, float b) { return a / b; }
template <class T> static inline T atomicAdd(T* at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
template <class T> static inline T atomicMax(T* at, T value) {
    const T before = *at;
    if (value > before) *at = value;
    return before;
}
