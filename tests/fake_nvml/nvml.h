/*
nvml: what the parts of the fake NVML share.

The fake is a libnvidia-ml for tests: GPUs whose readings a script sets (script.cpp), calls that fail, hang or are missing on a
GPU as told, and event sets that wake their waiters.

It can follow the fake CUDA driver of the same process: then the GPUs are that driver's, what is used is what that driver's books
say, and what another process is said to hold is missing there too.
*/
#pragma once

#include <stdint.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef uint64_t u64;

enum Code {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

constexpr u64 NOT_AVAILABLE = ~0ull;  // a process's memory, where the driver does not tell
constexpr u64 EVENT_SINGLE_BIT = 1, EVENT_DOUBLE_BIT = 2, EVENT_XID = 8;

constexpr int PARTS = 1000;

struct Process {
    unsigned pid;
    u64 memory;
    bool graphics;
    bool own;     // this process, by whatever number
    bool tenant;  // another one that shares the fake CUDA driver's devices
};

struct Gpu {
    int number = 0;  // as NVML has it: by PCI bus
    std::string name;
    unsigned char uuid[16] = {};
    int pci_bus = 0;
    u64 memory = 0, reserved = 0, used = 0;  // bytes; `used` without what is reserved
    std::vector<Process> processes;
    bool lost = false;
    Gpu* whole = nullptr;  // of a part (MIG), the GPU that it is a part of
    int followed = -1;  // index of the device in the fake CUDA driver; -1 where it stands alone

    u64 utilization = 0, memory_utilization = 0;  // %
    u64 temperature = 40, slowdown = 89, shutdown = 92;  // degrees C
    u64 throttle = 0;                             // mask of reasons
    u64 power_mw = 100000, power_limit_mw = 700000, energy_mj = 0;
    u64 ecc_corrected = 0, ecc_uncorrected = 0;  // volatile
    u64 rows_corrected = 0, rows_uncorrected = 0, rows_pending = 0, rows_failed = 0;
    u64 pages_pending = 0, replays = 0, mig = 0;
    u64 recovery = 0;  // field 230: the driver's advice
};

struct NvmlEvent {
    int gpu;
    u64 type, data;
};

struct EventSet {
    std::vector<u64> masks;  // by GPU
    std::deque<NvmlEvent> waiting;
};

typedef std::unique_lock<std::mutex> Locked;
// All that is global is never destroyed: threads may be at it until the process ends.
extern std::mutex& lock;
extern std::condition_variable& changed;
extern std::vector<std::unique_ptr<Gpu>>& gpus;
extern std::vector<std::unique_ptr<Gpu>>& parts;  // of GPUs (MIG): numbered from PARTS on
extern std::set<EventSet*>& event_sets;
extern int initialised;  // how many inits are not shut down yet
extern u64 own_pid;      // that this process is listed by; 0 where it is not listed

// Applies the rules that name the call: sleeps, hangs, and gives the code to fail with, or 0.
int fault(const char* call, int gpu);
// Puts an event into the sets that listen, as NVML does: of several Xids that nobody took yet, the last stays.
void raise_event(const Gpu& gpu, u64 type, u64 data);

// Brings GPUs that follow up to date with the fake CUDA driver.
void follow(Gpu& gpu);
