//! The table of options: name, type, kind, default, one line, and more. Everything that is said about an option
//! anywhere (the fields of [`Config`], flags and their help, variables, `deploy/ocelli.toml`, `docs/options.md`) is
//! made from its row here.

use super::{
    fields::{
        Backend, BusyPoll, Chosen, FromValue, Isolation, LogFormat, RepositoryMode, Secret, TritonMetrics,
        WhileWaiting,
    },
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

macro_rules! options {
    ($( section $section:literal { $(
        $name:ident: $type:ty, $kind:expr, $default:literal, $doc:literal, $more:literal;
    )* } )*) => {
        /// The options, checked. Made by [`load`](super::load) and never changed after.
        ///
        /// What stands for something else is resolved: thread counts are never 0, `onnx_runtime` is never empty.
        // `[::]` in the texts of options is an address.
        #[allow(rustdoc::broken_intra_doc_links)]
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
    Address, Addresses, BasePath, Bytes, Choice, Count, Filter, Millis, ModelName, Name, Names, Path, Ratio,
    Secret as SecretKind, Threads, Url,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const DAY_MS: u64 = 86_400_000;

options! {
    section "Listening" {
        listen: Vec<SocketAddr>, Addresses, "127.0.0.1:8000",
            "Where the API listens: one address, or several with commas between them.",
            "0.0.0.0:8000 or [::]:8000 listens on every interface. Use one of the two, since [::] includes IPv4. Port 0 takes any free port; the log then names it. Clients of Triton look for port 8000, clients of KServe and TorchServe for port 8080: 0.0.0.0:8000,0.0.0.0:8080 serves both.";
        base_path: String, BasePath, "",
            "A prefix that paths of the API may have, such as /vision; empty for none.",
            "This is for proxies that pass on a path as it is, and for clients that are given host:port/vision. /vision/v2/models and /v2/models are then the same, so probes and scrapers need not know the prefix. It applies to listen alone, and may not begin as a path of the API does (/v2, /metrics).";
        grpc_listen: Option<SocketAddr>, Address, "",
            "Where the same API is served over gRPC; empty turns gRPC off.",
            "Triton's port is 8001. Limits, deadlines and the drain are the same as for the HTTP API.";
        admin_listen: Option<SocketAddr>, Address, "127.0.0.1:8002",
            "Where health, metrics and control are served apart from the API; empty turns this listener off.",
            "This listener has its own thread, so a jammed data path cannot fail a probe. It controls devices and models by the same rules as the API. Without admin_token, only callers by a loopback address (127.0.0.1, ::1) may do so; with it, only those who know the token. Whoever reaches this listener can read health and metrics, so keep it off public interfaces.";
    }
    section "Answers" {
        server_name: String, Name, "ocelli",
            "What the server calls itself in its metadata, at /v2 and over gRPC.",
            "This is for callers that look for another server's name there, such as triton. It is Triton's --id. What it really is stands in ocelli_build_info and the log.";
        torchserve_answers: bool, Choice(&["off", "on"]), "off",
            "Whether /predictions and :predict answer as TorchServe does: for a classifier {label: probability} of the five best classes, for a detector its boxes by their label, of what scores 0.5 or more.",
            "This is for callers of TorchServe that cannot add ?format=torchserve to their requests. With it, ?format=ocelli asks for our own form. /predictions then also takes what TorchServe alone takes, such as a lone base64 string, and ignores unknown keys of the query.";
    }
    section "The page" {
        page: bool, Choice(&["on", "off"]), "on",
            "Whether there is a page for people at / and a description of the API at /docs.",
            "On the page, people can try images and look at devices, queues and models. It uses the same routes as any other client. Both come with the binary and need no network. They are on the API alone, not on admin_listen.";
    }
    section "Control" {
        repository_mode: RepositoryMode, Choice(RepositoryMode::WORDS), "none",
            "How models come and go while the server runs.",
            "none: the models of the start stay. explicit: callers load and unload models by /v2/repository. watch: models follow their folder, once a change in it has settled.";
        startup_models: Chosen, Names, "*",
            "Which models of the folder are loaded at the start: names with commas between them, * for all, empty for none.",
            "With repository_mode explicit, the others can be loaded later; with watch, when their files change. A server is not ready before it has a model, except with explicit: there callers may begin with none.";
        shared_memory_regions_max: usize, Count { min: 0, max: 65_536 }, "0",
            "How many regions of shared memory callers may register to hand over tensors; 0 for none.",
            "This is Triton's system shared memory extension. Each region takes a file descriptor; all regions together take at most a quarter of those that the process may have. Whoever may register regions can make the server read and write any file under /dev/shm that its user may. Without admin_token, that is callers by a loopback address (127.0.0.1, ::1); with it, those who know the token. Set the token if others have accounts on the machine.";
        admin_token: Option<Secret>, SecretKind, "",
            "The token for loading and unloading models, draining devices and sharing memory; empty for none.",
            "Callers must show it as Authorization: Bearer TOKEN. If it is empty, callers by a loopback address (127.0.0.1, ::1) may do these things, and nobody else. A token has at least 16 characters. Better set it by the environment or the file than by a flag, which others on the machine can see.";
    }
    section "Models and devices" {
        models: PathBuf, Path { empty: false }, "models",
            "The folder that holds the models, one folder each.",
            "A relative path starts from the folder in which the server was started.";
        model_name: Option<String>, ModelName, "",
            "What the model is called if models is itself one model's folder; empty if it never is.",
            "It is if it has a model.onnx, a model.toml, a config.pbtxt, or a VERSION/model.onnx. Otherwise this option has no effect, so that it may be set for folders of both kinds, as KServe's runtimes do with the name of a service.";
        backend: Backend, Choice(Backend::WORDS), "auto",
            "What the models run on.",
            "auto takes a GPU where one is free and the CPU otherwise; cpu never touches a GPU; gpu refuses to run on anything else.";
        isolation: Isolation, Choice(Isolation::WORDS), "auto",
            "Where a GPU's models run: auto, in the server's process (thread), or in one process for each GPU (process).",
            "auto means one process for each GPU if idle_release_ms is set and gpu_jpeg is off, and the server's process otherwise.\n\nIn a process of its own, a GPU whose driver or libraries crash, abort or fail for good costs no request and does not end the server: its batches run elsewhere, and the process is started anew. Each batch takes a little longer, for two hand-offs between processes.\n\nA GPU also needs a process of its own to be given back whole: CUDA's runtime keeps its context, some hundred MB, for as long as its process lives. The CPU's models always run in the server.";
        isolation_bytes: u64, Bytes { min: MIB, max: TIB }, "256MiB",
            "Memory that is shared with the process of each GPU, if each has one (isolation).",
            "Three eighths of it are for batches that are being put together, a quarter for what is copied on its way to the GPU, an eighth for results that the GPU writes there, and a quarter for results that are copied. The GPU's driver pins this memory, so it counts as memory of the server, used or not.\n\nImages that find no room are copied once more. Batches, results and maps of cameras that are larger than their part go in memory of their own each time. The driver does not know that memory, which is slower.";
        kernel_cache_folder: Option<PathBuf>, Path { empty: true }, "",
            "Where the GPU driver keeps our kernels, which it compiles for the GPU when they are first loaded.",
            "Empty means CUDA_CACHE_PATH, or else the driver's own place in the home folder. If the folder lasts, a container need not compile at every start.";
        onnx_runtime: PathBuf, Path { empty: true }, "",
            "The ONNX Runtime shared library (libonnxruntime.so).",
            "Empty means the value of ORT_DYLIB_PATH, or the system's libonnxruntime.so if that is not set either. The reports that ONNX Runtime's builds send to Microsoft are turned off (ORT_DISABLE_TELEMETRY is set).";
    }
    section "Connections and requests" {
        connections_max: usize, Count { min: 1, max: 1_000_000 }, "8192",
            "The most open connections on each address of the API.",
            "One more connection takes the place of the one that has been idle for longest, if any has been idle for a second. If all are at work, the new one waits until one ends. Each connection needs a file descriptor. If the process may not have so many files open, fewer connections are let in, and a warning at the start says so.";
        requests_in_flight_max: usize, Count { min: 1, max: 1_000_000 }, "1024",
            "The most requests being worked on at once; more are answered with 429.",
            "A request counts from its headers until its reply has been sent. Each message of a gRPC stream counts as one request; beside these, as many streams may be open. A request whose body does not come, or too slowly (body_rate_bytes_min), keeps its place only until another needs it. One HTTP/2 connection has at most 256 requests and streams at once. More wait in the client until one ends, or go over another connection.";
        in_flight_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "1GiB",
            "Bytes that request bodies, and replies until their end, may hold at once; more are answered with 429.",
            "A body counts as it grows: up to twice what has come. While it is decompressed from zstd, what the decoder keeps of it counts too (up to 8 MiB). A stack of camera frames counts in the same way up to 8 MiB, and beyond that with what is held of it.\n\nOf a reply, what the model gave counts (from 16 KiB on) until it has been sent or made smaller. What is written from that counts too. Until numbers are written as text, they count with the most that they may take. A reply for which there is no room is answered with 429, or with 413 if there never is.\n\nThese count as well: pictures of localizations, and their rows in formats that begin with the number of rows; frames of a streamed file that wait for the caller; and the memory in which spots are looked for, about 16 bytes for each pixel of a frame.\n\nBeside a body, what its base64 images are decoded to counts. So does what becomes of the texts (BYTES) that a model takes: 192 bytes for each text, and 7 times the sum of its bytes and four for its length.";
        body_bytes_max: u64, Bytes { min: KIB, max: TIB }, "256MiB",
            "The largest request body; a larger one is answered with 413.",
            "At most in_flight_bytes_max and queue_bytes_max, since a larger body could never be let in.";
        parts_max: usize, Count { min: 1, max: 100_000 }, "256",
            "The most parts of one multipart body, or images of one JSON body; more are answered with 413.",
            "Each file is a part.";
        header_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "10000",
            "How long a request's headers may take, from their first byte.",
            "After that, the connection is closed. This time must be less than idle_timeout_ms.";
        idle_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "75000",
            "How long a connection may stay open without a request.",
            "Set it to longer than a load balancer in front keeps its connections (often 60 s). Otherwise the load balancer may send a request just as the connection is closed.";
        body_timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "120000",
            "How long a request's body may take.",
            "The time counts from the first read of the body.";
        body_rate_bytes_min: u64, Bytes { min: 0, max: TIB }, "1024",
            "The lowest average rate at which a body may arrive, in bytes per second; 0 for any rate.",
            "The limit applies after 5 s, so a slow start fails nobody. Only while requests_in_flight_max is reached, it applies from the start: a new request takes the place of the one whose body has been below it for longest, if that is a quarter of a second or more. That one gets 408. A body of known length must also come fast enough that all of it is there within body_timeout_ms. 0 turns all of this off.";
        reply_stall_ms: Duration, Millis { min: 1, max: DAY_MS }, "30000",
            "How long a client may take for the next 64 KiB of a reply, or for its rest if that is less.",
            "After that, the connection is closed. Over HTTP/2 and gRPC only the stream is reset (CANCEL; gRPC's CANCELLED), and all others of its connection go on. The time counts while there is something to send and the client takes nothing more: a reply that waits for the server may take as long as it does. A client that works between the answers that it reads must read ahead, or this time must be long enough for that work.\n\nOver HTTP/2, the connection is closed if eight streams were reset, one after the other, and the client took nothing of any of them. If no stream is left that the server still works on, the connection is told to go away (GOAWAY). It is closed once what had been written of other replies has been taken, at the latest after this time again.";
    }
    section "Shared GPUs" {
        while_waiting: WhileWaiting, Choice(WhileWaiting::WORDS), "cpu",
            "What answers while the server waits for a GPU, with backend auto.",
            "cpu: the CPU answers until the GPU is warm. wait: the CPU is left out until auto_timeout_ms has passed. At the start, no device has loaded the model yet, so requests get 503 (model-unavailable: it is still loading). Once a GPU has served and is away, requests wait for it, each no longer than its own time (timeout_ms), and then get 504.";
        auto_timeout_ms: Duration, Millis { min: 0, max: DAY_MS }, "300000",
            "How long the CPU is left out while the server waits for a GPU, if while_waiting is wait.",
            "The time counts from when the server began to wait for the GPU; after it, the CPU answers. Set it to at most timeout_ms. Otherwise requests that wait are late (504) until it is over, and the log warns of that at the start.";
        gpu_timeout_ms: Duration, Millis { min: 0, max: DAY_MS }, "0",
            "With backend gpu: how long all GPUs may be away before the server ends with exit code 69; 0 for ever.",
            "The time also runs after the start, when every GPU was lost and none has come back. A GPU that is drained, or was given back because nobody needed it, is not away.";
        idle_release_ms: Duration, Millis { min: 0, max: DAY_MS }, "0",
            "How long a GPU must go unneeded before it is given back whole; 0 for never.",
            "The next request for one of its models has the GPU taken again. That request waits or runs on the CPU, as while_waiting says. So that GPUs are given back whole, their models then run in processes of their own, unless isolation says otherwise.";
        gpu_stuck_ms: Duration, Millis { min: 0, max: DAY_MS }, "60000",
            "How long one call to a GPU may take before the GPU counts as stuck and is taken out; 0 for any time.",
            "Set it to more than the longest batch of any model takes there, including its loading. Engines that TensorRT builds at a load may take as long as they need.";
        gpu_queue_folder: Option<PathBuf>, Path { empty: true }, "/tmp/ocelli-gpus",
            "Where servers on one machine queue for its GPUs; empty for no queue.",
            "All servers need the same folder, on a file system with locks (flock). For containers, mount one folder into each of them.";
        gpu_state_folder: Option<PathBuf>, Path { empty: true }, "",
            "Where the server records how much memory models took on GPUs; empty for nowhere.",
            "With it, the next start knows what must be free before it takes a shared GPU. Without it, the need is guessed from the size of model files, until the models are loaded.";
        nvml_library: Option<PathBuf>, Path { empty: true }, "",
            "NVIDIA's management library, which tells who uses a GPU and how it is; empty for the driver's own.",
            "Without such a library, GPUs are taken without looking.";
    }
    section "Images" {
        image_side_max: u32, Count { min: 1, max: 1_000_000 }, "32768",
            "The longest side of an image, in pixels.",
            "It is read from the header before anything is allocated. So are image_pixels_max and image_frames_max.";
        image_pixels_max: u64, Count { min: 1, max: 1 << 40 }, "67108864",
            "The largest image, in pixels (width times height) of all its frames together.",
            "The default is 64 Mi pixels, such as 8192 x 8192, or 256 pages of 512 x 512. The tiles of a TIFF may extend beyond its pages, and may have four times as many pixels in all.";
        image_frames_max: usize, Count { min: 1, max: 10_000_000 }, "4096",
            "The most frames of one image, such as the pages of a TIFF.",
            "A format of which only the first frame is used counts as one frame.";
        decode_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "1GiB",
            "Memory for decoded images, the model input made of them, and masks and pictures being written, all together.",
            "A decode waits until its share is free. What needs more than all of it is answered with 413. At least 4 bytes for each of image_pixels_max.\n\nFormats whose decoders work on more (progressive JPEG, WebP, 16 bits) take up to 19 bytes for each pixel, JPEG 2000 up to 48, and JPEG XL 25 to 100. A mask takes 8 bytes for each pixel of the posted image (24 as run lengths). A picture takes 10 bytes for each channel of each pixel (16 for 16 bits, and more if it is resized).";
        gpu_jpeg: bool, Choice(&["off", "on"]), "off",
            "Whether a GPU decodes JPEGs while the CPU has more of them than it has threads for.",
            "NVIDIA's nvJPEG (libnvjpeg.so.13, .12 or .11) decodes them, on a GPU that is held anyway: the first if there are several. It takes plain photos only; the CPU does the rest. Pixels differ by a few steps from the CPU's. Not with isolation = \"process\".";
    }
    section "Stacks of camera frames" {
        stack_bytes_max: u64, Bytes { min: KIB, max: 1024 * TIB }, "1TiB",
            "The longest stack that a fitter takes, in bytes; a longer one is answered with 413.",
            "A stack is read as it comes in and is never held as a whole, so this bounds a request, not memory. A compressed body counts by its decompressed size. What is decompressed of a stack, pages of a TIFF too, is at most 64 MiB plus 1032 times what is sent. A stack may come for as long as it keeps body_rate_bytes_min on average. It may be silent for body_timeout_ms at a time at most.";
        stack_frames_max: u64, Count { min: 1, max: 4_294_967_295 }, "100000000",
            "The most frames of one stack.",
            "Sides and pixels of a frame have the same limits as those of an image.";
        stack_memory_bytes_max: usize, Bytes { min: KIB, max: TIB }, "64MiB",
            "Memory for those bytes of a stack that cannot be read until more of it is there.",
            "Never more than half of in_flight_bytes_max. Towards that option, a stack counts as it comes, up to 8 MiB; what is held beyond that counts while it is held. If there is no room there for what is held, it goes to the temporary file. Without temporary files, a stack counts as it comes, up to all of this memory. Files that are written in order need next to nothing.";
        stack_spill_bytes_max: u64, Bytes { min: 0, max: 1024 * TIB }, "16GiB",
            "How much of each stack may go to a temporary file when stack_memory_bytes_max is full.",
            "0 for no temporary files: stacks that do not stream must then fit into stack_memory_bytes_max.";
        stack_spill_total_bytes_max: u64, Bytes { min: 0, max: 1024 * TIB }, "64GiB",
            "What the temporary files of all stacks may hold together: as much as their disk can spare.",
            "At least stack_spill_bytes_max. If other stacks leave no room for a stack, it is answered with 429.";
        stack_spill_folder: PathBuf, Path { empty: true }, "",
            "Where temporary files of stacks are made; they have no name and are gone with the request.",
            "Empty means the system's folder for temporary files, which may be in memory.";
    }
    section "Queue" {
        queue_items_max: usize, Count { min: 1, max: 100_000_000 }, "1000000",
            "The most items that wait or run; more are answered with 429.",
            "An item is one row of a batch: an image, or one spot to be fitted.";
        queue_bytes_max: u64, Bytes { min: KIB, max: 16 * TIB }, "2GiB",
            "The most bytes of model input that wait or run; more are answered with 429.",
            "At least body_bytes_max, so that one tensor request of the largest size fits.";
        timeout_ms: Duration, Millis { min: 1, max: DAY_MS }, "30000",
            "How long a request may take, from when its body is there, unless it or its model says otherwise.",
            "At most timeout_ms_max. A request that is late is answered with 504 and not run. body_timeout_ms bounds how long the body may take. A time that the request itself asks for (the header timeout) counts from its head, and ends the reading of the body.";
        timeout_ms_max: Duration, Millis { min: 1, max: DAY_MS }, "600000",
            "The longest time that a request or a model may ask for.",
            "A longer time is cut to this.";
    }
    section "Threads" {
        http_threads: usize, Threads { max: 1024 }, "0",
            "Threads that read requests and write replies; 0 for one per core.",
            "Cores are those that the process may use; a container's CPU limit counts.";
        busy_poll: BusyPoll, Choice(BusyPoll::WORDS), "auto",
            "Whether one of these threads polls its sockets instead of sleeping while a caller's next request should come at any moment.",
            "This is for callers that ask again as soon as they have their answer: to wake a thread that sleeps takes tens of microseconds, and more on a virtual machine. A request is expected after four in turn that each came within 0.2 ms of the answer before, and for that long. One thread does so at a time, so it takes one core at most, and lets whatever else wants that core run first. auto does so if the process may use two cores or more and has no CPU limit, against which polling would count.";
        decode_threads: usize, Threads { max: 1024 }, "0",
            "Threads that decode and resize images; 0 for one per core.",
            "That many images are decoded at once.";
        compute_threads: usize, Threads { max: 1024 }, "0",
            "Threads that run a model on the CPU; 0 for one per core.",
            "One batch uses all of them. Each model on the CPU has threads of its own, less one: the thread that has the batch is one of them.";
        compute_bytes_max: u64, Bytes { min: 0, max: 16 * TIB }, "0",
            "Memory of ONNX models on the CPU: weights, intermediate tensors and outputs, all together; 0 for seven eighths of what the process may have.",
            "A batch that finds no room is run again in smaller ones; a request that finds none alone is answered with 413, or with 503 while other batches run beside it. A model whose weights or smallest batch find none is not loaded.\n\nThis keeps one input that says how large an output is from ending the server. All models share this memory, since few of them run at the same time. What nobody needs goes back to the system when a model is idle or unloaded.";
    }
    section "Metrics" {
        metrics_listen: Option<SocketAddr>, Address, "",
            "Where /metrics is served alone, on a thread of its own; empty turns this listener off.",
            "This is for scrapers that look for metrics elsewhere than on the API and on admin_listen, such as Triton's on port 8002.";
        triton_metrics: TritonMetrics, Choice(TritonMetrics::WORDS), "apart",
            "Where /metrics also has Triton's names: at admin_listen and metrics_listen (apart), everywhere (on), or nowhere (off).",
            "nv_inference_* for each model, nv_gpu_* and nv_cpu_*, in the form that dashboards, autoscalers and perf_analyzer read. \
             The default keeps them apart from the API, as Triton does (on port 8002, too): promtool's lint does not accept such names.";
    }
    section "Shutdown" {
        drain_delay_ms: Duration, Millis { min: 0, max: 3_600_000 }, "5000",
            "How long requests are still taken after SIGTERM, while readiness already says no.",
            "This gives load balancers time to look elsewhere.";
        drain_timeout_ms: Duration, Millis { min: 0, max: 3_600_000 }, "25000",
            "How long accepted requests may take to finish after drain_delay_ms; the rest is dropped and counted.",
            "Under Kubernetes, terminationGracePeriodSeconds must be more than both times together.";
    }
    section "Logs" {
        log_format: LogFormat, Choice(LogFormat::WORDS), "auto",
            "How log lines are written.",
            "auto writes for people on a terminal, and one JSON object per line elsewhere. Logs go to the standard error. There are colours on a terminal, unless NO_COLOR is set or TERM is dumb.";
        log_filter: String, Filter, "info",
            "Which log lines are written.",
            "A level, or levels by target, such as warn,ocelli=debug, as tracing's EnvFilter reads them. POST /v2/logging changes it while the server runs.";
        log_slow_ms: Duration, Millis { min: 0, max: DAY_MS }, "5000",
            "Requests that take longer than this have a line in the log even if they go well; 0 for none.",
            "The line has the stages' times. A stack of camera frames has none: it takes as long as its client sends. At most ten a second of a kind are written.";
        log_dir: Option<PathBuf>, Path { empty: true }, "",
            "A folder for one log file per model, as JSON lines; empty for none.",
            "MODEL.log is a link to the current day's file. Of each model, the last 14 files are kept; those of a model that is gone stay. The folder must not be within models if these are watched.";
    }
    section "Traces" {
        otlp_endpoint: Option<String>, Url, "",
            "The collector that traces are sent to, by OTLP over HTTP with protobuf; empty for no traces.",
            "Such as http://127.0.0.1:4318; /v1/traces is added if the address has no path. What the log says of a request at the levels info, warn and error goes with its span, whatever log_filter is. A collector that cannot be reached costs spans, never requests. The variables OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_MAX_QUEUE_SIZE (spans that may wait, 2048) are read.";
        trace_sample_ratio: f64, Ratio, "0.1",
            "The share of the traces that is sent.",
            "The trace's id decides, whatever the caller's flag says, so all replicas decide alike. Requests that end with a status of 500 or more are always sent.";
    }
}
