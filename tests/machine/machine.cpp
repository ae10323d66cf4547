/*
machine: knows the kernels by their names and runs their grids. See machine.h.

A fiber runs thread after thread of a block. Where one has to wait for others the fiber stays with it, and another fiber goes on
with the next; so a kernel whose threads never meet needs a single one.
*/
#undef _FORTIFY_SOURCE  // jumps to other stacks are meant
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "entries.h"
#include "machine.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace {

constexpr size_t STACK = 256 << 10;

// Where a fiber or their scheduler goes on.
struct Place {
    ucontext_t context;
    jmp_buf jump;
    bool left = false;  // by `go`; else it is where the context begins
};

struct Fiber {
    Place place;
    void* stack;
    unsigned thread = 0;  // of the block, that it is in the middle of
    bool idle = true;     // and not in the middle of any

    Fiber() : stack(mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        // A thread that needs more than there is ends the process, rather than another's stack.
        if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE)) abort();
    }
    ~Fiber() { munmap(stack, STACK); }
};

// Lanes of a warp that meet. Twice, so that a lane that goes on does not write over what a slower one still reads.
struct Warp {
    uint64_t words[2][32];
    unsigned arrived = 0;
    unsigned meetings = 0;
};

struct Block {
    const std::function<void()>* kernel;
    unsigned threads, started = 0, ended = 0;
    unsigned arrived = 0, meetings = 0;
    int line = 0;  // of the barrier that threads wait at
    int code = 0;
    bool backwards = false;
    std::vector<Warp> warps;
    size_t next_fiber = 0;  // those before are taken
    Fiber* running = nullptr;
    Place scheduler;
    std::vector<unsigned char> shared;
};

thread_local Block* block = nullptr;
// Kept for the next block.
thread_local std::vector<std::unique_ptr<Fiber>> fibers;

// Every second block takes its threads backwards, so that what depends on their order shows.
unsigned nth_thread(const Block& of, unsigned n) { return of.backwards ? of.threads - 1 - n : n; }

void place(unsigned thread) {
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

// Contexts have masks of signals, for which the system is asked at each switch, and which are never others here: it jumps, but where
// a sanitizer has to see it.
void go(Place& from, Place& to) {
    from.left = true;
#ifdef SANITIZED
    swapcontext(&from.context, &to.context);
#else
    if (_setjmp(from.jump)) return;
    if (to.left) _longjmp(to.jump, 1);
    setcontext(&to.context);
#endif
}

void give_way() {
    Fiber& fiber = *block->running;
    go(fiber.place, block->scheduler);
    place(fiber.thread);
}

void run_threads() {
    Fiber& fiber = *block->running;
    for (;;) {
        while (block->started < block->threads && !block->code) {
            fiber.thread = nth_thread(*block, block->started++);
            place(fiber.thread);
            (*block->kernel)();
            ++block->ended;
        }
        fiber.idle = true;
        go(fiber.place, block->scheduler);
    }
}

void start(Fiber& fiber) {
    getcontext(&fiber.place.context);
    fiber.place.context.uc_stack.ss_sp = fiber.stack;
    fiber.place.context.uc_stack.ss_size = STACK;
    fiber.place.context.uc_link = nullptr;
    makecontext(&fiber.place.context, run_threads, 0);
}

void resume(Fiber& fiber) {
    block->running = &fiber;
    fiber.idle = false;
    if (!fiber.place.left) start(fiber);
    go(block->scheduler, fiber.place);
}

// Whatever has come about, so that a round in which nothing does is seen.
unsigned progress(const Block& of) {
    unsigned sum = of.started + of.ended + of.meetings + of.arrived;
    for (const Warp& warp : of.warps) sum += 64 * warp.meetings + (unsigned)__builtin_popcount(warp.arrived);
    return sum;
}

Fiber& idle_fiber(Block& of) {
    while (of.next_fiber < fibers.size())
        if (Fiber& fiber = *fibers[of.next_fiber++]; fiber.idle) return fiber;
    fibers.push_back(std::make_unique<Fiber>());
    of.next_fiber = fibers.size();
    return *fibers.back();
}

void run_block(Block& of) {
    of.started = of.ended = of.arrived = 0;
    of.next_fiber = 0;
    for (Warp& warp : of.warps) warp.arrived = 0;
    // One that is in the middle of a thread of a grid that has ended begins anew.
    for (auto& fiber : fibers)
        if (!std::exchange(fiber->idle, true)) fiber->place.left = false;
    std::fill(of.shared.begin(), of.shared.end(), 0xCD);
    while (of.ended < of.threads && !of.code) {
        const unsigned before = progress(of);
        while (of.started < of.threads && !of.code) resume(idle_fiber(of));
        for (size_t i = 0; i < of.next_fiber && !of.code; ++i)
            if (!fibers[i]->idle) resume(*fibers[i]);
        if (progress(of) == before) {
            fputs("machine: threads wait for others that do not come\n", stderr);
            of.code = 719;
        }
    }
}

}  // namespace

