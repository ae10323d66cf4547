/*
module: PTX modules, their functions and launches.

The PTX is not run. It is read for what a driver would refuse and for its entries; a launch runs the entry of the same name that
was compiled for the host.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"
#include "../machine/entries.h"

// What the PTX says of an entry.
struct Declared {
    std::vector<size_t> sizes;  // of its parameters
    u64 threads_max = THREADS_PER_BLOCK_MAX;
    int shared_bytes = 0;       // that its blocks share, beside what a launch asks for
};

struct Module {
    std::shared_ptr<Context> context;
    std::map<std::string, Declared> entries;
};

struct Function {
    std::shared_ptr<Context> context;
    const Module* module;
    const Entry* entry;
    u64 threads_max = 0;
    int shared_bytes = 0;
    int dynamic_shared_max = 0;
};

static auto& modules = *new Handles<Module>{"module", 0x30, 0, {}};
static auto& functions = *new Handles<Function>{"function", 0xF0, 0, {}};

void forget_modules(const Context& context) {
    modules.remove_if([&](const Module& module) { return module.context.get() == &context; });
    functions.remove_if([&](const Function& function) { return function.context.get() == &context; });
}

u64 count_modules(const Device& device) {
    return modules.count_if([&](const Module& module) { return module.context->device == &device; });
}

// ---- PTX -----------------------------------------------------------------------------------------------------------------

static std::string without_comments(const char* text) {
    std::string kept;
    for (const char* at = text; *at; ++at) {
        if (at[0] == '/' && at[1] == '/') {
            while (at[1] && at[1] != '\n') ++at;
        } else if (at[0] == '/' && at[1] == '*') {
            const char* end = strstr(at, "*/");
            if (!end) break;
            at = end + 1;
        } else {
            kept += *at;
        }
    }
    return kept;
}

// `.param .align 8 .b8 name[312]` or `.param .u64 name`.
static size_t parameter_size(const std::string& declared) {
    size_t element = 0;
    for (size_t at = 0; (at = declared.find('.', at)) != std::string::npos; ++at) {
        const char kind = declared[at + 1];
        const int bits = atoi(declared.c_str() + at + 2);
        if (strchr("bsuf", kind) && bits >= 8) element = (size_t)bits / 8;
    }
    const size_t bracket = declared.find('[');
    return bracket == std::string::npos ? element : element * strtoul(declared.c_str() + bracket + 1, nullptr, 10);
}

// How many threads a block may have (`.maxntid 32, 8, 1` between the parameters and the body), and what its body declares as shared
// (`.shared .align 4 .b8 name[372];`).
static void read_bounds(const std::string& text, size_t entry, size_t body, Declared& declared) {
    const size_t bound = text.find(".maxntid", entry);
    unsigned x = 1, y = 1, z = 1;
    if (bound < body && sscanf(text.c_str() + bound, ".maxntid %u, %u, %u", &x, &y, &z) >= 1)
        declared.threads_max = std::min(declared.threads_max, (u64)x * y * z);
    // Names are not those of other entries, so the next of them ends this one.
    const size_t end = std::min(text.find(".entry", body), text.size());
    u64 bytes = 0;
    for (size_t at = body; (at = text.find(".shared .align ", at)) < end; ++at) {
        const u64 aligned = strtoul(text.c_str() + at + 15, nullptr, 10);
        const size_t semicolon = text.find(';', at);
        bytes = (bytes + aligned - 1) / aligned * aligned + parameter_size(text.substr(at + 7, semicolon - at - 7));
    }
    declared.shared_bytes = (int)bytes;
}

static int read_ptx(const char* image, const Device& device, Module& module, std::string& why) {
    if (!memcmp(image, "\x7f" "ELF", 4)) return why = "the image is machine code, which this driver cannot run", INVALID_IMAGE;
    const std::string text = without_comments(image);
    int major = 0, minor = 0, target = 0;
    const size_t version = text.find(".version"), architecture = text.find(".target");
    if (version == std::string::npos || sscanf(text.c_str() + version, ".version %d.%d", &major, &minor) != 2)
        return why = "the image is no PTX: it has no .version", INVALID_IMAGE;
    if (architecture == std::string::npos || sscanf(text.c_str() + architecture, ".target sm_%d", &target) != 1)
        return why = "the PTX has no .target", INVALID_PTX;
    // PTX 8.0 came with CUDA 12.0, 9.0 with 13.0.
    const int known = (world.driver_version / 1000 - 4) * 10 + world.driver_version % 1000 / 10;
    if (major * 10 + minor > known) return why = "the PTX is newer than the driver", UNSUPPORTED_PTX_VERSION;
    if (target > device.major * 10 + device.minor) return why = "the PTX is for a newer device", NO_BINARY_FOR_GPU;
    for (size_t at = 0; (at = text.find(".entry", at)) != std::string::npos; ++at) {
        char name[256] = "";
        const size_t open = text.find('(', at), body = text.find('{', at);
        if (sscanf(text.c_str() + at, ".entry %255[A-Za-z0-9_$]", name) != 1) return why = "an .entry without a name", INVALID_PTX;
        Declared& declared = module.entries[name];
        read_bounds(text, at, body, declared);
        // One without parameters may have no list.
        if (open == std::string::npos || open > body) continue;
        const size_t close = text.find(')', open);
        if (close == std::string::npos) return why = "an .entry whose parameters do not end", INVALID_PTX;
        for (size_t from = open; (from = text.find(".param", from)) < close; ++from) {
            const size_t end = std::min(text.find(',', from), close);
            declared.sizes.push_back(parameter_size(text.substr(from + 6, end - from - 6)));
        }
    }
    return SUCCESS;
}

