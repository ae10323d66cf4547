/*
stream: streams, their threads and events.
*/
#include <math.h>

#include <algorithm>

#include "driver.h"

Handles<Stream>& streams = *new Handles<Stream>{"stream", 0x57, 0, {}};
Handles<Event>& events = *new Handles<Event>{"event", 0xE7, 0, {}};
u64 streams_made = 0;

// Destroyed while their thread had still to finish; joined when their context ends.
static auto& retired = *new std::vector<std::shared_ptr<Stream>>;

const char* kind_name(Kind kind) {
    switch (kind) {
        case Kind::CopyIn: return "copy_in";
        case Kind::CopyOut: return "copy_out";
        case Kind::Copy: return "copy";
        case Kind::Memset: return "memset";
        case Kind::Kernel: return "kernel";
        case Kind::Host: return "host";
        case Kind::Free: return "free";
        case Kind::Record: return "record";
        default: return "wait";
    }
}

// How long a stream may take to finish once its context ends.
constexpr std::chrono::seconds END_MAX(120);
// Shorter operations count as this long where a device is slow.
constexpr u64 OPERATION_MIN_NS = 20000;

int run(const Stream& stream, const Operation& operation) {
    Device& device = *stream.context->device;
    const bool counts = operation.kind < Kind::Free;
    const u64 begin = now_ns();
    {
        const Locked locked(lock);
        device.running += counts;
    }
    int code = fault(kind_name(operation.kind), operation.name, &device, stream.context.get());
    if (!code) code = operation.act();
    if (!counts) return code;
    double slow;
    {
        const Locked locked(lock);
        slow = device.slow;
        device.launches += operation.kind == Kind::Kernel;
        device.copied_in += operation.kind == Kind::CopyIn ? operation.bytes : 0;
        device.copied_out += operation.kind == Kind::CopyOut ? operation.bytes : 0;
    }
    if (slow > 1)
        std::this_thread::sleep_for(std::chrono::nanoseconds(
            (u64)((slow - 1) * (double)std::max(now_ns() - begin, OPERATION_MIN_NS))));
    log_operation(stream, operation, begin, now_ns(), code);
    const Locked locked(lock);
    --device.running;
    return code;
}

static void work(const std::shared_ptr<Stream>& stream) {
    Context& context = *stream->context;
    Locked locked(lock);
    for (;;) {
        stream->work.wait(locked, [&] { return stream->stop || !stream->queue.empty(); });
        if (stream->queue.empty()) break;
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        // Nothing runs in a context that an error has ended.
        if (!context.sticky) {
            locked.unlock();
            const int code = run(*stream, operation);
            // What it holds may end with it, and want the lock.
            operation = Operation();
            locked.lock();
            if (code) poison(context, code, locked);
        }
        ++stream->done;
        changed.notify_all();
    }
    stream->finished = true;
    changed.notify_all();
}

std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context, bool blocking, int priority) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->number = ++streams_made;
    stream->blocking = blocking;
    stream->priority = priority;
    stream->thread = std::thread([stream] { work(stream); });
    return stream;
}

void end_stream(const std::shared_ptr<Stream>& stream, Locked& locked) {
    if (stream->thread.get_id() == std::this_thread::get_id()) violation("a stream was ended by one of its own host functions");
    stream->stop = true;
    stream->work.notify_all();
    if (!stream->thread.joinable()) return;
    // The real driver would wait for ever, and so would the test.
    if (!changed.wait_for(locked, END_MAX, [&] { return stream->finished; }))
        violation("stream %llu still hangs while its context ends: say `release` before", (unsigned long long)stream->number);
    locked.unlock();
    stream->thread.join();
    locked.lock();
}

void end_retired(const Context& context, Locked& locked) {
    std::vector<std::shared_ptr<Stream>> ending;
    for (auto& stream : retired)
        if (stream->context.get() == &context) ending.push_back(stream);
    retired.erase(std::remove_if(retired.begin(), retired.end(),
                                 [&](const auto& stream) { return stream->context.get() == &context; }),
                  retired.end());
    for (auto& stream : ending) end_stream(stream, locked);
}

