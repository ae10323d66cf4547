//! The two ends that the front is measured between: a client that costs little, and a server that does nothing.
//!
//! ```text
//! make bench-front                                        # what calls these
//! cargo bench --bench front -- load ADDRESS FILE CONNECTIONS SECONDS
//! cargo bench --bench front -- grpc ADDRESS FILE CONNECTIONS SECONDS
//! cargo bench --bench front -- echo
//! cargo bench --bench front -- handed
//! ```
//!
//! `load` sends the request in FILE, all of it with its head, over so many connections, each as soon as it has its answer, and
//! prints as JSON what came of it. `grpc` does so with calls of `ModelInfer`, of which FILE has the message, each connection with one call
//! at a time, and prints the end of the last answer, too. `echo` is bare axum on a free port of 127.0.0.1, which it prints: it sends each body back.
//! `handed` is the same, but another thread copies each body.

use axum::{Router, body::Bytes, extract::DefaultBodyLimit, http, routing::post};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::SockRef;
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

/// One answer; returns its length. `buffer` is scratch.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> usize {
    buffer.clear();
    let head = loop {
        let read = stream.read_buf(buffer).await.expect("an answer");
        assert!(read > 0, "the connection was closed");
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = std::str::from_utf8(&buffer[..head]).expect("a head");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let value = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    if value("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return chunks(stream, buffer, head).await;
    }
    let length = head + value("content-length").expect("a length").parse::<usize>().expect("a number");
    fill(stream, buffer, length).await;
    length
}

/// Reads on until so many bytes are there.
async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) {
    buffer.reserve(length.saturating_sub(buffer.len()));
    while buffer.len() < length {
        assert!(stream.read_buf(buffer).await.expect("an answer") > 0, "the connection was closed");
    }
}

/// Reads chunks, the first of which begins `at` bytes into the answer, to the last, which is empty; returns where that ends.
async fn chunks(stream: &mut TcpStream, buffer: &mut Vec<u8>, mut at: usize) -> usize {
    loop {
        let Some(line) = buffer[at..].windows(2).position(|window| window == b"\r\n") else {
            fill(stream, buffer, buffer.len() + 1).await;
            continue;
        };
        let size = std::str::from_utf8(&buffer[at..at + line]).expect("a size");
        let size = usize::from_str_radix(size.trim(), 16).expect("a number");
        at += line + 2 + size + 2;
        fill(stream, buffer, at).await;
        if size == 0 {
            return at;
        }
    }
}

/// Has a client, or connections that a listener accepts, send as fast as the other side takes it, as the server does on loopback whatever
/// the machine's congestion control is.
fn unpaced(socket: &impl AsFd) {
    SockRef::from(socket).set_tcp_congestion(b"reno").expect("a control that everybody may choose");
}

/// A connection to the server.
async fn connect(address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    unpaced(&socket);
    let stream = socket.connect(address.parse().expect("an address")).await.expect("a server");
    stream.set_nodelay(true).expect("an option of the socket");
    stream
}

/// What calls over one connection took, in seconds, and the last answer.
#[derive(Default)]
struct Called {
    seconds: Vec<f64>,
    answer: Bytes,
}

/// Sends over one connection until `end`.
async fn call(address: String, request: Bytes, begin: Instant, end: Instant) -> Called {
    let mut stream = connect(&address).await;
    let mut buffer = Vec::with_capacity(request.len() + 4096);
    let mut called = Called::default();
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&request).await.expect("a server that reads");
        answer(&mut stream, &mut buffer).await;
        if sent >= begin {
            called.seconds.push(sent.elapsed().as_secs_f64());
        }
    }
    called
}

