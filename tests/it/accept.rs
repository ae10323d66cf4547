//! Hostile and unlucky clients on real sockets, against the accept loop and what stands behind it. Clocks are short
//! where a test waits for them and long where they must not be what ended a connection.

mod ending;
mod http2;
mod large;
mod turns;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::HeaderMap,
    middleware::{self, Next},
    response::IntoResponse,
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use ocelli::{
    error::InferError,
    http::{
        accept::{Acceptor, Awake, Clocks, Connections, Ended, Eviction, Settings, Stages},
        around::guard::{self, HeadLimits},
        body::{self, BodyLimits, multipart},
    },
};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::Notify,
    task::JoinHandle,
};

/// A clock that a test waits for.
const SHORT: Duration = Duration::from_millis(300);
/// A clock that must not act.
const LONG: Duration = Duration::from_secs(600);
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);
const BODY_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Far more than the buffers between server and client hold.
const LARGE_BYTES: usize = 64 * 1024 * 1024;

fn settings() -> Settings {
    Settings {
        eviction: Eviction::SLOW,
        clocks: Clocks { idle: LONG, header: LONG, write_stall: LONG },
        close_timeout: LONG,
        connections_max: 4096,
    }
}

fn with_clocks(change: impl FnOnce(&mut Clocks)) -> Settings {
    let mut settings = settings();
    change(&mut settings.clocks);
    settings
}

struct Server {
    address: SocketAddr,
    stages: Stages,
    connections: Arc<Connections>,
    ended: JoinHandle<Ended>,
    /// `GET /wait` answers when this is notified.
    go: Arc<Notify>,
    /// How many have asked for it.
    waits: Arc<AtomicUsize>,
    /// How many bodies of `POST /length-soon` have been read, or given up.
    too_slow: Arc<AtomicUsize>,
    /// How many `GET /busy` have been answered.
    busy: Arc<AtomicUsize>,
}

fn limits(bytes_max: u64, deadline: Duration) -> BodyLimits {
    BodyLimits {
        bytes_max,
        deadline,
        grace: LONG,
        rate_min: 0,
        silence_max: Duration::from_secs(3600),
        option: "body_bytes_max",
    }
}

async fn length(request: Request, deadline: Duration) -> Result<String, InferError> {
    let bytes = body::read(request.into_body(), limits(BODY_BYTES_MAX, deadline)).await?;
    Ok(bytes.len().to_string())
}

async fn parts(headers: HeaderMap, body: Bytes) -> Result<String, InferError> {
    let content_type = headers["content-type"].to_str().unwrap();
    let boundary = multipart::boundary(content_type)?.unwrap();
    let parts = multipart::parts(&body, &boundary, 128)?;
    Ok(parts.len().to_string())
}

/// A reply in two large frames.
async fn large_twice() -> Body {
    let frame = Bytes::from(vec![b'x'; LARGE_BYTES]);
    Body::from_stream(stream::iter([frame.clone(), frame].map(Ok::<_, Infallible>)))
}

/// A reply that begins, and reads one piece of the body before it ends.
async fn gives_up(request: Request) -> Body {
    let mut body = request.into_body().into_data_stream();
    let end = async move {
        let read = body.next().await.is_some();
        if read { "given up" } else { "nothing came" }
    };
    Body::from_stream(stream::iter(["begun, "]).chain(stream::once(end)).map(Ok::<_, Infallible>))
}

/// A reply that begins with much, and ends with the body, which is read beside it.
async fn mirror(request: Request) -> Body {
    let (read, behind) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut body = request.into_body().into_data_stream();
        while let Some(Ok(bytes)) = body.next().await {
            let _ = read.send(bytes);
        }
    });
    let behind = stream::unfold(behind, async |mut behind| Some((behind.recv().await?, behind)));
    let much = stream::iter([Bytes::from(vec![b'x'; LARGE_BYTES])]);
    Body::from_stream(much.chain(behind).map(Ok::<_, Infallible>))
}

async fn start(settings: Settings) -> Server {
    start_on(settings, Vec::new()).await
}

