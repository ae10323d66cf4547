/*
nvml: the calls. Structs are laid out as NVML has them.
*/
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>

std::mutex& lock = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
std::vector<std::unique_ptr<Gpu>>& gpus = *new std::vector<std::unique_ptr<Gpu>>;
std::vector<std::unique_ptr<Gpu>>& parts = *new std::vector<std::unique_ptr<Gpu>>;
std::set<EventSet*>& event_sets = *new std::set<EventSet*>;
int initialised = 0;

// ---- what calls begin with -----------------------------------------------------------------------------------------------

// A GPU's handle is one more than its number, so that it is never null.
typedef void* Handle;
static Handle handle_of(const Gpu& gpu) { return (Handle)(uintptr_t)(gpu.number + 1); }

static int enter(const char* call) {
    if (const int code = fault(call, -1)) return code;
    const Locked locked(lock);
    return initialised ? SUCCESS : UNINITIALIZED;
}

// What is told of parts of GPUs.
static bool of_parts(const char* call) {
    const char* calls[] = {"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
                           "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"};
    return std::any_of(std::begin(calls), std::end(calls), [&](const char* known) { return !strcmp(call, known); });
}

// Gives the GPU up to date, with the lock held.
static int enter(const char* call, Handle handle, Gpu*& gpu, Locked& locked) {
    const int number = (int)(uintptr_t)handle - 1;
    if (const int code = fault(call, number)) return code;
    locked = Locked(lock);
    if (!initialised) return UNINITIALIZED;
    const bool part = number >= PARTS;
    const auto& all = part ? parts : gpus;
    const int index = part ? number - PARTS : number;
    if (index < 0 || index >= (int)all.size()) return INVALID_ARGUMENT;
    gpu = all[(size_t)index].get();
    follow(*gpu);
    if ((part ? gpu->whole : gpu)->lost) return GPU_IS_LOST;
    return part && !of_parts(call) ? NOT_SUPPORTED : SUCCESS;
}

#define ENTER \
    if (const int refused = enter(__func__)) return refused;
#define ENTER_GPU(handle)  \
    Gpu* gpu = nullptr;    \
    Locked locked;         \
    if (const int refused = enter(__func__, handle, gpu, locked)) return refused;

static int copied(char* to, unsigned length, const std::string& text) {
    if (text.size() >= length) return INSUFFICIENT_SIZE;
    memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

static std::string uuid_text(const Gpu& gpu) {
    std::string text = gpu.whole ? "MIG-" : "GPU-";
    for (int i = 0; i < 16; ++i) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", gpu.uuid[i]);
        text += digits;
        if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
    }
    return text;
}

// ---- the library ---------------------------------------------------------------------------------------------------------

EXPORT int nvmlInitWithFlags(unsigned) {
    if (const int code = fault("nvmlInit_v2", -1)) return code;
    const Locked locked(lock);
    ++initialised;
    return SUCCESS;
}

EXPORT int nvmlInit_v2() { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown() {
    const Locked locked(lock);
    if (!initialised) return UNINITIALIZED;
    --initialised;
    return SUCCESS;
}

EXPORT const char* nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case TIMEOUT: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned length) {
    ENTER
    return copied(text, length, "575.57.08");
}

EXPORT int nvmlSystemGetNVMLVersion(char* text, unsigned length) {
    ENTER
    return copied(text, length, "12.575.57.08");
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    ENTER
    *version = 12090;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
    ENTER
    const Locked locked(lock);
    *count = (unsigned)gpus.size();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned number, Handle* handle) {
    ENTER_GPU((Handle)(uintptr_t)(number + 1))
    *handle = handle_of(*gpu);
    return SUCCESS;
}

// nvml.h: "GPU_IS_LOST if any GPU has fallen off the bus", while by index and by bus only the one that is asked for counts.
EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
    ENTER
    const Locked locked(lock);
    for (auto& gpu : gpus)
        if (gpu->lost) return GPU_IS_LOST;
    for (auto& gpu : gpus)
        if (uuid_text(*gpu) == uuid) return *handle = handle_of(*gpu), SUCCESS;
    for (auto& part : parts)
        if (uuid_text(*part) == uuid) return *handle = handle_of(*part), SUCCESS;
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* text, Handle* handle) {
    ENTER
    const Locked locked(lock);
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2) return INVALID_ARGUMENT;
    for (auto& gpu : gpus)
        if (!domain && gpu->pci_bus == (int)bus) return *handle = handle_of(*gpu), gpu->lost ? GPU_IS_LOST : SUCCESS;
    return NOT_FOUND;
}

