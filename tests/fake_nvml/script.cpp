/*
script: what a test says to the fake NVML, one line each, in words and key=value pairs.

    gpus [count=N] [name=TEXT] [memory=80GiB] [reserved=SIZE] [pci=N] [| ...]
                                all as after loading, with these, in the order of their PCI buses
    gpus follow                 the same, with the devices of the fake CUDA driver in this process; of those that are parts of GPUs
                                (MIG), with GPUs of 80 GiB that they are parts of
    part gpu=N [memory=SIZE]    one more part of a GPU, which is parted from then on; all parts together are numbered from 1000
    set gpu=N KEY=VALUE...      a reading: used utilization memory_utilization temperature slowdown shutdown throttle power_mw
                                power_limit_mw energy_mj ecc_corrected ecc_uncorrected rows_corrected rows_uncorrected
                                rows_pending rows_failed pages_pending replays mig recovery (nvml.h says what each is)
    process gpu=N pid=P memory=SIZE|unknown [graphics]
                                a process that holds so much; `pid=own` is this one
    end gpu=N pid=P             and holds nothing any more
    own pid=N                   this process is listed by another number, as within a namespace of its own; 0: it is not listed
    xid gpu=N code=N            an event; of several that nobody took, the last stays
    ecc_event gpu=N double|single
    lose gpu=N                  falls off the bus: here, and in the fake CUDA driver that is followed
    find gpu=N
    fault on=CALL ...           see ../fakes/script.h; `device` is the GPU's number here. A call that is not supported:
                                `fault on=nvmlDeviceGetPowerUsage times=always code=3`
    release, clear              as for the fake CUDA driver

Before the first call, lines are taken from FAKE_NVML, separated by semicolons, and then for as long as the process lives from
../fakes/told.h.
*/
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "../fakes/cuda_for_nvml.h"
#include "../fakes/script.h"
#include "../fakes/told.h"
#include "nvml.h"

using script::number;
using script::read;
using script::Words;

u64 own_pid = (u64)getpid();

