/*
memory: device memory and pools, page-locked host memory, copies.

Fresh memory is filled with a pattern, so that what nobody wrote is not by chance zero. What was freed is kept for a while, filled
with another: whoever still uses it is told.
*/
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

std::map<DevicePointer, Allocation>& allocations = *new std::map<DevicePointer, Allocation>;
std::map<u64, HostMemory>& host_memory = *new std::map<u64, HostMemory>;

// Ranges that were freed and not given again, and those of them that are still kept.
static auto& freed = *new std::map<DevicePointer, u64>;
static auto& kept = *new std::deque<std::pair<void*, u64>>;
static u64 kept_bytes = 0;

constexpr u64 KEPT_MAX = 64 << 20, FILLED_MAX = 1 << 20;
constexpr int FRESH = 0xCD, FREED = 0xDD;
constexpr u64 ALIGNMENT = 512, PAGE = 4096;

static u64 rounded(u64 bytes, u64 step) { return (std::max<u64>(bytes, 1) + step - 1) / step * step; }

// ---- what belongs to whom ------------------------------------------------------------------------------------------------

template <class Map> static typename Map::iterator range_at(Map& map, u64 address) {
    auto at = map.upper_bound(address);
    return at == map.begin() ? map.end() : std::prev(at);
}

static void refuse_freed(DevicePointer pointer, const char* user) {
    const auto range = range_at(freed, pointer);
    if (range != freed.end() && pointer < range->first + range->second)
        violation("%s: device memory at %#llx (%llu bytes at %#llx) was freed before", user, (unsigned long long)pointer,
                  (unsigned long long)range->second, (unsigned long long)range->first);
}

bool on_device(DevicePointer pointer, u64 bytes, const char* call, bool queued) {
    const auto at = range_at(allocations, pointer);
    if (at != allocations.end() && pointer < at->first + std::max<u64>(at->second.bytes, 1)) {
        if (queued && at->second.freeing)
            violation("%s: device memory at %#llx is being freed", call, (unsigned long long)pointer);
        return pointer + bytes <= at->first + at->second.bytes;
    }
    refuse_freed(pointer, call);
    return false;
}

void check_parameters(const std::string& kernel, const std::vector<unsigned char>& parameters) {
    for (size_t at = 0; at + 8 <= parameters.size(); at += 8) {
        DevicePointer word;
        memcpy(&word, &parameters[at], 8);
        if (word) refuse_freed(word, ("kernel " + kernel).c_str());
    }
}

bool is_pinned(const void* pointer, u64 bytes) {
    const auto at = range_at(host_memory, (u64)pointer);
    return at != host_memory.end() && (u64)pointer + bytes <= at->first + at->second.bytes;
}

void check_ready(DevicePointer pointer, const Stream& stream, const char* call) {
    const auto at = range_at(allocations, pointer);
    if (at == allocations.end() || pointer >= at->first + at->second.bytes) return;
    if (at->second.ready && at->second.of != &stream && !*at->second.ready)
        violation("%s: device memory at %#llx is used by a stream that has not waited until another one has taken it", call,
                  (unsigned long long)pointer);
}

bool straddles(const void* pointer, u64 bytes) {
    if (!bytes) return false;
    if (is_pinned(pointer, bytes)) return false;
    const auto last = range_at(host_memory, (u64)pointer + bytes - 1);
    if (last != host_memory.end() && last->first + last->second.bytes > (u64)pointer) return true;
    const auto device = range_at(allocations, (u64)pointer + bytes - 1);
    return device != allocations.end() && device->first + device->second.bytes > (u64)pointer;
}

std::shared_ptr<void> use_host(const void* pointer) {
    const auto at = range_at(host_memory, (u64)pointer);
    auto uses = at->second.uses;
    ++*uses;
    return std::shared_ptr<void>((void*)1, [uses](void*) { --*uses; });
}

// ---- device memory ---------------------------------------------------------------------------------------------------------

static int allocate(DevicePointer* pointer, u64 bytes, const std::shared_ptr<Context>& context,
                    const std::shared_ptr<Pool>& pool) {
    Device& device = *context->device;
    const u64 grown = pool ? (pool->used + bytes > pool->reserved ? pool->used + bytes - pool->reserved : 0) : bytes;
    if (!bytes) return INVALID_VALUE;
    const SharedTurn turn;
    if (grown > device.free()) return OUT_OF_MEMORY;
    const u64 held = rounded(bytes, ALIGNMENT);
    // A large one costs nothing until it is written.
    void* memory = aligned_alloc(ALIGNMENT, held);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, FRESH, std::min(held, FILLED_MAX));
    ASAN_POISON_MEMORY_REGION((char*)memory + bytes, held - bytes);
    *pointer = (DevicePointer)memory;
    const auto begin = freed.lower_bound(*pointer), end = freed.lower_bound(*pointer + held);
    freed.erase(begin, end);
    const auto before = range_at(freed, *pointer);
    if (before != freed.end() && before->first + before->second > *pointer) freed.erase(before);
    allocations[*pointer] = {bytes, context, pool, false, nullptr, nullptr};
    if (pool) {
        pool->used += bytes;
        pool->reserved += grown;
        pool->used_high = std::max(pool->used_high, pool->used);
        pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    } else {
        device.plain_bytes += bytes;
    }
    publish(device);
    return SUCCESS;
}