std::shared_ptr<Stream> stream_of(Handle handle, const std::shared_ptr<Context>& context, const char* call, Locked&) {
    // 1 is the legacy stream by its other name; 2, one per thread, is none of ours.
    if ((u64)handle > 1) {
        auto stream = streams.find(handle, call);
        return stream && stream->context == context ? stream : nullptr;
    }
    if (!context->legacy) context->legacy = streams.add(make_stream(context, true, 0));
    return streams.find(context->legacy, call);
}

static int wait_until_done(const std::shared_ptr<Stream>& stream, u64 position) {
    Locked locked(lock);
    changed.wait(locked, [&] { return stream->done >= position || stream->context->sticky; });
    return SUCCESS;
}

int push(const std::shared_ptr<Stream>& stream, Operation operation, Locked&) {
    Context& context = *stream->context;
    if (context.sticky) return context.sticky;
    if (stream->capture) {
        if (stream->capture->broken) return CAPTURE_INVALIDATED;
        stream->capture->operations.push_back(std::move(operation));
        return SUCCESS;
    }
    const auto enqueue = [&](Operation last) {
        stream->queue.push_back(std::move(last));
        ++stream->pushed;
    };
    // The legacy stream and those that block on it take turns.
    const auto legacy = streams.live.find((u64)context.legacy);
    const bool is_legacy = legacy != streams.live.end() && legacy->second == stream;
    const auto follow = [&](const std::shared_ptr<Stream>& other) {
        const u64 position = other->pushed;
        if (other->done < position)
            enqueue({Kind::Wait, "", 0, [other, position] { return wait_until_done(other, position); }});
    };
    if (is_legacy) {
        for (auto& entry : streams.live)
            if (entry.second != stream && entry.second->blocking && entry.second->context == stream->context)
                follow(entry.second);
    } else if (stream->blocking && legacy != streams.live.end()) {
        follow(legacy->second);
    }
    enqueue(std::move(operation));
    stream->work.notify_all();
    return SUCCESS;
}

int wait_for(const std::shared_ptr<Stream>& stream, Locked& locked) {
    if (stream->capture) {
        stream->capture->broken = CAPTURE_INVALIDATED;
        return CAPTURE_UNSUPPORTED;
    }
    const u64 position = stream->pushed;
    const std::shared_ptr<Context> context = stream->context;
    changed.wait(locked, [&] { return stream->done >= position || context->sticky; });
    return context->sticky;
}

// ---- calls -------------------------------------------------------------------------------------------------------------

EXPORT int cuStreamCreateWithPriority(Handle* handle, unsigned flags, int priority) {
    ENTER(Context)
    const Locked locked(lock);
    if (flags & ~STREAM_NON_BLOCKING) return INVALID_VALUE;
    priority = std::min(PRIORITY_LEAST, std::max(PRIORITY_GREATEST, priority));
    *handle = streams.add(make_stream(context, !(flags & STREAM_NON_BLOCKING), priority));
    return SUCCESS;
}

EXPORT int cuStreamCreate(Handle* handle, unsigned flags) { return cuStreamCreateWithPriority(handle, flags, 0); }

// Returns at once: what is queued is still done.
EXPORT int cuStreamDestroy_v2(Handle handle) {
    ENTER(Context)
    const Locked locked(lock);
    if ((u64)handle <= 2) return INVALID_HANDLE;
    const auto stream = streams.find(handle, __func__);
    if (!stream) return INVALID_HANDLE;
    stream->stop = true;
    stream->work.notify_all();
    retired.push_back(stream);
    streams.remove(handle);
    return SUCCESS;
}

EXPORT int cuStreamSynchronize(Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (const int code = wait_for(stream, locked)) return code;
    trim_pools(*context->device);
    return SUCCESS;
}

EXPORT int cuStreamQuery(Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return stream->capture->broken = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    return stream->done < stream->pushed ? NOT_READY : SUCCESS;
}

EXPORT int cuStreamGetPriority(Handle handle, int* priority) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    *priority = stream->priority;
    return SUCCESS;
}

EXPORT int cuStreamGetCtx(Handle handle, Handle* of) {
    ENTER(Context)
    Locked locked(lock);
    if (!stream_of(handle, context, __func__, locked)) return INVALID_HANDLE;
    *of = context_handle(*context->device);
    return SUCCESS;
}

EXPORT int cuLaunchHostFunc(Handle handle, void (*function)(void*), void* data) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    return push(stream, {Kind::Host, "", 0, [=] { return function(data), SUCCESS; }}, locked);
}

// ---- events ------------------------------------------------------------------------------------------------------------

