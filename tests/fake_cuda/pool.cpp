/*
pool: the memory pools of a device, and their attributes.
*/
#include <algorithm>

#include "driver.h"

static Handle handle_of(const std::shared_ptr<Pool>& pool) {
    for (auto& entry : pools.live)
        if (entry.second == pool) return (Handle)entry.first;
    return nullptr;
}

EXPORT int cuDeviceGetDefaultMemPool(Handle* pool, int device) {
    ENTER_DEVICE(device)
    const Locked locked(lock);
    if (!world.visible[(size_t)device]->pools_supported) return NOT_SUPPORTED;
    *pool = handle_of(world.visible[(size_t)device]->default_pool);
    return SUCCESS;
}

EXPORT int cuDeviceGetMemPool(Handle* pool, int device) {
    ENTER_DEVICE(device)
    const Locked locked(lock);
    if (!world.visible[(size_t)device]->pools_supported) return NOT_SUPPORTED;
    *pool = handle_of(world.visible[(size_t)device]->pool);
    return SUCCESS;
}

EXPORT int cuDeviceSetMemPool(int device, Handle handle) {
    ENTER_DEVICE(device)
    const Locked locked(lock);
    const auto pool = pools.find(handle, __func__);
    if (!pool || pool->device != world.visible[(size_t)device]) return INVALID_VALUE;
    pool->device->pool = pool;
    return SUCCESS;
}

// What the driver is asked for a pool: only where it is and what of.
struct PoolProperties {
    int allocation_type, handle_types, location_type, location_id;
    void* security;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
};

EXPORT int cuMemPoolCreate(Handle* handle, const PoolProperties* properties) {
    ENTER(Init)
    const Locked locked(lock);
    if (properties->location_type != 1) return NOT_SUPPORTED;
    if (properties->location_id < 0 || properties->location_id >= (int)world.visible.size()) return INVALID_DEVICE;
    auto pool = std::make_shared<Pool>();
    pool->device = world.visible[(size_t)properties->location_id];
    if (!pool->device->pools_supported) return NOT_SUPPORTED;
    *handle = pools.add(std::move(pool));
    return SUCCESS;
}

EXPORT int cuMemPoolDestroy(Handle handle) {
    ENTER(Init)
    const Locked locked(lock);
    const auto pool = pools.find(handle, __func__);
    if (!pool || pool->is_default) return INVALID_VALUE;
    if (pool->used) violation("cuMemPoolDestroy: %llu bytes of the pool are in use", (unsigned long long)pool->used);
    if (pool->device->pool == pool) pool->device->pool = pool->device->default_pool;
    pools.remove(handle);
    return SUCCESS;
}

EXPORT int cuMemPoolTrimTo(Handle handle, size_t keep) {
    ENTER(Init)
    const Locked locked(lock);
    const auto pool = pools.find(handle, __func__);
    if (!pool) return INVALID_VALUE;
    pool->trim(keep);
    return SUCCESS;
}

EXPORT int cuMemPoolSetAttribute(Handle handle, int attribute, void* value) {
    ENTER(Init)
    const Locked locked(lock);
    const auto pool = pools.find(handle, __func__);
    if (!pool) return INVALID_VALUE;
    switch (attribute) {
        case 1: case 2: case 3: pool->reuse[attribute] = *(const int*)value; return SUCCESS;
        case 4: pool->release_threshold = *(const u64*)value; return SUCCESS;
        // The marks can only be set back.
        case 6: pool->reserved_high = pool->reserved; return *(const u64*)value ? INVALID_VALUE : SUCCESS;
        case 8: pool->used_high = pool->used; return *(const u64*)value ? INVALID_VALUE : SUCCESS;
        default: return INVALID_VALUE;
    }
}

EXPORT int cuMemPoolGetAttribute(Handle handle, int attribute, void* value) {
    ENTER(Init)
    const Locked locked(lock);
    const auto pool = pools.find(handle, __func__);
    if (!pool) return INVALID_VALUE;
    switch (attribute) {
        case 1: case 2: case 3: *(int*)value = pool->reuse[attribute]; return SUCCESS;
        case 4: *(u64*)value = pool->release_threshold; return SUCCESS;
        case 5: *(u64*)value = pool->reserved; return SUCCESS;
        case 6: *(u64*)value = pool->reserved_high; return SUCCESS;
        case 7: *(u64*)value = pool->used; return SUCCESS;
        case 8: *(u64*)value = pool->used_high; return SUCCESS;
        default: return INVALID_VALUE;
    }
}
