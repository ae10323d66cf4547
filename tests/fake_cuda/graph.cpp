/*
graph: capture of a stream into a graph, and its replay.

A graph keeps its operations in the order they were captured in, which keeps to every dependency; a replay runs them one after
the other on the stream it is launched in.
*/
#include <algorithm>

#include "driver.h"

Handles<Capture>& graphs = *new Handles<Capture>{"graph", 0x6A, 0, {}};
Handles<Capture>& executables = *new Handles<Capture>{"executable graph", 0x6E, 0, {}};

static auto& under_way = *new std::vector<std::shared_ptr<Capture>>;

// How this thread's calls and captures meet: with the default, captures of others in the same mode count as well, whatever they are of.
static thread_local int thread_mode = CAPTURE_GLOBAL;

static int refuse(const Context* context, bool own) {
    const auto me = std::this_thread::get_id();
    for (auto& capture : under_way) {
        if (capture->thread == me ? !own || capture->context.get() != context
                                  : capture->mode != CAPTURE_GLOBAL || thread_mode != CAPTURE_GLOBAL) continue;
        capture->broken = CAPTURE_INVALIDATED;
        return CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}

int refuse_in_capture(const Context& context) { return refuse(&context, true); }

int refuse_beside_capture(const Context& context) { return refuse(&context, false); }

int refuse_context_beside_capture() { return refuse(nullptr, false); }

// For the thread, whether it has a context or not.
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
    ENTER(Init)
    if (*mode < 0 || *mode > 2) return INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return SUCCESS;
}

EXPORT int cuStreamBeginCapture_v2(Handle handle, int mode) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    // The legacy stream cannot be captured.
    if ((u64)handle <= 2) return CAPTURE_UNSUPPORTED;
    if (stream->capture || mode < 0 || mode > 2) return INVALID_VALUE;
    auto capture = std::make_shared<Capture>();
    capture->context = context;
    capture->origin = stream.get();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    stream->capture = capture;
    under_way.push_back(std::move(capture));
    return SUCCESS;
}

EXPORT int cuStreamEndCapture(Handle handle, Handle* graph) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return INVALID_VALUE;
    if (capture->origin != stream.get()) return CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    under_way.erase(std::find(under_way.begin(), under_way.end(), capture));
    for (auto& entry : streams.live)
        if (entry.second->capture == capture) entry.second->capture = nullptr;
    capture->origin = nullptr;
    if (capture->broken) return capture->broken;
    if (!capture->unjoined.empty()) return CAPTURE_UNJOINED;
    *graph = graphs.add(capture);
    return SUCCESS;
}

EXPORT int cuStreamIsCapturing(Handle handle, int* status) {
    ENTER(Context)
    Locked locked(lock);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!stream) return INVALID_HANDLE;
    *status = !stream->capture ? 0 : stream->capture->broken ? 2 : 1;
    return SUCCESS;
}

EXPORT int cuGraphInstantiateWithFlags(Handle* executable, Handle graph, unsigned long long flags) {
    ENTER(Context)
    const Locked locked(lock);
    const auto captured = graphs.find(graph, __func__);
    if (!captured) return INVALID_HANDLE;
    // Free on launch, upload, launch from the device, priorities of nodes; the first and third exclude each other.
    if (flags & ~15ull || (flags & 5) == 5) return INVALID_VALUE;
    *executable = executables.add(std::make_shared<Capture>(*captured));
    return SUCCESS;
}

EXPORT int cuGraphLaunch(Handle executable, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    const auto graph = executables.find(executable, __func__);
    const auto stream = stream_of(handle, context, __func__, locked);
    if (!graph || !stream || graph->context != context) return INVALID_HANDLE;
    for (const Operation& operation : graph->operations)
        if (const int code = push(stream, operation, locked)) return code;
    return SUCCESS;
}

EXPORT int cuGraphUpload(Handle executable, Handle handle) {
    ENTER(Context)
    Locked locked(lock);
    if (!executables.find(executable, __func__)) return INVALID_HANDLE;
    return stream_of(handle, context, __func__, locked) ? SUCCESS : INVALID_HANDLE;
}

EXPORT int cuGraphGetNodes(Handle graph, Handle* nodes, size_t* count) {
    ENTER(Context)
    const Locked locked(lock);
    const auto captured = graphs.find(graph, __func__);
    if (!captured) return INVALID_HANDLE;
    // Nodes have no handles here: they can be counted and nothing else.
    if (nodes) return NOT_SUPPORTED;
    *count = captured->operations.size();
    return SUCCESS;
}

EXPORT int cuGraphExecDestroy(Handle executable) {
    ENTER(Context)
    const Locked locked(lock);
    if (!executables.find(executable, __func__)) return INVALID_HANDLE;
    executables.remove(executable);
    return SUCCESS;
}

EXPORT int cuGraphDestroy(Handle graph) {
    ENTER(Context)
    const Locked locked(lock);
    if (!graphs.find(graph, __func__)) return INVALID_HANDLE;
    graphs.remove(graph);
    return SUCCESS;
}