// ---- who a GPU is --------------------------------------------------------------------------------------------------------

EXPORT int nvmlDeviceGetIndex(Handle handle, unsigned* number) {
    ENTER_GPU(handle)
    *number = (unsigned)gpu->number;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(Handle handle, unsigned* number) { return nvmlDeviceGetIndex(handle, number); }

EXPORT int nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
    ENTER_GPU(handle)
    return copied(text, length, gpu->name);
}

EXPORT int nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
    ENTER_GPU(handle)
    return copied(text, length, uuid_text(*gpu));
}

struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
    ENTER_GPU(handle)
    *info = {};
    info->bus = (unsigned)gpu->pci_bus;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", gpu->pci_bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", gpu->pci_bus);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(Handle handle, unsigned* current, unsigned* pending) {
    ENTER_GPU(handle)
    *current = *pending = (unsigned)gpu->mig;
    return SUCCESS;
}

// ---- memory and who holds it -----------------------------------------------------------------------------------------------

struct Memory {
    unsigned long long total, free, used;
};
struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static u64 free_of(const Gpu& gpu) {
    const u64 taken = gpu.reserved + gpu.used;
    return taken < gpu.memory ? gpu.memory - taken : 0;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* memory) {
    ENTER_GPU(handle)
    if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    *memory = {memory->version, gpu->memory, gpu->reserved, free_of(*gpu), gpu->used};
    return SUCCESS;
}

// Before the second version, what is reserved counted as used.
EXPORT int nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
    ENTER_GPU(handle)
    *memory = {gpu->memory, free_of(*gpu), gpu->used + gpu->reserved};
    return SUCCESS;
}

