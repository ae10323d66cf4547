/*
nvjpeg: the calls of nvJPEG that the product makes, on the fake CUDA driver.

It decodes with what a test gives to fake_nvjpeg_use: a function that gives a file's size (where `rgb` is null) or fills red, green and
blue without gaps, and returns nvJPEG's status. Pixels appear at their place in the order of the stream, by a function that the
driver is asked to run there. Where a file is refused, what was begun of those before it in the batch is written later, by a thread that
no stream shows and that only the end of the state waits for, as hardware may. Making and ending a decoder wait for the whole device, as
allocating may. What can be said to it, one line each:

    fault on=CALL ...       see ../fakes/script.h; a code is the status that a call returns. `file` is each file of a batch
    engines N               of the GPU for JPEGs; 0 refuses the hardware backend
    clear                   no rule is left, one engine, empty books
*/
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../fakes/script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef int (*Decode)(const unsigned char* bytes, size_t length, int* width, int* height, unsigned char* rgb);

enum { NOT_INITIALIZED = 1, INVALID_PARAMETER = 2, BAD_JPEG = 3, EXECUTION_FAILED = 6, ARCH_MISMATCH = 7 };

namespace {

std::mutex lock;
script::Rules& rules = *new script::Rules;
std::atomic<Decode> decode{nullptr};
int engines = 1;
std::atomic<long> handles{0}, states{0}, batches{0}, files{0}, made{0};

struct Handle {
    int backend;
};
struct State {
    int batch;
    std::vector<std::thread> late;
};
struct Image {
    unsigned char* planes[4];
    size_t pitches[4];
};

// A call of the driver that this process has loaded.
template <class Call> Call driver(const char* name) {
    void* library = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? (Call)dlsym(library, name) : nullptr;
}

int fault(const char* call) {
    const std::lock_guard<std::mutex> locked(lock);
    return rules.meet({call}, -1).code;
}

// What is written when the stream comes to it.
struct Write {
    Image target;
    int width, height;
    std::vector<unsigned char> rgb;
};

void write_all(void* given) {
    const std::unique_ptr<std::vector<Write>> writes((std::vector<Write>*)given);
    for (const Write& write : *writes)
        for (int y = 0; y < write.height; ++y)
            memcpy(write.target.planes[0] + write.target.pitches[0] * (size_t)y, write.rgb.data() + (size_t)write.width * 3 * (size_t)y,
                   (size_t)write.width * 3);
}

// Long enough for whoever does not wait to have done something else with the memory.
constexpr std::chrono::milliseconds LATE(30);

// Begins to write what no stream shows. The driver ends the process where the memory was freed before.
void write_late(State& state, std::vector<Write> writes) {
    const auto current = driver<int (*)(void**)>("cuCtxGetCurrent");
    void* context = nullptr;
    if (writes.empty() || !current || current(&context)) return;
    state.late.emplace_back([writes = std::move(writes), context] {
        std::this_thread::sleep_for(LATE);
        const auto enter = driver<int (*)(void*)>("cuCtxSetCurrent");
        const auto copy = driver<int (*)(void*, const void*, size_t)>("cuMemcpyHtoD_v2");
        if (!enter || !copy || enter(context)) return;
        for (const Write& write : writes) copy(write.target.planes[0], write.rgb.data(), write.rgb.size());
    });
}

int wait_for_device() {
    const auto wait = driver<int (*)()>("cuCtxSynchronize");
    return wait ? wait() : NOT_INITIALIZED;
}

}  // namespace

EXPORT int nvjpegCreateEx(int backend, void*, void*, unsigned, Handle** handle) {
    if (const int code = fault("nvjpegCreateEx")) return code;
    const auto current = driver<int (*)(void**)>("cuCtxGetCurrent");
    void* context = nullptr;
    if (!current || current(&context) || !context) return NOT_INITIALIZED;
    if (backend == 3 && engines == 0) return ARCH_MISMATCH;
    if (wait_for_device()) return EXECUTION_FAILED;
    *handle = new Handle{backend};
    ++handles;
    ++made;
    return 0;
}

EXPORT int nvjpegDestroy(Handle* handle) {
    if (!handle) return INVALID_PARAMETER;
    wait_for_device();
    delete handle;
    --handles;
    return 0;
}

EXPORT int nvjpegJpegStateCreate(Handle* handle, State** state) {
    if (const int code = fault("nvjpegJpegStateCreate")) return code;
    if (!handle) return INVALID_PARAMETER;
    *state = new State{0, {}};
    ++states;
    return 0;
}

EXPORT int nvjpegJpegStateDestroy(State* state) {
    if (!state) return INVALID_PARAMETER;
    for (std::thread& late : state->late) late.join();
    delete state;
    --states;
    return 0;
}

EXPORT int nvjpegDecodeBatchedInitialize(Handle* handle, State* state, int batch, int threads, int format) {
    if (const int code = fault("nvjpegDecodeBatchedInitialize")) return code;
    if (!handle || !state || batch < 1 || threads < 1 || format != 5) return INVALID_PARAMETER;
    state->batch = batch;
    return 0;
}

EXPORT int nvjpegDecodeBatched(Handle* handle, State* state, const unsigned char* const* data, const size_t* lengths, Image* targets,
                               void* stream) {
    if (const int code = fault("nvjpegDecodeBatched")) return code;
    if (!handle || !state || state->batch < 1 || !decode) return INVALID_PARAMETER;
    ++batches;
    auto writes = std::make_unique<std::vector<Write>>();
    for (int i = 0; i < state->batch; ++i) {
        Write write{targets[i], 0, 0, {}};
        int code = fault("file");
        if (!code) code = decode.load()(data[i], lengths[i], &write.width, &write.height, nullptr);
        write.rgb.resize((size_t)write.width * (size_t)write.height * 3);
        if (!code) code = decode.load()(data[i], lengths[i], &write.width, &write.height, write.rgb.data());
        if (code) {
            write_late(*state, std::move(*writes));
            return code;
        }
        writes->push_back(std::move(write));
    }
    files += state->batch;
    const auto launch = driver<int (*)(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
    if (!launch || launch(stream, write_all, writes.get())) return EXECUTION_FAILED;
    writes.release();
    return 0;
}

EXPORT void fake_nvjpeg_use(Decode with) { decode = with; }

// Handles and states that are there, batches and files that were decoded, handles that were made.
EXPORT void fake_nvjpeg_books(long* books) {
    books[0] = handles;
    books[1] = states;
    books[2] = batches;
    books[3] = files;
    books[4] = made;
}

// Whether the line was understood.
EXPORT bool fake_nvjpeg_tell(const char* line) {
    const auto [verb, rest] = script::verb_of(line);
    const std::lock_guard<std::mutex> locked(lock);
    if (verb == "fault") return rules.add(rest).empty();
    if (verb == "engines") return sscanf(rest.c_str(), "%d", &engines) == 1;
    if (verb != "clear") return false;
    rules.clear();
    engines = 1;
    // What a broken context took along is nobody's.
    handles = states = batches = files = made = 0;
    return true;
}
