//! A machine with fake GPUs that several processes share, and servers on it: started as people start them, with their GPUs on
//! threads of their own or in processes of their own. The fakes are told what befalls them while the servers run.

use crate::{
    fakes::{
        cuda::{Books, Operation, library},
        nvml,
    },
    http::{Reply, config, root, send},
};
use axum::body::Body;
use parking_lot::Mutex;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// The first GPU.
pub(crate) const GPU: &str = "GPU-fa000000-0000-0000-0000-000000000001";

/// The name of a GPU.
pub(crate) fn id(gpu: usize) -> String {
    format!("GPU-fa000000-0000-0000-0000-{:012x}", gpu + 1)
}

/// What takes longer hangs, on however slow a machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// How GPUs are kept apart from the server.
pub(crate) const MODES: [&str; 2] = ["thread", "process"];

/// No NVML: GPUs are taken without looking, and nobody sees what others hold.
pub(crate) const BLIND: (&str, &str) = ("nvml-library", "/nowhere/libnvidia-ml.so");

/// A model that is on GPUs, and may be on the CPU while these are away.
pub(crate) const ON_GPU: &str = "[placement]\ndevices = \"gpu\"\n";

/// A machine, for as long as its files are there.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    script: String,
}

impl Machine {
    /// With these GPUs, as `devices` of the fake driver's script says it. What follows after a semicolon is the script of each
    /// process from its start on.
    pub(crate) fn new(devices: &str) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap(), script: format!("devices {devices}") };
        std::fs::create_dir(machine.path("books")).unwrap();
        std::fs::create_dir(machine.path("log")).unwrap();
        std::fs::write(machine.path("told"), "").unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Says a line to the fakes of a kind (`cuda` or `nvml`) in all processes, and waits until they have obeyed; with `cuda@` and
    /// a GPU's name to those that have this one.
    pub(crate) async fn tell(&self, fake: &str, line: &str) {
        let (kind, _) = fake.split_once('@').unwrap_or((fake, ""));
        let mut told = std::fs::OpenOptions::new().append(true).open(self.path("told")).unwrap();
        told.write_all(format!("{fake} {line}\n").as_bytes()).unwrap();
        let bytes = told.metadata().unwrap().len();
        let behind = || {
            let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
            let mut acks = entries.filter_map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                let id = name.strip_prefix("told.")?.strip_prefix(kind)?.strip_prefix('.')?;
                let (id, read) = (id.parse().ok()?, std::fs::read_to_string(entry.path()).ok()?);
                Some((id, read.parse::<u64>().ok()?))
            });
            acks.any(|(id, read)| read < bytes && is_alive(id))
        };
        until(line, async || !behind()).await;
    }

    /// Another process holds so much of a GPU from now on.
    pub(crate) async fn occupy(&self, gpu: usize, size: &str) {
        self.tell("cuda", &format!("foreign device={gpu} bytes={size}")).await;
        self.tell("nvml", &format!("process gpu={gpu} pid=4242 memory={size}")).await;
    }

    /// And has ended.
    pub(crate) async fn vacate(&self, gpu: usize) {
        self.tell("cuda", &format!("foreign device={gpu} bytes=0")).await;
        self.tell("nvml", &format!("end gpu={gpu} pid=4242")).await;
    }

    /// What processes hold of all GPUs: their numbers, and bytes.
    pub(crate) fn held(&self) -> Vec<(u32, u64)> {
        // As tests/fake_cuda/shared.cpp has it: a number, and a word for each of 16 devices.
        let bytes = std::fs::read(self.path("shared")).unwrap_or_default();
        let words = |slot: &[u8]| -> Vec<u64> {
            slot.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
        };
        let slots = bytes.chunks_exact(8 * 17).map(words);
        let held = slots
            .map(|words| (words[0] as u32, words[1..].iter().sum::<u64>()))
            .filter(|(id, held)| *held > 0 && is_alive(*id));
        held.collect()
    }

    /// Starts a server with fitters: their names, and what stands in their manifests below the example's. `options`: names and
    /// values on its command line. Returns when it listens.
    pub(crate) async fn start(
        &self,
        isolation: &str,
        models: &[(&str, &str)],
        options: &[(&str, &str)],
    ) -> Running {
        let folder = tempfile::tempdir().unwrap();
        for (name, tail) in models {
            put(folder.path(), name, tail);
        }
        self.run(Path::new(env!("CARGO_BIN_EXE_ocelli")), isolation, folder, options).await
    }

    /// Starts a server that is this program, with these models.
    pub(crate) async fn run(
        &self,
        program: &Path,
        isolation: &str,
        models: tempfile::TempDir,
        options: &[(&str, &str)],
    ) -> Running {
        let nvml = nvml::library();
        let onnx_runtime = config().onnx_runtime;
        let usual = [
            ("nvml-library", nvml.to_str().unwrap()),
            ("onnx-runtime", onnx_runtime.to_str().unwrap()),
            ("admin-listen", ""),
        ];
        let usual = usual.iter().filter(|(name, _)| options.iter().all(|(given, _)| given != name));
        let options =
            usual.chain(options).flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]);
        let mut process = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--isolation", isolation])
            .args(["--isolation-bytes", "16MiB", "--drain-delay-ms", "0"])
            .arg("--models")
            .arg(models.path())
            .arg("--gpu-queue-folder")
            .arg(self.path("queue"))
            .args(options)
            .env("ORT_DYLIB_PATH", config().onnx_runtime)
            .env("LD_LIBRARY_PATH", library().parent().unwrap())
            .env("FAKE_CUDA", &self.script)
            .env("FAKE_NVML", "gpus follow")
            .env("FAKE_CUDA_SHARED", self.path("shared"))
            .env("FAKE_CUDA_BOOKS", self.path("books/"))
            .env("FAKE_CUDA_LOG", self.path("log/"))
            .env("FAKE_TOLD", self.path("told"))
            // No request of a test is late, on however slow a machine, but where the test says so.
            .env("OCELLI_TIMEOUT_MS", PATIENCE.as_millis().to_string())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (said, lines) = (Arc::clone(&log), BufReader::new(process.stderr.take().unwrap()).lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                said.lock().push(line);
            }
        });
        let nowhere = "127.0.0.1:0".parse().unwrap();
        let mut running = Running { process, address: nowhere, log, models };
        let line: Value = serde_json::from_str(&running.until_said("\"listening\"").await).unwrap();
        let address = line["fields"]["address"].as_str().or(line["address"].as_str()).unwrap();
        running.address = address.parse().unwrap();
        running
    }

    /// What `ocelli devices` shows of it.
    pub(crate) fn devices(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ocelli"));
        command.arg("devices").arg("--onnx-runtime").arg(config().onnx_runtime);
        command.arg("--nvml-library").arg(nvml::library());
        command.env("LD_LIBRARY_PATH", library().parent().unwrap());
        command.env("FAKE_CUDA", &self.script).env("FAKE_NVML", "gpus follow");
        shown(command.env_remove("CUDA_VISIBLE_DEVICES"))
    }

    /// Starts it with one fitter, `spots`, and waits until its GPU serves.
    pub(crate) async fn serving(&self, isolation: &str, tail: &str, options: &[(&str, &str)]) -> Running {
        let running = self.start(isolation, &[("spots", tail)], options).await;
        running.until_ready().await;
        running.until_state("serving", "proved").await;
        running
    }

    /// Checks that no process has left anything on a GPU, and that none holds anything now.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.held(), []);
        for entry in std::fs::read_dir(self.path("books")).unwrap().flatten() {
            books(entry.path()).assert_empty();
        }
    }

    /// The operations that have ended in any process, each process's in their order.
    pub(crate) fn log(&self) -> Vec<Operation> {
        let files = std::fs::read_dir(self.path("log")).unwrap().flatten();
        let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
        // The last line may be on its way.
        let lines = texts.flat_map(|text| {
            text.split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
    }

    /// How often the processes that have ended have called a function of the driver.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        let files = std::fs::read_dir(self.path("books")).unwrap().flatten();
        files.map(|file| books(file.path()).calls(function)).sum()
    }

    /// The books that a process has left.
    pub(crate) fn books_of(&self, process: u32) -> Books {
        books(self.path("books").join(process.to_string()))
    }
}