EXPORT int cuEventCreate(Handle* handle, unsigned flags) {
    ENTER(Context)
    const Locked locked(lock);
    auto event = std::make_shared<Event>();
    event->context = context;
    event->timed = !(flags & EVENT_DISABLE_TIMING);
    *handle = events.add(std::move(event));
    return SUCCESS;
}

EXPORT int cuEventDestroy_v2(Handle handle) {
    ENTER(Context)
    const Locked locked(lock);
    if (!events.find(handle, __func__)) return INVALID_HANDLE;
    events.remove(handle);
    return SUCCESS;
}

EXPORT int cuEventRecord(Handle handle, Handle stream_handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto event = events.find(handle, __func__);
    const auto stream = stream_of(stream_handle, context, __func__, locked);
    if (!event || !stream || event->context != context) return INVALID_HANDLE;
    if (stream->capture) {
        // In a graph it is an edge and no operation.
        event->capture = stream->capture;
        event->recorder = stream.get();
        event->mark = nullptr;
        return SUCCESS;
    }
    auto mark = std::make_shared<Mark>();
    mark->context = context;
    event->capture = nullptr;
    event->mark = mark;
    return push(stream, {Kind::Record, "", 0, [mark] {
        const Locked reached(lock);
        mark->reached = true;
        mark->at_ns = now_ns();
        changed.notify_all();
        return SUCCESS;
    }}, locked);
}

EXPORT int cuStreamWaitEvent(Handle stream_handle, Handle handle, unsigned) {
    ENTER(Context)
    Locked locked(lock);
    const auto event = events.find(handle, __func__);
    const auto stream = stream_of(stream_handle, context, __func__, locked);
    if (!event || !stream) return INVALID_HANDLE;
    if (event->capture) {
        Capture& capture = *event->capture;
        if (!capture.origin) return CAPTURED_EVENT;
        if (stream->capture && stream->capture != event->capture) return CAPTURE_MERGE;
        if (!stream->capture) {
            if (stream->done < stream->pushed) return capture.broken = CAPTURE_ISOLATION;
            stream->capture = event->capture;
        }
        capture.unjoined.erase(event->recorder);
        if (stream.get() != capture.origin) capture.unjoined.insert(stream.get());
        return SUCCESS;
    }
    if (!event->mark) return SUCCESS;
    if (stream->capture) return stream->capture->broken = CAPTURE_INVALIDATED, CAPTURE_ISOLATION;
    const std::shared_ptr<Mark> mark = event->mark;
    return push(stream, {Kind::Wait, "", 0, [mark, context] {
        Locked waiting(lock);
        changed.wait(waiting, [&] { return mark->reached || mark->context->sticky || mark->context->ended || context->sticky; });
        return SUCCESS;
    }}, locked);
}

EXPORT int cuEventSynchronize(Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto event = events.find(handle, __func__);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return CAPTURED_EVENT;
    if (const int refused = refuse_beside_capture(*context)) return refused;
    const std::shared_ptr<Mark> mark = event->mark;
    if (!mark) return SUCCESS;
    changed.wait(locked, [&] { return mark->reached || mark->context->sticky || mark->context->ended; });
    if (mark->context->sticky) return mark->context->sticky;
    trim_pools(*context->device);
    return SUCCESS;
}

EXPORT int cuEventQuery(Handle handle) {
    ENTER(Context)
    const Locked locked(lock);
    const auto event = events.find(handle, __func__);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return CAPTURED_EVENT;
    if (const int refused = refuse_beside_capture(*context)) return refused;
    return !event->mark || event->mark->reached ? SUCCESS : NOT_READY;
}

EXPORT int cuEventElapsedTime(float* milliseconds, Handle from, Handle to) {
    ENTER(Context)
    const Locked locked(lock);
    const auto first = events.find(from, __func__), last = events.find(to, __func__);
    if (!first || !last || !first->timed || !last->timed || !first->mark || !last->mark) return INVALID_HANDLE;
    if (!first->mark->reached || !last->mark->reached) return NOT_READY;
    *milliseconds = (float)(((double)last->mark->at_ns - (double)first->mark->at_ns) / 1e6);
    return SUCCESS;
}

EXPORT int cuEventElapsedTime_v2(float* milliseconds, Handle from, Handle to) {
    return cuEventElapsedTime(milliseconds, from, to);
}
