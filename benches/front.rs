//! The two ends that the front is measured between: a client that costs little, and a server that does nothing.
//!
//! ```text
//! make bench-front                                        # what calls these
//! cargo bench --bench front -- load ADDRESS FILE CONNECTIONS SECONDS
//! cargo bench --bench front -- echo
//! cargo bench --bench front -- handed
//! ```
//!
//! `load` sends the request in FILE, all of it with its head, over so many connections, each as soon as it has its answer, and
//! prints as JSON what came of it. `echo` is bare axum on a free port of 127.0.0.1, which it prints: it sends each body back.
//! `handed` is the same, but another thread copies each body.

use axum::{Router, body::Bytes, extract::DefaultBodyLimit, routing::post};
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

/// Sends over one connection until `end`; the seconds of each call.
async fn call(address: String, request: Bytes, begin: Instant, end: Instant) -> Vec<f64> {
    let socket = TcpSocket::new_v4().expect("a socket");
    unpaced(&socket);
    let mut stream = socket.connect(address.parse().expect("an address")).await.expect("a server");
    stream.set_nodelay(true).expect("an option of the socket");
    let mut buffer = Vec::with_capacity(request.len() + 4096);
    let mut seconds = Vec::new();
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&request).await.expect("a server that reads");
        answer(&mut stream, &mut buffer).await;
        if sent >= begin {
            seconds.push(sent.elapsed().as_secs_f64());
        }
    }
    seconds
}

async fn load(address: &str, file: &str, connections: usize, seconds: f64) {
    let request = Bytes::from(std::fs::read(file).expect("a request"));
    // The first fifth is warm-up.
    let begin = Instant::now() + Duration::from_secs_f64(seconds / 5.0);
    let end = begin + Duration::from_secs_f64(seconds);
    let calls = (0..connections).map(|_| tokio::spawn(call(address.to_owned(), request.clone(), begin, end)));
    let mut all = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        all.extend(call.await.expect("no panic"));
    }
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((all.len() as f64 * part) as usize).copied().unwrap_or_default() * 1e6;
    println!(
        "{{\"rate\": {:.1}, \"p50_us\": {:.0}, \"p99_us\": {:.0}, \"bytes\": {}}}",
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
            let (connections, seconds) =
                (connections.parse().expect("a number"), seconds.parse().expect("seconds"));
            runtime().block_on(load(address, file, connections, seconds));
        }
        ["echo"] => runtime().block_on(echo()),
        ["handed"] => runtime().block_on(handed()),
        _ => println!("front: make bench-front calls this"),
    }
}
