//! The server as a process, with its GPU on threads of its own and in a process of its own: the same answers, and what becomes
//! of requests and processes when one of them ends.

use crate::{
    fakes::cuda::{Books, library},
    http::{config, root, send},
};
use axum::body::Body;
use futures_util::future::join_all;
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const GPU: &str = "GPU-fa000000-0000-0000-0000-000000000001";
const ON_CPU: &str = "devices = \"cpu\"";

/// The metric that says that the GPU serves.
fn serving() -> String {
    format!("ocelli_device_state{{device=\"{GPU}\",state=\"serving\"}} 1")
}

/// A running server.
struct Running {
    process: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    books: tempfile::NamedTempFile,
    _models: tempfile::TempDir,
}

impl Running {
    /// With the example's fitter placed as this says, on the fake with this script.
    async fn start(isolation: &str, placement: &str, script: &str) -> Running {
        let models = tempfile::tempdir().unwrap();
        let spots = models.path().join("spots");
        std::fs::create_dir(&spots).unwrap();
        let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
        std::fs::write(spots.join("model.toml"), format!("{manifest}\n[placement]\n{placement}\n")).unwrap();
        let books = tempfile::NamedTempFile::new().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_ocelli"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--isolation", isolation])
            .args(["--isolation-bytes", "16MiB", "--drain-delay-ms", "0", "--models"])
            .arg(models.path())
            .arg("--onnx-runtime")
            .arg(config().onnx_runtime)
            .env("LD_LIBRARY_PATH", library().parent().unwrap())
            .env("FAKE_CUDA", format!("devices;{script}"))
            .env("FAKE_CUDA_BOOKS", books.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (said, lines) = (Arc::clone(&log), BufReader::new(process.stderr.take().unwrap()).lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                said.lock().unwrap().push(line);
            }
        });
        let nowhere = "127.0.0.1:0".parse().unwrap();
        let mut running = Running { process, address: nowhere, log, books, _models: models };
        let line = running.until_said("listening").await;
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = line["fields"]["address"].as_str().or(line["address"].as_str()).unwrap();
        running.address = address.parse().unwrap();
        running.until(async |running| running.get("/v2/health/ready").await.0 == 200).await;
        if placement != ON_CPU {
            running.until(async |running| running.get("/metrics").await.1.contains(&serving())).await;
        }
        running
    }

    async fn until(&self, holds: impl AsyncFn(&Running) -> bool) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !holds(self).await {
            assert!(Instant::now() < patience, "not within a minute");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The first line of the log that has this in it, once there is one.
    async fn until_said(&self, what: &str) -> String {
        let find = || self.log.lock().unwrap().iter().find(|line| line.contains(what)).cloned();
        self.until(async |_| find().is_some()).await;
        find().unwrap()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let reply = send(self.address, "GET", path, &[], Body::empty()).await;
        (reply.status, String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// What is found in the example's movie: rows of numbers.
    async fn localize(&self) -> Vec<Vec<f64>> {
        let movie = std::fs::read(root().join("examples/images/spots.tif")).unwrap();
        let reply = send(self.address, "POST", "/predictions/spots?format=csv", &[], movie.into()).await;
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{text}");
        let numbers = |line: &str| line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
        text.lines().filter(|line| !line.starts_with('#')).skip(1).map(numbers).collect()
    }

    /// The processes that it has started and that are there, zombies aside.
    fn children(&self) -> Vec<u32> {
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

    /// Ends it as an orchestrator does: its exit code, and the books that it left.
    fn end(mut self) -> (Option<i32>, Books) {
        signal("-TERM", self.process.id());
        let code = self.process.wait().unwrap().code();
        let books = serde_json::from_slice(&std::fs::read(self.books.path()).unwrap()).unwrap();
        (code, books)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(which: &str, id: u32) {
    assert!(Command::new("kill").args([which, &id.to_string()]).status().unwrap().success());
}

fn near(got: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(got.len(), expected.len());
    for (row, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
        let worst = got.iter().zip(expected).take(5).map(off).fold(0.0, f64::max);
        assert!(worst < 0.02, "row {row}: {got:?} and {expected:?}");
    }
}

#[tokio::test]
async fn both_ways_give_the_same_and_a_server_whose_gpu_is_apart_makes_no_context() {
    let mut found: Vec<Vec<Vec<f64>>> = Vec::new();
    for isolation in ["thread", "process"] {
        let server = Running::start(isolation, "devices = \"gpu\"", "").await;
        found.push(server.localize().await);
        let children = server.children();
        assert_eq!(children.len(), usize::from(isolation == "process"), "{isolation}: {children:?}");
        let (code, books) = server.end();
        assert_eq!(code, Some(0));
        books.assert_empty();
        assert_eq!(books.devices[0].contexts_made, u64::from(isolation == "thread"), "{isolation}");
        let left = |id: &u32| std::path::Path::new(&format!("/proc/{id}")).exists();
        assert!(!children.iter().any(left), "no process is left");
    }
    assert!(found[0].len() > 100);
    near(&found[1], &found[0]);
}

/// Runs requests while the GPU ends in the way of `script` or `end`: all of them are answered, with the same numbers.
async fn check(isolation: &str, script: &str, end: impl AsyncFn(&Running), told: &str) {
    let reference = Running::start("thread", ON_CPU, "").await;
    let expected = reference.localize().await;
    reference.end();
    let server = Running::start(isolation, "devices = \"all\"\n[batch]\nitems_max = 8", script).await;
    let before = server.children();
    let requests = async {
        for _ in 0..6 {
            for rows in join_all((0..8).map(|_| server.localize())).await {
                near(&rows, &expected);
            }
        }
    };
    tokio::join!(requests, end(&server));
    let line = server.until_said(told).await;
    assert!(line.contains(GPU), "{line}");
    // Taken anew: in the place of the process, there is another.
    if isolation == "process" {
        server.until(async |server| matches!(server.children()[..], [id] if before != [id])).await;
    }
    server.until(async |server| server.get("/metrics").await.1.contains(&serving())).await;
    near(&server.localize().await, &expected);
    assert_eq!(server.end().0, Some(0));
}

#[tokio::test]
async fn no_request_is_lost_when_a_kernel_breaks_the_context_in_either_way() {
    for isolation in ["thread", "process"] {
        check(isolation, "fault on=kernel after=40 code=700", async |_| {}, "illegal").await;
    }
}

#[tokio::test]
async fn no_request_is_lost_when_the_process_of_the_gpu_is_killed() {
    let kill = async |server: &Running| {
        let before = server.children();
        signal("-KILL", before[0]);
    };
    check("process", "fault on=kernel times=always sleep_us=500", kill, "was ended by signal 9").await;
}

#[tokio::test]
async fn no_request_is_lost_when_a_library_aborts_or_reads_where_nothing_is() {
    for number in [6, 11] {
        let script = format!("fault on=kernel after=40 signal={number}");
        check("process", &script, async |_| {}, &format!("was ended by signal {number}")).await;
    }
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_no_process_behind() {
    let server = Running::start("process", "devices = \"gpu\"", "").await;
    let [child] = server.children()[..] else { panic!("one child") };
    signal("-KILL", server.process.id());
    let gone = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    server.until(async |_| gone(child)).await;
}