/// The same with connections on these threads.
async fn start_on(settings: Settings, threads: Vec<Handle>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let go = Arc::new(Notify::new());
    let (wait, waits) = (Arc::clone(&go), Arc::new(AtomicUsize::new(0)));
    let asked = Arc::clone(&waits);
    let too_slow = Arc::new(AtomicUsize::new(0));
    let ended = Arc::clone(&too_slow);
    let busy = Arc::new(AtomicUsize::new(0));
    let done = Arc::clone(&busy);
    let head = HeadLimits { body_bytes_max: BODY_BYTES_MAX, option: "body_bytes_max", uri_bytes_max: 8192 };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/large", get(|| async { vec![b'x'; LARGE_BYTES] }))
        .route("/large-twice", get(large_twice))
        .route(
            "/wait",
            get(async move || {
                asked.fetch_add(1, Relaxed);
                wait.notified().await;
                "waited"
            }),
        )
        .route("/length", post(|request| length(request, LONG)))
        .route(
            "/length-soon",
            post(async move |request| {
                let told = length(request, SHORT).await;
                ended.fetch_add(1, Relaxed);
                told
            }),
        )
        .route("/parts", post(parts))
        .route("/busy", get(move || turns::busy(done)))
        .route("/gives-up", post(gives_up))
        .route("/mirror", post(mirror))
        .layer(middleware::from_fn(move |request: Request, next: Next| async move {
            match guard::check_head(&request, head) {
                Ok(()) => next.run(request).await,
                Err(problem) => problem.into_response(),
            }
        }))
        // Of any size.
        .route("/whole", post(large::whole));
    let (stages, connections) = (Stages::default(), Arc::new(Connections::default()));
    let acceptor = Acceptor {
        listener,
        settings,
        stages: stages.clone(),
        connections: Arc::clone(&connections),
        threads,
        awake: Some(Awake::default()),
    };
    let ended = tokio::spawn(acceptor.run(router));
    Server { address, stages, connections, ended, go, waits, too_slow, busy }
}

impl Server {
    async fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(bytes.as_ref()).await.unwrap();
        stream
    }

    async fn ended(self) -> Ended {
        soon(self.ended).await.unwrap()
    }
}

/// What `future` gives, if it does not take for ever.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it did not happen")
}

