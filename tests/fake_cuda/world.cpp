/*
world: devices and their primary contexts, and what every call begins with.
*/
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"

std::mutex& lock = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
World& world = *new World;
Handles<Pool>& pools = *new Handles<Pool>{"memory pool", 0x60, 0, {}};

// The device whose context is current on this thread.
static thread_local Handle current = nullptr;

void violation(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fake CUDA driver: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    fflush(stderr);
    abort();
}

u64 now_ns() {
    static const auto start = std::chrono::steady_clock::now();
    return (u64)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

// ---- devices -----------------------------------------------------------------------------------------------------------

void Pool::trim(u64 keep) {
    reserved = std::max(used, std::min(reserved, keep));
    publish(*device);
}

u64 Device::reserved() const {
    u64 sum = 0;
    for (const auto& entry : pools.live) sum += entry.second->device == this ? entry.second->reserved : 0;
    return sum;
}

u64 Device::own() const { return plain_bytes + reserved() + (context ? context_bytes : 0); }

u64 Device::free() const {
    u64 taken = own() + foreign;
    for (const Tenant& tenant : tenants(*this)) taken += tenant.bytes;
    return taken < memory ? memory - taken : 0;
}

void trim_pools(Device& device) {
    for (auto& entry : pools.live)
        if (entry.second->device == &device) entry.second->trim(entry.second->release_threshold);
}

static std::string uuid_text(const Device& device) {
    std::string text = device.part ? "MIG-" : "GPU-";
    for (int i = 0; i < 16; ++i) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", device.uuid[i]);
        text += digits;
        if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
    }
    return text;
}

// As the driver reads CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first that names nothing.
static void find_visible() {
    std::vector<Device*> all;
    for (auto& device : world.devices) all.push_back(device.get());
    const char* order = getenv("CUDA_DEVICE_ORDER");
    if (order && !strcmp(order, "PCI_BUS_ID"))
        std::stable_sort(all.begin(), all.end(), [](Device* a, Device* b) { return a->pci_bus < b->pci_bus; });
    world.visible = all;
    if (const char* listed = getenv("CUDA_VISIBLE_DEVICES")) {
        world.visible.clear();
        std::string rest = listed;
        while (!rest.empty()) {
            const size_t comma = rest.find(',');
            const std::string name = rest.substr(0, comma);
            rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
            Device* named = nullptr;
            char* end = nullptr;
            const long number = strtol(name.c_str(), &end, 10);
            if (!name.empty() && !*end) {
                if (number >= 0 && number < (long)all.size()) named = all[(size_t)number];
            } else if (name.size() > 4) {
                for (Device* device : all)
                    if (uuid_text(*device).compare(0, name.size(), name) == 0) named = device;
            }
            if (!named) break;
            world.visible.push_back(named);
        }
    }
    for (size_t i = 0; i < world.visible.size(); ++i) world.visible[i]->ordinal = (int)i;
}

// ---- contexts ------------------------------------------------------------------------------------------------------------

// The real driver, too, gives a device's next context the handle of its last.
Handle context_handle(const Device& device) { return (Handle)(0xC0ull << 40 | (u64)(device.index + 1) << 4); }

static Device* device_of(Handle handle) {
    for (Device* device : world.visible)
        if (context_handle(*device) == handle) return device;
    return nullptr;
}

void poison(Context& context, int code, const Locked&) {
    if (!context.sticky) context.sticky = code;
    changed.notify_all();
    for (auto& entry : streams.live) entry.second->work.notify_all();
}

void end_context(Device& device, Locked& locked) {
    const std::shared_ptr<Context> context = device.context;
    // From here on no call finds it.
    context->ended = true;
    const auto ours = [&](const auto& thing) { return thing.context == context; };
    u64 left = graphs.count_if(ours) + executables.count_if(ours) + events.count_if(ours) + count_modules(device);
    std::vector<std::shared_ptr<Stream>> ending;
    for (auto& entry : streams.live)
        if (ours(*entry.second)) {
            ending.push_back(entry.second);
            left += (Handle)entry.first != context->legacy;
        }
    for (auto& stream : ending) end_stream(stream, locked);
    end_retired(*context, locked);
    streams.remove_if(ours);
    events.remove_if(ours);
    graphs.remove_if(ours);
    executables.remove_if(ours);
    forget_modules(*context);
    for (const auto& entry : allocations) left += ours(entry.second);
    for (const auto& entry : host_memory) left += ours(entry.second);
    forget_memory(*context);
    pools.remove_if([&](const Pool& pool) { return pool.device == &device && !pool.is_default; });
    device.default_pool->trim(0);
    device.pool = device.default_pool;
    // After an error on the device there is no other way to be rid of things.
    if (!context->sticky) device.left_behind += left;
    device.context = nullptr;
    publish(device);
    changed.notify_all();
}

