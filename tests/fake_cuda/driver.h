/*
driver: what the parts of the fake driver share.

The fake is a libcuda for tests. It keeps the promises of the real one that callers rely on, and breaks them where a script says so:

  devices     as many as a test asks for, with a set memory; memory of a device is memory of this process
  streams     an OS thread each that takes its operations in order: a missing wait is a race here too
  launches    the device entries of our kernels, compiled for the host with one float per lane (tests/machine)
  books       every handle and byte that was taken and not given back (books.cpp)
  faults      rules that make a call fail or an operation poison its context, hang or be slow (script.cpp)

What a caller may never do (freeing twice, using what was freed) ends the process with one line that says what it was.

One lock guards all state. It is never held while an operation runs. `changed` is told whenever something that another thread may
wait for has come true.
*/
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "codes.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef uint64_t u64;
typedef u64 DevicePointer;
typedef void* Handle;

struct Context;
struct Device;
struct Stream;
struct Capture;
struct Entry;

// All that is global is never destroyed: threads may be at it until the process ends.
extern std::mutex& lock;
extern std::condition_variable& changed;
typedef std::unique_lock<std::mutex> Locked;

// Ends the process: the caller broke a rule that the real driver does not check.
[[noreturn]] void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- time ------------------------------------------------------------------------------------------------------------

u64 now_ns();  // since the library was loaded

// ---- handles ---------------------------------------------------------------------------------------------------------

// Things that callers know by a handle. A handle is a number that is never given twice and never an address, so that one which
// outlived its thing is told from one that never was.
template <class T> struct Handles {
    const char* what;
    u64 kind;
    u64 given = 0;
    std::map<u64, std::shared_ptr<T>> live;

    Handle add(std::shared_ptr<T> thing) {
        const u64 handle = kind << 40 | ++given << 4;
        live[handle] = std::move(thing);
        return (Handle)handle;
    }
    // The thing, or null where the handle was never given.
    std::shared_ptr<T> find(Handle handle, const char* call) const {
        const auto found = live.find((u64)handle);
        if (found != live.end()) return found->second;
        const u64 number = ((u64)handle & ((1ull << 40) - 1)) >> 4;
        if ((u64)handle >> 40 == kind && number >= 1 && number <= given)
            violation("%s: %s %llu was destroyed before", call, what, (unsigned long long)number);
        return nullptr;
    }
    void remove(Handle handle) { live.erase((u64)handle); }
    template <class Wanted> void remove_if(Wanted wanted) {
        for (auto at = live.begin(); at != live.end();) at = wanted(*at->second) ? live.erase(at) : std::next(at);
    }
    template <class Wanted> u64 count_if(Wanted wanted) const {
        u64 count = 0;
        for (const auto& entry : live) count += wanted(*entry.second);
        return count;
    }
};

// ---- devices and contexts ----------------------------------------------------------------------------------------------

// A pool that stream-ordered allocations come from.
struct Pool {
    Device* device = nullptr;
    bool is_default = false;
    u64 used = 0, used_high = 0;
    u64 reserved = 0, reserved_high = 0;
    u64 release_threshold = 0;
    int reuse[4] = {0, 1, 1, 1};  // by attribute 1 to 3; kept, without effect

    // Gives back what is reserved and not used, down to `keep` bytes.
    void trim(u64 keep);
};

struct Device {
    // As a test set it up.
    std::string name;
    u64 memory = 0;
    int pci_bus = 0;
    unsigned char uuid[16] = {};
    int part = 0;  // of a GPU (MIG), from 1; 0 is a whole one
    int major = 0, minor = 0;  // compute capability
    int processors = 0;
    u64 context_bytes = 0;  // that a context takes by itself
    bool pools_supported = true;
    int compute_mode = 0;

    int ordinal = 0;  // among the visible ones
    int index = 0;    // among all
    u64 foreign = 0;  // bytes that other processes hold
    double slow = 1;
    int lost = 0;  // what calls return since it fell off the bus

