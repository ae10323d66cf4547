# Two images from one file; docs/operations.md shows how to run them.
#
#     docker build -t ocelli .                          for the CPU: the binary, ONNX Runtime, the examples
#     docker build -t ocelli:cuda --target cuda .       for GPUs too; the driver's libraries come from the host
#
# Both run as uid 10001. The root file system may be read-only; only /tmp is written to.

# Pinned by version. `python3 tools/pin_images.py` adds the digests that the registry has for these images.
ARG DEBIAN=debian:12.12-slim
ARG RUST=rust:1.95.0-slim-bookworm
ARG PYTHON=python:3.11.14-slim-bookworm

# The server. All stages use Debian 12, so the binary runs on the C library that it was built with.
FROM ${RUST} AS build
# Package versions are those of the base image's release. They are not pinned, since the mirrors drop older versions.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ make nasm \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock openapi.yaml ./
COPY kernels kernels
COPY src src
# A profile of a busy server, by which the compiler lays out the code (`make profile`).
COPY tools/ocelli.profdata tools/
# The page shows these images, so they are part of the binary.
COPY examples/images examples/images
# The commit, for `ocelli --version` and the metric ocelli_build_info.
ARG REVISION=
# Function names stay, for backtraces. Line tables are left out: they would be most of the image.
RUN RUSTFLAGS="-Cprofile-use=/build/tools/ocelli.profdata -Cllvm-args=-no-pgo-warn-mismatch -Cllvm-args=-pgso=false" OCELLI_COMMIT="${REVISION}" cargo build --profile dist --locked --bin ocelli \
    && cargo tree --locked --edges normal --prefix none --format '{p}|{l}|{r}' > crates.txt

# The notices that the licences of the libraries in the binary require beside it.
FROM ${PYTHON} AS notices
WORKDIR /notices
COPY --from=build /usr/local/cargo/registry/src registry
COPY --from=build /build/crates.txt ./
COPY src/http/handlers/page/vendor swagger-ui
COPY tools/notices.py ./
RUN python3 notices.py crates.txt registry swagger-ui > THIRD-PARTY.txt

# ONNX Runtime, pinned by checksum.
FROM ${PYTHON} AS libraries
WORKDIR /fetch
COPY tools/fetch_onnxruntime.py ./
RUN python3 fetch_onnxruntime.py /libraries

# ONNX Runtime for CUDA, with the libraries that it loads and the metadata of their packages, including licences. The build fails if a
# library other than the driver's is not found.
FROM ${PYTHON} AS cuda-libraries
WORKDIR /fetch
COPY deploy/container/cuda.txt tools/fetch_onnxruntime.py ./
RUN pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: --target /wheels -r cuda.txt \
    && mkdir /libraries \
    && find /wheels/nvidia -name '*.so*' -exec mv -t /libraries {} + \
    && mv -t /libraries /wheels/*.dist-info \
    && rm -rf /wheels \
    && python3 fetch_onnxruntime.py --gpu /libraries \
    && rm /libraries/libonnxruntime_providers_tensorrt.so \
    && LD_LIBRARY_PATH=/libraries ldd /libraries/libonnxruntime_providers_cuda.so > needed.txt \
    && awk '/not found/ && !/libcuda.so.1/ { print; missing = 1 } END { exit missing }' needed.txt

# What both images have in common.
FROM ${DEBIAN} AS base
COPY LICENSE /usr/share/doc/ocelli/LICENSE
COPY --from=notices /notices/THIRD-PARTY.txt /usr/share/doc/ocelli/THIRD-PARTY.txt
COPY examples/models /models
COPY --from=build /build/target/dist/ocelli /usr/local/bin/ocelli
# ORT_DISABLE_TELEMETRY: ONNX Runtime reports nothing to anybody. The server sets this itself; this line is for whatever else runs in the
# image. The admin listener stays on 127.0.0.1, where the health check asks.
# The same callers control devices and models on every listener. Without OCELLI_ADMIN_TOKEN, these are callers by a loopback address, which
# are those inside the container. With it, they are those who know the token.
ENV ORT_DISABLE_TELEMETRY=1 \
    OCELLI_LISTEN=0.0.0.0:8000 \
    OCELLI_MODELS=/models \
    OCELLI_KERNEL_CACHE_FOLDER=/tmp/ocelli-kernels \
    ORT_DYLIB_PATH=/usr/local/lib/ocelli/libonnxruntime.so.1.31.1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["ocelli", "health", "ready"]
ENTRYPOINT ["ocelli"]
CMD ["serve"]
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Ocelli" \
      org.opencontainers.image.description="A long-running HTTP service that runs image models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM base AS cuda
COPY --from=cuda-libraries /libraries /usr/local/lib/ocelli
# What NVIDIA's container runtime adds to the container: the driver for computing, and NVML.
ENV LD_LIBRARY_PATH=/usr/local/lib/ocelli \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA AND LicenseRef-NVIDIA-cuDNN-SLA"

# The last target is built if none is named.
FROM base AS cpu
COPY --from=libraries /libraries /usr/local/lib/ocelli