namespace {

script::Rules& rules = *new script::Rules;
CudaForNvml cuda;  // nulls where none is followed

struct Reading {
    const char* key;
    u64 Gpu::*field;
};
const Reading READINGS[] = {
    {"used", &Gpu::used},
    {"utilization", &Gpu::utilization},
    {"memory_utilization", &Gpu::memory_utilization},
    {"temperature", &Gpu::temperature},
    {"slowdown", &Gpu::slowdown},
    {"shutdown", &Gpu::shutdown},
    {"throttle", &Gpu::throttle},
    {"power_mw", &Gpu::power_mw},
    {"power_limit_mw", &Gpu::power_limit_mw},
    {"energy_mj", &Gpu::energy_mj},
    {"ecc_corrected", &Gpu::ecc_corrected},
    {"ecc_uncorrected", &Gpu::ecc_uncorrected},
    {"rows_corrected", &Gpu::rows_corrected},
    {"rows_uncorrected", &Gpu::rows_uncorrected},
    {"rows_pending", &Gpu::rows_pending},
    {"rows_failed", &Gpu::rows_failed},
    {"pages_pending", &Gpu::pages_pending},
    {"replays", &Gpu::replays},
    {"mig", &Gpu::mig},
    {"recovery", &Gpu::recovery},
};

void put_in_order() {
    std::stable_sort(gpus.begin(), gpus.end(), [](const auto& a, const auto& b) { return a->pci_bus < b->pci_bus; });
    for (size_t i = 0; i < gpus.size(); ++i) gpus[i]->number = (int)i;
}

std::string add_gpus(const std::string& group) {
    Words words;
    const std::string wrong = read(group, {"count", "name", "memory", "reserved", "pci"}, words);
    if (!wrong.empty()) return wrong;
    for (u64 i = 0; i < number(words, "count", 1); ++i) {
        auto gpu = std::make_unique<Gpu>();
        gpu->name = words.count("name") ? words["name"] : "Fake-GPU";
        gpu->memory = number(words, "memory", 16ull << 30);
        gpu->reserved = number(words, "reserved", 0);
        gpu->pci_bus = words.count("pci") ? (int)(number(words, "pci", 1) + i) : (int)gpus.size() + 1;
        gpu->uuid[0] = 0xfa;
        gpu->uuid[15] = (unsigned char)gpu->pci_bus;
        gpus.push_back(std::move(gpu));
    }
    return "";
}

Gpu& add_part(Gpu& whole, u64 memory) {
    auto part = std::make_unique<Gpu>();
    part->number = PARTS + (int)parts.size();
    part->name = whole.name;
    part->pci_bus = whole.pci_bus;
    part->memory = memory;
    part->whole = &whole;
    memcpy(part->uuid, whole.uuid, sizeof part->uuid);
    part->uuid[14] = (unsigned char)(parts.size() + 1);
    whole.mig = 1;
    parts.push_back(std::move(part));
    return *parts.back();
}

// A device that is a part of a GPU, with that GPU where it is not there yet.
void follow_part(const CudaDevice& device, int index) {
    const auto same = [&](const auto& gpu) { return gpu->pci_bus == device.pci_bus; };
    auto found = std::find_if(gpus.begin(), gpus.end(), same);
    if (found == gpus.end()) {
        auto whole = std::make_unique<Gpu>();
        whole->name = device.name;
        whole->memory = 80ull << 30;
        whole->pci_bus = device.pci_bus;
        memcpy(whole->uuid, device.uuid, sizeof whole->uuid);
        whole->uuid[14] = 0;
        gpus.push_back(std::move(whole));
        found = gpus.end() - 1;
    }
    Gpu& part = add_part(**found, device.memory);
    part.followed = index;
    memcpy(part.uuid, device.uuid, sizeof part.uuid);
}

std::string follow_cuda() {
    void* library = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    cuda.find = library ? (decltype(cuda.find))dlsym(library, "fake_cuda_for_nvml") : nullptr;
    cuda.set = library ? (decltype(cuda.set))dlsym(library, "fake_cuda_from_nvml") : nullptr;
    if (!cuda.find || !cuda.set) return "no fake CUDA driver is loaded in this process";
    CudaDevice device;
    for (int index = 0; cuda.find(index, &device); ++index) {
        if (device.part) {
            follow_part(device, index);
            continue;
        }
        auto gpu = std::make_unique<Gpu>();
        gpu->followed = index;
        gpu->name = device.name;
        gpu->memory = device.memory;
        gpu->pci_bus = device.pci_bus;
        memcpy(gpu->uuid, device.uuid, sizeof gpu->uuid);
        gpus.push_back(std::move(gpu));
    }
    return "";
}

std::string set_gpus(const std::string& text) {
    parts.clear();
    gpus.clear();
    rules.clear();
    cuda = {};
    own_pid = (u64)getpid();
    std::string wrong;
    Words words;
    if (read(text, {"follow"}, words).empty() && words.count("follow")) {
        wrong = follow_cuda();
    } else {
        for (const std::string& group : script::split(text, "|"))
            if (wrong.empty()) wrong = add_gpus(group);
    }
    put_in_order();
    for (EventSet* set : event_sets) set->masks.assign(gpus.size(), 0), set->waiting.clear();
    changed.notify_all();
    return wrong;
}

u64 held_by_others(const Gpu& gpu) {
    u64 sum = 0;
    for (const Process& process : gpu.processes)
        if (!process.own && !process.tenant && process.memory != NOT_AVAILABLE) sum += process.memory;
    return sum;
}

void set_lost(Gpu& gpu, bool lost) {
    gpu.lost = lost;
    if (gpu.followed >= 0) cuda.set(gpu.followed, held_by_others(gpu), lost);
    changed.notify_all();
}

std::string set_process(Gpu& gpu, Words& words, bool ends) {
    const bool own = words["pid"] == "own";
    const unsigned pid = own ? (unsigned)own_pid : (unsigned)number(words, "pid", 0);
    if (!pid) return "a process needs a pid";
    const auto same = [&](const Process& process) { return process.pid == pid; };
    gpu.processes.erase(std::remove_if(gpu.processes.begin(), gpu.processes.end(), same), gpu.processes.end());
    if (!ends) {
        const u64 memory = words["memory"] == "unknown" ? NOT_AVAILABLE : number(words, "memory", 0);
        gpu.processes.push_back({pid, memory, words.count("graphics") != 0, own, false});
    }
    if (gpu.followed >= 0) cuda.set(gpu.followed, held_by_others(gpu), gpu.lost);
    return "";
}

std::string obey(const std::string& line) {
    const auto [verb, rest] = script::verb_of(line);
    const Locked locked(lock);
    if (verb.empty()) return "";
    if (verb == "gpus") return set_gpus(rest);
    if (verb == "fault") return rules.add(rest);
    if (verb == "release" || verb == "clear") {
        if (verb == "clear") rules.clear();
        else rules.release();
        changed.notify_all();
        return "";
    }
    std::vector<std::string> known = {"gpu", "pid", "memory", "graphics", "code", "double", "single"};
    if (verb == "set")
        for (const Reading& reading : READINGS) known.push_back(reading.key);
    Words words;
    const std::string wrong = read(rest, known, words);
    if (!wrong.empty()) return wrong;
    if (verb == "own") return own_pid = number(words, "pid", 0), "";
    const u64 at = number(words, "gpu", ~0ull);
    const bool part = at >= PARTS && at - PARTS < parts.size();
    if (!part && at >= gpus.size()) return "no such GPU";
    Gpu& gpu = part ? *parts[at - PARTS] : *gpus[at];
    if (verb == "set") {
        for (const Reading& reading : READINGS)
            if (words.count(reading.key)) gpu.*reading.field = number(words, reading.key, 0);
    } else if (verb == "process" || verb == "end") {
        return set_process(gpu, words, verb == "end");
    } else if (verb == "part") {
        add_part(gpu, number(words, "memory", 10ull << 30));
    } else if (verb == "xid") {
        raise_event(gpu, EVENT_XID, number(words, "code", 0));
    } else if (verb == "ecc_event") {
        raise_event(gpu, words.count("double") ? EVENT_DOUBLE_BIT : EVENT_SINGLE_BIT, 0);
    } else if (verb == "lose" || verb == "find") {
        set_lost(gpu, verb == "lose");
    } else {
        return "unknown line " + verb;
    }
    return "";
}

}  // namespace

