//! The table of options: name, type, kind, default, one line, and more. Everything that is said about an option
//! anywhere (the fields of [`Config`], flags and their help, variables, `deploy/ocelli.toml`, `docs/options.md`) is
//! made from its row here.

use super::{
    fields::FromValue,
    kind::{Kind, Value},
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// The heading that it stands under.
    pub section: &'static str,
    /// Its name in the file, units last.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Its default, written as in the environment.
    pub default: &'static str,
    /// One line.
    pub doc: &'static str,
    /// The rest of what there is to say.
    pub more: &'static str,
}

impl Spec {
    /// The name of the environment variable, such as `OCELLI_QUEUE_ITEMS_MAX`.
    pub fn variable(&self) -> String {
        format!("OCELLI_{}", self.name.to_ascii_uppercase())
    }

    /// The name of the flag without its dashes, such as `queue-items-max`.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// What the models run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A GPU where there is one that is free, else the CPU.
    Auto,
    /// The CPU, even where there is a GPU.
    Cpu,
    /// A GPU, or nothing.
    Gpu,
}

/// Where a GPU's engines run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In one process for each GPU where GPUs are to be given back whole, else in the server's process.
    Auto,
    /// In the server's process.
    Thread,
    /// In one process for each GPU.
    Process,
}

/// What answers while a GPU is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhileWaiting {
    /// The CPU.
    #[default]
    Cpu,
    /// Nothing: requests wait for the GPU, until it has been waited for too long.
    Wait,
}

/// Where metrics have Triton's names beside our own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TritonMetrics {
    /// At `admin_listen` and `metrics_listen`.
    #[default]
    Apart,
    /// Wherever there are metrics.
    On,
    /// Nowhere.
    Off,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// How models come and go while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryMode {
    /// Not at all.
    None,
    /// By callers.
    Explicit,
    /// With their folder.
    Watch,
}

/// Some of the models of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// Whatever is there.
    All,
    /// Those of these names.
    Only(Vec<String>),
}

impl Chosen {
    /// Whether a model is among them.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Chosen::All => true,
            Chosen::Only(names) => names.iter().any(|one| one == name),
        }
    }
}

/// A text that nobody is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

impl Secret {
    /// For comparing, in time that does not depend on the content.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(set)")
    }
}

macro_rules! options {
    ($( section $section:literal { $(
        $name:ident: $type:ty, $kind:expr, $default:literal, $doc:literal, $more:literal;
    )* } )*) => {
        /// The options, checked. Made by [`load`](super::load) and never changed after.
        ///
        /// What stands for something else is resolved: thread counts are never 0, `onnx_runtime` is never empty.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $( $(
                #[doc = $doc]
                #[doc = ""]
                #[doc = $more]
                pub $name: $type,
            )* )*
        }

        /// Every option, in the order in which they are shown.
        pub const OPTIONS: &[Spec] = &[
            $( $( Spec {
                section: $section,
                name: stringify!($name),
                kind: $kind,
                default: $default,
                doc: $doc,
                more: $more,
            }, )* )*
        ];

        impl Config {
            /// From the values of all options, in the order of [`OPTIONS`].
            pub(super) fn from_values(values: impl IntoIterator<Item = Value>) -> Config {
                let mut values = values.into_iter();
                let mut next = || values.next().expect("there is a value for each option");
                // Fields are initialised in the order in which they are written, which is the table's.
                Config { $( $( $name: FromValue::from_value(next()), )* )* }
            }
        }
    };
}