static int load(Handle* handle, const char* image, const std::shared_ptr<Context>& context, std::string& why) {
    const Locked locked(lock);
    if (const int refused = refuse_in_capture(*context)) return refused;
    auto module = std::make_shared<Module>();
    module->context = context;
    if (const int code = read_ptx(image, *context->device, *module, why)) {
        fprintf(stderr, "fake CUDA driver: module refused: %s\n", why.c_str());
        return code;
    }
    *handle = modules.add(std::move(module));
    return SUCCESS;
}

EXPORT int cuModuleLoadData(Handle* module, const char* image) {
    ENTER(Context)
    std::string why;
    return load(module, image, context, why);
}

// Of the options, only the buffer for errors has a meaning here.
EXPORT int cuModuleLoadDataEx(Handle* module, const char* image, unsigned count, const int* options, void** values) {
    ENTER(Context)
    std::string why;
    const int code = load(module, image, context, why);
    char* buffer = nullptr;
    size_t size = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (options[i] == 5) buffer = (char*)values[i];
        if (options[i] == 6) size = (size_t)values[i];
    }
    if (buffer && size) snprintf(buffer, size, "%s", why.c_str());
    return code;
}

EXPORT int cuModuleUnload(Handle handle) {
    ENTER(Context)
    const Locked locked(lock);
    const auto module = modules.find(handle, __func__);
    if (!module) return INVALID_HANDLE;
    functions.remove_if([&](const Function& function) { return function.module == module.get(); });
    modules.remove(handle);
    return SUCCESS;
}

EXPORT int cuModuleGetFunction(Handle* handle, Handle of, const char* name) {
    ENTER(Context)
    const Locked locked(lock);
    const auto module = modules.find(of, __func__);
    if (!module) return INVALID_HANDLE;
    const auto declared = module->entries.find(name);
    if (declared == module->entries.end()) return NOT_FOUND;
    const Entry* entry = find_entry(name);
    if (!entry) {
        fprintf(stderr, "fake CUDA driver: kernel %s has no entry in tests/machine/kernels\n", name);
        return NOT_SUPPORTED;
    }
    if (entry->sizes != declared->second.sizes) {
        fprintf(stderr, "fake CUDA driver: the parameters of kernel %s are not those of its PTX: one is older\n", name);
        return INVALID_PTX;
    }
    auto function = std::make_shared<Function>();
    function->context = context;
    function->module = module.get();
    function->entry = entry;
    function->threads_max = declared->second.threads_max;
    function->shared_bytes = declared->second.shared_bytes;
    function->dynamic_shared_max = SHARED_PER_BLOCK - function->shared_bytes;
    *handle = functions.add(std::move(function));
    return SUCCESS;
}

// ---- functions -------------------------------------------------------------------------------------------------------------

// All kernels are alike here: 32 registers and no local memory.
constexpr int REGISTERS_OF_A_KERNEL = 32;

EXPORT int cuFuncGetAttribute(int* value, int attribute, Handle handle) {
    ENTER(Context)
    const Locked locked(lock);
    const auto function = functions.find(handle, __func__);
    if (!function) return INVALID_HANDLE;
    switch (attribute) {
        case 0: *value = (int)function->threads_max; break;
        case 1: *value = function->shared_bytes; break;
        case 4: *value = REGISTERS_OF_A_KERNEL; break;
        case 5: *value = 80; break;  // version of the PTX
        case 6: *value = function->context->device->major * 10 + function->context->device->minor; break;
        case 8: *value = function->dynamic_shared_max; break;
        case 9: *value = -1; break;  // preferred carve-out: none
        default: *value = 0;
    }
    return SUCCESS;
}

EXPORT int cuFuncSetAttribute(Handle handle, int attribute, int value) {
    ENTER(Context)
    const Locked locked(lock);
    const auto function = functions.find(handle, __func__);
    if (!function) return INVALID_HANDLE;
    if (attribute == 8) {
        if (value < 0 || value > SHARED_PER_BLOCK_OPTIN - function->shared_bytes) return INVALID_VALUE;
        function->dynamic_shared_max = value;
    }
    return SUCCESS;
}

EXPORT int cuFuncSetCacheConfig(Handle handle, int) {
    ENTER(Context)
    const Locked locked(lock);
    return functions.find(handle, __func__) ? SUCCESS : INVALID_HANDLE;
}

