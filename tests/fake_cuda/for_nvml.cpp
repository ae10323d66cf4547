/*
for_nvml: what the fake NVML sees of the devices, and does to them.
*/
#include <stdio.h>
#include <string.h>

#include "../fakes/cuda_for_nvml.h"
#include "driver.h"

EXPORT bool fake_cuda_for_nvml(int index, CudaDevice* seen) {
    begin();
    const Locked locked(lock);
    if (index < 0 || index >= (int)world.devices.size()) return false;
    const Device& device = *world.devices[(size_t)index];
    *seen = {};
    snprintf(seen->name, sizeof seen->name, "%s", device.name.c_str());
    memcpy(seen->uuid, device.uuid, sizeof seen->uuid);
    seen->pci_bus = device.pci_bus;
    seen->part = device.part;
    seen->memory = device.memory;
    seen->own = device.own();
    seen->foreign = device.foreign;
    for (const Tenant& tenant : tenants(device)) {
        if (seen->tenants == CudaDevice::TENANTS_MAX) break;
        seen->pids[seen->tenants] = tenant.pid;
        seen->bytes[seen->tenants++] = tenant.bytes;
    }
    seen->has_context = device.context != nullptr;
    seen->lost = device.lost != 0;
    return true;
}

EXPORT void fake_cuda_from_nvml(int index, u64 foreign, bool lost) {
    const Locked locked(lock);
    if (index < 0 || index >= (int)world.devices.size()) return;
    Device& device = *world.devices[(size_t)index];
    device.foreign = foreign;
    if (!lost) device.lost = 0;
    else if (!device.lost) lose(device, UNKNOWN, locked);
}