use Kind::{
    Address, Addresses, BasePath, Bytes, Choice, Count, Filter, Millis, Names, Path, Ratio,
    Secret as SecretKind, Threads, Url,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const DAY_MS: u64 = 86_400_000;

options! {
    section "Listening" {
        listen: Vec<SocketAddr>, Addresses, "127.0.0.1:8000",
            "Where the API listens: one address or several, with commas between them.",
            "0.0.0.0:8000 or [::]:8000 listens on every interface: one of the two, since [::] has IPv4 as well. Port 0 takes any free port, which the log then names. Clients of Triton look for port 8000, those of KServe and TorchServe for 8080: 0.0.0.0:8000,0.0.0.0:8080 serves both.";
        base_path: String, BasePath, "",
            "What paths of the API may begin with, such as /vision; empty for nothing.",
            "For proxies that pass on a path as it is, and clients that are given host:port/vision: /vision/v2/models and /v2/models are then the same, so that probes and scrapers need not know of it. On listen alone.";
        grpc_listen: Option<SocketAddr>, Address { off: true }, "",
            "Where the same API is served over gRPC; empty for not at all.",
            "Triton's port is 8001. Limits, deadlines and the drain are those of the HTTP API.";
        admin_listen: Option<SocketAddr>, Address { off: true }, "127.0.0.1:8002",
            "Where health, metrics and control are served apart from the API; empty for not at all.",
            "This listener has its own thread, so that a jammed data path cannot fail a probe. Devices and models are controlled here as on the API: by callers by a loopback address (127.0.0.1, ::1) or, with admin_token, by those who know it. Whoever reaches it reads health and metrics: keep it off public interfaces.";
    }
    section "Answers" {
        torchserve_answers: bool, Choice(&["off", "on"]), "off",
            "Whether /predictions answers for a classifier as TorchServe does: {label: probability} of the five best classes.",
            "For callers of TorchServe that cannot add ?format=torchserve to their requests; ?format=ocelli then asks for our own form.";
    }
    section "The page" {
        page: bool, Choice(&["on", "off"]), "on",
            "Whether people find a page at / and a description of the API at /docs.",
            "Images to try, devices, queues and models to look at, by the same routes as any other client. Both come with the binary and need no network. On the API alone, not on admin_listen.";
    }
    section "Control" {
        repository_mode: RepositoryMode, Choice(RepositoryMode::WORDS), "none",
            "How models come and go while the server runs.",
            "none: those of the start stay. explicit: callers load and unload them by /v2/repository. watch: they follow their folder, once a change in it has come to rest.";
        startup_models: Chosen, Names, "*",
            "Which models of the folder are loaded at the start: names with commas between them, * for all, empty for none.",
            "With repository_mode explicit the others can be loaded later, with watch when their files change. A server is not ready before it has a model.";
        shared_memory_regions_max: usize, Count { min: 0, max: 65_536 }, "0",
            "How many regions of shared memory callers may register, to hand over tensors in them; 0 for none.",
            "Triton's system shared memory extension. Each takes a file descriptor, and all of them at most a quarter of those that the process may have. Whoever may register regions can have the server read and write any file under /dev/shm that its user may: callers by a loopback address (127.0.0.1, ::1), or with admin_token those who know it. Set the token where others have accounts on the machine.";
        admin_token: Option<Secret>, SecretKind, "",
            "What callers who load and unload models, drain devices or share memory must show, as Authorization: Bearer TOKEN; empty: callers by a loopback address (127.0.0.1, ::1) may, and nobody else.",
            "At least 16 characters. Better set by the environment or the file than by a flag, which others on the machine can see.";
    }
    section "Models and devices" {
        models: PathBuf, Path { empty: false }, "models",
            "The folder that holds the models, one folder each.",
            "A relative path counts from the folder in which the server was started.";
        backend: Backend, Choice(Backend::WORDS), "auto",
            "What the models run on.",
            "auto takes a GPU where one is free and the CPU otherwise; cpu never touches a GPU; gpu refuses to run on anything else.";
        isolation: Isolation, Choice(Isolation::WORDS), "auto",
            "Where a GPU's models run: in the server's process (thread), in one process for each GPU (process), or (auto) so where idle_release_ms is set and gpu_jpeg is off, else in the server's.",
            "In a process of its own, a GPU whose driver or libraries crash, abort or fail for good costs no request and not the server: its batches run elsewhere, and the process is started anew. Each batch takes a little longer, for two hand-offs between processes. It is also what a GPU has to be given back whole: CUDA's runtime keeps its context, some hundred MB, for as long as its process lives. The CPU's models always run in the server.";
        isolation_bytes: u64, Bytes { min: MIB, max: TIB }, "256MiB",
            "Memory that is shared with the process of each GPU, where each has one (isolation).",
            "Three eighths of it are for batches that are being put together, a quarter for what is copied on its way to the GPU, an eighth for results that the GPU writes there, a quarter for those that are copied. The GPU's driver pins it: it counts as memory of the server, used or not. Images that find no room are copied once more; batches, results and maps of cameras that are larger than their part go in memory of their own each time, which the driver does not know: slower.";
        kernel_cache_folder: Option<PathBuf>, Path { empty: true }, "",
            "Where the GPU driver keeps our kernels, which it compiles for the GPU when they are first loaded.",
            "Empty means CUDA_CACHE_PATH, or else the driver's own place in the home folder. A folder that lasts spares a container the compiling at every start.";
        onnx_runtime: PathBuf, Path { empty: true }, "",
            "The ONNX Runtime shared library (libonnxruntime.so).",
            "Empty means the value of ORT_DYLIB_PATH and, where that is not set either, the system's libonnxruntime.so. What its builds report to Microsoft is turned off (ORT_DISABLE_TELEMETRY is set).";
    }
    section "Connections and requests" {
        connections_max: usize, Count { min: 1, max: 1_000_000 }, "8192",
            "Open connections on each address of the API.",
            "One more takes the place of the one that has been idle for longest, where any has been for a second; where all are at work, it waits until one ends. Each needs a file descriptor. Where the process may not have so many files open, fewer are let in, and a warning says so at the start.";
        requests_in_flight_max: usize, Count { min: 1, max: 1_000_000 }, "1024",
            "Requests being worked on at once; more are answered with 429.",
            "A request counts from its headers until its reply has been sent. Of a gRPC stream each message counts as one; as many streams may be open beside them. One HTTP/2 connection has at most 256 requests and streams at once: more wait in the client until one ends, or go over another connection.";
        in_flight_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "1GiB",
            "Bytes of request bodies held at once, and of what replies hold until their end; more are answered with 429.",
            "A body counts as it grows, up to twice what has come where its length is known, and while it is unpacked from zstd also what the decoder keeps of it (up to 8 MiB); a stack of camera frames in the same way up to 8 MiB, and with what is held of it beyond that. Of replies, what a model gave counts (from 16 KiB on) until it has been sent or made smaller, and what is written of it: numbers as text with as much as they may take until they are written. A reply for which there is no room is 429, and 413 where there never is. So do pictures and rows of localizations whose number comes first, and the frames of a streamed file that wait for the caller; so does what spots are looked for in, about 16 bytes for each pixel of a frame. Of bodies, what images in base64 are decoded to counts beside them, and what becomes of texts (BYTES) that a model takes: 192 bytes for each, and 7 times its bytes and its length of four.";
        body_bytes_max: u64, Bytes { min: KIB, max: TIB }, "256MiB",
            "The largest request body; a larger one is answered with 413.",
            "At most in_flight_bytes_max and queue_bytes_max: a larger body could never be let in.";
        parts_max: usize, Count { min: 1, max: 100_000 }, "256",
            "Parts of one multipart body, or images of one JSON body; more are answered with 413.",
            "Each file is a part.";
        header_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "10000",
            "How long a request's headers may take, from their first byte.",
            "The connection is closed afterwards. Less than idle_timeout_ms.";
        idle_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "75000",
            "How long a connection may stay open without a request.",
            "Longer than a load balancer in front keeps its connections (often 60 s): otherwise it may send a request just as the connection is closed.";
        body_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "120000",
            "How long a request's body may take.",
            "Counted from the first read of the body.";
        body_rate_bytes_min: u64, Bytes { min: 0, max: TIB }, "1024",
            "Bytes per second at which a body must arrive at least, on average; 0 for any rate.",
            "Acts after 5 s, so that a slow start fails nobody. A body that says how long it is must also come as fast as brings all of it within body_timeout_ms. 0 turns off both.";
        reply_stall_ms: Duration, Millis { min: 1, max: DAY_MS }, "30000",
            "How long a caller may take for the next 64 KiB of a reply, or for its rest if that is less; the connection is closed then, over HTTP/2 only the stream.",
            "Over HTTP/2 and gRPC the stream is reset (CANCEL; gRPC's CANCELLED) and all others of its connection go on. The connection is closed where eight were reset, one after the other, and it took nothing of any of them. Where none is left that we still work on, it is told to go away (GOAWAY), and closed when what had been written of others has been taken, after this time again at the latest. Counts while there is something to send and the caller takes nothing more: a reply that waits for us may take as long as it does. Whoever reads answers as they come and works in between reads ahead, or has the time for it here.";
    }
    section "Shared GPUs" {
        while_waiting: WhileWaiting, Choice(WhileWaiting::WORDS), "cpu",
            "What answers while a GPU is waited for, with backend auto.",
            "cpu has the CPU answer until the GPU is warm. wait leaves the CPU out until auto_timeout_ms has passed: at the start, requests get 503 (model-unavailable: it is still loading), as no device has loaded the model yet; once a GPU has served and is away, requests wait for it, each no longer than its own time (timeout_ms), and then get 504.";
        auto_timeout_ms: Duration, Millis { min: 0, max: DAY_MS }, "300000",
            "How long the CPU is left out while a GPU is waited for, where while_waiting is wait.",
            "Counted from when the GPU was begun to be waited for; then the CPU answers. At most timeout_ms, or requests that wait are late (504) until it is over, which the log warns of at the start.";
        gpu_timeout_ms: Duration, Millis { min: 0, max: DAY_MS }, "0",
            "With backend gpu: how long all GPUs may be away before the server ends with exit code 69; 0 for ever.",
            "Also counts after the start: when every GPU was lost and none has come back. One that is drained, or was given back because nobody needed it, is not away.";
        idle_release_ms: Duration, Millis { min: 0, max: DAY_MS }, "0",
            "How long nobody has needed a GPU before it is given back whole; 0 for never.",
            "It is taken again with the next request for one of its models, which waits or runs on the CPU as while_waiting says. To be whole, the models of GPUs then run in processes of their own, if isolation does not say otherwise.";
        gpu_stuck_ms: Duration, Millis { min: 0, max: DAY_MS }, "60000",
            "How long one call of a GPU may take before the GPU counts as stuck and is taken out; 0 for any time.",
            "More than the longest batch of any model takes there, with its loading. Engines that TensorRT builds at a load take as long as they do.";
        gpu_queue_folder: Option<PathBuf>, Path { empty: true }, "/tmp/ocelli-gpus",
            "Where servers on one machine queue for its GPUs; empty for no queue.",
            "One folder for all of them, on a file system with locks (flock); in containers, one that is mounted into each.";
        gpu_state_folder: Option<PathBuf>, Path { empty: true }, "",
            "Where it is kept how much memory models took on GPUs; empty for nowhere.",
            "So that the next start knows what must be free before it takes a shared GPU. Without it that is guessed from the size of model files, until they are loaded.";
        nvml_library: Option<PathBuf>, Path { empty: true }, "",
            "NVIDIA's management library, which tells who uses a GPU and how it is; empty for the driver's own.",
            "Without one, GPUs are taken without looking.";
    }
    section "Images" {
        image_side_max: u32, Count { min: 1, max: 1_000_000 }, "32768",
            "The longest side of an image, in pixels.",
            "Read from the header before anything is allocated, as are the next two.";
        image_pixels_max: u64, Count { min: 1, max: 1 << 40 }, "67108864",
            "The largest image, in pixels (width times height) of all its frames together.",
            "The default is 64 Mi pixels, such as 8192 x 8192, or 256 pages of 512 x 512. The tiles of a TIFF, which may stand over its pages, may have four times as many in all.";
        image_frames_max: usize, Count { min: 1, max: 10_000_000 }, "4096",
            "Frames of one image, such as the pages of a TIFF.",
            "Formats of which only the first frame is used count as one.";
        decode_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "1GiB",
            "Memory for decoded images and the model input made of them, and for masks and pictures while they are written, all together.",
            "A decode waits until its share is free. At least 4 bytes for each of image_pixels_max; formats whose decoders work on more (progressive JPEG, WebP, 16 bits) take up to 19, a mask takes 8 bytes for each pixel of the posted image (24 as run lengths), a picture 10 for each channel of each pixel (16 of 16 bits, and more where it is resized), and what needs more than all of it is answered with 413.";
        gpu_jpeg: bool, Choice(&["off", "on"]), "off",
            "Whether a GPU decodes JPEGs while the CPU has more of them than it has threads for.",
            "By NVIDIA's nvJPEG (libnvjpeg.so.13, .12 or .11), on a GPU that is held anyway, the first of several; plain photos only, the CPU does the rest. Pixels differ by a few steps from the CPU's. Not with isolation = \"process\".";
    }
    section "Stacks of camera frames" {
        stack_bytes_max: u64, Bytes { min: KIB, max: 1024 * TIB }, "1TiB",
            "The longest stack that a fitter takes, in bytes; a longer one is answered with 413.",
            "A stack is read as it comes in and is never held as a whole: this bounds a request, not memory. A body that comes packed counts unpacked. What is unpacked of it, pages of a TIFF too, is at most 64 MiB and 1032 times what is sent. It may come for as long as it keeps body_rate_bytes_min on average, and be silent for body_timeout_ms at a time at most.";
        stack_frames_max: u64, Count { min: 1, max: 4_294_967_295 }, "100000000",
            "Frames of one stack.",
            "Sides and pixels of a frame are bounded as those of an image are.";
        stack_memory_bytes_max: usize, Bytes { min: KIB, max: TIB }, "64MiB",
            "Memory for those bytes of a stack that can only be read when more of it is there.",
            "Never more than half of in_flight_bytes_max. A stack counts there as it comes, up to 8 MiB, and as what is held beyond that while it is; where there is no room for it, it goes to the temporary file. Without such files it counts as it comes up to all of this. Files that are written in order need next to nothing.";
        stack_spill_bytes_max: u64, Bytes { min: 0, max: 1024 * TIB }, "16GiB",
            "What may go to a temporary file where that memory is full, for each stack.",
            "0 for no such files: stacks that do not stream must then fit into stack_memory_bytes_max.";
        stack_spill_total_bytes_max: u64, Bytes { min: 0, max: 1024 * TIB }, "64GiB",
            "What the temporary files of all stacks may hold together: what their disk can spare.",
            "At least stack_spill_bytes_max. A stack for which the others leave no room is answered with 429.";
        stack_spill_folder: PathBuf, Path { empty: true }, "",
            "Where such files are made; they have no name and are gone with the request.",
            "Empty means the system's folder for temporary files, which may be in memory.";
    }
    section "Queue" {
        queue_items_max: usize, Count { min: 1, max: 100_000_000 }, "1000000",
            "Items waiting for a device; more are answered with 429.",
            "An item is one row of a batch: an image, or one spot to be fitted.";
        queue_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "2GiB",
            "Bytes of model input waiting for a device; more are answered with 429.",
            "At least body_bytes_max, so that one tensor request of the largest size fits.";
        timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "30000",
            "How long a request may take, from when its body is there, where neither it nor its model says.",
            "At most timeout_ms_max. A request that is late is answered with 504 and not run. How long the body may take is body_timeout_ms; a time that the request itself asks for (the header timeout) counts from its head, and ends the reading of the body.";
        timeout_ms_max: Duration, Millis { min: 1, max: DAY_MS }, "600000",
            "The longest time that a request or a model may ask for.",
            "More is cut to this.";
    }
    section "Threads" {
        http_threads: usize, Threads { max: 1024 }, "0",
            "Threads that read requests and write replies; 0 for one per core.",
            "Cores are those that the process may use, counting a container's CPU limit.";
        decode_threads: usize, Threads { max: 1024 }, "0",
            "Threads that decode and resize images; 0 for one per core.",
            "As many images are decoded at once.";
        compute_threads: usize, Threads { max: 1024 }, "0",
            "Threads that run a model on the CPU; 0 for one per core.",
            "One batch uses all of them; each model on the CPU has its own, but for the one that has the batch.";
    }
    section "Metrics" {
        metrics_listen: Option<SocketAddr>, Address { off: true }, "",
            "Where /metrics is served alone, on a thread of its own; empty for not apart.",
            "For scrapers that look for it elsewhere than on the API and on admin_listen, such as Triton's on port 8002.";
        triton_metrics: TritonMetrics, Choice(TritonMetrics::WORDS), "apart",
            "Where /metrics also has the names of Triton's metrics: at admin_listen and metrics_listen, everywhere, or nowhere.",
            "nv_inference_* for each model, nv_gpu_* and nv_cpu_*, in the form that dashboards, autoscalers and perf_analyzer read. \
             Apart from the API, as Triton has them (on port 8002, too): promtool's lint is not content with such names.";
    }
    section "Shutdown" {
        drain_delay_ms: Duration, Millis { min: 0, max: 3_600_000 }, "5000",
            "How long requests are still taken after SIGTERM, while readiness already says no.",
            "Gives load balancers the time to look elsewhere.";
        drain_timeout_ms: Duration, Millis { min: 0, max: 3_600_000 }, "25000",
            "How long accepted requests may take to finish after that; what is left then is dropped and counted.",
            "Under Kubernetes, terminationGracePeriodSeconds must be more than both together.";
    }
    section "Logs" {
        log_format: LogFormat, Choice(LogFormat::WORDS), "auto",
            "How log lines are written.",
            "auto writes for people on a terminal and one JSON object a line elsewhere. Logs go to the standard error.";
        log_filter: String, Filter, "info",
            "Which log lines are written.",
            "A level, or levels by target, such as warn,ocelli=debug, as tracing's EnvFilter reads them.";
        log_dir: Option<PathBuf>, Path { empty: true }, "",
            "A folder for one log file per model, as JSON lines; empty for none.",
            "MODEL.log is a link to the current day's file; of each model the last 14 are kept, and those of one that is gone stay. Not within models where these are watched.";
    }
    section "Traces" {
        otlp_endpoint: Option<String>, Url, "",
            "The collector that traces are sent to, by OTLP over HTTP with protobuf; empty for no traces.",
            "Such as http://127.0.0.1:4318; /v1/traces is added where the address has no path. What the log says of a request at the levels info, warn and error is with its span, whatever log_filter is. A collector that cannot be reached costs spans, never requests. OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_MAX_QUEUE_SIZE (spans that may wait, 2048) are read.";
        trace_sample_ratio: f64, Ratio, "0.1",
            "The part of the traces that is sent.",
            "Decided by the trace's id, so that all replicas decide alike, whatever the caller's flag says. Requests that end with a status of 500 or more are always sent.";
    }
}