// ---- what calls begin with ---------------------------------------------------------------------------------------------

int enter(const char* call, Needs needs, std::shared_ptr<Context>& context, int ordinal) {
    Device* device = nullptr;
    begin();
    {
        const Locked locked(lock);
        ++world.calls[call];
        if (ordinal >= 0 && ordinal < (int)world.visible.size()) device = world.visible[(size_t)ordinal];
        if (!device && ordinal < 0) device = device_of(current);
        if (device) context = device->context;
    }
    if (const int code = fault(call, "", device, context.get())) return code;
    const Locked locked(lock);
    if (needs == Needs::Nothing) return SUCCESS;
    if (!world.initialised) return NOT_INITIALIZED;
    if (needs == Needs::Init) return ordinal >= 0 && !device ? INVALID_DEVICE : SUCCESS;
    if (!current) return INVALID_CONTEXT;
    if (!device || !device->context || device->context->ended) return CONTEXT_IS_DESTROYED;
    context = device->context;
    if (needs == Needs::Context && context->sticky) return context->sticky;
    return SUCCESS;
}

EXPORT int cuInit(unsigned flags) {
    ENTER(Nothing)
    const Locked locked(lock);
    if (flags) return INVALID_VALUE;
    if (!world.initialised) find_visible();
    if (world.visible.empty()) return NO_DEVICE;
    world.initialised = true;
    return SUCCESS;
}

EXPORT int cuDriverGetVersion(int* version) {
    ENTER(Nothing)
    *version = world.driver_version;
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int* count) {
    ENTER(Init)
    *count = (int)world.visible.size();
    return SUCCESS;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
    ENTER(Init)
    if (ordinal < 0 || ordinal >= (int)world.visible.size()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
    ENTER_DEVICE(device)
    snprintf(name, (size_t)length, "%s", world.visible[(size_t)device]->name.c_str());
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    ENTER_DEVICE(device)
    memcpy(uuid, world.visible[(size_t)device]->uuid, 16);
    return SUCCESS;
}

// That of the whole GPU, where the device is a part of one.
EXPORT int cuDeviceGetUuid(unsigned char* uuid, int device) {
    if (const int refused = cuDeviceGetUuid_v2(uuid, device)) return refused;
    uuid[14] = 0;
    return SUCCESS;
}

EXPORT int cuDeviceGetPCIBusId(char* text, int length, int device) {
    ENTER_DEVICE(device)
    snprintf(text, (size_t)length, "0000:%02X:00.0", world.visible[(size_t)device]->pci_bus);
    return SUCCESS;
}

EXPORT int cuDeviceGetByPCIBusId(int* device, const char* text) {
    ENTER(Init)
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || domain) return INVALID_VALUE;
    for (Device* other : world.visible)
        if (other->pci_bus == (int)bus) return *device = other->ordinal, SUCCESS;
    return INVALID_DEVICE;
}

EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    ENTER_DEVICE(device)
    *bytes = world.visible[(size_t)device]->memory;
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
    ENTER_DEVICE(ordinal)
    const Device& device = *world.visible[(size_t)ordinal];
    switch (attribute) {
        case 1: *value = THREADS_PER_BLOCK_MAX; break;
        case 2: case 3: *value = 1024; break;        // block, x and y
        case 4: *value = 64; break;                  // block, z
        case 5: *value = 0x7fffffff; break;          // grid, x
        case 6: case 7: *value = 65535; break;       // grid, y and z
        case 8: *value = SHARED_PER_BLOCK; break;
        case 9: *value = 65536; break;               // constant memory
        case 10: *value = WARP; break;
        case 12: *value = REGISTERS; break;
        case 13: *value = 1980000; break;            // clock, kHz
        case 15: case 31: *value = 1; break;         // copies overlap; kernels run side by side
        case 16: *value = device.processors; break;
        case 19: case 41: *value = 1; break;         // maps host memory; one address space
        case 20: *value = device.compute_mode; break;
        case 33: *value = device.pci_bus; break;
        case 36: *value = 2619000; break;            // memory clock, kHz
        case 37: *value = 5120; break;               // memory bus, bits
        case 38: *value = 50 << 20; break;           // second-level cache
        case 39: *value = THREADS_PER_PROCESSOR_MAX; break;
        case 40: *value = 3; break;                  // copy engines
        case 75: *value = device.major; break;
        case 76: *value = device.minor; break;
        case 78: *value = 1; break;                  // stream priorities
        case 81: *value = SHARED_PER_PROCESSOR; break;
        case 82: *value = REGISTERS; break;
        case 95: *value = 1; break;                  // cooperative launch
        case 97: *value = SHARED_PER_BLOCK_OPTIN; break;
        case 99: *value = 1; break;                  // registers host memory
        case 106: *value = BLOCKS_PER_PROCESSOR_MAX; break;
        case 111: *value = SHARED_RESERVED; break;
        case 115: *value = device.pools_supported; break;
        default: *value = 0;
    }
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(Handle* handle, int ordinal) {
    ENTER_DEVICE(ordinal)
    const Locked locked(lock);
    Device& device = *world.visible[(size_t)ordinal];
    if (device.lost) return device.lost;
    if (!device.context) {
        if (device.compute_mode == COMPUTE_PROHIBITED) return DEVICE_UNAVAILABLE;
        if (const int refused = refuse_context_beside_capture()) return refused;
        const SharedTurn turn;
        if (device.context_bytes > device.free()) return OUT_OF_MEMORY;
        device.context = std::make_shared<Context>(&device);
        ++device.contexts_made;
        publish(device);
    }
    ++device.references;
    *handle = context_handle(device);
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int ordinal) {
    ENTER_DEVICE(ordinal)
    Locked locked(lock);
    Device& device = *world.visible[(size_t)ordinal];
    if (!device.references) violation("cuDevicePrimaryCtxRelease_v2: device %d is not retained", ordinal);
    if (--device.references == 0 && device.context) end_context(device, locked);
    return SUCCESS;
}

// Ends the context whoever holds it. As with the real driver the references stay, and are still to be released.
EXPORT int cuDevicePrimaryCtxReset_v2(int ordinal) {
    ENTER_DEVICE(ordinal)
    Locked locked(lock);
    Device& device = *world.visible[(size_t)ordinal];
    if (device.context) end_context(device, locked);
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxGetState(int ordinal, unsigned* flags, int* active) {
    ENTER_DEVICE(ordinal)
    *flags = 0;
    *active = world.visible[(size_t)ordinal]->context != nullptr;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxSetFlags_v2(int ordinal, unsigned) {
    ENTER_DEVICE(ordinal)
    return SUCCESS;
}

bool has_context() { return current; }

EXPORT int cuCtxSetCurrent(Handle handle) {
    ENTER(Init)
    const Locked locked(lock);
    if (handle && !device_of(handle)) return INVALID_CONTEXT;
    current = handle;
    return SUCCESS;
}

EXPORT int cuCtxGetCurrent(Handle* handle) {
    ENTER(Init)
    *handle = current;
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int* device) {
    ENTER(Context)
    *device = context->device->ordinal;
    return SUCCESS;
}

EXPORT int cuCtxSetFlags(unsigned) {
    ENTER(Context)
    return SUCCESS;
}

EXPORT int cuCtxGetLimit(size_t* value, int) {
    ENTER(Context)
    *value = 1024;
    return SUCCESS;
}

EXPORT int cuCtxSetLimit(int, size_t) {
    ENTER(Context)
    return SUCCESS;
}

EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER(Context)
    *least = PRIORITY_LEAST;
    *greatest = PRIORITY_GREATEST;
    return SUCCESS;
}

EXPORT int cuCtxSynchronize() {
    ENTER(Context)
    Locked locked(lock);
    if (const int refused = refuse_in_capture(*context)) return refused;
    std::vector<std::shared_ptr<Stream>> all;
    for (auto& entry : streams.live)
        if (entry.second->context == context) all.push_back(entry.second);
    for (auto& stream : all)
        if (const int code = wait_for(stream, locked)) return code;
    trim_pools(*context->device);
    return SUCCESS;
}