/// The same by gRPC.
async fn call_grpc(address: String, message: Bytes, begin: Instant, end: Instant) -> Called {
    let io = TokioIo::new(connect(&address).await);
    // Replies are taken as fast as they come, as gRPC's own clients do.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
    let (mut sender, connection) = builder.handshake(io).await.expect("a server of HTTP/2");
    tokio::spawn(connection);
    // Not compressed, and how long it is.
    let head = [&[0][..], &u32::try_from(message.len()).expect("a message").to_be_bytes()].concat();
    let body = Bytes::from([&head, &message[..]].concat());
    let mut called = Called::default();
    while Instant::now() < end {
        let sent = Instant::now();
        let request =
            http::Request::post(format!("http://{address}/inference.GRPCInferenceService/ModelInfer"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(body.clone()))
                .expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("all of an answer");
        let status = body.trailers().unwrap_or(&head.headers).get("grpc-status");
        assert!(status.is_some_and(|status| status == "0"), "{head:?} {:?}", body.trailers());
        if sent >= begin {
            called.seconds.push(sent.elapsed().as_secs_f64());
        }
        called.answer = body.to_bytes();
    }
    called
}

/// Loads a server over so many connections, each of which `call` keeps busy with the request in a file.
async fn load<F>(
    call: fn(String, Bytes, Instant, Instant) -> F,
    [address, file, connections, seconds]: [&str; 4],
) where
    F: Future<Output = Called> + Send + 'static,
{
    let request = Bytes::from(std::fs::read(file).expect("a request"));
    let (connections, seconds): (usize, f64) =
        (connections.parse().expect("a number"), seconds.parse().expect("seconds"));
    // The first fifth is warm-up.
    let begin = Instant::now() + Duration::from_secs_f64(seconds / 5.0);
    let end = begin + Duration::from_secs_f64(seconds);
    let calls = (0..connections).map(|_| tokio::spawn(call(address.to_owned(), request.clone(), begin, end)));
    let (mut all, mut answer) = (Vec::new(), Bytes::new());
    for call in calls.collect::<Vec<_>>() {
        let called = call.await.expect("no panic");
        all.extend(called.seconds);
        answer = called.answer;
    }
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((all.len() as f64 * part) as usize).copied().unwrap_or_default() * 1e6;
    let end: String =
        answer[answer.len().saturating_sub(64)..].iter().map(|byte| format!("{byte:02x}")).collect();
    println!(
        "{{\"rate\": {:.1}, \"p50_us\": {:.0}, \"p99_us\": {:.0}, \"bytes\": {}, \"end\": \"{end}\"}}",
        all.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        request.len()
    );
}

async fn echo() {
    serve(Router::new().route("/", post(|body: Bytes| async { body }))).await;
}

async fn serve(routes: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    unpaced(&listener);
    println!("{}", listener.local_addr().expect("an address"));
    let routes = routes.layer(DefaultBodyLimit::disable());
    axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))), routes)
        .await
        .expect("a server");
}

/// The least that answers from a thread of its own: [`echo`], where a thread copies each body once, as a session that reads it
/// in place and writes its output does, and the handler waits for it.
async fn handed() {
    let (give, take) = std::sync::mpsc::channel::<(Bytes, tokio::sync::oneshot::Sender<Bytes>)>();
    std::thread::spawn(move || {
        for (body, answer) in take {
            // The caller may be gone.
            let _ = answer.send(Bytes::from(body.to_vec()));
        }
    });
    let handler = move |body: Bytes| {
        let (answer, answered) = tokio::sync::oneshot::channel();
        give.send((body, answer)).expect("the thread lives as long as this");
        async { answered.await.expect("an answer") }
    };
    serve(Router::new().route("/", post(handler))).await;
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match arguments[..] {
        ["load", address, file, connections, seconds] => {
            runtime().block_on(load(call, [address, file, connections, seconds]));
        }
        ["grpc", address, file, connections, seconds] => {
            runtime().block_on(load(call_grpc, [address, file, connections, seconds]));
        }
        ["echo"] => runtime().block_on(echo()),
        ["handed"] => runtime().block_on(handed()),
        _ => println!("front: make bench-front calls this"),
    }
}
