// codes: results, attributes and flags of the driver's API that the fake knows, by their numbers in it.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    UNKNOWN = 999,
};

constexpr unsigned STREAM_NON_BLOCKING = 1;
constexpr unsigned EVENT_DISABLE_TIMING = 2;
constexpr int COMPUTE_PROHIBITED = 2;
constexpr int CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1;
constexpr int PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5;

// What every device of the fake can do, and may be asked for.
constexpr int THREADS_PER_BLOCK_MAX = 1024, THREADS_PER_PROCESSOR_MAX = 2048, BLOCKS_PER_PROCESSOR_MAX = 32, WARP = 32;
constexpr int SHARED_PER_BLOCK = 48 << 10, SHARED_PER_BLOCK_OPTIN = 227 << 10, SHARED_PER_PROCESSOR = 228 << 10;
constexpr int SHARED_RESERVED = 1 << 10;  // of each block, for the system
constexpr int REGISTERS = 65536;