    std::shared_ptr<Context> context;  // the primary one, while it is active
    int references = 0;
    u64 contexts_made = 0;
    u64 plain_bytes = 0;  // allocated outside of pools
    std::shared_ptr<Pool> default_pool;
    std::shared_ptr<Pool> pool;  // the current one
    u64 left_behind = 0;         // things that were still there when their context ended in good health
    u64 running = 0;             // copies, fills and kernels that have begun and not ended
    u64 launches = 0, copied_in = 0, copied_out = 0;

    u64 reserved() const;  // by all pools
    u64 own() const;       // bytes that this process holds
    u64 free() const;
};

struct Context {
    Device* device;
    std::atomic<int> sticky{0};  // what every call returns since something went wrong on the device
    bool ended = false;
    Handle legacy = nullptr;  // the stream of handle 0
    explicit Context(Device* device) : device(device) {}
};

Handle context_handle(const Device& device);
// Makes a context fail from now on, and wakes whoever waits for it.
void poison(Context& context, int code, const Locked&);
// Takes a device off the bus: all calls give this code from now on.
void lose(Device& device, int code, const Locked&);
// Ends the device's context and all that belongs to it.
void end_context(Device& device, Locked& locked);

struct World {
    bool initialised = false;
    int driver_version = 12090;
    std::vector<std::unique_ptr<Device>> devices;  // all
    std::vector<Device*> visible;                  // what CUDA_VISIBLE_DEVICES leaves, in its order
    std::map<std::string, u64> calls;
};
extern World& world;

// ---- what calls begin with ---------------------------------------------------------------------------------------------

// Counts the call, applies the rules that name it, and gives what it must return, or 0. Calls that need a context find it in
// `context`, which is then alive and healthy.
enum class Needs { Nothing, Init, AnyContext, Context };
int enter(const char* call, Needs needs, std::shared_ptr<Context>& context, int device = -1);
// Whether this thread has one.
bool has_context();

#define ENTER(needs)                                                          \
    std::shared_ptr<Context> context;                                         \
    if (const int refused = enter(__func__, Needs::needs, context)) return refused;
#define ENTER_DEVICE(device)                                                                   \
    std::shared_ptr<Context> context;                                                          \
    if (const int refused = enter(__func__, Needs::Init, context, device)) return refused;

// ---- streams and operations --------------------------------------------------------------------------------------------

enum class Kind { CopyIn, CopyOut, Copy, Memset, Kernel, Host, Free, Record, Wait };
const char* kind_name(Kind kind);

struct Operation {
    Kind kind;
    std::string name;  // of a kernel
    u64 bytes = 0;
    std::function<int()> act;  // returns 0 or what the context is poisoned with; called without the lock
};

// A point in a stream, once reached.
struct Mark {
    std::shared_ptr<Context> context;
    bool reached = false;
    u64 at_ns = 0;
};

struct Event {
    std::shared_ptr<Context> context;
    bool timed = true;
    std::shared_ptr<Mark> mark;        // of the last record; null before the first
    std::shared_ptr<Capture> capture;  // where the last record was captured, and by which stream
    Stream* recorder = nullptr;
};

struct Stream {
    std::shared_ptr<Context> context;
    u64 number = 0;
    bool blocking = false;  // ordered with the legacy stream
    int priority = 0;
    std::deque<Operation> queue;
    u64 pushed = 0, done = 0;
    bool stop = false, finished = false;
    std::shared_ptr<Capture> capture;
    std::condition_variable work;
    std::thread thread;
};

extern Handles<Stream>& streams;
extern Handles<Event>& events;
extern Handles<Pool>& pools;
extern u64 streams_made;

// The stream that a handle names in this context; null where it is none.
std::shared_ptr<Stream> stream_of(Handle handle, const std::shared_ptr<Context>& context, const char* call, Locked& locked);
std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context, bool blocking, int priority);
void end_stream(const std::shared_ptr<Stream>& stream, Locked& locked);
// Joins the threads of streams that were destroyed before.
void end_retired(const Context& context, Locked& locked);
// Puts an operation at the stream's end, or into the graph that it captures.
int push(const std::shared_ptr<Stream>& stream, Operation operation, Locked& locked);
// Waits until the stream has done what it has now.
int wait_for(const std::shared_ptr<Stream>& stream, Locked& locked);
// Gives what pools need not keep back to their device, as the driver does where the host waits.
void trim_pools(Device& device);
// Runs one operation with the faults that are set for it.
int run(const Stream& stream, const Operation& operation);

