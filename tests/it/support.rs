//! A whole server in this process, on free ports, and a client for it.

use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use ocelli::{
    app::{App, Undone},
    config::{Backend, Config},
};
use serde_json::Value;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A held-out digit that is a 3, as a PNG.
pub(crate) fn three() -> Vec<u8> {
    std::fs::read(root().join("examples/images/digits/3-0.png")).expect("an example image")
}

/// Where ONNX Runtime is: as the environment says, or where `make` puts it.
fn onnx_runtime() -> PathBuf {
    let path = std::env::var_os("ORT_DYLIB_PATH")
        .map_or_else(|| root().join(".lib/libonnxruntime.so.1.31.1"), PathBuf::from);
    assert!(path.exists(), "{} is missing: run `make ort` once, or set ORT_DYLIB_PATH", path.display());
    path
}

/// A running server. Dropping it without [`Server::end`] leaves its threads to the end of the process, but where a test has
/// failed: then it ends, so that it has no GPU that the next test counts on.
pub(crate) struct Server {
    app: Option<App>,
    /// Where the API is.
    pub(crate) address: SocketAddr,
    /// Where health is, apart from it.
    pub(crate) admin: SocketAddr,
    _models: Option<tempfile::TempDir>,
}

/// The example models on free ports, and short clocks for the end.
pub(crate) fn config() -> Config {
    let free = "127.0.0.1:0".parse().expect("an address");
    Config {
        listen: vec![free],
        admin_listen: Some(free),
        models: root().join("examples/models"),
        backend: Backend::Cpu,
        // Other tests of this machine have GPUs of the same names.
        gpu_queue_folder: None,
        onnx_runtime: onnx_runtime(),
        drain_delay_ms: Duration::from_millis(200),
        drain_timeout_ms: Duration::from_secs(20),
        ..Config::default()
    }
}

/// A folder with the digits classifier under each of these manifests.
pub(crate) fn digits_with(manifests: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, manifest) in manifests {
        let from = root().join("examples/models/digits");
        let to = folder.path().join(name);
        std::fs::create_dir_all(&to).expect("a folder");
        for file in ["model.onnx", "labels.txt"] {
            std::fs::copy(from.join(file), to.join(file)).expect("a copy");
        }
        std::fs::write(to.join("model.toml"), manifest).expect("a manifest");
    }
    folder
}

/// What the digits classifier's manifest says of its images.
pub(crate) const DIGITS: &str = "task = \"classify\"\nlabels = \"labels.txt\"\n[input]\nresize = \"stretch\"\ncolor = \"gray\"\n\
                          scale = 0.00392156862745098\nmean = [0.0]\nstd = [1.0]\n";

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Its status.
    pub(crate) status: u16,
    /// Its headers.
    pub(crate) headers: http::HeaderMap,
    /// Its body.
    pub(crate) body: bytes::Bytes,
}

impl Reply {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }
}

impl Server {
    /// Starts with this configuration and waits until it is ready.
    pub(crate) async fn start(config: Config) -> Server {
        let server = Server::start_without_waiting(config, None).await;
        server.wait_until(|server| server.ready().is_ok()).await;
        server
    }

    /// Starts with the models in a temporary folder, which lives as long as the server.
    pub(crate) async fn start_with(models: tempfile::TempDir, config: Config) -> Server {
        let config = Config { models: models.path().to_owned(), ..config };
        let server = Server::start_without_waiting(config, Some(models)).await;
        server.wait_until(|server| server.ready().is_ok()).await;
        server
    }

    /// Starts, and returns while models load.
    pub(crate) async fn start_without_waiting(config: Config, models: Option<tempfile::TempDir>) -> Server {
        let app = App::start(config, None).await.expect("the server starts");
        let (address, admin) = (app.addresses().api[0], app.addresses().admin.expect("an admin listener"));
        Server { app: Some(app), address, admin, _models: models }
    }

    fn app(&self) -> &App {
        self.app.as_ref().expect("until it ends")
    }

    /// Whether it is ready, or why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        self.app().status().ready(Instant::now())
    }

    /// Where each device stands.
    pub(crate) fn devices(&self) -> Vec<ocelli::status::Device> {
        self.app().status().devices()
    }

    /// Polls until something holds; five minutes are for slow machines, not for the thing itself.
    pub(crate) async fn wait_until(&self, holds: impl Fn(&Server) -> bool) {
        let patience = Instant::now() + Duration::from_secs(300);
        while !holds(self) {
            assert!(Instant::now() < patience, "not within five minutes; ready says {:?}", self.ready());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends a request to the API.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        send(self.address, method, path, headers, body.into()).await
    }

    /// Asks the classifier for an inference whose data follows its head.
    pub(crate) async fn infer_binary(&self, head: &Value, data: &[u8], accept: &str) -> Reply {
        let head = head.to_string();
        let length = head.len().to_string();
        let headers = [("inference-header-content-length", length.as_str()), ("accept", accept)];
        self.send("POST", "/v2/models/digits/infer", &headers, [head.as_bytes(), data].concat()).await
    }

    /// Gets something from the API.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], Body::empty()).await
    }

    /// Starts with a model `slow` whose batches wait for company for ten seconds. It has run once: before that there is
    /// nothing to measure a deadline by, and nothing waits.
    pub(crate) async fn start_slow(config: Config) -> Server {
        let manifest = format!("{DIGITS}[batch]\nitems_max = 8\nwait_ms_max = 10000\n");
        let server = Server::start_with(digits_with(&[("slow", &manifest)]), config).await;
        assert_eq!(server.send("POST", "/predictions/slow", &[], three()).await.status, 200);
        // A place is given back after the reply went out.
        until_metrics(server.address, &["ocelli_requests_in_flight 0"]).await;
        server
    }

    /// Drains, and says what was left undone.
    pub(crate) async fn end(self) -> Undone {
        self.end_at(&CancellationToken::new()).await
    }

    /// Drains, until told to end now.
    pub(crate) async fn end_at(mut self, now: &CancellationToken) -> Undone {
        self.app.take().expect("it ends once").drain(now).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(app) = self.app.take().filter(|_| std::thread::panicking()) else { return };
        let now = CancellationToken::new();
        now.cancel();
        // This thread's runtime is what fails; and where it alone could end connections, they are not waited for.
        let end = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let patience = Duration::from_secs(2);
            runtime.map(|runtime| {
                runtime.block_on(async { tokio::time::timeout(patience, app.drain(&now)).await })
            })
        };
        // The test has failed already.
        let _ = std::thread::spawn(end).join();
    }
}

/// Reads the metrics until all of these lines are among them.
pub(crate) async fn until_metrics(address: SocketAddr, lines: &[&str]) {
    let all = |text: &str| lines.iter().all(|line| text.lines().any(|l| l == *line));
    until_metrics_are(address, &format!("{lines:?} are all there"), all).await;
}

/// Reads the metrics until this holds of them.
pub(crate) async fn until_metrics_are(address: SocketAddr, what: &str, holds: impl Fn(&str) -> bool) {
    let patience = Instant::now() + Duration::from_secs(300);
    loop {
        let text = send(address, "GET", "/metrics", &[], Body::empty()).await.body;
        let text = String::from_utf8_lossy(&text);
        if holds(&text) {
            return;
        }
        assert!(Instant::now() < patience, "not within five minutes: {what}\n{text}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Sends a request.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Reply {
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
    let mut request = http::Request::builder().method(method).uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let reply = client.request(request.body(body).expect("a request")).await.expect("a reply");
    let (parts, body) = reply.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Reply { status: parts.status.as_u16(), headers: parts.headers, body }
}