static void drop_oldest() {
    auto [memory, bytes] = kept.front();
    kept.pop_front();
    kept_bytes -= bytes;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    free(memory);
}

static void release(std::map<DevicePointer, Allocation>::iterator at) {
    const Allocation& allocation = at->second;
    if (allocation.pool) allocation.pool->used -= allocation.bytes;
    else allocation.context->device->plain_bytes -= allocation.bytes;
    publish(*allocation.context->device);
    const u64 held = rounded(allocation.bytes, ALIGNMENT);
    ASAN_UNPOISON_MEMORY_REGION((void*)at->first, held);
    memset((void*)at->first, FREED, std::min(held, FILLED_MAX));
    ASAN_POISON_MEMORY_REGION((void*)at->first, held);
    freed[at->first] = allocation.bytes;
    kept.emplace_back((void*)at->first, held);
    kept_bytes += held;
    allocations.erase(at);
    while (kept_bytes > KEPT_MAX) drop_oldest();
}

static std::map<DevicePointer, Allocation>::iterator to_free(DevicePointer pointer, const char* call) {
    const auto at = allocations.find(pointer);
    if (at == allocations.end()) {
        refuse_freed(pointer, call);
        violation("%s: %#llx is not the beginning of an allocation", call, (unsigned long long)pointer);
    }
    if (at->second.freeing) violation("%s: device memory at %#llx is being freed", call, (unsigned long long)pointer);
    return at;
}

void forget_memory(const Context& context) {
    for (auto at = allocations.begin(); at != allocations.end();) {
        const auto next = std::next(at);
        if (at->second.context.get() == &context) release(at);
        at = next;
    }
    for (auto at = host_memory.begin(); at != host_memory.end();) {
        const auto next = std::next(at);
        if (at->second.context.get() == &context) {
            if (!at->second.registered) free((void*)at->first);
            host_memory.erase(at);
        }
        at = next;
    }
}

EXPORT int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
    ENTER(Context)
    const Locked locked(lock);
    if (const int refused = refuse_in_capture(*context)) return refused;
    return allocate(pointer, bytes, context, nullptr);
}

// Waits for all streams of the context, as the real one does.
EXPORT int cuMemFree_v2(DevicePointer pointer) {
    ENTER(Context)
    Locked locked(lock);
    if (!pointer) return SUCCESS;
    if (const int refused = refuse_in_capture(*context)) return refused;
    to_free(pointer, __func__)->second.freeing = true;
    std::vector<std::shared_ptr<Stream>> all;
    for (auto& entry : streams.live)
        if (entry.second->context == context && !entry.second->capture) all.push_back(entry.second);
    for (auto& stream : all)
        if (const int code = wait_for(stream, locked)) return code;
    release(allocations.find(pointer));
    return SUCCESS;
}

static int allocate_async(DevicePointer* pointer, size_t bytes, const std::shared_ptr<Context>& context,
                          const std::shared_ptr<Pool>& pool, Handle handle, const char* call) {
    Locked locked(lock);
    const auto stream = stream_of(handle, context, call, locked);
    if (!stream) return INVALID_HANDLE;
    if (!context->device->pools_supported) return NOT_SUPPORTED;
    // Graphs that own memory are none of ours.
    if (stream->capture) return stream->capture->broken = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    if (const int code = allocate(pointer, bytes, context, pool)) return code;
    auto ready = std::make_shared<std::atomic<bool>>(false);
    Allocation& made = allocations[*pointer];
    made.ready = ready, made.of = stream.get();
    const Operation taken = {Kind::Wait, "", 0, [ready] {
        // Long enough for whoever does not wait to come before.
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        *ready = true;
        return SUCCESS;
    }};
    return push(stream, taken, locked);
}

EXPORT int cuMemAllocAsync(DevicePointer* pointer, size_t bytes, Handle stream) {
    ENTER(Context)
    return allocate_async(pointer, bytes, context, context->device->pool, stream, __func__);
}

