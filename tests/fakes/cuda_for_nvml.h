// cuda_for_nvml: what the fake NVML asks the fake CUDA driver of the same process, and tells it.
#pragma once

#include <stdint.h>

struct CudaDevice {
    char name[64];
    unsigned char uuid[16];
    int pci_bus;
    int part;  // of a GPU (MIG), from 1; 0 is a whole one
    uint64_t memory, own, foreign;
    bool has_context, lost;
    // Other processes of the fake with memory of it.
    static constexpr int TENANTS_MAX = 64;
    int tenants;
    unsigned pids[TENANTS_MAX];
    uint64_t bytes[TENANTS_MAX];
};

struct CudaForNvml {
    // fake_cuda_for_nvml: whether there is a device of this index, among all.
    bool (*find)(int index, CudaDevice* device);
    // fake_cuda_from_nvml: what other processes hold of it, and whether it is lost.
    void (*set)(int index, uint64_t foreign, bool lost);
};
