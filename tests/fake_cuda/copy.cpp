/*
copy: copies and fills.

As on a real device, what goes to or from page-locked memory is left to the stream. Memory that is not page-locked is read before
the call returns, and written before it returns.
*/
#include <string.h>

#include "driver.h"

typedef std::vector<unsigned char> Staged;

// Memory that a queued operation uses must still be there when it runs.
static void check_pinned(const void* pointer, u64 bytes) {
    const Locked locked(lock);
    if (!is_pinned(pointer, bytes)) violation("page-locked memory at %p was given back before its copy ran", pointer);
}
static void check_device(DevicePointer pointer, u64 bytes) {
    const Locked locked(lock);
    if (!on_device(pointer, bytes, "a queued copy", false))
        violation("device memory at %#llx was given back before its copy ran", (unsigned long long)pointer);
}

static Operation copy_in(DevicePointer to, const void* from, u64 bytes, bool pinned, bool captured) {
    std::shared_ptr<void> use = pinned && !captured ? use_host(from) : nullptr;
    std::shared_ptr<Staged> staged;
    // What a graph copies, it reads when it runs.
    if (!pinned && !captured)
        staged = std::make_shared<Staged>((const unsigned char*)from, (const unsigned char*)from + bytes);
    return {Kind::CopyIn, "", bytes, [=] {
        (void)use;
        if (pinned) check_pinned(from, bytes);
        check_device(to, bytes);
        memcpy((void*)to, staged ? staged->data() : from, bytes);
        return SUCCESS;
    }};
}

EXPORT int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (!on_device(to, bytes, __func__)) return INVALID_VALUE;
    if (straddles(from, bytes)) return INVALID_VALUE;
    check_ready(to, *stream, __func__);
    return push(stream, copy_in(to, from, bytes, is_pinned(from, bytes), stream->capture != nullptr), locked);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (!on_device(from, bytes, __func__)) return INVALID_VALUE;
    if (straddles(to, bytes)) return INVALID_VALUE;
    check_ready(from, *stream, __func__);
    const bool pinned = is_pinned(to, bytes);
    std::shared_ptr<void> use = pinned && !stream->capture ? use_host(to) : nullptr;
    const Operation operation = {Kind::CopyOut, "", bytes, [=] {
        (void)use;
        if (pinned) check_pinned(to, bytes);
        check_device(from, bytes);
        memcpy(to, (void*)from, bytes);
        return SUCCESS;
    }};
    const int code = push(stream, operation, locked);
    return code || pinned || stream->capture ? code : wait_for(stream, locked);
}

EXPORT int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (!on_device(to, bytes, __func__) || !on_device(from, bytes, __func__)) return INVALID_VALUE;
    return push(stream, {Kind::Copy, "", bytes, [=] {
        check_device(from, bytes);
        check_device(to, bytes);
        memmove((void*)to, (void*)from, bytes);
        return SUCCESS;
    }}, locked);
}

EXPORT int cuMemcpyPeerAsync(DevicePointer to, Handle, DevicePointer from, Handle, size_t bytes, Handle stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

// By what the addresses are.
EXPORT int cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, Handle stream) {
    bool to_device, from_device;
    {
        const Locked locked(lock);
        to_device = on_device(to, bytes, __func__);
        from_device = on_device(from, bytes, __func__);
    }
    if (to_device && from_device) return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    if (to_device) return cuMemcpyHtoDAsync_v2(to, (const void*)from, bytes, stream);
    if (from_device) return cuMemcpyDtoHAsync_v2((void*)to, from, bytes, stream);
    return INVALID_VALUE;
}

// Those without a stream run on the legacy one and wait for it.
template <class Call> static int waited(const char* name, Call call) {
    std::shared_ptr<Context> context;
    if (const int code = enter(name, Needs::Context, context)) return code;
    {
        const Locked locked(lock);
        if (const int code = refuse_in_capture(*context)) return code;
    }
    if (const int code = call()) return code;
    Locked locked(lock);
    return wait_for(stream_of(nullptr, context, name, locked), locked);
}

EXPORT int cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
    return waited(__func__, [=] { return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); });
}
EXPORT int cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
    return waited(__func__, [=] { return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr); });
}
EXPORT int cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    return waited(__func__, [=] { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); });
}

// ---- fills ---------------------------------------------------------------------------------------------------------------

template <class Value>
static int fill(const char* call, DevicePointer to, Value value, size_t count, Handle handle) {
    std::shared_ptr<Context> context;
    if (const int code = enter(call, Needs::Context, context)) return code;
    Locked locked(lock);
    const auto stream = stream_of(handle, context, call, locked);
    if (!stream) return INVALID_HANDLE;
    const u64 bytes = count * sizeof(Value);
    if (to % sizeof(Value) || !on_device(to, bytes, call)) return INVALID_VALUE;
    check_ready(to, *stream, call);
    return push(stream, {Kind::Memset, "", bytes, [=] {
        check_device(to, bytes);
        for (size_t i = 0; i < count; ++i) ((Value*)to)[i] = value;
        return SUCCESS;
    }}, locked);
}

EXPORT int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count, Handle stream) {
    return fill(__func__, to, value, count, stream);
}
EXPORT int cuMemsetD16Async(DevicePointer to, unsigned short value, size_t count, Handle stream) {
    return fill(__func__, to, value, count, stream);
}
EXPORT int cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, Handle stream) {
    return fill(__func__, to, value, count, stream);
}
EXPORT int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
    return waited(__func__, [=] { return cuMemsetD8Async(to, value, count, nullptr); });
}