EXPORT int cuMemAllocFromPoolAsync(DevicePointer* pointer, size_t bytes, Handle pool, Handle stream) {
    ENTER(Context)
    std::shared_ptr<Pool> from;
    {
        const Locked locked(lock);
        from = pools.find(pool, __func__);
    }
    if (!from || from->device != context->device) return INVALID_VALUE;
    return allocate_async(pointer, bytes, context, from, stream, __func__);
}

EXPORT int cuMemFreeAsync(DevicePointer pointer, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (!pointer) return SUCCESS;
    if (stream->capture) return stream->capture->broken = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    // Stricter than a driver may be: what was not taken in a stream's order is not given back in one.
    if (!to_free(pointer, __func__)->second.pool) return INVALID_VALUE;
    to_free(pointer, __func__)->second.freeing = true;
    return push(stream, {Kind::Free, "", 0, [pointer] {
        const Locked freeing(lock);
        release(allocations.find(pointer));
        return SUCCESS;
    }}, locked);
}

EXPORT int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    ENTER(Context)
    const Locked locked(lock);
    *free_bytes = context->device->free();
    *total = context->device->memory;
    return SUCCESS;
}

// ---- host memory -----------------------------------------------------------------------------------------------------------

EXPORT int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    ENTER(Context)
    const Locked locked(lock);
    if (const int refused = refuse_in_capture(*context)) return refused;
    if (!bytes) return INVALID_VALUE;
    const u64 held = rounded(bytes, PAGE);
    *pointer = aligned_alloc(PAGE, held);
    if (!*pointer) return OUT_OF_MEMORY;
    memset(*pointer, FRESH, std::min(held, FILLED_MAX));
    host_memory[(u64)*pointer] = {bytes, context, false};
    return SUCCESS;
}

EXPORT int cuMemAllocHost_v2(void** pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

EXPORT int cuMemFreeHost(void* pointer) {
    ENTER(Context)
    const Locked locked(lock);
    const auto at = host_memory.find((u64)pointer);
    if (at == host_memory.end()) violation("cuMemFreeHost: %p is no page-locked memory (any more)", pointer);
    if (at->second.registered) return INVALID_VALUE;
    host_memory.erase(at);
    free(pointer);
    return SUCCESS;
}

EXPORT int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned) {
    ENTER(Context)
    const Locked locked(lock);
    if (const int refused = refuse_in_capture(*context)) return refused;
    if (!pointer || !bytes) return INVALID_VALUE;
    const auto before = range_at(host_memory, (u64)pointer + bytes - 1);
    if (before != host_memory.end() && before->first + before->second.bytes > (u64)pointer)
        return HOST_MEMORY_ALREADY_REGISTERED;
    host_memory[(u64)pointer] = {bytes, context, true};
    return SUCCESS;
}

// Also without a context, which is how a process is rid of memory that a broken one knows.
EXPORT int cuMemHostUnregister(void* pointer) {
    std::shared_ptr<Context> context;
    const Needs needs = has_context() ? Needs::Context : Needs::Init;
    if (const int refused = enter(__func__, needs, context)) return refused;
    const Locked locked(lock);
    if (const int refused = context ? refuse_in_capture(*context) : SUCCESS) return refused;
    const auto at = host_memory.find((u64)pointer);
    if (at == host_memory.end() || !at->second.registered) return HOST_MEMORY_NOT_REGISTERED;
    if (!at->second.context->sticky && *at->second.uses) violation("cuMemHostUnregister: %p is used by a queued copy", pointer);
    host_memory.erase(at);
    return SUCCESS;
}

EXPORT int cuMemHostGetDevicePointer_v2(DevicePointer* device, void* pointer, unsigned) {
    ENTER(Context)
    const Locked locked(lock);
    if (!is_pinned(pointer, 1)) return INVALID_VALUE;
    *device = (DevicePointer)pointer;
    return SUCCESS;
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, DevicePointer pointer) {
    ENTER(AnyContext)
    const Locked locked(lock);
    const auto device = range_at(allocations, pointer);
    const bool on_a_device = device != allocations.end() && pointer < device->first + device->second.bytes;
    if (!on_a_device && !is_pinned((void*)pointer, 1)) return INVALID_VALUE;
    const auto host = range_at(host_memory, pointer);
    const Context& owner = on_a_device ? *device->second.context : *host->second.context;
    switch (attribute) {
        case 1: *(Handle*)value = context_handle(*owner.device); return SUCCESS;
        case 2: *(unsigned*)value = on_a_device ? 2 : 1; return SUCCESS;
        case 9: *(int*)value = owner.device->ordinal; return SUCCESS;
        case 11: *(u64*)value = on_a_device ? device->first : host->first; return SUCCESS;
        case 12: *(u64*)value = on_a_device ? device->second.bytes : host->second.bytes; return SUCCESS;
        default: return NOT_SUPPORTED;
    }
}
