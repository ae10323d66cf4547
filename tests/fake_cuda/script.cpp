/*
script: what a test says to the fake, one line each, in words and key=value pairs.

    devices [count=N] [name=TEXT] [memory=8GiB] [pci=N] [capability=9.0] [processors=N] [context=BYTES] [pools=0] [| ...]
                                  all as after loading, with these; refused while a context is held
    fault on=WHAT [device=N] [after=N] [times=N|always] EFFECT...
                                  WHAT is a call (cuMemAllocAsync, cuMemAlloc*) or an operation of a stream (copy_in, copy_out,
                                  copy, memset, kernel, kernel:NAME, host, free, record, wait); the first N that match are let
                                  pass, the next `times` (1) are not. Effects:
        code=N                    a call returns it; an operation ends its context with it
        sleep_us=N                it takes so much longer
        hang                      it waits for `release`
        lost=N                    the device falls off the bus: all its calls return N from now on
    poison device=N code=N        as if an operation had failed now
    lose device=N [code=N]        falls off the bus now
    find device=N                 is back on the bus
    foreign device=N bytes=SIZE   other processes hold so much of its memory
    slow device=N factor=F        its operations take F times as long
    driver version=12090          as cuDriverGetVersion gives it
    release                       what hangs goes on, and nothing hangs any more
    clear                         no rule is left, and nothing hangs

Devices are numbered as CUDA_VISIBLE_DEVICES leaves them once cuInit was called, before in the order of `devices`. At load, lines are taken from FAKE_CUDA,
separated by semicolons. Sizes end with KiB, MiB or GiB.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"

namespace {

struct Rule {
    std::string on;
    int device = -1;
    long after = 0, times = 1;
    int code = 0, lost = 0;
    u64 sleep_us = 0;
    bool hang = false;
};

std::vector<Rule> rules;
u64 releases = 0;

// ---- words ---------------------------------------------------------------------------------------------------------------

typedef std::map<std::string, std::string> Words;

std::vector<std::string> split(const std::string& text, const char* separators) {
    std::vector<std::string> parts(1);
    for (const char c : text)
        if (strchr(separators, c)) parts.emplace_back();
        else parts.back() += c;
    return parts;
}

// The pairs of a line, or what is wrong with it. Words without a value have an empty one.
std::string read(const std::string& line, const std::vector<std::string>& known, Words& words) {
    for (const std::string& word : split(line, " \t")) {
        if (word.empty()) continue;
        const size_t equals = word.find('=');
        const std::string key = word.substr(0, equals);
        if (std::find(known.begin(), known.end(), key) == known.end()) return "unknown word " + key;
        words[key] = equals == std::string::npos ? "" : word.substr(equals + 1);
    }
    return "";
}

bool size_of(const std::string& text, u64& size) {
    char* end = nullptr;
    const double number = strtod(text.c_str(), &end);
    const std::string unit = end;
    const int shift = unit.empty() ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
    size = (u64)(number * (double)(1ull << std::max(shift, 0)));
    return end != text.c_str() && shift >= 0 && number >= 0;
}

u64 number(const Words& words, const char* key, u64 otherwise) {
    const auto found = words.find(key);
    u64 value = 0;
    return found != words.end() && size_of(found->second, value) ? value : otherwise;
}

Device* device_named(const Words& words) {
    const u64 ordinal = number(words, "device", ~0ull);
    if (world.initialised) return ordinal < world.visible.size() ? world.visible[ordinal] : nullptr;
    return ordinal < world.devices.size() ? world.devices[ordinal].get() : nullptr;
}

// ---- lines ---------------------------------------------------------------------------------------------------------------

std::string add_devices(const std::string& group) {
    Words words;
    const std::string wrong = read(group, {"count", "name", "memory", "pci", "capability", "processors", "context", "pools"}, words);
    if (!wrong.empty()) return wrong;
    for (u64 i = 0; i < number(words, "count", 1); ++i) {
        auto device = std::make_unique<Device>();
        device->index = device->ordinal = (int)world.devices.size();
        device->name = words.count("name") ? words["name"] : "Fake-GPU";
        device->memory = number(words, "memory", 16ull << 30);
        device->pci_bus = (int)number(words, "pci", (u64)device->index + 1) + (words.count("pci") ? (int)i : 0);
        device->uuid[0] = 0xfa;
        device->uuid[15] = (unsigned char)device->pci_bus;
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

std::string add_fault(const std::string& rest) {
    Words words;
    const std::string wrong = read(rest, {"on", "device", "after", "times", "code", "sleep_us", "hang", "lost"}, words);
    if (!wrong.empty()) return wrong;
    Rule rule;
    rule.on = words["on"];
    rule.device = (int)number(words, "device", ~0ull);
    rule.after = (long)number(words, "after", 0);
    rule.times = words.count("times") && words["times"] == "always" ? -1 : (long)number(words, "times", 1);
    rule.code = (int)number(words, "code", 0);
    rule.lost = (int)number(words, "lost", 0);
    rule.sleep_us = number(words, "sleep_us", 0);
    rule.hang = words.count("hang") != 0;
    if (rule.on.empty()) return "a fault needs on=WHAT";
    if (!rule.code && !rule.lost && !rule.sleep_us && !rule.hang) return "a fault needs an effect";
    rules.push_back(std::move(rule));
    return "";
}

void lose(Device& device, int code, const Locked& locked) {
    device.lost = code;
    if (device.context) poison(*device.context, code, locked);
}

std::string obey(const std::string& line) {
    const size_t begin = line.find_first_not_of(" \t\n");
    if (begin == std::string::npos) return "";
    const size_t space = line.find_first_of(" \t", begin);
    const std::string verb = line.substr(begin, space == std::string::npos ? space : space - begin);
    const std::string rest = space == std::string::npos ? "" : line.substr(space);
    if (verb == "devices") return set_devices(rest);
    const Locked locked(lock);
    if (verb == "fault") return add_fault(rest);
    if (verb == "release" || verb == "clear") {
        rules.erase(std::remove_if(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.hang || verb == "clear"; }),
                    rules.end());
        ++releases;
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

bool matches(const std::string& pattern, const std::string& what, const std::string& detail) {
    const auto like = [&](const std::string& name) {
        if (!pattern.empty() && pattern.back() == '*') return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
        return name == pattern;
    };
    return like(what) || (!detail.empty() && like(what + ":" + detail));
}

}  // namespace

int fault(const std::string& what, const std::string& detail, Device* device, const Context* context) {
    Locked locked(lock);
    u64 sleep_us = 0;
    int code = 0;
    bool hang = false;
    for (Rule& rule : rules) {
        if (!matches(rule.on, what, detail)) continue;
        if (rule.device >= 0 && (!device || device->ordinal != rule.device)) continue;
        if (rule.after > 0) {
            --rule.after;
            continue;
        }
        if (!rule.times) continue;
        if (rule.times > 0) --rule.times;
        sleep_us += rule.sleep_us;
        hang |= rule.hang;
        if (!code) code = rule.code;
        if (rule.lost && device) {
            lose(*device, rule.lost, locked);
            code = rule.lost;
        }
    }
    const u64 seen = releases;
    if (hang) changed.wait(locked, [&] { return releases != seen || (context && context->sticky); });
    locked.unlock();
    if (sleep_us) std::this_thread::sleep_for(std::chrono::microseconds(sleep_us));
    return code;
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

// Null, or what is wrong with the line; then to be given to fake_cuda_free.
EXPORT char* fake_cuda_tell(const char* line) {
    const std::string wrong = obey(line);
    return wrong.empty() ? nullptr : strdup(wrong.c_str());
}

void read_environment() {
    set_devices("");
    const char* script = getenv("FAKE_CUDA");
    if (!script) return;
    for (const std::string& line : split(script, ";\n")) {
        const std::string wrong = obey(line);
        if (!wrong.empty()) world.complaint = "FAKE_CUDA: " + line + ": " + wrong;
    }
}

__attribute__((constructor)) static void loaded() {
    now_ns();
    read_environment();
}
