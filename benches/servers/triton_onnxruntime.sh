#!/bin/sh
# Builds Triton's backend for ONNX for the CPU, which no package has, for benches/servers.py:
#
#     sh benches/servers/triton_onnxruntime.sh SOURCES HEADERS LIBRARY FOLDER
#     make bench-servers TRITON_ONNXRUNTIME=FOLDER
#
# SOURCES has onnxruntime_backend, backend, core and common of github.com/triton-inference-server, each at the branch that the
# program in nvidia-pytriton was built from (0.7.0: r24.10); HEADERS has ONNX Runtime's onnxruntime_c_api.h and what it includes;
# LIBRARY is libonnxruntime.so of that version or a later one. Needs g++ and RapidJSON (Debian: rapidjson-dev).
set -eu
sources=$1 headers=$2 library=$3 folder=$4
mkdir -p "$folder"
cp "$library" "$folder/libonnxruntime.so.1"
# What is undefined here, the program has.
g++ -std=c++17 -O3 -DNDEBUG -fPIC -shared -pthread -w -DTRITONJSON_STATUSTYPE='TRITONSERVER_Error*' \
    -I"$headers" -I"$sources/backend/include" -I"$sources/core/include" -I"$sources/common/include" \
    -DTRITON_ENABLE_STATS=1 -DTRITON_ENABLE_METRICS=1 -DTRITON_ENABLE_LOGGING=1 \
    "$sources"/onnxruntime_backend/src/*.cc \
    $(ls "$sources"/backend/src/*.cc | grep -v device_memory_tracker) \
    "$sources/common/src/async_work_queue.cc" "$sources/common/src/thread_pool.cc" "$sources/common/src/error.cc" \
    -o "$folder/libtriton_onnxruntime.so" -Wl,-rpath,'$ORIGIN' "$folder/libonnxruntime.so.1"
