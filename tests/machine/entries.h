/*
entries: which kernels can be launched.

kernels/ours.cpp includes the product's sources after machine.h; their names are the lists of kernels/entries.h. Others are named one
by one:

    ENTRY(fake_scale)                           the device entry itself, thread by thread
    TWIN(gauss_fast, gauss_fast_on_host)        a function of the same parameters, called once for the whole grid; it finds
                                                gridDim and blockDim, and stands in for an entry that this machine cannot run

Names and parameter sizes are held against the PTX that a caller loads.
*/
#pragma once

#include <stddef.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

struct Grid {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
};

// Gives 0, or the code that the launch fails with.
int run_grid(const Grid& grid, const std::function<void()>& kernel);
int run_twin(const Grid& grid, const std::function<void()>& function);

struct Entry {
    std::string name;
    std::vector<size_t> sizes;  // of the parameters
    bool twin;
    // The call with the parameters that an array points to, copied.
    std::function<std::function<void()>(void* const*)> bind;
};

void add_entry(Entry entry);
const Entry* find_entry(const std::string& name);

template <class... Parameters, size_t... I>
std::function<void()> bound(void (*function)(Parameters...), void* const* parameters, std::index_sequence<I...>) {
    std::tuple<Parameters...> copied(*(const Parameters*)parameters[I]...);
    return [function, copied] { std::apply(function, copied); };
}

template <class... Parameters> Entry entry_of(const char* name, void (*function)(Parameters...), bool twin) {
    return {name, {sizeof(Parameters)...}, twin, [function](void* const* parameters) {
        return bound(function, parameters, std::index_sequence_for<Parameters...>());
    }};
}

struct Added {
    explicit Added(Entry entry) { add_entry(std::move(entry)); }
};

#define ENTRY(name) static const Added added_##name(entry_of(#name, name, false));
#define TWIN(name, function) static const Added added_##name(entry_of(#name, function, true));