void machine_meet_block(int line) {
    const unsigned meeting = block->meetings;
    if (block->arrived && block->line != line) {
        fprintf(stderr, "machine: threads of a block wait at the barriers of lines %d and %d\n", block->line, line);
        machine_trap(719);
    }
    block->line = line;
    // Those that have ended are waited for: a barrier is for all.
    if (++block->arrived == block->threads) {
        block->arrived = 0;
        ++block->meetings;
    }
    while (block->meetings == meeting) give_way();
}

int machine_lane() { return (int)(block->running->thread % 32); }

const uint64_t* machine_meet_warp(unsigned mask, uint64_t word) {
    Warp& warp = block->warps[block->running->thread / 32];
    const unsigned first = block->running->thread / 32 * 32;
    // Lanes that the block does not have are not waited for.
    if (block->threads - first < 32) mask &= (1u << (block->threads - first)) - 1;
    const unsigned meeting = warp.meetings;
    warp.words[meeting % 2][machine_lane()] = word;
    warp.arrived |= 1u << machine_lane();
    if ((warp.arrived & mask) == mask) {
        warp.arrived &= ~mask;
        ++warp.meetings;
    }
    while (warp.meetings == meeting) give_way();
    return warp.words[meeting % 2];
}

unsigned char* dynamic_shared() { return block->shared.data(); }

void machine_trap(int code) {
    if (!block) {
        fputs("machine: a twin cannot trap\n", stderr);
        abort();
    }
    block->code = code;
    // Not resumed: with its thread the whole grid has ended.
    for (;;) go(block->running->place, block->scheduler);
}

// Kernels are compiled to call this before they read or write what is not aligned for its type.
// The compiler knows the types of its parameters: the address is a pointer there.
extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(void*, void* address) {
    fprintf(stderr, "machine: what lies at %p is not aligned\n", address);
    machine_trap(716);
}

int run_grid(const Grid& grid, const std::function<void()>& kernel) {
    Block of;
    of.kernel = &kernel;
    of.threads = grid.block[0] * grid.block[1] * grid.block[2];
    of.warps.resize((of.threads + 31) / 32);
    of.shared.resize(grid.shared_bytes);
    gridDim = {grid.grid[0], grid.grid[1], grid.grid[2]};
    blockDim = {grid.block[0], grid.block[1], grid.block[2]};
    block = &of;
    for (unsigned z = 0; z < gridDim.z && !of.code; ++z)
        for (unsigned y = 0; y < gridDim.y && !of.code; ++y)
            for (unsigned x = 0; x < gridDim.x && !of.code; ++x) {
                blockIdx = {x, y, z};
                run_block(of);
                of.backwards = !of.backwards;
            }
    block = nullptr;
    return of.code;
}

int run_twin(const Grid& grid, const std::function<void()>& function) {
    gridDim = {grid.grid[0], grid.grid[1], grid.grid[2]};
    blockDim = {grid.block[0], grid.block[1], grid.block[2]};
    function();
    return 0;
}

// ---- entries -------------------------------------------------------------------------------------------------------------

static std::map<std::string, Entry>& entries() {
    static auto& all = *new std::map<std::string, Entry>;
    return all;
}

void add_entry(Entry entry) {
    const std::string name = entry.name;
    if (entries().emplace(name, std::move(entry)).second) return;
    fprintf(stderr, "machine: kernel %s is registered twice\n", name.c_str());
    abort();
}

const Entry* find_entry(const std::string& name) {
    const auto found = entries().find(name);
    return found == entries().end() ? nullptr : &found->second;
}

// Launches a kernel without a driver, and waits for its end. Gives 0; the driver's codes where there is no such kernel, where its
// block or grid cannot be, or where it failed.
extern "C" __attribute__((visibility("default"))) int machine_launch(const char* name, const unsigned* grid, const unsigned* block,
                                                                     size_t shared, void** arguments) {
    const Entry* entry = find_entry(name);
    if (!entry) return 500;
    const unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
    if (threads == 0 || threads > 1024 || shared > 227 * 1024) return 1;
    if ((unsigned long long)grid[0] * grid[1] * grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return 1;
    const Grid asked = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, (unsigned)shared};
    return (entry->twin ? run_twin : run_grid)(asked, entry->bind(arguments));
}
