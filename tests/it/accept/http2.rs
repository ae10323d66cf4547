//! HTTP/2 clients, in frames: RFC 9113, section 4.1 for their form.

use super::{
    HELLO, LARGE_BYTES, SHORT, Server, Settings, reply, rest, settings, soon, start, until, with_clocks,
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How often a silent connection is pinged.
const PING: Duration = Duration::from_secs(20);
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Of SETTINGS.
const ACK: u8 = 1;
/// END_STREAM and END_HEADERS.
const WHOLE: u8 = 5;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// GET of a path, in the static table's terms and literals (RFC 7541).
fn get(stream: u32, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'a', 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    frame(HEADERS, WHOLE, stream, &block)
}

/// POST to a path, whose body follows.
fn post(stream: u32, path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x01, 1, b'a', 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    frame(HEADERS, END_HEADERS, stream, &block)
}

fn cancel(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

async fn connect(server: &Server, settings: &[u8]) -> TcpStream {
    server.send([PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await
}

/// The next frame: its kind, stream and payload. `None` at the end of the connection.
async fn next(stream: &mut TcpStream) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    soon(stream.read_exact(&mut head)).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let mut payload = vec![0; length];
    soon(stream.read_exact(&mut payload)).await.ok()?;
    Some((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// Reads on to the first frame of a kind.
async fn first(stream: &mut TcpStream, wanted: u8) -> Option<(u32, Vec<u8>)> {
    while let Some((kind, id, payload)) = next(stream).await {
        if kind == wanted {
            return Some((id, payload));
        }
        assert_ne!(kind, GOAWAY, "{payload:?}");
    }
    None
}

#[tokio::test]
async fn http_2_is_spoken_on_the_same_port() {
    let server = start(settings()).await;
    let client: Client<_, http_body_util::Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let uri: http::Uri = format!("http://{}/", server.address).parse().unwrap();
    let reply = soon(client.get(uri)).await.unwrap();
    assert_eq!((reply.status().as_u16(), reply.version()), (200, http::Version::HTTP_2));
}

#[tokio::test]
async fn a_connection_says_how_many_requests_it_may_have_at_once() {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    let (_, told) = first(&mut stream, SETTINGS).await.unwrap();
    // SETTINGS_MAX_CONCURRENT_STREAMS, as docs/api.md has it.
    assert!(told.chunks(6).any(|setting| setting == [0, 3, 0, 0, 1, 0]), "{told:?}");
}

/// Sends a body of three windows to a path that does not read it, most of it after the reply has come; the status' block.
async fn sent_after_its_reply(path: &str) -> Vec<u8> {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    // Its windows count from when it is told that they have been heard of.
    first(&mut stream, SETTINGS).await.unwrap();
    stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
    let piece = frame(DATA, 0, 1, &[b'x'; 16 * 1024]);
    stream.write_all(&[post(1, path), piece.clone()].concat()).await.unwrap();
    let (id, reply) = first(&mut stream, HEADERS).await.unwrap();
    assert_eq!(id, 1);
    // A stream has 1 MiB, and more as that is read.
    let (mut window, mut left) = (63 * 16 * 1024, 3 * 64);
    while left > 0 {
        while window >= 16 * 1024 && left > 0 {
            stream.write_all(&piece).await.unwrap();
            (window, left) = (window - 16 * 1024, left - 1);
        }
        match next(&mut stream).await.expect("the connection goes on") {
            (WINDOW_UPDATE, 1, more) => window += u32::from_be_bytes(more.try_into().unwrap()),
            (kind, id, told) => assert!(
                ![RST_STREAM, GOAWAY].contains(&kind),
                "{kind} of {id}: {told:?} with {left} pieces left"
            ),
        }
    }
    // The connection is as good as before.
    stream.write_all(&[frame(DATA, END_STREAM, 1, &[]), get(3, "/")].concat()).await.unwrap();
    loop {
        match next(&mut stream).await.expect("the connection goes on") {
            (HEADERS, 3, _) => return reply,
            (kind, ..) => assert!(![RST_STREAM, GOAWAY].contains(&kind), "{kind}"),
        }
    }
}

#[tokio::test]
async fn a_refusal_is_not_overtaken_by_a_reset_while_the_body_still_comes() {
    // 404, in the static table.
    assert_eq!(sent_after_its_reply("/none").await[0], 0x8d);
}

#[tokio::test]
async fn a_reply_that_ends_before_its_body_is_not_overtaken_by_a_reset() {
    // 200.
    assert_eq!(sent_after_its_reply("/gives-up").await[0], 0x88);
}

#[tokio::test]
async fn a_rapid_reset_is_told_to_go_away() {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    let flood: Vec<u8> =
        (0..1000).flat_map(|i| [get(2 * i + 1, "/wait"), cancel(2 * i + 1)].concat()).collect();
    // The end may find the connection closed.
    let _ = stream.write_all(&flood).await;
    let (_, payload) = first(&mut stream, GOAWAY).await.unwrap();
    assert_eq!(payload[4..8], 11u32.to_be_bytes(), "ENHANCE_YOUR_CALM");
}

#[tokio::test]
async fn a_proxy_may_cancel_two_thousand_requests_on_one_connection() {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    let mut id = 1;
    for _ in 0..2000 / 20 {
        // Each batch of requests is at work before it is cancelled: a request behind it has been answered.
        for _ in 0..20 {
            stream.write_all(&get(id, "/wait")).await.unwrap();
            id += 2;
        }
        stream.write_all(&get(id, "/")).await.unwrap();
        assert_eq!(first(&mut stream, HEADERS).await.unwrap().0, id);
        for cancelled in 0..20 {
            stream.write_all(&cancel(id - 2 - 2 * cancelled)).await.unwrap();
        }
        id += 2;
    }
    stream.write_all(&get(id, "/")).await.unwrap();
    assert_eq!(first(&mut stream, HEADERS).await.unwrap().0, id);
}

#[tokio::test]
async fn an_unused_connection_is_not_a_half_sent_header() {
    let server = start(with_clocks(|clocks| clocks.header = SHORT)).await;
    let mut unused = connect(&server, &[]).await;
    rest(server.send(super::HALF).await).await;
    unused.write_all(&get(1, "/")).await.unwrap();
    assert_eq!(first(&mut unused, HEADERS).await.unwrap().0, 1);
}

#[tokio::test]
async fn a_half_preface_is_a_half_sent_header() {
    let server = start(with_clocks(|clocks| clocks.header = SHORT)).await;
    assert_eq!(rest(server.send(&PREFACE[..10]).await).await, "");
}

#[tokio::test]
async fn a_window_that_never_opens_does_not_hold_an_answer_for_ever() {
    let server = start(with_clocks(|clocks| clocks.write_stall = SHORT)).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 0.
    let mut stream = connect(&server, &[0, 4, 0, 0, 0, 0]).await;
    stream.write_all(&get(1, "/large")).await.unwrap();
    assert_eq!(first(&mut stream, HEADERS).await.unwrap().0, 1);
    until(|| server.connections.ended_stalled.load(Relaxed) == 1).await;
    while next(&mut stream).await.is_some() {}
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_reset_and_the_others_of_its_connection_go_on() {
    // The second is of a request whose body has not ended.
    for ask in [get(1, "/large"), post(1, "/gives-up")] {
        let server = start(with_clocks(|clocks| clocks.write_stall = SHORT)).await;
        // SETTINGS_INITIAL_WINDOW_SIZE = 0.
        let mut stream = connect(&server, &[0, 4, 0, 0, 0, 0]).await;
        let window = frame(WINDOW_UPDATE, 0, 3, &1000u32.to_be_bytes());
        stream.write_all(&[ask, get(3, "/wait"), window].concat()).await.unwrap();
        let (id, reason) = first(&mut stream, RST_STREAM).await.expect("the connection goes on");
        assert_eq!((id, &reason[..]), (1, &8u32.to_be_bytes()[..]), "CANCEL");
        server.go.notify_one();
        let (id, reply) = first(&mut stream, DATA).await.expect("the connection goes on");
        assert_eq!((id, &reply[..]), (3, &b"waited"[..]));
        let counted = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let counts = [&server.connections.streams_reset, &server.connections.ended_stalled];
        assert_eq!(counts.map(counted), [1, 0]);
        // Nothing but an answer that is not taken.
        stream.write_all(&get(5, "/large")).await.unwrap();
        let mut told = Vec::new();
        while let Some((kind, id, _)) = next(&mut stream).await {
            told.push((kind, id));
        }
        assert!(told.contains(&(RST_STREAM, 5)) && told.contains(&(GOAWAY, 0)), "{told:?}");
        assert_eq!(counts.map(counted), [2, 1]);
    }
}

#[tokio::test]
async fn an_answer_that_waits_for_what_another_holds_of_the_window_is_not_reset_with_it() {
    let server = start(with_clocks(|clocks| clocks.write_stall = 5 * SHORT)).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 1 MiB. The connection has 65,535 bytes for both, which the first fills.
    let mut stream = connect(&server, &[0, 4, 0, 16, 0, 0]).await;
    stream.write_all(&[get(1, "/large"), get(3, "/")].concat()).await.unwrap();
    let mut held = 0;
    while held < 65_535 {
        let (id, data) = first(&mut stream, DATA).await.unwrap();
        assert_eq!(id, 1);
        held += data.len();
    }
    assert_eq!(first(&mut stream, RST_STREAM).await.expect("the connection goes on").0, 1);
    // As a library does with what nobody has read of a stream that has ended.
    stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &65_535u32.to_be_bytes())).await.unwrap();
    let (id, reply) = loop {
        match next(&mut stream).await.expect("the connection goes on") {
            (DATA, id, reply) => break (id, reply),
            (kind, ..) => assert!(![RST_STREAM, GOAWAY].contains(&kind), "{kind}"),
        }
    };
    assert_eq!((id, &reply[..]), (3, &b"hello"[..]));
    assert_eq!(server.connections.streams_reset.load(Relaxed), 1);
}

#[tokio::test]
async fn a_reply_that_waits_whole_for_its_window_has_its_time_after_the_last_that_is_not_taken_was_reset() {
    let server = start(with_clocks(|clocks| {
        clocks.write_stall = 20 * SHORT;
        clocks.header = 5 * SHORT;
    }))
    .await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 0.
    let mut stream = connect(&server, &[0, 4, 0, 0, 0, 0]).await;
    let window = |bytes: u32| frame(WINDOW_UPDATE, 0, 3, &bytes.to_be_bytes());
    stream.write_all(&[get(1, "/large"), get(3, "/"), window(3)].concat()).await.unwrap();
    let (id, begun) = first(&mut stream, DATA).await.unwrap();
    assert_eq!((id, &begun[..]), (3, &b"hel"[..]));
    // Beside it, the client is told to go away.
    while !matches!(next(&mut stream).await.expect("the connection goes on"), (RST_STREAM, 1, _)) {}
    // Longer than a client has to hear that it is to go away.
    rest(server.send(super::HALF).await).await;
    stream.write_all(&window(2)).await.unwrap();
    loop {
        match next(&mut stream).await.expect("the reply comes whole") {
            (DATA, id, data) => return assert_eq!((id, &data[..]), (3, &b"lo"[..])),
            (kind, ..) => assert_ne!(kind, RST_STREAM),
        }
    }
}

#[tokio::test]
async fn who_pauses_in_a_body_that_was_refused_does_not_keep_an_answer_waiting() {
    let server = start(with_clocks(|clocks| clocks.write_stall = SHORT)).await;
    let mut pausing = connect(&server, &[]).await;
    let begun = [post(1, "/none"), frame(DATA, 0, 1, &[b'x'; 1024])].concat();
    pausing.write_all(&begun).await.unwrap();
    assert_eq!(first(&mut pausing, HEADERS).await.unwrap().0, 1);
    // Begins to stall later, and is cut. SETTINGS_INITIAL_WINDOW_SIZE = 0.
    let mut deaf = connect(&server, &[0, 4, 0, 0, 0, 0]).await;
    deaf.write_all(&get(1, "/large")).await.unwrap();
    until(|| server.connections.ended_stalled.load(Relaxed) == 1).await;
    pausing.write_all(&get(3, "/")).await.unwrap();
    assert_eq!(first(&mut pausing, HEADERS).await.expect("the connection goes on").0, 3);
    assert_eq!(server.connections.ended_stalled.load(Relaxed), 1);
}

#[tokio::test]
async fn an_answer_that_waits_for_its_window_is_not_idle() {
    let server = start(with_clocks(|clocks| clocks.idle = SHORT)).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 1000.
    let mut stream = connect(&server, &[0, 4, 0, 0, 3, 232]).await;
    stream.write_all(&get(1, "/large")).await.unwrap();
    let mut got = first(&mut stream, DATA).await.unwrap().1.len();
    assert_eq!(got, 1000);
    // Begins to be idle later, and is ended.
    assert_eq!(rest(server.send("").await).await, "");
    assert_eq!(server.connections.ended_idle.load(Relaxed), 1);
    let more = (LARGE_BYTES as u32).to_be_bytes();
    for id in [0, 1] {
        stream.write_all(&frame(WINDOW_UPDATE, 0, id, &more)).await.unwrap();
    }
    while got < LARGE_BYTES {
        got += first(&mut stream, DATA).await.expect("the whole answer").1.len();
    }
}

#[tokio::test]
async fn a_drain_says_goaway_and_answers_what_was_asked() {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    stream.write_all(&get(1, "/wait")).await.unwrap();
    stream.write_all(&get(3, "/")).await.unwrap();
    assert_eq!(first(&mut stream, HEADERS).await.unwrap().0, 3);
    server.stages.drain();
    let mut went = false;
    while let Some((kind, id, payload)) = next(&mut stream).await {
        if kind == GOAWAY && !went {
            went = true;
            assert_eq!(payload[4..8], [0; 4], "NO_ERROR");
            server.go.notify_one();
        }
        if kind == HEADERS {
            assert_eq!((id, went), (1, true));
            return;
        }
    }
    panic!("the request was not answered");
}

#[tokio::test]
async fn a_connection_that_opens_in_a_drain_is_told_to_go_when_the_listener_closes_and_is_read_to_its_end() {
    const PING: u8 = 6;
    let server = start(settings()).await;
    server.stages.drain();
    let mut stream = connect(&server, &[]).await;
    for request in [1, 3, 5] {
        stream.write_all(&get(request, "/")).await.unwrap();
        assert_eq!(first(&mut stream, HEADERS).await.unwrap().0, request);
    }
    server.stages.close();
    let mut went = false;
    while let Some((kind, _, payload)) = next(&mut stream).await {
        went |= kind == GOAWAY;
        if kind == PING {
            stream.write_all(&frame(PING, ACK, 0, &payload)).await.unwrap();
        }
    }
    assert!(went, "it was told");
    // What was under way is no reason to reset the connection: that would overtake the last replies.
    for _ in 0..2 {
        stream.write_all(&get(7, "/")).await.expect("it is read still");
    }
}

#[tokio::test]
async fn what_a_client_is_told_of_its_error_is_not_overtaken_by_a_reset() {
    let server = start(settings()).await;
    let mut stream = connect(&server, &[]).await;
    // Of a stream that never began: section 5.1.
    stream.write_all(&frame(WINDOW_UPDATE, 0, 9, &1u32.to_be_bytes())).await.unwrap();
    let mut told = None;
    while let Some((kind, _, payload)) = next(&mut stream).await {
        if kind == GOAWAY {
            told = Some(payload[4..8].to_vec());
        }
    }
    assert_eq!(told, Some(1u32.to_be_bytes().to_vec()), "PROTOCOL_ERROR");
    for _ in 0..2 {
        stream.write_all(&get(1, "/")).await.expect("it is read still");
    }
}

#[tokio::test]
async fn an_idle_connection_that_is_to_make_room_is_told_and_ended_whether_it_hears_or_not() {
    let server = start(Settings { connections_max: 2, ..settings() }).await;
    let (mut deaf, mut later) = (connect(&server, &[]).await, connect(&server, &[]).await);
    for stream in [&mut deaf, &mut later] {
        first(stream, SETTINGS).await.unwrap();
    }
    let mut other = server.send(HELLO).await;
    assert!(reply(&mut other).await.ends_with("hello"));
    let mut told = Vec::new();
    while let Some((kind, ..)) = next(&mut deaf).await {
        told.push(kind);
    }
    assert!(told.contains(&GOAWAY), "{told:?}");
    assert_eq!(server.connections.ended_evicted.load(Relaxed), 1, "one goes for one");
}

#[tokio::test]
async fn who_begins_while_the_listener_closes_and_hears_nothing_does_not_hold_up_the_end() {
    let server = start(settings()).await;
    let mut deaf = server.send("").await;
    until(|| server.connections.accepted.load(Relaxed) == 1).await;
    server.stages.close();
    deaf.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    // hyper would wait for 40 s for it to say that it has heard.
    let ended = tokio::time::timeout(PING, server.ended()).await.expect("it ends before that");
    assert_eq!(ended.connections_dropped, 0);
}

#[tokio::test]
async fn an_answer_that_waits_whole_for_its_window_is_not_lost_when_its_idle_connection_makes_room() {
    let server = start(Settings { connections_max: 2, ..settings() }).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 1.
    let mut slow = connect(&server, &[0, 4, 0, 0, 0, 1]).await;
    slow.write_all(&get(1, "/")).await.unwrap();
    assert_eq!(first(&mut slow, DATA).await.unwrap(), (1, b"h".to_vec()));
    let mut deaf = connect(&server, &[]).await;
    first(&mut deaf, SETTINGS).await.unwrap();
    // The slow one is evicted first, and the other while it does not go: that takes longer than a farewell.
    assert!(reply(&mut server.send(HELLO).await).await.ends_with("hello"));
    assert_eq!(server.connections.ended_evicted.load(Relaxed), 2);
    slow.write_all(&frame(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes())).await.unwrap();
    let data = loop {
        match next(&mut slow).await.expect("it goes on until it is read") {
            (DATA, _, data) => break data,
            _ => continue,
        }
    };
    assert_eq!(data, b"ello");
}