/// A fitter in a folder of models: its name, and what stands in its manifest below the example's.
pub(crate) fn put(folder: &Path, name: &str, tail: &str) {
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::create_dir(folder.join(name)).unwrap();
    std::fs::write(folder.join(name).join("model.toml"), format!("{manifest}\n{tail}\n")).unwrap();
}

fn books(path: PathBuf) -> Books {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn shown(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether there is such a process that has not ended.
pub(crate) fn is_alive(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub(crate) fn signal(which: &str, id: u32) {
    assert!(Command::new("kill").args([which, &id.to_string()]).status().unwrap().success());
}

/// Waits until something holds: the bound is for a test that would hang.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < patience, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A running server. Dropping it ends it, and its children with it.
pub(crate) struct Running {
    process: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    models: tempfile::TempDir,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The first line of the log that has this in it, once there is one.
    pub(crate) async fn until_said(&self, what: &str) -> String {
        let find = || self.log.lock().iter().find(|line| line.contains(what)).cloned();
        until(what, async || find().is_some()).await;
        find().unwrap()
    }

    /// The lines of its log so far that have this in them.
    pub(crate) fn said(&self, what: &str) -> Vec<String> {
        self.log.lock().iter().filter(|line| line.contains(what)).cloned().collect()
    }

    /// What `ocelli devices` shows of its devices.
    pub(crate) fn devices(&self) -> String {
        let url = format!("http://{}", self.address);
        shown(Command::new(env!("CARGO_BIN_EXE_ocelli")).args(["devices", "--url", &url]))
    }

    /// Sends a request.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        send(self.address, method, path, headers, body.into()).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let reply = self.send("GET", path, &[], Body::empty()).await;
        (reply.status, String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// Waits until it answers requests.
    pub(crate) async fn until_ready(&self) {
        until("ready", async || self.get("/v2/health/ready").await.0 == 200).await;
    }

    /// What it says of a device.
    pub(crate) async fn device(&self, id: &str) -> Value {
        let (_, text) = self.get("/v2/devices").await;
        let told: Value = serde_json::from_str(&text).unwrap();
        let mut devices = told["devices"].as_array().unwrap().iter();
        devices.find(|device| device["id"] == id).unwrap().clone()
    }

    /// Puts another fitter into its folder of models.
    pub(crate) fn add(&self, name: &str, tail: &str) {
        put(self.models.path(), name, tail);
    }

    /// Puts the example that reads digits into its folder of models.
    pub(crate) fn add_digits(&self) {
        let folder = self.models.path().join("digits");
        std::fs::create_dir(&folder).unwrap();
        for file in ["model.onnx", "model.toml", "labels.txt"] {
            std::fs::copy(root().join("examples/models/digits").join(file), folder.join(file)).unwrap();
        }
    }

    /// Waits until the first GPU stands there, for this cause.
    pub(crate) async fn until_state(&self, state: &str, cause: &str) {
        let stands = async || {
            let gpu = self.device(GPU).await;
            gpu["state"] == state && gpu["cause"] == cause
        };
        until(&format!("{state}, {cause}"), stands).await;
    }

    /// Has the first GPU given back and taken anew.
    pub(crate) async fn drain_and_resume(&self) {
        for (what, state, cause) in [("drain", "fenced", "drain"), ("resume", "serving", "proved")] {
            let path = format!("/v2/devices/{GPU}/{what}");
            assert_eq!(self.send("POST", &path, &[], "").await.status, 200);
            self.until_state(state, cause).await;
        }
    }

    /// Waits until a line of the metrics begins with this.
    pub(crate) async fn until_metric(&self, line: &str) {
        until(line, async || self.get("/metrics").await.1.lines().any(|one| one.starts_with(line))).await;
    }

    /// What is found in the example's movie: rows of numbers, and the reply.
    pub(crate) async fn localize_with(&self, headers: &[(&str, &str)]) -> (Vec<Vec<f64>>, Reply) {
        self.localize_by("spots", headers).await
    }

    /// The same, by another model.
    pub(crate) async fn localize_by(&self, model: &str, headers: &[(&str, &str)]) -> (Vec<Vec<f64>>, Reply) {
        let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
        let reply = self.send("POST", &format!("/predictions/{model}?format=csv"), headers, movie).await;
        let text = String::from_utf8_lossy(&reply.body);
        let numbers = |line: &str| line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
        let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1).map(numbers).collect();
        (rows, reply)
    }

    /// The same, answered well.
    pub(crate) async fn localize(&self) -> Vec<Vec<f64>> {
        self.localize_on().await.0
    }

    /// The same, and the devices that answered.
    pub(crate) async fn localize_on(&self) -> (Vec<Vec<f64>>, String) {
        let (rows, reply) = self.localize_with(&[]).await;
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        (rows, reply.headers["ocelli-device"].to_str().unwrap().to_owned())
    }

    /// Sends movies until the GPU has answered one, and gives what was found in it. On a slow machine, a watchdog that bites soon
    /// takes a GPU out that is only slow.
    pub(crate) async fn until_on_gpu(&self) -> Vec<Vec<f64>> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let (rows, device) = self.localize_on().await;
            if device == GPU {
                return rows;
            }
            assert!(Instant::now() < patience, "not answered by the GPU within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The processes that it has started and that are there, zombies aside.
    pub(crate) fn children(&self) -> Vec<u32> {
        let of = |entry: std::fs::DirEntry| {
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            let mut words = rest.split(' ');
            let (state, parent) = (words.next()?, words.next()?.parse::<u32>().ok()?);
            (parent == self.process.id() && state != "Z").then_some(id)
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
    }

    /// Waits for its end: the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }

    /// Ends it as an orchestrator does.
    pub(crate) fn end(mut self) {
        signal("-TERM", self.process.id());
        assert_eq!(self.wait(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The same spots, within what the arithmetic of two devices may differ.
pub(crate) fn near(got: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(got.len(), expected.len());
    for (row, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
        let near = got.iter().zip(expected).take(5).map(off).all(|off| off < 0.02);
        assert!(near, "row {row}: {got:?} and {expected:?}");
    }
}