void follow(Gpu& gpu) {
    CudaDevice device;
    if (gpu.followed < 0 || !cuda.find(gpu.followed, &device)) return;
    gpu.used = device.own + device.foreign;
    for (int i = 0; i < device.tenants; ++i) gpu.used += device.bytes[i];
    gpu.lost = device.lost;
    const auto ours = [](const Process& process) { return process.own || process.tenant; };
    gpu.processes.erase(std::remove_if(gpu.processes.begin(), gpu.processes.end(), ours), gpu.processes.end());
    if (device.has_context && own_pid) gpu.processes.push_back({(unsigned)own_pid, device.own, false, true, false});
    for (int i = 0; i < device.tenants; ++i) gpu.processes.push_back({device.pids[i], device.bytes[i], false, false, true});
}

static void begin() {
    static std::once_flag once;
    std::call_once(once, [] {
        obey("gpus");
        const char* lines = getenv("FAKE_NVML");
        for (const std::string& line : script::split(lines ? lines : "", ";\n")) {
            const std::string wrong = obey(line);
            if (wrong.empty()) continue;
            fprintf(stderr, "fake NVML: FAKE_NVML: %s: %s\n", line.c_str(), wrong.c_str());
            abort();
        }
        told::listen("nvml", {"set", "process", "end", "own", "lose", "find"}, obey);
    });
}

int fault(const char* call, int gpu) {
    begin();
    Locked locked(lock);
    const script::Effects effects = rules.meet({call}, gpu);
    if (effects.lost && gpu >= 0 && gpu < (int)gpus.size()) set_lost(*gpus[(size_t)gpu], true);
    const u64 seen = rules.releases;
    if (effects.hang) changed.wait(locked, [&] { return rules.releases != seen; });
    locked.unlock();
    if (effects.sleep_us) std::this_thread::sleep_for(std::chrono::microseconds(effects.sleep_us));
    return effects.lost ? effects.lost : effects.code;
}

// Null, or what is wrong with the line; then to be given to fake_nvml_free.
EXPORT char* fake_nvml_tell(const char* line) {
    begin();
    const std::string wrong = obey(line);
    return wrong.empty() ? nullptr : strdup(wrong.c_str());
}

EXPORT void fake_nvml_free(char* text) { free(text); }