struct ProcessInfo {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

static int processes(const char* call, Handle handle, unsigned* count, ProcessInfo* infos, bool graphics) {
    Gpu* gpu = nullptr;
    Locked locked;
    if (const int refused = enter(call, handle, gpu, locked)) return refused;
    std::vector<ProcessInfo> found;
    for (const Process& process : gpu->processes)
        if (process.graphics == graphics) found.push_back({process.pid, process.memory, ~0u, ~0u});
    const bool fits = found.size() <= *count;
    *count = (unsigned)found.size();
    if (!fits) return INSUFFICIENT_SIZE;
    for (size_t i = 0; i < found.size(); ++i) infos[i] = found[i];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* infos) {
    return processes(__func__, handle, count, infos, false);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* infos) {
    return processes(__func__, handle, count, infos, true);
}

// ---- readings --------------------------------------------------------------------------------------------------------------

struct Utilization {
    unsigned gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(Handle handle, Utilization* rates) {
    ENTER_GPU(handle)
    // A GPU that is parted has none.
    if (gpu->mig) return NOT_SUPPORTED;
    *rates = {(unsigned)gpu->utilization, (unsigned)gpu->memory_utilization};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(Handle handle, int sensor, unsigned* degrees) {
    ENTER_GPU(handle)
    if (sensor != 0) return INVALID_ARGUMENT;
    *degrees = (unsigned)gpu->temperature;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureThreshold(Handle handle, int threshold, unsigned* degrees) {
    ENTER_GPU(handle)
    if (threshold < 0 || threshold > 1) return NOT_SUPPORTED;
    *degrees = (unsigned)(threshold == 0 ? gpu->shutdown : gpu->slowdown);
    return SUCCESS;
}

#define READING(call, type, field)                  \
    EXPORT int call(Handle handle, type* reading) { \
        ENTER_GPU(handle)                           \
        *reading = (type)gpu->field;                \
        return SUCCESS;                             \
    }

READING(nvmlDeviceGetPowerUsage, unsigned, power_mw)
READING(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit_mw)
READING(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj)
READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, throttle)
READING(nvmlDeviceGetPcieReplayCounter, unsigned, replays)
READING(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, pages_pending)

EXPORT int nvmlDeviceGetTotalEccErrors(Handle handle, int severity, int counter, unsigned long long* count) {
    ENTER_GPU(handle)
    if (severity < 0 || severity > 1 || counter < 0 || counter > 1) return INVALID_ARGUMENT;
    // Those of the GPU's whole life are none of the fake's.
    *count = counter == 1 ? 0 : severity == 0 ? gpu->ecc_corrected : gpu->ecc_uncorrected;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(Handle handle, unsigned* current, unsigned* pending) {
    ENTER_GPU(handle)
    *current = *pending = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(Handle handle, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
    ENTER_GPU(handle)
    *corrected = (unsigned)gpu->rows_corrected;
    *uncorrected = (unsigned)gpu->rows_uncorrected;
    *pending = gpu->rows_pending != 0;
    *failed = gpu->rows_failed != 0;
    return SUCCESS;
}

struct FieldValue {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned value_type;
    int code;
    union {
        unsigned u32;
        unsigned long long u64;
    } value;
};

EXPORT int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue* values) {
    ENTER_GPU(handle)
    for (int i = 0; i < count; ++i) {
        FieldValue& value = values[i];
        const u64 readings[4] = {gpu->rows_corrected, gpu->rows_uncorrected, gpu->rows_pending, gpu->rows_failed};
        value.code = SUCCESS;
        value.value_type = 1;  // unsigned int
        value.value.u64 = 0;
        if (value.field >= 142 && value.field <= 145) value.value.u32 = (unsigned)readings[value.field - 142];
        else if (value.field == 230) value.value.u32 = (unsigned)gpu->recovery;
        else value.code = NOT_SUPPORTED;
    }
    return SUCCESS;
}

// ---- events ----------------------------------------------------------------------------------------------------------------

EXPORT int nvmlEventSetCreate(EventSet** set) {
    ENTER
    const Locked locked(lock);
    *set = new EventSet;
    (*set)->masks.resize(gpus.size());
    event_sets.insert(*set);
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(EventSet* set) {
    ENTER
    const Locked locked(lock);
    if (!event_sets.erase(set)) return INVALID_ARGUMENT;
    delete set;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(Handle handle, unsigned long long* types) {
    ENTER_GPU(handle)
    *types = EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(Handle handle, unsigned long long types, EventSet* set) {
    ENTER_GPU(handle)
    if (!event_sets.count(set)) return INVALID_ARGUMENT;
    if (types & ~(EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID)) return NOT_SUPPORTED;
    set->masks[(size_t)gpu->number] |= types;
    return SUCCESS;
}

void raise_event(const Gpu& gpu, u64 type, u64 data) {
    for (EventSet* set : event_sets) {
        if ((size_t)gpu.number >= set->masks.size() || !(set->masks[(size_t)gpu.number] & type)) continue;
        bool replaced = false;
        for (NvmlEvent& waiting : set->waiting) {
            if (waiting.gpu != gpu.number || waiting.type != type || type != EVENT_XID) continue;
            waiting.data = data;
            replaced = true;
        }
        if (!replaced) set->waiting.push_back({gpu.number, type, data});
    }
    changed.notify_all();
}

struct EventData {
    Handle gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlEventSetWait_v2(EventSet* set, EventData* event, unsigned timeout_ms) {
    ENTER
    Locked locked(lock);
    if (!event_sets.count(set)) return INVALID_ARGUMENT;
    const auto lost = [&] {
        for (const auto& gpu : gpus)
            if ((size_t)gpu->number < set->masks.size() && set->masks[(size_t)gpu->number] && gpu->lost) return true;
        return false;
    };
    const auto limit = std::chrono::milliseconds(timeout_ms);
    const auto ready = [&] { return !set->waiting.empty() || lost(); };
    if (!changed.wait_for(locked, limit, ready)) return TIMEOUT;
    // What came before the loss is still told.
    if (set->waiting.empty()) return GPU_IS_LOST;
    const NvmlEvent first = set->waiting.front();
    set->waiting.pop_front();
    *event = {handle_of(*gpus[(size_t)first.gpu]), first.type, first.data, ~0u, ~0u};
    return SUCCESS;
}