static int blocks_per_processor(int block, size_t shared) {
    const int by_threads = THREADS_PER_PROCESSOR_MAX / ((block + WARP - 1) / WARP * WARP);
    const int by_shared = (int)((size_t)SHARED_PER_PROCESSOR / (shared + SHARED_RESERVED));
    return std::min({by_threads, by_shared, BLOCKS_PER_PROCESSOR_MAX});
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Handle handle, int block, size_t shared, unsigned) {
    ENTER(Context)
    const Locked locked(lock);
    const auto function = functions.find(handle, __func__);
    if (!function) return INVALID_HANDLE;
    if (block < 1) return INVALID_VALUE;
    *blocks = (u64)block > function->threads_max ? 0 : blocks_per_processor(block, shared + (size_t)function->shared_bytes);
    return SUCCESS;
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle handle, int block, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block, shared, 0);
}

EXPORT int cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, Handle handle, size_t (*shared_of)(int),
                                                     size_t shared, int limit, unsigned) {
    ENTER(Context)
    const Locked locked(lock);
    const auto function = functions.find(handle, __func__);
    if (!function) return INVALID_HANDLE;
    int best = 0, best_block = 0, best_blocks = 0;
    const int most = (int)function->threads_max, own = function->shared_bytes;
    for (int size = limit > 0 ? std::min(limit, most) : most; size >= WARP; size -= WARP) {
        const int blocks = blocks_per_processor(size, (shared_of ? shared_of(size) : shared) + (size_t)own);
        if (blocks * size > best) best = blocks * size, best_block = size, best_blocks = blocks;
    }
    *block = best_block;
    *grid = best_blocks * function->context->device->processors;
    return SUCCESS;
}

EXPORT int cuOccupancyMaxPotentialBlockSize(int* grid, int* block, Handle handle, size_t (*shared_of)(int), size_t shared, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of, shared, limit, 0);
}

// ---- launches ----------------------------------------------------------------------------------------------------------------

static int launch(const char* call, Handle handle, const Grid& grid, Handle stream_handle, void** parameters, bool together) {
    std::shared_ptr<Context> context;
    if (const int refused = enter(call, Needs::Context, context)) return refused;
    Locked locked(lock);
    const auto function = functions.find(handle, call);
    const auto stream = stream_of(stream_handle, context, call, locked);
    if (!function || !stream || function->context != context) return INVALID_HANDLE;
    u64 threads = 1;
    for (int axis = 0; axis < 3; ++axis) {
        if (!grid.grid[axis] || !grid.block[axis]) return INVALID_VALUE;
        threads *= grid.block[axis];
    }
    if (threads > function->threads_max || grid.block[2] > 64) return INVALID_VALUE;
    if (grid.grid[0] > 0x7fffffff || grid.grid[1] > 65535 || grid.grid[2] > 65535) return INVALID_VALUE;
    if ((int)grid.shared_bytes > function->dynamic_shared_max) return INVALID_VALUE;
    const u64 blocks = (u64)grid.grid[0] * grid.grid[1] * grid.grid[2];
    const size_t shared = grid.shared_bytes + (size_t)function->shared_bytes;
    if (together && blocks > (u64)blocks_per_processor((int)threads, shared) * (u64)context->device->processors)
        return COOPERATIVE_LAUNCH_TOO_LARGE;
    const Entry& entry = *function->entry;
    if (!entry.sizes.empty() && !parameters) return INVALID_VALUE;
    std::vector<unsigned char> words;
    for (size_t i = 0; i < entry.sizes.size(); ++i) {
        const unsigned char* from = (const unsigned char*)parameters[i];
        words.insert(words.end(), from, from + entry.sizes[i]);
        words.resize((words.size() + 7) / 8 * 8);
    }
    check_parameters(entry.name, words);
    for (size_t at = 0; at + 8 <= words.size(); at += 8) {
        // Whatever looks like an address of something that is there is one.
        DevicePointer word;
        memcpy(&word, &words[at], 8);
        check_ready(word, *stream, call);
        if (is_pinned((void*)word, 1)) violation("kernel %s is given an address of the host", std::string(entry.name).c_str());
    }
    const std::function<void()> kernel = entry.bind(parameters);
    const bool twin = entry.twin;
    return push(stream, {Kind::Kernel, entry.name, 0, [=, name = entry.name] {
        {
            const Locked checking(lock);
            check_parameters(name, words);
        }
        return twin ? run_twin(grid, kernel) : run_grid(grid, kernel);
    }}, locked);
}

EXPORT int cuLaunchKernel(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned shared, Handle stream, void** parameters, void** extra) {
    if (extra) return NOT_SUPPORTED;
    return launch(__func__, function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared}, stream, parameters, false);
}

EXPORT int cuLaunchCooperativeKernel(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                     unsigned block_y, unsigned block_z, unsigned shared, Handle stream, void** parameters) {
    return launch(__func__, function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared}, stream, parameters, true);
}