// ---- capture -----------------------------------------------------------------------------------------------------------

// A capture under way, or a graph: operations in an order that keeps to their dependencies.
struct Capture {
    std::shared_ptr<Context> context;
    Stream* origin = nullptr;
    int mode = 0;
    std::thread::id thread;
    int broken = 0;              // why it cannot become a graph
    std::set<Stream*> unjoined;  // streams that took part and that the origin does not wait for
    std::vector<Operation> operations;
};
extern Handles<Capture>&graphs, &executables;

// What a call must return that is not allowed while this thread captures, and 0 where it does not. The capture is broken then.
int refuse_in_capture(const Context& context);
// The same for what only captures of other threads forbid.
int refuse_beside_capture(const Context& context);
// The same for making a context.
int refuse_context_beside_capture();

// ---- memory ------------------------------------------------------------------------------------------------------------

struct Allocation {
    u64 bytes;
    std::shared_ptr<Context> context;
    std::shared_ptr<Pool> pool;  // null: not of a pool
    bool freeing = false;        // a stream is to free it
    std::shared_ptr<std::atomic<bool>> ready;  // its stream has come to where it was taken
    Stream* of = nullptr;
};
struct HostMemory {
    u64 bytes;
    std::shared_ptr<Context> context;
    bool registered;
    std::shared_ptr<std::atomic<int>> uses = std::make_shared<std::atomic<int>>(0);  // by what is queued
};
// Ends the process where a stream uses memory that another one takes, and has not waited for that.
void check_ready(DevicePointer pointer, const Stream& stream, const char* call);
// Whether a host range is none that a copy takes: registered in part, or on a device.
bool straddles(const void* pointer, u64 bytes);
// Notes that something queued uses page-locked memory, until this goes.
std::shared_ptr<void> use_host(const void* pointer);
extern std::map<DevicePointer, Allocation>& allocations;
extern std::map<u64, HostMemory>& host_memory;

// Whether bytes are all of one allocation. Those of a freed one end the process.
bool on_device(DevicePointer pointer, u64 bytes, const char* call, bool queued = true);
bool is_pinned(const void* pointer, u64 bytes);
// Ends the process where a word of a kernel's parameters points into freed memory.
void check_parameters(const std::string& kernel, const std::vector<unsigned char>& parameters);
void forget_memory(const Context& context);

// ---- other processes -------------------------------------------------------------------------------------------------------

// A process that has memory of a device of ours.
struct Tenant {
    unsigned pid;
    u64 bytes;
};
// One process at a time takes memory.
struct SharedTurn {
    SharedTurn();
    ~SharedTurn();
};
void join_shared();
// Tells others what this process holds; after each change.
void publish(const Device& device);
std::vector<Tenant> tenants(const Device& device);

// ---- modules -------------------------------------------------------------------------------------------------------------

void forget_modules(const Context& context);
u64 count_modules(const Device& device);

// ---- the script ----------------------------------------------------------------------------------------------------------

// Applies the rules that name a call or an operation: sleeps, hangs, and gives the code to fail with, or 0.
int fault(const std::string& what, const std::string& detail, Device* device, const Context* context);
// Before anything else is done: takes the script of the environment, once.
void begin();
// Makes all as after loading, with these devices. Returns what is wrong, or nothing.
std::string set_devices(const std::string& text);

// ---- the log ---------------------------------------------------------------------------------------------------------------

void log_operation(const Stream& stream, const Operation& operation, u64 begin_ns, u64 end_ns, int code);
void clear_log();
// Leaves the books in a file when the process ends, where the environment says so.
void write_books_at_exit();
