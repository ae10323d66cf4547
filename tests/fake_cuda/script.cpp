/*
script: what a test says to the fake, one line each, in words and key=value pairs.

    devices [count=N] [name=TEXT] [memory=8GiB] [pci=N] [capability=9.0] [processors=N] [context=BYTES] [pools=0] [part=K]
            [mode=N] [| ...]
                                  all as after loading, with these; refused while a context is held. part: the device is
                                  the K-th part (MIG) of the GPU on its bus. mode: its compute mode; 2 is PROHIBITED
    fault on=WHAT ...             see ../fakes/script.h. WHAT is a call (cuMemAllocAsync, cuMemAlloc*) or an operation of a stream
                                  (copy_in, copy_out, copy, memset, kernel, kernel:NAME, host, free, record, wait); a code
                                  is what a call returns, or what an operation ends its context with
    poison device=N code=N        as if an operation had failed now
    retain device=N               a library keeps the device's context until the process ends, as CUDA's runtime does
    lose device=N [code=N]        falls off the bus now
    find device=N                 is back on the bus
    foreign device=N bytes=SIZE   other processes hold so much of its memory
    slow device=N factor=F        its operations take F times as long
    driver version=12090          as cuDriverGetVersion gives it
    release                       what hangs goes on, and nothing hangs any more
    clear                         no rule is left, and nothing hangs

Devices are numbered as CUDA_VISIBLE_DEVICES leaves them once cuInit was called, before in the order of `devices`. Before the first
call, lines are taken from FAKE_CUDA, separated by semicolons, and then for as long as the process lives from ../fakes/told.h.
*/
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fakes/script.h"
#include "../fakes/told.h"
#include "driver.h"

void lose(Device& device, int code, const Locked& locked) {
    device.lost = code;
    if (device.context) poison(*device.context, code, locked);
}

using script::number;
using script::read;
using script::split;
using script::Words;

namespace {

script::Rules& rules = *new script::Rules;

Device* device_named(const Words& words) {
    const u64 ordinal = number(words, "device", ~0ull);
    if (world.initialised) return ordinal < world.visible.size() ? world.visible[ordinal] : nullptr;
    return ordinal < world.devices.size() ? world.devices[ordinal].get() : nullptr;
}

// Ends the process as a library does that aborts, or reads where nothing is.
void end_by(int signal) {
    fprintf(stderr, "fake driver: ended by signal %d\n", signal);
    // Sent by hand, it would only be noted by the handler that looks for overflown stacks.
    if (signal == SIGSEGV) *(volatile int*)8 = 0;
    if (signal == SIGABRT) abort();
    raise(signal);
}

// ---- lines ---------------------------------------------------------------------------------------------------------------

std::string add_devices(const std::string& group) {
    Words words;
    const std::string wrong = read(group, {"count", "name", "memory", "pci", "capability", "processors", "context", "pools", "part", "mode"}, words);
    if (!wrong.empty()) return wrong;
    for (u64 i = 0; i < number(words, "count", 1); ++i) {
        auto device = std::make_unique<Device>();
        device->index = device->ordinal = (int)world.devices.size();
        device->name = words.count("name") ? words["name"] : "Fake-GPU";
        device->memory = number(words, "memory", 16ull << 30);
        device->pci_bus = (int)number(words, "pci", (u64)device->index + 1) + (words.count("pci") ? (int)i : 0);
        device->uuid[0] = 0xfa;
        device->uuid[15] = (unsigned char)device->pci_bus;
        device->part = (int)number(words, "part", 0);
        device->uuid[14] = (unsigned char)device->part;
        device->compute_mode = (int)number(words, "mode", 0);
        device->major = 9;
        if (words.count("capability")) sscanf(words["capability"].c_str(), "%d.%d", &device->major, &device->minor);
        device->processors = (int)number(words, "processors", 132);
        device->context_bytes = number(words, "context", 0);
        device->pools_supported = number(words, "pools", 1) != 0;
        device->default_pool = device->pool = std::make_shared<Pool>();
        device->pool->device = device.get();
        device->pool->is_default = true;
        pools.add(device->pool);
        world.devices.push_back(std::move(device));
    }
    return "";
}

std::string obey(const std::string& line) {
    const auto [verb, rest] = script::verb_of(line);
    if (verb.empty()) return "";
    if (verb == "devices") return set_devices(rest);
    const Locked locked(lock);
    if (verb == "fault") return rules.add(rest);
    if (verb == "release" || verb == "clear") {
        if (verb == "clear") rules.clear();
        else rules.release();
        changed.notify_all();
        return "";
    }
    Words words;
    const std::string wrong = read(rest, {"device", "code", "bytes", "factor", "version"}, words);
    if (!wrong.empty()) return wrong;
    if (verb == "driver") return world.driver_version = (int)number(words, "version", 12090), "";
    Device* device = device_named(words);
    if (!device) return "no such device";
    if (verb == "poison") {
        if (!device->context) return "the device has no context";
        poison(*device->context, (int)number(words, "code", ILLEGAL_ADDRESS), locked);
    } else if (verb == "retain") {
        if (!device->context) return "the device has no context";
        ++device->references;
    } else if (verb == "lose") {
        lose(*device, (int)number(words, "code", UNKNOWN), locked);
    } else if (verb == "find") {
        device->lost = 0;
    } else if (verb == "foreign") {
        device->foreign = number(words, "bytes", 0);
    } else if (verb == "slow") {
        device->slow = strtod(words["factor"].c_str(), nullptr);
    } else {
        return "unknown line " + verb;
    }
    return "";
}

}  // namespace

int fault(const std::string& what, const std::string& detail, Device* device, const Context* context) {
    Locked locked(lock);
    const script::Effects effects = rules.meet({what, detail.empty() ? what : what + ":" + detail}, device ? device->ordinal : -1);
    if (effects.lost && device) lose(*device, effects.lost, locked);
    const u64 seen = rules.releases;
    if (effects.hang) changed.wait(locked, [&] { return rules.releases != seen || (context && context->sticky); });
    locked.unlock();
    if (effects.signal) end_by(effects.signal);
    if (effects.sleep_us) std::this_thread::sleep_for(std::chrono::microseconds(effects.sleep_us));
    return effects.lost && device ? effects.lost : effects.code;
}

std::string set_devices(const std::string& text) {
    const Locked locked(lock);
    for (auto& device : world.devices)
        if (device->references || device->context)
            return "device " + std::to_string(device->ordinal) + " (" + device->name + ") has a context still";
    rules.clear();
    clear_log();
    pools.live.clear();
    world.initialised = false;
    world.visible.clear();
    world.devices.clear();
    world.calls.clear();
    world.driver_version = 12090;
    for (const std::string& group : split(text, "|")) {
        const std::string wrong = add_devices(group);
        if (!wrong.empty()) return wrong;
    }
    return "";
}

void begin() {
    static std::once_flag once;
    std::call_once(once, [] {
        join_shared();
        set_devices("");
        const char* lines = getenv("FAKE_CUDA");
        for (const std::string& line : split(lines ? lines : "", ";\n")) {
            const std::string wrong = obey(line);
            if (!wrong.empty()) violation("FAKE_CUDA: %s: %s", line.c_str(), wrong.c_str());
        }
        told::listen("cuda", {"lose", "find", "foreign", "slow"}, obey);
        write_books_at_exit();
    });
}

// Null, or what is wrong with the line; then to be given to fake_cuda_free.
EXPORT char* fake_cuda_tell(const char* line) {
    begin();
    const std::string wrong = obey(line);
    return wrong.empty() ? nullptr : strdup(wrong.c_str());
}
