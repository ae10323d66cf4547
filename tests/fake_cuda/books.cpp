/*
books: what was taken and not given back, what was called, and when operations ran, as JSON.

    fake_cuda_books()   devices with what they hold, and calls by name
    fake_cuda_log()     operations in the order they ended: device, stream, kind, kernel, bytes, begin and end in ns, code
    fake_cuda_free()    gives either text back

Where FAKE_CUDA_BOOKS names a file, the books are written to it when the process ends: so a test reads those of a process that it
started. Where FAKE_CUDA_LOG names a folder, each process writes its operations to a file of its own there as they end, one on a
line: so a test sees what a process does while it runs.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

namespace {

struct Logged {
    int device;
    u64 stream;
    Kind kind;
    std::string name;
    u64 bytes, begin_ns, end_ns;
    int code;
};

constexpr size_t LOGGED_MAX = 65536;
std::mutex& log_lock = *new std::mutex;
auto& logged = *new std::deque<Logged>;
u64 forgotten = 0;

std::string field(const char* name, u64 value) { return "\"" + std::string(name) + "\":" + std::to_string(value); }
std::string field(const char* name, const std::string& value) { return "\"" + std::string(name) + "\":\"" + value + "\""; }

std::string hex(const unsigned char* bytes, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", bytes[i]);
        text += digits;
    }
    return text;
}

std::string device_books(const Device& device) {
    const auto ours = [&](const auto& thing) { return thing.context->device == &device; };
    u64 allocated = 0, allocations_count = 0, pinned = 0, registered = 0, pool_used = 0;
    for (const auto& entry : allocations)
        if (ours(entry.second)) allocated += entry.second.bytes, ++allocations_count;
    for (const auto& entry : host_memory)
        if (ours(entry.second)) (entry.second.registered ? registered : pinned) += entry.second.bytes;
    u64 extra_pools = 0;
    for (const auto& entry : pools.live)
        if (entry.second->device == &device) pool_used += entry.second->used, extra_pools += !entry.second->is_default;
    const Handle legacy = device.context ? device.context->legacy : nullptr;
    u64 own_streams = 0;
    for (const auto& entry : streams.live) own_streams += ours(*entry.second) && (Handle)entry.first != legacy;
    return "{" + field("ordinal", (u64)device.ordinal) + "," + field("name", device.name) + "," +
           field("uuid", hex(device.uuid, 16)) + "," + field("pci_bus", (u64)device.pci_bus) + "," +
           field("memory", device.memory) + "," + field("foreign", device.foreign) + "," + field("own", device.own()) + "," +
           field("contexts", (u64)device.references) + "," + field("contexts_made", device.contexts_made) + "," +
           field("sticky", device.context ? (u64)device.context->sticky.load() : 0) + "," + field("lost", (u64)device.lost) + "," +
           field("allocations", allocations_count) + "," + field("allocated", allocated) + "," +
           field("pool_used", pool_used) + "," + field("pool_reserved", device.reserved()) + "," +
           field("pools", extra_pools) + "," + field("pinned", pinned) + "," + field("registered", registered) + "," +
           field("streams", own_streams) + "," + field("events", events.count_if(ours)) + "," +
           field("modules", count_modules(device)) + "," + field("graphs", graphs.count_if(ours)) + "," +
           field("executables", executables.count_if(ours)) + "," + field("left_behind", device.left_behind) + "," +
           field("running", device.running) + "," + field("launches", device.launches) + "," + field("copied_in", device.copied_in) + "," +
           field("copied_out", device.copied_out) + "}";
}

std::string books() {
    const Locked locked(lock);
    std::string text = "{\"devices\":[";
    for (const auto& device : world.devices) text += (device->index ? "," : "") + device_books(*device);
    text += "],\"calls\":{";
    bool first = true;
    for (const auto& call : world.calls) {
        text += (first ? "" : ",") + field(call.first.c_str(), call.second);
        first = false;
    }
    return text + "}}";
}

std::string line(const Logged& entry) {
    return "{" + field("device", (u64)entry.device) + "," + field("stream", entry.stream) + "," +
           field("kind", kind_name(entry.kind)) + "," + field("kernel", entry.name) + "," + field("bytes", entry.bytes) + "," +
           field("begin_ns", entry.begin_ns) + "," + field("end_ns", entry.end_ns) + "," + field("code", (u64)entry.code) + "}";
}

// Nothing if no folder is named.
FILE* log_file() {
    static FILE* file = [] {
        const char* folder = getenv("FAKE_CUDA_LOG");
        if (!folder) return (FILE*)nullptr;
        const std::string path = folder + std::to_string(getpid());
        FILE* file = fopen(path.c_str(), "a");
        if (!file) violation("FAKE_CUDA_LOG: cannot write %s", path.c_str());
        return file;
    }();
    return file;
}

void write_books() {
    std::string path = getenv("FAKE_CUDA_BOOKS");
    // A folder has the books of many processes.
    if (path.back() == '/') path += std::to_string(getpid());
    FILE* file = fopen(path.c_str(), "w");
    if (!file) violation("FAKE_CUDA_BOOKS: cannot write %s", path.c_str());
    fputs(books().c_str(), file);
    fclose(file);
}

}  // namespace

void write_books_at_exit() {
    if (getenv("FAKE_CUDA_BOOKS")) atexit(write_books);
}

void log_operation(const Stream& stream, const Operation& operation, u64 begin_ns, u64 end_ns, int code) {
    const std::lock_guard<std::mutex> locked(log_lock);
    logged.push_back({stream.context->device->ordinal, stream.number, operation.kind, operation.name, operation.bytes, begin_ns,
                      end_ns, code});
    if (FILE* file = log_file()) fprintf(file, "%s\n", line(logged.back()).c_str()), fflush(file);
    if (logged.size() > LOGGED_MAX) logged.pop_front(), ++forgotten;
}

void clear_log() {
    const std::lock_guard<std::mutex> locked(log_lock);
    logged.clear();
    forgotten = 0;
}

EXPORT char* fake_cuda_books() {
    begin();
    return strdup(books().c_str());
}

EXPORT char* fake_cuda_log() {
    const std::lock_guard<std::mutex> locked(log_lock);
    std::string text = "{" + field("forgotten", forgotten) + ",\"operations\":[";
    bool first = true;
    for (const Logged& entry : logged) {
        text += (first ? "" : ",") + line(entry);
        first = false;
    }
    return strdup((text + "]}").c_str());
}

EXPORT void fake_cuda_free(char* text) { free(text); }