/// Comes back when `event` has happened. For what only a counter shows.
async fn until(event: impl Fn() -> bool) {
    soon(async {
        while !event() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// All that comes until the server closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8(bytes).unwrap()
}

/// One small reply on a connection that stays open.
async fn reply(stream: &mut TcpStream) -> String {
    let mut got = String::new();
    let mut buffer = [0; 1024];
    while !got.ends_with("hello") && !got.ends_with("waited") {
        let count = soon(stream.read(&mut buffer)).await.unwrap();
        assert_ne!(count, 0, "the connection was closed after {got:?}");
        got.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
    got
}

const HELLO: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const CLOSING: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const WAIT: &str = "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n";
const HALF: &str = "GET / HTTP/1.1\r\nHos";

#[tokio::test]
async fn half_sent_headers_are_closed_by_the_header_clock() {
    let server = start(with_clocks(|clocks| clocks.header = SHORT)).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(server.send(HALF).await);
    }
    for stream in streams {
        assert_eq!(rest(stream).await, "");
    }
    assert_eq!(server.connections.ended_header.load(Relaxed), 50);
}

#[tokio::test]
async fn a_kept_alive_connection_outlives_the_header_clock() {
    let server = start(with_clocks(|clocks| clocks.header = SHORT)).await;
    let mut kept = server.send(HELLO).await;
    reply(&mut kept).await;
    // Begun later and ended by the header clock: by then, the first has been idle for longer than that.
    rest(server.send(HALF).await).await;
    kept.write_all(HELLO.as_bytes()).await.unwrap();
    assert!(reply(&mut kept).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn an_idle_connection_is_closed_by_the_idle_clock() {
    let server = start(with_clocks(|clocks| clocks.idle = SHORT)).await;
    assert!(rest(server.send(HELLO).await).await.ends_with("hello"));
    assert_eq!(rest(server.send("").await).await, "");
    assert_eq!(server.connections.ended_idle.load(Relaxed), 2);
}

#[tokio::test]
async fn a_client_that_ends_its_side_still_gets_its_answer() {
    let server = start(settings()).await;
    for _ in 0..20 {
        let mut stream = server.send(WAIT).await;
        stream.shutdown().await.unwrap();
        until(|| server.connections.open.load(Relaxed) == 1).await;
        server.go.notify_one();
        assert!(rest(stream).await.ends_with("waited"));
        until(|| server.connections.open.load(Relaxed) == 0).await;
    }
}

/// Callers that connect without end are answered or refused, and none is reset in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_that_was_made_is_lost_when_the_listener_closes() {
    let server = start(settings()).await;
    let address = server.address;
    let (answered, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..400)
        .map(|_| {
            let (answered, lost) = (Arc::clone(&answered), Arc::clone(&lost));
            tokio::spawn(async move {
                while let Ok(mut stream) = TcpStream::connect(address).await {
                    let mut got = Vec::new();
                    let sent = stream.write_all(CLOSING.as_bytes()).await;
                    let read = stream.read_to_end(&mut got).await;
                    let counter =
                        if sent.is_ok() && read.is_ok() && !got.is_empty() { &answered } else { &lost };
                    counter.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    until(|| answered.load(Relaxed) > 1000).await;
    server.stages.close();
    for caller in callers {
        soon(caller).await.unwrap();
    }
    println!("{} answered, {} lost", answered.load(Relaxed), lost.load(Relaxed));
    assert_eq!(lost.load(Relaxed), 0);
}

#[tokio::test]
async fn a_client_that_is_gone_is_not_waited_for() {
    let server = start(settings()).await;
    let stream = server.send(WAIT).await;
    until(|| server.connections.open.load(Relaxed) == 1).await;
    drop(stream);
    // Nobody lets the request go on.
    until(|| server.connections.open.load(Relaxed) == 0).await;
}

#[tokio::test]
async fn a_body_that_stops_is_answered_408_and_cut() {
    let server = start(settings()).await;
    let stream = server.send("POST /length-soon HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n012").await;
    let reply = rest(stream).await;
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(reply.contains("3 bytes of the body came"), "{reply}");
    assert!(reply.contains("connection: close"), "{reply}");
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_cut() {
    let server = start(with_clocks(|clocks| clocks.write_stall = SHORT)).await;
    let stream = server.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    until(|| server.connections.ended_stalled.load(Relaxed) == 1).await;
    until(|| server.connections.open.load(Relaxed) == 0).await;
    drop(stream);
}

#[tokio::test]
async fn a_client_that_reads_steadily_gets_its_answer_however_long_a_frame_takes() {
    let server = start(with_clocks(|clocks| clocks.write_stall = 6 * SHORT)).await;
    let ask = |path| format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut steady = server.send(ask("/large-twice")).await;
    // Asks later and reads nothing: when it is cut, the other has been reading for longer than the clock allows for 64 KiB.
    let deaf = server.send(ask("/large")).await;
    let (mut got, mut buffer) = (0, vec![0; 256 * 1024]);
    while server.connections.ended_stalled.load(Relaxed) == 0 {
        got += soon(steady.read(&mut buffer)).await.unwrap();
        tokio::time::sleep(SHORT / 20).await;
    }
    got += rest(steady).await.len();
    assert!(got > 2 * LARGE_BYTES, "{got}");
    assert_eq!(server.connections.ended_stalled.load(Relaxed), 1);
    drop(deaf);
}

#[tokio::test]
async fn an_announced_giant_is_refused_before_its_body_is_asked_for() {
    let server = start(settings()).await;
    let head = "POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n";
    let reply = rest(server.send(format!("{head}Expect: 100-continue\r\n\r\n")).await).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert!(!reply.contains("100 Continue"), "{reply}");
    assert!(reply.contains("body_bytes_max"), "{reply}");
    assert!(reply.contains("connection: close"), "{reply}");
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_sends_its_whole_body_first() {
    let server = start(settings()).await;
    let length = BODY_BYTES_MAX as usize + 1;
    let mut request =
        format!("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    request.resize(request.len() + length, b'x');
    let reply = rest(server.send(request).await).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply:?}");
}

#[tokio::test]
async fn a_reply_that_ends_before_its_body_reaches_a_client_that_sends_all_of_that_first() {
    let server = start(settings()).await;
    let mut stream =
        server.send("POST /gives-up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = [b"100000\r\n", vec![b'x'; 1 << 20].as_slice(), b"\r\n"].concat();
    for _ in 0..LARGE_BYTES >> 20 {
        soon(stream.write_all(&chunk)).await.expect("somebody reads on");
    }
    // The connection goes on, too.
    stream.write_all(format!("0\r\n\r\n{CLOSING}").as_bytes()).await.unwrap();
    let both = rest(stream).await;
    assert!(both.contains("begun, ") && both.contains("given up") && both.ends_with("hello"), "{both}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_before_it_has_sent_its_body_is_not_cut_while_it_sends() {
    let server = start(with_clocks(|clocks| clocks.write_stall = 10 * SHORT)).await;
    let mut stream = server
        .send("POST /mirror HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    // The first piece is more than is taken without being read, and then it sends for longer than the clock allows.
    let began = tokio::time::Instant::now();
    while began.elapsed() < 20 * SHORT {
        soon(stream.write_all(b"1\r\nx\r\n")).await.expect("it is not cut");
        tokio::time::sleep(SHORT / 20).await;
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let reply = rest(stream).await;
    assert!(reply.len() > LARGE_BYTES && reply.ends_with("0\r\n\r\n"), "{} bytes", reply.len());
    assert_eq!(server.connections.ended_stalled.load(Relaxed), 0);
}

#[tokio::test]
async fn a_small_body_that_nobody_read_costs_no_connection() {
    let server = start(settings()).await;
    let head = "POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n";
    let mut stream = server.send(format!("{head}\r\n{}{HELLO}", "x".repeat(60_000))).await;
    let both = reply(&mut stream).await;
    assert!(both.starts_with("HTTP/1.1 404") && both.contains("200 OK"), "{both}");
    let waiting = server.send(format!("{head}Expect: 100-continue\r\n\r\n")).await;
    let refused = rest(waiting).await;
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    assert!(refused.contains("connection: close"), "{refused}");
}

#[tokio::test]
async fn who_has_been_too_slow_with_a_body_is_not_waited_for_again() {
    let server = start(settings()).await;
    let head = "POST /length-soon HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
    let mut stream = server.send(format!("{head}one")).await;
    until(|| server.too_slow.load(Relaxed) == 1).await;
    // It comes after all, before anyone could have waited for it in vain.
    stream.write_all(b" and two").await.unwrap();
    let reply = rest(stream).await;
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("connection: close"), "{reply}");
}

#[tokio::test]
async fn tiny_chunks_are_one_body_and_a_flood_of_them_is_cut_off() {
    let server = start(settings()).await;
    let chunks = |count| {
        let head =
            "POST /length HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(count))
    };
    let reply = rest(server.send(chunks(60_000)).await).await;
    assert!(reply.ends_with("\r\n\r\n60000"), "{reply}");
    let reply = rest(server.send(chunks(66_000)).await).await;
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("65537 chunks"), "{reply}");
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_refused_when_it_is_over() {
    let server = start(settings()).await;
    let mut stream =
        server.send("POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let megabyte = [b"100000\r\n".to_vec(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..5 {
        // The last may find the connection closed.
        let _ = stream.write_all(&megabyte).await;
    }
    let reply = rest(stream).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply:?}");
}

#[tokio::test]
async fn fifteen_thousand_parts_are_refused() {
    let server = start(settings()).await;
    let body = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n".repeat(15_000) + "--B--\r\n";
    let head = "POST /parts HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=B\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let reply = rest(server.send(request).await).await;
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains("parts_max"), "{reply}");
}

#[tokio::test]
async fn requests_that_another_server_would_read_differently_are_refused() {
    let server = start(settings()).await;
    let post = "POST /length HTTP/1.1\r\nHost: a\r\n";
    for request in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n".to_owned(),
        format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        format!("{post}Content-Length: +1\r\n\r\na"),
        format!("{post}Transfer-Encoding: gzip\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ] {
        let mut stream = server.send(&request).await;
        stream.shutdown().await.unwrap();
        let reply = rest(stream).await;
        assert!(reply.starts_with("HTTP/1.1 4"), "{request:?} got {reply:?}");
    }
}

#[tokio::test]
async fn at_the_cap_a_client_waits_until_one_that_is_not_idle_ends() {
    let server = start(Settings { connections_max: 2, ..settings() }).await;
    let mut at_work = server.send(WAIT).await;
    // Half a head is no idle connection, however long it is silent.
    let half = server.send(HALF).await;
    until(|| server.waits.load(Relaxed) == 1 && server.connections.accepted.load(Relaxed) == 2).await;
    let mut third = server.send(HELLO).await;
    let counts = || {
        let counts = &server.connections;
        [&counts.capped, &counts.accepted, &counts.ended_evicted].map(|count| count.load(Relaxed))
    };
    until(|| server.connections.full.load(Relaxed) == 1).await;
    assert_eq!(counts(), [1, 2, 0]);
    drop(half);
    assert!(reply(&mut third).await.ends_with("hello"));
    until(|| server.connections.full.load(Relaxed) == 0).await;
    assert_eq!(counts(), [1, 3, 0]);
    server.go.notify_one();
    assert!(reply(&mut at_work).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn at_the_cap_the_connection_makes_room_that_has_been_idle_for_longest() {
    let server = start(Settings { connections_max: 4, ..settings() }).await;
    let at_work = server.send(WAIT).await;
    until(|| server.waits.load(Relaxed) == 1).await;
    let mut kept = server.send(HELLO).await;
    reply(&mut kept).await;
    let silent = server.send("").await;
    until(|| server.connections.accepted.load(Relaxed) == 3).await;
    let mut recent = server.send(HELLO).await;
    reply(&mut recent).await;
    let mut others = Vec::new();
    for (idle_for_longest, waits) in [(kept, true), (silent, false)] {
        let mut other = server.send(HELLO).await;
        if waits {
            // Nobody has been idle for long enough.
            until(|| server.connections.full.load(Relaxed) == 1).await;
        }
        assert!(reply(&mut other).await.ends_with("hello"));
        assert_eq!(rest(idle_for_longest).await, "", "it was ended in order");
        others.push(other);
    }
    recent.write_all(HELLO.as_bytes()).await.unwrap();
    assert!(reply(&mut recent).await.ends_with("hello"));
    assert_eq!(server.connections.ended_evicted.load(Relaxed), 2);
    assert_eq!(server.connections.capped.load(Relaxed), 2);
    drop((at_work, others));
}
